//! The vault on which a volume's unfinished changes build, and the lives that logged them.

use super::previous::Before;
use crate::Vault;
use crate::recover::lives::{Fit, Runs};
use rekindle_base::{Incarnation, Serial};
use rekindle_datastore::record::Held;

/// The vault of a volume in service, and the history of the changes behind it.
pub(crate) struct Basis {
    /// The vault as last read or written; its root and checkpoint are what the home has.
    pub(crate) held: Held<Vault>,
    /// Whether the vault was read from the store in this life; else a copy of it was believed.
    pub(crate) seen: bool,
    /// The serial behind which this life of the node began to log changes of the volume.
    pub(crate) begins: Serial,
    /// The lives that logged the changes before that.
    pub(crate) runs: Runs,
}

impl Basis {
    /// Takes over the vault that a commit of ours has written. Returns what the last one said.
    pub(crate) fn commit(&mut self, held: Held<Vault>) -> Before {
        self.grows_to(&held.value);
        self.seen = true;
        let Vault { root, lost, checkpoint, .. } = std::mem::replace(&mut self.held, held).value;
        Before { root, lost, checkpoint }
    }

    /// Judges an earlier attempt, of an earlier life or of this one. The log has `logged` changes
    /// behind the checkpoint.
    pub(crate) fn fit(&self, found: &Vault, life: Incarnation, logged: usize) -> Fit {
        self.grows_to(found);
        let checkpoint = self.held.value.checkpoint;
        let last = Serial(checkpoint.0 + logged as u64);
        self.runs.fit((life, self.begins), (checkpoint, last), found)
    }

    /// Takes over the vault of an earlier attempt that fits.
    pub(crate) fn adopt(&mut self, held: Held<Vault>, life: Incarnation) {
        if held.value.incarnation != life {
            // All changes behind that commit are of this life.
            self.begins = self.begins.max(held.value.checkpoint);
        }
        self.held = held;
        self.seen = true;
    }

    /// Takes over a vault that was rewritten with other settings, unless a commit has come in
    /// between.
    pub(crate) fn adopt_settings(&mut self, held: Held<Vault>) {
        let (ours, theirs) = (&self.held.value, &held.value);
        let same = (ours.owner, ours.generation, ours.checkpoint, ours.root)
            == (theirs.owner, theirs.generation, theirs.checkpoint, theirs.root);
        let newer = held.mark().edition > self.held.mark().edition;
        if newer && same && ours.id == theirs.id && ours.state == theirs.state {
            self.held = held;
        }
    }

    fn grows_to(&self, next: &Vault) {
        let present = &self.held.value;
        assert!(next.checkpoint >= present.checkpoint, "checkpoints only grow");
        assert!(next.generation >= present.generation, "generations only grow");
    }
}
