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

use crate::{Datastore, Error, Listed, Removal, Room, Store, Version, key};
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
            self.env.blocking(move || folder.list(&prefix, after.as_deref(), now)).await
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
