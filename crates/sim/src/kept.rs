//! The oracle for snapshots of the run's volumes. The vault names the serial of a snapshot, and the
//! regions know what they were after each serial. So a clone of the snapshot, or the volume after a
//! rollback to it, shows exactly that, whatever became of the node meanwhile.

use crate::boot::Served;
use crate::clients::Table;
use crate::heard;
use crate::region::{Operation, Region};
use crate::subject::{Attached, Subject};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_front::http::api::ApiError;
use rekindle_front::http::api::kept::{CloneVolume, Keep, Rollback, TakeSnapshot};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest pause between two commands, milliseconds.
const PAUSE_MS: u64 = 100;
/// Snapshots of a volume that the oracle knows at once.
const KEPT_MAX: usize = 4;

/// The snapshots of a volume, by name, over all lives.
pub type SharedKept = Arc<Mutex<BTreeMap<String, Kept>>>;

/// The snapshots that a vault lists: each name with its serial.
pub type Listed = Vec<(String, u64)>;

/// A snapshot that was asked for.
#[derive(Default)]
pub struct Kept {
    /// The regions when the answer to its taking did not come: until it is seen, its serial is not
    /// known.
    asked: Option<Vec<Region>>,
    /// What each region may have been at its serial; none until that is known.
    lawful: Option<Vec<Vec<Vec<u8>>>>,
    /// Whether it may be gone: its removal was asked for.
    pub may_be_gone: bool,
}

/// Returns the snapshots that the vault of a volume in service lists.
pub fn listed(volume: &Attached) -> Listed {
    let each = |one: &rekindle_staging::Snapshot| (one.name.clone(), one.checkpoint.0);
    volume.staged().look_at_snapshots(|all| all.iter().map(each).collect())
}

impl Subject {
    /// Notes what the regions are now for all snapshots whose answer did not come.
    fn note_regions(&self) {
        for kept in self.kept.lock().values_mut() {
            if kept.lawful.is_none() && kept.asked.is_none() {
                let regions = self.regions.iter().map(|region| region.lock().clone());
                kept.asked = Some(regions.collect());
            }
        }
    }

    /// Judges which snapshots are there, before the regions take what is found for the truth.
    /// `is_harmed`: changes that a snapshot waited for may be lost.
    pub fn judge_snapshots(&self, listed: &Listed, is_harmed: bool) -> Result<(), String> {
        self.note_regions();
        let mut all = self.kept.lock();
        for (name, serial) in listed {
            let kept = all.get_mut(name);
            let kept = kept.ok_or_else(|| format!("snapshot {name} is there, and none took it"))?;
            if let Some(regions) = kept.asked.take() {
                heard::note("snapshots: taken without an answer");
                kept.lawful = Some(regions.iter().map(|region| region.after(*serial)).collect());
            }
        }
        let mut gone = None;
        all.retain(|name, kept| {
            let is_there = listed.iter().any(|(one, _)| one == name);
            if is_there || kept.lawful.is_none() {
                return true;
            }
            if !kept.may_be_gone && !is_harmed {
                gone = Some(format!("snapshot {name} was taken, and is not there"));
            }
            false
        });
        gone.map_or(Ok(()), Err)
    }
}

/// Takes and removes snapshots of the volumes as long as there are clients.
pub async fn keep(
    (served, open): (Served, Vec<Attached>),
    table: Arc<Table>,
    was_hurt: bool,
    mut dice: Random,
) -> Result<(), String> {
    while table.is_busy() {
        served.env.sleep(Duration::from_millis(dice.below(PAUSE_MS))).await;
        let at = dice.below(open.len() as u64) as usize;
        let (subject, volume) = (&table.subjects()[at], &open[at]);
        let count = subject.kept.lock().len();
        let outcome = match count >= KEPT_MAX || count > 0 && dice.below(4) == 0 {
            true => remove(&served, subject, dice.below(count as u64) as usize).await,
            false => {
                let name = format!("k{:012x}", dice.next_u64() >> 16);
                take(&served, subject, volume, name).await
            }
        };
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind.is_retryable() => heard::note("snapshots: for later"),
            Err(error) if table.trouble().explains(error.kind) => {}
            Err(error) if table.trouble().ends(error.kind) => {}
            Err(error) if was_hurt && error.kind == Kind::Damaged => {}
            Err(error) => {
                return Err(format!("a snapshot of the {}: {error}", subject.what.name()));
            }
        }
    }
    Ok(())
}

async fn take(
    served: &Served,
    subject: &Subject,
    volume: &Attached,
    name: String,
) -> Result<(), ApiError> {
    subject.kept.lock().insert(name.clone(), Kept::default());
    let marks: Vec<_> = subject.regions.iter().map(|region| region.lock().mark()).collect();
    let request = TakeSnapshot { name: name.clone() };
    let taken = served.service.take_snapshot(subject.what.name(), request).await;
    let serial = listed(volume).into_iter().find(|(one, _)| *one == name);
    let (Ok(_), Some((_, serial))) = (&taken, serial) else {
        subject.note_regions();
        return taken.map(drop);
    };
    for (region, mark) in subject.regions.iter().zip(marks) {
        // It is durable, and all that came before it.
        region.lock().flushed(mark);
    }
    let lawful = subject.regions.iter().map(|region| region.lock().after(serial)).collect();
    if let Some(kept) = subject.kept.lock().get_mut(&name) {
        kept.lawful = Some(lawful);
    }
    heard::note("snapshots: taken");
    Ok(())
}

async fn remove(served: &Served, subject: &Subject, index: usize) -> Result<(), ApiError> {
    let name = {
        let mut all = subject.kept.lock();
        let Some((name, kept)) = all.iter_mut().nth(index) else { return Ok(()) };
        kept.may_be_gone = true;
        name.clone()
    };
    match served.service.remove_snapshot(subject.what.name(), &name).await {
        Ok(()) => {
            subject.kept.lock().remove(&name);
            Ok(())
        }
        // It never came, or it went without an answer.
        Err(error) if matches!(error.kind, Kind::Invalid | Kind::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Compares clones of all snapshots with what the volume was at their serials, and goes back to
/// one of them at times. The store is well, all is drained, and the volume has no client.
pub async fn compare(served: &Served, subject: &Subject, dice: &mut Random) -> Result<(), String> {
    let name = subject.what.name();
    let told = |what: &str, error: ApiError| format!("{what} of the {name}: {error}");
    let there = listed(&subject.what.attach(served).await.map_err(|error| error.message)?);
    subject.judge_snapshots(&there, false)?;
    for (snapshot, serial) in &there {
        let copy = format!("copy-{:012x}", dice.next_u64() >> 16);
        let request = CloneVolume { snapshot: snapshot.clone(), name: copy.clone() };
        let cloned = served.service.clone_volume(name, request).await;
        cloned.map_err(|error| told("clone", error))?;
        let found = read(served, subject, &copy).await?;
        let removed = served.service.remove_volume(&copy, false, true).await;
        removed.map_err(|error| told("removal of a clone", error))?;
        subject.see(snapshot, *serial, &found)?;
        heard::note("snapshots: compared");
    }
    if there.is_empty() || dice.below(3) > 0 {
        return Ok(());
    }
    let (snapshot, serial) = &there[dice.below(there.len() as u64) as usize];
    let next = subject.what.attach(served).await.map_err(|error| error.message)?;
    let next = next.staged().backlog().serial + 1;
    let before = subject.seen(snapshot);
    // It may land although this life ends.
    for (region, bytes) in subject.regions.iter().zip(before) {
        let mut region = region.lock();
        region.submit(&Operation { start: 0, bytes });
        region.order(next);
    }
    let request = Rollback { version: snapshot.clone(), discard: false };
    let gone_back = served.service.rollback_volume(name, request).await;
    gone_back.map_err(|error| told("rollback", error))?;
    let found = read(served, subject, name).await?;
    subject.see(snapshot, *serial, &found)?;
    for (region, found) in subject.regions.iter().zip(&found) {
        region.lock().take_as_truth(found);
    }
    heard::note("snapshots: gone back to");
    Ok(())
}

/// Reads all regions of a volume that is like the subject.
async fn read(served: &Served, subject: &Subject, name: &str) -> Result<Vec<Vec<u8>>, String> {
    let volume = subject.what.attach_as(served, name).await.map_err(|error| error.message)?;
    let mut found = Vec::new();
    for client in 0..subject.regions.len() {
        let read = volume.read(client).await;
        found.push(read.map_err(|error| format!("{name} cannot be read: {error}"))?);
    }
    Ok(found)
}

impl Subject {
    /// Judges what a snapshot shows. It shows that from now on.
    fn see(&self, name: &str, serial: u64, found: &[Vec<u8>]) -> Result<(), String> {
        let mut all = self.kept.lock();
        let lawful = all.get_mut(name).and_then(|kept| kept.lawful.as_mut());
        let lawful = lawful.ok_or_else(|| format!("snapshot {name} is not known"))?;
        for (client, (lawful, found)) in lawful.iter_mut().zip(found).enumerate() {
            if !lawful.contains(found) {
                let what = self.what.name();
                return Err(format!(
                    "snapshot {name} of the {what}, serial {serial}, shows client {client} what was not there"
                ));
            }
            *lawful = vec![found.clone()];
        }
        Ok(())
    }

    /// What a snapshot has shown.
    fn seen(&self, name: &str) -> Vec<Vec<u8>> {
        let all = self.kept.lock();
        let lawful = all.get(name).and_then(|kept| kept.lawful.as_ref());
        lawful.into_iter().flatten().filter_map(|lawful| lawful.first().cloned()).collect()
    }
}
