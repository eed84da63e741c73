//! Sessions of clients at other hosts. A client may connect to any host; that host asks the one at
//! which the volume's owner runs for a session, over a connection of its own. What follows the
//! reply is the client's protocol, of which this crate knows nothing.
//!
//! The answering host serves volumes of the nodes that it runs, and forwards no session: so there
//! is no circle.

use crate::calls::Calls;
use crate::limits::{SERVE_TIME_MAX, TEXT_BYTES_MAX};
use crate::wire::{Message, Serve, Served, Unserved};
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_env::{BoxFuture, Stream};
use std::sync::Arc;

/// The volumes of the nodes that this host runs, for clients of other hosts.
pub trait Volumes: Send + Sync + 'static {
    /// Brings a volume into service for a client of the host whose home node lives this life.
    fn open(&self, from: Life, request: Serve) -> BoxFuture<'_, Result<Opened, Unserved>>;
}

/// A volume in service for a client of another host.
pub struct Opened {
    pub served: Served,
    /// Serves the client until it leaves.
    pub session: Session,
}

/// A session that has its stream still to come.
pub type Session = Box<dyn FnOnce(Box<dyn Stream>) -> BoxFuture<'static, ()> + Send>;

/// A session at another host.
pub struct Passage {
    /// The stream of the session, which belongs to the thread of the caller.
    pub stream: Box<dyn Stream>,
    pub served: Served,
    pub place: Place,
}

/// The place at which a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub node: NodeId,
    /// The home node of its host.
    pub host: NodeId,
    pub incarnation: Incarnation,
}

/// The reason why another host gives no session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPassage {
    /// No host serves the volume just now, as far as this one can know.
    Away(String),
    /// The owner's host does not serve it.
    Refused(Unserved),
}

impl Calls {
    /// Asks for a session of a volume, at the host at which the volume's owner runs by its record.
    pub async fn forward(&self, owner: NodeId, request: &Serve) -> Result<Passage, NoPassage> {
        // Never by a record that was read before: another host may have taken the owner over.
        let entry = self.read(owner).await.map_err(NoPassage::Away)?;
        let away = |why: String| {
            NoPassage::Away(format!(
                "node {} ({owner}), which owns it, runs at the host of node {}: {why}",
                entry.name(),
                entry.host
            ))
        };
        if entry.host == self.home.node {
            return Err(away("it does not serve yet".to_owned()));
        }
        let mut connection = self.connect_to(self.home, &entry).await.map_err(&away)?;
        connection
            .send(&Message::Serve(request.clone()))
            .await
            .map_err(|why| away(why.to_string()))?;
        match connection.receive(SERVE_TIME_MAX, 2 + TEXT_BYTES_MAX).await {
            Ok(Message::Served(served)) => {
                let place = Place { node: owner, host: entry.host, incarnation: entry.incarnation };
                Ok(Passage { stream: connection.into_stream(), served, place })
            }
            Ok(Message::Unserved(Unserved { kind: None, reason })) => Err(away(reason)),
            Ok(Message::Unserved(unserved)) => Err(NoPassage::Refused(unserved)),
            // A host that knows the request answers it: this is an older one.
            Ok(Message::Refused(why)) => Err(away(format!(
                "it does not serve clients of other hosts; upgrade rekindle there, if it is older than here ({why})"
            ))),
            Ok(_) => Err(away("it does not answer as it should".to_owned())),
            Err(broken) => Err(away(broken.to_string())),
        }
    }

    /// Whether a node runs elsewhere than there, or as a later life. `false` also when the store
    /// does not answer.
    pub async fn has_moved(&self, from: Place) -> bool {
        self.read(from.node).await.is_ok_and(|entry: Arc<_>| {
            (entry.host, entry.incarnation) != (from.host, from.incarnation)
        })
    }
}
