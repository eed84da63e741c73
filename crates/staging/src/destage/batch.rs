//! A destage batch: changes of the queue in their order, folded into the home and committed by one
//! conditional write of the vault.
//!
//! Two orders hold. Chunks are durable (`flush`) before the vault that reaches them is written. And
//! flash comes before the datastore: no vault is written whose checkpoint is beyond what the log
//! has durably. Else a power cut could leave a log shorter than the checkpoint, and serials would
//! be given twice.

use crate::ack::policy::Mode;
use crate::ack::staged::{Staged, notify};
use crate::destage::commit::{Attempt, Verdict, judge};
use crate::destage::portion::{Base, Portion};
use crate::destage::versions;
use crate::queue::{Change, Payload};
use crate::range::quarantine::Lost;
use crate::recover::lives;
use crate::shape::{Folds, Home};
use crate::state::{Finished, Landed};
use crate::vault::snapshot;
use crate::{Error, Vault, limits};
use rekindle_base::{Kind, Serial};
use rekindle_content::Batch;
use rekindle_content::tree::Root;
use rekindle_datastore::record::Held;
use rekindle_env::Moment;
use std::sync::Arc;
use std::time::Duration;

/// A batch that is ready for the store.
pub(crate) struct Folded<'a> {
    pub(crate) portion: Portion,
    folds: Folds<'a>,
    pub(crate) batch: Batch,
    root: Root,
    /// The lost stretches of that root.
    lost: Vec<Lost>,
}

impl Folded<'_> {
    /// The content that the next batch goes on from.
    pub(crate) fn base(&self) -> Base {
        Base { root: self.root, lost: self.lost.clone(), checkpoint: self.portion.checkpoint() }
    }
}

/// The outcome of an attempt to write the vault.
pub(crate) enum Committed {
    Won(Box<Held<Vault>>),
    /// An earlier attempt has landed instead, and the home has that now.
    Late(Finished),
}

/// Folds changes into chunks and a new root.
pub(crate) async fn fold(
    volume: &Arc<Staged>,
    portion: Portion,
    mut batch: Batch,
) -> Result<Folded<'_>, Error> {
    let inner = &volume.inner;
    // Changes that outlived a restart may be in memory only, too.
    let begins = inner.log.begins();
    if let Some(end) =
        portion.changes.iter().filter_map(Change::end).max().map(|end| end.max(begins))
        && inner.log.committed() < end
        && let Err(error) = inner.log.commit(end).await
    {
        // With dead flash the datastore is where these changes are safest.
        tracing::warn!(volume = %volume.name, %error, "destaging changes that flash does not have");
    }
    let folds = match Folds::of(&volume.home, portion.first(), &portion.changes).await {
        Ok(folds) => folds,
        Err(error) => return Err(failed_by(volume, &portion, error).await),
    };
    batch.set_cached(volume.mode != Mode::Store { keep: false });
    batch.expect(portion.bytes);
    let root = match folds.fold(&mut batch, &portion.base.root).await {
        Ok(root) => root,
        Err(error) => return Err(failed_by(volume, &portion, error).await),
    };
    let lost = folds.healed(&portion.base.lost);
    if lost.len() > limits::LOST_MAX {
        return Err(scattered(volume));
    }
    Ok(Folded { portion, folds, batch, root, lost })
}

/// The outcome of a batch that the store has taken.
pub(crate) enum Stored {
    /// The vault has its root.
    Won,
    /// The vault has the root of an earlier attempt.
    Late,
}

/// Brings a batch into the store, commits it, and tells those who wait. `since`: from when on its
/// time counts.
pub(crate) async fn store(
    volume: &Arc<Staged>,
    folded: Folded<'_>,
    since: Moment,
) -> Result<Stored, Error> {
    let inner = &volume.inner;
    let Folded { portion, folds, mut batch, root, lost } = folded;
    let mut pause = Duration::ZERO;
    let flushed = inner.env.now();
    while let Err(error) = batch.flush().await {
        // The sweep waits for this batch, and this batch for the room that the sweep makes. A
        // second fold finds the chunks that are in the store already.
        if error.kind() == Kind::Full || inner.env.now().since(flushed) >= limits::FLUSH_TIME_MAX {
            return Err(error.into());
        }
        wait(volume, &error, &mut pause).await?;
    }
    let over = folds.written_over(&portion.base.root).await;
    portion.base.assert_is(volume.gate.lock().vault());
    let attempt = Attempt { root, checkpoint: portion.checkpoint(), over };
    let bytes = portion.bytes;
    let (stored, finished) = match commit(volume, &attempt, &lost).await? {
        Committed::Won(held) => {
            let finished = {
                let mut gate = volume.gate.lock();
                let time = inner.env.now().since(since);
                gate.destaging.drain.add(bytes, portion.bytes_max, time);
                gate.destaging.succeeded();
                let finished = gate.finish(*held);
                volume.discounted(&gate.room, finished.flash_bytes);
                finished
            };
            batch.committed();
            (Stored::Won, finished)
        }
        Committed::Late(finished) => (Stored::Late, finished),
    };
    metrics::counter!("rekindle_destaged_changes_total").increment(finished.changes.len() as u64);
    metrics::counter!("rekindle_destaged_bytes_total").increment(bytes);
    metrics::counter!("rekindle_destage_batches_total").increment(1);
    conclude(volume, finished).await;
    inner.admit_waiting();
    Ok(stored)
}

/// Writes the vault until the outcome is known: an attempt with an unknown outcome is decided by
/// reading the vault back.
pub(crate) async fn commit(
    volume: &Arc<Staged>,
    attempt: &Attempt,
    lost: &[Lost],
) -> Result<Committed, Error> {
    let inner = &volume.inner;
    let life = inner.writer.life().incarnation;
    let mut over = volume.held();
    let ours = over.value.clone();
    // From our own history: a deposed life's content is no earlier content of the volume.
    let mut before = ours.clone();
    let mut pause = Duration::ZERO;
    let mut conflicts = 0;
    if ours.owner != Some(inner.writer.node) || ours.generation != volume.generation {
        return Err(volume.fenced());
    }
    inner.not_dismissed().await?;
    loop {
        let signed = {
            let gate = volume.gate.lock();
            volume.may_promise(&gate)?;
            lives::signed(
                &over.value,
                life,
                (gate.basis.begins, &gate.basis.runs),
                attempt.checkpoint,
            )
        };
        let time = versions::Time::of(&inner.env);
        let versions = versions::next(&before, attempt, &inner.spared(volume.id), time);
        let snapshots = snapshot::reached(&over.value, attempt.checkpoint, &attempt.root, lost);
        let value =
            Vault { root: attempt.root, lost: lost.to_vec(), versions, snapshots, ..signed };
        let begun = inner.env.now();
        let error = match inner.writer.replace(&over, value).await {
            Ok(won) => {
                inner.measured(inner.env.now().since(begun));
                return Ok(Committed::Won(Box::new(won)));
            }
            Err(error) => error,
        };
        conflicts += 1;
        if error.kind() != Kind::Conflict || conflicts > limits::CONFLICTS_MAX {
            wait(volume, &error, &mut pause).await?;
        }
        let found = vault_now(volume, &over.key, &mut pause).await?;
        match judge(life, &ours, attempt, &found.value) {
            Verdict::Won => return Ok(Committed::Won(Box::new(found))),
            Verdict::Unchanged if error.kind() == Kind::Full => return Err(error.into()),
            Verdict::Unchanged => {
                before = found.value.clone();
                over = found;
            }
            Verdict::Late => match adopt(volume, found.clone()).await? {
                Some(finished) => return Ok(Committed::Late(finished)),
                None => over = found,
            },
            Verdict::Fenced => return Err(volume.fenced()),
            Verdict::Deposed => return Err(volume.deposed_by(found.value.incarnation)),
            Verdict::Absurd => return Err(set_back(volume, &found.value, &ours)),
        }
    }
}

/// Reads the vault, however long the store is away.
pub(crate) async fn vault_now(
    volume: &Arc<Staged>,
    key: &str,
    pause: &mut Duration,
) -> Result<Held<Vault>, Error> {
    loop {
        let problem = match volume.inner.writer.read::<Vault>(key).await {
            Ok(Some(found)) => return Ok(found),
            // Removing a volume leaves a vault that records the removal. A store without the
            // vault is not the right store.
            Ok(None) => rekindle_datastore::Error::NotFound(key.to_owned()),
            Err(error) => error,
        };
        wait(volume, &problem, pause).await?;
    }
}

/// The error of a vault that is older than the one that this life wrote.
fn set_back(volume: &Staged, found: &Vault, ours: &Vault) -> Error {
    let reason = format!(
        "the vault in the store says checkpoint {} of generation {}, we wrote checkpoint {} of generation {}: \
         the store was set back to an older state",
        found.checkpoint, found.generation, ours.checkpoint, ours.generation
    );
    Error::Lost { volume: volume.name.clone(), reason }
}

/// Pauses after an error of the store, longer each time, and records the error in the volume's
/// state.
pub(crate) async fn wait(
    volume: &Arc<Staged>,
    error: &(dyn std::error::Error + Sync),
    pause: &mut Duration,
) -> Result<(), Error> {
    *pause = (*pause * 2).clamp(limits::BACKOFF_MIN, limits::BACKOFF_MAX);
    tracing::warn!(volume = %volume.name, %error, ?pause, "the store does not take the batch, will try again");
    volume.gate.lock().destaging.error = Some(error.to_string());
    volume.pause(*pause).await
}

/// Adopts a commit of an earlier attempt. `None` when this life's commit goes over it: an older
/// life made it from other changes after this one had begun, or a sweep has deleted what it leads
/// to. This life has all those changes.
async fn adopt(volume: &Arc<Staged>, held: Held<Vault>) -> Result<Option<Finished>, Error> {
    if !is_whole(volume, &held.value.root).await? {
        metrics::counter!("staging_commits_gone_over").increment(1);
        tracing::error!(
            volume = %volume.name,
            checkpoint = %held.value.checkpoint,
            "a commit has landed so late that a sweep has deleted what it leads to: it is made once more, out of the log"
        );
        return Ok(None);
    }
    let life = volume.inner.writer.life().incarnation;
    let (of, checkpoint) = (held.value.incarnation, held.value.checkpoint);
    let is_older = volume.inner.is_older_than_copies(of);
    let landed = volume.gate.lock().adopt(held, life, is_older);
    match landed {
        Landed::Adopted(finished) => {
            tracing::info!(volume = %volume.name, %checkpoint, life = %of, "an earlier commit has landed late");
            volume.discounted(&volume.gate.lock().room, finished.flash_bytes);
            Ok(Some(finished))
        }
        Landed::Deposed => {
            metrics::counter!("staging_commits_gone_over").increment(1);
            tracing::error!(
                volume = %volume.name,
                %checkpoint,
                "start {of} of this node went on after start {life} had taken over: what it wrote since is not of the volume"
            );
            Ok(None)
        }
        Landed::Strange => {
            let error = Error::Closed(volume.name.clone());
            tracing::warn!(
                volume = %volume.name,
                %checkpoint,
                "a commit has landed late, with records that no client was told of: the volume begins again with its content"
            );
            if volume.end_with(error.clone()) {
                volume.inner.park(volume);
            }
            Err(error)
        }
        Landed::Absurd => {
            let reason = format!(
                "volume {}: the vault in the store is of start {of} of this node, and its checkpoint {checkpoint} claims \
                 changes that start {life} has logged: it cannot be known which are right, so nothing more is acknowledged. They \
                 stay in the log; `rekindle salvage run {} --accept-losses` goes on from the store",
                volume.name, volume.name
            );
            Err(volume.stopped(Error::Deposed(reason)))
        }
    }
}

/// Whether the chunks that a late commit leads to are still there. A life that never saw the
/// store's vault may have no other content: for that life the answer is yes.
async fn is_whole(volume: &Arc<Staged>, root: &Root) -> Result<bool, Error> {
    let (seen, known) = {
        let gate = volume.gate.lock();
        (gate.basis.seen, gate.vault().root)
    };
    if !seen {
        return Ok(true);
    }
    let mut pause = Duration::ZERO;
    loop {
        match rekindle_content::landed::is_whole(&volume.inner.content, root, &known).await {
            Ok(is_whole) => return Ok(is_whole),
            Err(error) => wait(volume, &error, &mut pause).await?,
        }
    }
}

/// Ends a commit: notifies the waiting callers, and drops the changes that the datastore has now
/// and no salvage could want.
pub(crate) async fn conclude(volume: &Arc<Staged>, finished: Finished) {
    let checkpoint = volume.gate.lock().checkpoint();
    notify(finished.waiters, &Ok(()));
    volume.purge(&finished.changes, checkpoint);
    volume.keep_earlier(finished.before, finished.changes);
}

/// The error of a batch whose writes leave too many separate lost stretches.
fn scattered(volume: &Staged) -> Error {
    Error::Invalid(format!(
        "volume {}: more than {} separate stretches would be lost after this batch: write over larger parts of what is \
         lost, or trim it",
        volume.name,
        limits::LOST_MAX
    ))
}

/// The error of a batch that could not be folded. Names the changes that cannot be read back:
/// damaged bytes are never folded, and never passed over in silence.
async fn failed_by(volume: &Arc<Staged>, portion: &Portion, first: Error) -> Error {
    if !matches!(first, Error::Log(rekindle_log::Error::Damaged { .. })) {
        return first;
    }
    let mut damaged = Vec::new();
    let mut buffer = Vec::new();
    for (index, change) in portion.changes.iter().enumerate() {
        let Payload::Log(place) = &change.payload else { continue };
        buffer.resize(place.length() as usize, 0);
        if let Err(error @ rekindle_log::Error::Damaged { .. }) = place.read(0, &mut buffer).await {
            let serial = Serial(portion.first().0 + index as u64);
            damaged.push(format!("serial {serial} ({}): {error}", change.name()));
        }
    }
    if damaged.is_empty() {
        return first;
    }
    let heal = match volume.home {
        Home::Range(_) => "write over them, or ",
        Home::Record(_) => "",
    };
    let reason = format!(
        "{}: {heal}`rekindle salvage run {} --accept-losses` goes on from what is whole before them",
        damaged.join("; "),
        volume.name
    );
    Error::Lost { volume: volume.name.clone(), reason }
}
