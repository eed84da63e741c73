//! A volume moves to another node, or gets other settings, while its clients go on.
//!
//! Its changes go to the store, round by round, until little is left. The rest goes while new
//! requests wait; then one write of the vault names the next owner, which may be this node, and its
//! settings ([`rekindle_staging::HandOver`]). The next owner needs nothing from this one: the root
//! has all.
//!
//! A hand-over that fails before that write leaves the volume in service as it was. A crash leaves
//! what the vault says.

use crate::manage::create::check_copies;
use crate::manage::leftover;
use crate::manage::rest;
use crate::manage::settings::WriteSettings;
use crate::manage::trash;
use crate::registry::machine::{Event, State};
use crate::registry::{Claim, Inner};
use crate::{Error, attach, limits};
use rekindle_base::units::format_size;
use rekindle_base::{Life, VolumeId};
use rekindle_env::BoxFuture;
use rekindle_staging::{Staged, Vault, VaultState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// A volume that has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Moved {
    pub id: String,
    /// The node that owns the volume now.
    pub owner: String,
    /// Rounds in which changes went to the store while clients went on.
    pub rounds: u64,
    /// Bytes that went to the store while clients went on.
    pub bytes: u64,
    /// Bytes that went to the store while requests waited.
    pub rest_bytes: u64,
    /// Time for which requests waited.
    pub paused_ms: u64,
}

/// Asks once more whether the next owner may have the volume, just before the vault names it;
/// returns its life.
pub type Confirm = Box<dyn Fn() -> BoxFuture<'static, Result<Life, Error>> + Send + Sync>;

/// The aim of a hand-over.
pub(crate) enum Aim<'a> {
    /// Another node owns the volume.
    Node(&'a Confirm),
    /// The volume has other settings.
    Settings(WriteSettings),
}

impl Aim<'_> {
    /// The life that is the next owner.
    async fn owner(&self, inner: &Inner) -> Result<Life, Error> {
        match self {
            Self::Node(confirm) => confirm().await,
            Self::Settings(_) => Ok(inner.writer.life()),
        }
    }

    /// An error when the next owner could not have the volume like that: other settings may have
    /// come meanwhile.
    fn check(&self, vault: &Vault) -> Result<(), Error> {
        let next = self.vault(vault.clone());
        check_copies(next.policy, next.copies)
    }

    /// The vault of the next owner, with the settings.
    fn vault(&self, given: Vault) -> Vault {
        match self {
            Self::Node(_) => given,
            Self::Settings(settings) => settings.of(&given),
        }
    }

    fn begins(&self, to: Life) -> String {
        match self {
            Self::Node(_) => format!("moves to node {}", to.node),
            Self::Settings(_) => "gets other settings".to_owned(),
        }
    }

    fn ended(&self, to: Life) -> String {
        match self {
            Self::Node(_) => format!("moved to node {}", to.node),
            Self::Settings(_) => "has other settings".to_owned(),
        }
    }

    /// What is the case after a failure.
    fn stays(&self) -> &'static str {
        match self {
            Self::Node(_) => "it stays here",
            Self::Settings(_) => "its settings stay as they are",
        }
    }
}

/// Moves a volume of this node to another one. `told` hears the bytes that are in the store, and
/// those that are not yet.
pub(crate) async fn move_to(
    inner: &Arc<Inner>,
    name: &str,
    confirm: &Confirm,
    told: &(impl Fn(u64, u64) + Send + Sync),
) -> Result<Moved, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    let to = confirm().await?;
    if to.node == inner.writer.node {
        return Err(Error::Invalid(format!("volume '{name}' is at node {} already", to.node)));
    }
    hand_over(inner, name, &Aim::Node(confirm), told).await
}

/// Hands a volume of this node over.
pub(crate) async fn hand_over(
    inner: &Arc<Inner>,
    name: &str,
    aim: &Aim<'_>,
    told: &(impl Fn(u64, u64) + Send + Sync),
) -> Result<Moved, Error> {
    not_salvaged(inner, name)?;
    let to = aim.owner(inner).await?;
    // The hold keeps the collector away.
    let handle = match attach::attach(inner, name).await {
        Err(Error::NotFound(name)) => return Err(not_found(inner, name).await),
        handle => handle?,
    };
    let (id, also) = {
        let vault = handle.staged().vault();
        (vault.id, vault.also)
    };
    if let Some(left) = also {
        // The next owner knows nothing of a renaming that was broken off here.
        let _lock = inner.name_locks.take(name).await;
        leftover::end(inner, (name, id), &left, true).await?;
    }
    let leaving = rest::rewrite(inner, name, id, |vault| match vault.state {
        VaultState::Live => Ok(Vault { leaves: Some(to.node), ..vault.clone() }),
        _ => Err(Error::NotFound(name.to_owned())),
    });
    // A commit that comes in between reads the vault back.
    handle.staged().adopt_settings(leaving.await?);
    let mut moved = Moved { id: id.to_string(), owner: to.node.to_string(), ..Moved::default() };
    while moved.rounds < limits::MOVE_ROUNDS_MAX {
        let staged = handle.staged();
        let owed = staged.owed_bytes();
        told(moved.bytes, owed);
        if owed <= limits::MOVE_REST_BYTES {
            break;
        }
        if inner.is_stopping() {
            return Err(Error::Stopping);
        }
        drain(inner, (name, aim), limits::SETTLE_TIME_MAX, async || {
            Ok(staged.drain().await.map(drop)?)
        })
        .await?;
        (moved.rounds, moved.bytes) = (moved.rounds + 1, moved.bytes + owed);
    }
    drop(handle);
    let to = aim.owner(inner).await?;
    let _lock = inner.name_locks.take(name).await;
    let claimed = claim(inner, name, id, &aim.begins(to)).await?;
    let began = inner.env.now();
    let closed = close(&claimed, aim, to).await;
    moved.paused_ms = u64::try_from(inner.env.now().since(began).as_millis()).unwrap_or(u64::MAX);
    match closed {
        Ok(rest_bytes) => {
            claimed.end(Event::HandedOver, &aim.ended(to), |inside| inside.reason = None)?;
            Ok(Moved { rest_bytes, ..moved })
        }
        Err(error) => {
            let why = error.to_string();
            let is_served = claimed.entry.inside.lock().live.is_some();
            let failed = if is_served { Event::HandOverFailed } else { Event::Failed };
            claimed.end(failed, &why, |inside| {
                inside.reason = Some(why.clone()).filter(|_| !is_served);
            })?;
            Err(error)
        }
    }
}

/// Claims a volume in service for its hand-over.
async fn claim(inner: &Arc<Inner>, name: &str, id: VolumeId, cause: &str) -> Result<Claim, Error> {
    loop {
        not_salvaged(inner, name)?;
        let entry = inner.entry(name);
        let changes = {
            let mut inside = entry.inside.lock();
            if inside.retired {
                continue;
            }
            inner.observe(&entry, &mut inside);
            let state = inside.machine.state();
            match (state, &inside.live) {
                (State::Attached | State::Stalled, Some(live)) if live.vault().id == id => {
                    return Claim::enter(inner, &entry, &mut inside, Event::HandOver, cause);
                }
                _ if state.is_transitional() => Some(entry.subscribe()),
                // Out of service meanwhile, or another volume has the name.
                (State::Attached | State::Stalled, _) => {
                    return Err(Error::Interrupted(name.to_owned()));
                }
                _ => None,
            }
        };
        match changes {
            Some(changes) => changes.changed().await,
            None => drop(attach::attach(inner, name).await?),
        }
    }
}

/// Hands a claimed volume over. Returns the bytes that went to the store while requests waited.
async fn close(claimed: &Claim, aim: &Aim<'_>, to: Life) -> Result<u64, Error> {
    let (inner, entry) = (&claimed.inner, &claimed.entry);
    let live = entry.inside.lock().live.clone();
    let Some(live) = live else {
        return Err(Error::Interrupted(entry.name.clone()));
    };
    let staged = &live.staged;
    let handed = give(claimed, staged, aim, to).await;
    if let Err(error) = &handed
        && staged.serves().is_ok()
    {
        tracing::warn!(volume = entry.name, %error, "a hand-over has failed: {}", aim.stays());
        return handed;
    }
    // The vault has a newer generation, or this node has met a newer life of itself.
    let _step = claimed.step("the log: a commit");
    if let Err(error) = staged.close().await {
        // The store has all of it.
        tracing::warn!(volume = entry.name, %error, "the log of a volume that was handed over");
    }
    entry.inside.lock().live = None;
    if handed.is_ok() {
        inner.active_volumes.is_back(&entry.name);
    }
    handed
}

async fn give(
    claimed: &Claim,
    staged: &Arc<Staged>,
    aim: &Aim<'_>,
    to: Life,
) -> Result<u64, Error> {
    let (inner, name) = (&claimed.inner, claimed.entry.name.as_str());
    aim.check(&staged.vault())?;
    let hand_over = staged.hand_over().await?;
    let rest = staged.owed_bytes();
    {
        let _step = claimed.step("the store: taking the rest of a volume that is handed over");
        let limit = limits::MOVE_CLOSING_TIME_MAX;
        drain(inner, (name, aim), limit, async || Ok(hand_over.settle().await?)).await?;
    }
    let _step = claimed.step("the store: writing the next owner and settings into the vault");
    hand_over.give(to, &|given| aim.vault(given)).await?;
    Ok(rest)
}

/// Runs `work`, which waits for the store, within bounded time.
async fn drain(
    inner: &Inner,
    (name, aim): (&str, &Aim<'_>),
    limit: Duration,
    work: impl AsyncFnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    match rest::within(inner, name, limit, work()).await? {
        Some(()) => Ok(()),
        None => {
            let reason = format!(
                "what volume '{name}' has acknowledged did not reach the store within {} s: {}",
                limit.as_secs(),
                aim.stays()
            );
            Err(rekindle_datastore::Error::Unavailable(reason).into())
        }
    }
}

fn not_salvaged(inner: &Inner, name: &str) -> Result<(), Error> {
    if !inner.salvager.has(name) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "volume '{name}' is being salvaged: try again afterwards, see `rekindle salvage queue`"
    )))
}

/// The error about a volume that no name leads to. A user may mean one in the trash.
async fn not_found(inner: &Arc<Inner>, name: String) -> Error {
    let trashed = trash::list(inner).await.unwrap_or_default();
    match trashed.iter().any(|one| one.name == name) {
        true => Error::Invalid(format!(
            "volume '{name}' is in the trash: `rekindle volume restore {name}` takes it out"
        )),
        false => Error::NotFound(name),
    }
}

impl Moved {
    /// The move in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!(
            "{} went to the store in {} round(s) before, {} while requests waited for {} ms",
            format_size(self.bytes),
            self.rounds,
            format_size(self.rest_bytes),
            self.paused_ms
        )
    }
}

const _: () =
    assert!(limits::MOVE_REST_BYTES > 0, "a volume that is written always owes something");
