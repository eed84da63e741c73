//! A write on its way into the volume: a piece at a time, each when the volume lets it in. Bytes
//! that have to wait stay in the session's buffer, and those behind them in the client's socket.

use crate::nbd::target::Target;
use rekindle_base::limits::CHANGE_BYTES_MAX;
use rekindle_block::Gathered;
use rekindle_env::BoxFuture;
use rekindle_staging::{Quantum, Written};
use rekindle_volume::Error;
use std::task::{Context, Poll};

/// The write that is being submitted; empty between two writes.
#[derive(Default)]
pub(super) struct Writing {
    /// Bytes of the payload that are submitted.
    done: usize,
    gathered: Gathered,
    /// The session's quantum, while it lasts.
    quantum: Option<Quantum>,
    /// The quantum that the write waits for.
    waiting: Option<BoxFuture<'static, Quantum>>,
}

impl Writing {
    /// Submits the rest of a write. Returns `None` when the session's next quantum must come first:
    /// the same write is submitted again then. `under_way`: bytes of the session's earlier writes
    /// that are not acknowledged.
    pub(super) fn submit<D: Target>(
        &mut self,
        device: &D,
        under_way: usize,
        (offset, payload, durable): (u64, &[u8], bool),
    ) -> Option<Result<Written, Error>> {
        let most = usize::try_from(CHANGE_BYTES_MAX).expect("a change fits into memory");
        while self.done < payload.len() {
            let piece = &payload[self.done..payload.len().min(self.done + most)];
            let (under_way, bytes) = ((under_way + self.done) as u64, piece.len() as u64);
            let has_turn = self.quantum.as_mut().is_some_and(|quantum| quantum.take(bytes));
            if !has_turn && !device.admits(under_way, bytes) {
                self.wait(device);
                return None;
            }
            match device.write(offset + self.done as u64, piece, durable) {
                Ok(written) => self.gathered.add(written),
                Err(error) => {
                    self.give_up();
                    return Some(Err(error));
                }
            }
            self.done += piece.len();
        }
        let gathered = std::mem::take(&mut self.gathered);
        self.give_up();
        Some(Ok(device.all(gathered)))
    }

    /// Forgets the write: it is refused, submitted as a whole, or its client is gone. Its pieces so
    /// far stay.
    pub(super) fn give_up(&mut self) {
        self.done = 0;
        self.gathered = Gathered::default();
        self.waiting = None;
    }

    /// Gives back what is left of the quantum: the writes of other sessions wait for that.
    pub(super) fn end_quantum(&mut self) {
        self.quantum = None;
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    fn wait<D: Target>(&mut self, device: &D) {
        let device = device.clone();
        self.waiting.get_or_insert_with(|| Box::pin(async move { device.quantum().await }));
    }

    /// Polls the quantum that the write waits for; returns whether it has come.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Some(Poll::Ready(quantum)) = self.waiting.as_mut().map(|it| it.as_mut().poll(context))
        else {
            return false;
        };
        self.waiting = None;
        self.quantum = Some(quantum);
        true
    }
}
