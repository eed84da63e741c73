//! The unfinished changes of a volume that comes into service, and how it takes writes before they are listed.
//!
//! To list and index half a million changes takes tens of milliseconds. A write needs less: the next serial, and that no
//! acknowledged change before it is missing, which the log knows in short ([`log::Outline`]). So a volume with many is
//! in service at once; a thread of its own makes list and index. Whoever needs them waits: reads, the destager
//! (nothing is ready for it), a salvage. When it turns out that something is missing after all, the volume goes out of
//! service and the next attach says what.

use crate::overlay::Overlay;
use crate::queue::{Change, Queue, Unlisted};
use crate::staged::{Mode, Staged};
use crate::{Error, Inner, Policy, Vault, limits, recovery};
use base::{Generation, Serial};
use log::{Outline, Position};
use std::collections::VecDeque;
use std::sync::Arc;

/// Room in a new list for what comes before it must grow.
const ROOM_CHANGES: usize = 64 * 1024;

impl Inner {
    /// The unfinished changes of a volume that comes into service, and the point of the log that covers them.
    pub(crate) async fn queue_of(&self, vault: &Vault) -> Result<(Queue, Position), Error> {
        let checkpoint = vault.checkpoint;
        let parked = self.parked.lock().get(&vault.id).map(|parked| {
            let (unlisted, changes) = recovery::unparked(parked, checkpoint);
            (unlisted, changes, parked.end)
        });
        let (changes, end) = match parked {
            Some((0, changes, end)) => (changes, end),
            Some((unlisted, newer, end)) => {
                let mut changes = self.listed(vault, Some(unlisted)).await?;
                changes.extend(newer);
                (changes, end)
            }
            None => {
                if let Some(unlisted) = self.many(vault).await? {
                    return Ok((Queue::with_unlisted(checkpoint, unlisted), Position::default()));
                }
                (self.listed(vault, None).await?, Position::default())
            }
        };
        self.parked.lock().remove(&vault.id);
        if changes.is_empty() && vault.accepted.is_some() {
            // What was given up shall not keep its segments.
            self.log.forget(vault.id);
        }
        Ok((Queue::with(checkpoint, changes), end))
    }

    /// The changes that the log has of a volume, if they need only be counted for now.
    async fn many(&self, vault: &Vault) -> Result<Option<Unlisted>, Error> {
        if vault.policy != Policy::Back || vault.accepted.is_some() {
            return Ok(None);
        }
        let outline = self.log.outline(vault.id).await?;
        let counted =
            outline.and_then(|outline| counted(&outline, vault.checkpoint, vault.generation));
        Ok(counted.filter(|many| many.count > self.config.index_at_once))
    }

    /// What the log has of a volume behind its checkpoint. `counted`: so many were known to be there.
    async fn listed(
        &self,
        vault: &Vault,
        counted: Option<usize>,
    ) -> Result<VecDeque<Change>, Error> {
        let (recovered, losses) = self.log.salvage(vault.id).await?;
        let changes = recovery::unfinished(recovered, &losses, vault, self.env.now())?;
        match counted.filter(|&counted| counted != changes.len()) {
            None => Ok(changes),
            Some(counted) => Err(Error::Lost {
                volume: vault.name.clone(),
                reason: format!("the log had {counted} of them and can read {}", changes.len()),
            }),
        }
    }
}

/// What is behind the checkpoint, if the outline alone shows that all of it is there, of no newer generation.
fn counted(outline: &Outline, checkpoint: Serial, generation: Generation) -> Option<Unlisted> {
    let whole =
        outline.gapless && outline.lowest <= checkpoint.next() && outline.newest <= generation;
    let count = outline.highest.0.checked_sub(checkpoint.0).filter(|_| whole)?;
    Some(Unlisted {
        count: usize::try_from(count).ok()?,
        // Too much when the datastore has the first of them; put right when they are listed.
        bytes: outline.bytes + outline.changes * limits::ENTRY_BYTES,
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
    let (vault, unlisted) = {
        let gate = volume.gate.lock();
        (gate.held.value.clone(), gate.queue.unlisted())
    };
    let mut changes = inner.listed(&vault, Some(unlisted.count)).await?;
    changes.reserve(ROOM_CHANGES);
    let range = |index: usize| (changes[index].position, changes[index].span);
    let overlay = Overlay::build(vault.checkpoint.next(), changes.len(), range);
    let rouse = {
        let mut gate = volume.gate.lock();
        if gate.ended.is_some() {
            return Ok(());
        }
        let before = gate.queue.bytes();
        gate.list(changes, overlay);
        let after = gate.queue.bytes();
        volume.count(&mut gate, after.saturating_sub(before));
        volume.discount(&mut gate, before.saturating_sub(after));
        match volume.mode {
            Mode::Memory => gate.apply_all(),
            Mode::Flash | Mode::Store { .. } => gate.apply(inner.log.committed()),
        }
        gate.told = false;
        volume.note(&mut gate)
    };
    volume.rouse(rouse);
    inner.env.boot_phase("index", Some(&format!("attach {}", volume.name)), watch);
    Ok(())
}

impl Staged {
    /// Waits until all unfinished changes are listed, or never will be.
    pub(crate) async fn listed(&self) -> Result<(), Error> {
        if !self.gate.lock().queue.is_listed() {
            self.listed.wait().await;
        }
        self.gate.lock().in_service()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_whole_is_counted() {
        let outline = Outline {
            changes: 20,
            bytes: 20 * 4096,
            lowest: Serial(5),
            highest: Serial(24),
            newest: Generation(3),
            gapless: true,
        };
        let count = |outline: Outline, checkpoint: u64| {
            counted(&outline, Serial(checkpoint), Generation(3)).map(|unlisted| unlisted.count)
        };
        assert_eq!(count(outline, 4), Some(20));
        assert_eq!(count(outline, 10), Some(14));
        assert_eq!(count(outline, 24), Some(0));
        assert_eq!(count(outline, 3), None, "4 is missing");
        assert_eq!(count(outline, 30), None, "the log has less than the datastore");
        assert_eq!(count(Outline { gapless: false, ..outline }, 10), None);
        assert_eq!(count(Outline { newest: Generation(4), ..outline }, 10), None);
    }
}
