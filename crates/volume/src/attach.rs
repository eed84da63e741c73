//! Bringing a volume into service on first use.
//!
//! One attach at a time a volume: the first client begins it, and what it would have to wait for goes on as a background
//! task, so that it ends whatever becomes of that client; all who come meanwhile share its outcome. Nothing retries by
//! itself: the next client does.

use crate::collector::Aging;
use crate::entry::{Entry, Handle, Live, Waiting};
use crate::machine::{Event, State};
use crate::records;
use crate::registry::{Exclusive, Inner};
use crate::salvage::{self, attempts::By};
use crate::{Error, Vault, copies, limits};
use base::Kind;
use datastore::record::Held;
use futures_util::{StreamExt, stream};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// What a client finds.
enum Found {
    Held(Handle),
    /// Something must end first: the attach of this number, or a task of another kind.
    Wait(Waiting, Option<u64>),
    /// It is for this client to attach.
    Attach(Exclusive, Waiting, u64),
}

/// Attaches, or waits for the attach that is under way, and holds.
pub(crate) async fn attach(inner: &Arc<Inner>, name: &str) -> Result<Handle, Error> {
    base::names::check(name).map_err(|bad| Error::Invalid(bad.to_string()))?;
    loop {
        if inner.is_stopping() {
            return Err(Error::Stopping);
        }
        let entry = inner.entry(name);
        let (changes, attempt) = match look(inner, &entry)? {
            None => continue,
            Some(Found::Held(handle)) => return Ok(handle),
            Some(Found::Wait(changes, attempt)) => (changes, attempt),
            Some(Found::Attach(attaching, changes, attempt)) => {
                // By the copy of its vault it is a plain call, as a rule; what has to wait, waits in the background.
                let mut work = Box::pin(carry_out(attaching));
                if futures_util::poll!(work.as_mut()).is_pending() {
                    inner.env.spawn("volume-attach", work);
                }
                (changes, Some(attempt))
            }
        };
        changes.changed().await;
        let failed = entry.inside.lock().failed.clone();
        if let (Some(mine), Some((failed, error))) = (attempt, failed)
            && failed >= mine
        {
            return Err(error);
        }
    }
}

/// Brings those in that had clients in the last life, if the catalog has them.
pub(crate) async fn welcome(inner: Arc<Inner>) {
    let known = |name: &String| copies::find(&inner.writer, name).is_some();
    let names = inner.guests.take_last_life().into_iter().filter(known);
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
fn look(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Result<Option<Found>, Error> {
    let mut inside = entry.inside.lock();
    if inside.retired {
        return Ok(None);
    }
    inner.observe(entry, &mut inside);
    Ok(Some(match inside.machine.state() {
        State::Attached | State::Stalled => match &inside.live {
            Some(live) => Found::Held(live.hold()),
            None => return Err(Error::Interrupted(entry.name.clone())),
        },
        State::Attaching => Found::Wait(entry.subscribe(), Some(inside.attempts)),
        State::Salvaging => {
            // The volume that somebody waits for comes first. The outcome is this client's, too.
            inner.salvager.raise(&entry.name, inner.env.now());
            Found::Wait(entry.subscribe(), Some(inside.attempts))
        }
        State::Offlining | State::HandingOver | State::Deleted => {
            Found::Wait(entry.subscribe(), None)
        }
        State::Unattached | State::Preattached | State::Error => {
            let attaching =
                Exclusive::enter(inner, entry, &mut inside, Event::Attach, "first client")?;
            inside.attempts += 1;
            Found::Attach(attaching, entry.subscribe(), inside.attempts)
        }
    }))
}

/// The attach itself, and its outcome.
async fn carry_out(attaching: Exclusive) {
    let outcome = bring_up(&attaching).await;
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
        Err(error) => {
            let event = if error.is_lasting() { Event::AttachDamaged } else { Event::AttachFailed };
            let cause = error.to_string();
            match &error {
                Error::NotFound(_) => tracing::debug!(volume = name, "{cause}"),
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

/// The volume is damaged: it waits for a salvage, and who waits for it waits on.
fn hand_over_to_salvage(attaching: Exclusive, error: &Error) {
    let (inner, name) = (attaching.inner.clone(), attaching.entry.name.clone());
    let reason = error.to_string();
    tracing::warn!(volume = name, "cannot be attached and will be salvaged: {reason}");
    if let Err(unlawful) = attaching.turn_to(Event::Salvage, &reason) {
        tracing::error!(volume = name, "{unlawful}");
        return;
    }
    // When it is refused, the volume and who waits for it have been told.
    drop(salvage::request(&inner, &name, &reason, By::Itself, Some(attaching)));
}

async fn bring_up(attaching: &Exclusive) -> Result<Live, Error> {
    let (inner, entry) = (&attaching.inner, &attaching.entry);
    let (began, watch) = (inner.env.now(), inner.env.watch());
    let phase = format!("attach {}", entry.name);
    let live = match by_copy(attaching, &phase).await {
        Some(live) => live,
        None => {
            step_aside().await;
            by_store(attaching, &phase).await?
        }
    };
    inner.env.boot_phase(&phase, None, watch);
    metrics::histogram!("rekindle_volume_attach_seconds")
        .record(inner.env.now().since(began).as_secs_f64());
    Ok(live)
}

/// Comes back at the next poll. The first one is the client's, and an object store's connections live in the background.
async fn step_aside() {
    let mut aside = false;
    poll_fn(|context| {
        if std::mem::replace(&mut aside, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// By the copy of its vault, if there is one.
async fn by_copy(attaching: &Exclusive, phase: &str) -> Option<Live> {
    let (inner, entry) = (&attaching.inner, &attaching.entry);
    let watch = inner.env.watch();
    let held = copies::find(&inner.writer, &entry.name)?;
    inner.env.boot_phase("vault", Some(phase), watch);
    entry.inside.lock().known = true;
    match open(attaching, held, phase, true).await {
        Ok(live) => {
            metrics::counter!("rekindle_volume_attaches_total", "vault" => "copy").increment(1);
            Some(live)
        }
        Err(error) => {
            // What the store says counts; then the copy was not what lies there.
            tracing::warn!(
                volume = entry.name,
                %error,
                "cannot be attached by the copy of its vault: asking the store"
            );
            None
        }
    }
}

async fn by_store(attaching: &Exclusive, phase: &str) -> Result<Live, Error> {
    let (inner, entry) = (&attaching.inner, &attaching.entry);
    metrics::counter!("rekindle_volume_attaches_total", "vault" => "store").increment(1);
    let mut tries = limits::CONFLICTS_MAX;
    let mut is_second = false;
    loop {
        let found = {
            let _step = attaching.step("the store: reading the name and the vault");
            copies::fetch(&inner.writer, &entry.name, phase).await?
        };
        entry.inside.lock().known = true;
        let watch = inner.env.watch();
        let held = {
            let _step = attaching.step("the store: becoming the owner in the vault");
            become_owner(inner, &entry.name, found).await?
        };
        inner.env.boot_phase("owner", Some(phase), watch);
        match open(attaching, held, phase, false).await {
            // A commit of an earlier life has landed meanwhile.
            Err(error) if error.kind() == Kind::Conflict && tries > 0 => tries -= 1,
            // An answer may be an old one, as of a cache on the way.
            Err(Error::Staging(staging::Error::SetBack { .. })) if !is_second => {
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
    attaching: &Exclusive,
    held: Held<Vault>,
    phase: &str,
    by_copy: bool,
) -> Result<Live, Error> {
    let inner = &attaching.inner;
    let vault = held.value.clone();
    let home = (inner.homes)(&vault)?;
    let _step = attaching.step("the log: reading unfinished changes");
    let watch = inner.env.watch();
    let staged = if by_copy {
        inner.staging.open_by_copy(held, home).await?
    } else {
        inner.staging.open(held, home).await?
    };
    inner.env.boot_phase("log-index", Some(phase), watch);
    Ok(Live::new(&inner.env, &inner.guests, staged, vault))
}

/// Makes this node the owner. Writes nothing when it is already.
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
        // What this node has in its log of older times is not of the volume any more.
        let taken = Vault {
            owner: Some(node),
            generation,
            incarnation: inner.writer.life().incarnation,
            begins: held.value.checkpoint,
            logged: Vec::new(),
            // It was about another log.
            accepted: None,
            ..held.value.clone()
        };
        match inner.writer.replace(&held, taken).await {
            Err(datastore::Error::Conflict(_)) if tries > 0 => {
                tries -= 1;
                held = records::find(&inner.writer, name).await?;
            }
            taken => return Ok(taken?),
        }
    }
}
