//! The unfinished changes of a volume that comes into service, and how it takes writes before they
//! are listed.
//!
//! To list and index half a million changes takes tens of milliseconds. A write needs less: the
//! next serial, and that no acknowledged change before it is missing. The log knows that from its
//! summary ([`rekindle_log::LogSummary`]). So a volume with many changes is in service at once, and
//! a thread of its own makes list and index. Reads, the destager (nothing is ready for it) and a
//! salvage wait for them. When a change turns out to be missing after all, the volume goes out of
//! service, and the next attach says which.

use crate::ack::staged::Staged;
use crate::queue::{Change, Queue, Unindexed};
use crate::recover::lives::{self, Runs};
use crate::recover::recovery;
use crate::shape::Shown;
use crate::state::Unfinished;
use crate::vault::snapshot;
use crate::{Error, Inner, Policy, Vault, limits};
use rekindle_base::{Incarnation, Serial};
use rekindle_log::LogSummary;
use std::collections::VecDeque;
use std::sync::Arc;

/// Room for new changes in a fresh list, before the list must grow.
const ROOM_CHANGES: usize = 64 * 1024;

/// The changes that were listed out of the log.
struct Listed {
    changes: VecDeque<Change>,
    runs: Runs,
}

impl Inner {
    /// The unfinished changes of a volume that comes into service.
    pub(crate) async fn unfinished_of(&self, vault: &Vault) -> Result<Unfinished, Error> {
        let checkpoint = vault.checkpoint;
        let life = self.writer.life().incarnation;
        let parked = match self.parked.lock().get_mut(&vault.id) {
            None => None,
            Some(parked) => {
                parked.outlive(vault);
                match parked.check(vault, life) {
                    // Losses were accepted since, and no change is left that the vault could be
                    // without.
                    Err(_) if parked.is_empty() => None,
                    checked => {
                        checked?;
                        let (unindexed, changes) = recovery::unparked(parked, checkpoint);
                        Some((unindexed, changes, parked.end, parked.begins, parked.runs.clone()))
                    }
                }
            }
        };
        let lines = match &parked {
            None => self.log.lives(vault.id).await?,
            Some(_) => Vec::new(),
        };
        let is_plain = lives::are_plain(vault, &lines);
        if is_plain {
            // The log does not know of commits that its last life made without time to note them.
            self.log.release(vault.id, checkpoint);
        }
        let (listed, end, begins) = match parked {
            Some((0, changes, end, begins, runs)) => (Listed { changes, runs }, end, Some(begins)),
            Some((unindexed, newer, end, begins, runs)) => {
                let mut listed = self.listed(vault, Some(unindexed)).await?;
                listed.changes.extend(newer);
                (Listed { runs, ..listed }, end, Some(begins))
            }
            None => {
                // Changes that only memory had may not be on flash yet.
                let end = self.log.begins();
                if is_plain && let Some(unindexed) = self.many(vault).await? {
                    let queue = Queue::with_unindexed(checkpoint, unindexed);
                    let begins = self.begins_of(vault, &queue);
                    let runs = Runs::of_lines(&lines).before(begins);
                    return Ok(Unfinished { queue, end, begins, runs });
                }
                (self.listed(vault, None).await?, end, None)
            }
        };
        self.parked.lock().remove(&vault.id);
        let Listed { changes, runs } = listed;
        if changes.is_empty() && vault.accepted.is_some() {
            // Changes that were given up shall not keep their segments.
            self.log.forget(vault.id);
        }
        let queue = Queue::with(checkpoint, changes);
        let begins = begins.unwrap_or_else(|| self.begins_of(vault, &queue));
        Ok(Unfinished { queue, end, begins, runs: runs.before(begins) })
    }

    /// The serial behind which this life began with a volume that it has no parked changes of: the
    /// vault's, or the last of all changes.
    fn begins_of(&self, vault: &Vault, queue: &Queue) -> Serial {
        let life = self.writer.life().incarnation;
        let is_ours = vault.incarnation == life && life != Incarnation(0);
        if is_ours && !queue.is_empty() { vault.begins } else { queue.last() }
    }

    /// The changes that the log has of a volume, if counting them is enough for now.
    async fn many(&self, vault: &Vault) -> Result<Option<Unindexed>, Error> {
        if vault.policy != Policy::Back || vault.accepted.is_some() {
            return Ok(None);
        }
        let summary = self.log.summary(vault.id).await?;
        let counted = summary.and_then(|summary| counted(&summary, vault));
        Ok(counted.filter(|many| many.count > self.config.index_at_once))
    }

    /// Lists the changes that the log has of a volume behind its checkpoint. `counted`: so many
    /// were known to be there.
    async fn listed(&self, vault: &Vault, counted: Option<usize>) -> Result<Listed, Error> {
        let (recovered, losses) = self.log.salvage(vault.id).await?;
        let (changes, runs) = recovery::unfinished(recovered, &losses, vault, self.env.now())?;
        match counted.filter(|&counted| counted != changes.len()) {
            None => Ok(Listed { changes, runs }),
            Some(counted) => Err(Error::Lost {
                volume: vault.name.clone(),
                reason: format!("the log had {counted} of them and can read {}", changes.len()),
            }),
        }
    }
}

/// Counts the changes behind the checkpoint, if the summary alone shows that all of them are there,
/// of no newer generation, and count.
fn counted(summary: &LogSummary, vault: &Vault) -> Option<Unindexed> {
    let checkpoint = vault.checkpoint;
    let counts = |generation| lives::is_of_generation(vault, generation, summary.highest);
    // Half a group at the end is dropped, which takes the list.
    let promised = snapshot::awaits(&vault.snapshots);
    let whole = summary.gapless
        && !summary.joined
        && promised.is_none_or(|promised| promised <= summary.highest)
        && summary.lowest <= checkpoint.next()
        && summary.newest <= vault.generation
        && counts(summary.oldest);
    let count = summary.highest.0.checked_sub(checkpoint.0).filter(|_| whole)?;
    Some(Unindexed {
        count: usize::try_from(count).ok()?,
        // Too many when the datastore has the first of them; put right when they are listed.
        bytes: summary.bytes + summary.changes * limits::ENTRY_BYTES,
    })
}

/// Lists and indexes the changes of a volume that is in service.
pub(crate) fn start(volume: &Arc<Staged>) {
    let volume = volume.clone();
    let env = volume.inner.env.clone();
    env.spawn_session("index", async move {
        if let Err(error) = list(&volume).await {
            tracing::error!(volume = %volume.name, %error, "its unfinished changes cannot be listed");
            if volume.end_with(error) {
                volume.inner.park(&volume);
            }
        }
        volume.listed.turn_on();
    });
}

async fn list(volume: &Arc<Staged>) -> Result<(), Error> {
    let inner = &volume.inner;
    let watch = inner.env.watch();
    let (vault, unindexed) = {
        let gate = volume.gate.lock();
        (gate.vault().clone(), gate.changes.queue.unindexed())
    };
    let Listed { mut changes, .. } = inner.listed(&vault, Some(unindexed.count)).await?;
    changes.reserve(ROOM_CHANGES);
    let named = (&volume.home, &volume.name[..]);
    let shown = Shown::listed(vault.checkpoint.next(), &changes, named).await?;
    let wakeup = {
        let mut gate = volume.gate.lock();
        if gate.ended.is_some() {
            return Ok(());
        }
        let before = gate.changes.queue.bytes();
        gate.changes.list(changes, shown);
        let after = gate.changes.queue.bytes();
        volume.count(&mut gate.room, after.saturating_sub(before));
        volume.discount(&mut gate.room, before.saturating_sub(after));
        gate.changes.apply(volume.mode.shows(&inner.log.progress()));
        gate.destaging.tell_again();
        volume.note(&mut gate)
    };
    volume.wake_up(wakeup);
    inner.env.boot_phase("index", Some(&format!("attach {}", volume.name)), watch);
    Ok(())
}

impl Staged {
    /// Waits until all unfinished changes are listed, or never will be.
    pub(crate) async fn listed(&self) -> Result<(), Error> {
        if !self.gate.lock().changes.queue.is_listed() {
            self.listed.wait().await;
        }
        self.gate.lock().in_service()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::Generation;

    #[test]
    fn only_what_is_whole_is_counted() {
        let summary = LogSummary {
            changes: 20,
            bytes: 20 * 4096,
            lowest: Serial(5),
            highest: Serial(24),
            oldest: Generation(3),
            newest: Generation(3),
            gapless: true,
            joined: false,
        };
        let count = |summary: LogSummary, checkpoint: u64| {
            let vault = Vault {
                generation: Generation(3),
                checkpoint: Serial(checkpoint),
                incarnation: Incarnation(2),
                begins: Serial(22),
                ..crate::destage::commit::tests::vault(1, checkpoint)
            };
            counted(&summary, &vault).map(|unindexed| unindexed.count)
        };
        assert_eq!(count(summary, 4), Some(20));
        assert_eq!(count(summary, 10), Some(14));
        assert_eq!(count(summary, 24), Some(0));
        assert_eq!(count(summary, 3), None, "4 is missing");
        assert_eq!(count(summary, 30), None, "the log has less than the datastore");
        assert_eq!(count(LogSummary { gapless: false, ..summary }, 10), None);
        assert_eq!(count(LogSummary { joined: true, ..summary }, 10), None, "half a group");
        assert_eq!(count(LogSummary { newest: Generation(4), ..summary }, 10), None);
        let older = LogSummary { oldest: Generation(2), ..summary };
        assert_eq!(count(older, 10), None, "some behind 22 may be of an older generation");
        assert_eq!(count(LogSummary { highest: Serial(22), ..older }, 10), Some(12));
        let of_snapshot = |at| {
            let one = crate::vault::tests::pending(1, at);
            let vault =
                Vault { snapshots: vec![one], ..crate::destage::commit::tests::vault(1, 10) };
            counted(&summary, &vault).map(|unindexed| unindexed.count)
        };
        assert_eq!(of_snapshot(24), Some(14));
        assert_eq!(of_snapshot(25), None, "the log had 25 durably");
    }
}
