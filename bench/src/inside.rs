//! A node's file volume in this process: the product's parts, put together without a daemon, so
//! that an experiment may choose them and read their counters.

use anyhow::{Context as _, Result};
use rekindle_base::units::{GIB, MIB};
use rekindle_base::{Incarnation, NodeId};
use rekindle_content::Content;
use rekindle_datastore::layer::fault;
use rekindle_datastore::layer::meter::{self, Call, Meter, StorePart};
use rekindle_datastore::record::Writer;
use rekindle_env::real::Runtime;
use rekindle_file::{Caller, File, FileType, Files, Ino, NewNode, ROOT};
use rekindle_log::Log;
use rekindle_staging::{Ack, Lease, MissingCopy, Policy, Staging, VaultBody};
use rekindle_volume::{Kinds, Parts, Spec, Volumes};
use std::path::PathBuf;
use std::time::Duration;

const NODE: NodeId = NodeId([7; 16]);
const VOLUME: &str = "files";
const FILE: &[u8] = b"file";

/// A folder with a store and the log of a node.
pub struct Inside {
    folder: PathBuf,
    config: rekindle_content::Config,
    lives: u64,
}

/// How a life of the node reads.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// What the store does to each request.
    pub faults: &'a str,
    /// See [`Content::open_plain`].
    pub is_plain: bool,
}

/// One life of the node, with its volume in service. Nothing is in memory at first.
pub struct Life {
    // In the order of their drop: the tasks end with the runtime.
    pub files: Files,
    pub content: Content,
    meter: Meter,
    volumes: Volumes,
    pub runtime: Runtime,
}

/// What readers have cost so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Lookups of the cache.
    pub accesses: u64,
    /// Chunks of data, and nodes, for which a reader waited.
    pub data_waits: u64,
    pub metadata_waits: u64,
    /// Requests to the store for packs of data, and of metadata.
    pub data_gets: u64,
    pub metadata_gets: u64,
    /// Chunks that were fetched ahead, and those that left the cache unread.
    pub ahead: u64,
    pub in_vain: u64,
}

impl Inside {
    /// Begins in an empty folder.
    pub fn new(folder: PathBuf, config: rekindle_content::Config) -> Result<Self> {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("store"))?;
        Ok(Self { folder, config, lives: 0 })
    }

    /// Starts the next life of the node. The one before has ended.
    pub fn start(&mut self, reader: Reader<'_>) -> Result<Life> {
        self.lives += 1;
        let life = Incarnation(self.lives);
        let (env, runtime) = rekindle_env::real::env()?;
        let url = format!("file://{}", self.folder.join("store").display());
        let folder = self.folder.join("node");
        std::fs::create_dir_all(folder.join("log"))?;
        let (volumes, content, meter, files) = runtime.block_on(async {
            let store = rekindle_datastore::open(&env, &url).await?;
            let (store, _) = fault::wrap(&env, store, reader.faults.parse()?);
            let (store, meter) = meter::wrap(&env, store);
            let slot_bytes = rekindle_warm::limits::SLOT_BYTES_MAX;
            let shape = rekindle_warm::Shape { slots: 8, slot_bytes, frames: None };
            let arena =
                rekindle_warm::Arena::open_shaped(&env, &folder.join("arena"), NODE, shape)?;
            let config = rekindle_log::Config {
                folder: folder.join("log"),
                node: NODE,
                flash_bytes: 4 * GIB,
                flush_interval: Duration::from_millis(100),
            };
            let (log, _) = Log::open(&env, arena, config, life).await?;
            let open = match reader.is_plain {
                true => Content::open_plain,
                false => Content::open,
            };
            let content = open(env.clone(), store.clone(), self.config.clone());
            let writer = Writer::new(env.clone(), store, NODE).with_incarnation(life);
            let staging =
                Staging::start(env.clone(), log, content.clone(), writer.clone(), staging());
            let kinds = Kinds::new(vec![Box::new(File)]);
            let volumes = Volumes::open(Parts {
                env: env.clone(),
                writer,
                content: content.clone(),
                staging,
                kinds,
                read_ahead: false,
            });
            let files = files(&volumes).await?;
            anyhow::Ok((volumes, content, meter, files))
        })?;
        Ok(Life { files, content, meter, volumes, runtime })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The node's own settings, but that nothing is written to the store before it is asked for.
fn staging() -> rekindle_staging::Config {
    rekindle_staging::Config {
        flash_bytes: 4 * GIB,
        memory_bytes: 64 * MIB,
        destage_age: Duration::from_secs(3600),
        destage_bytes: 2 * GIB,
        batch_bytes: 512 * MIB,
        destagers: 2,
        index_at_once: 8192,
        age_deadline: Duration::from_secs(7200),
        destage_writes_per_minute: 0,
        memory_outlives_process: false,
        copied_from: Incarnation(0),
        lease: Lease::for_ever(),
    }
}

/// Attaches the volume, which is made when it is not there.
async fn files(volumes: &Volumes) -> Result<Files> {
    let spec = Spec {
        name: VOLUME.to_owned(),
        kind: rekindle_file::KIND.to_owned(),
        size: 1 << 40,
        settings: VaultBody::default(),
        policy: Policy::Back,
        ack: Ack::Flash,
        copies: 0,
        on_missing_copy: MissingCopy::default(),
    };
    match volumes.create(spec).await {
        Ok(_) | Err(rekindle_volume::Error::Exists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Files::attach(volumes, VOLUME).await?)
}

impl Life {
    /// Makes the file.
    pub async fn make(&self) -> Result<Ino> {
        let kind = FileType::Regular;
        let node = NewNode { kind, mode: 0o644, umask: 0, device: 0, target: b"", stamps: None };
        let made = self.files.create(Caller::default(), ROOT, FILE, &node).await;
        Ok(made.context("the file cannot be made")?.ino)
    }

    /// Finds the file.
    pub async fn find(&self) -> Result<Ino> {
        Ok(self.files.lookup(ROOT, FILE).await.context("the file is not there")?.ino)
    }

    pub async fn write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.files.write(Caller::default(), ino, offset, data).await;
        written.context("the file cannot be written")
    }

    /// Has a commit take all that was written.
    pub async fn drain(&self) -> Result<()> {
        Ok(self.files.handle().staged().drain().await.map(drop)?)
    }

    pub fn cost(&self) -> Cost {
        let stats = self.content.stats();
        let gets = |part| {
            [Call::Get, Call::GetRange].iter().map(|call| self.meter.requests(part, *call)).sum()
        };
        Cost {
            accesses: stats.cache_hits + stats.cache_misses,
            data_waits: stats.data_waits,
            metadata_waits: stats.metadata_waits,
            data_gets: gets(StorePart::Data),
            metadata_gets: gets(StorePart::Metadata),
            ahead: stats.fetched_ahead,
            in_vain: stats.fetched_in_vain,
        }
    }

    /// Takes the volume out of service.
    pub fn stop(self) -> Result<()> {
        let Self { files, volumes, runtime, .. } = self;
        drop(files);
        Ok(runtime.block_on(volumes.stop(true))?)
    }
}

impl Cost {
    /// What was added since then.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            accesses: self.accesses - before.accesses,
            data_waits: self.data_waits - before.data_waits,
            metadata_waits: self.metadata_waits - before.metadata_waits,
            data_gets: self.data_gets - before.data_gets,
            metadata_gets: self.metadata_gets - before.metadata_gets,
            ahead: self.ahead - before.ahead,
            in_vain: self.in_vain - before.in_vain,
        }
    }
}
