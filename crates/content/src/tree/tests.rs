//! Trees against a map of the standard library.

use super::*;
use crate::testing::{config, random, run};
use crate::{Batch, Class, Content};
use proptest::prelude::*;
use rekindle_base::PackId;
use rekindle_datastore::backend::mem::Mem;
use std::collections::{BTreeMap, BTreeSet};

fn value(key: u64, version: u32) -> Pointer {
    let mut name = [0; 32];
    name[..8].copy_from_slice(&key.to_le_bytes());
    name[8..12].copy_from_slice(&version.to_le_bytes());
    Pointer {
        name,
        pack: PackId([0; 16]),
        offset: version,
        stored: 60,
        length: 4,
        part: crate::Part::WHOLE,
    }
}

async fn apply(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    changes: &BTreeMap<u64, Option<u32>>,
) -> Root {
    let changes: Vec<_> =
        changes.iter().map(|(key, version)| (*key, version.map(|v| value(*key, v)))).collect();
    update(content, batch, root, &changes).await.unwrap()
}

/// Checks shape and content of a tree; returns its height.
async fn check(content: &Content, root: &Root, model: &BTreeMap<u64, u32>) -> u16 {
    let expected: Vec<_> =
        model.iter().map(|(key, version)| (*key, value(*key, *version))).collect();
    let mut found = range(content, root, 0..u64::MAX).await.unwrap();
    if let Some(last) = get(content, root, u64::MAX).await.unwrap() {
        found.push((u64::MAX, last));
    }
    assert_eq!(found, expected);
    let Some(root) = root else { return 0 };
    let mut height = 0;
    let mut open = vec![(*root, None)];
    while let Some((pointer, above)) = open.pop() {
        let body =
            content.inner.read(&pointer, Class::Metadata, crate::cache::Keep::Yes).await.unwrap();
        let node = read::checked(&body, &pointer, above).unwrap();
        height = height.max(node.level() + 1);
        assert!(
            above.is_none() || node.count() >= crate::limits::NODE_ENTRIES_MIN,
            "a small node: {}",
            node.count()
        );
        if node.level() > 0 {
            assert!(node.count() > 1);
            open.extend(node.entries().map(|(_, child)| (child, Some(node.level()))));
        }
    }
    height
}

fn changes() -> impl Strategy<Value = BTreeMap<u64, Option<u32>>> {
    let key = prop_oneof![4 => 0u64..4000, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    let some =
        proptest::collection::btree_map(key, proptest::option::weighted(0.6, any::<u32>()), 0..600);
    let run = (0u64..4000, 1u64..2000, proptest::option::weighted(0.5, any::<u32>())).prop_map(
        |(begin, length, version)| (begin..begin + length).map(|key| (key, version)).collect(),
    );
    prop_oneof![some, run]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn it_does_what_a_map_does(steps in proptest::collection::vec(changes(), 1..12), flush in any::<bool>()) {
        run(async move |env| {
            // A cache that holds next to nothing, so that nodes come from packs, open ones too.
            let content = Content::open(env, Mem::store(), crate::Config { cache_bytes: 100 << 10, ..config() });
            let mut model = BTreeMap::new();
            let mut root = None;
            let mut batch = content.batch();
            let mut versions = Vec::new();
            for step in &steps {
                root = apply(&content, &mut batch, &root, step).await;
                for (key, version) in step {
                    match version {
                        Some(version) => model.insert(*key, *version),
                        None => model.remove(key),
                    };
                }
                assert_eq!(root.is_none(), model.is_empty());
                if flush {
                    batch.flush().await.unwrap();
                    check(&content, &root, &model).await;
                    versions.push((root, model.clone()));
                }
            }
            batch.flush().await.unwrap();
            versions.push((root, model));
            for (root, model) in &versions {
                check(&content, root, model).await;
            }
        });
    }
}

#[test]
fn lookups_ranges_and_sharing() {
    run(async |env| {
        let content = Content::open(env.clone(), Mem::store(), config());
        let mut batch = content.batch();
        let model: BTreeMap<u64, u32> = (0..20_000u64).map(|key| (key * 3, 1)).collect();
        let all = model.iter().map(|(key, version)| (*key, Some(*version))).collect();
        let root = apply(&content, &mut batch, &None, &all).await;
        batch.flush().await.unwrap();
        assert_eq!(check(&content, &root, &model).await, 2);
        assert_eq!(floor_now(&content, &root, 300), Lookup::Present(300, value(300, 1)));
        assert_eq!(floor_now(&content, &root, 301), Lookup::Present(300, value(300, 1)));
        assert_eq!(floor_now(&content, &None, 301), Lookup::Absent);
        assert_eq!(get(&content, &root, 59_997).await.unwrap(), Some(value(59_997, 1)));
        let found = range(&content, &root, 10_000..20_000).await.unwrap();
        let expected: Vec<_> = model
            .range(10_000..20_000)
            .map(|(key, version)| (*key, value(*key, *version)))
            .collect();
        assert_eq!(found, expected);

        let cold = Content::open(env, content.inner.store.clone(), config());
        assert_eq!(floor_now(&cold, &root, 300), Lookup::Unknown);
        assert_eq!(get(&cold, &root, 300).await.unwrap(), Some(value(300, 1)));
        assert_eq!(floor_now(&cold, &root, 300), Lookup::Present(300, value(300, 1)));

        // One key changes two nodes; a change that changes nothing changes none.
        let written = content.stats().chunks_written;
        let mut batch = content.batch();
        let next = apply(&content, &mut batch, &root, &[(300, Some(2))].into()).await;
        assert_eq!(content.stats().chunks_written - written, 2);
        assert_ne!(next, root);
        assert_eq!(
            apply(&content, &mut batch, &root, &[(300, Some(1)), (301, None)].into()).await,
            root
        );
        assert_eq!(content.stats().chunks_written - written, 2);
        assert_eq!(
            get(&content, &root, 300).await.unwrap(),
            Some(value(300, 1)),
            "the old version is as it was"
        );

        // Everything but one key is removed.
        let most = model.keys().skip(1).map(|key| (*key, None)).collect();
        let last = apply(&content, &mut batch, &root, &most).await;
        batch.flush().await.unwrap();
        assert_eq!(check(&content, &last, &[(0, 1)].into()).await, 1);
        assert_eq!(apply(&content, &mut batch, &last, &[(0, None)].into()).await, None);
        let disorder = [(2, None), (1, None)];
        assert!(update(&content, &mut batch, &root, &disorder).await.is_err());
    });
}

#[test]
fn a_root_that_is_no_node_is_an_error() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let mut batch = content.batch();
        let chunk = batch.write(Class::Metadata, random(1, 5000), &[]).await.unwrap();
        batch.flush().await.unwrap();
        assert!(get(&content, &Some(chunk), 1).await.is_err());
        assert_eq!(floor_now(&content, &Some(chunk), 1), Lookup::Unknown);
        assert!(range(&content, &Some(chunk), 0..9).await.is_err());
        assert!(update(&content, &mut batch, &Some(chunk), &[(1, None)]).await.is_err());
    });
}

struct Everything {
    met: BTreeSet<[u8; 32]>,
    times: usize,
}

impl Visitor for Everything {
    fn meet(&mut self, pointer: &Pointer) -> bool {
        self.times += 1;
        self.met.insert(pointer.name)
    }
    fn failed(&mut self, _pointer: &Pointer, error: crate::Error) -> Result<(), crate::Error> {
        Err(error)
    }
}

#[test]
fn a_walk_meets_everything_and_goes_into_what_is_shared_once() {
    run(async |env| {
        let content = Content::open(env, Mem::store(), config());
        let mut batch = content.batch();
        let first =
            apply(&content, &mut batch, &None, &(0..2000).map(|key| (key, Some(1))).collect())
                .await;
        let second = apply(&content, &mut batch, &first, &[(7, Some(2))].into()).await;
        // A chunk of another kind that refers to both trees.
        let roots = [first.unwrap(), second.unwrap()];
        let top = batch.write(Class::Metadata, random(1, 100), &roots).await.unwrap();
        batch.flush().await.unwrap();
        let mut everything = Everything { met: BTreeSet::new(), times: 0 };
        walk(&content, &[top], &mut everything).await.unwrap();
        assert!((0..2000).all(|key| everything.met.contains(&value(key, 1).name)));
        assert!(everything.met.contains(&value(7, 2).name));
        assert!(
            everything.times < 2000 + 300 + 30,
            "shared nodes were entered twice: {}",
            everything.times
        );
        let (content_of_top, children) =
            content.read_with_children(&top, Class::Metadata).await.unwrap();
        assert_eq!((content_of_top, &children[..]), (random(1, 100), &roots[..]));
    });
}

/// A node that lost its first entries is still entered above with their key ([`prune`] does that):
/// what is before its first key now is in the node to its left.
#[test]
fn the_entry_before_a_key_may_be_in_the_node_to_the_left() {
    run(async |env| {
        let content = Content::open(env.clone(), Mem::store(), config());
        let mut batch = content.batch();
        let mut write = async |level: u16, entries: &[(u64, Pointer)]| {
            let bytes = crate::format::node::encode(level, entries).into();
            let children = entries.len() as u32;
            let body = crate::pack::reader::Body { bytes, children };
            batch.write_body(Class::Metadata, body).await.unwrap()
        };
        let left = write(0, &[(3, value(3, 1)), (5, value(5, 1))]).await;
        let right = write(0, &[(50, value(50, 1))]).await;
        let root = Some(write(1, &[(3, left), (10, right)]).await);
        batch.flush().await.unwrap();
        for (key, expected) in
            [(2, None), (4, Some(3)), (9, Some(5)), (12, Some(5)), (60, Some(50))]
        {
            let found = floor(&content, &root, key).await.unwrap();
            assert_eq!(found, expected.map(|key| (key, value(key, 1))), "{key}");
            let now = match found {
                Some((key, pointer)) => Lookup::Present(key, pointer),
                None => Lookup::Absent,
            };
            assert_eq!(floor_now(&content, &root, key), now, "{key}");
        }
        assert_eq!(get(&content, &root, 12).await.unwrap(), None);
    });
}
