//! The cluster in the API: nodes, holders of copies, and guests.

use super::BootPhase;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The cluster, as one of its nodes sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cluster {
    /// Whether this node is in a cluster.
    pub member: bool,
    /// This node's id.
    pub node: String,
    pub name: String,
    /// The address at which other nodes reach this one.
    pub address: String,
    /// The fault domain of this host; empty: none.
    pub domain: String,
    /// Why the nodes may be others than these, if so.
    pub problem: Option<String>,
    pub nodes: Vec<ClusterNode>,
    /// The holders of copies of this node's log.
    pub holders: Vec<CopiesHolder>,
    /// The copies of other nodes' logs here.
    pub held: Vec<HeldCopies>,
    /// Other nodes that go on in this daemon.
    pub guests: Vec<Guest>,
    /// Clients of this host whose volumes another host serves.
    pub forwarded: Vec<ForwardedClient>,
    /// Clients of other hosts whose volumes this host serves.
    pub visitors: Vec<ForwardedClient>,
}

/// An NBD client at one host, whose volume another host serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ForwardedClient {
    pub volume: String,
    /// The home node of the other host: the one that serves the volume, or the client's.
    pub node: String,
    pub name: String,
    /// Why the client's requests wait, if they do.
    pub problem: Option<String>,
    /// Time since the client came.
    pub since_ms: u64,
}

/// A node of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ClusterNode {
    /// The node's id.
    pub node: String,
    pub name: String,
    pub address: String,
    pub domain: String,
    /// `well`, `draining`, `silent`, `stopped`, `taken over` (another host runs it), `removed`, `no
    /// member`.
    pub state: String,
    /// The node whose process runs it.
    pub host: String,
    /// The number of its last start.
    pub incarnation: u64,
    /// Count of the changes of its holders.
    pub epoch: u64,
    /// The holders of copies of its log, by its record.
    pub holders: Vec<String>,
}

/// A node that goes on in another one's daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Guest {
    /// The node's id.
    pub node: String,
    /// Its folder here.
    pub folder: String,
    /// `starting`, `serving`, or `replaced`: another start of it serves elsewhere.
    pub state: String,
    /// Why it does not serve.
    pub reason: Option<String>,
    /// The number of its present start.
    pub incarnation: u64,
    /// Duration of that start, microseconds.
    pub start_us: u64,
    /// Flash that its log takes, bytes.
    pub log_bytes: u64,
    /// Its volumes in service.
    pub volumes: u64,
    /// Acknowledged bytes of these that are not in the store.
    pub backlog_bytes: u64,
    /// The holders of copies of its log.
    pub holders: Vec<CopiesHolder>,
}

/// A holder of copies of a node's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CopiesHolder {
    /// The holder's id.
    pub node: String,
    pub name: String,
    /// `follows`: it gets the log; `joins`: writes wait for it; `holds`: it may take over;
    /// `leaves`.
    pub state: String,
    /// Whether it could take over now.
    pub ready: bool,
    /// Bytes of the log that it lacks.
    pub lacks_bytes: u64,
    /// Its last error, until there is progress.
    pub problem: Option<String>,
    /// Time in this state.
    pub since_ms: u64,
}

/// The copies of another node's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HeldCopies {
    /// The node's id.
    pub node: String,
    pub name: String,
    /// Its folder here.
    pub folder: String,
    pub bytes: u64,
    pub segments: u64,
    /// The newest start of the node that is known here.
    pub incarnation: u64,
    /// The time at which the node last sent something, microseconds since 1970; only since this
    /// daemon's start.
    pub last_copy: Option<u64>,
    /// `keeps`, `rests` (its silence means nothing), `suspects`, `takes over`, `goes on here`.
    pub state: String,
    /// Time since the node was heard last; only since this daemon's start.
    pub silent_ms: Option<u64>,
}

/// A lost node that has gone on at another host, and what that took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Recovery {
    /// The node's id.
    pub node: String,
    /// The host at which it ran before, by its name; empty: it is not known.
    pub from: String,
    /// `takeover` by a holder of copies, `adoption` of a folder, or `return`: a host that is back
    /// brings the volumes back that only its log has.
    pub how: String,
    /// The origin of the times, microseconds since 1970: the node was heard last, or a user asked.
    pub at: u64,
    /// The number of the start that it made here.
    pub incarnation: u64,
    /// Flash that its log takes, bytes.
    pub log_bytes: u64,
    /// The phases by their beginning. The parts of `clients` are the volumes that clients got back:
    /// each from the client's request until it was in service. Only the first ones.
    pub phases: Vec<BootPhase>,
}

impl Recovery {
    /// The time until the first client had its volume back, microseconds; `None`: no client came.
    #[must_use]
    pub fn first_client_us(&self) -> Option<u64> {
        let volumes = self.phases.iter().filter(|phase| phase.part_of.is_some());
        volumes.map(|phase| phase.began_us + phase.took_us).min()
    }

    /// The time until it served here, microseconds.
    #[must_use]
    pub fn served_us(&self) -> u64 {
        let own = self.phases.iter().filter(|phase| phase.part_of.is_none());
        own.map(|phase| phase.began_us + phase.took_us).max().unwrap_or_default()
    }
}

/// The request that a node takes no further copies, or takes some again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainNode {
    pub on: bool,
}

/// The request to go on with the node of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptFolder {
    /// The folder, on the daemon's host.
    pub folder: String,
}
