//! A node whose volumes have one chunk each, on whatever machine it is given.

use crate::*;
use base::units::MIB;
use base::{Incarnation, Kind, NodeId};
use bytes::Bytes;
use content::{Batch, Class, Compression};
use datastore::backend::mem::Mem;
use datastore::layer::fault::{self, Plan};
use datastore::{Datastore, Store, Version};
use env::BoxFuture;
use log::Log;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub const NODE: NodeId = NodeId([7; 16]);
pub const SIZE: u64 = 64 << 10;

/// The whole volume is one chunk, and the root is the pointer to it.
struct OneChunk {
    content: Content,
}

impl OneChunk {
    async fn load(&self, root: &Root) -> Result<Vec<u8>, StagingError> {
        Ok(match root {
            None => vec![0; SIZE as usize],
            Some(pointer) => self.content.read(pointer, Class::Data).await?.to_vec(),
        })
    }
}

impl Home for OneChunk {
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, StagingError> {
        let chunk = match root {
            None => Some(Bytes::from(vec![0; SIZE as usize])),
            Some(pointer) => self.content.read_now(pointer, Class::Data),
        };
        let Some(chunk) = chunk else { return Ok(false) };
        out.copy_from_slice(&chunk[position as usize..position as usize + out.len()]);
        Ok(true)
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        _keep: bool,
    ) -> BoxFuture<'a, Result<(), StagingError>> {
        Box::pin(async move {
            let chunk = self.load(root).await?;
            out.copy_from_slice(&chunk[position as usize..position as usize + out.len()]);
            Ok(())
        })
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, StagingError>> {
        Box::pin(async move {
            let mut chunk = self.load(root).await?;
            for change in changes {
                let begin = change.position as usize;
                change.source.read(0, &mut chunk[begin..begin + change.span as usize]).await?;
            }
            Ok(Some(batch.write(Class::Data, chunk.into(), &[]).await?))
        })
    }

    fn bytes_of(&self, _keys: std::ops::Range<u64>) -> std::ops::Range<u64> {
        0..SIZE
    }

    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, StagingError>> {
        Box::pin(async move {
            self.load(root).await?;
            Ok(vec![Extent { position, span, data: true }])
        })
    }
}

/// One life of a node.
pub struct Bed {
    pub env: Env,
    pub store: Store,
    pub faults: fault::Handle,
    pub writer: Writer,
    pub copies: Option<Arc<crate::WarmCopies>>,
    pub volumes: Volumes,
    pub log: Log,
}

impl Bed {
    pub async fn start(env: &Env, store: &Store) -> Self {
        Self::start_in(Path::new("/node"), NODE, env, store).await
    }

    /// Without copies of vaults.
    pub async fn start_without_copies(env: &Env, store: &Store) -> Self {
        Self::start_as(Path::new("/node"), NODE, env, store, None).await
    }

    /// `env` is another host's, or the folder another, when the node is another.
    pub async fn start_in(folder: &Path, node: NodeId, env: &Env, store: &Store) -> Self {
        Self::start_as(folder, node, env, store, Some(1)).await
    }

    /// With copies of vaults, of that era.
    pub async fn start_as(
        folder: &Path,
        node: NodeId,
        env: &Env,
        store: &Store,
        era: Option<u64>,
    ) -> Self {
        let env = env.clone();
        let (store, faults) = fault::wrap(&env, store.clone(), Plan::default());
        let frames = warm::FramesShape { bytes: MIB, store: base::StoreId([4; 16]) };
        let slot_bytes = warm::limits::SLOT_BYTES_MAX;
        let shape = warm::Shape { slots: 4, slot_bytes, frames: Some(frames) };
        let arena = warm::Arena::open_shaped(&env, &folder.join("arena"), node, shape).unwrap();
        let frames = arena.frames().expect("there is room for frames");
        let config = log::Config {
            folder: folder.join("log"),
            node,
            flash_bytes: 64 * MIB,
            flush_interval: Duration::from_millis(100),
        };
        let (log, _) = Log::open(&env, arena, config, Incarnation(1)).await.unwrap();
        let config = content::Config {
            secret: [3; 32],
            compression: Compression::None,
            parity: None,
            pack_bytes: MIB,
            cache_bytes: 8 * MIB,
            index_bytes: MIB,
            uploads: 2,
            direct_path: true,
        };
        let content = Content::open(env.clone(), store.clone(), config);
        let mut writer = Writer::new(env.clone(), store.clone(), node);
        let copies = era.map(|era| Arc::new(crate::WarmCopies::new(frames, era)));
        if let Some(copies) = &copies {
            writer = writer.with_copies(copies.clone());
        }
        let config = staging::Config {
            flash_bytes: 32 * MIB,
            memory_bytes: 16 * MIB,
            destage_age: Duration::from_secs(5),
            destage_bytes: 8 * MIB,
            batch_bytes: 8 * MIB,
            destagers: 2,
            index_at_once: 4,
            age_deadline: Duration::from_secs(60),
            memory_outlives_process: true,
        };
        let staging =
            Staging::start(env.clone(), log.clone(), content.clone(), writer.clone(), config);
        let chunks = content.clone();
        let homes: HomeMaker = Arc::new(move |vault: &Vault| match vault.kind.as_str() {
            "block" => Ok(Arc::new(OneChunk { content: chunks.clone() }) as Arc<dyn Home>),
            other => Err(Error::Invalid(format!("'{other}' is not a kind of volume: use 'block'"))),
        });
        let volumes = Volumes::open(env.clone(), writer.clone(), staging, content, homes);
        Self { env, store, faults, writer, copies, volumes, log }
    }

    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        records::keys(&self.writer, prefix).await.unwrap()
    }

    /// Reaps as if a day had passed.
    pub async fn reap_all(&self) -> Reaped {
        remove::reap_orphans(&self.volumes.inner, Duration::ZERO).await.unwrap()
    }

    /// How the last salvage of a volume came out, if it had one.
    pub async fn outcome_of_last(&self, name: &str) -> Option<Outcome> {
        let history = self.volumes.salvage_history(name).await.unwrap();
        history.last().map(|account| account.outcome)
    }

    /// The vault as the store has it.
    pub async fn vault(&self, name: &str) -> Vault {
        records::find(&self.writer, name).await.unwrap().value
    }
}

pub fn spec(name: &str) -> Spec {
    Spec {
        name: name.to_owned(),
        kind: "block".to_owned(),
        size: SIZE,
        block_size: 4096,
        policy: Policy::Back,
        ack: Ack::Flash,
    }
}

pub async fn write(handle: &Handle, position: u64, data: &[u8]) -> Result<(), StagingError> {
    match handle.staged().write(position, data, false) {
        Written::Done => Ok(()),
        Written::Staged(ticket) => handle.staged().sync(ticket).await,
        Written::Later(later) => later.await,
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

/// A store that may have no room for packs (records still fit: a folder keeps a reserve for them), and whose listings may
/// leave out a key.
pub struct Small {
    pub inner: Store,
    pub is_full: AtomicBool,
    pub unlisted: Mutex<Option<String>>,
}

impl Small {
    pub fn store() -> Arc<Self> {
        Arc::new(Self {
            inner: Mem::store(),
            is_full: AtomicBool::new(false),
            unlisted: Mutex::default(),
        })
    }

    pub fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

impl Datastore for Small {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), datastore::Error>> {
        if key.starts_with("packs/") && self.is_full.load(Ordering::Relaxed) {
            let full = datastore::Error::Full("no room".to_owned());
            return Box::pin(async { Err(full) });
        }
        self.inner.put(key, data)
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> BoxFuture<'a, Result<Version, datastore::Error>> {
        self.inner.create(key, data)
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, datastore::Error>> {
        self.inner.replace(key, data, version)
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(Bytes, Version), datastore::Error>> {
        self.inner.get(key)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: std::ops::Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, datastore::Error>> {
        self.inner.get_range(key, range)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<datastore::Listed>, datastore::Error>> {
        Box::pin(async move {
            let mut page = self.inner.list(prefix, after).await?;
            let unlisted = self.unlisted.lock().clone();
            page.retain(|listed| Some(&listed.key) != unlisted.as_ref());
            Ok(page)
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), datastore::Error>> {
        self.inner.delete(key)
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<datastore::Removal, datastore::Error>> {
        self.inner.delete_if(key, version)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
