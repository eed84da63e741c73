//! Translations between the types of the crates below and those of the API.

use rekindle_env::Address;
use rekindle_front::http::api::{ApiError, CreateVolume, Event, Volume};
use rekindle_front::nbd::ExportError;
use rekindle_front::uri;
use rekindle_staging::VaultBody;
use rekindle_volume::Kinds;
use std::time::Duration;

/// Translates a volume, with the URIs by which clients of NBD or NFS at these places reach it.
pub(super) fn volume(info: rekindle_volume::Info, nbd: &[Address], nfs: &[Address]) -> Volume {
    let vault = info.vault;
    let lost_bytes = vault.lost.iter().map(|lost| lost.span).sum();
    let uris = match vault.kind.as_str() {
        rekindle_block::KIND => nbd.iter().map(|place| uri::nbd(place, &vault.name)).collect(),
        rekindle_file::KIND => nfs.iter().map(|place| uri::nfs(place, &vault.name)).collect(),
        _ => Vec::new(),
    };
    Volume {
        id: vault.id.to_string(),
        name: vault.name,
        kind: vault.kind,
        size: vault.size,
        body: vault.body.0.into_iter().collect(),
        policy: vault.policy,
        ack: vault.ack,
        copies: vault.copies,
        on_missing_copy: vault.on_missing_copy,
        downgrade: None,
        state: info.state.as_str().to_owned(),
        reason: info.reason,
        unreadable: info.unreadable,
        lost_bytes,
        owner: vault.owner.map(|owner| owner.to_string()),
        owner_host: None,
        generation: vault.generation.0,
        checkpoint: info.backlog.as_ref().map_or(vault.checkpoint.0, |backlog| backlog.checkpoint),
        created: vault.created,
        pinned: vault.pinned,
        clients: info.clients,
        backlog: info.backlog,
        uris,
    }
}

/// Translates a request for a volume. A request without a kind means the first one.
pub(super) fn spec(request: CreateVolume, kinds: &Kinds) -> rekindle_volume::Spec {
    rekindle_volume::Spec {
        name: request.name,
        kind: request.kind.unwrap_or_else(|| kinds.default_name().to_owned()),
        size: request.size,
        settings: VaultBody(request.settings.into_iter().collect()),
        policy: request.policy,
        ack: request.ack,
        copies: request.copies,
        on_missing_copy: request.on_missing_copy,
    }
}

/// Translates a change of state. The API has states and events as text: an older command line reads
/// those that a newer node has.
pub(super) fn event(change: rekindle_volume::machine::StateChange) -> Event {
    Event {
        time: change.at,
        from: change.from.as_str().to_owned(),
        to: change.to.as_str().to_owned(),
        event: change.event.as_str().to_owned(),
        cause: change.cause,
        duration_ms: change.duration_us / 1000,
    }
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The error of an export while there is no node.
pub(super) fn unavailable(error: ApiError) -> ExportError {
    ExportError { kind: error.kind, message: error.message }
}
