//! The rules for the changes that the log still has of a volume that comes into service. Pure.
//!
//! When acknowledged changes are missing ([`Missing`]), the volume stays out of service until the
//! user accepts that. Then it goes on from the longest whole prefix, and the vault says so
//! ([`crate::Accepted`]).

use crate::queue::{Change, whole_groups};
use crate::recover::lives::{self, Fit, Runs};
use crate::vault::snapshot;
use crate::{Error, Vault};
use rekindle_base::{Generation, Incarnation, SegmentId, Serial};
use rekindle_env::Moment;
use rekindle_log::{Loss, Position, Recovered};
use std::cmp::Reverse;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// The unfinished changes of a volume that was closed in this run of the daemon. The log lists only
/// changes that outlived a restart.
pub(crate) struct Parked {
    /// The volume's generation when it was closed.
    pub(crate) generation: Generation,
    /// The serial up to which the datastore had its changes.
    pub(crate) checkpoint: Serial,
    /// Count of the changes in the log before these that were not listed yet.
    pub(crate) unindexed: usize,
    pub(crate) changes: VecDeque<Change>,
    /// Point of the log that covers the changes.
    pub(crate) end: Position,
    /// The serial behind which this life began, and the lives that logged the changes before that.
    pub(crate) begins: Serial,
    pub(crate) runs: Runs,
}

impl Parked {
    /// Returns an error when an older life, which has been replaced, has written the vault over
    /// without these changes.
    pub(crate) fn check(&self, vault: &Vault, life: Incarnation) -> Result<(), Error> {
        let last = self.last();
        match self.runs.fit((life, self.begins), (self.checkpoint, last), vault) {
            Fit::Fits => Ok(()),
            Fit::Deposed | Fit::Absurd => Err(Error::Lost {
                volume: vault.name.clone(),
                reason: overtaken_by(vault, self.checkpoint.next(), last),
            }),
        }
    }

    /// The serial of the last change.
    pub(crate) fn last(&self) -> Serial {
        Serial(self.checkpoint.0 + (self.unindexed + self.changes.len()) as u64)
    }

    /// Forgets the changes that do not count under a newer generation of the vault: the volume had
    /// another owner meanwhile.
    pub(crate) fn outlive(&mut self, vault: &Vault) {
        if let Some(through) = lives::outlived(vault, self.generation) {
            self.truncate(through);
        }
    }

    /// Whether no change is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.unindexed == 0 && self.changes.is_empty()
    }

    /// Forgets the changes after `through`, and the rest of a group that this parts.
    pub(crate) fn truncate(&mut self, through: Serial) {
        let count = through.0.saturating_sub(self.checkpoint.0) as usize;
        self.changes.truncate(count.saturating_sub(self.unindexed));
        self.unindexed = self.unindexed.min(count);
        let whole = whole_groups(self.changes.len(), |index| self.changes[index].joined);
        let is_parted = whole < self.changes.len();
        self.changes.truncate(whole);
        let last = Serial(self.checkpoint.0 + (self.unindexed + whole) as u64);
        let through = if is_parted { last } else { through };
        // This life goes on from the remaining changes, and gives the serials behind them once
        // more.
        self.begins = self.begins.min(through);
        self.runs.truncate(through);
    }
}

/// Names the missing serials, if `serials` (ascending, each once) do not all follow `checkpoint`
/// without gaps.
pub(crate) fn missing(checkpoint: Serial, serials: impl Iterator<Item = Serial>) -> Option<String> {
    let mut gaps = Vec::new();
    let mut next = checkpoint.0 + 1;
    for serial in serials {
        if serial.0 > next {
            gaps.push(if serial.0 - next == 1 {
                next.to_string()
            } else {
                format!("{next}-{}", serial.0 - 1)
            });
        }
        next = serial.0 + 1;
    }
    (!gaps.is_empty()).then(|| gaps.join(", "))
}

/// The changes behind the vault's checkpoint, in serial order; an error that says what is wrong
/// with them otherwise.
pub(crate) fn unfinished(
    recovered: Vec<Recovered>,
    losses: &[Loss],
    vault: &Vault,
    now: Moment,
) -> Result<(VecDeque<Change>, Runs), Error> {
    let overtaken = overtaken(&recovered, vault);
    let mut changes = behind(recovered, vault)?;
    let missing = Missing::of(&changes, losses, vault).and(overtaken);
    if let Some(reason) = missing.reason() {
        let next = format!(
            "`rekindle salvage run {} --accept-losses` goes on from what is whole before them",
            vault.name
        );
        return Err(Error::Lost {
            volume: vault.name.clone(),
            reason: format!("{reason}: {next}"),
        });
    }
    // No change is missing, so the rest of this group was never in the log: no client has a reply.
    changes.truncate(whole_groups(changes.len(), |index| changes[index].joined));
    let runs = Runs::of(changes.iter().map(|change| (change.serial, change.life)));
    // Converted in place, so that the deque needs no copy.
    let changes: Vec<Change> = changes
        .into_iter()
        .map(|change| {
            let kind = change.change;
            let place = (change.span > 0 && has_payload(kind)).then_some(change.place);
            // Changes that outlived a restart count as committed.
            Change::logged(change.position, change.span, place, Position(0), now)
                .of(kind)
                .joined(change.joined)
        })
        .collect();
    Ok((changes.into(), runs))
}

/// Whether the log has bytes of such a change.
pub(crate) fn has_payload(change: rekindle_log::Change) -> bool {
    matches!(change, rekindle_log::Change::Write | rekindle_log::Change::Record)
}

/// The changes that the vault claims although its writer, an older life, cannot have had them: this
/// folder's changes are not in the root.
pub(crate) fn overtaken(recovered: &[Recovered], vault: &Vault) -> Option<String> {
    let claimed = |change: &&Recovered| {
        lives::is_claimed_wrongly(vault, change.life, change.generation, change.serial)
    };
    let serials = recovered.iter().filter(claimed).map(|change| change.serial);
    let (first, last) = serials.fold(None, |range: Option<(Serial, Serial)>, serial| {
        Some(range.map_or((serial, serial), |(first, last)| (first.min(serial), last.max(serial))))
    })?;
    Some(overtaken_by(vault, first, last))
}

fn overtaken_by(vault: &Vault, first: Serial, last: Serial) -> String {
    format!(
        "serials {first} to {last} are in the log and not in the datastore: start {} of this node, which had been replaced, \
         wrote the vault over without them",
        vault.incarnation
    )
}

/// The changes behind the vault's checkpoint that count, in serial order.
pub(crate) fn behind(recovered: Vec<Recovered>, vault: &Vault) -> Result<Vec<Recovered>, Error> {
    let mut changes = recovered;
    let counts =
        |change: &Recovered| lives::counts(vault, change.life, change.generation, change.serial);
    changes.retain(|change| change.serial > vault.checkpoint && counts(change));
    // The newest generation of a serial comes first, and of that the newest life. The log gives
    // them nearly sorted.
    changes.sort_by_key(|change| (change.serial, Reverse(change.generation), Reverse(change.life)));
    changes.dedup_by_key(|change| change.serial);
    match newest(&changes).filter(|&newest| newest > vault.generation) {
        None => Ok(changes),
        Some(newer) => {
            let reason = format!(
                "the log has changes of generation {newer}, the vault is of generation {}: the store was set back to \
                 an older state",
                vault.generation
            );
            Err(Error::Lost { volume: vault.name.clone(), reason })
        }
    }
}

/// The missing changes of a volume.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// Changes that may be missing, by the lost segments.
    harm: Option<String>,
    /// Changes that are missing, by the serials that are there.
    gaps: Option<String>,
    /// Changes that the vault claims wrongly.
    overtaken: Option<String>,
    /// The last segment that is lost.
    pub(crate) segment: SegmentId,
}

impl Missing {
    /// Finds what is missing among `changes`, which are those [`behind`] the vault.
    pub(crate) fn of(changes: &[Recovered], losses: &[Loss], vault: &Vault) -> Missing {
        // Known losses hold for all generations of one owner: another owner has another log, and
        // forgets them.
        let known = vault.accepted;
        // Accepted losses leave a whole prefix; no change of that may be missing later on.
        let kept = known.map(|known| known.through).filter(|through| *through > vault.checkpoint);
        let serials = || changes.iter().map(|change| change.serial);
        let count = whole(vault.checkpoint, serials()) as u64;
        let is_kept = kept.is_none_or(|through| vault.checkpoint.0 + count >= through.0);
        let gaps = gaps(vault, kept, serials());
        let is_known =
            |loss: &Loss| is_kept && known.is_some_and(|known| loss.segment <= known.segment);
        let losses: Vec<Loss> = losses.iter().filter(|loss| !is_known(loss)).cloned().collect();
        let segment = losses.iter().map(|loss| loss.segment).max().unwrap_or_default();
        Missing {
            harm: harm(vault.checkpoint, &losses),
            gaps: gaps.map(|gaps| {
                format!(
                    "serials {gaps} are not in the log, the datastore has those up to {}",
                    vault.checkpoint
                )
            }),
            overtaken: None,
            segment: segment.max(known.map(|known| known.segment).unwrap_or_default()),
        }
    }

    /// Adds the changes that are [`overtaken`].
    pub(crate) fn and(self, overtaken: Option<String>) -> Missing {
        Missing { overtaken, ..self }
    }

    /// The reason in words; `None` when no change is missing.
    pub(crate) fn reason(&self) -> Option<String> {
        self.overtaken.clone().or_else(|| self.harm.clone()).or_else(|| self.gaps.clone())
    }
}

/// Names the serials behind the checkpoint that are not among `serials`: those before others, those
/// that accepted losses have `kept`, and those that a snapshot waits for. Later changes would get
/// the serials of these last ones, and become the snapshot's.
fn gaps(
    vault: &Vault,
    kept: Option<Serial>,
    serials: impl Iterator<Item = Serial> + Clone,
) -> Option<String> {
    let promised = kept.max(snapshot::awaits(&vault.snapshots));
    let next = promised.filter(|through| serials.clone().all(|serial| serial <= *through));
    missing(vault.checkpoint, serials.chain(next.map(Serial::next)))
}

/// Counts the first of `serials` (ascending) that are whole: no serial behind `checkpoint` is
/// missing before them.
pub(crate) fn whole(checkpoint: Serial, serials: impl Iterator<Item = Serial>) -> usize {
    let expected = (checkpoint.0 + 1..).map(Serial);
    serials.zip(expected).take_while(|(serial, expected)| serial == expected).count()
}

/// Names the losses that the datastore does not make up for.
pub(crate) fn harm(checkpoint: Serial, losses: &[Loss]) -> Option<String> {
    let harmful: Vec<String> = losses
        .iter()
        .filter(|loss| loss.before.is_none_or(|before| before > checkpoint.next()))
        .map(|loss| {
            let first = loss.after.max(checkpoint).next();
            let last = loss
                .before
                .map_or("an unknown one".to_owned(), |before| (before.0 - 1).to_string());
            format!("serials {first} to {last} were in segment {}: {}", loss.segment, loss.reason)
        })
        .collect();
    (!harmful.is_empty()).then(|| harmful.join("; "))
}

fn newest(changes: &[Recovered]) -> Option<Generation> {
    changes.iter().map(|change| change.generation).max()
}

/// The changes of a volume closed earlier that are behind `checkpoint`: the count of those that
/// only the log can list, and the rest.
pub(crate) fn unparked(parked: &Parked, checkpoint: Serial) -> (usize, VecDeque<Change>) {
    let done =
        usize::try_from(checkpoint.0.saturating_sub(parked.checkpoint.0)).unwrap_or(usize::MAX);
    let listed = parked.changes.iter().skip(done.saturating_sub(parked.unindexed)).cloned();
    (parked.unindexed.saturating_sub(done), listed.collect())
}
