//! Clients here whose volumes other hosts serve: the way to the host at which the owner runs.
//!
//! That host may be this one by the time a session ends: this host may have taken the owner over.
//! The client's requests then go through a session in this process.

use super::Service;
use super::visitors;
use super::words::unavailable;
use crate::assemble::Node;
use crate::cluster::Member;
use parking_lot::Mutex;
use rekindle_base::{Kind, NodeId};
use rekindle_cluster::forward::{self, NoPassage, Place};
use rekindle_cluster::roster::Roster;
use rekindle_cluster::wire::{ClientId, Protocol, Serve, Served};
use rekindle_env::{BoxFuture, Env, Moment, Stream};
use rekindle_front::http::api::{ApiError, ForwardedClient};
use rekindle_front::nbd::ExportError;
use rekindle_front::nbd::forward::{Facts, NoWay, Passage, Way};
use rekindle_volume::Error;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Bytes of a session in this process that are under way in each direction.
const PIPE_BYTES: usize = 256 << 10;

/// The clients here whose volumes other hosts serve.
#[derive(Default)]
pub(crate) struct Forwards(Mutex<BTreeMap<ClientId, Row>>);

/// A client whose volume another host than its own serves.
pub(super) struct Row {
    pub(super) volume: String,
    /// The home node of the other host: the one that serves the client, or did last, or the
    /// client's.
    pub(super) host: Option<NodeId>,
    /// Why the client waits.
    pub(super) waits: Option<String>,
    pub(super) since: Moment,
}

impl Row {
    /// The client as a user sees it. `name` gives the name of a node.
    pub(super) fn view(&self, now: Moment, name: impl Fn(NodeId) -> String) -> ForwardedClient {
        ForwardedClient {
            volume: self.volume.clone(),
            node: self.host.map(|host| host.to_string()).unwrap_or_default(),
            name: self.host.map(name).unwrap_or_default(),
            problem: self.waits.clone(),
            since_ms: super::words::milliseconds(now.since(self.since)),
        }
    }
}

impl Forwards {
    /// The clients as a user sees them. `name` gives the name of a node.
    pub(crate) fn view(
        &self,
        now: Moment,
        name: impl Fn(NodeId) -> String,
    ) -> Vec<ForwardedClient> {
        self.0.lock().values().map(|row| row.view(now, &name)).collect()
    }

    fn change(&self, client: ClientId, change: impl FnOnce(&mut Row)) {
        self.0.lock().get_mut(&client).map(change);
    }
}

/// The way of one client to its volume.
pub(super) struct Forward {
    service: Service,
    env: Env,
    volume: String,
    client: ClientId,
    /// The place of the owner when the last session was opened; `None`: it was here.
    place: Mutex<Option<Place>>,
}

impl Forward {
    pub(super) fn new(service: &Service, node: &Arc<Node>, volume: &str) -> Self {
        Self::of(service, node, volume, node.env.random())
    }

    /// The same, for a client with this number.
    pub(super) fn of(service: &Service, node: &Arc<Node>, volume: &str, client: ClientId) -> Self {
        let since = node.env.now();
        let row = Row { volume: volume.to_owned(), host: None, waits: None, since };
        service.inner.forwards.0.lock().insert(client, row);
        Self {
            service: service.clone(),
            env: node.env.clone(),
            volume: volume.to_owned(),
            client,
            place: Mutex::default(),
        }
    }

    async fn member(&self) -> Result<Arc<Member>, NoWay> {
        let node = self.service.node().await.map_err(|error| NoWay::Away(unavailable(error)))?;
        let member = node.membership().map(|membership| membership.member.clone());
        member.ok_or_else(|| away("this node is in no cluster any more".to_owned()))
    }

    async fn find(&self) -> Result<Passage, NoWay> {
        let refused = |error: Error| {
            let error = ExportError::from(error);
            if error.kind.is_retryable() { NoWay::Away(error) } else { NoWay::Refused(error) }
        };
        let owner = match self.service.attached(&self.volume).await.map_err(NoWay::Away)? {
            Ok(_) => return self.here().await,
            Err(Error::Elsewhere(_, owner)) => owner,
            Err(error) => return Err(refused(error)),
        };
        let member = self.member().await?;
        match self.ask(&member, owner, Protocol::Nbd).await {
            Ok(passage) => Ok(Passage { stream: passage.stream, facts: facts(passage.served) }),
            Err(NoPassage::Away(why)) => Err(away(format!("volume '{}': {why}", self.volume))),
            Err(NoPassage::Refused(unserved)) => {
                let kind = unserved.kind.unwrap_or(Kind::Unavailable);
                Err(NoWay::Refused(ExportError { kind, message: unserved.reason }))
            }
        }
    }

    /// Asks the host at which the owner runs for a session.
    async fn ask(
        &self,
        member: &Member,
        owner: NodeId,
        protocol: Protocol,
    ) -> Result<forward::Passage, NoPassage> {
        let passage = member.calls.forward(owner, &self.request(protocol)).await?;
        *self.place.lock() = Some(passage.place);
        let host = Some(passage.place.host);
        self.service.inner.forwards.change(self.client, |row| row.host = host);
        Ok(passage)
    }

    fn request(&self, protocol: Protocol) -> Serve {
        Serve { client: self.client, volume: self.volume.clone(), protocol }
    }

    /// Opens a session of a file volume at the host at which the owner runs.
    pub(super) async fn open_files(&self, how: Protocol) -> Result<Box<dyn Stream>, ApiError> {
        let refused =
            |(NoWay::Away(error) | NoWay::Refused(error))| ApiError::new(error.kind, error.message);
        let owner = match self.service.files(&self.volume).await? {
            Err(Error::Elsewhere(_, owner)) => owner,
            Err(error) => return Err(error.into()),
            Ok(_) => {
                let message = format!("volume '{}' has just come here: try again", self.volume);
                return Err(ApiError::new(Kind::Unavailable, message));
            }
        };
        let member = self.member().await.map_err(refused)?;
        match self.ask(&member, owner, how).await {
            Ok(passage) => Ok(passage.stream),
            Err(NoPassage::Away(why)) => {
                let message = format!("volume '{}': {why}", self.volume);
                Err(ApiError::new(Kind::Unavailable, message))
            }
            Err(NoPassage::Refused(unserved)) => {
                Err(ApiError::new(unserved.kind.unwrap_or(Kind::Unavailable), unserved.reason))
            }
        }
    }

    /// Opens a session in this process, which serves the volume now.
    async fn here(&self) -> Result<Passage, NoWay> {
        let member = self.member().await?;
        let home = member.calls.home;
        let request = self.request(Protocol::Nbd);
        let opened = visitors::open(&self.service, home, request).await.map_err(|unserved| {
            let kind = unserved.kind.unwrap_or(Kind::Unavailable);
            NoWay::Away(ExportError { kind, message: unserved.reason })
        })?;
        let (ours, theirs) = Pipe::pair();
        self.env.spawn_session("nbd-forwarded", (opened.session)(Box::new(theirs)));
        *self.place.lock() = None;
        self.service.inner.forwards.change(self.client, |row| row.host = Some(home.node));
        Ok(Passage { stream: Box::new(ours), facts: facts(opened.served) })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.service.inner.forwards.0.lock().remove(&self.client);
    }
}

impl Way for Forward {
    fn open(&self) -> BoxFuture<'_, Result<Passage, NoWay>> {
        Box::pin(self.find())
    }

    fn has_moved(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let Some(place) = *self.place.lock() else { return false };
            match self.member().await {
                Ok(member) => member.calls.has_moved(place).await,
                Err(_) => false,
            }
        })
    }

    fn note(&self, waits: Option<&str>) {
        let waits = waits.map(str::to_owned);
        self.service.inner.forwards.change(self.client, |row| row.waits = waits);
    }
}

fn away(message: String) -> NoWay {
    NoWay::Away(ExportError { kind: Kind::Unavailable, message })
}

fn facts(served: Served) -> Facts {
    Facts { volume: served.volume, size: served.size, block_size: served.block_size }
}

/// The name of a node for users, as its record was read last.
pub(super) fn name_of(member: &Member, node: NodeId) -> String {
    member.roster.find(node).map(|entry| entry.name().to_owned()).unwrap_or_default()
}

/// The same, or the node's id.
pub(super) fn label_of(member: &Member, node: NodeId) -> String {
    member.roster.find(node).map_or_else(|| node.to_string(), |entry| entry.label())
}

/// The label of the host at which a node runs, as the records were read last.
pub(super) fn host_of(member: &Member, node: NodeId) -> String {
    label_of(member, member.roster.find(node).map_or(node, |entry| entry.host))
}

/// An end of a connection within this process.
struct Pipe {
    stream: DuplexStream,
    /// Whether the other end is gone; and this one, for the other.
    other_is_gone: Arc<AtomicBool>,
    is_gone: Arc<AtomicBool>,
}

impl Pipe {
    fn pair() -> (Pipe, Pipe) {
        let (one, other) = tokio::io::duplex(PIPE_BYTES);
        let (one_gone, other_gone) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let end = |stream, other_is_gone: &Arc<AtomicBool>, is_gone: &Arc<AtomicBool>| Pipe {
            stream,
            other_is_gone: other_is_gone.clone(),
            is_gone: is_gone.clone(),
        };
        (end(one, &other_gone, &one_gone), end(other, &one_gone, &other_gone))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

impl Stream for Pipe {
    fn peer(&self) -> String {
        "this host".to_owned()
    }

    fn is_closed(&self) -> bool {
        self.other_is_gone.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
