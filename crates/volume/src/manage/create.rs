//! Creation of a volume: first the vault, then its name. A vault without a name is garbage, which
//! the reaper finds.

use crate::manage::leftover;
use crate::manage::list;
use crate::registry::Inner;
use crate::{Error, Info, Spec, records};
use rekindle_base::VolumeId;
use rekindle_base::limits::{SECTOR_BYTES, VOLUME_BYTES_MAX};
use rekindle_base::units::format_size;
use rekindle_staging::{Policy, REPLICAS_MAX, Vault};
use std::sync::Arc;

/// Refuses copies that no volume can have. The error says what is possible.
pub(crate) fn check_copies(policy: Policy, copies: u8) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid(what));
    match (policy, usize::from(copies)) {
        (_, 0) => Ok(()),
        (Policy::Back, 1..=REPLICAS_MAX) => Ok(()),
        (Policy::Back, copies) => invalid(format!(
            "{copies} copies on other nodes are too many: {} at most",
            REPLICAS_MAX
        )),
        _ => invalid(
            "copies on other nodes are of the log, and this policy waits for the store instead: leave them out, or use policy back"
                .to_owned(),
        ),
    }
}

/// Refuses a size that no volume of any kind has. The error says what is possible.
pub(crate) fn check_size(size: u64) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid(what));
    if size == 0 {
        return invalid("a volume must have a size: give at least 512 bytes, as in 20G".to_owned());
    }
    if !size.is_multiple_of(SECTOR_BYTES) {
        let rounded =
            (size - size % SECTOR_BYTES).saturating_add(SECTOR_BYTES).min(VOLUME_BYTES_MAX);
        return invalid(format!(
            "a size of {size} bytes is not a multiple of {SECTOR_BYTES}: use {rounded}"
        ));
    }
    if size > VOLUME_BYTES_MAX {
        let (size, most) = (format_size(size), format_size(VOLUME_BYTES_MAX));
        return invalid(format!("a size of {size} is too large: a volume has at most {most}"));
    }
    Ok(())
}

pub(crate) async fn create(inner: &Arc<Inner>, spec: Spec) -> Result<Info, Error> {
    rekindle_base::names::check_new(&spec.name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let kind = inner.kinds.wanted(&spec.kind)?;
    check_size(spec.size)?;
    check_copies(spec.policy, spec.copies)?;
    let body = kind.create(spec.size, &spec.settings).map_err(Error::Invalid)?;
    if inner.is_stopping() {
        return Err(Error::Stopping);
    }
    let id = VolumeId(inner.env.random());
    let vault = Vault {
        policy: spec.policy,
        ack: spec.ack,
        copies: spec.copies,
        on_missing_copy: spec.on_missing_copy,
        created: inner.env.wall_clock().0,
        ..Vault::new(id, spec.name.clone(), spec.kind, spec.size, body)
    };
    write(inner, vault, async || Ok(())).await
}

/// Writes the vault of a new volume, then its name. `may_be_named` is asked in between: where it
/// fails, the volume does not come into being.
pub(crate) async fn write(
    inner: &Arc<Inner>,
    vault: Vault,
    may_be_named: impl AsyncFnOnce() -> Result<(), Error>,
) -> Result<Info, Error> {
    let (id, name) = (vault.id, vault.name.clone());
    let _lock = inner.name_locks.take(&name).await;
    // Fail before the vault exists, if the name is taken.
    leftover::clear(inner, &name, id).await?;
    // Earlier losses of the log do not concern this volume.
    inner.staging.begin(id).await?;
    inner.writer.create(&Vault::key(id), vault.clone()).await?;
    let refused = match may_be_named().await {
        Ok(()) => match records::take_name(&inner.writer, &name, id).await {
            Ok(()) => return Ok(list::unattached(inner, vault)),
            Err(taken @ Error::Exists(_)) => taken,
            // The outcome is unknown: the name may have landed, so the vault stays. If it has no
            // name, the reaper sees to it.
            Err(error) => return Err(error),
        },
        Err(error) => error,
    };
    if let Err(error) = inner.writer.store.delete(&Vault::key(id)).await {
        tracing::warn!(volume = name, "a vault without a name stays until it is reaped: {error}");
    }
    Err(refused)
}
