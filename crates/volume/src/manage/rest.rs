//! Work on a volume at rest: without clients, its whole backlog in the datastore, its vault changed
//! by conditional write.

use crate::registry::{Claim, Inner};
use crate::stop::offline;
use crate::{Error, attach, limits, records};
use futures_util::future::{Either, select};
use rekindle_base::VolumeId;
use rekindle_datastore::record::Held;
use rekindle_staging::{Staged, Vault};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Brings all unfinished changes of a claimed volume to the datastore and takes it out of service;
/// `before` may add changes.
///
/// An error if that takes too long or is impossible, as in a full store. The volume is then out of
/// service, and its unfinished changes stay in the log.
pub(crate) async fn settle(
    claimed: &Claim,
    before: impl AsyncFnOnce(&Arc<Staged>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    let had_clients = claimed.entry.inside.lock().clients() > 0;
    drain_and_close(claimed, before).await?;
    if had_clients {
        // A removal by force: they have written until they were let go, behind what was drained.
        let vault = records::find(&inner.writer, name).await?.value;
        if inner.staging.last_serial(&vault).await? > vault.checkpoint {
            return drain_and_close(claimed, async |_| Ok(())).await;
        }
    }
    Ok(())
}

async fn drain_and_close(
    claimed: &Claim,
    before: impl AsyncFnOnce(&Arc<Staged>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    let live = claimed.entry.inside.lock().live.clone();
    let staged = match &live {
        Some(live) => live.staged.clone(),
        None => {
            let _step = claimed.step("the store: becoming the owner in the vault");
            let held = records::find(&inner.writer, name).await?;
            if let Err(error) = inner.kinds.check(&held.value) {
                return is_settled(inner, &held.value).await.then_some(()).ok_or(error);
            }
            let held = attach::become_owner(inner, name, held).await?;
            let home = inner.home_of(&held.value)?;
            let _step = claimed.step("the log: reading unfinished changes");
            inner.staging.open(held, home).await?
        }
    };
    let drained = {
        let _step = claimed.step("the store: taking what is unfinished");
        let work = async {
            before(&staged).await?;
            Ok::<_, Error>(staged.drain().await?)
        };
        within(inner, name, limits::SETTLE_TIME_MAX, work).await
    };
    let closed = match live {
        Some(_) => offline::close(claimed).await,
        None => staged.close().await.map_err(Error::from),
    };
    match drained {
        Ok(Some(_)) => closed,
        Err(error) => Err(error),
        Ok(None) => {
            let reason = format!(
                "what volume '{name}' has acknowledged did not reach the store within {} s",
                limits::SETTLE_TIME_MAX.as_secs()
            );
            Err(rekindle_datastore::Error::Unavailable(reason).into())
        }
    }
}

/// Runs `work`, which waits for the store to take changes; `None` when that takes too long.
pub(crate) async fn within<T>(
    inner: &Inner,
    name: &str,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Error> {
    let full = pin!(until_full(inner));
    match select(pin!(inner.env.timeout(limit, work)), full).await {
        Either::Left((done, _)) => done.map_or(Ok(None), |done| done.map(Some)),
        Either::Right(((), _)) => {
            let reason = format!("the store has no room for what volume '{name}' has acknowledged");
            Err(rekindle_datastore::Error::Full(reason).into())
        }
    }
}

/// Whether the log owes nothing of a volume that no kind can open, as far as this node knows.
async fn is_settled(inner: &Inner, vault: &Vault) -> bool {
    // A node has no changes of another node's volume in its log.
    vault.owner.is_none_or(|owner| owner == inner.writer.node)
        && inner.staging.last_serial(vault).await.is_ok_and(|last| last <= vault.checkpoint)
}

/// Ends once [`limits::FULL_LOOKS`] looks in a row have found the store full.
async fn until_full(inner: &Inner) {
    let mut looks = 0;
    while looks < limits::FULL_LOOKS {
        inner.env.sleep(limits::FULL_PAUSE).await;
        looks = if inner.staging.is_store_full() { looks + 1 } else { 0 };
    }
}

/// Changes the vault of a claimed volume so that what a later life would acknowledge, were it to
/// serve the volume as it is now, is not of the volume afterwards: the content, its end, or whether
/// there is one.
///
/// A write without an answer may land at any time, also after the death of this process, or after
/// the next client has come. So the vault says before that the volume [leaves](Vault::leaves) the
/// generation that it is in, though it stays at this node. The next life that serves it, or this
/// one, writes the vault first, and then such a write cannot land any more.
pub(crate) async fn begin_anew(
    inner: &Inner,
    name: &str,
    id: VolumeId,
    change: impl Fn(&Vault) -> Result<Vault, Error>,
) -> Result<Held<Vault>, Error> {
    let leaves = Some(inner.writer.node);
    rewrite(inner, name, id, |vault| {
        // A change that is refused leaves the vault as it is.
        change(vault)?;
        Ok(Vault { leaves, ..vault.clone() })
    })
    .await?;
    rewrite(inner, name, id, |vault| {
        if vault.leaves != leaves {
            // A newer life of this node serves it.
            return Err(rekindle_datastore::Error::Conflict(Vault::key(id)).into());
        }
        Ok(Vault { leaves: None, ..change(vault)? })
    })
    .await
}

/// Changes the vault of a volume that no other node owns.
pub(crate) async fn rewrite(
    inner: &Inner,
    name: &str,
    id: VolumeId,
    change: impl Fn(&Vault) -> Result<Vault, Error>,
) -> Result<Held<Vault>, Error> {
    for _ in 0..limits::CONFLICTS_MAX {
        let Some(held) = records::vault(&inner.writer, id).await? else {
            return Err(Error::NotFound(name.to_owned()));
        };
        if let Some(owner) = held.value.owner.filter(|&owner| owner != inner.writer.node) {
            return Err(Error::Elsewhere(name.to_owned(), owner));
        }
        let value = change(&held.value)?;
        match inner.writer.replace(&held, value).await {
            Err(rekindle_datastore::Error::Conflict(_)) => {}
            done => return Ok(done?),
        }
    }
    Err(rekindle_datastore::Error::Conflict(Vault::key(id)).into())
}
