//! The lines of a machine to the hosts that serve its volumes.

use super::Way;
use super::frame::{Ask, Frame, GREETING, Reply, Who};
use crate::conn::Pipe;
use crate::nfs::limits;
use parking_lot::Mutex;
use rekindle_env::{Env, Moment};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

/// The volume is not served where the call went: the owner is to be looked for anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// The call may have got there, and may have been carried out.
    pub may_be_done: bool,
}

/// The lines of one machine, by the names of their volumes.
#[derive(Default)]
pub struct Lines {
    all: Mutex<BTreeMap<String, Arc<Line>>>,
    used: Mutex<Option<Moment>>,
}

impl Lines {
    /// Returns the line for a volume.
    pub fn to(&self, env: &Env, volume: &str, way: impl FnOnce() -> Arc<dyn Way>) -> Arc<Line> {
        *self.used.lock() = Some(env.now());
        let mut all = self.all.lock();
        let line = all.entry(volume.to_owned()).or_insert_with(|| Line::new(env, way()));
        line.clone()
    }

    #[must_use]
    pub fn is_idle(&self, now: Moment) -> bool {
        self.used.lock().is_none_or(|used| now - used >= limits::LINES_IDLE)
    }
}

/// A client that was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    pub machine: u64,
    /// Milliseconds ago.
    pub ago: u64,
}

/// A line. Its connection is opened with the first call, and anew after its end.
pub struct Line {
    env: Env,
    way: Arc<dyn Way>,
    wire: Mutex<Option<Arc<Wire>>>,
    /// Bytes under way, so that the other end need not stop reading.
    room: Semaphore,
}

/// A connection to the owner's host.
struct Wire {
    unsent: mpsc::UnboundedSender<Vec<u8>>,
    next: AtomicU64,
    waits: Arc<Waits>,
}

/// Calls without a reply.
#[derive(Default)]
struct Waits {
    /// The connection was there, so calls may have got through.
    was_open: AtomicBool,
    /// `None`: the connection is over.
    state: Mutex<Option<Waiting>>,
    /// Rung when there is one again.
    begun: Notify,
}

#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, oneshot::Sender<Reply>>,
    /// The moment since which no reply has come, while calls wait for one.
    since: Option<Moment>,
}

/// A call under way; one that is dropped is cut off at the other end.
struct Call<'a> {
    wire: &'a Wire,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.wire.waits.state.lock();
        let Some(waiting) = state.as_mut() else { return };
        if waiting.calls.remove(&self.number).is_some() {
            // The other end may have gone meanwhile.
            let _ = self.wire.unsent.send(Frame::Cut.encode(self.number));
            if waiting.calls.is_empty() {
                waiting.since = None;
            }
        }
    }
}

impl Line {
    fn new(env: &Env, way: Arc<dyn Way>) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            way,
            wire: Mutex::default(),
            room: Semaphore::new(limits::UNDER_WAY_BYTES_MAX),
        })
    }

    /// Returns the connection, or begins one.
    fn wire(&self) -> Arc<Wire> {
        let mut wire = self.wire.lock();
        if let Some(there) = &*wire
            && there.waits.state.lock().is_some()
        {
            return there.clone();
        }
        let (unsent, to_send) = mpsc::unbounded_channel();
        let waits =
            Arc::new(Waits { state: Mutex::new(Some(Waiting::default())), ..Waits::default() });
        let (env, way, carried) = (self.env.clone(), self.way.clone(), waits.clone());
        self.env.spawn_foreground("nfs-forwarded", async move {
            let end = match way.open().await {
                Ok(stream) => {
                    carried.was_open.store(true, Ordering::Relaxed);
                    carry(&env, stream, to_send, &carried, &*way).await
                }
                Err(why) => why,
            };
            tracing::debug!(end, "a line of NFS calls to another host is over");
            // Those that wait hear of it.
            drop(carried.state.lock().take());
        });
        let new = Arc::new(Wire { unsent, next: AtomicU64::new(1), waits });
        *wire = Some(new.clone());
        new
    }

    /// Asks, and waits for the reply. `room` is the bytes of data that this may have: a line is for
    /// all calls of its machine, so each counts what it may really take.
    pub async fn ask(&self, who: &Who, ask: Ask<'_>, room: usize) -> Result<Reply, Away> {
        let bytes = limits::CALL_COUNTS + room + ask.long_bytes();
        let frame = Frame::Call(who.clone(), ask);
        let _permit = self.room.acquire_many(u32::try_from(bytes).unwrap_or(u32::MAX)).await;
        let wire = self.wire();
        let unsent = Away { may_be_done: false };
        let number = wire.next.fetch_add(1, Ordering::Relaxed);
        let (told, reply) = oneshot::channel();
        {
            let mut state = wire.waits.state.lock();
            let waiting = state.as_mut().ok_or(unsent)?;
            waiting.calls.insert(number, told);
            if waiting.since.is_none() {
                waiting.since = Some(self.env.now());
                wire.waits.begun.notify_one();
            }
        }
        let _call = Call { wire: &wire, number };
        wire.unsent.send(frame.encode(number)).map_err(|_| unsent)?;
        match reply.await {
            Ok(Reply::Away) | Err(_) => {
                self.leave(&wire);
                let may_be_done = wire.waits.was_open.load(Ordering::Relaxed);
                Err(Away { may_be_done })
            }
            Ok(reply) => Ok(reply),
        }
    }

    /// Leaves a connection. Another call may have begun the next one.
    fn leave(&self, wire: &Arc<Wire>) {
        let mut there = self.wire.lock();
        if there.as_ref().is_some_and(|there| Arc::ptr_eq(there, wire)) {
            *there = None;
        }
    }

    /// Tells the owner that a client was heard here: its lease goes on there.
    pub fn tell(&self, client: u64, Heard { machine, ago }: Heard) {
        let frame = Frame::Heard { client, machine, ago };
        // A connection that is over is begun anew for the next word.
        let _ = self.wire().unsent.send(frame.encode(0));
    }
}

/// Carries calls and replies until the other end hangs up, the owner runs elsewhere, or the line is
/// let go of. Returns why it ended.
async fn carry(
    env: &Env,
    stream: impl Pipe,
    mut to_send: mpsc::UnboundedReceiver<Vec<u8>>,
    waits: &Waits,
    way: &dyn Way,
) -> String {
    let (reader, writer) = tokio::io::split(stream);
    let ended =
        |end: io::Result<()>| end.map_or_else(|error| error.to_string(), |()| "let go of".into());
    tokio::select! {
        end = send(writer, &mut to_send) => ended(end),
        end = receive(env, reader, waits) => ended(end),
        () = look(env, waits, way) => "the owner runs elsewhere".to_owned(),
    }
}

async fn send(
    mut writer: impl AsyncWrite + Unpin,
    to_send: &mut mpsc::UnboundedReceiver<Vec<u8>>,
) -> io::Result<()> {
    writer.write_all(&GREETING).await?;
    while let Some(frame) = to_send.recv().await {
        writer.write_all(&frame).await?;
        if to_send.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}

async fn receive(env: &Env, mut reader: impl AsyncRead + Unpin, waits: &Waits) -> io::Result<()> {
    loop {
        let bytes = read_frame(&mut reader, limits::FORWARDED_BYTES_MAX).await?;
        let garbage = |_| io::Error::from(io::ErrorKind::InvalidData);
        let (number, reply) = Reply::decode(&bytes).map_err(garbage)?;
        let mut state = waits.state.lock();
        let Some(waiting) = state.as_mut() else { return Ok(()) };
        if let Some(told) = waiting.calls.remove(&number) {
            // Its client may have gone.
            let _ = told.send(reply);
        }
        waiting.since = (!waiting.calls.is_empty()).then(|| env.now());
    }
}

/// Reads a frame behind its length.
pub(super) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Vec<u8>> {
    let length = reader.read_u32().await? as usize;
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Completes when a reply is missing and the owner runs elsewhere: a host that stands still, or is
/// cut off, ends no connection.
async fn look(env: &Env, waits: &Waits, way: &dyn Way) {
    loop {
        let since = waits.state.lock().as_ref().and_then(|waiting| waiting.since);
        let Some(since) = since else {
            waits.begun.notified().await;
            continue;
        };
        let waited = env.now() - since;
        if waited < limits::FORWARD_LOOK {
            env.sleep(limits::FORWARD_LOOK - waited).await;
        } else if way.has_moved().await {
            return;
        } else {
            env.sleep(limits::FORWARD_LOOK_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests;
