//! The heads of a log: the open one, the next one, made before it is needed, and the one before while it is sealed.
//!
//! ```text
//!  ahead (durably open, empty) --> open (takes appends) --> sealing --> sealed: a segment like any other
//!                              `------- a rollover -------'
//! ```
//! So a rollover is a plain call in the middle of an append. It moves no byte on flash and changes nothing there: of an
//! open head nothing but its opening is written before the head before it is sealed, so flash always shows the old
//! order, new head durably open, old one sealed, data for the new one. Memory may be one head further.

use crate::format::Statistics;
use crate::head::{Batch, Head, Seal};
use base::SegmentId;

pub(crate) struct Heads {
    pub(crate) open: Head,
    sealing: Option<Retiring>,
    ahead: Option<Prepared>,
    /// Somebody has been asked to open the next one.
    asked: bool,
    /// The log is being closed: there is no next one.
    pub(crate) closing: bool,
    /// Counts what makes digests outdated that have not taken over yet.
    edition: u64,
}

/// A head that is durably open and waits for the present one to be full.
pub(crate) struct Prepared {
    pub(crate) head: Head,
    /// Segments that its digest does not name any more.
    pub(crate) leaving: Vec<SegmentId>,
    /// [`Heads::edition`] when its digest was made.
    pub(crate) edition: u64,
}

/// A head that takes nothing any more and is not sealed yet.
struct Retiring {
    head: Head,
    /// They may go when it is sealed.
    leaving: Vec<SegmentId>,
}

/// What is to be written next.
pub(crate) enum Step {
    Write(Batch),
    Seal(Seal),
    Nothing,
}

/// What a seal sets free; to be dropped outside all locks.
pub(crate) struct Sealed {
    pub(crate) head: Head,
    pub(crate) leaving: Vec<SegmentId>,
    /// Up to where all is durable now.
    pub(crate) durable: u64,
}

impl Heads {
    /// `old`: the head that an earlier life has left, to be sealed, and what may go then.
    pub(crate) fn new(mut open: Head, old: Option<(Head, Vec<SegmentId>)>) -> Heads {
        let sealing = old.map(|(head, leaving)| {
            open.base = head.base + u64::from(head.segment.header.capacity);
            Retiring { head, leaving }
        });
        Heads { open, sealing, ahead: None, asked: false, closing: false, edition: 0 }
    }

    /// Up to which position all is on flash.
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

    /// Says once that it is time to open the next head: the present one is half full.
    pub(crate) fn asks_for_next(&mut self) -> bool {
        let asks = !self.asked && self.lacks_next() && self.open.is_half_full();
        self.asked |= asks;
        asks
    }

    /// The next head takes over; `statistics` cover all that the present one holds. Gives the one that it replaces.
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

    /// Digests made so far say what is not true any more: gives the next head back, if it has one of them.
    pub(crate) fn outdate(&mut self) -> Option<Prepared> {
        self.edition += 1;
        self.asked = false;
        self.ahead.take()
    }

    /// There is a next head; given back when it is not wanted any more.
    pub(crate) fn put_ahead(&mut self, next: Prepared) -> Option<Prepared> {
        assert!(self.ahead.is_none(), "one head is opened at a time");
        if self.closing || next.edition != self.edition {
            self.asked = false;
            return Some(next);
        }
        self.ahead = Some(next);
        None
    }

    /// The next head could not be opened: somebody else may try.
    pub(crate) fn ask_again(&mut self) {
        self.asked = false;
    }

    /// What is to be written next, in the order that flash must show. May be asked again when a write was given up.
    pub(crate) fn step(&mut self) -> Step {
        let Some(Retiring { head, .. }) = &mut self.sealing else {
            return self.open.close_batch().map_or(Step::Nothing, Step::Write);
        };
        match head.close_batch() {
            Some(batch) => Step::Write(batch),
            None => Step::Seal(head.seal(Some(self.open.segment.id()))),
        }
    }

    /// A batch is on flash. Says up to which position all is.
    pub(crate) fn written(&mut self, batch: &Batch) -> u64 {
        let sealing = self.sealing.as_mut().map(|retiring| &mut retiring.head);
        let head = sealing.filter(|head| head.segment.id() == batch.segment);
        let head = head.unwrap_or(&mut self.open);
        assert_eq!(head.segment.id(), batch.segment, "a batch is written while its head is there");
        head.set_durable(batch.end);
        head.base + u64::from(batch.end)
    }

    /// The head before the open one is sealed on flash.
    pub(crate) fn sealed(&mut self) -> Sealed {
        let Retiring { head, leaving } = self.sealing.take().expect("it was being sealed");
        head.segment.set_on_flash();
        self.asked = false;
        Sealed { head, leaving, durable: self.durable() }
    }
}
