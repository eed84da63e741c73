//! All changes that are not in the datastore yet, in serial order, without gaps: the checkpoint
//! must be an exact prefix.
//!
//! Serials are not stored: the change at index `i` has the serial `first + i`. So they cannot have
//! gaps.
//!
//! A group of changes enters, becomes visible, is destaged and leaves as a whole.
//!
//! The oldest changes of a volume that has just come back may be counted only, until they are
//! listed (see [`crate::recover::deferred_index`]).

pub(crate) mod source;

use crate::{Error, limits};
use bytes::Bytes;
use rekindle_base::Serial;
use rekindle_env::Moment;
use rekindle_log::{Place, Position};
use source::{Source, payload_offset};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Payload kept in RAM, with its part of the memory budget.
pub(crate) struct KeptPayload {
    pub(crate) bytes: Bytes,
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// The place of a change's payload.
#[derive(Clone)]
pub(crate) enum Payload {
    /// No payload: reads as zeros.
    Zero,
    /// In the log.
    Log(Place),
    /// In RAM. An empty payload reads as zeros.
    Memory(Arc<KeptPayload>),
}

/// The position that marks a change as not in the log.
const NOWHERE: Position = Position(u64::MAX);

/// A change, without its serial.
#[derive(Clone)]
pub(crate) struct Change {
    /// First byte of the range; of a record: the record's own kind.
    pub(crate) position: u64,
    pub(crate) span: u64,
    pub(crate) payload: Payload,
    /// Whether the next change belongs to the same group, which counts as a whole or not at all.
    pub(crate) joined: bool,
    /// Whether it is a record.
    pub(crate) is_record: bool,
    /// Point of the log that covers the change.
    end: Position,
    /// Moment of submission or re-indexing, nanoseconds. (A change is no larger than the log's
    /// [`rekindle_log::Recovered`], so that recovery can convert in place.)
    at: u64,
}

impl Change {
    /// A change that the log holds.
    pub(crate) fn logged(
        position: u64,
        span: u64,
        place: Option<Place>,
        end: Position,
        at: Moment,
    ) -> Self {
        debug_assert!(end != NOWHERE, "the log has not so many bytes");
        let payload = place.map_or(Payload::Zero, Payload::Log);
        Self { position, span, payload, joined: false, is_record: false, end, at: nanoseconds(at) }
    }

    /// A change that only RAM holds.
    pub(crate) fn kept(position: u64, span: u64, payload: Payload, at: Moment) -> Self {
        Self { end: NOWHERE, payload, ..Self::logged(position, span, None, Position(0), at) }
    }

    /// The same change, as the log's kind of it.
    pub(crate) fn of(self, kind: rekindle_log::Change) -> Self {
        Self { is_record: kind == rekindle_log::Change::Record, ..self }
    }

    /// The same change, joined with the next one or not.
    pub(crate) fn joined(self, joined: bool) -> Self {
        Self { joined, ..self }
    }

    /// Names the change in a message.
    pub(crate) fn name(&self) -> String {
        match self.is_record {
            true => format!("a record of kind {}", self.position),
            false => format!("{} bytes at {}", self.span, self.position),
        }
    }

    /// The moment when the change was submitted, or re-indexed.
    pub(crate) fn at(&self) -> Moment {
        Moment(Duration::from_nanos(self.at))
    }

    /// Whether the log holds it.
    pub(crate) fn is_logged(&self) -> bool {
        self.end != NOWHERE
    }

    /// Point of the log that covers the change, if the log holds it.
    pub(crate) fn end(&self) -> Option<Position> {
        self.is_logged().then_some(self.end)
    }

    /// Whether the change is on flash when the log is durable up to `committed`.
    pub(crate) fn is_committed(&self, committed: Position) -> bool {
        self.is_logged() && self.end <= committed
    }

    /// The change's bytes from `start` on.
    pub(crate) fn source(&self, start: u64) -> Source {
        let within = "a piece lies within its change";
        match &self.payload {
            Payload::Zero => Source::Zero,
            Payload::Log(place) => {
                Source::Log(place.clone(), payload_offset(0, start).expect(within))
            }
            Payload::Memory(kept) if kept.bytes.is_empty() => Source::Zero,
            Payload::Memory(kept) => {
                Source::Memory(kept.bytes.slice(usize::try_from(start).expect(within)..))
            }
        }
    }

    /// Reads as [`Source::read_now`] does, without holding the bytes first.
    pub(crate) fn read_now(&self, start: u64, out: &mut [u8]) -> Result<bool, Error> {
        match &self.payload {
            Payload::Log(place) => Ok(place.read_now(payload_offset(0, start)?, out)?),
            Payload::Zero | Payload::Memory(_) => self.source(start).read_now(0, out),
        }
    }

    /// Bytes of the budgets that the change takes.
    pub(crate) fn cost(&self) -> u64 {
        let payload = match &self.payload {
            Payload::Zero => 0,
            Payload::Log(_) => self.span,
            Payload::Memory(kept) => kept.bytes.len() as u64,
        };
        limits::ENTRY_BYTES + payload
    }
}

fn nanoseconds(at: Moment) -> u64 {
    u64::try_from(at.0.as_nanos()).unwrap_or(u64::MAX)
}

const _: () = assert!(size_of::<Change>() <= size_of::<rekindle_log::Recovered>());

/// Count of the first changes without the group at their end, if the rest of that group is missing.
/// `joined`: whether a change is joined.
pub(crate) fn whole_groups(count: usize, joined: impl Fn(usize) -> bool) -> usize {
    (0..count).rev().find(|&index| !joined(index)).map_or(0, |last| last + 1)
}

/// Changes at the front of a queue that are counted, not listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unindexed {
    pub(crate) count: usize,
    /// Bytes of the budgets that they take.
    pub(crate) bytes: u64,
}

/// The queue of a volume's unfinished changes.
pub(crate) struct Queue {
    /// Serial of the front, or of the next change when empty.
    first: Serial,
    unindexed: Unindexed,
    changes: VecDeque<Change>,
    /// Bytes of the budgets that all changes take.
    bytes: u64,
}

impl Queue {
    /// A queue of changes behind a checkpoint.
    pub(crate) fn with(checkpoint: Serial, changes: VecDeque<Change>) -> Self {
        let bytes = changes.iter().map(Change::cost).sum();
        Self { first: checkpoint.next(), unindexed: Unindexed::default(), changes, bytes }
    }

    /// A queue of changes behind a checkpoint that will be listed later.
    pub(crate) fn with_unindexed(checkpoint: Serial, unindexed: Unindexed) -> Self {
        let bytes = unindexed.bytes;
        Self { first: checkpoint.next(), unindexed, changes: VecDeque::new(), bytes }
    }

    /// The changes that are counted only.
    pub(crate) fn unindexed(&self) -> Unindexed {
        self.unindexed
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.unindexed.count == 0
    }

    /// Lists the changes that were counted only.
    pub(crate) fn list(&mut self, changes: VecDeque<Change>) {
        assert_eq!(changes.len(), self.unindexed.count, "what is listed is what was counted");
        let counted = std::mem::take(&mut self.unindexed);
        self.bytes -= counted.bytes;
        self.bytes += changes.iter().map(Change::cost).sum::<u64>();
        let newer = std::mem::replace(&mut self.changes, changes);
        self.changes.extend(newer);
    }

    pub(crate) fn len(&self) -> usize {
        self.unindexed.count + self.changes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the budgets that all changes take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The serial before the front: the datastore has the changes up to it.
    pub(crate) fn checkpoint(&self) -> Serial {
        Serial(self.first.0 - 1)
    }

    /// Serial of the change at `index`.
    pub(crate) fn serial(&self, index: usize) -> Serial {
        Serial(self.first.0 + index as u64)
    }

    /// Serial of the last change, or the checkpoint.
    pub(crate) fn last(&self) -> Serial {
        Serial(self.first.0 + self.len() as u64 - 1)
    }

    /// Adds a change and gives its serial.
    pub(crate) fn push(&mut self, change: Change) -> Serial {
        self.bytes += change.cost();
        self.changes.push_back(change);
        self.last()
    }

    /// The change at `index`, if it is listed.
    pub(crate) fn get(&self, index: usize) -> Option<&Change> {
        self.changes.get(index.checked_sub(self.unindexed.count)?)
    }

    /// The change with that serial, if it is listed and the datastore does not have it.
    pub(crate) fn at(&self, serial: Serial) -> Option<&Change> {
        let index = serial.0.checked_sub(self.first.0)?;
        self.get(usize::try_from(index).ok()?)
    }

    /// The listed changes: not those that are counted only ([`Self::unindexed`]).
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// Takes the first `count` changes out: the datastore has them.
    pub(crate) fn finish(&mut self, count: usize) -> Vec<Change> {
        assert!(count == 0 || self.is_listed(), "what is in the datastore was read from here");
        let done: Vec<Change> = self.changes.drain(..count).collect();
        self.bytes -= done.iter().map(Change::cost).sum::<u64>();
        self.first = Serial(self.first.0 + count as u64);
        done
    }

    /// Gives the changes higher serials, behind a checkpoint that is beyond theirs. Only for
    /// changes that were never acknowledged.
    pub(crate) fn renumber(&mut self, checkpoint: Serial) {
        assert!(checkpoint >= self.checkpoint(), "serials only grow");
        self.first = checkpoint.next();
    }

    /// Takes all changes: the count of those that are not listed, and the rest.
    pub(crate) fn take(&mut self) -> (Unindexed, VecDeque<Change>) {
        self.bytes = 0;
        self.first = self.last().next();
        (std::mem::take(&mut self.unindexed), std::mem::take(&mut self.changes))
    }
}
