//! Simulated disks.

use super::content::{How, Inode, PAGE_BYTES, Tear};
use super::executor::Delay;
use super::faults::{Cut, Failure, Faults};
use super::names::{Names, key};
use super::state::{Event, Machine, State};
use crate::{BoxFuture, Disk, File, FileKind, Open};
use rekindle_base::checksum::crc32c;
use rekindle_base::random::Random;
use rustix::io::Errno;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Least time between the effect of an operation and its report to the caller.
const TOLD_AFTER: Duration = Duration::from_nanos(1);

pub(super) struct DiskState {
    names: Names,
    pub(super) capacity_bytes: u64,
    used_pages: Arc<AtomicU64>,
}

impl DiskState {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { names: Names::default(), capacity_bytes, used_pages: Arc::default() }
    }

    pub(super) fn cut_power(&mut self, cut: Cut, rng: &mut Random) {
        self.names.cut_power(cut, rng);
        // Files without a name are gone.
        for inode in self.names.files() {
            inode.content.lock().cut_power(cut, rng);
        }
    }

    pub(super) fn flip(&self, path: &Path, offset: u64, mask: u8) -> bool {
        let inode = key(path).and_then(|key| self.names.file(&key));
        inode.is_ok_and(|inode| inode.content.lock().flip(offset, mask))
    }

    pub(super) fn peek(&self, path: &Path) -> Option<Vec<u8>> {
        let inode = self.names.file(&key(path).ok()?).ok()?;
        let content = inode.content.lock();
        let mut bytes = vec![0; usize::try_from(content.length).ok()?];
        content.read(&mut bytes, 0).ok()?;
        Some(bytes)
    }

    /// Bytes of a file that are surely on the medium; `None` when its name is not.
    pub(super) fn durable(&self, path: &Path) -> Option<Vec<u8>> {
        let inode = self.names.durable_file(&key(path).ok()?)?;
        let content = inode.content.lock();
        Some(content.durable())
    }

    /// Files and folders below a folder, by their paths from there; a folder has no bytes.
    pub(super) fn tree(&self, folder: &Path) -> io::Result<Vec<(String, Option<Vec<u8>>)>> {
        self.names.below(&key(folder)?, |inode| {
            let content = inode.content.lock();
            let mut bytes = vec![0; usize::try_from(content.length).expect("a file of a test")];
            content.read(&mut bytes, 0).expect("inside the file");
            bytes
        })
    }

    /// Puts a file at `path`, in place of a file of that name, with its folders and durable.
    pub(super) fn plant(&mut self, path: &Path, bytes: &[u8], number: u64) -> io::Result<()> {
        let key = key(path)?;
        let inode = Inode::new(number, &self.used_pages);
        {
            let mut content = inode.content.lock();
            content.write(bytes, 0, self.capacity_bytes)?;
            content.sync();
        }
        self.names.plant(&key, Some(inode))
    }

    /// Puts a folder at `path`, durable.
    pub(super) fn plant_folder(&mut self, path: &Path) -> io::Result<()> {
        self.names.plant(&key(path)?, None)
    }

    fn free_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_pages.load(Ordering::Relaxed) * PAGE_BYTES)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Name,
    Write,
    Sync,
}

/// The kind and the path of an operation, which decide its faults.
#[derive(Clone, Copy)]
struct Aim<'a> {
    kind: Kind,
    /// Whether the operation needs one more file descriptor.
    opens: bool,
    path: &'a Path,
}

impl Aim<'_> {
    fn of(kind: Kind, path: &Path) -> Aim<'_> {
        Aim { kind, opens: false, path }
    }

    fn opening(self) -> Self {
        Self { opens: true, ..self }
    }

    /// Whether faults are meant for this operation too.
    fn is_meant(self, faults: &Faults) -> bool {
        faults.only.as_ref().is_none_or(|part| self.path.to_string_lossy().contains(&**part))
    }

    /// Draws how the operation of this number fails, if it does. An impossible failure costs no
    /// draw.
    fn failure(self, number: u64, faults: &Faults, rng: &mut Random) -> Option<Failure> {
        if faults.fail_operation == Some(number) {
            return Some(faults.fail_with);
        }
        if !self.is_meant(faults) {
            return None;
        }
        let (error, no_space) = match self.kind {
            Kind::Read => (faults.read_error, 0.0),
            Kind::Name | Kind::Write => (faults.write_error, faults.no_space),
            Kind::Sync => (faults.sync_error, 0.0),
        };
        let opening = |probability: f64| if self.opens { probability } else { 0.0 };
        [
            (error, Failure::Io),
            (no_space, Failure::NoSpace),
            (opening(faults.no_descriptors), Failure::NoDescriptors),
            (opening(faults.no_files), Failure::NoFiles),
            (faults.no_memory, Failure::NoMemory),
        ]
        .into_iter()
        .find_map(|(probability, failure)| rng.chance(probability).then_some(failure))
    }
}

/// Draws the part of a torn write that is done. An impossible part costs no draw.
fn tear(faults: &Faults, rng: &mut Random) -> Tear {
    if rng.chance(faults.torn_whole) {
        Tear::Whole
    } else if rng.chance(faults.torn_sectors) {
        Tear::Sectors
    } else {
        Tear::Prefix
    }
}

/// A disk operation. Its effect comes before or after its delay, at random, so that a crash may
/// find the operation done and not reported, or not done.
struct Operation<'a, T, F: FnOnce(&mut State, How) -> io::Result<T>> {
    machine: &'a Machine,
    aim: Aim<'a>,
    /// For the trace.
    subject: u64,
    detail: u64,
    stage: Stage<T, F>,
}

enum Stage<T, F> {
    New(F),
    Before(F, Delay),
    After(io::Result<T>, Delay),
    Over,
}

impl<T, F: FnOnce(&mut State, How) -> io::Result<T>> Operation<'_, T, F> {
    /// Takes effect, or fails.
    fn perform(&self, state: &mut State, effect: F) -> io::Result<T> {
        state.disk_operations += 1;
        let event = match self.aim.kind {
            Kind::Read => Event::Read,
            Kind::Name => Event::Name,
            Kind::Write => Event::Write,
            Kind::Sync => Event::Sync,
        };
        state.record(event, self.subject, self.detail);
        let number = state.disk_operations;
        let Some(failure) = self.aim.failure(number, &state.faults, &mut state.rng) else {
            return effect(state, How::Whole);
        };
        state.record(Event::Fail, number, 0);
        state.mishaps.failed(failure);
        // Writes and syncs return nothing but their success, so a part of them may be done. Without
        // a descriptor nothing was begun.
        let is_begun = !matches!(failure, Failure::NoDescriptors | Failure::NoFiles);
        if matches!(self.aim.kind, Kind::Write | Kind::Sync) && is_begun {
            let how = if failure == Failure::Io { How::Failed } else { How::Torn };
            let _ = effect(state, how);
        }
        Err(failure.error())
    }
}

impl<T: Unpin, F: FnOnce(&mut State, How) -> io::Result<T> + Unpin> Future for Operation<'_, T, F> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let this = self.get_mut();
        let shared = &this.machine.shared;
        loop {
            match std::mem::replace(&mut this.stage, Stage::Over) {
                Stage::New(effect) => {
                    let mut guard = shared.lock();
                    let state = &mut *guard;
                    this.machine.check_alive(state)?;
                    let latency = state.rng.duration(&state.faults.disk_latency);
                    let delay = Delay::until(shared, state.now + latency);
                    let is_early = state.rng.coin();
                    this.stage = if is_early {
                        Stage::After(this.perform(state, effect), delay)
                    } else {
                        Stage::Before(effect, delay)
                    };
                }
                Stage::Before(effect, mut delay) => {
                    if Pin::new(&mut delay).poll(context).is_pending() {
                        this.stage = Stage::Before(effect, delay);
                        return Poll::Pending;
                    }
                    let mut state = shared.lock();
                    this.machine.check_alive(&state)?;
                    let result = this.perform(&mut state, effect);
                    // Reported in a later step, so that a run may stop in between.
                    this.stage = Stage::After(result, Delay::until(shared, state.now + TOLD_AFTER));
                }
                Stage::After(result, mut delay) => {
                    if Pin::new(&mut delay).poll(context).is_pending() {
                        this.stage = Stage::After(result, delay);
                        return Poll::Pending;
                    }
                    return Poll::Ready(result);
                }
                Stage::Over => panic!("a disk operation was polled after its end"),
            }
        }
    }
}

impl<T, F: FnOnce(&mut State, How) -> io::Result<T>> Drop for Operation<'_, T, F> {
    fn drop(&mut self) {
        let Stage::Before(effect, _delay) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return;
        };
        let result = {
            let mut guard = self.machine.shared.lock();
            let state = &mut *guard;
            let is_dying = self.machine.death(state).is_some();
            let is_alive = self.machine.is_alive(state);
            // An operation of a dead process is not carried out in a later life.
            if !(is_alive || is_dying) || state.rng.coin() {
                return;
            }
            // A cancelled operation does not stop the disk; a crash may stop the disk half-way
            // through a write.
            let is_torn = self.aim.kind == Kind::Write && (is_dying || state.stopped);
            state.record(Event::Interrupt, self.subject, u64::from(is_torn));
            effect(state, if is_torn { How::Torn } else { How::Whole })
        };
        // The result may hold a file, whose drop wants the lock.
        drop(result);
    }
}

impl Machine {
    fn operation<'a, T: Unpin + Send + 'a>(
        &'a self,
        aim: Aim<'a>,
        subject: u64,
        detail: u64,
        effect: impl FnOnce(&mut State, How) -> io::Result<T> + Send + Unpin + 'a,
    ) -> BoxFuture<'a, io::Result<T>> {
        Box::pin(Operation { machine: self, aim, subject, detail, stage: Stage::New(effect) })
    }

    fn name_operation<'a, T: Unpin + Send + 'a>(
        &'a self,
        aim: Aim<'a>,
        effect: impl FnOnce(&mut State, String) -> io::Result<T> + Send + Unpin + 'a,
    ) -> BoxFuture<'a, io::Result<T>> {
        let path = aim.path;
        let subject = u64::from(crc32c(path.as_os_str().as_encoded_bytes()));
        self.operation(aim, subject, 0, move |state, how| match how {
            How::Whole => effect(state, key(path)?),
            // A folder's sync that fails has saved nothing.
            How::Torn | How::Failed => Err(Errno::IO.into()),
        })
    }

    fn open_file(&self, state: &mut State, path: &Path, how: Open) -> io::Result<SimFile> {
        let key = key(path)?;
        let number = state.number();
        let disk = &mut state.hosts[self.host].disk;
        let inode = match (disk.names.file(&key), how) {
            (Ok(_), Open::CreateNew) => return Err(Errno::EXIST.into()),
            (Ok(inode), _) => inode,
            (Err(error), Open::Create | Open::CreateNew)
                if error.kind() == io::ErrorKind::NotFound =>
            {
                let inode = Inode::new(number, &disk.used_pages);
                disk.names.create(key, inode.clone())?;
                inode
            }
            (Err(error), _) => return Err(error),
        };
        let is_writable = how != Open::Read;
        let path = path.to_owned();
        Ok(SimFile { machine: self.clone(), inode, path, handle: number, is_writable })
    }
}

impl Disk for Machine {
    fn open<'a>(&'a self, path: &'a Path, how: Open) -> BoxFuture<'a, io::Result<Arc<dyn File>>> {
        let kind = if matches!(how, Open::Read | Open::Write) { Kind::Read } else { Kind::Name };
        self.name_operation(Aim::of(kind, path).opening(), move |state, _| {
            let file = self.open_file(state, path, how)?;
            Ok(Arc::new(file) as Arc<dyn File>)
        })
    }

    fn create_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.name_operation(Aim::of(Kind::Name, path), |state, key| {
            state.hosts[self.host].disk.names.create_folder(&key)
        })
    }

    fn list<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<Vec<(String, FileKind)>>> {
        self.name_operation(Aim::of(Kind::Read, path).opening(), |state, key| {
            state.hosts[self.host].disk.names.list(&key)
        })
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.name_operation(Aim::of(Kind::Name, from), |state, from| {
            state.hosts[self.host].disk.names.rename(&from, key(to)?)
        })
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.name_operation(Aim::of(Kind::Name, path), |state, key| {
            state.hosts[self.host].disk.names.remove(&key)
        })
    }

    fn sync_folder<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        self.name_operation(Aim::of(Kind::Sync, path).opening(), |state, key| {
            state.hosts[self.host].disk.names.sync_folder(&key)
        })
    }

    fn sector_bytes<'a>(&'a self, _path: &'a Path) -> BoxFuture<'a, u32> {
        let bytes = self.shared.lock().faults.sector_bytes;
        Box::pin(async move { bytes })
    }

    fn free_bytes<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<u64>> {
        self.name_operation(Aim::of(Kind::Read, path), |state, _| {
            Ok(state.hosts[self.host].disk.free_bytes())
        })
    }
}

struct SimFile {
    machine: Machine,
    inode: Arc<Inode>,
    /// The path by which the file was opened.
    path: PathBuf,
    handle: u64,
    is_writable: bool,
}

impl SimFile {
    /// An operation that changes the file.
    fn change<'a>(
        &'a self,
        kind: Kind,
        detail: u64,
        change: impl FnOnce(&mut State, How) -> io::Result<()> + Send + Unpin + 'a,
    ) -> BoxFuture<'a, io::Result<()>> {
        self.machine.operation(
            Aim::of(kind, &self.path),
            self.inode.number,
            detail,
            move |state, how| {
                if !self.is_writable {
                    return Err(Errno::BADF.into());
                }
                change(state, how)
            },
        )
    }

    fn write<'a>(
        &'a self,
        data: &'a [u8],
        offset: u64,
        is_durable: bool,
    ) -> BoxFuture<'a, io::Result<()>> {
        let detail = offset << 32 ^ u64::from(crc32c(data));
        self.change(Kind::Write, detail, move |state, how| {
            let capacity_bytes = state.hosts[self.machine.host].disk.capacity_bytes;
            let mut content = self.inode.content.lock();
            if how != How::Whole {
                let tear = tear(&state.faults, &mut state.rng);
                match tear {
                    Tear::Prefix => state.mishaps.torn_prefix += 1,
                    Tear::Sectors => state.mishaps.torn_sectors += 1,
                    Tear::Whole => state.mishaps.torn_whole += 1,
                }
                content.write_torn(data, offset, capacity_bytes, tear, &mut state.rng);
                if how == How::Failed && is_durable {
                    content.forget_range(offset, data.len());
                }
                return Ok(());
            }
            content.write(data, offset, capacity_bytes)?;
            if is_durable {
                content.settle_range(offset, data.len());
            }
            Ok(())
        })
    }
}

impl File for SimFile {
    fn read_at<'a>(&'a self, buffer: &'a mut [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        let aim = Aim::of(Kind::Read, &self.path);
        self.machine.operation(aim, self.inode.number, offset, move |state, _| {
            self.inode.content.lock().read(buffer, offset)?;
            let is_meant = aim.is_meant(&state.faults) && !buffer.is_empty();
            if is_meant && state.rng.chance(state.faults.read_flip) {
                let index = state.rng.index(buffer.len());
                buffer[index] ^= 1 << state.rng.below(8);
                state.mishaps.read_flips += 1;
            }
            Ok(())
        })
    }

    fn write_at<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        self.write(data, offset, false)
    }

    fn write_durable<'a>(&'a self, data: &'a [u8], offset: u64) -> BoxFuture<'a, io::Result<()>> {
        self.write(data, offset, true)
    }

    fn sync_data(&self) -> BoxFuture<'_, io::Result<()>> {
        // As on the real machine, a handle that only reads may sync, too.
        let aim = Aim::of(Kind::Sync, &self.path);
        self.machine.operation(aim, self.inode.number, 0, move |state, how| {
            let mut content = self.inode.content.lock();
            match how {
                How::Whole => content.sync(),
                How::Torn | How::Failed => content.sync_torn(&mut state.rng),
            }
            content.release_tail();
            Ok(())
        })
    }

    fn length(&self) -> BoxFuture<'_, io::Result<u64>> {
        let (aim, number) = (Aim::of(Kind::Read, &self.path), self.inode.number);
        self.machine.operation(aim, number, 0, move |_, _| Ok(self.inode.content.lock().length))
    }

    fn preallocate(&self, length: u64) -> BoxFuture<'_, io::Result<()>> {
        self.change(Kind::Write, length, move |state, how| {
            let capacity_bytes = state.hosts[self.machine.host].disk.capacity_bytes;
            match how {
                How::Whole => self.inode.content.lock().preallocate(length, capacity_bytes),
                How::Torn | How::Failed => {
                    let mut content = self.inode.content.lock();
                    let missing = length.saturating_sub(content.length);
                    let part = content.length + state.rng.below(missing + 1);
                    content.preallocate(part, capacity_bytes)
                }
            }
        })
    }

    fn set_length(&self, length: u64) -> BoxFuture<'_, io::Result<()>> {
        self.change(Kind::Write, length, move |_, how| match how {
            How::Whole => self.inode.content.lock().set_length(length),
            How::Torn | How::Failed => Ok(()),
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        let state = self.machine.shared.lock();
        self.machine.check_alive(&state)?;
        let mine = (self.machine.life, self.handle);
        let mut content = self.inode.content.lock();
        // A crash ends the locks of the life before.
        let is_free =
            content.lock.is_none_or(|holder| holder == mine || holder.0 != self.machine.life);
        if is_free {
            content.lock = Some(mine);
        }
        Ok(is_free)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut content = self.inode.content.lock();
        if content.lock == Some((self.machine.life, self.handle)) {
            content.lock = None;
        }
    }
}
