//! Tests of the parent module.

mod absent;
mod bundles;
mod copies;
mod parity;

use super::*;
use crate::Config;
use crate::format::footer;
use crate::testing::{Broken, config, random, run};
use crate::tree::{get, range, update};
use rekindle_datastore::Datastore;
use rekindle_env::Env;
use std::sync::Arc;

fn one(keys: Range<u64>) -> Vec<Range<u64>> {
    std::iter::once(keys).collect()
}

/// Damages an object as a disk does: what is read is what is stored.
async fn damage(store: &Arc<Broken>, pack: PackId, places: &[u64]) {
    let (object, _) = store.get(&pack::key(pack)).await.unwrap();
    let mut object = object.to_vec();
    places.iter().for_each(|at| object[usize::try_from(*at).unwrap()] ^= 1);
    store.put(&pack::key(pack), object.into()).await.unwrap();
}

/// A tree of a thousand chunks, with keys 0, 10, 20, ..; the cache of the content is empty.
async fn planted(env: &Env, store: &Arc<Broken>) -> (Content, Root, Vec<(u64, Option<Pointer>)>) {
    planted_with(config(), env, store).await
}

async fn planted_with(
    config: Config,
    env: &Env,
    store: &Arc<Broken>,
) -> (Content, Root, Vec<(u64, Option<Pointer>)>) {
    let content = Content::open(env.clone(), store.clone(), config.clone());
    let mut batch = content.batch();
    let mut changes = Vec::new();
    for key in 0..1000u64 {
        let chunk = batch.write(Class::Data, random(key, 2000), &[]).await.unwrap();
        changes.push((key * 10, Some(chunk)));
    }
    let root = update(&content, &mut batch, &None, &changes).await.unwrap();
    batch.flush().await.unwrap();
    drop(content);
    (Content::open(env.clone(), store.clone(), config), root, changes)
}

/// Salvages with leave to drop everything.
async fn salvage(content: &Content, root: &Root) -> Result<(Repaired, u64), Error> {
    salvage_with(content, root, MayDrop::Everything).await
}

/// Salvages until nothing new turns up; also returns how many packs got new footers.
async fn salvage_with(
    content: &Content,
    root: &Root,
    may_drop: MayDrop,
) -> Result<(Repaired, u64), Error> {
    let mut batch = content.batch();
    let (mut sum, mut footers) = (Repaired { root: *root, ..Repaired::default() }, 0);
    loop {
        let findings = examine(content, &sum.root, &mut |_| ()).await?;
        if findings.is_sound() {
            return Ok((sum, footers));
        }
        let repaired = repair(content, &mut batch, &sum.root, &findings, may_drop).await?;
        let mended = mend_packs(content, &findings).await.0;
        footers += mended;
        let is_last = repaired.root == sum.root && !repaired.again;
        sum.root = repaired.root;
        (sum.kept_absent, sum.kept_damaged) = (repaired.kept_absent, repaired.kept_damaged);
        sum.lost.extend(repaired.lost);
        sum.refetched += repaired.refetched;
        sum.from_parity += repaired.from_parity;
        sum.from_copies += repaired.from_copies;
        sum.lines.extend(repaired.lines);
        if is_last && mended == 0 {
            return Ok((sum, footers));
        }
    }
}

#[test]
fn what_is_sound_is_left_alone() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, _) = planted(&env, &store).await;
        let (repaired, footers) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.root, repaired.lost.len(), footers), (root, 0, 0));
        assert!(repaired.lines.is_empty());
    });
}

#[test]
fn nobody_goes_back_while_a_sweep_is_about_to_delete() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, _) = planted(&env, &store).await;
        let hold = content.hold();
        let examined = async || examine_earlier(&content, &hold, &root, &mut |_| ()).await.unwrap();
        assert!(examined().await.unwrap().is_sound());
        let node = rekindle_base::NodeId([1; 16]);
        let writer = rekindle_datastore::record::Writer::new(env.clone(), store.clone(), node);
        let clear = writer.create(condemned::KEY, condemned::Condemned::default()).await.unwrap();
        assert!(examined().await.is_some());
        let busy = condemned::Condemned { state: CondemnedState::Condemned, ..clear.value.clone() };
        let busy = writer.replace(&clear, busy).await.unwrap();
        assert!(examined().await.is_none());
        writer.replace(&busy, clear.value.clone()).await.unwrap();
        assert!(examined().await.is_some());
    });
}

#[test]
fn exactly_what_is_lost_is_given_up_and_written_again_it_is_whole() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let bad = changes[123].1.unwrap();
        store.flip(&pack::key(bad.pack), u64::from(bad.offset) + 100);
        let (repaired, footers) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.lost, repaired.refetched), (one(1230..1231), 0));
        assert_eq!(footers, 1, "{:?}", repaired.lines);
        assert!(verify(&content, &[repaired.root], &mut |_| ()).await.unwrap().damages.is_empty());
        assert_eq!(range(&content, &repaired.root, 0..u64::MAX).await.unwrap().len(), 999);
        // Another life warms its index up from footers: the damaged chunk is given as no duplicate.
        let content = Content::open(env.clone(), store.clone(), config());
        content.warm_index().await.unwrap();
        let mut batch = content.batch();
        let whole = batch.write(Class::Data, random(123, 2000), &[]).await.unwrap();
        let other = batch.write(Class::Data, random(124, 2000), &[]).await.unwrap();
        batch.flush().await.unwrap();
        assert_ne!((whole.pack, whole.offset), (bad.pack, bad.offset));
        assert_eq!(Some(other), changes[124].1, "its neighbours are");
        assert_eq!(content.read_uncached(&whole, Class::Data).await.unwrap(), random(123, 2000));
    });
}

#[test]
fn the_cache_gives_back_data_and_nodes() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let bad = changes[7].1.unwrap();
        content.read(&bad, Class::Data).await.unwrap();
        get(&content, &root, 70).await.unwrap();
        // Damaged: the root node and one chunk, both in the cache, and below the root another
        // chunk, which is not.
        let lost = changes[8].1.unwrap();
        for hurt in [root.unwrap(), bad, lost] {
            store.flip(&pack::key(hurt.pack), u64::from(hurt.offset) + 60);
        }
        let (repaired, _) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.refetched, repaired.lost), (2, one(80..81)));
        assert!(verify(&content, &[repaired.root], &mut |_| ()).await.unwrap().damages.is_empty());
        let place = get(&content, &repaired.root, 70).await.unwrap().unwrap();
        assert_ne!(place.pack, bad.pack);
        assert_eq!(content.read_uncached(&place, Class::Data).await.unwrap(), random(7, 2000));
    });
}

#[test]
fn what_comes_back_is_kept_and_nothing_is_given_up_before_somebody_says_so() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let cached = changes[7].1.unwrap();
        content.read(&cached, Class::Data).await.unwrap();
        let lost = changes[900].1.unwrap();
        for hurt in [cached, lost] {
            store.flip(&pack::key(hurt.pack), u64::from(hurt.offset) + 60);
        }
        let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
        let mut batch = content.batch();
        let kept = repair(&content, &mut batch, &root, &findings, MayDrop::Nothing).await.unwrap();
        assert_eq!((kept.refetched, kept.absent, kept.lost), (1, 0, Vec::new()));
        assert_eq!(get(&content, &kept.root, 9000).await.unwrap(), Some(lost), "as it was");
        let report = verify(&content, &[kept.root], &mut |_| ()).await.unwrap();
        assert_eq!(report.damages.len(), 1);
        // Packs that are away are told apart, and a root that is away stays the root.
        store.lose(&pack::key(root.unwrap().pack));
        let content = Content::open(env.clone(), store.clone(), config());
        let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
        let mut batch = content.batch();
        let kept = repair(&content, &mut batch, &root, &findings, MayDrop::Nothing).await.unwrap();
        assert_eq!((kept.root, kept.absent), (root, 1));
    });
}

#[test]
fn what_was_overwritten_meanwhile_is_not_lost() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        for bad in [changes[5].1.unwrap(), changes[6].1.unwrap()] {
            store.flip(&pack::key(bad.pack), u64::from(bad.offset) + 100);
        }
        let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
        let mut batch = content.batch();
        let whole = batch.write(Class::Data, random(5555, 2000), &[]).await.unwrap();
        let newer = update(&content, &mut batch, &root, &[(50, Some(whole))]).await.unwrap();
        batch.flush().await.unwrap();
        let repaired =
            repair(&content, &mut batch, &newer, &findings, MayDrop::Damaged).await.unwrap();
        assert_eq!(repaired.lost, one(60..61));
        assert_eq!(get(&content, &repaired.root, 50).await.unwrap(), Some(whole));
    });
}

#[test]
fn a_lost_node_costs_what_is_below_it() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, _) = planted(&env, &store).await;
        let (_, leaves) =
            content.read_with_children(&root.unwrap(), Class::Metadata).await.unwrap();
        let hurt = leaves[1];
        drop(content);
        let content = Content::open(env.clone(), store.clone(), config());
        store.flip(&pack::key(hurt.pack), u64::from(hurt.offset) + 60);
        let (repaired, _) = salvage(&content, &root).await.unwrap();
        assert_eq!(repaired.lost.len(), 1, "{:?}", repaired.lines);
        let left = range(&content, &repaired.root, 0..u64::MAX).await.unwrap();
        assert!(left.iter().all(|(key, _)| !repaired.lost[0].contains(key)));
        let gone = (0..1000).filter(|key| repaired.lost[0].contains(&(key * 10))).count();
        assert!(gone > 0 && gone + left.len() == 1000, "{gone} gone, {} left", left.len());
        // The root itself: everything.
        let root = repaired.root.unwrap();
        let content = Content::open(env.clone(), store.clone(), config());
        store.lose(&pack::key(root.pack));
        let (repaired, _) = salvage(&content, &Some(root)).await.unwrap();
        assert_eq!((repaired.root, repaired.lost), (None, one(0..u64::MAX)));
    });
}

#[test]
fn a_damaged_footer_alone_is_written_anew_and_nothing_is_lost() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let id = changes[123].1.unwrap().pack;
        let key = pack::key(id);
        let (object, _) = store.get(&key).await.unwrap();
        // In the entries, in the lengths, in the checksum, in the magic number. (A version that is
        // higher says that a newer binary has written it, and no check can contradict.)
        let footer = footer::length_from_tail(&object).unwrap();
        for from_end in [footer, footer / 2, 24, 20, 14, 12, 8, 1] {
            let mut damaged = object.to_vec();
            let at = damaged.len() - from_end;
            damaged[at] ^= 0x40;
            store.put(&key, damaged.into()).await.unwrap();
            let report = verify(&content, &[root], &mut |_| ()).await.unwrap();
            assert_eq!(
                (report.damages.len(), &report.footers[..]),
                (0, &[(id, 0)][..]),
                "{from_end}"
            );
            let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
            assert!(!findings.is_sound() && findings.are_chunks_sound());
            let (mended, lines) = mend_packs(&content, &findings).await;
            assert!(mended == 1 && lines[0].contains("new footer"), "{lines:?}");
            assert_eq!(store.get(&key).await.unwrap().0, object, "byte for byte, {from_end}");
        }
        assert!(examine(&content, &root, &mut |_| ()).await.unwrap().is_sound());
    });
}

#[test]
fn warm_memory_gives_back_nodes_that_the_store_has_lost() {
    run(async |env| {
        let world = rekindle_env::sim::World::new(1, rekindle_env::sim::Faults::none());
        let frames =
            rekindle_warm::FramesShape { bytes: 16 << 20, store: rekindle_base::StoreId([2; 16]) };
        let shape = rekindle_warm::Shape { slots: 1, slot_bytes: 16 << 10, frames: Some(frames) };
        let path = std::path::Path::new("/memory/warm");
        let node = rekindle_base::NodeId([1; 16]);
        let arena = rekindle_warm::Arena::open_shaped(&world.env(), path, node, shape).unwrap();
        let frames = arena.frames();
        let store = Arc::new(Broken::new());
        let open = || Content::open_warm(env.clone(), store.clone(), config(), frames.clone());
        let content = open();
        let mut batch = content.batch();
        let chunk = batch.write(Class::Data, random(1, 2000), &[]).await.unwrap();
        let root = update(&content, &mut batch, &None, &[(7, Some(chunk))]).await.unwrap();
        batch.flush().await.unwrap();
        batch.committed();
        drop(content);
        let hurt = root.unwrap();
        store.flip(&pack::key(hurt.pack), u64::from(hurt.offset) + 60);
        // A process that has just begun: its cache is empty.
        let (repaired, _) = salvage(&open(), &root).await.unwrap();
        assert_eq!((repaired.refetched, repaired.lost.len()), (1, 0), "{:?}", repaired.lines);
        assert_eq!(get(&open(), &repaired.root, 7).await.unwrap(), Some(chunk));
    });
}

#[test]
fn a_store_that_is_away_is_no_damage() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, changes) = planted(&env, &store).await;
        let bad = changes[123].1.unwrap();
        store.flip(&pack::key(bad.pack), u64::from(bad.offset) + 100);
        store.refuse_writes(true);
        assert!(salvage(&content, &root).await.is_err());
    });
}
