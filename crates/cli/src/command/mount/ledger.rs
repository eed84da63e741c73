//! The requests of the kernel that have no reply yet, and the inodes that are open: what a mount
//! must know to go on over another connection.

use super::direct;
use super::folders::{self, Folders};
use super::locks::Locks;
use super::names::Names;
use super::unsynced::Unsynced;
use bytes::Bytes;
use rekindle_front::fuse::frame::{Frame, Hello, Open};
use rekindle_front::fuse::wire::{
    self, AttrOut, InHeader, Memory, OUT_HEADER_BYTES, OutHeader, SetAttrIn, ValidAttrOut, opcode,
    valid,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// The kernel's number of the first request that the mount itself makes, and of each later one two
/// less: the kernel's own are even.
const OWN: u64 = u64::MAX;

/// Most inodes without a name that are remembered.
const UNNAMED_MAX: usize = 100_000;

/// The opcode of an `ioctl`. No file of ours is a device or has any, but many programs ask each
/// file that they open whether it is a terminal.
const IOCTL: u32 = 39;

/// Bytes of a RELEASE behind its header.
const RELEASE_BYTES: usize = 24;

/// The book of a mount.
pub struct Ledger {
    client: u64,
    /// The number of the next request.
    next: u64,
    /// Requests without a reply, by our number.
    pending: BTreeMap<u64, Pending>,
    /// Our numbers, by the kernel's.
    numbers: HashMap<u64, u64>,
    /// Our numbers of requests that the present connection has not taken yet, in order.
    unsent: VecDeque<u64>,
    /// How often each inode is open.
    opens: BTreeMap<u64, u64>,
    /// Inodes whose last name this mount has taken, as they were then, until the kernel forgets
    /// them: a program may have them open without the daemon's knowledge (pipes, devices), or work
    /// in them.
    unnamed: HashMap<u64, AttrOut>,
    /// The kernel's number of the next request of the mount itself.
    own: u64,
    /// Whether the kernel keeps its pages in step with writes that go past them.
    keeps_in_step: bool,
    locks: Locks,
    names: Names,
    folders: Folders,
    /// The last request for a lock of which the daemon has said that the mount has no company.
    alone: Option<u64>,
    /// The kernel's numbers of requests that the daemon has, and whose wait is to end.
    interrupts: VecDeque<u64>,
    unsynced: Unsynced,
}

struct Pending {
    header: InHeader,
    request: Bytes,
    /// Whether a connection has taken it, perhaps in part.
    is_sent: bool,
    /// Whether the kernel waits for it no longer.
    is_given_up: bool,
    /// Whether a signal has met the program that waits for a lock.
    is_interrupted: bool,
}

impl Pending {
    /// Whether the daemon is to hear of it in any case: a program that dies closes its files, and
    /// its locks go.
    fn is_owed(&self) -> bool {
        self.header.opcode == opcode::FLUSH
    }
}

/// What becomes of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Answered {
    /// The kernel waits for it; the opcode of the request.
    Kernel(u32),
    /// The kernel waits for it: a file is open whose bytes are to go past the kernel's pages.
    Direct,
    /// The kernel waits for it. A lock of this inode is there: what the kernel has of the file may
    /// be older than what the last holder has left. Until the given time, names of its folder may
    /// be so, too.
    Locked(u64, Option<Instant>),
    /// The kernel waits for it, and gets this in its place.
    Instead(Vec<u8>),
    /// The mount itself has asked.
    Own,
    /// No request waits for it.
    Nothing,
}

impl Ledger {
    /// Begins a mount with a number that is drawn at random.
    pub fn new(client: u64) -> Self {
        Self {
            client,
            next: 1,
            pending: BTreeMap::new(),
            numbers: HashMap::new(),
            unsent: VecDeque::new(),
            opens: BTreeMap::new(),
            unnamed: HashMap::new(),
            own: OWN,
            keeps_in_step: false,
            locks: Locks::default(),
            names: Names::default(),
            folders: Folders::default(),
            alone: None,
            interrupts: VecDeque::new(),
            unsynced: Unsynced::default(),
        }
    }

    /// Takes a request of the kernel. The daemon keeps nothing that requests without a reply are
    /// about: these end here. Whether there is something to send.
    pub fn take(&mut self, request: Bytes) -> bool {
        let Some(header) = wire::header(&request) else { return false };
        for owner in self.locks.released(&header, &request) {
            // The handle, two unused words, the owner.
            self.ask(opcode::FLUSH, header.ino, [0, 0, owner].as_bytes());
        }
        let request = wire::for_any_daemon(self.locks.asked(&header, request));
        let Some(header) = wire::header(&request) else { return false };
        if !wire::has_reply(header.opcode) {
            for ino in wire::forgotten(&request) {
                self.unnamed.remove(&ino);
                self.names.forgotten(ino);
                self.folders.forget(Some(ino));
            }
            return false;
        }
        if header.opcode == opcode::INIT {
            self.keeps_in_step = direct::keeps_in_step(&request);
        }
        self.folders.asked(&header, &request);
        let number = self.next;
        self.next += 1;
        let (is_sent, is_given_up, is_interrupted) = (false, false, false);
        let pending = Pending { header, request, is_sent, is_given_up, is_interrupted };
        self.pending.insert(number, pending);
        self.numbers.insert(header.unique, number);
        self.unsent.push_back(number);
        true
    }

    /// Takes the goodbye of the mount: nothing is open any more.
    pub fn say_goodbye(&mut self) {
        self.ask(opcode::DESTROY, 0, &[]);
    }

    /// Takes a request of the mount itself.
    fn ask(&mut self, opcode: u32, ino: u64, body: &[u8]) {
        let request = self.request(opcode, ino, body);
        self.take(request);
    }

    /// Makes a request of the mount itself.
    fn request(&mut self, opcode: u32, ino: u64, body: &[u8]) -> Bytes {
        let length = (wire::IN_HEADER_BYTES + body.len()) as u32;
        let unique = self.own;
        self.own -= 2;
        let header =
            InHeader { length, opcode, unique, ino, uid: 0, gid: 0, pid: 0, extensions: 0 };
        [header.as_bytes(), body].concat().into()
    }

    /// Answers a request of the kernel without the daemon, where that has nothing to do or has said
    /// the answer already: a file is closed of which its program has no locks, is asked what it
    /// cannot do, or a folder is looked at after a change of its names.
    pub fn answer_at_once(&self, request: &[u8]) -> Option<Vec<u8>> {
        let header = wire::header(request)?;
        if header.opcode == IOCTL {
            return Some(bare_reply(header.unique, -Errno::NOTTY.raw_os_error()));
        }
        if let Some(reply) = self.folders.answer(&header, Instant::now()) {
            return Some(reply);
        }
        (!self.locks.needs(&header, request)).then(|| bare_reply(header.unique, 0))
    }

    /// Hears that a signal has met the program of a request. One that waits for a lock is to be
    /// answered: the daemon is told, or, if it has not heard of it yet, the kernel gets this.
    pub fn interrupt(&mut self, unique: u64) -> Option<Vec<u8>> {
        let number = *self.numbers.get(&unique)?;
        let pending = self.pending.get_mut(&number)?;
        if pending.header.opcode != opcode::SETLKW || pending.is_given_up {
            return None;
        }
        if pending.is_sent {
            pending.is_interrupted = true;
            self.interrupts.push_back(unique);
            return None;
        }
        self.forget(number);
        Some(bare_reply(unique, -Errno::INTR.raw_os_error()))
    }

    /// Returns the thread that waits for a request of the kernel.
    pub fn waiter(&self, unique: u64) -> Option<u32> {
        let pending = self.pending.get(self.numbers.get(&unique)?)?;
        (!pending.is_given_up).then_some(pending.header.pid)
    }

    /// Gives up a request whose program dies. One that was sent may have been carried out, or may
    /// be soon, by the present connection; no other one gets it, but of a file that is closed.
    pub fn give_up(&mut self, unique: u64) {
        let Some(&number) = self.numbers.get(&unique) else { return };
        match self.pending.get_mut(&number) {
            Some(pending) if pending.is_sent || pending.is_owed() => pending.is_given_up = true,
            _ => self.forget(number),
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(pending) = self.pending.remove(&number) {
            self.numbers.remove(&pending.header.unique);
            self.note_folders(&pending.header, &pending.request, Instant::now());
        }
    }

    fn note_folders(&mut self, header: &InHeader, request: &[u8], now: Instant) {
        let is_believed = |ino| !self.names.are_doubted(ino);
        self.folders.answered(header, request, is_believed, now);
    }

    /// Whether every request has a reply.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    /// Begins another connection: all requests without a reply are to be sent. Returns its first
    /// bytes.
    pub fn begin(&mut self) -> Vec<u8> {
        let given_up = self.pending.iter();
        let given_up = given_up.filter(|(_, pending)| pending.is_given_up && !pending.is_owed());
        for number in given_up.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.forget(number);
        }
        self.folders.forget(None);
        self.unsent = self.pending.keys().copied().collect();
        let interrupted = self.pending.values().filter(|pending| pending.is_interrupted);
        self.interrupts = interrupted.map(|pending| pending.header.unique).collect();
        let count = u32::try_from(self.opens.len()).unwrap_or(u32::MAX);
        let mut bytes = Hello::new(self.client, count).as_bytes().to_vec();
        for (&ino, &count) in &self.opens {
            bytes.extend_from_slice(Open { ino, count }.as_bytes());
        }
        bytes
    }

    /// Returns the next request to send.
    pub fn send(&mut self) -> Option<(Frame, Bytes)> {
        let oldest = *self.pending.keys().next()?;
        loop {
            let Some(number) = self.unsent.pop_front() else {
                // Each behind the request that it is about.
                let unique = self.interrupts.pop_front()?;
                let request = self.request(opcode::INTERRUPT, 0, unique.as_bytes());
                let length = u32::try_from(request.len()).unwrap_or(u32::MAX);
                let number = self.next;
                self.next += 1;
                return Some((Frame::new(length, number, oldest, false), request));
            };
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            let is_again = std::mem::replace(&mut pending.is_sent, true);
            let length = pending.header.length;
            let frame = Frame::new(length, number, oldest, is_again);
            return Some((frame, pending.request.clone()));
        }
    }

    /// Takes a reply of the daemon, and changes for how long the kernel may believe it.
    pub fn answer(&mut self, reply: &mut [u8]) -> Answered {
        let Ok((head, body)) = OutHeader::read_from_prefix(reply) else { return Answered::Nothing };
        match (head.unique, head.error) {
            (0, wire::UNNAMED) => {
                self.note_unnamed(body);
                return Answered::Nothing;
            }
            (0, wire::FOLDER) => {
                self.folders.told(body);
                return Answered::Nothing;
            }
            (0, wire::MEMORY) => {
                let memory = Memory::read_from_prefix(body).ok().map(|(memory, _)| memory);
                self.unsynced.told(memory, self.opens.keys().copied(), Instant::now());
                return Answered::Nothing;
            }
            (0, wire::ALONE) => {
                self.alone = u64::read_from_prefix(body).ok().map(|(unique, _)| unique);
                return Answered::Nothing;
            }
            _ => {}
        }
        let pending =
            self.numbers.remove(&head.unique).and_then(|number| self.pending.remove(&number));
        let Some(Pending { header, request, is_given_up, .. }) = pending else {
            return Answered::Nothing;
        };
        self.locks.answered(&header, &request, head.error, reply);
        if header.opcode == opcode::INIT && self.keeps_in_step {
            direct::let_map(reply);
        }
        let now = Instant::now();
        if head.error == 0 && self.locks.are_shared() {
            self.names.answered(&header, &request, reply, now);
        }
        self.note_folders(&header, &request, now);
        let opened = match header.opcode {
            opcode::OPEN | opcode::OPENDIR if head.error == 0 => Some(header.ino),
            // The inode comes first.
            opcode::CREATE if head.error == 0 => {
                u64::read_from_prefix(&reply[OUT_HEADER_BYTES..]).ok().map(|(ino, _)| ino)
            }
            opcode::RELEASE | opcode::RELEASEDIR => {
                self.close(header.ino);
                None
            }
            _ => None,
        };
        if let Some(ino) = opened {
            *self.opens.entry(ino).or_default() += 1;
            if is_given_up {
                // The kernel does not know that it is open, so it will not close it.
                self.ask(opcode::RELEASE, ino, &[0; RELEASE_BYTES]);
            }
        }
        match header.unique {
            _ if is_given_up => Answered::Nothing,
            unique if head.error == 0 && self.unsynced.is_lost(&header, now) => {
                Answered::Instead(bare_reply(unique, -Errno::IO.raw_os_error()))
            }
            unique if unique % 2 == 1 => Answered::Own,
            _ if opened.is_some()
                && self.keeps_in_step
                && direct::is_for(header.opcode, &request) =>
            {
                Answered::Direct
            }
            unique if Locks::lacks(&header, head.error) => {
                // An older daemon has the volume now.
                Answered::Instead(bare_reply(unique, -Errno::NOLCK.raw_os_error()))
            }
            unique if wire::lacks_acls(&header, &request, head.error) => {
                Answered::Instead(bare_reply(unique, -Errno::NODATA.raw_os_error()))
            }
            _ if head.error == 0 && Locks::takes(&header, &request) => {
                let until = self.names.locked(header.ino, now);
                let is_alone = self.alone.take() == Some(header.unique);
                Answered::Locked(header.ino, until.filter(|_| !is_alone))
            }
            _ if head.error == -Errno::STALE.raw_os_error() => {
                match self.remembered(&header, &request) {
                    Some(reply) => Answered::Instead(reply),
                    None => Answered::Kernel(header.opcode),
                }
            }
            _ => Answered::Kernel(header.opcode),
        }
    }

    /// Returns the handle of a file that was opened, if the kernel is to tell of each close of it,
    /// for the sake of its locks.
    pub fn handle(&mut self) -> Option<u64> {
        self.locks.are_shared().then(|| self.locks.next_handle())
    }

    fn note_unnamed(&mut self, attr: &[u8]) {
        let Ok((attr, _)) = AttrOut::read_from_prefix(attr) else { return };
        if self.unnamed.len() < UNNAMED_MAX {
            self.unnamed.insert(attr.ino, AttrOut { links: 0, ..attr });
        }
    }

    /// Answers a request about an inode that is no more for the daemon, but is for a program.
    fn remembered(&mut self, header: &InHeader, request: &[u8]) -> Option<Vec<u8>> {
        let attr = self.unnamed.get_mut(&header.ino)?;
        match header.opcode {
            opcode::GETATTR => {}
            opcode::SETATTR => {
                let body = request.get(wire::IN_HEADER_BYTES..)?;
                set(attr, &SetAttrIn::read_from_prefix(body).ok()?.0)?;
            }
            _ => return None,
        }
        let body = ValidAttrOut { attr: *attr, ..ValidAttrOut::default() };
        Some(folders::attributes(header.unique, &body))
    }

    fn close(&mut self, ino: u64) {
        if let Some(count) = self.opens.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.opens.remove(&ino);
                self.names.closed(ino);
            }
        }
    }
}

/// Sets attributes of an inode that only this mount remembers; `None`: it has no such one.
fn set(attr: &mut AttrOut, asked: &SetAttrIn) -> Option<()> {
    let asks = |bit| asked.valid & bit != 0;
    if asks(valid::SIZE | valid::ATIME_NOW | valid::MTIME_NOW) {
        return None;
    }
    if asks(valid::MODE) {
        attr.mode = attr.mode & !0o7777 | asked.mode & 0o7777;
    }
    if asks(valid::UID) {
        attr.uid = asked.uid;
    }
    if asks(valid::GID) {
        attr.gid = asked.gid;
    }
    if asks(valid::ATIME) {
        (attr.atime, attr.atime_nanoseconds) = (asked.atime, asked.atime_nanoseconds);
    }
    if asks(valid::MTIME) {
        (attr.mtime, attr.mtime_nanoseconds) = (asked.mtime, asked.mtime_nanoseconds);
    }
    Some(())
}

/// Makes a reply without a body.
fn bare_reply(unique: u64, error: i32) -> Vec<u8> {
    OutHeader { length: OUT_HEADER_BYTES as u32, error, unique }.as_bytes().to_vec()
}

/// Returns the length of the reply that begins here; `None` while its header is not complete.
pub fn reply_bytes(bytes: &[u8]) -> Option<usize> {
    let head = OutHeader::read_from_bytes(bytes.get(..OUT_HEADER_BYTES)?).ok()?;
    Some(head.length as usize)
}

#[cfg(test)]
mod tests;
