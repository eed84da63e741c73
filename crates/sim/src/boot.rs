//! A node on the simulated machine: the daemon's own, with small sizes, over the run's store.

use crate::oracle::BLOCK;
use crate::{heard, lists, records};
use parking_lot::Mutex;
use rekindle_base::units::{KIB, MIB};
use rekindle_base::{Kind, NodeId, PackId};
use rekindle_block::Device;
use rekindle_content::sweep::{Budget, Options};
use rekindle_content::tree::{self, Root};
use rekindle_content::{Class, Compression, Content};
use rekindle_datastore::Store;
use rekindle_datastore::identity;
use rekindle_datastore::layer::{self, fault};
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_front::conn::Connections;
use rekindle_front::http::Api;
use rekindle_front::http::api::{ApiError, CreateVolume, Job, JobState, Problem, Shutdown};
use rekindle_front::nbd::{ExportError, Exports, Target};
use rekindle_node::config::{Cluster, Destage, Scrub, Sweep, Token};
use rekindle_node::{Config, Error, Export, Kit, Node, OpenStore, Opener, Scale, Service};
use rekindle_staging::{Ack, MissingCopy, Policy, Written};
use rekindle_volume::collector;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The node's folder, the folder of its log, and its warm memory.
pub const FOLDER: &str = "/node";
pub const FLASH: &str = "/node/flash";
pub const WARM: &str = "/warm";
/// Room for a handful of sets, so that a run sees evictions.
const FRAMES_BYTES: u64 = MIB;
/// Small packs, so that a run has many.
const PACK_BYTES: u64 = 128 * KIB;
/// Most clients of other hosts.
const CLIENTS_MAX: usize = 64;
/// Pause before the next request to the store.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two looks at a job.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Settings of a node and its volumes, drawn from the seed.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The kind of a new volume; absent in the request for a block volume.
    pub kind: Option<&'static str>,
    /// Bytes of every chunk of a new block volume; `None` has them cut by content.
    pub block_size: Option<u64>,
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
    /// Delay of background work after a start.
    pub clients_first: Duration,
    pub sweep: Options,
    /// Pause between two looks for sweeps of other nodes.
    pub looks: Duration,
    pub collector: collector::Settings,
    /// Time between two scrubs.
    pub scrubs: Option<Duration>,
    /// Count of the copies that a new volume asks for.
    pub copies: u8,
    /// What its writes do while there are fewer.
    pub on_missing_copy: MissingCopy,
    /// Time after which a volume follows its clients.
    pub follow: Option<Duration>,
    /// Address at which other nodes reach this one.
    pub advertise: Option<String>,
    /// The token of the cluster to join.
    pub join: Option<String>,
    /// The node's name in its cluster.
    pub name: String,
    pub folder: PathBuf,
    pub warm: PathBuf,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kind: None,
            block_size: Some(BLOCK as u64),
            policy: Policy::Back,
            ack: Ack::Flash,
            size: MIB,
            cache_bytes: 4 * MIB,
            segment_bytes: 512 * KIB,
            flash_bytes: 3 * MIB,
            warm_slots: 3,
            destage_age: Duration::from_millis(50),
            batch_bytes: 64 * KIB,
            index_at_once: usize::MAX,
            clients_first: Duration::from_millis(100),
            sweep: Options { budget: Budget::Unlimited, ..Options::default() },
            looks: Duration::from_secs(10),
            collector: collector::Settings::default(),
            scrubs: None,
            copies: 0,
            on_missing_copy: MissingCopy::default(),
            advertise: None,
            follow: None,
            join: None,
            name: String::new(),
            folder: FOLDER.into(),
            warm: WARM.into(),
        }
    }
}

impl Setup {
    fn config(&self, env: &Env, how: &How) -> Config {
        // Each life draws its own parity: an operator may change that at any time.
        let parity = env.random_u64().is_multiple_of(2).then(|| "4+1".parse().expect("a good one"));
        Config {
            take_identity: how.takes.then(|| env.random_u64()),
            older_copies: how.older_copies,
            cluster: Cluster {
                advertise: self.advertise.clone(),
                join: self.join.clone().map(Token::new),
                name: self.name.clone(),
                follow_clients: self.follow,
                ..Cluster::default()
            },
            flash_bytes: Some(self.flash_bytes),
            warm: Some(self.warm.clone()),
            warm_bytes: Some(self.warm_slots as u64 * self.segment_bytes + FRAMES_BYTES),
            warm_frames_bytes: Some(FRAMES_BYTES),
            cache_bytes: self.cache_bytes,
            index_bytes: MIB,
            held_bytes: 4 * MIB,
            compression: Compression::Lz4,
            parity,
            destage: Destage {
                age: self.destage_age,
                // The runs are short: commits by age pause for some tens of milliseconds.
                writes_per_minute: 6000,
                bytes: self.batch_bytes,
                batch_bytes: self.batch_bytes,
                workers: 2,
                deadline: Duration::from_secs(60),
            },
            // The runs begin sweeps by themselves, to know when one has ended.
            sweep: Sweep {
                interval: None,
                percent: 100,
                grace: self.sweep.grace,
                ..Sweep::default()
            },
            collector: self.collector.clone(),
            scrub: Scrub { interval: self.scrubs, ..Scrub::default() },
            restarted: true,
            ..Config::new(self.folder.clone())
        }
    }

    fn scale(&self) -> Scale {
        Scale {
            segment_bytes: self.segment_bytes,
            slots_min: 2,
            flush_interval: Duration::from_millis(20),
            index_at_once: self.index_at_once,
            pack_bytes: PACK_BYTES,
            uploads: 2,
            clients_first: self.clients_first,
            sweep_look: self.looks,
            sweep_agree: self.looks,
            sweep: self.sweep,
            // Less than many a batch has.
            copy_bytes: 10_000,
            plain_peers: true,
            ..Scale::default()
        }
    }
}

/// A node in service, with all its background work. Clones mean the same.
#[derive(Clone)]
pub struct Served {
    node: Arc<Node>,
    pub service: Service,
    /// Switches the faults of the store.
    pub faults: fault::Handle,
    /// Switches the faults of lists.
    pub lists: fault::Handle,
    /// The result of the node's life, once it has stopped.
    ended: Arc<Mutex<Option<Result<(), String>>>>,
}

impl Deref for Served {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

/// The circumstances of a start.
#[derive(Debug, Clone, Default)]
pub struct How {
    /// Whether the user says that this folder goes on, whatever copies of it there are.
    pub takes: bool,
    /// Whether the user says that copies of an older start may go on.
    pub older_copies: bool,
    /// Faults of the store from the first request on.
    pub faults: fault::Plan,
    /// Whether the start may find damage: neither a crash nor a copy is any.
    pub was_hurt: bool,
}

impl Served {
    /// Starts a node over what the disk, mapped memory and the store hold. Waits for a store that
    /// does not answer. An error begins with the part that failed.
    pub async fn start(env: &Env, store: Store, setup: &Setup, how: How) -> Result<Self, String> {
        let (store, lists) = lists::wrap(env, store);
        let layers = layer::usual(env, store, how.faults.clone());
        let layer::Layers { store, meter, marks, faults } = layers;
        let service =
            Service::new(env.clone(), vec![], vec![], Connections::new("nbd", CLIENTS_MAX));
        let node = loop {
            let open = OpenStore {
                url: store.describe(),
                store: store.clone(),
                meter: meter.clone(),
                marks: marks.clone(),
                faults: faults.clone(),
                plan: how.faults.clone(),
            };
            let open: Opener = Arc::new(move |_, _| {
                let open = open.clone();
                Box::pin(async { Ok(open) })
            });
            let config = setup.config(env, &how);
            let kit = Kit { scale: setup.scale(), kinds: records::kinds, open };
            match Node::assemble_with(env, config, kit).await {
                Ok(node) => break Arc::new(node),
                Err(error @ Error::Store { .. }) if error.kind().is_retryable() => {
                    tracing::debug!("the start waits: {error}");
                    env.sleep(PAUSE).await;
                }
                Err(error) => return Err(told(&error)),
            }
        };
        if !(node.opened.damage.is_empty() || how.was_hurt) {
            return Err(format!("nothing was damaged: {:?}", node.opened.damage));
        }
        rekindle_node::begin_cluster(&service, &node).await.map_err(|error| told(&error))?;
        service.serve(node.clone());
        rekindle_node::in_background(&node, &service);
        let ended = Arc::new(Mutex::new(None));
        let (serving, living, end) = (service.clone(), node.clone(), ended.clone());
        env.spawn("life", async move {
            let http = Connections::new("http", 1);
            let signal = async || std::future::pending().await;
            let life = rekindle_node::until_end(&serving, &http, living, signal, |_| {}).await;
            *end.lock() = Some(life.map_err(|error| error.to_string()));
        });
        Ok(Self { node, service, faults, lists, ended })
    }

    /// Stops the node in order, as a user would.
    pub async fn stop(&self, drain: bool) -> Result<(), String> {
        let asked = self.service.shutdown(Shutdown { drain }).await;
        asked.map_err(|error| format!("the stop is refused: {error}"))?;
        loop {
            if let Some(ended) = self.ended.lock().clone() {
                return ended;
            }
            self.env.sleep(PAUSE).await;
        }
    }

    /// The end of the node's life; `None`: it goes on.
    #[must_use]
    pub fn ended(&self) -> Option<Result<(), String>> {
        self.ended.lock().clone()
    }

    /// Creates a volume, if an earlier life has not; retries while the store fails.
    pub async fn create(&self, name: &str, setup: &Setup) -> Result<(), ApiError> {
        let block_size = setup.block_size.filter(|_| setup.kind.is_none());
        let settings: BTreeMap<_, _> =
            block_size.map(|bytes| ("block_size".to_owned(), bytes.into())).into_iter().collect();
        loop {
            let request = CreateVolume {
                name: name.to_owned(),
                kind: setup.kind.map(str::to_owned),
                size: setup.size,
                policy: setup.policy,
                ack: setup.ack,
                copies: setup.copies,
                on_missing_copy: setup.on_missing_copy,
                settings: settings.clone(),
            };
            match self.service.create_volume(request).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind == Kind::Exists => return Ok(()),
                Err(error) if error.kind.is_retryable() => self.env.sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Attaches a volume, as a client's session does.
    pub async fn attach(&self, name: &str) -> Result<Device, ExportError> {
        self.service.attach_here(name).await
    }

    /// Attaches a volume, as the session of a client does that may come to any host.
    pub async fn attach_anywhere(&self, name: &str) -> Result<Export, ExportError> {
        Exports::attach(&self.service, name).await
    }

    /// Attaches a volume; retries while the store fails.
    pub async fn device(&self, name: &str) -> Result<Device, ExportError> {
        loop {
            match self.attach(name).await {
                Err(error) if error.kind.is_retryable() => self.env.sleep(PAUSE).await,
                done => return done,
            }
        }
    }

    /// Waits for the end of a job, and returns its result; nothing if the node has forgotten it.
    pub async fn end_of(&self, job: Job) -> Result<Value, Problem> {
        let mut pause = Duration::from_millis(1);
        loop {
            let Ok(job) = self.service.job(&job.id).await else { return Ok(Value::Null) };
            match (job.state, job.problem) {
                (JobState::Running, _) => {}
                (_, Some(problem)) => return Err(problem),
                (_, None) => return Ok(job.result),
            }
            self.env.sleep(pause).await;
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// Has the store swept, as a user would. `false`: the sweep did not come to its end, because
    /// the store is bad for a while, or another node sweeps or has not agreed.
    pub async fn sweep(&self) -> Result<bool, Problem> {
        let swept = match self.service.start_sweep().await {
            Ok(job) => self.end_of(job).await,
            Err(error) => Err(Problem::from(&error)),
        };
        match swept {
            Ok(result) => {
                let count = |value: &Value| value.as_u64().unwrap_or(0);
                for (what, counted) in [
                    ("condemned", "packs_condemned"),
                    ("rescue", "packs_rescued"),
                    ("compaction", "packs_compacted"),
                    ("deleted", "packs_deleted"),
                ] {
                    heard::note_many(what, count(&result[counted]));
                }
                let reaped = &result["orphans"];
                heard::note_many("reaped", count(&reaped["removed"]) + count(&reaped["orphans"]));
                Ok(true)
            }
            Err(problem) if problem.retryable => {
                heard::note("sweep refused");
                tracing::debug!("sweep refused: {}", problem.message);
                Ok(false)
            }
            Err(problem) => Err(problem),
        }
    }

    /// Opens the store's content with empty caches.
    pub fn content_of(&self, env: &Env, store: &Store) -> Content {
        let config = rekindle_content::Config {
            secret: self.identity.secret.0,
            compression: rekindle_content::Compression::Lz4,
            parity: None,
            pack_bytes: PACK_BYTES,
            cache_bytes: 4 * MIB,
            index_bytes: MIB,
            uploads: 2,
        };
        Content::open(env.clone(), store.clone(), config)
    }
}

/// Waits until a write is acknowledged, or refused.
pub async fn acknowledged(
    device: &impl Target,
    written: Result<Written, rekindle_volume::Error>,
) -> Result<(), rekindle_volume::Error> {
    match written? {
        Written::Acked => Ok(()),
        Written::NeedsSync(ticket) => device.sync(ticket).await,
        Written::Pending(later) => Ok(later.await?),
    }
}

/// Reads a block below a root. Also returns its pack, if it is not of zeros.
pub async fn block_of(
    content: &Content,
    root: &Root,
    block: u64,
) -> Result<(Vec<u8>, Option<PackId>), rekindle_content::Error> {
    match tree::get(content, root, block).await? {
        Some(pointer) => {
            let bytes = content.read(&pointer, Class::Data).await?;
            Ok((bytes.to_vec(), Some(pointer.pack)))
        }
        None => Ok((vec![0; BLOCK], None)),
    }
}

/// Names the part of the node that does not start.
fn told(error: &Error) -> String {
    match error {
        Error::Warm { .. } => format!("memory: {error}"),
        Error::Log(_) => format!("log: {error}"),
        Error::Store { .. } => format!("store: {error}"),
        _ => format!("node: {error}"),
    }
}

/// Returns the kind of error that an answer of the service means.
pub fn kind_of(problem: &Problem) -> Kind {
    use Kind::{Conflict, Damaged, Exists, Fenced, Full, Invalid, Io, NotFound, Refused};
    let kinds = [Conflict, Damaged, Exists, Fenced, Full, Invalid, Io, NotFound, Refused];
    let kinds = kinds.into_iter().chain([Kind::Unavailable, Kind::Unsupported]);
    kinds.into_iter().find(|kind| kind.to_string() == problem.error).unwrap_or(Kind::Io)
}

/// Founds the store (its identity and the markers of its folders) while all is well: markers in a
/// folder that lies over the right one would be a user's to mend.
pub async fn found_store(env: &Env, store: &Store) -> Result<(), String> {
    let writer = Writer::new(env.clone(), store.clone(), NodeId(env.random()));
    let founded = identity::open_or_create(&writer).await;
    founded.map(drop).map_err(|error| format!("store: {error}"))
}
