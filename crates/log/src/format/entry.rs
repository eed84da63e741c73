//! Page: docs/format/segment.md.
//!
//! The header of an entry, and at the same time its descriptor in the table at the segment's other
//! end.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | CRC-32C of bytes 4..64, seeded with the birth (before version 4: the segment id) |
//! | 4 | 4 | offset in the segment, XORed with the birth's upper half (plain before version 4) |
//! | 8 | 3 | payload length |
//! | 11 | 1 | kind, see below; bit 7: joined |
//! | 12 | 4 | CRC-32C of the payload (certificate: of the newest descriptors, seeded as above) |
//! | 16 | 16 | volume |
//! | 32 | 8 | serial (certificate: descriptors in the segment so far) |
//! | 40 | 8 | position in the volume (record: its kind; certificate: valid bytes with itself) |
//! | 48 | 8 | span (statistics: 1 = not all volumes; certificate: descriptors its CRC covers) |
//! | 56 | 8 | generation |
//!
//! Kinds: 1 digest, 2 statistics, 3 certificate, 4 marks, 5 release, 16 write, 17 zero, 18 trim,
//! 19 record (since version 5; its span is the payload length).
//!
//! Joined (since version 5, changes only): the next change of the segment is of the same volume and
//! the same group. A group counts as a whole or not at all.
//!
//! The payload follows, padded with zeros to 64 bytes. Behind a certificate comes padding to the
//! sector of the segment's header (512 bytes before version 3).

use super::Key;
use crate::Change;
use rekindle_base::{Generation, Serial, VolumeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of an entry's header.
pub(crate) const ENTRY_BYTES: u32 = 64;
/// The bit of the kind byte that marks a change as joined.
const JOINED: u8 = 0x80;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The segments that make up the log. In every head, once, first.
    Digest,
    /// The volumes that have changes in the log. In every head with changes, once.
    Statistics,
    /// Everything before it is valid.
    Certificate,
    /// The low-water marks of the head before. They follow the statistics.
    Marks,
    /// A release: changes of the volume up to the serial, before this point of the log, are not
    /// needed any more.
    Release,
    /// A change of a volume.
    Change(Change),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct Bytes {
    crc: U32,
    offset: U32,
    length: [u8; 3],
    kind: u8,
    payload_crc: U32,
    volume: [u8; 16],
    serial: U64,
    position: U64,
    span: U64,
    generation: U64,
}

/// An entry without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryHeader {
    pub(crate) kind: Kind,
    /// Whether the next change of the volume belongs to the same group.
    pub(crate) joined: bool,
    /// Offset of the entry in its segment.
    pub(crate) offset: u32,
    /// Payload bytes, without padding.
    pub(crate) length: u32,
    pub(crate) payload_crc: u32,
    pub(crate) volume: VolumeId,
    pub(crate) serial: Serial,
    pub(crate) position: u64,
    pub(crate) span: u64,
    pub(crate) generation: Generation,
}

/// Payload bytes with their padding.
pub(crate) fn padded(length: u32) -> u32 {
    length.next_multiple_of(crate::limits::GRAIN_BYTES)
}

impl EntryHeader {
    /// A header of `kind` with everything else zero.
    pub(crate) fn plain(kind: Kind, offset: u32) -> EntryHeader {
        EntryHeader {
            kind,
            joined: false,
            offset,
            length: 0,
            payload_crc: 0,
            volume: VolumeId::default(),
            serial: Serial(0),
            position: 0,
            span: 0,
            generation: Generation(0),
        }
    }

    /// The certificate at `offset` of a batch with the descriptors in `table`. `listed`: the
    /// changes and releases in the segment so far.
    pub(crate) fn certificate(key: Key, offset: u32, table: &[u8], listed: u32) -> EntryHeader {
        EntryHeader {
            payload_crc: key.checksum(table),
            serial: Serial(listed.into()),
            position: u64::from(offset + ENTRY_BYTES),
            span: table.len() as u64 / u64::from(ENTRY_BYTES),
            ..EntryHeader::plain(Kind::Certificate, offset)
        }
    }

    /// The offset of the payload in the segment.
    pub(crate) fn payload_start(&self) -> u32 {
        self.offset + ENTRY_BYTES
    }

    /// The offset of the next entry, padding to a sector apart.
    pub(crate) fn end(&self) -> u32 {
        self.payload_start() + padded(self.length)
    }

    pub(crate) fn encode(&self, key: Key) -> [u8; ENTRY_BYTES as usize] {
        let [a, b, c, high] = self.length.to_le_bytes();
        assert_eq!(high, 0, "a payload is below 16 MiB");
        let mut bytes = Bytes {
            crc: U32::new(0),
            offset: U32::new(key.masked(self.offset)),
            length: [a, b, c],
            kind: self.kind.code() | if self.joined { JOINED } else { 0 },
            payload_crc: U32::new(self.payload_crc),
            volume: self.volume.0,
            serial: U64::new(self.serial.0),
            position: U64::new(self.position),
            span: U64::new(self.span),
            generation: U64::new(self.generation.0),
        };
        bytes.crc = U32::new(key.checksum(&bytes.as_bytes()[4..]));
        zerocopy::transmute!(bytes)
    }

    /// Decodes the header, if these bytes are one of the segment with this key.
    pub(crate) fn decode(bytes: &[u8], key: Key) -> Result<EntryHeader, &'static str> {
        let (header, _) =
            Bytes::ref_from_prefix(bytes).map_err(|_| "the segment ends inside an entry")?;
        if header.crc.get() != key.checksum(&header.as_bytes()[4..]) {
            return Err("no entry of this segment: its checksum does not match");
        }
        EntryHeader::parse(header, key)
    }

    /// As [`EntryHeader::decode`], for descriptors whose table has been verified as a whole.
    pub(crate) fn decode_verified(bytes: &[u8], key: Key) -> Result<EntryHeader, &'static str> {
        let (header, _) =
            Bytes::ref_from_prefix(bytes).map_err(|_| "the segment ends inside a descriptor")?;
        EntryHeader::parse(header, key)
    }

    fn parse(header: &Bytes, key: Key) -> Result<EntryHeader, &'static str> {
        let [a, b, c] = header.length;
        let joined = header.kind & JOINED != 0;
        let kind = Kind::from_code(header.kind & !JOINED);
        // Only changes make groups.
        let kind = kind.filter(|kind| !joined || matches!(kind, Kind::Change(_)));
        Ok(EntryHeader {
            kind: kind.ok_or("an entry of an unknown kind")?,
            joined,
            offset: key.masked(header.offset.get()),
            length: u32::from_le_bytes([a, b, c, 0]),
            payload_crc: header.payload_crc.get(),
            volume: VolumeId(header.volume),
            serial: Serial(header.serial.get()),
            position: header.position.get(),
            span: header.span.get(),
            generation: Generation(header.generation.get()),
        })
    }
}

impl Kind {
    /// Whether such an entry has a descriptor in the table.
    pub(crate) fn is_listed(self) -> bool {
        matches!(self, Kind::Change(_) | Kind::Release)
    }

    fn code(self) -> u8 {
        match self {
            Kind::Digest => 1,
            Kind::Statistics => 2,
            Kind::Certificate => 3,
            Kind::Marks => 4,
            Kind::Release => 5,
            Kind::Change(Change::Write) => 16,
            Kind::Change(Change::Zero) => 17,
            Kind::Change(Change::Trim) => 18,
            Kind::Change(Change::Record) => 19,
        }
    }

    fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Digest,
            2 => Kind::Statistics,
            3 => Kind::Certificate,
            4 => Kind::Marks,
            5 => Kind::Release,
            16 => Kind::Change(Change::Write),
            17 => Kind::Change(Change::Zero),
            18 => Kind::Change(Change::Trim),
            19 => Kind::Change(Change::Record),
            _ => return None,
        })
    }
}
