//! Snapshots and clones.
//!
//! A snapshot lies in the volume's vault, and the sweep keeps its content as it keeps the present
//! one. A clone is a volume of its own that begins with the content of a snapshot: neither copies a
//! byte. The clone's vault is written under a hold on sweeps, and its name is given only if the
//! snapshot is still there then: a sweep that missed the clone has seen the snapshot.

use crate::manage::{create, rest};
use crate::registry::Inner;
use crate::repair::salvage;
use crate::{Error, Info, attach, limits, records};
use rekindle_base::{Generation, Serial, VolumeId};
use rekindle_datastore::record::Held;
use rekindle_staging::{Snapshot, SnapshotContent, Vault, VaultState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// A content of a volume that the user keeps under a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeSnapshot {
    pub name: String,
    /// The time when it was taken, microseconds since 1970.
    pub taken: u64,
    /// Size of the volume then, bytes.
    pub size: u64,
    /// Whether the store has all of it. Until then the log of the volume's node keeps the rest.
    pub stored: bool,
    /// Bytes that were lost in this content.
    pub lost: u64,
}

impl VolumeSnapshot {
    fn of(snapshot: &Snapshot) -> Self {
        let lost = snapshot.content.iter().flat_map(|content| &content.lost);
        Self {
            name: snapshot.name.clone(),
            taken: snapshot.taken,
            size: snapshot.size,
            stored: snapshot.content.is_some(),
            lost: lost.map(|lost| lost.span).sum(),
        }
    }
}

/// Lists the snapshots of a volume, the oldest first.
pub(crate) async fn snapshots(
    inner: &Arc<Inner>,
    name: &str,
) -> Result<Vec<VolumeSnapshot>, Error> {
    let vault = records::find(&inner.writer, name).await?.value;
    Ok(vault.snapshots.iter().map(VolumeSnapshot::of).collect())
}

/// Keeps what a volume has now under a name. Its clients go on.
pub(crate) async fn take(
    inner: &Arc<Inner>,
    name: &str,
    snapshot: &str,
) -> Result<VolumeSnapshot, Error> {
    check_name(snapshot)?;
    let handle = attach::attach(inner, name).await?;
    let taken = handle.staged().take_snapshot(snapshot).await?;
    tracing::info!(volume = name, snapshot, serial = %taken.checkpoint, "took a snapshot");
    Ok(VolumeSnapshot::of(&taken))
}

/// Removes a snapshot.
pub(crate) async fn remove(inner: &Arc<Inner>, name: &str, snapshot: &str) -> Result<(), Error> {
    let handle = attach::attach(inner, name).await?;
    handle.staged().remove_snapshot(snapshot).await?;
    tracing::info!(volume = name, snapshot, "removed a snapshot");
    // It may have been all that lacked something.
    salvage::look_at_fault(inner, name).await;
    Ok(())
}

/// Refuses a name that a snapshot cannot have: it is a directory's name, too.
fn check_name(name: &str) -> Result<(), Error> {
    let refuse = |bad: String| Error::Invalid(bad.replace("a volume name", "a snapshot's name"));
    rekindle_base::names::check_new(name).map_err(|bad| refuse(bad.to_string()))?;
    match name.contains('@') {
        true => Err(refuse("a volume name must not contain '@'".to_owned())),
        false => Ok(()),
    }
}

/// Finds a snapshot in a vault.
fn find<'a>(vault: &'a Vault, snapshot: &str) -> Result<&'a Snapshot, Error> {
    let found = vault.snapshots.iter().find(|one| one.name == snapshot);
    found.ok_or_else(|| rekindle_staging::Error::no_snapshot(&vault.name, snapshot).into())
}

/// Makes a volume that begins with the content of a snapshot, and has the settings of its volume.
pub(crate) async fn clone(
    inner: &Arc<Inner>,
    source: &str,
    snapshot: &str,
    new_name: &str,
) -> Result<Info, Error> {
    rekindle_base::names::check_new(new_name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    if inner.is_stopping() {
        return Err(Error::Stopping);
    }
    for _ in 0..limits::CONFLICTS_MAX {
        // Before the snapshot is read: no sweep ends meanwhile.
        let hold = inner.hold_sweeps();
        let vault = records::find(&inner.writer, source).await?.value;
        inner.kinds.check(&vault)?;
        let found = find(&vault, snapshot)?;
        let Some(content) = &found.content else {
            drop(hold);
            bring_into_store(inner, source).await?;
            continue;
        };
        let (id, now) = (VolumeId(inner.env.random()), inner.env.wall_clock().0);
        let new = cloned((&vault, found, content), id, new_name, now);
        let is_there = async || is_still_there(inner, &vault, found).await;
        let made = create::write(inner, new, is_there).await?;
        tracing::info!(volume = source, snapshot, clone = new_name, "made a clone");
        return Ok(made);
    }
    Err(rekindle_datastore::Error::Conflict(source.to_owned()).into())
}

/// Brings the changes that a snapshot waits for into the store.
pub(crate) async fn bring_into_store(inner: &Arc<Inner>, name: &str) -> Result<(), Error> {
    let handle = attach::attach(inner, name).await?;
    let drain = async { Ok::<_, Error>(handle.staged().drain().await?) };
    match rest::within(inner, name, limits::SETTLE_TIME_MAX, drain).await? {
        Some(_) => Ok(()),
        None => Err(rekindle_datastore::Error::Unavailable(format!(
            "the store does not have the snapshot of volume '{name}' yet"
        ))
        .into()),
    }
}

/// The vault of a clone.
fn cloned(
    (vault, snapshot, content): (&Vault, &Snapshot, &SnapshotContent),
    id: VolumeId,
    name: &str,
    created: u64,
) -> Vault {
    let is_empty = content.root.is_none() && content.lost.is_empty();
    // The content counts as the first change, in a generation without an owner.
    let first = Serial(u64::from(!is_empty));
    let (kind, body) = (vault.kind.clone(), vault.body.clone());
    Vault {
        policy: vault.policy,
        ack: vault.ack,
        copies: vault.copies,
        on_missing_copy: vault.on_missing_copy,
        generation: Generation(first.0),
        checkpoint: first,
        begins: first,
        root: content.root,
        lost: content.lost.clone(),
        created,
        ..Vault::new(id, name.to_owned(), kind, snapshot.size, body)
    }
}

/// Fails if a snapshot, or its volume, has been removed meanwhile.
async fn is_still_there(inner: &Inner, of: &Vault, snapshot: &Snapshot) -> Result<(), Error> {
    let found: Option<Held<Vault>> = records::vault(&inner.writer, of.id).await?;
    let is_live = |held: &Held<Vault>| held.value.state != VaultState::Deleted;
    let has_it =
        |held: &Held<Vault>| held.value.snapshots.iter().any(|one| one.number == snapshot.number);
    match found.filter(is_live).filter(has_it) {
        Some(_) => Ok(()),
        None => Err(Error::NotFound(format!("{}@{}", of.name, snapshot.name))),
    }
}
