//! Which life a change or a commit is of, and what that makes of it. Pure.
//!
//! A life is one start of a node. Two processes can have the same folder's past (a copy, a backup put back), but never the
//! same life. The newest life is right: it goes on from what it found when it began, and what older lives did behind its
//! back is not of the volume any more. The vault says which life wrote it last, and behind which serial that life began.

use crate::{Began, Policy, Vault, limits};
use base::{Generation, Incarnation, Serial};

#[cfg(test)]
mod tests;

/// A vault of a format that did not know of lives.
const UNKNOWN: Incarnation = Incarnation(0);

/// Whether a change that the log has is one of the volume's, by who logged it: a change of an older life, or an older
/// generation, counts up to where the vault's began.
pub(crate) fn counts(
    vault: &Vault,
    life: Incarnation,
    generation: Generation,
    serial: Serial,
) -> bool {
    let accepted = vault
        .accepted
        .is_none_or(|accepted| generation >= accepted.generation || serial <= accepted.through);
    if vault.incarnation == UNKNOWN {
        return accepted;
    }
    let present = Began { incarnation: vault.incarnation, begins: vault.begins };
    let mut began = vault.began.iter().copied().chain([present]);
    accepted
        && began.all(|began| life >= began.incarnation || serial <= began.begins)
        && (generation >= vault.generation || serial <= generation_began(vault))
}

/// The serial behind which nothing of an older generation is of the volume.
fn generation_began(vault: &Vault) -> Serial {
    // A generation that began with accepted losses began behind what was kept, not where its life did.
    let began = vault.accepted.filter(|accepted| accepted.generation == vault.generation);
    began.map_or(vault.begins, |began| began.through.max(vault.begins))
}

/// Up to where changes of a generation count; `None`: all of them do.
pub(crate) fn outlived(vault: &Vault, generation: Generation) -> Option<Serial> {
    let is_over = vault.incarnation != UNKNOWN && generation < vault.generation;
    is_over.then(|| generation_began(vault))
}

/// Whether the vault claims a change that its writer cannot have had: a newer life logged it.
pub(crate) fn is_claimed_wrongly(
    vault: &Vault,
    life: Incarnation,
    generation: Generation,
    serial: Serial,
) -> bool {
    vault.incarnation != UNKNOWN
        && generation == vault.generation
        && life > vault.incarnation
        && serial <= vault.checkpoint
}

/// Whether this life has to write the vault before it serves the volume: a copy of the folder was in use before the start
/// `taken`, its process may still be there, and the vault has not been written since. It may go on from other changes than
/// this folder has, and only a write of the vault keeps it from committing them under ours.
///
/// So it is after any start with a volume that keeps nothing in the log: a commit of the last life may still be on its way,
/// with changes that nobody was told of. It must not land once somebody has read what was there before.
pub(crate) fn needs_claim(vault: &Vault, taken: Incarnation, life: Incarnation) -> bool {
    let is_logged = vault.policy == Policy::Back;
    vault.incarnation < if is_logged { taken } else { life }
}

/// The vault as this life writes it, with a new checkpoint: it says which life that is, behind which serial it began, and
/// where those before it did, as far as there may be changes of older lives that nothing else excludes.
pub(crate) fn signed(
    vault: &Vault,
    life: Incarnation,
    begins: Serial,
    checkpoint: Serial,
) -> Vault {
    let mut began = vault.began.clone();
    if vault.incarnation != UNKNOWN && vault.incarnation != life {
        began.push(Began { incarnation: vault.incarnation, begins: vault.begins });
    }
    // This life excludes what is behind where it began, a later one what an earlier one would behind the same serial.
    began.retain(|began| began.begins < begins && begins > checkpoint);
    let done = began.partition_point(|began| began.begins <= checkpoint).saturating_sub(1);
    let excess = began.len().saturating_sub(limits::BEGAN_MAX);
    began.drain(..done.max(excess));
    Vault { incarnation: life, begins, began, checkpoint, ..vault.clone() }
}

/// Whether all that the log has of a volume counts and is claimed rightly, by who logged it: `lines` says of stretches of the
/// log which life logged them, and their lowest and highest serials.
pub(crate) fn are_plain(vault: &Vault, lines: &[(Incarnation, Serial, Serial)]) -> bool {
    vault.incarnation == UNKNOWN
        || lines.iter().all(|&(life, lowest, highest)| {
            counts(vault, life, vault.generation, highest)
                && (life <= vault.incarnation || lowest > vault.checkpoint)
        })
}

/// Which lives logged the unfinished changes of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Runs {
    /// What outlived a restart: the last serial of each run of changes of one life. Ascending.
    recovered: Vec<(Serial, Incarnation)>,
}

/// What a commit of an earlier attempt, ours or another life's, is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It holds a prefix of what we have, and what we have comes behind it.
    Fits,
    /// It was made by an older life from other changes than ours.
    Deposed,
    /// This very life cannot have made it.
    Absurd,
}

impl Runs {
    /// Of recovered changes in serial order.
    pub(crate) fn of(changes: impl Iterator<Item = (Serial, Incarnation)>) -> Self {
        let mut recovered: Vec<(Serial, Incarnation)> = Vec::new();
        for (serial, life) in changes {
            match recovered.last_mut() {
                Some((last, same)) if *same == life => *last = serial,
                _ => recovered.push((serial, life)),
            }
        }
        Self { recovered }
    }

    /// With what was recovered behind it.
    pub(crate) fn and(mut self, next: Runs) -> Self {
        self.recovered.extend(next.recovered);
        self
    }

    /// Judges `found`, a vault of our owner and generation with a checkpoint at least ours. `ours`: this life, and the serial
    /// behind which it began. The log has our changes behind `checkpoint` up to `last`.
    pub(crate) fn fit(
        &self,
        ours: (Incarnation, Serial),
        (checkpoint, last): (Serial, Serial),
        found: &Vault,
    ) -> Fit {
        let (life, begins) = ours;
        // Runs behind the checkpoint: first serial, last serial, who logged them.
        let mut from = checkpoint;
        let own = (last > begins).then_some((last, life));
        let runs = self.recovered.iter().copied().chain(own).filter_map(|(through, of)| {
            let first = from.next();
            from = from.max(through);
            (through >= first).then_some((first, through, of))
        });
        let fits = |(first, through, of): (Serial, Serial, Incarnation)| {
            let claimed = first <= found.checkpoint;
            if found.incarnation == UNKNOWN {
                return !claimed || of < life;
            }
            let known = !claimed || of <= found.incarnation;
            let builds_on = counts(found, of, found.generation, through);
            known && builds_on
        };
        let all = runs.into_iter().all(fits);
        match (all, found.incarnation == life && life != UNKNOWN) {
            (true, _) => Fit::Fits,
            (false, true) => Fit::Absurd,
            (false, false) => Fit::Deposed,
        }
    }
}
