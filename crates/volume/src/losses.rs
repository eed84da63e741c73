//! The end of what the log has lost: once every volume of this node goes on without it.
//!
//! A loss in the log may concern any volume that had something in it, so the log tells of it at each start. Each volume's
//! vault says whether a person has accepted it there; a volume that nothing is missing of has nothing to accept.

use crate::registry::Inner;
use crate::{Error, VaultState, records};
use std::collections::BTreeSet;

/// Has the log forget what it has lost, if no volume of this node waits for a person because of it; whether it did.
pub(crate) async fn settle(inner: &Inner) -> Result<bool, Error> {
    if !inner.staging.has_losses() {
        return Ok(false);
    }
    let mut strange: BTreeSet<_> = inner.staging.unfinished_volumes().await?.into_iter().collect();
    for id in records::vault_ids(&inner.writer).await? {
        let Some(held) = records::vault(&inner.writer, id).await? else { continue };
        strange.remove(&id);
        let vault = held.value;
        // Who owns no volume has no changes of it in the log.
        let is_ours = vault.owner == Some(inner.writer.node);
        if is_ours
            && vault.state != VaultState::Deleted
            && !inner.staging.has_settled(&vault).await?
        {
            return Ok(false);
        }
    }
    // A volume that the store does not tell of may be missing there only now.
    if !strange.is_empty() {
        return Ok(false);
    }
    inner.staging.end_losses().await?;
    Ok(true)
}
