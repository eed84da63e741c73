//! The oracle: the promises to clients about their own regions of one volume.
//!
//! Each change has a place in the one order of the volume: its serial. After a crash there must be
//! one serial S so that every region shows its state after S, and S is not before any promised
//! change. So a hole is found wherever it is: also behind the changes that `ack=memory` gave up,
//! and between clients. A client has at most one change in flight.

use parking_lot::Mutex;
use rekindle_base::SegmentId;
use std::sync::Arc;

/// A change by a client, small enough to be one change of the log.
#[derive(Debug, Clone)]
pub struct Operation {
    /// First byte within the region.
    pub start: usize,
    /// The bytes there afterwards.
    pub bytes: Vec<u8>,
}

/// A state of the region.
#[derive(Debug, Clone, Default)]
struct State {
    bytes: Vec<u8>,
    /// Serial of the change that led here. `None`: flow control delayed the change, and the client
    /// did not see its serial.
    serial: Option<u64>,
    /// The newest segment of the log at the acknowledgement: the change lies there or in an older
    /// one.
    head: Option<SegmentId>,
}

/// Loss of acknowledged changes that a fault excuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excuse {
    Nothing,
    /// Changes that were not flushed.
    Unflushed,
    /// Changes that lay in this segment of the log or a later one, and that the datastore had not.
    Segment {
        damaged: SegmentId,
        checkpoint: u64,
        /// Whether the loss was not reported. Then it must be the last batch, which cannot be told
        /// from one that was never whole. A client has one change in a batch, if it waits for
        /// flash.
        silent: bool,
        /// Whether changes that were not flushed may be gone besides.
        unflushed: bool,
    },
}

/// One client's region.
#[derive(Clone, Default)]
pub struct Region {
    /// States since the last judgement, the oldest first; the last one may be in flight.
    states: Vec<State>,
    /// Whether the last state is not acknowledged.
    in_flight: bool,
    /// Index of the oldest state that a power cut may leave.
    promised: usize,
    /// Number of changes acknowledged altogether, and the highest serial of these in this life.
    pub acknowledged: u64,
    pub acknowledged_serial: u64,
}

/// Region that a client and the judge share, over crashes.
pub type SharedRegion = Arc<Mutex<Region>>;

impl Region {
    /// A region of zeros.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let zeros = State { bytes: vec![0; length], ..State::default() };
        Self { states: vec![zeros], ..Self::default() }
    }

    fn last(&self) -> &State {
        self.states.last().expect("there is always one")
    }

    /// Returns the bytes that a read must return while nothing is in flight.
    #[must_use]
    pub fn expected(&self) -> &[u8] {
        assert!(!self.in_flight, "a client has one change at a time");
        &self.last().bytes
    }

    /// Whether a change is in flight whose fate is unknown.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.in_flight
    }

    /// Notes that a change is submitted.
    pub fn submit(&mut self, operation: &Operation) {
        assert!(!self.in_flight, "a client has one change at a time");
        let mut bytes = self.last().bytes.clone();
        bytes[operation.start..operation.start + operation.bytes.len()]
            .copy_from_slice(&operation.bytes);
        self.states.push(State { bytes, ..State::default() });
        self.in_flight = true;
    }

    /// Notes the serial of the change in flight.
    pub fn order(&mut self, serial: u64) {
        assert!(self.in_flight, "something was submitted");
        self.states.last_mut().expect("there is always one").serial = Some(serial);
    }

    /// Notes that the change in flight is acknowledged. `durable`: no power cut may take it back
    /// any more. `head`: the newest segment of the log by now.
    pub fn acknowledge(&mut self, durable: bool, head: SegmentId) {
        assert!(std::mem::take(&mut self.in_flight), "something was submitted");
        self.acknowledged += 1;
        self.states.last_mut().expect("there is always one").head = Some(head);
        self.acknowledged_serial = self.last().serial.unwrap_or(self.acknowledged_serial);
        if durable {
            self.promised = self.states.len() - 1;
        }
    }

    /// Returns the index of the newest acknowledged state; a flush that begins now covers it.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.states.len() - 1 - usize::from(self.in_flight)
    }

    /// Notes that a flush that began at `mark` is acknowledged: the region may not go back behind
    /// that state.
    pub fn flushed(&mut self, mark: usize) {
        self.promised = self.promised.max(mark);
    }

    /// Returns the serials after which the region may be in a state, from first to last.
    fn span(&self, index: usize) -> (u64, u64) {
        let before = self.states[1..=index].iter().rev().find_map(|state| state.serial);
        let from = match self.states[index].serial {
            Some(serial) if index > 0 => serial,
            _ if index > 0 => before.unwrap_or(0) + 1,
            _ => 0,
        };
        let after = self.states[index + 1..].iter().find_map(|state| state.serial);
        (from, after.map_or(u64::MAX, |serial| serial - 1))
    }

    /// Returns the index of the oldest state that the excuse permits.
    fn first(&self, excuse: Excuse) -> usize {
        let mark = self.mark();
        match excuse {
            Excuse::Nothing => mark,
            Excuse::Unflushed => self.promised,
            Excuse::Segment { damaged, checkpoint, silent, unflushed } => {
                let is_safe = |state: &&State| {
                    state.head.is_some_and(|head| head < damaged)
                        || state.serial.is_some_and(|serial| serial <= checkpoint)
                };
                let safe = self.states[..=mark].iter().rev().position(|state| is_safe(&state));
                let safe = safe.map_or(0, |newer| mark - newer);
                match (silent, unflushed) {
                    (_, true) => safe.min(self.promised),
                    (true, false) => safe.max(mark.saturating_sub(1)),
                    (false, false) => safe,
                }
            }
        }
    }

    /// Returns the serials after which the region may look like this, or an error that says what
    /// does not fit.
    fn spans(&self, found: &[u8], excuse: Excuse) -> Result<Vec<(u64, u64)>, String> {
        let first = self.first(excuse);
        let matches = |index: &usize| self.states[*index].bytes == found;
        let spans: Vec<_> =
            (first..self.states.len()).filter(matches).map(|index| self.span(index)).collect();
        if !spans.is_empty() {
            return Ok(spans);
        }
        if let Some(index) = (0..first).rev().find(matches) {
            return Err(format!("it is as it was {} promised changes ago", first - index));
        }
        let expected = &self.states[first].bytes;
        let at = found.iter().zip(expected).position(|(one, other)| one != other).unwrap_or(0);
        Err(format!("byte {at} is {:#x}, promised was {:#x}", found[at], expected[at]))
    }

    /// Takes these bytes as the truth, whatever was before.
    pub fn take_as_truth(&mut self, found: &[u8]) {
        self.states = vec![State { bytes: found.to_vec(), ..State::default() }];
        (self.in_flight, self.promised, self.acknowledged_serial) = (false, 0, 0);
    }
}

/// Judges what the regions show after a crash, and takes it as the new truth. Returns whether
/// acknowledged changes are gone, as the excuse may permit.
pub fn judge(regions: &[SharedRegion], found: &[Vec<u8>], excuse: Excuse) -> Result<bool, String> {
    let mut all = Vec::new();
    let mut fell_back = false;
    for (client, (region, found)) in regions.iter().zip(found).enumerate() {
        let region = region.lock();
        let spans = region.spans(found, excuse);
        all.push(spans.map_err(|why| format!("client {client}: {why}"))?);
        let newest = &region.states[region.mark()..];
        fell_back |= newest.iter().all(|state| state.bytes != *found);
    }
    // Spans are closed, so if such a serial exists, one of the spans begins there.
    let fits = |serial: u64| {
        all.iter().all(|spans| spans.iter().any(|&(from, to)| (from..=to).contains(&serial)))
    };
    if !all.iter().flatten().any(|&(from, _)| fits(from)) {
        return Err(format!("not a prefix: the clients are at serials {all:?}"));
    }
    for (region, found) in regions.iter().zip(found) {
        region.lock().take_as_truth(found);
    }
    Ok(fell_back)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a region with acknowledged changes of these serials; the byte is the number of the
    /// change.
    fn client(serials: &[Option<u64>]) -> SharedRegion {
        let mut region = Region::new(1);
        for (number, serial) in serials.iter().enumerate() {
            region.submit(&Operation { start: 0, bytes: vec![number as u8 + 1] });
            serial.inspect(|&serial| region.order(serial));
            region.acknowledge(false, SegmentId(number as u64));
        }
        Arc::new(Mutex::new(region))
    }

    fn judged(regions: &[SharedRegion], found: &[u8], falls_back: bool) -> Result<bool, String> {
        let found: Vec<_> = found.iter().map(|&byte| vec![byte]).collect();
        judge(regions, &found, if falls_back { Excuse::Unflushed } else { Excuse::Nothing })
    }

    #[test]
    fn only_a_power_cut_takes_back_what_was_acknowledged() {
        let one = || [client(&[Some(1), Some(2)])];
        assert_eq!(judged(&one(), &[2], false), Ok(false));
        assert!(judged(&one(), &[1], false).is_err());
        assert_eq!(judged(&one(), &[1], true), Ok(true));
        assert!(judged(&one(), &[9], true).is_err(), "never anything else");
    }

    #[test]
    fn a_flush_and_a_durable_write_are_promises() {
        let flushed = client(&[Some(1), Some(2)]);
        let mark = flushed.lock().mark();
        flushed.lock().submit(&Operation { start: 0, bytes: vec![7] });
        flushed.lock().flushed(mark);
        assert!(judged(std::slice::from_ref(&flushed), &[1], true).is_err());
        assert!(judged(&[flushed], &[7], true).is_ok());
        let durable = client(&[Some(1)]);
        durable.lock().submit(&Operation { start: 0, bytes: vec![7] });
        durable.lock().acknowledge(true, SegmentId(9));
        assert!(judged(&[durable], &[1], true).is_err());
    }

    #[test]
    fn what_is_left_is_a_prefix_over_all_clients() {
        let two = || [client(&[Some(1), Some(4)]), client(&[Some(2), Some(3)])];
        assert!(judged(&two(), &[1, 1], true).is_ok());
        assert!(judged(&two(), &[1, 2], true).is_ok());
        assert!(judged(&two(), &[2, 1], true).is_err(), "4 is there and 3 is not");
        assert!(judged(&two(), &[0, 1], true).is_err(), "2 is there and 1 is not");
    }

    #[test]
    fn a_promise_to_one_client_binds_what_others_wrote_before() {
        let two = [client(&[Some(1)]), client(&[Some(2)])];
        let mark = two[1].lock().mark();
        two[1].lock().flushed(mark);
        assert!(judged(&two, &[0, 1], true).is_err());
    }

    #[test]
    fn a_change_of_unknown_place_lies_between_its_neighbours() {
        let two = || [client(&[Some(2), None, Some(6)]), client(&[Some(4), Some(7)])];
        assert!(judged(&two(), &[2, 0], true).is_ok());
        assert!(judged(&two(), &[2, 1], true).is_ok());
        assert!(judged(&two(), &[2, 2], true).is_err(), "7 is there and 6 is not");
        assert!(judged(&two(), &[0, 1], true).is_err(), "4 is there and 2 is not");
        let close = [client(&[Some(2), None]), client(&[Some(3)])];
        assert!(judged(&close, &[2, 0], true).is_err(), "what is behind 2 is behind 3, too");
    }

    #[test]
    fn a_damaged_segment_excuses_what_lay_there_and_no_more() {
        // Four changes, acknowledged while the segments 0 to 3 were the newest.
        let one = || [client(&[Some(1), Some(2), Some(3), Some(4)])];
        let judged = |damaged, checkpoint, silent, found| {
            let damaged = SegmentId(damaged);
            let excuse = Excuse::Segment { damaged, checkpoint, silent, unflushed: false };
            judge(&one(), &[vec![found]], excuse)
        };
        assert_eq!(judged(2, 0, false, 2), Ok(true));
        assert!(judged(2, 0, false, 1).is_err(), "it lay in a segment before");
        assert!(judged(2, 3, false, 2).is_err(), "the datastore had it");
        assert_eq!(judged(2, 3, false, 3), Ok(true));
        assert_eq!(judged(2, 0, true, 3), Ok(true));
        assert!(judged(2, 0, true, 2).is_err(), "two changes of a client are not one batch");
    }
}
