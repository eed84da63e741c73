//! Salvage with parity.

use super::*;
use crate::format::moved::{self, Moved};

pub(super) fn with_parity(shape: &str) -> Config {
    Config { parity: Some(shape.parse().unwrap()), ..config() }
}

fn within(pointer: &Pointer) -> u64 {
    u64::from(pointer.offset) + 70
}

pub(super) async fn object(store: &Arc<Broken>, pack: PackId) -> bytes::Bytes {
    store.get(&pack::key(pack)).await.unwrap().0
}

#[test]
fn parity_gives_back_data_and_nodes_and_makes_their_packs_whole() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted_with(with_parity("8+2"), &env, &store).await;
        let (_, leaves) =
            content.read_with_children(&root.unwrap(), Class::Metadata).await.unwrap();
        drop(content);
        let content = Content::open(env.clone(), store.clone(), config());
        let beside = leaves.iter().find(|leaf| leaf.pack == root.unwrap().pack);
        let hurt = [changes[7].1.unwrap(), *beside.unwrap(), root.unwrap()];
        let before = [object(&store, hurt[0].pack).await, object(&store, hurt[1].pack).await];
        for pointer in &hurt {
            damage(&store, pointer.pack, &[within(pointer)]).await;
        }
        let (repaired, mended) = salvage(&content, &root).await.unwrap();
        // The leaf is whole again with its pack, before any read has looked for it.
        assert_eq!((repaired.lost, repaired.refetched, repaired.from_parity), (vec![], 2, 2));
        assert!(repaired.lines[0].ends_with("it came back from parity"), "{:?}", repaired.lines);
        assert_eq!(range(&content, &repaired.root, 0..u64::MAX).await.unwrap().len(), 1000);
        assert_eq!(mended, 2, "one of data, one of nodes");
        let after = [object(&store, hurt[0].pack).await, object(&store, hurt[1].pack).await];
        assert!(before == after, "byte for byte");
        // So another root that reaches the damaged chunks finds no damage any more.
        assert!(examine(&content, &root, &mut |_| ()).await.unwrap().is_sound());
    });
}

#[test]
fn what_is_beyond_parity_is_given_up_and_the_rest_comes_back() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted_with(with_parity("4+1"), &env, &store).await;
        // A pack that is full.
        let pack = changes[500].1.unwrap().pack;
        let layout = crate::pack::parity::find(Some(pack), &object(&store, pack).await).unwrap();
        let chunk_at = |at: usize| {
            let mut of_pack = changes.iter().filter(|(_, chunk)| chunk.unwrap().pack == pack);
            let holds = |chunk: &Pointer| {
                (chunk.offset as usize..(chunk.offset + chunk.stored) as usize).contains(&at)
            };
            of_pack.find(|(_, chunk)| holds(&chunk.unwrap())).unwrap().0
        };
        // Two cells of one stripe, and one of another.
        let hits =
            [layout.cell(0, 1), layout.cell(1, 1), layout.cell(2, 3)].map(|cell| cell.start + 100);
        let [first, second, third] = hits.map(chunk_at);
        damage(&store, pack, &hits.map(|at| at as u64)).await;
        let (repaired, mended) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.refetched, repaired.from_parity, mended), (1, 1, 1));
        assert_eq!(repaired.lost, [first..first + 1, second..second + 1]);
        assert!(get(&content, &repaired.root, third).await.unwrap().is_some());
        // The pack keeps its parity, which rebuilds the next damage.
        let footer = footer::decode(&object(&store, pack).await).unwrap();
        let here = changes.iter().filter(|(_, chunk)| chunk.unwrap().pack == pack).count();
        assert_eq!(footer.len(), here - 2);
        let next = layout.cell(3, 2).start + 100;
        damage(&store, pack, &[next as u64]).await;
        let (again, mended) = salvage(&content, &repaired.root).await.unwrap();
        assert_eq!((again.lost, again.from_parity, mended), (vec![], 1, 1));
    });
}

#[test]
fn damage_of_parity_harms_nobody() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted_with(with_parity("4+1"), &env, &store).await;
        let bad = changes[5].1.unwrap();
        let whole = object(&store, bad.pack).await;
        let layout = crate::pack::parity::find(Some(bad.pack), &whole).unwrap();
        let section: Vec<u64> = (layout.covered..layout.end()).map(|at| at as u64).collect();
        damage(&store, bad.pack, &section).await;
        assert!(examine(&content, &root, &mut |_| ()).await.unwrap().is_sound());
        // With damage of a chunk it is as if there were no parity.
        damage(&store, bad.pack, &[within(&bad)]).await;
        let (repaired, _) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.lost, repaired.refetched), (one(50..51), 0));
    });
}

#[test]
fn what_parity_rebuilds_wrongly_is_not_written() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted_with(with_parity("4+1"), &env, &store).await;
        let bad = changes[5].1.unwrap();
        let whole = object(&store, bad.pack).await;
        let layout = crate::pack::parity::find(Some(bad.pack), &whole).unwrap();
        // The cell of parity is replaced, with its checksum: nothing looks wrong but the chunk.
        let hit = usize::try_from(within(&bad)).unwrap();
        let stripe = hit % layout.shard_bytes() / layout.cell;
        let cell = layout.cell(layout.data, stripe);
        let mut object_now = whole.to_vec();
        object_now[hit] ^= 1;
        object_now[cell.clone()].reverse();
        let checksum = rekindle_base::checksum::crc32c(&object_now[cell]).to_le_bytes();
        object_now[layout.checksum(0, layout.data, stripe)].copy_from_slice(&checksum);
        let before = object_now.clone();
        store.put(&pack::key(bad.pack), object_now.into()).await.unwrap();
        let (repaired, _) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.lost, repaired.from_parity), (one(50..51), 0));
        let after = object(&store, bad.pack).await;
        assert!(after[..layout.end()] == before[..layout.end()], "only the footer is another");
    });
}

#[test]
fn a_footer_is_written_anew_and_parity_stays_right() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted_with(with_parity("4+2"), &env, &store).await;
        let bad = changes[5].1.unwrap();
        let whole = object(&store, bad.pack).await;
        // The footer alone, then with it a chunk and a cell of parity.
        let last = whole.len() as u64 - 1;
        let layout = crate::pack::parity::find(Some(bad.pack), &whole).unwrap();
        let parity_cell = layout.cell(layout.data, 0).start as u64;
        for places in [&[last][..], &[last, within(&bad), parity_cell]] {
            damage(&store, bad.pack, places).await;
            let (repaired, mended) = salvage(&content, &root).await.unwrap();
            assert_eq!((repaired.lost.len(), mended), (0, 1));
            assert!(object(&store, bad.pack).await == whole, "byte for byte");
        }
    });
}

/// A chunk that compaction has moved out of the pack that its parent names, and that is damaged
/// there.
async fn moved_and_damaged(config: Config, env: &Env, store: &Arc<Broken>) -> (Root, Pointer) {
    let (content, root, changes) = planted_with(config.clone(), env, store).await;
    let from = changes[5].1.unwrap();
    let old = from.pack;
    let mut batch = content.batch();
    let mut entries = Vec::new();
    for (key, chunk) in changes.iter().filter(|(_, chunk)| chunk.unwrap().pack == old) {
        let body = Body { bytes: random(key / 10, 2000), children: 0 };
        let chunk = chunk.unwrap();
        entries
            .push((chunk.spot(), batch.write_anew(Class::Data, chunk.name, body).await.unwrap()));
    }
    batch.flush().await.unwrap();
    entries.sort_by_key(|entry| entry.0);
    let note = Moved { pack: old, entries };
    let place = note.place(&from).unwrap();
    store.put(&crate::moved::key(old), moved::encode(&note).into()).await.unwrap();
    store.delete(&pack::key(old)).await.unwrap();
    damage(store, place.pack, &[within(&place)]).await;
    (root, place)
}

#[test]
fn a_chunk_is_rebuilt_and_its_pack_mended_where_compaction_has_taken_it() {
    run(async |env| {
        for shape in [Some("8+2"), None] {
            let config = shape.map_or_else(config, with_parity);
            let store = Arc::new(Broken::new());
            let (root, place) = moved_and_damaged(config.clone(), &env, &store).await;
            let content = Content::open(env.clone(), store.clone(), config.clone());
            let (repaired, mended) = salvage(&content, &root).await.unwrap();
            let from_parity = u64::from(shape.is_some());
            assert_eq!((repaired.from_parity, mended), (from_parity, 1), "{shape:?}");
            assert_eq!(repaired.lost.len() as u64, 1 - from_parity);
            let footer = footer::decode(&object(&store, place.pack).await).unwrap();
            let is_listed = footer.iter().any(|entry| entry.name == place.name);
            assert_eq!(is_listed, shape.is_some(), "else the damaged chunk would be a duplicate");
        }
    });
}

#[test]
fn a_store_that_is_away_gives_up_nothing() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted_with(with_parity("4+1"), &env, &store).await;
        let bad = changes[5].1.unwrap();
        damage(&store, bad.pack, &[within(&bad)]).await;
        let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
        store.refuse_reads(true);
        let mut batch = content.batch();
        let error =
            repair(&content, &mut batch, &root, &findings, MayDrop::Damaged).await.unwrap_err();
        assert!(error.kind().is_retryable(), "{error}");
    });
}
