//! The rules by which a change or a commit counts, by the life that made it. Pure.
//!
//! A life is one start of a node. Two processes can have the same folder's past (a copy, a backup
//! put back), but never the same life. The newest life is right: it goes on from what it found at
//! its start. Changes that older lives made behind that are not of the volume any more. The vault
//! names the life that wrote it last, and the serial behind which that life began.

use crate::{Logged, Vault, limits};
use rekindle_base::{Generation, Incarnation, Serial};
use std::ops::RangeInclusive;

#[cfg(test)]
mod tests;

/// The life in a vault whose format did not know of lives.
const UNKNOWN: Incarnation = Incarnation(0);

/// The lives that may have logged a stretch of the volume's history, as far as the vault knows.
#[derive(Debug, Clone, Copy)]
enum By {
    /// One of the lives up to this.
    AnyUpTo(Incarnation),
    /// This life; `None`: a life of another node, so none of ours.
    One(Option<Incarnation>),
    /// This life and the lives after it.
    AllFrom(Incarnation),
}

/// The volume's history by stretches: the last serial of each, and the lives that may have logged
/// it.
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

/// Whether changes with these serials are of the volume's history when the life `life` logged them.
fn are_of_history(vault: &Vault, life: Incarnation, serials: RangeInclusive<Serial>) -> bool {
    // A life that came after the vault was written may have found less than its writer had: a power
    // cut takes changes that only memory had.
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

/// Whether a change in the log is one of the volume's, by the life that logged it. Changes that the
/// vault's life found are of the lives that the vault names. Changes behind those are of that life
/// or a newer one, and of the vault's generation.
pub(crate) fn counts(
    vault: &Vault,
    life: Incarnation,
    generation: Generation,
    serial: Serial,
) -> bool {
    is_of_generation(vault, generation, serial) && are_of_history(vault, life, serial..=serial)
}

/// Whether a change of this generation counts, whatever life logged it.
pub(crate) fn is_of_generation(vault: &Vault, generation: Generation, serial: Serial) -> bool {
    let accepted = vault
        .accepted
        .is_none_or(|accepted| generation >= accepted.generation || serial <= accepted.through);
    let is_present = generation >= vault.generation || serial <= generation_began(vault);
    accepted && (vault.incarnation == UNKNOWN || is_present)
}

/// The serial behind which no change of an older generation is of the volume.
fn generation_began(vault: &Vault) -> Serial {
    // A generation that began with accepted losses began behind the changes that were kept, not
    // where its life began.
    let began = vault.accepted.filter(|accepted| accepted.generation == vault.generation);
    began.map_or(vault.begins, |began| began.through.max(vault.begins))
}

/// The serial up to which changes of a generation count; `None`: all of them count.
pub(crate) fn outlived(vault: &Vault, generation: Generation) -> Option<Serial> {
    let is_over = vault.incarnation != UNKNOWN && generation < vault.generation;
    is_over.then(|| generation_began(vault))
}

/// Whether the vault claims a change that its writer cannot have had, since a newer life logged it.
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

/// Whether this life has to write the vault before it serves the volume: an older life may have had
/// more changes than this folder has. That is so for lives before the start `since`, when the vault
/// has not been written since. Either a copy of the folder was in use, whose process may still run;
/// or warm memory was lost, with changes that flash never had. A commit of such changes may still
/// be on its way, and only a write of the vault keeps it from landing under ours.
///
/// A volume whose changes the log need not have is written after any start. It asks for the store,
/// or for copies that a node may not have ([`crate::ack::policy`]). A commit of the last life may
/// still be on its way, with changes that were not acknowledged. It must not land once a client has
/// read the content before it.
pub(crate) fn needs_claim(vault: &Vault, since: Incarnation, life: Incarnation) -> bool {
    vault.incarnation < if vault.is_bound_to_its_machine() { since } else { life }
}

/// The vault as this life writes it, with a new checkpoint. It names this life, the serial behind
/// which it began, and the lives that logged what it found (`runs`), as far as that is behind the
/// checkpoint.
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

/// Whether all changes that the log has of a volume count and are claimed rightly, by the lives
/// that logged them. Each of `lines` is a stretch of the log: its life, and its lowest and highest
/// serial.
pub(crate) fn are_plain(vault: &Vault, lines: &[(Incarnation, Serial, Serial)]) -> bool {
    vault.incarnation == UNKNOWN
        || lines.iter().all(|&(life, lowest, highest)| {
            are_of_history(vault, life, lowest..=highest)
                && (life <= vault.incarnation || lowest > vault.checkpoint)
        })
}

/// The lives that logged the unfinished changes of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Runs {
    /// Changes that outlived a restart: the last serial of each run of changes of one life.
    /// Ascending.
    recovered: Vec<(Serial, Incarnation)>,
}

/// The verdict about a commit of an earlier attempt, ours or another life's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The commit holds a prefix of our changes, and the rest of ours come behind it.
    Fits,
    /// An older life made the commit from other changes than ours.
    Deposed,
    /// This very life cannot have made the commit.
    Absurd,
}

impl Runs {
    /// Makes runs of recovered changes in serial order.
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

    /// Makes runs of the log's lines, as [`are_plain`] takes them, if no change is missing.
    pub(crate) fn of_lines(lines: &[(Incarnation, Serial, Serial)]) -> Self {
        Self::of(lines.iter().map(|&(life, _, highest)| (highest, life)))
    }

    /// The runs that this life found, which began behind `begins`. What the log has behind that is
    /// its own, also when it outlived the process (a log that was left behind is opened once more
    /// as by its last life).
    pub(crate) fn before(mut self, begins: Serial) -> Self {
        self.truncate(begins);
        self
    }

    /// Forgets the changes after `through`.
    pub(crate) fn truncate(&mut self, through: Serial) {
        if let Some(index) = self.recovered.iter().position(|(last, _)| *last >= through) {
            self.recovered.truncate(index + 1);
            self.recovered[index].0 = through;
        }
    }

    /// Judges `found`, a vault of our owner and generation with a checkpoint at least ours. `ours`
    /// is this life, with the serial behind which it began. The log has our changes behind
    /// `checkpoint` up to `last`.
    pub(crate) fn fit(
        &self,
        ours: (Incarnation, Serial),
        (checkpoint, last): (Serial, Serial),
        found: &Vault,
    ) -> Fit {
        let (life, begins) = ours;
        // Runs behind the checkpoint: first serial, last serial, life.
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
