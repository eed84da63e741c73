//! The core of a node: what serves volumes over a store, a log that was opened, and warm memory.
//!
//! [`Core::assemble`] is the only wiring of these parts. The daemon ([`crate::assemble`]) and the
//! simulation use it. They differ in [`Scale`], in their kinds of volumes, and in their store.

use crate::config::{Config, Sizes, Sweep};
use crate::indirect;
use crate::record::NodeRecord;
use crate::scale::Scale;
use rekindle_base::Incarnation;
use rekindle_content::Content;
use rekindle_content::sweep::{Budget, Options, Sweeper};
use rekindle_datastore::Store;
use rekindle_datastore::identity::Identity;
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_log::Log;
use rekindle_staging::{Lease, Staging};
use rekindle_volume::{Kind, Kinds, Parts, Volumes, WarmRecordCache};
use rekindle_warm::Frames;
use std::sync::Arc;

/// The ground that a core stands on: one life of one node.
pub(crate) struct Ground {
    pub(crate) store: Store,
    pub(crate) identity: Identity,
    /// The node's writer, with the store's secret and the incarnation of this life.
    pub(crate) writer: Writer,
    /// The node's record, which names this life.
    pub(crate) record: NodeRecord,
    pub(crate) log: Log,
    /// Block frames of warm memory, if there is room for any.
    pub(crate) frames: Option<Frames>,
    pub(crate) memory_outlives_process: bool,
    /// See [`rekindle_staging::Config::copied_from`].
    pub(crate) copied_from: Incarnation,
    /// See [`Staging::unbroken_since`].
    pub(crate) unbroken_since: Incarnation,
    /// See [`rekindle_staging::Config::lease`].
    pub(crate) lease: Arc<Lease>,
}

/// Returns the kinds of volumes that this binary knows: the one registration of each.
#[must_use]
pub fn kinds() -> Vec<Box<dyn Kind>> {
    vec![Box::new(rekindle_block::Block), Box::new(rekindle_file::File)]
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
    pub(crate) fn assemble(
        env: &Env,
        (config, sizes, scale): (&Config, Sizes, &Scale),
        ground: Ground,
        kinds: Vec<Box<dyn Kind>>,
    ) -> Self {
        let Ground { store, identity, writer, record, log, frames, .. } = ground;
        let writer = match (&frames, record.copies) {
            (Some(frames), Some(era)) => {
                writer.with_cache(Arc::new(WarmRecordCache::new(frames.clone(), era)))
            }
            _ => writer,
        };
        let content = content_config(config, &identity, scale);
        let content = Content::open_warm(env.clone(), store, content, frames);
        let staging = staging_config(
            (config, sizes, scale),
            ground.memory_outlives_process,
            ground.copied_from,
            ground.lease,
        );
        let staging =
            Staging::start(env.clone(), log.clone(), content.clone(), writer.clone(), staging);
        staging.taken(record.taken);
        staging.copied_since(record.copied_since.unwrap_or_default());
        staging.unbroken_since(ground.unbroken_since);
        let kinds = if config.direct_path { kinds } else { indirect::all(env, kinds) };
        let volumes = Volumes::open(Parts {
            env: env.clone(),
            writer: writer.clone(),
            content: content.clone(),
            staging: staging.clone(),
            kinds: Kinds::new(kinds),
            read_ahead: config.read_ahead,
        });
        volumes.stop_at_once(config.stop_parallel);
        let roots = Arc::new(volumes.clone());
        let sweeper =
            Sweeper::new(content.clone(), writer.clone(), roots, &config.dir.join("sweep"));
        let sweeper = Arc::new(sweeper.with_options(sweep_options(config, scale)));
        Self { writer, content, log, staging, volumes, sweeper }
    }
}

/// What serves the volumes of a log that a node has left behind, over its host's content.
pub(crate) struct Remainder {
    pub(crate) log: Log,
    pub(crate) staging: Staging,
    pub(crate) volumes: Volumes,
}

/// Puts together what serves the volumes of a log that was left behind. `writer`: of the life that
/// wrote it.
pub(crate) fn remainder(
    settings: (&Config, Sizes, &Scale),
    host: &Core,
    (writer, log): (Writer, Log),
    kinds: Vec<Box<dyn Kind>>,
) -> Remainder {
    let settings = staging_config(settings, true, Incarnation(0), Lease::for_ever());
    let (env, content) = (writer.env.clone(), host.content.clone());
    let staging =
        Staging::start(env.clone(), log.clone(), content.clone(), writer.clone(), settings);
    staging.works_for(host.writer.clone());
    // What clients have seen of that life may not have been durable.
    staging.unbroken_since(writer.life().incarnation.next());
    let parts = Parts {
        env,
        writer,
        content,
        staging: staging.clone(),
        kinds: Kinds::new(kinds),
        read_ahead: false,
    };
    Remainder { log, staging, volumes: Volumes::open(parts) }
}

fn content_config(config: &Config, identity: &Identity, scale: &Scale) -> rekindle_content::Config {
    rekindle_content::Config {
        secret: identity.secret.0,
        compression: config.compression,
        parity: config.parity,
        pack_bytes: scale.pack_bytes,
        cache_bytes: config.cache_bytes,
        index_bytes: config.index_bytes,
        uploads: scale.uploads,
    }
}

fn staging_config(
    (config, sizes, scale): (&Config, Sizes, &Scale),
    memory_outlives_process: bool,
    copied_from: Incarnation,
    lease: Arc<Lease>,
) -> rekindle_staging::Config {
    let destage = &config.destage;
    rekindle_staging::Config {
        flash_bytes: sizes.flash_bytes,
        memory_bytes: config.held_bytes,
        destage_age: destage.age,
        destage_writes_per_minute: destage.writes_per_minute,
        destage_bytes: destage.bytes,
        batch_bytes: destage.batch_bytes,
        destagers: destage.workers,
        index_at_once: scale.index_at_once,
        age_deadline: destage.deadline,
        memory_outlives_process,
        copied_from,
        lease,
    }
}

/// The share of the machine that a sweep may take, and how long it leaves young packs alone.
fn sweep_options(config: &Config, scale: &Scale) -> Options {
    let budget = match config.sweep.percent {
        100.. => Budget::Unlimited,
        percent => Budget::Percent(percent),
    };
    let Sweep { grace, compact_below, .. } = config.sweep;
    Options { budget, grace, compact_below, ..scale.sweep }
}
