//! Tests of the parent module.

use super::*;
use crate::Logged;
use crate::destage::commit::tests::vault;

fn gaps(checkpoint: u64, serials: &[u64]) -> Option<String> {
    missing(Serial(checkpoint), serials.iter().map(|&serial| Serial(serial)))
}

#[test]
fn missing_serials_are_named_exactly() {
    assert_eq!(gaps(0, &[]), None);
    assert_eq!(gaps(0, &[1, 2, 3]), None);
    assert_eq!(gaps(7, &[8, 9]), None);
    assert_eq!(gaps(0, &[2]).as_deref(), Some("1"));
    assert_eq!(gaps(7, &[8, 10, 14]).as_deref(), Some("9, 11-13"));
    assert_eq!(gaps(7, &[10]).as_deref(), Some("8-9"));
}

#[test]
fn losses_count_unless_the_datastore_has_what_is_lost() {
    let loss = |after, before: Option<u64>| Loss {
        segment: rekindle_base::SegmentId(3),
        after: Serial(after),
        before: before.map(Serial),
        reason: "gone".into(),
    };
    let harm = |loss| harm(Serial(10), &[loss]);
    assert_eq!(harm(loss(5, Some(11))), None, "up to 10 they are in the datastore");
    assert_eq!(
        harm(loss(5, Some(13))).as_deref(),
        Some("serials 11 to 12 were in segment 3: gone")
    );
    assert_eq!(
        harm(loss(15, None)).as_deref(),
        Some("serials 16 to an unknown one were in segment 3: gone")
    );
}

#[test]
fn parked_groups_stay_whole() {
    // One change that is not listed, one alone, a group of three, one alone.
    let joined = [false, true, true, false, false];
    for (through, kept, begins) in
        [(8, 0, 8), (9, 0, 9), (10, 1, 10), (11, 1, 10), (12, 1, 10), (13, 4, 13), (20, 5, 14)]
    {
        let change = |&joined: &bool| {
            Change::logged(0, 512, None, Position(0), Moment::default()).joined(joined)
        };
        let mut parked = Parked {
            generation: Generation(5),
            checkpoint: Serial(8),
            unindexed: 1,
            changes: joined.iter().map(change).collect(),
            end: Position(0),
            begins: Serial(14),
            runs: Runs::of([(Serial(14), Incarnation(100))].into_iter()),
        };
        parked.truncate(Serial(through));
        assert_eq!((parked.changes.len(), parked.begins), (kept, Serial(begins)), "{through}");
        assert_eq!(parked.unindexed, usize::from(through > 8));
    }
}

/// Start 160 found serials 9 to 14 of start 100; the user gave up the changes behind 12.
#[test]
fn what_is_kept_of_accepted_losses_fits_the_vault_in_this_generation_and_the_next_ones() {
    let change = || Change::logged(0, 512, None, Position(0), Moment::default());
    let (of, life) = (Incarnation(100), Incarnation(160));
    let mut parked = Parked {
        generation: Generation(5),
        checkpoint: Serial(8),
        unindexed: 0,
        changes: (9..=14).map(|_| change()).collect(),
        end: Position(0),
        begins: Serial(14),
        runs: Runs::of([(Serial(10), of), (Serial(14), of)].into_iter()),
    };
    parked.truncate(Serial(12));
    assert_eq!((parked.changes.len(), parked.begins), (4, Serial(12)));
    assert_eq!(parked.runs, Runs::of([(Serial(12), of)].into_iter()));
    let accepted = crate::Accepted {
        generation: Generation(6),
        through: Serial(12),
        segment: rekindle_base::SegmentId(0),
    };
    let vault = vault(6, 8);
    let logged =
        Logged { node: vault.owner.unwrap_or_default(), incarnation: of, begins: Serial(8) };
    let vault = Vault {
        generation: Generation(6),
        incarnation: life,
        begins: Serial(12),
        accepted: Some(accepted),
        logged: vec![logged],
        ..vault
    };
    for generation in [5, 6, 7] {
        parked.generation = Generation(generation);
        parked.check(&vault, life).unwrap();
    }
}

#[test]
fn a_log_that_ends_before_a_snapshot_that_waits_for_its_changes_has_lost_them() {
    let of = |checkpoint, awaited| Vault {
        snapshots: vec![crate::vault::tests::pending(1, awaited)],
        ..vault(6, checkpoint)
    };
    let behind = |vault: &Vault, last| (vault.checkpoint.0 + 1..=last).map(Serial);
    let gaps = |vault: &Vault, last| super::gaps(vault, None, behind(vault, last));
    assert_eq!(gaps(&of(8, 12), 12), None);
    assert_eq!(gaps(&of(8, 12), 14), None);
    assert_eq!(gaps(&of(8, 12), 10).as_deref(), Some("11-12"));
    assert!(gaps(&of(8, 12), 8).is_some(), "the log has none of them");
    let kept = |through, last| {
        let vault = of(8, 12);
        super::gaps(&vault, Some(Serial(through)), behind(&vault, last)).is_some()
    };
    assert!(kept(10, 10) && kept(13, 12) && !kept(13, 13), "the later one counts");
}
