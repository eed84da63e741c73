//! Operations about the bytes of files: READ, WRITE, COMMIT.

use super::holding::Refusal;
use super::{Done, Work, regular};
use crate::held::{READ, WRITE};
use crate::nfs::limits as common;
use crate::nfs::permission::Credentials;
use crate::nfs::target::Exports;
use crate::nfs::v4::codec::{Read, Write};
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::witness::{Judge, Mode};
use crate::nfs::xdr::Args;
use crate::target::Target;
use rekindle_file::{Caller, FILE_BYTES_MAX, Sight};

/// How stable a WRITE is when it is answered.
const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

impl<E: Exports> Work<'_, E> {
    pub(super) async fn read(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (given, offset, count) = (args.stateid()?, args.u64()?, args.u32()?);
        let place = self.place().map_err(|_| Status::ISDIR)?;
        let count = count.min(common::DATA_BYTES_MAX) as usize;
        self.room = self.room.checked_sub(count).ok_or(Status::REP_TOO_BIG)?;
        let files = &place.export.files;
        let attr = files.rights(place.ino).await?;
        regular(&attr)?;
        if !self.opened_for(&place, given, READ).await? {
            self.caller.read(&attr)?;
        }
        let data = files.read(place.ino, offset, count).await?;
        // The file may have changed since: what was read last counts.
        let size = files.attr(place.ino).await?.size;
        self.meters.read(data.len());
        out.put_flag(offset.saturating_add(data.len() as u64) >= size);
        out.put_opaque(&data);
        Ok(())
    }

    pub(super) async fn write(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (given, offset, stable) = (args.stateid()?, args.u64()?, args.u32()?);
        let data = args.opaque(common::DATA_BYTES_MAX)?;
        if stable > FILE_SYNC {
            return Err(Status::BADXDR.into());
        }
        let place = self.place().map_err(|_| Status::ISDIR)?;
        self.may_change(&place)?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        end.ok_or(Status::FBIG)?;
        let (files, refusal) = (&place.export.files, Refusal::default());
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            refusal.forget();
            let attr = sight.rights(place.ino)?;
            regular(&attr).map_err(|status| refusal.halt(status))?;
            let kept = sight.kept(place.ino)?;
            let opened = self.check_opened(&place, kept.as_deref(), given, WRITE);
            if !opened.map_err(|status| refusal.halt(status))? {
                caller.write(&attr)?;
            }
            let (caller, kind) = (caller.clone(), attr.kind);
            Ok(Box::new(move |mode| caller.mode_after_write(kind, mode)) as Mode)
        };
        let mut written = 0;
        if data.is_empty() {
            // Nothing is written, and nothing judges: the rule is asked for itself.
            let attr = files.rights(place.ino).await?;
            regular(&attr)?;
            if !self.opened_for(&place, given, WRITE).await? {
                self.caller.write(&attr)?;
            }
        } else {
            let judge = Judge::new(self.caller, None, &[], &rule);
            let caller = Caller { witness: Some(&judge), ..Caller::default() };
            let done = files.write_some(caller, place.ino, offset, data).await;
            written = refusal.or(done.map_err(Fault::from))?;
            self.meters.written(written);
        }
        if stable != UNSTABLE {
            files.sync().await?;
        }
        // The client asks again for what is not written.
        out.put_u32(written as u32);
        out.put_u32(if stable == UNSTABLE { UNSTABLE } else { FILE_SYNC });
        out.put_plain(&place.export.verifier);
        Ok(())
    }

    /// Makes all of the volume's changes durable: they share one log.
    pub(super) async fn commit(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let (_offset, _count) = (args.u64()?, args.u32()?);
        let place = self.place().map_err(|_| Status::ISDIR)?;
        let files = &place.export.files;
        regular(&files.attr(place.ino).await?)?;
        files.sync().await?;
        out.put_plain(&place.export.verifier);
        Ok(())
    }
}
