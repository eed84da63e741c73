//! The start of guests ([`crate::guests`]), by a user's command and at each start of their host.
//!
//! The host's `node.json` names its guests. A guest that was started elsewhere since serves nothing
//! here any more; `node.json` then forgets it.

use super::Service;
use crate::assemble::Node;
use crate::config::{Config, Scrub, Sweep};
use crate::copies::FOLDER;
use crate::guests::Guest;
use crate::node_file::GuestNote;
use crate::{Error, limits};
use rekindle_base::{Kind, NodeId};
use rekindle_front::http::api::ApiError;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// Starts the guests that `node.json` names, in the background.
pub(crate) async fn start(service: &Service, host: &Arc<Node>) {
    for note in host.home.guests().await {
        service.guests().set(note.node, Guest::Starting(None));
        let keep = keep(service.clone(), Arc::downgrade(host), note, None);
        host.env.spawn("guest", keep);
    }
}

/// Takes a lost node over: it goes on in this process, from copies that take nothing more. Asked
/// again, returns with the same guest.
pub(crate) async fn take_over(
    service: &Service,
    host: &Arc<Node>,
    id: NodeId,
) -> Result<(), ApiError> {
    let guests = service.guests();
    let _one_at_a_time = guests.taking.lock().await;
    if guests.find(id).await?.is_some() {
        return Ok(());
    }
    let note = GuestNote { node: id, permission: host.env.random_u64() };
    // First: a host that dies from here on has the guest at its next start.
    host.home.note_guest(note).await.map_err(words)?;
    guests.set(id, Guest::Starting(None));
    // A task of its own: a client that hangs up breaks nothing off.
    let (tell, told) = oneshot::channel();
    let keep = keep(service.clone(), Arc::downgrade(host), note, Some(tell));
    host.env.spawn("guest", keep);
    told.await.unwrap_or_else(|_| Err(ApiError::new(Kind::Unavailable, "the daemon is stopping")))
}

/// Starts a guest, again and again until it serves, and then serves it. With `told`, a user waits
/// for the first try, and if that fails it is the only one.
async fn keep(
    service: Service,
    host: Weak<Node>,
    note: GuestNote,
    told: Option<oneshot::Sender<Result<(), ApiError>>>,
) {
    let mut told = told;
    let guest = loop {
        let Some(host) = host.upgrade() else { return };
        let error = match Node::assemble(&host.env, config(&host.config, note)).await {
            Ok(guest) => break Arc::new(guest),
            Err(error) => error,
        };
        tracing::warn!(node = %note.node, %error, "a node that was taken over cannot start now");
        if let Some(told) = told.take() {
            let forgotten = host.home.forget_guest(note.node).await;
            service.guests().remove(note.node);
            // A client that has gone needs no answer.
            let _ = told.send(Err(words(forgotten.err().unwrap_or(error)))).is_err();
            return;
        }
        service.guests().set(note.node, Guest::Starting(Some(error.to_string())));
        let env = host.env.clone();
        drop(host);
        env.sleep(limits::START_AGAIN).await;
    };
    service.guests().set(note.node, Guest::Serving(guest.clone()));
    if let Some(told) = told {
        let _ = told.send(Ok(())).is_err();
    }
    serve(&service, &host, guest).await;
}

fn words(error: Error) -> ApiError {
    ApiError::new(error.kind(), error.to_string())
}

/// Serves a guest until another start of it takes its place.
async fn serve(service: &Service, host: &Weak<Node>, guest: Arc<Node>) {
    let id = guest.id;
    tracing::info!(node = %id, incarnation = guest.incarnation.0, "serving a node that was taken over");
    crate::work::in_background(&guest, service);
    let reason = crate::fencing::replaced(&guest).await;
    tracing::error!(node = %id, %reason, "a guest was replaced");
    service.guests().set(id, Guest::Replaced(reason));
    let forgotten = match host.upgrade() {
        Some(host) => host.home.forget_guest(id).await,
        None => Ok(()),
    };
    if let Err(error) = forgotten {
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
}

/// The folder of a guest, which is that of its copies.
pub(crate) fn folder(host: &Config, id: NodeId) -> PathBuf {
    host.dir.join(FOLDER).join(id.to_string())
}

/// Makes the settings of a guest: those of its host, with a part of its memory. Sweeps and scrubs
/// are the host's.
fn config(host: &Config, note: GuestNote) -> Config {
    let part = |bytes: u64| bytes / limits::GUEST_PART;
    Config {
        dir: folder(host, note.node),
        take_identity: Some(note.permission),
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
        copy_to: Vec::new(),
        hold: None,
        last_failure: None,
        ..host.clone()
    }
}
