//! The earlier contents of a volume that are kept. Pure.
//!
//! Each commit that replaces a root makes a version of that root. Then the versions thin out: the
//! last few stay, one for each five minutes of the last half an hour, one for each hour of the last
//! six, one for each three hours of a day. Beside the present content they keep in the store at
//! most the bytes written over since the oldest, so that sum is bounded, too. This bound alone
//! takes neither the last two, nor the oldest of the last half an hour: the accident that versions
//! are for writes over a great part of a volume.

use crate::destage::commit::Attempt;
use crate::{Vault, Version, limits};
use parking_lot::Mutex;
use rekindle_base::{Serial, VolumeId};
use rekindle_env::Env;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const MINUTE: u64 = 60_000_000;
const HOUR: u64 = 60 * MINUTE;
/// Time in which an accident is noticed.
const RECENT: u64 = 30 * MINUTE;

/// Uptime from which on a process believes its clock when old versions go for good: a clock that
/// was wrong at the start is set right by then.
pub const CLOCK_SURE: Duration = Duration::from_secs(60 * 60);

/// The time by which versions age.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    now: u64,
    /// Uptime of this process.
    uptime: Duration,
}

impl Time {
    /// The time of this process.
    #[must_use]
    pub fn of(env: &Env) -> Self {
        Self { now: env.aging_clock().0, uptime: env.uptime() }
    }

    /// The time by which these versions are judged. The clock of a young process may be wrong, and
    /// a version that goes is gone. So until [`CLOCK_SURE`], no more time counts than the process
    /// has run since the last commit before it.
    fn to_judge(self, versions: &[Version]) -> u64 {
        if self.uptime >= CLOCK_SURE {
            return self.now;
        }
        let uptime = micros(self.uptime);
        let began = self.now.saturating_sub(uptime);
        let before = versions.iter().map(|one| one.committed).filter(|&at| at < began).max();
        before.map_or(self.now, |before| self.now.min(before.saturating_add(uptime)))
    }
}

/// Versions that no commit takes while the user goes back to one of them.
#[derive(Debug, Clone, Default)]
pub struct Spared {
    /// The version that the user goes back to: the last to be taken.
    target: Option<Version>,
    all: Vec<Version>,
}

impl Spared {
    /// All versions of a vault, `target` before all others.
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

/// The spared versions by volume: commits look here.
pub(crate) type Holds = Arc<Mutex<BTreeMap<VolumeId, Spared>>>;

/// A hold on the spared versions: while it lives, no commit of the volume takes them.
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
pub(crate) fn next(vault: &Vault, attempt: &Attempt, spared: &Spared, time: Time) -> Vec<Version> {
    let is_mended = attempt.checkpoint == vault.checkpoint && attempt.over == 0;
    if attempt.root == vault.root || is_mended {
        return thinned(vault.versions.clone(), vault.size, spared, time);
    }
    with_present(vault, attempt.over, spared, time)
}

/// The versions of a vault with its present content, of which `over` bytes are written over now.
#[must_use]
pub fn with_present(vault: &Vault, over: u64, spared: &Spared, time: Time) -> Vec<Version> {
    let mut versions = vault.versions.clone();
    let is_new = vault.checkpoint == Serial(0) && vault.root.is_none();
    if !is_new {
        versions.insert(
            0,
            Version {
                checkpoint: vault.checkpoint,
                root: vault.root,
                size: vault.size,
                committed: time.now,
                lost: vault.lost.clone(),
                replaced: over.min(vault.size),
            },
        );
    }
    thinned(versions, vault.size, spared, time)
}

/// Whether a version is kept, so that the user may go back to it.
#[must_use]
pub fn is_kept(version: &Version, now: u64) -> bool {
    now.saturating_sub(version.committed) <= micros(limits::VERSION_AGE_MAX)
}

/// Whether the sweep must not take the chunks that a version reaches.
#[must_use]
pub fn is_reached(version: &Version, now: u64) -> bool {
    now <= reached_until(version)
}

/// Returns the last moment at which a version is reached: for a while longer than the version is
/// kept, so that no user goes back to one that is being taken.
#[must_use]
pub fn reached_until(version: &Version) -> u64 {
    version.committed.saturating_add(micros(limits::VERSION_AGE_MAX + limits::VERSION_GRACE))
}

/// Most bytes that the versions of a volume of `size` may keep in the store, the last ones
/// excepted.
pub(crate) fn bytes_max(size: u64) -> u64 {
    (size / 2).max(limits::VERSION_BYTES_MIN)
}

/// The versions that stay. Of each slice of time the oldest does, so that the outcome does not
/// depend on how often the versions are thinned.
fn thinned(versions: Vec<Version>, size: u64, spared: &Spared, time: Time) -> Vec<Version> {
    let now = time.to_judge(&versions);
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
    // The newest first: bytes written over after a version that goes count for the next older one.
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
    // All versions lie in one record.
    kept.retain(|version| {
        lost += version.lost.len();
        lost <= limits::LOST_MAX
    });
    kept
}

/// Bounds the count of versions in a vault. Spared versions go last, and the target of a user's
/// return never.
fn within_count(versions: &[Version], keep: &mut [bool], spared: &Spared) {
    let count = keep.iter().filter(|keep| **keep).count();
    let excess = count.saturating_sub(limits::VERSIONS_MAX);
    let mut kept: Vec<usize> = (1..keep.len()).filter(|&index| keep[index]).collect();
    // The oldest first: of the versions that are not spared, then of the others.
    kept.sort_by_key(|&index| {
        let version = &versions[index];
        (spared.is_target(version), spared.has(version), std::cmp::Reverse(index))
    });
    kept.into_iter().take(excess).for_each(|index| keep[index] = false);
}

/// Bounds the bytes: versions beyond the bound go, the oldest first, unless they are among the
/// last.
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
