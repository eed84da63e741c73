//! Creation of a volume: first the vault, then its name. A vault without a name is garbage, which
//! the reaper finds.

use crate::manage::list;
use crate::registry::Inner;
use crate::{Error, Info, Spec, Vault, VaultState, limits, records};
use rekindle_base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, SECTOR_BYTES, VOLUME_BYTES_MAX};
use rekindle_base::units::format_size;
use rekindle_base::{Generation, Incarnation, Serial, VolumeId};
use std::sync::Arc;

/// Refuses a volume that could not be served. The error says what could be.
pub(crate) fn check(spec: &Spec) -> Result<(), Error> {
    rekindle_base::names::check_new(&spec.name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let invalid = |what: String| Err(Error::Invalid(what));
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if spec.kind.is_empty()
        || spec.kind.len() > limits::KIND_BYTES_MAX
        || !spec.kind.bytes().all(plain)
    {
        return invalid(format!(
            "'{}' is not a kind of volume: use 'block'",
            spec.kind.escape_debug()
        ));
    }
    if spec.size == 0 {
        return invalid("a volume must have a size: give at least 512 bytes, as in 20G".to_owned());
    }
    if !spec.size.is_multiple_of(SECTOR_BYTES) {
        let (size, rounded) = (spec.size, spec.size - spec.size % SECTOR_BYTES);
        let rounded = rounded.saturating_add(SECTOR_BYTES).min(VOLUME_BYTES_MAX);
        return invalid(format!(
            "a size of {size} bytes is not a multiple of {SECTOR_BYTES}: use {rounded}"
        ));
    }
    if spec.size > VOLUME_BYTES_MAX {
        let (size, most) = (format_size(spec.size), format_size(VOLUME_BYTES_MAX));
        return invalid(format!("a size of {size} is too large: a volume has at most {most}"));
    }
    if !spec.block_size.is_power_of_two()
        || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&spec.block_size)
    {
        let (least, most) = (format_size(BLOCK_BYTES_MIN), format_size(BLOCK_BYTES_MAX));
        return invalid(format!(
            "a block size of {} bytes is not possible: use a power of two from {least} to {most}, as in 16K",
            spec.block_size
        ));
    }
    Ok(())
}

pub(crate) async fn create(inner: &Arc<Inner>, spec: Spec) -> Result<Info, Error> {
    check(&spec)?;
    if inner.is_stopping() {
        return Err(Error::Stopping);
    }
    let vault = Vault {
        id: VolumeId(inner.env.random()),
        name: spec.name.clone(),
        kind: spec.kind,
        state: VaultState::Live,
        size: spec.size,
        block_size: spec.block_size,
        policy: spec.policy,
        ack: spec.ack,
        owner: None,
        generation: Generation(0),
        checkpoint: Serial(0),
        root: None,
        created: inner.env.wall_clock().0,
        pinned: false,
        lost: Vec::new(),
        accepted: None,
        incarnation: Incarnation(0),
        begins: Serial(0),
        logged: Vec::new(),
        versions: Vec::new(),
        trashed: None,
        also: None,
    };
    // A kind is known if a home can be made for it.
    (inner.homes)(&vault)?;
    let _lock = inner.name_locks.take(&spec.name).await;
    // Fail before the vault exists, if the name is taken.
    records::is_free(&inner.writer, &spec.name).await?;
    // Earlier losses of the log do not concern this volume.
    inner.staging.begin(vault.id).await?;
    inner.writer.create(&Vault::key(vault.id), vault.clone()).await?;
    match records::take_name(&inner.writer, &spec.name, vault.id).await {
        Ok(()) => Ok(list::unattached(vault)),
        Err(taken @ Error::Exists(_)) => {
            if let Err(error) = inner.writer.store.delete(&Vault::key(vault.id)).await {
                tracing::warn!(
                    volume = spec.name,
                    "a vault without a name stays until it is reaped: {error}"
                );
            }
            Err(taken)
        }
        // The outcome is unknown: the name may have landed, so the vault stays. If it has no name,
        // the reaper deletes it.
        Err(error) => Err(error),
    }
}
