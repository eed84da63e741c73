//! A client of version 4.1, in the words of `codec`, over a session of the server.

use super::codec::{Bitmap, Read, Stateid, Write};
use super::ops::Op;
use super::status::Status;
use crate::nfs::testing::{Client, Site};
use crate::nfs::xdr::Args;
use nfs3_types::nfs3;

/// Operations of a COMPOUND.
#[derive(Clone, Default)]
pub struct Ops {
    bytes: Vec<u8>,
    count: u32,
}

pub fn ops() -> Ops {
    Ops::default()
}

impl Ops {
    pub fn op(mut self, op: Op, args: impl FnOnce(&mut Vec<u8>)) -> Self {
        self.bytes.put_u32(op.0);
        args(&mut self.bytes);
        self.count += 1;
        self
    }

    pub fn plain(self, op: Op) -> Self {
        self.op(op, |_| ())
    }

    /// Goes to an inode by its handle.
    pub fn at(self, handle: &[u8]) -> Self {
        self.op(Op::PUTFH, |out| out.put_opaque(handle))
    }

    pub fn look_up(self, name: &str) -> Self {
        self.op(Op::LOOKUP, |out| out.put_opaque(name.as_bytes()))
    }

    /// Goes to the root of an export.
    pub fn root(self, export: &str) -> Self {
        self.plain(Op::PUTROOTFH).look_up(export)
    }

    pub fn handle(self) -> Self {
        self.plain(Op::GETFH)
    }

    /// SETATTR without a stateid.
    pub fn set(self, which: &[u32], values: &[u8]) -> Self {
        self.op(Op::SETATTR, |out| {
            out.put_stateid(&Stateid::default());
            out.put_bitmap(&Bitmap::of(which));
            out.put_opaque(values);
        })
    }

    pub fn attributes(self, which: &[u32]) -> Self {
        self.op(Op::GETATTR, |out| out.put_bitmap(&Bitmap::of(which)))
    }

    /// OPEN of a name; `how` writes what follows the owner.
    pub fn open_as(
        self,
        owner: &str,
        (access, deny): (u32, u32),
        how: impl FnOnce(&mut Vec<u8>),
    ) -> Self {
        self.op(Op::OPEN, |out| {
            out.put_u32(0);
            out.put_u32(access);
            out.put_u32(deny);
            out.put_u64(0);
            out.put_opaque(owner.as_bytes());
            how(out);
        })
    }

    pub fn open(self, owner: &str, shares: (u32, u32), name: &str) -> Self {
        self.open_as(owner, shares, |out| {
            out.put_u32(0);
            out.put_u32(0);
            out.put_opaque(name.as_bytes());
        })
    }

    /// OPEN that makes a file: 0 unchecked, 1 guarded, with a mode.
    pub fn make(self, owner: &str, shares: (u32, u32), how: u32, name: &str) -> Self {
        self.open_as(owner, shares, |out| {
            out.put_u32(1);
            out.put_u32(how);
            out.put_bitmap(&Bitmap::of(&[super::attributes::MODE]));
            out.put_opaque(&0o644_u32.to_be_bytes());
            out.put_u32(0);
            out.put_opaque(name.as_bytes());
        })
    }

    pub fn close(self, stateid: &Stateid) -> Self {
        self.op(Op::CLOSE, |out| {
            out.put_u32(0);
            out.put_stateid(stateid);
        })
    }

    pub fn read(self, stateid: &Stateid, offset: u64, count: u32) -> Self {
        self.op(Op::READ, |out| {
            out.put_stateid(stateid);
            out.put_u64(offset);
            out.put_u32(count);
        })
    }

    pub fn write(self, stateid: &Stateid, offset: u64, data: &[u8]) -> Self {
        self.op(Op::WRITE, |out| {
            out.put_stateid(stateid);
            out.put_u64(offset);
            out.put_u32(2);
            out.put_opaque(data);
        })
    }

    pub fn remove(self, name: &str) -> Self {
        self.op(Op::REMOVE, |out| out.put_opaque(name.as_bytes()))
    }

    /// LOCK for writing by an owner that has none yet.
    pub fn lock(self, open: &Stateid, owner: &str, offset: u64, length: u64) -> Self {
        self.lock_how(open, owner, (offset, length), false)
    }

    pub fn lock_how(
        self,
        open: &Stateid,
        owner: &str,
        (offset, length): (u64, u64),
        reclaims: bool,
    ) -> Self {
        self.op(Op::LOCK, |out| {
            out.put_u32(2);
            out.put_flag(reclaims);
            out.put_u64(offset);
            out.put_u64(length);
            out.put_flag(true);
            out.put_u32(0);
            out.put_stateid(open);
            out.put_u32(0);
            out.put_u64(0);
            out.put_opaque(owner.as_bytes());
        })
    }

    pub fn unlock(self, lock: &Stateid, offset: u64, length: u64) -> Self {
        self.op(Op::LOCKU, |out| {
            out.put_u32(2);
            out.put_u32(0);
            out.put_stateid(lock);
            out.put_u64(offset);
            out.put_u64(length);
        })
    }
}

/// An entry of an access control list: its kind, flags and rights, and whom it names.
pub type AclWords<'a> = (u32, u32, u32, &'a str);

/// Encodes an access control list.
pub fn acl(entries: &[AclWords<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(entries.len() as u32);
    for (kind, flags, rights, who) in entries {
        [*kind, *flags, *rights].iter().for_each(|word| bytes.put_u32(*word));
        bytes.put_opaque(who.as_bytes());
    }
    bytes
}

/// The reply to a COMPOUND.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub status: Status,
    /// Each operation with its status and its results.
    pub results: Vec<(Op, Status, Vec<u8>)>,
}

impl Told {
    fn read(reply: &[u8]) -> Self {
        let mut args = Args(reply);
        let status = Status(args.u32().unwrap());
        args.opaque(1024).unwrap();
        let count = args.u32().unwrap();
        let result = |_| {
            let (op, status) = (Op(args.u32().unwrap()), Status(args.u32().unwrap()));
            let before = args.0;
            skip(op, status, &mut args);
            (op, status, before[..before.len() - args.0.len()].to_vec())
        };
        let results = (0..count).map(result).collect();
        assert!(args.0.is_empty(), "the reply has {} bytes more", args.0.len());
        Self { status, results }
    }

    /// Returns the results of the last operation of a kind.
    pub fn of(&self, op: Op) -> Args<'_> {
        let (.., bytes) =
            self.results.iter().rfind(|(there, ..)| *there == op).expect("it is there");
        Args(bytes)
    }

    pub fn stateid(&self, op: Op) -> Stateid {
        self.of(op).stateid().unwrap()
    }

    pub fn handle(&self) -> Vec<u8> {
        self.of(Op::GETFH).opaque(128).unwrap().to_vec()
    }

    /// Returns the bytes of a READ, and whether the file ends with them.
    pub fn data(&self) -> (Vec<u8>, bool) {
        let mut args = self.of(Op::READ);
        let eof = args.flag().unwrap();
        (args.opaque(1 << 20).unwrap().to_vec(), eof)
    }
}

/// Reads over the results of an operation.
fn skip(op: Op, status: Status, args: &mut Args<'_>) {
    let mut bytes = |count: usize| {
        for _ in 0..count / 4 {
            args.u32().unwrap();
        }
    };
    if status == Status::DENIED {
        bytes(28);
        args.opaque(1024).unwrap();
        return;
    }
    if status != Status::OK && op != Op::SETATTR {
        return;
    }
    match op {
        Op::SEQUENCE => bytes(36),
        Op::OPEN => {
            bytes(16 + 20 + 4);
            args.bitmap().unwrap();
            args.u32().unwrap();
        }
        Op::CLOSE | Op::LOCK | Op::LOCKU | Op::OPEN_DOWNGRADE | Op::WRITE => bytes(16),
        Op::REMOVE | Op::LINK => bytes(20),
        Op::RENAME => bytes(40),
        Op::ACCESS | Op::COMMIT | Op::SECINFO_NO_NAME => bytes(8),
        Op::GETFH | Op::READLINK => drop(args.opaque(8192).unwrap()),
        Op::SETATTR => drop(args.bitmap().unwrap()),
        Op::CREATE => {
            bytes(20);
            args.bitmap().unwrap();
        }
        Op::GETATTR => {
            args.bitmap().unwrap();
            args.opaque(128 << 10).unwrap();
        }
        Op::READ => {
            args.u32().unwrap();
            args.opaque(1 << 20).unwrap();
        }
        // They are the last ones.
        Op::READDIR | Op::EXCHANGE_ID | Op::CREATE_SESSION | Op::TEST_STATEID => args.0 = &[],
        _ => {}
    }
}

/// A client with a session.
pub struct Caller {
    pub client: Client,
    pub id: u64,
    pub session: [u8; 16],
    pub sequence: u32,
}

/// Encodes a COMPOUND.
pub fn compound(minor: u32, of: &Ops) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_opaque(b"");
    bytes.put_u32(minor);
    bytes.put_u32(of.count);
    bytes.extend_from_slice(&of.bytes);
    bytes
}

pub async fn ask(client: &mut Client, minor: u32, of: &Ops) -> Told {
    Told::read(&heard(client, &compound(minor, of)).await.unwrap())
}

pub async fn heard(client: &mut Client, args: &[u8]) -> Result<Vec<u8>, String> {
    client.xid += 1;
    let record = client.record(client.xid, (nfs3::PROGRAM, 4, 1), args);
    client.send(&record).await;
    client.reply().await.1
}

pub fn exchange_id(name: &str, verifier: u8) -> Ops {
    exchange_id_as(name, verifier, 0)
}

pub fn exchange_id_as(name: &str, verifier: u8, flags: u32) -> Ops {
    ops().op(Op::EXCHANGE_ID, |out| {
        out.put_plain(&[verifier; 8]);
        out.put_opaque(name.as_bytes());
        [flags, 0, 0].iter().for_each(|word| out.put_u32(*word));
    })
}

/// Bounds of a session: call, reply, what is kept of a reply, operations, slots.
pub const BOUNDS: [u32; 5] = [1 << 20, 1 << 20, 4096, 16, 16];

pub fn create_session(id: u64, sequence: u32, flags: u32, bounds: [u32; 5]) -> Ops {
    ops().op(Op::CREATE_SESSION, |out| {
        out.put_u64(id);
        out.put_u32(sequence);
        out.put_u32(flags);
        for _ in 0..2 {
            out.put_u32(0);
            bounds.iter().for_each(|word| out.put_u32(*word));
            out.put_u32(0);
        }
        [0, 1, 0].iter().for_each(|word| out.put_u32(*word));
    })
}

impl Caller {
    /// Makes a client and its session.
    pub async fn new(site: &Site, name: &str) -> Self {
        Self::started(site, name, 1).await
    }

    /// The same; `verifier` tells the starts of a machine apart.
    pub async fn started(site: &Site, name: &str, verifier: u8) -> Self {
        Self::bounded(site, name, verifier, BOUNDS).await
    }

    /// The same, with bounds of its session.
    pub async fn bounded(site: &Site, name: &str, verifier: u8, bounds: [u32; 5]) -> Self {
        let mut client = site.connect();
        let told = ask(&mut client, 1, &exchange_id(name, verifier)).await;
        assert_eq!(told.status, Status::OK);
        let mut args = told.of(Op::EXCHANGE_ID);
        let (id, sequence) = (args.u64().unwrap(), args.u32().unwrap());
        let made = create_session(id, sequence, 1, bounds);
        let told = ask(&mut client, 1, &made).await;
        assert_eq!(told.status, Status::OK);
        let session = told.of(Op::CREATE_SESSION).sixteen().unwrap();
        Self { client, id, session, sequence: 0 }
    }

    /// Connects anew, as after a restart: nothing else is done.
    pub fn reconnect(&mut self, site: &Site) {
        self.client = site.connect();
    }

    pub fn in_slot(&self, slot: u32, sequence: u32, of: &Ops) -> Ops {
        let head = ops().op(Op::SEQUENCE, |out| {
            out.put_plain(&self.session);
            [sequence, slot, 63.max(slot), 0].iter().for_each(|word| out.put_u32(*word));
        });
        Ops { bytes: [head.bytes, of.bytes.clone()].concat(), count: of.count + 1 }
    }

    /// Sends the next request in slot 0.
    pub async fn ask(&mut self, of: Ops) -> Told {
        self.sequence += 1;
        self.again(&of).await
    }

    /// Sends the last request once more.
    pub async fn again(&mut self, of: &Ops) -> Told {
        let of = self.in_slot(0, self.sequence, of);
        ask(&mut self.client, 1, &of).await
    }

    /// The same, for what must go well.
    pub async fn done(&mut self, of: Ops) -> Told {
        let told = self.ask(of).await;
        assert_eq!(told.status, Status::OK, "{told:?}");
        told
    }

    /// The status of the next request.
    pub async fn status(&mut self, of: Ops) -> Status {
        self.ask(of).await.status
    }
}
