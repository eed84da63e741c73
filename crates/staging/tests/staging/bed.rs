//! A node with one volume, on the machine that the test provides.

use crate::blocks::Blocks;
use crate::map::Map;
use rekindle_base::{Generation, Incarnation, NodeId, VolumeId};
use rekindle_content::{Compression, Content};
use rekindle_datastore::Store;
use rekindle_datastore::layer::fault::{self, Plan};
use rekindle_datastore::record::{Held, Writer};
use rekindle_env::Env;
use rekindle_log::{Log, Replica};
use rekindle_staging::{
    Ack, Backlog, Config, Error, Home, Policy, Staged, Staging, Vault, VaultBody, Written,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub const NODE: NodeId = NodeId([7; 16]);
pub const MIB: u64 = 1 << 20;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// The settings of a node.
#[derive(Clone)]
pub struct Setup {
    pub config: Config,
    pub log_bytes: u64,
    pub policy: Policy,
    pub ack: Ack,
    pub size: u64,
    pub folder: PathBuf,
    /// Segments that the arena holds.
    pub slots: usize,
    /// Cache of chunks, in RAM.
    pub cache_bytes: u64,
    /// Interval of the log's own commits.
    pub flush_interval: Duration,
    /// Count of the node's starts; copies of a setup count together.
    pub lives: Arc<AtomicU64>,
    /// The holders of copies of the log.
    pub replicas: Vec<Arc<dyn Replica>>,
}

impl Setup {
    pub fn new(policy: Policy, ack: Ack) -> Self {
        Self {
            config: Config {
                flash_bytes: 256 * MIB,
                memory_bytes: 16 * MIB,
                destage_age: Duration::from_millis(200),
                destage_bytes: 8 * MIB,
                batch_bytes: 16 * MIB,
                destagers: 2,
                index_at_once: 4,
                age_deadline: Duration::from_secs(60),
                destage_writes_per_minute: 0,
                memory_outlives_process: true,
                copied_from: Incarnation(0),
                lease: rekindle_staging::Lease::for_ever(),
            },
            log_bytes: 512 * MIB,
            policy,
            ack,
            size: 256 * 1024,
            folder: PathBuf::from("/node"),
            slots: 8,
            cache_bytes: 32 * MIB,
            flush_interval: Duration::from_millis(100),
            lives: Arc::default(),
            replicas: Vec::new(),
        }
    }

    pub fn content(&self) -> rekindle_content::Config {
        rekindle_content::Config {
            secret: [3; 32],
            compression: Compression::None,
            parity: None,
            pack_bytes: 4 * MIB,
            cache_bytes: self.cache_bytes,
            index_bytes: 4 * MIB,
            uploads: 4,
        }
    }

    pub fn vault(&self, tag: u8) -> Vault {
        let (id, name) = (VolumeId([tag; 16]), format!("volume{tag}"));
        Vault {
            policy: self.policy,
            ack: self.ack,
            owner: Some(NODE),
            generation: Generation(1),
            ..Vault::new(id, name, "blocks".into(), self.size, VaultBody::default())
        }
    }
}

/// One life of the daemon.
pub struct Node {
    pub env: Env,
    pub setup: Setup,
    pub log: Log,
    pub content: Content,
    pub writer: Writer,
    pub staging: Staging,
    pub faults: fault::Handle,
    /// The damage that the log reported when it was opened.
    pub damage: Vec<String>,
}

impl Node {
    /// Starts the daemon over a store that outlives it.
    pub async fn start(env: &Env, setup: &Setup, store: &Store, plan: Plan) -> Node {
        let (store, faults) = fault::wrap(env, store.clone(), plan);
        let arena = rekindle_warm::Arena::open(env, &setup.folder.join("arena"), NODE, setup.slots)
            .unwrap();
        let config = rekindle_log::Config {
            folder: setup.folder.join("log"),
            node: NODE,
            flash_bytes: setup.log_bytes,
            flush_interval: setup.flush_interval,
        };
        let life = Incarnation(setup.lives.fetch_add(1, Ordering::Relaxed) + 1);
        let found = Log::find(env, arena, config, true, None).await.unwrap();
        let found = found.with_replicas(setup.replicas.clone());
        let (log, opened) = found.open(life).await.unwrap();
        let content = Content::open(env.clone(), store.clone(), setup.content());
        let writer = Writer::new(env.clone(), store, NODE).with_incarnation(life);
        let staging = Staging::start(
            env.clone(),
            log.clone(),
            content.clone(),
            writer.clone(),
            setup.config.clone(),
        );
        Node {
            env: env.clone(),
            setup: setup.clone(),
            log,
            content,
            writer,
            staging,
            faults,
            damage: opened.damage,
        }
    }

    pub fn home(&self) -> Arc<Blocks> {
        Arc::new(Blocks { content: self.content.clone(), block: BLOCK })
    }

    /// The vault that the store has of a volume, or this one, newly made.
    pub async fn held(&self, vault: Vault) -> Held<Vault> {
        let key = Vault::key(vault.id);
        loop {
            match self.writer.read::<Vault>(&key).await {
                Ok(Some(held)) => return held,
                Ok(None) => match self.writer.create(&key, vault.clone()).await {
                    Ok(held) => return held,
                    Err(error) => eprintln!("trying again: {error}"),
                },
                Err(error) => eprintln!("trying again: {error}"),
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Brings a volume into service, and makes it if there is none.
    pub async fn open(&self, tag: u8) -> Result<Arc<Staged>, Error> {
        self.open_as(self.setup.vault(tag)).await
    }

    /// The same, with other settings.
    pub async fn open_as(&self, vault: Vault) -> Result<Arc<Staged>, Error> {
        let held = self.held(vault).await;
        self.staging.open(held, Home::Range(self.home())).await
    }

    /// Brings a map into service, and makes it if there is none.
    pub async fn open_map(&self, tag: u8) -> Result<(Arc<Staged>, Arc<Map>), Error> {
        let held = self.held(Vault { kind: "map".into(), ..self.setup.vault(tag) }).await;
        let home = Home::Record(Map::new(&self.content, &held.value));
        let volume = self.staging.open(held, home).await?;
        volume.until_readable().await?;
        let map = volume.record_home().expect("the home that was given");
        Ok((volume, map))
    }

    /// The vault as the store has it.
    pub async fn vault(&self, tag: u8) -> Vault {
        self.writer.read::<Vault>(&Vault::key(VolumeId([tag; 16]))).await.unwrap().unwrap().value
    }
}

/// Waits for the acknowledgement.
pub async fn done(volume: &Staged, written: Written) -> Result<(), Error> {
    match written {
        Written::Acked => Ok(()),
        Written::NeedsSync(ticket) => volume.sync(ticket).await,
        Written::Pending(later) => later.await,
    }
}

/// Waits until the backlog is as wanted.
pub async fn until(env: &Env, volume: &Staged, wanted: impl Fn(&Backlog) -> bool) -> Backlog {
    for _ in 0..100_000 {
        let backlog = volume.backlog();
        if wanted(&backlog) {
            return backlog;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    panic!("the backlog stays {:?}", volume.backlog());
}

/// Bytes of a range.
pub async fn read(volume: &Staged, position: u64, span: usize) -> Vec<u8> {
    let mut out = vec![0xee; span];
    volume.read(position, &mut out).await.unwrap();
    let mut now = vec![0xdd; span];
    if volume.read_now(position, &mut now).unwrap() {
        assert_eq!(now, out, "what is in memory is what a read gives");
    }
    out
}
