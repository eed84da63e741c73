//! The core of a node: what serves volumes over a store, a log that was opened, and warm memory.
//!
//! [`Core::assemble`] is the only wiring of these parts. The daemon ([`crate::assemble`]) and the
//! simulation use it. They differ in [`Settings`], and in how they find the log and take a life.

use rekindle_base::Incarnation;
use rekindle_content::Content;
use rekindle_content::sweep::{Options, Sweeper};
use rekindle_datastore::Store;
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_log::Log;
use rekindle_staging::Staging;
use rekindle_volume::{Home, HomeMaker, Vault, Volumes, WarmRecordCache};
use rekindle_warm::Frames;
use std::sync::Arc;

/// The ground that a core stands on: one life of one node.
pub struct Ground {
    pub store: Store,
    /// The node's writer, with the store's secret and the incarnation of this life.
    pub writer: Writer,
    pub log: Log,
    /// Block frames of warm memory, if there is room for any.
    pub frames: Option<Frames>,
    /// The era of the record cache; `None` keeps no records in warm memory.
    pub era: Option<u64>,
    /// The last life by which a folder took the node over from a copy of itself.
    pub taken: Incarnation,
    /// The life that found warm memory lost after a life without an orderly end.
    pub copied_since: Incarnation,
}

/// Sizes and habits; small in a simulation.
pub struct Settings {
    pub content: rekindle_content::Config,
    pub staging: rekindle_staging::Config,
    pub sweep: Options,
    /// Whether a volume's tree is read ahead when the volume comes into service.
    pub read_ahead: bool,
}

/// The parts that serve volumes. Clones mean the same core.
#[derive(Clone)]
pub struct Core {
    pub writer: Writer,
    pub content: Content,
    pub log: Log,
    pub staging: Staging,
    pub volumes: Volumes,
    pub sweeper: Arc<Sweeper>,
}

impl Core {
    /// Puts the parts together. A plain call: reads nothing, and starts the background work of the
    /// parts.
    #[must_use]
    pub fn assemble(env: &Env, ground: Ground, settings: Settings) -> Self {
        let Ground { store, writer, log, frames, era, taken, copied_since } = ground;
        let writer = match (&frames, era) {
            (Some(frames), Some(era)) => {
                writer.with_cache(Arc::new(WarmRecordCache::new(frames.clone(), era)))
            }
            _ => writer,
        };
        let content = Content::open_warm(env.clone(), store, settings.content, frames);
        let staging = Staging::start(
            env.clone(),
            log.clone(),
            content.clone(),
            writer.clone(),
            settings.staging,
        );
        staging.taken(taken);
        staging.copied_since(copied_since);
        let homes = homes(env, &content, settings.read_ahead);
        let volumes = Volumes::open(env.clone(), writer.clone(), staging.clone(), homes);
        let sweeper = Sweeper::new(content.clone(), writer.clone(), Arc::new(volumes.clone()));
        let sweeper = Arc::new(sweeper.with_options(settings.sweep));
        Self { writer, content, log, staging, volumes, sweeper }
    }
}

/// Makes the constructor of homes, one for each kind of volume. It runs when a volume comes into
/// service, and starts `read_ahead`.
fn homes(env: &Env, content: &Content, read_ahead: bool) -> HomeMaker {
    let (env, content) = (env.clone(), content.clone());
    Arc::new(move |vault: &Vault| match vault.kind.as_str() {
        "block" => {
            if read_ahead {
                let (content, root) = (content.clone(), vault.root);
                env.spawn("read-ahead", async move {
                    // A reader that needs the tree meets the same error.
                    let _ = rekindle_content::tree::read_ahead(&content, &root).await;
                });
            }
            let home = rekindle_block::Extents::new(content.clone(), vault.size, vault.block_size);
            Ok(Home::Range(Arc::new(home)))
        }
        other => Err(rekindle_volume::Error::Invalid(format!(
            "volume '{}' is of kind '{other}', which this binary does not know: upgrade rekindle",
            vault.name
        ))),
    })
}
