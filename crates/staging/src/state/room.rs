//! A volume's room on flash, and the writes that wait for more.

use std::collections::VecDeque;
use tokio::sync::oneshot;

/// The flash that a volume takes, and the writes that wait for room on it.
pub(crate) struct Room {
    /// Flash that unfinished changes take, with the room promised to writes that waited.
    pub(crate) bytes: u64,
    /// Writes that wait for room, with their costs; first come first served.
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl Room {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, waiting: VecDeque::new() }
    }

    /// Gives `cost` bytes back.
    pub(crate) fn leave(&mut self, cost: u64) {
        assert!(cost <= self.bytes, "no more is given back than was taken");
        self.bytes -= cost;
    }

    /// Count of the writes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Registers a write that waits for room.
    pub(crate) fn wait(&mut self, cost: u64) -> oneshot::Receiver<()> {
        let (waiter, told) = oneshot::channel();
        self.waiting.push_back((cost, waiter));
        told
    }

    /// The cost of the write that waits first.
    pub(crate) fn next_cost(&self) -> Option<u64> {
        self.waiting.front().map(|(cost, _)| *cost)
    }

    /// Lets the first write in. Whether its caller still waits.
    pub(crate) fn admit(&mut self) -> bool {
        self.waiting.pop_front().is_some_and(|(_, waiter)| waiter.send(()).is_ok())
    }

    /// Turns all waiting writes away. Returns their count.
    pub(crate) fn turn_away(&mut self) -> usize {
        self.waiting.drain(..).count()
    }
}
