//! Attributes, and extended ones.

use super::{Done, Files};
use crate::acl::{Acl, AclOf};
use crate::caller::Caller;
use crate::files::draft::Draft;
use crate::files::frozen::{Whence, is_present, whence};
use crate::format::rows::Xattr;
use crate::state::View;
use crate::taken::whole;
use crate::types::{
    Attr, Errno, FILE_BYTES_MAX, FileType, Ino, NAME_BYTES_MAX, SetAttr, SetXattr, XATTR_BYTES_MAX,
};
use bytes::Bytes;

fn check_xattr(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        0 => Err(Errno::INVAL),
        length if length > NAME_BYTES_MAX => Err(Errno::RANGE),
        _ => Ok(()),
    }
}

impl Files {
    /// Sets attributes.
    pub async fn set_attr(&self, caller: Caller<'_>, ino: Ino, set: &SetAttr) -> Done<Attr> {
        is_present(ino)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let now = draft.now;
            if let Some(size) = set.size {
                match draft.inode(ino)?.kind {
                    FileType::Regular => {}
                    FileType::Directory => return Err(Errno::ISDIR.into()),
                    _ => return Err(Errno::INVAL.into()),
                }
                if size > FILE_BYTES_MAX {
                    return Err(Errno::FBIG.into());
                }
                resize(draft, ino, size)?;
                draft.inode(ino)?.modified = now;
            }
            let inode = draft.inode(ino)?;
            let mode = set.mode.map_or(inode.mode, |mode| mode & 0o7777);
            inode.mode = caller.settled(mode, &inode.attr(ino));
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            inode.accessed = set.accessed.unwrap_or(inode.accessed);
            inode.modified = set.modified.unwrap_or(inode.modified);
            inode.changed = set.changed.unwrap_or(now);
            let attr = inode.attr(ino);
            if set.mode.is_some() {
                draft.follow_mode(ino)?;
            }
            draft.keep(&caller, ino)?;
            Ok(attr)
        };
        self.change(caller, plan).await
    }

    /// Returns the value of an extended attribute; `ENODATA` if there is none.
    pub async fn xattr(&self, ino: Ino, name: &[u8]) -> Done<Bytes> {
        check_xattr(name)?;
        if whence(ino).0 == Whence::Directory {
            return Err(Errno::NODATA.into());
        }
        let look_at = |view: &View<'_>, ino| {
            view.inode(ino)?;
            let (_, xattr) = view.xattr(ino, name)?;
            Ok(xattr.ok_or(Errno::NODATA)?.value)
        };
        self.look_into(ino, look_at).await
    }

    /// Sets an extended attribute. One that has an access control list sets the mode, too.
    pub async fn set_xattr(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Done<()> {
        check_xattr(name)?;
        is_present(ino)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let list = match AclOf::named(name) {
            Some(of) => Some((of, Acl::parse(value)?)),
            None => None,
        };
        let plan = |draft: &mut Draft<'_, '_>| {
            let now = draft.now;
            draft.inode(ino)?.changed = now;
            let (position, found) = draft.view.xattr(ino, name)?;
            match (how, found.is_some()) {
                (SetXattr::Create, true) => return Err(Errno::EXIST.into()),
                (SetXattr::Replace, false) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            let kept = match &list {
                Some((of, acl)) => {
                    draft.may_set_acl(&caller, ino)?;
                    draft.take_acl(&caller, ino, *of, acl)?
                }
                None => {
                    let (name, value) =
                        (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
                    Some(Xattr { name, value })
                }
            };
            if kept.is_some() || found.is_some() {
                draft.xattr(ino, position, kept);
            }
            Ok(())
        };
        self.change(caller, plan).await
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, caller: Caller<'_>, ino: Ino, name: &[u8]) -> Done<()> {
        check_xattr(name)?;
        is_present(ino)?;
        let plan = |draft: &mut Draft<'_, '_>| {
            let now = draft.now;
            draft.inode(ino)?.changed = now;
            if AclOf::named(name).is_some() {
                draft.may_set_acl(&caller, ino)?;
            }
            let (position, found) = draft.view.xattr(ino, name)?;
            found.ok_or(Errno::NODATA)?;
            draft.xattr(ino, position, None);
            Ok(())
        };
        self.change(caller, plan).await
    }

    /// Returns the names of an inode's extended attributes.
    pub async fn list_xattrs(&self, ino: Ino) -> Done<Vec<Bytes>> {
        if whence(ino).0 == Whence::Directory {
            return Ok(Vec::new());
        }
        let look_at = |view: &View<'_>, ino| {
            view.inode(ino)?;
            let mut names = Vec::new();
            view.xattrs(ino, 0, |_, xattr| {
                names.push(xattr.name);
                true
            })?;
            Ok(names)
        };
        self.look_into(ino, look_at).await
    }
}

/// Cuts a file, or lets it grow.
pub(super) fn resize(
    draft: &mut Draft<'_, '_>,
    ino: Ino,
    size: u64,
) -> Result<(), crate::look::Stop> {
    let inode = draft.inode(ino)?;
    let is_cut = size < inode.size || size == inode.size && inode.beyond > 0;
    if !is_cut {
        inode.grow(size);
        return Ok(());
    }
    inode.size = size;
    inode.beyond = 0;
    draft.zero(ino, size, FILE_BYTES_MAX - size);
    draft.give_back(ino, &whole(&(size..FILE_BYTES_MAX)))
}
