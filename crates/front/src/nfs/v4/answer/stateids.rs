//! FREE_STATEID and TEST_STATEID: a stateid says of which inode it is, and not of which volume. So
//! the volumes that its client is known to be in are asked, one after the other, here and at the
//! hosts of their owners.

use super::{Done, Work};
use crate::held::Held;
use crate::nfs::forward::Told;
use crate::nfs::replies::Failed;
use crate::nfs::server::{Place, Used};
use crate::nfs::target::Exports;
use crate::nfs::v4::codec::{Read, Stateid, Write};
use crate::nfs::v4::limits;
use crate::nfs::v4::ops::Op;
use crate::nfs::v4::status::{Fault, Status};
use crate::nfs::xdr::Args;
use rekindle_file::{ROOT, is_frozen};

/// Where the files of a client are.
struct Haunted<T> {
    /// Volumes that are served here.
    here: Vec<Used<T>>,
    /// Names of those that other hosts serve.
    elsewhere: Vec<String>,
    /// Whether there are others, which nothing is known of now.
    has_more: bool,
}

impl<E: Exports> Work<'_, E> {
    async fn haunted(&self) -> Result<Haunted<E::Files>, Fault> {
        let (mut here, mut elsewhere, mut has_more) = (Vec::new(), Vec::new(), false);
        if let Some(visited) = self.visited {
            // The host that the client came to asks the others.
            let root = crate::nfs::handle::Handle { volume: visited.volume, ino: ROOT };
            let place = self.server.place(&root.encode(&self.seal).data).await?;
            here.push(Used { export: place.export, since: place.since });
            return Ok(Haunted { here, elsewhere, has_more });
        }
        let known = self.server.haunts.lock().of(self.client());
        for volume in known.map(|(_, volumes)| volumes).unwrap_or_default() {
            match self.server.named(&volume).await {
                Ok(used) => here.push(used),
                Err(Failed::Elsewhere(_)) => elsewhere.push(volume),
                // It is no more.
                Err(Failed::Status(_)) => {}
                Err(_) => has_more = true,
            }
        }
        // And those that it may be in without being known there.
        for used in self.server.all_in_use() {
            if !here.iter().any(|there| there.export.id == used.export.id) {
                here.push(used);
            }
        }
        Ok(Haunted { here, elsewhere, has_more })
    }

    /// Finds the file that a stateid is of, among volumes that are served here.
    async fn file_of(
        &self,
        here: &[Used<E::Files>],
        given: Stateid,
    ) -> Result<Option<(Place<E::Files>, Held)>, Fault> {
        let ino = given.ino();
        if ino == 0 || is_frozen(ino) || given.special().is_some() {
            return Ok(None);
        }
        for kept in here {
            let place = kept.clone().at(ino, self.seal.clone());
            let mut held = match self.held(&place).await {
                Ok(held) => held,
                // It has just left this host: the client asks again.
                Err(Fault::Gone | Fault::Broken) => {
                    self.server.forget(&place.handle(ino).data);
                    return Err(Status::DELAY.into());
                }
                Err(_) => continue,
            };
            if held.look(self.client(), Stateid { seqid: 0, ..given }.into()).is_ok() {
                return Ok(Some((place, held)));
            }
        }
        Ok(None)
    }

    pub(super) async fn free_stateid(&mut self, args: &mut Args<'_>) -> Done {
        let given = self.meant(args.stateid()?)?;
        let haunted = self.haunted().await?;
        if let Some((place, _)) = self.file_of(&haunted.here, given).await? {
            let act = |held: &mut Held| {
                held.free(self.client(), given.into())?;
                Ok((given.id(), 0))
            };
            return self.hold(&place, &act).await.map(drop);
        }
        for volume in &haunted.elsewhere {
            let told = self.ask_about(volume, Op::FREE_STATEID, |out| out.put_stateid(&given));
            match Status(told.await?.status) {
                Status::OK => return Ok(()),
                Status::BAD_STATEID => {}
                status => return Err(status.into()),
            }
        }
        let is_known = !haunted.has_more;
        Err(if is_known { Status::BAD_STATEID } else { Status::DELAY }.into())
    }

    pub(super) async fn test_stateids(&mut self, args: &mut Args<'_>, out: &mut Vec<u8>) -> Done {
        let count = args.u32()?;
        if count > limits::STATEIDS_MAX {
            return Err(Status::BADXDR.into());
        }
        let given: Vec<_> = (0..count).map(|_| args.stateid()).collect::<Result<_, _>>()?;
        let haunted = self.haunted().await?;
        let mut found = vec![None; given.len()];
        for (given, found) in given.iter().zip(&mut found) {
            if let Some((_, mut held)) = self.file_of(&haunted.here, *given).await? {
                let looked = held.look(self.client(), (*given).into());
                *found = Some(looked.map_or_else(Status::from, |()| Status::OK));
            }
        }
        for volume in &haunted.elsewhere {
            let rest: Vec<_> = (0..given.len()).filter(|at| found[*at].is_none()).collect();
            if rest.is_empty() {
                break;
            }
            let told = self.ask_about(volume, Op::TEST_STATEID, |out| {
                out.put_u32(rest.len() as u32);
                rest.iter().for_each(|at| out.put_stateid(&given[*at]));
            });
            let told = told.await?;
            if told.status != Status::OK.0 {
                return Err(Status(told.status).into());
            }
            let mut results = Args(&told.results);
            let words = (results.u32()?, results.u32()?, results.u32()?);
            for at in rest.iter().take(words.2 as usize) {
                let status = Status(results.u32()?);
                found[*at] = (status != Status::BAD_STATEID).then_some(status);
            }
        }
        if haunted.has_more && found.contains(&None) {
            return Err(Status::DELAY.into());
        }
        out.put_u32(count);
        found.iter().for_each(|found| out.put_u32(found.unwrap_or(Status::BAD_STATEID).0));
        Ok(())
    }

    /// Asks the host of a volume's owner about stateids.
    async fn ask_about(
        &self,
        volume: &str,
        op: Op,
        args: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Told, Fault> {
        let mut ops = Vec::new();
        ops.put_u32(op.0);
        args(&mut ops);
        let part = self.part((self.at, self.at + 1), false, &ops);
        let part = part.ok_or(Status::OP_NOT_IN_SESSION)?;
        // No answer is no word on what the client holds: it asks again.
        Ok(self.ask_there(volume, part).await.map_err(|_| Status::DELAY)?)
    }
}
