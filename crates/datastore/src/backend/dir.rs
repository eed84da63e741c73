//! A store in a folder: local, or one that several machines mount.
//!
//! Every object is a file. It is written under `.tmp/`, made durable, and then given its name: by
//! `rename` when it may replace something, by `link` when it must not. `replace` compares and
//! renames under a lock that all processes respect. The version is the hash of the content, as an
//! ETag is. The file calls may be slow (a network mount), so they run in [`Env::blocking`].
//!
//! A visible object is not always durable: see `doubts`. A little room is kept for removals: see
//! `reserve`.

mod direct;
mod doubts;
mod folder;
mod listing;
mod packs;
mod reserve;

use crate::limits::LISTING_AGE;
use crate::{Datastore, Error, Got, Listed, Removal, Room, Store, Version, key};
use bytes::Bytes;
use folder::Folder;
use rekindle_env::{BoxFuture, Env};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A folder as a store.
pub struct Dir {
    env: Env,
    folder: Arc<Folder>,
}

impl Dir {
    /// Opens the folder, makes it when it is absent, and removes the temporary files of dead
    /// writers.
    pub async fn open(env: &Env, path: &Path) -> Result<Store, Error> {
        Self::open_or_make(env, path, true).await
    }

    /// Opens the folder of a store that is known to exist, and makes nothing when the folder is
    /// absent.
    pub async fn open_known(env: &Env, path: &Path) -> Result<Store, Error> {
        Self::open_or_make(env, path, false).await
    }

    async fn open_or_make(env: &Env, path: &Path, make: bool) -> Result<Store, Error> {
        let (root, now) = (path.to_owned(), env.wall_clock());
        let folder = env.blocking(move || Folder::open(&root, now, make)).await?;
        Ok(Arc::new(Self { env: env.clone(), folder: Arc::new(folder) }))
    }

    /// Starts the task that forgets listings which were given up; it ends when none is left.
    fn age_listings(&self) {
        let (env, folder) = (self.env.clone(), Arc::downgrade(&self.folder));
        self.env.spawn("listings-age", async move {
            loop {
                env.sleep(LISTING_AGE).await;
                if !folder.upgrade().is_some_and(|folder| folder.listings().age()) {
                    return;
                }
            }
        });
    }

    /// Runs one file operation on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Folder, &str) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        key::check(key)?;
        let (folder, key) = (self.folder.clone(), key.to_owned());
        self.env.blocking(move || work(&folder, &key)).await
    }
}

impl Datastore for Dir {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        let tag = self.env.random();
        Box::pin(self.run(key, move |folder, key| folder.put(key, &data, tag)))
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        let tag = self.env.random();
        Box::pin(self.run(key, move |folder, key| folder.create(key, &data, tag)))
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        let (tag, version) = (self.env.random(), version.clone());
        Box::pin(self.run(key, move |folder, key| folder.replace(key, &data, &version, tag)))
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        let tag = self.env.random();
        Box::pin(self.run(key, move |folder, key| folder.get(key, tag)))
    }

    fn get_together<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Vec<Got>> {
        Box::pin(async move {
            let (folder, keys, tag) = (self.folder.clone(), keys.to_vec(), self.env.random());
            self.env.blocking(move || folder.get_together(&keys, tag)).await
        })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(async move {
            if !key::check_range(&range)? {
                return Ok(Bytes::new());
            }
            self.run(key, |folder, key| folder.get_range(key, range)).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(async move {
            key::check_prefix(prefix)?;
            let (folder, prefix, after) =
                (self.folder.clone(), prefix.to_owned(), after.map(str::to_owned));
            let now = self.env.wall_clock();
            let page = self.env.blocking(move || folder.list(&prefix, after.as_deref(), now)).await;
            if self.folder.listings().need_aging() {
                self.age_listings();
            }
            page
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.run(key, |folder, key| folder.delete(key)))
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        let (tag, version) = (self.env.random(), version.clone());
        Box::pin(self.run(key, move |folder, key| {
            folder.delete_if(key, &version, tag).map(|()| Removal::Done)
        }))
    }

    fn room(&self) -> BoxFuture<'_, Result<Room, Error>> {
        let folder = self.folder.clone();
        Box::pin(self.env.blocking(move || folder.room()))
    }

    fn describe(&self) -> String {
        format!("file://{}", self.folder.root().display())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the folder is a store, not this machine's own disk")]
mod tests {
    use super::*;
    use crate::limits::LIST_OBJECTS_MAX;
    use rekindle_env::sim::{Faults, World};

    #[test]
    fn a_listing_that_is_given_up_is_forgotten_after_a_while() {
        let world = World::new(1, Faults::none());
        let env = world.env();
        let place = tempfile::tempdir().unwrap();
        let path = |number: usize| place.path().join(format!("names/{number:04}"));
        std::fs::create_dir(place.path().join("names")).unwrap();
        (0..2 * LIST_OBJECTS_MAX + 1).for_each(|it| std::fs::write(path(it), b"1").unwrap());
        let open = async || {
            let folder = Folder::open(place.path(), env.wall_clock(), true).unwrap();
            Dir { env: env.clone(), folder: Arc::new(folder) }
        };
        world.block_on(async {
            let dir = open().await;
            let next = async |after: &str| {
                let page = dir.list("names/", Some(after)).await.unwrap();
                page.last().unwrap().key.clone()
            };
            let given_up = next("").await;
            let begun = world.tasks_started();
            env.sleep(LISTING_AGE / 2).await;
            // One that goes on stays.
            let goes_on = next(&next("").await).await;
            assert_eq!(
                world.tasks_started(),
                begun + 2,
                "one task ages all: each page is one, too"
            );
            env.sleep(LISTING_AGE).await;
            assert!(dir.folder.listings().take("names/", &goes_on).is_some());
            let again = next("").await;
            env.sleep(2 * LISTING_AGE).await;
            assert!(dir.folder.listings().take("names/", &given_up).is_none());
            assert!(dir.folder.listings().take("names/", &again).is_none());
            // Its next page reads the folder again.
            assert_eq!(next(&given_up).await, goes_on);
            env.sleep(4 * LISTING_AGE).await;
            assert!(!dir.folder.listings().age(), "nothing is left");
            let begun = world.tasks_started();
            next("").await;
            assert_eq!(world.tasks_started(), begun + 2, "aging begins anew");
        });
    }
}
