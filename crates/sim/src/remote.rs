//! A store on another machine: a request that was sent is carried out there, even if its sender is
//! dead by then. So a commit of an earlier life lands in a later one.

use bytes::Bytes;
use rekindle_base::random::Random;
use rekindle_datastore::{Datastore, Error, Listed, Removal, Store, Version};
use rekindle_env::{BoxFuture, Env};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Times that requests are under way.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Longest time of most requests.
    pub usual: Duration,
    /// Percentage of the writes that take up to `slow`.
    pub slow_percent: u64,
    pub slow: Duration,
}

impl Pace {
    /// Draws the distance of the store, and the delay of its late writes.
    pub fn draw(dice: &mut Random) -> Self {
        let slow = Duration::from_millis([5, 50, 500][dice.below(3) as usize]);
        let usual = Duration::from_micros([50, 500, 3000][dice.below(3) as usize]);
        Self { usual, slow_percent: [0, 10, 30][dice.below(3) as usize], slow }
    }
}

struct Remote {
    /// Environment of the machine that the store runs on.
    env: Env,
    inner: Store,
    pace: Pace,
}

/// Wraps a store as one on another machine, whose environment is `env`.
#[must_use]
pub fn wrap(env: Env, inner: Store, pace: Pace) -> Store {
    Arc::new(Remote { env, inner, pace })
}

impl Remote {
    fn delay(&self, is_write: bool) -> Duration {
        let is_slow = is_write && self.env.random_u64() % 100 < self.pace.slow_percent;
        let most = if is_slow { self.pace.slow } else { self.pace.usual };
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.env.random_u64() % most)
    }

    /// Carries out a request on the store's machine.
    fn ask<'a, T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        is_write: bool,
        work: impl FnOnce(Store) -> F,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let (teller, told) = oneshot::channel();
        let (env, work) = (self.env.clone(), work(self.inner.clone()));
        let (there, back) = (self.delay(is_write), self.delay(false));
        self.env.spawn("store", async move {
            env.sleep(there).await;
            let result = work.await;
            env.sleep(back).await;
            // The sender may be dead by now.
            let _ = teller.send(result);
        });
        Box::pin(async move {
            let gone = |_| Error::Unavailable("the store's machine has died".to_owned());
            told.await.map_err(gone)?
        })
    }
}

impl Datastore for Remote {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        self.ask(true, |store| async move { store.put(&key, data).await })
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        let key = key.to_owned();
        self.ask(true, |store| async move { store.create(&key, data).await })
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        let (key, version) = (key.to_owned(), version.clone());
        self.ask(true, |store| async move { store.replace(&key, data, &version).await })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        let key = key.to_owned();
        self.ask(false, |store| async move { store.get(&key).await })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        let key = key.to_owned();
        self.ask(false, |store| async move { store.get_range(&key, range).await })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.ask(false, |store| async move { store.list(&prefix, after.as_deref()).await })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        self.ask(true, |store| async move { store.delete(&key).await })
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        let (key, version) = (key.to_owned(), version.clone());
        self.ask(true, |store| async move { store.delete_if(&key, &version).await })
    }

    fn describe(&self) -> String {
        format!("{} on another machine", self.inner.describe())
    }
}
