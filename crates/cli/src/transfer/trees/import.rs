//! A folder of this machine, into a file system.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::remote::Remote;
use super::{
    Copy, FILES_AT_ONCE, LISTS, PIECES_AT_ONCE, SNAPSHOTS, device_out, failed, kind_of, pieces,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use rekindle_base::Kind;
use rekindle_front::fuse::wire::{AttrOut, SetAttrIn, valid};
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Room for the names or the value of an extended attribute.
const XATTR_BYTES: usize = 64 << 10;

/// Something in the folder.
struct Entry {
    /// Below the folder.
    path: PathBuf,
    meta: Metadata,
}

/// What the folder has: a folder comes before what is in it.
pub struct Tree {
    top: PathBuf,
    meta: Metadata,
    entries: Vec<Entry>,
}

/// Looks through the folder, which is copied into the folder `to`.
pub fn scan(top: &Path, to: &Path, copy: &Copy) -> Outcome<Tree> {
    let unusable =
        |error: io::Error| Failure::new(format!("cannot read {}", top.display())).because(error);
    let meta = std::fs::metadata(top).map_err(unusable)?;
    if !meta.is_dir() {
        return Err(Failure::usage(format!("{} is no folder", top.display()))
            .next("for an image of a disk: `rekindle volume import`"));
    }
    std::fs::read_dir(top).map_err(unusable)?;
    let (mut entries, mut open, mut total) = (Vec::new(), vec![PathBuf::new()], 0);
    while let Some(dir) = open.pop() {
        let listed = match std::fs::read_dir(top.join(&dir)) {
            Ok(listed) => listed,
            Err(error) => {
                copy.leave_out(&dir, error);
                continue;
            }
        };
        for entry in listed {
            let found = entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
            let (name, meta) = match found {
                Ok(found) => found,
                Err(error) => {
                    copy.leave_out(&dir, error);
                    continue;
                }
            };
            let path = dir.join(name);
            if path == Path::new(SNAPSHOTS) && to == Path::new("/") {
                copy.leave_out(
                    &path,
                    "the file system has a folder of that name for its snapshots",
                );
                continue;
            }
            if meta.is_dir() {
                open.push(path.clone());
            } else if meta.is_file() {
                total += meta.len();
            }
            entries.push(Entry { path, meta });
        }
    }
    copy.total.set(total);
    Ok(Tree { top: top.to_owned(), meta, entries })
}

/// A copy of a tree.
struct Import<'a> {
    remote: &'a Remote,
    copy: &'a Copy,
    top: &'a Path,
    merge: bool,
    /// Whether what is made may get access control lists of a folder that was there.
    inherits: bool,
    /// The folders that were made, or were there.
    dirs: HashMap<PathBuf, u64>,
    /// Files with several names that are there now, by their numbers here.
    linked: RefCell<HashMap<(u64, u64), u64>>,
}

/// Copies a tree into the folder `to`.
pub async fn run(remote: &Remote, copy: &Copy, tree: &Tree, (to, merge): (u64, bool)) -> Outcome {
    let (found, _) = remote.list(to, 0).await.map_err(|error| failed(&tree.top, error))?;
    if !merge && !found.is_empty() {
        return Err(Failure::new("the folder in the file system is not empty")
            .next("--to names another one, and --merge copies into this one")
            .kind(Kind::Exists));
    }
    let had = remote.xattrs(to).await.map_err(|error| failed(&tree.top, error))?;
    let inherits = merge || had.iter().any(|(name, _)| LISTS.contains(&&name[..]));
    let dirs = HashMap::from([(PathBuf::new(), to)]);
    let (top, linked) = (&*tree.top, RefCell::default());
    let mut import = Import { remote, copy, top, merge, inherits, dirs, linked };
    for entry in tree.entries.iter().filter(|entry| entry.meta.is_dir()) {
        import.make_dir(entry).await?;
    }
    let (mut firsts, mut links, mut seen) = (Vec::new(), Vec::new(), HashMap::new());
    for entry in tree.entries.iter().filter(|entry| !entry.meta.is_dir()) {
        let key = (entry.meta.dev(), entry.meta.ino());
        let is_first = entry.meta.nlink() < 2 || seen.insert(key, ()).is_none();
        if is_first { &mut firsts } else { &mut links }.push(entry);
    }
    let import = &import;
    let copied = stream::iter(firsts).map(|entry| import.bring(entry));
    copied.buffer_unordered(FILES_AT_ONCE).try_for_each(async |()| Ok(())).await?;
    for entry in links {
        import.link(entry).await?;
    }
    // Times of folders come last: what is made in them changes these.
    for entry in tree.entries.iter().rev().filter(|entry| entry.meta.is_dir()) {
        if let Some(&ino) = import.dirs.get(&entry.path) {
            import.settle(entry, ino).await?;
        }
    }
    import.settle(&Entry { path: PathBuf::new(), meta: tree.meta.clone() }, to).await
}

impl Import<'_> {
    /// Returns the folder of an entry; `None` for one in a folder that was left out.
    fn place<'e>(&self, entry: &'e Entry) -> Option<(u64, &'e [u8])> {
        let dir = self.dirs.get(entry.path.parent()?)?;
        Some((*dir, entry.path.file_name()?.as_bytes()))
    }

    async fn make_dir(&mut self, entry: &Entry) -> Outcome {
        let Some((dir, name)) = self.place(entry) else { return Ok(()) };
        let failed = |error| failed(&entry.path, error);
        let owner = (entry.meta.uid(), entry.meta.gid());
        let ino = match self.remote.make_dir(dir, name, 0o700, owner).await {
            Err(Errno::EXIST) if self.merge => {
                let found = self.remote.lookup(dir, name).await.map_err(failed)?;
                let found = found.filter(|attr| kind_of(attr) == FileType::Directory);
                found.ok_or_else(|| failed(Errno::NOTDIR))?.ino
            }
            made => made.map_err(failed)?,
        };
        self.dirs.insert(entry.path.clone(), ino);
        self.copy.count(|tally| tally.directories += 1);
        Ok(())
    }

    /// Brings what is no folder.
    async fn bring(&self, entry: &Entry) -> Outcome {
        let Some((dir, name)) = self.place(entry) else { return Ok(()) };
        let failed = |error| failed(&entry.path, error);
        let kind = FileType::from_raw_mode(entry.meta.mode());
        if self.merge
            && let Some(there) = self.remote.lookup(dir, name).await.map_err(failed)?
        {
            if kind == FileType::RegularFile && is_same(&there, &entry.meta) {
                self.note(entry, there.ino);
                self.copy.pass(entry.meta.len());
                self.copy.count(|tally| tally.same += 1);
                return Ok(());
            }
            self.remote.unlink(dir, name).await.map_err(failed)?;
        }
        let owner = (entry.meta.uid(), entry.meta.gid());
        let path = self.top.join(&entry.path);
        let ino = match kind {
            FileType::Symlink => {
                let target = match std::fs::read_link(&path) {
                    Ok(target) => target,
                    Err(error) => return self.left_out(entry, &error),
                };
                let target = target.as_os_str().as_bytes();
                self.remote.symlink(dir, name, target, owner).await
            }
            FileType::RegularFile => {
                let file = match File::open(&path) {
                    Ok(file) => file,
                    Err(error) => return self.left_out(entry, &error),
                };
                let node = (kind.as_raw_mode() | 0o600, 0);
                let ino = self.remote.make_node(dir, name, node, owner).await.map_err(failed)?;
                self.fill(entry, &file, ino).await?;
                Ok(ino)
            }
            _ => {
                let node = (kind.as_raw_mode() | 0o600, device_out(entry.meta.rdev()));
                self.remote.make_node(dir, name, node, owner).await
            }
        };
        let ino = ino.map_err(failed)?;
        self.settle(entry, ino).await?;
        self.note(entry, ino);
        self.copy.brought(kind);
        Ok(())
    }

    fn left_out(&self, entry: &Entry, error: &io::Error) -> Outcome {
        self.copy.leave_out(&entry.path, error);
        Ok(())
    }

    fn note(&self, entry: &Entry, ino: u64) {
        if entry.meta.nlink() > 1 {
            self.linked.borrow_mut().insert((entry.meta.dev(), entry.meta.ino()), ino);
        }
    }

    async fn fill(&self, entry: &Entry, file: &File, ino: u64) -> Outcome {
        let failed = |error| failed(&entry.path, error);
        let write = async |(offset, length): (u64, usize)| {
            let mut data = vec![0; length];
            if let Err(error) = file.read_exact_at(&mut data, offset) {
                // It has become shorter meanwhile.
                let ends = error.kind() == io::ErrorKind::UnexpectedEof;
                let failure = Failure::new(format!("cannot read {}", entry.path.display()));
                return if ends { Ok(()) } else { Err(failure.because(error)) };
            }
            self.remote.write(ino, offset, &data).await.map_err(failed)?;
            self.copy.pass(length as u64);
            self.copy.count(|tally| tally.bytes += length as u64);
            Ok(())
        };
        let written = stream::iter(pieces(data_of(file, entry.meta.len()))).map(write);
        written.buffer_unordered(PIECES_AT_ONCE).try_for_each(async |()| Ok(())).await
    }

    async fn link(&self, entry: &Entry) -> Outcome {
        let Some((dir, name)) = self.place(entry) else { return Ok(()) };
        let failed = |error| failed(&entry.path, error);
        let of = self.linked.borrow().get(&(entry.meta.dev(), entry.meta.ino())).copied();
        // Its first name was left out.
        let Some(of) = of else { return Ok(()) };
        if self.merge
            && let Some(there) = self.remote.lookup(dir, name).await.map_err(failed)?
        {
            if there.ino == of {
                return Ok(());
            }
            self.remote.unlink(dir, name).await.map_err(failed)?;
        }
        self.remote.link(of, dir, name).await.map_err(failed)?;
        self.copy.count(|tally| tally.hard_links += 1);
        Ok(())
    }

    /// Sets what belongs to an entry besides its content.
    async fn settle(&self, entry: &Entry, ino: u64) -> Outcome {
        let path = self.top.join(&entry.path);
        let xattrs = xattrs(&path);
        for list in LISTS.iter().filter(|_| self.inherits) {
            let is_its = xattrs.iter().any(|(name, _)| name == list);
            if !is_its && !entry.meta.is_symlink() {
                let removed = self.remote.remove_xattr(ino, list).await;
                removed.map_err(|error| failed(&entry.path, error))?;
            }
        }
        for (name, value) in xattrs {
            match self.remote.set_xattr(ino, &name, &value).await {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => {
                    let name = String::from_utf8_lossy(&name);
                    let reason = format!("file systems here do not have the attribute {name}");
                    self.copy.leave_out(&entry.path, reason);
                }
                Err(error) => return Err(failed(&entry.path, error)),
            }
        }
        let size = entry.meta.is_file().then_some(entry.meta.len());
        self.set(&entry.path, &entry.meta, ino, size).await
    }

    async fn set(&self, path: &Path, meta: &Metadata, ino: u64, size: Option<u64>) -> Outcome {
        let bits = valid::UID | valid::GID | valid::ATIME | valid::MTIME;
        let mode = if meta.is_symlink() { 0 } else { valid::MODE };
        let nanoseconds = |nanoseconds: i64| u32::try_from(nanoseconds).unwrap_or(0);
        let set = SetAttrIn {
            valid: bits | mode | if size.is_some() { valid::SIZE } else { 0 },
            padding: 0,
            fh: 0,
            size: size.unwrap_or(0),
            lock_owner: 0,
            atime: meta.atime(),
            mtime: meta.mtime(),
            ctime: 0,
            atime_nanoseconds: nanoseconds(meta.atime_nsec()),
            mtime_nanoseconds: nanoseconds(meta.mtime_nsec()),
            ctime_nanoseconds: 0,
            mode: meta.mode(),
            unused: 0,
            uid: meta.uid(),
            gid: meta.gid(),
            unused_too: 0,
        };
        self.remote.set_attr(ino, &set).await.map_err(|error| failed(path, error))
    }
}

fn is_same(there: &AttrOut, here: &Metadata) -> bool {
    kind_of(there) == FileType::RegularFile
        && there.size == here.len()
        && (there.mtime, i64::from(there.mtime_nanoseconds)) == (here.mtime(), here.mtime_nsec())
}

/// The stretches of a file that are no holes.
fn data_of(file: &File, length: u64) -> Vec<Range<u64>> {
    let (mut data, mut at) = (Vec::new(), 0);
    while at < length {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // Holes up to the end.
            Err(Errno::NXIO) => break,
            // The file system does not tell.
            Err(_) => at,
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(begin)).unwrap_or(length).min(length);
        data.push(begin..end.max(begin));
        at = end.max(begin + 1);
    }
    data
}

/// The extended attributes of a file, as far as this user sees them.
fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; XATTR_BYTES];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names[..]) else { return Vec::new() };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; XATTR_BYTES];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
        value.truncate(length);
        Some((name.to_vec(), value))
    };
    names.filter_map(value).collect()
}
