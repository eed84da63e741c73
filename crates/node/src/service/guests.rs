//! Guests ([`crate::guests`]): nodes that go on in this process. A lost node is taken over by the
//! watch of its holder, which has waited for its leases; a user may adopt a folder.
//!
//! A node's record says which process runs it: at its start, a host looks there for its guests.

use super::Service;
use crate::assemble::{Node, Role};
use crate::cluster::{COPIES, Member};
use crate::config::{Config, Scrub, Sweep};
use crate::guests::Guest;
use crate::node_file::{GuestNote, NodeFile};
use crate::recoveries::{RECOVERY_TIME, phase};
use crate::starts::Landed;
use crate::{Error, limits, record};
use rekindle_base::{Kind, NodeId};
use rekindle_cluster::machine::holder::Taken;
use rekindle_cluster::roster::{Entry, Roster};
use rekindle_cluster::watch::Successor;
use rekindle_env::{BoxFuture, Env, Moment};
use rekindle_front::http::api::{ApiError, Recovery};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Takes lost nodes over, as the holder's watch says.
pub(crate) struct Heir {
    pub(crate) service: Service,
    pub(crate) host: Weak<Node>,
}

impl Successor for Heir {
    fn take(&self, node: NodeId, seen: Arc<Entry>, heard: Option<Moment>) -> BoxFuture<'_, Taken> {
        Box::pin(async move {
            let Some(host) = self.host.upgrade() else { return Taken::Open };
            take(&self.service, &host, (node, seen), heard).await
        })
    }
}

async fn take(
    service: &Service,
    host: &Arc<Node>,
    (node, seen): (NodeId, Arc<Entry>),
    heard: Option<Moment>,
) -> Taken {
    service.guests().set(node, Guest::Starting(None));
    let (began, from) = (host.env.now(), seen.name().to_owned());
    let folder = copies_folder(&host.config, node);
    let is_named = |file: &NodeFile| file.node == node;
    let found = match NodeFile::read(&host.env, &folder).await {
        Ok(Some(file)) if is_named(&file) => begin(host, &folder, None, Some(seen)).await,
        Ok(_) => Err(Error::Usage(format!("no copy of the log of node {node} is here"))),
        Err(error) => Err(error),
    };
    let guest = match found {
        Ok(guest) => Arc::new(guest),
        Err(error) => {
            tracing::error!(%node, %error, "a lost node cannot be taken over now");
            service.guests().remove(node);
            let is_lost = matches!(error, Error::Copied(_));
            if !is_lost {
                host.env.sleep(limits::TAKEOVER_RETRY).await;
            }
            return if is_lost { Taken::Lost } else { Taken::Open };
        }
    };
    metrics::counter!("rekindle_cluster_takeovers_total").increment(1);
    let taken_ms = host.env.now().since(began).as_millis();
    tracing::warn!(%node, incarnation = guest.incarnation.0, %taken_ms, "a lost node goes on here");
    let life = guest.incarnation;
    let report = Recovery { from, how: "takeover".to_owned(), ..Recovery::default() };
    report_recovery(service, host, &guest, report, (heard, began));
    serve(service, host, guest);
    Taken::Won(life)
}

/// Notes what the recovery of a node took, before clients come. `heard`: when it was heard last;
/// `began`: when its start here began.
fn report_recovery(
    service: &Service,
    host: &Arc<Node>,
    guest: &Node,
    report: Recovery,
    (heard, began): (Option<Moment>, Moment),
) {
    let (env, origin) = (host.env.clone(), heard.unwrap_or(began));
    let mut phases = Vec::new();
    if heard.is_some() {
        phases.push(phase("silence and leases", origin, origin, began));
    }
    let mut next = began;
    for (name, microseconds) in &guest.phases {
        let ended = next + Duration::from_micros(*microseconds);
        phases.push(phase(name, origin, next, ended));
        next = ended;
    }
    let since_origin = u64::try_from(env.now().since(origin).as_micros()).unwrap_or(u64::MAX);
    let report = Recovery {
        node: guest.id.to_string(),
        at: env.wall_clock().0.saturating_sub(since_origin),
        incarnation: guest.incarnation.0,
        log_bytes: guest.log.usage().flash_bytes,
        phases,
        ..report
    };
    service.inner.recoveries.note(origin, report);
    let (service, dir) = (service.clone(), host.config.dir.clone());
    // Twice: a process that ends soon has its report, too.
    env.clone().spawn("recovery-report", async move {
        service.inner.recoveries.keep(&env, &dir).await;
        env.sleep(RECOVERY_TIME).await;
        service.inner.recoveries.keep(&env, &dir).await;
    });
}

/// Puts a guest together. `permission`: a user's, for a folder that is adopted.
async fn begin(
    host: &Arc<Node>,
    folder: &Path,
    permission: Option<u64>,
    takes: Option<Arc<Entry>>,
) -> Result<Node, Error> {
    let member = host.membership().map(|membership| membership.member.clone());
    let role = Role::Guest { member, host: host.id, takes };
    let config = config(&host.config, folder, permission);
    Node::assemble_as(&host.env, config, host.kit.clone(), role).await
}

/// Starts the guests that this host had before, in the background: those that `node.json` names,
/// and those whose records name this host. A client of one that has begun here waits for it.
pub(crate) async fn start(service: &Service, host: &Arc<Node>) {
    let notes = host.node_file.guests().await;
    let noted: Vec<NodeId> = notes.iter().map(|note| note.node).collect();
    for note in notes {
        service.guests().set(note.node, Guest::Starting(None));
        let keep = keep_adopted(service.clone(), Arc::downgrade(host), note);
        host.env.spawn("guest", keep);
    }
    let Some(membership) = host.membership() else { return };
    for held in membership.member.holder.list().await {
        if !noted.contains(&held.node) {
            if landed(&host.env, &copies_folder(&host.config, held.node), held.node).await.is_some()
            {
                service.guests().set(held.node, Guest::Starting(None));
            }
            let member = membership.member.clone();
            let again = go_on(service.clone(), Arc::downgrade(host), member, held.node);
            host.env.spawn("guest", again);
        }
    }
}

/// Goes on with a node whose last life has begun here, as its record and its folder say. Any other
/// record that names this host is of a takeover that was broken off: the holder's watch sees to it.
async fn go_on(service: Service, host: Weak<Node>, member: Arc<Member>, node: NodeId) {
    // From then on, no lease is granted to any other life, whatever start of it fails here.
    let mut is_claimed = false;
    loop {
        let Some(host) = host.upgrade() else { return };
        let entry = match member.roster.read(node).await {
            Ok(Some(entry)) if member.calls.is_here(entry.host) && !entry.is_removed => entry,
            Ok(_) if is_claimed => {
                service.guests().remove(node);
                return member.holder.give_back(node).await;
            }
            Ok(_) => return service.guests().give_up(node),
            Err(reason) => {
                service.guests().cannot_start(node, reason);
                let env = host.env.clone();
                drop(host);
                env.sleep(limits::START_AGAIN).await;
                continue;
            }
        };
        let folder = copies_folder(&host.config, node);
        if !is_claimed {
            let has_begun = has_begun_here(&host, &folder, node).await;
            if !has_begun || !member.holder.claim(node, entry.incarnation) {
                return service.guests().give_up(node);
            }
            is_claimed = true;
        }
        service.guests().set(node, Guest::Starting(None));
        let lent = member.holder.host(node, entry.incarnation).await;
        let begun = match lent {
            Ok(_) => begin(&host, &folder, None, None).await,
            Err(reason) => Err(Error::Folder { path: folder, reason }),
        };
        match begun {
            Ok(guest) => return serve(&service, &host, Arc::new(guest)),
            Err(error) if error.kind() == Kind::Fenced => {
                tracing::warn!(%node, %error, "a guest was replaced");
                service.guests().remove(node);
                member.holder.give_back(node).await;
                return;
            }
            Err(error) => {
                tracing::warn!(%node, %error, "a node that was taken over cannot start now");
                service.guests().set(node, Guest::Starting(Some(error.to_string())));
            }
        }
        let env = host.env.clone();
        drop(host);
        env.sleep(limits::START_AGAIN).await;
    }
}

/// Whether the life that a node's record names is known to have begun in this folder: then no lease
/// of a holder was granted since.
async fn has_begun_here(host: &Node, folder: &Path, node: NodeId) -> bool {
    let Some(landed) = landed(&host.env, folder, node).await else { return false };
    let found = record::read(&host.writer_of(node)).await;
    found.is_ok_and(|found| found.is_some_and(|held| held.value.nonce == Some(landed.nonce)))
}

/// Reads which start of a node was the last in this folder; `None`: the folder has copies only.
async fn landed(env: &Env, folder: &Path, node: NodeId) -> Option<Landed> {
    let file = NodeFile::read(env, folder).await.ok().flatten();
    let landed = file.filter(|file| file.node == node).and_then(|file| file.starts.landed);
    landed.filter(|landed| landed.nonce != 0)
}

/// Goes on with the node of a folder that a user has found: of a host that is lost, or of one of
/// its holders. Asked again, returns with the same guest.
pub(crate) async fn adopt(
    service: &Service,
    host: &Arc<Node>,
    folder: PathBuf,
) -> Result<NodeId, ApiError> {
    let guests = service.guests();
    let _one_at_a_time = guests.taking.lock().await;
    let file = NodeFile::read(&host.env, &folder).await.map_err(words)?.ok_or_else(|| {
        let text = format!("{}: no node has this folder", folder.display());
        ApiError::new(Kind::Invalid, text)
    })?;
    let id = file.node;
    if id == host.id || guests.find(id).await?.is_some() {
        return Ok(id);
    }
    // Nothing vouches for copies; a folder of its own is vouched for by the starts that it has
    // seen.
    let permission = if file.is_own() { 0 } else { host.env.random_u64() };
    let note = GuestNote { node: id, permission, folder: Some(folder.clone()) };
    let began = host.env.now();
    let guest = Arc::new(begin(host, &folder, permitted(&note), None).await.map_err(words)?);
    host.node_file.note_guest(note).await.map_err(words)?;
    let report = Recovery { how: "adoption".to_owned(), ..Recovery::default() };
    report_recovery(service, host, &guest, report, (None, began));
    serve(service, host, guest);
    Ok(id)
}

/// Starts an adopted guest, again and again until it serves.
async fn keep_adopted(service: Service, host: Weak<Node>, note: GuestNote) {
    loop {
        let Some(host) = host.upgrade() else { return };
        let folder = folder(&host.config, &note);
        match begin(&host, &folder, permitted(&note), None).await {
            Ok(guest) => return serve(&service, &host, Arc::new(guest)),
            Err(error) => {
                tracing::warn!(node = %note.node, %error, "an adopted node cannot start now");
                service.guests().set(note.node, Guest::Starting(Some(error.to_string())));
            }
        }
        let env = host.env.clone();
        drop(host);
        env.sleep(limits::START_AGAIN).await;
    }
}

fn permitted(note: &GuestNote) -> Option<u64> {
    Some(note.permission).filter(|permission| *permission != 0)
}

pub(crate) fn words(error: Error) -> ApiError {
    ApiError::new(error.kind(), error.to_string())
}

/// Serves a guest until another start of it takes its place.
fn serve(service: &Service, host: &Arc<Node>, guest: Arc<Node>) {
    let id = guest.id;
    tracing::info!(node = %id, incarnation = guest.incarnation.0, "serving a guest");
    service.guests().set(id, Guest::Serving(guest.clone()));
    crate::work::in_background(&guest, service);
    let watch = watch(service.clone(), Arc::downgrade(host), guest);
    host.env.spawn("guest-watch", watch);
}

async fn watch(service: Service, host: Weak<Node>, guest: Arc<Node>) {
    let id = guest.id;
    let reason = crate::fencing::replaced(&guest).await;
    tracing::error!(node = %id, %reason, "a guest was replaced");
    service.guests().set(id, Guest::Replaced(reason));
    if let Some(host) = host.upgrade()
        && let Err(error) = host.node_file.forget_guest(id).await
    {
        tracing::warn!(%error, "the replaced guest is still named in node.json");
    }
    // Its fence has ended the sessions of its clients.
    let stopped = guest.volumes.stop(false).await;
    guest.staging.stop().await;
    if let (Err(error), _) | (_, Err(error)) =
        (stopped.map_err(Error::from), guest.log.close().await.map_err(Error::from))
    {
        tracing::warn!(node = %id, %error, "the replaced guest did not stop in order");
    }
    // Its log goes on elsewhere: no start here reads this memory again.
    if let Some(path) = &guest.warm.path
        && let Err(error) = guest.env.memory().unmap(path)
    {
        tracing::warn!(node = %id, %error, "the memory of the replaced guest stays");
    }
    let host = host.upgrade();
    if let Some(membership) = host.as_ref().and_then(|host| host.membership()) {
        membership.member.holder.give_back(id).await;
    }
}

/// The folder of a node's copies.
pub(crate) fn copies_folder(host: &Config, id: NodeId) -> PathBuf {
    host.dir.join(COPIES).join(id.to_string())
}

fn folder(host: &Config, note: &GuestNote) -> PathBuf {
    note.folder.clone().unwrap_or_else(|| copies_folder(host, note.node))
}

/// Makes the settings of a guest: those of its host, with a part of its memory. Sweeps and scrubs
/// are the host's.
fn config(host: &Config, folder: &Path, permission: Option<u64>) -> Config {
    let part = |bytes: u64| bytes / limits::GUEST_PART;
    Config {
        dir: folder.to_owned(),
        take_identity: permission,
        older_copies: false,
        store: Some(host.store_url()),
        store_fault: None,
        flash_bytes: None,
        warm: None,
        warm_bytes: Some(limits::WARM_BYTES_MIN),
        warm_frames_bytes: Some(0),
        cache_bytes: part(host.cache_bytes),
        index_bytes: part(host.index_bytes),
        held_bytes: part(host.held_bytes).max(limits::HELD_BYTES_MIN),
        sweep: Sweep { interval: None, ..host.sweep.clone() },
        scrub: Scrub { interval: None, ..host.scrub.clone() },
        last_failure: None,
        ..host.clone()
    }
}
