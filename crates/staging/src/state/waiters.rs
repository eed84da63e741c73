//! The callers that wait for the datastore.

use crate::Error;
use rekindle_base::Serial;
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// The sender that tells a waiting caller how its wait ended.
pub(crate) type Waiter = oneshot::Sender<Result<(), Error>>;
/// The outcome of a wait for the datastore.
pub(crate) type Told = oneshot::Receiver<Result<(), Error>>;

/// The callers that wait until the datastore has everything up to a serial.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Serials ascend.
    waiting: VecDeque<(Serial, Waiter)>,
    /// Serial up to which changes are destaged at once.
    pub(crate) drain_to: Serial,
}

impl Waiters {
    /// Registers a waiter for `serial`, the last one that was given.
    pub(crate) fn add(&mut self, serial: Serial) -> Told {
        let (waiter, told) = oneshot::channel();
        self.waiting.push_back((serial, waiter));
        told
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the callers that wait for serials up to `through`. The changes behind it have new
    /// serials from now on, behind `checkpoint`.
    pub(crate) fn reached(&mut self, through: Serial, checkpoint: Serial) -> Vec<Waiter> {
        debug_assert!(
            self.waiting.iter().is_sorted_by_key(|(serial, _)| *serial),
            "serials ascend"
        );
        let done = self.waiting.partition_point(|(serial, _)| *serial <= through);
        let waiters = self.waiting.drain(..done).map(|(_, waiter)| waiter).collect();
        for (serial, _) in &mut self.waiting {
            serial.0 += checkpoint.0 - through.0;
        }
        waiters
    }

    /// Takes all callers: the caller tells them of an error.
    pub(crate) fn give_up(&mut self) -> Vec<Waiter> {
        self.drain_to = Serial(0);
        self.waiting.drain(..).map(|(_, waiter)| waiter).collect()
    }
}
