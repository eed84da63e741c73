//! Tests of the arena through its public face: published bytes outlive the process, all of them or
//! none.

use crate::{Arena, Began, Label, Slot, SlotContent, inspect, limits};
use rekindle_base::{NodeId, SegmentId};
use rekindle_env::sim::{Faults, World};
use std::path::Path;

const NODE: NodeId = NodeId([5; 16]);
const PATH: &str = "/memory/warm";
const SLOT: u32 = 16 << 10;

fn open(world: &World, node: NodeId, slots: usize) -> Arena {
    Arena::open_sized(&world.env(), Path::new(PATH), node, slots, SLOT).unwrap()
}

fn label(segment: u64) -> Label {
    Label { segment: SegmentId(segment), epoch: 1, file: 3 }
}

fn only(arena: &Arena, index: usize) -> Slot {
    arena.take_slots().into_iter().nth(index).unwrap()
}

#[test]
fn what_is_published_outlives_the_process_and_nothing_else_does() {
    let world = World::new(1, Faults::none());
    let arena = open(&world, NODE, 3);
    assert!(arena.outlives_process() && !arena.was_kept());
    let mut writer = only(&arena, 1).begin(label(9));
    writer.push_front(&[1; 128]);
    writer.push_back(&[2; 64]);
    writer.push_back(&[3; 64]);
    writer.publish();
    writer.memory().note_durable(64);
    writer.push_front(&[4; 64]);
    writer.push_back(&[5; 64]);
    drop(writer);
    drop(arena);
    world.crash_process();

    let arena = open(&world, NODE, 3);
    assert!(arena.was_kept());
    let slots = arena.take_slots();
    assert!(arena.take_slots().is_empty(), "once only");
    assert!(slots[0].certificate().is_none() && slots[2].certificate().is_none());
    let certificate = slots[1].certificate().unwrap();
    assert_eq!((certificate.label, certificate.front, certificate.back), (label(9), 128, 128));
    assert_eq!((certificate.foot, certificate.durable), (false, 64));
    let mut writer = slots.into_iter().nth(1).unwrap().resume().ok().unwrap();
    let memory = writer.memory();
    assert_eq!(memory.front(0, 128), Some(&[1; 128][..]));
    assert_eq!(memory.front(0, 129), None);
    assert_eq!(memory.back(), [[3; 64], [2; 64]].concat());
    assert_eq!(memory.tail(), None);
    writer.push_front(&[6; 32]);
    writer.pad_front(64);
    writer.pad_back(512);
    drop(memory);
    let memory = writer.finish(&[7; 512]);
    assert_eq!(memory.front(128, 192).unwrap(), [[6; 32], [0; 32]].concat());
    assert_eq!(memory.tail().unwrap().len(), 1024);
    assert_eq!(memory.tail().unwrap()[..384], [0; 384]);
    assert_eq!(memory.tail().unwrap()[512..], [7; 512]);
    let slot = memory.into_slot().ok().unwrap();
    assert!(slot.certificate().unwrap().foot);
    assert!(slot.resume().is_err(), "a finished segment takes no more");
}

#[test]
fn a_slot_comes_back_when_nobody_holds_it() {
    let arena = Arena::volatile_sized(2, SLOT);
    assert!(!arena.outlives_process());
    let mut writer = only(&arena, 0).begin(label(1));
    writer.push_front(&[1; 64]);
    writer.publish();
    let memory = writer.memory();
    let memory = memory.into_slot().err().expect("the writer holds it");
    drop(writer);
    let other = memory.clone();
    let memory = memory.into_slot().err().expect("a reader holds it");
    drop(other);
    let slot = memory.into_slot().ok().unwrap();
    let mut writer = slot.begin(label(2));
    assert_eq!(writer.memory().front_length(), 0, "nothing of the earlier life is seen");
    assert_eq!(writer.room(), SLOT - limits::FOOT_BYTES);
    writer.push_front(&vec![0; writer.room() as usize]);
    assert_eq!(writer.room(), 0);
}

#[test]
#[should_panic(expected = "do not fit")]
fn more_than_fits_is_refused() {
    let arena = Arena::volatile_sized(1, SLOT);
    let mut writer = only(&arena, 0).begin(label(1));
    writer.push_back(&vec![0; SLOT as usize]);
}

/// Makes an arena with one used slot, left by a process that is gone, and gives its salt.
fn used(world: &World) -> u64 {
    let arena = open(world, NODE, 2);
    let mut writer = only(&arena, 0).begin(label(1));
    writer.push_front(&[1; 64]);
    writer.publish();
    let salt = arena.salt();
    assert_ne!(salt, 0);
    drop((writer, arena));
    world.crash_process();
    salt
}

#[test]
fn a_flipped_bit_of_the_header_costs_nothing_and_is_said() {
    for (offset, copy) in (0..64).flat_map(|offset| [(offset, 0), (offset, 1024)]) {
        let world = World::new(2, Faults::none());
        let salt = used(&world);
        assert!(world.flip_memory_bit(PATH, copy + offset));
        for began in [Began::Mended, Began::Kept] {
            let arena = open(&world, NODE, 2);
            assert_eq!((arena.began(), arena.salt()), (began, salt), "byte {offset}");
            assert!(only(&arena, 0).certificate().is_some());
        }
    }
}

#[test]
fn two_damaged_headers_mean_a_fresh_arena_and_are_said() {
    let world = World::new(2, Faults::none());
    let salt = used(&world);
    assert!(world.flip_memory_bit(PATH, 5) && world.flip_memory_bit(PATH, 1024 + 61));
    let arena = open(&world, NODE, 2);
    assert_eq!(arena.began(), Began::Damaged);
    assert!(!arena.was_kept());
    assert_ne!(arena.salt(), salt, "another arena");
    assert!(arena.take_slots().iter().all(|slot| slot.certificate().is_none()));
}

#[test]
fn what_is_no_arena_is_refused_and_left_alone() {
    let world = World::new(2, Faults::none());
    let photo: Vec<u8> = (0..9000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
    // A disk image whose first page is empty, too.
    let image = [vec![0; 70_000], photo.clone()].concat();
    for precious in [&photo[..], &photo[..20], &image] {
        assert!(world.put_memory(PATH, precious).unwrap());
        let opened = Arena::open_sized(&world.env(), Path::new(PATH), NODE, 2, SLOT);
        let error = opened.err().expect("it is somebody's").to_string();
        assert!(error.contains("no warm memory"), "{error}");
        assert!(world.copy_memory(PATH).unwrap() == precious, "left alone");
    }
    assert!(world.put_memory(PATH, &vec![0; 50_000]).unwrap());
    assert_eq!(open(&world, NODE, 2).began(), Began::New);
}

#[test]
fn an_arena_is_known_by_any_of_its_marks() {
    for kept in [0, 1024, 3072] {
        let world = World::new(2, Faults::none());
        used(&world);
        open(&world, NODE, 2).note_home("/srv/d");
        for mark in [0, 1024, 3072] {
            assert!(mark == kept || world.flip_memory_bit(PATH, mark));
        }
        let began = open(&world, NODE, 2).began();
        assert_eq!(began, if kept == 3072 { Began::Damaged } else { Began::Mended });
    }
}

#[test]
fn an_arena_of_another_node_is_refused_and_left_alone() {
    let world = World::new(2, Faults::none());
    let salt = used(&world);
    let refused = |node, slot| {
        let opened = Arena::open_sized(&world.env(), Path::new(PATH), node, 2, slot);
        opened.err().expect("it is somebody else's").to_string()
    };
    assert!(refused(NodeId([6; 16]), SLOT).contains("belongs to node"));
    assert!(refused(NODE, SLOT * 2).contains("its slots have"));
    let arena = open(&world, NODE, 2);
    assert_eq!((arena.began(), arena.salt()), (Began::Kept, salt));
    assert!(only(&arena, 0).certificate().is_some());
}

#[test]
fn a_forgotten_arena_is_empty_for_the_next_process_too() {
    let world = World::new(2, Faults::none());
    let salt = used(&world);
    open(&world, NODE, 2).forget();
    world.crash_process();
    let arena = open(&world, NODE, 2);
    assert_eq!(arena.salt(), salt);
    assert!(arena.take_slots().iter().all(|slot| slot.content() == SlotContent::Empty));
}

#[test]
fn an_arena_grows_and_never_shrinks() {
    let world = World::new(3, Faults::none());
    let arena = open(&world, NODE, 4);
    let mut writer = only(&arena, 3).begin(label(1));
    writer.push_front(&[1; 64]);
    writer.publish();
    drop((writer, arena));
    for (asked, given) in [(2, 4), (6, 6), (1, 6)] {
        let arena = open(&world, NODE, asked);
        assert_eq!(arena.slots(), given);
        let slot = only(&arena, 3);
        assert_eq!(slot.certificate().map(|certificate| certificate.front), Some(64));
    }
}

#[test]
fn no_flipped_bit_of_a_certificate_makes_another_one() {
    let world = World::new(4, Faults::none());
    let fill = || {
        let arena = open(&world, NODE, 1);
        let mut writer = only(&arena, 0).begin(label(7));
        writer.push_front(&[1; 640]);
        writer.push_back(&[1; 64]);
        writer.publish();
        writer.memory().note_durable(512);
    };
    for offset in 0..64 {
        fill();
        world.flip_memory_bit(PATH, 4096 + offset);
        let arena = open(&world, NODE, 1);
        let found = only(&arena, 0).certificate();
        let same = |durable| Some((label(7), 640, 64, durable));
        let found = found.map(|found| (found.label, found.front, found.back, found.durable));
        assert!(
            found.is_none() || found == same(512) || found == same(0),
            "byte {offset}: {found:?}"
        );
    }
}

const GOLDEN: &[u8] = include_bytes!("../golden/arena-v1.bin");

#[test]
fn the_golden_arena_is_read() {
    let found = inspect::arena(GOLDEN).unwrap();
    assert_eq!((found.node, found.slots, found.slot_bytes), (NODE, 3, SLOT));
    let used: Vec<_> = found
        .used
        .iter()
        .map(|(slot, c)| (*slot, c.label, c.front, c.back, c.foot, c.durable))
        .collect();
    assert_eq!(used, [(1, label(9), 128, 64, false, 64), (2, label(10), 64, 512, true, 0)]);
    for length in 0..GOLDEN.len() {
        let _ = inspect::arena(&GOLDEN[..length]);
    }
}

/// Writes the golden image anew: only when the format has a new version, under a new name.
#[test]
#[ignore = "writes into the source tree"]
#[expect(clippy::disallowed_methods, reason = "golden images are files of the source tree")]
fn make_the_golden_arena() {
    let world = World::new(5, Faults::none());
    let arena = open(&world, NODE, 3);
    let mut slots = arena.take_slots().into_iter().skip(1);
    let mut writer = slots.next().unwrap().begin(label(9));
    writer.push_front(&[1; 128]);
    writer.push_back(&[2; 64]);
    writer.publish();
    writer.memory().note_durable(64);
    let mut writer = slots.next().unwrap().begin(label(10));
    writer.push_front(&[1; 64]);
    writer.pad_front(64);
    writer.push_back(&[2; 64]);
    writer.pad_back(512);
    drop(writer.finish(&[3; 512]));
    let region = world.env().memory().map(Path::new(PATH), 4096 + 4 * 64).unwrap();
    // SAFETY: inside the mapping; no code writes to it any more.
    let bytes = unsafe { std::slice::from_raw_parts(region.base(), 4096 + 4 * 64) };
    std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/arena-v1.bin"), bytes)
        .unwrap();
}

#[test]
fn a_slot_comes_back_with_its_content_when_its_last_holder_is_gone() {
    let arena = Arena::volatile_sized(2, SLOT);
    let mut slots = arena.take_slots().into_iter();
    let mut writer = slots.next().expect("there are two").begin(label(1));
    writer.push_front(&[1; 64]);
    writer.publish();
    // A task that is given up drops a slot that it has not begun yet.
    drop(slots);
    assert_eq!((arena.free_slots(), arena.free_slot().map(|slot| slot.index())), (1, Some(1)));
    assert!(arena.free_slot().is_some_and(|slot| slot.index() == 1), "it was only looked at");
    let reader = writer.memory();
    drop(writer);
    assert!(reader.front(0, 64).is_some());
    assert_eq!(arena.free_slots(), 1, "a reader holds the other");
    drop(reader);
    let freed = arena.free_slot().expect("both are free");
    assert_eq!(freed.certificate().map(|found| found.label.segment), Some(SegmentId(1)));
}
