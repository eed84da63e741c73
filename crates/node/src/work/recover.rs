//! Recovery of volumes with unfinished changes whose clients do not come back.
//!
//! A client's first request attaches its volume, and so its changes are destaged. A volume without
//! a client would keep its changes on flash for ever, and the room is missing to others. So the
//! node attaches such volumes itself, a moment after the start. It does the same with a volume that
//! goes out of service by itself later on, and whose clients do not come back.

use crate::assemble::Node;
use crate::limits;
use rekindle_base::{Kind, Serial, VolumeId};
use rekindle_datastore::key;
use rekindle_staging::{Error as StagingError, Vault, VaultState};
use rekindle_volume::Error;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause before failed volumes are tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Looks at the volumes that keep room of the log for one look at their vaults.
const VAULTS_EVERY: u32 = 6;

/// Recovers all volumes with unfinished changes, and later those whose changes were parked.
pub async fn recover(node: Weak<Node>) {
    let first =
        |node: Arc<Node>| (node.env.clone(), node.kit.scale.clients_first, node.staging.parking());
    let Some((env, mut pause, parking)) = node.upgrade().map(first) else { return };
    loop {
        env.sleep(pause).await;
        let Some(node) = node.upgrade() else { return };
        match look(&node).await {
            (_, false) => return,
            (0, true) => {
                if let Err(error) = node.volumes.settle_losses().await {
                    tracing::warn!(%error, "it is not known whether every volume goes on without what the log has lost");
                }
                break;
            }
            _ => pause = AGAIN,
        }
    }
    let mut looks = 0_u32;
    loop {
        let has_pinned = |node: Arc<Node>| !node.pinned.is_empty();
        if node.upgrade().is_some_and(has_pinned) {
            if env.timeout(AGAIN, parking.notified()).await.is_err() {
                let Some(node) = node.upgrade() else { return };
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(VAULTS_EVERY) {
                    let_go_of_returned(&node).await;
                }
                look_at_pinned(&node).await;
                continue;
            }
        } else {
            parking.notified().await;
        }
        // Clients come first.
        env.sleep(AGAIN).await;
        let Some(node) = node.upgrade() else { return };
        if look(&node).await.0 > 0 {
            parking.notify_one();
        }
    }
}

/// Brings all volumes with unfinished changes into service, as far as they can be: the node is to
/// stop when they are drained.
pub async fn bring_all(node: &Arc<Node>) {
    look(node).await;
}

/// Counts the volumes that were not in service in this life and of which the log has changes that
/// the store lacks, as far as the log knows. Asks the store for nothing.
pub async fn left_in_log(node: &Node) -> u64 {
    let look = node.env.timeout(limits::LEFT_LOOK, node.log.unfinished_volumes()).await;
    let Ok(Ok(unfinished)) = look else {
        return u64::from(!node.log.holds_nothing());
    };
    let parked = node.staging.parked();
    let is_left = |(volume, serial): &&(VolumeId, Serial)| {
        node.log.released(*volume) < *serial && parked.iter().all(|(one, _)| one != volume)
    };
    unfinished.iter().filter(is_left).count() as u64
}

/// Recovers the volumes out of service that have unfinished changes. Returns the number of those
/// that failed for now, and whether all such volumes are known.
async fn look(node: &Arc<Node>) -> (usize, bool) {
    let mut volumes = node.staging.parked();
    let unfinished = node.log.unfinished_volumes().await;
    let all_are_known = unfinished.is_ok();
    match unfinished {
        Ok(unfinished) => volumes.extend(unfinished),
        Err(error) => tracing::warn!(%error, "not all volumes with unfinished changes are known"),
    }
    (see_to(node, volumes).await, all_are_known)
}

/// Lets go of the pinned volumes that their own machine has brought back, with all that this log
/// has of them.
async fn let_go_of_returned(node: &Node) {
    let Ok(unfinished) = node.log.unfinished_volumes().await else { return };
    for (volume, serial) in unfinished.into_iter().filter(|(volume, _)| node.pinned.has(*volume)) {
        if let Ok(Some(held)) = node.writer.read::<Vault>(&key::volume_key(volume)).await
            && held.value.owner != Some(node.id)
            && held.value.checkpoint >= serial
        {
            node.log.release(volume, held.value.checkpoint);
        }
    }
}

/// Drops the pinned volumes that a user has given up, or brought back into service: the log has
/// nothing of them, or nothing that it keeps for long.
async fn look_at_pinned(node: &Node) {
    match node.log.unfinished_volumes().await {
        Ok(unfinished) => node.pinned.keep(|volume| {
            let is_in_log = unfinished.iter().any(|(id, _)| *id == volume);
            is_in_log && node.staging.find(volume).is_none()
        }),
        Err(error) => tracing::warn!(%error, "it is not known which volumes keep room of the log"),
    }
}

/// Recovers some volumes. Returns the number of those that failed for now.
async fn see_to(node: &Arc<Node>, volumes: Vec<(VolumeId, Serial)>) -> usize {
    let mut left = 0;
    for (volume, serial) in volumes {
        let is_done = node.staging.find(volume).is_some() || bring(node, volume, serial).await;
        left += usize::from(!is_done);
    }
    left
}

/// Recovers one volume. Whether nothing is left to do for it.
async fn bring(node: &Arc<Node>, volume: VolumeId, serial: Serial) -> bool {
    let vault = match node.writer.read::<Vault>(&key::volume_key(volume)).await {
        Ok(Some(held)) if held.value.state != VaultState::Deleted => held.value,
        // The store says that the volume is gone: a crash has interrupted the end of a removal.
        Ok(_) => return forget(node, volume).await,
        Err(error) => {
            tracing::warn!(%volume, %error, "a volume with unfinished changes cannot be looked up now");
            if error.kind() == Kind::Damaged {
                let reason = format!("{error}. `rekindle verify` names what is damaged");
                node.pinned.note(volume, &format!("the volume of id {volume}"), reason);
            }
            return !error.kind().is_retryable();
        }
    };
    if vault.checkpoint >= serial {
        // All changes are in the store; the last life had no time to tell the log.
        node.log.release(volume, vault.checkpoint);
        return true;
    }
    if vault.state == VaultState::Trashed {
        // The name is free, or another volume's. The backlog stays in the log until the volume is
        // restored or purged.
        tracing::info!(volume = vault.name, id = %volume, "is in the trash with unfinished changes in the log");
        return true;
    }
    match node.volumes.attach(&vault.name).await {
        Ok(_) => {
            node.pinned.forget(volume);
            true
        }
        Err(error) => {
            tracing::warn!(volume = vault.name, %error, "a volume with unfinished changes cannot be attached");
            let name = &vault.name;
            let first = match error {
                Error::Staging(StagingError::NotCopied(_)) => {
                    format!(
                        "Start that machine's daemon again, or go on with what the copies have: `rekindle salvage run {name} --accept-losses`"
                    )
                }
                _ => "Mend that (`rekindle verify` names what is damaged)".to_owned(),
            };
            // Any other error passes, or says that another node has the volume.
            if matches!(error.kind(), Kind::Damaged | Kind::Refused) {
                let reason = format!(
                    "{error}. {first}, or give the volume up: `rekindle volume rm {name} --now`"
                );
                node.pinned.note(volume, &format!("volume '{}'", vault.name), reason);
            }
            !error.kind().is_retryable()
        }
    }
}

/// Forgets the log's changes of a volume that is gone, for all later starts too. Whether nothing is
/// left to do.
async fn forget(node: &Arc<Node>, volume: VolumeId) -> bool {
    match node.volumes.forget_if_gone(volume).await {
        Ok(true) => {
            tracing::info!(%volume, "was removed: what the log had of it is not needed");
            true
        }
        // The volume came back between two looks.
        Ok(false) => false,
        Err(error) => {
            tracing::warn!(%volume, %error, "the log keeps the changes of a volume that cannot be found");
            !error.kind().is_retryable()
        }
    }
}
