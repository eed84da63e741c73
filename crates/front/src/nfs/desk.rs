//! The desk where the calls of one client are answered: which program, by whom, and as whom.

use super::answer::{Question, lists};
use super::forward::{Ask, Away, Lines, Next, Patience, Reply, Visited, Who};
use super::limits;
use super::meters::Meters;
use super::permission::Credentials;
use super::replies::Failed;
use super::room::reply_bytes;
use super::rpc::{self, Outcome, Unheard};
use super::server::Server;
use super::settings::Peer;
use super::target::Exports;
use super::v4::{self, answer::Asked};
use super::xdr::Args;
use super::{handle, mount};
use nfs3_types::mount::MOUNT_PROGRAM;
use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::rpc::auth_stat;
use nfs3_types::{mount as mount3, nfs3};
use rekindle_env::Env;
use rekindle_file::Call;
use std::sync::Arc;

/// Answers the calls of one client.
pub struct Desk<E: Exports> {
    server: Arc<Server<E>>,
    peer: Peer,
    meters: Meters,
    /// The lines of the client's machine.
    lines: Arc<Lines>,
}

impl<E: Exports> Desk<E> {
    #[must_use]
    pub fn new(server: Arc<Server<E>>, peer: Peer) -> Self {
        let lines = server.lines_of(&peer.host());
        Self { server, peer, meters: Meters::new(), lines }
    }

    pub fn env(&self) -> &Env {
        &self.server.env
    }

    /// Answers a call. `None`: it has no reply. Its client sends it again over its next connection,
    /// and it is known again then.
    pub async fn answer(&self, record: &[u8]) -> Option<Vec<u8>> {
        self.meters.called();
        match rpc::call(record) {
            Ok(call) => self.answer_call(call, record).await,
            Err(Unheard::Garbage) => None,
            Err(Unheard::Refused(reply)) => Some(reply),
        }
    }

    async fn answer_call(&self, call: rpc::Call<'_>, record: &[u8]) -> Option<Vec<u8>> {
        let (first, last) = match call.program {
            nfs3::PROGRAM => (nfs3::VERSION, v4::VERSION),
            mount3::PROGRAM => (mount3::VERSION, mount3::VERSION),
            lists::PROGRAM => (lists::VERSION, lists::VERSION),
            _ => return Some(rpc::head(call.xid, Outcome::NoProgram)),
        };
        if !(first..=last).contains(&call.version) {
            return Some(rpc::head(call.xid, Outcome::NoVersion(first, last)));
        }
        // Procedure 0 does nothing, and asks for nothing.
        if call.procedure != 0
            && let Err(reason) = self.server.settings.lets_in(&self.peer)
        {
            tracing::warn!(peer = ?self.peer, reason, "an NFS client was not let in");
            return Some(rpc::denied(call.xid, auth_stat::AUTH_TOOWEAK));
        }
        let caller = self.server.settings.squashed(&self.peer, call.credentials.clone());
        let host = self.peer.host();
        if call.program == nfs3::PROGRAM && call.version == v4::VERSION {
            return match call.procedure {
                0 => Some(replied(call.xid, Ok(Vec::new()))),
                v4::COMPOUND => {
                    let (server, meters, lines) = (&*self.server, &self.meters, Some(&*self.lines));
                    let (caller, host) = (&caller, &*host);
                    let asked = Asked { server, caller, meters, lines, host, visited: None };
                    match v4::compound::answer(&asked, Args(call.args)).await {
                        Ok(None) => None,
                        Ok(Some(reply)) => Some(replied(call.xid, Ok(reply))),
                        Err(failed) => Some(replied(call.xid, Err(failed))),
                    }
                }
                _ => Some(rpc::head(call.xid, Outcome::NoProcedure)),
            };
        }
        self.answer_version_3((&call, record), &caller, &host).await
    }

    /// Answers a call of version 3, of MOUNT or about lists, here or where its volume is served.
    async fn answer_version_3(
        &self,
        (call, record): (&rpc::Call<'_>, &[u8]),
        caller: &Credentials,
        host: &str,
    ) -> Option<Vec<u8>> {
        let asked =
            Version3 { server: &self.server, meters: &self.meters, caller, host, visited: None };
        let (mut patience, mut is_last_try) = (Patience::new(changes(call)), false);
        loop {
            let volume = match asked.answer(call, record, is_last_try, &mut patience).await {
                Err(Failed::Elsewhere(volume)) if !is_last_try => Some(volume),
                // It is on its way to another owner, or comes back into service.
                Err(Failed::Gone) if !is_last_try => None,
                Err(Failed::Broken) if patience.goes_on_broken(is_last_try) => None,
                answered => return Some(replied(call.xid, answered)),
            };
            if let Some(volume) = volume {
                let is_read_only = self.server.settings.is_read_only(&volume);
                let (host, caller) = (host.to_owned(), caller.clone());
                let who = Who { host, caller, is_read_only };
                let line = self.server.line(&self.lines, &who.host, &volume);
                match line.ask(&who, Ask::Record(record), reply_bytes(call)).await {
                    Ok(Reply::Record(reply)) => return Some(reply),
                    Err(Away { may_be_done: true }) => patience.may_be_done(),
                    Ok(Reply::Part(_) | Reply::Away) | Err(_) => {}
                }
                self.server.forget_elsewhere(&volume);
            }
            is_last_try = match patience.next(&self.server).await {
                Next::Again => false,
                Next::Later => true,
                Next::Silence => return None,
            };
        }
    }
}

/// Answers a call of version 3 whose client has come to another host.
pub async fn answer_visitor<E: Exports>(
    server: &Server<E>,
    meters: &Meters,
    who: &Who,
    visited: Visited,
    record: &[u8],
) -> Reply {
    let Ok(call) = rpc::call(record) else { return Reply::Away };
    let (caller, host, visited) = (&who.caller, &*who.host, Some(visited));
    let asked = Version3 { server, meters, caller, host, visited };
    match asked.answer(&call, record, false, &mut Patience::new(false)).await {
        Err(Failed::Gone | Failed::Broken | Failed::Elsewhere(_)) => Reply::Away,
        answered => Reply::Record(replied(call.xid, answered)),
    }
}

fn replied(xid: u32, answered: Result<Vec<u8>, Failed>) -> Vec<u8> {
    match answered {
        Ok(results) => {
            let mut reply = rpc::head(xid, Outcome::Success);
            reply.extend(results);
            reply
        }
        Err(Failed::Garbage) => rpc::head(xid, Outcome::GarbageArgs),
        Err(Failed::NoProcedure) => rpc::head(xid, Outcome::NoProcedure),
        Err(Failed::Gone | Failed::Broken | Failed::Elsewhere(_) | Failed::Status(_)) => {
            rpc::head(xid, Outcome::SystemError)
        }
    }
}

/// Whether a call must not be carried out twice: neither a look nor a WRITE is another one the
/// second time.
fn changes(call: &rpc::Call<'_>) -> bool {
    use NFS_PROGRAM::*;
    if call.program == lists::PROGRAM {
        return call.procedure == lists::SET;
    }
    let procedure = NFS_PROGRAM::try_from(call.procedure);
    call.program == nfs3::PROGRAM
        && matches!(
            procedure,
            Ok(NFSPROC3_SETATTR
                | NFSPROC3_CREATE
                | NFSPROC3_MKDIR
                | NFSPROC3_SYMLINK
                | NFSPROC3_MKNOD
                | NFSPROC3_REMOVE
                | NFSPROC3_RMDIR
                | NFSPROC3_RENAME
                | NFSPROC3_LINK)
        )
}

/// Calls of version 3, of MOUNT and about lists, and whose they are.
struct Version3<'a, E: Exports> {
    server: &'a Server<E>,
    meters: &'a Meters,
    caller: &'a Credentials,
    /// The address of the client's machine.
    host: &'a str,
    visited: Option<Visited>,
}

impl<E: Exports> Version3<'_, E> {
    async fn answer(
        &self,
        call: &rpc::Call<'_>,
        record: &[u8],
        is_last_try: bool,
        patience: &mut Patience,
    ) -> Result<Vec<u8>, Failed> {
        if call.program == mount3::PROGRAM {
            let procedure = MOUNT_PROGRAM::try_from(call.procedure);
            let procedure = procedure.map_err(|_| Failed::NoProcedure)?;
            return mount::answer(self.server, self.caller, procedure, Args(call.args)).await;
        }
        let procedure = match call.program {
            lists::PROGRAM => None,
            _ => Some(NFS_PROGRAM::try_from(call.procedure).map_err(|_| Failed::NoProcedure)?),
        };
        let known = self.known_as(call, record).await?;
        let ask = async |is_last_try| {
            let Self { server, meters, caller, visited, .. } = *self;
            let changes = changes(call);
            let question =
                Question { server, caller, call: known, changes, meters, visited, is_last_try };
            match procedure {
                Some(procedure) => question.answer(procedure, Args(call.args)).await,
                None => question.answer_lists(call.procedure, Args(call.args)).await,
            }
        };
        match ask(is_last_try).await {
            // It may have come back into service, or have moved.
            Err(failed @ (Failed::Gone | Failed::Broken)) => {
                if failed == Failed::Broken {
                    patience.may_be_done();
                }
                if let Ok(handle) = handle::read(&mut Args(call.args)) {
                    self.server.forget(handle);
                }
                ask(is_last_try).await
            }
            answered => answered,
        }
    }

    /// Returns by what a call is known when it comes again: the client by its machine, and the call
    /// by all of its bytes.
    async fn known_as(&self, call: &rpc::Call<'_>, record: &[u8]) -> Result<Call, Failed> {
        let seal = self.server.seal().await?;
        let machine = [call.machine, &[0], self.host.as_bytes()].concat();
        let at = self.server.env.wall_clock().0 / 1_000_000;
        // A longer call is a WRITE, which is not remembered.
        let key = if record.len() > limits::KNOWN_CALL_BYTES { 0 } else { seal.check(record) };
        Ok(Call { client: seal.check(&machine), at, key })
    }
}
