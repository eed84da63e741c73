//! Retries of all calls that are safe to repeat: everything but conditional writes, whose outcome
//! [`crate::record`] judges.

use crate::backoff::{Backoff, Policy};
use crate::{Datastore, Error, Got, Listed, Removal, Room, Store, Version};
use bytes::Bytes;
use rekindle_env::{BoxFuture, Env};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

struct Retry {
    env: Env,
    inner: Store,
    policy: Policy,
}

/// Wraps a store so that its calls are tried again while it is unavailable, within the policy.
#[must_use]
pub fn wrap(env: &Env, inner: Store, policy: Policy) -> Store {
    Arc::new(Retry { env: env.clone(), inner, policy })
}

impl Retry {
    async fn again<T, F: Future<Output = Result<T, Error>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Error> {
        let mut backoff = Backoff::new(&self.env, self.policy);
        loop {
            match attempt().await {
                Err(Error::Unavailable(reason)) => {
                    tracing::debug!(%reason, "the store did not answer, trying again");
                    if !backoff.pause().await {
                        return Err(Error::Unavailable(reason));
                    }
                }
                settled => return settled,
            }
        }
    }
}

impl Datastore for Retry {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.again(|| self.inner.put(key, data.clone())).await })
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        self.inner.create(key, data)
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        self.inner.replace(key, data, version)
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(self.again(move || self.inner.get(key)))
    }

    fn get_together<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Vec<Got>> {
        Box::pin(async move {
            let mut found = self.inner.get_together(keys).await;
            // From the first that stays unavailable on, the store is away.
            for (key, got) in keys.iter().zip(&mut found) {
                if matches!(got, Err(Error::Unavailable(_))) {
                    *got = self.get(key).await;
                    if matches!(got, Err(Error::Unavailable(_))) {
                        break;
                    }
                }
            }
            found
        })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(self.again(move || self.inner.get_range(key, range.clone())))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(self.again(move || self.inner.list(prefix, after)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.again(move || self.inner.delete(key)))
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        self.inner.delete_if(key, version)
    }

    fn room(&self) -> BoxFuture<'_, Result<Room, Error>> {
        self.inner.room()
    }

    fn may_be_covered(&self) -> bool {
        self.inner.may_be_covered()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
