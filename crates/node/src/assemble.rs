//! Puts a node together. The only file that names every crate below.
//!
//! The start does only what must precede the first reply: lock the folder, read `node.json`, map
//! the warm memory, read the store's identity and our record (together), write our record once,
//! open the log. None of these steps grows with volumes, bytes or clients. Work that only makes the
//! node faster ([`crate::work`]) follows the first reply.

use crate::cluster::{Candidate, Member, Membership, keep};
use crate::config::{Config, Sizes};
use crate::core::{Core, Ground};
use crate::incarnation::{self, Beginning, Place};
use crate::node_file::{FolderLock, Keeper, LogNote, NodeFile};
use crate::own_record::OwnRecord;
use crate::record::{self, NodeRecord};
use crate::scale::Scale;
use crate::starts::{Landed, Starts};
use crate::warm_memory::{self, WarmMemory};
use crate::{Error, limits};
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_cluster::roster::Entry;
use rekindle_datastore::identity::{self, Identity};
use rekindle_datastore::layer::{self, fault, meter::Meter};
use rekindle_datastore::record::{Held, Writer};
use rekindle_datastore::{Error as StoreError, Store};
use rekindle_env::boot::Watch;
use rekindle_env::{BoxFuture, Env, Moment, Timestamp};
use rekindle_log::{Discovery, Log};
use rekindle_staging::Lease;
use rekindle_volume::Kind;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// A node, put together and ready to serve.
pub struct Node {
    pub env: Env,
    pub id: NodeId,
    pub incarnation: Incarnation,
    /// Random number that distinguishes this start from any other.
    pub nonce: u64,
    pub config: Config,
    pub sizes: Sizes,
    /// What other nodes of this process are put together from, too.
    pub(crate) kit: Kit,
    pub identity: Identity,
    pub store: Store,
    pub meter: Meter,
    core: Core,
    /// The findings of the log's opening.
    pub opened: rekindle_log::Opened,
    /// End of the assembly.
    pub started: Timestamp,
    /// The node's record.
    pub(crate) own: OwnRecord,
    /// The time for which no other life of the node serves its volumes.
    pub(crate) lease: Arc<Lease>,
    /// Rung when this life may be over.
    pub(crate) doubt: Arc<Notify>,
    /// The node's part in its cluster, once it is in one.
    pub(crate) membership: OnceLock<Membership>,
    /// The memory that outlives the process.
    pub warm: WarmMemory,
    /// `node.json`.
    pub home: Keeper,
    /// Duration of each step of the start, in order, microseconds.
    pub phases: Vec<(&'static str, u64)>,
    _lock: FolderLock,
}

impl Deref for Node {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

/// A timer for the steps of the start.
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

/// The open store, with its layers.
#[derive(Clone)]
pub struct OpenStore {
    /// Its address, for messages.
    pub url: String,
    pub store: Store,
    pub meter: Meter,
    pub faults: fault::Handle,
    /// Faults that begin once the node serves.
    pub plan: fault::Plan,
}

/// Opens the store that a config names. Told whether the store is known to be there.
pub type Opener =
    Arc<dyn Fn(Config, bool) -> BoxFuture<'static, Result<OpenStore, Error>> + Send + Sync>;

/// What all nodes of a process are put together from, beside their settings.
#[derive(Clone)]
pub struct Kit {
    pub scale: Scale,
    /// The kinds of volumes.
    pub kinds: fn() -> Vec<Box<dyn Kind>>,
    pub open: Opener,
}

impl Kit {
    /// The daemon's own.
    #[must_use]
    pub fn of_daemon(env: &Env) -> Self {
        let env = env.clone();
        let open: Opener = Arc::new(move |config, is_known| {
            let env = env.clone();
            Box::pin(async move { open_store(&env, &config, is_known).await })
        });
        Self { scale: Scale::default(), kinds: crate::core::kinds, open }
    }
}

/// The part that a node plays in its process.
pub(crate) enum Role {
    /// The process is the node's own.
    Home,
    /// The node goes on in the process of another one. `takes`: that one takes it over now, as a
    /// holder of copies of its log; the record as it was seen before.
    Guest { member: Option<Arc<Member>>, host: NodeId, takes: Option<Arc<Entry>> },
}

impl Node {
    /// Puts a node together, over the store that the config names.
    pub async fn assemble(env: &Env, config: Config) -> Result<Self, Error> {
        config.check().map_err(Error::Usage)?;
        Self::assemble_with(env, config, Kit::of_daemon(env)).await
    }

    /// Puts a node together from this kit. A host whose node was taken over meanwhile goes on as a
    /// new node, if it is in a cluster.
    pub async fn assemble_with(env: &Env, config: Config, kit: Kit) -> Result<Self, Error> {
        loop {
            match Self::assemble_as(env, config.clone(), kit.clone(), Role::Home).await {
                Err(Error::TakenOver { node, host })
                    if crate::cluster::is_member(env, &config).await? =>
                {
                    let left = crate::cluster::left::set_aside(env, &config.dir, node).await?;
                    tracing::warn!(%node, %host, left = %left.display(), "this host goes on as a new node");
                }
                Err(error @ Error::TakenOver { .. }) => {
                    return Err(Error::Copied(error.to_string()));
                }
                assembled => return assembled,
            }
        }
    }

    pub(crate) async fn assemble_as(
        env: &Env,
        config: Config,
        kit: Kit,
        role: Role,
    ) -> Result<Self, Error> {
        let Kit { scale, open, .. } = kit.clone();
        let mut phases =
            Phases { env: env.clone(), last: env.now(), watch: env.watch(), taken: Vec::new() };
        let lock = FolderLock::take(env, &config.dir).await?;
        let home = NodeFile::read(env, &config.dir).await?;
        let takes = match &role {
            Role::Guest { takes, .. } => takes.clone(),
            Role::Home => None,
        };
        if takes.is_none() {
            adopt(env, &config, home.as_ref()).await?;
        }
        let candidate = match &role {
            Role::Home => Some(Candidate::find(env, &config, &scale).await?),
            Role::Guest { .. } => None,
        };
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
        let known_log = home.as_ref().and_then(NodeFile::known_log);
        let (known, keeper, (arena, warm)) = match home {
            // These steps are independent, so they run together. The folder records the attempt
            // before the node's record names it.
            Some(home) => {
                let noted = home.warm.clone();
                let warm = warm_memory::open(
                    env,
                    (&config, &scale),
                    id,
                    home.store,
                    sizes,
                    noted.as_deref(),
                );
                let keeper = Keeper::new(env, &config.dir, home.clone());
                let note = keeper.change(|home| home.starts = starts);
                let store = join(env, &config, id, chosen, Ok(home), &open);
                let (known, warm, noted) = futures_util::join!(store, warm, note);
                noted?;
                if known.is_err() || warm.is_err() {
                    // The attempt was not made, so it is taken back.
                    keeper.change(|home| home.starts = before).await?;
                    return Err(known.err().or(warm.err()).unwrap_or(Error::InUse(config.dir)));
                }
                (known?, keeper, warm?)
            }
            // The store first: if it refuses us, the warm memory of a node that never existed must
            // not stay behind.
            None => {
                let known = join(env, &config, id, chosen, Err(starts), &open).await?;
                let store = known.identity.store;
                let keeper = Keeper::new(env, &config.dir, known.home.clone());
                let habits = (&config, &scale);
                (known, keeper, warm_memory::open(env, habits, id, store, sizes, None).await?)
            }
        };
        let Known { open, identity, writer, record, home } = known;
        if home.warm != warm.name {
            // Written before the memory is used: the next start must find it.
            keeper.change(|home| home.warm.clone_from(&warm.name)).await?;
        }
        let writer = writer.with_secret(identity.secret);
        let joined = match candidate {
            Some(candidate) => candidate.join(&writer, &config, &identity, &scale).await?,
            None => None,
        };
        let found = record.as_ref().map(|held| &held.value);
        let (host, former, peer) = match (&role, &joined) {
            (Role::Home, None) => (id, Vec::new(), None),
            (Role::Home, Some(joined)) => (id, joined.former.clone(), Some(joined.note(id))),
            (Role::Guest { member: None, host, .. }, _) => (*host, Vec::new(), None),
            (Role::Guest { member: Some(member), host, .. }, _) => {
                (*host, member.calls.former.clone(), Some(member.note_for(found)))
            }
        };
        phases.done("store-and-warm");
        let memory_outlives_process = arena.outlives_process();
        let mut copied_from = home.copied_from;
        let goes_on_with_older = config.older_copies
            && permission.is_some()
            && incarnation::has_older_copies(&before, (copied_from, copied_from), found);
        if let Some(last) = found.map(|found| found.incarnation)
            && (goes_on_with_older || takes.is_some())
            && copied_from != last
        {
            // The volumes that asked for no copies lack what the lives since have acknowledged.
            copied_from = last;
            keeper.change(|home| home.copied_from = last).await?;
        }
        let users = arena.users();
        // What a lost node had in memory, this host has not.
        let trusted = takes.is_none()
            && incarnation::is_trusted(found, before.judge(found), arena.salt(), &users);
        if trusted {
            // Added to the earlier users: the record may go on naming one of them.
            arena.note_users(&[users, vec![nonce]].concat());
        } else if arena.was_kept() {
            tracing::warn!(
                "warm memory is not as the last start of this folder left it (the folder was put back from a backup or copied, or \
                 another memory was in use since): it is begun anew, and the log and the store say what there is"
            );
        }
        let beginning = Beginning {
            url: &open.url,
            starts: &before,
            nonce,
            permitted: permission.is_some(),
            copied_from,
            copied_log: Incarnation(0),
            older_copies: config.older_copies,
            arena: arena.salt(),
            copies: warm.frames.is_some(),
            trusted,
            lost: false,
            place: Place { host, former: &former, peer: peer.as_ref(), takes: takes.as_deref() },
        };
        let find = Log::find(
            env,
            arena.clone(),
            log_config(&config, id, sizes, &scale),
            trusted,
            known_log,
        );
        let (held, found) = if trusted {
            // The log is searched while the store writes; only its new head needs this life's
            // number.
            futures_util::join!(incarnation::start(&writer, &beginning, record), find)
        } else {
            // The record may name another memory only after the old content of that memory is
            // forgotten.
            let found = find.await;
            let lost = found.as_ref().is_ok_and(|found| !found.was_closed());
            let copied_log =
                found.as_ref().ok().and_then(Discovery::newest_life).unwrap_or_default();
            let beginning = Beginning { lost, copied_log, ..beginning };
            (incarnation::start(&writer, &beginning, record).await, found)
        };
        let held = held?;
        arena.note_users(&[nonce]);
        let writer = writer.with_incarnation(held.value.incarnation);
        let incarnation = held.value.incarnation;
        let life = Life { node: id, incarnation };
        let member = match (role, joined) {
            (Role::Home, Some(joined)) => {
                Some(joined.member(&writer, &config, (&identity, &scale), life)?)
            }
            (Role::Home, None) => None,
            (Role::Guest { member, .. }, _) => member,
        };
        let home_file = home.of_copies(incarnation).encode()?;
        let recorded: Vec<NodeId> =
            held.value.holders.nodes.iter().map(|holder| holder.node).collect();
        let replicas = match &member {
            Some(member) => {
                rekindle_cluster::owner::replicas(&member.calls, life, &home_file, &recorded)
            }
            None => Vec::new(),
        };
        let (log, opened) = found?.with_replicas(replicas).open(incarnation).await?;
        note_start(env, &keeper, Landed { incarnation, nonce }, &log, opened.is_absent);
        phases.done("log");
        for damage in &opened.damage {
            tracing::error!(%damage, "damage in the log");
        }
        let lease = if recorded.is_empty() { Lease::for_ever() } else { Lease::not_yet() };
        let own = OwnRecord::new(writer.clone(), held.clone());
        let ground = Ground {
            store: open.store.clone(),
            identity: identity.clone(),
            writer,
            record: held.value.clone(),
            log,
            frames: warm.frames.clone(),
            memory_outlives_process,
            copied_from,
            lease: lease.clone(),
        };
        let core = Core::assemble(env, (&config, sizes, &scale), ground, (kit.kinds)());
        crate::marks::begin(env, &core, &identity);
        open.faults.set(open.plan);
        phases.done("volumes");
        let node = Self {
            env: env.clone(),
            id,
            incarnation,
            nonce,
            config,
            sizes,
            kit,
            identity,
            store: open.store,
            meter: open.meter,
            core,
            opened,
            started: env.wall_clock(),
            own,
            lease,
            doubt: Arc::default(),
            membership: OnceLock::new(),
            warm,
            home: keeper,
            phases: phases.taken,
            _lock: lock,
        };
        if let Some(member) = member {
            node.keep_copies(member, home_file, recorded);
        }
        Ok(node)
    }
}

impl Node {
    /// Begins this life's part in a cluster: copies of its log at others. `home_file`: `node.json`
    /// for its copies. `recorded`: the holders whose replicas its log requires already.
    pub(crate) fn keep_copies(
        &self,
        member: Arc<Member>,
        home_file: Vec<u8>,
        recorded: Vec<NodeId>,
    ) {
        let life = keep::Life {
            life: Life { node: self.id, incarnation: self.incarnation },
            own: self.own.clone(),
            log: self.log.clone(),
            staging: self.staging.clone(),
            lease: self.lease.clone(),
            doubt: self.doubt.clone(),
            home_file,
            recorded,
        };
        let keeping = keep::begin(&member, life);
        self.membership.get_or_init(|| Membership { member, keeping });
    }

    /// The writer of another node's record.
    pub(crate) fn writer_of(&self, node: NodeId) -> Writer {
        let writer = Writer::new(self.env.clone(), self.store.clone(), node);
        writer.with_secret(self.identity.secret)
    }
}

/// Lets a log start from the folder, if it consists of copies that a holder has kept.
async fn adopt(env: &Env, config: &Config, home: Option<&NodeFile>) -> Result<(), Error> {
    let dir = &config.dir;
    if home.is_none() && config.take_identity.is_some() {
        // A holder's folder is there before the first copies are.
        return Err(Error::Usage(format!(
            "{}: there is no node here, and no copy of its log: --take-identity goes on with a folder that has one",
            dir.display()
        )));
    }
    let Some(home) = home.filter(|home| !home.is_own()) else { return Ok(()) };
    rekindle_cluster::adopt(env, dir, home.node).await.map_err(|reason| {
        Error::Usage(format!(
            "{}: {reason}. `rekindle cluster takeover NODE` on the node that keeps these copies goes on with them",
            dir.display()
        ))
    })
}

/// Opens the store that the config names. Faults begin when the node serves: a drill is about
/// clients, not about starting.
async fn open_store(env: &Env, config: &Config, is_known: bool) -> Result<OpenStore, Error> {
    let url = config.store_url();
    let plan = match &config.store_fault {
        Some(spec) => spec
            .parse()
            .map_err(|error: StoreError| Error::Usage(format!("--store-fault: {error}")))?,
        None => fault::Plan::default(),
    };
    let bare = match is_known {
        true => rekindle_datastore::open_known(env, &url).await,
        false => rekindle_datastore::open(env, &url).await,
    };
    let bare = bare.map_err(|source| Error::Store { url: url.clone(), source })?;
    let (store, meter, faults) = layer::usual(env, bare, fault::Plan::default());
    Ok(OpenStore { url: store.describe(), store, meter, faults, plan })
}

impl Node {
    /// The times and sizes that no user sets.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.kit.scale
    }

    /// The node's part in its cluster, if it is in one.
    pub(crate) fn membership(&self) -> Option<&Membership> {
        self.membership.get()
    }
}

/// The results of reading the store.
struct Known {
    open: OpenStore,
    identity: Identity,
    writer: Writer,
    record: Option<Held<NodeRecord>>,
    home: NodeFile,
}

/// Records in the background that the node's record names this start, and which segments the log's
/// folder must hold from now on. Until then, the folder only knows that the record may name this
/// start. The log takes nothing before that.
///
/// If the log that was used last is absent, it stays the log that a start looks for, until an
/// operator goes on without it. It may come back until then, and nothing is lost.
fn note_start(env: &Env, keeper: &Keeper, landed: Landed, log: &Log, is_absent: bool) {
    log.hold();
    let (env, keeper, log) = (env.clone(), keeper.clone(), log.clone());
    env.clone().spawn("note-start", async move {
        if is_absent {
            let stand_in = |home: &mut NodeFile| {
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
            let note = |home: &mut NodeFile| {
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
    /// Notes that the log's folder may be deleted, if the closed log holds nothing after a drain.
    pub(crate) async fn note_drained(&self) {
        if !self.log.holds_nothing() {
            return;
        }
        let known = self.log.known();
        let note = |home: &mut NodeFile| {
            home.log = Some(LogNote { drained: true, ..LogNote::of(known) });
        };
        if let Err(error) = self.home.change(note).await {
            tracing::warn!(%error, "it is not written down that the log holds nothing");
        }
    }
}

/// Opens the store and checks that it belongs to this folder. At the first start in a folder,
/// probes the store and writes `node.json`.
async fn join(
    env: &Env,
    config: &Config,
    node: NodeId,
    chosen: Sizes,
    home: Result<NodeFile, Starts>,
    open: &Opener,
) -> Result<Known, Error> {
    let watch = env.watch();
    let open = open(config.clone(), home.is_ok()).await?;
    env.boot_phase("store-opened", Some("store-and-warm"), watch);
    let watch = env.watch();
    let failed = |source| Error::Store { url: open.url.clone(), source };
    let writer = Writer::new(env.clone(), open.store.clone(), node);
    let home = match home {
        Ok(home) => home,
        Err(starts) => {
            // A place that is not ours gets no probe. The rest goes together.
            let found = identity::look(&writer).await.map_err(failed)?;
            let make = async {
                match found {
                    Some(identity) => Ok(identity),
                    None => identity::make(&writer).await,
                }
            };
            let probe = rekindle_datastore::probe(env, &open.store);
            let (identity, probed) = futures_util::join!(make, probe);
            let identity = identity.map_err(failed)?;
            probed.map_err(failed)?;
            let now = env.wall_clock().0;
            // Not what was asked for: that counts for this start only.
            let home = NodeFile::new(node, identity.store, now, chosen, starts);
            home.write_first(env, &config.dir).await?;
            return Ok(Known { open, identity, writer, record: None, home });
        }
    };
    let (identity, record) = futures_util::join!(identity::find(&writer), record::read(&writer));
    let identity = identity.map_err(failed)?.ok_or_else(|| {
        let gone = "it holds no store of rekindle any more, but this folder belongs to one: is it mounted, is the URL right?";
        // A store from which this node has just served comes back, so a restarted worker waits.
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

/// Chooses sizes for this machine.
async fn choose(env: &Env, config: &Config) -> Sizes {
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

fn log_config(config: &Config, node: NodeId, sizes: Sizes, scale: &Scale) -> rekindle_log::Config {
    rekindle_log::Config {
        folder: config.flash(),
        node,
        flash_bytes: sizes.flash_bytes,
        flush_interval: scale.flush_interval,
    }
}

#[cfg(test)]
mod tests;
