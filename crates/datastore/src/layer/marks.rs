//! Markers: an object is believed not to exist only where its folder proves to be the right one.
//!
//! A folder below the store may be a mount of its own that is away, or another folder may lie in
//! its place. Then all objects in it seem not to exist, and new writes there are lost. So each
//! folder holds a marker, a copy of the store's identity.
//!
//! The marker is read whenever the store says that an object does not exist, when a listing begins
//! and ends, and around writes that would land anywhere. A read that finds its object costs no
//! extra call.

use crate::identity::Identity;
use crate::limits::MARKER_TRUST;
use crate::record::decode_as;
use crate::{Datastore, Error, Got, Listed, Removal, Room, Store, Version, key};
use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rekindle_env::{BoxFuture, Env, Moment};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Folders where an absent object means damage or loss: a marker vouches there for one look only.
const GRAVE: [&str; 3] = [key::PACKS_DATA, key::PACKS_META, key::VOLUMES];

struct Marked {
    env: Env,
    inner: Store,
    state: Mutex<Evidence>,
}

#[derive(Default)]
struct Evidence {
    known: Known,
    /// The time at which the marker of a folder was last seen.
    seen: HashMap<&'static str, Moment>,
    /// Folders in which a write has failed, or which have failed to prove themselves since. An
    /// object there may be a write of ours that went into another folder.
    doubted: HashSet<&'static str>,
    /// Folders that have failed to prove themselves, and how.
    unproven: HashMap<&'static str, String>,
}

/// The knowledge of the store's identity.
#[derive(Default, Clone)]
enum Known {
    #[default]
    Nothing,
    /// The store had no identity then, or one that names no folders.
    Unmarked(Moment),
    Marked(Arc<Identity>),
}

/// Wraps a store so that its folders must prove themselves, once its identity says that they can.
#[must_use]
pub fn wrap(env: &Env, inner: Store) -> (Store, Marks) {
    let marked = Arc::new(Marked { env: env.clone(), inner, state: Mutex::default() });
    (marked.clone(), Marks(marked))
}

/// A view of the folders of a store.
#[derive(Clone)]
pub struct Marks(Arc<Marked>);

impl Marks {
    /// Returns the folders that have failed to prove themselves, in words for the user. Asks the
    /// store for the markers of these folders again, and for nothing else.
    pub async fn unproven(&self) -> Vec<String> {
        let known: Vec<_> = self.0.state.lock().unproven.keys().copied().collect();
        let mut unproven = Vec::new();
        for folder in known {
            // What the store does not answer now leaves the folder as it was.
            let looked = self.0.vouch(folder, Duration::ZERO).await;
            let why = self.0.state.lock().unproven.get(folder).cloned();
            unproven.extend(why.filter(|_| looked.is_err()));
        }
        unproven.sort();
        unproven
    }
}

/// Returns the folders with markers that a key or prefix lies in, or holds.
fn folders_of(key: &str) -> impl Iterator<Item = &'static str> {
    key::MARKED.into_iter().filter(move |folder| {
        !key::is_marker(key) && (key.starts_with(folder) || folder.starts_with(key))
    })
}

fn is_grave(key: &str) -> bool {
    GRAVE.iter().any(|folder| key.starts_with(folder))
}

impl Marked {
    /// Returns the identity, if it says which folders are marked.
    async fn identity(&self) -> Result<Option<Arc<Identity>>, Error> {
        let known = self.state.lock().known.clone();
        match known {
            Known::Marked(identity) => return Ok(Some(identity)),
            Known::Unmarked(at) if self.env.now().since(at) < MARKER_TRUST => return Ok(None),
            _ => {}
        }
        let found = match self.inner.get(key::IDENTITY).await {
            Ok((data, _)) => Some(self.decoded(&data)?),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(self.learn(found))
    }

    /// Decodes the identity. An identity that cannot be decoded makes the store unavailable:
    /// nothing else is judged then.
    fn decoded(&self, data: &[u8]) -> Result<Identity, Error> {
        let decoded = decode_as::<Identity>(key::IDENTITY, data);
        decoded.map(|(identity, _)| identity).map_err(|error| Error::Unavailable(error.to_string()))
    }

    fn learn(&self, found: Option<Identity>) -> Option<Arc<Identity>> {
        let mut state = self.state.lock();
        match found.filter(|identity| !identity.marked.is_empty()) {
            Some(identity) => {
                let identity = Arc::new(identity);
                state.known = Known::Marked(identity.clone());
                Some(identity)
            }
            None => {
                state.known = Known::Unmarked(self.env.now());
                None
            }
        }
    }

    /// Checks that the folders of a key or prefix are the right ones, seen no longer ago than
    /// `trust`.
    async fn vouch(&self, key: &str, trust: Duration) -> Result<(), Error> {
        if folders_of(key).next().is_none() {
            return Ok(());
        }
        let Some(identity) = self.identity().await? else { return Ok(()) };
        let fresh = |folder: &str| {
            let seen = self.state.lock().seen.get(folder).copied();
            seen.is_some_and(|seen| self.env.now().since(seen) < trust)
        };
        let asked = folders_of(key)
            .filter(|folder| identity.marked.iter().any(|marked| marked == folder))
            .filter(|folder| !fresh(folder));
        try_join_all(asked.map(|folder| self.look(&identity, folder))).await.map(drop)
    }

    /// Marks the folders of a key as doubted: an object found there is not believed before its
    /// folder has proved itself once more. Packs are believed, because each reader verifies their
    /// content.
    fn doubt(&self, key: &str) {
        self.state.lock().doubted.extend(folders_of(key));
    }

    fn is_doubted(&self, key: &str) -> bool {
        if key.starts_with(key::PACKS) {
            return false;
        }
        let state = self.state.lock();
        !(state.doubted.is_empty() || matches!(state.known, Known::Unmarked(_)))
            && folders_of(key).any(|folder| state.doubted.contains(folder))
    }

    async fn look(&self, identity: &Identity, folder: &'static str) -> Result<(), Error> {
        let key = key::marker_key(folder);
        let began = self.env.now();
        let mut read = self.inner.get(&key).await;
        if read.as_ref().is_ok_and(|(data, _)| decode_as::<Identity>(&key, data).is_err()) {
            // A bit may have been wrong on its way.
            read = self.inner.get(&key).await;
        }
        let wrong = match read {
            Err(Error::NotFound(_)) => {
                // A mount that is away comes back by itself, perhaps.
                let what = "is absent, or is not the folder that it was: its marker is missing";
                return Err(Error::Unavailable(self.doubt_because(folder, what)));
            }
            Err(error) => return Err(error),
            Ok((data, _)) => match decode_as::<Identity>(&key, &data) {
                Err(error) => Some(format!("cannot prove to be the right one ({error})")),
                Ok((marker, _))
                    if marker.store != identity.store || marker.secret != identity.secret =>
                {
                    Some(format!("belongs to another store, {}", marker.store))
                }
                Ok((marker, _)) if marker.folder.as_ref().is_some_and(|other| other != folder) => {
                    Some("is another folder of this store".to_owned())
                }
                Ok(_) => None,
            },
        };
        if let Some(what) = wrong {
            return Err(Error::Unproven(self.doubt_because(folder, &what)));
        }
        let mut state = self.state.lock();
        state.seen.insert(folder, began);
        state.doubted.remove(folder);
        state.unproven.remove(folder);
        Ok(())
    }

    /// Notes that a folder has failed to prove itself; returns that in words for the user.
    fn doubt_because(&self, folder: &'static str, what: &str) -> String {
        let why = format!(
            "'{folder}' in {} {what}. Is it mounted, is the right folder mounted there? Nothing in it is taken for \
             lost, and nothing is written there. If it is the right one, copy {} to {}",
            self.inner.describe(),
            key::IDENTITY,
            key::marker_key(folder)
        );
        let mut state = self.state.lock();
        state.seen.remove(folder);
        state.doubted.insert(folder);
        state.unproven.insert(folder, why.clone());
        why
    }

    /// Repeats a look that found nothing, or found an object in a doubted folder, after the folder
    /// has proved to be the right one. Between the two looks the folder may have come back.
    async fn believe<T>(
        &self,
        key: &str,
        first: Result<T, Error>,
        again: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if first.is_ok() && self.is_doubted(key) {
            self.vouch(key, Duration::ZERO).await?;
            return again.await;
        }
        if !matches!(first, Err(Error::NotFound(_))) {
            return first;
        }
        if key == key::IDENTITY {
            let lost = matches!(self.state.lock().known, Known::Marked(_));
            let gone = format!("{key} was there and is gone from {}", self.inner.describe());
            return if lost { Err(Error::Unavailable(gone)) } else { first };
        }
        if !is_grave(key) {
            return self.vouch(key, MARKER_TRUST).await.and(first);
        }
        self.vouch(key, Duration::ZERO).await?;
        again.await
    }

    /// Carries out a write that would land in any folder. The folder proves itself before the
    /// write, and again afterwards when another folder may come to lie over it.
    async fn landing<T>(
        &self,
        key: &str,
        write: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.vouch(key, MARKER_TRUST).await?;
        let written = match write.await {
            Ok(written) if self.inner.may_be_covered() => {
                self.vouch(key, Duration::ZERO).await.map(|()| written)
            }
            Ok(written) => Ok(written),
            Err(error) => Err(error),
        };
        if written.is_err() {
            // A caller that reads the write back would find it even in a folder that lies over the
            // right one.
            self.doubt(key);
        }
        written
    }
}

impl Datastore for Marked {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.landing(key, self.inner.put(key, data)))
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(self.landing(key, self.inner.create(key, data)))
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        // The version that the write names proves the folder. A caller that is told "no" reads the
        // object, and the marker with it.
        Box::pin(async move {
            let replaced = self.inner.replace(key, data, version).await;
            if key == key::IDENTITY {
                // The new identity may name marked folders.
                self.state.lock().known = Known::Nothing;
            }
            replaced
        })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(async move {
            let first = self.inner.get(key).await;
            if key == key::IDENTITY
                && let Ok((data, _)) = &first
                && let Ok(identity) = self.decoded(data)
            {
                self.learn(Some(identity));
            }
            self.believe(key, first, self.inner.get(key)).await
        })
    }

    fn get_together<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Vec<Got>> {
        Box::pin(async move {
            let mut found = self.inner.get_together(keys).await;
            for (key, got) in keys.iter().zip(&mut found) {
                if got.is_err() || key == key::IDENTITY || self.is_doubted(key) {
                    *got = self.get(key).await;
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
        Box::pin(async move {
            let first = self.inner.get_range(key, range.clone()).await;
            self.believe(key, first, self.inner.get_range(key, range)).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(async move {
            let page = self.inner.list(prefix, after).await?;
            if after.is_some() && !page.is_empty() {
                return Ok(page);
            }
            self.vouch(prefix, Duration::ZERO).await?;
            // An empty page is believed when it is seen again.
            if page.is_empty() { self.inner.list(prefix, after).await } else { Ok(page) }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.vouch(key, MARKER_TRUST).await?;
            self.inner.delete(key).await
        })
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        Box::pin(async move {
            self.vouch(key, Duration::ZERO).await?;
            self.inner.delete_if(key, version).await
        })
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

#[cfg(test)]
mod tests;
