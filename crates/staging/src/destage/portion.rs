//! The changes of one batch, and the content that they are folded into.

use crate::ack::staged::Staged;
use crate::destage::plan;
use crate::queue::Change;
use crate::range::quarantine::Lost;
use crate::shape::Home;
use crate::state::VolumeState;
use crate::{Vault, limits};
use rekindle_base::Serial;
use rekindle_content::tree::Root;
use std::sync::Arc;

/// The content that a batch goes on from: that of the vault, or of the batch before it, which is on
/// its way.
pub(crate) struct Base {
    pub(crate) root: Root,
    /// The lost stretches of the root.
    pub(crate) lost: Vec<Lost>,
    pub(crate) checkpoint: Serial,
}

impl Base {
    fn of(vault: &Vault) -> Base {
        Base { root: vault.root, lost: vault.lost.clone(), checkpoint: vault.checkpoint }
    }

    /// A batch is committed over the content that it goes on from: else changes would be lost.
    pub(crate) fn assert_is(&self, vault: &Vault) {
        let (known, now) = ((self.root, self.checkpoint), (vault.root, vault.checkpoint));
        assert_eq!(known, now, "the content of volume {} changes in batches only", vault.name);
    }
}

/// Changes of the queue, one after the other, and the content that they are folded into.
pub(crate) struct Portion {
    pub(crate) changes: Vec<Change>,
    pub(crate) base: Base,
    /// Bytes of the changes.
    pub(crate) bytes: u64,
    /// Most bytes that the batch may have.
    pub(crate) bytes_max: u64,
}

impl Portion {
    /// The serial of the first change.
    pub(crate) fn first(&self) -> Serial {
        self.base.checkpoint.next()
    }

    pub(crate) fn checkpoint(&self) -> Serial {
        Serial(self.base.checkpoint.0 + self.changes.len() as u64)
    }
}

/// Takes the changes of the next batch. In slices, because each change is cloned under the volume's
/// lock; batches before this one may leave the queue meanwhile. `behind`: what the batch before it
/// leaves, if that is on its way; then there must be enough for another one.
pub(crate) fn take(volume: &Arc<Staged>, behind: Option<Base>) -> Option<Portion> {
    // Count of the changes at the front of the queue that come before this serial's.
    let before = |gate: &VolumeState, serial: u64| {
        usize::try_from(serial.checked_sub(gate.checkpoint().0)?).ok()
    };
    let (base, count, bytes, bytes_max) = {
        let gate = volume.gate.lock();
        let queue = &gate.changes.queue;
        let bytes_max = volume.batch_bytes_max(&volume.share(&gate.room));
        let mut bytes_max = plan::batch_bytes(queue.len(), queue.bytes(), bytes_max);
        if gate.destaging.lost.is_some() && matches!(volume.home, Home::Range(_)) {
            // A batch that holds both a damaged change and the one that overwrote it needs no
            // damaged bytes.
            bytes_max = u64::MAX;
        }
        let must_be_worth_it = behind.is_some();
        let base = behind.unwrap_or_else(|| Base::of(gate.vault()));
        let ahead = before(&gate, base.checkpoint.0)?;
        let ready = gate.foldable().saturating_sub(ahead);
        let count = plan::prefix(queue.iter().skip(ahead), ready, bytes_max);
        let bytes = queue.iter().skip(ahead).take(count).map(Change::cost).sum();
        let destage_bytes = volume.inner.config.destage_bytes;
        if must_be_worth_it && !plan::goes_on(count, bytes, destage_bytes, bytes_max) {
            return None;
        }
        (base, count, bytes, bytes_max)
    };
    let mut changes = Vec::with_capacity(count);
    while changes.len() < count {
        let gate = volume.gate.lock();
        let from = before(&gate, base.checkpoint.0 + changes.len() as u64)?;
        let upto = from + limits::SLICE_CHANGES.min(count - changes.len());
        for index in from..upto {
            // A volume that has ended has no queue.
            changes.push(gate.changes.queue.get(index)?.clone());
        }
    }
    (count > 0).then_some(Portion { changes, base, bytes, bytes_max })
}
