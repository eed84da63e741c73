//! An attempt to start: what the folder says of it, and its meeting with the store and the warm
//! memory.

use super::store::{self, Known, Opener};
use crate::Error;
use crate::config::{Config, Sizes};
use crate::node_file::{Keeper, NodeFile};
use crate::scale::Scale;
use crate::starts::Starts;
use crate::warm_memory::{self, WarmMemory};
use rekindle_base::NodeId;
use rekindle_env::Env;
use rekindle_warm::Arena;

/// An attempt to start a node in its folder.
pub(super) struct Attempt {
    pub(super) node: NodeId,
    /// Random number that distinguishes this start from any other.
    pub(super) nonce: u64,
    /// Sizes that were chosen at the first start in the folder, and those of this one.
    pub(super) chosen: Sizes,
    pub(super) sizes: Sizes,
    /// The starts that the folder remembers.
    pub(super) before: Starts,
    /// The user's permission to take the node from another copy, if it was not used before.
    pub(super) permission: Option<u64>,
    /// The log that the folder must hold.
    pub(super) known_log: Option<rekindle_log::Known>,
}

/// The store and the warm memory of an attempt.
pub(super) struct Reached {
    pub(super) known: Known,
    pub(super) keeper: Keeper,
    pub(super) arena: Arena,
    pub(super) warm: WarmMemory,
}

impl Attempt {
    pub(super) async fn new(
        env: &Env,
        config: &Config,
        file: Option<&NodeFile>,
    ) -> Result<Self, Error> {
        let chosen = match file {
            Some(file) => file.sizes,
            None => choose(env, config).await,
        };
        let before = file.map(|file| file.starts.clone()).unwrap_or_default();
        Ok(Self {
            node: file.map_or_else(|| NodeId(env.random()), |file| file.node),
            nonce: env.random_u64(),
            chosen,
            sizes: sizes(config, chosen, warm_memory::device_bytes(env, config)?),
            permission: config.take_identity.filter(|_| config.take_identity != before.permission),
            before,
            known_log: file.and_then(NodeFile::known_log),
        })
    }

    /// The starts that the folder remembers from now on.
    pub(super) fn starts(&self) -> Starts {
        self.before.attempting(self.nonce, self.permission)
    }

    /// Opens the store and the warm memory.
    pub(super) async fn reach(
        &self,
        env: &Env,
        (config, scale): (&Config, &Scale),
        file: Option<NodeFile>,
        open: &Opener,
    ) -> Result<Reached, Error> {
        let reached = match file {
            Some(file) => self.reach_known(env, (config, scale), file, open).await?,
            None => self.reach_first(env, (config, scale), open).await?,
        };
        if reached.known.file.warm != reached.warm.name {
            // Written before the memory is used: the next start must find it.
            let name = &reached.warm.name;
            reached.keeper.change(|file| file.warm.clone_from(name)).await?;
        }
        Ok(reached)
    }

    /// Opens the store and the warm memory that the folder knows. The folder records the attempt
    /// before the node's record names it. These steps are independent, so they run together.
    async fn reach_known(
        &self,
        env: &Env,
        (config, scale): (&Config, &Scale),
        file: NodeFile,
        open: &Opener,
    ) -> Result<Reached, Error> {
        let noted = file.warm.clone();
        let habits = (config, scale);
        let warm =
            warm_memory::open(env, habits, self.node, file.store, self.sizes, noted.as_deref());
        let keeper = Keeper::new(env, &config.dir, file.clone());
        let note = keeper.change(|file| file.starts = self.starts());
        let known = store::join(env, config, file, open);
        let (known, warm, noted) = futures_util::join!(known, warm, note);
        noted?;
        match (known, warm) {
            (Ok(known), Ok((arena, warm))) => Ok(Reached { known, keeper, arena, warm }),
            (Err(error), _) | (_, Err(error)) => {
                // The attempt was not made, so it is taken back.
                keeper.change(|file| file.starts = self.before.clone()).await?;
                Err(error)
            }
        }
    }

    /// Opens the store of a new folder, then a warm memory. If the store refuses the node, the warm
    /// memory of a node that never existed must not stay behind.
    async fn reach_first(
        &self,
        env: &Env,
        (config, scale): (&Config, &Scale),
        open: &Opener,
    ) -> Result<Reached, Error> {
        let known = store::join_first(env, config, self, open).await?;
        let keeper = Keeper::new(env, &config.dir, known.file.clone());
        let (habits, store) = ((config, scale), known.identity.store);
        let (arena, warm) =
            warm_memory::open(env, habits, self.node, store, self.sizes, None).await?;
        Ok(Reached { known, keeper, arena, warm })
    }
}

/// Chooses sizes for this machine.
pub(super) async fn choose(env: &Env, config: &Config) -> Sizes {
    let flash_free = env.disk().free_bytes(&config.dir).await.unwrap_or(0);
    let folder = config.warm.clone().or_else(|| env.memory().default_folder());
    Sizes::choose(flash_free, folder.and_then(|folder| env.memory().free_bytes(&folder).ok()))
}

/// Returns the configured sizes, or those chosen at the first start. A memory device is used as a
/// whole.
fn sizes(config: &Config, chosen: Sizes, device_bytes: Option<u64>) -> Sizes {
    Sizes {
        flash_bytes: config.flash_bytes.unwrap_or(chosen.flash_bytes),
        warm_bytes: config.warm_bytes.or(device_bytes).unwrap_or(chosen.warm_bytes),
    }
}
