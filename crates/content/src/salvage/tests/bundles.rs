//! Salvage of packs with bundles.

use super::parity::{object, with_parity};
use super::*;
use crate::testing::{stretch, text};

/// A tree of a hundred chunks in bundles, with keys 0, 10, 20, ..; the cache is empty.
async fn bundled(
    config: Config,
    env: &Env,
    store: &Arc<Broken>,
) -> (Content, Root, Vec<(u64, Pointer)>) {
    let content = Content::open(env.clone(), store.clone(), config.clone());
    let mut batch = content.batch();
    let chunks: Vec<_> = (0..100).map(|seed| text(seed, 8000)).collect();
    let pointers = batch.write_many(&[stretch(&chunks)]).await.unwrap();
    let chunks: Vec<(u64, Pointer)> = (0..1000).step_by(10).zip(pointers).collect();
    assert!(chunks.iter().all(|(_, chunk)| !chunk.part.is_whole()));
    let changes: Vec<_> = chunks.iter().map(|(key, chunk)| (*key, Some(*chunk))).collect();
    let root = update(&content, &mut batch, &None, &changes).await.unwrap();
    batch.flush().await.unwrap();
    drop(content);
    (Content::open(env.clone(), store.clone(), config), root, chunks)
}

fn beside<'a>(
    chunks: &'a [(u64, Pointer)],
    hurt: &'a Pointer,
) -> impl Iterator<Item = &'a (u64, Pointer)> {
    chunks.iter().filter(|(_, chunk)| (chunk.pack, chunk.offset) == (hurt.pack, hurt.offset))
}

#[test]
fn a_damaged_bundle_costs_its_chunks_and_gives_no_duplicates_any_more() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, chunks) = bundled(config(), &env, &store).await;
        let hurt = chunks[40].1;
        // In the lengths, which are before the payload.
        damage(&store, hurt.pack, &[u64::from(hurt.offset) + 30]).await;
        let (repaired, mended) = salvage(&content, &root).await.unwrap();
        let gone: Vec<u64> = beside(&chunks, &hurt).map(|(key, _)| *key).collect();
        assert!(gone.len() > 20, "{gone:?}");
        let lost: Vec<u64> = repaired.lost.iter().flat_map(|keys| keys.clone()).collect();
        assert_eq!((lost, mended), (gone.clone(), 1));
        let left = range(&content, &repaired.root, 0..u64::MAX).await.unwrap();
        assert_eq!(left.len(), 100 - gone.len());
        let footer = footer::decode(&object(&store, hurt.pack).await).unwrap();
        assert!(footer.iter().all(|entry| entry.offset != hurt.offset));
        let here = chunks.iter().filter(|(_, chunk)| chunk.pack == hurt.pack).count();
        assert_eq!(footer.len(), here - gone.len());
        let mut batch = content.batch();
        let seed = gone[3] / 10;
        let anew = batch.write(Class::Data, text(seed, 8000), &[]).await.unwrap();
        assert_eq!(anew.name, chunks[usize::try_from(seed).unwrap()].1.name);
        assert_ne!((anew.pack, anew.offset), (hurt.pack, hurt.offset));
    });
}

#[test]
fn parity_makes_a_bundle_whole_again() {
    run(async |env| {
        for at in [9, 30, 1000, 20_000] {
            let store = Arc::new(Broken::new());
            let (content, root, chunks) = bundled(with_parity("8+2"), &env, &store).await;
            let hurt = chunks[40].1;
            let before = object(&store, hurt.pack).await;
            damage(&store, hurt.pack, &[u64::from(hurt.offset) + at]).await;
            let (repaired, mended) = salvage(&content, &root).await.unwrap();
            let damaged = beside(&chunks, &hurt).count() as u64;
            assert_eq!((repaired.lost, mended), (vec![], 1));
            assert!((1..=damaged).contains(&repaired.from_parity), "{}", repaired.from_parity);
            assert!(before == object(&store, hurt.pack).await, "byte for byte, damage at {at}");
        }
    });
}

#[test]
fn a_lost_footer_is_made_anew_with_all_chunks_of_bundles() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let (content, root, chunks) = bundled(config(), &env, &store).await;
        let pack = chunks[0].1.pack;
        let before = object(&store, pack).await;
        let length = before.len() as u64;
        damage(&store, pack, &[length - 1]).await;
        // Duplicates are found by a scan meanwhile.
        let cold = Content::open(env.clone(), store.clone(), config());
        cold.warm_index().await.unwrap();
        let mut batch = cold.batch();
        assert_eq!(batch.write(Class::Data, text(5, 8000), &[]).await.unwrap(), chunks[5].1);
        let (repaired, mended) = salvage(&content, &root).await.unwrap();
        assert_eq!((repaired.lost, mended), (vec![], 1));
        assert!(before == object(&store, pack).await);
    });
}
