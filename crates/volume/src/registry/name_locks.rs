//! Name locks: the task that holds the lock of a name may give or take the name; others wait.

use parking_lot::Mutex;
use std::collections::HashSet;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct NameLocks {
    taken: Mutex<HashSet<String>>,
    freed: Notify,
}

/// The lock of a name; dropping it frees the name.
pub(crate) struct NameLock<'a> {
    name_locks: &'a NameLocks,
    name: String,
}

impl NameLocks {
    /// Lists locked names, at most `most`.
    pub fn taken(&self, most: usize) -> Vec<String> {
        let mut names: Vec<String> = self.taken.lock().iter().take(most).cloned().collect();
        names.sort_unstable();
        names
    }

    /// Waits for the locks of two names, always in the same order; for one lock if the names are
    /// the same.
    pub async fn take_both(&self, one: &str, other: &str) -> (NameLock<'_>, Option<NameLock<'_>>) {
        let first = self.take(one.min(other)).await;
        let second = match one == other {
            true => None,
            false => Some(self.take(one.max(other)).await),
        };
        (first, second)
    }

    /// Waits for the lock of `name`.
    pub async fn take(&self, name: &str) -> NameLock<'_> {
        loop {
            let freed = self.freed.notified();
            if self.taken.lock().insert(name.to_owned()) {
                return NameLock { name_locks: self, name: name.to_owned() };
            }
            freed.await;
        }
    }
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        self.name_locks.taken.lock().remove(&self.name);
        self.name_locks.freed.notify_waiters();
    }
}
