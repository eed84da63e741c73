//! Where clients hold something: the volumes that each has been in. Pure.
//!
//! A client that is idle says only that it is alive, and its stateids do not say of which volume
//! they are. So the host that it came to knows it: it tells the owners that the client lives, and
//! asks them about its stateids, also after it has started anew. A host keeps this as a file.

use super::limits;
use rekindle_env::Moment;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const WHAT: &str = "nfs-clients";
const FORMAT: u32 = 1;

/// What is kept. Page: docs/format/nfs.md.
#[derive(Serialize, Deserialize)]
struct HauntsFile {
    rekindle: String,
    format: u32,
    clients: Vec<ClientRow>,
}

#[derive(Serialize, Deserialize)]
struct ClientRow {
    client: u64,
    /// The address of the machine.
    machine: String,
    volumes: BTreeSet<String>,
}

/// The volumes of one client.
struct Haunt {
    machine: String,
    volumes: BTreeSet<String>,
    /// It is forgotten a lease later, unless it is heard.
    since: Moment,
}

/// The volumes of all clients.
#[derive(Default)]
pub struct Haunts {
    clients: BTreeMap<u64, Haunt>,
    /// Volumes of all clients together.
    count: usize,
    /// Something has changed since it was encoded last.
    is_new: bool,
}

impl Haunts {
    /// Notes that a client is in a volume, and says whether that is new. One too many is not noted:
    /// its owner then waits for a word from the client itself.
    pub fn note(&mut self, client: u64, machine: &str, volume: &str, now: Moment) -> bool {
        let count = self.count;
        let there = self.clients.entry(client).or_insert_with(|| Haunt {
            machine: machine.to_owned(),
            volumes: BTreeSet::new(),
            since: now,
        });
        if there.machine != machine {
            // The client has another address now.
            machine.clone_into(&mut there.machine);
            self.is_new = true;
        }
        let is_new = !there.volumes.contains(volume) && count < limits::HAUNTS_MAX;
        if is_new {
            there.volumes.insert(volume.to_owned());
            (self.count, self.is_new) = (count + 1, true);
        }
        is_new
    }

    /// Returns the machine and the volumes of a client.
    #[must_use]
    pub fn of(&self, client: u64) -> Option<(String, Vec<String>)> {
        let there = self.clients.get(&client)?;
        Some((there.machine.clone(), there.volumes.iter().cloned().collect()))
    }

    /// Forgets clients of which nothing was heard for a lease, and returns the others. `is_heard`
    /// says of a client whether it was heard within one.
    pub fn living(&mut self, is_heard: &dyn Fn(u64) -> bool, now: Moment) -> Vec<u64> {
        let before = self.clients.len();
        self.clients
            .retain(|client, haunt| is_heard(*client) || now - haunt.since <= limits::LEASE);
        self.is_new |= before != self.clients.len();
        self.count = self.clients.values().map(|haunt| haunt.volumes.len()).sum();
        self.clients.keys().copied().collect()
    }

    /// Forgets a volume that is no more.
    pub fn forget(&mut self, volume: &str) {
        for there in self.clients.values_mut() {
            if there.volumes.remove(volume) {
                (self.count, self.is_new) = (self.count - 1, true);
            }
        }
    }

    /// Returns the bytes to keep, if there is anything new.
    pub fn take_new(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.is_new).then(|| {
            let rows = self.clients.iter().map(|(client, haunt)| ClientRow {
                client: *client,
                machine: haunt.machine.clone(),
                volumes: haunt.volumes.clone(),
            });
            let (rekindle, clients) = (WHAT.to_owned(), rows.collect());
            let file = HauntsFile { rekindle, format: FORMAT, clients };
            serde_json::to_vec(&file).expect("its keys are words")
        })
    }

    /// Adds what an earlier process has kept.
    pub fn add_kept(&mut self, bytes: &[u8], now: Moment) -> Result<(), String> {
        let file: HauntsFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if file.rekindle != WHAT || file.format != FORMAT {
            return Err(format!("it is '{}' of format {}", file.rekindle, file.format));
        }
        let is_new = self.is_new;
        for ClientRow { client, machine, volumes } in file.clients {
            // What this process has heard is newer.
            let there = self.clients.get(&client).map(|haunt| haunt.machine.clone());
            let machine = there.unwrap_or(machine);
            for volume in &volumes {
                self.note(client, &machine, volume, now);
            }
        }
        self.is_new = is_new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn what_is_kept_is_there_again_and_a_client_that_is_not_heard_is_forgotten() {
        let mut haunts = Haunts::default();
        haunts.note(7, "10.0.0.2", "one", at(1));
        haunts.note(7, "10.0.0.2", "two", at(1));
        haunts.note(8, "10.0.0.3", "one", at(1));
        let bytes = haunts.take_new().expect("it is new");
        haunts.note(8, "10.0.0.3", "one", at(2));
        assert_eq!(haunts.take_new(), None, "nothing is new");
        let mut again = Haunts::default();
        again.note(7, "10.0.0.9", "three", at(100));
        again.add_kept(&bytes, at(100)).unwrap();
        let volumes = ["one", "three", "two"].map(str::to_owned).to_vec();
        assert_eq!(again.of(7), Some(("10.0.0.9".to_owned(), volumes)));
        assert_eq!(again.living(&|_| false, at(190)), [7, 8], "a lease is not over");
        assert_eq!(again.living(&|client| client == 8, at(191)), [8]);
        assert_eq!((again.of(7), again.count), (None, 1));
        again.forget("one");
        assert_eq!(again.of(8), Some(("10.0.0.3".to_owned(), vec![])));
        assert!(again.take_new().is_some() && again.add_kept(b"{}", at(1)).is_err());
    }

    #[test]
    fn their_number_is_bounded() {
        let mut haunts = Haunts::default();
        for number in 0..limits::HAUNTS_MAX as u64 + 10 {
            haunts.note(number % 100, "m", &format!("volume-{number}"), at(1));
        }
        let counts = (0..100).map(|client| haunts.of(client).unwrap().1.len());
        assert_eq!(counts.sum::<usize>(), limits::HAUNTS_MAX);
        // One that was noted stays.
        haunts.note(0, "m", "volume-0", at(1));
        assert_eq!(haunts.count, limits::HAUNTS_MAX);
    }
}
