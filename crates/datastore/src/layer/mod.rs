//! Layers between the callers and a store: stackable, one duty each.

pub mod fault;
pub mod marks;
pub mod meter;
pub mod retry;

use crate::Store;
use crate::backoff::Policy;
use rekindle_env::Env;

/// A store in its layers, and a handle of each that has one.
pub struct Layers {
    pub store: Store,
    pub meter: meter::Meter,
    pub marks: marks::Marks,
    pub faults: fault::Handle,
}

/// Wraps a store in the usual layers. The meter sees what callers see; beneath it lie retries, then
/// the markers of folders, then faults.
#[must_use]
pub fn usual(env: &Env, store: Store, faults: fault::Plan) -> Layers {
    let (store, faults) = fault::wrap(env, store, faults);
    let (store, marks) = marks::wrap(env, store);
    let store = retry::wrap(env, store, Policy::CALLS);
    let (store, meter) = meter::wrap(env, store);
    Layers { store, meter, marks, faults }
}
