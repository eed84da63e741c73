//! Two copies of a chunk have two fates, and a sound one repairs every other.

use super::*;
use crate::Missing;
use crate::format::moved::{self as note, Moved};
use proptest::prelude::*;

/// Writes the same bytes once more, into a pack of their own.
async fn another(content: &Content, seed: u64) -> Pointer {
    let mut batch = content.batch();
    batch.set_anew();
    let pointer = batch.write(Class::Data, random(seed, 2000), &[]).await.unwrap();
    batch.flush().await.unwrap();
    pointer
}

async fn tree_of(content: &Content, places: &[(u64, Pointer)]) -> Root {
    let mut batch = content.batch();
    let changes: Vec<_> = places.iter().map(|(key, place)| (*key, Some(*place))).collect();
    let root = update(content, &mut batch, &None, &changes).await.unwrap();
    batch.flush().await.unwrap();
    root
}

#[test]
fn a_sound_copy_keeps_its_key_and_repairs_the_other_whichever_is_hurt() {
    run(async |env| {
        for hurt in 0..2 {
            let store = Arc::new(Broken::new());
            let content = Content::open(env.clone(), store.clone(), config());
            let places = [another(&content, 1).await, another(&content, 1).await];
            assert!(places[0].name == places[1].name && places[0].pack != places[1].pack);
            let root = tree_of(&content, &[(10, places[0]), (20, places[1])]).await;
            let content = Content::open(env.clone(), store.clone(), config());
            let bad = places[hurt];
            damage(&store, bad.pack, &[u64::from(bad.offset) + 100]).await;
            let report = verify(&content, &[root], &mut |_| ()).await.unwrap();
            let found: Vec<_> = report.damages.iter().map(|damage| damage.pointer).collect();
            assert_eq!(found, [bad], "each copy is looked at, and no more is damaged");
            let (repaired, _) = salvage_with(&content, &root, MayDrop::Damaged).await.unwrap();
            assert_eq!((repaired.lost.len(), repaired.from_copies), (0, 1));
            for key in [10, 20] {
                let place = get(&content, &repaired.root, key).await.unwrap().unwrap();
                assert_ne!(place, bad);
                let read = content.read_uncached(&place, Class::Data).await.unwrap();
                assert_eq!(read, random(1, 2000));
            }
        }
    });
}

#[test]
fn damage_of_one_copy_is_no_news_of_another_to_those_who_read_both() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let content = Content::open(env.clone(), store.clone(), config());
        let (bad, good) = (another(&content, 1).await, another(&content, 1).await);
        store.flip(&pack::key(bad.pack), u64::from(bad.offset) + 100);
        let cold = Content::open(env.clone(), store.clone(), config());
        let (one, other) = futures_util::join!(
            cold.read_uncached(&bad, Class::Data),
            cold.read_uncached(&good, Class::Data)
        );
        assert_eq!(one.unwrap_err().missing(), Some(Missing::Damaged));
        assert_eq!(other.unwrap(), random(1, 2000));
        let both = cold.read_many(&[good, good], Class::Data, false).await.unwrap();
        assert_eq!(both.len(), 2);
        // A node that knows the other copy is served by it.
        cold.warm_index().await.unwrap();
        if cold.inner.index.lookup_recent(&bad.name) == Some(good) {
            assert_eq!(cold.read_uncached(&bad, Class::Data).await.unwrap(), random(1, 2000));
        }
    });
}

#[test]
fn a_void_note_leads_no_reader_and_no_node_astray() {
    run(async |env| {
        let store = Arc::new(Broken::new());
        let content = Content::open(env.clone(), store.clone(), config());
        let places: Vec<Pointer> = [another(&content, 1).await, another(&content, 2).await].into();
        let root = tree_of(&content, &[(10, places[0]), (20, places[1])]).await;
        let content = Content::open(env.clone(), store.clone(), config());
        // A compaction that came to nothing has left a note: the copies that it names never became
        // durable.
        let nowhere = Pointer { pack: PackId([8; 16]), ..places[0] };
        let void = Moved { pack: places[0].pack, entries: vec![(places[0].spot(), nowhere)] };
        let key = crate::moved::key(places[0].pack);
        store.put(&key, note::encode(&void).into()).await.unwrap();
        content.inner.moved.note(&content.inner.store, places[0].pack).await.unwrap().unwrap();
        let mut batch = content.batch();
        let newer = update(&content, &mut batch, &root, &[(30, Some(places[1]))]).await.unwrap();
        batch.flush().await.unwrap();
        assert_eq!(get(&content, &newer, 10).await.unwrap(), Some(places[0]));
        assert_eq!(content.read_uncached(&places[0], Class::Data).await.unwrap(), random(1, 2000));
        assert!(examine(&content, &newer, &mut |_| ()).await.unwrap().is_sound());
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyState {
    Sound,
    Damaged,
    Absent,
}

fn state() -> impl Strategy<Value = CopyState> {
    prop_oneof![2 => Just(CopyState::Sound), 2 => Just(CopyState::Damaged), 1 => Just(CopyState::Absent)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Chunks with one to three copies, each in its own condition and each under its own key.
    #[test]
    fn exactly_what_no_copy_has_is_missing_and_only_damage_is_lost(
        chunks in proptest::collection::vec(proptest::collection::vec(state(), 1..4), 1..12),
        may_drop in prop_oneof![
            Just(MayDrop::Nothing), Just(MayDrop::Damaged), Just(MayDrop::Everything)
        ],
    ) {
        run(async move |env| {
            let store = Arc::new(Broken::new());
            let content = Content::open(env.clone(), store.clone(), config());
            let mut places = Vec::new();
            for (seed, copies) in chunks.iter().enumerate() {
                for copy in 0..copies.len() {
                    let place = another(&content, seed as u64).await;
                    places.push(((seed * 10 + copy) as u64, place));
                }
            }
            let root = tree_of(&content, &places).await;
            let content = Content::open(env.clone(), store.clone(), config());
            let states: Vec<CopyState> = chunks.iter().flatten().copied().collect();
            for ((_, place), state) in places.iter().zip(&states) {
                let key = pack::key(place.pack);
                match state {
                    CopyState::Sound => {}
                    CopyState::Damaged => {
                        damage(&store, place.pack, &[u64::from(place.offset) + 100]).await;
                    }
                    CopyState::Absent => store.lose(&key),
                }
            }
            let findings = examine(&content, &root, &mut |_| ()).await.unwrap();
            let count = |state| states.iter().filter(|found| **found == state).count();
            assert_eq!(findings.absent(), count(CopyState::Absent) as u64);
            assert_eq!(findings.damages().len(), states.len() - count(CopyState::Sound));
            let (repaired, _) = salvage_with(&content, &root, may_drop).await.unwrap();
            let (mut lost, mut absent, mut hurt) = (Vec::new(), Vec::new(), Vec::new());
            for ((key, _), state) in places.iter().zip(&states) {
                let copies = &chunks[usize::try_from(key / 10).unwrap()];
                let keys = *key..key + 1;
                if copies.contains(&CopyState::Sound) {
                    let place = get(&content, &repaired.root, *key).await.unwrap().unwrap();
                    let read = content.read_uncached(&place, Class::Data).await.unwrap();
                    assert_eq!(read, random(key / 10, 2000));
                } else if *state == CopyState::Damaged && may_drop >= MayDrop::Damaged
                    || may_drop == MayDrop::Everything
                {
                    lost.push(keys);
                } else if *state == CopyState::Damaged {
                    hurt.push(keys);
                } else {
                    absent.push(keys);
                }
            }
            assert_eq!(repaired.lost, joined(lost));
            assert_eq!(repaired.kept_absent, joined(absent));
            assert_eq!(repaired.kept_damaged, joined(hurt));

        });
    }
}
