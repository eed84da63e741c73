//! Writes whose outcome is open. Packs that they lead to are left alone until no write can be on
//! its way; a write that lands later is checked for packs that are missing.

use super::nodes::start;
use super::*;
use crate::landed::is_whole;
use crate::sweep::condemned::{Condemned, CondemnedState};
use rekindle_base::Incarnation;

/// A sweeper as the product has it, which leaves young packs alone.
fn careful(env: &Env, content: &Content, vaults: &Arc<Vaults>) -> Sweeper {
    let sweeper = sweeper(env, content, vaults, true);
    let options = Options { young: Duration::from_secs(600), ..sweeper.options };
    sweeper.with_options(options)
}

/// Writes a volume's root, whose vault is still on its way when this returns.
async fn flushed(content: &Content, seeds: std::ops::Range<u64>) -> (Batch, Root) {
    let mut batch = content.batch();
    let mut changes = Vec::new();
    for seed in seeds {
        changes.push((seed, Some(batch.write(Class::Data, bytes_of(seed), &[]).await.unwrap())));
    }
    let root = tree::update(content, &mut batch, &None, &changes).await.unwrap();
    batch.flush().await.unwrap();
    (batch, root)
}

fn in_a_world(test: impl AsyncFnOnce(Env, Store)) {
    let world = World::new(1, Faults::none());
    world.block_on(test(world.env(), Mem::store()));
}

#[test]
fn what_an_earlier_life_has_just_written_is_left_alone() {
    in_a_world(async |env, store| {
        let vaults = Arc::new(Vaults::default());
        let content = Content::open(env.clone(), store.clone(), small());
        let (batch, root) = flushed(&content, 0..20).await;
        drop((batch, content));
        // The next life sweeps at once; then the commit lands.
        let content = Content::open(env.clone(), store.clone(), small());
        let sweeper = careful(&env, &content, &vaults);
        assert_eq!(sweeper.run().await.unwrap().packs_condemned, 0);
        let model = (0..20).map(|seed| (seed, seed)).collect();
        vaults.put(&content, 0, (root, model));
        check(&env, &store, &vaults).await;
        // When no commit can be on its way any more, the packs go.
        vaults.volumes.lock().clear();
        env.sleep(Duration::from_secs(601)).await;
        assert!(sweeper.run().await.unwrap().packs_deleted > 0);
    });
}

#[test]
fn of_its_own_packs_a_life_leaves_those_alone_of_which_it_does_not_know_what_became() {
    in_a_world(async |env, store| {
        let vaults = Arc::new(Vaults::default());
        let content = Content::open(env.clone(), store.clone(), small());
        let (open, _) = flushed(&content, 0..5).await;
        drop(open);
        let unknown = packs_of(&content).await.unwrap().len() as u64;
        let (known, _) = flushed(&content, 20..25).await;
        known.committed();
        let all = packs_of(&content).await.unwrap().len() as u64;
        let status = careful(&env, &content, &vaults).run().await.unwrap();
        assert_eq!(status.packs_deleted, all - unknown, "{status:?}");
    });
}

#[test]
fn a_shared_pack_is_left_alone_until_the_outcome_of_all_its_batches_is_known() {
    in_a_world(async |env, store| {
        let vaults = Arc::new(Vaults::default());
        let content = Content::open(env.clone(), store.clone(), small());
        let sweeper = careful(&env, &content, &vaults);
        let (mut known, mut open) = (content.batch(), content.batch());
        let one = known.write(Class::Data, random(1, 500), &[]).await.unwrap();
        let other = open.write(Class::Data, random(2, 2500), &[]).await.unwrap();
        assert_eq!(one.pack, other.pack);
        known.flush().await.unwrap();
        known.committed();
        assert_eq!(sweeper.run().await.unwrap().packs_condemned, 0, "a batch in it lives");
        // Its commit may still be on its way.
        open.flush().await.unwrap();
        drop(open);
        assert_eq!(sweeper.run().await.unwrap().packs_condemned, 0);
        env.sleep(Duration::from_secs(601)).await;
        assert_eq!(sweeper.run().await.unwrap().packs_deleted, 1);
    });
}

#[test]
fn a_root_that_landed_late_is_gone_on_from_only_if_all_it_leads_to_is_there_and_stays() {
    in_a_world(async |env, store| {
        let content = Content::open(env.clone(), store.clone(), small());
        let (batch, known) = flushed(&content, 0..300).await;
        batch.committed();
        let mut batch = content.batch();
        let chunk = batch.write(Class::Data, bytes_of(1000), &[]).await.unwrap();
        let changes = [(7, Some(chunk))];
        let root = tree::update(&content, &mut batch, &known, &changes).await.unwrap();
        batch.flush().await.unwrap();
        drop(batch);
        assert!(is_whole(&content, &root, &known).await.unwrap());
        assert!(is_whole(&content, &known, &known).await.unwrap());
        // The chunk is about to be deleted.
        let writer = Writer::new(env.clone(), store.clone(), NodeId([1; 16]));
        let held = condemned::hold(&writer).await.unwrap();
        let packs = vec![chunk.pack];
        let value = Condemned { state: CondemnedState::Condemned, packs, ..Condemned::default() };
        let held = writer.replace(&held, value).await.unwrap();
        assert!(!is_whole(&content, &root, &known).await.unwrap());
        assert!(is_whole(&content, &known, &known).await.unwrap());
        writer.replace(&held, Condemned::default()).await.unwrap();
        assert!(is_whole(&content, &root, &known).await.unwrap());
        // The chunk is gone from the store, and all of it is in the cache.
        store.delete(&pack::key(chunk.pack)).await.unwrap();
        assert!(!is_whole(&content, &root, &known).await.unwrap());
        assert!(is_whole(&content, &known, &root).await.unwrap());
        assert!(is_whole(&content, &None, &root).await.unwrap());
    });
}

#[test]
fn a_sweep_does_not_wait_for_ever_for_what_this_node_had_begun() {
    in_a_world(async |env, store| {
        let vaults = Arc::new(Vaults::default());
        let content = Content::open(env.clone(), store.clone(), small());
        let (batch, _) = flushed(&content, 0..5).await;
        batch.committed();
        let hold = content.hold();
        let sweeper = Arc::new(careful(&env, &content, &vaults));
        let error = sweeper.run().await.unwrap_err().to_string();
        assert!(error.contains("had begun before"), "{error}");
        // A sweep that is stopped does not wait either.
        let (stopping, clock) = (sweeper.clone(), env.clone());
        env.spawn("stop", async move {
            clock.sleep(Duration::from_secs(10)).await;
            assert!(stopping.progress().waits_for.is_some());
            stopping.stop();
        });
        let error = sweeper.run().await.unwrap_err().to_string();
        assert!(error.contains("a user asked"), "{error}");
        drop(hold);
        assert!(sweeper.run().await.unwrap().packs_deleted > 0);
    });
}

#[test]
fn a_node_that_lives_and_ends_what_it_began_is_not_to_be_dismissed() {
    in_a_world(async |env, store| {
        let vaults = Arc::new(Vaults::default());
        let one = start(&env, &store, &vaults, 1, 1).await;
        let two = start(&env, &store, &vaults, 2, 1).await;
        let (batch, _) = flushed(&one.content, 0..5).await;
        batch.committed();
        let _hold = two.content.hold();
        let acking = two.sweeper.clone();
        env.spawn("agree", async move {
            loop {
                let _ = acking.acknowledge().await;
                acking.writer.env.sleep(Duration::from_secs(1)).await;
            }
        });
        let error = one.sweeper.run().await.unwrap_err().to_string();
        assert!(error.contains("lives") && !error.contains("dismiss"), "{error}");
        let error = one.sweeper.dismiss(two.writer.node).await.unwrap_err().to_string();
        assert!(error.contains("lives"), "{error}");
    });
}

#[test]
fn a_start_that_was_dismissed_finds_out_and_does_not_take_it_back() {
    in_a_world(async |env, store| {
        let vaults = Arc::new(Vaults::default());
        let one = start(&env, &store, &vaults, 1, 1).await;
        let two = start(&env, &store, &vaults, 2, 1).await;
        assert!(!is_dismissed(&two.writer).await.unwrap());
        assert_eq!(one.sweeper.dismiss(two.writer.node).await.unwrap(), Incarnation(1));
        // The dismissed start comes back while there is a set to acknowledge.
        let held = condemned::hold(&one.writer).await.unwrap();
        let value = Condemned { state: CondemnedState::Condemned, set: 5, ..Condemned::default() };
        one.writer.replace(&held, value).await.unwrap();
        let error = two.sweeper.acknowledge().await.unwrap_err();
        assert!(matches!(error, Error::Dismissed), "{error}");
        assert!(is_dismissed(&two.writer).await.unwrap(), "the word stands");
        // The next start of the node is not dismissed.
        let two = start(&env, &store, &vaults, 2, 2).await;
        assert!(!is_dismissed(&two.writer).await.unwrap());
        assert!(two.sweeper.acknowledge().await.unwrap());
    });
}
