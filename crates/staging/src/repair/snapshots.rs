//! The repair of the contents that snapshots keep. Chunks that can be had come back there, as in
//! the present content. Nothing of a snapshot is given up: what cannot be had stays an error of
//! those who read it, and the rest is as it was.

use crate::ack::staged::Staged;
use crate::{Error, Snapshot, Vault, limits};
use rekindle_content::salvage::{Findings, MayDrop, examine_each, settle};
use rekindle_content::tree::{Root, prune};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The contents of snapshots that differ from the present one, each with the first of the
/// snapshots that have it.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) roots: Vec<Root>,
    names: Vec<String>,
}

impl Kept {
    pub(super) fn of(vault: &Vault) -> Kept {
        let mut kept = Kept::default();
        let mut seen = HashSet::from([None, vault.root]);
        for Snapshot { name, content, .. } in &vault.snapshots {
            if let Some(content) = content
                && seen.insert(content.root)
            {
                kept.roots.push(content.root);
                kept.names.push(name.clone());
            }
        }
        kept
    }
}

/// The result of a repair.
#[derive(Debug, Default)]
pub(super) struct Mended {
    /// Chunks that came back.
    pub(super) refetched: u64,
    /// Of these, from parity.
    pub(super) from_parity: u64,
    /// The snapshots that lack chunks, and how many: a name for each content.
    pub(super) lack: Vec<(String, u64)>,
    /// What was found and done, for the user.
    pub(super) lines: Vec<String>,
}

impl Staged {
    /// Brings back what `findings` miss in the contents of snapshots.
    pub(super) async fn mend_snapshots(
        self: &Arc<Self>,
        kept: Kept,
        findings: Findings,
    ) -> Result<Mended, Error> {
        let (mut kept, mut findings, mut mended) = (kept, findings, Mended::default());
        for _ in 0..limits::SALVAGE_PASSES_MAX {
            if findings.are_chunks_sound()
                || !self.restore(&kept.roots, &findings, &mut mended).await?
            {
                break;
            }
            let content = &self.inner.content;
            let _hold = content.hold();
            kept = Kept::of(self.gate.lock().vault());
            findings = examine_each(content, &kept.roots, &mut |_| ()).await?;
        }
        let mut lack = BTreeMap::<String, u64>::new();
        for damage in findings.damages() {
            *lack.entry(kept.names[damage.root].clone()).or_default() += 1;
        }
        mended.lack = lack.into_iter().collect();
        Ok(mended)
    }

    /// Commits the chunks that come back. Returns whether there were any.
    async fn restore(
        self: &Arc<Self>,
        roots: &[Root],
        findings: &Findings,
        mended: &mut Mended,
    ) -> Result<bool, Error> {
        let _turn = self.turn().await;
        let mut batch = self.inner.content.batch();
        let (fates, restored) =
            settle(&self.inner.content, &mut batch, findings, MayDrop::Nothing).await?;
        let mut moved = HashMap::new();
        for root in roots {
            let new = match self.home.repair() {
                None => prune(&mut batch, root, &fates).await?.root,
                Some(home) => home.cut(&mut batch, root, &fates).await?.root,
            };
            if new != *root {
                moved.insert(*root, new);
            }
        }
        batch.flush().await?;
        if !moved.is_empty() {
            let change = |vault: &Vault| {
                let mut next = vault.clone();
                for content in next.snapshots.iter_mut().filter_map(|one| one.content.as_mut()) {
                    content.root = *moved.get(&content.root).unwrap_or(&content.root);
                }
                Ok(next)
            };
            let has_landed = |vault: &Vault| {
                let mut contents = vault.snapshots.iter().filter_map(|one| one.content.as_ref());
                contents.all(|content| !moved.contains_key(&content.root))
            };
            self.rewrite(change, has_landed).await?;
        }
        batch.committed();
        mended.lines.extend(restored.lines);
        mended.refetched += restored.refetched;
        mended.from_parity += restored.from_parity;
        Ok(restored.again || restored.refetched > 0)
    }
}
