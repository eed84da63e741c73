//! Names: looking up, making, removing, renaming, listing.

use super::acls::Inherited;
use super::{Done, Files};
use crate::caller::Caller;
use crate::files::draft::Draft;
use crate::files::frozen::{is_free, is_present, seen_from};
use crate::format::inode::Inode;
use crate::format::rows::Named;
use crate::limits;
use crate::look::Stop;
use crate::state::View;
use crate::types::{
    Attr, Entry, Errno, FileType, Ino, NAME_BYTES_MAX, NewNode, ROOT, Rename, TARGET_BYTES_MAX,
};
use bytes::Bytes;

/// The bit of a directory's mode by which what is made in it gets its group.
const SET_GROUP_ID: u16 = 0o2000;

/// Refuses what is no name of a file.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] | b"." | b".." => Err(Errno::INVAL),
        name if name.len() > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
        name if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Returns an entry that exists.
fn existing(view: &View<'_>, dir: Ino, name: &[u8]) -> Result<(u64, Named), Stop> {
    view.dir(dir)?;
    let (position, named) = view.name(dir, name)?;
    Ok((position, named.ok_or(Errno::NOENT)?))
}

impl View<'_> {
    /// Lists names of a directory behind a position.
    pub(super) fn list(&self, dir: Ino, after: u64, count: usize) -> Result<Vec<Entry>, Stop> {
        self.dir(dir)?;
        let mut entries = Vec::new();
        let Some(from) = after.checked_add(1).filter(|_| count > 0) else {
            return Ok(entries);
        };
        self.names_from(dir, from, |position, Named { name, ino, kind }| {
            entries.push(Entry { position, name, ino, kind });
            entries.len() < count
        })?;
        Ok(entries)
    }
}

impl Files {
    /// Looks a name up; `.` and `..` are no names.
    pub async fn lookup(&self, dir: Ino, name: &[u8]) -> Done<Attr> {
        check_name(name)?;
        if let Some(found) = self.lookup_snapshot(dir, name).await? {
            return Ok(found);
        }
        let look_at = |view: &View<'_>, dir| {
            let (_, named) = existing(view, dir, name)?;
            Ok(view.inode(named.ino)?.attr(named.ino))
        };
        Ok(seen_from(dir, self.look_into(dir, look_at).await?))
    }

    /// Makes an inode and its first name.
    pub async fn create(
        &self,
        caller: Caller<'_>,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Done<Attr> {
        check_name(name)?;
        is_free(dir, name, Errno::EXIST)?;
        if node.target.len() > TARGET_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let plan = |draft: &mut Draft<'_, '_>| {
            let parent = draft.view.dir(dir)?;
            let (position, taken) = draft.view.name(dir, name)?;
            if taken.is_some() {
                return Err(Errno::EXIST.into());
            }
            if parent.links == 0 {
                return Err(Errno::NOENT.into());
            }
            let is_dir = node.kind == FileType::Directory;
            let inherits = parent.mode & SET_GROUP_ID != 0;
            let group = if inherits && is_dir { SET_GROUP_ID } else { 0 };
            let lists = Inherited::new(draft.view, dir, node)?;
            let mut inode = Inode {
                kind: node.kind,
                mode: lists.mode | group,
                links: if is_dir { 2 } else { 1 },
                uid: caller.uid,
                gid: if inherits { parent.gid } else { caller.gid },
                device: node.device,
                size: node.target.len() as u64,
                allocated: 0,
                beyond: 0,
                parent: if is_dir { dir } else { 0 },
                accessed: node.stamps.map_or(draft.now, |[accessed, _]| accessed),
                modified: node.stamps.map_or(draft.now, |[_, modified]| modified),
                changed: draft.now,
                created: draft.now,
                target: Bytes::copy_from_slice(node.target),
            };
            inode.mode = caller.settled(inode.mode, &inode.attr(0));
            let attr = inode.attr(0);
            let ino = draft.add(inode)?;
            lists.put(draft, ino);
            let name = Bytes::copy_from_slice(name);
            draft.name(dir, position, Named { name, ino, kind: node.kind });
            draft.touch(dir, 1)?;
            if is_dir {
                draft.link(dir, 1)?;
            }
            draft.keep(&caller, ino)?;
            Ok(Attr { ino, ..attr })
        };
        self.change(caller, plan).await
    }

    /// Gives an inode another name.
    pub async fn link(&self, caller: Caller<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Done<Attr> {
        check_name(name)?;
        is_free(dir, name, Errno::EXIST)?;
        is_present(ino).map_err(|_| Errno::XDEV)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let parent = draft.view.dir(dir)?;
            let (position, taken) = draft.view.name(dir, name)?;
            if taken.is_some() {
                return Err(Errno::EXIST.into());
            }
            let kind = draft.inode(ino)?.kind;
            if kind == FileType::Directory {
                return Err(Errno::PERM.into());
            }
            // The last name of a file in use may be gone: no other one comes then.
            if draft.inode(ino)?.links == 0 || parent.links == 0 {
                return Err(Errno::NOENT.into());
            }
            draft.link(ino, 1)?;
            draft.name(dir, position, Named { name: Bytes::copy_from_slice(name), ino, kind });
            draft.touch(dir, 1)?;
            Ok(draft.inode(ino)?.attr(ino))
        };
        self.change(caller, plan).await
    }

    /// Removes a name of a file. The file goes with its last name, once no client uses it.
    pub async fn unlink(&self, caller: Caller<'_>, dir: Ino, name: &[u8]) -> Done<()> {
        check_name(name)?;
        is_free(dir, name, Errno::PERM)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let (position, named) = existing(draft.view, dir, name)?;
            if named.kind == FileType::Directory {
                return Err(Errno::ISDIR.into());
            }
            draft.unname(dir, position);
            draft.touch(dir, -1)?;
            unlink(draft, named.ino)
        };
        self.change(caller, plan).await
    }

    /// Removes an empty directory.
    pub async fn remove_dir(&self, caller: Caller<'_>, dir: Ino, name: &[u8]) -> Done<()> {
        check_name(name)?;
        is_free(dir, name, Errno::PERM)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let (position, named) = existing(draft.view, dir, name)?;
            if named.kind != FileType::Directory {
                return Err(Errno::NOTDIR.into());
            }
            draft.unname(dir, position);
            draft.touch(dir, -1)?;
            remove_dir(draft, dir, named.ino)
        };
        self.change(caller, plan).await
    }

    /// Renames, as one change.
    pub async fn rename(
        &self,
        caller: Caller<'_>,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        how: Rename,
    ) -> Done<()> {
        check_name(from)?;
        check_name(to)?;
        is_free(from_dir, from, Errno::PERM)?;
        is_free(to_dir, to, Errno::EXIST)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let (from_at, moved) = existing(draft.view, from_dir, from)?;
            let target = draft.view.dir(to_dir)?;
            let (to_at, replaced) = draft.view.name(to_dir, to)?;
            if target.links == 0 {
                return Err(Errno::NOENT.into());
            }
            if how == Rename::NoReplace && replaced.is_some() {
                return Err(Errno::EXIST.into());
            }
            if how == Rename::Exchange && replaced.is_none() {
                return Err(Errno::NOENT.into());
            }
            if replaced.as_ref().is_some_and(|replaced| replaced.ino == moved.ino) {
                return Ok(());
            }
            below(draft.view, &moved, to_dir)?;
            if how == Rename::Exchange {
                let replaced = replaced.expect("it was just seen");
                below(draft.view, &replaced, from_dir)?;
                let here = (from_dir, from_at, Bytes::copy_from_slice(from));
                let there = (to_dir, to_at, Bytes::copy_from_slice(to));
                put(draft, &moved, from_dir, there)?;
                put(draft, &replaced, to_dir, here)?;
                draft.touch(from_dir, 0)?;
                return draft.touch(to_dir, 0);
            }
            match &replaced {
                Some(replaced) => give_way(draft, &moved, to_dir, replaced)?,
                None => draft.touch(to_dir, 1)?,
            }
            draft.unname(from_dir, from_at);
            draft.touch(from_dir, -1)?;
            draft.touch(to_dir, 0)?;
            put(draft, &moved, from_dir, (to_dir, to_at, Bytes::copy_from_slice(to)))
        };
        self.change(caller, plan).await
    }

    /// Returns the target of a symlink.
    pub async fn read_link(&self, ino: Ino) -> Done<Bytes> {
        let look_at = |view: &View<'_>, ino| {
            let inode = view.inode(ino)?;
            match inode.kind {
                FileType::Symlink => Ok(inode.target),
                _ => Err(Errno::INVAL.into()),
            }
        };
        self.look_into(ino, look_at).await
    }
}

/// Takes a name from a file.
fn unlink(draft: &mut Draft<'_, '_>, ino: Ino) -> Result<(), Stop> {
    match draft.link(ino, -1)? {
        0 => draft.release(ino),
        _ => Ok(()),
    }
}

/// Removes a directory whose name in `dir` is gone.
fn remove_dir(draft: &mut Draft<'_, '_>, dir: Ino, ino: Ino) -> Result<(), Stop> {
    if draft.inode(ino)?.size > 0 {
        return Err(Errno::NOTEMPTY.into());
    }
    draft.link(dir, -1)?;
    draft.link(ino, -2)?;
    draft.release(ino)
}

/// Refuses to move a directory below itself.
fn below(view: &View<'_>, moved: &Named, into: Ino) -> Result<(), Stop> {
    if moved.kind != FileType::Directory {
        return Ok(());
    }
    let mut dir = into;
    for _ in 0..limits::DEPTH_MAX {
        if dir == moved.ino {
            return Err(Errno::INVAL.into());
        }
        if dir == ROOT {
            return Ok(());
        }
        dir = view.dir(dir)?.parent;
    }
    Err(Errno::LOOP.into())
}

/// Makes way for an inode that is renamed to a name that exists.
fn give_way(
    draft: &mut Draft<'_, '_>,
    moved: &Named,
    dir: Ino,
    replaced: &Named,
) -> Result<(), Stop> {
    let is_dir = |named: &Named| named.kind == FileType::Directory;
    match (is_dir(moved), is_dir(replaced)) {
        (true, false) => Err(Errno::NOTDIR.into()),
        (false, true) => Err(Errno::ISDIR.into()),
        (true, true) => remove_dir(draft, dir, replaced.ino),
        (false, false) => unlink(draft, replaced.ino),
    }
}

/// Gives an inode that was named in `from` a name elsewhere.
fn put(
    draft: &mut Draft<'_, '_>,
    moved: &Named,
    from: Ino,
    (dir, position, name): (Ino, u64, Bytes),
) -> Result<(), Stop> {
    draft.name(dir, position, Named { name, ..*moved });
    let now = draft.now;
    draft.inode(moved.ino)?.changed = now;
    if moved.kind == FileType::Directory && from != dir {
        draft.link(from, -1)?;
        draft.link(dir, 1)?;
        draft.inode(moved.ino)?.parent = dir;
    }
    Ok(())
}
