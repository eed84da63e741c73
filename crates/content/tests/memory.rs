//! The memory of a sweep over a store of 100 TiB, whose packs exist in its lists only.

use bytes::Bytes;
use rekindle_base::{NodeId, PackId};
use rekindle_content::sweep::{
    Budget, KeptRoot, Look, Options, Roots, Source, SourceId, Sources, Sweeper, Written,
};
use rekindle_content::{Class, Compression, Config, Content, Error, Part, Pointer, pack};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::record::Writer;
use rekindle_datastore::{Datastore, Error as StoreError, Listed, Store, Version};
use rekindle_env::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Packs of 16 MiB in 100 TiB.
const PACKS: u64 = 6_553_600;
/// Places that are named, each in a pack of its own: more than are sorted in RAM.
const PLACES: u64 = 2_600_000;
const CHILDREN: u64 = 1000;
const MEMORY_MAX: u64 = 256 << 20;

/// The pack of a number: in the order of the numbers.
fn pack(number: u64) -> PackId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&((1_700_000_000_000 + number) << 16).to_be_bytes());
    PackId(id)
}

/// The next packs after a key.
fn page(after: Option<&str>) -> Vec<Listed> {
    let number = |key: &str| {
        let id: PackId = key.rsplit('/').next()?.parse().ok()?;
        let begin: [u8; 8] = id.0[..8].try_into().ok()?;
        Some((u64::from_be_bytes(begin) >> 16) - 1_700_000_000_000 + 1)
    };
    let first = after.and_then(number).unwrap_or(0);
    let listed = |number| Listed { key: pack::key(pack(number)), length: 16 << 20, tag: None };
    (first..PACKS.min(first + 1000)).map(listed).collect()
}

/// A store whose list of data shows packs that were never written.
struct Wide(Store);

impl Datastore for Wide {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.0.put(key, data)
    }
    fn create<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.0.create(key, data)
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.0.replace(key, data, version)
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), StoreError>> {
        self.0.get(key)
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.0.get_range(key, range)
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, StoreError>> {
        match prefix == pack::prefix(Class::Data) {
            true => Box::pin(std::future::ready(Ok(page(after)))),
            false => self.0.list(prefix, after),
        }
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.0.delete(key)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

struct One(Pointer);

impl Roots for One {
    fn look<'a>(&'a self, _: &'a Sources, _: Look<'a>) -> BoxFuture<'a, Result<Sources, Error>> {
        let roots = vec![KeptRoot { root: self.0, until: None }];
        let records = [(SourceId([1; 16]), Source { tag: None, roots })].into();
        Box::pin(std::future::ready(Ok(Sources { records, ..Sources::default() })))
    }

    fn written(&self, _: u64) -> Option<Written> {
        Some(Written { upto: 0, sources: Vec::new() })
    }
}

/// Writes a tree whose leaves name the places, in an order that nothing but sorting brings about.
async fn planted(content: &Content) -> Pointer {
    let mut batch = content.batch();
    let mut nodes = Vec::new();
    for node in 0..PLACES / CHILDREN {
        let place = |child| Pointer {
            name: [7; 32],
            pack: pack((node * CHILDREN + child) * 1_000_003 % PACKS),
            offset: 32,
            stored: 9000,
            length: 15_000,
            part: Part::WHOLE,
        };
        let children: Vec<Pointer> = (0..CHILDREN).map(place).collect();
        let name = Bytes::from(node.to_string());
        nodes.push(batch.write(Class::Metadata, name, &children).await.expect("it is written"));
    }
    let root = batch.write(Class::Metadata, Bytes::new(), &nodes).await.expect("it is written");
    batch.flush().await.expect("it is written");
    batch.committed();
    root
}

/// The most memory that the process has had, bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Takes the present memory for the peak from now on.
#[expect(clippy::disallowed_methods, reason = "a switch of the kernel")]
fn begin_anew() {
    std::fs::write("/proc/self/clear_refs", "5").expect("Linux has it");
}

#[test]
fn a_sweep_of_a_hundred_tebibytes_takes_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(async {
        let store: Store = Arc::new(Wide(Mem::store()));
        let config = Config {
            secret: [3; 32],
            compression: Compression::None,
            parity: None,
            pack_bytes: 4 << 20,
            cache_bytes: 1 << 20,
            index_bytes: 1 << 20,
            uploads: 2,
        };
        let content = Content::open(env.clone(), store.clone(), config);
        let root = planted(&content).await;
        let writer = Writer::new(env.clone(), store, NodeId([1; 16]));
        let options = Options {
            budget: Budget::Unlimited,
            compacts: false,
            // No pack is deleted: what is not named is too young.
            young: Duration::from_secs(100 * 365 * 24 * 3600),
            ..Options::default()
        };
        let sweeper = Sweeper::new(content, writer, Arc::new(One(root)), folder.path());
        let sweeper = sweeper.with_options(options);
        begin_anew();
        let before = peak();
        let status = sweeper.run().await.unwrap();
        let taken = peak() - before;
        assert_eq!(status.bytes_total >> 40, 100);
        assert!((PLACES..PLACES + 1000).contains(&status.packs_live), "{status:?}");
        assert!(taken < MEMORY_MAX, "{} MiB", taken >> 20);
        println!("{} MiB of memory", taken >> 20);
    });
    runtime.shut_down(Duration::from_secs(1));
}
