//! Snapshots: contents of a volume that the user keeps under names.
//!
//! A snapshot is a serial first: it holds exactly the changes up to there. The vault names it as
//! soon as the log has these changes; the commit that reaches the serial gives it the root. No
//! batch goes on beyond the serial of such a *pending* snapshot ([`cut`]).

use super::{check_lost, check_root, check_size};
use crate::{Lost, Vault, limits};
use rekindle_base::Serial;
use rekindle_base::limits::NAME_BYTES_MAX;
use rekindle_content::tree::Root;
use serde::{Deserialize, Serialize};

/// A content of a volume that the user keeps under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    /// Counts the snapshots of the volume from 1; never given again.
    pub number: u32,
    /// Microseconds since 1970. For the user only.
    pub taken: u64,
    /// The serial up to which it holds the changes.
    pub checkpoint: Serial,
    /// Bytes of the volume then.
    pub size: u64,
    /// The content; none until the datastore has the changes up to the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<SnapshotContent>,
}

/// The content of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotContent {
    pub root: Root,
    /// Lost stretches of this content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Lost>,
}

/// The serial beyond which no batch goes: that of the first snapshot that waits for its content.
pub(crate) fn cut(snapshots: &[Snapshot]) -> Option<Serial> {
    snapshots.iter().filter(|one| one.content.is_none()).map(|one| one.checkpoint).min()
}

/// The serial up to which the log must have the changes: that of the last snapshot that waits for
/// its content. No snapshot is in a vault before the log has its changes durably.
pub(crate) fn awaits(snapshots: &[Snapshot]) -> Option<Serial> {
    snapshots.iter().filter(|one| one.content.is_none()).map(|one| one.checkpoint).max()
}

/// The snapshots of `vault` once it has the content `root` at `checkpoint`. A pending snapshot
/// that the checkpoint has passed by is left out: its content is nowhere.
pub(crate) fn reached(
    vault: &Vault,
    checkpoint: Serial,
    root: &Root,
    lost: &[Lost],
) -> Vec<Snapshot> {
    let present = || Some(SnapshotContent { root: *root, lost: lost.to_vec() });
    let is_mended = checkpoint == vault.checkpoint;
    let mut snapshots = Vec::with_capacity(vault.snapshots.len());
    for one in &vault.snapshots {
        let content = match &one.content {
            // A salvage has mended the very content that it holds.
            Some(held) if is_mended && one.checkpoint == checkpoint && held.root == vault.root => {
                present()
            }
            None if one.checkpoint == checkpoint => present(),
            held => held.clone(),
        };
        if content.is_none() && one.checkpoint < checkpoint {
            tracing::error!(
                volume = vault.name,
                snapshot = one.name,
                "the volume went on from changes that are not whole, and the snapshot is given up"
            );
            continue;
        }
        snapshots.push(Snapshot { content, ..one.clone() });
    }
    snapshots
}

/// The snapshots that stay when the unfinished changes behind `through` are given up.
pub(crate) fn kept(vault: &Vault, through: Serial) -> Vec<Snapshot> {
    let is_whole = |one: &&Snapshot| one.content.is_some() || one.checkpoint <= through;
    vault.snapshots.iter().filter(is_whole).cloned().collect()
}

/// The snapshots that stay when all unfinished changes of a volume are given up.
#[must_use]
pub fn with_content(vault: &Vault) -> Vec<Snapshot> {
    kept(vault, vault.checkpoint)
}

/// Checks that the snapshots of a vault agree with it.
pub(super) fn check(vault: &Vault) -> Result<(), String> {
    if vault.snapshots.len() > limits::SNAPSHOTS_MAX {
        return Err(format!("it lists {} snapshots", vault.snapshots.len()));
    }
    let mut last = 0;
    for one in &vault.snapshots {
        if one.name.is_empty() || one.name.len() > NAME_BYTES_MAX {
            return Err(format!("a snapshot has a name of {} bytes", one.name.len()));
        }
        if one.number <= last || one.number > vault.snapshots_taken {
            return Err(format!("its snapshot number {} is out of order", one.number));
        }
        last = one.number;
        check_size("size of a snapshot", one.size)?;
        match &one.content {
            Some(content) => {
                check_root("root of a snapshot", &content.root)?;
                check_lost("lost of a snapshot", &content.lost, one.size)?;
            }
            None if one.checkpoint <= vault.checkpoint => {
                return Err(format!(
                    "a snapshot waits for serial {}, and it has serial {}",
                    one.checkpoint, vault.checkpoint
                ));
            }
            None => {}
        }
    }
    Ok(())
}
