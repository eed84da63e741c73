//! Puts a node together. The only file that names every crate below.
//!
//! What must happen before the first reply, and nothing else: lock the folder, read `node.json`, map the warm memory,
//! read the store's identity and our record (together), write our record once, open the log. None of it grows with
//! volumes, bytes or clients. Whatever only makes things faster ([`Node::warm_up`]) comes after the first reply.

use crate::config::{Config, Sizes};
use crate::home_file::{FolderLock, HomeFile, Keeper, LogNote};
use crate::record::{self, Beginning, NodeRecord};
use crate::starts::{Landed, Starts};
use crate::warm_memory::{self, WarmMemory};
use crate::work::StoredRoots;
use crate::{Error, limits};
use base::{Incarnation, NodeId};
use content::Content;
use content::sweep::{Budget, Options, Sweeper};
use datastore::identity::{self, Identity};
use datastore::layer::{self, fault, meter::Meter};
use datastore::record::{Held, Writer};
use datastore::{Error as StoreError, Store};
use env::boot::Watch;
use env::{Env, Moment, Timestamp};
use log::Log;
use staging::Staging;
use std::sync::Arc;
use volume::{Home, HomeMaker, Vault, Volumes};

/// A node, put together and ready to serve.
pub struct Node {
    pub env: Env,
    pub id: NodeId,
    pub incarnation: Incarnation,
    /// Tells this start from any other.
    pub nonce: u64,
    pub config: Config,
    pub sizes: Sizes,
    pub identity: Identity,
    pub store: Store,
    pub meter: Meter,
    pub writer: Writer,
    pub content: Content,
    pub log: Log,
    /// What the log found.
    pub opened: log::Opened,
    pub staging: Staging,
    pub volumes: Volumes,
    pub sweeper: Arc<Sweeper>,
    /// When it was put together.
    pub started: Timestamp,
    /// The memory that outlives the process.
    pub warm: WarmMemory,
    /// `node.json`.
    pub home: Keeper,
    /// How long each step of the start took, in order.
    pub phases: Vec<(&'static str, u64)>,
    _lock: FolderLock,
}

/// Times the steps of the start.
struct Phases {
    env: Env,
    last: Moment,
    watch: Watch,
    taken: Vec<(&'static str, u64)>,
}

impl Phases {
    fn done(&mut self, phase: &'static str) {
        let now = self.env.now();
        self.taken.push((phase, u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX)));
        self.last = now;
        self.env.boot_phase(phase, None, self.watch);
        self.watch = self.env.watch();
    }
}

/// The store, open, with its layers.
struct OpenStore {
    url: String,
    store: Store,
    meter: Meter,
    faults: fault::Handle,
    /// What shall go wrong once the node serves.
    plan: fault::Plan,
}

impl Node {
    /// Puts a node together.
    pub async fn assemble(env: &Env, config: Config) -> Result<Self, Error> {
        config.check().map_err(Error::Usage)?;
        let mut phases =
            Phases { env: env.clone(), last: env.now(), watch: env.watch(), taken: Vec::new() };
        let lock = FolderLock::take(env, &config.dir).await?;
        let home = HomeFile::read(env, &config.dir).await?;
        phases.done("folder");
        let id = home.as_ref().map_or_else(|| NodeId(env.random()), |home| home.node);
        let chosen = match &home {
            Some(home) => home.sizes,
            None => choose(env, &config).await,
        };
        let sizes = sizes(&config, chosen, warm_memory::device_bytes(env, &config)?);
        let before = home.as_ref().map(|home| home.starts.clone()).unwrap_or_default();
        let nonce = env.random_u64();
        let permission = config.take_identity.filter(|_| config.take_identity != before.permission);
        let starts = before.attempting(nonce, permission);
        let known_log = home.as_ref().and_then(HomeFile::known_log);
        let (known, keeper, (arena, warm)) = match home {
            // Strangers to one another: at the same time. That this start will be tried is written down before it is.
            Some(home) => {
                let noted = home.warm.clone();
                let warm = warm_memory::open(env, &config, id, home.store, sizes, noted.as_deref());
                let keeper = Keeper::new(env, &config.dir, home.clone());
                let note = keeper.change(|home| home.starts = starts);
                let store = join(env, &config, id, sizes, Ok(home));
                let (known, warm, noted) = futures_util::join!(store, warm, note);
                noted?;
                if known.is_err() || warm.is_err() {
                    // It was not tried.
                    keeper.change(|home| home.starts = before).await?;
                    return Err(known.err().or(warm.err()).unwrap_or(Error::InUse(config.dir)));
                }
                (known?, keeper, warm?)
            }
            // A store that refuses us must not leave the memory of a node behind that nobody will ever hear of.
            None => {
                let known = join(env, &config, id, sizes, Err(starts)).await?;
                let store = known.identity.store;
                let keeper = Keeper::new(env, &config.dir, known.home.clone());
                (known, keeper, warm_memory::open(env, &config, id, store, sizes, None).await?)
            }
        };
        let Known { open, identity, writer, record, home } = known;
        if home.warm != warm.name {
            // Before anything lies there: the next start must find it.
            keeper.change(|home| home.warm.clone_from(&warm.name)).await?;
        }
        let writer = writer.with_secret(identity.secret);
        phases.done("store-and-warm");
        let memory_outlives_process = arena.outlives_process();
        let trusted = record::is_trusted(record.as_ref().map(|held| &held.value), arena.salt());
        let beginning = Beginning {
            url: &open.url,
            starts: &before,
            nonce,
            permitted: permission.is_some(),
            arena: arena.salt(),
            copies: warm.frames.is_some(),
            trusted,
            lost: false,
        };
        let find = Log::find(env, arena, log_config(&config, id, sizes), trusted, known_log);
        let (held, found) = if trusted {
            // The log is found while the store writes; its new head needs to know which life this is.
            futures_util::join!(record::start(&writer, &beginning, record), find)
        } else {
            // What lies in another memory is forgotten before the record names it.
            let found = find.await;
            let lost = found.as_ref().is_ok_and(|found| !found.was_closed());
            let beginning = Beginning { lost, ..beginning };
            (record::start(&writer, &beginning, record).await, found)
        };
        let held = held?;
        let writer = writer.with_incarnation(held.value.incarnation);
        let writer = match (&warm.frames, held.value.copies) {
            (Some(frames), Some(era)) => {
                writer.with_copies(Arc::new(volume::WarmCopies::new(frames.clone(), era)))
            }
            _ => writer,
        };
        let incarnation = held.value.incarnation;
        let (log, opened) = found?.open(incarnation).await?;
        note_start(env, &keeper, Landed { incarnation, nonce }, &log, opened.is_absent);
        phases.done("log");
        for damage in &opened.damage {
            tracing::error!(%damage, "damage in the log");
        }
        let content = Content::open_warm(
            env.clone(),
            open.store.clone(),
            content_config(&config, &identity),
            warm.frames.clone(),
        );
        let staging = Staging::start(
            env.clone(),
            log.clone(),
            content.clone(),
            writer.clone(),
            staging_config(&config, sizes, memory_outlives_process),
        );
        staging.taken(held.value.taken);
        staging.copied_since(held.value.copied_since.unwrap_or_default());
        let volumes = Volumes::open(
            env.clone(),
            writer.clone(),
            staging.clone(),
            content.clone(),
            homes(env, &content, config.read_ahead),
        );
        volumes.stop_at_once(config.stop_parallel);
        let sweeper = sweeper(&config, &content, &writer, &volumes);
        crate::marks::begin(env, &writer, &content, &volumes, &identity);
        open.faults.set(open.plan);
        phases.done("volumes");
        Ok(Self {
            env: env.clone(),
            id,
            incarnation,
            nonce,
            config,
            sizes,
            identity,
            store: open.store,
            meter: open.meter,
            writer,
            content,
            log,
            opened,
            staging,
            volumes,
            sweeper: Arc::new(sweeper),
            started: env.wall_clock(),
            warm,
            home: keeper,
            phases: phases.taken,
            _lock: lock,
        })
    }
}

/// Opens the store as told. Faults begin when the node serves: a drill is about clients, not about starting.
async fn open_store(env: &Env, config: &Config, is_known: bool) -> Result<OpenStore, Error> {
    let url = config.store_url();
    let plan = match &config.store_fault {
        Some(spec) => spec
            .parse()
            .map_err(|error: StoreError| Error::Usage(format!("--store-fault: {error}")))?,
        None => fault::Plan::default(),
    };
    let bare = match is_known {
        true => datastore::open_known(env, &url).await,
        false => datastore::open(env, &url).await,
    };
    let bare = bare.map_err(|source| Error::Store { url: url.clone(), source })?;
    let (store, meter, faults) = layer::usual(env, bare, fault::Plan::default());
    Ok(OpenStore { url: store.describe(), store, meter, faults, plan })
}

/// What is known once the store has been read.
struct Known {
    open: OpenStore,
    identity: Identity,
    writer: Writer,
    record: Option<Held<NodeRecord>>,
    home: HomeFile,
}

/// Writes down, beside all else, that the record names this start (until then, the folder knows that it may), and what the
/// log's folder must hold from now on. The log takes nothing before that.
///
/// Where the log that was used last is absent, that one stays the one to be found, until somebody goes on without it: until
/// then it may come back, and nothing is lost.
fn note_start(env: &Env, keeper: &Keeper, landed: Landed, log: &Log, is_absent: bool) {
    log.hold();
    let (env, keeper, log) = (env.clone(), keeper.clone(), log.clone());
    env.clone().spawn("note-start", async move {
        if is_absent {
            let stand_in = |home: &mut HomeFile| {
                home.starts = home.starts.landed(landed);
                home.log.as_mut().map(|log| log.stand_in.get_or_insert(landed.incarnation));
            };
            if let Err(error) = keeper.change(stand_in).await {
                tracing::warn!(%error, "it is not written down that this start succeeded");
            }
            log.wanted().await;
        }
        if !log.reserve().await {
            tracing::warn!(
                "the disk is full: a start that finds it still full may have to wait for room"
            );
        }
        while log.failure().is_none() {
            let note = |home: &mut HomeFile| {
                home.starts = home.starts.landed(landed);
                home.log = Some(LogNote::of(log.known()));
            };
            match keeper.change(note).await {
                Ok(()) => return log.go_on(),
                Err(error) => {
                    tracing::warn!(%error, "writes wait until this start is written down")
                }
            }
            env.sleep(limits::NOTE_RETRY).await;
        }
    });
}

impl Node {
    /// The log is closed, and everything was drained. If it has nothing that anybody needs, its folder may be cleared.
    pub(crate) async fn note_drained(&self) {
        if !self.log.holds_nothing() {
            return;
        }
        let known = self.log.known();
        let note = |home: &mut HomeFile| {
            home.log = Some(LogNote { drained: true, ..LogNote::of(known) });
        };
        if let Err(error) = self.home.change(note).await {
            tracing::warn!(%error, "it is not written down that the log holds nothing");
        }
    }
}

/// Opens the store and finds out whether it is ours; the first time, tries it and writes down who belongs to whom.
async fn join(
    env: &Env,
    config: &Config,
    node: NodeId,
    sizes: Sizes,
    home: Result<HomeFile, Starts>,
) -> Result<Known, Error> {
    let watch = env.watch();
    let open = open_store(env, config, home.is_ok()).await?;
    env.boot_phase("store-opened", Some("store-and-warm"), watch);
    let watch = env.watch();
    let failed = |source| Error::Store { url: open.url.clone(), source };
    let writer = Writer::new(env.clone(), open.store.clone(), node);
    let home = match home {
        Ok(home) => home,
        Err(starts) => {
            let identity = identity::open_or_create(&writer).await.map_err(failed)?;
            datastore::probe(env, &open.store).await.map_err(failed)?;
            let now = env.wall_clock().0;
            let home = HomeFile::new(node, identity.store, now, sizes, starts);
            home.write(env, &config.dir).await?;
            return Ok(Known { open, identity, writer, record: None, home });
        }
    };
    let (identity, record) = futures_util::join!(identity::find(&writer), record::read(&writer));
    let identity = identity.map_err(failed)?.ok_or_else(|| {
        let gone = "it holds no store of rekindle any more, but this folder belongs to one: is it mounted, is the URL right?";
        // What this node has served from a moment ago comes back.
        failed(match config.restarted {
            true => StoreError::Unavailable(gone.to_owned()),
            false => StoreError::Refused(gone.to_owned()),
        })
    })?;
    if identity.store != home.store {
        return Err(Error::OtherStore {
            url: open.url.clone(),
            ours: home.store,
            theirs: identity.store,
        });
    }
    let record = record.map_err(failed)?;
    env.boot_phase("records-read", Some("store-and-warm"), watch);
    Ok(Known { open, identity, writer, record, home })
}

/// Sizes that suit this machine.
async fn choose(env: &Env, config: &Config) -> Sizes {
    let flash_free = env.disk().free_bytes(&config.dir).await.unwrap_or(0);
    let folder = config.warm.clone().or_else(|| env.memory().default_folder());
    Sizes::choose(flash_free, folder.and_then(|folder| env.memory().free_bytes(&folder).ok()))
}

/// What was asked for, else what was chosen at the first start; but all of a device of memory.
fn sizes(config: &Config, chosen: Sizes, device_bytes: Option<u64>) -> Sizes {
    Sizes {
        flash_bytes: config.flash_bytes.unwrap_or(chosen.flash_bytes),
        warm_bytes: config.warm_bytes.or(device_bytes).unwrap_or(chosen.warm_bytes),
    }
}

fn log_config(config: &Config, node: NodeId, sizes: Sizes) -> log::Config {
    log::Config {
        folder: config.flash(),
        node,
        flash_bytes: sizes.flash_bytes,
        flush_interval: limits::FLUSH_INTERVAL,
    }
}

fn content_config(config: &Config, identity: &Identity) -> content::Config {
    content::Config {
        secret: identity.secret.0,
        compression: config.compression.into(),
        parity: config.parity,
        pack_bytes: limits::PACK_BYTES,
        cache_bytes: config.cache_bytes,
        index_bytes: config.index_bytes,
        uploads: limits::UPLOADS,
        direct_path: config.direct_path,
    }
}

fn staging_config(config: &Config, sizes: Sizes, memory_outlives_process: bool) -> staging::Config {
    let destage = &config.destage;
    staging::Config {
        flash_bytes: sizes.flash_bytes,
        memory_bytes: config.held_bytes,
        destage_age: destage.age,
        destage_bytes: destage.bytes,
        batch_bytes: destage.batch_bytes,
        destagers: destage.workers,
        index_at_once: limits::INDEX_AT_ONCE_MAX,
        age_deadline: destage.deadline,
        memory_outlives_process,
    }
}

/// What the bytes of each kind of volume mean. It is asked when a volume comes into service, and that is when
/// `read_ahead` begins.
fn homes(env: &Env, content: &Content, read_ahead: bool) -> HomeMaker {
    let (env, content) = (env.clone(), content.clone());
    Arc::new(move |vault: &Vault| match vault.kind.as_str() {
        "block" => {
            if read_ahead {
                let (content, root) = (content.clone(), vault.root);
                env.spawn("read-ahead", async move {
                    // Whoever needs it meets the same error.
                    let _ = content::tree::read_ahead(&content, &root).await;
                });
            }
            let home = block::Extents::new(content.clone(), vault.size, vault.block_size);
            Ok(Arc::new(home) as Arc<dyn Home>)
        }
        other => Err(volume::Error::Invalid(format!(
            "volume '{}' is of kind '{other}', which this binary does not know: upgrade rekindle",
            vault.name
        ))),
    })
}

/// What gives space in the store back.
fn sweeper(config: &Config, content: &Content, writer: &Writer, volumes: &Volumes) -> Sweeper {
    let roots = Arc::new(StoredRoots(volumes.clone()));
    let budget = match config.sweep.percent {
        100.. => Budget::Unlimited,
        percent => Budget::Percent(percent),
    };
    let options = Options { budget, grace: config.sweep.grace, ..Options::default() };
    Sweeper::new(content.clone(), writer.clone(), roots).with_options(options)
}

#[cfg(test)]
mod tests;
