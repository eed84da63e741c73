//! Operations about attributes.

use super::acls::{self, Of};
use super::{Done, Spot, Work};
use crate::held::WRITE;
use crate::nfs::answer::about::granted;
use crate::nfs::permission::Credentials;
use crate::nfs::server::Place;
use crate::nfs::target::Exports;
use crate::nfs::v4::attributes::{self as words, Asked, Subject};
use crate::nfs::v4::codec::{Bitmap, Read, Write};
use crate::nfs::v4::limits;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::witness::Mode;
use crate::nfs::xdr::Args;
use crate::target::Target;
use nfs3_types::nfs3;
use rekindle_file::{Attr, FileType, ROOT, SetAttr, Sight};

/// What ACCESS may ask for.
const ACCESS_BITS: u32 = 0x3f;

impl<E: Exports> Work<'_, E> {
    /// Writes attributes of the place.
    async fn put_attributes(&self, out: &mut Vec<u8>, wanted: &Bitmap) -> Done {
        match self.spot()? {
            Spot::Exports => {
                let (attr, handle) = (self.exports_attr(), self.exports_handle());
                words::encode(out, wanted, &Subject::of_exports(&attr, &handle));
            }
            Spot::At(place) => {
                let attr = place.export.files.attr(place.ino).await?;
                self.put_attributes_of(out, wanted, place, &attr).await?;
            }
        }
        Ok(())
    }

    /// Writes attributes of an inode.
    pub(super) async fn put_attributes_of(
        &self,
        out: &mut Vec<u8>,
        wanted: &Bitmap,
        place: &Place<E::Files>,
        attr: &Attr,
    ) -> Done {
        let space = match words::asks_for_space(wanted) {
            true => Some(place.export.files.space().await?),
            false => None,
        };
        let handle = place.handle(attr.ino).data;
        let above = (attr.ino == ROOT).then(|| self.export_number(&place.export.name));
        let of =
            Subject { attr, lists: None, volume: place.volume(), handle: &handle, space, above };
        if !words::asks_for_lists(wanted) {
            words::encode(out, wanted, &of);
            return Ok(());
        }
        let (attr, lists) = self.lists(place, attr.ino).await?;
        let before = out.len();
        words::encode(out, wanted, &Subject { attr: &attr, lists: Some(&lists), ..of });
        match out.len() - before > limits::ACL_BYTES_MAX {
            true => Err(Status::REP_TOO_BIG.into()),
            false => Ok(()),
        }
    }

    /// Writes attributes of the place, as far as there is room for a list among them.
    async fn put_with_room(&mut self, out: &mut Vec<u8>, wanted: &Bitmap) -> Done {
        let before = out.len();
        self.put_attributes(out, wanted).await?;
        if words::asks_for_lists(wanted) {
            let room = self.room.checked_sub(out.len() - before);
            self.room = room.ok_or(Status::REP_TOO_BIG)?;
        }
        Ok(())
    }

    pub(super) async fn attributes(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let wanted = args.bitmap()?;
        self.put_with_room(out, &wanted).await
    }

    /// VERIFY, or NVERIFY: compares attributes with those that a client says.
    pub(super) async fn verify(&mut self, args: &mut Args<'_>, wants_same: bool) -> Done {
        let (which, values) = words::raw(args)?;
        let lacks = match self.spot()? {
            Spot::Exports => Bitmap::default(),
            Spot::At(place) => words::lacks(place.export.files.attr(place.ino).await?.kind),
        };
        if !which.without(&words::SUPPORTED.without(&lacks)).is_empty() {
            return Err(Status::ATTRNOTSUPP.into());
        }
        let unfit = [words::RDATTR_ERROR, words::TIME_ACCESS_SET, words::TIME_MODIFY_SET];
        if !which.and(&Bitmap::of(&unfit)).is_empty() {
            return Err(Status::INVAL.into());
        }
        let mut ours = Vec::new();
        self.put_with_room(&mut ours, &which).await?;
        let mut ours = Args(&ours);
        let is_same = words::raw(&mut ours)? == (which, values);
        match (is_same, wants_same) {
            (true, false) => Err(Status::SAME.into()),
            (false, true) => Err(Status::NOT_SAME.into()),
            _ => Ok(()),
        }
    }

    pub(super) async fn access(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let asked = args.u32()? & ACCESS_BITS;
        let changes = nfs3::ACCESS3_MODIFY | nfs3::ACCESS3_EXTEND | nfs3::ACCESS3_DELETE;
        let mut access = asked
            & match self.spot()? {
                Spot::Exports => granted(self.caller, &self.exports_attr().into()) & !changes,
                Spot::At(place) => {
                    granted(self.caller, &place.export.files.rights(place.ino).await?)
                }
            };
        if let Spot::At(place) = self.spot()?
            && self.may_change(place).is_err()
        {
            access &= !changes;
        }
        out.put_u32(asked);
        out.put_u32(access);
        Ok(())
    }

    pub(super) async fn set_attributes(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        // What was set follows also when not all was.
        let mut told = Bitmap::default();
        let done = self.attributes_set(args, &mut told).await;
        let mut bytes = Vec::new();
        bytes.put_bitmap(&told);
        match done {
            Ok(()) => out.extend(bytes),
            Err(Fault::Status(status)) => return Err(Fault::With(status, bytes)),
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    async fn attributes_set(&mut self, args: &mut Args<'_>, told: &mut Bitmap) -> Done {
        let stateid = args.stateid()?;
        let raw = words::raw(args)?;
        let place = self.place()?;
        self.may_change(&place)?;
        let Asked { set, which, is_now, acl } = words::asked(raw, self.now())?;
        let kind = match acl {
            Some(_) => place.export.files.attr(place.ino).await?.kind,
            None => FileType::Regular,
        };
        let lists = acls::asked(acl.as_deref(), kind)?;
        let others = which.without(&Bitmap::of(&[words::ACL]));
        if let Some(lists) = lists.as_ref().filter(|_| others.is_empty()) {
            self.set_lists(&place, place.ino, lists, Of::Old).await?;
            *told = which;
            return Ok(());
        }
        // A file that is open for writing is cut whatever its mode says.
        let opened = match set.size {
            Some(_) => self.opened_for(&place, stateid, WRITE).await?,
            None => false,
        };
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let attr = sight.rights(place.ino)?;
            let judged = if opened { SetAttr { size: None, ..set } } else { set };
            caller.set(&attr, &judged, is_now)?;
            if lists.is_some() {
                caller.set_list(&attr)?;
            }
            let caller = caller.clone();
            Ok(Box::new(move |mode| caller.mode_after_set(&attr, &set, mode)) as Mode)
        };
        let watched = [place.ino];
        let judge = self.judge(&watched, &rule);
        let done = place.export.files.set_attr(self.with(&judge), place.ino, &set).await;
        self.settle(&place, judge.was_done(), done).await?;
        *told = others;
        if let Some(lists) = &lists {
            self.set_lists(&place, place.ino, lists, Of::Old).await?;
            *told = which;
        }
        Ok(())
    }
}
