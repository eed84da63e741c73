//! Golden images of the formats.

use crate::Ending;
use crate::machine::choice::Offer;
use crate::wire::{
    Garbage, HEADER_BYTES, Header, Hello, Message, Protocol, Serve, Served, Unserved,
};
use rekindle_base::checksum::{crc32c, crc32c_seeded};
use rekindle_base::{Incarnation, Kind, Life, NodeId, SegmentId, StoreId, VolumeId};
use rekindle_log::NewSegment;

fn ending() -> Ending {
    Ending { renamed: vec![3, 7, 12], removed: vec![1, 2] }
}

fn messages() -> Vec<(&'static str, Message<'static>)> {
    let life = Life { node: NodeId([9; 16]), incarnation: Incarnation(4) };
    let hello = Hello { store: StoreId([5; 16]), life, nonce: [6; 32] };
    let new = NewSegment {
        segment: SegmentId(17),
        incarnation: Incarnation(4),
        birth: 0x0123_4567_89ab_cdef,
        epoch: 2,
        capacity: 8 << 20,
    };
    let serve = |protocol| Serve { client: [3; 16], volume: "vm1".to_owned(), protocol };
    let served = Served { volume: VolumeId([1; 16]), size: 1 << 30, block_size: 4096 };
    vec![
        ("hello", Message::Hello(hello)),
        ("proof", Message::Proof([8; 32])),
        ("home", Message::Home(b"{}")),
        ("begin", Message::Begin),
        ("open", Message::Open(new)),
        ("copy", Message::Copy { segment: SegmentId(17), offset: 512, bytes: b"bytes" }),
        ("seal", Message::Seal { segment: SegmentId(17), tail: b"tail" }),
        ("keep", Message::Keep { head: SegmentId(17), kept: vec![SegmentId(3), SegmentId(16)] }),
        ("free", Message::Free(SegmentId(3))),
        ("ping", Message::Ping),
        ("beat", Message::Beat(450)),
        ("rest", Message::Rest),
        ("offer", Message::Offer),
        ("hears", Message::Hears(life)),
        ("drain", Message::Drain(1)),
        ("serve", Message::Serve(serve(Protocol::Nbd))),
        ("mount", Message::Serve(serve(Protocol::Fuse))),
        ("nfs", Message::Serve(serve(Protocol::Nfs))),
        ("served", Message::Served(served)),
        (
            "unserved",
            Message::Unserved(Unserved { kind: Some(Kind::Full), reason: "no".to_owned() }),
        ),
        ("offered", Message::Offered(Offer { free: 1 << 40, taken: 77, speed: 123_456_789 })),
        ("done", Message::Done(4096)),
        ("refused", Message::Refused("no room".to_owned())),
    ]
}

/// Reads one frame.
fn decode(frame: &[u8]) -> Result<(Header, Message<'_>), Garbage> {
    let (header, payload) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(Garbage::Damaged)?;
    let header = Header::decode(header)?;
    Ok((header, Message::decode(&header, payload)?))
}

macro_rules! golden {
    ($($name:literal),*) => {
        [$(($name, &include_bytes!(concat!("../../golden/peer-2-", $name, ".bin"))[..])),*]
    };
}

#[test]
fn the_golden_images_are_read_and_written() {
    let golden = include_bytes!("../../golden/ending-1.bin");
    assert_eq!(Ending::decode(golden), Ok(ending()));
    assert_eq!(ending().encode(), golden);
    let images = golden!(
        "hello", "proof", "home", "begin", "open", "copy", "seal", "keep", "free", "ping", "beat",
        "rest", "offer", "hears", "drain", "serve", "mount", "nfs", "served", "unserved",
        "offered", "done", "refused"
    );
    for ((name, message), (of, golden)) in messages().into_iter().zip(images) {
        assert_eq!(name, of);
        if std::env::var("REKINDLE_GOLDEN").as_deref() == Ok("write") {
            let mut written = Vec::new();
            message.encode(11, &mut written);
            #[expect(clippy::disallowed_methods, reason = "a test writes its golden image")]
            std::fs::write(format!("golden/peer-2-{name}.bin"), written).unwrap();
            continue;
        }
        let (header, read) = decode(golden).unwrap();
        assert_eq!((header.number, &read), (11, &message), "{name}");
        let mut written = Vec::new();
        message.encode(11, &mut written);
        assert_eq!(written, golden, "{name}");
    }
}

#[test]
fn a_frame_of_version_1_is_told_by_its_version() {
    let hello = include_bytes!("../../golden/peer-1-hello.bin");
    assert_eq!(decode(hello).unwrap_err(), Garbage::OtherVersion(1));
}

#[test]
fn a_kind_of_a_later_version_is_told_by_its_number_and_a_reason_of_one_is_some_error() {
    let mut frame = Vec::new();
    Message::Ping.encode(11, &mut frame);
    frame[6] = 99;
    let crc = crc32c(&frame[..28]);
    frame[28..32].copy_from_slice(&crc.to_le_bytes());
    let unknown = decode(&frame).unwrap_err();
    assert_eq!(unknown, Garbage::UnknownKind(99));
    assert!(unknown.to_string().contains("upgrade"), "{unknown}");
    let kinds = (0..14u16).map(|number| {
        let mut frame = Vec::new();
        let reason = String::new();
        Message::Unserved(Unserved { kind: None, reason }).encode(11, &mut frame);
        frame[32..34].copy_from_slice(&number.to_le_bytes());
        let crc = crc32c_seeded(11, &frame[32..]);
        frame[12..16].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c(&frame[..28]);
        frame[28..32].copy_from_slice(&crc.to_le_bytes());
        let (_, Message::Unserved(Unserved { kind, .. })) = decode(&frame).unwrap() else {
            panic!("a reason")
        };
        kind.map_or(0, |kind| kind as u16 + 1)
    });
    let kinds: Vec<u16> = kinds.collect();
    // The kinds have their numbers in the order of their declaration, for now.
    assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11]);
}

#[test]
fn no_byte_of_a_frame_or_of_a_record_can_change_unseen() {
    for (name, message) in messages() {
        let mut frame = Vec::new();
        message.encode(11, &mut frame);
        for at in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(decode(&damaged).is_err(), "bit {at} of {name}");
        }
        for length in 0..frame.len() {
            assert!(decode(&frame[..length]).is_err(), "{length} bytes of {name}");
        }
    }
    let record = ending().encode();
    for at in 0..record.len() * 8 {
        let mut damaged = record.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(Ending::decode(&damaged).is_err(), "bit {at}");
    }
    for length in 0..record.len() {
        assert!(Ending::decode(&record[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn a_text_of_the_other_end_has_no_control_characters_and_is_bounded() {
    let text = format!("\x1b[2J{}", "é".repeat(2000));
    let mut frame = Vec::new();
    Message::Refused(text).encode(0, &mut frame);
    let (_, Message::Refused(read)) = decode(&frame).unwrap() else { panic!("a refusal") };
    assert!(read.starts_with("?[2Jé") && read.len() <= 1024, "{read}");
}

/// Makes the golden images: run it with `--ignored`, once a version.
#[test]
#[ignore = "it writes into the source"]
#[expect(clippy::disallowed_methods, reason = "a test writes golden images")]
fn write_the_golden_images() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    std::fs::write(folder.join("ending-1.bin"), ending().encode()).unwrap();
    for (name, message) in messages() {
        let mut frame = Vec::new();
        message.encode(11, &mut frame);
        std::fs::write(folder.join(format!("peer-2-{name}.bin")), frame).unwrap();
    }
}
