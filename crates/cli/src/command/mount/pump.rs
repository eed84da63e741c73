//! The pump of a mount: it carries the kernel's requests to the daemon and the replies back. While
//! no daemon answers, requests wait here; over the next connection they are sent again.

use super::direct;
use super::dying;
use super::ledger::{Answered, Ledger, reply_bytes};
use bytes::{Buf, Bytes, BytesMut};
use rekindle_base::Kind;
use rekindle_front::conn::Pipe;
use rekindle_front::fuse::limits::REQUEST_BYTES_MAX;
use rekindle_front::fuse::wire::{self, OUT_HEADER_BYTES, OutHeader, opcode};
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::sync::Notify;
use zerocopy::IntoBytes;

/// First pause before another attempt to connect, and the longest one; each is twice the one
/// before.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Length up to which a request is copied out of its buffer, bytes. The buffer of a longer one is
/// kept, and the kernel gets another one.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Bytes of requests that are sent together.
const GATHERED_BYTES: usize = 64 << 10;
/// Bytes that are read from a connection at once, at least.
const READ_BYTES: usize = 256 << 10;
/// Pause between two looks at the programs that a signal has met while they wait.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for the replies to what the kernel has asked before its end.
const LAST_REPLIES: Duration = Duration::from_secs(2);

/// What the device tells: a request is there, or the end of the mount, which is an error of it.
const WANTED: Interest = Interest::READABLE.add(Interest::ERROR);

/// The end of a mount where requests come from: the kernel's, or a program's that asks by itself.
pub trait Asker {
    /// Reads a request into an empty buffer. `false`: none will come any more.
    async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<bool>;
    /// Takes a reply.
    fn write(&self, reply: &[u8]);
}

/// The kernel's end: each read gives a request, each write takes a reply.
pub struct Device(AsyncFd<OwnedFd>);

impl Device {
    /// Takes the kernel's end, which does not block.
    pub fn new(device: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` keeps its descriptor open, and gives the same one each time.
        let device = unsafe { AsyncFd::register_with_interest(device, WANTED) }?;
        Ok(Self(device))
    }
}

impl Asker for Device {
    async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let mut ready = self.0.ready(WANTED).await?;
            match rustix::io::read(self.0.get_ref(), spare_capacity(buffer)) {
                // None: the file system is unmounted.
                Ok(count) => return Ok(count > 0),
                Err(Errno::AGAIN) => ready.clear_ready(),
                // The request was taken back.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&self, reply: &[u8]) {
        // An error means that the kernel waits for it no longer.
        let _ = rustix::io::write(self.0.get_ref(), reply);
    }
}

/// The pump of one mount.
pub struct Pump<A> {
    asker: A,
    ledger: RefCell<Ledger>,
    /// Rung when there is something to send.
    news: Notify,
    /// Rung when a reply has come.
    replied: Notify,
    /// The kernel's numbers of requests whose programs a signal has met, and a bell for the first.
    interrupted: RefCell<Vec<u64>>,
    signalled: Notify,
    /// Replies that give locks of inodes, each with its time, and a bell for the first.
    held_back: RefCell<VecDeque<(Instant, u64, Vec<u8>)>>,
    has_held_back: Notify,
    /// Whether a thread is about to die.
    is_dying: fn(u32) -> bool,
    /// Rung when the kernel knows the file system.
    pub ready: Notify,
    /// Rung to give the file system up: no further request is taken.
    pub leave: Notify,
    /// Whether the present connection has brought a reply.
    is_useful: Cell<bool>,
    /// Whether the file system is unmounted.
    is_over: Cell<bool>,
}

impl<A: Asker> Pump<A> {
    /// Begins a mount with a number that is drawn at random.
    pub fn new(asker: A, client: u64) -> Self {
        Self {
            asker,
            ledger: RefCell::new(Ledger::new(client)),
            news: Notify::new(),
            replied: Notify::new(),
            interrupted: RefCell::default(),
            signalled: Notify::new(),
            held_back: RefCell::default(),
            has_held_back: Notify::new(),
            is_dying: dying::is_dying,
            ready: Notify::new(),
            leave: Notify::new(),
            is_useful: Cell::new(false),
            is_over: Cell::new(false),
        }
    }

    /// Runs until the file system is unmounted, or the volume is no more. `connect` makes another
    /// connection.
    pub async fn run<P: Pipe>(&self, first: P, connect: impl AsyncFn() -> Outcome<P>) -> Outcome {
        tokio::select! {
            biased;
            // What the daemon says of a mount that is over is no error of it.
            failed = self.keep(first, connect) => if self.is_over.get() { Ok(()) } else { Err(failed) },
            ended = self.take_requests() => {
                ended.map_err(|error| Failure::new("the kernel's requests cannot be read").because(error))
            }
            never = self.let_die() => match never {},
            never = self.give_locks() => match never {},
        }
    }

    /// Lets programs die that wait here: the kernel does so only once their requests have a reply.
    /// A program that goes on after its signal waits on, since it expects no `EINTR` of a disk.
    async fn let_die(&self) -> std::convert::Infallible {
        loop {
            if self.interrupted.borrow().is_empty() {
                self.signalled.notified().await;
            }
            self.interrupted.borrow_mut().retain(|unique| {
                let waiter = self.ledger.borrow().waiter(*unique);
                let dies = waiter.is_some_and(self.is_dying);
                if dies {
                    self.ledger.borrow_mut().give_up(*unique);
                    let (length, error) = (OUT_HEADER_BYTES as u32, -Errno::INTR.raw_os_error());
                    let head = OutHeader { length, error, unique: *unique };
                    self.asker.write(head.as_bytes());
                }
                waiter.is_some() && !dies
            });
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes requests until the file system is unmounted or given up, and their replies have come.
    async fn take_requests(&self) -> io::Result<()> {
        let room = REQUEST_BYTES_MAX as usize;
        let mut buffer = Vec::with_capacity(room);
        let next = async |buffer: &mut _| {
            tokio::select! {
                read = self.asker.read(buffer) => read,
                () = self.leave.notified() => Ok(false),
            }
        };
        while next(&mut buffer).await? {
            let request = if buffer.len() <= COPIED_BYTES_MAX {
                Bytes::copy_from_slice(&buffer)
            } else {
                std::mem::replace(&mut buffer, Vec::with_capacity(room)).into()
            };
            buffer.clear();
            if let Some(unique) = wire::interrupted(&request) {
                if let Some(reply) = self.ledger.borrow_mut().interrupt(unique) {
                    self.asker.write(&reply);
                }
                self.interrupted.borrow_mut().push(unique);
                self.signalled.notify_one();
                self.news.notify_one();
            }
            if let Some(reply) = self.ledger.borrow().answer_at_once(&request) {
                self.asker.write(&reply);
                continue;
            }
            if self.ledger.borrow_mut().take(request) {
                self.news.notify_one();
            }
        }
        self.is_over.set(true);
        self.ledger.borrow_mut().say_goodbye();
        self.news.notify_one();
        let all = async {
            while !self.ledger.borrow().is_quiet() {
                self.replied.notified().await;
            }
        };
        // The daemon closes what is open after a while, if it is not told now.
        let _ = tokio::time::timeout(LAST_REPLIES, all).await;
        Ok(())
    }

    /// Keeps a connection to the daemon. Returns the reason why there can be none any more.
    async fn keep<P: Pipe>(&self, first: P, connect: impl AsyncFn() -> Outcome<P>) -> Failure {
        let mut pipe = first;
        let mut pause = PAUSE;
        loop {
            self.is_useful.set(false);
            let lost = self.carry(pipe).await;
            let since = Instant::now();
            let mut is_told = false;
            if self.is_useful.get() {
                pause = PAUSE;
            } else {
                tokio::time::sleep(pause).await;
            }
            pipe = loop {
                pause = (pause * 2).min(PAUSE_MAX);
                match connect().await {
                    Ok(pipe) => break pipe,
                    Err(failure) if is_final(&failure) => return failure,
                    Err(failure) => {
                        if !std::mem::replace(&mut is_told, true) {
                            let cause = lost.as_ref().map_or_else(
                                |error| error.to_string(),
                                |()| "it hung up".to_owned(),
                            );
                            output::tell(&away(&cause, &failure));
                        }
                        tokio::time::sleep(pause).await;
                    }
                }
            };
            let took = since.elapsed().as_millis();
            output::tell(&format!("rekindle: the daemon is back after {took} ms"));
        }
    }

    /// Carries requests and replies over one connection, until that ends.
    async fn carry(&self, pipe: impl Pipe) -> io::Result<()> {
        let (reader, writer) = tokio::io::split(pipe);
        tokio::select! {
            biased;
            received = self.receive(reader) => received,
            sent = self.send(writer) => sent,
        }
    }

    async fn send(&self, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
        let mut gathered = self.ledger.borrow_mut().begin();
        loop {
            let next = self.ledger.borrow_mut().send();
            if let Some((frame, request)) = next {
                gathered.extend_from_slice(frame.as_bytes());
                if request.len() > COPIED_BYTES_MAX {
                    writer.write_all_buf(&mut Buf::chain(&gathered[..], request)).await?;
                    gathered.clear();
                } else {
                    gathered.extend_from_slice(&request);
                }
                if gathered.len() < GATHERED_BYTES {
                    continue;
                }
            }
            if !gathered.is_empty() {
                writer.write_all(&gathered).await?;
                gathered.clear();
                continue;
            }
            writer.flush().await?;
            self.news.notified().await;
        }
    }

    async fn receive(&self, mut reader: impl AsyncRead + Unpin) -> io::Result<()> {
        // Room for the longest reply and what follows it: the buffer never grows, which would copy.
        let room = REQUEST_BYTES_MAX as usize + READ_BYTES;
        let mut bytes = BytesMut::with_capacity(room);
        loop {
            while let Some(length) = reply_bytes(&bytes) {
                if length > REQUEST_BYTES_MAX as usize {
                    return Err(io::Error::other("the daemon sent what is no reply"));
                }
                if bytes.len() < length {
                    break;
                }
                self.reply(&mut bytes[..length]);
                bytes.advance(length);
            }
            // A reply that has begun is moved to the front when its end does not fit in behind it.
            let length = reply_bytes(&bytes).unwrap_or(0).max(READ_BYTES);
            bytes.reserve(length.saturating_sub(bytes.len()).max(1));
            if reader.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Gives the locks whose replies are held back, each at its time.
    async fn give_locks(&self) -> std::convert::Infallible {
        loop {
            let first = self.held_back.borrow_mut().pop_front();
            match first {
                Some((until, ino, reply)) => {
                    tokio::time::sleep_until(until.into()).await;
                    self.give_lock(ino, &reply);
                }
                None => self.has_held_back.notified().await,
            }
        }
    }

    fn give_lock(&self, ino: u64, reply: &[u8]) {
        // The kernel looks at the file anew, and drops its pages if that has changed: a program
        // sees what was written under the lock before its own.
        self.asker.write(&wire::attributes_are_old(ino));
        self.asker.write(reply);
    }

    fn reply(&self, reply: &mut [u8]) {
        self.is_useful.set(true);
        let answered = self.ledger.borrow_mut().answer(reply);
        if answered == Answered::Direct {
            direct::set(reply);
        }
        let opens =
            matches!(answered, Answered::Direct | Answered::Kernel(opcode::OPEN | opcode::CREATE));
        if opens && let Some(handle) = self.ledger.borrow_mut().handle() {
            direct::have_flushed(reply, handle);
        }
        match &answered {
            Answered::Kernel(_) | Answered::Direct => self.asker.write(reply),
            Answered::Locked(ino, None) => self.give_lock(*ino, reply),
            Answered::Locked(ino, Some(until)) => {
                self.held_back.borrow_mut().push_back((*until, *ino, reply.to_vec()));
                self.has_held_back.notify_one();
            }
            Answered::Instead(other) => self.asker.write(other),
            Answered::Own | Answered::Nothing => {}
        }
        if answered == Answered::Kernel(opcode::INIT) {
            self.ready.notify_one();
        }
        self.replied.notify_one();
    }
}

/// Says why requests wait, and what to do about it.
fn away(cause: &str, failure: &Failure) -> String {
    let error = &failure.error;
    match &failure.next {
        Some(next) if failure.kind == Kind::Damaged.to_string() => {
            format!("rekindle: the volume cannot be served now ({error}): requests wait; {next}")
        }
        _ => format!("rekindle: the daemon is away ({cause}; {error}): requests wait"),
    }
}

/// Whether another attempt cannot help: the volume is not there, or of another kind.
fn is_final(failure: &Failure) -> bool {
    [Kind::NotFound, Kind::Unsupported, Kind::Invalid]
        .iter()
        .any(|kind| failure.kind == kind.to_string())
}

#[cfg(test)]
mod tests;
