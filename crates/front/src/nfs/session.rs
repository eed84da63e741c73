//! One connection, served until its client leaves.
//!
//! Calls are carried out side by side, each in a task of its own, and their replies leave in any
//! order. What is under way is bounded in bytes, and further calls wait in the socket. Calls of a
//! client that has gone are cut off: it sends them again over another connection, and a late one
//! must not follow what it does there.

use super::answer::Question;
use super::limits;
use super::meters::Meters;
use super::permission::Credentials;
use super::replies::Failed;
use super::rpc::{self, LAST_FRAGMENT, Outcome, Unheard};
use super::server::Server;
use super::settings::Peer;
use super::target::Exports;
use super::xdr::Args;
use super::{handle, mount};
use crate::conn::{Budget, Lease, Pipe, Stop};
use nfs3_types::mount::MOUNT_PROGRAM;
use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::rpc::auth_stat;
use nfs3_types::{mount as mount3, nfs3};
use rekindle_file::Call;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// Why a session ended.
#[derive(Debug)]
pub enum End {
    /// The client hung up.
    Client,
    /// The node stops.
    Stopped,
    /// The client sent bytes that are no calls.
    Garbage(&'static str),
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Client,
            _ => Self::Io(error),
        }
    }
}

/// A connection that wants to be served.
pub struct Line<E: Exports> {
    pub server: Arc<Server<E>>,
    pub peer: Peer,
    pub budget: Budget,
}

pub async fn run<E: Exports>(line: Line<E>, pipe: impl Pipe, mut stop: Stop) -> End {
    let (reader, mut writer) = tokio::io::split(pipe);
    let mut reader = BufReader::with_capacity(limits::GATHERED_BYTES, reader);
    let (replies, mut unsent) = mpsc::unbounded_channel();
    // Its drop ends all calls that are under way.
    let (_cut, is_cut) = watch::channel(());
    let env = line.server.env.clone();
    let shared = Shared { server: line.server, peer: line.peer, meters: Meters::new() };
    let mut session = Session {
        shared: Arc::new(shared),
        budget: line.budget,
        under_way: Arc::new(Semaphore::new(limits::UNDER_WAY_BYTES_MAX)),
        replies,
        is_cut,
    };
    let mut sending = std::pin::pin!(send(&env, &mut unsent, &mut writer));
    let end = tokio::select! {
        biased;
        sent = &mut sending => return sent.map_or_else(End::from, |()| End::Client),
        () = &mut stop => End::Stopped,
        end = session.take_calls(&mut reader) => end,
    };
    if !matches!(end, End::Stopped) {
        return end;
    }
    // The calls that were begun get their replies.
    drop(session);
    let _ = sending.await;
    end
}

/// What the calls of a session share.
struct Shared<E: Exports> {
    server: Arc<Server<E>>,
    peer: Peer,
    meters: Meters,
}

struct Session<E: Exports> {
    shared: Arc<Shared<E>>,
    budget: Budget,
    under_way: Arc<Semaphore>,
    replies: mpsc::UnboundedSender<Unsent>,
    is_cut: watch::Receiver<()>,
}

/// Memory that a call counts for, until its reply is sent.
#[derive(Default)]
struct Held {
    permits: Vec<OwnedSemaphorePermit>,
    leases: Vec<Lease>,
}

struct Unsent {
    reply: Vec<u8>,
    _held: Held,
}

impl<E: Exports> Session<E> {
    /// Takes calls and begins them, until the client hangs up.
    async fn take_calls(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> End {
        loop {
            if let Err(end) = self.take_call(reader).await {
                return end;
            }
        }
    }

    async fn take_call(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> Result<(), End> {
        let mark = reader.read_u32().await?;
        let mut held = Held::default();
        self.count(&mut held, limits::CALL_COUNTS).await;
        let env = self.shared.server.env.clone();
        let rest = self.rest_of_record(reader, mark, &mut held);
        let late = || End::Io(io::ErrorKind::TimedOut.into());
        let record = env.timeout(limits::RECORD_TIME_MAX, rest).await.map_err(|_| late())??;
        let call = match rpc::call(&record) {
            Ok(call) => call,
            Err(Unheard::Garbage) => return Err(End::Garbage("it does not speak RPC")),
            Err(Unheard::Refused(reply)) => {
                let _ = self.replies.send(Unsent { reply, _held: held });
                return Ok(());
            }
        };
        let room = reply_bytes(&call);
        if room > 0 {
            self.count(&mut held, room).await;
            held.leases.push(self.budget.lease(room).await);
        }
        self.begin(record, held);
        Ok(())
    }

    /// Reads a record, in however many fragments it comes.
    async fn rest_of_record(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        mark: u32,
        held: &mut Held,
    ) -> Result<Vec<u8>, End> {
        let (mut mark, mut record) = (mark, Vec::new());
        for _ in 0..limits::FRAGMENTS_MAX {
            let length = (mark & !LAST_FRAGMENT) as usize;
            let end = record.len() + length;
            if end > limits::RECORD_BYTES_MAX {
                return Err(End::Garbage("its call is too long"));
            }
            if end > limits::SHORT_CALL_BYTES {
                self.count(held, length).await;
                held.leases.push(self.budget.lease(length).await);
            }
            record.reserve_exact(length);
            let mut fragment = (&mut *reader).take(length as u64);
            while record.len() < end {
                if fragment.read_buf(&mut record).await? == 0 {
                    return Err(End::Client);
                }
            }
            if mark & LAST_FRAGMENT != 0 {
                return Ok(record);
            }
            mark = reader.read_u32().await?;
        }
        Err(End::Garbage("its call comes in too many fragments"))
    }

    async fn count(&self, held: &mut Held, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // It is never closed.
        held.permits.extend(self.under_way.clone().acquire_many_owned(bytes).await.ok());
    }

    fn begin(&self, record: Vec<u8>, held: Held) {
        let (shared, replies) = (self.shared.clone(), self.replies.clone());
        let mut is_cut = self.is_cut.clone();
        let env = shared.server.env.clone();
        env.spawn("nfs-call", async move {
            let reply = tokio::select! {
                biased;
                _ = is_cut.changed() => return,
                reply = shared.answer(&record) => reply,
            };
            // The session has ended, otherwise.
            let _ = replies.send(Unsent { reply, _held: held });
        });
    }
}

impl<E: Exports> Shared<E> {
    /// Answers a call that [`rpc::call`] has taken apart before.
    async fn answer(&self, record: &[u8]) -> Vec<u8> {
        self.meters.called();
        let Ok(call) = rpc::call(record) else { return Vec::new() };
        let serves = match call.program {
            nfs3::PROGRAM => nfs3::VERSION,
            mount3::PROGRAM => mount3::VERSION,
            _ => return rpc::head(call.xid, Outcome::NoProgram),
        };
        if call.version != serves {
            return rpc::head(call.xid, Outcome::NoVersion(serves, serves));
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

/// Returns the bytes of data that the reply to a call may have.
fn reply_bytes(call: &rpc::Call<'_>) -> usize {
    if call.program != nfs3::PROGRAM {
        return 0;
    }
    let mut args = Args(call.args);
    let asked = match NFS_PROGRAM::try_from(call.procedure) {
        Ok(NFS_PROGRAM::NFSPROC3_READ) => {
            let count = handle::read(&mut args).and_then(|_| Ok((args.u64()?, args.u32()?)));
            count.map_or(0, |(_, count)| count.min(limits::DATA_BYTES_MAX))
        }
        Ok(NFS_PROGRAM::NFSPROC3_READDIR | NFS_PROGRAM::NFSPROC3_READDIRPLUS) => {
            limits::LIST_BYTES_MAX
        }
        _ => 0,
    };
    asked as usize
}

/// Sends replies until there are no more. Short ones are gathered while more are ready.
async fn send(
    env: &rekindle_env::Env,
    unsent: &mut mpsc::UnboundedReceiver<Unsent>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (mut gathered, mut held) = (Vec::new(), Vec::new());
    while let Some(Unsent { reply, _held }) = unsent.recv().await {
        let length = u32::try_from(reply.len()).unwrap_or(0);
        gathered.extend((length | LAST_FRAGMENT).to_be_bytes());
        gathered.extend(reply);
        held.push(_held);
        if unsent.is_empty() || gathered.len() >= limits::GATHERED_BYTES {
            let sending = async {
                writer.write_all(&gathered).await?;
                writer.flush().await
            };
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            env.timeout(limits::SEND_TIME_MAX, sending).await.map_err(late)??;
            gathered.clear();
            gathered.shrink_to(limits::GATHERED_BYTES);
            held.clear();
        }
    }
    Ok(())
}
