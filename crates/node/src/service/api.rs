//! The HTTP API.

use super::cluster;
use super::forward::host_of;
use super::moves;
use super::words::{event, milliseconds, spec, volume};
use super::{Phase, Service, Stage};
use crate::assemble::Node;
use crate::guests::Guest as State;
use crate::{boot, health, limits, space, warm_status, work};
use rekindle_base::Kind;
use rekindle_datastore::Room;
use rekindle_front::http::Leaving;
use rekindle_front::http::api::{
    AdoptFolder, Answer, Api, ApiError, BootReport, Cluster, CreateVolume, Debug, DismissNode,
    Dismissed, DrainNode, Event, Guest, Health, Job, LogUsage, MoveVolume, Recovery, Shutdown,
    StartAttach, StartSalvage, StartSpace, StartVerify, Status, StoreInfo, SweepStatus, Volume,
    WarmDropped, WarmStatus,
};
use rekindle_volume::{Account, Salvage, StopProgress};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Time for the store to prove in a status that it is reachable.
const REACH_TIME: Duration = Duration::from_secs(2);
/// Time after which a request that waits for the store looks whether the store is known to be away.
const AWAY_LOOK: Duration = Duration::from_secs(1);
/// Time for the store to answer before a request is refused because the store is away. A store that
/// answers after two seconds is slow, and works.
const AWAY_TIME: Duration = Duration::from_secs(5);

impl Service {
    /// Puts a volume into the words of the API. While the store does not answer, the end of the
    /// backlog cannot be estimated.
    pub(super) fn words(&self, info: rekindle_volume::Info) -> Volume {
        let guest = |node: &Arc<Node>| Some(node.id) == info.vault.owner;
        let guest = self.guests().serving().into_iter().find(guest);
        let here = self.present();
        let member = here.as_ref().and_then(|node| Some(&node.membership()?.member));
        let host = member.zip(info.vault.owner).map(|(member, owner)| host_of(member, owner));
        let downgrade = guest.or(here.clone()).and_then(|node| node.staging.downgrade(&info.vault));
        let nfs = self.inner.nfs_places.get().map_or(&[][..], Vec::as_slice);
        let mut words = volume(info, &self.inner.nbd, nfs);
        words.owner_host = host;
        words.downgrade = downgrade.map(str::to_owned);
        if let (true, Some(backlog)) = (self.inner.looks.store_is_away(), &mut words.backlog) {
            backlog.eta_ms = None;
        }
        words
    }

    /// Returns the result of `work` as long as the store answers. If the store is away, the caller
    /// gets an error within a few seconds, or soon if that is known. Requests that were begun go
    /// on.
    pub(super) async fn while_it_answers<T>(
        &self,
        node: &Node,
        work: impl Future<Output = T>,
    ) -> Result<T, ApiError> {
        let mut work = std::pin::pin!(work);
        let env = &self.inner.env;
        if let Ok(done) = env.timeout(AWAY_LOOK, &mut work).await {
            return Ok(done);
        }
        self.inner.looks.asked(env);
        if let Some((since, error)) = self.inner.looks.away(env) {
            let (store, since) = (node.store.describe(), since.as_secs());
            let message = format!("the store {store} has not answered for {since} s: {error}");
            return Err(ApiError::new(Kind::Unavailable, message));
        }
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = env.sleep(AWAY_TIME) => self.reaches(node).await?,
            }
        }
    }

    /// Returns the node if its store answers now. For requests that write to the store.
    pub(super) async fn reachable(&self) -> Result<Arc<Node>, ApiError> {
        let node = self.node().await?;
        self.reaches(&node).await?;
        Ok(node)
    }

    /// Returns the node that a volume belongs to, for work that only this node can do. It runs
    /// here.
    async fn owner_of(&self, volume: &str) -> Result<Arc<Node>, ApiError> {
        let node = self.node_of(volume).await?;
        let Some(membership) = node.membership() else { return Ok(node) };
        let shown = self.while_it_answers(&node, node.volumes.show(volume)).await?;
        // A volume that cannot be shown is this node's: its calls return the error.
        match shown.ok().and_then(|info| info.vault.owner) {
            Some(owner) if owner != node.id => {
                Err(cluster::at_another_host(&membership.member, volume, owner).await)
            }
            _ => Ok(node),
        }
    }

    /// Returns the node that a volume belongs to, if its store answers now.
    pub(super) async fn reachable_of(&self, volume: &str) -> Result<Arc<Node>, ApiError> {
        let node = self.owner_of(volume).await?;
        self.reaches(&node).await?;
        Ok(node)
    }

    /// Fails if the store does not answer now.
    async fn reaches(&self, node: &Node) -> Result<(), ApiError> {
        health::probe(node, AWAY_TIME).await.map_err(|reason| {
            let message = format!("the store {} does not answer: {reason}", node.store.describe());
            ApiError::new(Kind::Unavailable, message)
        })
    }

    /// Lists the volumes in service, those with the largest backlog first. Asks the store for
    /// nothing.
    async fn in_service(&self) -> Vec<Volume> {
        let of = |node: &Arc<Node>| -> Vec<_> {
            node.staging.volumes().into_iter().map(|staged| (node.clone(), staged)).collect()
        };
        let mut owing: Vec<_> = self.nodes().iter().flat_map(of).collect();
        owing.sort_by_key(|(_, staged)| std::cmp::Reverse(staged.backlog().bytes));
        owing.truncate(limits::VOLUMES_IN_STATUS);
        let mut volumes = Vec::new();
        for (node, staged) in owing {
            let name = staged.vault().name;
            // The timeout is for a volume that just leaves service: `show` asks the store for it.
            if let Ok(Ok(info)) = self.inner.env.timeout(REACH_TIME, node.volumes.show(&name)).await
            {
                volumes.push(self.words(info));
            }
        }
        volumes
    }
}

impl Service {
    /// Returns the health of a guest.
    fn health_of(&self, guest: State) -> Health {
        match guest {
            State::Starting(None) => health::away("starting", "it is starting"),
            State::Starting(Some(reason)) => health::away("starting", &reason),
            State::Serving(node) => {
                health::judge(&health::facts(&node, &self.inner.looks, &self.inner.jobs))
            }
            State::Replaced(reason) => health::away("fenced", &reason),
        }
    }
}

impl Api for Service {
    fn health(&self) -> Health {
        let looks = &self.inner.looks;
        looks.asked(&self.inner.env);
        match (self.stage(), self.present()) {
            (Stage::Fenced, _) => health::away("fenced", &self.inner.replaced.lock()),
            (Stage::Stopping, _) => health::away("stopping", "the daemon is stopping"),
            (Stage::Starting, _) | (_, None) => health::away("starting", &self.start_told()),
            (Stage::Serving, Some(node)) => {
                let own = health::judge(&health::facts(&node, looks, &self.inner.jobs));
                let guests = self.guests().all().into_iter();
                health::with_guests(own, guests.map(|(id, guest)| (id, self.health_of(guest))))
            }
        }
    }

    fn status(&self) -> Answer<'_, Status> {
        Box::pin(async move {
            // A variable of its own: as part of the expression, the guard would live until its end,
            // and health takes the same lock.
            let stage = self.stage();
            if let (Stage::Serving, Some(node)) = (stage, self.present()) {
                self.inner.looks.look_afresh(&node).await;
            }
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
            let nodes = self.nodes();
            let in_service: Vec<_> = nodes.iter().flat_map(|node| node.staging.volumes()).collect();
            status.node = node.id.to_string();
            status.incarnation = node.incarnation.0;
            status.store = node.store.describe();
            status.volumes_attached = in_service.len() as u64;
            status.clients = self.inner.sessions.live() as u64;
            status.memory = space::memory(&node, &self.inner.sessions);
            let owed = in_service.iter();
            status.backlog_bytes =
                owed.map(|staged| health::acknowledged(staged, &staged.backlog())).sum();
            status.detail = detail(&node);
            if stage == Stage::Stopping {
                // A volume that leaves service is looked up in the store, so none is listed.
                status.stopping = Some(self.progress());
            } else {
                status.detail["volumes"] = json!(self.in_service().await);
            }
            Ok(status)
        })
    }

    fn volumes(&self) -> Answer<'_, Vec<Volume>> {
        Box::pin(async move {
            let node = self.node().await?;
            let listed = self.while_it_answers(&node, node.volumes.glance()).await;
            let infos = listed.map_err(|error| unindexed(&node, error))?;
            let mut volumes: Vec<Volume> =
                infos?.into_iter().map(|info| self.words(info)).collect();
            for guest in self.guests().serving() {
                let owner = Some(guest.id.to_string());
                for volume in volumes.iter_mut().filter(|volume| volume.owner == owner) {
                    // One that was removed meanwhile stays as it was listed.
                    if let Ok(info) = guest.volumes.show(&volume.name).await {
                        *volume = self.words(info);
                    }
                }
            }
            Ok(volumes)
        })
    }

    fn create_volume(&self, request: CreateVolume) -> Answer<'_, Volume> {
        Box::pin(async move {
            // First, so that no volume is made after its caller was told that the store is away.
            let node = self.reachable().await?;
            let made = node.volumes.create(spec(request, node.volumes.kinds())).await?;
            Ok(self.words(made))
        })
    }

    fn volume<'a>(&'a self, name: &'a str) -> Answer<'a, Volume> {
        Box::pin(async move {
            let node = self.node_of(name).await?;
            Ok(self.words(self.while_it_answers(&node, node.volumes.show(name)).await??))
        })
    }

    fn remove_volume<'a>(&'a self, name: &'a str, force: bool, now: bool) -> Answer<'a, ()> {
        Box::pin(async move {
            let node = self.reachable_of(name).await?;
            let volumes = &node.volumes;
            let removed = match now {
                true => volumes.remove(name, force).await,
                false => volumes.trash(name, force).await,
            };
            removed?;
            self.inner.meters.forget(name);
            Ok(())
        })
    }

    fn mount_volume<'a>(
        &'a self,
        name: &'a str,
        of: Option<String>,
        connection: Leaving,
    ) -> Answer<'a, String> {
        Box::pin(self.serve_mount(name, of, connection))
    }

    fn drain_volume<'a>(&'a self, name: &'a str) -> Answer<'a, Job> {
        Box::pin(async move {
            let node = self.owner_of(name).await?;
            let handle = node.volumes.attach(name).await?;
            Ok(self
                .inner
                .jobs
                .begin("drain", name, "bytes", |progress| work::drain(node, handle, progress)))
        })
    }

    fn move_volume<'a>(&'a self, name: &'a str, request: MoveVolume) -> Answer<'a, Job> {
        Box::pin(async move {
            moves::begin(self, self.reachable_of(name).await?, name, &request.to).await
        })
    }

    fn pin_volume<'a>(&'a self, name: &'a str, pinned: bool) -> Answer<'a, Volume> {
        Box::pin(async move {
            Ok(self.words(self.reachable_of(name).await?.volumes.pin(name, pinned).await?))
        })
    }

    fn debug<'a>(&'a self, what: Debug, prefix: &'a str) -> Answer<'a, serde_json::Value> {
        Box::pin(async move {
            // Also during a stop, when the view is most useful.
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
            let node = self.node_of(name).await?;
            if let Some(changes) = node.volumes.history(name) {
                return Ok(changes.into_iter().map(event).collect());
            }
            // The volume has no history since the start; check that it exists.
            self.while_it_answers(&node, node.volumes.show(name)).await??;
            Ok(Vec::new())
        })
    }

    fn salvages(&self) -> Answer<'_, Vec<Salvage>> {
        Box::pin(async move { Ok(work::salvage_rows(&*self.node().await?)) })
    }

    fn start_salvage<'a>(&'a self, name: &'a str, request: StartSalvage) -> Answer<'a, Job> {
        Box::pin(async move {
            let (node, subject) = (self.owner_of(name).await?, name.to_owned());
            let begin = |progress| work::salvage(node, subject, request.accept_losses, progress);
            Ok(self.inner.jobs.begin("salvage", name, "chunks", begin))
        })
    }

    fn cancel_salvage<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            if self.owner_of(name).await?.volumes.cancel_salvage(name) {
                return Ok(());
            }
            let message = format!(
                "volume '{name}' is not being salvaged: `rekindle salvage queue` shows those that are"
            );
            Err(ApiError::new(Kind::NotFound, message))
        })
    }

    fn salvage_history<'a>(&'a self, name: Option<&'a str>) -> Answer<'a, Vec<Account>> {
        Box::pin(async move {
            let node = match name {
                Some(name) => self.node_of(name).await?,
                None => self.node().await?,
            };
            let find = async {
                match name {
                    Some(name) => node.volumes.salvage_history(name).await,
                    None => node.volumes.salvage_histories().await,
                }
            };
            Ok(self.while_it_answers(&node, find).await??)
        })
    }

    fn log_usage(&self) -> Answer<'_, LogUsage> {
        Box::pin(async move {
            let node = self.node().await?;
            let (usage, files) = (node.log.usage(), space::files(&node).await);
            Ok(LogUsage {
                files_bytes: files.map(|files| files.used + files.kept),
                files_used_bytes: files.map_or(0, |files| files.used),
                files_kept_bytes: files.map_or(0, |files| files.kept),
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
            let reached = health::probe(&node, REACH_TIME).await;
            let room = match reached {
                Ok(()) => health::room(&node, REACH_TIME).await,
                Err(_) => None,
            };
            Ok(StoreInfo {
                id: node.identity.store.to_string(),
                url: node.store.describe(),
                format: 1,
                reachable: reached.is_ok(),
                room_bytes: match room {
                    Some(Room::Bytes(bytes)) => Some(bytes),
                    _ => None,
                },
                unbounded: room == Some(Room::Unbounded),
                detail: work::store_counters(&node),
            })
        })
    }

    fn warm(&self) -> Answer<'_, WarmStatus> {
        Box::pin(async move { Ok(warm_status::status(&*self.node().await?).await) })
    }

    fn boot(&self) -> Answer<'_, BootReport> {
        Box::pin(async move { Ok(boot::report(&*self.node().await?).await) })
    }

    fn drop_warm_frames(&self) -> Answer<'_, WarmDropped> {
        Box::pin(async move { warm_status::drop_frames(&*self.node().await?).await })
    }

    fn sweep(&self) -> Answer<'_, SweepStatus> {
        Box::pin(async move {
            let node = self.node().await?;
            Ok(work::sweep_status(&node, &self.inner.jobs))
        })
    }

    fn start_sweep(&self) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            let work = |progress| work::sweep(node, work::By::User, progress);
            Ok(self.inner.jobs.begin("sweep", "the store", "steps", work))
        })
    }

    fn start_sweep_plan(&self) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            let work = |progress| work::plan_sweep(node, progress);
            Ok(self.inner.jobs.begin("sweep-plan", "the store", "steps", work))
        })
    }

    fn dismiss_node(&self, request: DismissNode) -> Answer<'_, Dismissed> {
        Box::pin(async move {
            let id = request.node.parse().map_err(|_| {
                let message = format!("'{}' is no node's id", request.node);
                ApiError::new(Kind::Invalid, message)
            })?;
            let dismissed = self.node().await?.sweeper.dismiss(id).await;
            let start = dismissed
                .map_err(|error| ApiError::new(error.kind(), format!("node {id}: {error}")))?;
            tracing::warn!(node = %id, %start, "is gone for good, as a user says: no sweep waits for it");
            Ok(Dismissed { node: request.node, start: start.0 })
        })
    }

    fn start_attach(&self, request: StartAttach) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            let begin = |progress| work::attach(node, request, progress);
            Ok(self.inner.jobs.begin("attach", "volumes", "volumes", begin))
        })
    }

    fn cluster(&self) -> Answer<'_, Cluster> {
        Box::pin(async { Ok(cluster::show(self, &self.node().await?).await) })
    }

    fn recoveries(&self) -> Answer<'_, Vec<Recovery>> {
        Box::pin(async {
            // Those of earlier processes are known once there is a node.
            self.node().await?;
            Ok(self.inner.recoveries.all())
        })
    }

    fn init_cluster(&self) -> Answer<'_, Cluster> {
        Box::pin(async { cluster::init(self, &self.reachable().await?).await })
    }

    fn rotate_key(&self) -> Answer<'_, ()> {
        Box::pin(async { cluster::rotate(self, &self.reachable().await?).await })
    }

    fn drain_node<'a>(&'a self, node: &'a str, request: DrainNode) -> Answer<'a, ()> {
        Box::pin(async move { cluster::drain(&self.reachable().await?, node, request.on).await })
    }

    fn take_over<'a>(&'a self, node: &'a str) -> Answer<'a, Guest> {
        Box::pin(async move { cluster::take_over(self, &self.reachable().await?, node).await })
    }

    fn remove_node<'a>(&'a self, node: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { cluster::remove(self, &self.reachable().await?, node).await })
    }

    fn adopt_folder(&self, request: AdoptFolder) -> Answer<'_, Guest> {
        Box::pin(async move {
            let host = self.reachable().await?;
            cluster::adopt(self, &host, request.folder.into()).await
        })
    }

    fn start_space(&self, request: StartSpace) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            if let Some(name) = &request.volume {
                node.volumes.show(name).await?;
            }
            let subject = request.volume.clone().unwrap_or_else(|| "all volumes".to_owned());
            let begin = |progress| work::space(node, request.volume, progress);
            Ok(self.inner.jobs.begin("space", &subject, "chunks", begin))
        })
    }

    fn start_verify(&self, request: StartVerify) -> Answer<'_, Job> {
        Box::pin(async move {
            let node = self.node().await?;
            if let Some(name) = &request.volume {
                node.volumes.show(name).await?;
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

    fn cancel_job<'a>(&'a self, id: &'a str) -> Answer<'a, Job> {
        Box::pin(async move {
            let job = Api::job(self, id).await?;
            if job.state != rekindle_front::http::api::JobState::Running {
                return Ok(job);
            }
            if job.kind == "drain" {
                let message =
                    "a drain cannot be broken off: what was written goes to the store anyway";
                return Err(ApiError::new(Kind::Unsupported, message));
            }
            if job.kind == "move" {
                let message = "a move cannot be broken off: a second one takes the volume back";
                return Err(ApiError::new(Kind::Unsupported, message));
            }
            let node = self.node().await?;
            self.inner.jobs.cancelled(id);
            match job.kind.as_str() {
                // These jobs change things, so each ends by itself after its present step.
                "sweep" => node.sweeper.stop(),
                "salvage" => drop(node.volumes.cancel_salvage(&job.subject)),
                // These jobs only read.
                _ => self.inner.jobs.interrupt(id),
            }
            Api::job(self, id).await
        })
    }

    fn shutdown(&self, request: Shutdown) -> Answer<'_, StopProgress> {
        self.inner.shutdown.send_if_modified(|asked| {
            let before = *asked;
            // A quick stop never becomes a draining one.
            *asked = Some(request.drain && before != Some(false));
            *asked != before
        });
        Api::stopping(self)
    }

    fn stopping(&self) -> Answer<'_, StopProgress> {
        Box::pin(async move {
            let mut phase = self.inner.phase.subscribe();
            let stopping = self.inner.shutdown.borrow().is_some();
            if stopping || *phase.borrow() > Phase::Serving {
                let ended = phase.wait_for(|phase| *phase == Phase::Ended);
                // A stop that has not ended is an answer as well.
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

/// Adds the volumes in service to an error: they are known even while the store does not answer.
fn unindexed(node: &Node, error: ApiError) -> ApiError {
    let mut names: Vec<String> =
        node.staging.volumes().iter().map(|staged| staged.vault().name).collect();
    names.sort();
    let more = names.len().saturating_sub(limits::VOLUMES_IN_STATUS);
    names.truncate(limits::VOLUMES_IN_STATUS);
    let served = match (names.is_empty(), more) {
        (true, _) => "no volume is in service".to_owned(),
        (false, 0) => format!("in service are {}", names.join(", ")),
        (false, more) => format!("in service are {} and {more} more", names.join(", ")),
    };
    ApiError::new(error.kind, format!("{}; {served} (`rekindle status`)", error.message))
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
