//! Trees of files, into file systems and out of them. No mount is needed: the command asks the
//! daemon itself, many files at a time.

mod export;
mod import;
mod remote;

use super::{LOOK, now};
use crate::arguments::{Common, ExportTree, ImportTree};
use crate::client::volume_path;
use crate::command::client;
use crate::command::mount::pump::Pump;
use crate::command::mount::{Door, check, random};
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_front::fuse::wire::AttrOut;
use rekindle_front::http::api::Volume;
use rekindle_supervise::signals::StopSignals;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use remote::{ROOT, Remote, type_of};
use rustix::fs::FileType;
use rustix::io::Errno;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

/// The extended attributes that have access control lists.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Files that are copied at a time, and pieces of each.
const FILES_AT_ONCE: usize = 32;
const PIECES_AT_ONCE: usize = 4;
/// Entries that were left out and are named on the terminal.
const NAMED_MAX: usize = 10;

/// The folder of the snapshots, in the root of a file system.
const SNAPSHOTS: &str = ".snapshots";

/// What a copy has done.
#[derive(Default, Serialize)]
struct Tally {
    files: u64,
    directories: u64,
    symlinks: u64,
    /// Further names of files.
    hard_links: u64,
    /// Pipes, sockets and devices.
    others: u64,
    /// Files that were there already, with the same size and time of change.
    same: u64,
    /// Bytes of files, without holes.
    bytes: u64,
    left_out: Vec<LeftOut>,
    /// How many of these could not be read.
    damaged: u64,
}

/// Something that was not copied.
#[derive(Serialize)]
struct LeftOut {
    path: PathBuf,
    reason: String,
}

/// A copy that goes on: what it has done, and a line for a user who watches.
struct Copy {
    what: &'static str,
    bar: indicatif::ProgressBar,
    looked: Cell<Instant>,
    total: Cell<u64>,
    /// Bytes that are dealt with, holes too.
    passed: Cell<u64>,
    tally: RefCell<Tally>,
}

impl Copy {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            bar: output::progress(),
            looked: Cell::new(now()),
            total: Cell::default(),
            passed: Cell::default(),
            tally: RefCell::default(),
        }
    }

    fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.borrow_mut());
        self.show();
    }

    /// Counts what is no folder.
    fn brought(&self, kind: FileType) {
        self.count(|tally| match kind {
            FileType::RegularFile => tally.files += 1,
            FileType::Symlink => tally.symlinks += 1,
            _ => tally.others += 1,
        });
    }

    fn pass(&self, bytes: u64) {
        self.passed.set(self.passed.get() + bytes);
        self.show();
    }

    fn leave_out(&self, path: &Path, reason: impl ToString) {
        let (path, reason) = (path.to_owned(), reason.to_string());
        self.tally.borrow_mut().left_out.push(LeftOut { path, reason });
    }

    fn show(&self) {
        let time = now();
        if time - self.looked.get() < LOOK {
            return;
        }
        self.looked.set(time);
        let (done, total) = (self.passed.get(), self.total.get());
        let files = self.tally.borrow().files;
        let line = format!(
            "{}: {files} files, {} of {}",
            self.what,
            format_size(done),
            format_size(total)
        );
        output::show_share(&self.bar, &line, done.min(total), total);
    }
}

/// `fs import`.
pub fn import(common: &Common, request: &ImportTree) -> Outcome {
    let copy = Copy::new("import");
    let tree = import::scan(&request.folder, &request.to, &copy)?;
    with_remote(common, &request.name, &copy, async |remote| {
        let to = make_folder(remote, &request.to).await?;
        import::run(remote, &copy, &tree, (to, request.merge)).await?;
        remote.sync().await.map_err(|error| failed(&request.to, error))
    })?;
    tell(common, copy, &format!("of {} are in '{}'", request.folder.display(), request.name))
}

/// `fs export`.
pub fn export(common: &Common, request: &ExportTree) -> Outcome {
    let copy = Copy::new("export");
    with_remote(common, &request.name, &copy, async |remote| {
        let top = match &request.snapshot {
            Some(name) => folder(remote, ROOT, &Path::new(SNAPSHOTS).join(name)).await?,
            None => ROOT,
        };
        let from = folder(remote, top, &request.from).await?;
        export::run(remote, &copy, from, request).await
    })?;
    tell(common, copy, &format!("of '{}' are in {}", request.name, request.folder.display()))
}

/// Asks the file system, until `work` has ended.
fn with_remote(
    common: &Common,
    name: &str,
    copy: &Copy,
    work: impl AsyncFnOnce(&Remote) -> Outcome,
) -> Outcome {
    let client = client(common)?;
    let volume: Volume = client.get(&volume_path(name, ""))?;
    check(&volume)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stop = StopSignals::new()?;
        let door = Door::new(&client, name);
        let first = door.connect().await?;
        let remote = Remote::default();
        let pump = Pump::new(&remote, random()?);
        let pumping = pump.run(first, async || door.connect().await);
        let mut pumping = std::pin::pin!(pumping);
        let work = async {
            remote.init().await.map_err(|error| failed(Path::new("/"), error))?;
            work(&remote).await
        };
        let done = tokio::select! {
            ended = &mut pumping => return ended,
            done = work => done,
            _ = stop.next() => Err(Failure::new(format!("the {} was broken off", copy.what))
                .next("the same command with --merge goes on")
                .kind(Kind::Unavailable)),
        };
        remote.end();
        pumping.await?;
        done
    })
}

/// Says what was done. What was left out makes a failure.
fn tell(common: &Common, copy: Copy, where_to: &str) -> Outcome {
    copy.bar.finish_and_clear();
    let tally = copy.tally.into_inner();
    let left_out = tally.left_out.len();
    if common.json {
        output::json(&tally);
    } else {
        let bytes = format_size(tally.bytes);
        let same = match tally.same {
            0 => String::new(),
            same => format!(", {same} were there"),
        };
        output::line(&format!(
            "{} files with {bytes}, {} folders, {} symlinks, {} further links and {} others {where_to}{same}",
            tally.files, tally.directories, tally.symlinks, tally.hard_links, tally.others
        ));
        for LeftOut { path, reason } in tally.left_out.iter().take(NAMED_MAX) {
            output::tell(&format!("rekindle: {} is left out: {reason}", path.display()));
        }
    }
    let next = match tally.damaged {
        0 => "--json names them all; run it as root to read and set everything",
        _ => {
            "--json names them all; `rekindle salvage run` says what is lost of what cannot be read"
        }
    };
    match left_out {
        0 => Ok(()),
        _ => Err(Failure::new(format!("{left_out} entries are left out")).next(next)),
    }
}

fn failed(path: &Path, error: Errno) -> Failure {
    let failure = Failure::new(format!("{} is not copied", path.display())).because(error);
    match error {
        Errno::NOSPC => failure
            .next("the file system is full: `rekindle volume resize` gives it another size")
            .kind(Kind::Full),
        Errno::EXIST => failure.next("--merge replaces what is there").kind(Kind::Exists),
        Errno::IO => failure.kind(Kind::Damaged),
        _ => failure,
    }
}

/// The names of a path in the file system.
fn names(path: &Path) -> Outcome<Vec<&[u8]>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => names.push(name.as_bytes()),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::usage(format!("{} leads upwards", path.display()))
                    .next("give the path from the root of the file system"));
            }
        }
    }
    Ok(names)
}

/// Finds a folder of the file system.
async fn folder(remote: &Remote, top: u64, path: &Path) -> Outcome<u64> {
    let mut ino = top;
    for name in names(path)? {
        let found = remote.lookup(ino, name).await.map_err(|error| failed(path, error))?;
        let found = found.filter(|attr| kind_of(attr) == FileType::Directory);
        ino = found
            .ok_or_else(|| {
                Failure::new(format!("the file system has no folder {}", path.display()))
                    .kind(Kind::NotFound)
            })?
            .ino;
    }
    Ok(ino)
}

/// Finds a folder of the file system, or makes it.
async fn make_folder(remote: &Remote, path: &Path) -> Outcome<u64> {
    let mut ino = ROOT;
    for name in names(path)? {
        let found = remote.lookup(ino, name).await.map_err(|error| failed(path, error))?;
        ino = match found {
            Some(attr) if kind_of(&attr) == FileType::Directory => attr.ino,
            Some(_) => return Err(failed(path, Errno::NOTDIR)),
            None => {
                let made = remote.make_dir(ino, name, 0o755, owner()).await;
                made.map_err(|error| failed(path, error))?
            }
        };
    }
    Ok(ino)
}

/// The user of this command.
fn owner() -> remote::Owner {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn kind_of(attr: &AttrOut) -> FileType {
    FileType::from_raw_mode(type_of(attr.mode))
}

/// A number of a device, as FUSE has it.
fn device_out(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// A number of a device, as this machine has it.
fn device_in(device: u32) -> u64 {
    rustix::fs::makedev(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00)
}

/// Divides stretches of data into pieces.
fn pieces(data: Vec<std::ops::Range<u64>>) -> impl Iterator<Item = (u64, usize)> {
    data.into_iter().flat_map(|range| {
        range.clone().step_by(remote::PIECE_BYTES).map(move |offset| {
            let length = (range.end - offset).min(remote::PIECE_BYTES as u64);
            (offset, usize::try_from(length).unwrap_or(remote::PIECE_BYTES))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_devices_are_the_kernels_and_come_back() {
        for (major, minor, wanted) in [(8, 1, 0x801), (259, 0x12345, 0x1231_0345), (0, 0, 0)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(device_out(device), wanted, "{major}:{minor}");
            assert_eq!(device_in(wanted), device);
        }
    }

    #[test]
    fn stretches_of_data_come_in_pieces() {
        let mib = remote::PIECE_BYTES as u64;
        let found: Vec<_> = pieces(vec![0..5, mib..3 * mib + 1]).collect();
        assert_eq!(found, [(0, 5), (mib, 1 << 20), (2 * mib, 1 << 20), (3 * mib, 1)]);
    }

    #[test]
    fn a_path_does_not_lead_upwards() {
        assert_eq!(names(Path::new("/a/./b")).unwrap(), [b"a", b"b"]);
        assert!(names(Path::new("a/../b")).is_err());
    }
}
