//! The traits that the machine implements, one for each of its parts, in [`crate::real`] and
//! [`crate::sim`].

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
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
    /// For display and records.
    fn wall_clock(&self) -> Timestamp;
    /// Completes after `duration`. Any task may await it, also one after another.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Random numbers, fit for identifiers and keys on the real machine.
pub trait Random: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// A way to open a file.
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

/// The kind of a folder entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Anything else.
    Other,
}

/// Files by path. The code above assumes this of the medium: a write is durable only after
/// `sync_data` (or `write_durable`) has returned; un-synced writes may be lost, in part and in any
/// order, sector (512 bytes) by sector; a name is durable only after `sync_folder` of its folder; a
/// rename is atomic.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open<'a>(&'a self, path: &'a Path, how: Open) -> BoxFuture<'a, io::Result<Arc<dyn File>>>;
    /// Makes a folder and its missing parents.
    fn create_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;
    /// Names in a folder, sorted.
    fn list<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Vec<(String, FileKind)>>>;
    /// Atomically gives the file `from` the name `to`, in place of a file that had that name.
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
    /// Bytes that the medium under `path` writes as one unit: a power cut during a smaller write
    /// may cost the bytes beside it.
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
    /// Writes all of `data`; these bytes (and what is needed to read them back) are durable on
    /// return. Earlier writes need not be.
    fn write_durable<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>>;
    /// As [`File::write_durable`], past the page cache where the file system and the alignment (512
    /// bytes, of the memory too) allow it. That is several times cheaper for much data, and keeps
    /// none of it in memory for readers.
    fn write_direct<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        self.write_durable(data, offset)
    }
    /// As [`File::read_at`], past the page cache where the file system and the alignment allow it
    /// (512 bytes, of the memory too). That spares the processor a copy, and keeps nothing in
    /// memory.
    fn read_direct<'a>(
        &'a self,
        buffer: &'a mut [u8],
        offset: u64,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.read_at(buffer, offset)
    }
    /// Brings a range into memory, because much of it will be read soon in another order. A hint.
    fn read_ahead(&self, _offset: u64, _length: u64) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    /// Makes all earlier writes of this file durable.
    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>>;
    /// Length, bytes.
    fn length(&self) -> BoxFuture<'_, io::Result<u64>>;
    /// Makes the file `length` bytes long, with blocks that are allocated **and written** (zeros),
    /// so that a later durable write inside changes no file-system metadata. Keeps what is there.
    /// Durable on return.
    fn preallocate(&self, length: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Cuts the file, or extends it sparsely.
    fn set_length(&self, length: u64) -> BoxFuture<'_, io::Result<()>>;
    /// Takes the exclusive lock of the file for as long as it is open; `false` when another process
    /// has it.
    fn try_lock(&self) -> io::Result<bool>;
}

/// Memory that outlives the process: a mapped file on tmpfs, a device.
pub trait Memory: Send + Sync {
    /// Maps `length` bytes of the file `path`, made (zeroed, allocated up front so that touching it
    /// cannot fault) or extended as needed. What was there is kept. One mapping at a time: another
    /// process is refused.
    fn map(&self, path: &Path, length: u64) -> io::Result<Arc<dyn Region>>;
    /// Reads the first `bytes` of the file or device at `path`, or fewer, without changing it.
    /// `None` when there is no file, or nothing but zeros.
    fn head(&self, path: &Path, bytes: usize) -> io::Result<Option<Vec<u8>>>;
    /// Removes the file of a mapping; no error when it is absent.
    fn unmap(&self, path: &Path) -> io::Result<()>;
    /// The folder of such files when the configuration names none; `None` when this machine has no
    /// place for them.
    fn default_folder(&self) -> Option<PathBuf>;
    /// Bytes that may still be mapped in the folder of `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
    /// Bytes of the device of memory at a path; `None` for a file, which becomes as long as `map`
    /// asks. An error, which says what to do, for a device that cannot be mapped so that its
    /// content outlives the machine's kernel.
    fn device_bytes(&self, _path: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Returns to the machine the freed memory that the allocator keeps. May take milliseconds.
    fn trim(&self) {}
}

/// A mapped piece of memory. Stable address for its life; unmapped on drop, with its content kept.
pub trait Region: Send + Sync {
    /// Address of the first byte. Code that dereferences it says why no two threads race on the
    /// bytes.
    fn base(&self) -> *mut u8;
    /// Length, bytes.
    fn length(&self) -> usize;
    /// Whether the file has been removed: its content stays for as long as it is open, and the next
    /// start will not find it.
    fn is_removed(&self) -> bool {
        false
    }
}

/// A place to listen at or to connect to: `tcp:HOST:PORT`, `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A byte stream to a client or server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Name of the other end, for messages.
    fn peer(&self) -> String;

    /// Waits a moment for bytes to read, on this thread and without giving the thread up: waking a
    /// thread costs more than many clients need for their next request. Returns at once when the
    /// wait has not been worth it lately. `true` when bytes, or the end of the stream, are there:
    /// the next read then returns them. For a session with a thread of its own that has nothing
    /// else to do.
    fn linger(&mut self) -> bool {
        false
    }

    /// Whether the connection is over in both directions, as far as this end can know. A TCP client
    /// that closes its socket looks like one that only sends no more, at first: after a call, its
    /// kernel is asked, and a later call tells.
    fn is_closed(&self) -> bool;
}

/// A connection that no task uses yet. The task that will use the connection calls the closure,
/// which gives the stream.
pub type Accepted = Box<dyn FnOnce() -> io::Result<Box<dyn Stream>> + Send>;

/// A listening socket.
pub trait Acceptor: Send + Sync {
    /// Waits for the next connection. Call the closure inside the task that will use the stream,
    /// because a stream belongs to the thread (session) or threads (background) where it is made.
    fn accept(&self) -> BoxFuture<'_, io::Result<Accepted>>;
    /// The address of the listener, with the port that was chosen for port 0.
    fn address(&self) -> Address;
}

/// File descriptors of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Number of descriptors that the process may have.
    pub limit: u64,
    /// Number of descriptors that the process has.
    pub open: u64,
}

/// The network.
pub trait Net: Send + Sync {
    /// The file descriptors that connections, files and everything else share.
    fn descriptors(&self) -> Descriptors;
    /// Listens at `address`. A stale Unix socket (no process answers) is replaced; a live one is an
    /// error.
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
    /// See [`crate::Env::spawn_foreground`].
    fn spawn_foreground(&self, name: &'static str, task: Task) -> TaskHandle;
    /// See [`crate::Env::spawn_session`].
    fn spawn_session(&self, name: &'static str, task: Task) -> TaskHandle;
    /// See [`crate::Env::blocking`].
    fn blocking(&self, work: Box<dyn FnOnce() + Send>);
}
