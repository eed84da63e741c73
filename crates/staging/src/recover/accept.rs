//! Going on without acknowledged changes that are lost: a decision of the user.
//!
//! The changes that are whole before the first lost one stay; the changes behind that are given up,
//! and reported. The decision is one conditional write of the vault, with a new generation. From
//! then on, changes of older generations behind the whole prefix do not count, in this life and all
//! later ones.

use crate::queue::{Payload, whole_groups};
use crate::range::coalesce;
use crate::recover::recovery::{self, Missing};
use crate::vault::snapshot;
use crate::{Accepted, Error, Inner, Staged, Staging, Vault, limits};
use rekindle_base::{Serial, VolumeId};
use rekindle_datastore::record::Held;
use rekindle_log::{Change, Place};

/// Most given-up changes whose stretches are named.
const NAMED_MAX: usize = 50;

impl Staging {
    /// Accepts that unfinished changes of a volume are lost: of those that the log has, the longest
    /// whole prefix stays. Returns the vault to open the volume with, and messages about what is
    /// given up. Writes nothing when nothing is lost. The caller owns the volume, and it is out of
    /// service. An error that says that the store was set back is no loss to accept.
    ///
    /// `numbers_from`: what the volume says from then on ([`Vault::numbers_from`]).
    pub async fn accept_losses(
        &self,
        vault: Held<Vault>,
        numbers_from: u64,
    ) -> Result<(Held<Vault>, Vec<String>), Error> {
        let inner = &self.inner;
        let Some(Decision { value, lines, through }) = self.decide(&vault.value).await? else {
            return Ok((vault, Vec::new()));
        };
        let value = Vault { numbers_from, ..value };
        tracing::warn!(volume = %value.name, "goes on without what is lost: {}", lines.join("; "));
        let is_set_back = value.checkpoint > vault.value.checkpoint;
        let held = inner.writer.replace(&vault, value).await?;
        // Its next start in this life writes the vault as one of a life that has all of it.
        inner.bound_no_more.lock().insert(held.value.id);
        if is_set_back {
            self.leave_behind(held.value.id, held.value.checkpoint);
        }
        if let Some(parked) = inner.parked.lock().get_mut(&held.value.id) {
            parked.truncate(through);
        }
        Ok((held, lines))
    }

    /// Messages about the changes that [`Staging::accept_losses`] would give up, and keep. Empty
    /// when nothing is lost.
    pub async fn losses(&self, vault: &Vault) -> Result<Vec<String>, Error> {
        Ok(self.decide(vault).await?.map(|decision| decision.lines).unwrap_or_default())
    }

    /// The last serial that the log has of a volume that is out of service, or its checkpoint.
    pub async fn last_serial(&self, vault: &Vault) -> Result<Serial, Error> {
        let (changes, _) = self.at_hand(vault).await?;
        let done = vault.checkpoint.max(self.inner.log.released(vault.id));
        Ok(changes.last().map_or(done, |change| change.serial.max(done)))
    }

    /// Reads all changes that the log has of a volume that is out of service, and the store has
    /// not. Returns their bytes, and messages as [`Staging::losses`] does.
    pub async fn examine_unfinished(&self, vault: &Vault) -> Result<(u64, Vec<String>), Error> {
        self.is_out_of_service(vault)?;
        let (changes, missing) = self.at_hand(vault).await?;
        let with_bytes = changes.iter().filter(|change| change.place.is_some());
        let bytes = with_bytes.map(|change| change.span).sum();
        let decision = self.decide_on(vault, &changes, &missing).await?;
        Ok((bytes, decision.map(|decision| decision.lines).unwrap_or_default()))
    }

    /// Takes the changes that the log has of a volume up to here as done: the volume's vault says
    /// so, whatever became of them.
    pub fn leave_behind(&self, volume: VolumeId, through: Serial) {
        self.inner.parked.lock().remove(&volume);
        self.inner.log.release(volume, through);
    }

    /// Drops the changes of a removed volume from the log. No restart brings any of them back once
    /// this has returned.
    pub async fn forget_for_good(&self, volume: VolumeId) -> Result<(), Error> {
        let present = self.inner.volumes.lock().remove(&volume);
        if let Some(present) = present {
            present.end_with(Error::Closed(present.name.clone()));
            self.inner.retire(&present);
        }
        self.inner.parked.lock().remove(&volume);
        let end = self.inner.log.forget(volume);
        Ok(self.inner.log.commit(end).await?)
    }

    /// Notes that a new volume has nothing in the log, and so has lost nothing either. Written down
    /// only if the log has losses.
    pub async fn begin(&self, volume: VolumeId) -> Result<(), Error> {
        match self.inner.log.has_losses() {
            true => self.forget_for_good(volume).await,
            false => Ok(()),
        }
    }

    /// Whether the log has losses that are not accepted for all volumes.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.inner.log.has_losses()
    }

    /// The volumes of which the log still has changes.
    pub async fn unfinished_volumes(&self) -> Result<Vec<VolumeId>, Error> {
        let volumes = self.inner.log.unfinished_volumes().await?;
        Ok(volumes.into_iter().map(|(volume, _)| volume).collect())
    }

    /// Whether no loss of the log concerns a volume any more: no change of the volume is missing,
    /// or it goes on without.
    pub async fn has_settled(&self, vault: &Vault) -> Result<bool, Error> {
        // The volume came into service, and no change was missing.
        if self.inner.volumes.lock().contains_key(&vault.id) {
            return Ok(true);
        }
        Ok(self.at_hand(vault).await?.1.reason().is_none())
    }

    /// Ends the losses of the log: all volumes go on without the lost changes, and no later start
    /// reports them.
    pub async fn end_losses(&self) -> Result<(), Error> {
        Ok(self.inner.log.accept_losses().await?)
    }

    /// [`Error::Invalid`] while the volume is in service: its queue has its changes.
    fn is_out_of_service(&self, vault: &Vault) -> Result<(), Error> {
        match self.inner.volumes.lock().contains_key(&vault.id) {
            true => Err(Error::Invalid(format!("volume {} is in service", vault.name))),
            false => Ok(()),
        }
    }

    async fn decide(&self, value: &Vault) -> Result<Option<Decision>, Error> {
        self.is_out_of_service(value)?;
        let (changes, missing) = self.at_hand(value).await?;
        self.decide_on(value, &changes, &missing).await
    }

    /// Decides as [`Staging::decide`] does, on what the log has at hand.
    async fn decide_on(
        &self,
        value: &Vault,
        changes: &[KeptChange],
        missing: &Missing,
    ) -> Result<Option<Decision>, Error> {
        let inner = &self.inner;
        if let Err(set_back) = inner.is_not_set_back(value) {
            return Ok(Some(set_back_for_good(value, &set_back, changes, missing, inner)));
        }
        let mut reasons: Vec<String> = missing.reason().into_iter().collect();
        reasons.extend(inner.is_here(value).err().map(|error| error.to_string()));
        let serials = changes.iter().map(|change| change.serial);
        let whole = recovery::whole(value.checkpoint, serials);
        let (whole, damage) = readable(&changes[..whole]).await?;
        reasons.extend(damage);
        if reasons.is_empty() {
            return Ok(None);
        }
        let through = Serial(value.checkpoint.0 + whole as u64);
        let generation = value.generation.next();
        let accepted = Accepted { generation, through, segment: missing.segment };
        // The changes that the vault's life found behind that are no history of this volume any
        // more.
        let begins = value.begins.min(through);
        let logged = value.logged.iter().filter(|run| run.begins < begins).copied().collect();
        let accepted = Some(accepted);
        let snapshots = snapshot::kept(value, through);
        let value = Vault { generation, accepted, begins, logged, snapshots, ..value.clone() };
        let lines = told(reasons, through, &changes[whole..]);
        Ok(Some(Decision { value, lines, through }))
    }

    /// The changes that the log has of a volume behind its checkpoint, in serial order, and the
    /// missing ones.
    async fn at_hand(&self, vault: &Vault) -> Result<(Vec<KeptChange>, Missing), Error> {
        let inner = &self.inner;
        let parked = inner.parked.lock().get_mut(&vault.id).map(|parked| {
            parked.outlive(vault);
            // The volume was in service in this life: no change was missing then.
            recovery::unparked(parked, vault.checkpoint)
        });
        let mut missing = Missing::default();
        let mut kept = Vec::new();
        if parked.as_ref().is_none_or(|(unindexed, _)| *unindexed > 0) {
            let (recovered, losses) = inner.log.salvage(vault.id).await?;
            let overtaken = recovery::overtaken(&recovered, vault);
            let changes = recovery::behind(recovered, vault)?;
            missing = Missing::of(&changes, &losses, vault).and(overtaken);
            kept.extend(changes.into_iter().map(|change| KeptChange {
                serial: change.serial,
                joined: change.joined,
                is_record: change.change == Change::Record,
                position: change.position,
                span: change.span,
                place: recovery::has_payload(change.change).then_some(change.place),
            }));
        }
        if let Some((unindexed, newer)) = parked {
            let serials = (vault.checkpoint.0 + unindexed as u64 + 1..).map(Serial);
            kept.extend(newer.into_iter().zip(serials).map(|(change, serial)| KeptChange {
                serial,
                joined: change.joined,
                is_record: change.is_record,
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

impl Staged {
    /// Reads all unfinished changes that count, beside all other work. Returns messages about the
    /// damaged ones, and about what the user would keep and give up by going on without them. Empty
    /// when all are whole.
    pub async fn examine_unfinished(&self) -> Result<Vec<String>, Error> {
        self.listed().await?;
        let changes = self.unfinished();
        let (whole, damage) = readable(&changes).await?;
        let Some(first) = changes.get(whole) else { return Ok(Vec::new()) };
        if damage.is_empty() {
            return Ok(Vec::new());
        }
        let lines = told(damage, Serial(first.serial.0 - 1), &changes[whole..]);
        let mut gate = self.gate.lock();
        // A client that wrote over the change meanwhile has healed it; else no batch can pass it.
        if gate.destaging.lost.is_none() && gate.changes.queue.at(first.serial).is_some() {
            let reason = lines.join("; ");
            gate.destaging.lost = Some(Error::Lost { volume: self.name.clone(), reason });
        }
        Ok(lines)
    }

    /// The changes in the queue. In slices, because writers wait for the lock.
    fn unfinished(&self) -> Vec<KeptChange> {
        let mut changes: Vec<KeptChange> = Vec::new();
        loop {
            let gate = self.gate.lock();
            let next =
                changes.last().map_or(gate.changes.queue.serial(0), |last| last.serial.next());
            let slice =
                (next.0..=gate.changes.queue.last().0).take(limits::SLICE_CHANGES).map(Serial);
            let before = changes.len();
            changes.extend(slice.filter_map(|serial| {
                let change = gate.changes.queue.at(serial)?;
                let place = match &change.payload {
                    Payload::Log(place) => Some(place.clone()),
                    _ => None,
                };
                let (joined, is_record) = (change.joined, change.is_record);
                let (position, span) = (change.position, change.span);
                Some(KeptChange { serial, joined, is_record, position, span, place })
            }));
            if changes.len() == before {
                return changes;
            }
        }
    }
}

/// The consequences of going on without the lost changes.
struct Decision {
    /// The vault that records the decision.
    value: Vault,
    lines: Vec<String>,
    /// The last change that stays.
    through: Serial,
}

/// A change that the log has.
struct KeptChange {
    serial: Serial,
    /// Whether the next change belongs to the same group.
    joined: bool,
    is_record: bool,
    position: u64,
    span: u64,
    /// The place of the change's bytes, if it has any.
    place: Option<Place>,
}

/// The decision to go on from a store that was set back: all changes in the log come behind changes
/// that are gone.
fn set_back_for_good(
    vault: &Vault,
    why: &Error,
    changes: &[KeptChange],
    missing: &Missing,
    inner: &Inner,
) -> Decision {
    // Serials are never given twice.
    let last = changes.iter().map(|change| change.serial).max().unwrap_or_default();
    let through = last.max(inner.log.released(vault.id));
    let generation = vault.generation.next();
    let accepted = Some(Accepted { generation, through, segment: missing.segment });
    let lines = vec![
        why.to_string(),
        format!(
            "kept: the content as of serial {}; given up: serials {} to {through}",
            vault.checkpoint,
            vault.checkpoint.next()
        ),
    ];
    let value = Vault {
        generation,
        accepted,
        checkpoint: through,
        snapshots: snapshot::with_content(vault),
        begins: through,
        logged: Vec::new(),
        ..vault.clone()
    };
    Decision { value, lines, through }
}

/// Counts the first changes, in whole groups, that can be read back as far as they count, and names
/// the damage that ends them. Bytes that a later one of them has written over need not be whole.
async fn readable(changes: &[KeptChange]) -> Result<(usize, Vec<String>), Error> {
    let mut whole = in_groups(changes, changes.len());
    let mut is_sound = vec![false; changes.len()];
    let mut damage = Vec::new();
    // A change behind the end may have written over older damage, which counts again without it.
    while let Some((index, reason)) = first_damaged(&changes[..whole], &mut is_sound).await? {
        whole = in_groups(changes, index);
        damage.insert(0, reason);
    }
    Ok((whole, damage))
}

/// Count of the first changes, out of `count`, without the beginning of a group that goes on behind
/// them: a group is kept as a whole or given up as a whole.
fn in_groups(changes: &[KeptChange], count: usize) -> usize {
    whole_groups(count, |index| changes[index].joined)
}

/// The first change that counts and cannot be read back, and the reason. Changes known to be sound
/// are not read.
async fn first_damaged(
    changes: &[KeptChange],
    is_sound: &mut [bool],
) -> Result<Option<(usize, String)>, Error> {
    // Records hide nothing of one another.
    let counting: Vec<usize> = match changes.first().is_some_and(|first| first.is_record) {
        true => (0..changes.len()).collect(),
        false => coalesce::counting(changes.len(), |at| (changes[at].position, changes[at].span)),
    };
    let mut buffer = Vec::new();
    for slice in counting.chunks(limits::SLICE_CHANGES) {
        let unread = slice.iter().copied().filter(|&index| !is_sound[index]);
        let unread: Vec<_> =
            unread.filter_map(|index| Some((index, changes[index].place.as_ref()?))).collect();
        rekindle_log::read_ahead(unread.iter().map(|(_, place)| *place)).await;
        for (index, place) in unread {
            buffer.resize(place.length() as usize, 0);
            match place.read(0, &mut buffer).await {
                Ok(()) => is_sound[index] = true,
                Err(error @ rekindle_log::Error::Damaged { .. }) => {
                    let serial = changes[index].serial;
                    return Ok(Some((index, format!("serial {serial} is damaged: {error}"))));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(None)
}

/// The messages about a loss: the reasons, the last change that stays, and the given-up stretches.
fn told(reasons: Vec<String>, through: Serial, given_up: &[KeptChange]) -> Vec<String> {
    let mut lines = reasons;
    let next = through.next();
    lines.push(match given_up.last() {
        Some(last) => format!(
            "kept: the changes up to serial {through}; given up: serials {next} to {}, and what may have come after them",
            last.serial
        ),
        None => format!("kept: the changes up to serial {through}; given up: what may have come after it"),
    });
    let stretch = |change: &KeptChange| {
        let (serial, begin) = (change.serial, change.position);
        match change.is_record {
            true => format!("given up: serial {serial}, a record of kind {begin}"),
            false => {
                let end = begin.saturating_add(change.span);
                format!("given up: serial {serial}, bytes {begin}..{end}")
            }
        }
    };
    lines.extend(given_up.iter().take(NAMED_MAX).map(stretch));
    if given_up.len() > NAMED_MAX {
        lines
            .push(format!("given up: {} more changes that were whole", given_up.len() - NAMED_MAX));
    }
    lines
}
