//! The replica that a log calls: a holder on another node.

use crate::connection::Connection;
use crate::hello::{self, Identity, Secret};
use crate::limits::{FRAME_TIME_MAX, HOME_BYTES_MAX, PING_PAUSE};
use crate::wire::Message;
use rekindle_base::{Incarnation, Life, NodeId, SegmentId, StoreId};
use rekindle_env::{Address, BoxFuture, Env, TaskHandle};
use rekindle_log::{NewSegment, Replica};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, Notify};

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
    /// Shared by all peers of the node.
    pub holders: Holders,
}

/// The holder behind each address. A holder with two addresses would count as two copies, and keeps
/// one.
#[derive(Debug, Clone, Default)]
pub struct Holders(Arc<parking_lot::Mutex<BTreeMap<String, NodeId>>>);

impl Holders {
    /// Notes the holder that was met at an address. Returns an error if another address leads to
    /// the same one.
    fn meet(&self, address: &Address, holder: NodeId) -> Result<(), String> {
        let (mut holders, address) = (self.0.lock(), address.to_string());
        let is_other = |(place, met): &(&String, &NodeId)| **place != address && **met == holder;
        if let Some((other, _)) = holders.iter().find(is_other) {
            return Err(format!(
                "the holder at {other} is the same node: each copy needs a holder of its own"
            ));
        }
        holders.insert(address, holder);
        Ok(())
    }
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
    /// The reason why the last connection has ended between two calls, and a bell for it.
    lost: parking_lot::Mutex<Option<String>>,
    bell: Notify,
}

/// A log bounds its own calls.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);

impl Peer {
    /// Makes a peer, which is not connected yet.
    #[must_use]
    pub fn new(env: &Env, settings: Settings) -> Peer {
        let inner = Arc::new(Inner {
            env: env.clone(),
            settings,
            connection: Mutex::default(),
            lost: parking_lot::Mutex::default(),
            bell: Notify::new(),
        });
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
        // The caller finds out by this call.
        *self.lost.lock() = None;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let has = connection.call(request, CALL_TIME_MAX).await?;
        *slot = Some(connection);
        Ok(has)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let Settings { address, secret, store, node, incarnation, home, holders } = &self.settings;
        if home.len() > HOME_BYTES_MAX as usize {
            return Err("node.json is too long to be copied".to_owned());
        }
        let stream = self.env.net().connect(address).await.map_err(|error| error.to_string())?;
        let mut connection = Connection::new(&self.env, stream);
        let life = Life { node: *node, incarnation: *incarnation };
        let identity = Identity { secret: *secret, store: *store, life };
        let meet = |holder| holders.meet(address, holder);
        hello::ask(&self.env, &mut connection, &identity, meet).await?;
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
        match connection.call(&Message::Ping, FRAME_TIME_MAX).await {
            Ok(_) => *slot = Some(connection),
            Err(why) => {
                *peer.lost.lock() = Some(why);
                peer.bell.notify_one();
            }
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
