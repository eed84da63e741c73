//! The desk where the calls of one client are answered: which program, by whom, and as whom.

use super::answer::Question;
use super::limits;
use super::meters::Meters;
use super::permission::Credentials;
use super::replies::Failed;
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
}

impl<E: Exports> Desk<E> {
    #[must_use]
    pub fn new(server: Arc<Server<E>>, peer: Peer) -> Self {
        Self { server, peer, meters: Meters::new() }
    }

    pub fn env(&self) -> &Env {
        &self.server.env
    }

    /// Answers a call. A record that is none has an empty answer, or a refusal.
    pub async fn answer(&self, record: &[u8]) -> Vec<u8> {
        self.meters.called();
        let call = match rpc::call(record) {
            Ok(call) => call,
            Err(Unheard::Garbage) => return Vec::new(),
            Err(Unheard::Refused(reply)) => return reply,
        };
        let (first, last) = match call.program {
            nfs3::PROGRAM => (nfs3::VERSION, v4::VERSION),
            mount3::PROGRAM => (mount3::VERSION, mount3::VERSION),
            _ => return rpc::head(call.xid, Outcome::NoProgram),
        };
        if !(first..=last).contains(&call.version) {
            return rpc::head(call.xid, Outcome::NoVersion(first, last));
        }
        // Procedure 0 does nothing, and asks for nothing.
        if call.procedure != 0
            && let Err(reason) = self.server.settings.lets_in(&self.peer)
        {
            tracing::warn!(peer = ?self.peer, reason, "an NFS client was not let in");
            return rpc::denied(call.xid, auth_stat::AUTH_TOOWEAK);
        }
        let answered = match call.program {
            mount3::PROGRAM => match MOUNT_PROGRAM::try_from(call.procedure) {
                Ok(procedure) => self.mount(&call, procedure).await,
                Err(_) => return rpc::head(call.xid, Outcome::NoProcedure),
            },
            _ if call.version == v4::VERSION => match call.procedure {
                0 => Ok(Vec::new()),
                v4::COMPOUND => self.compound(&call).await,
                _ => return rpc::head(call.xid, Outcome::NoProcedure),
            },
            _ => match NFS_PROGRAM::try_from(call.procedure) {
                Ok(procedure) => self.nfs(&call, procedure, record).await,
                Err(_) => return rpc::head(call.xid, Outcome::NoProcedure),
            },
        };
        match answered {
            Ok(results) => {
                let mut reply = rpc::head(call.xid, Outcome::Success);
                reply.extend(results);
                reply
            }
            Err(Failed::Garbage) => rpc::head(call.xid, Outcome::GarbageArgs),
            Err(Failed::Gone | Failed::Status(_)) => rpc::head(call.xid, Outcome::SystemError),
        }
    }

    fn caller(&self, call: &rpc::Call<'_>) -> Credentials {
        self.server.settings.squashed(&self.peer, call.credentials.clone())
    }

    async fn mount(
        &self,
        call: &rpc::Call<'_>,
        procedure: MOUNT_PROGRAM,
    ) -> Result<Vec<u8>, Failed> {
        mount::answer(&self.server, &self.caller(call), procedure, Args(call.args)).await
    }

    async fn compound(&self, call: &rpc::Call<'_>) -> Result<Vec<u8>, Failed> {
        let caller = self.caller(call);
        let asked = Asked { server: &self.server, caller: &caller, meters: &self.meters };
        v4::compound::answer(&asked, Args(call.args)).await
    }

    async fn nfs(
        &self,
        call: &rpc::Call<'_>,
        procedure: NFS_PROGRAM,
        record: &[u8],
    ) -> Result<Vec<u8>, Failed> {
        let caller = self.caller(call);
        let known = self.known_as(call, record).await?;
        let ask = async |is_last_try| {
            let (server, meters) = (&*self.server, &self.meters);
            let question = Question { server, caller: &caller, call: known, meters, is_last_try };
            question.answer(procedure, Args(call.args)).await
        };
        match ask(false).await {
            // It may have come back into service, or have moved.
            Err(Failed::Gone) => {
                if let Ok(handle) = handle::read(&mut Args(call.args)) {
                    self.server.forget(handle);
                }
                ask(true).await
            }
            answered => answered,
        }
    }

    /// Returns by what a call is known when it comes again: the client by its machine, and the call
    /// by all of its bytes.
    async fn known_as(&self, call: &rpc::Call<'_>, record: &[u8]) -> Result<Call, Failed> {
        let seal = self.server.seal().await?;
        let machine = [call.machine, &[0], self.peer.host().as_bytes()].concat();
        let at = self.server.env.wall_clock().0 / 1_000_000;
        // A long call is a WRITE, which is not remembered.
        let key = if record.len() > limits::SHORT_CALL_BYTES * 4 { 0 } else { seal.check(record) };
        Ok(Call { client: seal.check(&machine), at, key })
    }
}
