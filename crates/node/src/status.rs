//! The node as people and programs see it: implements the API of `front::http` and the exports of `front::nbd`.
//!
//! It is there before the node is: while a start takes long (a slow store), health and status answer, and everything
//! else waits.

use crate::assemble::Node;
use crate::jobs::Jobs;
use crate::{boot, limits, warm_memory, work};
use base::Kind;
use env::{Address, BoxFuture, Env, Moment};
use front::conn::Connections;
use front::http::api::{
    Ack, Answer, Api, ApiError, Backlog, BootReport, CreateVolume, Debug, Endpoint, Event, Health,
    Job, JobState, LogUsage, Policy, Salvage, SalvageAccount, Shutdown, StartAttach, StartSalvage,
    StartSweep, StartVerify, Status, Stopping, StoreInfo, SweepStatus, Volume, WarmDropped,
    WarmStatus,
};
use front::nbd::{Export, ExportError, Exports};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long the store may take to show that it is reachable.
const REACH_TIME: Duration = Duration::from_secs(2);

/// How far the node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Serving,
    Stopping,
}

/// What answers requests. Clones are the same one.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    env: Env,
    began: Moment,
    nbd: Vec<Address>,
    http: Vec<Address>,
    /// Clients of NBD.
    sessions: Connections,
    jobs: Jobs,
    stage: Mutex<Stage>,
    node: watch::Sender<Option<Arc<Node>>>,
    /// `Some(drain)` when somebody has asked for the end.
    shutdown: watch::Sender<Option<bool>>,
    /// How far the stop is.
    phase: watch::Sender<Phase>,
    /// Somebody was told that the stop has ended.
    end_told: watch::Sender<bool>,
}

/// How far a stop is, in the large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// Clients finish what they have begun.
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
            Stage::Stopping => "stopping",
        }
    }
}

impl Service {
    /// A service without a node yet.
    #[must_use]
    pub fn new(env: Env, nbd: Vec<Address>, http: Vec<Address>, sessions: Connections) -> Self {
        let inner = Inner {
            began: env.now(),
            jobs: Jobs::new(env.clone()),
            env,
            nbd,
            http,
            sessions,
            stage: Mutex::new(Stage::Starting),
            node: watch::channel(None).0,
            shutdown: watch::channel(None).0,
            phase: watch::channel(Phase::Serving).0,
            end_told: watch::channel(false).0,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The node is there: answer everything.
    pub fn serve(&self, node: Arc<Node>) {
        self.inner.node.send_replace(Some(node));
        *self.inner.stage.lock() = Stage::Serving;
    }

    /// The node is about to go.
    pub fn stopping(&self) {
        *self.inner.stage.lock() = Stage::Stopping;
    }

    /// Lets go of the node.
    pub fn let_go(&self) {
        self.inner.node.send_replace(None);
    }

    /// Waits until somebody asks for the end; gives whether to drain first.
    pub async fn shutdown_asked(&self) -> bool {
        let mut asked = self.inner.shutdown.subscribe();
        match asked.wait_for(Option::is_some).await {
            Ok(drain) => drain.unwrap_or(false),
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until nobody asks for a draining stop any more.
    pub async fn hurried(&self) {
        let mut asked = self.inner.shutdown.subscribe();
        if asked.wait_for(|drain| *drain == Some(false)).await.is_err() {
            std::future::pending().await
        }
    }

    /// Makes a quick stop of a draining one.
    pub fn hurry(&self) {
        self.inner.shutdown.send_replace(Some(false));
    }

    /// The stop has come this far.
    pub fn enter(&self, phase: Phase) {
        self.inner.phase.send_replace(phase);
    }

    /// Waits until whoever asked for the stop has been told of its end; not at all when nobody asked through the API.
    pub async fn end_told(&self) {
        let asked = self.inner.shutdown.borrow().is_some();
        if asked {
            // The sender lives as long as `self`.
            let _ = self.inner.end_told.subscribe().wait_for(|told| *told).await.is_ok();
        }
    }

    /// How far the stop is.
    #[must_use]
    pub fn progress(&self) -> Stopping {
        let phase = *self.inner.phase.borrow();
        let found = self.present().and_then(|node| node.volumes.stop_progress());
        let waits_for = match phase {
            Phase::Sessions => format!("{} session(s) to end", self.inner.sessions.live()),
            Phase::Log => "the destager: the batches in hand; then the log: a commit".to_owned(),
            Phase::Serving | Phase::Volumes | Phase::Ended => String::new(),
        };
        let phase = phase.word().to_owned();
        match found {
            None => Stopping { phase, waits_for, ..Stopping::default() },
            Some(found) => Stopping {
                phase,
                volumes: found.volumes,
                done: found.done,
                backlog_bytes: found.backlog_bytes,
                kept_bytes: found.kept_bytes,
                draining: found.draining,
                eta_ms: found.eta_ms,
                waits_for: found.waits_for.filter(|_| waits_for.is_empty()).unwrap_or(waits_for),
            },
        }
    }

    /// The long work.
    #[must_use]
    pub fn jobs(&self) -> &Jobs {
        &self.inner.jobs
    }

    /// All metrics.
    #[must_use]
    pub fn metrics(&self) -> String {
        crate::metrics::render(self.present().as_deref())
    }

    fn stage(&self) -> Stage {
        *self.inner.stage.lock()
    }

    fn present(&self) -> Option<Arc<Node>> {
        self.inner.node.borrow().clone()
    }

    /// The node, as soon as there is one.
    async fn node(&self) -> Result<Arc<Node>, ApiError> {
        if self.stage() == Stage::Stopping {
            return Err(ApiError::new(
                Kind::Unavailable,
                "the daemon is stopping: start it again with `rekindle up`",
            ));
        }
        let mut node = self.inner.node.subscribe();
        let found = node.wait_for(Option::is_some).await.map_err(|_| gone())?;
        found.clone().ok_or_else(gone)
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        let nbd = self
            .inner
            .nbd
            .iter()
            .map(|place| Endpoint { protocol: "nbd".to_owned(), uri: nbd_uri(place, "") });
        let http = self.inner.http.iter().map(|place| Endpoint {
            protocol: "http".to_owned(),
            uri: match place {
                Address::Tcp(socket) => format!("http://{socket}"),
                Address::Unix(path) => format!("unix:{}", path.display()),
            },
        });
        nbd.chain(http).collect()
    }

    /// The volumes in service, those that owe most first. Asks the store for nothing.
    async fn in_service(&self, node: &Node) -> Vec<Volume> {
        let mut owing: Vec<_> = node.staging.volumes();
        owing.sort_by_key(|staged| std::cmp::Reverse(staged.backlog().bytes));
        owing.truncate(limits::VOLUMES_IN_STATUS);
        let mut volumes = Vec::new();
        for staged in owing {
            let name = staged.vault().name;
            // One that goes out of service just now would be looked up in the store.
            if let Ok(Ok(info)) = self.inner.env.timeout(REACH_TIME, node.volumes.show(&name)).await
            {
                volumes.push(Service::volume(self, info));
            }
        }
        volumes
    }

    fn volume(&self, info: volume::Info) -> Volume {
        let vault = info.vault;
        let uris = self.inner.nbd.iter().map(|place| nbd_uri(place, &vault.name)).collect();
        Volume {
            id: vault.id.to_string(),
            name: vault.name,
            kind: vault.kind,
            size: vault.size,
            block_size: vault.block_size,
            policy: policy(vault.policy),
            ack: match vault.ack {
                volume::Ack::Flash => Ack::Flash,
                volume::Ack::Memory => Ack::Memory,
            },
            state: info.state.as_str().to_owned(),
            reason: info.reason,
            owner: vault.owner.map(|owner| owner.to_string()),
            generation: vault.generation.0,
            checkpoint: info
                .backlog
                .as_ref()
                .map_or(vault.checkpoint.0, |backlog| backlog.checkpoint),
            created: vault.created,
            pinned: vault.pinned,
            clients: info.clients,
            backlog: info.backlog.map(backlog),
            uris,
        }
    }
}

fn gone() -> ApiError {
    ApiError::new(Kind::Unavailable, "the daemon is stopping")
}

/// An error of a volume, with its kind and words.
pub fn refused(error: &volume::Error) -> ApiError {
    ApiError::new(error.kind(), error.to_string())
}

fn policy(policy: volume::Policy) -> Policy {
    match policy {
        volume::Policy::Uncached => Policy::Uncached,
        volume::Policy::Through => Policy::Through,
        volume::Policy::Back => Policy::Back,
    }
}

fn backlog(found: volume::Backlog) -> Backlog {
    Backlog {
        changes: found.changes,
        bytes: found.bytes,
        age_ms: found.age_ms,
        eta_ms: found.eta_ms,
        late: found.late,
        delay_ms: found.delay_ms,
        stalled: found.stalled,
        destage_error: found.destage_error,
        serial: found.serial,
        checkpoint: found.checkpoint,
    }
}

/// How a client of NBD writes an export.
fn nbd_uri(place: &Address, name: &str) -> String {
    let name = escape(name);
    match place {
        Address::Tcp(socket) => format!("nbd://{socket}/{name}"),
        Address::Unix(path) => format!("nbd+unix:///{name}?socket={}", path.display()),
    }
}

fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn spec(request: CreateVolume) -> volume::Spec {
    volume::Spec {
        name: request.name,
        kind: request.kind,
        size: request.size,
        block_size: request.block_size,
        policy: match request.policy {
            Policy::Uncached => volume::Policy::Uncached,
            Policy::Through => volume::Policy::Through,
            Policy::Back => volume::Policy::Back,
        },
        ack: match request.ack {
            Ack::Flash => volume::Ack::Flash,
            Ack::Memory => volume::Ack::Memory,
        },
    }
}

/// What is wrong with the volumes in service; the first list stops clients, the second only worries.
fn troubles(node: &Node) -> (Vec<String>, Vec<String>) {
    let (mut stalled, mut worries) = (Vec::new(), Vec::new());
    for staged in node.staging.volumes() {
        let backlog = staged.backlog();
        if backlog.stalled.is_none() && backlog.destage_error.is_none() && !backlog.late {
            continue;
        }
        let name = staged.vault().name;
        if let Some(reason) = &backlog.stalled {
            stalled.push(format!("volume '{name}': writes wait: {reason}"));
        }
        if let Some(error) = &backlog.destage_error {
            worries.push(format!("volume '{name}': cannot be destaged now: {error}"));
        } else if backlog.late {
            worries.push(format!(
                "volume '{name}': its oldest change is {} s old",
                backlog.age_ms / 1000
            ));
        }
    }
    // A restart of the daemon would mend none of these.
    let stuck = node.volumes.stuck();
    worries.extend(stuck.volumes.iter().map(volume::Passing::sentence));
    (stalled, worries)
}

impl Api for Service {
    fn health(&self) -> Health {
        let stage = self.stage();
        let waiting = |reason: &str| Health { ok: false, reasons: vec![reason.to_owned()] };
        match (stage, self.present()) {
            (Stage::Stopping, _) => waiting("the daemon is stopping"),
            (Stage::Starting, _) | (_, None) => waiting("the daemon is starting"),
            (Stage::Serving, Some(node)) => {
                let (mut reasons, worries) = troubles(&node);
                let ok = reasons.is_empty();
                reasons.extend(worries);
                Health { ok, reasons }
            }
        }
    }

    fn status(&self) -> Answer<'_, Status> {
        Box::pin(async move {
            // Not within the expression: the guard would live until its end, and health takes the lock as well.
            let stage = self.stage();
            let mut status = Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                state: stage.word().to_owned(),
                uptime_ms: milliseconds(self.inner.env.now() - self.inner.began),
                endpoints: self.endpoints(),
                health: self.health(),
                detail: json!({ "pid": std::process::id() }),
                ..Status::default()
            };
            let Some(node) = self.present() else { return Ok(status) };
            let in_service = node.staging.volumes();
            status.node = node.id.to_string();
            status.incarnation = node.incarnation.0;
            status.store = node.store.describe();
            status.volumes_attached = in_service.len() as u64;
            status.clients = self.inner.sessions.live() as u64;
            status.backlog_bytes = in_service.iter().map(|staged| staged.backlog().bytes).sum();
            status.detail = detail(&node);
            if stage == Stage::Stopping {
                // Those on their way out would be looked up in the store.
                status.stopping = Some(self.progress());
            } else {
                status.detail["volumes"] = json!(self.in_service(&node).await);
            }
            Ok(status)
        })
    }

    fn volumes(&self) -> Answer<'_, Vec<Volume>> {
        Box::pin(async move {
            let infos = self.node().await?.volumes.list().await.map_err(|error| refused(&error))?;
            Ok(infos.into_iter().map(|info| self.volume(info)).collect())
        })
    }

    fn create_volume(&self, request: CreateVolume) -> Answer<'_, Volume> {
        Box::pin(async move {
            let made = self.node().await?.volumes.create(spec(request)).await;
            made.map(|info| self.volume(info)).map_err(|error| refused(&error))
        })
    }

    fn volume<'a>(&'a self, name: &'a str) -> Answer<'a, Volume> {
        Box::pin(async move {
            let found = self.node().await?.volumes.show(name).await;
            found.map(|info| Service::volume(self, info)).map_err(|error| refused(&error))
        })
    }

    fn remove_volume<'a>(&'a self, name: &'a str, force: bool) -> Answer<'a, ()> {
        Box::pin(async move {
            self.node().await?.volumes.remove(name, force).await.map_err(|error| refused(&error))
        })
    }

    fn drain_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            let handle = node.volumes.attach(name).await.map_err(|error| refused(&error))?;
            Ok(self
                .inner
                .jobs
                .begin("drain", name, "bytes", |progress| work::drain(node, handle, progress)))
        })
    }

    fn pin_volume<'a>(&'a self, name: &'a str, pinned: bool) -> Answer<'a, Volume> {
        Box::pin(async move {
            let found = self.node().await?.volumes.pin(name, pinned).await;
            found.map(|info| Service::volume(self, info)).map_err(|error| refused(&error))
        })
    }

    fn debug<'a>(&'a self, what: Debug, prefix: &'a str) -> Answer<'a, serde_json::Value> {
        Box::pin(async move {
            // Also while it stops: that is when one wants to know.
            let node = self.present().ok_or_else(|| {
                ApiError::new(
                    Kind::Unavailable,
                    "the daemon is starting: there is nothing to see yet",
                )
            })?;
            Ok(crate::debug::show(&node, what, prefix).await)
        })
    }

    fn history<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<Event>> {
        Box::pin(async move {
            let node = self.node().await?;
            if let Some(changes) = node.volumes.history(name) {
                return Ok(changes.into_iter().map(event).collect());
            }
            // Nothing has happened to it since the start; but is there such a volume?
            node.volumes.show(name).await.map_err(|error| refused(&error))?;
            Ok(Vec::new())
        })
    }

    fn salvages(&self) -> Answer<'_, Vec<Salvage>> {
        Box::pin(async move {
            let rows = self.node().await?.volumes.salvages();
            Ok(rows.into_iter().map(work::salvage_queued).collect())
        })
    }

    fn start_salvage<'a>(&'a self, name: &'a str, request: StartSalvage) -> Answer<'a, Job> {
        Box::pin(async move {
            let (node, subject) = (self.node().await?, name.to_owned());
            let begin = |progress| work::salvage(node, subject, request.accept_losses, progress);
            Ok(self.inner.jobs.begin("salvage", name, "chunks", begin))
        })
    }

    fn cancel_salvage<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            if self.node().await?.volumes.cancel_salvage(name) {
                return Ok(());
            }
            let message = format!(
                "volume '{name}' is not being salvaged: `rekindle salvage queue` shows those that are"
            );
            Err(ApiError::new(Kind::NotFound, message))
        })
    }

    fn salvage_history<'a>(&'a self, name: Option<&'a str>) -> Answer<'a, Vec<SalvageAccount>> {
        Box::pin(async move {
            let volumes = self.node().await?.volumes.clone();
            let found = match name {
                Some(name) => volumes.salvage_history(name).await,
                None => volumes.salvage_histories().await,
            };
            let found = found.map_err(|error| refused(&error))?;
            Ok(found.into_iter().map(work::salvage_account).collect())
        })
    }

    fn log_usage(&self) -> Answer<'_, LogUsage> {
        Box::pin(async move {
            let usage = self.node().await?.log.usage();
            Ok(LogUsage {
                flash_bytes: usage.flash_bytes,
                flash_bytes_max: usage.flash_bytes_max,
                segments: usage.segments,
                uncommitted_bytes: usage.uncommitted_bytes,
                commits: usage.commits,
                appended_bytes: usage.appended_bytes,
            })
        })
    }

    fn store(&self) -> Answer<'_, StoreInfo> {
        Box::pin(async move {
            let node = self.node().await?;
            let reached = self.inner.env.timeout(REACH_TIME, reach(node.clone())).await;
            Ok(StoreInfo {
                id: node.identity.store.to_string(),
                url: node.store.describe(),
                format: 1,
                reachable: reached.unwrap_or(false),
                detail: work::store_counters(&node),
            })
        })
    }

    fn warm(&self) -> Answer<'_, WarmStatus> {
        Box::pin(async move { Ok(warm_memory::status(&*self.node().await?).await) })
    }

    fn boot(&self) -> Answer<'_, BootReport> {
        Box::pin(async move { Ok(boot::report(&*self.node().await?).await) })
    }

    fn drop_warm_frames(&self) -> Answer<'_, WarmDropped> {
        Box::pin(async move { warm_memory::drop_frames(&*self.node().await?).await })
    }

    fn sweep(&self) -> Answer<'_, SweepStatus> {
        Box::pin(async move {
            let node = self.node().await?;
            Ok(work::sweep_status(&node, &self.inner.jobs))
        })
    }

    fn start_sweep(&self, request: StartSweep) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            let subject =
                if request.dry_run { "the store (nothing is removed)" } else { "the store" };
            Ok(self
                .inner
                .jobs
                .begin("sweep", subject, "packs", |progress| work::sweep(node, request, progress)))
        })
    }

    fn start_attach(&self, request: StartAttach) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            let begin = |progress| work::attach(node, request, progress);
            Ok(self.inner.jobs.begin("attach", "volumes", "volumes", begin))
        })
    }

    fn start_verify(&self, request: StartVerify) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            if let Some(name) = &request.volume {
                node.volumes.show(name).await.map_err(|error| refused(&error))?;
            }
            let subject = request.volume.clone().unwrap_or_else(|| "all volumes".to_owned());
            Ok(self.inner.jobs.begin("verify", &subject, "chunks", |progress| {
                work::verify(node, request, progress)
            }))
        })
    }

    fn jobs(&self) -> Answer<'_, Vec<Job>> {
        Box::pin(async move { Ok(self.inner.jobs.all()) })
    }

    fn job<'a>(&'a self, id: &'a str) -> Answer<'a, Job> {
        Box::pin(async move {
            let missing = || {
                let message = format!(
                    "there is no job {id}: only the last ones are remembered, and none of before a restart"
                );
                ApiError::new(Kind::NotFound, message)
            };
            self.inner.jobs.find(id).ok_or_else(missing)
        })
    }

    fn shutdown(&self, request: Shutdown) -> Answer<'_, Stopping> {
        self.inner.shutdown.send_if_modified(|asked| {
            let before = *asked;
            // A quick stop stays one.
            *asked = Some(request.drain && before != Some(false));
            *asked != before
        });
        Api::stopping(self)
    }

    fn stopping(&self) -> Answer<'_, Stopping> {
        Box::pin(async move {
            let mut phase = self.inner.phase.subscribe();
            let stopping = self.inner.shutdown.borrow().is_some();
            if stopping || *phase.borrow() > Phase::Serving {
                let ended = phase.wait_for(|phase| *phase == Phase::Ended);
                // Not ended yet is an answer as well.
                let _ = self.inner.env.timeout(limits::NEWS_WAIT, ended).await.is_ok();
            }
            let mut progress = self.progress();
            if stopping && progress.phase == Phase::Serving.word() {
                progress.phase = Phase::Sessions.word().to_owned();
            }
            if progress.phase == Phase::Ended.word() {
                self.inner.end_told.send_replace(true);
            }
            Ok(progress)
        })
    }
}

/// Whether the store answers. On the background threads, whoever asks.
async fn reach(node: Arc<Node>) -> bool {
    let writer = node.writer.clone();
    node.env
        .run("reach", async move {
            datastore::identity::find(&writer).await.is_ok_and(|found| found.is_some())
        })
        .await
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn event(change: volume::machine::Change) -> Event {
    Event {
        time: change.at,
        from: change.from.as_str().to_owned(),
        to: change.to.as_str().to_owned(),
        event: change.event.as_str().to_owned(),
        cause: change.cause,
        duration_ms: change.duration_us / 1000,
    }
}

fn detail(node: &Node) -> serde_json::Value {
    let phases: serde_json::Map<_, _> =
        node.phases.iter().map(|(name, time)| ((*name).to_owned(), json!(time))).collect();
    json!({
        "pid": std::process::id(),
        "start_us": phases,
        "warm": node.warm.path.as_ref().map(|path| path.display().to_string()),
        "states": node.volumes.states(),
        "transitions": node.volumes.transitions(),
        "stuck": node.volumes.stuck(),
        "collector": node.volumes.collected(),
        "log_segments_found": node.opened.segments,
        "log_segments_warm": node.opened.segments_warm,
        "log_damage": node.opened.damage,
        "content": work::content_counters(node),
    })
}

impl Exports for Service {
    type Device = block::Device;

    fn list(&self) -> BoxFuture<'_, Result<Vec<Export>, ExportError>> {
        Box::pin(async move {
            let infos = self.node().await.map_err(unavailable)?.volumes.list().await?;
            let exports = infos.into_iter().map(|info| Export {
                description: format!("{} volume, {}", info.vault.kind, info.state.as_str()),
                name: info.vault.name,
                size: info.vault.size,
            });
            Ok(exports.collect())
        })
    }

    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<block::Device, ExportError>> {
        Box::pin(async move {
            let node = self.node().await.map_err(unavailable)?;
            Ok(block::Device::new(node.volumes.attach(name).await?))
        })
    }
}

fn unavailable(error: ApiError) -> ExportError {
    ExportError { kind: error.kind, message: error.message }
}

/// The job of a kind that ended last.
pub fn last_done(jobs: &Jobs, kind: &str) -> Option<Job> {
    jobs.latest(kind, JobState::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_what_nbd_clients_write() {
        let unix = Address::Unix("/srv/nbd.sock".into());
        assert_eq!(nbd_uri(&unix, "vm1"), "nbd+unix:///vm1?socket=/srv/nbd.sock");
        let tcp = Address::Tcp("127.0.0.1:10809".parse().expect("an address"));
        assert_eq!(nbd_uri(&tcp, "mail store"), "nbd://127.0.0.1:10809/mail%20store");
    }

    #[test]
    fn before_there_is_a_node_health_and_status_answer() {
        let (env, runtime) = env::real::env().expect("an environment");
        let service = Service::new(env, Vec::new(), Vec::new(), Connections::new("nbd", 1));
        assert!(!service.health().ok);
        runtime.block_on(async {
            let status = service.status().await.expect("an answer");
            assert_eq!(status.state, "starting");
            assert!(service.job("1").await.is_err());
            service.stopping();
            assert!(service.volumes().await.is_err());
        });
    }
}
