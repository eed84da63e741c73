//! What a vault that was read back says about our attempt to commit. Pure.

use crate::{Vault, VaultState};
use base::Serial;
use content::tree::Root;

#[cfg(test)]
mod tests;

/// What we tried to write over a vault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) root: Root,
    pub(crate) checkpoint: Serial,
    /// Bytes of the volume that are written over by it, or given up.
    pub(crate) over: u64,
}

/// The judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Our attempt is there.
    Won,
    /// Content and checkpoint are as before: try again over what was read.
    Unchanged,
    /// An earlier attempt of ours, from before a restart, has landed late.
    Late,
    /// Another owner or generation: stop.
    Fenced,
    /// The vault went back, or says something that we cannot have written.
    Absurd,
}

/// Judges `found` after an attempt over `ours`.
pub(crate) fn judge(ours: &Vault, attempt: &Attempt, found: &Vault) -> Verdict {
    let same_writer = found.owner == ours.owner && found.generation == ours.generation;
    if !same_writer || found.id != ours.id || found.state == VaultState::Deleted {
        // A vault of an older generation is not a newer owner but a store that was set back.
        return if found.generation < ours.generation { Verdict::Absurd } else { Verdict::Fenced };
    }
    if found.root == attempt.root && found.checkpoint == attempt.checkpoint {
        Verdict::Won
    } else if found.root == ours.root && found.checkpoint == ours.checkpoint {
        Verdict::Unchanged
    } else if found.checkpoint >= ours.checkpoint {
        // With the same checkpoint it is a salvage: that changes the root only.
        Verdict::Late
    } else {
        Verdict::Absurd
    }
}
