//! A node among others: its record in the store, its part in the sweeps of others, and the end of a
//! life that another has replaced. All of it follows the real node, as far as a run needs it.

use crate::boot::{Node, Record, Setup, Who};
use crate::heard;
use rekindle_base::{Incarnation, NodeId};
use rekindle_content::sweep::{self, Options};
use rekindle_datastore::Store;
use rekindle_datastore::key::node_key;
use rekindle_datastore::layer;
use rekindle_datastore::layer::fault::{self, Plan};
use rekindle_datastore::record::{Body, Writer};
use rekindle_env::Env;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Pause before the next request to the store.
const PAUSE: Duration = Duration::from_millis(100);
/// While it acknowledges anything, a node looks this often whether its record still names it.
const LOOK: Duration = Duration::from_secs(5);

/// The part of `nodes/<id>` that other nodes look at.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct NodeRecord {
    incarnation: Incarnation,
    nonce: u64,
    taken: Incarnation,
}

impl Body for NodeRecord {
    const WHAT: &'static str = "node";
    const FORMAT: u32 = 2;
}

/// A node that serves, with its background work.
#[derive(Clone)]
pub struct Served {
    pub node: Arc<Node>,
    pub incarnation: Incarnation,
    pub faults: fault::Handle,
    /// Switches the faults of lists.
    pub lists: fault::Handle,
    nonce: u64,
}

/// Arguments of a start of a node.
pub struct Start<'a> {
    pub node: NodeId,
    pub setup: &'a Setup,
    pub record: &'a Record,
    pub options: Options,
    /// Whether the user says that this folder goes on, whatever copies of it there are.
    pub takes: bool,
}

/// Takes the next incarnation in the node's record.
async fn next_life(
    writer: &Writer,
    nonce: u64,
    takes: bool,
) -> Result<(Incarnation, Incarnation), rekindle_datastore::Error> {
    let key = node_key(writer.node);
    let found = writer.read::<NodeRecord>(&key).await?;
    let last = found.as_ref().map(|held| &held.value);
    let incarnation = last.map_or(Incarnation(0), |last| last.incarnation).next();
    let taken = last.map_or(Incarnation(0), |last| last.taken);
    let taken = if takes { incarnation } else { taken };
    let next = NodeRecord { incarnation, nonce, taken };
    let writer = writer.clone().with_incarnation(incarnation);
    match &found {
        Some(held) => writer.replace(held, next).await?,
        None => writer.create(&key, next).await?,
    };
    Ok((incarnation, taken))
}

/// Starts a node over its disk, its memory and the store.
pub async fn start(env: &Env, store: Store, start: Start<'_>) -> Result<Served, String> {
    let (store, lists) = crate::lists::wrap(env, store);
    let (store, _, faults) = layer::usual(env, store, Plan::default());
    let writer = Writer::new(env.clone(), store.clone(), start.node);
    let identity = Node::found_store(&writer).await?;
    let (writer, nonce) = (writer.with_secret(identity.secret), env.random_u64());
    let (incarnation, taken) = loop {
        match next_life(&writer, nonce, start.takes).await {
            Ok(life) => break life,
            Err(rekindle_datastore::Error::Exists(_)) => env.sleep(PAUSE).await,
            Err(error) if error.kind().is_retryable() => env.sleep(PAUSE).await,
            Err(error) => return Err(format!("the node's record: {error}")),
        }
    };
    let who = Who { node: start.node, incarnation, taken, sweep: start.options };
    let node = Node::boot_as(env.clone(), store, start.setup, who, start.record).await?;
    if !node.damage.is_empty() {
        return Err(format!("neither a crash nor a copy is damage: {:?}", node.damage));
    }
    Ok(Served { node: Arc::new(node), incarnation, faults, lists, nonce })
}

impl Served {
    /// Agrees to the sweeps of other nodes, and learns their packs, as long as the node lives.
    pub async fn agree(self, interval: Duration) {
        let env = &self.node.writer.env;
        let mut rounds = 0_u64;
        loop {
            let _ = self.node.sweeper.acknowledge().await;
            if rounds.is_multiple_of(8) {
                let _ = self.node.content.warm_index().await;
            }
            rounds += 1;
            env.sleep(interval / 2 + interval.mul_f64((env.random_u64() % 1000) as f64 / 1000.0))
                .await;
        }
    }

    /// Stops acknowledging when another copy of the folder has been started, as `node::fencing`
    /// does.
    pub async fn watch(self) {
        let env = self.node.writer.env.clone();
        let staging = &self.node.staging;
        let mut met = staging.met();
        let mut looked = 0;
        loop {
            let is_met = env.timeout(LOOK, met.changed()).await.is_ok();
            let log = self.node.log.usage().appended_bytes;
            let serials: u64 = staging.volumes().iter().map(|one| one.backlog().serial).sum();
            let worked = log.wrapping_add(serials);
            if !is_met && worked == looked {
                continue;
            }
            looked = worked;
            if self.is_replaced().await {
                heard::note(if is_met { "fenced: by a vault" } else { "fenced: by a look" });
                staging.fence("another copy of this folder was started");
                return;
            }
        }
    }

    async fn is_replaced(&self) -> bool {
        let writer = &self.node.writer;
        if self.node.staging.fenced().is_some()
            || matches!(sweep::is_dismissed(writer).await, Ok(true))
        {
            return true;
        }
        let found = writer.read::<NodeRecord>(&node_key(writer.node)).await;
        matches!(found, Ok(Some(held)) if held.value.nonce != self.nonce
            && held.value.incarnation >= self.incarnation)
    }

    /// Reaps orphans and sweeps; returns whether the sweep came to its end.
    pub async fn sweep(&self) -> Result<bool, String> {
        match self.node.volumes.reap_orphans().await {
            Ok(reaped) => heard::note_many("reaped", reaped.removed + reaped.orphans),
            Err(error) if error.kind().is_retryable() => return Ok(false),
            Err(error) => return Err(format!("reaping: {error}")),
        }
        match self.node.sweeper.run().await {
            Ok(status) => {
                heard::note_many("condemned", status.packs_condemned);
                heard::note_many("rescue", status.packs_rescued);
                heard::note_many("compaction", status.packs_compacted);
                heard::note_many("deleted", status.packs_deleted);
                Ok(true)
            }
            // Another node sweeps, or has not agreed; or the store is bad for a while.
            Err(error) if error.kind().is_retryable() => {
                heard::note("sweep refused");
                tracing::debug!("sweep refused: {error}");
                Ok(false)
            }
            Err(error) => Err(format!("sweep: {error}")),
        }
    }

    /// Ends what the log has of volumes without clients. A removal that was cut off ends here, as
    /// in `node::work::recover`. Returns the number of volumes that are left.
    pub async fn recover(&self) -> Result<usize, String> {
        let (node, mut left) = (&self.node, 0);
        let told = |error: &dyn std::fmt::Display| format!("recovery: {error}");
        let volumes = node.log.unfinished_volumes().await.map_err(|error| told(&error))?;
        for (volume, serial) in volumes {
            let key = rekindle_datastore::key::volume_key(volume);
            let vault = node.writer.read::<rekindle_volume::Vault>(&key).await;
            match vault.map_err(|error| told(&error))?.map(|held| held.value) {
                Some(vault) if vault.state != rekindle_volume::VaultState::Deleted => {
                    match vault.checkpoint >= serial {
                        true => drop(node.log.release(volume, vault.checkpoint)),
                        false => left += 1,
                    }
                }
                _ => match node.volumes.forget_if_gone(volume).await {
                    Ok(true) => heard::note("changes of a removed volume"),
                    Ok(false) => left += 1,
                    Err(error) if error.kind().is_retryable() => left += 1,
                    Err(error) => return Err(told(&error)),
                },
            }
        }
        Ok(left)
    }
}
