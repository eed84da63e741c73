//! Another name, or another size, for a volume.
//!
//! The vault is the truth of a name, and names the other name that may lead to it. The steps of a
//! renaming: the vault notes the new name, so that no other volume takes it; the record of that
//! name is made; the vault changes; the old name is deleted; the vault forgets it. After a crash at
//! any step one of the two names is right, and the reaper, or a removal, frees the other.

use crate::kind::{Cut, Sizes};
use crate::manage::create;
use crate::manage::leftover;
use crate::manage::list;
use crate::manage::rest;
use crate::registry::machine::{Event, State};
use crate::registry::{Claim, Inner};
use crate::stop::offline;
use crate::{Error, Info, attach, records};
use rekindle_base::units::format_size;
use rekindle_datastore::record::Held;
use rekindle_staging::{Vault, VaultState, Written};
use std::sync::Arc;

/// Gives a volume without clients another name.
pub(crate) async fn rename(inner: &Arc<Inner>, name: &str, new: &str) -> Result<Info, Error> {
    let checked =
        rekindle_base::names::check(name).and_then(|()| rekindle_base::names::check_new(new));
    checked.map_err(|bad| Error::Invalid(bad.to_string()))?;
    if name == new {
        return Err(Error::Invalid(format!("volume '{name}' has this name already")));
    }
    let _locks = inner.name_locks.take_both(name, new).await;
    let claimed = offline::claim(inner, name, false, "renaming").await?;
    let cause = format!("renamed to '{new}'");
    match change_name(&claimed, new).await {
        Ok(()) => {
            // What is known of its damage goes with the volume.
            let damage = {
                let mut inside = claimed.entry.inside.lock();
                (inside.waits.take(), inside.beyond.take(), inside.found.take())
            };
            claimed.end(Event::Removed, &cause, |inside| inside.reason = None)?;
            if damage != (None, None, None) {
                let entry = inner.entry(new);
                let mut inside = entry.inside.lock();
                inside.known = true;
                (inside.waits, inside.beyond, inside.found) = damage;
            }
        }
        Err(error) => {
            let why = error.to_string();
            claimed.end(Event::OfflineDone, &why, |inside| {
                inside.known &= !matches!(error, Error::NotFound(_));
            })?;
            return Err(error);
        }
    }
    list::show(inner, new).await
}

async fn change_name(claimed: &Claim, new: &str) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    offline::close(claimed).await?;
    let _step = claimed.step("the store: giving the vault another name");
    let held = records::find(&inner.writer, name).await?;
    claimed.entry.inside.lock().known = true;
    if let Some(owner) = held.value.owner.filter(|&owner| owner != inner.writer.node) {
        return Err(Error::Elsewhere(name.to_owned(), owner));
    }
    give(inner, &held.value, new, |vault| match vault.state {
        VaultState::Live => Ok(vault.clone()),
        _ => Err(Error::NotFound(name.to_owned())),
    })
    .await
}

/// Gives a volume a name, and applies `change` to its vault in the same write. The caller holds the
/// lock of the name.
pub(crate) async fn give(
    inner: &Inner,
    vault: &Vault,
    new: &str,
    change: impl Fn(&Vault) -> Result<Vault, Error>,
) -> Result<(), Error> {
    let (id, name) = (vault.id, vault.name.as_str());
    // An interrupted renaming has left this name.
    if let Some(left) = vault.also.as_deref().filter(|&left| left != new) {
        records::free_name(&inner.writer, left, id).await?;
    }
    rest::rewrite(inner, name, id, |vault| {
        change(vault)?;
        Ok(Vault { also: Some(new.to_owned()), ..vault.clone() })
    })
    .await?;
    let given = async {
        leftover::clear(inner, new, id).await?;
        records::take_name(&inner.writer, new, id).await?;
        rest::rewrite(inner, name, id, |vault| {
            if vault.also.as_deref() != Some(new) {
                // Another node renames it, too, or has taken this renaming for an interrupted one.
                return Err(rekindle_datastore::Error::Conflict(Vault::key(id)).into());
            }
            let also = (name != new).then(|| name.to_owned());
            Ok(Vault { name: new.to_owned(), also, ..change(vault)? })
        })
        .await
    };
    match given.await {
        Ok(_) if name == new => Ok(()),
        Ok(_) => {
            if let Err(error) = leftover::end(inner, (new, id), name, true).await {
                tracing::warn!(
                    volume = new,
                    "has its new name; the old one, '{name}', stays until it is reaped: {error}"
                );
            }
            Ok(())
        }
        Err(error) => {
            if !error.kind().is_retryable() {
                leftover::end(inner, (name, id), new, true).await?;
            }
            Err(error)
        }
    }
}

/// Gives a volume another size. A volume whose size only limits what it takes changes it in
/// service. Any other one grows in service: clients see the new size when they connect. A smaller
/// size gives up its end, only with `shrink` and only without clients.
pub(crate) async fn resize(
    inner: &Arc<Inner>,
    name: &str,
    size: u64,
    shrink: bool,
) -> Result<Info, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    create::check_size(size)?;
    let vault = records::find(&inner.writer, name).await?.value;
    let is_limit = matches!(inner.kinds.resizes(&vault, size)?, Sizes::Limit);
    if is_limit && size < vault.size && !shrink {
        // Before the lock of the name: an attach may have to wait.
        let taken = attach::attach(inner, name).await?.staged().taken().await?.unwrap_or(0);
        if size < taken {
            return Err(Error::Invalid(format!(
                "what is in volume '{name}' takes {}: with {} nothing more could be written, though nothing would be lost; remove \
                 some of it, or say --shrink",
                format_size(taken),
                format_size(size)
            )));
        }
    }
    let _lock = inner.name_locks.take(name).await;
    let vault = records::find(&inner.writer, name).await?.value;
    match inner.kinds.resizes(&vault, size)? {
        Sizes::Any { cut } if size < vault.size => {
            if !shrink {
                return Err(Error::Invalid(format!(
                    "volume '{name}' has {}: {} would cut off its end; make what is in it smaller first (a file system, say), then say --shrink",
                    format_size(vault.size),
                    format_size(size)
                )));
            }
            let claimed = offline::claim(inner, name, false, "shrinking").await?;
            let done = shrink_to(&claimed, &vault, size, cut).await;
            let cause = format!("shrunk to {size} bytes");
            claimed.finish(done, (Event::OfflineDone, Event::OfflineDone), &cause)?;
        }
        // A concurrent growth may have been larger.
        Sizes::Any { .. } => write_size(inner, name, &vault, |now| now.max(size)).await?,
        Sizes::Limit | Sizes::Fixed => write_size(inner, name, &vault, |_| size).await?,
    }
    list::show(inner, name).await
}

/// Shrinks a volume: cuts its end off as its kind does, so that a version keeps the content from
/// before, and then writes the size.
async fn shrink_to(claimed: &Claim, vault: &Vault, size: u64, cut: Cut) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    rest::settle(claimed, async |staged| {
        // Drained before the cut, so that the content before the cut becomes a version of its own.
        staged.drain().await?;
        match cut(staged, size..vault.size) {
            Written::Acked => {}
            Written::NeedsSync(ticket) => staged.sync(ticket).await?,
            Written::Pending(later) => later.await?,
        }
        Ok(())
    })
    .await?;
    let _step = claimed.step("the store: writing the size into the vault");
    rest::begin_anew(inner, name, vault.id, |vault| {
        let end = |lost: &rekindle_staging::Lost| lost.position.saturating_add(lost.span);
        if vault.lost.iter().any(|lost| end(lost) > size) {
            let reason =
                format!("part of the end of volume '{name}' is lost and could not be cut off");
            return Err(Error::Invalid(reason));
        }
        Ok(Vault { size, ..vault.clone() })
    })
    .await?;
    Ok(())
}

/// Writes another size into the vault of a volume that loses nothing by it, in service or not.
/// `size` makes it of the present one.
async fn write_size(
    inner: &Arc<Inner>,
    name: &str,
    vault: &Vault,
    size: impl Fn(u64) -> u64,
) -> Result<(), Error> {
    let resized = |vault: &Vault| Ok(Vault { size: size(vault.size), ..vault.clone() });
    loop {
        let entry = inner.entry(name);
        let (state, live) = {
            let inside = entry.inside.lock();
            (inside.machine.state(), inside.live.clone())
        };
        if let (State::Attached | State::Stalled, Some(live)) = (state, live) {
            let held: Held<Vault> = rest::rewrite(inner, name, vault.id, resized).await?;
            live.resize(held);
            return Ok(());
        }
        // Claimed, so that no client attaches the volume with its old size.
        let claimed = match offline::claim(inner, name, false, "resizing").await {
            // A client has attached it meanwhile.
            Err(Error::Busy { .. }) => continue,
            claimed => claimed?,
        };
        let written = match offline::close(&claimed).await {
            Ok(()) => rest::rewrite(inner, name, vault.id, resized).await.map(drop),
            Err(error) => Err(error),
        };
        let cause = format!("resized to {} bytes", size(vault.size));
        return claimed.finish(written, (Event::OfflineDone, Event::OfflineDone), &cause);
    }
}
