//! Another name, or another size, for a volume.
//!
//! The vault is the truth of a name, and names follow: the new one is made first and leads nowhere until the vault agrees; the
//! vault changes; the old one goes. Wherever a crash falls, one of the two names is right, and the reaper frees the other.

use crate::machine::{Event, State};
use crate::registry::{Exclusive, Inner};
use crate::{Error, Info, Spec, Vault, create, list, offline, records, rest};
use base::units::format_size;
use datastore::record::Held;
use staging::Written;
use std::sync::Arc;

/// Gives a volume that nobody holds another name.
pub(crate) async fn rename(inner: &Arc<Inner>, name: &str, new: &str) -> Result<Info, Error> {
    let checked = base::names::check(name).and_then(|()| base::names::check_new(new));
    checked.map_err(|bad| Error::Invalid(bad.to_string()))?;
    if name == new {
        return Err(Error::Invalid(format!("volume '{name}' has this name already")));
    }
    // In one order, whoever renames what.
    let _first = inner.turns.take(name.min(new)).await;
    let _second = inner.turns.take(name.max(new)).await;
    let claimed = offline::claim(inner, name, false, "renaming").await?;
    let cause = format!("renamed to '{new}'");
    match change_name(&claimed, new).await {
        Ok(()) => claimed.end(Event::Removed, &cause, |inside| inside.reason = None)?,
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

async fn change_name(claimed: &Exclusive, new: &str) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    offline::close(claimed).await?;
    let _step = claimed.step("the store: giving the vault another name");
    let held = records::find(&inner.writer, name).await?;
    let id = held.value.id;
    claimed.entry.inside.lock().known = true;
    if let Some(owner) = held.value.owner.filter(|&owner| owner != inner.writer.node) {
        return Err(Error::Elsewhere(name.to_owned(), owner));
    }
    records::take_name(&inner.writer, new, id).await?;
    let renamed =
        rest::rewrite(inner, name, id, |vault| Ok(Vault { name: new.to_owned(), ..vault.clone() }));
    if let Err(error) = renamed.await {
        if !error.kind().is_retryable() {
            records::free_name(&inner.writer, new, id).await?;
        }
        return Err(error);
    }
    if let Err(error) = records::free_name(&inner.writer, name, id).await {
        tracing::warn!(
            volume = new,
            "has its new name; the old one, '{name}', stays until it is reaped: {error}"
        );
    }
    Ok(())
}

/// Gives a volume another size. Growing goes on in service: clients that come see it, those that are there when they come
/// again. What is beyond a smaller size is given up, with `shrink` only and while nobody holds it.
pub(crate) async fn resize(
    inner: &Arc<Inner>,
    name: &str,
    size: u64,
    shrink: bool,
) -> Result<Info, Error> {
    base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let _turn = inner.turns.take(name).await;
    let vault = records::find(&inner.writer, name).await?.value;
    create::check(&Spec {
        name: name.to_owned(),
        kind: vault.kind.clone(),
        size,
        block_size: vault.block_size,
        policy: vault.policy,
        ack: vault.ack,
    })?;
    if size < vault.size && !shrink {
        return Err(Error::Invalid(format!(
            "volume '{name}' has {}: {} would cut off its end; shrink the file system in it first, then say --shrink",
            format_size(vault.size),
            format_size(size)
        )));
    }
    if size < vault.size {
        let claimed = offline::claim(inner, name, false, "shrinking").await?;
        let cut = cut(&claimed, &vault, size).await;
        let why = cut.as_ref().err().map(ToString::to_string);
        let cause = why.clone().unwrap_or_else(|| format!("shrunk to {size} bytes"));
        claimed.end(Event::OfflineDone, &cause, |inside| inside.reason = why)?;
        cut?;
    } else {
        grow(inner, name, &vault, size).await?;
    }
    list::show(inner, name).await
}

/// Trims what is beyond, which takes it out of the tree and makes a version of what was there; then the size.
async fn cut(claimed: &Exclusive, vault: &Vault, size: u64) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    rest::settle(claimed, async |staged| {
        // Apart from what is unfinished, so that what was there before the cut becomes a version of its own.
        staged.drain().await?;
        match staged.clear(size, vault.size - size, true, true) {
            Written::Done => {}
            Written::Staged(ticket) => staged.sync(ticket).await?,
            Written::Later(later) => later.await?,
        }
        Ok(())
    })
    .await?;
    let _step = claimed.step("the store: writing the size into the vault");
    rest::rewrite(inner, name, vault.id, |vault| {
        let end = |lost: &staging::Lost| lost.position.saturating_add(lost.span);
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

async fn grow(inner: &Arc<Inner>, name: &str, vault: &Vault, size: u64) -> Result<(), Error> {
    let resized = |vault: &Vault| {
        // Somebody else may have been faster.
        Ok(Vault { size: size.max(vault.size), ..vault.clone() })
    };
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
        // Out of service it is claimed, so that nobody attaches what it was before.
        let claimed = match offline::claim(inner, name, false, "growing").await {
            // It came into service meanwhile.
            Err(Error::Busy { .. }) => continue,
            claimed => claimed?,
        };
        let closed = offline::close(&claimed).await;
        let written = match closed {
            Ok(()) => rest::rewrite(inner, name, vault.id, resized).await.map(drop),
            Err(error) => Err(error),
        };
        let why = written.as_ref().err().map(ToString::to_string);
        let cause = why.clone().unwrap_or_else(|| format!("grown to {size} bytes"));
        claimed.end(Event::OfflineDone, &cause, |inside| inside.reason = why)?;
        return written;
    }
}
