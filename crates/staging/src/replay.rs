//! The way back that a salvage goes before it gives anything up: the root before the last commit, and the changes of that
//! commit once more, out of the log.
//!
//! It helps when what that commit wrote is damaged and nothing else has it. It is gone only when it loses nothing that the
//! present root has, and less than that would lose.

use crate::earlier::Earlier;
use crate::quarantine::{self, Lost};
use crate::staged::Staged;
use crate::{Error, batch, plan};
use base::{Kind, Serial};
use content::salvage::{Findings, MayDrop, Repaired, examine_earlier, repair};
use content::tree::Root;
use content::verify::Progress;
use content::{Batch, Hold};
use std::sync::Arc;
use std::time::Duration;

/// An earlier root that was read through.
pub(crate) struct WayBack {
    /// Whose root it is.
    checkpoint: Serial,
    findings: Findings,
    pub(crate) checked: Progress,
    /// No sweep takes away what was found sound.
    _hold: Hold,
}

/// What the way back came to. Durable, but nobody's before it is committed.
pub(crate) struct Replayed {
    pub(crate) root: Root,
    /// All that is lost beside it.
    pub(crate) lost: Vec<Lost>,
    /// What was done to the earlier root before.
    pub(crate) repaired: Repaired,
    pub(crate) changes: u64,
    pub(crate) batch: Batch,
}

impl Staged {
    /// Reads the earlier root, if there is one, beside all other work.
    pub(crate) async fn way_back(
        &self,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Option<WayBack>, Error> {
        let hold = self.inner.content.hold();
        let Some(earlier) = self.earlier() else { return Ok(None) };
        let (root, checkpoint) = (earlier.before.root, earlier.before.checkpoint);
        // Commits of the meantime add to it.
        drop(earlier);
        let found = examine_earlier(&self.inner.content, &hold, &root, progress).await?;
        Ok(found.map(|findings| WayBack {
            checkpoint,
            checked: findings.checked,
            findings,
            _hold: hold,
        }))
    }

    /// Goes it, with the destager's place taken. `None`: it cannot be gone, or loses something more than `lost`, or nothing
    /// less.
    pub(crate) async fn replay(
        self: &Arc<Self>,
        way: &WayBack,
        lost: &[Lost],
    ) -> Result<Option<Replayed>, Error> {
        let is_its = |earlier: &Arc<Earlier>| earlier.before.checkpoint == way.checkpoint;
        let Some(earlier) = self.earlier().filter(is_its) else { return Ok(None) };
        match self.fold_again(&earlier, &way.findings).await {
            Ok(replayed) => Ok(replayed.filter(|replayed| {
                quarantine::without(&replayed.lost, lost).is_empty()
                    && !quarantine::without(lost, &replayed.lost).is_empty()
            })),
            // It is no way. An error that says nothing about it is none of losses.
            Err(Error::Content(error)) if error.missing().is_some() => Ok(None),
            Err(error) if matches!(error.kind(), Kind::Damaged | Kind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn fold_again(
        self: &Arc<Self>,
        earlier: &Earlier,
        findings: &Findings,
    ) -> Result<Option<Replayed>, Error> {
        let content = &self.inner.content;
        let mut batch = content.batch();
        // What the last commit wrote may be damaged where nobody could look, below a damaged node.
        batch.set_anew();
        let before = &earlier.before;
        let repaired =
            repair(content, &mut batch, &before.root, findings, MayDrop::Everything).await?;
        if repaired.again {
            // What is below came back unseen: nobody knows what would be lost.
            return Ok(None);
        }
        let folds = plan::coalesce(&earlier.changes);
        log::read_ahead(folds.iter().filter_map(|fold| fold.source.place())).await;
        let root = self.home.fold(&mut batch, &repaired.root, &folds).await?;
        let mut pause = Duration::ZERO;
        while let Err(error) = batch.flush().await {
            batch::wait(self, &error, &mut pause).await?;
        }
        if !pause.is_zero() {
            self.gate.lock().destage_error = None;
        }
        let gone = quarantine::with(&before.lost, &self.bytes_of(&repaired.lost));
        let lost = quarantine::healed(&gone, &folds);
        let changes = earlier.changes.len() as u64;
        Ok(Some(Replayed { root, lost, repaired, changes, batch }))
    }

    /// The earlier root, if what leads from there to the present one is whole.
    fn earlier(&self) -> Option<Arc<Earlier>> {
        let gate = self.gate.lock();
        gate.earlier.clone().filter(|earlier| earlier.through() == gate.checkpoint())
    }
}
