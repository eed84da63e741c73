//! The active volumes: a list in warm memory of the volumes with clients. After a restart those
//! come into service first, while their clients still reconnect.
//!
//! The list is a hint, verified like everything in warm memory. A wrong entry costs one needless
//! attach.

use parking_lot::Mutex;
use rekindle_datastore::record::Writer;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Key of the list, beside the record cache.
const KEY: &str = "guests";
/// Most bytes of the list, so that it fits a small frame. A longer list keeps the volumes whose
/// clients came last.
const BYTES_MAX: usize = 4000;

/// The volumes with clients, of this life and of the last.
pub(crate) struct ActiveVolumes {
    writer: Writer,
    present: Mutex<Present>,
    last_life: Mutex<Vec<String>>,
    /// Volumes that had clients when the last life was killed, and whose clients have not come
    /// back.
    awaited: Mutex<HashSet<String>>,
}

/// The volumes with clients now. Thousands may come and go at once, so neither looks at the others.
#[derive(Default)]
struct Present {
    arrivals: u64,
    /// By arrival: the last to arrive stands last.
    by_arrival: BTreeMap<u64, Arc<str>>,
    /// Arrivals of each volume: more than one for a moment, when a client comes as the one before
    /// goes.
    by_name: HashMap<Arc<str>, Vec<u64>>,
}

impl ActiveVolumes {
    /// Reads the list of the last life.
    pub fn new(writer: &Writer) -> Self {
        let last_life = writer.hint(KEY).map(|bytes| decode(&bytes)).unwrap_or_default();
        // A stopped life leaves an empty list: its clients went before it.
        let awaited = Mutex::new(last_life.iter().cloned().collect());
        let (present, last_life) = (Mutex::default(), Mutex::new(last_life));
        Self { writer: writer.clone(), present, last_life, awaited }
    }

    /// Notes that the client of a volume has connected. A hold on the volume is not enough: the
    /// node itself attaches active volumes.
    pub fn is_back(&self, volume: &str) {
        self.awaited.lock().remove(volume);
    }

    /// Whether the client of a volume that a kill of the daemon has cut off is still expected back.
    pub fn is_awaited(&self, volume: &str) -> bool {
        self.awaited.lock().contains(volume)
    }

    /// Adds a volume that has its first client.
    pub fn came(&self, volume: &str) {
        let mut present = self.present.lock();
        present.add(volume);
        self.writer.keep_hint(KEY, &present.encode());
    }

    /// Writes the list at an orderly stop: the next life expects no client that has not come back
    /// to this one.
    pub fn end(&self) {
        let present = self.present.lock();
        self.writer.keep_hint(KEY, &present.encode());
    }

    /// Removes a volume whose last client has gone.
    pub fn went(&self, volume: &str) {
        let mut present = self.present.lock();
        if present.remove(volume) {
            self.writer.keep_hint(KEY, &present.encode());
        }
    }

    /// Takes the volumes that had clients when the last life ended, the last to arrive first. A
    /// second call returns none.
    pub fn take_last_life(&self) -> Vec<String> {
        std::mem::take(&mut self.last_life.lock())
    }
}

impl Present {
    fn add(&mut self, volume: &str) {
        let name: Arc<str> = volume.into();
        self.arrivals += 1;
        self.by_arrival.insert(self.arrivals, name.clone());
        self.by_name.entry(name).or_default().push(self.arrivals);
    }

    /// Whether the volume was there.
    fn remove(&mut self, volume: &str) -> bool {
        let Some(arrivals) = self.by_name.get_mut(volume) else { return false };
        let last = arrivals.pop();
        if arrivals.is_empty() {
            self.by_name.remove(volume);
        }
        last.is_some_and(|last| self.by_arrival.remove(&last).is_some())
    }

    /// Encodes each name as one length byte and the name; the last to arrive first.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for name in self.by_arrival.values().rev() {
            let Ok(length) = u8::try_from(name.len()) else { continue };
            if bytes.len() + 1 + name.len() > BYTES_MAX {
                break;
            }
            bytes.push(length);
            bytes.extend(name.as_bytes());
        }
        bytes
    }
}

/// Decodes the list of [`Present::encode`], as far as it is sound.
fn decode(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let Some((name, rest)) = rest.split_at_checked(usize::from(length)) else { break };
        names.extend(String::from_utf8(name.to_vec()));
        bytes = rest;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_list_survives_and_those_who_came_last_are_on_it() {
        let names: Vec<String> = (0..1000).map(|number| format!("volume-{number}")).collect();
        let mut present = Present::default();
        names.iter().for_each(|name| present.add(name));
        let bytes = present.encode();
        assert!(bytes.len() <= BYTES_MAX);
        let found = decode(&bytes);
        assert!(found.len() > 300, "{}", found.len());
        assert!(found.iter().eq(names.iter().rev().take(found.len())));
        assert_eq!(decode(&Present::default().encode()), Vec::<String>::new());
    }

    #[test]
    fn who_comes_as_another_goes_is_still_there() {
        let mut present = Present::default();
        ["a", "b", "a", "c"].into_iter().for_each(|name| present.add(name));
        assert!(present.remove("a") && present.remove("c") && !present.remove("d"));
        assert_eq!(decode(&present.encode()), ["b", "a"]);
        assert!(present.remove("a") && !present.remove("a") && present.remove("b"));
        assert!(present.by_arrival.is_empty() && present.by_name.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_names_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let names = decode(&bytes);
            prop_assert!(names.iter().map(|name| name.len() + 1).sum::<usize>() <= bytes.len());
        }
    }
}
