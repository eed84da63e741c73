//! The log that a node has left at this host, opened once more: a holder of its copies took the
//! node over while the host was away ([`crate::cluster::left`]).
//!
//! Volumes without copies have their last changes there and nowhere else, so the node's next lives
//! refuse them. Here they are opened as by the life that wrote that log, but no client is served:
//! each is handed over to this host's own node, as in any move. What the log has goes to the
//! store, then one conditional write of the vault names the next owner.
//!
//! Four facts make that safe:
//! - The node's record names the life at whose end it was taken over, and this folder has noted
//!   that very start. So no copy of the folder has a newer log.
//! - The vault still names that life or an older one. A later life writes the vault before it
//!   serves such a volume (`Staging::taken`), and only one of the two writes lands.
//! - Chunks go through the host's content, and each commit asks whether the host's own start goes
//!   on: sweeps wait for that one.
//! - The host's process has the lock of the folder, so the process of that life is gone. A write of
//!   the vault that it has left on its way is met as any attempt that lands late.

use crate::Error;
use crate::assemble::{Node, log_config};
use crate::config::{Config, Sizes};
use crate::core::{self, Remainder};
use crate::node_file::NodeFile;
use crate::record::{self, LeftBehind, NodeRecord};
use crate::warm_memory;
use rekindle_base::{Incarnation, Life, NodeId, VolumeId};
use rekindle_env::BoxFuture;
use rekindle_log::Log;
use rekindle_staging::{Vault, VaultState};
use rekindle_volume::{Confirm, Error as VolumeError};
use rekindle_warm::Arena;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The log that a node has left here, and what serves its volumes.
pub(crate) struct Remains {
    pub(crate) node: NodeId,
    /// The last life at this host.
    pub(crate) last: Incarnation,
    parts: Remainder,
    /// The file of that life's warm memory, if this machine still has it.
    warm: Option<PathBuf>,
    /// What the log has lost: nothing, as long as no volume needs it.
    damage: Vec<String>,
}

impl Remains {
    /// Opens what a node has left in `folder`. `None`: nothing shows that the log there is the last
    /// one of the node before it was taken over.
    pub(crate) async fn open(host: &Node, folder: &Path) -> Result<Option<Self>, Error> {
        let Some(file) = NodeFile::read(&host.env, folder).await? else { return Ok(None) };
        let writer = host.writer_of(file.node);
        let store = |source| Error::Store { url: host.config.store_url(), source };
        let record = record::read(&writer).await.map_err(store)?;
        let left = record.and_then(|held| proven(&held.value, &file));
        let Some(left) = left else { return Ok(None) };
        let config = Config { dir: folder.to_owned(), take_identity: None, ..host.config.clone() };
        let sizes = Sizes {
            flash_bytes: config.flash_bytes.unwrap_or(file.sizes.flash_bytes),
            warm_bytes: config.warm_bytes.unwrap_or(file.sizes.warm_bytes),
        };
        let (arena, warm) = memory(host, (&config, sizes), &file, &left).await;
        let log_config = log_config(&config, file.node, sizes, host.scale());
        let log = Log::find(&host.env, arena, log_config, warm.is_some(), file.known_log()).await?;
        if log.newest_life() > Some(left.incarnation) {
            return Ok(None);
        }
        let (log, opened) = log.open(left.incarnation).await?;
        let writer = writer.with_incarnation(left.incarnation);
        let settings = (&config, sizes, host.scale());
        let kinds = (host.kit.kinds)();
        let parts = core::remainder(settings, host, (writer, log), kinds);
        let damage = opened.damage;
        Ok(Some(Self { node: file.node, last: left.incarnation, parts, warm, damage }))
    }

    /// Whether only this log has all changes of a volume.
    pub(crate) fn has(&self, vault: &Vault) -> bool {
        is_left_behind(vault, Life { node: self.node, incarnation: self.last })
    }

    /// Hands a volume over to the host's own node.
    pub(crate) async fn give(&self, host: &Arc<Node>, name: &str) -> Result<(), VolumeError> {
        let host = host.clone();
        let confirm: Confirm =
            Box::new(move || -> BoxFuture<'static, Result<Life, VolumeError>> {
                let fenced = host.staging.fenced();
                let life = Life { node: host.id, incarnation: host.incarnation };
                Box::pin(async move { fenced.map_or(Ok(life), |error| Err(error.into())) })
            });
        self.parts.volumes.move_to(name, confirm, |_, _| ()).await.map(drop)
    }

    /// The volumes of which the log has changes that were not in the store.
    pub(crate) async fn unfinished(&self) -> Result<BTreeSet<VolumeId>, Error> {
        let volumes = self.parts.log.unfinished_volumes().await?;
        Ok(volumes.into_iter().map(|(volume, _)| volume).collect())
    }

    /// Tells what the log has lost. A log that no volume needs any more may have been removed in
    /// part, before the process was killed.
    pub(crate) fn tell_damage(&self) {
        for damage in &self.damage {
            tracing::error!(node = %self.node, %damage, "damage in a log that was left behind");
        }
    }

    /// Flash that the log takes, bytes.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.parts.log.usage().flash_bytes
    }

    /// Closes the log. If nothing needs it any more, its warm memory goes.
    pub(crate) async fn close(self, host: &Node, is_needed: bool) {
        let stopped = self.parts.volumes.stop(false).await.map_err(Error::from);
        self.parts.staging.stop().await;
        let closed = self.parts.log.close().await.map_err(Error::from);
        if let Err(error) = stopped.and(closed) {
            tracing::warn!(node = %self.node, %error, "a log that was left behind was not closed in order");
        }
        if let Some(path) = self.warm.filter(|_| !is_needed)
            && let Err(error) = host.env.memory().unmap(&path)
        {
            tracing::warn!(path = %path.display(), %error, "warm memory that nothing needs stays");
        }
    }
}

/// The last life at this host, if the node's record names it, and this folder has noted that very
/// start. A copy of the folder that was made before may lack what that life has acknowledged.
fn proven(record: &NodeRecord, file: &NodeFile) -> Option<LeftBehind> {
    record.left_behind.filter(|left| file.is_own() && file.starts.have(left.nonce))
}

/// Whether only the log that a node has left behind, after the life `last`, has all changes of a
/// volume.
fn is_left_behind(vault: &Vault, last: Life) -> bool {
    vault.owner == Some(last.node)
        && vault.incarnation <= last.incarnation
        && vault.state != VaultState::Deleted
        && vault.is_bound_to_its_machine()
}

/// The warm memory of that life and its file, if this machine still has it as that life left it;
/// else an empty one.
async fn memory(
    host: &Node,
    (config, sizes): (&Config, Sizes),
    file: &NodeFile,
    left: &LeftBehind,
) -> (Arena, Option<PathBuf>) {
    let (env, scale) = (&host.env, host.scale());
    let place = warm_memory::place(env, config, file.node, file.warm.as_deref());
    if let Some(path) = place
        && let owner = (file.node, file.store)
        && let Some(arena) = warm_memory::look(env, (config, scale), owner, sizes, &path).await
    {
        let users = arena.users();
        let was_used_last = users.is_empty() || users.contains(&left.nonce);
        if left.arena == Some(arena.salt()) && was_used_last {
            return (arena, Some(path));
        }
    }
    let slot_bytes = u32::try_from(scale.segment_bytes).unwrap_or(u32::MAX);
    (Arena::volatile_sized(scale.slots_min, slot_bytes), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::starts::{Landed, Starts};
    use rekindle_base::StoreId;
    use rekindle_staging::{Policy, VaultBody};

    #[test]
    fn only_the_folder_of_the_life_that_was_taken_over_has_its_log() {
        let left = LeftBehind { incarnation: Incarnation(4), nonce: 7, arena: None };
        let record = NodeRecord { left_behind: Some(left), ..crate::record::tests::sample() };
        let folder = |landed: Option<u64>, attempts: &[u64]| {
            let landed = landed.map(|nonce| Landed { incarnation: Incarnation(4), nonce });
            let starts = Starts { landed, attempts: attempts.to_vec(), permission: None };
            let sizes = Sizes { flash_bytes: 1 << 30, warm_bytes: 1 << 20 };
            NodeFile::new(NodeId([7; 16]), StoreId([8; 16]), 0, sizes, starts)
        };
        assert_eq!(proven(&record, &folder(Some(7), &[])), Some(left));
        assert_eq!(proven(&record, &folder(Some(6), &[7])), Some(left), "killed before its note");
        assert_eq!(proven(&record, &folder(Some(6), &[])), None, "an older copy of the folder");
        assert_eq!(proven(&record, &folder(None, &[])), None);
        let copies = folder(Some(7), &[]).of_copies(Incarnation(4));
        assert_eq!(proven(&record, &copies), None);
        let never = NodeRecord { left_behind: None, ..record };
        assert_eq!(proven(&never, &folder(Some(7), &[])), None, "an older binary took it over");
    }

    #[test]
    fn a_volume_is_left_behind_until_its_vault_says_otherwise() {
        let (node, last) = (NodeId([7; 16]), Incarnation(4));
        let vault = |change: &dyn Fn(&mut Vault)| {
            let body = VaultBody::default();
            let mut vault =
                Vault::new(VolumeId([1; 16]), "vm1".to_owned(), "block".to_owned(), 512, body);
            (vault.owner, vault.incarnation, vault.policy) = (Some(node), last, Policy::Back);
            change(&mut vault);
            is_left_behind(&vault, Life { node, incarnation: last })
        };
        assert!(vault(&|_| ()));
        assert!(vault(&|vault| vault.incarnation = Incarnation(2)), "idle in the last life");
        assert!(vault(&|vault| vault.state = VaultState::Trashed), "it may come back");
        assert!(!vault(&|vault| vault.incarnation = Incarnation(5)), "a later life has it");
        assert!(!vault(&|vault| vault.owner = Some(NodeId([8; 16]))), "it has moved");
        assert!(!vault(&|vault| vault.owner = None));
        assert!(!vault(&|vault| vault.copies = 1), "the copies have all of it");
        assert!(!vault(&|vault| vault.policy = Policy::Through), "the store has all of it");
        assert!(!vault(&|vault| vault.state = VaultState::Deleted));
    }
}
