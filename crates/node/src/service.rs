//! The service: the node for users and programs. It implements the API of `rekindle_front::http`
//! and the exports of `rekindle_front::nbd`.
//!
//! The service exists before the node. During a long start (a slow store) it answers for health and
//! status, and all other requests wait.

mod api;
pub mod cluster;
mod exports;
mod follow;
mod forward;
pub mod guests;
mod kept;
mod left;
mod mounts;
mod movable;
mod moves;
mod named;
mod nfs;
mod visitors;
mod words;

pub use exports::Export;

use crate::assemble::Node;
use crate::guests::Guests;
use crate::jobs::Jobs;
use crate::meters::Registry;
use crate::recoveries::Recoveries;
use crate::{health, limits, space};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_env::{Address, Env, Moment};
use rekindle_front::conn::Connections;
use rekindle_front::http::api::{ApiError, Endpoint};
use rekindle_volume::StopProgress;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// The stage of the node's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Serving,
    /// Another copy of the folder has replaced this node, which waits for its end.
    Fenced,
    Stopping,
}

/// The part that answers requests. Clones share one state.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    began: Moment,
    nbd: Vec<Address>,
    http: Vec<Address>,
    /// Connections of NBD clients, and of mounts.
    sessions: Connections,
    /// Connections of NFS clients.
    nfs: Connections,
    /// Where these come.
    nfs_places: OnceLock<Vec<Address>>,
    /// The server of these, and of those that come to other hosts.
    nfs_server: OnceLock<Arc<rekindle_front::nfs::Server<Service>>>,
    jobs: Jobs,
    /// Counters of the requests for each volume.
    meters: Registry,
    /// Facts that the node looks for from time to time.
    looks: Arc<health::Looks>,
    stage: Mutex<Stage>,
    /// The reason of the fencing.
    replaced: Mutex<String>,
    /// Present wait of the start, in words.
    starting: Mutex<String>,
    /// The error of the last worker, if it never came to serve.
    last_failure: Mutex<Option<String>>,
    node: watch::Sender<Option<Arc<Node>>>,
    /// Lost nodes that go on here.
    guests: Guests,
    /// What that took.
    recoveries: Recoveries,
    /// Clients here whose volumes other hosts serve.
    forwards: forward::Forwards,
    /// Clients of other hosts whose volumes this one serves.
    visitors: visitors::Visitors,
    /// Mounts of file volumes.
    mounts: mounts::Mounts,
    /// Volumes that have come to this host.
    arrivals: follow::Arrivals,
    /// `Some(drain)` once the end is requested.
    shutdown: watch::Sender<Option<bool>>,
    /// The phase of the stop.
    phase: watch::Sender<Phase>,
    /// Whether a client was told that the stop has ended.
    end_told: watch::Sender<bool>,
    /// Volumes that were not in service when the stop had ended, and of which logs have changes.
    kept_volumes: Mutex<Option<u64>>,
}

/// A phase of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// Clients finish their requests in hand.
    Sessions,
    /// Volumes go out of service, or are drained.
    Volumes,
    /// The destager and the log end.
    Log,
    Ended,
}

impl Phase {
    fn word(self) -> &'static str {
        match self {
            Phase::Serving => "serving",
            Phase::Sessions => "sessions",
            Phase::Volumes => "volumes",
            Phase::Log => "log",
            Phase::Ended => "ended",
        }
    }
}

impl Stage {
    fn word(self) -> &'static str {
        match self {
            Stage::Starting => "starting",
            Stage::Serving => "serving",
            Stage::Fenced => "fenced",
            Stage::Stopping => "stopping",
        }
    }
}

impl Service {
    /// Makes a service without a node.
    #[must_use]
    pub fn new(env: Env, nbd: Vec<Address>, http: Vec<Address>, sessions: Connections) -> Self {
        let inner = Inner {
            began: env.now(),
            jobs: Jobs::new(env.clone()),
            meters: Registry::default(),
            looks: Arc::default(),
            env,
            nbd,
            http,
            nfs: sessions.beside("nfs", limits::NFS_CONNECTIONS),
            nfs_places: OnceLock::new(),
            nfs_server: OnceLock::new(),
            sessions,
            stage: Mutex::new(Stage::Starting),
            replaced: Mutex::default(),
            starting: Mutex::default(),
            last_failure: Mutex::default(),
            node: watch::channel(None).0,
            guests: Guests::default(),
            recoveries: Recoveries::default(),
            forwards: forward::Forwards::default(),
            visitors: visitors::Visitors::default(),
            mounts: mounts::Mounts::default(),
            arrivals: follow::Arrivals::default(),
            shutdown: watch::channel(None).0,
            phase: watch::channel(Phase::Serving).0,
            end_told: watch::channel(false).0,
            kept_volumes: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Serves a node: from now on all requests are answered.
    pub fn serve(&self, node: Arc<Node>) {
        let (env, looks) = (self.inner.env.clone(), self.inner.looks.clone());
        self.inner.env.spawn("health", health::watch(env, Arc::downgrade(&node), looks));
        self.inner.jobs.number_for(node.incarnation);
        self.inner.node.send_replace(Some(node));
        *self.inner.stage.lock() = Stage::Serving;
    }

    /// Notes the error of the last worker, if that never came to serve.
    pub fn starts_after(&self, failure: Option<&str>) {
        *self.inner.last_failure.lock() = failure.map(str::to_owned);
    }

    /// Notes that another copy of the folder has replaced this node: requests get only this reason.
    pub fn fence(&self, reason: &str) {
        reason.clone_into(&mut self.inner.replaced.lock());
        *self.inner.stage.lock() = Stage::Fenced;
    }

    /// Notes what the start waits for. Whether that is news.
    pub fn waits_to_start(&self, reason: &str) -> bool {
        let mut starting = self.inner.starting.lock();
        let is_new = starting.as_str() != reason;
        reason.clone_into(&mut starting);
        is_new
    }

    /// Says why there is no node yet.
    fn start_told(&self) -> String {
        match (self.inner.starting.lock().as_str(), &*self.inner.last_failure.lock()) {
            ("", Some(failure)) => {
                format!("the daemon is starting; its last try failed: {failure}")
            }
            ("", None) => "the daemon is starting".to_owned(),
            (reason, _) => format!(
                "the daemon is starting and waits: {reason}. Clients wait with it, what was acknowledged is on flash, and it \
                 goes on by itself"
            ),
        }
    }

    /// Enters the stage `Stopping`.
    pub fn stopping(&self) {
        *self.inner.stage.lock() = Stage::Stopping;
    }

    /// Lets go of the node.
    pub fn release_node(&self) {
        self.inner.node.send_replace(None);
    }

    /// Waits until the end is requested. Returns whether to drain first.
    pub async fn shutdown_asked(&self) -> bool {
        let mut asked = self.inner.shutdown.subscribe();
        let drain = asked.wait_for(Option::is_some).await.map(|drain| drain.unwrap_or(false));
        match drain {
            Ok(drain) => drain,
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until a quick stop is requested.
    pub async fn drain_aborted(&self) {
        let mut asked = self.inner.shutdown.subscribe();
        if asked.wait_for(|drain| *drain == Some(false)).await.is_err() {
            std::future::pending().await
        }
    }

    /// Turns a draining stop into a quick one.
    pub fn abort_drain(&self) {
        self.inner.shutdown.send_replace(Some(false));
    }

    /// Enters a phase of the stop.
    pub fn enter(&self, phase: Phase) {
        self.inner.phase.send_replace(phase);
    }

    /// Waits until the client that requested the stop knows of its end. Returns at once if no
    /// client requested the stop through the API.
    pub async fn end_told(&self) {
        let asked = self.inner.shutdown.borrow().is_some();
        if asked {
            // The sender lives as long as `self`.
            let _ = self.inner.end_told.subscribe().wait_for(|told| *told).await.is_ok();
        }
    }

    /// Notes that the log keeps changes of so many volumes that were not in service, at a stop.
    pub(crate) fn keeps(&self, volumes: u64) {
        *self.inner.kept_volumes.lock().get_or_insert(0) += volumes;
    }

    /// Returns the progress of the stop.
    #[must_use]
    pub fn progress(&self) -> StopProgress {
        let phase = *self.inner.phase.borrow();
        let mut progress = StopProgress::default();
        for one in self.nodes().iter().filter_map(|node| node.volumes.stop_progress()) {
            progress.add(one);
        }
        progress.kept_volumes = *self.inner.kept_volumes.lock();
        phase.word().clone_into(&mut progress.phase);
        match phase {
            Phase::Sessions => {
                progress.waits_for = format!(
                    "{} session(s) to end",
                    self.inner.sessions.live() + self.inner.nfs.live()
                );
            }
            Phase::Log => {
                "the destager: the batches in hand; then the log: a commit"
                    .clone_into(&mut progress.waits_for);
            }
            Phase::Serving | Phase::Volumes | Phase::Ended => {}
        }
        progress
    }

    /// Returns the lost nodes that go on here.
    pub(crate) fn guests(&self) -> &Guests {
        &self.inner.guests
    }

    /// Returns the connections of NBD clients.
    pub(crate) fn sessions(&self) -> &Connections {
        &self.inner.sessions
    }

    /// Returns the connections of NFS clients.
    pub(crate) fn nfs_sessions(&self) -> &Connections {
        &self.inner.nfs
    }

    /// Lets all clients finish the requests in hand, within `grace`.
    pub(crate) async fn stop_sessions(&self, env: &Env, grace: Duration) {
        let (disks, files) =
            (self.inner.sessions.stop(env, grace), self.inner.nfs.stop(env, grace));
        futures_util::future::join(disks, files).await;
    }

    /// Returns the jobs.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.inner.jobs
    }

    /// Renders all metrics.
    #[must_use]
    pub fn metrics(&self) -> String {
        use rekindle_front::http::api::Api;
        let (looks, node) = (&self.inner.looks, self.present());
        crate::metrics::observe_health(&self.health(), looks.disk_free());
        if let Some(node) = &node {
            crate::metrics::observe_memory(&space::memory(node, &self.inner.sessions));
            let (files, room) = looks.space();
            let unmetered = self.inner.meters.left_out();
            crate::metrics::observe_space(files, room, looks.warm_is_removed(), unmetered);
        }
        crate::metrics::render(node.as_deref()) + &self.inner.meters.render()
    }

    fn stage(&self) -> Stage {
        *self.inner.stage.lock()
    }

    fn present(&self) -> Option<Arc<Node>> {
        self.inner.node.borrow().clone()
    }

    /// Waits for the node and returns it.
    async fn node(&self) -> Result<Arc<Node>, ApiError> {
        if self.stage() == Stage::Stopping {
            return Err(ApiError::new(
                Kind::Unavailable,
                "the daemon is stopping: start it again with `rekindle up`",
            ));
        }
        if self.stage() == Stage::Fenced {
            return Err(ApiError::new(Kind::Fenced, self.inner.replaced.lock().clone()));
        }
        let mut node = self.inner.node.subscribe();
        let found = node.wait_for(Option::is_some).await.map_err(|_| gone())?;
        found.clone().ok_or_else(gone)
    }

    /// Returns the node that a volume belongs to: a guest, if that owns it, else this one.
    async fn node_of(&self, volume: &str) -> Result<Arc<Node>, ApiError> {
        let node = self.node().await?;
        if self.guests().is_empty() {
            return Ok(node);
        }
        // A volume that cannot be shown is this node's: its calls return the error.
        let shown = self.while_it_answers(&node, node.volumes.show(volume)).await?;
        match shown.ok().and_then(|info| info.vault.owner) {
            Some(owner) => Ok(self.guests().find(owner).await?.unwrap_or(node)),
            None => Ok(node),
        }
    }

    /// Returns this node, if there is one yet, and the guests that serve.
    fn nodes(&self) -> Vec<Arc<Node>> {
        self.present().into_iter().chain(self.guests().serving()).collect()
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let nbd = self.inner.nbd.iter().map(|place| Endpoint {
            protocol: "nbd".to_owned(),
            uri: rekindle_front::uri::nbd(place, ""),
        });
        let http = self.inner.http.iter().map(|place| Endpoint {
            protocol: "http".to_owned(),
            uri: match place {
                Address::Tcp(socket) => format!("http://{socket}"),
                Address::Unix(path) => format!("unix:{}", path.display()),
            },
        });
        let nfs = self
            .inner
            .nfs_places
            .get()
            .into_iter()
            .flatten()
            .map(|place| Endpoint { protocol: "nfs".to_owned(), uri: place.to_string() });
        nbd.chain(nfs).chain(http).collect()
    }
}

fn gone() -> ApiError {
    ApiError::new(Kind::Unavailable, "the daemon is stopping")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_front::http::api::Api;

    #[test]
    fn before_there_is_a_node_health_and_status_answer() {
        let (env, runtime) = rekindle_env::real::env().expect("an environment");
        let service = Service::new(env, Vec::new(), Vec::new(), Connections::new("nbd", 1));
        assert!(!service.health().ok);
        runtime.block_on(async {
            let status = service.status().await.expect("an answer");
            assert_eq!(status.state, "starting");
            service.starts_after(Some("no space left"));
            let said = service.status().await.expect("an answer").health.reasons.join("; ");
            assert!(said.contains("no space left"), "{said}");
            assert!(service.waits_to_start("the store is away"), "it is news");
            assert!(!service.waits_to_start("the store is away"));
            let said = service.status().await.expect("an answer").health.reasons.join("; ");
            assert!(said.contains("the store is away") && said.contains("Clients wait"), "{said}");
            assert!(service.job("1").await.is_err());
            service.stopping();
            assert!(service.volumes().await.is_err());
        });
    }
}
