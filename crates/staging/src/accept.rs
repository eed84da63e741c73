//! Going on without acknowledged changes that are lost: a person's decision.
//!
//! What is whole before the first lost change stays, what comes after it is given up, and said. The decision is one
//! conditional write of the vault, with a new generation: what the log still has of older ones behind the whole prefix does
//! not count from then on, in this life and all later ones.

use crate::queue::Payload;
use crate::recovery::{self, Missing};
use crate::{Accepted, Error, Staging, Vault};
use base::{Serial, VolumeId};
use datastore::record::Held;
use log::{Change, Place};

/// Stretches of given-up changes that are named.
const NAMED_MAX: usize = 50;

impl Staging {
    /// Accepts that unfinished changes of a volume are lost: of those that the log has, the longest whole prefix stays.
    /// The vault to open it with, and what is given up, for people; nothing is written when nothing is lost. The caller
    /// owns the volume and it is out of service. An error that says the store was set back is none of losses.
    pub async fn accept_losses(
        &self,
        vault: Held<Vault>,
    ) -> Result<(Held<Vault>, Vec<String>), Error> {
        let inner = &self.inner;
        let Some(Decision { value, lines, through }) = self.decide(&vault.value).await? else {
            return Ok((vault, Vec::new()));
        };
        tracing::warn!(volume = %value.name, "goes on without what is lost: {}", lines.join("; "));
        let held = inner.writer.replace(&vault, value).await?;
        if let Some(parked) = inner.parked.lock().get_mut(&held.value.id) {
            parked.truncate(through);
        }
        Ok((held, lines))
    }

    /// What [`Staging::accept_losses`] would give up, for people, and what not; nothing when nothing is lost.
    pub async fn losses(&self, vault: &Vault) -> Result<Vec<String>, Error> {
        Ok(self.decide(vault).await?.map(|decision| decision.lines).unwrap_or_default())
    }

    /// The last serial that the log has of a volume that is out of service, or its checkpoint.
    pub async fn last_serial(&self, vault: &Vault) -> Result<Serial, Error> {
        let (changes, _) = self.at_hand(vault).await?;
        Ok(changes.last().map_or(vault.checkpoint, |change| change.serial.max(vault.checkpoint)))
    }

    /// What the log has of a volume up to here counts as done, whatever became of it: its vault says so.
    pub fn leave_behind(&self, volume: VolumeId, through: Serial) {
        self.inner.parked.lock().remove(&volume);
        self.inner.log.release(volume, through);
    }

    /// As [`Staging::forget`]; no restart brings anything of the volume back once this has returned.
    pub async fn forget_for_good(&self, volume: VolumeId) -> Result<(), Error> {
        self.forget(volume);
        let end = self.inner.log.forget(volume);
        Ok(self.inner.log.commit(end).await?)
    }

    async fn decide(&self, value: &Vault) -> Result<Option<Decision>, Error> {
        let inner = &self.inner;
        if inner.volumes.lock().contains_key(&value.id) {
            return Err(Error::Invalid(format!("volume {} is in service", value.name)));
        }
        let (changes, missing) = self.at_hand(value).await?;
        let mut reasons: Vec<String> = missing.reason().into_iter().collect();
        let serials = changes.iter().map(|change| change.serial);
        let mut whole = recovery::whole(value.checkpoint, serials);
        if let Some((damaged, reason)) = first_damaged(&changes[..whole]).await? {
            whole = damaged;
            reasons.push(reason);
        }
        if reasons.is_empty() {
            return Ok(None);
        }
        let through = Serial(value.checkpoint.0 + whole as u64);
        let generation = value.generation.next();
        let accepted = Accepted { generation, through, segment: missing.segment };
        let value = Vault { generation, accepted: Some(accepted), ..value.clone() };
        let lines = told(reasons, through, &changes[whole..]);
        Ok(Some(Decision { value, lines, through }))
    }

    /// What there is of a volume's changes behind its checkpoint, in serial order, and what of them is missing.
    async fn at_hand(&self, vault: &Vault) -> Result<(Vec<Kept>, Missing), Error> {
        let inner = &self.inner;
        let parked = inner.parked.lock().get_mut(&vault.id).map(|parked| {
            parked.outlive(vault);
            // It was in service in this life: then none was missing.
            recovery::unparked(parked, vault.checkpoint)
        });
        let mut missing = Missing::default();
        let mut kept = Vec::new();
        if parked.as_ref().is_none_or(|(unlisted, _)| *unlisted > 0) {
            let (recovered, losses) = inner.log.salvage(vault.id).await?;
            let overtaken = recovery::overtaken(&recovered, vault);
            let changes = recovery::behind(recovered, vault)?;
            missing = Missing::of(&changes, &losses, vault).and(overtaken);
            kept.extend(changes.into_iter().map(|change| Kept {
                serial: change.serial,
                position: change.position,
                span: change.span,
                place: (change.change == Change::Write).then_some(change.place),
            }));
        }
        if let Some((unlisted, newer)) = parked {
            let serials = (vault.checkpoint.0 + unlisted as u64 + 1..).map(Serial);
            kept.extend(newer.into_iter().zip(serials).map(|(change, serial)| Kept {
                serial,
                position: change.position,
                span: change.span,
                place: match change.payload {
                    Payload::Log(place) => Some(place),
                    _ => None,
                },
            }));
        }
        Ok((kept, missing))
    }
}

/// What going on would mean.
struct Decision {
    /// The vault that says so.
    value: Vault,
    lines: Vec<String>,
    /// The last change that stays.
    through: Serial,
}

/// A change that the log has.
struct Kept {
    serial: Serial,
    position: u64,
    span: u64,
    /// Where its bytes are, if it has any.
    place: Option<Place>,
}

/// The first change whose bytes cannot be read back, and why.
async fn first_damaged(changes: &[Kept]) -> Result<Option<(usize, String)>, Error> {
    let mut buffer = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let Some(place) = &change.place else { continue };
        buffer.resize(place.length() as usize, 0);
        match place.read(0, &mut buffer).await {
            Ok(()) => {}
            Err(error @ log::Error::Damaged { .. }) => {
                return Ok(Some((index, format!("serial {} is damaged: {error}", change.serial))));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// What is given up, in words: why, up to where nothing is, and what is known of the rest.
fn told(reasons: Vec<String>, through: Serial, given_up: &[Kept]) -> Vec<String> {
    let mut lines = reasons;
    let next = through.next();
    lines.push(match given_up.last() {
        Some(last) => format!(
            "kept: the changes up to serial {through}; given up: serials {next} to {}, and what may have come after them",
            last.serial
        ),
        None => format!("kept: the changes up to serial {through}; given up: what may have come after it"),
    });
    let stretch = |change: &Kept| {
        let (serial, begin) = (change.serial, change.position);
        format!("given up: serial {serial}, bytes {begin}..{}", begin.saturating_add(change.span))
    };
    lines.extend(given_up.iter().take(NAMED_MAX).map(stretch));
    if given_up.len() > NAMED_MAX {
        lines
            .push(format!("given up: {} more changes that were whole", given_up.len() - NAMED_MAX));
    }
    lines
}
