//! Calls at random on a mount: each has the outcome that it has on the file system of this machine,
//! also while the daemon is killed.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped, under_kills};
use e2e::random::for_story;
use rekindle_base::random::Random;
use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, XattrFlags};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Calls of each of the two programs.
const CALLS: usize = 2500;
/// Files that a program has open at once.
const OPEN: usize = 4;
/// Lengths of files: of tiny ones, of some pages, and of many chunks.
const REACH: [u64; 3] = [900, 20_000, 600_000];

/// A call, with all that it was drawn with.
#[derive(Debug, Clone)]
enum Call {
    Write { path: String, at: u64, data: Vec<u8> },
    Append { path: String, data: Vec<u8> },
    Truncate { path: String, size: u64 },
    Read { path: String, at: u64, length: usize },
    Punch { path: String, at: u64, length: u64 },
    Copy { from: String, to: String },
    Create { path: String },
    MakeDir { path: String },
    RemoveDir { path: String },
    Unlink { path: String },
    Rename { from: String, to: String, how: RenameFlags },
    Link { from: String, to: String },
    Symlink { target: String, path: String },
    Chmod { path: String, mode: u32 },
    Chown { path: String, uid: u32 },
    SetXattr { path: String, name: String, value: Vec<u8> },
    RemoveXattr { path: String, name: String },
    List { path: String },
    Stat { path: String },
    Open { slot: usize, path: String },
    WriteOpen { slot: usize, at: u64, data: Vec<u8> },
    StatOpen { slot: usize },
    Close { slot: usize },
}

fn path(dice: &mut Random) -> String {
    let name = |dice: &mut Random| format!("{}", dice.below(5));
    let mut path = name(dice);
    for _ in 0..dice.below(3) {
        path = format!("{path}/{}", name(dice));
    }
    path
}

fn draw(dice: &mut Random) -> Call {
    let reach = REACH[dice.below(3) as usize];
    let at = dice.below(reach);
    let length = 1 + dice.below(reach.min(70_000));
    let slot = dice.below(OPEN as u64) as usize;
    let (path, other) = (path(dice), path(dice));
    let name = format!("user.{}", dice.below(3));
    match dice.below(32) {
        0..4 => Call::Write { path, at, data: dice.bytes(length as usize) },
        4 => Call::Append { path, data: dice.bytes(length as usize) },
        5 => Call::Truncate { path, size: at },
        6..8 => Call::Read { path, at, length: length as usize },
        8 => Call::Punch { path, at, length },
        9 => Call::Copy { from: path, to: other },
        10..13 => Call::Create { path },
        13..16 => Call::MakeDir { path },
        16 => Call::RemoveDir { path },
        17 => Call::Unlink { path },
        18 => Call::Rename { from: path, to: other, how: RenameFlags::empty() },
        19 => {
            let how = [RenameFlags::EXCHANGE, RenameFlags::NOREPLACE][dice.below(2) as usize];
            Call::Rename { from: path, to: other, how }
        }
        20 => Call::Link { from: path, to: other },
        21 => Call::Symlink { target: other, path },
        22 => Call::Chmod { path, mode: dice.below(0o10000) as u32 },
        23 => Call::Chown { path, uid: dice.below(3) as u32 },
        24 => Call::SetXattr { path, name, value: dice.bytes((length % 200) as usize) },
        25 => Call::RemoveXattr { path, name },
        26 => Call::List { path },
        27 => Call::Stat { path },
        28 => Call::Open { slot, path },
        29 => Call::WriteOpen { slot, at, data: dice.bytes(length as usize) },
        30 => Call::StatOpen { slot },
        _ => Call::Close { slot },
    }
}

/// What a program sees of an inode. The size and the links of a directory are each file system's
/// own matter.
fn seen(of: &std::fs::Metadata) -> String {
    let (links, size) = if of.is_dir() { (0, 0) } else { (of.nlink(), of.len()) };
    format!("{:o} {links} links {size} bytes of {}", of.mode(), of.uid())
}

/// A program, with what it has open.
struct Program {
    top: PathBuf,
    open: [Option<File>; OPEN],
}

impl Program {
    fn new(top: PathBuf) -> Result<Self> {
        std::fs::create_dir(&top)?;
        Ok(Self { top, open: [const { None }; OPEN] })
    }

    fn carry_out(&mut self, call: &Call) -> io::Result<String> {
        let at_top = |path: &str| self.top.join(path);
        let done = |()| String::new();
        let write = |path: &str| OpenOptions::new().write(true).open(at_top(path));
        match call {
            Call::Write { path, at, data } => write(path)?.write_all_at(data, *at).map(done),
            Call::Append { path, data } => {
                let mut file = OpenOptions::new().append(true).open(at_top(path))?;
                io::Write::write_all(&mut file, data).map(done)
            }
            Call::Truncate { path, size } => write(path)?.set_len(*size).map(done),
            Call::Read { path, at, length } => {
                let (file, mut bytes) = (File::open(at_top(path))?, vec![0; *length]);
                let mut count = 0;
                while count < bytes.len() {
                    match file.read_at(&mut bytes[count..], at + count as u64)? {
                        0 => break,
                        more => count += more,
                    }
                }
                Ok(format!("{:?}", &bytes[..count]))
            }
            Call::Punch { path, at, length } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(write(path)?, how, *at, *length).map(done)?)
            }
            Call::Copy { from, to } => {
                let (from, to) = (File::open(at_top(from))?, write(to)?);
                let mut all = 0;
                loop {
                    match rustix::fs::copy_file_range(&from, None, &to, None, 1 << 20)? {
                        0 => return Ok(format!("{all} copied")),
                        some => all += some,
                    }
                }
            }
            Call::Create { path } => File::create_new(at_top(path)).map(|_| String::new()),
            Call::MakeDir { path } => std::fs::create_dir(at_top(path)).map(done),
            Call::RemoveDir { path } => std::fs::remove_dir(at_top(path)).map(done),
            Call::Unlink { path } => std::fs::remove_file(at_top(path)).map(done),
            Call::Rename { from, to, how } => {
                let (from, to) = (at_top(from), at_top(to));
                Ok(rustix::fs::renameat_with(CWD, from, CWD, to, *how).map(done)?)
            }
            Call::Link { from, to } => {
                let (from, to) = (at_top(from), at_top(to));
                Ok(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()).map(done)?)
            }
            Call::Symlink { target, path } => symlink(target, at_top(path)).map(done),
            Call::Chmod { path, mode } => {
                std::fs::set_permissions(at_top(path), Permissions::from_mode(*mode)).map(done)
            }
            Call::Chown { path, uid } => {
                std::os::unix::fs::lchown(at_top(path), Some(*uid), None).map(done)
            }
            Call::SetXattr { path, name, value } => {
                let path = at_top(path);
                Ok(rustix::fs::setxattr(path, name, value, XattrFlags::empty()).map(done)?)
            }
            Call::RemoveXattr { path, name } => {
                Ok(rustix::fs::removexattr(at_top(path), name).map(done)?)
            }
            Call::List { path } => {
                let names = std::fs::read_dir(at_top(path))?;
                let mut names = names
                    .map(|entry| entry.map(|entry| entry.file_name()))
                    .collect::<io::Result<Vec<_>>>()?;
                names.sort_unstable();
                Ok(format!("{names:?}"))
            }
            Call::Stat { path } => {
                let of = std::fs::symlink_metadata(at_top(path))?;
                let target = std::fs::read_link(at_top(path)).ok();
                Ok(format!("{}, {target:?}", seen(&of)))
            }
            Call::Open { slot, path } => {
                let file = OpenOptions::new().read(true).write(true).open(at_top(path))?;
                self.open[*slot] = Some(file);
                Ok(String::new())
            }
            Call::WriteOpen { slot, at, data } => match &self.open[*slot] {
                Some(file) => file.write_all_at(data, *at).map(done),
                None => Ok("closed".to_owned()),
            },
            Call::StatOpen { slot } => match &self.open[*slot] {
                Some(file) => file.metadata().map(|of| seen(&of)),
                None => Ok("closed".to_owned()),
            },
            Call::Close { slot } => {
                self.open[*slot] = None;
                Ok(String::new())
            }
        }
    }
}

/// What a folder has below it, by path: attributes, extended attributes, bytes.
type Tree = BTreeMap<PathBuf, (String, BTreeMap<String, Vec<u8>>, Vec<u8>)>;

fn tree(top: &Path) -> Result<Tree> {
    let (mut tree, mut folders) = (Tree::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let of = std::fs::symlink_metadata(&path)?;
            let (mut names, mut value) = (vec![0; 4096], vec![0; 4096]);
            let length = rustix::fs::llistxattr(&path, &mut names)?;
            let mut xattrs = BTreeMap::new();
            for name in names[..length].split(|byte| *byte == 0) {
                // Those of the system are not a program's.
                if name.starts_with(b"user.") {
                    let name = String::from_utf8(name.to_vec())?;
                    let length = rustix::fs::lgetxattr(&path, &name, &mut value)?;
                    xattrs.insert(name, value[..length].to_vec());
                }
            }
            let bytes = match () {
                () if of.is_file() => std::fs::read(&path)?,
                () if of.is_symlink() => std::fs::read_link(&path)?.into_os_string().into_vec(),
                () => Vec::new(),
            };
            if of.is_dir() {
                folders.push(path.clone());
            }
            tree.insert(path.strip_prefix(top)?.to_owned(), (seen(&of), xattrs, bytes));
        }
    }
    Ok(tree)
}

fn equal(wanted: &Tree, got: &Tree) -> Result<()> {
    for (path, wanted) in wanted {
        let got = got.get(path);
        ensure!(got == Some(wanted), "{path:?}: {}, and not {}", short(&got), short(wanted));
    }
    ensure!(wanted.len() == got.len(), "there are {} paths, and not {}", got.len(), wanted.len());
    Ok(())
}

/// Carries calls out here and there, and compares what comes of each.
fn compare(dice: &mut Random, here: PathBuf, there: PathBuf) -> Result<()> {
    let (mut here, mut there) = (Program::new(here)?, Program::new(there)?);
    let mut succeeded = 0;
    for number in 0..CALLS {
        let call = draw(dice);
        let outcomes = [&mut here, &mut there]
            .map(|program| program.carry_out(&call).map_err(|error| error.raw_os_error()));
        let [wanted, got] = &outcomes;
        ensure!(
            wanted == got,
            "call {number}: {}\nwanted {}\ngot    {}",
            short(&call),
            short(wanted),
            short(got)
        );
        succeeded += usize::from(got.is_ok());
    }
    println!("{succeeded} of {CALLS} calls succeeded");
    ensure!(succeeded > CALLS / 5);
    equal(&tree(&here.top)?, &tree(&there.top)?)?;
    Ok(())
}

fn short(of: &impl std::fmt::Debug) -> String {
    let mut text = format!("{of:?}");
    text.truncate(200);
    text
}

#[test]
fn calls_have_the_outcome_that_they_have_elsewhere_under_kill_9_of_the_daemon() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = Daemon::start("calls")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mounted = Mounted::new(&daemon, "home")?;
    let here = daemon.scratch().join("here");
    std::fs::create_dir(&here)?;
    let mut dice = for_story("calls");
    let seeds = [dice.below(u64::MAX), dice.below(u64::MAX)];
    under_kills(&daemon, 6, || {
        std::thread::scope(|scope| {
            let programs = seeds.iter().enumerate().map(|(n, seed)| {
                let (here, there) = (here.join(n.to_string()), mounted.folder.join(n.to_string()));
                scope.spawn(move || compare(&mut Random::new(*seed), here, there))
            });
            let programs: Vec<_> = programs.collect();
            programs
                .into_iter()
                .try_for_each(|program| program.join().ok().context("the program panicked")?)
        })
    })?;
    let before = tree(&here)?;
    mounted.unmount()?;
    // From the store, too.
    daemon.cli(&["volume", "drain", "home"])?;
    daemon.kill_worker()?;
    let mounted = Mounted::new(&daemon, "home")?;
    equal(&before, &tree(&mounted.folder)?)?;
    mounted.unmount()
}
