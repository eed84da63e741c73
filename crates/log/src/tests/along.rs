//! Places that are read along with their neighbours.

use super::*;
use crate::along::{Along, along};
use crate::limits::RUNS_KEPT_MAX;
use rekindle_base::SegmentId;
use std::collections::BTreeSet;

const LENGTH: usize = 2000;

/// Fills segments, all but the last of which are on flash only, and returns the places.
async fn fill(log: &Log, count: u64) -> Vec<(u64, Place)> {
    let mut places = Vec::new();
    for serial in 1..=count {
        places.push((serial, append(log, volume(1), serial, LENGTH).await.unwrap().1));
    }
    log.commit(Position(u64::MAX)).await.unwrap();
    places.retain(|(_, place)| place.segment.with_memory(|_| ()).is_none());
    places
}

fn join(places: &[(u64, Place)]) -> Vec<Option<Along>> {
    along(&places.iter().map(|(_, place)| (place, LENGTH as u64)).collect::<Vec<_>>())
}

fn segments(joined: &[Option<Along>]) -> BTreeSet<SegmentId> {
    joined.iter().flatten().map(|along| along.place().segment_id()).collect()
}

/// Reads each place in two halves, as blocks do, and checks it.
async fn read(places: &[(u64, Place)], joined: &[Option<Along>]) {
    for ((serial, place), along) in places.iter().zip(joined) {
        let mut bytes = [0; LENGTH];
        for (half, start) in bytes.chunks_mut(LENGTH / 2).zip([0, LENGTH as u32 / 2]) {
            match along {
                Some(along) => along.read(start, half).await.unwrap(),
                None => place.read(start, half).await.unwrap(),
            }
        }
        assert!(bytes[..] == payload(volume(1), *serial, LENGTH), "{serial}");
    }
}

fn with_places(world: &World, work: impl AsyncFnOnce(Log, Vec<(u64, Place)>)) {
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 3, 60).await.unwrap();
        let places = fill(&log, 500).await;
        assert!(places.len() > 400);
        work(log, places).await;
    });
}

#[test]
fn neighbours_are_read_together_in_their_order() {
    let world = world(1);
    with_places(&world, async |_, places| {
        let joined = join(&places);
        assert!(joined.iter().all(Option::is_some));
        let before = world.disk_operations();
        read(&places, &joined).await;
        // A segment of 32 KiB is one run: it is opened and read once.
        let operations = world.disk_operations() - before;
        assert!(operations < 3 * segments(&joined).len() as u64, "{operations}");
        // A second reader finds the runs gone, and the entries all the same.
        read(&places, &joined).await;
    });
}

#[test]
fn an_order_of_its_own_keeps_a_bounded_number_of_runs() {
    let world = world(2);
    with_places(&world, async |_, mut places| {
        places.sort_by_key(|(serial, _)| serial * 7919 % 500);
        let joined = join(&places);
        let runs = segments(&joined);
        assert!((1..=RUNS_KEPT_MAX).contains(&runs.len()), "{}", runs.len());
        read(&places, &joined).await;
    });
}

#[test]
fn a_run_that_is_misread_or_refused_is_read_by_entries() {
    for (flip, refused) in [(1.0, 0.0), (0.0, 1.0), (0.3, 0.3)] {
        let world = world(3);
        with_places(&world, async |_, places| {
            let joined = join(&places);
            world.change_faults(|faults| {
                (faults.read_flip, faults.read_error) = (flip, refused);
                faults.only = Some(".seg".to_owned());
            });
            // The runs are read, each by the task of the run before it or by this read.
            let mut out = [0; LENGTH];
            for along in joined.iter().flatten() {
                let _ = along.read(0, &mut out[..1]).await;
            }
            world.change_faults(|faults| (faults.read_flip, faults.read_error) = (0.0, 0.0));
            read(&places, &joined).await;
        });
    }
}

/// Whether each segment is in memory, in their order.
fn in_memory(log: &Log) -> Vec<bool> {
    log.view().segments.iter().map(|segment| segment.slot.is_some()).collect()
}

#[test]
fn what_the_destager_reads_next_stays_in_memory_and_what_it_has_read_goes() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open_with(&env, 8, 60).await.unwrap();
        let mut places = Vec::new();
        for serial in 1..=250 {
            places.push((serial, append(&log, volume(1), serial, LENGTH).await.unwrap().1));
        }
        let before = in_memory(&log);
        assert!(before.len() > 16 && before.iter().filter(|is| **is).count() <= 8, "{before:?}");
        assert!(before[..3].iter().all(|is| *is), "the oldest are read next: {before:?}");
        let ends = before[before.len() - 2..].iter().all(|is| *is);
        assert!(ends, "clients read what they wrote last: {before:?}");
        let first = places[0].1.segment_id();
        let oldest: Vec<_> =
            places.iter().filter(|(_, place)| place.segment_id() == first).cloned().collect();
        read(&oldest, &join(&oldest)).await;
        for serial in 251..=270 {
            places.push((serial, append(&log, volume(1), serial, LENGTH).await.unwrap().1));
        }
        let after = in_memory(&log);
        assert!(!after[0] && after[1..3].iter().all(|is| *is), "it was read: {after:?}");
        read(&places, &join(&places)).await;
    });
}
