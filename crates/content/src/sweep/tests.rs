//! The sweep against models: alone, beside writers in the simulation, and cut off by crashes.

mod bundles;
mod counts;
mod holds;
mod late;
mod nodes;

use super::*;
use crate::pack::reader::Body;
use crate::testing::{Broken, Remote, config, random, stretch, text};
use crate::tree::Root;
use crate::tree::{self, Visitor, walk};
use crate::verify::verify;
use crate::{Batch, Class, Compression, Config, Parity, Pointer, moved, pack};
use rekindle_base::{NodeId, PackId};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::BoxFuture;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, Stop, World};
use std::collections::{BTreeMap, BTreeSet};

/// The folder of the tally.
const FOLDER: &str = "/sweep";

/// The keys of a volume, each with the number of its bytes.
type Model = BTreeMap<u64, u64>;

#[test]
fn a_pack_that_is_gone_since_it_was_listed_does_not_end_a_sweep() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let content = Content::open(env.clone(), Mem::store(), small());
    world.block_on(async {
        let listed = [(rekindle_base::PackId([7; 16]), 4096)];
        let mut tally = tally::Tally::in_memory(&env, [0; 16]);
        let found = compact::worthwhile(&content, (&listed, 75), &mut tally).await;
        let found = found.expect("it is left out");
        assert_eq!((found.packs, found.are_all_read), (vec![], false));
    });
}

/// The number of the last write, and of each volume that of its last one.
type Writes = (u64, BTreeMap<u64, u64>);

/// All volumes, in place of the vaults of a real store. They outlive crashes.
#[derive(Default)]
struct Vaults {
    volumes: Mutex<BTreeMap<u64, (Root, Model)>>,
    /// The roots that the last list showed.
    listed: Mutex<BTreeMap<u64, Root>>,
    /// Percentage of lists that show what the one before should have.
    stale_percent: u64,
    /// Volumes that lists go on showing with an earlier root.
    stale: Mutex<BTreeMap<u64, Root>>,
    /// By writer (the address of its content), its volumes and the numbers of their last writes.
    written: Mutex<BTreeMap<usize, Writes>>,
}

impl Vaults {
    /// Notes that a volume is about to be written.
    fn write(&self, content: &Content, volume: u64) {
        let mut written = self.written.lock();
        let (upto, volumes) = written.entry(Arc::as_ptr(&content.inner) as usize).or_default();
        *upto += 1;
        volumes.insert(volume, *upto);
    }

    /// Commits a root.
    fn put(&self, content: &Content, volume: u64, vault: (Root, Model)) {
        self.write(content, volume);
        self.volumes.lock().insert(volume, vault);
    }
}

/// Reads the vaults one after the other, with time in between.
struct SlowRoots {
    env: Env,
    content: Content,
    vaults: Arc<Vaults>,
}

fn id_of(volume: u64) -> SourceId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&volume.to_be_bytes());
    SourceId(id)
}

fn volume_of(id: SourceId) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|at| id.0[at]))
}

fn tag_of(root: &Root) -> rekindle_datastore::Tag {
    let text = root.map(|root| root.to_string()).unwrap_or_default();
    let hash = *blake3::hash(text.as_bytes()).as_bytes();
    rekindle_datastore::Tag(std::array::from_fn(|at| hash[at]))
}

impl Roots for SlowRoots {
    fn look<'a>(
        &'a self,
        known: &'a Sources,
        look: Look<'a>,
    ) -> BoxFuture<'a, Result<Sources, Error>> {
        Box::pin(async move {
            let now: BTreeMap<u64, Root> =
                self.vaults.volumes.lock().iter().map(|(id, volume)| (*id, volume.0)).collect();
            let before = std::mem::replace(&mut *self.vaults.listed.lock(), now.clone());
            let is_stale = self.vaults.stale_percent > 0
                && self.env.random_u64() % 100 < self.vaults.stale_percent;
            let mut shown = if is_stale { before } else { now };
            shown.extend(self.vaults.stale.lock().iter().map(|(id, root)| (*id, *root)));
            let mut volumes: BTreeSet<u64> = shown.keys().copied().collect();
            volumes.extend(known.records.keys().map(|id| volume_of(*id)));
            if let Look::Told(told) = look {
                volumes.extend(told.iter().map(|id| volume_of(*id)));
            }
            let mut found = Sources::default();
            for volume in volumes {
                let (id, tag) = (id_of(volume), shown.get(&volume).map(tag_of));
                let before = known.records.get(&id);
                let source = match before.filter(|_| !look.reads(id, before, tag)) {
                    Some(source) => Some(source.clone()),
                    None => {
                        self.env.sleep(Duration::from_micros(self.env.random_u64() % 3000)).await;
                        let root = self.vaults.volumes.lock().get(&volume).map(|volume| volume.0);
                        root.map(|root| {
                            let kept = root.map(|root| KeptRoot { root, until: None });
                            Source { tag, roots: kept.into_iter().collect() }
                        })
                    }
                };
                found.records.extend(source.map(|source| (id, source)));
            }
            Ok(found)
        })
    }

    fn written(&self, since: u64) -> Option<Written> {
        let written = self.vaults.written.lock();
        let of = written.get(&(Arc::as_ptr(&self.content.inner) as usize));
        let (upto, volumes) = of.cloned().unwrap_or_default();
        let later = volumes.iter().filter(|(_, number)| **number > since);
        Some(Written { upto, sources: later.map(|(volume, _)| id_of(*volume)).collect() })
    }
}

/// From here on the bytes are long enough that marks tell one chunk of a bundle from another.
const LONG: u64 = 1 << 32;

/// Returns the bytes number `seed`; few numbers, so that volumes share chunks and dying ones are
/// written again.
fn bytes_of(seed: u64) -> bytes::Bytes {
    let length = 500 + usize::try_from(seed % 7).unwrap() * 700;
    if seed >= LONG {
        return text(seed, 12_000);
    }
    if seed.is_multiple_of(3) { random(seed, length) } else { text(seed, length) }
}

fn small() -> Config {
    Config {
        compression: Compression::None,
        pack_bytes: 12 << 10,
        cache_bytes: 40 << 10,
        ..config()
    }
}

fn sweeper(env: &Env, content: &Content, vaults: &Arc<Vaults>, compacts: bool) -> Sweeper {
    let writer = Writer::new(env.clone(), content.inner.store.clone(), NodeId([1; 16]));
    let options = Options {
        budget: Budget::Unlimited,
        compacts,
        // Few at once: a sweep of these tests has many groups.
        condemned_max: 3,
        grace: Duration::ZERO,
        young: Duration::ZERO,
        ..Options::default()
    };
    let roots = SlowRoots { env: env.clone(), content: content.clone(), vaults: vaults.clone() };
    Sweeper::new(content.clone(), writer, Arc::new(roots), Path::new(FOLDER)).with_options(options)
}

/// Commits changes of a volume.
async fn commit(
    env: &Env,
    content: &Content,
    vaults: &Vaults,
    volume: u64,
    changes: &[(u64, Option<u64>)],
) -> Result<(), Error> {
    let (root, mut model) = vaults.volumes.lock().get(&volume).cloned().unwrap_or_default();
    let mut batch = content.batch();
    let seeds: Vec<u64> = changes.iter().filter_map(|(_, seed)| *seed).collect();
    let mut pointers = Vec::new();
    if content.inner.config.compression == Compression::None {
        for seed in &seeds {
            pointers.push(batch.write(Class::Data, bytes_of(*seed), &[]).await?);
        }
    } else {
        // Neighbours in bundles, a few chunks each.
        for few in seeds.chunks(6) {
            let few: Vec<_> = few.iter().map(|seed| bytes_of(*seed)).collect();
            pointers.extend(batch.write_many(&[stretch(&few)]).await?);
        }
    }
    let mut pointers = pointers.into_iter();
    let mut written = Vec::new();
    for (key, seed) in changes {
        match seed {
            Some(seed) => {
                written.push((*key, pointers.next()));
                model.insert(*key, *seed);
            }
            None => {
                written.push((*key, None));
                model.remove(key);
            }
        }
    }
    let root = tree::update(content, &mut batch, &root, &written).await?;
    pause(env).await;
    batch.flush().await?;
    pause(env).await;
    vaults.put(content, volume, (root, model));
    Batch::committed(batch);
    Ok(())
}

/// Writes the pack of a batch that comes to nothing.
async fn abandon(content: &Content) {
    let mut batch = content.batch();
    batch.write(Class::Data, random(999, 5000), &[]).await.unwrap();
    batch.flush().await.unwrap();
}

/// Lists the packs in the store, with their lengths.
async fn packs_of(content: &Content) -> Result<BTreeMap<PackId, u64>, Error> {
    let mut packs = BTreeMap::new();
    for class in [Class::Data, Class::Metadata] {
        packs.extend(pack::list(&content.inner.store, class).await?);
    }
    Ok(packs)
}

async fn pause(env: &Env) {
    if env.random_u64().is_multiple_of(2) {
        env.sleep(Duration::from_micros(env.random_u64() % 30_000)).await;
    }
}

fn some_changes(env: &Env, model: &Model) -> Vec<(u64, Option<u64>)> {
    let mut changes = BTreeMap::new();
    match env.random_u64() % 4 {
        // Everything goes.
        0 => changes.extend(model.keys().map(|key| (*key, None))),
        // A whole run comes, out of few bytes.
        1 => {
            let (from, seed) = (env.random_u64() % 100, env.random_u64() % 40);
            changes.extend((0..env.random_u64() % 60).map(|i| (from + i, Some((seed + i) % 40))));
        }
        // A few come and go.
        _ => {
            for _ in 0..env.random_u64() % 12 {
                let seed = (!env.random_u64().is_multiple_of(3)).then(|| env.random_u64() % 40);
                changes.insert(env.random_u64() % 150, seed);
            }
        }
    }
    changes.into_iter().collect()
}

/// Checks that every volume has exactly what its model says, read from the store with cold caches.
async fn check(env: &Env, store: &Store, vaults: &Vaults) {
    let content = Content::open(env.clone(), store.clone(), small());
    let volumes = vaults.volumes.lock().clone();
    let roots: Vec<Root> = volumes.values().map(|volume| volume.0).collect();
    let report = verify(&content, &roots, &mut |_| ()).await.unwrap();
    assert!(report.damages.is_empty(), "{:?}", report.damages);
    for (root, model) in volumes.values() {
        let entries = tree::range(&content, root, 0..u64::MAX).await.unwrap();
        assert_eq!(entries.len(), model.len());
        for ((key, pointer), (expected, seed)) in entries.iter().zip(model) {
            assert_eq!(key, expected);
            assert_eq!(content.read(pointer, Class::Data).await.unwrap(), bytes_of(*seed));
        }
    }
}

#[derive(Default)]
struct Named(BTreeSet<PackId>, BTreeSet<[u8; 32]>);

impl Visitor for Named {
    fn meet(&mut self, pointer: &Pointer) -> bool {
        self.0.insert(pointer.pack);
        self.1.insert(pointer.name)
    }
    fn failed(&mut self, _pointer: &Pointer, error: Error) -> Result<(), Error> {
        Err(error)
    }
}

async fn named(content: &Content, vaults: &Vaults) -> BTreeSet<PackId> {
    let roots: Vec<Pointer> =
        vaults.volumes.lock().values().filter_map(|volume| volume.0).collect();
    let mut named = Named::default();
    walk(content, &roots, &mut named).await.unwrap();
    named.0
}

#[test]
fn exactly_what_nothing_reaches_is_gone() {
    for seed in 0..20 {
        let world = World::new(seed, Faults::none());
        let env = world.env();
        world.block_on(async {
            let content = Content::open(env.clone(), Mem::store(), small());
            let vaults = Arc::new(Vaults::default());
            let sweeper = sweeper(&env, &content, &vaults, false);
            for _ in 0..6 {
                for volume in 0..4 {
                    let model = vaults
                        .volumes
                        .lock()
                        .get(&volume)
                        .map(|volume| volume.1.clone())
                        .unwrap_or_default();
                    commit(&env, &content, &vaults, volume, &some_changes(&env, &model))
                        .await
                        .unwrap();
                }
                abandon(&content).await;
                let before = packs_of(&content).await.unwrap();
                let status = sweeper.run().await.unwrap();
                let expected = named(&content, &vaults).await;
                let after: BTreeSet<PackId> =
                    packs_of(&content).await.unwrap().into_keys().collect();
                assert_eq!(after, expected);
                assert!(status.packs_deleted > 0);
                assert_eq!(status.packs_deleted, (before.len() - after.len()) as u64);
                let bytes: u64 = before
                    .iter()
                    .filter(|(pack, _)| !after.contains(*pack))
                    .map(|(_, bytes)| bytes)
                    .sum();
                assert_eq!(
                    (status.bytes_freed, status.phase, status.failure),
                    (bytes, Phase::Idle, None)
                );
                check(&env, &content.inner.store, &vaults).await;
            }
        });
    }
}

#[test]
fn mostly_dead_packs_are_compacted_and_notes_end_when_nobody_needs_them() {
    compacted_and_at_rest(None);
    // Parity that is as long as the data is no waste, however often the sweep looks.
    compacted_and_at_rest(Some("2+2".parse().unwrap()));
}

fn compacted_and_at_rest(parity: Option<Parity>) {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let small = || Config { parity, ..small() };
        let content =
            Content::open(env.clone(), Mem::store(), Config { pack_bytes: 64 << 10, ..small() });
        let vaults = Arc::new(Vaults::default());
        let sweep_only = sweeper(&env, &content, &vaults, false);
        let sweeper = sweeper(&env, &content, &vaults, true);
        let put =
            |range: std::ops::Range<u64>| range.map(|key| (key, Some(key))).collect::<Vec<_>>();
        commit(&env, &content, &vaults, 0, &put(0..300)).await.unwrap();
        // Nine of ten go.
        let most: Vec<_> = (0..300).filter(|key| key % 10 != 0).map(|key| (key, None)).collect();
        commit(&env, &content, &vaults, 0, &most).await.unwrap();
        let before: u64 = packs_of(&content).await.unwrap().values().sum();
        let status = sweeper.run().await.unwrap();
        assert!(status.packs_compacted >= 3, "{status:?}");
        let after: u64 = packs_of(&content).await.unwrap().values().sum();
        assert!(after * 4 < before, "{before} -> {after}");
        assert_eq!(
            listing::list_notes(&content).await.unwrap().len() as u64,
            status.packs_compacted
        );
        check(&env, &content.inner.store, &vaults).await;
        // Again and again: chains of notes.
        for step in [20, 40, 80, 160] {
            let model = vaults.volumes.lock()[&0].1.clone();
            // The leaf is written anew by another node, which knows no notes, so that its pointers
            // stay.
            let other = Content::open(env.clone(), content.inner.store.clone(), small());
            let some: Vec<_> =
                model.keys().filter(|key| *key % step != 0).map(|key| (*key, None)).collect();
            commit(&env, &other, &vaults, 0, &some).await.unwrap();
            sweeper.run().await.unwrap();
            check(&env, &content.inner.store, &vaults).await;
        }
        assert!(sweeper.run().await.unwrap().packs_condemned == 0, "it comes to rest");
        // A node that knows the notes writes the new places.
        let (root, model) = vaults.volumes.lock()[&0].clone();
        for key in model.keys() {
            let pointer = tree::get(&content, &root, *key).await.unwrap().unwrap();
            content.read_uncached(&pointer, Class::Data).await.unwrap();
        }
        commit(&env, &content, &vaults, 0, &[(1000, Some(1000))]).await.unwrap();
        // (Without compaction, which would write new notes.)
        assert!(!listing::list_notes(&content).await.unwrap().is_empty());
        assert!(sweep_only.run().await.unwrap().notes_deleted > 0);
        assert_eq!(listing::list_notes(&content).await.unwrap().len(), 0);
        check(&env, &content.inner.store, &vaults).await;
    });
}

#[test]
fn a_sweep_of_an_unchanged_store_reads_no_content_and_the_next_change_is_seen() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let parity = Some("2+2".parse().unwrap());
        let store = Arc::new(Broken::new());
        let content = Content::open(env.clone(), store.clone(), Config { parity, ..small() });
        let vaults = Arc::new(Vaults::default());
        let sweeper = sweeper(&env, &content, &vaults, true);
        let changes: Vec<_> = (0..100).map(|key| (key, Some(key))).collect();
        commit(&env, &content, &vaults, 0, &changes).await.unwrap();
        let mut reads = Vec::new();
        for _ in 0..3 {
            let before = store.reads();
            let status = sweeper.run().await.unwrap();
            assert_eq!((status.packs_condemned, status.packs_live), (0, status.packs_total));
            reads.push(store.reads() - before);
        }
        assert!(reads[0] > reads[1] * 2, "{reads:?}");
        // The lease and the record of what is condemned are read.
        assert!(reads[1] <= 4 && reads[1] == reads[2], "{reads:?}");
        assert!(sweeper.progress().is_unchanged);
        // A pack that a batch leaves behind, and a root that goes, both end the rest.
        abandon(&content).await;
        assert_eq!(sweeper.run().await.unwrap().packs_deleted, 1);
        assert!(!sweeper.run().await.unwrap().is_unchanged, "it had something to do before");
        assert!(sweeper.run().await.unwrap().is_unchanged);
        vaults.volumes.lock().clear();
        assert!(sweeper.run().await.unwrap().packs_deleted > 1);
        assert_eq!(packs_of(&content).await.unwrap().len(), 0);
    });
}

#[test]
fn what_is_young_is_not_forgotten_when_it_is_no_longer() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content = Content::open(env.clone(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        commit(&env, &content, &vaults, 0, &[(1, Some(1))]).await.unwrap();
        abandon(&content).await;
        // Another life does not know what became of the batches.
        let content = Content::open(env.clone(), content.inner.store.clone(), small());
        let sweeper = sweeper(&env, &content, &vaults, true);
        let options = Options { young: Duration::from_secs(600), ..sweeper.options };
        let sweeper = sweeper.with_options(options);
        let soon = sweeper.run().await.unwrap();
        assert_eq!(soon.packs_deleted, 0);
        assert!(soon.packs_young > 0 && soon.bytes_young > 0, "it says why: {soon:?}");
        env.sleep(Duration::from_secs(601)).await;
        let later = sweeper.run().await.unwrap();
        assert_eq!((later.packs_deleted, later.packs_young, later.bytes_young), (1, 0, 0));
    });
}

#[test]
fn a_stop_ends_a_sweep_of_many_groups_before_its_next_group() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content = Content::open(env.clone(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        let changes: Vec<_> = (0..300).map(|key| (key, Some(key))).collect();
        commit(&env, &content, &vaults, 0, &changes).await.unwrap();
        vaults.volumes.lock().clear();
        let dead = packs_of(&content).await.unwrap().len() as u64;
        assert!(dead > 9, "{dead}");
        let sweeper = sweeper(&env, &content, &vaults, true);
        let options = Options { grace: Duration::from_secs(10), ..sweeper.options };
        let sweeper = Arc::new(sweeper.with_options(options));
        let (running, outcome) = (sweeper.clone(), Arc::new(Mutex::new(None)));
        let ended = outcome.clone();
        env.spawn("sweep", async move { *ended.lock() = Some(running.run().await) });
        while sweeper.progress().packs_deleted == 0 {
            env.sleep(Duration::from_millis(100)).await;
        }
        sweeper.stop();
        env.sleep(Duration::from_secs(5)).await;
        let ended = outcome.lock().take();
        assert!(matches!(ended, Some(Err(Error::Stopped(_)))), "{:?}", sweeper.progress());
        // What was not reclaimed is found by the next sweep.
        assert_eq!(sweeper.run().await.unwrap().packs_deleted, dead - 3);
    });
}

#[test]
fn a_root_that_cannot_be_read_ends_the_sweep() {
    struct Unreadable;
    impl Roots for Unreadable {
        fn look<'a>(
            &'a self,
            _known: &'a Sources,
            _look: Look<'a>,
        ) -> BoxFuture<'a, Result<Sources, Error>> {
            Box::pin(async { Err(rekindle_datastore::Error::Unavailable("a vault".into()).into()) })
        }

        fn written(&self, _since: u64) -> Option<Written> {
            None
        }
    }
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content = Content::open(env.clone(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        commit(&env, &content, &vaults, 0, &[(1, Some(1))]).await.unwrap();
        let writer = Writer::new(env.clone(), content.inner.store.clone(), NodeId([1; 16]));
        let folder = Path::new(FOLDER);
        let unable = Sweeper::new(content.clone(), writer, Arc::new(Unreadable), folder);
        assert!(unable.run().await.is_err());
        assert!(unable.progress().failure.is_some());
        // A tree node that cannot be read ends the sweep too.
        let root = vaults.volumes.lock()[&0].0.unwrap();
        let cold = Content::open(env.clone(), content.inner.store.clone(), small());
        cold.inner.store.delete(&pack::key(root.pack)).await.unwrap();
        assert!(sweeper(&env, &cold, &vaults, true).run().await.is_err());
        assert_eq!(packs_of(&cold).await.unwrap().len(), 1);
    });
}

#[test]
fn a_condemned_pack_is_not_deduplicated_against_and_a_batch_that_did_before_rescues_it() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content = Content::open(env.clone(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        commit(&env, &content, &vaults, 0, &[(1, Some(1))]).await.unwrap();
        commit(&env, &content, &vaults, 0, &[(1, None)]).await.unwrap();
        let packs = packs_of(&content).await.unwrap();
        assert_eq!(packs.len(), 2);
        // An early batch finds the dying chunk, and takes its time.
        let mut early = content.batch();
        let found = early.write(Class::Data, bytes_of(1), &[]).await.unwrap();
        assert!(packs.contains_key(&found.pack));
        let sweeper = Arc::new(sweeper(&env, &content, &vaults, false));
        env.spawn("sweep", {
            let sweeper = sweeper.clone();
            async move { drop(sweeper.run().await) }
        });
        while sweeper.progress().phase != Phase::Settling {
            env.sleep(Duration::from_millis(1)).await;
        }
        // A later batch writes the chunk once more.
        let mut late = content.batch();
        let written = late.write(Class::Data, bytes_of(1), &[]).await.unwrap();
        assert_ne!(written.pack, found.pack);
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(sweeper.progress().phase, Phase::Settling, "it waits for the early batch");
        let root = tree::update(&content, &mut early, &None, &[(1, Some(found))]).await.unwrap();
        early.flush().await.unwrap();
        vaults.put(&content, 0, (root, Model::from([(1, 1)])));
        early.committed();
        while sweeper.progress().phase != Phase::Idle {
            env.sleep(Duration::from_millis(1)).await;
        }
        let progress = sweeper.progress();
        assert_eq!(
            (progress.packs_condemned, progress.packs_rescued),
            (2, 1 + u64::from(progress.packs_deleted == 0))
        );
        check(&env, &content.inner.store, &vaults).await;
        drop(late);
    });
}

/// A crash between the note and the deletion leaves a pack with a note. Later its dead chunks may
/// come back to life.
#[test]
fn a_leftover_of_compaction_is_judged_chunk_by_chunk() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content =
            Content::open(env.clone(), Mem::store(), Config { pack_bytes: 64 << 10, ..small() });
        let vaults = Arc::new(Vaults::default());
        let put = |keys: std::ops::Range<u64>| keys.map(|key| (key, Some(key))).collect::<Vec<_>>();
        commit(&env, &content, &vaults, 0, &put(0..20)).await.unwrap();
        let (root, _) = vaults.volumes.lock()[&0].clone();
        let old = tree::range(&content, &root, 0..20).await.unwrap();
        let pack = old[0].1.pack;
        // As a compaction would have done when only keys 0 to 3 were alive.
        let mut batch = content.batch();
        let mut entries = Vec::new();
        for (key, pointer) in &old[..4] {
            let body = Body { bytes: bytes_of(*key), children: 0 };
            let new = batch.write_anew(Class::Data, pointer.name, body).await.unwrap();
            entries.push((pointer.spot(), new));
        }
        batch.flush().await.unwrap();
        batch.committed();
        let note = crate::format::moved::encode(&crate::format::moved::Moved { pack, entries });
        content.inner.store.put(&moved::key(pack), note.into()).await.unwrap();
        let gone: Vec<_> = (2..4).chain(5..20).map(|key| (key, None)).collect();
        commit(&env, &content, &vaults, 0, &gone).await.unwrap();
        // Key 4 is alive in the leftover only: the leftover stays, or is moved, and the note knows
        // that, too.
        sweeper(&env, &content, &vaults, false).run().await.unwrap();
        assert!(packs_of(&content).await.unwrap().contains_key(&pack));
        check(&env, &content.inner.store, &vaults).await;
        let status = sweeper(&env, &content, &vaults, true).run().await.unwrap();
        assert!(status.packs_compacted > 0, "{status:?}");
        assert!(!packs_of(&content).await.unwrap().contains_key(&pack));
        check(&env, &content.inner.store, &vaults).await;
        // A note that leads to packs that are no more is void as long as the pack itself is there.
        commit(&env, &content, &vaults, 1, &[(1, Some(1000))]).await.unwrap();
        let root = vaults.volumes.lock()[&1].0;
        let pointer = tree::get(&content, &root, 1).await.unwrap().unwrap();
        let nowhere = Pointer { pack: PackId([8; 16]), ..pointer };
        let void = crate::format::moved::Moved {
            pack: pointer.pack,
            entries: vec![(pointer.spot(), nowhere)],
        };
        let note = crate::format::moved::encode(&void);
        content.inner.store.put(&moved::key(pointer.pack), note.into()).await.unwrap();
        sweeper(&env, &content, &vaults, true).run().await.unwrap();
        check(&env, &content.inner.store, &vaults).await;
    });
}

/// Counts of what the simulated runs have met: a test that never met an event proves nothing about
/// it.
#[derive(Debug, Default)]
struct Met {
    rescued: u64,
    compacted: u64,
    deleted: u64,
    failed: u64,
    /// Crashes by the phase in which they fell.
    crashes: BTreeMap<String, u32>,
}

/// Writers and a sweeper on a slow store, up to the end or a crash.
fn traffic(
    world: &World,
    store: &Store,
    vaults: &Arc<Vaults>,
    stop: Stop,
    compacts: bool,
    met: &mut Met,
) {
    let env = world.env();
    let parity = env.random_u64().is_multiple_of(2).then(|| "3+1".parse().unwrap());
    let compression =
        if env.random_u64().is_multiple_of(2) { Compression::Zstd } else { Compression::None };
    let config = Config { parity, compression, ..small() };
    let content = Content::open(env.clone(), store.clone(), config);
    let writers = Arc::new(Mutex::new(0));
    let sweeper = sweeper(&env, &content, vaults, compacts);
    let work = async {
        let warm = content.clone();
        env.spawn("warm-up", async move { drop(warm.warm_index().await) });
        for volume in 0..3 {
            *writers.lock() += 1;
            let (env, content, vaults, writers) =
                (env.clone(), content.clone(), vaults.clone(), writers.clone());
            env.clone().spawn("writer", async move {
                for _ in 0..12 {
                    write_and_read(&env, &content, &vaults, volume).await;
                }
                *writers.lock() -= 1;
            });
        }
        // At times the warm-up and the writers are well ahead of the sweep that goes on after a
        // crash.
        env.sleep(Duration::from_micros(env.random_u64() % 200_000)).await;
        while *writers.lock() > 0 {
            match sweeper.run().await {
                Ok(status) => {
                    met.rescued += status.packs_rescued;
                    met.compacted += status.packs_compacted;
                    met.deleted += status.packs_deleted;
                }
                // Only what a dead sweeper still does may get in the way.
                Err(error) => {
                    assert!(stop != Stop::Never, "{error}");
                    met.failed += 1;
                }
            }
        }
    };
    if world.block_on_until(stop, work).is_none() {
        *met.crashes.entry(format!("{:?}", sweeper.progress().phase)).or_default() += 1;
    }
}

async fn write_and_read(env: &Env, content: &Content, vaults: &Vaults, volume: u64) {
    let (root, model) = vaults.volumes.lock().get(&volume).cloned().unwrap_or_default();
    for (key, seed) in model.iter().take(5) {
        let pointer = tree::get(content, &root, *key).await.unwrap().unwrap();
        assert_eq!(content.read(&pointer, Class::Data).await.unwrap(), bytes_of(*seed));
    }
    commit(env, content, vaults, volume, &some_changes(env, &model)).await.unwrap();
}

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("REKINDLE_SEEDS").ok().and_then(|count| count.parse().ok());
    0..count.unwrap_or(40)
}

#[test]
fn sweeping_beside_writers_that_bring_dying_chunks_back_loses_nothing() {
    let mut met = Met::default();
    for seed in seeds() {
        let world = World::new(seed, Faults::none());
        let store: Store = Arc::new(Remote::new(world.host("store").env(), Mem::store()));
        let vaults = Arc::new(Vaults::default());
        traffic(&world, &store, &vaults, Stop::Never, seed % 2 == 0, &mut met);
        let env = world.env();
        world.block_on(check(&env, &store, &vaults));
    }
    println!("{met:?}");
    assert!(met.rescued > 0 && met.compacted > 0 && met.deleted > 0, "{met:?}");
}

#[test]
fn a_crash_anywhere_loses_nothing_and_the_next_sweep_goes_on() {
    let (mut met, seeds) = (Met::default(), seeds().end);
    // Compaction is short: few crashes meet it.
    for seed in 0..4 * seeds {
        if seed >= seeds && met.crashes.len() == 7 {
            break;
        }
        let world = World::new(seed, Faults::none());
        let store: Store = Arc::new(Remote::new(world.host("store").env(), Mem::store()));
        let vaults = Arc::new(Vaults::default());
        // Each life is cut off somewhere; requests that are under way then arrive later.
        for life in 0..6 {
            let stop = Stop::Step(200 + (seed * 7919 + life * 104_729) % 4000);
            traffic(&world, &store, &vaults, stop, true, &mut met);
            world.crash_process();
        }
        let env = world.env();
        world.block_on(async {
            check(&env, &store, &vaults).await;
            let content = Content::open(env.clone(), store.clone(), small());
            let sweeper = sweeper(&env, &content, &vaults, true);
            env.sleep(Duration::from_secs(10)).await;
            for _ in 0..6 {
                sweeper.run().await.unwrap();
            }
            check(&env, &store, &vaults).await;
            // The sweep comes to rest, and nothing is left that no root needs.
            let status = sweeper.run().await.unwrap();
            assert_eq!(status.packs_deleted, 0, "{status:?}");
            assert_eq!(status.packs_live, status.packs_total);
        });
    }
    println!("{met:?}");
    assert!(met.crashes.len() == 7, "a crash in every phase: {met:?}");
}
