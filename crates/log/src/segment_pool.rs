//! Free files and slots, from which segments are made and to which they go back.

use crate::Error;
use crate::format::{ENTRY_BYTES, FOOT_BYTES, KnownEnd, SegmentHeader};
use crate::limits::{EXHAUSTED_RETRY, FILES_RESERVED, FULL_RETRY, SECTOR_BYTES};
use parking_lot::Mutex;
use rekindle_base::NodeId;
use rekindle_env::{Env, File, Open};
use rekindle_warm::Arena;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

pub(crate) struct SegmentPool {
    pub(crate) env: Env,
    pub(crate) folder: PathBuf,
    pub(crate) node: NodeId,
    /// Bytes of a segment.
    pub(crate) capacity: u32,
    /// Batches begin and end on multiples of this, bytes.
    pub(crate) sector: u32,
    /// How far the open segment of the last life was durable, as that life has recorded it.
    pub(crate) known_end: Option<KnownEnd>,
    /// Its slots come back by themselves when their last holders are dropped.
    pub(crate) arena: Arena,
    files: Mutex<Files>,
    /// Whether a task is making files; one at a time.
    making: AtomicBool,
    /// The error that ended the last attempt to make a file.
    trouble: Mutex<Option<io::Error>>,
    /// The reason why a head that is needed waits for a file.
    wait: Mutex<Option<String>>,
    /// Rung when a file has come back, or when making a file has ended.
    changed: Notify,
}

struct Files {
    /// Preallocated files that are not part of the log.
    free: Vec<u32>,
    next: u32,
}

/// Clears the `making` flag on drop, so that a cancelled task clears it too.
struct Making(Arc<SegmentPool>);

impl Drop for Making {
    fn drop(&mut self) {
        self.0.making.store(false, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl SegmentPool {
    pub(crate) fn new(env: Env, folder: PathBuf, node: NodeId, arena: Arena) -> SegmentPool {
        SegmentPool {
            env,
            folder,
            node,
            capacity: arena.slot_bytes(),
            sector: SECTOR_BYTES,
            known_end: None,
            arena,
            files: Mutex::new(Files { free: Vec::new(), next: 1 }),
            making: AtomicBool::new(false),
            trouble: Mutex::new(None),
            wait: Mutex::new(None),
            changed: Notify::new(),
        }
    }

    /// What is known of the end of the segment with this header; nothing is, if it was not the open
    /// one.
    pub(crate) fn known_end_of(&self, header: &SegmentHeader) -> KnownEnd {
        let SegmentHeader { node, segment, birth, .. } = *header;
        let is_it = |known: &KnownEnd| {
            // A segment ends with its foot, and an entry takes room.
            let may_be = known.durable <= header.capacity.saturating_sub(FOOT_BYTES)
                && known.changes <= known.durable / ENTRY_BYTES;
            (known.segment, known.birth) == (segment, birth) && may_be
        };
        let unknown = KnownEnd { node, segment, birth, durable: 0, changes: 0 };
        self.known_end.filter(is_it).unwrap_or(unknown)
    }

    /// Records which file numbers are free, and the next number to make.
    pub(crate) fn stock(&self, free: Vec<u32>, next: u32) {
        let mut files = self.files.lock();
        // The smallest number is used first: files stay few and recently used.
        files.free = free;
        files.free.sort_unstable_by(|a, b| b.cmp(a));
        files.next = next;
    }

    pub(crate) fn give_back(&self, file: u32) {
        self.files.lock().free.push(file);
        self.changed.notify_waiters();
    }

    /// The reason why a head waits for a file, if one does.
    pub(crate) fn why_it_waits(&self) -> Option<String> {
        self.wait.lock().clone()
    }

    pub(crate) fn path(&self, file: u32) -> PathBuf {
        self.folder.join(format!("{file:08}.seg"))
    }

    pub(crate) fn flash_error(&self, doing: &str, error: &io::Error) -> Error {
        Error::Flash {
            folder: self.folder.display().to_string(),
            reason: format!("{doing}: {error}"),
        }
    }

    pub(crate) fn write_error(&self, error: &io::Error) -> Error {
        self.flash_error("writing a segment", error)
    }

    /// Count of the free files.
    pub(crate) fn free_files(&self) -> usize {
        self.files.lock().free.len()
    }

    /// Makes the files that are kept for a full disk; `false` when that is not possible now.
    pub(crate) async fn reserve(self: &Arc<Self>) -> bool {
        self.trouble.lock().take();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.files.lock().free.len() >= FILES_RESERVED {
                return true;
            }
            if self.trouble.lock().is_some() {
                return false;
            }
            self.make_files(FILES_RESERVED, u32::MAX);
            changed.await;
        }
    }

    /// Wakes the tasks that wait for a file: they may have to leave fewer than before.
    pub(crate) fn look_again(&self) {
        self.changed.notify_waiters();
    }

    /// Takes a file that is not part of the log, and makes one when no more than `leave` are free
    /// (asked again after each change). If `patient`, a call on a full file system waits for a
    /// segment to be freed, and tries again now and then.
    pub(crate) async fn take_file(
        self: &Arc<Self>,
        patient: bool,
        leave: impl Fn() -> usize,
    ) -> Result<u32, Error> {
        // An earlier error, ahead of need, may be over.
        self.trouble.lock().take();
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let leave = leave();
            {
                let mut files = self.files.lock();
                if files.free.len() > leave {
                    self.wait.lock().take();
                    return Ok(files.free.pop().expect("more than some"));
                }
            }
            let trouble = self.trouble.lock().take();
            match trouble {
                None => {
                    self.make_files(leave + 1, u32::MAX);
                    changed.await;
                }
                Some(error) if patient && is_exhaustion(&error) => {
                    tracing::warn!(folder = %self.folder.display(), %error, "no other segment file can be made now: waiting");
                    *self.wait.lock() = Some(error.to_string());
                    let _ = self.env.timeout(FULL_RETRY, changed).await;
                }
                Some(error) => return Err(self.flash_error("making a segment file", &error)),
            }
        }
    }

    /// Makes files until `free` are free, or `altogether_max` exist. In the background: zeros are
    /// written and synced, which takes longer than a client should wait.
    pub(crate) fn make_files(self: &Arc<Self>, free: usize, altogether_max: u32) {
        let is_missing = move |pool: &Self| {
            let files = pool.files.lock();
            files.free.len() < free && files.next <= altogether_max
        };
        if !is_missing(self) || self.making.swap(true, Ordering::AcqRel) {
            return;
        }
        let making = Making(Arc::clone(self));
        // On a thread of its own: the opening of a head may wait for the file.
        self.env.spawn_session("log-preallocate", async move {
            let pool = &making.0;
            while is_missing(pool) {
                if let Err(error) = pool.make_file().await {
                    let mut trouble = pool.trouble.lock();
                    if trouble.is_none() {
                        tracing::warn!(%error, "a segment file could not be made");
                    }
                    *trouble = Some(error);
                    return;
                }
            }
        });
    }

    /// Makes one more file.
    async fn make_file(&self) -> io::Result<()> {
        let number = {
            let mut files = self.files.lock();
            files.next += 1;
            files.next - 1
        };
        let path = self.path(number);
        let made = async {
            let file = self.env.disk().open(&path, Open::Create).await?;
            file.preallocate(u64::from(self.capacity)).await?;
            self.env.disk().sync_folder(&self.folder).await
        };
        if let Err(error) = made.await {
            // Half a file is useless. One that cannot be removed does no harm: the next attempt
            // takes its number.
            let _ = self.env.disk().remove(&path).await;
            self.files.lock().next = number;
            return Err(error);
        }
        // Taken last: recently used files are in the page cache.
        self.files.lock().free.insert(0, number);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Removes a file that is no good any more, instead of reusing its blocks as they are. The
    /// removal is durable: no power cut brings the name back.
    pub(crate) async fn remove(&self, file: u32) {
        let removed = async {
            self.env.disk().remove(&self.path(file)).await?;
            self.env.disk().sync_folder(&self.folder).await
        };
        if let Err(error) = removed.await
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file, %error, "a segment file that cannot be read was not removed");
        }
    }

    /// Removes a file as [`SegmentPool::remove`] does, without waiting.
    pub(crate) fn remove_soon(self: &Arc<Self>, file: u32) {
        let pool = Arc::clone(self);
        self.env.spawn("log-remove", async move { pool.remove(file).await });
    }

    /// Waits a while when `error` says that room, memory or descriptors are exhausted, which other
    /// users may give back. That is no error of the device, and a retry loses nothing. Returns any
    /// other error.
    pub(crate) async fn ride_out(&self, error: io::Error) -> io::Result<()> {
        if !is_exhaustion(&error) {
            return Err(error);
        }
        tracing::warn!(folder = %self.folder.display(), %error, "the log waits");
        metrics::counter!("rekindle_log_exhausted_total").increment(1);
        self.env.sleep(EXHAUSTED_RETRY).await;
        Ok(())
    }

    pub(crate) async fn open(&self, file: Option<u32>, how: Open) -> io::Result<Arc<dyn File>> {
        let path = self.path(file.ok_or(io::ErrorKind::NotFound)?);
        loop {
            match self.env.disk().open(&path, how).await {
                Ok(file) => return Ok(file),
                Err(error) => self.ride_out(error).await?,
            }
        }
    }

    /// Fills `bytes` from `offset` of `file`.
    pub(crate) async fn read(
        &self,
        file: &dyn File,
        bytes: &mut [u8],
        offset: u32,
    ) -> io::Result<()> {
        loop {
            match file.read_at(bytes, u64::from(offset)).await {
                Ok(()) => return Ok(()),
                Err(error) => self.ride_out(error).await?,
            }
        }
    }

    pub(crate) async fn open_to_write(&self, file: u32) -> Result<Arc<dyn File>, Error> {
        let opened = self.open(Some(file), Open::Write).await;
        opened.map_err(|error| self.flash_error("opening a segment file", &error))
    }

    /// Opens a segment's file to read it. Not kept open: a large log has more segments than a
    /// process may have open files.
    pub(crate) async fn open_to_read(&self, file: Option<u32>) -> Result<Arc<dyn File>, Error> {
        let opened = self.open(file, Open::Read).await;
        opened.map_err(|error| self.flash_error("opening a segment file", &error))
    }
}

/// Whether an error reports exhaustion: of the process, the machine or the file system, not of the
/// device.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    /// ENFILE, EMFILE: `io::ErrorKind` has no kind for them.
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    let kind = matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::OutOfMemory
            // Beyond the limit of this process (ulimit -f).
            | io::ErrorKind::FileTooLarge
    );
    kind || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}
