//! The replica that a log calls: a holder on another node.

use crate::calls::Calls;
use crate::connection::Connection;
use crate::limits::{FRAME_TIME_MAX, HOME_BYTES_MAX, PING_PAUSE};
use crate::wire::Message;
use rekindle_base::{Life, NodeId, SegmentId};
use rekindle_env::{BoxFuture, Env, TaskHandle};
use rekindle_log::{NewSegment, Replica};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, Notify};

/// A holder of copies on another node. It connects at its first call, and anew after an error. The
/// calls come from the background threads, as those of a log do.
pub struct Peer {
    inner: Arc<Inner>,
    pings: TaskHandle,
}

struct Inner {
    calls: Arc<Calls>,
    /// The life whose log it is.
    life: Life,
    holder: NodeId,
    /// The life's `node.json`, so that the copies can be started from.
    home: Vec<u8>,
    /// `None` while a call runs: one that fails or is broken off leaves no connection.
    connection: Mutex<Option<Connection>>,
    /// The reason why the last connection has ended between two calls, and a bell for it.
    lost: parking_lot::Mutex<Option<String>>,
    bell: Notify,
}

/// A log bounds its own calls.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

impl Peer {
    /// Makes a peer, which is not connected yet.
    #[must_use]
    pub fn new(calls: &Arc<Calls>, life: Life, holder: NodeId, home: Vec<u8>) -> Peer {
        let inner = Arc::new(Inner {
            calls: Arc::clone(calls),
            life,
            holder,
            home,
            connection: Mutex::default(),
            lost: parking_lot::Mutex::default(),
            bell: Notify::new(),
        });
        let pings = ping(calls.env.clone(), Arc::downgrade(&inner));
        let pings = calls.env.spawn_foreground("peer-ping", pings);
        Peer { inner, pings }
    }

    fn call<'a>(&'a self, request: Message<'a>) -> BoxFuture<'a, Result<u32, String>> {
        Box::pin(async move { self.inner.call(&request).await })
    }

    fn tell<'a>(&'a self, request: Message<'a>) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.inner.call(&request).await.map(|_| ()) })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.pings.abort();
    }
}

impl Inner {
    async fn call(&self, request: &Message<'_>) -> Result<u32, String> {
        let mut slot = self.connection.lock().await;
        // The caller finds out by this call.
        *self.lost.lock() = None;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let has = connection.call(request, CALL_TIME_MAX).await.map_err(|why| why.to_string())?;
        *slot = Some(connection);
        Ok(has)
    }

    async fn connect(&self) -> Result<Connection, String> {
        if self.home.len() > HOME_BYTES_MAX as usize {
            return Err("node.json is too long to be copied".to_owned());
        }
        let mut connection = self.calls.connect(self.life, self.holder).await?;
        let home = connection.call(&Message::Home(&self.home), CALL_TIME_MAX).await;
        home.map_err(|why| why.to_string())?;
        Ok(connection)
    }
}

/// Shows the holder that the owner lives while its log has nothing to copy.
async fn ping(env: Env, peer: Weak<Inner>) {
    loop {
        env.sleep(PING_PAUSE).await;
        let Some(peer) = peer.upgrade() else { return };
        // A call that runs is a sign of life.
        let Ok(mut slot) = peer.connection.try_lock() else { continue };
        let Some(mut connection) = slot.take() else { continue };
        match connection.call(&Message::Ping, FRAME_TIME_MAX).await {
            Ok(_) => *slot = Some(connection),
            Err(why) => {
                *peer.lost.lock() = Some(why.to_string());
                peer.bell.notify_one();
            }
        }
    }
}

impl Replica for Peer {
    fn name(&self) -> String {
        let holder = self.inner.holder;
        let entry = self.inner.calls.roster.find(holder);
        entry.map_or_else(|| holder.to_string(), |entry| entry.label())
    }

    fn begin(&self) -> BoxFuture<'_, Result<(), String>> {
        self.tell(Message::Begin)
    }

    fn open<'a>(&'a self, new: &'a NewSegment) -> BoxFuture<'a, Result<u32, String>> {
        self.call(Message::Open(*new))
    }

    fn copy<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Result<(), String>> {
        self.tell(Message::Copy { segment, offset, bytes })
    }

    fn seal<'a>(&'a self, segment: SegmentId, tail: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        self.tell(Message::Seal { segment, tail })
    }

    fn keep<'a>(
        &'a self,
        head: SegmentId,
        kept: &'a [SegmentId],
    ) -> BoxFuture<'a, Result<(), String>> {
        self.tell(Message::Keep { head, kept: kept.to_vec() })
    }

    fn free(&self, segment: SegmentId) -> BoxFuture<'_, Result<(), String>> {
        self.tell(Message::Free(segment))
    }

    fn lost(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            loop {
                let bell = self.inner.bell.notified();
                if let Some(why) = self.inner.lost.lock().take() {
                    return why;
                }
                bell.await;
            }
        })
    }
}
