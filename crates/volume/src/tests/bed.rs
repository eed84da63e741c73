//! A test node on any given machine, whose volumes have one block each.

use crate::manage::roots;
use crate::*;
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_base::units::MIB;
use rekindle_base::{Incarnation, Kind, NodeId};
use rekindle_content::sweep::Sources;
use rekindle_content::tree::{self, Root};
use rekindle_content::{Compression, Content, Pointer};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::{self, Plan};
use rekindle_datastore::{Datastore, Store, Version};
use rekindle_env::BoxFuture;
use rekindle_log::Log;
use rekindle_staging::{Error as StagingError, Vault, Written};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const NODE: NodeId = NodeId([7; 16]);
pub const SIZE: u64 = 64 << 10;

/// One life of a node.
pub struct Bed {
    pub env: Env,
    pub store: Store,
    pub faults: fault::Handle,
    pub writer: Writer,
    pub cache: Option<Arc<crate::WarmRecordCache>>,
    pub volumes: Volumes,
    pub content: Content,
    pub log: Log,
}

impl Bed {
    pub async fn start(env: &Env, store: &Store) -> Self {
        Self::start_in(Path::new("/node"), NODE, env, store).await
    }

    /// Starts a node without a record cache.
    pub async fn start_without_cache(env: &Env, store: &Store) -> Self {
        Self::start_as(Path::new("/node"), NODE, env, store, None).await
    }

    /// Starts a node. Another node needs another host's `env`, or another folder.
    pub async fn start_in(folder: &Path, node: NodeId, env: &Env, store: &Store) -> Self {
        Self::start_as(folder, node, env, store, Some(1)).await
    }

    /// Starts a node with a record cache of that era; `None`: without one.
    pub async fn start_as(
        folder: &Path,
        node: NodeId,
        env: &Env,
        store: &Store,
        era: Option<u64>,
    ) -> Self {
        let env = env.clone();
        let (store, faults) = fault::wrap(&env, store.clone(), Plan::default());
        let frames =
            rekindle_warm::FramesShape { bytes: MIB, store: rekindle_base::StoreId([4; 16]) };
        let slot_bytes = rekindle_warm::limits::SLOT_BYTES_MAX;
        let shape = rekindle_warm::Shape { slots: 4, slot_bytes, frames: Some(frames) };
        let arena =
            rekindle_warm::Arena::open_shaped(&env, &folder.join("arena"), node, shape).unwrap();
        let frames = arena.frames().expect("there is room for frames");
        let config = rekindle_log::Config {
            folder: folder.join("log"),
            node,
            flash_bytes: 64 * MIB,
            flush_interval: Duration::from_millis(100),
        };
        let (log, _) = Log::open(&env, arena, config, Incarnation(1)).await.unwrap();
        let config = rekindle_content::Config {
            secret: [3; 32],
            compression: Compression::None,
            parity: None,
            pack_bytes: MIB,
            cache_bytes: 8 * MIB,
            index_bytes: MIB,
            uploads: 2,
        };
        let content = Content::open(env.clone(), store.clone(), config);
        let mut writer = Writer::new(env.clone(), store.clone(), node);
        let cache = era.map(|era| Arc::new(crate::WarmRecordCache::new(frames, era)));
        if let Some(cache) = &cache {
            writer = writer.with_cache(cache.clone());
        }
        let config = rekindle_staging::Config {
            flash_bytes: 32 * MIB,
            memory_bytes: 16 * MIB,
            destage_age: Duration::from_secs(5),
            destage_bytes: 8 * MIB,
            batch_bytes: 8 * MIB,
            destagers: 2,
            index_at_once: 4,
            age_deadline: Duration::from_secs(60),
            destage_writes_per_minute: 0,
            memory_outlives_process: true,
            copied_from: Incarnation(0),
            lease: rekindle_staging::Lease::for_ever(),
        };
        let staging =
            Staging::start(env.clone(), log.clone(), content.clone(), writer.clone(), config);
        let volumes = Volumes::open(Parts {
            env: env.clone(),
            writer: writer.clone(),
            content: content.clone(),
            staging,
            kinds: super::kinds::kinds(),
            read_ahead: false,
        });
        Self { env, store, faults, writer, cache, volumes, content, log }
    }

    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        records::keys(&self.writer, prefix).await.unwrap()
    }

    /// Reaps as if a day had passed.
    pub async fn reap_all(&self) -> Reaped {
        self.volumes.inner.rested.lock().clear();
        reap::reap_orphans(&self.volumes.inner, Duration::ZERO).await.unwrap()
    }

    /// The roots from which a sweep marks.
    pub async fn roots(&self) -> Result<Vec<Root>, Error> {
        let found = self.sources(None).await?;
        Ok(found.roots().map(|root| Some(*root)).collect())
    }

    /// What a sweep reads that knows what an earlier one has read; that knows nothing.
    pub async fn sources(&self, known: Option<&Sources>) -> Result<Sources, Error> {
        let inner = &self.volumes.inner;
        match known {
            Some(known) => Ok(roots::look(inner, known, &roots::Looked::Listed).await?),
            None => Ok(roots::look(inner, &Sources::default(), &roots::Looked::All).await?),
        }
    }

    /// Returns the outcome of a volume's last salvage, if it had one.
    pub async fn outcome_of_last(&self, name: &str) -> Option<Outcome> {
        let history = self.volumes.salvage_history(name).await.unwrap();
        history.last().map(|account| account.outcome)
    }

    /// Reads a vault from the store.
    pub async fn vault(&self, name: &str) -> Vault {
        records::find(&self.writer, name).await.unwrap().value
    }

    /// Returns the place of a volume's only chunk.
    pub async fn chunk(&self, name: &str) -> Pointer {
        let root = self.vault(name).await.root;
        tree::get(&self.content, &root, 0).await.unwrap().expect("it was written")
    }
}

pub fn spec(name: &str) -> Spec {
    Spec {
        name: name.to_owned(),
        kind: "block".to_owned(),
        size: SIZE,
        settings: VaultBody::default(),
        policy: Policy::Back,
        ack: Ack::Flash,
        copies: 0,
        on_missing_copy: rekindle_staging::MissingCopy::default(),
    }
}

pub async fn write(handle: &Handle, position: u64, data: &[u8]) -> Result<(), StagingError> {
    match handle.staged().write(position, data, false) {
        Written::Acked => Ok(()),
        Written::NeedsSync(ticket) => handle.staged().sync(ticket).await,
        Written::Pending(later) => later.await,
    }
}

pub async fn read(handle: &Handle, position: u64, length: usize) -> Vec<u8> {
    let mut out = vec![0xee; length];
    handle.staged().read(position, &mut out).await.unwrap();
    out
}

pub fn kind<T>(result: Result<T, Error>) -> Kind {
    result.err().expect("an error").kind()
}

/// A store that may have no room for packs, and whose listings may leave out a key. Records still
/// fit: a folder keeps a reserve for them.
pub struct Small {
    pub inner: Store,
    pub is_full: AtomicBool,
    pub unindexed: Mutex<Option<String>>,
    /// What lists show of an object instead of what it is now.
    pub stale: Mutex<Option<rekindle_datastore::Listed>>,
}

impl Small {
    pub fn store() -> Arc<Self> {
        Arc::new(Self {
            inner: Mem::store(),
            is_full: AtomicBool::new(false),
            unindexed: Mutex::default(),
            stale: Mutex::default(),
        })
    }

    pub fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

impl Datastore for Small {
    fn put<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> BoxFuture<'a, Result<(), rekindle_datastore::Error>> {
        if key.starts_with("packs/") && self.is_full.load(Ordering::Relaxed) {
            let full = rekindle_datastore::Error::Full("no room".to_owned());
            return Box::pin(async { Err(full) });
        }
        self.inner.put(key, data)
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> BoxFuture<'a, Result<Version, rekindle_datastore::Error>> {
        self.inner.create(key, data)
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, rekindle_datastore::Error>> {
        self.inner.replace(key, data, version)
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(Bytes, Version), rekindle_datastore::Error>> {
        self.inner.get(key)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: std::ops::Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, rekindle_datastore::Error>> {
        self.inner.get_range(key, range)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<rekindle_datastore::Listed>, rekindle_datastore::Error>> {
        Box::pin(async move {
            let mut page = self.inner.list(prefix, after).await?;
            let unindexed = self.unindexed.lock().clone();
            page.retain(|listed| Some(&listed.key) != unindexed.as_ref());
            let stale = self.stale.lock().clone();
            let shown =
                page.iter_mut().find(|one| stale.as_ref().is_some_and(|s| s.key == one.key));
            if let (Some(shown), Some(stale)) = (shown, stale) {
                *shown = stale;
            }
            Ok(page)
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), rekindle_datastore::Error>> {
        self.inner.delete(key)
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<rekindle_datastore::Removal, rekindle_datastore::Error>> {
        self.inner.delete_if(key, version)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
