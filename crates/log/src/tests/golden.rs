//! Segments of every version of the format stay readable for ever.

use super::*;
use crate::inspect;

const SEALED: [&[u8]; 5] = [
    include_bytes!("../../golden/segment-v1-sealed.bin"),
    include_bytes!("../../golden/segment-v2-sealed.bin"),
    include_bytes!("../../golden/segment-v3-sealed.bin"),
    include_bytes!("../../golden/segment-v4-sealed.bin"),
    include_bytes!("../../golden/segment-v5-sealed.bin"),
];
const OPEN: [&[u8]; 5] = [
    include_bytes!("../../golden/segment-v1-open.bin"),
    include_bytes!("../../golden/segment-v2-open.bin"),
    include_bytes!("../../golden/segment-v3-open.bin"),
    include_bytes!("../../golden/segment-v4-open.bin"),
    include_bytes!("../../golden/segment-v5-open.bin"),
];
/// A head that was opened ahead and took over.
const ROLLED: [&[u8]; 4] = [
    include_bytes!("../../golden/segment-v2-rolled.bin"),
    include_bytes!("../../golden/segment-v3-rolled.bin"),
    include_bytes!("../../golden/segment-v4-rolled.bin"),
    include_bytes!("../../golden/segment-v5-rolled.bin"),
];
/// An open head with records and groups.
const RECORDS: &[u8] = include_bytes!("../../golden/segment-v5-records.bin");
const SMALL: u32 = 8 << 10;

async fn write_some(env: &Env, serials: u64) -> Log {
    let config = Config { flash_bytes: 8 * u64::from(SMALL), ..config(8) };
    let (log, _) =
        Log::open(env, Arena::volatile_sized(4, SMALL), config, Incarnation(1)).await.unwrap();
    for serial in 1..=serials {
        let (position, _) =
            append(&log, volume(1), serial, serial as usize * 100 - 100).await.unwrap();
        append(&log, volume(2), serial, 0).await.unwrap();
        if serial == 5 {
            log.release(volume(1), Serial(3));
        }
        log.commit(position).await.unwrap();
    }
    log
}

/// Writes a group of three records, a single write, and a group of a trim and a write.
async fn write_groups(env: &Env) -> Log {
    let log = write_some(env, 0).await;
    let bytes = |serial, length| payload(volume(3), serial, length);
    let (first, second, third) = (bytes(1, 100), bytes(2, 0), bytes(3, 300));
    let record = |serial, kind, payload| groups::record(volume(3), serial, kind, payload);
    let group = [record(1, 7, &first), record(2, 7, &second), record(3, 9, &third)];
    log.append(&groups::joined(&group)).unwrap();
    let (single, last) = (payload(volume(1), 1, 64), payload(volume(2), 2, 200));
    log.append(&[change(volume(1), 1, &single)]).unwrap();
    let group = [change(volume(2), 1, &[]), change(volume(2), 2, &last)];
    let (position, _) = log.append(&groups::joined(&group)).unwrap();
    log.commit(position).await.unwrap();
    log
}

/// Writes the golden images anew: only when the format has a new version, under a new name.
#[test]
#[ignore = "writes into the source tree"]
#[expect(clippy::disallowed_methods, reason = "golden images are files of the source tree")]
fn make_golden_images() {
    let images = [
        ("sealed", 4, true, 1),
        ("open", 4, false, 1),
        ("rolled", 20, false, 2),
        ("records", 0, false, 1),
    ];
    for (name, serials, close, file) in images {
        let name = format!("segment-v5-{name}.bin");
        let world = world(1);
        let env = world.env();
        world.block_on(async {
            let log = match serials {
                0 => write_groups(&env).await,
                _ => write_some(&env, serials).await,
            };
            if close {
                log.close().await.unwrap();
            }
        });
        let bytes = world.peek(format!("/flash/{file:08}.seg")).unwrap();
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name), bytes)
            .unwrap();
    }
}

#[test]
fn golden_segments_are_read() {
    let sealed = SEALED.map(|bytes| (bytes, true));
    for (bytes, sealed) in sealed.into_iter().chain(OPEN.map(|bytes| (bytes, false))) {
        let segment = inspect::segment(bytes).unwrap();
        assert_eq!((segment.node, segment.segment.0, segment.incarnation.0), (NODE, 1, 1));
        assert_eq!((segment.capacity, segment.epoch), (SMALL, 1));
        assert_eq!(segment.digest, [(rekindle_base::SegmentId(1), 1)]);
        assert_eq!(segment.statistics, []);
        // The opening, and four commits of all changes so far.
        assert_eq!(segment.batches, 5);
        assert_eq!(
            segment.sealed.map(|sealed| (sealed.changes, sealed.successor)),
            sealed.then_some((8, None))
        );
        let serials: Vec<_> =
            segment.entries.iter().map(|entry| (entry.volume, entry.serial.0)).collect();
        let expected: Vec<_> =
            (1..=4).flat_map(|serial| [(volume(1), serial), (volume(2), serial)]).collect();
        assert_eq!(serials, expected);
        for entry in &segment.entries {
            assert!(entry.payload_is_whole);
            assert_eq!(entry.position, entry.serial.0 * 512);
            let kind = match (entry.length, entry.serial.0 % 2) {
                (0, 0) => Change::Zero,
                (0, _) => Change::Trim,
                _ => Change::Write,
            };
            assert_eq!(entry.change, kind);
        }
    }
}

#[test]
fn a_golden_head_that_took_over_has_its_statistics() {
    for image in ROLLED {
        let segment = inspect::segment(image).unwrap();
        assert_eq!(
            segment.digest,
            [(rekindle_base::SegmentId(1), 1), (rekindle_base::SegmentId(2), 2)]
        );
        let before = |volume| {
            let first = segment.entries.iter().find(|entry| entry.volume == volume).unwrap();
            (volume, Serial(first.serial.0 - 1))
        };
        let expected = [before(volume(1)), before(volume(2))];
        assert_eq!(segment.statistics, expected);
        assert!(segment.entries.iter().all(|entry| entry.payload_is_whole));
    }
    for image in &ROLLED[1..] {
        assert_eq!(inspect::segment(image).unwrap().marks, [(volume(1), Serial(3))]);
    }
}

#[test]
fn golden_records_and_groups_are_read() {
    let segment = inspect::segment(RECORDS).unwrap();
    let entry = |entry: &inspect::Entry| {
        assert!(entry.payload_is_whole);
        (entry.volume.0[0], entry.serial.0, entry.change, entry.joined, entry.position, entry.span)
    };
    let entries: Vec<_> = segment.entries.iter().map(entry).collect();
    let expected = [
        (3, 1, Change::Record, true, 7, 100),
        (3, 2, Change::Record, true, 7, 0),
        (3, 3, Change::Record, false, 9, 300),
        (1, 1, Change::Write, false, 512, 64),
        (2, 1, Change::Trim, true, 512, 1),
        (2, 2, Change::Write, false, 1024, 200),
    ];
    assert_eq!(entries, expected);
}

#[test]
fn no_flipped_bit_of_a_segment_goes_unseen_or_panics() {
    [OPEN[4], RECORDS].into_iter().for_each(no_flipped_bit_goes_unseen);
}

fn no_flipped_bit_goes_unseen(open: &[u8]) {
    let whole = inspect::segment(open).unwrap();
    for byte in 0..whole.valid_bytes as usize {
        let mut bytes = open.to_vec();
        bytes[byte] ^= 1;
        let Ok(found) = inspect::segment(&bytes) else { continue };
        let fewer = found.valid_bytes < whole.valid_bytes;
        let broken =
            found.entries.iter().any(|entry| !entry.payload_is_whole) || found.digest.is_empty();
        // A bit in padding has no meaning.
        let padding = open[byte] == 0 && !fewer && !broken;
        assert!(fewer || broken || padding, "byte {byte}");
    }
    for length in 0..open.len() {
        let _ = inspect::segment(&open[..length]);
    }
}

/// A newer binary reads the head that an older one has left open, and seals it as the older one
/// would have. Its own changes go into a head of its own version.
#[test]
fn an_open_head_of_an_older_version_is_read_and_sealed_and_never_appended_to() {
    for (image, version) in OPEN.into_iter().zip(1_u8..) {
        let world = world(1);
        let env = world.env();
        let config = || Config { flash_bytes: 8 * u64::from(SMALL), ..config(8) };
        world.block_on(async {
            let folder = Path::new(FOLDER);
            env.disk().create_folder(folder).await.unwrap();
            let path = folder.join("00000001.seg");
            let file = env.disk().open(&path, rekindle_env::Open::Create).await.unwrap();
            file.write_durable(image, 0).await.unwrap();
            env.disk().sync_folder(folder).await.unwrap();
            env.disk().sync_folder(Path::new("/")).await.unwrap();
        });
        for life in 2..5 {
            let env = world.env();
            world.block_on(async {
                let arena = Arena::volatile_sized(4, SMALL);
                let (log, opened) =
                    Log::open(&env, arena, config(), Incarnation(life)).await.unwrap();
                assert_eq!(opened.damage, Vec::<String>::new(), "version {version}");
                for number in [1, 2] {
                    let serials = recovered(&log, volume(number)).await;
                    assert_eq!(serials, [1, 2, 3, 4], "version {version}, life {life}");
                }
                let (position, place) = append(&log, volume(3), life, 100).await.unwrap();
                log.commit(position).await.unwrap();
                assert_eq!(place.segment.header.version, crate::format::VERSION);
                check(volume(3), life, &place).await;
            });
            world.cut_power();
            let old = world.peek("/flash/00000001.seg").unwrap();
            assert_eq!(old[8], version);
            let sealed = inspect::segment(&old).unwrap();
            assert_eq!(sealed.sealed.map(|sealed| sealed.changes), Some(8), "version {version}");
        }
    }
}
