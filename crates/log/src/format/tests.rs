//! Each record survives its bytes, and the decoders read any bytes without panic.

use super::*;
use crate::Change;
use proptest::prelude::*;
use rekindle_base::{Generation, Incarnation, NodeId, SegmentId, Serial, VolumeId};

const SEGMENT: SegmentId = SegmentId(5);

fn header() -> SegmentHeader {
    SegmentHeader {
        class: 0,
        node: NodeId([3; 16]),
        segment: SEGMENT,
        epoch: 1,
        incarnation: Incarnation(4),
        birth: 77,
        capacity: 8 << 20,
        version: VERSION,
        sector: 4096,
    }
}

fn foot() -> Foot {
    let successor = Some(SegmentId(6));
    Foot {
        segment: SEGMENT,
        birth: 77,
        successor,
        front: 1024,
        changes: 9,
        table: 1024,
        table_crc: 0xdead_beef,
    }
}

fn entry() -> EntryHeader {
    EntryHeader {
        kind: Kind::Change(Change::Write),
        joined: false,
        offset: 128,
        length: 4096,
        payload_crc: 1,
        volume: VolumeId([8; 16]),
        serial: Serial(1 << 40),
        position: 1 << 50,
        span: 4096,
        generation: Generation(3),
    }
}

#[test]
fn a_segment_header_survives_its_bytes_and_no_flipped_bit_goes_unseen() {
    assert_eq!(SegmentHeader::decode(&header().encode()), Ok(header()));
    for bit in 0..HEADER_BYTES as usize * 8 {
        let mut bytes = header().encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = SegmentHeader::decode(&bytes);
        assert!(
            matches!(found, Err(BadHeader::Damaged | BadHeader::NotASegment)),
            "bit {bit}: {found:?}"
        );
    }
}

#[test]
fn a_newer_version_is_told_from_damage() {
    let mut bytes = header().encode();
    bytes[8] = u8::try_from(VERSION + 1).unwrap();
    let crc = rekindle_base::checksum::crc32c(&bytes[..124]);
    bytes[124..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(SegmentHeader::decode(&bytes), Err(BadHeader::Newer(VERSION + 1)));
}

#[test]
fn an_entry_is_valid_in_its_own_segment_only() {
    let key = header().key();
    let bytes = entry().encode(key);
    assert_eq!(EntryHeader::decode(&bytes, key), Ok(entry()));
    for other in [78, 77 ^ 1 << 63] {
        let other = SegmentHeader { birth: other, ..header() };
        assert!(EntryHeader::decode(&bytes, other.key()).is_err(), "an earlier life of the file");
    }
    for bit in 0..ENTRY_BYTES as usize * 8 {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(EntryHeader::decode(&bytes, key).is_err(), "bit {bit}");
    }
}

#[test]
fn only_a_change_can_be_joined() {
    let key = header().key();
    let kinds = [Kind::Digest, Kind::Statistics, Kind::Certificate, Kind::Marks, Kind::Release];
    for kind in kinds {
        let bytes = EntryHeader { kind, joined: true, ..entry() }.encode(key);
        assert!(EntryHeader::decode(&bytes, key).is_err(), "{kind:?}");
    }
    for change in [Change::Write, Change::Zero, Change::Trim, Change::Record] {
        let joined = EntryHeader { kind: Kind::Change(change), joined: true, ..entry() };
        assert_eq!(EntryHeader::decode(&joined.encode(key), key), Ok(joined));
    }
}

#[test]
fn the_right_checksum_alone_makes_no_entry() {
    let key = SegmentHeader { birth: 0x1234_5678_0000_004d, ..header() }.key();
    let plain = 128_u32.to_le_bytes();
    let mut bytes = entry().encode(key);
    assert_ne!(bytes[4..8], plain, "the offset is not what anybody would write");
    // A forged entry: its maker has met the checksum by chance.
    bytes[4..8].copy_from_slice(&plain);
    let crc = key.checksum(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    assert_ne!(EntryHeader::decode(&bytes, key).unwrap().offset, 128);
}

#[test]
fn what_older_binaries_have_written_is_valid_by_the_number() {
    for version in 1..4 {
        let old = SegmentHeader { version, ..header() };
        let bytes = entry().encode(old.key());
        assert_eq!(bytes[4..8], 128_u32.to_le_bytes());
        let crc = rekindle_base::checksum::crc32c_seeded(SEGMENT.0, &bytes[4..]);
        assert_eq!(bytes[..4], crc.to_le_bytes());
        assert!(EntryHeader::decode(&bytes, header().key()).is_err());
    }
}

#[test]
fn a_foot_is_valid_under_its_own_segment_only() {
    let bytes = foot().encode();
    assert_eq!(Foot::decode(&bytes, SEGMENT, 77, 8 << 20), Some(foot()));
    assert_eq!(Foot::decode(&bytes, SEGMENT, 78, 8 << 20), None, "an earlier life of the file");
    assert_eq!(Foot::decode(&bytes, SegmentId(6), 77, 8 << 20), None);
    assert_eq!(Foot::decode(&bytes, SEGMENT, 77, 2048), None, "lengths that do not fit");
    assert_eq!(Foot::decode(&bytes[..511], SEGMENT, 77, 8 << 20), None);
    for bit in 0..FOOT_BYTES as usize * 8 {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Foot::decode(&bytes, SEGMENT, 77, 8 << 20), None, "bit {bit}");
    }
}

#[test]
fn digest_and_statistics_survive_their_bytes() {
    let named: Vec<_> = (1..9)
        .map(|id| Named {
            segment: SegmentId(id * 2),
            file: 3,
            lost: if id == 4 { Lost::Uncounted } else { Lost::Nothing },
            who: (id != 5).then_some(Who { incarnation: Incarnation(id), birth: 9 }),
        })
        .collect();
    assert_eq!(decode_digest(&encode_digest(&named), VERSION), Ok(named.clone()));
    assert!(decode_digest(&[], VERSION).is_err());
    assert!(decode_digest(&[0; 17], 2).is_err());
    let twice = [encode_digest(&named), encode_digest(&named)].concat();
    assert!(decode_digest(&twice, VERSION).is_err(), "not ascending");
    let volumes: Vec<_> = (1..5).map(|n| (VolumeId([n; 16]), Serial(n.into()))).collect();
    assert_eq!(decode_statistics(&encode_statistics(&volumes)), Ok(volumes));
    assert!(decode_statistics(&[0; 25]).is_err());
    let mark = Mark { serial: Serial(7), segment: SEGMENT, offset: 640 };
    let marks: Vec<_> = (1..5).map(|n| (VolumeId([n; 16]), mark)).collect();
    assert_eq!(decode_marks(&encode_marks(&marks)), Ok(marks));
    assert!(decode_marks(&[0; 41]).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..700), id: u64, birth: u64) {
        let key = SegmentHeader { birth, ..header() }.key();
        let _ = SegmentHeader::decode(&bytes);
        let _ = EntryHeader::decode(&bytes, key);
        let _ = EntryHeader::decode_verified(&bytes, key);
        let _ = Foot::decode(&bytes, SegmentId(id), 0, 1 << 20);
        let _ = decode_digest(&bytes, 2);
        let _ = decode_digest(&bytes, 3);
        let _ = decode_marks(&bytes);
        let _ = decode_statistics(&bytes);
        let _ = crate::inspect::segment(&bytes);
    }

    #[test]
    fn an_entry_survives_its_bytes(
        length in 0u32..1 << 24, position: u64, span: u64, serial: u64, generation: u64, birth: u64,
        joined: bool, change in 0usize..4,
    ) {
        let key = SegmentHeader { birth, ..header() }.key();
        let change = [Change::Write, Change::Zero, Change::Trim, Change::Record][change];
        let entry = EntryHeader {
            kind: Kind::Change(change), joined, length, position, span, serial: Serial(serial), generation: Generation(generation), ..entry()
        };
        prop_assert_eq!(EntryHeader::decode(&entry.encode(key), key), Ok(entry));
    }
}
