//! Connections: the accept loop, the limit, the orderly end. The same for every protocol.
//!
//! A [`Connections`] belongs to one protocol of a node. Each accepted connection takes a slot of
//! its listener, so that strangers (clients at a TCP port) do not lock out the clients of another
//! listener. A new connection is served while enough file descriptors are left for the log and the
//! store.
//!
//! Any other connection is hung up on at once: a client that is told "no" can report that, one left
//! in the queue looks like a hang. [`Connections::stop`] ends the accept loops, asks every session
//! to finish its requests, and cuts off those that do not.

mod budget;

pub use budget::{BUDGET_BYTES_DEFAULT, Budget, Lease};

use futures_util::future::{AbortHandle, AbortRegistration, Abortable};
use parking_lot::Mutex;
use rekindle_env::{Acceptor, Address, BoxFuture, Env, Stream, TaskHandle};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot, watch};

/// Most connections at one listener, unless the node sets another limit.
pub const CONNECTIONS_DEFAULT: usize = 256;
/// First pause after a failed accept (no descriptors, no memory), so that the loop does not spin.
/// Each further pause doubles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest such pause.
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Descriptors that connections leave to others: the log's segments, the store's connections, the
/// supervisor's next worker. A process with a low limit leaves a quarter of it.
const DESCRIPTORS_RESERVED: u64 = 192;
/// Descriptors of a session with a thread of its own: its socket, and four of the runtime (two
/// names of its epoll, its waker, the pipe of signals).
const DESCRIPTORS_OF_THREAD: u64 = 5;
/// Bytes that a closed connection counts for when memory is given back to the machine.
const CONNECTION_BYTES: usize = 256 << 10;

/// A connection, whatever it is made of.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}

impl<P: AsyncRead + AsyncWrite + Send + Unpin> Pipe for P {}

/// The threads that run a connection's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionThread {
    /// A thread of its own, so that the session may write to the disk itself.
    OwnThread,
    /// Those of the foreground.
    Shared,
}

impl SessionThread {
    /// Returns the descriptors that a session takes.
    fn descriptors(self) -> u64 {
        match self {
            SessionThread::OwnThread => DESCRIPTORS_OF_THREAD,
            SessionThread::Shared => 1,
        }
    }
}

/// A listener, and the kind of its connections.
struct Door {
    listener: usize,
    address: Address,
    place: SessionThread,
}

impl Door {
    /// Returns the descriptors that must be left for one more connection: those it takes (of which
    /// it has the first already), and the reserve.
    ///
    /// The API needs only half of the reserve, so that an operator gets in when no client does.
    /// Connections at a TCP port must leave twice as much, so that those at a Unix socket still get
    /// in.
    fn descriptors_needed(&self, limit: u64) -> u64 {
        let reserve = DESCRIPTORS_RESERVED.min(limit / 4);
        let reserve = if self.place == SessionThread::Shared { reserve / 2 } else { reserve };
        let doubled = if matches!(self.address, Address::Tcp(_)) { reserve * 2 } else { reserve };
        doubled + self.place.descriptors() - 1
    }
}

/// A function that serves one connection until it ends, or until [`Stop`] asks it to finish.
pub type Serve = Arc<dyn Fn(Box<dyn Stream>, Stop) -> BoxFuture<'static, ()> + Send + Sync>;

/// The connections of one protocol. Clones share them.
#[derive(Clone)]
pub struct Connections {
    inner: Arc<Inner>,
}

struct Inner {
    what: &'static str,
    /// Most connections at each listener.
    connections_max: usize,
    budget: Budget,
    state: Mutex<ConnTable>,
    /// Notified when a connection ends.
    ended: Notify,
    stopping: watch::Sender<bool>,
}

#[derive(Default)]
struct ConnTable {
    next: u64,
    live: BTreeMap<u64, Live>,
    listeners: Vec<Listener>,
    /// The place of the connections that come by another way, among the listeners.
    entrance: Option<usize>,
    /// Descriptors that sessions which have not begun yet will open.
    to_open: u64,
}

#[derive(Default)]
struct Listener {
    live: usize,
    /// Connections refused since the last accepted one; only the first of them is logged.
    refused: u64,
}

struct Live {
    listener: usize,
    /// Asks the session to finish; `None` once asked.
    finish: Option<oneshot::Sender<()>>,
    /// `None` until the task has been started.
    task: Option<TaskHandle>,
}

/// A future that completes when the session must finish.
pub struct Stop(oneshot::Receiver<()>);

impl Future for Stop {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

impl Stop {
    /// Makes a pair: dropping the sender, or sending on it, asks the session to finish.
    #[must_use]
    pub fn pair() -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }
}

/// The slot of a connection that has come by another way than a listener of the protocol.
pub struct Entered {
    slot: Slot,
    stop: Stop,
    cut: AbortRegistration,
}

impl Entered {
    /// Runs the session that the connection is for, in the caller's task.
    pub async fn run<F: Future<Output = ()>>(self, session: impl FnOnce(Stop) -> F) {
        let _slot = self.slot;
        // `Err`: cut off, which is an end like any other.
        let _ = Abortable::new(session(self.stop), self.cut).await;
    }
}

/// The slot of one connection; its drop frees the slot, however the session ends.
struct Slot {
    number: u64,
    inner: Arc<Inner>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = self.inner.state.lock();
            let gone = state.live.remove(&self.number);
            if let Some(listener) = gone.and_then(|gone| state.listeners.get_mut(gone.listener)) {
                listener.live -= 1;
            }
        }
        self.inner.budget.freed(CONNECTION_BYTES);
        self.inner.ended.notify_waiters();
    }
}

/// The descriptors that a session is about to open; dropped when the session begins.
struct Opening {
    count: u64,
    inner: Arc<Inner>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.inner.state.lock().to_open -= self.count;
    }
}

impl Connections {
    /// Makes the connections of the protocol `what` (for messages), with a limit for each listener.
    #[must_use]
    pub fn new(what: &'static str, connections_max: usize) -> Self {
        Self::with_budget(what, connections_max, BUDGET_BYTES_DEFAULT)
    }

    /// Makes the connections with a budget of memory for all sessions together, beyond their own
    /// shares.
    #[must_use]
    pub fn with_budget(what: &'static str, connections_max: usize, budget_bytes: usize) -> Self {
        Self::over(what, connections_max, Budget::new(budget_bytes))
    }

    /// Makes the connections of another protocol, whose sessions share the budget of these.
    #[must_use]
    pub fn beside(&self, what: &'static str, connections_max: usize) -> Self {
        Self::over(what, connections_max, self.budget().clone())
    }

    fn over(what: &'static str, connections_max: usize, budget: Budget) -> Self {
        let inner = Inner {
            what,
            connections_max,
            budget,
            state: Mutex::default(),
            ended: Notify::new(),
            stopping: watch::channel(false).0,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn live(&self) -> usize {
        self.inner.state.lock().live.len()
    }

    /// Returns the budget of memory that the sessions share.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    /// Accepts connections until [`Connections::stop`]. One call per listener.
    pub async fn accept(
        &self,
        env: &Env,
        acceptor: Box<dyn Acceptor>,
        place: SessionThread,
        serve: Serve,
    ) {
        tokio::select! {
            () = self.accept_all(env, &*acceptor, place, serve) => {}
            () = self.inner.budget.tend(env) => {}
        }
    }

    async fn accept_all(
        &self,
        env: &Env,
        acceptor: &dyn Acceptor,
        place: SessionThread,
        serve: Serve,
    ) {
        let what = self.inner.what;
        let door = {
            let mut state = self.inner.state.lock();
            state.listeners.push(Listener::default());
            Door { listener: state.listeners.len() - 1, address: acceptor.address(), place }
        };
        let mut stopping = self.inner.stopping.subscribe();
        let mut pause = ACCEPT_PAUSE;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                accepted = acceptor.accept() => accepted,
            };
            match accepted {
                Ok(connect) => {
                    if std::mem::replace(&mut pause, ACCEPT_PAUSE) != ACCEPT_PAUSE {
                        tracing::info!(protocol = what, address = %door.address, "accepting connections again");
                    }
                    self.start(env, connect, &door, &serve);
                }
                Err(error) => {
                    // Present clients are still served; new ones wait in the queue of the socket.
                    if pause == ACCEPT_PAUSE {
                        tracing::warn!(
                            protocol = what, address = %door.address, %error,
                            "cannot accept connections now: new clients wait until that is over"
                        );
                    }
                    env.sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    /// Takes a slot for a connection that has come in by another way, to `address`, and runs in a
    /// thread of its own. `None`: there are too many, or the node stops.
    #[must_use]
    pub fn enter(&self, env: &Env, address: &Address) -> Option<Entered> {
        let listener = {
            let mut state = self.inner.state.lock();
            let next = state.listeners.len();
            let listener = *state.entrance.get_or_insert(next);
            if listener == next {
                state.listeners.push(Listener::default());
            }
            listener
        };
        let door = Door { listener, address: address.clone(), place: SessionThread::OwnThread };
        let (slot, stop, opening) = self.take_slot(env, &door)?;
        // Its thread runs already.
        drop(opening);
        let (cut_off, cut) = AbortHandle::new_pair();
        let task = TaskHandle::new(Box::new(move || cut_off.abort()));
        if let Some(live) = self.inner.state.lock().live.get_mut(&slot.number) {
            live.task = Some(task);
        }
        Some(Entered { slot, stop, cut })
    }

    fn start(&self, env: &Env, connect: rekindle_env::Accepted, door: &Door, serve: &Serve) {
        let Some((slot, stop, opening)) = self.take_slot(env, door) else { return };
        let (number, what, serve) = (slot.number, self.inner.what, serve.clone());
        let session = async move {
            let _slot = slot;
            drop(opening);
            match connect() {
                Ok(stream) => serve(stream, stop).await,
                Err(error) => tracing::debug!(protocol = what, %error, "connection lost at once"),
            }
        };
        let task = match door.place {
            SessionThread::OwnThread => env.spawn_session(what, session),
            SessionThread::Shared => env.spawn_foreground(what, session),
        };
        // The session may have ended already; then there is no task to abort.
        if let Some(live) = self.inner.state.lock().live.get_mut(&number) {
            live.task = Some(task);
        }
    }

    fn take_slot(&self, env: &Env, door: &Door) -> Option<(Slot, Stop, Opening)> {
        let found = env.net().descriptors();
        let mut state = self.inner.state.lock();
        if *self.inner.stopping.borrow() {
            return None;
        }
        let connections_max = self.inner.connections_max;
        let listener = &state.listeners[door.listener];
        let is_full = listener.live >= connections_max;
        let left = found.limit.saturating_sub(found.open + state.to_open);
        if is_full || left < door.descriptors_needed(found.limit) {
            let listener = &mut state.listeners[door.listener];
            listener.refused += 1;
            let (protocol, address) = (self.inner.what, &door.address);
            if listener.refused > 1 {
                return None;
            }
            if is_full {
                tracing::warn!(
                    protocol, %address, connections_max,
                    "too many connections: hanging up on new ones until some end"
                );
            } else {
                tracing::warn!(
                    protocol, %address, open = found.open, limit = found.limit,
                    "too few file descriptors for another client: hanging up on new ones until some end; raise the \
                     limit (LimitNOFILE= in the unit, or ulimit -Hn)"
                );
            }
            return None;
        }
        let number = state.next;
        state.next += 1;
        let listener = &mut state.listeners[door.listener];
        listener.refused = 0;
        listener.live += 1;
        let (finish, stop) = Stop::pair();
        let live = Live { listener: door.listener, finish: Some(finish), task: None };
        state.live.insert(number, live);
        let count = door.place.descriptors() - 1;
        state.to_open += count;
        let slot = Slot { number, inner: self.inner.clone() };
        Some((slot, stop, Opening { count, inner: self.inner.clone() }))
    }

    /// Stops: no new connections, and the present ones finish their requests. After `grace` the
    /// rest is cut off. Returns how many were cut off.
    pub async fn stop(&self, env: &Env, grace: Duration) -> usize {
        self.inner.stopping.send_replace(true);
        for live in self.inner.state.lock().live.values_mut() {
            live.finish.take();
        }
        if env.timeout(grace, self.idle()).await.is_ok() {
            return 0;
        }
        let mut cut_off = 0;
        for live in self.inner.state.lock().live.values() {
            if let Some(task) = &live.task {
                task.abort();
            }
            cut_off += 1;
        }
        tracing::warn!(protocol = self.inner.what, cut_off, "connections did not finish in time");
        // An aborted session ends at its next suspension; one that writes to the disk may take a
        // moment.
        let _ = env.timeout(grace.min(Duration::from_secs(1)), self.idle()).await;
        cut_off
    }

    async fn idle(&self) {
        loop {
            let ended = self.inner.ended.notified();
            if self.live() == 0 {
                return;
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests;
