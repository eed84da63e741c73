//! The core of a node: what serves volumes over a store, a log that was opened, and warm memory.
//!
//! [`Core::assemble`] is the only wiring of these parts. The daemon ([`crate::assemble`]) and the
//! simulation use it. They differ in [`Settings`], and in how they find the log and take a life.

use crate::indirect;
use rekindle_base::Incarnation;
use rekindle_content::Content;
use rekindle_content::sweep::{Options, Sweeper};
use rekindle_datastore::Store;
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_log::Log;
use rekindle_staging::Staging;
use rekindle_volume::{Kind, Kinds, Parts, Volumes, WarmRecordCache};
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
    /// Whether a plain call reads what is in RAM; if not, see [`crate::indirect`].
    pub direct_path: bool,
    /// The kinds of volumes: [`kinds`], and those of a test.
    pub kinds: Vec<Box<dyn Kind>>,
}

/// Returns the kinds of volumes that this binary knows: the one registration of each.
#[must_use]
pub fn kinds() -> Vec<Box<dyn Kind>> {
    vec![Box::new(rekindle_block::Block)]
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
        let kinds = settings.kinds;
        let kinds = if settings.direct_path { kinds } else { indirect::all(env, kinds) };
        let volumes = Volumes::open(Parts {
            env: env.clone(),
            writer: writer.clone(),
            content: content.clone(),
            staging: staging.clone(),
            kinds: Kinds::new(kinds),
            read_ahead: settings.read_ahead,
        });
        let sweeper = Sweeper::new(content.clone(), writer.clone(), Arc::new(volumes.clone()));
        let sweeper = Arc::new(sweeper.with_options(settings.sweep));
        Self { writer, content, log, staging, volumes, sweeper }
    }
}
