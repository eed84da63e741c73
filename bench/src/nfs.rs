//! A client of NFS 4.1: sessions, with requests under way in several slots. It is the same towards
//! every server, and does little itself, so that what is measured is the server.

use anyhow::{Context, Result, ensure};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// Program and version of NFS, and the procedure that is a row of operations.
const COMPOUND: [u32; 3] = [100_003, 4, 1];
/// The last fragment of a record.
const LAST: u32 = 1 << 31;
/// Most requests of a session that are under way.
pub const SLOTS: u32 = 16;
/// Bytes of data in a READ or a WRITE: all servers take them with a margin.
pub const DATA_BYTES: u32 = 512 << 10;

/// Numbers of operations (RFC 8881, section 18).
mod op {
    pub const CLOSE: u32 = 4;
    pub const COMMIT: u32 = 5;
    pub const CREATE: u32 = 6;
    pub const GETATTR: u32 = 9;
    pub const GETFH: u32 = 10;
    pub const LOOKUP: u32 = 15;
    pub const OPEN: u32 = 18;
    pub const PUTFH: u32 = 22;
    pub const PUTROOTFH: u32 = 24;
    pub const READ: u32 = 25;
    pub const REMOVE: u32 = 28;
    pub const RENAME: u32 = 29;
    pub const SAVEFH: u32 = 32;
    pub const WRITE: u32 = 38;
    pub const EXCHANGE_ID: u32 = 42;
    pub const CREATE_SESSION: u32 = 43;
    pub const SEQUENCE: u32 = 53;
    pub const RECLAIM_COMPLETE: u32 = 58;
}

/// When the bytes of a WRITE are durable.
#[derive(Debug, Clone, Copy)]
pub enum Stable {
    /// With the COMMIT that follows.
    Later = 0,
    /// Before the reply, and what leads to them.
    Now = 2,
}

/// What names an inode.
pub type Handle = Vec<u8>;
/// What names an open file.
pub type Stateid = [u8; 16];

/// The attributes that a kernel asks for: type, change, size, file system, number, mode, links,
/// owner, group, space, times.
const ATTRIBUTES: [u32; 2] = [
    1 << 1 | 1 << 3 | 1 << 4 | 1 << 8 | 1 << 20,
    1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 13 | 1 << 15 | 1 << 20 | 1 << 21,
];

/// Operations, in their order.
#[derive(Default, Clone)]
pub struct Ops {
    bytes: Vec<u8>,
    count: u32,
}

impl Ops {
    /// Begins at an inode.
    pub fn at(handle: &[u8]) -> Self {
        Self::default().put(handle)
    }

    fn op(mut self, number: u32) -> Self {
        self.count += 1;
        self.words(&[number])
    }

    fn words(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|word| self.bytes.extend_from_slice(&word.to_be_bytes()));
        self
    }

    fn long(mut self, number: u64) -> Self {
        self.bytes.extend_from_slice(&number.to_be_bytes());
        self
    }

    /// Bytes whose number both sides know.
    fn plain(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    fn opaque(self, bytes: &[u8]) -> Self {
        let length = u32::try_from(bytes.len()).expect("requests are short");
        self.words(&[length]).plain(bytes)
    }

    fn put(self, handle: &[u8]) -> Self {
        self.op(op::PUTFH).opaque(handle)
    }

    fn look_up(self, name: &str) -> Self {
        self.op(op::LOOKUP).opaque(name.as_bytes())
    }

    fn handle(self) -> Self {
        self.op(op::GETFH)
    }

    fn attributes(self) -> Self {
        self.op(op::GETATTR).words(&[2]).words(&ATTRIBUTES)
    }

    /// Goes to the file of a name, and asks what a kernel asks of it.
    pub fn stat(dir: &[u8], name: &str) -> Self {
        Self::at(dir).look_up(name).handle().attributes()
    }

    pub fn rename(dir: &[u8], old: &str, new: &str) -> Self {
        let from = Self::at(dir).op(op::SAVEFH).put(dir);
        from.op(op::RENAME).opaque(old.as_bytes()).opaque(new.as_bytes())
    }

    pub fn remove(dir: &[u8], name: &str) -> Self {
        Self::at(dir).op(op::REMOVE).opaque(name.as_bytes())
    }

    pub fn write(file: &Open, offset: u64, stable: Stable, data: &[u8]) -> Self {
        let head = Self::at(&file.handle).op(op::WRITE).plain(&file.stateid).long(offset);
        head.words(&[stable as u32]).opaque(data)
    }

    pub fn read(file: &Open, offset: u64, count: u32) -> Self {
        Self::at(&file.handle).op(op::READ).plain(&file.stateid).long(offset).words(&[count])
    }
}

/// An open file.
#[derive(Clone)]
pub struct Open {
    handle: Handle,
    stateid: Stateid,
}

/// The results of the operations that are not read yet; all of them went well.
pub struct Reply {
    bytes: Vec<u8>,
    at: usize,
}

impl Reply {
    fn take(&mut self, length: usize) -> Result<&[u8]> {
        let bytes = self.bytes.get(self.at..self.at + length).context("a reply that is short")?;
        self.at += length;
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn opaque(&mut self) -> Result<&[u8]> {
        let length = self.word()? as usize;
        let padded = self.take(length.next_multiple_of(4))?;
        Ok(&padded[..length])
    }

    fn words(&mut self, count: u32) -> Result<()> {
        (0..count).try_for_each(|_| self.word().map(drop))
    }

    /// Goes to the results of the next operation.
    fn next(&mut self, number: u32) -> Result<&mut Self> {
        let said = self.word()?;
        ensure!(said == number, "operation {said} was answered, not {number}");
        self.word()?;
        Ok(self)
    }

    /// Passes what every request begins with: SEQUENCE, and PUTFH.
    fn at(&mut self) -> Result<&mut Self> {
        self.next(op::SEQUENCE)?.words(9)?;
        self.next(op::PUTFH)
    }

    /// Counts the bytes of a READ.
    pub fn read(mut self) -> Result<usize> {
        self.at()?.next(op::READ)?.word()?;
        Ok(self.opaque()?.len())
    }
}

/// A session of a client that has one.
pub struct Session {
    stream: BufReader<TcpStream>,
    client: u64,
    id: [u8; 16],
    /// The numbers of the last request of each slot: of the slot's own, and of the connection's.
    slots: [(u32, Option<u32>); SLOTS as usize],
    xid: u32,
    /// The directory that the server exports.
    pub root: Handle,
    /// The request that is being sent.
    record: Vec<u8>,
}

impl Session {
    /// Makes a client with a session, and goes to the export.
    pub fn new(port: u16, export: &str, name: &str) -> Result<Self> {
        let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut session = Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            client: 0,
            id: [0; 16],
            slots: [(0, None); SLOTS as usize],
            xid: 0,
            root: Handle::new(),
            record: Vec::new(),
        };
        // Each run of the program is a new start of the client's machine.
        let verifier = u64::from(std::process::id()).to_be_bytes();
        let who = Ops::default().op(op::EXCHANGE_ID).plain(&verifier);
        let who = who.opaque(format!("bench-{name}").as_bytes()).words(&[0, 0, 0]);
        let mut reply = session.alone(&who)?;
        reply.next(op::EXCHANGE_ID)?;
        session.client = u64::from_be_bytes(reply.take(8)?.try_into()?);
        let sequence = reply.word()?;

        let mut made = Ops::default().op(op::CREATE_SESSION).long(session.client);
        made = made.words(&[sequence, 0]);
        for _ in 0..2 {
            let bytes = DATA_BYTES + (8 << 10);
            made = made.words(&[0, bytes, bytes, 2 << 10, 16, SLOTS, 0]);
        }
        // A server wants to hear how it would call back.
        let mut reply = session.alone(&made.words(&[0, 1, 0]))?;
        session.id = reply.next(op::CREATE_SESSION)?.take(16)?.try_into()?;
        session.ask(&Ops::default().op(op::RECLAIM_COMPLETE).words(&[0]))?;

        let root = Ops::default().op(op::PUTROOTFH).look_up(export).handle();
        let mut reply = session.ask(&root)?;
        reply.next(op::SEQUENCE)?.words(9)?;
        reply.next(op::PUTROOTFH)?.next(op::LOOKUP)?.next(op::GETFH)?;
        session.root = reply.opaque()?.to_vec();
        Ok(session)
    }

    /// Asks for what is of no session.
    fn alone(&mut self, ops: &Ops) -> Result<Reply> {
        self.send(ops, None)?;
        Ok(self.hear()?.1)
    }

    /// Asks in the first slot, and waits.
    pub fn ask(&mut self, ops: &Ops) -> Result<Reply> {
        self.send(ops, Some(0))?;
        let (xid, reply) = self.hear()?;
        ensure!(xid == self.xid, "another request was answered");
        Ok(reply)
    }

    /// Asks with so many requests under way, and hands over each reply.
    pub fn many(
        &mut self,
        at_once: u32,
        mut requests: impl Iterator<Item = Ops>,
        mut heard: impl FnMut(Reply) -> Result<()>,
    ) -> Result<()> {
        let slots = &mut self.slots[..at_once as usize];
        slots.iter_mut().for_each(|(_, asked)| *asked = None);
        let (mut free, mut under_way): (Vec<u32>, u32) = ((0..at_once).collect(), 0);
        loop {
            while let Some(slot) = free.pop() {
                let Some(ops) = requests.next() else { break };
                self.send(&ops, Some(slot))?;
                self.slots[slot as usize].1 = Some(self.xid);
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(());
            }
            let (xid, reply) = self.hear()?;
            let slot = self.slots.iter().position(|(_, asked)| *asked == Some(xid));
            free.push(u32::try_from(slot.context("the answer to no request")?)?);
            under_way -= 1;
            heard(reply)?;
        }
    }

    /// Sends a request: one in a slot has the next number there.
    fn send(&mut self, ops: &Ops, slot: Option<u32>) -> Result<()> {
        self.xid += 1;
        let mut head = Ops::default().words(&[self.xid, 0, 2]).words(&COMPOUND);
        // As root of a machine without a name; without a verifier.
        head = head.words(&[1, 20, 0, 0, 0, 0, 0, 0, 0]);
        head = head.words(&[0, 1, ops.count + u32::from(slot.is_some())]);
        if let Some(slot) = slot {
            let sequence = &mut self.slots[slot as usize].0;
            *sequence += 1;
            head = head.words(&[op::SEQUENCE]).plain(&self.id);
            head = head.words(&[*sequence, slot, SLOTS - 1, 0]);
        }
        let length = u32::try_from(head.bytes.len() + ops.bytes.len())?;
        self.record.clear();
        self.record.extend_from_slice(&(length | LAST).to_be_bytes());
        self.record.extend_from_slice(&head.bytes);
        self.record.extend_from_slice(&ops.bytes);
        Ok(self.stream.get_mut().write_all(&self.record)?)
    }

    /// Waits for the next reply, which must say that all went well; returns the number of its
    /// request.
    fn hear(&mut self) -> Result<(u32, Reply)> {
        let mut bytes = Vec::new();
        loop {
            let mut mark = [0; 4];
            self.stream.read_exact(&mut mark).context("the server hangs up")?;
            let (mark, from) = (u32::from_be_bytes(mark), bytes.len());
            bytes.resize(from + (mark & !LAST) as usize, 0);
            self.stream.read_exact(&mut bytes[from..])?;
            if mark & LAST != 0 {
                break;
            }
        }
        let mut reply = Reply { bytes, at: 0 };
        let (xid, kind, denied) = (reply.word()?, reply.word()?, reply.word()?);
        ensure!((kind, denied) == (1, 0), "the call was not accepted");
        reply.word()?;
        reply.opaque()?;
        let accepted = reply.word()?;
        ensure!(accepted == 0, "the call was not understood: {accepted}");
        let status = reply.word()?;
        reply.opaque()?;
        let count = reply.word()?;
        ensure!(status == 0, "the operation {count} of a request failed: status {status}");
        Ok((xid, reply))
    }

    /// Makes a directory in the export.
    pub fn make_dir(&mut self, name: &str) -> Result<Handle> {
        let made = Ops::at(&self.root).op(op::CREATE).words(&[2]).opaque(name.as_bytes());
        let mode = 0o755_u32.to_be_bytes();
        let mut reply = self.ask(&made.words(&[2, 0, 1 << 1]).opaque(&mode).handle())?;
        reply.at()?.next(op::CREATE)?.words(5)?;
        let bitmap = reply.word()?;
        reply.words(bitmap)?;
        Ok(reply.next(op::GETFH)?.opaque()?.to_vec())
    }

    /// Opens the file of a name for reading and writing; with `make`, one that must be new.
    pub fn open(&mut self, dir: &[u8], name: &str, make: bool) -> Result<Open> {
        let asked = Ops::at(dir).op(op::OPEN).words(&[0, 3, 0]).long(self.client).opaque(b"bench");
        let asked = match make {
            // Guarded, with a mode.
            true => asked.words(&[1, 1, 2, 0, 1 << 1]).opaque(&0o644_u32.to_be_bytes()),
            false => asked.words(&[0]),
        };
        let asked = asked.words(&[0]).opaque(name.as_bytes()).handle().attributes();
        let mut reply = self.ask(&asked)?;
        let stateid = reply.at()?.next(op::OPEN)?.take(16)?.try_into()?;
        // How the directory changed, and flags.
        reply.words(6)?;
        let bitmap = reply.word()?;
        reply.words(bitmap)?;
        let delegation = reply.word()?;
        ensure!(delegation == 0, "a delegation was not asked for");
        Ok(Open { stateid, handle: reply.next(op::GETFH)?.opaque()?.to_vec() })
    }

    pub fn close(&mut self, file: &Open) -> Result<()> {
        let ops = Ops::at(&file.handle).op(op::CLOSE).words(&[0]).plain(&file.stateid);
        self.ask(&ops).map(drop)
    }

    /// Makes durable what was written to a file.
    pub fn commit(&mut self, file: &Open) -> Result<()> {
        self.ask(&Ops::at(&file.handle).op(op::COMMIT).long(0).words(&[0])).map(drop)
    }
}
