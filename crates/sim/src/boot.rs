//! A node on the simulated machine.

use parking_lot::Mutex;
use rekindle_base::{Incarnation, NodeId, StoreId, units};
use rekindle_block::Device;
use rekindle_content::sweep::Options;
use rekindle_datastore::Store;
use rekindle_datastore::identity::{self, Identity};
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_log::Log;
use rekindle_node::core::{Core, Ground, Settings, kinds};
use rekindle_volume::{Ack, Policy, Spec, VaultBody};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

/// Name of the only volume.
pub const VOLUME: &str = "disk";
pub const NODE: NodeId = NodeId([7; 16]);
pub const FLASH: &str = "/flash";
pub const WARM: &str = "/warm";
/// Room for a handful of sets, so that a run sees evictions.
const FRAMES_BYTES: u64 = units::MIB;
/// Pause before the next request to the store.
const PAUSE: Duration = Duration::from_millis(50);

/// The parts of a node that a run needs.
pub struct Node {
    core: Core,
    /// What the start found damaged in the log.
    pub damage: Vec<String>,
}

impl Deref for Node {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

/// Settings of the node and its volume, drawn from the seed.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub policy: Policy,
    pub ack: Ack,
    pub size: u64,
    /// Size of the content store's cache.
    pub cache_bytes: u64,
    /// Size of a log segment; small ones fill soon.
    pub segment_bytes: u64,
    pub flash_bytes: u64,
    pub warm_slots: usize,
    pub destage_age: Duration,
    pub batch_bytes: u64,
    /// Unfinished changes above which a volume serves before they are indexed.
    pub index_at_once: usize,
}

/// Identity of one start of a node.
#[derive(Debug, Clone, Copy)]
pub struct Who {
    pub node: NodeId,
    pub incarnation: Incarnation,
    /// The last start by which a folder took the node from a copy of it.
    pub taken: Incarnation,
    /// How its sweeps go.
    pub sweep: Options,
}

/// The part of the node's record in the datastore that a run needs.
#[derive(Debug, Default)]
pub struct Record(Mutex<Last>);

#[derive(Debug, Default, Clone, Copy)]
struct Last {
    /// Salt of the warm memory of the last start.
    salt: Option<u64>,
    /// Era of the record cache in warm memory, which changes when a start finds other memory.
    /// `since` is the start that found memory lost after a life that had not ended in good order.
    era: u64,
    since: Incarnation,
}

impl Record {
    /// Whether the memory with this salt is the one that the node used last.
    fn trusts(&self, salt: u64) -> bool {
        self.0.lock().salt.is_none_or(|last| last == salt)
    }

    /// Notes a start with this memory, over a log that `was_closed`.
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
    /// Starts a node over what the disk, mapped memory and the store hold, none of it damaged.
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

    /// Starts a node over what the disk, mapped memory and the store hold. An error names the part
    /// that failed.
    pub async fn try_boot(
        env: Env,
        store: Store,
        setup: &Setup,
        incarnation: u64,
        record: &Record,
    ) -> Result<Self, String> {
        let incarnation = Incarnation(incarnation);
        let sweep = Options::default();
        let who = Who { node: NODE, incarnation, taken: Incarnation(0), sweep };
        Self::boot_as(env, store, setup, who, record).await
    }

    /// Starts any node, as [`try_boot`](Self::try_boot) starts [`NODE`].
    pub async fn boot_as(
        env: Env,
        store: Store,
        setup: &Setup,
        who: Who,
        record: &Record,
    ) -> Result<Self, String> {
        let Who { node, incarnation, taken, sweep } = who;
        let frames = rekindle_warm::FramesShape { bytes: FRAMES_BYTES, store: StoreId([4; 16]) };
        let shape = rekindle_warm::Shape {
            slots: setup.warm_slots,
            slot_bytes: u32::try_from(setup.segment_bytes).expect("a segment is small"),
            frames: Some(frames),
        };
        let arena = rekindle_warm::Arena::open_shaped(&env, Path::new(WARM), node, shape)
            .map_err(|error| format!("memory: {error}"))?;
        let frames = arena.frames();
        let log_config = rekindle_log::Config {
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
        let writer = Writer::new(env.clone(), store.clone(), node);
        let identity = Self::found_store(&writer).await?;
        // The log and the vaults get the same incarnation, since a change's life is compared with
        // the life that wrote the vault.
        let writer = writer.with_secret(identity.secret).with_incarnation(incarnation);
        let ground = Ground {
            store,
            writer,
            log,
            frames,
            era: Some(started.era),
            taken,
            copied_since: started.since,
        };
        // Each life draws its own parity: an operator may change that at any time.
        let parity = env.random_u64().is_multiple_of(2).then(|| "4+1".parse().expect("a good one"));
        let cache_bytes = setup.cache_bytes;
        let settings = Settings {
            content: rekindle_content::Config { parity, cache_bytes, ..Self::content_config() },
            staging: rekindle_staging::Config {
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
            sweep,
            read_ahead: false,
            direct_path: true,
            kinds: kinds(),
        };
        Ok(Self { core: Core::assemble(&env, ground, settings), damage: opened.damage })
    }

    /// Returns the content settings of every node of a run.
    #[must_use]
    pub fn content_config() -> rekindle_content::Config {
        rekindle_content::Config {
            secret: [3; 32],
            compression: rekindle_content::Compression::Lz4,
            parity: None,
            // Small packs, so that a run has many.
            pack_bytes: 128 * units::KIB,
            cache_bytes: 4 * units::MIB,
            index_bytes: units::MIB,
            uploads: 2,
        }
    }

    /// Creates the volume, if an earlier life has not.
    pub async fn create(&self, setup: &Setup) -> Result<(), rekindle_volume::Error> {
        self.create_as(VOLUME, setup).await
    }

    /// Creates a volume, if an earlier life has not; retries while the store fails.
    pub async fn create_as(&self, name: &str, setup: &Setup) -> Result<(), rekindle_volume::Error> {
        let spec = Spec {
            name: name.to_owned(),
            kind: rekindle_block::KIND.to_owned(),
            size: setup.size,
            settings: VaultBody::default(),
            policy: setup.policy,
            ack: setup.ack,
        };
        loop {
            match self.volumes.create(spec.clone()).await {
                Ok(_) | Err(rekindle_volume::Error::Exists(_)) => return Ok(()),
                Err(error) if error.kind().is_retryable() => self.pause().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches the volume; retries while the store fails.
    pub async fn device(&self) -> Result<Device, rekindle_volume::Error> {
        loop {
            match self.volumes.attach(VOLUME).await {
                Ok(handle) => return Device::new(handle),
                Err(error) if error.kind().is_retryable() => self.pause().await,
                Err(error) => return Err(error),
            }
        }
    }

    async fn pause(&self) {
        self.writer.env.sleep(PAUSE).await;
    }

    /// Founds the store (its identity and the markers of its folders), or opens a founded one.
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
