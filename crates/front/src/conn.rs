//! Connections: the accept loop, the limit, the orderly end. The same for every protocol.
//!
//! A [`Connections`] belongs to one protocol of a node. Each accepted connection takes a slot; who finds none is hung up
//! on at once (a client that is told "no" can say so, one left in the queue looks like a hang). [`Connections::stop`]
//! ends the accept loops, asks every session to finish what it has begun, and cuts off those that do not.

use env::{Acceptor, Address, BoxFuture, Env, Stream, TaskHandle};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};

/// Most connections of one protocol, unless the node says otherwise.
pub const CONNECTIONS_DEFAULT: usize = 256;
/// Pause after a failed accept (too many open files, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where a connection's session runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On a thread of its own: it may drive the disk.
    OwnThread,
    /// On the background threads.
    Background,
}

/// Serves one connection until it ends, or until [`Stop`] says to finish.
pub type Serve = Arc<dyn Fn(Box<dyn Stream>, Stop) -> BoxFuture<'static, ()> + Send + Sync>;

/// The connections of one protocol. Clones mean the same ones.
#[derive(Clone)]
pub struct Connections {
    inner: Arc<Inner>,
}

struct Inner {
    what: &'static str,
    connections_max: usize,
    state: Mutex<State>,
    /// Told when a connection ends.
    ended: Notify,
    stopping: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    next: u64,
    live: BTreeMap<u64, Live>,
    /// Since the last accepted one; only the first is logged.
    refused: u64,
}

struct Live {
    /// Asks the session to finish; `None` once asked.
    finish: Option<oneshot::Sender<()>>,
    /// `None` until the task has been started.
    task: Option<TaskHandle>,
}

/// Completes when the session shall finish.
pub struct Stop(oneshot::Receiver<()>);

impl Future for Stop {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

impl Stop {
    /// A pair: dropping or sending on the sender asks the session to finish.
    #[must_use]
    pub fn pair() -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }
}

/// The place of one connection; its drop, however the session ends, frees it.
struct Slot {
    number: u64,
    inner: Arc<Inner>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.inner.state.lock().live.remove(&self.number);
        self.inner.ended.notify_waiters();
    }
}

impl Connections {
    /// Connections of the protocol `what` (for messages), at most so many.
    #[must_use]
    pub fn new(what: &'static str, connections_max: usize) -> Self {
        let inner = Inner {
            what,
            connections_max,
            state: Mutex::default(),
            ended: Notify::new(),
            stopping: watch::channel(false).0,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Connections now.
    #[must_use]
    pub fn live(&self) -> usize {
        self.inner.state.lock().live.len()
    }

    /// Accepts until [`Connections::stop`]. One call per listener.
    pub async fn accept(&self, env: &Env, acceptor: Box<dyn Acceptor>, place: Place, serve: Serve) {
        let what = self.inner.what;
        let mut stopping = self.inner.stopping.subscribe();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                accepted = acceptor.accept() => accepted,
            };
            match accepted {
                Ok(connect) => self.start(env, connect, place, &serve),
                Err(error) => {
                    tracing::warn!(protocol = what, %error, "cannot accept a connection; trying again");
                    env.sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn start(&self, env: &Env, connect: env::Accepted, place: Place, serve: &Serve) {
        let Some((slot, stop)) = self.take_slot() else { return };
        let (number, what, serve) = (slot.number, self.inner.what, serve.clone());
        let session = async move {
            let _slot = slot;
            match connect() {
                Ok(stream) => serve(stream, stop).await,
                Err(error) => tracing::debug!(protocol = what, %error, "connection lost at once"),
            }
        };
        let task = match place {
            Place::OwnThread => env.spawn_session(what, session),
            Place::Background => env.spawn(what, session),
        };
        // The session may have ended already; then there is nothing to abort.
        if let Some(live) = self.inner.state.lock().live.get_mut(&number) {
            live.task = Some(task);
        }
    }

    fn take_slot(&self) -> Option<(Slot, Stop)> {
        let mut state = self.inner.state.lock();
        if *self.inner.stopping.borrow() {
            return None;
        }
        if state.live.len() >= self.inner.connections_max {
            state.refused += 1;
            if state.refused == 1 {
                let connections_max = self.inner.connections_max;
                tracing::warn!(
                    protocol = self.inner.what,
                    connections_max,
                    "too many connections: hanging up on new ones until some end"
                );
            }
            return None;
        }
        state.refused = 0;
        let number = state.next;
        state.next += 1;
        let (finish, stop) = Stop::pair();
        state.live.insert(number, Live { finish: Some(finish), task: None });
        Some((Slot { number, inner: self.inner.clone() }, stop))
    }

    /// Ends: no new connections; those there finish what they have begun. After `grace` the rest is cut off.
    /// Returns how many that were.
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
        // An aborted session goes at its next suspension; one that drives the disk may take a moment.
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

/// Refuses an address that strangers can reach: neither protocol asks who is calling.
pub fn check_address(address: &Address, allow_remote: bool) -> io::Result<()> {
    match address {
        Address::Tcp(socket) if !socket.ip().is_loopback() && !allow_remote => {
            let message = format!(
                "refusing to listen at {socket}: anybody who reaches it could read and change every volume; use \
                 127.0.0.1, [::1] or a Unix socket, or allow remote clients explicitly"
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
