//! The verdict about a vault that was read back after an attempt to commit. Pure.

use crate::{Vault, VaultState};
use rekindle_base::{Incarnation, Serial};
use rekindle_content::tree::Root;

#[cfg(test)]
pub(crate) mod tests;

/// The content that a commit tries to write over a vault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) root: Root,
    pub(crate) checkpoint: Serial,
    /// Bytes with content that the attempt writes over, or gives up.
    pub(crate) over: u64,
}

/// The judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Our attempt is there.
    Won,
    /// Content and checkpoint are as before: try again over the vault that was read.
    Unchanged,
    /// An earlier attempt of this life, or of an older one, has landed. It is adopted if it fits
    /// our changes, else gone over ([`crate::recover::lives::Runs::fit`]).
    Late,
    /// Another owner or generation: the volume stops.
    Fenced,
    /// A newer life of this node has it: all volumes stop.
    Deposed,
    /// The vault went back, or has content that we cannot have written.
    Absurd,
}

/// Judges `found` after an attempt of the life `life` over `ours`.
pub(crate) fn judge(life: Incarnation, ours: &Vault, attempt: &Attempt, found: &Vault) -> Verdict {
    if found.id == ours.id && found.owner == ours.owner && found.incarnation > life {
        return Verdict::Deposed;
    }
    let same_writer = found.owner == ours.owner && found.generation == ours.generation;
    if !same_writer || found.id != ours.id || found.state != VaultState::Live {
        // A vault of an older generation is not a newer owner but a store that was set back.
        return if found.generation < ours.generation { Verdict::Absurd } else { Verdict::Fenced };
    }
    let is = |root: &Root, checkpoint| found.root == *root && found.checkpoint == checkpoint;
    if found.incarnation == life && is(&attempt.root, attempt.checkpoint) {
        Verdict::Won
    } else if is(&ours.root, ours.checkpoint) {
        Verdict::Unchanged
    } else if found.checkpoint >= ours.checkpoint {
        // A late commit with the same checkpoint is a salvage: it changes the root only.
        Verdict::Late
    } else {
        Verdict::Absurd
    }
}
