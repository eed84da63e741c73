//! Going back to an earlier content of a volume.
//!
//! The versions are in the vault, and the sweep keeps what they reach. Going back is one conditional write of the vault, with a
//! new generation: what the log still has of older ones does not count from then on. What was there before becomes a version
//! itself, so that going back can be taken back.

use crate::machine::Event;
use crate::registry::{Exclusive, Inner};
use crate::{Error, Info, Vault, VaultState, list, offline, records, rest};
use serde::Serialize;
use staging::{Accepted, Version, versions};
use std::sync::Arc;

/// An earlier content of a volume, as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VersionInfo {
    /// What it is called by.
    pub version: String,
    /// When something was written over it, microseconds since 1970: it is the content of the moment before.
    pub until: u64,
    /// Bytes of the volume then.
    pub size: u64,
    /// At most what it alone keeps in the store, bytes.
    pub keeps: u64,
    /// Bytes that were lost in it.
    pub lost: u64,
}

impl VersionInfo {
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

/// Those of a volume, the newest first.
pub(crate) async fn versions(inner: &Arc<Inner>, name: &str) -> Result<Vec<VersionInfo>, Error> {
    let vault = records::find(&inner.writer, name).await?.value;
    let now = inner.env.wall_clock().0;
    Ok(vault
        .versions
        .iter()
        .filter(|one| versions::is_kept(one, now))
        .map(VersionInfo::of)
        .collect())
}

/// Goes back to one. `discard`: although what is unfinished cannot reach the datastore; it is given up then.
pub(crate) async fn rollback(
    inner: &Arc<Inner>,
    name: &str,
    to: &str,
    discard: bool,
) -> Result<Info, Error> {
    base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let _turn = inner.turns.take(name).await;
    // Nobody is thrown out for a version that does not exist.
    pick(inner, &records::find(&inner.writer, name).await?.value, to)?;
    let claimed = offline::claim(inner, name, false, "going back to an earlier version").await?;
    let outcome = go_back(&claimed, to, discard).await;
    let why = outcome.as_ref().err().map(ToString::to_string);
    let cause = why.clone().unwrap_or_else(|| format!("went back to version {to}"));
    claimed.end(Event::OfflineDone, &cause, |inside| {
        inside.reason = why;
        if outcome.is_ok() {
            inside.waits = None;
        }
    })?;
    outcome?;
    list::show(inner, name).await
}

async fn go_back(claimed: &Exclusive, to: &str, discard: bool) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
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
    // Serials are never given twice: what stays behind in the log counts as done.
    let last = inner.staging.last_serial(&held.value).await?;
    let written = rest::rewrite(inner, name, id, |vault| {
        let version = pick(inner, vault, to)?;
        let generation = vault.generation.next();
        let checkpoint = vault.checkpoint.max(last);
        let known = vault.accepted.filter(|known| known.generation == vault.generation);
        let segment = known.map(|known| known.segment).unwrap_or_default();
        let newer = vault.versions.iter().take_while(|one| **one != version);
        let over = newer.map(|one| one.replaced).fold(version.replaced, u64::saturating_add);
        Ok(Vault {
            root: version.root,
            size: version.size,
            lost: version.lost.clone(),
            generation,
            checkpoint,
            begins: checkpoint,
            accepted: Some(Accepted { generation, through: checkpoint, segment }),
            versions: versions::with_present(vault, over, inner.env.wall_clock().0),
            ..vault.clone()
        })
    })
    .await?;
    inner.staging.leave_behind(id, written.value.checkpoint);
    tracing::info!(volume = name, version = to, "went back to an earlier version");
    Ok(())
}

fn pick(inner: &Inner, vault: &Vault, to: &str) -> Result<Version, Error> {
    let name = &vault.name;
    if vault.state != VaultState::Live {
        return Err(Error::NotFound(name.clone()));
    }
    let now = inner.env.wall_clock().0;
    let found = vault.versions.iter().find(|one| one.label() == to && versions::is_kept(one, now));
    found.cloned().ok_or_else(|| {
        Error::Invalid(format!(
            "volume '{name}' keeps no version '{to}': `rekindle volume versions {name}` lists those it keeps"
        ))
    })
}
