//! What each part of the machine must offer. One trait a part; [`crate::real`] and [`crate::sim`] implement them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::{Add, Sub};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// A future in a box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A point of monotonic time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// Time from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, later: Duration) -> Moment {
        Moment(self.0 + later)
    }
}
impl Sub<Moment> for Moment {
    type Output = Duration;
    fn sub(self, earlier: Moment) -> Duration {
        self.since(earlier)
    }
}

/// Wall-clock time, microseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

/// Time.
pub trait Clock: Send + Sync {
    /// Monotonic; cheap enough for every request.
    fn now(&self) -> Moment;
    /// For people and records.
    fn wall_clock(&self) -> Timestamp;
    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Random numbers, fit for identifiers and keys on the real machine.
pub trait Random: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// For reading; it must exist.
    Read,
    /// For reading and writing; it must exist.
    Write,
    /// For reading and writing; made if absent.
    Create,
    /// For reading and writing; it must not exist.
    CreateNew,
}

/// What a folder entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Anything else.
    Other,
}

/// Files by path. What is assumed of the medium: a write is durable only after `sync_data` (or `write_durable`) has
/// returned; un-synced writes may be lost, in part and in any order, sector (512 bytes) by sector; a name is durable
/// only after `sync_folder` of its folder; a rename is atomic.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open<'a>(&'a self, path: &'a Path, how: Open) -> BoxFuture<'a, io::Result<Arc<dyn File>>>;
    /// Makes a folder and those above it.
    fn create_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Names in a folder, sorted.
    fn list<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Vec<(String, FileKind)>>>;
    /// Atomically gives `from` the name `to`, replacing what had it.
    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Removes a file.
    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Makes the names in a folder durable.
    fn sync_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Bytes that may still be written on the file system of `path`.
    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>>;
    /// Bytes that the files below a folder take on the medium, as `du` counts them.
    fn taken_bytes<'a>(&'a self, _folder: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
    /// What the medium under `path` writes as one, bytes: a write of less may cost, in a power cut, what lies beside it.
    fn sector_bytes<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, u32> {
        Box::pin(async { 512 })
    }
}

/// An open file. Calls on one file may overlap; a write and a read of the same bytes may then mix.
pub trait File: Send + Sync {
    /// Fills `buffer` from `offset`; an error (`UnexpectedEof`) where the file is shorter.
    fn read_at<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> BoxFuture<'a, io::Result<()>>;
    /// Writes all of `data`; durable only after a sync.
    fn write_at<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>>;
    /// Writes all of `data`; these bytes (and what is needed to read them back) are durable on return. Says nothing
    /// of earlier writes.
    fn write_durable<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>>;
    /// As [`File::write_durable`], past the page cache where file system and alignment (512 bytes, of the memory too) allow
    /// it: several times cheaper for much data, and none of it is kept in memory for readers.
    fn write_direct<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        self.write_durable(data, offset)
    }
    /// Brings a range into memory, because much of it will be read soon in another order. A hint.
    fn read_ahead(&self, _offset: u64, _length: u64) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    /// Makes all earlier writes of this file durable.
    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>>;
    /// Length, bytes.
    fn length(&self) -> BoxFuture<'_, io::Result<u64>>;
    /// Makes the file `length` bytes long, with blocks that are allocated **and written** (zeros), so that a later
    /// durable write inside changes no file-system metadata. Keeps what is there. Durable on return.
    fn preallocate(&self, length: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Cuts or extends (sparsely).
    fn set_length(&self, length: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Takes the exclusive lock of the file for as long as it is open; `false` when another process has it.
    fn try_lock(&self) -> io::Result<bool>;
}

/// Memory that outlives the process: a mapped file on tmpfs, a device.
pub trait Memory: Send + Sync {
    /// Maps `length` bytes of the file `path`, made (zeroed, allocated up front so that touching it cannot fault) or
    /// extended as needed. What was there is kept. One mapping at a time: another process is refused.
    fn map(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Region>>;
    /// The first `bytes` of what lies at a path, or fewer, looked at without changing it; `None` when nothing lies there:
    /// no file, or zeros alone.
    fn head(&self, path: &Path, bytes: usize) -> io::Result<Option<Vec<u8>>>;
    /// Removes such a file; no error when it is absent.
    fn unmap(&self, path: &Path) -> io::Result<()>;
    /// Where such files go when nobody says otherwise, if this machine has a place for them.
    fn default_folder(&self) -> Option<PathBuf>;
    /// Bytes that may still be mapped in the folder of `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
    /// Bytes of a device of memory, which are given; `None` for a file, which gets as long as is asked. An error, which
    /// says what to do, for a device that cannot be mapped so that what is written outlives the machine's kernel.
    fn device_bytes(&self, _path: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Gives the machine what the allocator keeps of memory that was freed. May take milliseconds.
    fn trim(&self) {}
}

/// A mapped piece of memory. Stable address for its life; unmapped on drop, with its content kept.
pub trait Region: Send + Sync {
    /// First byte. Whoever dereferences it says why no two threads race on the bytes.
    fn base(&self) -> *mut u8;
    /// Bytes.
    fn length(&self) -> usize;
    /// Whether somebody has removed the file: what is mapped stays as it is for as long as it is open, and the next start
    /// will not find it.
    fn is_removed(&self) -> bool {
        false
    }
}

/// Where to listen or connect: `tcp:HOST:PORT`, `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A byte stream to a client or server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Who is at the other end, for messages.
    fn peer(&self) -> String;

    /// Waits a moment, on this thread and without giving it up, for bytes to read: waking up a thread costs more than
    /// many a client needs for its next request. Only while that has been worth it lately. Whether there are bytes now,
    /// or an end; the next read then gives them. For a session with a thread of its own that has nothing else to do.
    fn linger(&mut self) -> bool {
        false
    }
}

/// A connection that nobody uses yet: called inside the task that will use it, it gives the stream.
pub type Accepted = Box<dyn FnOnce() -> io::Result<Box<dyn Stream>> + Send>;

/// A listening socket.
pub trait Acceptor: Send + Sync {
    /// The next connection. Call the closure inside the task that will use the stream, because a stream belongs to
    /// the thread (session) or threads (background) where it is made.
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>>;
    /// Where it listens (with the port that was chosen for port 0).
    fn address(&self) -> Address;
}

/// File descriptors of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// How many it may have.
    pub limit: u64,
    /// How many it has.
    pub open: u64,
}

/// The network.
pub trait Net: Send + Sync {
    /// The file descriptors that connections, files and everything else share.
    fn descriptors(&self) -> Descriptors;
    /// Listens. A stale Unix socket (nobody answers) is replaced; a live one is an error.
    fn listen<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Acceptor>>>;
    /// Connects.
    fn connect<'a>(&'a self, address: &'a Address) -> BoxFuture<'a, io::Result<Box<dyn Stream>>>;
}

/// A task, unstarted.
pub type Task = BoxFuture<'static, ()>;

/// A started task.
pub struct TaskHandle {
    abort: Box<dyn Fn() + Send + Sync>,
}

impl TaskHandle {
    /// A handle that aborts by calling `abort`.
    #[must_use]
    pub fn new(abort: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { abort }
    }

    /// Ends the task at its next suspension.
    pub fn abort(&self) {
        (self.abort)();
    }
}

/// Tasks and threads.
pub trait Tasks: Send + Sync {
    /// See [`crate::Env::spawn`].
    fn spawn(&self, name: &'static str, task: Task) -> TaskHandle;
    /// See [`crate::Env::spawn_session`].
    fn spawn_session(&self, name: &'static str, task: Task) -> TaskHandle;
    /// See [`crate::Env::blocking`].
    fn blocking(&self, work: Box<dyn FnOnce() + Send>);
}
