//! One mount, served until it leaves.
//!
//! Requests are carried out side by side, each in a task of its own: a read does not wait behind
//! an fsync. The kernel awaits what it wants in order. What is under way is bounded in bytes, and
//! further requests wait in the socket.

use super::answer::Question;
use super::clients::{Clients, Enrolled, HasGone};
use super::frame::{FRAME_BYTES, Frame, Garbage, HELLO_BYTES, Hello, Open};
use super::limits;
use super::locking::{Cancel, Locking, Turn};
use super::replies::{Body, Reply, notice, reply, total};
use super::wire::{self, IN_HEADER_BYTES, InHeader, Memory, Op};
use crate::conn::{Budget, Lease, Pipe, Stop};
use crate::target::{Failed, Target};
use bytes::Bytes;
use rekindle_base::VolumeId;
use rekindle_env::Env;
use rekindle_file::Origin;
use std::io::{self, IoSlice};
use std::iter;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use zerocopy::IntoBytes;

/// A mount that wants to be served.
pub struct Mount<T: Target> {
    /// The volume's name, for messages.
    pub volume: String,
    pub id: VolumeId,
    pub target: T,
    pub clients: Clients<T>,
    pub budget: Budget,
    /// Whether a change is answered only when it is durable: the mount may outlive the memory that
    /// has what is not.
    pub durably: bool,
    /// The memory that may have alone what is answered and not durable.
    pub memory: Memory,
    /// Says of a client of NFS that it has gone, since the volume is in service.
    pub has_gone: Arc<HasGone>,
}

/// The reason why a session ended.
#[derive(Debug)]
enum End {
    /// The mount hung up.
    Client,
    /// The node stops.
    Stopped,
    /// A later session of the mount begins.
    Replaced,
    /// The mount sent bytes that are no frames.
    Garbage(Garbage),
    /// The volume is not served here any more.
    Fenced,
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

impl From<Garbage> for End {
    fn from(garbage: Garbage) -> Self {
        Self::Garbage(garbage)
    }
}

/// Serves a mount until it leaves or `stop` completes.
pub async fn serve<T: Target>(env: &Env, pipe: impl Pipe, mount: Mount<T>, stop: Stop) {
    let volume = mount.volume.clone();
    tracing::info!(volume, "mount connected");
    match run(env, pipe, mount, stop).await {
        End::Garbage(garbage) => {
            tracing::warn!(volume, reason = %garbage, "mount hung up on");
        }
        End::Fenced => {
            tracing::warn!(volume, "mount hung up on: the volume is not served here any more");
        }
        End::Io(error) => tracing::info!(volume, %error, "mount lost"),
        end => tracing::info!(volume, ?end, "mount disconnected"),
    }
}

async fn run<T: Target>(env: &Env, pipe: impl Pipe, mount: Mount<T>, mut stop: Stop) -> End {
    let (reader, mut writer) = tokio::io::split(pipe);
    let mut reader = BufReader::with_capacity(limits::GATHERED_BYTES, reader);
    let begun = tokio::select! {
        begun = begin(env, &mut reader, &mount) => begun,
        () = &mut stop => return End::Stopped,
    };
    let (client, enrolled, mut later) = match begun {
        Ok(begun) => begun,
        Err(end) => return end,
    };
    let (replies, mut unsent) = mpsc::unbounded_channel();
    if !mount.durably {
        let reply = notice(wire::MEMORY, mount.memory.as_bytes());
        let _ = replies.send(Unsent { reply, _held: Held::default() });
    }
    // Its drop ends all requests that are under way.
    let (_cut, is_cut) = watch::channel(());
    let shared = Arc::new(Shared {
        env: env.clone(),
        target: mount.target,
        enrolled,
        client,
        durably: mount.durably,
        has_gone: mount.has_gone,
        locking: Locking::default(),
        fenced: Notify::new(),
    });
    let mut session = Session {
        shared: shared.clone(),
        budget: mount.budget,
        under_way: Arc::new(Semaphore::new(limits::UNDER_WAY_BYTES_MAX)),
        replies,
        is_cut,
    };
    let mut sending = std::pin::pin!(send(&mut unsent, &mut writer));
    let end = tokio::select! {
        biased;
        () = shared.fenced.notified() => return End::Fenced,
        sent = &mut sending => return sent.map_or_else(End::from, |()| End::Client),
        () = &mut stop => End::Stopped,
        _ = &mut later => End::Replaced,
        end = session.take_requests(&mut reader) => end,
    };
    // The requests that were begun get their replies, but for locks that are waited for: these are
    // asked for again over the next connection.
    shared.locking.end_waits();
    drop(session);
    tokio::select! {
        biased;
        () = shared.fenced.notified() => End::Fenced,
        _ = &mut sending => end,
    }
}

/// Hears a mount out, lets it in, and notes what it has open.
async fn begin<T: Target, R: AsyncRead + Unpin>(
    env: &Env,
    reader: &mut R,
    mount: &Mount<T>,
) -> Result<(u64, Enrolled<T>, oneshot::Receiver<()>), End> {
    let late = || End::Io(io::ErrorKind::TimedOut.into());
    let (hello, opens) =
        env.timeout(limits::HELLO_TIME_MAX, hear(reader)).await.map_err(|_| late())??;
    let key = (mount.id, hello.client);
    let (enrolled, earlier, later) = mount.clients.enroll(env, key, &mount.target).await;
    for Open { ino, count } in opens {
        for _ in 0..count {
            // One that is no more is an error of the requests that come for it.
            if mount.target.open(ino).await.is_ok() {
                enrolled.opened(ino, 1);
            }
        }
    }
    // Only now: what was open stays open.
    if let Some(mut earlier) = earlier {
        enrolled.inherit(&mut earlier);
        earlier.close().await;
    }
    Ok((hello.client, enrolled, later))
}

async fn hear(reader: &mut (impl AsyncRead + Unpin)) -> Result<(Hello, Vec<Open>), End> {
    let mut bytes = [0; HELLO_BYTES];
    reader.read_exact(&mut bytes).await?;
    let hello = Hello::decode(bytes)?;
    let (mut opens, mut total) = (Vec::new(), 0_u64);
    for _ in 0..hello.opens {
        let mut open = Open { ino: 0, count: 0 };
        reader.read_exact(open.as_mut_bytes()).await?;
        total = total.saturating_add(open.count);
        if total > u64::from(limits::OPENS_MAX) {
            return Err(Garbage::Opens(hello.opens).into());
        }
        opens.push(open);
    }
    Ok((hello, opens))
}

/// What the requests of a session share.
struct Shared<T: Target> {
    env: Env,
    target: T,
    enrolled: Enrolled<T>,
    client: u64,
    durably: bool,
    has_gone: Arc<HasGone>,
    locking: Locking,
    /// Rung when the volume is not served here any more.
    fenced: Notify,
}

struct Session<T: Target> {
    shared: Arc<Shared<T>>,
    budget: Budget,
    under_way: Arc<Semaphore>,
    replies: mpsc::UnboundedSender<Unsent>,
    is_cut: watch::Receiver<()>,
}

/// Memory that a request counts for, until its reply is sent.
#[derive(Default)]
struct Held {
    _permits: [Option<OwnedSemaphorePermit>; 2],
    _leases: [Option<Lease>; 2],
}

struct Unsent {
    reply: Reply,
    _held: Held,
}

impl<T: Target> Session<T> {
    /// Takes requests and begins them, until the mount hangs up.
    async fn take_requests(&mut self, reader: &mut BufReader<ReadHalf<impl Pipe>>) -> End {
        loop {
            if let Err(end) = self.take_request(reader).await {
                return end;
            }
        }
    }

    async fn take_request(
        &mut self,
        reader: &mut BufReader<ReadHalf<impl Pipe>>,
    ) -> Result<(), End> {
        let mut bytes = [0; FRAME_BYTES];
        reader.read_exact(&mut bytes).await?;
        let frame = Frame::decode(bytes)?;
        let length = frame.length as usize;
        let mut held = Held::default();
        held._permits[0] = self.permit(length + limits::REQUEST_COUNTS).await;
        if length > limits::SHORT_REQUEST_BYTES {
            held._leases[0] = Some(self.budget.lease(length).await);
        }
        let mut request = Vec::with_capacity(length);
        let mut body = reader.take(u64::from(frame.length));
        while request.len() < length {
            if body.read_buf(&mut request).await? == 0 {
                return Err(End::Client);
            }
        }
        let header = wire::header(&request).ok_or(Garbage::Request)?;
        let room = reply_bytes(&header, &request);
        if room > 0 {
            held._permits[1] = self.permit(room).await;
            held._leases[1] = Some(self.budget.lease(room).await);
        }
        let op = wire::op(header.opcode, &request[IN_HEADER_BYTES..]);
        let locking = &self.shared.locking;
        if let Ok(Op::Interrupt { unique }) = op {
            locking.interrupt(unique);
            return Ok(());
        }
        // Here, so that what is about locks of a file goes in the order in which it has come.
        let turn = match &op {
            Ok(op) => locking.enter(&header, op).await,
            Err(_) => None,
        };
        self.begin(frame, header, request, held, turn);
        Ok(())
    }

    async fn permit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // It is never closed.
        self.under_way.clone().acquire_many_owned(bytes).await.ok()
    }

    fn begin(
        &self,
        frame: Frame,
        header: InHeader,
        request: Vec<u8>,
        held: Held,
        turn: Option<(Turn, Cancel)>,
    ) {
        let (shared, replies) = (self.shared.clone(), self.replies.clone());
        let mut is_cut = self.is_cut.clone();
        self.shared.env.spawn_foreground("fuse-request", async move {
            let answered = tokio::select! {
                biased;
                _ = is_cut.changed() => return,
                answered = shared.answer(frame, header, &request, turn) => answered,
            };
            let answer = match answered {
                Ok(body) => Ok(body),
                Err(Failed::Errno(errno)) => Err(errno),
                Err(Failed::HangUp) if shared.locking.has_ended() => return,
                Err(Failed::HangUp) => return shared.fenced.notify_one(),
            };
            if wire::has_reply(header.opcode) {
                for notice in answer.iter().flat_map(|body| body.notices(header.unique)) {
                    let _ = replies.send(Unsent { reply: notice, _held: Held::default() });
                }
                let reply = reply(header.unique, answer);
                // The session has ended, otherwise.
                let _ = replies.send(Unsent { reply, _held: held });
            }
        });
    }
}

impl<T: Target> Shared<T> {
    async fn answer(
        &self,
        frame: Frame,
        header: InHeader,
        request: &[u8],
        turn: Option<(Turn, Cancel)>,
    ) -> Result<Body, Failed> {
        let op = wire::op(header.opcode, &request[IN_HEADER_BYTES..])?;
        let origin = Origin { client: self.client, request: frame.number, oldest: frame.oldest };
        let question = Question {
            env: &self.env,
            target: &self.target,
            enrolled: &self.enrolled,
            header,
            origin,
            is_again: frame.is_again(),
            durably: self.durably,
            now: self.env.wall_clock(),
            has_gone: &*self.has_gone,
        };
        question.answer(op, turn).await
    }
}

/// Returns the bytes of data that the reply to a request may have.
fn reply_bytes(header: &InHeader, request: &[u8]) -> usize {
    match wire::op(header.opcode, &request[IN_HEADER_BYTES..]) {
        Ok(Op::Read { size, .. } | Op::List { size, .. }) => size as usize,
        _ => 0,
    }
}

/// Sends replies until there are no more. Short ones are gathered while more are ready.
async fn send(
    unsent: &mut mpsc::UnboundedReceiver<Unsent>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (mut gathered, mut held) = (Vec::new(), Vec::new());
    while let Some(Unsent { reply, _held }) = unsent.recv().await {
        gathered.extend_from_slice(&reply.head);
        held.push(_held);
        if total(&reply.data) <= limits::COPIED_BYTES_MAX {
            reply.data.iter().for_each(|piece| gathered.extend_from_slice(piece));
        } else {
            write_pieces(writer, &gathered, &reply.data).await?;
            gathered.clear();
        }
        if unsent.is_empty() || gathered.len() >= limits::GATHERED_BYTES {
            writer.write_all(&gathered).await?;
            writer.flush().await?;
            gathered.clear();
            held.clear();
        }
    }
    Ok(())
}

/// Writes what was gathered and then pieces, each from where it lies.
async fn write_pieces(
    writer: &mut (impl AsyncWrite + Unpin),
    gathered: &[u8],
    pieces: &[Bytes],
) -> io::Result<()> {
    let all = iter::once(gathered).chain(pieces.iter().map(|piece| &piece[..]));
    let mut slices: Vec<IoSlice<'_>> = all.map(IoSlice::new).collect();
    let mut left = &mut slices[..];
    // What is empty at the front would look like a writer that takes nothing.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match writer.write_vectored(left).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => IoSlice::advance_slices(&mut left, count),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
