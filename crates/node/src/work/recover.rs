//! Volumes with unfinished changes whose clients do not come back.
//!
//! A client's first request attaches its volume and so brings its changes on their way. But a volume that nobody asks
//! for would keep its changes on flash for ever, in the way of others; so, a moment after the start, the node asks for
//! those itself.

use crate::assemble::Node;
use crate::limits;
use base::{Serial, VolumeId};
use datastore::key;
use std::sync::Arc;
use std::time::Duration;
use volume::{Vault, VaultState};

/// Pause before what failed is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Sees to all volumes with unfinished changes; ends when none is left.
pub async fn recover(node: std::sync::Weak<Node>) {
    let mut pause = limits::CLIENTS_FIRST;
    loop {
        let Some(env) = node.upgrade().map(|node| node.env.clone()) else { return };
        env.sleep(pause).await;
        let Some(node) = node.upgrade() else { return };
        let left = match node.log.unfinished_volumes().await {
            Ok(volumes) => see_to(&node, volumes).await,
            Err(error) => {
                tracing::warn!(%error, "it is not known which volumes have unfinished changes");
                return;
            }
        };
        if left == 0 {
            if let Err(error) = node.volumes.settle_losses().await {
                tracing::warn!(%error, "it is not known whether every volume goes on without what the log has lost");
            }
            return;
        }
        pause = AGAIN;
    }
}

/// Gives how many could not be seen to now.
async fn see_to(node: &Arc<Node>, volumes: Vec<(VolumeId, Serial)>) -> usize {
    let mut left = 0;
    for (volume, serial) in volumes {
        let in_service = node.staging.volumes().iter().any(|staged| staged.vault().id == volume);
        if in_service {
            continue;
        }
        left += usize::from(!bring(node, volume, serial).await);
    }
    left
}

/// Whether nothing is left to be done for the volume.
async fn bring(node: &Arc<Node>, volume: VolumeId, serial: Serial) -> bool {
    let vault = match node.writer.read::<Vault>(&key::volume_key(volume)).await {
        Ok(Some(held)) if held.value.state != VaultState::Deleted => held.value,
        // The store itself says so: a removal, whose end in the log a crash has cut off.
        Ok(_) => return forget(node, volume).await,
        Err(error) => {
            tracing::warn!(%volume, %error, "a volume with unfinished changes cannot be looked up now");
            return !error.kind().is_retryable();
        }
    };
    if vault.checkpoint >= serial {
        // All of it is in the store; the last life had no time to tell the log.
        node.log.release(volume, vault.checkpoint);
        return true;
    }
    if vault.state == VaultState::Trashed {
        // Its name is free, or another volume's by now. What it owes stays in the log until it is restored or purged.
        tracing::info!(volume = vault.name, id = %volume, "is in the trash with unfinished changes in the log");
        return true;
    }
    match node.volumes.attach(&vault.name).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(volume = vault.name, %error, "a volume with unfinished changes cannot be attached");
            !error.kind().is_retryable()
        }
    }
}

/// Lets go of a volume that is gone, for all later starts too; whether nothing is left to be done.
async fn forget(node: &Arc<Node>, volume: VolumeId) -> bool {
    match node.volumes.forget_if_gone(volume).await {
        Ok(true) => {
            tracing::info!(%volume, "was removed: what the log had of it is nobody's");
            true
        }
        // It came back between two looks.
        Ok(false) => false,
        Err(error) => {
            tracing::warn!(%volume, %error, "the log keeps the changes of a volume that cannot be found");
            !error.kind().is_retryable()
        }
    }
}
