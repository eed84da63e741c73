//! A file system, or a folder of it, into a folder of this machine.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::remote::Remote;
use super::{Copy, FILES_AT_ONCE, LISTS, PIECES_AT_ONCE, device_in, failed, kind_of, pieces};
use crate::arguments::ExportTree;
use futures_util::{StreamExt, TryStreamExt, stream};
use rekindle_base::Kind;
use rekindle_front::fuse::wire::AttrOut;
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Something in the file system.
struct Entry {
    /// Below the folder that is copied.
    path: PathBuf,
    attr: AttrOut,
}

struct Export<'a> {
    remote: &'a Remote,
    copy: &'a Copy,
    top: &'a Path,
    merge: bool,
    keep_going: bool,
    is_root: bool,
}

/// Copies the folder `from` into the request's folder.
pub async fn run(remote: &Remote, copy: &Copy, from: u64, request: &ExportTree) -> Outcome {
    let &ExportTree { merge, keep_going, .. } = request;
    let top = request.folder.as_path();
    let unusable = |error| Failure::new(format!("cannot use {}", top.display())).because(error);
    std::fs::create_dir_all(top).map_err(unusable)?;
    if !merge && std::fs::read_dir(top).map_err(unusable)?.next().is_some() {
        return Err(Failure::new(format!("{} is not empty", top.display()))
            .next("name another folder, or copy into this one with --merge")
            .kind(Kind::Exists));
    }
    let is_root = rustix::process::geteuid().is_root();
    let export = &Export { remote, copy, top, merge, keep_going, is_root };
    let attr = remote.attr(from).await.map_err(|error| failed(top, error))?;
    let entries = export.walk(from).await?;
    let is_dir = |entry: &&Entry| kind_of(&entry.attr) == FileType::Directory;
    copy.total.set(entries.iter().filter(|entry| !is_dir(entry)).map(|one| one.attr.size).sum());
    for entry in entries.iter().filter(is_dir) {
        export.local(&entry.path, export.make_dir(entry))?;
        copy.count(|tally| tally.directories += 1);
    }
    let (mut firsts, mut links, mut seen) = (Vec::new(), Vec::new(), HashMap::new());
    for entry in entries.iter().filter(|entry| !is_dir(entry)) {
        match seen.get(&entry.attr.ino) {
            Some(first) => links.push((*first, entry)),
            None => {
                seen.insert(entry.attr.ino, entry);
                firsts.push(entry);
            }
        }
    }
    let copied = stream::iter(firsts).map(|entry| export.bring_or_leave_out(entry));
    copied.buffer_unordered(FILES_AT_ONCE).try_for_each(async |()| Ok(())).await?;
    for (first, entry) in links {
        export.local(&entry.path, export.link(first, entry))?;
    }
    // Times of folders come last: what is made in them changes these.
    for entry in entries.iter().rev().filter(is_dir) {
        export.unless_damaged(&entry.path, export.settle(entry).await)?;
    }
    let root = Entry { path: PathBuf::new(), attr };
    export.unless_damaged(&root.path, export.settle(&root).await)?;
    let synced = File::open(top).and_then(|top| Ok(rustix::fs::syncfs(top)?));
    synced.map_err(unusable)
}

impl Export<'_> {
    /// Lists all below a folder: a folder comes before what is in it.
    async fn walk(&self, from: u64) -> Outcome<Vec<Entry>> {
        let (mut entries, mut open) = (Vec::new(), vec![(from, PathBuf::new())]);
        while let Some((dir, path)) = open.pop() {
            let mut place = 0;
            loop {
                let listed = self.remote.list(dir, place).await;
                let listed = listed.map_err(|error| failed(&path, error));
                let Some((found, next)) = self.unless_damaged(&path, listed)? else { break };
                for found in found {
                    // A daemon that is not ours could lead us out of the folder.
                    if found.name.contains(&b'/') || found.name.is_empty() {
                        return Err(failed(&path, Errno::PROTO));
                    }
                    let path = path.join(OsStr::from_bytes(&found.name));
                    let attr = found.attr.map_err(|error| failed(&path, error));
                    let Some(attr) = self.unless_damaged(&path, attr)? else { continue };
                    if kind_of(&attr) == FileType::Directory {
                        open.push((attr.ino, path.clone()));
                    }
                    entries.push(Entry { path, attr });
                }
                match next {
                    Some(next) => place = next,
                    None => break,
                }
            }
        }
        Ok(entries)
    }

    /// Names the path of a failure on this machine.
    fn local<T>(&self, path: &Path, done: io::Result<T>) -> Outcome<T> {
        let path = self.top.join(path);
        done.map_err(|error| {
            let failure =
                Failure::new(format!("{} cannot be made", path.display())).because(&error);
            match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    failure.next("--merge replaces files that are there").kind(Kind::Exists)
                }
                io::ErrorKind::StorageFull => failure.kind(Kind::Full),
                _ => failure,
            }
        })
    }

    fn make_dir(&self, entry: &Entry) -> io::Result<()> {
        let path = self.top.join(&entry.path);
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            // A link would lead out of the folder.
            Err(Errno::EXIST) if self.merge && std::fs::symlink_metadata(&path)?.is_dir() => Ok(()),
            made => Ok(made?),
        }
    }

    /// Removes what has the name, if that may be replaced.
    fn clear(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Leaves out what is damaged, if the copy goes on without it.
    fn unless_damaged<T>(&self, path: &Path, done: Outcome<T>) -> Outcome<Option<T>> {
        match done {
            Err(failure) if failure.kind == Kind::Damaged.to_string() => {
                if !self.keep_going {
                    return Err(failure.next("--keep-going leaves it out, and copies the rest"));
                }
                self.copy.leave_out(path, failure.cause.unwrap_or(failure.error));
                self.copy.count(|tally| tally.damaged += 1);
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    async fn bring_or_leave_out(&self, entry: &Entry) -> Outcome {
        let Entry { path, attr } = entry;
        if self.unless_damaged(path, self.bring(entry).await)?.is_none() {
            // A part of it is none.
            let _ = std::fs::remove_file(self.top.join(path));
            self.copy.pass(attr.size);
        }
        Ok(())
    }

    /// Brings what is no folder.
    async fn bring(&self, entry: &Entry) -> Outcome {
        let path = self.top.join(&entry.path);
        let kind = kind_of(&entry.attr);
        if self.merge {
            let same = std::fs::symlink_metadata(&path).is_ok_and(|there| {
                let time = (there.mtime(), there.mtime_nsec());
                let nanoseconds = i64::from(entry.attr.mtime_nanoseconds);
                there.is_file()
                    && there.len() == entry.attr.size
                    && time == (entry.attr.mtime, nanoseconds)
            });
            if same && kind == FileType::RegularFile {
                self.copy.pass(entry.attr.size);
                self.copy.count(|tally| tally.same += 1);
                return Ok(());
            }
            self.local(&entry.path, self.clear(&path))?;
        }
        match kind {
            FileType::RegularFile => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
                let file = self.local(&entry.path, file)?;
                self.fill(entry, &file).await?;
            }
            FileType::Symlink => {
                let target = self.remote.read_link(entry.attr.ino).await;
                let target = target.map_err(|error| failed(&entry.path, error))?;
                self.local(&entry.path, symlink(OsStr::from_bytes(&target), &path))?;
            }
            _ => {
                let device = device_in(entry.attr.device);
                let made = rustix::fs::mknodat(CWD, &path, kind, Mode::RWXU, device);
                if let Err(error @ Errno::PERM) = made {
                    self.copy.leave_out(&entry.path, error);
                    return Ok(());
                }
                self.local(&entry.path, made.map_err(io::Error::from))?;
            }
        }
        self.settle(entry).await?;
        self.copy.brought(kind);
        Ok(())
    }

    async fn fill(&self, entry: &Entry, file: &File) -> Outcome {
        let Entry { path, attr } = entry;
        let data = self.data_of(entry).await.map_err(|error| failed(path, error))?;
        let read = async |(offset, length): (u64, usize)| {
            let bytes = self.remote.read(attr.ino, offset, length).await;
            let bytes = bytes.map_err(|error| failed(path, error))?;
            self.local(path, file.write_all_at(&bytes, offset))?;
            self.copy.pass(length as u64);
            self.copy.count(|tally| tally.bytes += bytes.len() as u64);
            Ok::<_, Failure>(())
        };
        let copied = stream::iter(pieces(data)).map(read).buffer_unordered(PIECES_AT_ONCE);
        copied.try_for_each(async |()| Ok(())).await?;
        self.local(path, file.set_len(attr.size))
    }

    /// The stretches of a file that are no holes.
    async fn data_of(&self, entry: &Entry) -> Result<Vec<Range<u64>>, Errno> {
        let AttrOut { ino, size, .. } = entry.attr;
        let (mut data, mut at) = (Vec::new(), 0);
        while at < size
            && let Some(begin) = self.remote.seek(ino, at, false).await?
        {
            let end = self.remote.seek(ino, begin, true).await?.unwrap_or(size).min(size);
            data.push(begin..end.max(begin));
            at = end.max(begin + 1);
        }
        Ok(data)
    }

    fn link(&self, first: &Entry, entry: &Entry) -> io::Result<()> {
        let (from, to) = (self.top.join(&first.path), self.top.join(&entry.path));
        if !from.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
            // It was left out.
            return Ok(());
        }
        if self.merge {
            self.clear(&to)?;
        }
        std::fs::hard_link(from, to)?;
        self.copy.count(|tally| tally.hard_links += 1);
        Ok(())
    }

    /// Sets what belongs to an entry besides its content. The owner comes first: the mode loses its
    /// set-id bits with another owner, and the file its capabilities.
    async fn settle(&self, entry: &Entry) -> Outcome {
        let Entry { path, attr } = entry;
        let there = self.top.join(path);
        let xattrs = self.remote.xattrs(attr.ino).await.map_err(|error| failed(path, error))?;
        if self.is_root {
            let owned = std::os::unix::fs::lchown(&there, Some(attr.uid), Some(attr.gid));
            self.local(path, owned)?;
        }
        // It may have got some of the folder that it is in.
        for list in LISTS {
            let is_its = xattrs.iter().any(|(name, _)| name == list);
            if !is_its && kind_of(attr) != FileType::Symlink {
                let _ = rustix::fs::lremovexattr(&there, list);
            }
        }
        for (name, value) in xattrs {
            let set = rustix::fs::lsetxattr(&there, &name[..], &value, XattrFlags::empty());
            if let Err(error) = set {
                let name = String::from_utf8_lossy(&name);
                self.copy.leave_out(path, format!("its attribute {name} cannot be set: {error}"));
            }
        }
        if kind_of(attr) != FileType::Symlink {
            let mode = Mode::from_raw_mode(attr.mode & 0o7777);
            let set = rustix::fs::chmod(&there, mode);
            self.local(path, set.map_err(io::Error::from))?;
        }
        let time = |seconds, nanoseconds: u32| Timespec {
            tv_sec: seconds,
            tv_nsec: i64::from(nanoseconds),
        };
        let times = Timestamps {
            last_access: time(attr.atime, attr.atime_nanoseconds),
            last_modification: time(attr.mtime, attr.mtime_nanoseconds),
        };
        let set = rustix::fs::utimensat(CWD, &there, &times, AtFlags::SYMLINK_NOFOLLOW);
        self.local(path, set.map_err(io::Error::from))
    }
}
