//! The repair of a volume of records. Only its kind knows what is below the keys of its tree, so
//! the kind cuts what is lost out of it, and makes the rest fit together again.

use crate::Error;
use crate::ack::staged::Staged;
use crate::record::repair::{Cut, RecordRepair};
use crate::repair::salvage::{Allowance, Salvaged};
use crate::shape::Home;
use rekindle_content::Batch;
use rekindle_content::salvage::{Findings, MayDrop, Repaired, repair, settle};
use rekindle_content::tree::Root;
use std::sync::Arc;

impl Home {
    /// Returns what a home of records repairs by itself.
    pub(super) fn repair(&self) -> Option<&dyn RecordRepair> {
        match self {
            Home::Range(_) => None,
            Home::Record(home) => home.repair(),
        }
    }
}

impl Staged {
    /// Returns how many bytes the content takes, of a volume that counts them against its size.
    pub async fn taken(&self) -> Result<Option<u64>, Error> {
        match &self.home {
            Home::Range(_) => Ok(None),
            Home::Record(home) => home.taken().await,
        }
    }

    /// Repairs a root into `batch`, which is flushed. Also returns what is lost of a volume of
    /// records, for the user.
    pub(super) async fn mend(
        &self,
        batch: &mut Batch,
        root: &Root,
        findings: &Findings,
        may_drop: MayDrop,
    ) -> Result<(Repaired, Vec<String>), Error> {
        let content = &self.inner.content;
        let Some(home) = self.home.repair() else {
            let repaired = repair(content, batch, root, findings, may_drop).await?;
            return Ok((repaired, Vec::new()));
        };
        let (fates, mut repaired) = settle(content, batch, findings, may_drop).await?;
        let Cut { root, lost, losses, follows } = home.cut(batch, root, &fates).await?;
        batch.flush().await?;
        (repaired.root, repaired.lost) = (root, lost);
        Ok((repaired, losses.into_iter().chain(follows).collect()))
    }

    /// Looks whether the parts of the tree fit together, and makes them do so if the salvage may
    /// give things up.
    pub(super) async fn tidy(
        self: &Arc<Self>,
        allowance: Allowance,
        salvaged: &mut Salvaged,
    ) -> Result<(), Error> {
        let Some(home) = self.home.repair() else { return Ok(()) };
        if allowance != Allowance::ALL {
            let _hold = self.inner.content.hold();
            let root = self.gate.lock().vault().root;
            let mut batch = self.inner.content.batch();
            let tidied = home.tidy(&mut batch, &root, self.inner.env.wall_clock()).await?;
            salvaged.untidy = tidied.lines;
            return Ok(());
        }
        // What is unfinished was judged by the tree as it is.
        let _still = home.still().await;
        self.drain().await?;
        let _turn = self.turn().await;
        let (root, before) = {
            let gate = self.gate.lock();
            gate.in_service()?;
            (gate.vault().root, gate.vault().lost.clone())
        };
        let mut batch = self.inner.content.batch();
        let tidied = home.tidy(&mut batch, &root, self.inner.env.wall_clock()).await?;
        self.commit_root(root, tidied.root, &before, &before).await?;
        batch.committed();
        salvaged.tidied = tidied.lines;
        Ok(())
    }
}
