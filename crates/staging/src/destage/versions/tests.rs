//! Tests of the parent module.

use super::*;
use crate::vault::tests::example;
use proptest::prelude::*;
use rekindle_base::PackId;
use rekindle_content::{Part, Pointer};

fn root(tag: u64) -> rekindle_content::tree::Root {
    let mut name = [0; 32];
    name[..8].copy_from_slice(&tag.to_le_bytes());
    Some(Pointer {
        name,
        pack: PackId([1; 16]),
        offset: 32,
        stored: 10,
        length: 10,
        part: Part::WHOLE,
    })
}

fn begun() -> Vault {
    Vault { versions: Vec::new(), lost: Vec::new(), checkpoint: Serial(0), root: None, ..example() }
}

/// A time whose clock is believed.
fn sure(now: u64) -> Time {
    Time { now, uptime: CLOCK_SURE }
}

/// A commit at `now`.
fn commit(vault: &Vault, over: u64, now: u64) -> Vault {
    let checkpoint = vault.checkpoint.next();
    let attempt = Attempt { root: root(checkpoint.0), checkpoint, over };
    let versions = next(vault, &attempt, &Spared::default(), sure(now));
    Vault { root: attempt.root, checkpoint, versions, ..vault.clone() }
}

#[test]
fn a_commit_makes_a_version_of_what_was_there_and_of_nothing_none() {
    let vault = commit(&begun(), 10, HOUR);
    assert_eq!(vault.versions, [], "an empty volume is nothing to go back to");
    let next = commit(&vault, 4096, 2 * HOUR);
    let version = &next.versions[0];
    assert_eq!(
        (version.root, version.checkpoint, version.committed),
        (root(1), Serial(1), 2 * HOUR)
    );
    assert_eq!((version.size, version.replaced), (vault.size, 4096));
    // A salvage that gives content up makes a version; one that only mends does not.
    let salvage = |over| Attempt { root: root(99), checkpoint: next.checkpoint, over };
    let count = |over| super::next(&next, &salvage(over), &Spared::default(), sure(3 * HOUR)).len();
    assert_eq!((count(1), count(0)), (2, 1));
}

#[test]
fn a_young_process_with_a_clock_that_is_ahead_takes_nothing() {
    let (mut vault, mut now) = (begun(), 1000 * HOUR);
    for _ in 0..10 {
        now += HOUR;
        vault = commit(&vault, 1, now);
    }
    let before = vault.versions.clone();
    for step in 1..4 {
        // The clock is three days ahead, and the process is up for seconds.
        let time = Time { now: now + 72 * HOUR, uptime: Duration::from_secs(step) };
        let checkpoint = vault.checkpoint.next();
        let attempt = Attempt { root: root(checkpoint.0), checkpoint, over: 1 };
        let versions = next(&vault, &attempt, &Spared::default(), time);
        vault = Vault { root: attempt.root, checkpoint, versions, ..vault };
    }
    let kept = before.iter().filter(|one| vault.versions.iter().any(|other| other.is_same(one)));
    // One version reaches an age at which fewer are kept.
    assert!(kept.count() + 1 >= before.len(), "{:?}", vault.versions);
    // If the clock is right after all, versions go once the process has run for long.
    let later = commit(&vault, 1, now + 72 * HOUR);
    assert!(later.versions.len() < before.len());
}

#[test]
fn a_day_is_kept_at_falling_density() {
    let (mut vault, mut now) = (begun(), 1000 * HOUR);
    for _ in 0..30 * 60 {
        now += MINUTE;
        vault = commit(&vault, 1, now);
    }
    let ages: Vec<u64> =
        vault.versions.iter().map(|version| (now - version.committed) / MINUTE).collect();
    assert!(ages.is_sorted() && ages.len() <= limits::VERSIONS_MAX, "{ages:?}");
    assert_eq!(ages[..3], [0, 1, 2], "the last ones");
    for (from, to, gap) in [(0, 30, 6), (30, 300, 75), (300, 24 * 60, 200)] {
        let inside: Vec<u64> =
            ages.iter().copied().filter(|age| (from..=to).contains(age)).collect();
        assert!(inside.windows(2).all(|two| two[1] - two[0] <= gap), "{from}..{to}: {ages:?}");
        assert!(!inside.is_empty());
    }
    assert!(*ages.last().unwrap() >= 22 * 60, "{ages:?}");
    // No write for two days: no version is kept, however many the vault still lists.
    let later = now + 48 * HOUR;
    assert!(
        !vault.versions.iter().any(|version| is_kept(version, later) || is_reached(version, later))
    );
}

#[test]
fn what_versions_may_keep_in_the_store_is_bounded() {
    let (mut vault, mut now) = (Vault { size: 100 << 30, ..begun() }, 1000 * HOUR);
    for _ in 0..200 {
        now += 3 * MINUTE;
        vault = commit(&vault, 1 << 30, now);
    }
    let sum: u64 = vault.versions.iter().map(|version| version.replaced).sum();
    assert!(sum <= 50 << 30, "{sum}");
    assert!(vault.versions.len() > 5);
    // Bytes overwritten between two kept versions count for the older one.
    let span = now - vault.versions.last().unwrap().committed;
    assert_eq!(sum >> 30, span / (3 * MINUTE) + 1);
}

#[test]
fn the_bound_alone_takes_neither_the_last_two_nor_the_oldest_of_the_last_half_hour() {
    let mut vault = Vault { size: 10 << 30, ..begun() };
    let mut now = 1000 * HOUR;
    for _ in 0..4 {
        now += 3 * HOUR;
        vault = commit(&vault, 4096, now);
    }
    // The whole volume is written over in a few minutes, many batches long.
    now += HOUR;
    let before = vault.clone();
    for _ in 0..60 {
        now += 5_000_000;
        vault = commit(&vault, 1 << 30, now);
    }
    let is_before = |version: &Version| version.root == before.root;
    assert!(vault.versions.iter().any(is_before), "{:?}", vault.versions);
    assert!(vault.versions.len() <= 6, "and little else: {:?}", vault.versions);
    now += HOUR;
    vault = commit(&vault, 10 << 30, now);
    assert_eq!(vault.versions.len(), 2, "later the bound counts: {:?}", vault.versions);
}

#[test]
fn what_somebody_goes_back_to_stays_whatever_is_committed_meanwhile() {
    let mut vault = Vault { size: 2 << 30, ..begun() };
    let mut now = 1000 * HOUR;
    for _ in 0..200 {
        now += 8 * MINUTE;
        vault = commit(&vault, 4096, now);
    }
    let listed = vault.versions.clone();
    for target in [0, 2, listed.len() / 2, listed.len() - 1] {
        let target = &listed[target];
        let spared = Spared::of(&vault, target);
        let (mut vault, mut now) = (vault.clone(), now);
        for _ in 0..40 {
            now += 1_000_000;
            let checkpoint = vault.checkpoint.next();
            let attempt = Attempt { root: root(checkpoint.0), checkpoint, over: 1 << 40 };
            let versions = next(&vault, &attempt, &spared, sure(now));
            vault = Vault { root: attempt.root, checkpoint, versions, ..vault };
            assert!(vault.check().is_ok());
            assert!(vault.versions.iter().any(|one| one.is_same(target)), "{target:?}");
        }
        let kept = listed.iter().filter(|one| vault.versions.iter().any(|same| same.is_same(one)));
        assert!(kept.count() + 1 >= listed.len().min(limits::VERSIONS_MAX - 1));
    }
}

proptest! {
    #[test]
    fn any_clock_gives_few_versions_in_order(steps in proptest::collection::vec((0u64..100 * HOUR, 0u64..1 << 40), 1..60)) {
        let mut vault = begun();
        for (now, over) in steps {
            vault = commit(&vault, over, now);
            prop_assert!(vault.versions.len() <= limits::VERSIONS_MAX);
            prop_assert!(vault.versions.windows(2).all(|two| two[0].checkpoint > two[1].checkpoint));
            prop_assert!(vault.check().is_ok());
        }
    }
}
