//! Access control lists. They lie where extended attributes do, so what keeps and copies these
//! keeps and copies lists, too. A change of a list and of the mode that goes with it is one record.

use super::draft::Draft;
use super::frozen::{Whence, is_present, seen_from, whence};
use super::{Done, Files};
use crate::acl::{Acl, AclOf, Rights};
use crate::caller::Caller;
use crate::format::Bad;
use crate::format::rows::Xattr;
use crate::look::Stop;
use crate::state::View;
use crate::types::{Errno, FileType, Ino, NewNode};
use bytes::Bytes;

/// Bits of a mode that a list has, too.
const PERMISSIONS: u16 = 0o777;

impl View<'_> {
    /// Returns a list of an inode, if it has one.
    pub(crate) fn acl(&self, ino: Ino, of: AclOf) -> Result<Option<Acl>, Stop> {
        if !self.has_xattrs(ino)? {
            return Ok(None);
        }
        let (_, found) = self.xattr(ino, of.name())?;
        let parsed = found.map(|xattr| Acl::parse(&xattr.value)).transpose();
        parsed.map_err(|_| Bad("an access control list makes no sense").into())
    }

    /// Returns what decides who may do what with an inode.
    pub(crate) fn rights(&self, ino: Ino) -> Result<Rights, Stop> {
        let attr = self.inode(ino)?.attr(ino);
        Ok(Rights { attr, acl: self.acl(ino, AclOf::Access)? })
    }
}

impl Files {
    /// Returns what decides who may do what with an inode.
    pub async fn rights(&self, ino: Ino) -> Done<Rights> {
        if whence(ino).0 == Whence::Directory {
            return Ok(self.attr(ino).await?.into());
        }
        let Rights { attr, acl } = self.look_into(ino, |view, inner| view.rights(inner)).await?;
        Ok(Rights { attr: seen_from(ino, attr), acl })
    }

    /// Sets lists of an inode, or removes them, as one change.
    pub async fn set_acls(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        lists: &[(AclOf, Option<Acl>)],
    ) -> Done<()> {
        is_present(ino)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            draft.may_set_acl(&caller, ino)?;
            let now = draft.now;
            draft.inode(ino)?.changed = now;
            for (of, acl) in lists {
                let kept = match acl {
                    Some(acl) => draft.take_acl(&caller, ino, *of, acl)?,
                    None => None,
                };
                let (position, found) = draft.view.xattr(ino, of.name())?;
                if kept.is_some() || found.is_some() {
                    draft.xattr(ino, position, kept);
                }
            }
            Ok(())
        };
        self.change(caller, plan).await
    }
}

impl Draft<'_, '_> {
    /// Has a list say what the inode's new mode says.
    pub(super) fn follow_mode(&mut self, ino: Ino) -> Result<(), Stop> {
        let Some(acl) = self.view.acl(ino, AclOf::Access)? else { return Ok(()) };
        let acl = acl.with_mode(self.inode(ino)?.mode);
        let (position, _) = self.view.xattr(ino, AclOf::Access.name())?;
        self.xattr(ino, position, Some(row(AclOf::Access, &acl)));
        Ok(())
    }

    /// Lets the owner of an inode and root set its lists, and no other caller.
    pub(super) fn may_set_acl(&mut self, caller: &Caller<'_>, ino: Ino) -> Result<(), Stop> {
        match caller.uid == 0 || caller.uid == self.inode(ino)?.uid {
            true => Ok(()),
            false => Err(Errno::PERM.into()),
        }
    }

    /// Takes a list that an inode is to have, and gives the inode its mode. Returns what is to be
    /// kept as an extended attribute: nothing, where the mode says it all.
    pub(super) fn take_acl(
        &mut self,
        caller: &Caller<'_>,
        ino: Ino,
        of: AclOf,
        acl: &Acl,
    ) -> Result<Option<Xattr>, Stop> {
        let inode = self.inode(ino)?;
        match (of, inode.kind) {
            (_, FileType::Symlink) => return Err(Errno::OPNOTSUPP.into()),
            (AclOf::Default, FileType::Directory) => return Ok(Some(row(of, acl))),
            (AclOf::Default, _) => return Err(Errno::ACCESS.into()),
            (AclOf::Access, _) => {}
        }
        let mode = inode.mode & !PERMISSIONS | acl.mode();
        inode.mode = caller.settled(mode, &inode.attr(ino));
        Ok((!acl.is_a_mode()).then(|| row(of, acl)))
    }
}

/// What a new inode has of the directory that it is made in.
pub(super) struct Inherited {
    pub(super) mode: u16,
    /// The extended attributes that have its lists.
    xattrs: Vec<Xattr>,
}

impl Inherited {
    pub(super) fn new(view: &View<'_>, dir: Ino, node: &NewNode<'_>) -> Result<Self, Stop> {
        let asked = node.mode & 0o7777;
        let default = match node.kind {
            FileType::Symlink => None,
            _ => view.acl(dir, AclOf::Default)?,
        };
        let Some(default) = default else {
            return Ok(Self { mode: asked & !node.umask, xattrs: Vec::new() });
        };
        let acl = default.inherited(asked);
        let mut xattrs = Vec::new();
        if !acl.is_a_mode() {
            xattrs.push(row(AclOf::Access, &acl));
        }
        if node.kind == FileType::Directory {
            xattrs.push(row(AclOf::Default, &default));
        }
        Ok(Self { mode: asked & !PERMISSIONS | acl.mode(), xattrs })
    }

    /// Gives the new inode its lists.
    pub(super) fn put(self, draft: &mut Draft<'_, '_>, ino: Ino) {
        let mut last = 0;
        for xattr in self.xattrs {
            let places = draft.view.names.places(&xattr.name);
            // Two names may have the same hash.
            let is_taken = places.start == last;
            last = places.start;
            draft.xattr(ino, places.start + u64::from(is_taken), Some(xattr));
        }
    }
}

fn row(of: AclOf, acl: &Acl) -> Xattr {
    Xattr { name: Bytes::from_static(of.name()), value: acl.format().into() }
}
