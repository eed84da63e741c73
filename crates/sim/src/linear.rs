//! Linearizable registers: the oracle of runs in which several lives may serve one block.
//!
//! Every write of a register has a value of its own, so a history is judged by the zones of its
//! values (Gibbons and Korach, "Testing shared memories"). The zone of a value runs from the first
//! end to the last beginning of its operations. If that is forward in time, the register has the
//! value all that time; else it has it at some moment within the zone, turned around.

use std::collections::BTreeMap;
use std::time::Duration;

/// The value of a register that was never written.
pub const FIRST: u64 = 0;

/// The operations on one register.
#[derive(Debug, Clone, Default)]
pub struct History {
    operations: Vec<Operation>,
}

#[derive(Clone)]
struct Operation {
    is_write: bool,
    value: u64,
    from: Duration,
    /// `None`: no reply has come. A write may take effect at any time, or never.
    to: Option<Duration>,
    by: String,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.is_write { "write" } else { "read" };
        write!(f, "{what} of {} by {} from {:?}", self.value, self.by, self.from)?;
        match self.to {
            Some(to) => write!(f, " to {to:?}"),
            None => write!(f, ", without a reply"),
        }
    }
}

/// A write that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Open(usize);

/// The operations on one value.
struct Zone {
    first_end: Duration,
    last_begin: Duration,
    written: Duration,
    operations: Vec<Operation>,
}

impl History {
    /// Begins a write of a value that no other write has.
    pub fn begin(&mut self, value: u64, now: Duration, by: &str) -> Open {
        let operation = Operation { is_write: true, value, from: now, to: None, by: by.to_owned() };
        self.operations.push(operation);
        Open(self.operations.len() - 1)
    }

    /// The reply of a write has come: it is acknowledged.
    pub fn end(&mut self, open: Open, now: Duration) {
        self.operations[open.0].to = Some(now);
    }

    /// Adds a read that has found a value.
    pub fn read(&mut self, value: u64, (from, to): (Duration, Duration), by: &str) {
        let operation = Operation { is_write: false, value, from, to: Some(to), by: by.to_owned() };
        self.operations.push(operation);
    }

    /// Count of the acknowledged writes.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        let is_acked = |one: &&Operation| one.is_write && one.to.is_some();
        self.operations.iter().filter(is_acked).count() as u64
    }

    /// Judges the history; the error says which operations contradict each other.
    pub fn check(&self) -> Result<(), String> {
        let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
        let first = Operation {
            is_write: true,
            value: FIRST,
            from: Duration::ZERO,
            to: Some(Duration::ZERO),
            by: "the beginning".to_owned(),
        };
        for write in [&first].into_iter().chain(self.operations.iter().filter(|one| one.is_write)) {
            let zone = Zone {
                first_end: write.to.unwrap_or(Duration::MAX),
                last_begin: write.from,
                written: write.from,
                operations: vec![write.clone()],
            };
            if zones.insert(write.value, zone).is_some() {
                return Err(format!("value {} was written twice", write.value));
            }
        }
        for read in self.operations.iter().filter(|one| !one.is_write) {
            let end = read.to.unwrap_or(Duration::MAX);
            let Some(zone) = zones.get_mut(&read.value) else {
                return Err(format!("a value that was never written: {read:?}"));
            };
            if end < zone.written {
                return Err(format!("{read:?} is over before the write: {:?}", zone.operations));
            }
            zone.first_end = zone.first_end.min(end);
            zone.last_begin = zone.last_begin.max(read.from);
            zone.operations.push(read.clone());
        }
        // A write without a reply that no read has seen may never have happened.
        zones.retain(|_, zone| zone.first_end < Duration::MAX);
        let (mut forward, backward): (Vec<_>, Vec<_>) =
            zones.values().partition(|zone| zone.first_end < zone.last_begin);
        forward.sort_by_key(|zone| zone.first_end);
        for two in forward.windows(2) {
            if two[1].first_end < two[0].last_begin {
                return Err(told(two[0], two[1]));
            }
        }
        for inner in backward {
            let holds = |outer: &&&Zone| {
                outer.first_end < inner.last_begin && inner.first_end < outer.last_begin
            };
            if let Some(outer) = forward.iter().find(holds) {
                return Err(told(outer, inner));
            }
        }
        Ok(())
    }
}

fn told(one: &Zone, other: &Zone) -> String {
    format!("these contradict: {:?} and {:?}", one.operations, other.operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes and reads as text: `w1 0-2` is a write of 1 from 0 to 2, `r1 3-4` a read, `w2 5-` a
    /// write without a reply.
    fn judged(text: &str) -> bool {
        let mut history = History::default();
        for one in text.split(", ") {
            let (what, times) = one.split_once(' ').expect("an operation and its times");
            let (from, to) = times.split_once('-').expect("two times");
            let time = |text: &str| Duration::from_secs(text.parse().expect("a number"));
            let value = what[1..].parse().expect("a value");
            match (&what[..1], to) {
                ("w", "") => drop(history.begin(value, time(from), "")),
                ("w", to) => {
                    let open = history.begin(value, time(from), "");
                    history.end(open, time(to));
                }
                _ => history.read(value, (time(from), time(to)), ""),
            }
        }
        history.check().is_ok()
    }

    #[test]
    fn what_some_order_explains_is_well_and_nothing_else() {
        for well in [
            "r0 1-2",
            "w1 1-2, r1 3-4, w2 5-6, r2 7-8",
            // Concurrent operations may take effect in any order.
            "w1 1-9, r0 2-3, r1 4-5",
            "w1 1-9, w2 2-8, r1 10-11",
            "w1 1-9, w2 2-8, r2 10-11",
            "w1 1-9, w2 2-8, r1 3-4, r2 5-6",
            // A write without a reply has happened late, or never.
            "w1 1-, r0 5-6, r0 7-8",
            "w1 1-, r0 5-6, r1 7-8, r1 9-10",
            "w1 1-, w2 3-4, r2 5-6, r1 7-8",
        ] {
            assert!(judged(well), "{well}");
        }
        for ill in [
            // An acknowledged write is gone.
            "w1 1-2, r0 3-4",
            "w1 1-2, w2 3-4, r1 5-6",
            // A value that was seen is gone.
            "w1 1-, r1 3-4, r0 5-6",
            "w1 1-9, r1 2-3, r0 4-5",
            // Two readers see two orders.
            "w1 1-9, w2 1-9, r1 2-3, r2 4-5, r1 6-7",
            // From nowhere, and from the future.
            "r7 1-2",
            "r1 1-2, w1 3-4",
        ] {
            assert!(!judged(ill), "{ill}");
        }
    }
}
