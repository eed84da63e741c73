//! The decision what the log is, case by case.

use super::*;
use crate::format::{Lost, Named};

fn named(id: u64) -> Named {
    Named { segment: SegmentId(id), file: id as u32, lost: Lost::Nothing, who: None }
}

fn present(ids: &[u64]) -> BTreeMap<SegmentId, Present> {
    ids.iter().map(|&id| (SegmentId(id), Present::Yes { file: id as u32 })).collect()
}

fn head(id: u64, digest: &[u64], has_changes: bool, end: End) -> Probe {
    let digest = digest.iter().copied().map(named).collect();
    let opening = Opening { digest, statistics: None };
    Probe { segment: SegmentId(id), opening, has_changes, end }
}

const SEALED: End = End::Sealed { successor: None };

fn followed(id: u64) -> End {
    End::Sealed { successor: Some(SegmentId(id)) }
}

#[test]
fn nothing_is_an_empty_log() {
    let history = what_is_the_log(&present(&[]), None, None);
    assert_eq!(history, History { next: SegmentId(1), ..History::default() });
}

#[test]
fn a_first_head_that_was_never_opened_is_an_empty_log() {
    let present = BTreeMap::from([(SegmentId(1), Present::NeverOpened)]);
    let history = what_is_the_log(&present, None, None);
    assert_eq!((history.members.len(), history.tail_lost, history.next), (0, None, SegmentId(2)));
}

#[test]
fn an_open_head_with_changes_is_resumed() {
    let newest = head(5, &[3, 4, 5], true, End::Open);
    let history =
        what_is_the_log(&present(&[2, 3, 4, 5]), Some(&newest), Some((SegmentId(4), followed(5))));
    assert_eq!(history.members, [named(3), named(4), named(5)]);
    assert_eq!(
        (history.resume, history.empty, history.next),
        (Some(SegmentId(5)), None, SegmentId(6))
    );
    assert!(history.missing.is_empty() && history.tail_lost.is_none());
}

#[test]
fn between_open_and_seal_the_older_head_is_resumed_and_the_newer_leaves() {
    let newest = head(5, &[3, 4, 5], false, End::Open);
    let history =
        what_is_the_log(&present(&[3, 4, 5]), Some(&newest), Some((SegmentId(4), End::Open)));
    assert_eq!(history.members, [named(3), named(4)]);
    assert_eq!((history.resume, history.empty), (Some(SegmentId(4)), Some(SegmentId(5))));
}

#[test]
fn an_empty_head_behind_a_sealed_one_leaves_and_nothing_is_resumed() {
    let newest = head(5, &[3, 4, 5], false, End::Open);
    let history =
        what_is_the_log(&present(&[3, 4, 5]), Some(&newest), Some((SegmentId(4), followed(5))));
    assert_eq!((history.resume, history.empty), (None, Some(SegmentId(5))));
}

#[test]
fn a_closed_log_has_lost_nothing() {
    let newest = head(5, &[5], true, SEALED);
    let history = what_is_the_log(&present(&[4, 5]), Some(&newest), None);
    assert_eq!((history.members, history.resume, history.tail_lost), (vec![named(5)], None, None));
}

#[test]
fn a_sealed_newest_head_with_a_successor_means_that_the_head_is_lost() {
    let newest = head(5, &[5], true, followed(6));
    let history = what_is_the_log(&present(&[5]), Some(&newest), None);
    assert_eq!(history.tail_lost, Some(SegmentId(6)));
}

#[test]
fn what_a_digest_names_and_is_not_there_is_missing() {
    let newest = head(5, &[2, 3, 5], true, End::Open);
    let history =
        what_is_the_log(&present(&[3, 4, 5]), Some(&newest), Some((SegmentId(3), SEALED)));
    assert_eq!((history.members, history.missing), (vec![named(3), named(5)], vec![named(2)]));
}

#[test]
fn a_broken_newer_head_with_changes_is_served_as_far_as_it_goes() {
    let newest = head(5, &[5], true, followed(6));
    let mut present = present(&[5]);
    present.insert(SegmentId(6), Present::Broken { file: 6 });
    let history = what_is_the_log(&present, Some(&newest), None);
    assert_eq!(
        (history.members, history.tail_lost),
        (vec![named(5), named(6)], Some(SegmentId(6)))
    );
    let all = what_is_the_log(&present, None, None);
    assert_eq!((all.members.len(), all.tail_lost), (2, Some(SegmentId(6))));
}
