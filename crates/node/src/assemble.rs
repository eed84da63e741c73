//! Puts a node together. The only file that names every crate below.
//!
//! The start does only what must precede the first reply: lock the folder, read `node.json`, map
//! the warm memory, read the store's identity and our record (together), write our record once,
//! open the log. None of these steps grows with volumes, bytes or clients. Work that only makes the
//! node faster ([`crate::work`]) follows the first reply.

mod attempt;
mod claim;
mod note;
mod store;

pub use store::{OpenStore, Opener};

use crate::cluster::{Candidate, Joined, Member, Membership, keep};
use crate::config::{Config, Sizes};
use crate::core::{Core, Ground};
use crate::incarnation::StartHost;
use crate::node_file::{FolderLock, Keeper, NodeFile};
use crate::own_record::OwnRecord;
use crate::pinned::{NotBack, Pinned};
use crate::record::{LeftBehind, NodeRecord, PeerNote};
use crate::scale::Scale;
use crate::starts::Landed;
use crate::warm_memory::WarmMemory;
use crate::{Error, limits};
use attempt::{Attempt, Reached};
use claim::{Claim, Claimed};
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_cluster::roster::Entry;
use rekindle_datastore::Store;
use rekindle_datastore::identity::Identity;
use rekindle_datastore::layer::marks::Marks;
use rekindle_datastore::layer::meter::Meter;
use rekindle_datastore::record::Writer;
use rekindle_env::boot::Watch;
use rekindle_env::{Env, Moment, Timestamp};
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
    /// The folders of the store.
    pub marks: Marks,
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
    /// Volumes that keep room of the log.
    pub(crate) pinned: Pinned,
    /// Volumes that only logs have which earlier nodes of this host have left here.
    pub(crate) left_behind: NotBack,
    /// The node's part in its cluster, once it is in one.
    pub(crate) membership: OnceLock<Membership>,
    /// The memory that outlives the process.
    pub warm: WarmMemory,
    /// `node.json`.
    pub node_file: Keeper,
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
    fn begin(env: &Env) -> Self {
        Self { env: env.clone(), last: env.now(), watch: env.watch(), taken: Vec::new() }
    }

    fn done(&mut self, phase: &'static str) {
        let now = self.env.now();
        self.taken.push((phase, u64::try_from((now - self.last).as_micros()).unwrap_or(u64::MAX)));
        self.last = now;
        self.env.boot_phase(phase, None, self.watch);
        self.watch = self.env.watch();
    }
}

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
            Box::pin(async move { store::open_store(&env, &config, is_known).await })
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

impl Role {
    /// Lets the node's folder be started from, and finds what this host may be in a cluster.
    async fn approach(
        &self,
        env: &Env,
        (config, scale): (&Config, &Scale),
        file: Option<&NodeFile>,
    ) -> Result<Option<Candidate>, Error> {
        if self.takes().is_none() {
            adopt(env, config, file).await?;
        }
        Ok(match self {
            Self::Home => Some(Candidate::find(env, config, scale).await?),
            Self::Guest { .. } => None,
        })
    }

    /// The record of the lost node that the process takes over now.
    fn takes(&self) -> Option<&Entry> {
        match self {
            Self::Guest { takes, .. } => takes.as_deref(),
            Self::Home => None,
        }
    }

    /// The way to the node for peers, if its host is in a cluster.
    fn peer(
        &self,
        node: NodeId,
        joined: Option<&Joined>,
        found: Option<&NodeRecord>,
    ) -> Option<PeerNote> {
        match self {
            Self::Home => joined.map(|joined| joined.note(node)),
            Self::Guest { member, .. } => member.as_ref().map(|member| member.note_for(found)),
        }
    }

    /// The host on which the node starts.
    fn start_host<'a>(
        &'a self,
        node: NodeId,
        joined: Option<&'a Joined>,
        peer: Option<&'a PeerNote>,
    ) -> StartHost<'a> {
        let (host, former): (_, &[NodeId]) = match self {
            Self::Home => (node, joined.map_or(&[], |joined| joined.former.as_slice())),
            Self::Guest { member: Some(member), host, .. } => (*host, &member.calls.former),
            Self::Guest { member: None, host, .. } => (*host, &[]),
        };
        StartHost { host, former, peer, takes: self.takes() }
    }
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
        let scale = &kit.scale;
        let mut phases = Phases::begin(env);
        let lock = FolderLock::take(env, &config.dir).await?;
        let file = NodeFile::read(env, &config.dir).await?;
        let candidate = role.approach(env, (&config, scale), file.as_ref()).await?;
        phases.done("folder");
        let attempt = Attempt::new(env, &config, file.as_ref()).await?;
        let reached = attempt.reach(env, (&config, scale), file, &kit.open).await?;
        let Reached { known, keeper, arena, warm } = reached;
        let (open, identity, file) = (known.open, known.identity, known.file);
        let writer = known.writer.with_secret(identity.secret);
        let joined = match candidate {
            Some(candidate) => candidate.join(&writer, &config, &identity, scale).await?,
            None => None,
        };
        let found = known.record.as_ref().map(|held| &held.value);
        let peer = role.peer(attempt.node, joined.as_ref(), found);
        phases.done("store-and-warm");
        let memory_outlives_process = arena.outlives_process();
        let claim = Claim {
            attempt: &attempt,
            config: &config,
            url: &open.url,
            host: role.start_host(attempt.node, joined.as_ref(), peer.as_ref()),
            keeper: &keeper,
            arena: &arena,
            has_frames: warm.frames.is_some(),
        };
        let log_config = log_config(&config, attempt.node, attempt.sizes, scale);
        let (last, is_taken) = (found.map(|found| found.incarnation), role.takes().is_some());
        let claimed = claim.make(&writer, known.record, file.copied_from, log_config).await?;
        let Claimed { record, copied_from, log } = claimed;
        let incarnation = record.value.incarnation;
        // Copies of a log lack what was acknowledged without them.
        let is_own = !is_taken && copied_from == Incarnation(0);
        let closed = log.newest_life().filter(|_| is_own && log.was_closed());
        let since = note::unbroken_since(incarnation, last, closed, file.log);
        let writer = writer.with_incarnation(incarnation);
        let life = Life { node: attempt.node, incarnation };
        let member = match (role, joined) {
            (Role::Home, Some(joined)) => {
                Some(joined.member(&writer, &config, (&identity, scale), life)?)
            }
            (Role::Home, None) => None,
            (Role::Guest { member, .. }, _) => member,
        };
        let file_of_copies = file.of_copies(incarnation).encode()?;
        let holders = record.value.holders.nodes.iter();
        let recorded: Vec<NodeId> = holders.map(|holder| holder.node).collect();
        let replicas = match &member {
            Some(member) => {
                rekindle_cluster::owner::replicas(&member.calls, life, &file_of_copies, &recorded)
            }
            None => Vec::new(),
        };
        let (log, opened) =
            log.with_replicas(replicas).with_copy_bytes(scale.copy_bytes).open(incarnation).await?;
        let landed = Landed { incarnation, nonce: attempt.nonce };
        note::note_start(env, &keeper, (landed, since), &log, opened.is_absent);
        phases.done("log");
        for damage in &opened.damage {
            tracing::error!(%damage, "damage in the log");
        }
        let lease = if recorded.is_empty() { Lease::for_ever() } else { Lease::not_yet() };
        // The record has just named this life.
        lease.stand(env.now() + limits::STANDS);
        let ground = Ground {
            store: open.store.clone(),
            identity: identity.clone(),
            writer: writer.clone(),
            record: record.value.clone(),
            log,
            frames: warm.frames.clone(),
            memory_outlives_process,
            copied_from: LeftBehind::bound(&record.value, copied_from),
            unbroken_since: since,
            lease: lease.clone(),
        };
        let core = Core::assemble(env, (&config, attempt.sizes, scale), ground, (kit.kinds)());
        crate::marks::begin(env, &core, &identity);
        open.faults.set(open.plan);
        phases.done("volumes");
        let node = Self {
            env: env.clone(),
            id: attempt.node,
            incarnation,
            nonce: attempt.nonce,
            config,
            sizes: attempt.sizes,
            kit,
            identity,
            store: open.store,
            meter: open.meter,
            marks: open.marks,
            core,
            opened,
            started: env.wall_clock(),
            own: OwnRecord::new(writer, record),
            lease,
            doubt: Arc::default(),
            pinned: Pinned::default(),
            left_behind: NotBack::default(),
            membership: OnceLock::new(),
            warm,
            node_file: keeper,
            phases: phases.taken,
            _lock: lock,
        };
        if let Some(member) = member {
            node.keep_copies(member, file_of_copies, recorded);
        }
        Ok(node)
    }
}

impl Node {
    /// Begins this life's part in a cluster: copies of its log at others. `file_of_copies`:
    /// `node.json` for its copies. `recorded`: the holders whose replicas its log requires already.
    pub(crate) fn keep_copies(
        &self,
        member: Arc<Member>,
        file_of_copies: Vec<u8>,
        recorded: Vec<NodeId>,
    ) {
        let life = keep::Life {
            life: Life { node: self.id, incarnation: self.incarnation },
            own: self.own.clone(),
            log: self.log.clone(),
            staging: self.staging.clone(),
            lease: self.lease.clone(),
            doubt: self.doubt.clone(),
            file_of_copies,
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

/// Lets a log start from the folder, if it consists of copies that a holder has kept.
async fn adopt(env: &Env, config: &Config, file: Option<&NodeFile>) -> Result<(), Error> {
    let dir = &config.dir;
    if file.is_none() && config.take_identity.is_some() {
        // A holder's folder is there before the first copies are.
        return Err(Error::Usage(format!(
            "{}: there is no node here, and no copy of its log: --take-identity goes on with a folder that has one",
            dir.display()
        )));
    }
    let Some(file) = file.filter(|file| !file.is_own()) else { return Ok(()) };
    rekindle_cluster::adopt(env, dir, file.node).await.map_err(|reason| {
        Error::Usage(format!(
            "{}: {reason}. `rekindle cluster takeover NODE` on the node that keeps these copies goes on with them",
            dir.display()
        ))
    })
}

/// The settings of the log of a node in its folder.
pub(crate) fn log_config(
    config: &Config,
    node: NodeId,
    sizes: Sizes,
    scale: &Scale,
) -> rekindle_log::Config {
    rekindle_log::Config {
        folder: config.flash(),
        node,
        flash_bytes: sizes.flash_bytes,
        flush_interval: scale.flush_interval,
    }
}

#[cfg(test)]
mod tests;
