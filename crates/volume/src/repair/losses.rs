//! The end of a loss in the log: once every volume of this node goes on without the lost changes.
//!
//! A loss may concern any volume with changes in the log, so the log tells of it at each start.
//! Each volume's vault says whether an operator has accepted the loss there. A volume that misses
//! nothing has nothing to accept.

use crate::registry::Inner;
use crate::{Error, records};
use rekindle_staging::VaultState;
use std::collections::BTreeSet;

/// Has the log forget its losses, if no volume of this node waits for an operator because of them.
/// Whether it did.
pub(crate) async fn settle(inner: &Inner) -> Result<bool, Error> {
    if !inner.staging.has_losses() {
        return Ok(false);
    }
    let mut strange: BTreeSet<_> = inner.staging.unfinished_volumes().await?.into_iter().collect();
    for id in records::vault_ids(&inner.writer).await? {
        let Some(held) = records::vault(&inner.writer, id).await? else { continue };
        strange.remove(&id);
        let vault = held.value;
        // A node has no changes of another node's volume in its log.
        let is_ours = vault.owner == Some(inner.writer.node);
        if is_ours
            && vault.state != VaultState::Deleted
            && !inner.staging.has_settled(&vault).await?
        {
            return Ok(false);
        }
    }
    // The store does not list such a volume, which may be missing there only for now.
    if !strange.is_empty() {
        return Ok(false);
    }
    inner.staging.end_losses().await?;
    Ok(true)
}
