//! Many seeds of each kind of run, and the proof that a seed is one run. `REKINDLE_SEEDS` says how
//! many, `REKINDLE_SEED` repeats one.

use rekindle_sim::scenario::{Outcome, run};
use rekindle_sim::{cluster, files, lives, pair, twin};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of seeds from which all of [`WANTED`] must happen; with fewer, chance may leave something
/// out.
const SEEDS_TELLING: u64 = 2000;
/// Events that the runs exist for: each must happen.
const WANTED: &[&str] = &[
    "rollover",
    "file reuse",
    "log full",
    "flash full",
    "flow delay",
    "late verdict",
    "listing while writing",
    "rescue",
    "compaction",
    "fell back with ack=memory",
    "fell back, and it was told",
    "a client was refused",
    "a start was refused",
    "a write waits, and it is said",
    "disk: EIO",
    "disk: EMFILE",
    "disk: ENFILE",
    "disk: ENOMEM",
    "disk: ENOSPC",
    "disk: misread",
    "torn: prefix",
    "torn: sectors",
    "torn: whole in the page cache",
    "flash: a bit turned",
    "flash: a segment cut",
    "memory: bits turned",
    "memory: cut",
    "memory: swapped",
    "memory: an older one put back",
    "memory: of another node",
    "store: packs absent",
    "store: nodes absent",
    "store: vaults absent",
    "store: late",
    "store: twice",
    "store: silent",
    "store: flipped",
    "store: a record with a wrong bit",
    "told: a damaged record",
    "told: changes are lost",
    "told: damage at a start",
    "told: foreign memory",
    "map: told: records are lost",
];
/// Number of seeds from which all of [`MAPS_WANTED`] must happen.
const MAPS_TELLING: u64 = 400;
/// Events of the runs that have a map of records.
const MAPS_WANTED: &[&str] = &[
    "map: cut off among unfinished records",
    "map: drained",
    "map: groups",
    "map: keeps its size",
    "snapshots taken",
    "clones made",
    "map: refused by NBD",
    "map: removed",
    "map: restored",
];
/// Percentage of the crashes that must fall among work that is acknowledged and not finished.
const AMID_WORK_PERCENT: u64 = 60;

fn wanted(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs seeds on two threads; every failure names its seed, a panic too.
fn many<T: Default + Send>(
    name: &str,
    seeds: u64,
    one: impl Fn(u64) -> Result<T, String> + Sync + std::panic::RefUnwindSafe,
    add: impl Fn(&mut T, T) + Sync,
) -> T {
    let next = AtomicU64::new(0);
    let worker = || {
        let mut total = T::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return total;
            }
            let found = catch_unwind(|| one(seed)).unwrap_or_else(|panic| {
                println!("{name}={seed} panicked");
                std::panic::resume_unwind(panic)
            });
            add(&mut total, found.unwrap_or_else(|why| panic!("{name}={seed}: {why}")));
        }
    };
    let totals = std::thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        workers.map(|worker| worker.join())
    });
    let mut sum = T::default();
    for total in totals {
        add(&mut sum, total.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    }
    sum
}

#[test]
fn no_promise_is_broken_by_any_crash() {
    if let Some(seed) = wanted("REKINDLE_SEED") {
        println!("{:?}", run(seed).unwrap_or_else(|why| panic!("{why}")));
        return;
    }
    let seeds = wanted("REKINDLE_SEEDS").unwrap_or(500);
    let sum = many("REKINDLE_SEED", seeds, run, |sum: &mut Outcome, one| sum.add(&one));
    let crashes = sum.crashes + sum.power_cuts;
    println!(
        "{seeds} seeds: {} process crashes, {} power cuts, {} of both among unfinished work, {} acknowledged changes, \
         none lost; {:?}",
        sum.crashes, sum.power_cuts, sum.amid_work, sum.acknowledged, sum.counts
    );
    assert!(sum.acknowledged > seeds, "the clients hardly did anything");
    let never = |wanted: &[&'static str]| {
        let never = wanted.iter().filter(|what| !sum.counts.contains_key(*what));
        never.copied().collect::<Vec<_>>()
    };
    if seeds >= MAPS_TELLING {
        let never = never(MAPS_WANTED);
        assert!(never.is_empty(), "never happened: {never:?}; {:?}", sum.counts);
    }
    if seeds >= SEEDS_TELLING {
        assert!(
            sum.amid_work * 100 >= crashes * AMID_WORK_PERCENT,
            "of {crashes} crashes only {} met acknowledged work that was not finished",
            sum.amid_work
        );
        let never = never(WANTED);
        assert!(never.is_empty(), "never happened: {never:?}; {:?}", sum.counts);
    }
}

#[test]
fn a_seed_repeats_itself_exactly() {
    let hashes: Vec<_> = (0..20).map(|seed| run(seed).expect("no promise is broken")).collect();
    for (seed, first) in hashes.iter().enumerate() {
        assert_eq!(*first, run(seed as u64).expect("no promise is broken"), "seed {seed}");
    }
    let mut different: Vec<_> = hashes.iter().map(|outcome| outcome.trace_hash).collect();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 20, "different seeds are different runs");
}

/// Divisor of the wanted seeds for runs of lives of volumes, which take longer than the others.
const LIVES_SHARE: u64 = 20;
/// Number of such runs in which rare events have happened.
const LIVES_TELLING: u64 = 50;

#[test]
fn volumes_live_through_damage_salvage_collector_stop_and_crash() {
    let one = wanted("REKINDLE_LIVES_SEED");
    if let Some(seed) = one {
        println!("{:?}", lives::run(seed).unwrap_or_else(|why| panic!("{why}")));
        return;
    }
    let seeds = wanted("REKINDLE_SEEDS").unwrap_or(500) / LIVES_SHARE;
    let add = |sum: &mut lives::Outcome, one: lives::Outcome| sum.add(&one);
    let sum = many("REKINDLE_LIVES_SEED", seeds, lives::run, add);
    println!("{seeds} lives of volumes: {sum:?}");
    let dull =
        [sum.crashes, sum.stops, sum.damages, sum.salvages, sum.collected, sum.refused_reads];
    assert!(
        dull.iter().all(|&count| count > seeds / 20),
        "something hardly ever happened: {sum:?}"
    );
    assert!(sum.sound > 0 && (sum.unsound > 0 || seeds < LIVES_TELLING), "verify: {sum:?}");
    assert!(sum.fallbacks > 0 || seeds < LIVES_TELLING, "no salvage went back to a root: {sum:?}");
}

#[test]
fn a_seed_of_lives_repeats_itself_exactly() {
    for seed in 0..5 {
        let first = lives::run(seed).expect("no promise is broken");
        assert_eq!(first, lives::run(seed).expect("no promise is broken"), "seed {seed}");
    }
}

/// Divisor of the wanted seeds for runs of two nodes.
const PAIR_SHARE: u64 = 40;
/// Number of such runs in which their events must have happened.
const PAIR_TELLING: u64 = 200;
const PAIR_WANTED: &[&str] = &[
    "a pack of both",
    "another's volume refused",
    "compaction",
    "deleted",
    "drained",
    "made anew",
    "reaped",
    "removed",
    "rescue",
    "stale lists",
    "sweep refused",
];

#[test]
fn two_nodes_on_one_store_take_nothing_from_each_other() {
    check_runs("REKINDLE_PAIR_SEED", PAIR_SHARE, pair::run, (PAIR_TELLING, PAIR_WANTED));
}

/// Divisor of the wanted seeds for runs of a copied folder.
const TWIN_SHARE: u64 = 40;
const TWIN_WANTED: &[&str] = &[
    "acknowledged beside the newer life",
    "deleted",
    "fenced: by a look",
    "fenced: by a vault",
    "fenced: told",
    "stale lists",
    "taken back",
    "the newer life goes on from less",
];

#[test]
fn of_two_copies_of_a_node_the_newer_is_right_and_the_older_is_fenced() {
    check_runs("REKINDLE_TWIN_SEED", TWIN_SHARE, twin::run, (PAIR_TELLING, TWIN_WANTED));
}

/// Divisor of the wanted seeds for runs of clusters.
const CLUSTER_SHARE: u64 = 10;
const CLUSTER_WANTED: &[&str] = &[
    "cluster: a host goes on as a new node",
    "cluster: a host ends with its flash",
    "cluster: a host is lost for good",
    "cluster: a volume followed its clients",
    "cluster: a volume has moved",
    "cluster: a volume has other settings",
    "cluster: a volume without copies is refused",
    "cluster: taken over",
    "fenced: told",
];

#[test]
fn a_cluster_is_linearizable_and_loses_nothing() {
    check_runs(
        "REKINDLE_CLUSTER_SEED",
        CLUSTER_SHARE,
        cluster::run,
        (PAIR_TELLING, CLUSTER_WANTED),
    );
}

#[test]
fn a_seed_of_a_cluster_repeats_itself_exactly() {
    for seed in 0..5 {
        let first = cluster::run(seed).expect("no promise is broken");
        assert_eq!(first, cluster::run(seed).expect("no promise is broken"), "seed {seed}");
    }
}

/// Divisor of the wanted seeds for runs of file volumes.
const FILES_SHARE: u64 = 40;
const FILES_WANTED: &[&str] = &[
    "deleted",
    "files: a call without an answer",
    "files: a rollback without an answer",
    "files: clones compared",
    "files: drained",
    "files: rolled back",
    "files: snapshots compared",
    "files: snapshots taken",
    "files: what was not synced is lost",
];

#[test]
fn a_file_volume_shows_a_state_that_was_and_all_that_was_synced() {
    check_runs("REKINDLE_FILES_SEED", FILES_SHARE, files::run, (PAIR_TELLING, FILES_WANTED));
}

#[test]
fn a_seed_of_files_repeats_itself_exactly() {
    for seed in 0..5 {
        let first = files::run(seed).expect("no promise is broken");
        assert_eq!(first, files::run(seed).expect("no promise is broken"), "seed {seed}");
    }
}

/// Divisor of the wanted seeds for runs of clusters with a file volume.
const CLUSTER_FILES_SHARE: u64 = 80;
const CLUSTER_FILES_WANTED: &[&str] = &[
    "cluster: a volume has moved",
    "cluster: taken over",
    "files: a turn is taken away",
    "files: another service",
    "files: what was not synced is lost",
];

#[test]
fn a_file_volume_of_a_cluster_shows_a_state_that_was_and_all_that_was_synced() {
    check_runs(
        "REKINDLE_CLUSTER_FILES_SEED",
        CLUSTER_FILES_SHARE,
        cluster::run_with_files,
        (PAIR_TELLING, CLUSTER_FILES_WANTED),
    );
}

/// Runs one seed if it is given, else many; their events must have happened.
fn check_runs(
    name: &str,
    share: u64,
    run: fn(u64) -> Result<Outcome, String>,
    (telling, wanted_counts): (u64, &[&str]),
) {
    if let Some(seed) = wanted(name) {
        println!("{:?}", run(seed).unwrap_or_else(|why| panic!("{why}")));
        return;
    }
    let seeds = wanted("REKINDLE_SEEDS").unwrap_or(500) / share;
    let sum = many(name, seeds, run, |sum: &mut Outcome, one| sum.add(&one));
    println!("{name}, {seeds} seeds: {sum:?}");
    if seeds >= telling {
        assert!(sum.acknowledged > seeds, "the clients hardly did anything");
        assert!(sum.amid_work > seeds / 4, "hardly a crash among unfinished work: {sum:?}");
        let never: Vec<_> =
            wanted_counts.iter().filter(|what| !sum.counts.contains_key(*what)).collect();
        assert!(never.is_empty(), "never happened: {never:?}; {:?}", sum.counts);
    }
}
