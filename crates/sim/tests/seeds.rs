//! Many seeds, and that a seed is one run. `REKINDLE_SEEDS` says how many, `REKINDLE_SEED` repeats one.

use rekindle_sim::lives;
use rekindle_sim::scenario::{Outcome, run};
use std::sync::atomic::{AtomicU64, Ordering};

fn wanted(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_promise_is_broken_by_any_crash() {
    if let Some(seed) = wanted("REKINDLE_SEED") {
        println!("{:?}", run(seed).unwrap_or_else(|why| panic!("{why}")));
        return;
    }
    let seeds = wanted("REKINDLE_SEEDS").unwrap_or(500);
    let next = AtomicU64::new(0);
    let totals = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut total = Outcome::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds {
                            return total;
                        }
                        let outcome =
                            run(seed).unwrap_or_else(|why| panic!("REKINDLE_SEED={seed}: {why}"));
                        total.crashes += outcome.crashes;
                        total.power_cuts += outcome.power_cuts;
                        total.acknowledged += outcome.acknowledged;
                    }
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join()).collect::<Vec<_>>()
    });
    let mut sum = Outcome::default();
    for total in totals {
        let total = total.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sum.crashes += total.crashes;
        sum.power_cuts += total.power_cuts;
        sum.acknowledged += total.acknowledged;
    }
    println!(
        "{seeds} seeds: {} process crashes, {} power cuts, {} acknowledged changes, none lost",
        sum.crashes, sum.power_cuts, sum.acknowledged
    );
    assert!(sum.acknowledged > seeds, "the clients hardly did anything");
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

/// Of the seeds that are wanted one in so many is a run of lives of volumes, which takes longer than the others.
const LIVES_SHARE: u64 = 20;

#[test]
fn volumes_live_through_damage_salvage_collector_stop_and_crash() {
    let one = wanted("REKINDLE_LIVES_SEED");
    if let Some(seed) = one {
        println!("{:?}", lives::run(seed).unwrap_or_else(|why| panic!("{why}")));
        return;
    }
    let seeds = wanted("REKINDLE_SEEDS").unwrap_or(500) / LIVES_SHARE;
    let mut sum = lives::Outcome::default();
    for seed in 0..seeds {
        let found = std::panic::catch_unwind(|| lives::run(seed));
        let outcome = match found {
            Ok(outcome) => {
                outcome.unwrap_or_else(|why| panic!("REKINDLE_LIVES_SEED={seed}: {why}"))
            }
            Err(panic) => {
                println!("REKINDLE_LIVES_SEED={seed} panicked");
                std::panic::resume_unwind(panic);
            }
        };
        sum.crashes += outcome.crashes;
        sum.stops += outcome.stops;
        sum.acknowledged += outcome.acknowledged;
        sum.damages += outcome.damages;
        sum.salvages += outcome.salvages;
        sum.collected += outcome.collected;
        sum.refused_reads += outcome.refused_reads;
    }
    println!("{seeds} lives of volumes: {sum:?}");
    let dull =
        [sum.crashes, sum.stops, sum.damages, sum.salvages, sum.collected, sum.refused_reads];
    assert!(
        dull.iter().all(|&count| count > seeds / 20),
        "something hardly ever happened: {sum:?}"
    );
}

#[test]
fn a_seed_of_lives_repeats_itself_exactly() {
    for seed in 0..5 {
        let first = lives::run(seed).expect("no promise is broken");
        assert_eq!(first, lives::run(seed).expect("no promise is broken"), "seed {seed}");
    }
}
