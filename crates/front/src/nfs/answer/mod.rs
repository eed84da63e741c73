//! The answer to each call of NFS.
//!
//! A change of names or attributes is durable before its reply, as the protocol says; a WRITE may
//! ask for less. It is judged in its turn by a [`Judge`], and carried out once.

pub mod about;
mod bytes;
mod listing;
pub mod lists;
pub mod making;
pub mod naming;

use super::forward::Visited;
use super::meters::Meters;
use super::permission::Credentials;
use super::replies::{self, Failed};
use super::rpc;
use super::server::{Place, Server};
use super::target::Exports;
use super::witness::{Judge, Mode, Rule};
use super::xdr::Args;
use crate::target::Target;
use nfs3_types::nfs3::{
    NFS_PROGRAM, Nfs3Option, Nfs3Result, nfsstat3, post_op_attr, pre_op_attr, wcc_data,
};
use nfs3_types::xdr_codec::{Pack, Unpack};
use rekindle_file::{Attr, Call, Caller, Errno, Ino, Time};

/// A call of NFS, and where it comes from.
pub struct Question<'a, E: Exports> {
    pub server: &'a Server<E>,
    pub caller: &'a Credentials,
    /// By what the call is known when it comes again.
    pub call: Call,
    pub meters: &'a Meters,
    /// The call has come from another host, which says what the caller may.
    pub visited: Option<Visited>,
    /// Whether a volume that is not served here any more was looked for once more: the client is
    /// told to wait.
    pub is_last_try: bool,
    /// Whether the call must not be carried out twice.
    pub changes: bool,
}

type Answered = Result<Vec<u8>, Failed>;

impl<E: Exports> Question<'_, E> {
    /// Carries a call out. Returns its results.
    pub async fn answer(&self, procedure: NFS_PROGRAM, args: Args<'_>) -> Answered {
        use NFS_PROGRAM::*;
        match procedure {
            NFSPROC3_NULL => Ok(Vec::new()),
            NFSPROC3_GETATTR => self.attributes(args).await,
            NFSPROC3_SETATTR => self.set_attributes(args).await,
            NFSPROC3_LOOKUP => self.look_up(args).await,
            NFSPROC3_ACCESS => self.access(args).await,
            NFSPROC3_READLINK => self.read_link(args).await,
            NFSPROC3_READ => self.read(args).await,
            NFSPROC3_WRITE => self.write(args).await,
            NFSPROC3_CREATE => self.create(args).await,
            NFSPROC3_MKDIR => self.make_dir(args).await,
            NFSPROC3_SYMLINK => self.make_link(args).await,
            NFSPROC3_MKNOD => self.make_node(args).await,
            NFSPROC3_REMOVE => self.remove(args, false).await,
            NFSPROC3_RMDIR => self.remove(args, true).await,
            NFSPROC3_RENAME => self.rename(args).await,
            NFSPROC3_LINK => self.link(args).await,
            NFSPROC3_READDIR => self.list(args, false).await,
            NFSPROC3_READDIRPLUS => self.list(args, true).await,
            NFSPROC3_FSSTAT => self.space(args).await,
            NFSPROC3_FSINFO => self.bounds(args).await,
            NFSPROC3_PATHCONF => self.rules(args).await,
            NFSPROC3_COMMIT => self.commit(args).await,
        }
    }

    /// Encodes results, or a failure with what goes with it.
    fn reply<T: Pack, F: Pack>(&self, done: Result<T, Failed>, failure: F) -> Answered {
        match done {
            Ok(results) => Ok(rpc::pack(&Nfs3Result::<T, F>::Ok(results))),
            Err(failed) if self.is_last_try && self.may_come_later(&failed) => {
                self.reply::<T, F>(Err(nfsstat3::NFS3ERR_JUKEBOX.into()), failure)
            }
            Err(Failed::Status(status)) => {
                self.meters.failed();
                Ok(rpc::pack(&Nfs3Result::<T, F>::Err((status, failure))))
            }
            Err(failed) => Err(failed),
        }
    }

    /// Whether a client may be told to come later: never of a change that may have been carried
    /// out.
    fn may_come_later(&self, failed: &Failed) -> bool {
        match failed {
            Failed::Gone | Failed::Elsewhere(_) => true,
            Failed::Broken => !self.changes,
            _ => false,
        }
    }

    async fn place(&self, handle: &[u8]) -> Result<Place<E::Files>, Failed> {
        let placed = self.server.place(handle).await;
        if placed.as_ref().is_err_and(|failed| !matches!(failed, Failed::Elsewhere(_))) {
            self.server.forget(handle);
        }
        placed
    }

    /// Returns the attributes of a place, if it has any.
    async fn after(&self, place: &Place<E::Files>, ino: Ino) -> post_op_attr {
        match place.export.files.attr(ino).await {
            Ok(attr) => Nfs3Option::Some(replies::attributes(&attr, place.volume())),
            Err(_) => Nfs3Option::None,
        }
    }

    /// Refuses changes of a volume that is read-only here.
    fn may_change(&self, place: &Place<E::Files>) -> Result<(), Failed> {
        match self.server.is_read_only(self.visited.as_ref(), &place.export.name) {
            true => Err(Errno::ROFS.into()),
            false => Ok(()),
        }
    }

    fn now(&self) -> Time {
        self.server.env.wall_clock().into()
    }

    /// Makes a judge of a change that must not be carried out twice.
    fn judge<'j>(&'j self, watched: &'j [Ino], rule: &'j Rule<'j>) -> Judge<'j> {
        Judge::new(self.caller, Some(self.call), watched, rule)
    }

    /// Returns the caller of a change, with its judge.
    fn with<'j>(&self, judge: &'j Judge<'j>) -> Caller<'j> {
        let call = Some(self.call);
        Caller {
            uid: self.caller.uid,
            gid: self.caller.gid,
            origin: None,
            call,
            witness: Some(judge),
            keeper: None,
        }
    }

    /// Ends a change: it becomes durable. `None`: it was carried out before.
    async fn settle<T>(
        &self,
        place: &Place<E::Files>,
        judge: &Judge<'_>,
        done: Result<T, rekindle_file::Error>,
    ) -> Result<Option<T>, Failed> {
        let was_done = judge.was_done();
        let done = match done {
            Err(_) if was_done => {
                self.meters.replayed();
                None
            }
            done => Some(done?),
        };
        place.export.files.sync().await?;
        Ok(done)
    }

    /// Returns what a client is told of an inode that a change was about.
    async fn changed(&self, place: &Place<E::Files>, judge: &Judge<'_>, ino: Ino) -> wcc_data {
        match judge.seen(ino, place.volume()) {
            Some(seen) => seen,
            None => replies::only_after(self.after(place, ino).await),
        }
    }
}

/// A word on an inode of which nothing is known.
fn unknown() -> wcc_data {
    wcc_data { before: pre_op_attr::None, after: post_op_attr::None }
}

fn some<T: Pack + Unpack>(value: T) -> Nfs3Option<T> {
    Nfs3Option::Some(value)
}

/// A rule's outcome that leaves modes as they are asked for.
fn passes() -> Mode {
    super::witness::as_asked()
}

/// Refuses what is no directory.
fn directory(attr: &Attr) -> Result<(), Errno> {
    match attr.kind {
        rekindle_file::FileType::Directory => Ok(()),
        _ => Err(Errno::NOTDIR),
    }
}
