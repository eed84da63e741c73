//! The records that a process has begun to write: by its word another node knows which ones to read
//! again.

use crate::limits;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// The keys of records that were written below one prefix, each with the number of its last write.
#[derive(Default)]
pub struct Written {
    state: Mutex<WriteTable>,
}

#[derive(Default)]
struct WriteTable {
    /// The number of the last write.
    last: u64,
    by_number: BTreeMap<u64, String>,
    by_key: HashMap<String, u64>,
    /// Writes that may land still: they are on their way, or their outcome is not known.
    open: BTreeMap<u64, String>,
    /// The greatest number of a write that is not remembered any more.
    forgotten: u64,
}

/// A write that has begun. One that is dropped stays open.
pub(super) struct Begun<'a> {
    written: &'a Written,
    number: u64,
}

impl Written {
    /// Notes that a record is about to be written. To be called before the write is sent: it may
    /// land whatever its answer is.
    pub(super) fn begin(&self, key: &str) -> Begun<'_> {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        if let Some(before) = state.by_key.insert(key.to_owned(), number) {
            state.by_number.remove(&before);
        }
        state.by_number.insert(number, key.to_owned());
        state.open.insert(number, key.to_owned());
        if state.by_number.len() > limits::WRITTEN_KEYS_MAX
            && let Some((number, key)) = state.by_number.pop_first()
        {
            state.by_key.remove(&key);
            state.forgotten = number;
        }
        Begun { written: self, number }
    }

    /// Returns the keys that were written behind number `since`, and the number up to which no
    /// write can land any more; `None` when some of these keys are not remembered any more.
    #[must_use]
    pub fn since(&self, since: u64) -> Option<(u64, Vec<String>)> {
        let state = self.state.lock();
        let later = state.by_number.range(since.saturating_add(1)..);
        let keys = later.map(|(_, key)| key.clone()).collect();
        let open = state.open.first_key_value().map(|(number, _)| number - 1);
        let is_known = state.forgotten <= since && state.open.len() <= limits::WRITTEN_KEYS_MAX;
        is_known.then_some((open.unwrap_or(state.last), keys))
    }
}

impl Begun<'_> {
    /// Ends a write that has landed: earlier ones of the same record name a version that is gone,
    /// and land no more.
    pub(super) fn has_won(self) {
        let mut state = self.written.state.lock();
        let key = state.open.remove(&self.number);
        state.open.retain(|number, other| *number > self.number || key.as_ref() != Some(other));
    }

    /// Ends a write that cannot land.
    pub(super) fn has_lost(self) {
        self.written.state.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_told_with_its_last_write_and_what_is_forgotten_is_told_too() {
        let written = Written::default();
        assert_eq!(written.since(0), Some((0, vec![])));
        for key in ["a", "b", "a"] {
            written.begin(key).has_won();
        }
        assert_eq!(written.since(0), Some((3, vec!["b".to_owned(), "a".to_owned()])));
        assert_eq!(written.since(2), Some((3, vec!["a".to_owned()])));
        assert_eq!(written.since(3), Some((3, vec![])));
        for number in 0..limits::WRITTEN_KEYS_MAX {
            written.begin(&number.to_string()).has_lost();
        }
        assert_eq!(written.since(2), None, "the write of a is forgotten");
        assert_eq!(written.since(3).unwrap().1.len(), limits::WRITTEN_KEYS_MAX);
    }

    #[test]
    fn a_write_that_may_land_still_is_told_again() {
        let written = Written::default();
        let of = |since| written.since(since).map(|(upto, keys)| (upto, keys.join(" ")));
        written.begin("a").has_won();
        let slow = written.begin("b");
        written.begin("c").has_won();
        assert_eq!(of(1), Some((1, "b c".into())));
        slow.has_lost();
        assert_eq!(of(1), Some((3, "b c".into())));
        let _ = written.begin("d");
        written.begin("d").has_lost();
        assert_eq!(of(3), Some((3, "d".into())), "the first may land still");
        written.begin("d").has_won();
        assert_eq!((of(3), of(6)), (Some((6, "d".into())), Some((6, String::new()))));
        (0..=limits::WRITTEN_KEYS_MAX).for_each(|_| _ = written.begin("e"));
        assert_eq!(of(6), None, "too many to tell");
    }
}
