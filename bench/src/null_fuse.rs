//! A FUSE file system that does nothing: one file, whose bytes are all zero and to which writes are
//! forgotten. What the kernel and its device cost, any file system of this kind costs.

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Longest data of a request, as ours has it.
const DATA_BYTES: usize = 1 << 20;
/// Threads that answer: as many requests are under way.
const THREADS: usize = 2;
/// The inodes: the root, and the file.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// What ours asks the kernel for, and bears on bytes: asynchronous reads, large writes and
/// requests, pages that go by the times, set-user-id bits that the server takes away.
const FLAGS: u32 = 1 | 1 << 5 | 1 << 12 | 1 << 22 | 1 << 28;
const READ_AHEAD_KIB: &str = "2048";
/// Length of the heads of requests and of their replies (`linux/fuse.h`).
const HEAD_BYTES: usize = 40;
const REPLY_BYTES: usize = 16;

/// A mount; its drop takes it away.
pub struct NullFuse {
    folder: PathBuf,
}

impl NullFuse {
    /// Mounts the file system; its file has so many bytes.
    pub fn mount(folder: &Path, bytes: u64) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).context("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,max_read={DATA_BYTES}",
            device.as_raw_fd()
        );
        let options = CString::new(options)?;
        rustix::mount::mount("null", folder, "fuse.null", MountFlags::empty(), &*options)
            .context("a mount needs root")?;
        let mount = Self { folder: folder.to_owned() };
        let device = Arc::new(device);
        for _ in 0..THREADS {
            let device = device.clone();
            std::thread::spawn(move || serve(&device, bytes));
        }
        let number = rustix::fs::stat(folder)?.st_dev;
        let number = (rustix::fs::major(number), rustix::fs::minor(number));
        let setting = format!("/sys/class/bdi/{}:{}/read_ahead_kb", number.0, number.1);
        std::fs::write(setting, READ_AHEAD_KIB)?;
        Ok(mount)
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join("file")
    }
}

impl Drop for NullFuse {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

/// Answers requests until the mount is gone.
fn serve(device: &OwnedFd, bytes: u64) {
    let (mut request, zeros) = (vec![0; DATA_BYTES + 4096], vec![0; DATA_BYTES]);
    loop {
        let length = match rustix::io::read(device, &mut request[..]) {
            Ok(length) => length,
            // The program that waited was interrupted.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
            Err(_) => return,
        };
        let answered = answer(&request[..length], bytes, &zeros).and_then(|body| {
            let Some(body) = body else { return Ok(()) };
            let (error, body) = body.as_ref().map_or_else(|errno| (*errno, &[][..]), |b| (0, b));
            let mut head = Vec::with_capacity(REPLY_BYTES);
            head.extend(u32::try_from(REPLY_BYTES + body.len())?.to_ne_bytes());
            head.extend((-error).to_ne_bytes());
            head.extend(&request[8..16]);
            // A program that gave up wants no reply.
            let _ = rustix::io::writev(device, &[IoSlice::new(&head), IoSlice::new(body)]);
            Ok(())
        });
        if let Err(error) = answered {
            eprintln!("null FUSE: {error:#}");
            return;
        }
    }
}

type Body<'a> = std::result::Result<std::borrow::Cow<'a, [u8]>, i32>;

/// Returns the reply to a request, if it gets one: its body, or an error.
fn answer<'a>(request: &[u8], bytes: u64, zeros: &'a [u8]) -> Result<Option<Body<'a>>> {
    ensure!(request.len() >= HEAD_BYTES, "a request of {} bytes", request.len());
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four"));
    let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight"));
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let ino = long(16);
    let body: Vec<u8> = match word(4) {
        // FORGET, INTERRUPT, BATCH_FORGET
        2 | 36 | 42 => return Ok(None),
        // LOOKUP: the inode and its attributes, believed for a second.
        1 => [words(&[2, 0, 0, 0, 1, 0, 1, 0, 0, 0]), attributes(FILE, bytes)].concat(),
        // GETATTR, SETATTR
        3 | 4 => [words(&[1, 0, 0, 0]), attributes(ino, bytes)].concat(),
        // OPEN, OPENDIR: no FLUSH, and pages are kept.
        14 | 27 => words(&[0, 0, 1 << 1 | 1 << 5, 0]),
        // READ
        15 => {
            let (offset, length) = (long(HEAD_BYTES + 8), u64::from(word(HEAD_BYTES + 16)));
            let there = length.min(bytes.saturating_sub(offset));
            return Ok(Some(Ok(zeros[..usize::try_from(there)?].into())));
        }
        // WRITE
        16 => words(&[word(HEAD_BYTES + 16), 0]),
        // RELEASE, FSYNC, FLUSH, RELEASEDIR, ACCESS
        18 | 20 | 25 | 29 | 34 => Vec::new(),
        // INIT: of version 7.31.
        26 => {
            let data = DATA_BYTES as u32;
            let offered = word(HEAD_BYTES + 12);
            let pages = data / 4096;
            let mut body: Vec<u8> = words(&[7, 31, data, offered & FLAGS]);
            body.extend(64_u16.to_ne_bytes());
            body.extend(48_u16.to_ne_bytes());
            body.extend(words(&[data, 1, pages]) as Vec<u8>);
            body.resize(64, 0);
            body
        }
        _ => return Ok(Some(Err(Errno::NOSYS.raw_os_error()))),
    };
    Ok(Some(Ok(body.into())))
}

/// The attributes of an inode: `struct fuse_attr`.
fn attributes(ino: u64, bytes: u64) -> Vec<u8> {
    let (mode, size) = if ino == ROOT { (0o040_755, 0) } else { (0o100_644, bytes) };
    let mut body = Vec::new();
    for long in [ino, size, size / 512, 0, 0, 0] {
        body.extend(u64::to_ne_bytes(long));
    }
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        body.extend(u32::to_ne_bytes(word));
    }
    body
}
