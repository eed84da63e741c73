//! Which earlier contents of a volume are kept. Pure.
//!
//! Each commit that replaces a root makes a version of it. Then they thin out: the last few, one for each five minutes of the
//! last half an hour, one for each hour of the last six, one for each three hours of a day. What they keep in the store beside the
//! present content is at most what was written over since the oldest, so that sum is bounded, too. The bound alone takes neither
//! the last two, nor the oldest of the last half an hour: the accident that versions are for writes over a great part of a volume.

use crate::commit::Attempt;
use crate::{Vault, Version, limits};
use base::{Serial, VolumeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const MINUTE: u64 = 60_000_000;
const HOUR: u64 = 60 * MINUTE;
/// How soon an accident is noticed.
const RECENT: u64 = 30 * MINUTE;

/// Versions that nothing takes while somebody goes back to one of them.
#[derive(Debug, Clone, Default)]
pub struct Spared {
    /// Where it goes: the last to be taken.
    target: Option<Version>,
    all: Vec<Version>,
}

impl Spared {
    /// All of a vault, `target` before all others.
    #[must_use]
    pub fn of(vault: &Vault, target: &Version) -> Self {
        Self { target: Some(target.clone()), all: vault.versions.clone() }
    }

    fn has(&self, version: &Version) -> bool {
        self.all.iter().any(|one| one.is_same(version))
    }

    fn is_target(&self, version: &Version) -> bool {
        self.target.as_ref().is_some_and(|one| one.is_same(version))
    }
}

/// What is spared now, by volume: commits look here.
pub(crate) type Holds = Arc<Mutex<BTreeMap<VolumeId, Spared>>>;

/// While it lives, no commit of the volume takes what is spared.
pub struct Hold {
    pub(crate) volume: VolumeId,
    pub(crate) holds: Holds,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.lock().remove(&self.volume);
    }
}

/// The versions of a vault once `attempt` is committed over it.
pub(crate) fn next(vault: &Vault, attempt: &Attempt, spared: &Spared, now: u64) -> Vec<Version> {
    let is_mended = attempt.checkpoint == vault.checkpoint && attempt.over == 0;
    if attempt.root == vault.root || is_mended {
        return thinned(vault.versions.clone(), vault.size, spared, now);
    }
    with_present(vault, attempt.over, spared, now)
}

/// The versions of a vault with its present content, of which `over` bytes are written over now.
#[must_use]
pub fn with_present(vault: &Vault, over: u64, spared: &Spared, now: u64) -> Vec<Version> {
    let mut versions = vault.versions.clone();
    let is_new = vault.checkpoint == Serial(0) && vault.root.is_none();
    if !is_new {
        versions.insert(
            0,
            Version {
                checkpoint: vault.checkpoint,
                root: vault.root,
                size: vault.size,
                committed: now,
                lost: vault.lost.clone(),
                replaced: over.min(vault.size),
            },
        );
    }
    thinned(versions, vault.size, spared, now)
}

/// Whether a version is kept, and may be gone back to.
#[must_use]
pub fn is_kept(version: &Version, now: u64) -> bool {
    now.saturating_sub(version.committed) <= micros(limits::VERSION_AGE_MAX)
}

/// Whether the sweep must not take what a version reaches: a while longer than it is kept, so that nobody goes back to one
/// that is being taken.
#[must_use]
pub fn is_reached(version: &Version, now: u64) -> bool {
    let longest = micros(limits::VERSION_AGE_MAX + limits::VERSION_GRACE);
    now.saturating_sub(version.committed) <= longest
}

/// Bytes that the versions of a volume of `size` may keep in the store, unless they are the last ones.
pub(crate) fn bytes_max(size: u64) -> u64 {
    (size / 2).max(limits::VERSION_BYTES_MIN)
}

/// Those that stay. Of each slice of time the oldest does, so that what is kept as it ages does not depend on how often
/// somebody looks.
fn thinned(versions: Vec<Version>, size: u64, spared: &Spared, now: u64) -> Vec<Version> {
    let mut slices = BTreeSet::new();
    let mut keep = vec![false; versions.len()];
    for (index, version) in versions.iter().enumerate().rev() {
        let is_first = |width: u64, slices: &mut BTreeSet<(u64, u64)>| {
            slices.insert((width, version.committed / width))
        };
        let age = now.saturating_sub(version.committed);
        let is_one = match age {
            _ if !is_reached(version, now) => false,
            age if age <= RECENT => is_first(5 * MINUTE, &mut slices),
            age if age <= 6 * HOUR => is_first(HOUR, &mut slices),
            _ => is_first(3 * HOUR, &mut slices),
        };
        keep[index] = is_one || index < limits::VERSIONS_LAST || spared.has(version);
    }
    within_count(&versions, &mut keep, spared);
    within_bytes(&versions, &mut keep, size, spared, now);
    // The newest first: what is written over after one that goes counts for the next older one.
    let mut carried = 0u64;
    let mut lost = 0;
    let mut kept = Vec::new();
    for (version, keep) in versions.into_iter().zip(keep) {
        let replaced = version.replaced.saturating_add(carried);
        carried = if keep { 0 } else { replaced };
        if keep {
            kept.push(Version { replaced, ..version });
        }
    }
    // They all lie in one record.
    kept.retain(|version| {
        lost += version.lost.len();
        lost <= limits::LOST_MAX
    });
    kept
}

/// No vault lists more than a few. What is spared goes last, and the one that somebody goes back to never.
fn within_count(versions: &[Version], keep: &mut [bool], spared: &Spared) {
    let count = keep.iter().filter(|keep| **keep).count();
    let excess = count.saturating_sub(limits::VERSIONS_MAX);
    let mut kept: Vec<usize> = (1..keep.len()).filter(|&index| keep[index]).collect();
    // Of those that nobody has asked for and of the others, the oldest first.
    kept.sort_by_key(|&index| {
        let version = &versions[index];
        (spared.is_target(version), spared.has(version), std::cmp::Reverse(index))
    });
    kept.into_iter().take(excess).for_each(|index| keep[index] = false);
}

/// What is beyond the bound goes, the oldest first, unless it is among the last.
fn within_bytes(versions: &[Version], keep: &mut [bool], size: u64, spared: &Spared, now: u64) {
    let is_recent = |version: &Version| now.saturating_sub(version.committed) <= RECENT;
    let oldest_recent = (0..keep.len()).rev().find(|&at| keep[at] && is_recent(&versions[at]));
    let (mut bytes, mut count) = (0u64, 0usize);
    for (index, version) in versions.iter().enumerate() {
        bytes = bytes.saturating_add(version.replaced);
        if !keep[index] {
            continue;
        }
        let is_last = count < limits::VERSIONS_LAST_ALWAYS || oldest_recent == Some(index);
        keep[index] = is_last || spared.has(version) || bytes <= bytes_max(size);
        count += 1;
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
