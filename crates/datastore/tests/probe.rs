//! The probe of a store that is too busy for some of its requests: it finds out all the same, and
//! accuses no store that keeps its promises.

use bytes::Bytes;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::{self, fault::Plan};
use rekindle_datastore::{Datastore, Error, Listed, Store, Version, probe};
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Env};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A store that is far away, and too busy for some requests.
struct Busy {
    env: Env,
    inner: Store,
    /// Count of the requests.
    asked: AtomicUsize,
    /// The requests that are refused, by their number.
    refuses: Range<usize>,
    /// Whether these are carried out all the same.
    carries_out: bool,
}

impl Busy {
    fn ask<'a, T: 'a>(
        &'a self,
        work: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            self.env.sleep(Duration::from_millis(10)).await;
            if !self.refuses.contains(&number) {
                return work.await;
            }
            if self.carries_out {
                let _ = work.await;
            }
            Err(Error::Unavailable("SlowDown: Slow down. (HTTP 503)".to_owned()))
        })
    }
}

impl Datastore for Busy {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        self.ask(self.inner.put(key, data))
    }
    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        self.ask(self.inner.create(key, data))
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        self.ask(self.inner.replace(key, data, version))
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        self.ask(self.inner.get(key))
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        self.ask(self.inner.get_range(key, range))
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        self.ask(self.inner.list(prefix, after))
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        self.ask(self.inner.delete(key))
    }
    fn describe(&self) -> String {
        "busy:".to_owned()
    }
}

/// Probes a store that refuses these requests. Returns how many requests there were.
fn passes(refuses: Range<usize>, carries_out: bool) -> usize {
    let world = World::new(1, Faults::none());
    let env = world.env();
    let asked = AtomicUsize::new(0);
    let shown = refuses.clone();
    let busy =
        Arc::new(Busy { env: env.clone(), inner: Mem::store(), asked, refuses, carries_out });
    let store = layer::usual(&env, busy.clone(), Plan::default()).store;
    let probed = world.block_on(probe(&env, &store));
    probed.unwrap_or_else(|error| panic!("requests {shown:?}, carried out {carries_out}: {error}"));
    busy.asked.load(Ordering::Relaxed)
}

#[test]
fn a_probe_survives_a_store_that_is_too_busy_for_any_of_its_requests() {
    let requests = passes(0..0, false);
    assert!(requests > 15, "{requests}");
    // One of them, as many as a race has, one more, and more than any moment has.
    for span in [1, 6, 7, 12] {
        for first in 0..requests {
            for carries_out in [false, true] {
                passes(first..first + span, carries_out);
            }
        }
    }
}
