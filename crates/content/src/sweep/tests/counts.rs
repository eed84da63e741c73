//! The counts against a count of everything, after any history, and what keeping them costs.

use super::*;
use crate::sweep::pace::Pace;
use crate::sweep::tally::Tally;
use proptest::prelude::*;
use rekindle_datastore::layer::fault;
use rekindle_datastore::layer::meter::{self, Call, Meter, StorePart};
use rekindle_env::sim::Host;

/// Checks that the counts are those of a count from nothing.
pub(super) async fn recount(sweeper: &Sweeper) {
    let (content, env) = (&sweeper.content, &sweeper.writer.env);
    let mut books = sweeper.books.lock().await;
    let Some(tally) = books.tally(content).await.unwrap() else { return };
    let mut fresh = Tally::in_memory(env, content.store_fingerprint());
    let pace = Pace::new(env, Budget::Unlimited, Arc::default());
    let (roots, notes) = (tally.sources().clone(), tally.notes());
    fresh.update((content, &pace), roots, &notes).await.expect("everything is there");
    assert_eq!(tally.first_difference(&mut fresh).await.expect("all are read"), None);
    assert_eq!(tally.edges(), fresh.edges());
    let mut edges = 0;
    let mut rows = tally.rows().await.expect("all are read");
    while let Some(row) = rows.next().await.expect("all are read") {
        edges += row.edges;
    }
    assert_eq!(edges, tally.edges());
}

/// A step of a history.
#[derive(Debug, Clone)]
enum Act {
    /// A volume changes some keys, from a number on; `None` removes them.
    Write {
        volume: u64,
        from: u64,
        many: u64,
        seed: Option<u64>,
    },
    /// Another volume has the same content from now on, node by node.
    Clone {
        from: u64,
        to: u64,
    },
    Remove {
        volume: u64,
    },
    /// A batch comes to nothing.
    Abandon,
    Sweep {
        compacts: bool,
    },
    /// The process dies in the middle of a sweep, after so many steps.
    Crash {
        after: u64,
    },
    PowerCut {
        after: u64,
    },
    /// What the node has counted is lost.
    Forget,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let write = || {
        (0..4u64, 0..150u64, 1..60u64, proptest::option::weighted(0.6, 0..40u64))
            .prop_map(|(volume, from, many, seed)| Act::Write { volume, from, many, seed })
    };
    let act = prop_oneof![
        6 => write(),
        1 => (0..4u64, 0..4u64).prop_map(|(from, to)| Act::Clone { from, to }),
        1 => (0..4u64).prop_map(|volume| Act::Remove { volume }),
        1 => Just(Act::Abandon),
        4 => any::<bool>().prop_map(|compacts| Act::Sweep { compacts }),
        1 => (0..400u64).prop_map(|after| Act::Crash { after }),
        1 => (0..400u64).prop_map(|after| Act::PowerCut { after }),
        1 => Just(Act::Forget),
    ];
    proptest::collection::vec(act, 1..30)
}

/// A node of a history, in its present life.
struct Life {
    content: Content,
    sweeper: Sweeper,
}

fn live(env: &Env, (store, config): (&Store, &Config), vaults: &Arc<Vaults>, life: u64) -> Life {
    let content = Content::open(env.clone(), store.clone(), config.clone());
    let sweeper = sweeper(env, &content, vaults, true);
    let writer = sweeper.writer.clone().with_incarnation(rekindle_base::Incarnation(life));
    Life { content, sweeper: Sweeper { writer, ..sweeper } }
}

fn play(acts: Vec<Act>, is_bundled: bool) {
    let bundling =
        Config { compression: Compression::Zstd, pack_bytes: 256 << 10, cache_bytes: 0, ..small() };
    let (config, base) = if is_bundled { (bundling, LONG) } else { (small(), 0) };
    let world = World::new(1, Faults::none());
    let host: Host = world.host("node");
    let mut env = host.env();
    let store: Store = Mem::store();
    let vaults = Arc::new(Vaults { stale_percent: 30, ..Vaults::default() });
    let mut number = 1;
    let mut life = live(&env, (&store, &config), &vaults, number);
    for act in acts {
        let Life { content, sweeper } = &mut life;
        match act {
            Act::Write { volume, from, many, seed } => {
                let change = |i: u64| (from + i, seed.map(|seed| base + (seed + i) % 40));
                let changes: Vec<_> = (0..many).map(change).collect();
                world.block_on(commit(&env, content, &vaults, volume, &changes)).unwrap();
            }
            Act::Clone { from, to } => {
                let vault = vaults.volumes.lock().get(&from).cloned();
                if let Some(vault) = vault {
                    vaults.put(content, to, vault);
                }
            }
            Act::Remove { volume } => {
                vaults.write(content, volume);
                vaults.volumes.lock().remove(&volume);
            }
            Act::Abandon => world.block_on(abandon(content)),
            Act::Sweep { compacts } => {
                sweeper.options.compacts = compacts;
                world.block_on(async {
                    sweeper.run().await.unwrap();
                    recount(sweeper).await;
                });
            }
            Act::Crash { after } | Act::PowerCut { after } => {
                let stop = Stop::Step(after);
                let _ = world.block_on_until(stop, async { drop(sweeper.run().await) });
                match act {
                    Act::PowerCut { .. } => host.cut_power(),
                    _ => host.crash_process(),
                }
                number += 1;
                env = host.env();
                life = live(&env, (&store, &config), &vaults, number);
            }
            Act::Forget => {
                world.block_on(async {
                    for (name, _) in env.disk().list(Path::new(FOLDER)).await.unwrap_or_default() {
                        env.disk().remove(&Path::new(FOLDER).join(name)).await.unwrap();
                    }
                });
                host.crash_process();
                number += 1;
                env = host.env();
                life = live(&env, (&store, &config), &vaults, number);
            }
        }
    }
    world.block_on(async {
        for _ in 0..4 {
            life.sweeper.run().await.unwrap();
            recount(&life.sweeper).await;
        }
        check(&env, &store, &vaults).await;
        let status = life.sweeper.run().await.unwrap();
        assert_eq!((status.packs_live, status.packs_deleted), (status.packs_total, 0));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn counts_are_those_of_a_count_from_nothing_after_any_history(acts in acts(), is_bundled in any::<bool>()) {
        play(acts, is_bundled);
    }
}

/// A store with many volumes at rest, and requests counted.
struct Bed {
    meter: Meter,
    content: Content,
    vaults: Arc<Vaults>,
    sweeper: Sweeper,
}

impl Bed {
    async fn start(env: &Env, volumes: u64) -> Self {
        let (store, meter) = meter::wrap(env, Mem::store());
        // All of a commit's metadata comes from the cache of the node that has written it.
        let config = Config { cache_bytes: 64 << 20, pack_bytes: 256 << 10, ..small() };
        let content = Content::open(env.clone(), store, config);
        let vaults = Arc::new(Vaults::default());
        for volume in 0..volumes {
            let changes: Vec<_> = (0..20).map(|key| (key, Some(key * volume))).collect();
            commit(env, &content, &vaults, volume, &changes).await.unwrap();
        }
        let sweeper = sweeper(env, &content, &vaults, true);
        let writer = sweeper.writer.clone().with_incarnation(rekindle_base::Incarnation(1));
        let bed = Self { meter, content, vaults, sweeper: Sweeper { writer, ..sweeper } };
        bed.settle().await;
        bed
    }

    async fn settle(&self) {
        while !self.sweeper.run().await.unwrap().is_unchanged {}
    }

    /// Sweeps; returns the reads of packs, and the status.
    async fn sweep(&self) -> (u64, SweepProgress) {
        let reads = || -> u64 {
            let of = |part| [Call::Get, Call::GetRange].map(|call| self.meter.requests(part, call));
            [StorePart::Data, StorePart::Metadata].map(of).as_flattened().iter().sum()
        };
        let before = reads();
        let status = self.sweeper.run().await.unwrap();
        (reads() - before, status)
    }
}

#[test]
fn a_sweep_after_one_small_change_reads_what_has_changed_and_no_more() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, 300).await;
        assert_eq!(bed.sweep().await.0, 0, "nothing has changed");
        // The root that goes is read too, to take back what it has counted.
        commit(&env, &bed.content, &bed.vaults, 7, &[(3, Some(1234))]).await.unwrap();
        let (reads, status) = bed.sweep().await;
        assert!(reads <= 4 && (1..=4).contains(&status.nodes_read), "{reads}, {status:?}");
        bed.settle().await;
        recount(&bed.sweeper).await;
        // The next process finds the counts, and reads nothing either.
        let vaults = &bed.vaults.clone();
        commit(&env, &bed.content, vaults, 8, &[(3, Some(1235))]).await.unwrap();
        let sweeper = sweeper(&env, &bed.content, vaults, true);
        let bed = Bed { sweeper, ..bed };
        let (reads, status) = bed.sweep().await;
        assert!(reads <= 4 && status.counted_anew.is_none(), "{reads}, {status:?}");
        // Of a large tree, only the way to the change is read.
        let many: Vec<_> = (0..3000).map(|key| (key, Some(key % 50))).collect();
        commit(&env, &bed.content, vaults, 300, &many).await.unwrap();
        bed.settle().await;
        commit(&env, &bed.content, vaults, 300, &[(3, Some(1236))]).await.unwrap();
        let (_, status) = bed.sweep().await;
        assert!((1..=8).contains(&status.nodes_read), "{status:?}");
    });
}

#[test]
fn a_sweep_that_dies_anywhere_leaves_counts_that_the_next_one_believes() {
    let mut after = 0;
    loop {
        let world = World::new(1, Faults::none());
        let host = world.host("node");
        let (env, store, config) = (host.env(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        let Life { content, sweeper } = live(&env, (&store, &config), &vaults, 1);
        world.block_on(async {
            for seed in [0, 100] {
                let changes: Vec<_> = (0..20).map(|key| (key, Some(key + seed))).collect();
                commit(&env, &content, &vaults, 0, &changes).await.unwrap();
                if seed == 0 {
                    sweeper.run().await.unwrap();
                }
            }
        });
        let swept = world.block_on_until(Stop::Step(after), sweeper.run());
        host.crash_process();
        let env = host.env();
        let life = live(&env, (&store, &config), &vaults, 2);
        world.block_on(async {
            let status = life.sweeper.run().await.unwrap();
            assert_eq!(status.counted_anew, None, "after {after} steps: {status:?}");
            recount(&life.sweeper).await;
            check(&env, &store, &vaults).await;
        });
        if let Some(status) = swept {
            assert!(status.unwrap().packs_deleted > 0, "there was something to delete");
            return;
        }
        after += 3;
    }
}

#[test]
fn counts_that_cannot_be_believed_are_made_anew_and_nothing_is_lost() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let store: Store = Mem::store();
        let vaults = Arc::new(Vaults::default());
        let content = Content::open(env.clone(), store.clone(), small());
        let path = async |part: &str| {
            let found = env.disk().list(Path::new(FOLDER)).await.unwrap();
            let (name, _) = found.into_iter().find(|(name, _)| name.starts_with(part)).unwrap();
            Path::new(FOLDER).join(name)
        };
        for (round, part) in ["tally", "counts", "tally", "counts"].into_iter().enumerate() {
            let changes: Vec<_> = (0..30).map(|key| (key, Some(key + round as u64))).collect();
            commit(&env, &content, &vaults, 0, &changes).await.unwrap();
            sweeper(&env, &content, &vaults, true).run().await.unwrap();
            let path = path(part).await;
            let file = env.disk().open(&path, rekindle_env::Open::Write).await.unwrap();
            if round < 2 {
                let length = file.length().await.unwrap();
                let mut byte = [0];
                file.read_at(&mut byte, length / 2).await.unwrap();
                file.write_durable(&[byte[0] ^ 1], length / 2).await.unwrap();
            } else {
                env.disk().remove(&path).await.unwrap();
            }
            commit(&env, &content, &vaults, 1, &changes[..10]).await.unwrap();
            let next = sweeper(&env, &content, &vaults, true);
            let status = next.run().await.unwrap();
            assert!(status.counted_anew.is_some(), "{part}: {status:?}");
            recount(&next).await;
            check(&env, &store, &vaults).await;
        }
        // Counts of another store.
        let other = Config { secret: [8; 32], ..small() };
        let other = Content::open(env.clone(), Mem::store(), other);
        let nothing = Arc::new(Vaults::default());
        let status = sweeper(&env, &other, &nothing, true).run().await.unwrap();
        assert!(status.counted_anew.is_some());
    });
}

#[test]
fn wrong_counts_are_found_by_a_count_of_everything_and_said() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let content = Content::open(env.clone(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        let changes: Vec<_> = (0..30).map(|key| (key, Some(key))).collect();
        commit(&env, &content, &vaults, 0, &changes).await.unwrap();
        let sweeper = sweeper(&env, &content, &vaults, true);
        let options = Options { recount: Duration::from_secs(1000), ..sweeper.options };
        let sweeper = sweeper.with_options(options);
        sweeper.run().await.unwrap();
        env.sleep(Duration::from_secs(1001)).await;
        let status = sweeper.run().await.unwrap();
        assert_eq!(status.miscounted, None);
        assert!(status.nodes_read > 0, "it was counted: {status:?}");
        // A root that was never counted, as by a fault of ours: its chunks would be deleted. And
        // one chunk, among others of its pack that are counted.
        let root = vaults.volumes.lock()[&0].0.unwrap();
        let chunk = tree::get(&content, &Some(root), 3).await.unwrap().unwrap();
        for pointer in [root, chunk] {
            let mut books = sweeper.books.lock().await;
            let tally = books.tally(&content).await.unwrap().unwrap();
            tally.miscount(&content, pointer).await;
            drop(books);
            env.sleep(Duration::from_secs(1001)).await;
            let status = sweeper.run().await.unwrap();
            assert!(status.miscounted.is_some(), "{status:?}");
            check(&env, &content.inner.store, &vaults).await;
            env.sleep(Duration::from_secs(1001)).await;
            assert_eq!(sweeper.run().await.unwrap().miscounted, None);
        }
    });
}

#[test]
fn a_node_whose_disk_is_full_counts_in_ram() {
    let world = World::new(1, Faults::none());
    let host = world.host("full");
    let env = host.env();
    world.block_on(async {
        let store: Store = Mem::store();
        let content = Content::open(env.clone(), store.clone(), small());
        let vaults = Arc::new(Vaults::default());
        let changes: Vec<_> = (0..100).map(|key| (key, Some(key))).collect();
        commit(&env, &content, &vaults, 0, &changes).await.unwrap();
        commit(&env, &content, &vaults, 0, &[(1, Some(500))]).await.unwrap();
        host.set_disk_bytes(1 << 20);
        let sweeper = sweeper(&env, &content, &vaults, true);
        assert!(sweeper.run().await.unwrap().packs_deleted > 0);
        recount(&sweeper).await;
        commit(&env, &content, &vaults, 0, &[(2, Some(501))]).await.unwrap();
        let status = sweeper.run().await.unwrap();
        assert_eq!(status.counted_anew, None, "they are kept in RAM: {status:?}");
        recount(&sweeper).await;
        check(&env, &store, &vaults).await;
    });
}

#[test]
fn a_plan_tells_what_the_sweep_then_does_and_changes_nothing() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, 40).await;
        let nothing = bed.sweeper.plan().await.unwrap();
        assert_eq!((nothing.packs_dead, nothing.packs_sparse, nothing.deletes), (0, 0, 0));
        assert_eq!(nothing.packs_live, nothing.packs_total);
        for volume in (0..40).filter(|volume| volume % 4 > 0) {
            bed.vaults.write(&bed.content, volume);
            bed.vaults.volumes.lock().remove(&volume);
        }
        let changes = || -> u64 {
            let of = [Call::Put, Call::Create, Call::Replace, Call::Delete];
            of.map(|call| bed.meter.read(call).calls).iter().sum()
        };
        let before = changes();
        let plan = bed.sweeper.plan().await.unwrap();
        assert_eq!(changes(), before);
        assert!(plan.packs_dead + plan.packs_sparse > 0 && plan.packs_sparse > 0, "{plan:?}");
        assert!(plan.bytes_copied > 0 && plan.writes > 0 && plan.reads > 0, "{plan:?}");
        let (_, status) = bed.sweep().await;
        assert_eq!(status.packs_deleted, plan.packs_dead + plan.packs_sparse, "{plan:?}");
        assert_eq!(status.packs_compacted, plan.packs_sparse);
        assert_eq!(status.bytes_copied, plan.bytes_copied);
        assert_eq!(status.bytes_freed - status.bytes_copied, plan.bytes_freed);
        check(&env, &bed.content.inner.store, &bed.vaults).await;
    });
}

#[test]
fn a_root_that_lists_do_not_show_yet_is_heard_of_before_anything_is_deleted() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, 3).await;
        let changes: Vec<_> = (0..20).map(|key| (key, Some(1000 + key))).collect();
        commit(&env, &bed.content, &bed.vaults, 7, &changes).await.unwrap();
        bed.settle().await;
        // Another volume takes over all that one has, which goes. The lists show only that.
        let earlier = bed.vaults.volumes.lock()[&1].0;
        bed.vaults.stale.lock().insert(1, earlier);
        let vault = bed.vaults.volumes.lock()[&7].clone();
        bed.vaults.put(&bed.content, 1, vault);
        bed.vaults.write(&bed.content, 7);
        bed.vaults.volumes.lock().remove(&7);
        let (_, status) = bed.sweep().await;
        assert!(status.packs_condemned > 0 && status.packs_rescued > 0, "{status:?}");
        check(&env, &bed.content.inner.store, &bed.vaults).await;
    });
}

#[test]
fn a_pack_whose_compaction_broke_off_is_read_in_its_own_place() {
    let mut after = 0;
    let mut has_broken_off_between = false;
    loop {
        let world = World::new(1, Faults::none());
        let host = world.host("node");
        let (env, store, config) = (host.env(), Mem::store(), small());
        let vaults = Arc::new(Vaults::default());
        // Each request takes a moment, in which the process may die.
        let (slow, _) = fault::wrap(&env, store.clone(), "latency=1ms".parse().expect("a plan"));
        let Life { content, sweeper } = live(&env, (&slow, &config), &vaults, 1);
        world.block_on(async {
            let first: Vec<_> = (0..30).map(|key| (key, Some(key))).collect();
            commit(&env, &content, &vaults, 0, &first).await.unwrap();
            sweeper.run().await.unwrap();
            let most: Vec<_> = (0..30).filter(|key| key % 5 > 0).collect();
            let changes: Vec<_> = most.iter().map(|key| (*key, Some(key + 100))).collect();
            commit(&env, &content, &vaults, 0, &changes).await.unwrap();
        });
        let swept = world.block_on_until(Stop::Step(after), sweeper.run());
        host.crash_process();
        let env = host.env();
        let life = live(&env, (&store, &config), &vaults, 2);
        world.block_on(async {
            let packs = packs_of(&life.content).await.unwrap();
            let notes = crate::sweep::listing::list_notes(&life.content).await.unwrap();
            let is_between = notes.keys().any(|pack| packs.contains_key(pack));
            has_broken_off_between |= is_between;
            for _ in 0..4 {
                let status = life.sweeper.run().await.unwrap();
                assert_eq!(status.counted_anew, None, "after {after} steps: {status:?}");
                recount(&life.sweeper).await;
            }
            check(&env, &store, &vaults).await;
        });
        if swept.is_some() {
            assert!(has_broken_off_between, "no crash came between a note and its pack's removal");
            return;
        }
        after += 2;
    }
}
