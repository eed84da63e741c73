//! Which volumes have clients, written down in warm memory: after a restart those come into service first, beside the
//! reconnecting of their clients.
//!
//! A hint, verified like all that lies there. What it says wrong costs an attach that nobody asked for.

use datastore::record::Writer;
use parking_lot::Mutex;

/// Where it is kept, beside the copies of vaults.
const KEY: &str = "guests";
/// Bytes of the list; of too many, those that came last are on it. A small frame holds it.
const BYTES_MAX: usize = 4000;

/// The volumes with clients, of this life and of the last.
pub(crate) struct Guests {
    writer: Writer,
    /// Those who came last stand last.
    present: Mutex<Vec<String>>,
    last_life: Mutex<Vec<String>>,
}

impl Guests {
    /// Reads what the last life has left.
    pub fn new(writer: &Writer) -> Self {
        let last_life = writer.hint(KEY).map(|bytes| decode(&bytes)).unwrap_or_default();
        Self { writer: writer.clone(), present: Mutex::default(), last_life: Mutex::new(last_life) }
    }

    /// A volume has its first client.
    pub fn came(&self, volume: &str) {
        let mut present = self.present.lock();
        present.push(volume.to_owned());
        self.writer.keep_hint(KEY, &encode(&present));
    }

    /// A volume's last client has gone.
    pub fn went(&self, volume: &str) {
        let mut present = self.present.lock();
        if let Some(at) = present.iter().rposition(|name| name == volume) {
            present.remove(at);
            self.writer.keep_hint(KEY, &encode(&present));
        }
    }

    /// The volumes that had clients when the last life ended, those first whose clients came last. Told once.
    pub fn take_last_life(&self) -> Vec<String> {
        std::mem::take(&mut self.last_life.lock())
    }
}

/// One length byte and the name, each; the last ones first.
fn encode(present: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in present.iter().rev() {
        let Ok(length) = u8::try_from(name.len()) else { continue };
        if bytes.len() + 1 + name.len() > BYTES_MAX {
            break;
        }
        bytes.push(length);
        bytes.extend(name.as_bytes());
    }
    bytes
}

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
        let bytes = encode(&names);
        assert!(bytes.len() <= BYTES_MAX);
        let found = decode(&bytes);
        assert!(found.len() > 300, "{}", found.len());
        assert!(found.iter().eq(names.iter().rev().take(found.len())));
        assert_eq!(decode(&encode(&[])), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn any_bytes_are_names_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let names = decode(&bytes);
            prop_assert!(names.iter().map(|name| name.len() + 1).sum::<usize>() <= bytes.len());
        }
    }
}
