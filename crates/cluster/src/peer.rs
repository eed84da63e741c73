//! The replica that a log calls: a holder on another node.

use crate::connection::Connection;
use crate::hello::{self, Identity, Secret};
use crate::limits::{FRAME_TIME_MAX, HOME_BYTES_MAX, PING_PAUSE};
use crate::wire::Message;
use rekindle_base::{Incarnation, Life, NodeId, SegmentId, StoreId};
use rekindle_env::{Address, BoxFuture, Env, TaskHandle};
use rekindle_log::{NewSegment, Replica};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;

/// Where a peer is, and the node that calls it.
#[derive(Debug, Clone)]
pub struct Settings {
    pub address: Address,
    pub secret: Secret,
    pub store: StoreId,
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// The node's `node.json`, so that the copies can be started from.
    pub home: Vec<u8>,
}

/// A holder of copies on another node. It connects at its first call, and anew after an error. The
/// calls come from the background threads, as those of a log do.
pub struct Peer {
    inner: Arc<Inner>,
    pings: TaskHandle,
}

struct Inner {
    env: Env,
    settings: Settings,
    /// `None` while a call runs: one that fails or is broken off leaves no connection.
    connection: Mutex<Option<Connection>>,
}

/// A log bounds its own calls.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

impl Peer {
    /// Makes a peer, which is not connected yet.
    #[must_use]
    pub fn new(env: &Env, settings: Settings) -> Peer {
        let connection = Mutex::default();
        let inner = Arc::new(Inner { env: env.clone(), settings, connection });
        let pings = env.spawn("peer-ping", ping(env.clone(), Arc::downgrade(&inner)));
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
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let has = connection.call(request, CALL_TIME_MAX).await?;
        *slot = Some(connection);
        Ok(has)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let Settings { address, secret, store, node, incarnation, home } = &self.settings;
        if home.len() > HOME_BYTES_MAX as usize {
            return Err("node.json is too long to be copied".to_owned());
        }
        let stream = self.env.net().connect(address).await.map_err(|error| error.to_string())?;
        let mut connection = Connection::new(&self.env, stream);
        let life = Life { node: *node, incarnation: *incarnation };
        let identity = Identity { secret: *secret, store: *store, life };
        hello::ask(&self.env, &mut connection, &identity).await?;
        connection.call(&Message::Home(home), CALL_TIME_MAX).await?;
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
        if connection.call(&Message::Ping, FRAME_TIME_MAX).await.is_ok() {
            *slot = Some(connection);
        }
    }
}

impl Replica for Peer {
    fn name(&self) -> String {
        self.inner.settings.address.to_string()
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
}
