//! Calls about the bytes of files.

use super::about::regular;
use super::{Answered, Mode, Question, some, unknown};
use crate::nfs::handle;
use crate::nfs::limits;
use crate::nfs::permission::Credentials;
use crate::nfs::replies::{self, Failed};
use crate::nfs::target::Exports;
use crate::nfs::witness::Judge;
use crate::nfs::xdr::Args;
use crate::target::Target;
use nfs3_types::nfs3::{
    COMMIT3resfail, COMMIT3resok, Nfs3Option, READ3resfail, READ3resok, READLINK3resfail,
    READLINK3resok, WRITE3resfail, WRITE3resok, nfspath3, stable_how, writeverf3,
};
use nfs3_types::xdr_codec::Opaque;
use rekindle_file::{Caller, Errno, FILE_BYTES_MAX, Sight};

impl<E: Exports> Question<'_, E> {
    pub(super) async fn read_link(&self, mut args: Args<'_>) -> Answered {
        let handle = handle::read(&mut args)?;
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => {
                let failure = READLINK3resfail::default();
                return self.reply::<READLINK3resok<'_>, _>(Err(failed), failure);
            }
        };
        let target = place.export.files.read_link(place.ino).await;
        let symlink_attributes = self.after(&place, place.ino).await;
        match &target {
            Ok(target) => {
                let data = nfspath3(Opaque::borrowed(target));
                let failure = READLINK3resfail::default();
                self.reply(Ok(READLINK3resok { symlink_attributes, data }), failure)
            }
            Err(error) => {
                let failure = READLINK3resfail { symlink_attributes };
                self.reply::<READLINK3resok<'_>, _>(Err(error.clone().into()), failure)
            }
        }
    }

    pub(super) async fn read(&self, mut args: Args<'_>) -> Answered {
        let (handle, offset, count) = (handle::read(&mut args)?, args.u64()?, args.u32()?);
        let done = async {
            let place = self.place(handle).await?;
            let files = &place.export.files;
            let attr = files.rights(place.ino).await?;
            regular(&attr)?;
            self.caller.read(&attr)?;
            let count = count.min(limits::DATA_BYTES_MAX);
            let data = files.read(place.ino, offset, count as usize).await?;
            // The file may have changed since: what was read last counts.
            let attr = files.attr(place.ino).await?;
            Ok::<_, Failed>((data, replies::attributes(&attr, place.volume())))
        };
        match done.await {
            Ok((data, attributes)) => {
                self.meters.read(data.len());
                let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let eof = offset.saturating_add(u64::from(count)) >= attributes.size;
                let (file_attributes, data) = (some(attributes), Opaque::borrowed(&data));
                let done = READ3resok { file_attributes, count, eof, data };
                self.reply(Ok(done), READ3resfail::default())
            }
            Err(failed) => self.reply::<READ3resok<'_>, _>(Err(failed), READ3resfail::default()),
        }
    }

    pub(super) async fn write(&self, mut args: Args<'_>) -> Answered {
        let (handle, offset, count) = (handle::read(&mut args)?, args.u64()?, args.u32()?);
        let stable = args.plain::<stable_how>()?;
        let data = args.opaque(limits::DATA_BYTES_MAX)?;
        let place = match self.place(handle).await {
            Ok(place) => place,
            Err(failed) => {
                let failure = WRITE3resfail { file_wcc: unknown() };
                return self.reply::<WRITE3resok, _>(Err(failed), failure);
            }
        };
        let watched = [place.ino];
        let rule = |caller: &Credentials, sight: &dyn Sight| {
            let attr = sight.rights(place.ino)?;
            regular(&attr)?;
            caller.write(&attr)?;
            let (caller, kind) = (caller.clone(), attr.kind);
            Ok(Box::new(move |mode| caller.mode_after_write(kind, mode)) as Mode)
        };
        let judge = Judge::new(self.caller, None, &watched, &rule);
        let done = async {
            self.may_change(&place)?;
            // Less than was announced is a client's mistake.
            let data = data.get(..count as usize).ok_or(Errno::INVAL)?;
            let end = offset.checked_add(u64::from(count)).filter(|end| *end <= FILE_BYTES_MAX);
            end.ok_or(Errno::FBIG)?;
            let files = &place.export.files;
            let mut written = 0;
            if data.is_empty() {
                // Nothing is written, and nothing judges: the rule is asked for itself.
                let attr = files.rights(place.ino).await?;
                regular(&attr)?;
                self.caller.write(&attr)?;
            } else {
                let caller = Caller { witness: Some(&judge), ..Caller::default() };
                written = files.write_some(caller, place.ino, offset, data).await?;
                self.meters.written(written);
            }
            if stable != stable_how::UNSTABLE {
                files.sync().await?;
            }
            // The client asks again for what is not written.
            Ok(u32::try_from(written).unwrap_or(count))
        };
        let done = done.await;
        let file_wcc = self.changed(&place, &judge, place.ino).await;
        match done {
            Ok(count) => {
                let committed = match stable {
                    stable_how::UNSTABLE => stable_how::UNSTABLE,
                    _ => stable_how::FILE_SYNC,
                };
                let verf = writeverf3(place.export.verifier);
                let done = WRITE3resok { file_wcc, count, committed, verf };
                self.reply(Ok(done), WRITE3resfail::default())
            }
            Err(failed) => self.reply::<WRITE3resok, _>(Err(failed), WRITE3resfail { file_wcc }),
        }
    }

    /// Makes all of the volume's changes durable: they share one log.
    pub(super) async fn commit(&self, mut args: Args<'_>) -> Answered {
        let (handle, _offset, _count) = (handle::read(&mut args)?, args.u64()?, args.u32()?);
        let done = async {
            let place = self.place(handle).await?;
            let files = &place.export.files;
            let attr = files.rights(place.ino).await?;
            regular(&attr)?;
            self.caller.write(&attr)?;
            files.sync().await?;
            let after = Nfs3Option::Some(replies::attributes(&attr, place.volume()));
            let verf = writeverf3(place.export.verifier);
            Ok(COMMIT3resok { file_wcc: replies::only_after(after), verf })
        };
        self.reply(done.await, COMMIT3resfail { file_wcc: unknown() })
    }
}
