//! A node on the simulated machine.

use base::{Incarnation, NodeId, StoreId, units};
use block::{Device, Extents};
use content::Content;
use datastore::Store;
use datastore::identity::{self, Identity};
use datastore::record::Writer;
use env::Env;
use log::Log;
use parking_lot::Mutex;
use staging::Staging;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use volume::{Ack, Policy, Spec, Volumes};

/// Name of the one volume.
pub const VOLUME: &str = "disk";
pub const NODE: NodeId = NodeId([7; 16]);
pub const FLASH: &str = "/flash";
pub const WARM: &str = "/warm";
/// A handful of sets, so that a run sees evictions.
const FRAMES_BYTES: u64 = units::MIB;
/// Before the store is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// The parts of a node that a run needs.
pub struct Node {
    pub volumes: Volumes,
    pub staging: Staging,
    pub log: Log,
    pub content: Content,
    pub writer: Writer,
    /// What the start found damaged in the log.
    pub damage: Vec<String>,
}

/// How the node and its volume are set up; from the seed.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub policy: Policy,
    pub ack: Ack,
    pub size: u64,
    /// Of content.
    pub cache_bytes: u64,
    /// Of the log; small ones are filled soon.
    pub segment_bytes: u64,
    pub flash_bytes: u64,
    pub warm_slots: usize,
    pub destage_age: Duration,
    pub batch_bytes: u64,
    /// Unfinished changes above which a volume serves before they are indexed.
    pub index_at_once: usize,
}

/// A start of a node.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// The last start by which a folder took the node from a copy of it.
    pub taken: Incarnation,
}

/// What the node's record in the datastore says of its last start, as far as a run needs it.
#[derive(Debug, Default)]
pub struct Record(Mutex<Last>);

#[derive(Debug, Default, Clone, Copy)]
struct Last {
    /// Its warm memory.
    salt: Option<u64>,
    /// Of the copies of vaults there, and the start that found memory lost after a life that had not ended in good order.
    era: u64,
    since: Incarnation,
}

impl Record {
    /// Whether the memory with this salt is the one that the node used last.
    fn trusts(&self, salt: u64) -> bool {
        self.0.lock().salt.is_none_or(|last| last == salt)
    }

    /// A start with this memory, over a log that `was_closed`.
    fn start(&self, salt: u64, incarnation: Incarnation, was_closed: bool) -> Last {
        let trusted = self.trusts(salt);
        let mut record = self.0.lock();
        record.salt = Some(salt);
        if !trusted {
            record.era += 1;
            if !was_closed {
                record.since = incarnation;
            }
        }
        *record
    }
}

impl Node {
    /// Starts a node over what the disk, mapped memory and the store hold; nothing ever damaged them.
    pub async fn boot(
        env: Env,
        store: Store,
        setup: &Setup,
        incarnation: u64,
    ) -> Result<Self, String> {
        let node = Self::try_boot(env, store, setup, incarnation, &Record::default()).await?;
        if !node.damage.is_empty() {
            return Err(format!("a crash is not damage: {:?}", node.damage));
        }
        Ok(node)
    }

    /// Starts a node over what the disk, mapped memory and the store hold, or says why not.
    pub async fn try_boot(
        env: Env,
        store: Store,
        setup: &Setup,
        incarnation: u64,
        record: &Record,
    ) -> Result<Self, String> {
        let incarnation = Incarnation(incarnation);
        let who = Who { node: NODE, incarnation, taken: Incarnation(0) };
        Self::boot_as(env, store, setup, who, record).await
    }

    /// The same, as any node.
    pub async fn boot_as(
        env: Env,
        store: Store,
        setup: &Setup,
        who: Who,
        record: &Record,
    ) -> Result<Self, String> {
        let Who { node, incarnation, taken } = who;
        let frames = warm::FramesShape { bytes: FRAMES_BYTES, store: StoreId([4; 16]) };
        let shape = warm::Shape {
            slots: setup.warm_slots,
            slot_bytes: u32::try_from(setup.segment_bytes).expect("a segment is small"),
            frames: Some(frames),
        };
        let arena = warm::Arena::open_shaped(&env, Path::new(WARM), node, shape)
            .map_err(|error| format!("memory: {error}"))?;
        let frames = arena.frames();
        let log_config = log::Config {
            folder: FLASH.into(),
            node,
            flash_bytes: setup.flash_bytes,
            flush_interval: Duration::from_millis(20),
        };
        let salt = arena.salt();
        let trusted = record.trusts(salt);
        let found = Log::find(&env, arena, log_config, trusted, None).await;
        let found = found.map_err(|error| format!("log: {error}"))?;
        let started = record.start(salt, incarnation, found.was_closed());
        let (log, opened) =
            found.open(incarnation).await.map_err(|error| format!("log: {error}"))?;
        // Each life as it likes: a store is switched at any time.
        let parity = env.random_u64().is_multiple_of(2).then(|| "4+1".parse().expect("a good one"));
        let cache_bytes = setup.cache_bytes;
        let config = content::Config { parity, cache_bytes, ..Self::content_config() };
        let content = Content::open_warm(env.clone(), store.clone(), config, frames.clone());
        // One life to the log and to the vaults: who logged a change is judged by who wrote its vault.
        let writer = Writer::new(env.clone(), store, node);
        let identity = Self::found_store(&writer).await?;
        let mut writer = writer.with_secret(identity.secret).with_incarnation(incarnation);
        if let Some(frames) = frames {
            writer = writer.with_copies(Arc::new(volume::WarmCopies::new(frames, started.era)));
        }
        let staging = Staging::start(
            env.clone(),
            log.clone(),
            content.clone(),
            writer.clone(),
            staging::Config {
                flash_bytes: setup.flash_bytes,
                memory_outlives_process: true,
                memory_bytes: 4 * units::MIB,
                destage_age: setup.destage_age,
                destage_bytes: setup.batch_bytes,
                batch_bytes: setup.batch_bytes,
                destagers: 2,
                index_at_once: setup.index_at_once,
                age_deadline: Duration::from_secs(60),
            },
        );
        staging.copied_since(started.since);
        staging.taken(taken);
        let homes_content = content.clone();
        let homes: volume::HomeMaker = Arc::new(move |vault| {
            Ok(Arc::new(Extents::new(homes_content.clone(), vault.size, vault.block_size)))
        });
        let volumes = Volumes::open(env, writer.clone(), staging.clone(), content.clone(), homes);
        Ok(Self { volumes, staging, log, content, writer, damage: opened.damage })
    }

    /// How content is kept.
    #[must_use]
    pub fn content_config() -> content::Config {
        content::Config {
            secret: [3; 32],
            compression: content::Compression::Lz4,
            parity: None,
            // So that a run has many.
            pack_bytes: 128 * units::KIB,
            cache_bytes: 4 * units::MIB,
            index_bytes: units::MIB,
            uploads: 2,
            direct_path: true,
        }
    }

    /// Makes the volume, if an earlier life has not.
    pub async fn create(&self, setup: &Setup) -> Result<(), volume::Error> {
        self.create_as(VOLUME, setup).await
    }

    /// Makes a volume, if an earlier life has not; the store may fail for a while.
    pub async fn create_as(&self, name: &str, setup: &Setup) -> Result<(), volume::Error> {
        let spec = Spec {
            name: name.to_owned(),
            kind: "block".to_owned(),
            size: setup.size,
            block_size: base::limits::BLOCK_BYTES_DEFAULT,
            policy: setup.policy,
            ack: setup.ack,
        };
        loop {
            match self.volumes.create(spec.clone()).await {
                Ok(_) | Err(volume::Error::Exists(_)) => return Ok(()),
                Err(error) if error.kind().is_retryable() => self.pause().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches the volume; the store may fail for a while.
    pub async fn device(&self) -> Result<Device, volume::Error> {
        loop {
            match self.volumes.attach(VOLUME).await {
                Ok(handle) => return Ok(Device::new(handle)),
                Err(error) if error.kind().is_retryable() => self.pause().await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn pause(&self) {
        self.writer.env.sleep(PAUSE).await;
    }

    /// Makes the store what it is: its identity, and the markers of its folders.
    pub async fn found_store(writer: &Writer) -> Result<Identity, String> {
        loop {
            match identity::open_or_create(writer).await {
                Ok(identity) => return Ok(identity),
                Err(error) if error.kind().is_retryable() => writer.env.sleep(PAUSE).await,
                Err(error) => return Err(format!("store: {error}")),
            }
        }
    }
}
