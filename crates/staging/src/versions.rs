//! Which earlier contents of a volume are kept. Pure.
//!
//! Each commit that replaces a root makes a version of it. Then they thin out: the last few, one for each five minutes of the
//! last half an hour, one for each hour of the last six, one for each three hours of a day. What they keep in the store beside the
//! present content is at most what was written over since the oldest, so that sum is bounded, too.

use crate::commit::Attempt;
use crate::{Vault, Version, limits};
use base::Serial;
use std::collections::BTreeSet;
use std::time::Duration;

const MINUTE: u64 = 60_000_000;
const HOUR: u64 = 60 * MINUTE;

/// The versions of a vault once `attempt` is committed over it.
pub(crate) fn next(vault: &Vault, attempt: &Attempt, now: u64) -> Vec<Version> {
    let is_mended = attempt.checkpoint == vault.checkpoint && attempt.over == 0;
    if attempt.root == vault.root || is_mended {
        return thinned(vault.versions.clone(), vault.size, now);
    }
    with_present(vault, attempt.over, now)
}

/// The versions of a vault with its present content, of which `over` bytes are written over now.
#[must_use]
pub fn with_present(vault: &Vault, over: u64, now: u64) -> Vec<Version> {
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
    thinned(versions, vault.size, now)
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

/// Those that stay. Of each slice of time the oldest does, so that what is kept as it ages does not depend on how often
/// somebody looks.
fn thinned(versions: Vec<Version>, size: u64, now: u64) -> Vec<Version> {
    let mut slices = BTreeSet::new();
    let count = versions.len();
    let mut keep = vec![false; count];
    for (index, version) in versions.iter().enumerate().rev() {
        let is_first = |width: u64, slices: &mut BTreeSet<(u64, u64)>| {
            slices.insert((width, version.committed / width))
        };
        let age = now.saturating_sub(version.committed);
        let is_one = match age {
            _ if !is_reached(version, now) => false,
            age if age <= 30 * MINUTE => is_first(5 * MINUTE, &mut slices),
            age if age <= 6 * HOUR => is_first(HOUR, &mut slices),
            _ => is_first(3 * HOUR, &mut slices),
        };
        keep[index] = is_one || index < limits::VERSIONS_LAST;
    }
    let mut kept: Vec<Version> = Vec::with_capacity(count);
    let mut carried = 0u64;
    // The newest first: what is written over after one that goes counts for the next older one.
    for (version, keep) in versions.into_iter().zip(keep) {
        if keep && kept.len() < limits::VERSIONS_MAX {
            let replaced = version.replaced.saturating_add(carried);
            kept.push(Version { replaced, ..version });
            carried = 0;
        } else {
            carried = carried.saturating_add(version.replaced);
        }
    }
    let bytes_max = (size / 2).max(limits::VERSION_BYTES_MIN);
    let (mut bytes, mut lost) = (0u64, 0usize);
    let fits = kept.iter().take_while(|version| {
        bytes = bytes.saturating_add(version.replaced);
        lost += version.lost.len();
        bytes <= bytes_max && lost <= limits::LOST_MAX
    });
    let fits = fits.count();
    kept.truncate(fits);
    kept
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
