//! The record of how far the open segment was durable: what it tells where the segment itself
//! cannot.

use super::*;
use crate::format::KnownEnd;

const SEGMENT_FILE: &str = "/flash/00000001.seg";
const RECORD_FILE: &str = "/flash/known-end";

/// Commits changes 1 to 6, each by itself. Returns the offsets of the entries, and the segment's
/// file as it was behind each of them.
fn six_commits(world: &World) -> (Vec<u32>, Vec<Vec<u8>>) {
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        let (mut offsets, mut images) = (Vec::new(), Vec::new());
        for serial in 1..=6 {
            let (position, place) = append(&log, volume(1), serial, 600).await.unwrap();
            log.commit(position).await.unwrap();
            offsets.push(place.offset);
            images.push(world.peek(SEGMENT_FILE).unwrap());
        }
        // The record, then the batch that confirms the last one, then the record again.
        env.sleep(Duration::from_secs(4)).await;
        (offsets, images)
    })
}

/// Serials that can be read, and losses, in this life and the next ones.
fn lives(world: &World, what: &str) -> (Vec<u64>, Vec<(u64, Option<Serial>)>) {
    let mut first = None;
    for life in 0..3 {
        let env = world.env();
        let found = world.block_on(async {
            let (log, opened) = open(&env).await;
            let (list, losses) = log.salvage(volume(1)).await.unwrap();
            assert!(life > 0 || opened.damage.is_empty() == losses.is_empty(), "{what}");
            for one in &list {
                check(volume(1), one.serial.0, &one.place).await;
            }
            append(&log, volume(2), life + 1, 600).await.unwrap();
            log.commit(Position(u64::MAX)).await.unwrap();
            // The record is of the new head from now on.
            env.sleep(Duration::from_secs(3)).await;
            let said = losses.iter().map(|loss| (loss.after.0, loss.before)).collect();
            (list.iter().map(|one| one.serial.0).collect::<Vec<_>>(), said)
        });
        world.cut_power();
        assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{what}, life {life}");
    }
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        log.accept_losses().await.unwrap();
        let left = log.unfinished(volume(1)).await.unwrap().len();
        assert_eq!(left, first.as_ref().unwrap().0.len(), "{what}");
    });
    world.cut_power();
    let env = world.env();
    world.block_on(async { assert!(!open(&env).await.0.has_losses(), "{what}") });
    first.unwrap()
}

#[test]
fn an_end_of_zeros_is_a_loss() {
    for kept in 0..6_u64 {
        let world = world(1);
        let (offsets, _) = six_commits(&world);
        world.cut_power();
        let mut image = world.peek(SEGMENT_FILE).unwrap();
        image[offsets[kept as usize] as usize..].fill(0);
        world.plant(SEGMENT_FILE, &image).unwrap();
        let (found, losses) = lives(&world, &format!("{kept} kept"));
        assert_eq!(found, (1..=kept).collect::<Vec<_>>());
        assert_eq!(losses, [(kept, None)], "{kept}");
    }
}

#[test]
fn an_older_copy_of_the_open_segment_is_a_loss() {
    for kept in 1..6_u64 {
        let world = world(1);
        let (_, images) = six_commits(&world);
        world.cut_power();
        world.plant(SEGMENT_FILE, &images[kept as usize - 1]).unwrap();
        let (found, losses) = lives(&world, &format!("{kept} kept"));
        assert_eq!(found, (1..=kept).collect::<Vec<_>>());
        assert_eq!(losses, [(kept, None)], "{kept}");
    }
}

/// Damage that takes the last batch and the empty one that confirms it.
#[test]
fn damage_of_the_last_batch_and_of_what_confirms_it_is_told() {
    // The header of the change, its payload, its certificate; the empty batch lies behind.
    for (at, lost) in [(0, true), (20, true), (300, true), (64 + 640 + 3, false)] {
        let world = world(1);
        let (offsets, _) = six_commits(&world);
        world.cut_power();
        let last = u64::from(offsets[5]);
        let confirming = (last + 64 + 640 + 64).next_multiple_of(512);
        assert!(world.flip_bit(SEGMENT_FILE, last + at));
        assert!(world.flip_bit(SEGMENT_FILE, confirming + 5));
        if at == 300 {
            // A payload is listed, and read as damaged, as that of any other batch: in later lives,
            // too, when the record is of another segment.
            for life in 0..3 {
                let env = world.env();
                world.block_on(async {
                    let (log, _) = open(&env).await;
                    let list = log.unfinished(volume(1)).await.unwrap();
                    assert_eq!(list.len(), 6, "life {life}");
                    let mut bytes = [0; 600];
                    assert!(list[5].place.read(0, &mut bytes).await.is_err(), "life {life}");
                    append(&log, volume(2), life + 1, 600).await.unwrap();
                    log.commit(Position(u64::MAX)).await.unwrap();
                    env.sleep(Duration::from_secs(3)).await;
                });
                world.cut_power();
            }
            continue;
        }
        let (found, losses) = lives(&world, &format!("at {at}"));
        let left = if lost { 5 } else { 6 };
        assert_eq!(found, (1..=left).collect::<Vec<_>>(), "at {at}");
        assert_eq!(losses.len(), usize::from(lost), "at {at}: {losses:?}");
    }
}

#[test]
fn a_busy_log_keeps_its_record_up() {
    let world = world(1);
    let env = world.env();
    let recorded = |world: &World| {
        crate::known_end::newest_of(&world.peek_durable(RECORD_FILE).unwrap()).unwrap()
    };
    let (before, after) = world.block_on(async {
        let (log, _) = open_with(&env, 4, 20).await.unwrap();
        let mut before = None;
        for serial in 1..=400 {
            let (position, _) = append(&log, volume(1), serial, 600).await.unwrap();
            log.commit(position).await.unwrap();
            log.release(volume(1), Serial(serial.saturating_sub(3)));
            env.sleep(Duration::from_millis(10)).await;
            if serial == 200 {
                before = Some(recorded(&world));
            }
        }
        (before.unwrap(), recorded(&world))
    });
    assert!(after.1.segment > before.1.segment && after.0 > before.0, "{before:?} {after:?}");
    // Once a second at most.
    assert!(after.0 <= 6, "{after:?}");
    world.cut_power();
    let env = world.env();
    world.block_on(async {
        let (log, opened) = open_with(&env, 4, 20).await.unwrap();
        assert_eq!(opened.damage, Vec::<String>::new());
        assert_eq!(recovered(&log, volume(1)).await.last(), Some(&400));
    });
}

/// A record that could not be written is tried again, also where nothing else is written.
#[test]
fn a_record_for_which_there_was_no_room_comes_later() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, _) = open(&env).await;
        assert!(log.reserve().await);
        world.set_disk_bytes(0);
        let (position, _) = append(&log, volume(1), 1, 600).await.unwrap();
        log.commit(position).await.unwrap();
        env.sleep(Duration::from_secs(10)).await;
        let early = world.peek(RECORD_FILE).and_then(|file| crate::known_end::newest_of(&file));
        assert_eq!(early, None);
        world.set_disk_bytes(1 << 30);
        env.sleep(Duration::from_secs(3)).await;
        let file = world.peek_durable(RECORD_FILE).unwrap();
        assert!(crate::known_end::newest_of(&file).is_some());
    });
}

/// A record that is damaged, of another node, impossible, or absent says nothing, and costs
/// nothing.
#[test]
fn without_its_record_a_log_is_what_it_was() {
    let six = || {
        let world = world(1);
        six_commits(&world);
        world.cut_power();
        world
    };
    let file = six().peek(RECORD_FILE).unwrap();
    let (number, known) = crate::known_end::newest_of(&file).unwrap();
    let forged = |number, known: KnownEnd| {
        let mut bytes = known.encode(number).to_vec();
        bytes.resize(file.len(), 0);
        bytes
    };
    let longer = KnownEnd { durable: known.durable + 512, changes: 7, ..known };
    let records = [
        vec![],
        vec![0; file.len()],
        vec![255; file.len()],
        forged(number, KnownEnd { node: NodeId([1; 16]), ..longer }),
        forged(number, KnownEnd { durable: u32::MAX - 511, ..longer }),
        forged(number, KnownEnd { changes: u32::MAX, ..longer }),
        // No greater number can follow.
        forged(u64::MAX, longer),
    ];
    for (at, bytes) in records.iter().enumerate() {
        let world = six();
        world.plant(RECORD_FILE, bytes).unwrap();
        let env = world.env();
        world.block_on(async {
            let (log, opened) = open(&env).await;
            assert_eq!(opened.damage, Vec::<String>::new(), "{at}");
            assert_eq!(recovered(&log, volume(1)).await, [1, 2, 3, 4, 5, 6], "{at}");
            append(&log, volume(1), 7, 600).await.unwrap();
            log.commit(Position(u64::MAX)).await.unwrap();
            env.sleep(Duration::from_secs(4)).await;
        });
        let record = world.peek(RECORD_FILE).unwrap();
        let (_, now) = crate::known_end::newest_of(&record).unwrap();
        assert!(now.node == known.node && now.segment > known.segment, "{at}: {now:?}");
    }
}

const GOLDEN: &[u8] = include_bytes!("../../golden/known-end-v1.bin");

#[test]
fn the_golden_record_is_read_and_no_flipped_bit_goes_unseen() {
    let known = KnownEnd {
        node: NODE,
        segment: rekindle_base::SegmentId(7),
        birth: 0x0123_4567_89ab_cdef,
        durable: 4096,
        changes: 9,
    };
    assert_eq!(known.encode(3), *GOLDEN);
    assert_eq!(KnownEnd::decode(GOLDEN), Some((3, known)));
    for bit in 0..GOLDEN.len() * 8 {
        let mut bytes = GOLDEN.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(KnownEnd::decode(&bytes), None, "bit {bit}");
    }
    for length in 0..GOLDEN.len() {
        assert_eq!(KnownEnd::decode(&GOLDEN[..length]), None);
    }
}
