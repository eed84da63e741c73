//! Compaction of packs with bundles.

use super::*;
use crate::format::footer::{self, Entry};
use rekindle_base::PackId;

/// A pack of forty chunks in bundles of six, all of which a volume reaches.
async fn planted(env: &Env, store: &Store, vaults: &Vaults) -> (Content, Vec<(u64, Pointer)>) {
    let config =
        Config { compression: Compression::Zstd, pack_bytes: 4 << 20, cache_bytes: 0, ..small() };
    let content = Content::open(env.clone(), store.clone(), config);
    let put: Vec<_> = (0..40).map(|key| (key, Some(key + LONG))).collect();
    commit(env, &content, vaults, 0, &put).await.unwrap();
    let root = vaults.volumes.lock()[&0].0;
    let chunks = tree::range(&content, &root, 0..u64::MAX).await.unwrap();
    assert!(chunks.iter().all(|(_, chunk)| chunk.pack == chunks[0].1.pack));
    assert!(chunks[..36].iter().all(|(_, chunk)| !chunk.part.is_whole()));
    (content, chunks)
}

async fn entries(content: &Content, pack: PackId) -> Vec<Entry> {
    footer::decode(&content.inner.store.get(&pack::key(pack)).await.unwrap().0).unwrap()
}

fn removed(keys: impl Iterator<Item = u64>) -> Vec<(u64, Option<u64>)> {
    keys.map(|key| (key, None)).collect()
}

#[test]
fn whole_bundles_are_copied_and_of_others_the_live_chunks_make_new_ones() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
        let (content, chunks) = planted(&env, &store, &vaults).await;
        let old = chunks[0].1.pack;
        let before = entries(&content, old).await;
        // Of the first bundle all stays, of the next two some, of the others nothing.
        let gone = (6..40).filter(|key| ![7, 8, 11, 13, 14].contains(key));
        commit(&env, &content, &vaults, 0, &removed(gone)).await.unwrap();
        let status = sweeper(&env, &content, &vaults, true).run().await.unwrap();
        assert_eq!(status.packs_compacted, 1, "{status:?}");
        let packs = packs_of(&content).await.unwrap();
        assert!(!packs.contains_key(&old));
        let data: Vec<_> = packs.keys().filter(|id| pack::class(**id) == Class::Data).collect();
        let [new] = data[..] else { panic!("{data:?}") };
        let after = entries(&content, *new).await;
        let blobs: Vec<&[Entry]> = after.chunk_by(Entry::is_beside).collect();
        let sizes: Vec<usize> = blobs.iter().map(|blob| blob.len()).collect();
        assert_eq!(sizes, [6, 5], "a copy, and one bundle of what is left of two");
        let of = |entries: &[Entry]| -> Vec<_> {
            entries.iter().map(|e| (e.name, e.stored, e.part)).collect()
        };
        assert_eq!(of(blobs[0]), of(&before[..6]));
        // Old pointers lead there: in this process, and in one that knows nothing.
        for content in [content.clone(), Content::open(env.clone(), store.clone(), small())] {
            for key in (0..6).chain([7, 8, 11, 13, 14]) {
                let pointer = &chunks[usize::try_from(key).unwrap()].1;
                let read = content.read_uncached(pointer, Class::Data).await.unwrap();
                assert_eq!(read, bytes_of(key + LONG));
            }
            let dead = content.read_uncached(&chunks[9].1, Class::Data).await.unwrap_err();
            assert!(matches!(dead, Error::Gone { .. }), "{dead}");
        }
        check(&env, &store, &vaults).await;
        // A second compaction goes through the note of the first.
        commit(&env, &content, &vaults, 0, &removed(1..13)).await.unwrap();
        let status = sweeper(&env, &content, &vaults, true).run().await.unwrap();
        assert_eq!(status.packs_compacted, 1, "{status:?}");
        check(&env, &store, &vaults).await;
    });
}

/// A footer that says less than there is must not let a compaction delete a chunk.
#[test]
fn a_footer_that_leaves_out_a_chunk_of_a_bundle_keeps_its_pack() {
    for left_out in [0, 3, 5] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let (store, vaults) = (Mem::store(), Arc::new(Vaults::default()));
            let (content, chunks) = planted(&env, &store, &vaults).await;
            let old = chunks[0].1.pack;
            commit(&env, &content, &vaults, 0, &removed(6..40)).await.unwrap();
            let key = pack::key(old);
            let object = store.get(&key).await.unwrap().0;
            let mut entries = footer::decode(&object).unwrap();
            entries.remove(left_out);
            let length = footer::length_from_tail(&object).unwrap();
            let mut bytes = object[..object.len() - length].to_vec();
            footer::append(&entries, &mut bytes);
            store.put(&key, bytes.into()).await.unwrap();
            let content = Content::open(env.clone(), store.clone(), small());
            sweeper(&env, &content, &vaults, true).run().await.unwrap();
            assert!(packs_of(&content).await.unwrap().contains_key(&old));
            check(&env, &store, &vaults).await;
        });
    }
}
