//! What two hosts say to one another about the calls of NFS clients: total functions of any bytes.
//! Page: docs/format/nfs.md.

use crate::nfs::limits;
use crate::nfs::permission::Credentials;
use crate::nfs::v4::codec::{Read, Stateid, Write};
use crate::nfs::v4::limits::{OPS_MAX, ROOM_BYTES_MAX};
use crate::nfs::xdr::{Args, Garbage};
use nfs3_types::nfs3::NFS3_FHSIZE;

/// The first bytes that the client's host sends: what this is, and its version.
pub const GREETING: [u8; 8] = *b"RKnf\0\0\0\x01";

const CUT: u32 = 0;
const RECORD: u32 = 1;
const PART: u32 = 2;
const HEARD: u32 = 3;
const AWAY: u32 = 4;

/// Who calls, as the host says that the client came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The address of the client's machine.
    pub host: String,
    /// As whom the client acts.
    pub caller: Credentials,
    /// Whether it may change nothing in the volume.
    pub is_read_only: bool,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask<'a> {
    /// A call of version 3, as the client sent it.
    Record(&'a [u8]),
    Part(Part<'a>),
}

impl Ask<'_> {
    /// The bytes of the call beyond those that each call counts for.
    #[must_use]
    pub fn long_bytes(&self) -> usize {
        let (Ask::Record(bytes) | Ask::Part(Part { ops: bytes, .. })) = self;
        if bytes.len() > limits::SHORT_CALL_BYTES { bytes.len() } else { 0 }
    }
}

/// Operations of a COMPOUND from one on, and the request of the session that they are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part<'a> {
    pub session: [u8; 16],
    pub client: u64,
    /// The client's machine; 0: not known.
    pub machine: u64,
    pub slot: u32,
    pub sequence: u32,
    /// The place of the first operation in the COMPOUND, and the number of all.
    pub at: u32,
    pub count: u32,
    /// Bytes of data that the reply may have.
    pub room: u32,
    pub standing: Standing,
    pub ops: &'a [u8],
}

/// Where a COMPOUND is: handles, of which an empty one is that of the volume's root, and stateids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    pub spot: Option<Vec<u8>>,
    pub saved: Option<Vec<u8>>,
    pub stateid: Option<Stateid>,
    pub saved_stateid: Option<Stateid>,
}

/// What the client's host sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The client of a call has gone.
    Cut,
    Call(Who, Ask<'a>),
    /// The client's host has heard of a client so many milliseconds ago.
    Heard {
        client: u64,
        machine: u64,
        ago: u64,
    },
}

/// What the owner's host sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The volume is not served there any more. What was asked for may be asked for elsewhere.
    Away,
    /// A whole reply of RPC.
    Record(Vec<u8>),
    Part(Told),
}

/// What became of a [`Part`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub status: u32,
    /// The operations that have results.
    pub done: u32,
    pub has_changed: bool,
    pub results: Vec<u8>,
}

/// Begins a frame, whose length is set by [`ended`].
fn begun(number: u64, kind: u32, room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(room + 64);
    bytes.put_u32(0);
    bytes.put_u64(number);
    bytes.put_u32(kind);
    bytes
}

fn ended(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(bytes.len() - 4).expect("frames are bounded");
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn put_some(bytes: &mut Vec<u8>, handle: Option<&Vec<u8>>) {
    bytes.put_flag(handle.is_some());
    handle.into_iter().for_each(|handle| bytes.put_opaque(handle));
}

fn put_stateid(bytes: &mut Vec<u8>, stateid: Option<&Stateid>) {
    bytes.put_flag(stateid.is_some());
    stateid.into_iter().for_each(|stateid| bytes.put_stateid(stateid));
}

fn some(args: &mut Args<'_>) -> Result<Option<Vec<u8>>, Garbage> {
    Ok(match args.flag()? {
        true => Some(args.opaque(NFS3_FHSIZE as u32)?.to_vec()),
        false => None,
    })
}

fn stateid(args: &mut Args<'_>) -> Result<Option<Stateid>, Garbage> {
    if args.flag()? { args.stateid().map(Some) } else { Ok(None) }
}

impl Who {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_opaque(self.host.as_bytes());
        let Credentials { uid, gid, groups } = &self.caller;
        [*uid, *gid, groups.len() as u32].iter().for_each(|word| bytes.put_u32(*word));
        groups.iter().for_each(|group| bytes.put_u32(*group));
        bytes.put_flag(self.is_read_only);
    }

    fn read(args: &mut Args<'_>) -> Result<Self, Garbage> {
        let host = args.opaque(limits::MACHINE_BYTES_MAX)?;
        let host = std::str::from_utf8(host).map_err(|_| Garbage)?.to_owned();
        let (uid, gid, count) = (args.u32()?, args.u32()?, args.u32()?);
        if count > limits::GROUPS_MAX {
            return Err(Garbage);
        }
        let groups = (0..count).map(|_| args.u32()).collect::<Result<_, _>>()?;
        let caller = Credentials { uid, gid, groups };
        Ok(Self { host, caller, is_read_only: args.flag()? })
    }
}

impl<'a> Part<'a> {
    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.put_plain(&self.session);
        [self.client, self.machine].iter().for_each(|number| bytes.put_u64(*number));
        let words = [self.slot, self.sequence, self.at, self.count, self.room];
        words.iter().for_each(|word| bytes.put_u32(*word));
        let Standing { spot, saved, stateid, saved_stateid } = &self.standing;
        put_some(bytes, spot.as_ref());
        put_some(bytes, saved.as_ref());
        put_stateid(bytes, stateid.as_ref());
        put_stateid(bytes, saved_stateid.as_ref());
        bytes.put_opaque(self.ops);
    }

    fn read(args: &mut Args<'a>) -> Result<Self, Garbage> {
        let (session, client, machine) = (args.sixteen()?, args.u64()?, args.u64()?);
        let (slot, sequence) = (args.u32()?, args.u32()?);
        let (at, count, room) = (args.u32()?, args.u32()?, args.u32()?);
        if count > OPS_MAX || at >= count || room as usize > ROOM_BYTES_MAX {
            return Err(Garbage);
        }
        let (spot, saved) = (some(args)?, some(args)?);
        let (stateid, saved_stateid) = (stateid(args)?, stateid(args)?);
        let standing = Standing { spot, saved, stateid, saved_stateid };
        let ops = args.opaque(limits::RECORD_BYTES_MAX as u32)?;
        Ok(Self { session, client, machine, slot, sequence, at, count, room, standing, ops })
    }
}

impl Frame<'_> {
    /// The bytes of the frame, behind their number.
    #[must_use]
    pub fn encode(&self, number: u64) -> Vec<u8> {
        ended(match self {
            Frame::Cut => begun(number, CUT, 0),
            Frame::Call(who, Ask::Record(record)) => {
                let mut bytes = begun(number, RECORD, record.len() + 256);
                who.put(&mut bytes);
                bytes.put_opaque(record);
                bytes
            }
            Frame::Call(who, Ask::Part(part)) => {
                let mut bytes = begun(number, PART, part.ops.len() + 512);
                who.put(&mut bytes);
                part.put(&mut bytes);
                bytes
            }
            Frame::Heard { client, machine, ago } => {
                let mut bytes = begun(number, HEARD, 0);
                [client, machine, ago].iter().for_each(|number| bytes.put_u64(**number));
                bytes
            }
        })
    }
}

/// Reads a frame of the client's host, whose length has come before.
pub fn decode(bytes: &[u8]) -> Result<(u64, Frame<'_>), Garbage> {
    let mut args = Args(bytes);
    let (number, kind) = (args.u64()?, args.u32()?);
    let frame = match kind {
        CUT => Frame::Cut,
        RECORD => {
            let who = Who::read(&mut args)?;
            Frame::Call(who, Ask::Record(args.opaque(limits::RECORD_BYTES_MAX as u32)?))
        }
        PART => {
            let who = Who::read(&mut args)?;
            Frame::Call(who, Ask::Part(Part::read(&mut args)?))
        }
        HEARD => Frame::Heard { client: args.u64()?, machine: args.u64()?, ago: args.u64()? },
        _ => return Err(Garbage),
    };
    if args.0.is_empty() { Ok((number, frame)) } else { Err(Garbage) }
}

impl Reply {
    #[must_use]
    pub fn encode(&self, number: u64) -> Vec<u8> {
        ended(match self {
            Reply::Away => begun(number, AWAY, 0),
            Reply::Record(record) => {
                let mut bytes = begun(number, RECORD, record.len());
                bytes.put_opaque(record);
                bytes
            }
            Reply::Part(Told { status, done, has_changed, results }) => {
                let mut bytes = begun(number, PART, results.len());
                [*status, *done].iter().for_each(|word| bytes.put_u32(*word));
                bytes.put_flag(*has_changed);
                bytes.put_opaque(results);
                bytes
            }
        })
    }

    /// Reads a reply, whose length has come before.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), Garbage> {
        let mut args = Args(bytes);
        let (number, kind) = (args.u64()?, args.u32()?);
        let most = limits::FORWARDED_BYTES_MAX as u32;
        let reply = match kind {
            AWAY => Reply::Away,
            RECORD => Reply::Record(args.opaque(most)?.to_vec()),
            PART => Reply::Part(Told {
                status: args.u32()?,
                done: args.u32()?,
                has_changed: args.flag()?,
                results: args.opaque(most)?.to_vec(),
            }),
            _ => return Err(Garbage),
        };
        if args.0.is_empty() { Ok((number, reply)) } else { Err(Garbage) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame<'static>> {
        let caller = Credentials { uid: 7, gid: 8, groups: vec![9, 10] };
        let who = Who { host: "10.0.0.1".to_owned(), caller, is_read_only: true };
        let standing = Standing {
            spot: Some(Vec::new()),
            saved: Some(vec![1; 36]),
            stateid: None,
            saved_stateid: Some(Stateid::new(5, 6, 7)),
        };
        let part = Part {
            session: [3; 16],
            client: 4,
            machine: 5,
            slot: 6,
            sequence: 7,
            at: 1,
            count: 3,
            room: 4096,
            standing,
            ops: b"operations",
        };
        vec![
            Frame::Cut,
            Frame::Call(who.clone(), Ask::Record(b"a call")),
            Frame::Call(who, Ask::Part(part)),
            Frame::Heard { client: 1, machine: 2, ago: 3 },
        ]
    }

    fn replies() -> Vec<Reply> {
        let results = b"results".to_vec();
        let told = Told { status: 1, done: 2, has_changed: true, results };
        vec![Reply::Away, Reply::Record(b"a reply".to_vec()), Reply::Part(told)]
    }

    #[test]
    fn frames_survive_and_parts_of_them_are_garbage() {
        for frame in frames() {
            let bytes = frame.encode(77);
            assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
            assert_eq!(decode(&bytes[4..]), Ok((77, frame)));
            for end in 4..bytes.len() {
                assert_eq!(decode(&bytes[4..end]), Err(Garbage));
            }
            assert_eq!(decode(&[&bytes[4..], b"more"].concat()), Err(Garbage));
        }
        for reply in replies() {
            let bytes = reply.encode(78);
            assert_eq!(Reply::decode(&bytes[4..]), Ok((78, reply)));
            for end in 4..bytes.len() {
                assert_eq!(Reply::decode(&bytes[4..end]), Err(Garbage));
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_the_golden_image() {
        let all: Vec<u8> = [
            GREETING.to_vec(),
            frames().iter().flat_map(|frame| frame.encode(77)).collect(),
            replies().iter().flat_map(|reply| reply.encode(78)).collect(),
        ]
        .concat();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/forwarded.bin");
        if std::env::var("REKINDLE_GOLDEN").as_deref() == Ok("write") {
            #[expect(clippy::disallowed_methods, reason = "a test writes its golden image")]
            std::fs::write(path, &all).expect("it is written");
        }
        #[expect(clippy::disallowed_methods, reason = "a test reads its golden image")]
        let golden = std::fs::read(path).expect("it is there");
        assert!(golden == all, "the bytes have changed");
    }
}
