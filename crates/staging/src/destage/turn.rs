//! The destager's place at one volume: while another task has it, no batch of the volume runs.

use crate::ack::staged::Staged;

/// The destager's place; given back when dropped.
pub(crate) struct Turn<'a>(&'a Staged);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.send_replace(false);
        self.0.inner.destager.wake();
    }
}

impl Staged {
    /// Whether a task waits for the destager's place.
    pub(crate) fn is_turn_wanted(&self) -> bool {
        self.busy.receiver_count() > 0
    }

    /// Takes the destager's place as soon as no batch is in hand.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        let mut busy = self.busy.subscribe();
        loop {
            {
                let _gate = self.gate.lock();
                if !*self.busy.borrow() {
                    self.busy.send_replace(true);
                    return Turn(self);
                }
            }
            // The sender lives as long as `self`.
            let _ = busy.wait_for(|busy| !busy).await;
        }
    }
}
