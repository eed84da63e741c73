//! Layers between the callers and a store: stackable, one duty each.

pub mod fault;
pub mod marks;
pub mod meter;
pub mod retry;

use crate::Store;
use crate::backoff::Policy;
use rekindle_env::Env;

/// Wraps a store in the usual layers. The meter sees what callers see; beneath it lie retries, then
/// the markers of folders, then faults.
#[must_use]
pub fn usual(env: &Env, store: Store, faults: fault::Plan) -> (Store, meter::Meter, fault::Handle) {
    let (store, handle) = fault::wrap(env, store, faults);
    let store = marks::wrap(env, store);
    let store = retry::wrap(env, store, Policy::CALLS);
    let (store, meter) = meter::wrap(env, store);
    (store, meter, handle)
}
