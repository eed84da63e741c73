//! Tests of the frames through their public face.

use super::crash_tests::world_of;
use super::{Beginning, Frames, Key, Miss, bytes_of};
use crate::limits::FRAME_BYTES;
use crate::{Arena, FramesShape, Label, Shape, inspect};
use proptest::prelude::*;
use rekindle_base::{NodeId, SegmentId, StoreId};
use rekindle_env::sim::{Faults, World};
use std::collections::HashMap;
use std::path::Path;

const NODE: NodeId = NodeId([5; 16]);
const STORE: StoreId = StoreId([6; 16]);
const PATH: &str = "/memory/warm";
const SLOT: u32 = 16 << 10;
/// Offset at which the slots end and the frames begin.
const FRAMES_AT: u64 = crate::mapping::SLOTS_START as u64 + 2 * SLOT as u64;

fn shape(sets: usize) -> Shape {
    let frames = FramesShape { bytes: bytes_of(sets) as u64, store: STORE };
    Shape { slots: 2, slot_bytes: SLOT, frames: Some(frames) }
}

pub(super) fn open(world: &World, sets: usize) -> Arena {
    Arena::open_shaped(&world.env(), Path::new(PATH), NODE, shape(sets)).unwrap()
}

/// A world with an arena of so many sets.
pub(super) fn bed(sets: usize) -> (World, Arena) {
    let world = World::new(1, Faults::none());
    let arena = open(&world, sets);
    (world, arena)
}

/// Bytes that say which key and version they are of.
pub(super) fn value(key: &Key, version: u32, length: usize) -> Vec<u8> {
    let mut bytes = version.to_le_bytes().to_vec();
    bytes.resize_with(length.max(4), || key[0] ^ 0x5a);
    bytes
}

pub(super) fn get(frames: &Frames, key: &Key) -> Result<Vec<u8>, Miss> {
    frames.get(key, |bytes| Some(bytes.to_vec()))
}

fn reopened(world: &World, sets: usize) -> Frames {
    world.crash_process();
    open(world, sets).frames().unwrap()
}

#[test]
fn frames_outlive_the_process_and_are_verified_once() {
    let (world, arena) = bed(4);
    let frames = arena.frames().unwrap();
    assert_eq!(frames.stats().began, Beginning::New);
    let lengths = [0, 1, 4096, 4097, FRAME_BYTES[1]];
    for (number, length) in lengths.iter().enumerate() {
        let key = [number as u8; 32];
        let bytes = vec![number as u8; *length];
        assert_eq!(get(&frames, &key), Err(Miss::Cold));
        assert!(frames.insert(&key, &[&bytes[..length / 3], &bytes[length / 3..]]));
    }
    assert!(!frames.insert(&[77; 32], &[&[0; FRAME_BYTES[1]], b"x"]), "too long for any");
    drop((frames, arena));
    let frames = reopened(&world, 4);
    assert_eq!(frames.stats().began, Beginning::Kept);
    assert_eq!(frames.usage().frames, [3, 2]);
    for turn in 0..2 {
        for (number, length) in lengths.iter().enumerate() {
            assert_eq!(get(&frames, &[number as u8; 32]), Ok(vec![number as u8; *length]));
        }
        assert_eq!(frames.stats().verifications, 5, "turn {turn}");
    }
    assert_eq!(get(&frames, &[77; 32]), Err(Miss::Absent));
    assert_eq!(frames.stats().hits, 10);
    frames.missed(Miss::Absent);
    assert_eq!(frames.stats().misses(), 1);
    assert_eq!(frames.drop_all(), 5);
    assert_eq!(frames.usage().frames, [0, 0]);
    assert!(get(&frames, &[1; 32]).is_err() && !frames.remove(&[1; 32]));
}

#[test]
fn a_full_set_evicts_what_was_not_used_and_says_so_even_after_a_restart() {
    let (world, arena) = bed(1);
    let frames = arena.frames().unwrap();
    for number in 0..8 {
        frames.insert(&[number; 32], &[b"x"]);
    }
    assert!(get(&frames, &[0; 32]).is_ok() && get(&frames, &[2; 32]).is_ok());
    frames.insert(&[8; 32], &[b"x"]);
    frames.insert(&[9; 32], &[b"x"]);
    for (number, here) in [(0, true), (1, false), (2, true), (3, false), (4, true), (9, true)] {
        let expected = if here { Ok(b"x".to_vec()) } else { Err(Miss::Evicted) };
        assert_eq!(get(&frames, &[number; 32]), expected, "{number}");
    }
    assert_eq!(frames.stats().evictions, 2);
    drop((frames, arena));
    let frames = reopened(&world, 1);
    assert_eq!(get(&frames, &[1; 32]), Err(Miss::Evicted));
    frames.insert(&[1; 32], &[b"x"]);
    frames.remove(&[1; 32]);
    assert_eq!(get(&frames, &[1; 32]), Err(Miss::Absent), "it was here again");
}

#[test]
fn every_flipped_byte_is_seen_and_harms_neither_other_frames_nor_segments() {
    let (world, arena) = bed(1);
    let mut writer = arena.take_slots().remove(1).begin(label());
    writer.push_front(&[1; 64]);
    writer.publish();
    let frames = arena.frames().unwrap();
    let (key, other) = ([3; 32], [4; 32]);
    frames.insert(&key, &[&[9; 200]]);
    frames.insert(&other, &[&[8; 300]]);
    let length = arena.file_length();
    drop((frames, writer, arena));
    let region = world.env().memory().map(Path::new(PATH), length as u64).unwrap();
    // SAFETY: inside the mapping; no other code has it.
    let whole = unsafe { std::slice::from_raw_parts(region.base(), length) }.to_vec();
    // The header, the word and the key of the first frame, and its bytes.
    let at = usize::try_from(FRAMES_AT).unwrap();
    let bytes = at + crate::format::SET_BYTES;
    let places = (2048..2176).chain(at..at + 8).chain(at + 128..at + 160).chain(bytes..bytes + 200);
    for place in places {
        for mask in [1u8, 0x80] {
            let mut image = whole.clone();
            image[place] ^= mask;
            let world = world_of(&image);
            let arena = open(&world, 1);
            assert!(arena.was_kept(), "frames are not the segments' trouble");
            assert!(arena.take_slots()[1].certificate().is_some());
            let frames = arena.frames().unwrap();
            let found = get(&frames, &key);
            assert!(found.is_err(), "byte {place}");
            if place < 4096 {
                assert_eq!(frames.stats().began, Beginning::Damaged);
                assert_eq!(found, Err(Miss::Cold));
                assert_eq!(frames.usage().frames, [0, 0]);
            } else {
                assert_eq!(get(&frames, &other), Ok(vec![8; 300]), "byte {place}");
            }
            if place >= bytes {
                assert_eq!(found, Err(Miss::Damaged));
                assert_eq!(get(&frames, &key), Err(Miss::Absent), "thrown away");
            }
            frames.insert(&key, &[b"again"]);
            assert_eq!(get(&frames, &key), Ok(b"again".to_vec()));
        }
    }
    // And the other way round: a torn header of the segments does not cost the frames.
    let mut image = whole;
    image[20] ^= 1;
    image[1024 + 20] ^= 1;
    let arena = open(&world_of(&image), 1);
    assert!(!arena.was_kept());
    assert_eq!(get(&arena.frames().unwrap(), &other), Ok(vec![8; 300]));
}

fn label() -> Label {
    Label { segment: SegmentId(9), epoch: 1, file: 3 }
}

#[test]
fn frames_of_another_layout_store_or_size_are_not_believed() {
    let key = [3; 32];
    let filled = || {
        let (world, arena) = bed(2);
        arena.frames().unwrap().insert(&key, &[b"x"]);
        drop(arena);
        world.crash_process();
        world
    };
    let began = |world: &World, shape: Shape| {
        let arena = Arena::open_shaped(&world.env(), Path::new(PATH), NODE, shape).unwrap();
        let frames = arena.frames().unwrap();
        (frames.stats().began, get(&frames, &key).err())
    };
    let with = |change: fn(&mut FramesShape)| {
        let mut shape = shape(2);
        shape.frames.iter_mut().for_each(change);
        shape
    };
    assert_eq!(began(&filled(), shape(2)), (Beginning::Kept, None));
    let cold = Some(Miss::Cold);
    let other_store = with(|frames| frames.store = StoreId([1; 16]));
    assert_eq!(began(&filled(), other_store), (Beginning::Foreign, cold));
    let smaller = with(|frames| frames.bytes = bytes_of(1) as u64);
    assert_eq!(began(&filled(), smaller), (Beginning::Resized, cold));
    let more_slots = Shape { slots: 3, ..shape(2) };
    assert_eq!(began(&filled(), more_slots), (Beginning::Resized, cold));
    let world = filled();
    for layout in [0u32, 2] {
        write_version(&world, 2048, 128, layout);
        let found = began(&world, shape(2));
        assert_eq!(found, (Beginning::OtherLayout, Some(Miss::OtherLayout)));
    }
    // A life without frames may have changed what the frames stand for.
    let world = filled();
    let without = Shape { frames: None, ..shape(2) };
    let arena = Arena::open_shaped(&world.env(), Path::new(PATH), NODE, without).unwrap();
    assert!(arena.frames().is_none());
    assert_eq!(began(&world, shape(2)), (Beginning::New, cold));
    // Less than one set: no frames at all.
    let nothing = with(|frames| frames.bytes = bytes_of(1) as u64 - 1);
    let arena = Arena::open_shaped(&world.env(), Path::new(PATH), NODE, nothing).unwrap();
    assert!(arena.frames().is_none());
}

/// Gives a header another version and a sound checksum.
fn write_version(world: &World, at: usize, length: usize, version: u32) {
    let region = world.env().memory().map(Path::new(PATH), 4096).unwrap();
    // SAFETY: inside the page; no other code has it mapped now.
    let header = unsafe { std::slice::from_raw_parts_mut(region.base().add(at), length) };
    header[8..12].copy_from_slice(&version.to_le_bytes());
    let crc = rekindle_base::checksum::crc32c(&header[..length - 4]);
    header[length - 4..].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn segments_of_a_newer_layout_are_refused_and_left_alone() {
    let (world, arena) = bed(1);
    drop(arena);
    write_version(&world, 0, 64, 2);
    let open = || Arena::open_shaped(&world.env(), Path::new(PATH), NODE, shape(1));
    let refused = open().err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
    assert!(refused.to_string().contains("upgrade rekindle"), "{refused}");
    write_version(&world, 0, 64, 1);
    assert!(open().unwrap().was_kept(), "nothing was touched");
}

#[test]
fn the_golden_arena_of_the_first_binaries_keeps_its_segments() {
    let world = world_of(include_bytes!("../../golden/arena-v1.bin"));
    for (turn, began) in [Beginning::New, Beginning::Kept].into_iter().enumerate() {
        let shape = Shape { slots: 3, ..shape(1) };
        let arena = Arena::open_shaped(&world.env(), Path::new(PATH), NODE, shape).unwrap();
        assert!(arena.was_kept());
        let slots = arena.take_slots();
        let certified: Vec<_> = slots.iter().map(|slot| slot.certificate()).collect();
        let lengths = |index: usize| certified[index].map(|found| (found.front, found.back));
        assert_eq!((lengths(0), lengths(1), lengths(2)), (None, Some((128, 64)), Some((64, 512))));
        let frames = arena.frames().unwrap();
        assert_eq!(frames.stats().began, began);
        assert_eq!(get(&frames, &[7; 32]).is_ok(), turn == 1);
        frames.insert(&[7; 32], &[b"x"]);
    }
}

/// Golden image of the frames part: the header page, then the beginning of the part.
const GOLDEN: &[u8] = include_bytes!("../../golden/frames-v1.bin");
const GOLDEN_PART: usize = crate::format::SET_BYTES + 2 * FRAME_BYTES[0];

fn golden_frames(frames: &Frames) -> [(Key, Vec<u8>); 2] {
    let held = [([1; 32], b"a record".to_vec()), ([2; 32], vec![9; 4096])];
    assert!(held.iter().all(|(key, bytes)| frames.insert(key, &[bytes])));
    held
}

#[test]
fn the_golden_frames_are_read() {
    let mut image = GOLDEN[..4096].to_vec();
    image.resize(usize::try_from(FRAMES_AT).unwrap(), 0);
    image.extend_from_slice(&GOLDEN[4096..]);
    let found = inspect::frames(&image).unwrap().unwrap();
    assert_eq!((found.node, found.store, found.sets, found.start), (NODE, STORE, 1, FRAMES_AT));
    let counted = found.count(&GOLDEN[4096..]);
    assert_eq!((counted.frames, counted.damaged, counted.bytes), ([2, 0], 0, 4104));
    let mut damaged = GOLDEN[4096..].to_vec();
    damaged[crate::format::SET_BYTES] ^= 1;
    assert_eq!(found.count(&damaged).damaged, 1);
    let arena = open(&world_of(&image), 1);
    let frames = arena.frames().unwrap();
    let (_world, fresh) = bed(1);
    for (key, bytes) in golden_frames(&fresh.frames().unwrap()) {
        assert_eq!(get(&frames, &key), Ok(bytes));
    }
    for length in (0..2300).chain([4096, 5000]) {
        let _ = inspect::frames(&image[..length]);
        let _ = found.count(&GOLDEN[..length]);
    }
}

/// Writes the golden image anew: only when the part has a new version, under a new name.
#[test]
#[ignore = "writes into the source tree"]
#[expect(clippy::disallowed_methods, reason = "golden images are files of the source tree")]
fn make_the_golden_frames() {
    let (world, arena) = bed(1);
    golden_frames(&arena.frames().unwrap());
    let length = arena.file_length();
    drop(arena);
    let region = world.env().memory().map(Path::new(PATH), length as u64).unwrap();
    // SAFETY: inside the mapping; no other code has it.
    let whole = unsafe { std::slice::from_raw_parts(region.base(), length) };
    let at = usize::try_from(FRAMES_AT).unwrap();
    let image = [&whole[..4096], &whole[at..at + GOLDEN_PART]].concat();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/frames-v1.bin");
    std::fs::write(path, image).unwrap();
}

#[test]
fn the_file_may_be_cut_anywhere() {
    let (world, arena) = bed(1);
    let frames = arena.frames().unwrap();
    assert!((0..8).all(|number| frames.insert(&[number; 32], &[&vec![number; 4000]])));
    let length = arena.file_length();
    drop((frames, arena));
    let region = world.env().memory().map(Path::new(PATH), length as u64).unwrap();
    // SAFETY: inside the mapping; no other code has it.
    let whole = unsafe { std::slice::from_raw_parts(region.base(), length) }.to_vec();
    let at = usize::try_from(FRAMES_AT).unwrap();
    for cut in [1, 64, 2048, 2100, 4096, at, at + 4, at + 300, at + 704, at + 9000, length - 1] {
        let arena = open(&world_of(&whole[..cut]), 1);
        let frames = arena.frames().unwrap();
        for number in 0..8 {
            let found = get(&frames, &[number; 32]);
            assert!(found.is_err() || found == Ok(vec![number; 4000]), "cut at {cut}");
        }
    }
}

#[test]
fn what_its_reader_refuses_is_thrown_away() {
    let (_world, arena) = bed(1);
    let frames = arena.frames().unwrap();
    frames.insert(&[1; 32], &[b"x"]);
    assert_eq!(frames.get(&[1; 32], |_| None::<()>), Err(Miss::Damaged));
    assert_eq!(get(&frames, &[1; 32]), Err(Miss::Cold));
}

#[test]
fn threads_never_see_a_mixture() {
    let (_world, arena) = bed(1);
    let frames = arena.frames().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let frames = frames.clone();
            scope.spawn(move || {
                for turn in 0..2000u32 {
                    let key = [(turn % 20) as u8; 32];
                    let byte = thread ^ turn as u8;
                    // Now small, now large: from one size to the other, too.
                    frames
                        .replace(&key, &[&[key[0]], &vec![byte; 100 + (turn as usize % 3) * 4000]]);
                    let same = |bytes: &[u8]| {
                        bytes[0] == key[0] && bytes[1..].iter().all(|other| *other == bytes[1])
                    };
                    if let Ok(same) = frames.get(&key, |bytes| Some(same(bytes))) {
                        assert!(same);
                    }
                }
            });
        }
    });
    assert!(frames.usage().frames.iter().all(|frames| *frames <= 8));
    assert_eq!(frames.stats().missed(Miss::Damaged), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a map: what is found is always the latest, over restarts too.
    #[test]
    fn it_never_gives_an_old_value(steps in proptest::collection::vec((0u8..6, 0u8..60, 1usize..9000), 1..150)) {
        let (world, mut arena) = bed(2);
        let mut model: HashMap<u8, Vec<u8>> = HashMap::new();
        for (number, (step, key, length)) in steps.into_iter().enumerate() {
            let frames = arena.frames().unwrap();
            let bytes = value(&[key; 32], number as u32, length);
            match step {
                0 | 1 => {
                    frames.replace(&[key; 32], &[&bytes]);
                    model.insert(key, bytes);
                }
                2 => {
                    let kept = model.entry(key).or_insert(bytes);
                    frames.insert(&[key; 32], &[kept]);
                }
                3 => {
                    frames.remove(&[key; 32]);
                    model.remove(&key);
                }
                4 => {
                    drop((frames, arena));
                    world.crash_process();
                    arena = open(&world, 2);
                }
                _ => {
                    if let Ok(found) = get(&frames, &[key; 32]) {
                        prop_assert_eq!(Some(&found), model.get(&key));
                    }
                }
            }
        }
    }
}
