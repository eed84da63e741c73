//! The heads of a log: the open one, the next one, made before it is needed, and the one before,
//! while that is sealed.
//!
//! ```text
//!  ahead (durably open, empty) --> open (takes appends) --> sealing --> sealed: a plain segment
//!                              `------- a rollover -------'
//! ```
//! So a rollover is a plain call in the middle of an append, and changes nothing on flash. Of an
//! open head only the opening is written before the previous head is sealed. So flash always shows
//! the old order: new head durably open, old one sealed, data for the new one. Memory may be one
//! head further.

use crate::format::Statistics;
use crate::head::{Batch, Head, Seal};
use rekindle_base::SegmentId;

pub(crate) struct Heads {
    pub(crate) open: Head,
    sealing: Option<Retiring>,
    ahead: Option<Prepared>,
    /// Whether the opener has been asked for the next head.
    asked: bool,
    /// Whether the log is being closed: then there is no next head.
    pub(crate) closing: bool,
    /// Count of the events that have outdated the digests of heads that have not taken over yet.
    edition: u64,
}

/// A head that is durably open and waits for the present one to be full.
pub(crate) struct Prepared {
    pub(crate) head: Head,
    /// Segments that the digest of `head` does not name any more.
    pub(crate) leaving: Vec<SegmentId>,
    /// [`Heads::edition`] when the digest was made.
    pub(crate) edition: u64,
}

/// A head that takes no more appends and is not sealed yet.
struct Retiring {
    head: Head,
    /// Segments that may leave when `head` is sealed.
    leaving: Vec<SegmentId>,
}

/// The next write.
pub(crate) enum Step {
    Write(Batch),
    Seal(Seal),
    Nothing,
}

/// The head and segments that a seal sets free; to be dropped outside all locks.
pub(crate) struct Sealed {
    pub(crate) head: Head,
    pub(crate) leaving: Vec<SegmentId>,
    /// Position up to which all is durable now.
    pub(crate) durable: u64,
}

impl Heads {
    /// `old`: the head that an earlier life has left, to be sealed, and the segments that leave
    /// then.
    pub(crate) fn new(mut open: Head, old: Option<(Head, Vec<SegmentId>)>) -> Heads {
        let sealing = old.map(|(head, leaving)| {
            open.base = head.base + u64::from(head.segment.header.capacity);
            Retiring { head, leaving }
        });
        Heads { open, sealing, ahead: None, asked: false, closing: false, edition: 0 }
    }

    /// The position up to which all is on flash.
    pub(crate) fn durable(&self) -> u64 {
        let first = self.sealing.as_ref().map_or(&self.open, |retiring| &retiring.head);
        first.base + u64::from(first.durable())
    }

    /// Whether the next head is ready to take over.
    pub(crate) fn can_roll(&self) -> bool {
        self.ahead.is_some() && self.sealing.is_none() && !self.closing
    }

    pub(crate) fn is_sealing(&self) -> bool {
        self.sealing.is_some()
    }

    /// Whether there is neither a next head nor one that must be sealed first.
    pub(crate) fn lacks_next(&self) -> bool {
        self.ahead.is_none() && self.sealing.is_none() && !self.closing
    }

    /// Returns `true`, once, when it is time to open the next head: the open head is half full.
    pub(crate) fn asks_for_next(&mut self) -> bool {
        let asks = !self.asked && self.lacks_next() && self.open.is_half_full();
        self.asked |= asks;
        asks
    }

    /// Lets the next head take over, and returns the head that it replaces. `statistics` cover all
    /// that the replaced head holds.
    pub(crate) fn roll(&mut self, statistics: &Statistics) -> &Head {
        assert!(self.can_roll(), "the next head is ready");
        let Prepared { mut head, leaving, .. } = self.ahead.take().expect("just seen");
        self.open.stop();
        head.base = self.open.base + u64::from(self.open.segment.header.capacity);
        head.push_statistics(statistics);
        let old = std::mem::replace(&mut self.open, head);
        &self.sealing.insert(Retiring { head: old, leaving }).head
    }

    pub(crate) fn edition(&self) -> u64 {
        self.edition
    }

    /// Outdates all digests made so far. Returns the next head, if there is one: its digest is
    /// outdated.
    pub(crate) fn outdate(&mut self) -> Option<Prepared> {
        self.edition += 1;
        self.asked = false;
        self.ahead.take()
    }

    /// Adds the next head, or returns it when it is not wanted any more.
    pub(crate) fn put_ahead(&mut self, next: Prepared) -> Option<Prepared> {
        assert!(self.ahead.is_none(), "one head is opened at a time");
        if self.closing || next.edition != self.edition {
            self.asked = false;
            return Some(next);
        }
        self.ahead = Some(next);
        None
    }

    /// Lets [`Heads::asks_for_next`] ask again: the next head could not be opened.
    pub(crate) fn ask_again(&mut self) {
        self.asked = false;
    }

    /// Returns the next write, in the order that flash must show. May be called again when a write
    /// was given up.
    pub(crate) fn step(&mut self) -> Step {
        let Some(Retiring { head, .. }) = &mut self.sealing else {
            return self.open.close_batch().map_or(Step::Nothing, Step::Write);
        };
        match head.close_batch() {
            Some(batch) => Step::Write(batch),
            None => Step::Seal(head.seal(Some(self.open.segment.id()))),
        }
    }

    /// Notes that a batch is on flash; returns the position up to which all is.
    pub(crate) fn written(&mut self, batch: &Batch) -> u64 {
        let sealing = self.sealing.as_mut().map(|retiring| &mut retiring.head);
        let head = sealing.filter(|head| head.segment.id() == batch.segment);
        let head = head.unwrap_or(&mut self.open);
        assert_eq!(head.segment.id(), batch.segment, "a batch is written while its head is there");
        head.set_durable(batch.end);
        head.base + u64::from(batch.end)
    }

    /// Notes that the head before the open one is sealed on flash.
    pub(crate) fn sealed(&mut self) -> Sealed {
        let Retiring { head, leaving } = self.sealing.take().expect("it was being sealed");
        head.segment.set_on_flash();
        self.asked = false;
        Sealed { head, leaving, durable: self.durable() }
    }
}
