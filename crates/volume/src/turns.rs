//! Taking turns at a name: who holds the turn may give or take the name; others wait.

use parking_lot::Mutex;
use std::collections::HashSet;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Turns {
    taken: Mutex<HashSet<String>>,
    freed: Notify,
}

/// A turn; over when dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    name: String,
}

impl Turns {
    /// Names whose turn is taken, at most `most`.
    pub fn taken(&self, most: usize) -> Vec<String> {
        let mut names: Vec<String> = self.taken.lock().iter().take(most).cloned().collect();
        names.sort_unstable();
        names
    }

    /// Waits for the turn at `name`.
    pub async fn take(&self, name: &str) -> Turn<'_> {
        loop {
            let freed = self.freed.notified();
            if self.taken.lock().insert(name.to_owned()) {
                return Turn { turns: self, name: name.to_owned() };
            }
            freed.await;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().remove(&self.name);
        self.turns.freed.notify_waiters();
    }
}
