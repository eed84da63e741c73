//! Access control lists of inodes, as an attribute.

use super::{Done, Work};
use crate::nfs::answer::lists::default_list;
use crate::nfs::permission::{Credentials, SET_GROUP_ID};
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::acl::{Entry, Lists};
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::witness::{Judge, Mode, as_asked};
use crate::target::Target;
use rekindle_file::{Acl, AclOf, Attr, Caller, FileType, Ino, NewNode, Sight};

/// Added to the place of an operation in its COMPOUND: the operation's second change.
const SECOND: u32 = 1 << 31;

/// Whom lists are set of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Something that the same operation has made.
    New,
    Old,
}

/// Returns the lists that entries stand for, of an inode of a type.
pub(super) fn asked(entries: Option<&[Entry]>, kind: FileType) -> Result<Option<Lists>, Fault> {
    let Some(entries) = entries else { return Ok(None) };
    if kind == FileType::Symlink {
        return Err(Status::ATTRNOTSUPP.into());
    }
    Ok(Some(Lists::of(entries, kind == FileType::Directory)?))
}

/// Has something new give only its owner anything until its lists are set.
pub(super) fn closed<'a>(node: NewNode<'a>, lists: Option<&Lists>) -> NewNode<'a> {
    let Some(lists) = lists else { return node };
    NewNode { mode: node.mode & !0o777 | lists.access.mode() & 0o700, ..node }
}

impl<E: Exports> Work<'_, E> {
    /// Returns the lists of an inode, and its attributes of the same moment.
    pub(super) async fn lists(
        &self,
        place: &Place<E::Files>,
        ino: Ino,
    ) -> Result<(Attr, Lists), Fault> {
        let files = &place.export.files;
        let rights = files.rights(ino).await?;
        let default = match rights.kind {
            FileType::Directory => default_list(files, ino).await?,
            _ => None,
        };
        let access = rights.acl.unwrap_or_else(|| Acl::of_mode(rights.attr.mode));
        Ok((rights.attr, Lists { access, default }))
    }

    /// Sets the lists of an inode. It is a change of its own, and known again as such.
    pub(super) async fn set_lists(
        &self,
        place: &Place<E::Files>,
        ino: Ino,
        lists: &Lists,
        of: Of,
    ) -> Done {
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let rights = sight.rights(ino)?;
            caller.set_list(&rights)?;
            if of == Of::New || caller.is_root() || caller.is_in(rights.gid) {
                return Ok(as_asked());
            }
            Ok(Box::new(|mode| mode & !SET_GROUP_ID) as Mode)
        };
        let files = &place.export.files;
        let mut both = vec![(AclOf::Access, Some(lists.access.clone()))];
        if files.attr(ino).await?.kind == FileType::Directory {
            both.push((AclOf::Default, lists.default.clone()));
        }
        let call = self.known_at(self.at | SECOND);
        let judge = Judge::new(self.caller, call, &[], &rule);
        let caller = Caller { call, ..self.with(&judge) };
        let done = files.set_acls(caller, ino, &both).await;
        self.settle(place, judge.was_done(), done).await?;
        Ok(())
    }
}
