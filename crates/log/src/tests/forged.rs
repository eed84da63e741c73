//! A client's bytes lie in the segment as they are, and behind the end of the next head when the
//! file is used again. None of them may ever pass for an entry: not even with a checksum that a
//! client can compute, seeded with the segment's number.

use super::*;
use crate::format::{EntryHeader, Key, Kind, SegmentHeader, VERSION};
use rekindle_base::SegmentId;

const BLOCK: u32 = 4096;
const GRAIN: u32 = crate::limits::GRAIN_BYTES;

/// The key of `segment`, as far as a stranger can guess it.
fn guessed(segment: u64) -> Key {
    let header = SegmentHeader {
        version: VERSION - 1,
        class: 0,
        node: NODE,
        segment: SegmentId(segment),
        epoch: 1,
        incarnation: Incarnation(1),
        birth: 0,
        capacity: SEGMENT,
        sector: 512,
    };
    header.key()
}

/// A payload for `start`: each of its grains is a certificate of one of these segments.
fn certificates(start: u32, segments: std::ops::Range<u64>) -> Vec<u8> {
    let count = segments.end - segments.start;
    let certificate = |grain: u32| {
        let mut entry = EntryHeader::plain(Kind::Certificate, start + grain * GRAIN);
        entry.serial = Serial(1_000_000);
        entry.encode(guessed(segments.start + u64::from(grain) % count))
    };
    (0..BLOCK / GRAIN).flat_map(certificate).collect()
}

/// A payload for `start`. At `at`, if that lies in the payload, it has a change of the volume
/// `victim` that zeros a tebibyte, and a certificate of it that counts `listed` changes before it.
fn invented_change(start: u32, segment: u64, at: u32, listed: u64, serial: u64) -> Vec<u8> {
    let mut entry = EntryHeader::plain(Kind::Change(Change::Zero), at);
    (entry.volume, entry.serial, entry.generation) = (volume(2), Serial(serial), Generation(1));
    entry.span = 1 << 40;
    let entry = entry.encode(guessed(segment));
    let mut end = EntryHeader::plain(Kind::Certificate, at + GRAIN);
    (end.serial, end.span, end.position) = (Serial(listed + 1), 1, u64::from(at + 2 * GRAIN));
    end.payload_crc = guessed(segment).checksum(&entry);
    let end = end.encode(guessed(segment));
    let mut bytes = vec![0; BLOCK as usize];
    for (grain, offset) in bytes.chunks_exact_mut(GRAIN as usize).zip((start..).step_by(64)) {
        match offset {
            _ if offset == at => grain.copy_from_slice(&entry),
            _ if offset == at + GRAIN => grain.copy_from_slice(&end),
            _ => {}
        }
    }
    bytes
}

/// Lets volume 1 fill all files with what `forge` makes for a place, releases everything, and uses
/// the files again. Volume 2 then makes `count` small changes, which are committed or only in
/// memory; returns their places.
fn attacked(
    forge: impl Fn(u32) -> Vec<u8>,
    count: u64,
    committed: bool,
) -> (World, Vec<(u64, u32)>) {
    let world = world(7);
    let env = world.env();
    let places = world.block_on(async {
        let (log, _) = open(&env).await;
        let mut serial = 0;
        while serial < 60 {
            serial += 1;
            // Alone on the machine, a client knows where its bytes go.
            let bytes = forge(log.inner.heads.lock().open.front() + GRAIN);
            let position = loop {
                match log.append(&[change(volume(1), serial, &bytes)]) {
                    Ok((position, _)) => break position,
                    Err(Refused::HeadFull) => log.roll(bytes.len()).await.unwrap(),
                    Err(Refused::Malformed(why)) => panic!("{why}"),
                }
            };
            log.commit(position).await.unwrap();
            log.release(volume(1), Serial(serial));
        }
        // Fills the log up to the start of a head.
        let head = log.inner.heads.lock().open.segment.id();
        while log.inner.heads.lock().open.segment.id() == head {
            serial += 1;
            let (position, _) = append(&log, volume(1), serial, 512).await.unwrap();
            log.commit(position).await.unwrap();
            log.release(volume(1), Serial(serial));
        }
        let mut places = Vec::new();
        for serial in 1..=count {
            let (position, place) = append(&log, volume(2), serial, 300).await.unwrap();
            if committed {
                log.commit(position).await.unwrap();
            }
            places.push((place.segment_id().0, place.offset));
        }
        places
    });
    (world, places)
}

#[test]
fn what_a_client_wrote_earlier_is_no_damage_of_others() {
    let (world, places) = attacked(|start| certificates(start, 8..24), 5, true);
    assert!(places.iter().all(|(segment, _)| (8..24).contains(segment)), "{places:?}");
    world.cut_power();
    let image = world.peek("/flash/00000003.seg").unwrap();
    let forged = |at: usize| EntryHeader::decode(&image[at..], guessed(11)).is_ok();
    assert!((0..image.len() - 64).step_by(64).any(forged), "the attack is on flash");
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open(&env).await;
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(recovered(&log, volume(2)).await, [1, 2, 3, 4, 5]);
    });
}

#[test]
fn what_a_client_wrote_earlier_is_no_change() {
    let (_, places) = attacked(|_| vec![0x55; BLOCK as usize], 5, true);
    let (segment, step) = (places[0].0, places[2].1 - places[1].1);
    for count in 8..14 {
        // The client's own changes that were released before it are listed, too.
        for listed in count..count + 4 {
            let behind = places[1].1 + step * (u32::try_from(count).unwrap() - 1);
            let forge = |start| invented_change(start, segment, behind, listed, count + 1);
            let (world, _) = attacked(forge, count, true);
            world.cut_power();
            let env = world.env();
            world.block_on(async {
                let (log, opened) = open(&env).await;
                assert_eq!(opened.damage, Vec::<String>::new());
                let expected: Vec<_> = (1..=count).collect();
                assert_eq!(recovered(&log, volume(2)).await, expected, "{listed}");
            });
        }
    }
}

#[test]
fn what_a_client_wrote_earlier_does_not_outdate_memory() {
    for count in 10..30 {
        let (world, _) = attacked(|start| certificates(start, 11..12), count, false);
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new(), "{count}");
            let expected: Vec<_> = (1..=count).collect();
            assert_eq!(recovered(&log, volume(2)).await, expected, "{count}");
        });
    }
}

/// The key is new at each use of a file: entries of an earlier use are no guess, they were right.
#[test]
fn each_use_of_a_file_has_a_key_of_its_own() {
    let world = world(3);
    let env = world.env();
    let keys = world.block_on(async {
        let (log, _) = open_with(&env, 4, 2).await.unwrap();
        let mut keys = Vec::new();
        for serial in 1..200 {
            let (position, place) = append(&log, volume(1), serial, 2000).await.unwrap();
            log.commit(position).await.unwrap();
            log.release(volume(1), Serial(serial));
            if !keys.contains(&place.segment.header.key()) {
                keys.push(place.segment.header.key());
            }
        }
        assert!(u64::try_from(keys.len()).unwrap() == log.inner.heads.lock().open.segment.id().0);
        keys
    });
    assert!(keys.len() > 10, "{}", keys.len());
}
