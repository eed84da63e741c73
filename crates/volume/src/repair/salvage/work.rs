//! One salvage. It is recorded before it begins and after it has ended, so that no crash in between
//! is forgotten.

use super::attempts::{self, By, Ending, Withheld};
use super::{Job, Repair};
use crate::format::{Account, Memory, Outcome};
use crate::registry::entry::Waits;
use crate::registry::machine::Event;
use crate::registry::view;
use crate::registry::{Claim, Inner};
use crate::repair::losses;
use crate::{Error, Kinds, attach, limits, records};
use futures_util::future::{Either, select};
use rekindle_base::{Kind, VolumeId};
use rekindle_datastore::record::Held;
use rekindle_staging::{Allowance, Back, Lost, Salvaged, Staged, Vault, VaultState};
use std::pin::pin;
use std::sync::Arc;

/// Salvages a volume. The caller then leaves `salvaging`.
pub(super) async fn run(inner: &Arc<Inner>, name: &str, job: &Job) -> Result<Repair, Error> {
    let reason = reason(inner, name);
    let mut came_to = None;
    let outcome = attempt(inner, name, &reason, job, &mut came_to).await;
    let label = match (&outcome, came_to) {
        (Err(Error::Cancelled(_)), _) => "cancelled",
        // The salvage would have to give something up, and is not allowed to: no good end.
        (_, Some(Outcome::Waiting)) => "waiting",
        (Ok(_), _) => "good",
        (Err(_), _) => "failed",
    };
    metrics::counter!("rekindle_salvages_total", "outcome" => label).increment(1);
    match &outcome {
        Ok(done) => tracing::info!(volume = name, "salvaged: {}", done.told),
        Err(error) => tracing::warn!(volume = name, "could not be salvaged: {error}"),
    }
    outcome
}

/// Leaves `salvaging`, which wakes the clients that wait for the volume.
pub(super) fn conclude(claim: Claim, outcome: &Result<Repair, Error>) {
    match outcome {
        Err(error) => give_up(claim, error.clone()),
        Ok(done) => {
            let name = claim.entry.name.clone();
            let ended = claim.end(Event::SalvageDone, &done.told, |inside| inside.reason = None);
            if let Err(unlawful) = ended {
                tracing::error!(volume = name, "{unlawful}");
            }
        }
    }
}

/// Leaves `salvaging` without success. The clients that wait for the volume get the error.
pub(super) fn give_up(claim: Claim, error: Error) {
    let cause = error.to_string();
    let name = claim.entry.name.clone();
    let ended = claim.end(Event::SalvageFailed, &cause, |inside| {
        inside.known &= !matches!(error, Error::NotFound(_));
        inside.reason = Some(cause.clone());
        inside.failed = Some((inside.attempts, error));
    });
    if let Err(unlawful) = ended {
        tracing::error!(volume = name, "{unlawful}");
    }
}

fn reason(inner: &Inner, name: &str) -> String {
    let state = inner.salvager.state.lock();
    let all = state.queue.all();
    all.iter()
        .find(|(volume, _)| *volume == name)
        .map_or_else(String::new, |(_, request)| request.reason.clone())
}

async fn attempt(
    inner: &Arc<Inner>,
    name: &str,
    reason: &str,
    job: &Job,
    came_to: &mut Option<Outcome>,
) -> Result<Repair, Error> {
    let claim = job.claim.as_ref();
    let _step = claim.map(|say| say.step("the store: the vault, and what was tried before"));
    let (vault, began) = find(inner, name, reason, job).await?;
    let before = vault.value.clone();
    let subject = Subject { name, vault: &before, kinds: &inner.kinds };
    let allowance = {
        let now = inner.env.wall_clock().0;
        let since = began.value.fault.as_ref().map_or(now, |fault| fault.since);
        attempts::allowance(job.shared.by, since, now, before.size)
    };
    let outcome = {
        let work = pin!(repair(inner, name, vault, allowance, job));
        match select(work, pin!(job.shared.cancel.wait())).await {
            Either::Left((Err(Error::Staging(rekindle_staging::Error::Closed(_))), _))
            | Either::Right(_) => Err(Error::Cancelled(name.to_owned())),
            Either::Left((outcome, _)) => outcome,
        }
    };
    if outcome.is_err() {
        if let Some((say, open)) = claim.zip(inner.staging.find(before.id)) {
            // The salvage ended early: close the volume that it opened.
            let _step = say.step("the volume to close");
            open.close().await?;
        }
        report_damage_again(inner, name);
    }
    let mut ending = judged(subject, &outcome);
    if ending.outcome == Outcome::Cancelled && inner.is_stopping() {
        // No operator cancelled the salvage, so the next life resumes it.
        ending.outcome = Outcome::Interrupted;
        ending.lines = vec!["the node stopped in the midst of it".to_owned()];
    }
    if job.shared.by == By::Accepting && outcome.is_ok() {
        // Once every volume goes on without the losses, the log need not tell of them again.
        match losses::settle(inner).await {
            Ok(true) => tracing::info!("every volume goes on without what the log had lost"),
            Ok(false) => {}
            Err(error) => tracing::warn!("the log keeps the proof of what it has lost: {error}"),
        }
    }
    let is_left = ending.outcome == Outcome::Waiting;
    *came_to = Some(ending.outcome);
    record(inner, name, began, ending, job).await;
    match outcome {
        Ok(done) => Ok(Repair { told: sentence(subject, &done), is_left }),
        Err(error) if error.is_lasting() => {
            Err(Error::Salvage { name: name.to_owned(), reason: error.to_string() })
        }
        // The store is away, or an operator cancelled: that tells nothing about the volume.
        Err(error) => Err(error),
    }
}

/// Reads the vault, and records that an attempt begins.
async fn find(
    inner: &Arc<Inner>,
    name: &str,
    reason: &str,
    job: &Job,
) -> Result<(Held<Vault>, Held<Memory>), Error> {
    let begun = pin!(async {
        let vault = records::find(&inner.writer, name).await?;
        job.claim.as_ref().inspect(|say| say.entry.inside.lock().known = true);
        inner.kinds.check(&vault.value)?;
        let began = begin(inner, vault.value.id, job.shared.by, name, reason).await?;
        Ok((vault, began))
    });
    match select(begun, pin!(job.shared.cancel.wait())).await {
        Either::Left((begun, _)) => begun,
        // A stop asks the store for nothing. If the beginning is recorded already, the next
        // life resumes the salvage.
        Either::Right(_) if inner.is_stopping() => Err(Error::Cancelled(name.to_owned())),
        Either::Right((_, begun)) => begun.await,
    }
}

/// Records the end of an attempt. The repair is done, whether or not it can be recorded.
async fn record(inner: &Inner, name: &str, began: Held<Memory>, ending: Ending, job: &Job) {
    let ended = attempts::end(began.value.clone(), ending, inner.env.wall_clock().0);
    note(inner, name, &ended);
    let patience = pin!(async {
        job.shared.cancel.wait().await;
        match inner.is_stopping() {
            true => inner.env.sleep(limits::SALVAGE_STOP_GRACE).await,
            false => std::future::pending().await,
        }
    });
    let why = match select(pin!(inner.writer.replace(&began, ended)), patience).await {
        Either::Left((Ok(_), _)) => return,
        Either::Left((Err(error), _)) => error.to_string(),
        Either::Right(_) => "the node stops".to_owned(),
    };
    tracing::warn!(volume = name, "the result of its salvage cannot be recorded: {why}");
}

/// Notes in the registry's entry what of the volume waits, and since when.
pub(super) fn note(inner: &Inner, name: &str, memory: &Memory) {
    let Some(entry) = inner.find(name) else { return };
    let fault = memory.fault.as_ref().filter(|fault| fault.looks > 0);
    let last = memory.accounts.last().filter(|last| last.outcome == Outcome::Failed);
    let mut inside = entry.inside.lock();
    inside.beyond = last.map(|last| last.lines.first().cloned().unwrap_or_default());
    inside.waits = fault.map(|fault| Waits {
        since: fault.since,
        due: fault.due,
        reason: fault.reason.clone(),
    });
    let is_good = memory.accounts.last().is_some_and(|last| last.outcome.is_good());
    if is_good || inside.waits.is_some() || inside.beyond.is_some() {
        inside.found = None;
    }
}

/// Notes what a check found of a volume, out of service or in it: damage since now, or none any
/// more. A salvage that ends knows better.
pub(super) fn note_found(inner: &Inner, name: &str, damage: Option<String>) {
    let entry = match damage {
        Some(_) => Some(inner.entry(name)),
        None => inner.find(name),
    };
    let Some(entry) = entry else { return };
    let mut inside = entry.inside.lock();
    inside.known |= damage.is_some();
    inside.found = damage.map(|damage| (inner.env.wall_clock().0, damage));
}

/// Records that an attempt begins. The error says why none does.
async fn begin(
    inner: &Inner,
    id: VolumeId,
    by: By,
    name: &str,
    reason: &str,
) -> Result<Held<Memory>, Error> {
    for _ in 0..limits::CONFLICTS_MAX {
        let held = inner.writer.read::<Memory>(&Memory::key(id)).await?;
        let memory = held
            .as_ref()
            .map_or_else(|| Memory { id, ..Memory::default() }, |held| held.value.clone());
        let now = inner.env.wall_clock().0;
        let began = attempts::begin(memory.clone(), by, name, reason, now).map_err(|refusal| {
            note(inner, name, &memory);
            report_damage_again(inner, name);
            Error::Salvage {
                name: name.to_owned(),
                reason: format!("{}; {reason}", refusal.sentence(name)),
            }
        })?;
        let written = match &held {
            Some(held) => inner.writer.replace(held, began).await,
            None => inner.writer.create(&Memory::key(id), began).await,
        };
        match written {
            Err(error) if matches!(error.kind(), Kind::Conflict | Kind::Exists) => continue,
            written => return Ok(written?),
        }
    }
    let busy = "what is remembered of its salvages changes all the time: try again";
    Err(rekindle_datastore::Error::Unavailable(format!("volume '{name}': {busy}")).into())
}

/// Makes the next meeting with the damage be reported again, since nothing was repaired.
fn report_damage_again(inner: &Inner, name: &str) {
    let entry = inner.find(name);
    let live = entry.and_then(|entry| entry.inside.lock().live.clone());
    live.inspect(|live| live.staged.report_damage_again());
}

/// Becomes the owner, and accepts the losses of the log. A commit of an earlier life may land in
/// between: then both are done again over the vault that it has left.
async fn accept(
    inner: &Arc<Inner>,
    name: &str,
    vault: Held<Vault>,
    say: &Claim,
) -> Result<(Held<Vault>, Vec<String>), Error> {
    let id = vault.value.id;
    let mut vault = vault;
    let mut tries = limits::CONFLICTS_MAX;
    loop {
        let held = attach::become_owner(inner, name, vault).await?;
        let _step = say.step("the log: finding out which unfinished changes are whole");
        tries -= 1;
        let numbers_from = inner.numbers_of(&held.value).await;
        match inner.staging.accept_losses(held, numbers_from).await {
            Err(error) if error.kind() == Kind::Conflict && tries > 0 => {}
            accepted => return Ok(accepted?),
        }
        let found = records::vault(&inner.writer, id).await?;
        vault = found.ok_or_else(|| Error::NotFound(name.to_owned()))?;
    }
}

/// Repairs the volume, in service or out of it.
async fn repair(
    inner: &Arc<Inner>,
    name: &str,
    vault: Held<Vault>,
    allowance: Allowance,
    job: &Job,
) -> Result<Salvaged, Error> {
    let Some(say) = &job.claim else {
        // The volume went out of service before it could be held: its next client finds the damage.
        let hold = job.hold.as_ref().ok_or_else(|| Error::Cancelled(name.to_owned()))?;
        return examine(hold.staged(), allowance, job).await;
    };
    let _step = say.step("the store: becoming the owner in the vault");
    let (held, given_up) = match job.shared.by {
        By::Accepting => accept(inner, name, vault, say).await?,
        _ => (attach::become_owner(inner, name, vault).await?, Vec::new()),
    };
    let home = inner.home_of(&held.value)?;
    let _step = say.step("the log: reading unfinished changes");
    let staged: Arc<Staged> = match inner.staging.open(held.clone(), home).await {
        Err(
            error @ (rekindle_staging::Error::Lost { .. }
            | rekindle_staging::Error::SetBack { .. }
            | rekindle_staging::Error::NotCopied(_)),
        ) if job.shared.by == By::Operator => {
            return Err(plan(inner, &held.value, error).await);
        }
        opened => opened?,
    };
    let _step = say.step("the store: reading and checking every chunk");
    let salvaged = examine(&staged, allowance, job).await;
    let _step = say.step("the volume to close");
    staged.close().await?;
    Ok(Salvaged { given_up, ..salvaged? })
}

/// Reads the whole content and repairs it. For an operator, also examines the unfinished changes: a
/// batch may not have met their damage yet.
async fn examine(staged: &Arc<Staged>, allowance: Allowance, job: &Job) -> Result<Salvaged, Error> {
    let unfinished = match job.shared.by {
        By::Itself => Vec::new(),
        By::Operator | By::Accepting => staged.examine_unfinished().await?,
    };
    let salvaged = staged.salvage(allowance, &job.shared.chunks).await?;
    Ok(Salvaged { unfinished, ..salvaged })
}

/// Adds to an error what an operator has to decide: which unfinished changes the volume would keep.
async fn plan(inner: &Inner, vault: &Vault, error: rekindle_staging::Error) -> Error {
    match inner.staging.losses(vault).await {
        Ok(lines) if !lines.is_empty() => {
            let reason = format!("{error}; with --accept-losses: {}", lines.join("; "));
            Error::Salvage { name: vault.name.clone(), reason }
        }
        _ => error.into(),
    }
}

/// The volume that a sentence is about.
#[derive(Clone, Copy)]
struct Subject<'a> {
    name: &'a str,
    vault: &'a Vault,
    kinds: &'a Kinds,
}

impl Subject<'_> {
    /// Puts stretches of a volume of records, which are keys of its tree, into its kind's words.
    fn place(&self, stretches: &[Lost]) -> String {
        let keys = |one: &Lost| one.position..one.position.saturating_add(one.span);
        self.kinds.describe_damage(self.vault, &stretches.iter().map(keys).collect::<Vec<_>>())
    }
}

/// Makes the memory's entry of an outcome.
fn judged(of: Subject<'_>, outcome: &Result<Salvaged, Error>) -> Ending {
    match outcome {
        Ok(done) if !waits(of, done).is_empty() => {
            let reason = waits(of, done).join("; ");
            let mut lines = vec![sentence(of, done)];
            let would = done.withheld.iter();
            lines.extend(would.map(|lost| match done.of_records {
                true => format!("cannot be read: {}", of.place(&[*lost])),
                false => {
                    format!("would be lost: bytes {}..{}", lost.position, lost.position + lost.span)
                }
            }));
            if !done.withheld.is_empty() {
                lines.extend(done.losses.iter().map(|loss| format!("would be lost: {loss}")));
            }
            lines.extend(done.untidy.iter().cloned());
            lines.extend(done.lines.iter().cloned());
            Ending {
                outcome: Outcome::Waiting,
                lines,
                findings: None,
                withheld: Some(Withheld { absent: done.absent > 0, reason }),
            }
        }
        Ok(done) => {
            let mut lines = vec![sentence(of, done)];
            let lost = done.lost.iter().filter(|_| !done.of_records);
            lines.extend(lost.map(|lost| {
                format!("lost: bytes {}..{}", lost.position, lost.position + lost.span)
            }));
            lines.extend(done.losses.iter().map(|loss| format!("lost: {loss}")));
            lines.extend(done.tidied.iter().cloned());
            lines.extend(done.given_up.iter().cloned());
            lines.extend(done.lines.iter().cloned());
            let is_sound = done.damages == 0
                && done.footers == 0
                && done.given_up.is_empty()
                && done.tidied.is_empty();
            Ending {
                outcome: if is_sound { Outcome::Sound } else { Outcome::Repaired },
                lines,
                // A further salvage does not repair damage that a reader meets and a salvage does
                // not find.
                findings: is_sound.then(|| "nothing".to_owned()),
                withheld: None,
            }
        }
        Err(error @ Error::Cancelled(_)) => Ending {
            outcome: Outcome::Cancelled,
            lines: vec![error.to_string()],
            findings: None,
            withheld: None,
        },
        // The store is away, or part of it: that tells nothing about the volume.
        Err(error) if error.kind().is_retryable() => Ending {
            outcome: Outcome::Waiting,
            lines: vec![error.to_string()],
            findings: None,
            withheld: Some(Withheld { absent: true, reason: error.to_string() }),
        },
        Err(error) => Ending {
            outcome: Outcome::Failed,
            lines: vec![error.to_string()],
            findings: error.is_lasting().then(|| error.to_string()),
            withheld: None,
        },
    }
}

fn sentence(of: Subject<'_>, done: &Salvaged) -> String {
    let mut parts = done.given_up.clone();
    match done.unfinished.is_empty() {
        true => parts.push(findings(done)),
        false => parts.push(format!("in the store: {}", findings(done))),
    }
    if !done.tidied.is_empty() {
        parts.push(format!("what was around it was put in order: {}", some(&done.tidied)));
    }
    parts.extend(waits(of, done));
    parts.join("; ")
}

/// Says what waits for an operator.
fn waits(of: Subject<'_>, done: &Salvaged) -> Vec<String> {
    let mut parts = Vec::new();
    if !done.unfinished.is_empty() {
        parts.push(format!(
            "unfinished changes are damaged, and nothing was given up; `rekindle salvage run {} --accept-losses` goes on \
             with: {}",
            of.name,
            done.unfinished.join("; ")
        ));
    }
    if !done.withheld.is_empty() {
        parts.push(withheld(of, done));
    }
    if !done.untidy.is_empty() {
        parts.push(format!(
            "its parts do not fit together ({}): `rekindle salvage run {} --accept-losses` makes them fit",
            some(&done.untidy),
            of.name
        ));
    }
    parts.extend(done.snapshots_lack.iter().map(|(snapshot, chunks)| {
        format!(
            "snapshot '{snapshot}' lacks {chunks} chunk(s), which may come back: reads of them are errors, and all else of it \
             is whole; `rekindle snapshot rm {} {snapshot}` gives it up",
            of.name
        )
    }));
    parts
}

/// The first of these, and how many more there are.
fn some(lines: &[String]) -> String {
    let named = lines.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match lines.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Losses that a sentence names; `salvage history` has more of them.
const NAMED_MAX: usize = 4;

/// Says what would be lost, or cannot be read, and how to go on.
fn withheld(of: Subject<'_>, done: &Salvaged) -> String {
    let absent = match done.absent {
        0 => String::new(),
        absent => format!(", where {absent} chunk(s) are absent from the store and may come back"),
    };
    let name = of.name;
    let back = done.back.as_ref().map(|back| way_back(name, back));
    if done.of_records && done.can_give_up {
        return format!(
            "nothing was given up: this would be lost: {}{absent}; all else is there and served; \
             `rekindle salvage run {name} --accept-losses` goes on without it{}",
            some(&done.losses),
            back.map(|back| format!("; or {back}")).unwrap_or_default(),
        );
    }
    if done.of_records {
        return format!(
            "nothing was given up: {} cannot be read{absent}; all else is there and served; no part of a '{}' volume is ever \
             given up, as the rest may mean something else without it; {}",
            of.place(&done.withheld),
            of.vault.kind,
            back.unwrap_or_else(|| "no earlier content is whole".to_owned())
        );
    }
    let stretch =
        |lost: &Lost| format!("{}..{}", lost.position, lost.position.saturating_add(lost.span));
    let named: Vec<String> = done.withheld.iter().take(NAMED_MAX).map(stretch).collect();
    let more = match done.withheld.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more stretches"),
    };
    format!(
        "nothing was given up: {} bytes would be lost ({}{more}){absent}; all else is there and served; \
         `rekindle salvage run {name} --accept-losses` goes on without them{}",
        done.withheld_bytes(),
        named.join(", "),
        back.map(|back| format!("; or {back}")).unwrap_or_default(),
    )
}

/// Says what an operator may do instead.
fn way_back(name: &str, back: &Back) -> String {
    let Back { version, bytes, .. } = back;
    format!(
        "`rekindle volume rollback {name} --to {version}` goes back to an earlier content, which is whole: at most {bytes} \
         bytes were written over since (`rekindle volume versions {name}` says when it was)"
    )
}

fn findings(done: &Salvaged) -> String {
    let (chunks, damages) = (done.chunks, done.damages);
    match (damages, done.footers) {
        (0, 0) => return format!("{chunks} chunks read, all of them sound"),
        (0, footers) => {
            return format!(
                "{chunks} chunks read, all of them sound; {footers} damaged footer(s) of packs written anew, nothing is lost"
            );
        }
        _ => {}
    }
    let lost = match done.of_records {
        true if done.losses.is_empty() => "nothing is lost".to_owned(),
        true => format!("this is lost: {}", some(&done.losses)),
        false => {
            let bytes: u64 = done.lost.iter().map(|lost| lost.span).sum();
            format!("{bytes} bytes are lost")
        }
    };
    let replayed = match done.replayed {
        0 => String::new(),
        count => format!(" {count} change(s) of the last commit were replayed,"),
    };
    format!(
        "{chunks} chunks read, {damages} damaged, {} came back from the cache, {} from parity,{replayed} {lost}, {} pack(s) are mended",
        done.refetched - done.from_parity,
        done.from_parity,
        done.footers
    )
}

/// Returns the remembered salvages of a volume, oldest first.
pub(crate) async fn history(inner: &Arc<Inner>, name: &str) -> Result<Vec<Account>, Error> {
    let id = records::find(&inner.writer, name).await?.value.id;
    let held = inner.writer.read::<Memory>(&Memory::key(id)).await?;
    Ok(held.map(|held| held.value.accounts).unwrap_or_default())
}

/// Returns the remembered salvages of all volumes, grouped by volume.
pub(crate) async fn histories(inner: &Arc<Inner>) -> Result<Vec<Account>, Error> {
    let mut all: Vec<Vec<Account>> = Vec::new();
    let keys = records::keys(&inner.writer, rekindle_datastore::key::SALVAGES).await?;
    let read = |key: String| async move { inner.writer.read::<Memory>(&key).await };
    for held in records::each(keys, read).await {
        all.extend(held?.map(|held| held.value.accounts));
    }
    all.sort_by(|one, other| {
        let name = |accounts: &[Account]| accounts.last().map(|last| last.volume.clone());
        name(one).cmp(&name(other))
    });
    Ok(all.concat())
}

/// Asks again for the salvages that a crash or a stop of an earlier life has cut off, in service.
/// Returns their number, including those that run already.
pub(crate) async fn resume(inner: &Arc<Inner>) -> Result<u64, Error> {
    let keys = records::keys(&inner.writer, rekindle_datastore::key::SALVAGES).await?;
    let read = |key: String| async move { inner.writer.read::<Memory>(&key).await };
    let mut resumed = 0;
    for held in records::each(keys, read).await {
        let Some(mut held) = held? else { continue };
        let Some(last) = held.value.accounts.pop() else { continue };
        let name = last.volume.clone();
        if matches!(last.outcome, Outcome::Waiting | Outcome::Failed | Outcome::Repaired) {
            remember(inner, &name, last, &mut held.value).await;
            continue;
        }
        if !matches!(last.outcome, Outcome::Running | Outcome::Interrupted) {
            continue;
        }
        if inner.salvager.state.lock().jobs.contains_key(&name) {
            resumed += 1;
            continue;
        }
        let reason = format!("a salvage was cut off ({})", last.reason);
        match super::ask_in_service(inner, &name, &reason).await {
            Ok(()) => resumed += 1,
            Err(Error::Stopping) => return Err(Error::Stopping),
            Err(error) => {
                tracing::warn!(volume = name, %error, "its salvage was cut off, and cannot go on now");
            }
        }
    }
    Ok(resumed)
}

/// Restores the state of a fault or a loss after a start, before any client asks for the volume: a
/// fault that waits is noted and looked at when due, and lost bytes are known.
async fn remember(inner: &Arc<Inner>, name: &str, last: Account, memory: &mut Memory) {
    memory.accounts.push(last);
    // The volume may have another name by now, or be gone.
    let found = match records::vault(&inner.writer, memory.id).await {
        Ok(Some(held)) if held.value.state == VaultState::Live => Some(held.value),
        Ok(_) => return,
        Err(_) => None,
    };
    let name = found.as_ref().map_or(name, |vault| vault.name.as_str());
    let lost_bytes = found.as_ref().map_or(0, view::lost_bytes);
    if memory.fault.is_none() && lost_bytes == 0 && found.is_some() {
        return;
    }
    {
        let entry = inner.entry(name);
        let mut inside = entry.inside.lock();
        (inside.known, inside.lost_bytes) = (true, lost_bytes);
    }
    note(inner, name, memory);
}

/// Forgets the salvages of a volume that is gone for good.
pub(crate) async fn forget(inner: &Inner, id: VolumeId) -> Result<(), rekindle_datastore::Error> {
    inner.writer.store.delete(&Memory::key(id)).await
}
