//! One connection, served until its client leaves.
//!
//! Calls are carried out side by side, each in a task of its own, and their replies leave in any
//! order. What is under way is bounded in bytes, and further calls wait in the socket. Calls of a
//! client that has gone are cut off: it sends them again over another connection, and a late one
//! must not follow what it does there.

use super::desk::Desk;
use super::limits;
use super::room::reply_bytes;
use super::rpc::{self, LAST_FRAGMENT, Unheard};
use super::server::Server;
use super::settings::Peer;
use super::target::Exports;
use crate::conn::{Budget, Lease, Pipe, Stop};
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
    let mut session = Session {
        desk: Arc::new(Desk::new(line.server, line.peer)),
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

struct Session<E: Exports> {
    desk: Arc<Desk<E>>,
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
        let env = self.desk.env().clone();
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
        let (desk, replies) = (self.desk.clone(), self.replies.clone());
        let mut is_cut = self.is_cut.clone();
        desk.env().clone().spawn_foreground("nfs-call", async move {
            let reply = tokio::select! {
                biased;
                _ = is_cut.changed() => return,
                reply = desk.answer(&record) => reply,
            };
            // The session has ended, otherwise.
            if let Some(reply) = reply {
                let _ = replies.send(Unsent { reply, _held: held });
            }
        });
    }
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
