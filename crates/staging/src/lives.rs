//! Which life a change or a commit is of, and what that makes of it. Pure.
//!
//! A life is one start of a node. Two processes can have the same folder's past (a copy, a backup put back), but never the
//! same life. The newest life is right: it goes on from what it found when it began, and what older lives did behind its
//! back is not of the volume any more. The vault says which life wrote it last, and behind which serial that life began.

use crate::{Logged, Policy, Vault, limits};
use base::{Generation, Incarnation, Serial};
use std::ops::RangeInclusive;

#[cfg(test)]
mod tests;

/// A vault of a format that did not know of lives.
const UNKNOWN: Incarnation = Incarnation(0);

/// Who logged a stretch of the volume's history, as far as the vault knows.
#[derive(Debug, Clone, Copy)]
enum By {
    /// One of the lives up to this.
    AnyUpTo(Incarnation),
    /// This one; if it is of another node, none of ours.
    One(Option<Incarnation>),
    /// This one and those after it.
    AllFrom(Incarnation),
}

/// The volume's history by who logged it: up to which serial, and who.
fn history(vault: &Vault) -> impl Iterator<Item = (Serial, By)> {
    let ends = vault.logged.iter().skip(1).map(|next| next.begins).chain([vault.begins]);
    let named = vault.logged.iter().zip(ends).map(|(run, end)| {
        let is_ours = vault.owner == Some(run.node);
        (end, By::One(is_ours.then_some(run.incarnation)))
    });
    let present = (vault.begins, vault.incarnation);
    let (begins, first) =
        vault.logged.first().map_or(present, |first| (first.begins, first.incarnation));
    let unnamed = (begins, By::AnyUpTo(first));
    [unnamed].into_iter().chain(named).chain([(Serial(u64::MAX), By::AllFrom(vault.incarnation))])
}

/// Whether changes with these serials that the life `life` logged are of the volume's history.
fn are_of_history(vault: &Vault, life: Incarnation, serials: RangeInclusive<Serial>) -> bool {
    // A life that came after the vault was written may have found less than its writer had: what only memory had goes
    // with a power cut.
    if vault.incarnation == UNKNOWN || life > vault.incarnation {
        return true;
    }
    let mut behind = None;
    let meeting = history(vault).filter(|(through, _)| {
        let begins = behind.replace(*through);
        begins.is_none_or(|begins| begins < *serials.end()) && through >= serials.start()
    });
    let mut who = meeting.map(|(_, by)| by);
    who.all(|by| match by {
        By::AnyUpTo(newest) => life <= newest,
        By::One(one) => Some(life) == one,
        By::AllFrom(first) => life >= first,
    })
}

/// Whether a change that the log has is one of the volume's, by who logged it. What the vault's life found is of the lives
/// that the vault names; what came behind it is of that life or a newer one, and of the vault's generation.
pub(crate) fn counts(
    vault: &Vault,
    life: Incarnation,
    generation: Generation,
    serial: Serial,
) -> bool {
    is_of_generation(vault, generation, serial) && are_of_history(vault, life, serial..=serial)
}

/// Whether a change of this generation counts, whoever logged it.
pub(crate) fn is_of_generation(vault: &Vault, generation: Generation, serial: Serial) -> bool {
    let accepted = vault
        .accepted
        .is_none_or(|accepted| generation >= accepted.generation || serial <= accepted.through);
    let is_present = generation >= vault.generation || serial <= generation_began(vault);
    accepted && (vault.incarnation == UNKNOWN || is_present)
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

/// Whether this life has to write the vault before it serves the volume: what a life before the start `since` had may be more
/// than this folder has, and the vault has not been written since. A copy of the folder was in use, whose process may still be
/// there, or warm memory was lost, and with it what flash never had. A commit of that may still come, and only a write of the
/// vault keeps it from landing under ours.
///
/// So it is after any start with a volume that keeps nothing in the log: a commit of the last life may still be on its way,
/// with changes that nobody was told of. It must not land once somebody has read what was there before.
pub(crate) fn needs_claim(vault: &Vault, since: Incarnation, life: Incarnation) -> bool {
    let is_logged = vault.policy == Policy::Back;
    vault.incarnation < if is_logged { since } else { life }
}

/// The vault as this life writes it, with a new checkpoint: it says which life that is, behind which serial it began, and who
/// logged what it found (`runs`), as far as that is behind the checkpoint.
pub(crate) fn signed(
    vault: &Vault,
    life: Incarnation,
    (begins, runs): (Serial, &Runs),
    checkpoint: Serial,
) -> Vault {
    let node = vault.owner.unwrap_or_default();
    let mut behind = checkpoint;
    let unfinished = runs.recovered.iter().filter(|(through, _)| *through > checkpoint);
    let mut logged: Vec<Logged> = unfinished
        .map(|&(through, incarnation)| {
            let begins = std::mem::replace(&mut behind, through);
            Logged { node, incarnation, begins }
        })
        .collect();
    let excess = logged.len().saturating_sub(limits::LOGGED_MAX);
    logged.drain(..excess);
    Vault { incarnation: life, begins, logged, checkpoint, ..vault.clone() }
}

/// Whether all that the log has of a volume counts and is claimed rightly, by who logged it: `lines` says of stretches of the
/// log which life logged them, and their lowest and highest serials.
pub(crate) fn are_plain(vault: &Vault, lines: &[(Incarnation, Serial, Serial)]) -> bool {
    vault.incarnation == UNKNOWN
        || lines.iter().all(|&(life, lowest, highest)| {
            are_of_history(vault, life, lowest..=highest)
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

    /// Of what the log has of a volume, if none of it is missing: as [`are_plain`] takes it.
    pub(crate) fn of_lines(lines: &[(Incarnation, Serial, Serial)]) -> Self {
        Self::of(lines.iter().map(|&(life, _, highest)| (highest, life)))
    }

    /// Forgets what comes after `through`.
    pub(crate) fn truncate(&mut self, through: Serial) {
        if let Some(index) = self.recovered.iter().position(|(last, _)| *last >= through) {
            self.recovered.truncate(index + 1);
            self.recovered[index].0 = through;
        }
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
            known && are_of_history(found, of, first..=through)
        };
        let all = runs.into_iter().all(fits);
        match (all, found.incarnation == life && life != UNKNOWN) {
            (true, _) => Fit::Fits,
            (false, true) => Fit::Absurd,
            (false, false) => Fit::Deposed,
        }
    }
}
