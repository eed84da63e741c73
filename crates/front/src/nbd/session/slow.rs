//! Requests that wait for something, and the memory that they hold meanwhile.

use super::{Asked, Finished};
use futures_util::stream::{FuturesUnordered, StreamExt};
use rekindle_env::BoxFuture;
use std::future::Future;
use std::task::{Context, Poll};

/// Memory that a slow request holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Held {
    pub(super) bytes: usize,
    /// Bytes of the session's own share; the rest is leased.
    pub(super) own: usize,
    /// Whether the request is a write or a flush: it goes on without its client.
    is_change: bool,
    /// Bytes that it changes.
    changed: usize,
}

impl Held {
    pub(super) fn leased(bytes: usize) -> Self {
        Self { bytes, ..Self::default() }
    }

    pub(super) fn own(bytes: usize) -> Self {
        Self { bytes, own: bytes, ..Self::default() }
    }

    pub(super) fn of_change(self, changed: usize) -> Self {
        Self { is_change: true, changed, ..self }
    }
}

/// The slow requests of a session.
#[derive(Default)]
pub(super) struct Slow {
    requests: FuturesUnordered<BoxFuture<'static, (Held, Option<Asked>, Finished)>>,
    pub(super) count: usize,
    /// Writes and flushes among them.
    pub(super) changes: usize,
    /// Bytes that they change.
    pub(super) changed: usize,
    /// Bytes that the requests hold.
    pub(super) bytes: usize,
    /// Those of them that are of the session's own share.
    pub(super) own: usize,
}

impl Slow {
    pub(super) fn push(
        &mut self,
        held: Held,
        asked: Option<Asked>,
        work: impl Future<Output = Finished> + Send + 'static,
    ) {
        self.count += 1;
        self.changes += usize::from(held.is_change);
        self.changed += held.changed;
        self.bytes += held.bytes;
        self.own += held.own;
        self.requests.push(Box::pin(async move { (held, asked, work.await) }));
    }

    /// Returns the next request that is ready, with the time at which it was asked. A batch has
    /// none: it knows the time of each of its writes.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Option<(Option<Asked>, Finished)> {
        if self.count == 0 {
            return None;
        }
        let Poll::Ready(Some((held, asked, finished))) = self.requests.poll_next_unpin(context)
        else {
            return None;
        };
        self.count -= 1;
        self.changes -= usize::from(held.is_change);
        self.changed -= held.changed;
        self.bytes -= held.bytes;
        self.own -= held.own;
        Some((asked, finished))
    }
}
