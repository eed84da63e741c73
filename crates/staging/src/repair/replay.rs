//! The rollback that a salvage tries before it gives anything up: the previous root, and the
//! changes of the last commit folded once more, out of the log.
//!
//! A rollback helps when chunks that the last commit wrote are damaged, and no other copy of them
//! exists. The salvage takes it only when it loses nothing that the present root has, and less than
//! the present root would lose.

use crate::Error;
use crate::ack::staged::Staged;
use crate::destage::batch;
use crate::range::quarantine::{self, Lost};
use crate::shape::{Folds, Home};
use crate::state::previous::PreviousRoot;
use rekindle_base::{Kind, Serial};
use rekindle_content::salvage::{Findings, MayDrop, Repaired, examine_earlier};
use rekindle_content::tree::Root;
use rekindle_content::verify::Progress;
use rekindle_content::{Batch, Hold};
use std::sync::Arc;
use std::time::Duration;

/// The plan of a rollback: a previous root that was read through.
pub(crate) struct RollbackPlan {
    /// Checkpoint of the previous root.
    checkpoint: Serial,
    findings: Findings,
    pub(crate) checked: Progress,
    /// Keeps sweeps from taking chunks that were found sound.
    _hold: Hold,
}

/// The result of a rollback: durable, but of no volume before it is committed.
pub(crate) struct Replayed {
    pub(crate) root: Root,
    /// All stretches that are lost beside the root.
    pub(crate) lost: Vec<Lost>,
    /// The repairs of the previous root before that.
    pub(crate) repaired: Repaired,
    pub(crate) changes: u64,
    pub(crate) batch: Batch,
}

impl Staged {
    /// Reads the previous root, if there is one, beside all other work.
    pub(crate) async fn way_back(
        &self,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<RollbackPlan>, Error> {
        let hold = self.inner.content.hold();
        let Some(previous) = self.previous() else { return Ok(None) };
        let (root, checkpoint) = (previous.before.root, previous.before.checkpoint);
        // Dropped, because commits of the meantime add to the previous root.
        drop(previous);
        let found = examine_earlier(&self.inner.content, &hold, &root, progress).await?;
        Ok(found.map(|findings| RollbackPlan {
            checkpoint,
            checked: findings.checked,
            findings,
            _hold: hold,
        }))
    }

    /// Carries the plan out; the caller has taken the destager's place. `None` when the rollback is
    /// impossible, loses a byte that is not in `lost`, or loses no less than `lost`.
    pub(crate) async fn replay(
        self: &Arc<Self>,
        way: &RollbackPlan,
        lost: &[Lost],
    ) -> Result<Option<Replayed>, Error> {
        let is_its = |previous: &Arc<PreviousRoot>| previous.before.checkpoint == way.checkpoint;
        let Some(previous) = self.previous().filter(is_its) else { return Ok(None) };
        match self.fold_again(&previous, &way.findings).await {
            Ok(replayed) => Ok(replayed.filter(|replayed| {
                quarantine::without(&replayed.lost, lost).is_empty()
                    && !quarantine::without(lost, &replayed.lost).is_empty()
            })),
            // The previous root is damaged too: give up the rollback. Any other error is transient;
            // return it.
            Err(Error::Content(error)) if error.missing().is_some() => Ok(None),
            Err(error) if matches!(error.kind(), Kind::Damaged | Kind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn fold_again(
        self: &Arc<Self>,
        previous: &PreviousRoot,
        findings: &Findings,
    ) -> Result<Option<Replayed>, Error> {
        let content = &self.inner.content;
        let mut batch = content.batch();
        // Chunks of the last commit may be damaged where they could not be read, below a damaged
        // node.
        batch.set_anew();
        let before = &previous.before;
        let (repaired, _) =
            self.mend(&mut batch, &before.root, findings, MayDrop::Everything).await?;
        // A record says what is, by what was there: it never goes over a part that is not.
        let of_records = matches!(self.home, Home::Record(_));
        if repaired.again || (of_records && !repaired.lost.is_empty()) {
            // The parts below came back unread: it is unknown what would be lost.
            return Ok(None);
        }
        let first = before.checkpoint.next();
        let folds = Folds::of(&self.home, first, &previous.changes).await?;
        let root = folds.fold(&mut batch, &repaired.root).await?;
        let mut pause = Duration::ZERO;
        while let Err(error) = batch.flush().await {
            batch::wait(self, &error, &mut pause).await?;
        }
        if !pause.is_zero() {
            self.gate.lock().destaging.error = None;
        }
        let gone = quarantine::with(&before.lost, &self.stretches_of(&repaired.lost));
        let lost = folds.healed(&gone);
        let changes = previous.changes.len() as u64;
        Ok(Some(Replayed { root, lost, repaired, changes, batch }))
    }

    /// The previous root, if the changes from there to the present one are complete.
    fn previous(&self) -> Option<Arc<PreviousRoot>> {
        let gate = self.gate.lock();
        gate.previous.root().filter(|root| root.through() == gate.checkpoint()).cloned()
    }
}
