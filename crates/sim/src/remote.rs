//! A store on another machine: what was sent to it happens there, also when whoever sent it is dead by then. That is how a
//! commit of an earlier life lands in a later one.

use bytes::Bytes;
use datastore::{Datastore, Error, Listed, Removal, Store, Version};
use env::{BoxFuture, Env};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long requests are under way.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Usually, at most.
    pub usual: Duration,
    /// Of a hundred writes so many take up to `slow`.
    pub slow_percent: u64,
    pub slow: Duration,
}

struct Remote {
    /// Of the machine that the store runs on.
    env: Env,
    inner: Store,
    pace: Pace,
}

/// The store as another machine has it, whose environment this is.
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

    /// Does it over there.
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
            // Nobody may be there to hear it.
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
