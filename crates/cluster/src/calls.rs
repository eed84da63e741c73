//! Calls to other nodes: where they are, by which key they are known, and who calls.

use crate::connection::Connection;
use crate::hello::{self, Identity};
use crate::limits::{CONNECT_TIME_MAX, KNOCK_TIME_MAX, ROSTER_TIME_MAX};
use crate::machine::choice::Offer;
use crate::roster::{Contact, Entry, Roster};
use crate::secret::Secret;
use crate::tls::{Channel, Secured};
use crate::wire::Message;
use rekindle_base::{Life, NodeId, StoreId};
use rekindle_env::Env;
use std::sync::Arc;
use std::time::Duration;

/// The means of a host to talk with other nodes of its cluster.
pub struct Calls {
    pub env: Env,
    pub secret: Secret,
    pub store: StoreId,
    pub channel: Channel,
    pub roster: Arc<dyn Roster>,
    /// The life of this host's home node.
    pub home: Life,
    /// The home nodes that this host had before: another host has taken them over.
    pub former: Vec<NodeId>,
}

impl Calls {
    /// Whether a node is, or was, this host's home node.
    #[must_use]
    pub fn is_here(&self, home: NodeId) -> bool {
        home == self.home.node || self.former.contains(&home)
    }

    /// Connects to the host whose home node is `to`, in the name of `life`, which this host runs.
    pub(crate) async fn connect(&self, life: Life, to: NodeId) -> Result<Connection, String> {
        let known = match self.roster.find(to) {
            Some(known) => known,
            None => self.read(to).await?,
        };
        match self.connect_home(life, &known).await {
            Ok(connection) => Ok(connection),
            Err(why) => {
                // Its address or its key may be another one since.
                let afresh = self.read(to).await.map_err(|_| why.clone())?;
                if afresh.contact == known.contact {
                    return Err(why);
                }
                self.connect_home(life, &afresh).await
            }
        }
    }

    async fn connect_home(&self, life: Life, entry: &Entry) -> Result<Connection, String> {
        at_home(entry)?;
        self.connect_to(life, entry).await
    }

    /// Connects to the host at which a node runs, at home or as a guest.
    pub(crate) async fn connect_to(&self, life: Life, entry: &Entry) -> Result<Connection, String> {
        let contact = member(entry)?;
        let work = async {
            let stream = self.env.net().connect(&contact.address).await;
            let stream = stream.map_err(|error| error.to_string())?;
            let secured = self.channel.connect(stream).await;
            secured.map_err(|error| format!("no TLS with {}: {error}", contact.address))
        };
        let (stream, secured) = match self.env.timeout(CONNECT_TIME_MAX, work).await {
            Ok(connected) => connected?,
            Err(_) => return Err(format!("{} does not answer", contact.address)),
        };
        self.is_pinned(entry.node, contact, secured)?;
        let mut connection = Connection::new(&self.env, stream);
        let identity = self.identity(life, secured);
        hello::ask(&self.env, &mut connection, &identity, entry.host).await?;
        Ok(connection)
    }

    /// Whether the host of a node answers that no process listens at its address. `false`: some
    /// process does, or nothing is known. The address is that of the record as it was read last.
    pub(crate) async fn is_refused(&self, node: NodeId) -> bool {
        let Some(entry) = self.roster.find(node) else { return false };
        let Ok(contact) = member(&entry) else { return false };
        let connect = self.env.net().connect(&contact.address);
        let connected = self.env.timeout(KNOCK_TIME_MAX, connect).await;
        let refused = std::io::ErrorKind::ConnectionRefused;
        matches!(connected, Ok(Err(error)) if error.kind() == refused)
    }

    pub(crate) fn identity(&self, life: Life, secured: Secured) -> Identity {
        let Secured { binding, .. } = secured;
        Identity { secret: self.secret, store: self.store, life, binding }
    }

    fn is_pinned(&self, node: NodeId, contact: &Contact, secured: Secured) -> Result<(), String> {
        let Some(key) = secured.key else { return Ok(()) };
        let Some(pin) = contact.pins.iter().find(|pin| pin.key == key) else {
            return Err(format!(
                "the other end has another key than the record of node {node} names"
            ));
        };
        if pin.until < self.env.wall_clock() {
            return Err(format!(
                "the key of node {node} has expired: `rekindle cluster rotate` there makes another one"
            ));
        }
        Ok(())
    }

    /// Checks that a life may be the one that calls over this connection: the record of its node
    /// names it, and its host's key.
    pub(crate) async fn vouch(&self, life: Life, secured: Secured) -> Result<Arc<Entry>, String> {
        if let Some(known) = self.roster.find(life.node)
            && self.is_caller(life, &known, secured).is_ok()
        {
            return Ok(known);
        }
        let afresh = self.read(life.node).await?;
        self.is_caller(life, &afresh, secured)?;
        Ok(afresh)
    }

    fn is_caller(&self, life: Life, entry: &Entry, secured: Secured) -> Result<(), String> {
        let contact = member(entry)?;
        if life.incarnation < entry.incarnation {
            return Err(format!(
                "node {} has begun anew since, as its start {}",
                life.node, entry.incarnation
            ));
        }
        if life.incarnation > entry.incarnation {
            return Err(format!(
                "the record of node {} names its start {}, not {}",
                life.node, entry.incarnation, life.incarnation
            ));
        }
        self.is_pinned(life.node, contact, secured)
    }

    /// Reads a node's record.
    pub(crate) async fn read(&self, node: NodeId) -> Result<Arc<Entry>, String> {
        let read = self.env.timeout(ROSTER_TIME_MAX, self.roster.read(node)).await;
        let read = read.map_err(|_| {
            format!("the record of node {node} cannot be read: the store does not answer")
        })?;
        read?.ok_or_else(|| format!("the store has no record of node {node}"))
    }

    async fn once<T>(
        &self,
        to: NodeId,
        patience: Duration,
        request: Message<'_>,
        take: impl Fn(Message<'_>) -> Option<T>,
    ) -> Result<T, String> {
        let work = async {
            let mut connection = self.connect(self.home, to).await?;
            let reply = connection.ask(&request, patience).await.map_err(|why| why.to_string())?;
            take(reply).ok_or_else(|| "the other end does not answer as it should".to_owned())
        };
        let done = self.env.timeout(patience, work).await;
        done.map_err(|_| format!("node {to} does not answer"))?
    }

    /// Asks a node what it has to offer as a holder.
    pub async fn offer(&self, to: NodeId, patience: Duration) -> Result<Offer, String> {
        let take = |reply: Message<'_>| match reply {
            Message::Offered(offer) => Some(offer),
            _ => None,
        };
        self.once(to, patience, Message::Offer, take).await
    }

    /// Asks a node whether it hears a life, whose copies it has.
    pub async fn hears(&self, to: NodeId, life: Life, patience: Duration) -> Result<bool, String> {
        self.once(to, patience, Message::Hears(life), done).await.map(|heard| heard > 0)
    }

    /// Tells a node that this one is there. It reads this one's record.
    pub async fn greet(&self, to: NodeId, patience: Duration) -> Result<(), String> {
        self.once(to, patience, Message::Ping, done).await.map(drop)
    }

    /// Asks a node to take no further copies, or to take some again.
    pub async fn drain(&self, to: NodeId, on: bool, patience: Duration) -> Result<(), String> {
        self.once(to, patience, Message::Drain(u32::from(on)), done).await.map(drop)
    }
}

fn done(reply: Message<'_>) -> Option<u32> {
    match reply {
        Message::Done(has) => Some(has),
        _ => None,
    }
}

/// Checks that a node runs at home. Copies lie at a host, and do not go with its node: a node that
/// goes on as another one's guest keeps none.
fn at_home(entry: &Entry) -> Result<(), String> {
    match entry.host == entry.node {
        true => Ok(()),
        false => {
            Err(format!("node {} goes on at node {}, without its host", entry.node, entry.host))
        }
    }
}

/// The way to a node's host, if it is in the cluster.
fn member(entry: &Entry) -> Result<&Contact, String> {
    match &entry.contact {
        _ if entry.is_removed => Err(format!("node {} was removed from the cluster", entry.node)),
        Some(contact) => Ok(contact),
        None => Err(format!("node {} is in no cluster", entry.node)),
    }
}
