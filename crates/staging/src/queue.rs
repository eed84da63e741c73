//! All changes that are not in the datastore yet, in serial order, without holes: the checkpoint must be an exact
//! prefix, and the overlay knows only the newest change of a byte.
//!
//! Serials are not stored: the change at index `i` has the serial `first + i`. So they cannot have gaps.
//!
//! Of a volume that has just come back, the oldest changes may be counted only, until they are listed (see [`crate::listing`]).

use crate::home::{Source, payload_offset};
use crate::{Error, limits};
use base::Serial;
use bytes::Bytes;
use env::Moment;
use log::{Place, Position};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// Payload kept in RAM, with its part of the memory budget.
pub(crate) struct Kept {
    pub(crate) bytes: Bytes,
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// Where a change's payload is.
#[derive(Clone)]
pub(crate) enum Payload {
    /// None: reads as zeros.
    Zero,
    /// In the log.
    Log(Place),
    /// In RAM; empty: reads as zeros.
    Memory(Arc<Kept>),
}

/// Where in the log the changes end that are not in the log.
const NOWHERE: Position = Position(u64::MAX);

/// A change, without its serial.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) position: u64,
    pub(crate) span: u64,
    pub(crate) payload: Payload,
    /// Point of the log that covers it.
    end: Position,
    /// When it was submitted, or re-indexed: nanoseconds (a change is no larger than what the log gives for it, so that
    /// recovery can make one of the other in place).
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
        Self { position, span, payload, end, at: nanoseconds(at) }
    }

    /// A change that only RAM holds.
    pub(crate) fn kept(position: u64, span: u64, payload: Payload, at: Moment) -> Self {
        Self { position, span, payload, end: NOWHERE, at: nanoseconds(at) }
    }

    /// When it was submitted, or re-indexed.
    pub(crate) fn at(&self) -> Moment {
        Moment(Duration::from_nanos(self.at))
    }

    /// Whether the log holds it.
    pub(crate) fn is_logged(&self) -> bool {
        self.end != NOWHERE
    }

    /// Point of the log that covers it, if the log holds it.
    pub(crate) fn end(&self) -> Option<Position> {
        self.is_logged().then_some(self.end)
    }

    /// Whether it is on flash when the log is durable up to `committed`.
    pub(crate) fn is_committed(&self, committed: Position) -> bool {
        self.is_logged() && self.end <= committed
    }

    /// Its bytes from `start` on.
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

    /// As [`Source::read_now`], without holding the bytes first.
    pub(crate) fn read_now(&self, start: u64, out: &mut [u8]) -> Result<bool, Error> {
        match &self.payload {
            Payload::Log(place) => Ok(place.read_now(payload_offset(0, start)?, out)?),
            Payload::Zero | Payload::Memory(_) => self.source(start).read_now(0, out),
        }
    }

    /// What it takes of the budgets, bytes.
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

const _: () = assert!(size_of::<Change>() <= size_of::<log::Recovered>());

/// Changes at the front of a queue that are counted, not listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unlisted {
    pub(crate) count: usize,
    /// What they take of the budgets.
    pub(crate) bytes: u64,
}

/// The queue.
pub(crate) struct Queue {
    /// Serial of the front, or of the next change when empty.
    first: Serial,
    unlisted: Unlisted,
    changes: VecDeque<Change>,
    /// What all take of the budgets.
    bytes: u64,
}

impl Queue {
    /// A queue of changes behind a checkpoint.
    pub(crate) fn with(checkpoint: Serial, changes: VecDeque<Change>) -> Self {
        let bytes = changes.iter().map(Change::cost).sum();
        Self { first: checkpoint.next(), unlisted: Unlisted::default(), changes, bytes }
    }

    /// A queue of changes behind a checkpoint that will be listed later.
    pub(crate) fn with_unlisted(checkpoint: Serial, unlisted: Unlisted) -> Self {
        let bytes = unlisted.bytes;
        Self { first: checkpoint.next(), unlisted, changes: VecDeque::new(), bytes }
    }

    /// What is not listed.
    pub(crate) fn unlisted(&self) -> Unlisted {
        self.unlisted
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.unlisted.count == 0
    }

    /// Lists what was counted only.
    pub(crate) fn list(&mut self, changes: VecDeque<Change>) {
        assert_eq!(changes.len(), self.unlisted.count, "what is listed is what was counted");
        let counted = std::mem::take(&mut self.unlisted);
        self.bytes -= counted.bytes;
        self.bytes += changes.iter().map(Change::cost).sum::<u64>();
        let newer = std::mem::replace(&mut self.changes, changes);
        self.changes.extend(newer);
    }

    pub(crate) fn len(&self) -> usize {
        self.unlisted.count + self.changes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What all changes take of the budgets.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Serial before the front: what the datastore has.
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
        self.changes.get(index.checked_sub(self.unlisted.count)?)
    }

    /// The change of that serial, unless the datastore has it.
    pub(crate) fn at(&self, serial: Serial) -> Option<&Change> {
        let index = serial.0.checked_sub(self.first.0)?;
        self.get(usize::try_from(index).ok()?)
    }

    /// Those that are listed.
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

    /// Gives the changes higher serials: behind a checkpoint that is beyond theirs. Only for changes that nobody was
    /// told of.
    pub(crate) fn renumber(&mut self, checkpoint: Serial) {
        assert!(checkpoint >= self.checkpoint(), "serials only grow");
        self.first = checkpoint.next();
    }

    /// Takes all changes: those that are not listed, and the rest.
    pub(crate) fn take(&mut self) -> (Unlisted, VecDeque<Change>) {
        self.bytes = 0;
        self.first = self.last().next();
        (std::mem::take(&mut self.unlisted), std::mem::take(&mut self.changes))
    }
}
