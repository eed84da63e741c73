//! What happens to calls on their way: stackable, one duty each.

pub mod fault;
pub mod marks;
pub mod meter;
pub mod retry;

use crate::Store;
use crate::backoff::Policy;
use env::Env;

/// A store with the usual layers: the meter sees what callers see, retries lie beneath it, then the markers of folders,
/// then faults.
#[must_use]
pub fn usual(env: &Env, store: Store, faults: fault::Plan) -> (Store, meter::Meter, fault::Handle) {
    let (store, handle) = fault::wrap(env, store, faults);
    let store = marks::wrap(env, store);
    let store = retry::wrap(env, store, Policy::CALLS);
    let (store, meter) = meter::wrap(env, store);
    (store, meter, handle)
}
