//! The choice of segments that may go: by hand, and against a simpler model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn volume(number: u8) -> VolumeId {
    VolumeId([number; 16])
}

fn table() -> Table<u64> {
    Table::new(HashMap::new(), true)
}

fn said(volumes: &[(VolumeId, Serial)], whole: bool) -> Statistics {
    Statistics { volumes: volumes.to_vec(), whole, marks: Vec::new() }
}

#[test]
fn a_segment_dies_when_all_its_volumes_are_released() {
    let mut table = table();
    table.insert(SegmentId(1), (Some(1), None), 1, false);
    table.learn(SegmentId(1), [(volume(1), Serial(5)), (volume(2), Serial(3))], false);
    assert!(!table.release(volume(1), Serial(5)));
    assert!(!table.release(volume(2), Serial(2)));
    assert_eq!(table.live(), 1);
    assert!(table.release(volume(2), Serial(3)));
    assert_eq!(
        (table.live(), table.held()),
        (0, 1),
        "its file stays until a digest without it is durable"
    );
    assert_eq!(table.next_digest().1, [SegmentId(1)]);
    assert_eq!(table.remove_dead(SegmentId(1)), 1);
}

#[test]
fn a_release_before_the_segment_was_read_counts() {
    let mut table = table();
    table.insert(SegmentId(1), (Some(1), None), 1, true);
    assert!(!table.release(volume(1), Serial(5)));
    table.learn(SegmentId(1), [(volume(1), Serial(5))], true);
    assert_eq!(table.live(), 0);
}

#[test]
fn a_damaged_segment_stays_until_it_is_discarded_and_takes_no_room_from_writes() {
    let mut table = table();
    table.insert(SegmentId(1), (Some(1), None), 1, true);
    table.insert(SegmentId(2), (None, None), 2, false);
    table.mark_lost(SegmentId(1), Lost::Counted);
    table.mark_lost(SegmentId(2), Lost::Uncounted);
    table.learn(SegmentId(1), [(volume(1), Serial(5))], true);
    assert_eq!(table.live(), 1, "one holds what the datastore has not");
    assert!(table.release(volume(1), Serial(5)), "who waits for room is told");
    let named = table.next_digest().0;
    assert!(named.len() == 2 && named.iter().all(|named| named.lost != Lost::Nothing));
    assert_eq!(table.live(), 0);
    table.discard(SegmentId(1));
    table.discard(SegmentId(2));
    assert_eq!(table.live(), 0);
}

#[test]
fn statistics_name_who_is_in_the_log() {
    let mut table =
        Table::new(HashMap::from([(volume(1), Serial(7)), (volume(2), Serial(2))]), true);
    table.insert(SegmentId(1), (Some(1), None), 1, true);
    let head = HashMap::from([(volume(3), Serial(1))]);
    let expected = vec![(volume(1), Serial(7)), (volume(2), Serial(2)), (volume(3), Serial(1))];
    assert_eq!(table.statistics(&head, 10), said(&expected, true));
    assert_eq!(table.statistics(&head, 2), said(&expected[..2], false));
    table.release(volume(2), Serial(2));
    table.learn(SegmentId(1), [(volume(1), Serial(6))], true);
    assert_eq!(table.statistics(&HashMap::new(), 10), said(&[(volume(1), Serial(6))], true));
}

#[test]
fn a_mark_stays_while_a_segment_stays_in_which_it_counts() {
    let mut table = table();
    for id in 1..4 {
        table.insert(SegmentId(id), (Some(1), None), id, false);
    }
    table.learn(SegmentId(1), [], false);
    let mark =
        |serial, segment| Mark { serial: Serial(serial), segment: SegmentId(segment), offset: 640 };
    for (serial, segment) in [(3, 1), (u64::MAX, 2), (4, 2), (5, 3)] {
        table.mark(volume(1), mark(serial, segment));
    }
    let marks = |table: &Table<u64>| table.statistics(&HashMap::new(), 9).marks;
    let (all, newer) = ((volume(1), mark(u64::MAX, 2)), (volume(1), mark(5, 3)));
    assert_eq!(marks(&table), [all, newer], "what another covers is gone");
    assert!(
        all.1.covers(Serial(9), SegmentId(2), 639) && !all.1.covers(Serial(9), SegmentId(2), 640)
    );
    table.remove_dead(SegmentId(1));
    assert_eq!(marks(&table), [all, newer]);
    table.learn(SegmentId(2), [], false);
    table.remove_dead(SegmentId(2));
    assert_eq!(marks(&table), [newer]);
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_simple_model(steps in proptest::collection::vec((0u8..3, 1u8..4, 0u64..12), 0..80)) {
        let mut table = table();
        let mut model: BTreeMap<u64, BTreeSet<(u8, u64)>> = BTreeMap::new();
        let mut next = 0;
        for (what, number, serial) in steps {
            match what {
                0 => {
                    next += 1;
                    let content: BTreeSet<_> = (1..number).map(|volume| (volume, serial + u64::from(volume))).collect();
                    table.insert(SegmentId(next), (Some(1), None), next, false);
                    let highest: Vec<_> = content.iter().map(|&(v, s)| (volume(v), Serial(s))).collect();
                    table.learn(SegmentId(next), highest, false);
                    model.insert(next, content);
                }
                1 => {
                    table.release(volume(number), Serial(serial));
                    model.values_mut().for_each(|content| content.retain(|&(v, s)| v != number || s > serial));
                }
                _ => {
                    for id in table.next_digest().1 {
                        table.remove_dead(id);
                        prop_assert_eq!(model.remove(&id.0), Some(BTreeSet::new()));
                    }
                }
            }
            let live: Vec<_> = model.iter().filter(|(_, content)| !content.is_empty()).map(|(&id, _)| id).collect();
            let named: Vec<_> = table.next_digest().0.iter().map(|named| named.segment.0).collect();
            prop_assert_eq!(&named, &live);
            prop_assert_eq!(table.live(), live.len());
            prop_assert_eq!(table.held(), model.len());
        }
    }
}
