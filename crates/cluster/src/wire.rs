//! The bytes between two nodes of a cluster: total functions of any bytes. Page:
//! docs/format/peer.md.

use crate::limits::{CAPACITY_MAX, HOME_BYTES_MAX, NAME_BYTES_MAX, SEGMENTS_MAX, TEXT_BYTES_MAX};
use crate::machine::choice::Offer;
use rekindle_base::checksum::{crc32c, crc32c_seeded};
use rekindle_base::{Incarnation, Kind, Life, NodeId, SegmentId, StoreId, VolumeId};
use rekindle_log::NewSegment;
use rekindle_log::limits::COPY_BYTES_MAX;

/// Version of the protocol.
pub const VERSION: u16 = 2;
/// Bytes of a frame before its payload.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = 72;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"RKpr";
const OPEN_BYTES: u32 = 36;
const OFFERED_BYTES: u32 = 24;
const HEARS_BYTES: u32 = 24;
const CLIENT_BYTES: u32 = 16;
const SERVED_BYTES: u32 = 32;

/// Numbers of the kinds of frame.
mod kind {
    pub(super) const HELLO: u16 = 1;
    pub(super) const PROOF: u16 = 2;
    pub(super) const HOME: u16 = 3;
    pub(super) const BEGIN: u16 = 4;
    pub(super) const OPEN: u16 = 5;
    pub(super) const COPY: u16 = 6;
    pub(super) const SEAL: u16 = 7;
    pub(super) const KEEP: u16 = 8;
    pub(super) const FREE: u16 = 9;
    pub(super) const PING: u16 = 10;
    pub(super) const BEAT: u16 = 11;
    pub(super) const REST: u16 = 12;
    pub(super) const OFFER: u16 = 13;
    pub(super) const HEARS: u16 = 14;
    pub(super) const DRAIN: u16 = 15;
    pub(super) const SERVE: u16 = 16;
    pub(super) const MOUNT: u16 = 17;
    pub(super) const NFS: u16 = 18;
    pub(super) const DONE: u16 = 128;
    pub(super) const REFUSED: u16 = 129;
    pub(super) const OFFERED: u16 = 130;
    pub(super) const SERVED: u16 = 131;
    pub(super) const UNSERVED: u16 = 132;
}

/// Bytes that no further byte could make a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Garbage {
    #[error("the other end does not speak the protocol of peers")]
    Foreign,
    #[error(
        "the other end speaks version {0} of the protocol of peers, this one {VERSION}: upgrade the older one"
    )]
    OtherVersion(u16),
    #[error("a frame from the other end is damaged")]
    Damaged,
    #[error("a frame from the other end is longer than it may be")]
    TooLong,
    #[error("a frame from the other end is lost, or has come twice")]
    OutOfOrder,
    #[error(
        "the other end asks for something that this version does not know (kind {0}): upgrade the older one"
    )]
    UnknownKind(u16),
}

/// The first bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    kind: u16,
    /// Bytes of the payload.
    pub length: u32,
    payload_crc: u32,
    /// Count of the frames that this end has sent before on the connection.
    pub number: u64,
}

impl Header {
    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header; its length is within the bounds of its kind.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Garbage> {
        if bytes[..4] != MAGIC {
            return Err(Garbage::Foreign);
        }
        let mut fields = Fields(&bytes[4..]);
        let version = fields.u16()?;
        let header = Header {
            kind: fields.u16()?,
            length: fields.u32()?,
            payload_crc: fields.u32()?,
            number: fields.u64()?,
        };
        let zero = fields.u32()?;
        if fields.u32()? != crc32c(&bytes[..28]) {
            return Err(Garbage::Damaged);
        }
        if version != VERSION {
            return Err(Garbage::OtherVersion(version));
        }
        if zero != 0 {
            return Err(Garbage::Damaged);
        }
        let longest = longest(header.kind).ok_or(Garbage::UnknownKind(header.kind))?;
        if header.length > longest { Err(Garbage::TooLong) } else { Ok(header) }
    }
}

/// Most bytes of the payload of a kind of frame; `None`: there is no such kind.
fn longest(kind: u16) -> Option<u32> {
    Some(match kind {
        kind::HELLO => HELLO_BYTES as u32,
        kind::PROOF => PROOF_BYTES as u32,
        kind::HOME => HOME_BYTES_MAX,
        kind::BEGIN | kind::PING | kind::REST | kind::OFFER => 0,
        kind::BEAT | kind::DRAIN => 4,
        kind::HEARS => HEARS_BYTES,
        kind::OFFERED => OFFERED_BYTES,
        kind::OPEN => OPEN_BYTES,
        kind::COPY => 12 + COPY_BYTES_MAX,
        kind::SEAL => 8 + CAPACITY_MAX,
        kind::KEEP => 8 + 8 * SEGMENTS_MAX as u32,
        kind::FREE => 8,
        kind::SERVE | kind::MOUNT | kind::NFS => CLIENT_BYTES + NAME_BYTES_MAX,
        kind::SERVED => SERVED_BYTES,
        kind::UNSERVED => 2 + TEXT_BYTES_MAX,
        kind::DONE => 4,
        kind::REFUSED => TEXT_BYTES_MAX,
        _ => return None,
    })
}

/// The first message of each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The store of the cluster.
    pub store: StoreId,
    /// The life at this end.
    pub life: Life,
    /// Random: makes each proof good for one connection.
    pub nonce: [u8; 32],
}

impl Hello {
    /// The bytes of the hello.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..16].copy_from_slice(&self.store.0);
        bytes[16..32].copy_from_slice(&self.life.node.0);
        bytes[32..40].copy_from_slice(&self.life.incarnation.0.to_le_bytes());
        bytes[40..].copy_from_slice(&self.nonce);
        bytes
    }
}

/// A client of another host, and the volume that it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serve {
    /// The client, for as long as its connection to the other host lasts: a random number.
    pub client: ClientId,
    /// The volume's name, which may be no name.
    pub volume: String,
    pub protocol: Protocol,
}

/// What follows the reply to a [`Serve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The client is one of NBD.
    Nbd,
    /// The client is a mount.
    Fuse,
    /// The client is a machine with NFS clients.
    Nfs,
}

/// A client of another host.
pub type ClientId = [u8; 16];

/// A volume that is served to a client of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    pub volume: VolumeId,
    /// Its size, bytes.
    pub size: u64,
    /// The preferred size of a request, bytes.
    pub block_size: u64,
}

/// The reason why a volume is not served to a client of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    /// `None`: its owner does not run at this host. The caller looks for the owner anew.
    pub kind: Option<Kind>,
    pub reason: String,
}

/// The kinds of a reason by their numbers on the wire, from 1. No number changes its meaning.
const REASONS: [Kind; 11] = [
    Kind::Invalid,
    Kind::NotFound,
    Kind::Exists,
    Kind::Conflict,
    Kind::Fenced,
    Kind::Full,
    Kind::Damaged,
    Kind::Unavailable,
    Kind::Refused,
    Kind::Unsupported,
    Kind::Io,
];

/// What a frame says. [`rekindle_log::Replica`] says what the requests mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    Hello(Hello),
    /// Proves that this end knows the secret.
    Proof([u8; PROOF_BYTES]),
    /// The owner's `node.json`.
    Home(&'a [u8]),
    Begin,
    Open(NewSegment),
    Copy {
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    },
    Seal {
        segment: SegmentId,
        tail: &'a [u8],
    },
    Keep {
        head: SegmentId,
        kept: Vec<SegmentId>,
    },
    Free(SegmentId),
    /// A sign of life.
    Ping,
    /// Asks for a lease of so many milliseconds.
    Beat(u32),
    /// The life stops in good order.
    Rest,
    /// Asks what this node has to offer as a holder.
    Offer,
    /// Asks whether this node hears a life whose copies it has.
    Hears(Life),
    /// Asks that the node takes no further copies (1), or takes some again (0).
    Drain(u32),
    /// The reply to a request that was carried out; of an open, the count of bytes that are there.
    Done(u32),
    /// The reply to an offer.
    Offered(Offer),
    /// Asks for a session of a volume: what follows its reply is the client's protocol.
    Serve(Serve),
    /// The reply to such a request that is carried out.
    Served(Served),
    /// The reply to such a request that is not.
    Unserved(Unserved),
    /// The reply to any other request.
    Refused(String),
}

impl<'a> Message<'a> {
    /// Appends the frame of this number to `buffer`.
    pub fn encode(&self, number: u64, buffer: &mut Vec<u8>) {
        let start = buffer.len();
        buffer.resize(start + HEADER_BYTES, 0);
        let kind = self.payload(buffer);
        let payload = &buffer[start + HEADER_BYTES..];
        let length = u32::try_from(payload.len()).expect("its sender keeps the bounds");
        let header = Header { kind, length, payload_crc: crc32c_seeded(number, payload), number };
        buffer[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    }

    /// Appends the payload, and returns the kind.
    fn payload(&self, buffer: &mut Vec<u8>) -> u16 {
        let mut put = |bytes: &[u8]| buffer.extend_from_slice(bytes);
        match self {
            Message::Hello(hello) => {
                put(&hello.encode());
                kind::HELLO
            }
            Message::Proof(proof) => {
                put(proof);
                kind::PROOF
            }
            Message::Home(home) => {
                put(home);
                kind::HOME
            }
            Message::Begin => kind::BEGIN,
            Message::Open(new) => {
                put(&new.segment.0.to_le_bytes());
                put(&new.incarnation.0.to_le_bytes());
                put(&new.birth.to_le_bytes());
                put(&new.epoch.to_le_bytes());
                put(&new.capacity.to_le_bytes());
                kind::OPEN
            }
            Message::Copy { segment, offset, bytes } => {
                put(&segment.0.to_le_bytes());
                put(&offset.to_le_bytes());
                put(bytes);
                kind::COPY
            }
            Message::Seal { segment, tail } => {
                put(&segment.0.to_le_bytes());
                put(tail);
                kind::SEAL
            }
            Message::Keep { head, kept } => {
                put(&head.0.to_le_bytes());
                kept.iter().for_each(|segment| put(&segment.0.to_le_bytes()));
                kind::KEEP
            }
            Message::Free(segment) => {
                put(&segment.0.to_le_bytes());
                kind::FREE
            }
            Message::Ping => kind::PING,
            Message::Beat(lease) => {
                put(&lease.to_le_bytes());
                kind::BEAT
            }
            Message::Rest => kind::REST,
            Message::Offer => kind::OFFER,
            Message::Hears(life) => {
                put(&life.node.0);
                put(&life.incarnation.0.to_le_bytes());
                kind::HEARS
            }
            Message::Drain(on) => {
                put(&on.to_le_bytes());
                kind::DRAIN
            }
            Message::Offered(Offer { free, taken, speed }) => {
                [free, taken, speed].iter().for_each(|number| put(&number.to_le_bytes()));
                kind::OFFERED
            }
            Message::Serve(Serve { client, volume, protocol }) => {
                put(client);
                put(volume.as_bytes());
                match protocol {
                    Protocol::Nbd => kind::SERVE,
                    Protocol::Fuse => kind::MOUNT,
                    Protocol::Nfs => kind::NFS,
                }
            }
            Message::Served(Served { volume, size, block_size }) => {
                put(&volume.0);
                [size, block_size].iter().for_each(|number| put(&number.to_le_bytes()));
                kind::SERVED
            }
            Message::Unserved(Unserved { kind, reason }) => {
                let at = kind.map(|kind| REASONS.iter().position(|one| *one == kind));
                let number = at.map_or(0, |at| at.map_or(u16::MAX, |at| at as u16 + 1));
                put(&number.to_le_bytes());
                put(plain(reason).as_bytes());
                kind::UNSERVED
            }
            Message::Done(has) => {
                put(&has.to_le_bytes());
                kind::DONE
            }
            Message::Refused(text) => {
                put(plain(text).as_bytes());
                kind::REFUSED
            }
        }
    }

    /// Reads the payload of a frame.
    pub fn decode(header: &Header, payload: &'a [u8]) -> Result<Message<'a>, Garbage> {
        if crc32c_seeded(header.number, payload) != header.payload_crc {
            return Err(Garbage::Damaged);
        }
        let mut fields = Fields(payload);
        let message = match header.kind {
            kind::HELLO => Message::Hello(Hello {
                store: StoreId(fields.array()?),
                life: Life {
                    node: NodeId(fields.array()?),
                    incarnation: Incarnation(fields.u64()?),
                },
                nonce: fields.array()?,
            }),
            kind::PROOF => Message::Proof(fields.array()?),
            kind::HOME => Message::Home(fields.rest()),
            kind::BEGIN => Message::Begin,
            kind::OPEN => Message::Open(NewSegment {
                segment: SegmentId(fields.u64()?),
                incarnation: Incarnation(fields.u64()?),
                birth: fields.u64()?,
                epoch: fields.u64()?,
                capacity: fields.u32()?,
            }),
            kind::COPY => Message::Copy {
                segment: SegmentId(fields.u64()?),
                offset: fields.u32()?,
                bytes: fields.rest(),
            },
            kind::SEAL => Message::Seal { segment: SegmentId(fields.u64()?), tail: fields.rest() },
            kind::KEEP => {
                let head = SegmentId(fields.u64()?);
                let mut kept = Vec::with_capacity(fields.0.len() / 8);
                while !fields.0.is_empty() {
                    kept.push(SegmentId(fields.u64()?));
                }
                Message::Keep { head, kept }
            }
            kind::FREE => Message::Free(SegmentId(fields.u64()?)),
            kind::PING => Message::Ping,
            kind::BEAT => Message::Beat(fields.u32()?),
            kind::REST => Message::Rest,
            kind::OFFER => Message::Offer,
            kind::HEARS => Message::Hears(Life {
                node: NodeId(fields.array()?),
                incarnation: Incarnation(fields.u64()?),
            }),
            kind::DRAIN => Message::Drain(fields.u32()?),
            kind::OFFERED => Message::Offered(Offer {
                free: fields.u64()?,
                taken: fields.u64()?,
                speed: fields.u64()?,
            }),
            kind::DONE => Message::Done(fields.u32()?),
            kind::SERVE | kind::MOUNT | kind::NFS => {
                let client = fields.array()?;
                let volume = std::str::from_utf8(fields.rest()).map_err(|_| Garbage::Damaged)?;
                let protocol = match header.kind {
                    kind::MOUNT => Protocol::Fuse,
                    kind::NFS => Protocol::Nfs,
                    _ => Protocol::Nbd,
                };
                Message::Serve(Serve { client, volume: volume.to_owned(), protocol })
            }
            kind::SERVED => Message::Served(Served {
                volume: VolumeId(fields.array()?),
                size: fields.u64()?,
                block_size: fields.u64()?,
            }),
            kind::UNSERVED => {
                let number = usize::from(fields.u16()?);
                // A newer version may have more kinds.
                let kind = number.checked_sub(1);
                let kind = kind.map(|at| REASONS.get(at).copied().unwrap_or(Kind::Io));
                Message::Unserved(Unserved { kind, reason: fields.text()? })
            }
            kind::REFUSED => Message::Refused(fields.text()?),
            _ => return Err(Garbage::Damaged),
        };
        if fields.0.is_empty() { Ok(message) } else { Err(Garbage::Damaged) }
    }
}

/// A text without control characters, which a terminal would obey, and not longer than it may be.
fn plain(text: &str) -> String {
    let mut plain = text.replace(char::is_control, "?");
    plain.truncate(plain.floor_char_boundary(TEXT_BYTES_MAX as usize));
    plain
}

/// Bytes that are read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Garbage::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Garbage> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Garbage> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Garbage> {
        self.array().map(u64::from_le_bytes)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The rest, which is a text without control characters.
    fn text(&mut self) -> Result<String, Garbage> {
        let text = std::str::from_utf8(self.rest()).map_err(|_| Garbage::Damaged)?;
        if text == plain(text) { Ok(text.to_owned()) } else { Err(Garbage::Damaged) }
    }
}
