//! The backend in memory: all rules, with and without latency.

mod conformance;

use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer;
use rekindle_env::sim::{Faults, World};

#[test]
fn memory_keeps_all_rules() {
    let world = World::new(1, Faults::none());
    world.block_on(conformance::run(&world.env(), &Mem::store())).unwrap();
    world.block_on(conformance::markers(&world.env(), &Mem::store())).unwrap();
}

#[test]
fn slow_memory_keeps_them_too() {
    let world = World::new(2, Faults::none());
    let store = layer::usual(&world.env(), Mem::store(), "latency=5ms".parse().unwrap()).store;
    world.block_on(conformance::run(&world.env(), &store)).unwrap();
}
