//! What a caller may do, as POSIX says: rules over attributes and access control lists
//! ([`Rights`]), and nothing else.
//!
//! The kernel of a client has its own look (ACCESS) before it opens a file, and NFS has no open
//! files. So an owner reads and writes its file here whatever the mode says, as through a
//! descriptor that it has; and a file that may be executed may be read.

use rekindle_file::{Attr, Errno, FileType, Rights, SetAttr, without_set_id};

/// What a caller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Bits of one class of a mode.
pub const READ: u16 = 4;
pub const WRITE: u16 = 2;
pub const EXECUTE: u16 = 1;

pub const SET_USER_ID: u16 = 0o4000;
pub const SET_GROUP_ID: u16 = 0o2000;
pub const STICKY: u16 = 0o1000;
const ANY_EXECUTES: u16 = 0o111;

/// The user and group of those who have none here.
pub const ANONYMOUS: u32 = 65534;

/// Whether a rule lets a call pass.
type Ruled = Result<(), Errno>;

impl Credentials {
    /// The caller that nothing is known of.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { uid: ANONYMOUS, gid: ANONYMOUS, groups: Vec::new() }
    }

    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    #[must_use]
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }

    /// Whether the caller has all of `wanted` of something. One class decides: the owner's, else
    /// that of a user whom a list names, else the groups', else the others'.
    #[must_use]
    pub fn has(&self, of: &Rights, wanted: u16) -> bool {
        if self.is_root() {
            let may_run = of.kind == FileType::Directory || of.mode & ANY_EXECUTES != 0;
            return wanted & EXECUTE == 0 || may_run;
        }
        of.give(self.uid, |group| self.is_in(group), wanted)
    }

    fn must_have(&self, of: &Rights, wanted: u16) -> Ruled {
        if self.has(of, wanted) { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether the caller may look names of a directory up.
    pub fn look_up(&self, dir: &Rights) -> Ruled {
        self.must_have(dir, EXECUTE)
    }

    /// Whether the caller may list a directory.
    pub fn list(&self, dir: &Rights) -> Ruled {
        self.must_have(dir, READ)
    }

    /// Whether the caller may read a file.
    pub fn read(&self, file: &Rights) -> Ruled {
        let may = self.owns(file) || self.has(file, READ) || self.has(file, EXECUTE);
        if may { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether the caller may write a file.
    pub fn write(&self, file: &Rights) -> Ruled {
        if self.owns(file) { Ok(()) } else { self.must_have(file, WRITE) }
    }

    /// Whether the caller may make a name in a directory.
    pub fn make(&self, dir: &Rights) -> Ruled {
        self.must_have(dir, WRITE | EXECUTE)
    }

    /// Whether the caller may make a node of a type.
    pub fn make_kind(&self, kind: FileType) -> Ruled {
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        if is_device && !self.is_root() { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Whether the caller may take a name out of a directory. In a sticky one, only the owner of
    /// what it leads to, or of the directory, may.
    pub fn remove(&self, dir: &Rights, what: &Attr) -> Ruled {
        self.make(dir)?;
        let is_theirs = !self.owns(dir) && !self.owns(what);
        if dir.mode & STICKY != 0 && is_theirs { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Whether the caller may move what a name leads to from one directory to another, in the place
    /// of what is there.
    pub fn rename(
        &self,
        from: &Rights,
        to: &Rights,
        what: &Rights,
        there: Option<&Rights>,
    ) -> Ruled {
        self.remove(from, what)?;
        match there {
            Some(there) => self.remove(to, there)?,
            None => self.make(to)?,
        }
        // Its `..` changes.
        let moves = what.kind == FileType::Directory && from.ino != to.ino;
        if moves { self.must_have(what, WRITE) } else { Ok(()) }
    }

    /// Whether the caller may set attributes. `is_now` says that the times are those of the server.
    pub fn set(&self, attr: &Rights, set: &SetAttr, is_now: bool) -> Ruled {
        let owns = self.owns(attr);
        if set.mode.is_some() && !owns {
            return Err(Errno::PERM);
        }
        let gives = set.uid.is_some_and(|uid| uid != attr.uid);
        if set.uid.is_some() && !self.is_root() && (gives || !owns) {
            return Err(Errno::PERM);
        }
        let may_have = |gid| owns && (gid == attr.gid || self.is_in(gid));
        if let Some(gid) = set.gid
            && !self.is_root()
            && !may_have(gid)
        {
            return Err(Errno::PERM);
        }
        if set.size.is_some() {
            self.write(attr)?;
        }
        let sets_times = set.accessed.is_some() || set.modified.is_some();
        match sets_times && !owns {
            true if is_now => self.must_have(attr, WRITE),
            true => Err(Errno::PERM),
            false => Ok(()),
        }
    }

    /// Whether the caller may set an access control list.
    pub fn set_list(&self, attr: &Attr) -> Ruled {
        if self.owns(attr) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Returns the mode that a file has after the caller wrote to it.
    #[must_use]
    pub fn mode_after_write(&self, kind: FileType, mode: u16) -> u16 {
        if self.is_root() || kind != FileType::Regular { mode } else { without_set_id(mode) }
    }

    /// Returns the mode that attributes leave an inode with, where `mode` is the one that they ask
    /// for, or that it had.
    #[must_use]
    pub fn mode_after_set(&self, attr: &Attr, set: &SetAttr, mode: u16) -> u16 {
        let mut mode = mode;
        let moves = set.uid.is_some() || set.gid.is_some();
        if moves && attr.kind != FileType::Directory {
            mode = without_set_id(mode);
        }
        if set.size.is_some() {
            mode = self.mode_after_write(attr.kind, mode);
        }
        let gid = set.gid.unwrap_or(attr.gid);
        if set.mode.is_some() && !self.is_root() && !self.is_in(gid) {
            mode &= !SET_GROUP_ID;
        }
        mode
    }

    /// Returns the mode of something new in a directory. What is made in a directory with
    /// set-group-id has its group, and a caller who is not in that may not act for it.
    #[must_use]
    pub fn mode_of_new(&self, dir: &Attr, kind: FileType, mode: u16) -> u16 {
        let gid = if dir.mode & SET_GROUP_ID == 0 { self.gid } else { dir.gid };
        let acts = kind != FileType::Directory && mode & SET_GROUP_ID != 0;
        if acts && !self.is_root() && !self.is_in(gid) { mode & !SET_GROUP_ID } else { mode }
    }
}

#[cfg(test)]
mod tests;
