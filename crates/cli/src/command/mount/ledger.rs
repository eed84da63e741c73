//! The requests of the kernel that have no reply yet, and the inodes that are open: what a mount
//! must know to go on over another connection.

use super::direct;
use super::folders::Folders;
use super::locks::Locks;
use super::names::Names;
use bytes::Bytes;
use rekindle_front::fuse::frame::{Frame, Hello, Open};
use rekindle_front::fuse::wire::{
    self, AttrOut, InHeader, OUT_HEADER_BYTES, OutHeader, SetAttrIn, ValidAttrOut, opcode, valid,
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

/// The opcode of an `ioctl`. No file of ours is a device or has any, but many programs ask each file
/// that they open whether it is a terminal.
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
        let request = self.locks.asked(&header, request);
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
            unique if unique % 2 == 1 => Answered::Own,
            _ if opened.is_some()
                && self.keeps_in_step
                && direct::is_write_only(header.opcode, &request) =>
            {
                Answered::Direct
            }
            unique if Locks::lacks(&header, head.error) => {
                // An older daemon has the volume now.
                Answered::Instead(bare_reply(unique, -Errno::NOLCK.raw_os_error()))
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
        let length = (OUT_HEADER_BYTES + size_of::<ValidAttrOut>()) as u32;
        let head = OutHeader { length, error: 0, unique: header.unique };
        Some([head.as_bytes(), body.as_bytes()].concat())
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
mod tests {
    use super::*;

    fn request(opcode: u32, unique: u64, ino: u64) -> Bytes {
        request_with(opcode, unique, ino, &[])
    }

    fn request_with(opcode: u32, unique: u64, ino: u64, body: &[u8]) -> Bytes {
        let length = (wire::IN_HEADER_BYTES + body.len()) as u32;
        let header =
            InHeader { length, opcode, unique, ino, uid: 0, gid: 0, pid: 0, extensions: 0 };
        [header.as_bytes(), body].concat().into()
    }

    fn reply(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
        let length = (OUT_HEADER_BYTES + body.len()) as u32;
        [OutHeader { length, error, unique }.as_bytes(), body].concat()
    }

    #[test]
    fn a_file_that_is_only_written_goes_past_the_pages_of_a_kernel_that_keeps_them_in_step() {
        let open =
            |words: &[u32], opcode, unique| request_with(opcode, unique, 5, words.as_bytes());
        for (flags, direct) in [(1 << 4, true), (0, false)] {
            let mut ledger = Ledger::new(7);
            ledger.take(open(&[7, 45, 0, 1 << 30, flags], opcode::INIT, 2));
            assert_eq!(ledger.answer(&mut reply(2, 0, &[])), Answered::Kernel(opcode::INIT));
            ledger.take(open(&[0o1, 0], opcode::OPEN, 4));
            ledger.take(open(&[0o2, 0], opcode::OPEN, 6));
            ledger.take(open(&[0o1, 0], opcode::OPEN, 8));
            let written = if direct { Answered::Direct } else { Answered::Kernel(opcode::OPEN) };
            assert_eq!(ledger.answer(&mut reply(4, 0, &[0; 16])), written);
            assert_eq!(ledger.answer(&mut reply(6, 0, &[0; 16])), Answered::Kernel(opcode::OPEN));
            let failed = ledger.answer(&mut reply(8, -2, &[]));
            assert_eq!(failed, Answered::Kernel(opcode::OPEN), "an error has no flags");
        }
    }

    fn sent(ledger: &mut Ledger) -> Vec<(u64, u64, bool)> {
        std::iter::from_fn(|| ledger.send())
            .map(|(frame, _)| (frame.number, frame.oldest, frame.is_again()))
            .collect()
    }

    #[test]
    fn only_what_has_no_reply_is_sent_again() {
        let mut ledger = Ledger::new(7);
        for unique in [8, 4, 6] {
            assert!(ledger.take(request(opcode::GETATTR, unique, 1)));
        }
        assert!(!ledger.take(request(opcode::FORGET, 10, 1)), "it has no reply");
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(1, 1, false), (2, 1, false), (3, 1, false)]);
        assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Kernel(opcode::GETATTR));
        assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Nothing, "it has its reply");
        assert_eq!(ledger.answer(&mut reply(99, 0, &[])), Answered::Nothing);
        ledger.take(request(opcode::GETATTR, 12, 1));
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(1, 1, true), (3, 1, true), (4, 1, false)]);
        ledger.answer(&mut reply(8, 0, &[]));
        ledger.take(request(opcode::GETATTR, 14, 1));
        assert_eq!(sent(&mut ledger), [(5, 3, false)], "the first has its reply");
    }

    #[test]
    fn a_hello_tells_what_is_open() {
        let mut ledger = Ledger::new(7);
        let mut ask = |opcode, ino, error, body: &[u8]| {
            ledger.take(request(opcode, 2, ino));
            ledger.answer(&mut reply(2, error, body));
            ledger.begin()
        };
        ask(opcode::OPEN, 5, 0, &[]);
        ask(opcode::OPEN, 5, 0, &[]);
        ask(opcode::OPEN, 6, -2, &[]);
        ask(opcode::CREATE, 1, 0, &[&9_u64.to_ne_bytes()[..], &[0; 128]].concat());
        let hello = ask(opcode::OPENDIR, 1, 0, &[]);
        let open = |ino, count| Open { ino, count }.as_bytes().to_vec();
        let all = [open(1, 1), open(5, 2), open(9, 1)];
        assert_eq!(hello, [Hello::new(7, 3).as_bytes(), &all.concat()].concat());
        ask(opcode::RELEASEDIR, 1, 0, &[]);
        ask(opcode::RELEASE, 9, 0, &[]);
        let hello = ask(opcode::RELEASE, 5, 0, &[]);
        assert_eq!(hello, [Hello::new(7, 1).as_bytes(), &open(5, 1)].concat());
    }

    #[test]
    fn a_request_that_is_given_up_is_not_sent_again_and_leaves_nothing_open() {
        let mut ledger = Ledger::new(7);
        ledger.take(request(opcode::MKDIR, 2, 1));
        ledger.take(request(opcode::OPEN, 4, 5));
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(1, 1, false), (2, 1, false)]);
        ledger.take(request(opcode::MKDIR, 6, 1));
        for unique in [2, 4, 6, 99] {
            ledger.give_up(unique);
            assert_eq!(ledger.waiter(unique), None);
        }
        assert_eq!(sent(&mut ledger), [], "the third was not sent, and is gone");
        // The daemon has opened it, and is told to close it.
        assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Nothing);
        assert_eq!(
            ledger.begin(),
            [Hello::new(7, 1).as_bytes(), Open { ino: 5, count: 1 }.as_bytes()].concat()
        );
        assert_eq!(sent(&mut ledger), [(4, 4, false)], "the first may have been carried out");
        assert_eq!(ledger.answer(&mut reply(OWN, 0, &[])), Answered::Own);
        assert!(ledger.is_quiet() && ledger.opens.is_empty());
        assert_eq!(ledger.answer(&mut reply(2, 0, &[])), Answered::Nothing);
    }

    /// Two words of 64 bits and what follows: of SETLK and SETLKW.
    fn lock(owner: u64, kind: u32) -> Vec<u8> {
        let words = [0, owner, 0, 9].map(u64::to_ne_bytes).concat();
        [&words[..], &kind.to_ne_bytes(), &[0; 12]].concat()
    }

    fn flush(ledger: &Ledger, owner: u64) -> Option<Vec<u8>> {
        let body = [0, 0, owner].map(u64::to_ne_bytes).concat();
        ledger.answer_at_once(&request_with(opcode::FLUSH, 90, 5, &body))
    }

    fn agree(ledger: &mut Ledger, flags: u32) {
        ledger.take(request_with(opcode::INIT, 2, 0, &[0; 16]));
        let out = wire::InitOut { flags, ..wire::InitOut::default() };
        ledger.answer(&mut reply(2, 0, out.as_bytes()));
    }

    #[test]
    fn the_daemon_hears_of_a_close_where_the_program_may_have_locks() {
        let mut ledger = Ledger::new(7);
        agree(&mut ledger, 0);
        let is_terminal = ledger.answer_at_once(&request(IOCTL, 80, 5));
        assert_eq!(is_terminal, Some(bare_reply(80, -Errno::NOTTY.raw_os_error())));
        assert_eq!(flush(&ledger, 1), None, "an old daemon does as it likes");
        assert_eq!(ledger.handle(), None);
        agree(&mut ledger, wire::init::LOCKS);
        assert_eq!((ledger.handle(), ledger.handle()), (Some(1), Some(2)));
        assert_eq!(flush(&ledger, 1), Some(bare_reply(90, 0)));
        ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
        assert_eq!(flush(&ledger, 1), None, "the reply may be lost");
        assert_eq!(flush(&ledger, 2), Some(bare_reply(90, 0)), "another process");
        ledger.answer(&mut reply(4, 0, &[]));
        let body = [0, 0, 1].map(u64::to_ne_bytes).concat();
        ledger.take(request_with(opcode::FLUSH, 6, 5, &body));
        ledger.answer(&mut reply(6, 0, &[]));
        assert_eq!(flush(&ledger, 1), Some(bare_reply(90, 0)), "they are given back");
    }

    #[test]
    fn a_mount_says_that_it_knows_of_locks_and_a_daemon_without_any_is_no_error() {
        let mut ledger = Ledger::new(7);
        for bytes in [16, 64] {
            ledger.take(request_with(opcode::INIT, 2, 0, &vec![0; bytes]));
            ledger.begin();
            let (frame, init) = ledger.send().expect("a request");
            assert_eq!((frame.length as usize, init.len()), (104, 104));
            assert_eq!(init[100..], wire::KNOWS_LOCKS.to_ne_bytes());
            ledger.answer(&mut reply(2, 0, &[]));
        }
        ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
        assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Locked(5, None));
        ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 2)));
        assert_eq!(
            ledger.answer(&mut reply(4, 0, &[])),
            Answered::Kernel(opcode::SETLK),
            "given back"
        );
        ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
        let answered = ledger.answer(&mut reply(4, -Errno::NOSYS.raw_os_error(), &[]));
        assert_eq!(answered, Answered::Instead(bare_reply(4, -Errno::NOLCK.raw_os_error())));
    }

    #[test]
    fn a_folder_is_not_asked_for_after_a_change_of_its_names() {
        let mut ledger = Ledger::new(7);
        let told = AttrOut { ino: 5, links: 3, ..AttrOut::default() };
        let make = |ledger: &mut Ledger| {
            ledger.take(request(opcode::MKDIR, 4, 5));
            let head = OutHeader { length: 0, error: wire::FOLDER, unique: 0 };
            let mut notice = [head.as_bytes(), 4_u64.as_bytes(), told.as_bytes()].concat();
            assert_eq!(ledger.answer(&mut notice), Answered::Nothing);
            ledger.answer(&mut reply(4, 0, &[]));
        };
        let look = |ledger: &Ledger| {
            let reply = ledger.answer_at_once(&request(opcode::GETATTR, 90, 5))?;
            let (_, out) = ValidAttrOut::read_from_suffix(&reply).expect("attributes");
            Some((reply_bytes(&reply) == Some(reply.len()), out.attr.links))
        };
        make(&mut ledger);
        assert_eq!(look(&ledger), Some((true, 3)));
        // A daemon that was started again, and the kernel that knows the folder no more.
        ledger.begin();
        assert_eq!(look(&ledger), None);
        make(&mut ledger);
        ledger.take(request_with(opcode::FORGET, 6, 5, &1_u64.to_ne_bytes()));
        assert_eq!(look(&ledger), None);
        make(&mut ledger);
        ledger.take(request(opcode::SETATTR, 8, 5));
        assert_eq!(look(&ledger), Some((true, 3)), "it may have come first");
        ledger.answer(&mut reply(8, 0, &[]));
        assert_eq!(look(&ledger), None);
    }

    #[test]
    fn a_lock_of_a_mount_without_company_waits_for_no_names() {
        let mut ledger = Ledger::new(7);
        agree(&mut ledger, wire::init::LOCKS);
        let mut ask = |opcode, ino, asked: &[u8], told: Option<u64>, body: &[u8]| {
            ledger.take(request_with(opcode, 4, ino, asked));
            if let Some(unique) = told {
                let head = OutHeader { length: 0, error: wire::ALONE, unique: 0 };
                let mut notice = [head.as_bytes(), unique.as_bytes()].concat();
                assert_eq!(ledger.answer(&mut notice), Answered::Nothing);
            }
            ledger.answer(&mut reply(4, 0, body))
        };
        let entry = |ino| wire::EntryOut { ino, ..wire::EntryOut::default() };
        ask(opcode::CREATE, 1, &[0; 16], None, &[entry(5).as_bytes(), &[0; 16]].concat());
        ask(opcode::LOOKUP, 1, b"b", None, entry(6).as_bytes());
        let mut lock = |told| ask(opcode::SETLK, 5, &lock(1, 1), told, &[]);
        assert_eq!(lock(Some(4)), Answered::Locked(5, None));
        for told in [None, Some(6)] {
            assert!(matches!(lock(told), Answered::Locked(5, Some(_))), "another request's word");
        }
        assert_eq!(lock(Some(4)), Answered::Locked(5, None));
    }

    #[test]
    fn what_an_open_file_has_locked_goes_with_its_last_use() {
        let mut ledger = Ledger::new(7);
        agree(&mut ledger, wire::init::LOCKS);
        let handled = |handle: u64, body: Vec<u8>| [&handle.to_ne_bytes(), &body[8..]].concat();
        let mut lock_by = |handle, owner| {
            ledger.take(request_with(opcode::SETLK, 4, 5, &handled(handle, lock(owner, 1))));
            ledger.answer(&mut reply(4, 0, &[]));
        };
        lock_by(1, 10);
        lock_by(2, 10);
        lock_by(2, 20);
        let body = |handle: u64, owner: u64| [handle, 0, owner].map(u64::to_ne_bytes).concat();
        ledger.take(request_with(opcode::FLUSH, 6, 5, &body(2, 10)));
        ledger.answer(&mut reply(6, 0, &[]));
        ledger.begin();
        ledger.take(request_with(opcode::RELEASE, 8, 5, &body(1, 0)));
        let asked = |ledger: &mut Ledger| -> Vec<(u32, Option<u64>)> {
            std::iter::from_fn(|| ledger.send())
                .map(|(_, request)| {
                    let header = wire::header(&request).expect("a header");
                    let op = wire::op(header.opcode, &request[wire::IN_HEADER_BYTES..]);
                    let owner = match op {
                        Ok(wire::Op::Flush { owner }) => Some(owner),
                        _ => None,
                    };
                    (header.opcode, owner)
                })
                .collect()
        };
        assert_eq!(asked(&mut ledger), [(opcode::RELEASE, None)], "its process has closed it");
        ledger.take(request_with(opcode::RELEASE, 10, 5, &body(2, 0)));
        let both = [(opcode::FLUSH, Some(20)), (opcode::RELEASE, None)];
        assert_eq!(asked(&mut ledger), both);
        assert_eq!(ledger.answer(&mut reply(OWN, 0, &[])), Answered::Own);
    }

    #[test]
    fn a_program_that_dies_gives_its_locks_back_over_any_connection() {
        let mut ledger = Ledger::new(7);
        agree(&mut ledger, wire::init::LOCKS);
        ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
        ledger.answer(&mut reply(4, 0, &[]));
        let body = [0, 0, 1].map(u64::to_ne_bytes).concat();
        ledger.take(request_with(opcode::FLUSH, 6, 5, &body));
        ledger.give_up(6);
        assert_eq!(ledger.waiter(6), None);
        for is_again in [false, true] {
            ledger.begin();
            assert_eq!(sent(&mut ledger), [(3, 3, is_again)]);
        }
        assert_eq!(ledger.answer(&mut reply(6, 0, &[])), Answered::Nothing);
        assert!(ledger.is_quiet());
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_lock_at_the_daemon_or_here() {
        let mut ledger = Ledger::new(7);
        ledger.take(request_with(opcode::SETLKW, 4, 5, &lock(1, 1)));
        ledger.take(request(opcode::FSYNC, 6, 5));
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(1, 1, false), (2, 1, false)]);
        assert_eq!(ledger.interrupt(6), None, "no program expects that of a disk");
        assert_eq!(sent(&mut ledger), []);
        assert_eq!(ledger.interrupt(4), None);
        let (frame, told) = ledger.send().expect("an INTERRUPT");
        assert_eq!((frame.number, wire::interrupted(&told)), (3, Some(4)));
        // Over another connection, behind the request.
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(1, 1, true), (2, 1, true), (4, 1, false)]);
        let mut reply = reply(4, -Errno::INTR.raw_os_error(), &[]);
        assert_eq!(ledger.answer(&mut reply), Answered::Kernel(opcode::SETLKW));
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(2, 2, true)]);
        // One that the daemon has not heard of.
        ledger.take(request_with(opcode::SETLKW, 8, 5, &lock(1, 1)));
        assert_eq!(ledger.interrupt(8), Some(bare_reply(8, -Errno::INTR.raw_os_error())));
        assert_eq!(sent(&mut ledger), []);
    }

    #[test]
    fn an_open_without_a_reply_is_not_open_yet() {
        let mut ledger = Ledger::new(7);
        ledger.take(request(opcode::OPEN, 2, 5));
        assert_eq!(ledger.begin(), Hello::new(7, 0).as_bytes());
        assert_eq!(sent(&mut ledger), [(1, 1, false)]);
    }

    #[test]
    fn an_inode_that_lost_its_name_is_answered_for_until_the_kernel_forgets_it() {
        let mut ledger = Ledger::new(7);
        let stale = -Errno::STALE.raw_os_error();
        let attr = AttrOut { ino: 5, mode: 0o10_644, links: 1, ..AttrOut::default() };
        let look = |ledger: &mut Ledger, opcode, body: &[u8], error| {
            ledger.take(request_with(opcode, 2, 5, body));
            match ledger.answer(&mut reply(2, error, &[])) {
                Answered::Instead(reply) => {
                    assert_eq!(reply_bytes(&reply), Some(reply.len()));
                    let (_, out) = ValidAttrOut::read_from_suffix(&reply).expect("attributes");
                    Some((out.attr.mode, out.attr.links, out.attr.uid))
                }
                answered => {
                    assert_eq!(answered, Answered::Kernel(opcode));
                    None
                }
            }
        };
        assert_eq!(look(&mut ledger, opcode::GETATTR, &[], stale), None, "it never had a name");
        let notice =
            [OutHeader { length: 0, error: wire::UNNAMED, unique: 0 }.as_bytes(), attr.as_bytes()];
        assert_eq!(ledger.answer(&mut notice.concat()), Answered::Nothing);
        assert_eq!(look(&mut ledger, opcode::GETATTR, &[], stale), Some((0o10_644, 0, 0)));
        assert_eq!(look(&mut ledger, opcode::GETATTR, &[], -5), None, "another error");
        assert_eq!(look(&mut ledger, opcode::READLINK, &[], stale), None);
        let mut set = SetAttrIn::read_from_bytes(&[0; size_of::<SetAttrIn>()]).expect("zeros");
        (set.valid, set.mode, set.uid) = (valid::MODE | valid::UID, 0o100_600, 9);
        let changed = look(&mut ledger, opcode::SETATTR, set.as_bytes(), stale);
        assert_eq!(changed, Some((0o10_600, 0, 9)), "the type stays");
        let pair = |ino: u64| [ino.to_ne_bytes(), 1_u64.to_ne_bytes()].concat();
        for forgets in [pair(5)[8..].to_vec(), [vec![0; 8], pair(4), pair(5)].concat()] {
            let opcode = if forgets.len() == 8 { opcode::FORGET } else { opcode::BATCH_FORGET };
            ledger.answer(&mut notice.concat());
            assert!(!ledger.take(request_with(opcode, 4, 5, &forgets)));
            assert_eq!(look(&mut ledger, opcode::GETATTR, &[], stale), None, "it is forgotten");
        }
    }
}
