//! What is done to a volume while nobody is served: everything that it has acknowledged reaches the datastore first, and
//! its vault changes by conditional write.

use crate::registry::{Exclusive, Inner};
use crate::{Error, HomeMaker, Vault, attach, limits, offline, records};
use base::VolumeId;
use datastore::record::Held;
use futures_util::future::{Either, select};
use staging::Staged;
use std::pin::pin;
use std::sync::Arc;

/// Brings all unfinished changes of a claimed volume to the datastore and takes it out of service; `before` may add to them. An
/// error when that takes too long or cannot be done, as in a store that is full: then it is out of service, and what is
/// unfinished stays in the log.
pub(crate) async fn settle(
    claimed: &Exclusive,
    before: impl AsyncFnOnce(&Arc<Staged>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    let live = claimed.entry.inside.lock().live.clone();
    let staged = match &live {
        Some(live) => live.staged.clone(),
        None => {
            let _step = claimed.step("the store: becoming the owner in the vault");
            let held = records::find(&inner.writer, name).await?;
            let held = attach::become_owner(inner, name, held).await?;
            let home = home_of(&inner.homes, &held.value)?;
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
        let full = pin!(until_full(inner));
        match select(pin!(inner.env.timeout(limits::SETTLE_TIME_MAX, work)), full).await {
            Either::Left((drained, _)) => drained,
            Either::Right(((), _)) => {
                let reason =
                    format!("the store has no room for what volume '{name}' has acknowledged");
                Ok(Err(datastore::Error::Full(reason).into()))
            }
        }
    };
    let closed = match live {
        Some(_) => offline::close(claimed).await,
        None => staged.close().await.map_err(Error::from),
    };
    match drained {
        Ok(drained) => drained.map(drop).and(closed),
        Err(_) => {
            let reason = format!(
                "what volume '{name}' has acknowledged did not reach the store within {} s",
                limits::SETTLE_TIME_MAX.as_secs()
            );
            Err(datastore::Error::Unavailable(reason).into())
        }
    }
}

/// Ends once the store is seen to have no room, again and again.
async fn until_full(inner: &Inner) {
    let mut looks = 0;
    while looks < limits::FULL_LOOKS {
        inner.env.sleep(limits::FULL_PAUSE).await;
        looks = if inner.staging.is_store_full() { looks + 1 } else { 0 };
    }
}

/// The home of a volume's content.
pub(crate) fn home_of(homes: &HomeMaker, vault: &Vault) -> Result<Arc<dyn staging::Home>, Error> {
    (homes)(vault)
}

/// Changes the vault of a volume that nobody else owns.
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
            Err(datastore::Error::Conflict(_)) => {}
            done => return Ok(done?),
        }
    }
    Err(datastore::Error::Conflict(Vault::key(id)).into())
}
