//! Names that a renaming or a restore has left when it broke off, or has still to free.

use crate::manage::rest;
use crate::registry::Inner;
use crate::{Error, records};
use rekindle_base::VolumeId;
use rekindle_staging::Vault;

/// Fails if another volume than `wants` has the name; ends a renaming, or a restore, of this node
/// that broke off and left it. The caller holds the lock of the name.
pub(crate) async fn clear(inner: &Inner, left: &str, wants: VolumeId) -> Result<(), Error> {
    let found = records::is_free_for(&inner.writer, left, wants).await?;
    let Some(held) = found else { return Ok(()) };
    let (name, id) = (held.value.name.as_str(), held.value.id);
    tracing::info!(volume = name, "a renaming had broken off: the name '{left}' is free now");
    end(inner, (name, id), left, true).await
}

/// Ends a renaming: frees the name `left`, which is not the volume's, and has the vault forget it.
/// The vault comes last, so that a crash here is noticed. It comes first if another node may be in
/// the middle of the renaming (not `is_ours`).
pub(crate) async fn end(
    inner: &Inner,
    (name, id): (&str, VolumeId),
    left: &str,
    is_ours: bool,
) -> Result<(), Error> {
    let free = records::free_name(&inner.writer, left, id);
    let forget = rest::rewrite(inner, name, id, |vault| {
        let also = vault.also.clone().filter(|also| also != left);
        Ok(Vault { also, ..vault.clone() })
    });
    if is_ours {
        free.await?;
        forget.await?;
    } else {
        forget.await?;
        free.await?;
    }
    Ok(())
}
