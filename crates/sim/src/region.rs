//! The oracle: what one client was promised about its own region of the volume.
//!
//! A client has at most one change in flight, so after a crash its region shows the state before or after that change, and
//! nothing else. With `ack=memory` a power cut may take it back further, but not behind the last flush.

use parking_lot::Mutex;
use std::sync::Arc;

/// A change by a client, small enough to be one change of the log.
#[derive(Debug, Clone)]
pub struct Operation {
    /// First byte within the region.
    pub start: usize,
    /// What is there afterwards.
    pub bytes: Vec<u8>,
}

/// One client's region.
#[derive(Default)]
pub struct Region {
    /// What was acknowledged.
    bytes: Vec<u8>,
    /// States that a power cut may fall back to with `ack=memory`: since the last flush, oldest first.
    since_flush: Vec<Vec<u8>>,
    /// Submitted and not acknowledged; with its place in the order of submission when that is known.
    in_flight: Option<(Operation, Option<u64>)>,
    pub acknowledged: u64,
}

/// Shared between a client and the judge, over crashes.
pub type SharedRegion = Arc<Mutex<Region>>;

/// What the judge found in a region after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing was in flight.
    Quiet,
    /// The change in flight is there; its order.
    There(Option<u64>),
    /// The change in flight is not there; its order.
    Absent(Option<u64>),
    /// Went back behind the last acknowledged state, as `ack=memory` may when the power goes.
    Older,
}

impl Region {
    /// A region of zeros.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { bytes: vec![0; length], ..Self::default() }
    }

    /// What a read must return while nothing is in flight.
    #[must_use]
    pub fn expected(&self) -> &[u8] {
        assert!(self.in_flight.is_none(), "a client has one change at a time");
        &self.bytes
    }

    /// A change goes out.
    pub fn submit(&mut self, operation: Operation) {
        assert!(self.in_flight.is_none(), "a client has one change at a time");
        self.in_flight = Some((operation, None));
    }

    /// The change in flight got its place in the order.
    pub fn order(&mut self, order: u64) {
        if let Some((_, place)) = &mut self.in_flight {
            *place = Some(order);
        }
    }

    /// The change in flight is acknowledged.
    pub fn acknowledge(&mut self) {
        let (operation, _) = self.in_flight.take().expect("something was submitted");
        self.since_flush.push(self.bytes.clone());
        self.apply(&operation);
        self.acknowledged += 1;
    }

    /// A flush is acknowledged: no way back behind here.
    pub fn flushed(&mut self) {
        self.since_flush.clear();
    }

    fn apply(&mut self, operation: &Operation) {
        self.bytes[operation.start..operation.start + operation.bytes.len()]
            .copy_from_slice(&operation.bytes);
    }

    /// Judges what the region shows after a crash, and takes it as the new truth.
    pub fn judge(&mut self, found: &[u8], may_fall_back: bool) -> Result<Seen, String> {
        let in_flight = self.in_flight.take();
        let before = self.bytes.clone();
        if found == before {
            let seen = in_flight.map_or(Seen::Quiet, |(operation, order)| {
                self.apply(&operation);
                let same = self.bytes == before;
                self.bytes.copy_from_slice(&before);
                // A change that changes nothing tells nothing.
                if same { Seen::Quiet } else { Seen::Absent(order) }
            });
            self.since_flush.clear();
            return Ok(seen);
        }
        if let Some((operation, order)) = in_flight {
            self.apply(&operation);
            if found == self.bytes {
                self.since_flush.clear();
                return Ok(Seen::There(order));
            }
        }
        if may_fall_back && self.since_flush.iter().any(|state| state == found) {
            self.bytes = found.to_vec();
            self.since_flush.clear();
            return Ok(Seen::Older);
        }
        let at =
            found.iter().zip(&before).position(|(found, expected)| found != expected).unwrap_or(0);
        Err(format!("byte {at} is {:#x}, acknowledged was {:#x}", found[at], before[at]))
    }
}

/// Among the changes in flight at the crash, those that are there are a prefix in the order of submission.
pub fn check_prefix(seen: &[Seen]) -> Result<(), String> {
    let last_there = seen
        .iter()
        .filter_map(|seen| if let Seen::There(Some(order)) = seen { Some(*order) } else { None })
        .max();
    let first_absent = seen
        .iter()
        .filter_map(|seen| if let Seen::Absent(Some(order)) = seen { Some(*order) } else { None })
        .min();
    match (last_there, first_absent) {
        (Some(there), Some(absent)) if absent < there => {
            Err(format!("not a prefix: change {there} is there, change {absent} before it is not"))
        }
        _ => Ok(()),
    }
}
