//! A sweep beside slow readers and slow commits: the chunks that they can reach stay until they
//! have ended.

use crate::bed::{BLOCK, NODE, Node, Setup, done};
use crate::blocks::Blocks;
use futures_util::future::join;
use rekindle_base::VolumeId;
use rekindle_content::sweep::{
    Budget, KeptRoot, Look, Options, Roots, Source, SourceId, Sources, Sweeper, Written,
};
use rekindle_content::tree::Root;
use rekindle_content::{Batch, Content};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_datastore::{Datastore, Listed, Store, Version};
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Env};
use rekindle_staging::{Ack, Error, Extent, Fold, Home, Policy, RangeHome, Staged, Vault};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(100);

/// A home whose readers wait between the root and the chunks behind it.
struct Slow {
    env: Env,
    blocks: Blocks,
    /// The home that reads once the wait is over: it has no part of the tree in memory.
    cold: Blocks,
}

impl RangeHome for Slow {
    fn read_now(&self, _: &Root, _: u64, _: &mut [u8]) -> Result<bool, Error> {
        Ok(false)
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        _: bool,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.env.sleep(LONG).await;
            self.cold.read(root, position, out, false).await
        })
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, Error>> {
        self.blocks.fold(batch, root, changes)
    }

    fn bytes_of(&self, keys: std::ops::Range<u64>) -> std::ops::Range<u64> {
        self.blocks.bytes_of(keys)
    }

    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, Error>> {
        Box::pin(async move {
            self.env.sleep(LONG).await;
            self.cold.extents(root, position, span).await
        })
    }
}

/// The store's content, with nothing in memory.
fn cold(env: &Env, setup: &Setup, store: &Store) -> Content {
    Content::open(env.clone(), store.clone(), setup.content())
}

/// The root of volume 1, as the store has it; no earlier roots.
struct Present(Writer);

impl Roots for Present {
    fn look<'a>(
        &'a self,
        _known: &'a Sources,
        _look: Look<'a>,
    ) -> BoxFuture<'a, Result<Sources, rekindle_content::Error>> {
        Box::pin(async move {
            let held = self.0.read::<Vault>(&Vault::key(VolumeId([1; 16]))).await?;
            let root = held.and_then(|held| held.value.root);
            let roots = root.into_iter().map(|root| KeptRoot { root, until: None }).collect();
            let source = Source { tag: None, roots };
            let records = [(SourceId([1; 16]), source)].into();
            Ok(Sources { records, ..Sources::default() })
        })
    }

    fn written(&self, _since: u64) -> Option<Written> {
        None
    }
}

fn sweeper(env: &Env, node: &Node, store: &Store) -> Sweeper {
    // A writer of its own, apart from the faults of the node's store.
    let writer = Writer::new(env.clone(), store.clone(), NODE);
    let options = Options {
        budget: Budget::Unlimited,
        grace: Duration::ZERO,
        young: Duration::ZERO,
        ..Options::default()
    };
    let (roots, folder) = (Arc::new(Present(writer.clone())), Path::new("/node/sweep"));
    Sweeper::new(node.content.clone(), writer, roots, folder).with_options(options)
}

fn run(test: impl AsyncFnOnce(&Env, Setup, Store)) {
    let world = World::new(1, Faults::none());
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    // Nothing is destaged unless the test drains.
    setup.config.destage_age = Duration::from_secs(3600);
    world.block_on(test(&world.env(), setup, Mem::store()));
}

async fn put(volume: &Arc<Staged>, byte: u8) {
    done(volume, volume.write(0, &[byte; 4096], false)).await.unwrap();
    volume.drain().await.unwrap();
}

#[test]
fn what_a_slow_reader_can_reach_is_not_swept_before_it_has_ended() {
    for extents in [false, true] {
        run(async |env, setup, store| {
            let node = Node::start(env, &setup, &store, Plan::default()).await;
            put(&node.open(1).await.unwrap(), 1).await;
            node.staging.stop().await;
            drop(node);
            let node = Node::start(env, &setup, &store, Plan::default()).await;
            let key = Vault::key(VolumeId([1; 16]));
            let held = node.writer.read::<Vault>(&key).await.unwrap().unwrap();
            let blocks = Blocks { content: node.content.clone(), block: BLOCK };
            let cold = Blocks { content: cold(env, &setup, &store), block: BLOCK };
            let home = Home::Range(Arc::new(Slow { env: env.clone(), blocks, cold }));
            let volume = node.staging.open(held, home).await.unwrap();
            let reader = async {
                if extents {
                    let found = volume.extents(0, 4096).await.unwrap();
                    assert_eq!(found, [Extent { position: 0, span: 4096, data: true }]);
                } else {
                    let mut bytes = [0; 4096];
                    volume.read(0, &mut bytes).await.unwrap();
                    assert_eq!(bytes, [1; 4096], "what was there when it began");
                }
            };
            let others = async {
                env.sleep(Duration::from_secs(1)).await;
                put(&volume, 2).await;
                sweeper(env, &node, &store).run().await.unwrap()
            };
            let ((), swept) = join(reader, others).await;
            assert!(swept.packs_deleted > 0, "once nobody could reach them: {swept:?}");
        });
    }
}

#[test]
fn what_a_batch_has_written_is_not_swept_before_its_vault_is_written() {
    run(async |env, setup, store| {
        let node = Node::start(env, &setup, &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        put(&volume, 1).await;
        // For a while the vault cannot be written; everything else works.
        node.faults.set(format!("absent=volumes/:{}s", LONG.as_secs()).parse().unwrap());
        let others = async {
            env.sleep(LONG / 4).await;
            sweeper(env, &node, &store).run().await.unwrap()
        };
        let ((), swept) = join(put(&volume, 2), others).await;
        assert_eq!((swept.packs_total, swept.packs_deleted), (4, 0), "two are reached, two held");
        let content = cold(env, &setup, &store);
        let root = node.vault(1).await.root;
        let mut bytes = [0; 4096];
        Blocks { content, block: BLOCK }.read(&root, 0, &mut bytes, false).await.unwrap();
        assert_eq!(bytes, [2; 4096]);
    });
}

/// A store without room: for packs, or for any object.
struct Full {
    inner: Store,
    packs: AtomicBool,
    vaults: AtomicBool,
}

impl Full {
    fn room(&self, key: &str) -> Result<(), rekindle_datastore::Error> {
        let is_full = match key.starts_with("packs/") {
            true => &self.packs,
            false => &self.vaults,
        };
        if is_full.load(Ordering::SeqCst)
            && (key.starts_with("packs/") || key.starts_with("volumes/"))
        {
            return Err(rekindle_datastore::Error::Full("no room".into()));
        }
        Ok(())
    }
}

impl Datastore for Full {
    fn put<'a>(
        &'a self,
        key: &'a str,
        data: bytes::Bytes,
    ) -> BoxFuture<'a, Result<(), rekindle_datastore::Error>> {
        Box::pin(async move {
            self.room(key)?;
            self.inner.put(key, data).await
        })
    }

    fn create<'a>(
        &'a self,
        key: &'a str,
        data: bytes::Bytes,
    ) -> BoxFuture<'a, Result<Version, rekindle_datastore::Error>> {
        self.inner.create(key, data)
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: bytes::Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, rekindle_datastore::Error>> {
        Box::pin(async move {
            self.room(key)?;
            self.inner.replace(key, data, version).await
        })
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(bytes::Bytes, Version), rekindle_datastore::Error>> {
        self.inner.get(key)
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<bytes::Bytes, rekindle_datastore::Error>> {
        self.inner.get_range(key, range)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, rekindle_datastore::Error>> {
        self.inner.list(prefix, after)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), rekindle_datastore::Error>> {
        self.inner.delete(key)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[test]
fn a_full_store_is_swept_while_a_batch_waits_for_room() {
    for vaults in [false, true] {
        run(async |env, setup, store| {
            let full = Arc::new(Full {
                inner: store,
                packs: AtomicBool::new(false),
                vaults: AtomicBool::new(false),
            });
            let store: Store = full.clone();
            let node = Node::start(env, &setup, &store, Plan::default()).await;
            let volume = node.open(1).await.unwrap();
            put(&volume, 1).await;
            put(&volume, 2).await;
            let is_full = if vaults { &full.vaults } else { &full.packs };
            is_full.store(true, Ordering::SeqCst);
            let others = async {
                env.sleep(Duration::from_secs(20)).await;
                let swept = sweeper(env, &node, &store).run().await.unwrap();
                is_full.store(false, Ordering::SeqCst);
                swept
            };
            let ((), swept) = join(put(&volume, 3), others).await;
            assert!(swept.packs_deleted > 0, "what made room: {swept:?}");
        });
    }
}
