//! A small race that a store must pass before it is trusted with data. Some stores answer every
//! request properly and still let two writers win.

use crate::backoff::{Backoff, Policy};
use crate::{Error, Store, Version, key};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use rekindle_env::Env;

/// Writers in each race.
const WRITERS: u8 = 6;

/// Tries the promises of [`crate::Datastore`] under `probe/`, and cleans up.
///
/// [`Error::Refused`] names the promise that the store breaks; any other error means that the probe
/// could not find out. Its conditional writes are not repeated one by one, since each is part of a
/// race: a probe in which the store did not answer one begins anew.
pub async fn probe(env: &Env, store: &Store) -> Result<(), Error> {
    let mut backoff = Backoff::new(env, Policy::RECORDS);
    loop {
        match probe_once(env, store).await {
            Err(Error::Unavailable(reason)) => {
                tracing::debug!(%reason, "the store did not answer a probe, trying again");
                if !backoff.pause().await {
                    return Err(Error::Unavailable(reason));
                }
            }
            settled => return settled,
        }
    }
}

async fn probe_once(env: &Env, store: &Store) -> Result<(), Error> {
    let folder = format!("{}{:016x}/", key::PROBE, env.random_u64());
    let raced = format!("{folder}raced");
    let plain = format!("{folder}plain");
    let (created, written) =
        join(create_race(store, &raced), plain_objects(store, &folder, &plain)).await;
    let replaced = async {
        match created {
            Ok(stale) => replace_race(store, &raced, &stale).await,
            Err(error) => Err(error),
        }
    };
    let (replaced, gone) = join(replaced, removal(store, &plain)).await;
    let cleaned = store.delete(&raced).await;
    replaced.and(written).and(gone).and(cleaned)
}

/// Checks that a deleted object cannot be read.
async fn removal(store: &Store, key: &str) -> Result<(), Error> {
    store.delete(key).await?;
    match store.get(key).await {
        Err(Error::NotFound(_)) => Ok(()),
        Ok(_) => Err(broken(store, "an object that was deleted can still be read")),
        Err(error) => Err(error),
    }
}

/// Lets several writers create the same object: one may win, and its content must lie there.
async fn create_race(store: &Store, key: &str) -> Result<Version, Error> {
    let attempts = join_all((0..WRITERS).map(|writer| store.create(key, body(writer)))).await;
    let taken = |error: &Error| matches!(error, Error::Exists(_));
    let (data, version) = judge(store, key, &attempts, taken, "create", "If-None-Match").await?;
    if data.len() != body(0).len() {
        return Err(broken(store, "an object is not as long as it was written"));
    }
    Ok(version)
}

/// Lets several writers replace the same version, and then one more replace the outdated version.
async fn replace_race(store: &Store, key: &str, version: &Version) -> Result<(), Error> {
    let attempts =
        join_all((0..WRITERS).map(|writer| store.replace(key, body(writer + WRITERS), version)))
            .await;
    let taken = |error: &Error| matches!(error, Error::Conflict(_));
    let (judged, late) = join(
        judge(store, key, &attempts, taken, "replace", "If-Match"),
        store.replace(key, body(u8::MAX), version),
    )
    .await;
    match late {
        Err(Error::Conflict(_)) => judged.map(drop),
        // No other writer may have come before it: the store was too busy for all of them.
        Ok(_) if attempts.iter().all(Result::is_err) => judged.and_then(|_| {
            Err(Error::Unavailable("no conditional replace was answered".to_owned()))
        }),
        Ok(_) => Err(broken(
            store,
            "an object could be replaced by a writer that knew an older version only",
        )),
        Err(error) => judged.and(Err(error)),
    }
}

/// Checks that there is one winner, and that the content is the winner's, or that of a writer whose
/// answer was lost.
async fn judge(
    store: &Store,
    key: &str,
    attempts: &[Result<Version, Error>],
    taken: impl Fn(&Error) -> bool,
    what: &str,
    header: &str,
) -> Result<(Bytes, Version), Error> {
    let in_doubt = attempts.iter().any(|attempt| matches!(attempt, Err(Error::Unavailable(_))));
    let (data, version) = match store.get(key).await {
        Err(Error::NotFound(_)) if in_doubt => {
            return Err(Error::Unavailable(format!("no conditional {what} was answered")));
        }
        got => got?,
    };
    let winners = attempts.iter().filter(|attempt| attempt.is_ok()).count();
    if winners > 1 {
        return Err(broken(
            store,
            &format!(
                "{winners} of {WRITERS} were told that their conditional {what} won ({header})"
            ),
        ));
    }
    for attempt in attempts {
        match attempt {
            // A server may also answer such a race with "try again", which is no answer.
            Ok(_) | Err(Error::Unavailable(_)) => {}
            Err(error) if taken(error) => {}
            Err(error) => return Err(error.clone()),
        }
    }
    match attempts.iter().flatten().next() {
        Some(won) if *won != version => Err(broken(
            store,
            &format!("the object is not what the winner of a conditional {what} wrote ({header})"),
        )),
        None if !in_doubt => Err(broken(
            store,
            &format!("no writer was told that its conditional {what} won ({header})"),
        )),
        _ => Ok((data, version)),
    }
}

/// Checks that a written object can be read and is listed at once.
async fn plain_objects(store: &Store, folder: &str, key: &str) -> Result<(), Error> {
    store.put(key, Bytes::from_static(b"plain old data")).await?;
    let (read, listed) = join(store.get_range(key, 6..9), store.list(folder, None)).await;
    if read? != "old" {
        return Err(broken(store, "a part of an object is not what was written"));
    }
    if !listed?.iter().any(|object| object.key == key && object.length == 14) {
        return Err(broken(store, "an object that was just written is not listed"));
    }
    Ok(())
}

fn body(writer: u8) -> Bytes {
    Bytes::from(format!("written by rekindle to probe the store: {writer:03}"))
}

fn broken(store: &Store, what: &str) -> Error {
    Error::Refused(format!(
        "{} does not keep a promise that rekindle needs: {what}. Use a store with atomic conditional writes",
        store.describe()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::mem::Mem;
    use crate::{Datastore, Listed};
    use rekindle_env::BoxFuture;
    use rekindle_env::sim::{Faults, World};
    use std::ops::Range;
    use std::sync::Arc;
    use std::time::Duration;

    /// A store that checks and then writes, without a lock between the two.
    struct CheckThenWrite {
        env: Env,
        inner: Store,
    }

    impl Datastore for CheckThenWrite {
        fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
            self.inner.put(key, data)
        }
        fn create<'a>(
            &'a self,
            key: &'a str,
            data: Bytes,
        ) -> BoxFuture<'a, Result<Version, Error>> {
            Box::pin(async move {
                if self.inner.get(key).await.is_ok() {
                    return Err(Error::Exists(key.to_owned()));
                }
                self.env.sleep(Duration::from_millis(1)).await;
                self.inner.put(key, data).await?;
                Ok(self.inner.get(key).await?.1)
            })
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
            self.inner.get(key)
        }
        fn get_range<'a>(
            &'a self,
            key: &'a str,
            range: Range<u64>,
        ) -> BoxFuture<'a, Result<Bytes, Error>> {
            self.inner.get_range(key, range)
        }
        fn list<'a>(
            &'a self,
            prefix: &'a str,
            after: Option<&'a str>,
        ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
            self.inner.list(prefix, after)
        }
        fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
            self.inner.delete(key)
        }
        fn describe(&self) -> String {
            "s3://careless".to_owned()
        }
    }

    #[test]
    fn a_good_store_passes_and_is_left_clean() {
        let world = World::new(1, Faults::none());
        let (env, store) = (world.env(), Mem::store());
        world.block_on(probe(&env, &store)).unwrap();
        assert_eq!(world.block_on(store.list("", None)).unwrap(), []);
    }

    #[test]
    fn a_store_that_checks_and_then_writes_is_refused() {
        let world = World::new(1, Faults::none());
        let env = world.env();
        let store: Store = Arc::new(CheckThenWrite { env: env.clone(), inner: Mem::store() });
        let error = world.block_on(probe(&env, &store)).unwrap_err();
        assert!(
            matches!(&error, Error::Refused(text) if text.contains("conditional create won")),
            "{error}"
        );
        assert_eq!(world.block_on(store.list("", None)).unwrap(), []);
    }
}
