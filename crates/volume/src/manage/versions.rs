//! Rollback: takes a volume back to an earlier content.
//!
//! The vault lists the versions, and the sweep keeps their content. A rollback is one conditional
//! write of the vault, with a new generation: the log's changes of older generations do not count
//! from then on. The content before the rollback becomes a version, so that a rollback can be
//! undone. A write before it keeps it from landing under a later life ([`rest::begin_anew`]).

use crate::manage::list;
use crate::manage::rest;
use crate::manage::snapshots;
use crate::registry::machine::Event;
use crate::registry::{Claim, Inner};
use crate::stop::offline;
use crate::{Error, Info, records};
use rekindle_datastore::record::Held;
use rekindle_staging::versions::{Spared, Time};
use rekindle_staging::{Accepted, Vault, VaultState, Version, versions};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// An earlier content of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeVersion {
    /// The name of the version.
    pub version: String,
    /// The time at which a change replaced this content, microseconds since 1970: it is the content
    /// of the moment before.
    pub until: u64,
    /// Size of the volume then, bytes.
    pub size: u64,
    /// Most bytes that only this version keeps in the store.
    pub keeps: u64,
    /// Bytes that were lost in this version.
    pub lost: u64,
}

impl VolumeVersion {
    fn of(version: &Version) -> Self {
        Self {
            version: version.label(),
            until: version.committed,
            size: version.size,
            keeps: version.replaced,
            lost: version.lost.iter().map(|lost| lost.span).sum(),
        }
    }
}

/// Lists the versions of a volume, the newest first.
pub(crate) async fn versions(inner: &Arc<Inner>, name: &str) -> Result<Vec<VolumeVersion>, Error> {
    let vault = records::find(&inner.writer, name).await?.value;
    let now = inner.env.aging_clock().0;
    Ok(vault
        .versions
        .iter()
        .filter(|one| versions::is_kept(one, now))
        .map(VolumeVersion::of)
        .collect())
}

/// Takes a volume back to a version. `discard` gives up unfinished changes that cannot reach the
/// datastore.
pub(crate) async fn rollback(
    inner: &Arc<Inner>,
    name: &str,
    to: &str,
    discard: bool,
) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let _lock = inner.name_locks.take(name).await;
    // Checked before the claim: a version that does not exist must not take the volume out of
    // service.
    let mut vault = records::find(&inner.writer, name).await?.value;
    if vault.snapshots.iter().any(|one| one.name == to && one.content.is_none()) {
        snapshots::bring_into_store(inner, name).await?;
        vault = records::find(&inner.writer, name).await?.value;
    }
    let version = pick(inner, &vault, to)?;
    is_readable(inner, &vault, &version).await?;
    let claimed = offline::claim(inner, name, false, "going back to an earlier version").await?;
    let outcome = go_back(&claimed, to, discard).await;
    if outcome.is_ok() {
        let mut inside = claimed.entry.inside.lock();
        (inside.waits, inside.found) = (None, None);
    }
    let cause = format!("went back to version {to}");
    claimed.finish(outcome, (Event::OfflineDone, Event::OfflineDone), &cause)?;
    list::show(inner, name).await
}

/// Fails if part of the tree of an earlier content cannot be read.
async fn is_readable(inner: &Inner, vault: &Vault, version: &Version) -> Result<(), Error> {
    let home = inner.home_of(vault)?;
    let Err(error) = home.check_tree(&version.root, version.size).await else { return Ok(()) };
    let (name, label) = (&vault.name, version.label());
    let reason = format!(
        "its version {label} cannot be read, so the volume stays as it is: {error}; `rekindle volume versions {name}` \
         lists the others"
    );
    Err(match error.kind().is_retryable() {
        true => rekindle_datastore::Error::Unavailable(format!("volume '{name}': {reason}")).into(),
        false => Error::Damaged { name: name.clone(), reason },
    })
}

async fn go_back(claimed: &Claim, to: &str, discard: bool) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    // The commits of the settling must thin out neither the wanted version nor the others on the
    // user's list.
    // The store may have a commit of which the volume in service has not heard yet.
    let vault = records::find(&inner.writer, name).await?.value;
    let target = pick(inner, &vault, to)?;
    let _hold = inner.staging.hold_versions(&vault, &target);
    let spared = Spared::of(&vault, &target);
    if let Err(error) = rest::settle(claimed, async |_| Ok(())).await {
        if !discard {
            return Err(error);
        }
        tracing::warn!(
            volume = name,
            "goes back although what is unfinished stays behind: {error}"
        );
    }
    let _step = claimed.step("the store: going back in the vault");
    let held = records::find(&inner.writer, name).await?;
    let id = held.value.id;
    // Serials are never reused: changes that stay behind in the log count as done.
    let last = inner.staging.last_serial(&held.value).await?;
    // Nor are numbers: a client may hold that of a file which only the newer content has.
    let numbers_from = inner.numbers_of(&held.value).await;
    let written = rest::begin_anew(inner, name, id, |vault| {
        let version = pick(inner, vault, to)?;
        let generation = vault.generation.next();
        let checkpoint = vault.checkpoint.max(last);
        let segment = vault.accepted.map(|known| known.segment).unwrap_or_default();
        let is_newer = |one: &&Version| one.checkpoint > version.checkpoint;
        let newer = vault.versions.iter().take_while(is_newer).filter(|one| **one != version);
        let over = newer.map(|one| one.replaced).fold(version.replaced, u64::saturating_add);
        Ok(Vault {
            root: version.root,
            size: version.size,
            lost: version.lost.clone(),
            generation,
            rewound: Some(generation),
            numbers_from,
            checkpoint,
            begins: checkpoint,
            logged: Vec::new(),
            accepted: Some(Accepted { generation, through: checkpoint, segment }),
            versions: versions::with_present(vault, over, &spared, Time::of(&inner.env)),
            snapshots: rekindle_staging::with_content(vault),
            ..vault.clone()
        })
    })
    .await?;
    inner.staging.leave_behind(id, written.value.checkpoint);
    tracing::info!(volume = name, version = to, "went back to an earlier version");
    Ok(())
}

/// Drops the older half of a volume's earlier contents, so that they do not keep a store full.
/// Returns the new vault; the old one if the write fails.
pub(crate) async fn shed(inner: &Inner, held: Held<Vault>) -> Vault {
    let vault = &held.value;
    let is_ours = vault.owner.is_none_or(|owner| owner == inner.writer.node);
    if vault.versions.is_empty() || !is_ours {
        return held.value;
    }
    let kept = vault.versions.len() / 2;
    let versions = vault.versions[..kept].to_vec();
    let gone = vault.versions.len() - kept;
    match inner.writer.replace(&held, Vault { versions, ..vault.clone() }).await {
        Ok(written) => {
            let volume = written.value.name.as_str();
            tracing::warn!(volume, gone, kept, "earlier contents are let go of: the store is full");
            written.value
        }
        Err(error) => {
            tracing::warn!(volume = vault.name, %error, "earlier contents keep a full store full");
            held.value
        }
    }
}

fn pick(inner: &Inner, vault: &Vault, to: &str) -> Result<Version, Error> {
    let name = &vault.name;
    if vault.state != VaultState::Live {
        return Err(Error::NotFound(name.clone()));
    }
    let now = inner.env.aging_clock().0;
    let found = vault.versions.iter().find(|one| one.label() == to && versions::is_kept(one, now));
    let snapshot = vault.snapshots.iter().find(|one| one.name == to);
    snapshot.and_then(Version::of).or_else(|| found.cloned()).ok_or_else(|| {
        Error::Invalid(format!(
            "volume '{name}' has no snapshot or version '{to}': `rekindle snapshot ls {name}` and `rekindle volume versions {name}` list them"
        ))
    })
}
