//! Attach: brings a volume into service on first use.
//!
//! A volume has one attach at a time. The first client begins it, and its waits run in a background
//! task, so that the attach ends even if that client goes away. Clients that come meanwhile share
//! its outcome. A failed attach is not retried: the next client begins another one.

pub(crate) mod collect;
pub mod collector;
pub(crate) mod record_cache;

use crate::attach::collector::Aging;
use crate::records;
use crate::registry::entry::{Entry, Handle, Live, Waiting};
use crate::registry::machine::{Event, State};
use crate::registry::{Claim, Inner};
use crate::repair::salvage::{self, attempts::By};
use crate::{Error, kind, limits};
use futures_util::{StreamExt, stream};
use rekindle_base::Kind;
use rekindle_datastore::record::Held;
use rekindle_staging::Vault;
use std::sync::Arc;

/// The state that a client finds.
enum Entrance {
    Held(Handle),
    /// Another task must end first: the attach of this number, or a task of another kind.
    Wait(Waiting, Option<u64>),
    /// The client has to attach the volume itself.
    Attach(Claim, Waiting, u64),
}

/// Attaches a volume of any kind.
pub(crate) async fn attach(inner: &Arc<Inner>, name: &str) -> Result<Handle, Error> {
    attach_as(inner, name, None).await
}

/// Attaches, or waits for the attach that is under way, and holds. A volume that is not of the
/// `wanted` kind is refused, and stays as it is.
pub(crate) async fn attach_as(
    inner: &Arc<Inner>,
    name: &str,
    wanted: Option<&'static str>,
) -> Result<Handle, Error> {
    rekindle_base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    loop {
        if inner.is_stopping() {
            return Err(Error::Stopping);
        }
        let entry = inner.entry(name);
        let (changes, attempt) = match look(inner, &entry)? {
            None => continue,
            Some(Entrance::Held(handle)) => {
                return is_wanted(handle.vault(), wanted).map(|()| handle);
            }
            Some(Entrance::Wait(changes, attempt)) => (changes, attempt),
            Some(Entrance::Attach(attaching, changes, attempt)) => {
                // With a cached vault the attach is mostly a plain call. Only an attach that must
                // wait becomes a task.
                let mut work = Box::pin(carry_out(attaching, wanted));
                if futures_util::poll!(work.as_mut()).is_pending() {
                    inner.env.spawn_foreground("volume-attach", work);
                }
                (changes, Some(attempt))
            }
        };
        changes.changed().await;
        let failed = entry.inside.lock().failed.clone();
        if let (Some(mine), Some((failed, error))) = (attempt, failed)
            && failed >= mine
        {
            match error {
                // The client that began that attach wanted another kind: this one begins its own.
                Error::OtherKind { wanted: theirs, .. } if Some(theirs) != wanted => {}
                error => return Err(error),
            }
        }
    }
}

fn is_wanted(vault: &Vault, wanted: Option<&'static str>) -> Result<(), Error> {
    wanted.map_or(Ok(()), |wanted| kind::is_of(vault, wanted))
}

/// Attaches the volumes that had clients in the last life, if the record cache has them.
pub(crate) async fn welcome(inner: Arc<Inner>) {
    let known = |name: &String| record_cache::find(&inner.writer, name).is_some();
    let names = inner.active_volumes.take_last_life().into_iter().filter(known);
    let bring = |name: String| {
        let inner = &inner;
        async move {
            if let Err(error) = attach(inner, &name).await {
                tracing::debug!(volume = name, %error, "not brought back ahead of its clients");
            }
        }
    };
    stream::iter(names).for_each_concurrent(limits::WELCOMES_MAX, bring).await;
}

/// Looks at an entry; `None` when it has left the registry meanwhile.
fn look(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Result<Option<Entrance>, Error> {
    let mut inside = entry.inside.lock();
    if inside.retired {
        return Ok(None);
    }
    inner.observe(entry, &mut inside);
    Ok(Some(match inside.machine.state() {
        State::Attached | State::Stalled => match &inside.live {
            Some(live) => Entrance::Held(live.hold()),
            None => return Err(Error::Interrupted(entry.name.clone())),
        },
        State::Attaching => Entrance::Wait(entry.subscribe(), Some(inside.attempts)),
        State::Salvaging => {
            // A volume that a client waits for is salvaged first. Its outcome is this client's,
            // too.
            inner.salvager.raise(&entry.name, inner.env.now());
            Entrance::Wait(entry.subscribe(), Some(inside.attempts))
        }
        State::Offlining | State::HandingOver | State::Deleted => {
            Entrance::Wait(entry.subscribe(), None)
        }
        State::Unattached | State::Preattached | State::Error => {
            let attaching = Claim::enter(inner, entry, &mut inside, Event::Attach, "first use")?;
            inside.attempts += 1;
            Entrance::Attach(attaching, entry.subscribe(), inside.attempts)
        }
    }))
}

/// Carries the attach out and applies its outcome.
async fn carry_out(attaching: Claim, wanted: Option<&'static str>) {
    let outcome = bring_up(&attaching, wanted).await;
    let name = attaching.entry.name.clone();
    let ended = match outcome {
        Ok(live) => {
            let cause = format!("generation {}", live.vault().generation);
            attaching.end(Event::AttachDone, &cause, |inside| {
                inside.live = Some(Arc::new(live));
                inside.aging = Aging::default();
                inside.reason = None;
            })
        }
        Err(error) if error.is_for_salvage() && !attaching.inner.is_stopping() => {
            return hand_over_to_salvage(attaching, &error);
        }
        // That tells nothing about the volume.
        Err(error @ Error::OtherKind { .. }) => {
            tracing::debug!(volume = name, "not attached: {error}");
            let event = match attaching.came_from() {
                State::Error => Event::AttachDamaged,
                _ => Event::AttachFailed,
            };
            attaching.end(event, &error.to_string(), |inside| {
                inside.failed = Some((inside.attempts, error));
            })
        }
        Err(error) => {
            let event = if error.is_lasting() { Event::AttachDamaged } else { Event::AttachFailed };
            let cause = error.to_string();
            match &error {
                // A host first asks its own node for a guest's volume.
                Error::NotFound(_) | Error::Elsewhere(..) => {
                    tracing::debug!(volume = name, "{cause}");
                }
                _ => tracing::warn!(volume = name, "cannot be attached: {cause}"),
            }
            attaching.end(event, &cause, |inside| {
                inside.known &= !matches!(error, Error::NotFound(_));
                inside.reason = Some(cause.clone());
                inside.failed = Some((inside.attempts, error));
            })
        }
    };
    if let Err(unlawful) = ended {
        tracing::error!(volume = name, "{unlawful}");
    }
}

/// Hands a damaged volume over to a salvage. Clients that wait for the volume go on waiting.
fn hand_over_to_salvage(attaching: Claim, error: &Error) {
    let (inner, name) = (attaching.inner.clone(), attaching.entry.name.clone());
    let reason = error.to_string();
    tracing::warn!(volume = name, "cannot be attached and will be salvaged: {reason}");
    if let Err(unlawful) = attaching.turn_to(Event::Salvage, &reason) {
        tracing::error!(volume = name, "{unlawful}");
        return;
    }
    // A refused request has already told the volume and its waiting clients.
    drop(salvage::request(&inner, &name, &reason, By::Itself, Some(attaching)));
}

async fn bring_up(attaching: &Claim, wanted: Option<&'static str>) -> Result<Live, Error> {
    let (inner, entry) = (&attaching.inner, &attaching.entry);
    let (began, watch) = (inner.env.now(), inner.env.watch());
    let phase = format!("attach {}", entry.name);
    let live = match from_cache(attaching, &phase, wanted).await {
        Some(live) => live,
        None => by_store(attaching, &phase, wanted).await?,
    };
    inner.env.boot_phase(&phase, None, watch);
    metrics::histogram!("rekindle_volume_attach_seconds")
        .record(inner.env.now().since(began).as_secs_f64());
    Ok(live)
}

/// Attaches by the cached vault, if there is one.
async fn from_cache(attaching: &Claim, phase: &str, wanted: Option<&'static str>) -> Option<Live> {
    let (inner, entry) = (&attaching.inner, &attaching.entry);
    let watch = inner.env.watch();
    let held = record_cache::find(&inner.writer, &entry.name)?;
    is_wanted(&held.value, wanted).ok()?;
    inner.env.boot_phase("vault", Some(phase), watch);
    entry.inside.lock().known = true;
    match open(attaching, held, phase, true).await {
        Ok(live) => {
            metrics::counter!("rekindle_volume_attaches_total", "vault" => "copy").increment(1);
            Some(live)
        }
        Err(error) => {
            // The store decides: this record was not what lies there.
            tracing::warn!(
                volume = entry.name,
                %error,
                "cannot be attached by the copy of its vault: asking the store"
            );
            None
        }
    }
}

async fn by_store(
    attaching: &Claim,
    phase: &str,
    wanted: Option<&'static str>,
) -> Result<Live, Error> {
    let (inner, entry) = (&attaching.inner, &attaching.entry);
    metrics::counter!("rekindle_volume_attaches_total", "vault" => "store").increment(1);
    let mut tries = limits::CONFLICTS_MAX;
    let mut is_second = false;
    loop {
        let found = {
            let _step = attaching.step("the store: reading the name and the vault");
            record_cache::fetch(&inner.writer, &entry.name, phase).await?
        };
        entry.inside.lock().known = true;
        inner.kinds.check(&found.value)?;
        is_wanted(&found.value, wanted)?;
        let watch = inner.env.watch();
        let held = {
            let _step = attaching.step("the store: becoming the owner in the vault");
            become_owner(inner, &entry.name, found).await?
        };
        inner.env.boot_phase("owner", Some(phase), watch);
        match open(attaching, held, phase, false).await {
            // A commit of an earlier life has landed meanwhile.
            Err(error) if error.kind() == Kind::Conflict && tries > 0 => tries -= 1,
            // The answer may be stale, as from a cache on the way.
            Err(Error::Staging(rekindle_staging::Error::SetBack { .. })) if !is_second => {
                is_second = true;
                let _step =
                    attaching.step("the store: reading an older vault than it had a second time");
                inner.env.sleep(limits::SET_BACK_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Brings an owned volume into service.
async fn open(
    attaching: &Claim,
    held: Held<Vault>,
    phase: &str,
    from_cache: bool,
) -> Result<Live, Error> {
    let inner = &attaching.inner;
    let vault = held.value.clone();
    let home = inner.home_of(&vault)?;
    let _step = attaching.step("the log: reading unfinished changes");
    let watch = inner.env.watch();
    let staged = if from_cache {
        inner.staging.open_from_cache(held, home).await?
    } else {
        inner.staging.open(held, home).await?
    };
    inner.env.boot_phase("log-index", Some(phase), watch);
    Ok(Live::new(&inner.env, &inner.active_volumes, staged, vault))
}

/// Makes this node the owner. Writes nothing if it already is.
pub(crate) async fn become_owner(
    inner: &Inner,
    name: &str,
    mut held: Held<Vault>,
) -> Result<Held<Vault>, Error> {
    let node = inner.writer.node;
    let mut tries = limits::CONFLICTS_MAX;
    loop {
        match held.value.owner {
            Some(owner) if owner == node => return Ok(held),
            Some(owner) => return Err(Error::Elsewhere(name.to_owned(), owner)),
            None => {}
        }
        let generation = held.value.generation.next();
        // Older changes in this node's log do not belong to the volume any more.
        let taken = Vault {
            owner: Some(node),
            generation,
            incarnation: inner.writer.life().incarnation,
            begins: held.value.checkpoint,
            logged: Vec::new(),
            // The acceptance was about another log.
            accepted: None,
            ..held.value.clone()
        };
        match inner.writer.replace(&held, taken).await {
            Err(rekindle_datastore::Error::Conflict(_)) if tries > 0 => {
                tries -= 1;
                held = records::find(&inner.writer, name).await?;
            }
            taken => return Ok(taken?),
        }
    }
}
