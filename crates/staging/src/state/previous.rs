//! The content before the last commit of a volume, as long as a salvage may want it. When it is
//! kept and when it goes is in [`crate::destage::previous_root`].

use crate::limits;
use crate::queue::Change;
use crate::range::quarantine::Lost;
use rekindle_base::Serial;
use rekindle_content::tree::Root;
use rekindle_env::Moment;
use std::sync::Arc;

/// The vault's statement of the content before a commit.
#[derive(Debug, Clone)]
pub(crate) struct Before {
    pub(crate) root: Root,
    pub(crate) lost: Vec<Lost>,
    pub(crate) checkpoint: Serial,
}

/// A previous root, and the changes that lead from there to the present one.
pub(crate) struct PreviousRoot {
    pub(crate) before: Before,
    /// The changes, all of them in the log, in serial order, none missing.
    pub(crate) changes: Vec<Change>,
    /// The moment from which on the root is old.
    pub(crate) until: Moment,
}

impl PreviousRoot {
    /// The checkpoint to which the changes lead.
    pub(crate) fn through(&self) -> Serial {
        Serial(self.before.checkpoint.0 + self.changes.len() as u64)
    }
}

/// The previous root of a volume, if one is kept, and the count of salvages that may want it.
#[derive(Default)]
pub(crate) struct Previous {
    root: Option<Arc<PreviousRoot>>,
    /// Count of the running salvages.
    pub(crate) salvages: usize,
}

/// The parts of a previous root that are not kept.
pub(crate) type Gone = (Option<Arc<PreviousRoot>>, Vec<Change>);

impl Previous {
    pub(crate) fn root(&self) -> Option<&Arc<PreviousRoot>> {
        self.root.as_ref()
    }

    /// Lets go of the root if it has to go, by the count of salvages.
    pub(crate) fn take_if(
        &mut self,
        has_to_go: impl FnOnce(usize, &PreviousRoot) -> bool,
    ) -> Option<Arc<PreviousRoot>> {
        self.root.take_if(|root| has_to_go(self.salvages, root))
    }

    /// After a commit of `changes`: keeps the root `before` it, or none. Returns what is not kept.
    /// While a salvage looks for damage from earlier commits, the root stays and gets more changes.
    pub(crate) fn follow(
        &mut self,
        before: Option<Before>,
        mut changes: Vec<Change>,
        now: Moment,
    ) -> Gone {
        let old = self.root.take();
        let Some(before) = before else { return (old, changes) };
        debug_assert!(changes.iter().all(Change::is_logged), "the log has them all");
        let until = now + limits::EARLIER_AGE_MAX;
        let fits = |changes: usize, before: &Before| {
            changes + before.lost.len() <= limits::EARLIER_CHANGES_MAX
        };
        let old = match old.map(Arc::try_unwrap) {
            Some(Ok(old))
                if self.salvages > 0
                    && old.through() == before.checkpoint
                    && fits(old.changes.len() + changes.len(), &old.before) =>
            {
                let PreviousRoot { before, changes: mut all, .. } = old;
                all.append(&mut changes);
                self.root = Some(Arc::new(PreviousRoot { before, changes: all, until }));
                return Gone::default();
            }
            Some(Ok(old)) => Some(Arc::new(old)),
            Some(Err(old)) => Some(old),
            None => None,
        };
        if !fits(changes.len(), &before) {
            return (old, changes);
        }
        self.root = Some(Arc::new(PreviousRoot { before, changes, until }));
        (old, Vec::new())
    }
}
