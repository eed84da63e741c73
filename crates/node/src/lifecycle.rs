//! The life of the process: start, serve, stop.
//!
//! Start: the API answers first, then the node is put together, then NBD and NFS are accepted.
//! Stop: sessions end after the requests in hand, volumes go out of service, the destager ends
//! after the batch in hand, the log is closed, and the API ends last. A stop never waits for the
//! store unless it drains: unfinished changes stay in the log.

use crate::assemble::Node;
use crate::config::Config;
use crate::service::{Phase, Service};
use crate::{Error, limits};
use rekindle_base::NodeId;
use rekindle_env::{Acceptor, Env, TaskHandle};
use rekindle_front::conn::{CONNECTIONS_DEFAULT, Connections};
use rekindle_front::http::App;
use rekindle_volume::StopProgress;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listening sockets.
#[derive(Default)]
pub struct Sockets {
    pub nbd: Vec<Box<dyn Acceptor>>,
    pub nfs: Vec<Box<dyn Acceptor>>,
    pub http: Vec<Box<dyn Acceptor>>,
}

/// The facts to report when the node serves.
#[derive(Debug, Clone)]
pub struct Ready {
    pub node: NodeId,
    pub store: String,
    /// Time from the call of [`run`] to the moment of serving.
    pub start_ms: u64,
}

/// Signals that ask for the end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The protocols that have been started.
struct Fronts {
    env: Env,
    service: Service,
    nbd: Connections,
    http: Connections,
}

/// Serves until told to stop. The caller is inside the runtime of `env`. Calls `ready` once, when
/// clients are served, and `progress` repeatedly during a long stop.
pub async fn run(
    env: Env,
    config: Config,
    sockets: Sockets,
    ready: impl FnOnce(&Ready),
    progress: impl Fn(&StopProgress) + Send + 'static,
) -> Result<(), Error> {
    let (began, watch) = (env.now(), env.watch());
    let mut signals = Signals::new()?;
    env.boot_phase("signals", None, watch);
    let watch = env.watch();
    crate::metrics::install();
    env.boot_phase("metrics", None, watch);
    let watch = env.watch();
    let places = |acceptors: &[Box<dyn Acceptor>]| {
        acceptors.iter().map(|acceptor| acceptor.address()).collect()
    };
    let requests = usize::try_from(config.requests_bytes).unwrap_or(usize::MAX);
    let nbd = Connections::with_budget("nbd", limits::NBD_CONNECTIONS, requests);
    let service =
        Service::new(env.clone(), places(&sockets.nbd), places(&sockets.http), nbd.clone());
    let fronts = Fronts {
        env: env.clone(),
        service: service.clone(),
        nbd,
        http: Connections::new("http", CONNECTIONS_DEFAULT),
    };
    fronts.start_http(sockets.http);
    env.boot_phase("api", None, watch);
    let (restarted, nfs) = (config.restarted, config.nfs.clone());
    service.starts_after(config.last_failure.as_deref());
    let node = tokio::select! {
        node = assemble(&env, config, &service) => match node {
            Ok(node) => Arc::new(node),
            Err(error @ Error::Copied(_)) if restarted => {
                return stay_fenced(&fronts, &mut signals, error.to_string()).await;
            }
            Err(error) => return Err(error),
        },
        // Nothing has been acknowledged yet.
        () = signals.next() => return Ok(()),
        _ = service.shutdown_asked() => {
            end_before_service(&fronts).await;
            return Ok(());
        }
    };
    let watch = env.watch();
    // Before a client is answered: one that comes early for a guest's volume waits for the guest.
    crate::service::cluster::begin(&service, &node).await?;
    service.serve(node.clone());
    fronts.start_nbd(sockets.nbd);
    service.start_nfs(sockets.nfs, nfs);
    env.boot_phase("listening", None, watch);
    let start_ms = u64::try_from((env.now() - began).as_millis()).unwrap_or(u64::MAX);
    ready(&Ready { node: node.id, store: node.store.describe(), start_ms });
    tell_systemd(&[NotifyState::Ready]);
    watch_over(&env);
    crate::work::in_background(&node, &service);
    tracing::info!(start_ms, node = %node.id, incarnation = node.incarnation.0, "serving");
    until_end(&service, &fronts.http, node, async || signals.next().await, progress).await
}

/// Waits for the end of a node that serves, and stops the node in order. The end is a signal, a
/// request, or another copy of the folder that has replaced the node. A node whose flash has failed
/// ends at once.
pub async fn until_end(
    service: &Service,
    http: &Connections,
    node: Arc<Node>,
    mut signal: impl AsyncFnMut(),
    progress: impl Fn(&StopProgress) + Send + 'static,
) -> Result<(), Error> {
    let mut fenced = None;
    let drain = tokio::select! {
        biased;
        () = signal() => false,
        drain = service.shutdown_asked() => drain,
        error = failed_flash(service, &node) => return Err(Error::Flash(error)),
        reason = crate::fencing::replaced(&node) => {
            service.fence(&reason);
            fence(service, &node).await;
            if let Some(host) = crate::fencing::successor(&node).await {
                // The host goes on as a new node.
                end_before_service_of(service, http, &node.env).await;
                return Err(Error::TakenOver { node: node.id, host });
            }
            fenced = Some(reason);
            tokio::select! {
                biased;
                () = signal() => {}
                _ = service.shutdown_asked() => {}
            }
            false
        }
    };
    tell_systemd(&[NotifyState::Stopping]);
    service.stopping();
    service.enter(Phase::Sessions);
    let telling = tell_progress(&node.env, service, progress);
    let volumes = node.volumes.clone();
    let mut draining = drain;
    let mut stopped = std::pin::pin!(stop(service, http, node, drain));
    let outcome = loop {
        tokio::select! {
            biased;
            stopped = &mut stopped => break stopped,
            () = service.drain_aborted(), if draining => {
                draining = false;
                volumes.abort_drain();
            }
            () = signal() => {
                if draining {
                    tracing::warn!("draining no longer: what is not in the store yet stays in the log");
                    service.abort_drain();
                    continue;
                }
                tracing::warn!("stopping at once: what was acknowledged is in the log");
                break Ok(());
            }
        }
    };
    telling.abort();
    let outcome = outcome.map_err(|error| Error::Unclean(Box::new(error)));
    match fenced {
        Some(reason) => outcome.and(Err(Error::Fenced(reason))),
        None => outcome,
    }
}

/// Waits until a log that has copies on other nodes has failed. Its holders have what was
/// acknowledged, so the node does not linger: the next process opens the log anew, or while that
/// fails, a holder takes the node over. A log without copies stays: its node still serves reads.
async fn failed_flash(service: &Service, node: &Arc<Node>) -> rekindle_log::Error {
    loop {
        node.env.sleep(limits::FLASH_LOOK_INTERVAL).await;
        for node in [service.guests().serving(), vec![node.clone()]].concat() {
            if let Some(error) = node.log.failure()
                && node.log.progress().copies.required > 0
            {
                tracing::error!(node = %node.id, %error, "the flash has failed");
                return error;
            }
        }
    }
}

/// Keeps a restarted worker alive that has found a newer copy of the folder: clients wait at the
/// sockets, and requests are answered with the reason. It serves no volume and retries nothing
/// until an operator ends it.
async fn stay_fenced(fronts: &Fronts, signals: &mut Signals, reason: String) -> Result<(), Error> {
    tracing::error!(%reason, "fenced");
    fronts.service.fence(&reason);
    tokio::select! {
        () = signals.next() => {}
        _ = fronts.service.shutdown_asked() => {}
    }
    end_before_service(fronts).await;
    Err(Error::Fenced(reason))
}

/// Ends a node that serves no clients.
async fn end_before_service(fronts: &Fronts) {
    end_before_service_of(&fronts.service, &fronts.http, &fronts.env).await;
}

async fn end_before_service_of(service: &Service, http: &Connections, env: &Env) {
    service.stopping();
    service.enter(Phase::Ended);
    // A client that follows the stop may be between two requests.
    let _ = env.timeout(limits::FOLLOW_WAIT, service.end_told()).await.is_ok();
    http.stop(env, limits::HTTP_WAIT).await;
}

/// Puts the node together. After the death of a worker, waits for a store that does not answer:
/// another worker would find the same, and this one must promise nothing before its record names
/// it. At a first start the user reads the error instead.
async fn assemble(env: &Env, config: Config, service: &Service) -> Result<Node, Error> {
    loop {
        let reason = match Node::assemble(env, config.clone()).await {
            Err(error @ Error::Store { .. }) if config.restarted && error.kind().is_retryable() => {
                error.to_string()
            }
            assembled => return assembled,
        };
        if service.waits_to_start(&reason) {
            tracing::warn!("cannot serve now, and tries again: {reason}");
        }
        env.sleep(limits::START_AGAIN).await;
    }
}

/// Reports the progress of a long stop.
fn tell_progress(
    env: &Env,
    service: &Service,
    tell: impl Fn(&StopProgress) + Send + 'static,
) -> TaskHandle {
    let (sleeper, service) = (env.clone(), service.clone());
    env.spawn("stop-progress", async move {
        let mut last = StopProgress::default();
        loop {
            sleeper.sleep(limits::PROGRESS_INTERVAL).await;
            let progress = service.progress();
            if progress != last {
                tell(&progress);
            }
            last = progress;
        }
    })
}

impl Fronts {
    fn start_http(&self, acceptors: Vec<Box<dyn Acceptor>>) {
        let metrics = self.service.clone();
        let app = App {
            api: Arc::new(self.service.clone()),
            metrics: Arc::new(move || metrics.metrics()),
        };
        for acceptor in acceptors {
            let serve = rekindle_front::http::serve(
                self.env.clone(),
                acceptor,
                app.clone(),
                self.http.clone(),
            );
            self.env.spawn_foreground("http-accept", serve);
        }
    }

    fn start_nbd(&self, acceptors: Vec<Box<dyn Acceptor>>) {
        let exports = Arc::new(self.service.clone());
        for acceptor in acceptors {
            let serve = rekindle_front::nbd::serve(
                self.env.clone(),
                acceptor,
                exports.clone(),
                self.nbd.clone(),
            );
            self.env.spawn_foreground("nbd-accept", serve);
        }
    }
}

/// Fences a node that another copy of the folder has replaced: disconnects its clients and writes
/// nothing more to the store. Changes that only memory has go to flash, in case an operator goes on
/// with this copy.
async fn fence(service: &Service, node: &Arc<Node>) {
    node.sweeper.stop();
    service.stop_sessions(&node.env, limits::FENCED_SESSION_WAIT).await;
    for node in [service.guests().serving(), vec![node.clone()]].concat() {
        node.staging.stop().await;
        if let Err(error) = node.log.close().await {
            tracing::warn!(%error, "the log could not be closed");
        }
    }
}

/// Stops the node in order, within bounds unless it drains.
async fn stop(
    service: &Service,
    http: &Connections,
    node: Arc<Node>,
    drain: bool,
) -> Result<(), Error> {
    let env = node.env.clone();
    node.sweeper.stop();
    service.stop_sessions(&env, limits::SESSION_WAIT).await;
    let rest = async {
        let guests = service.guests().serving();
        service.enter(Phase::Volumes);
        if drain {
            // What the last life has left is brought into service a moment after a start. Before
            // the leases end.
            for node in guests.iter().chain([&node]) {
                crate::work::bring_all(node).await;
            }
        }
        for node in guests.iter().chain([&node]) {
            crate::service::cluster::rest(node).await;
        }
        let mut drained = node.volumes.stop(drain).await;
        for guest in &guests {
            drained = drained.and(guest.volumes.stop(drain).await);
        }
        for node in guests.iter().chain([&node]) {
            service.keeps(crate::work::left_in_log(node).await);
        }
        service.enter(Phase::Log);
        // Even after a failed drain: the logs must be closed in order.
        for node in guests.iter().chain([&node]) {
            node.staging.stop().await;
            node.log.close().await?;
            if drain && drained.is_ok() {
                node.note_drained().await;
            }
            crate::work::leave(node).await;
        }
        Ok::<(), Error>(drained?)
    };
    let limit = async {
        if drain {
            service.drain_aborted().await;
        }
        env.sleep(limits::STOP_WAIT).await;
    };
    let ended = tokio::select! {
        biased;
        ended = rest => Some(ended),
        () = limit => None,
    };
    service.enter(Phase::Ended);
    // A client that follows the stop may be between two requests.
    let _ = env.timeout(limits::FOLLOW_WAIT, service.end_told()).await.is_ok();
    // Last, so that clients can ask for the state of the stop.
    http.stop(&env, limits::HTTP_WAIT).await;
    service.release_node();
    match ended {
        Some(ended) => ended,
        None => {
            tracing::warn!(
                "the stop took too long and was cut short: what was acknowledged is in the log"
            );
            Ok(())
        }
    }
}

/// Tells systemd the states, if systemd started this process and listens.
fn tell_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}

/// Tells systemd's watchdog, if there is one, that the background threads run.
fn watch_over(env: &Env) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let interval = (limit / 3).max(Duration::from_millis(100));
    let sleeper = env.clone();
    env.spawn("watchdog", async move {
        loop {
            tell_systemd(&[NotifyState::Watchdog]);
            sleeper.sleep(interval).await;
        }
    });
}
