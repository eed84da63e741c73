//! A store in memory: for tests and simulation, gone with the process.
//!
//! It is as strict as the strictest backend. It refuses what a folder cannot hold (an object below
//! another). Its versions are hashes of the content, as an ETag is, so an object that returns to
//! old bytes returns to the old version.

use crate::limits::LIST_OBJECTS_MAX;
use crate::{Datastore, Error, Listed, Removal, Store, Tag, Version, key};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_env::BoxFuture;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

type Object = (Bytes, Version);

/// Objects in memory. Every call is done when its future is first polled.
#[derive(Default)]
pub struct Mem {
    objects: Mutex<BTreeMap<String, Object>>,
    is_bucket: bool,
}

impl Mem {
    /// Makes an empty store.
    #[must_use]
    pub fn store() -> Store {
        Arc::new(Self::default())
    }

    /// Makes an empty store that nothing can come to lie over.
    #[cfg(test)]
    pub(crate) fn bucket() -> Store {
        Arc::new(Self { is_bucket: true, ..Self::default() })
    }

    fn write(
        &self,
        key: &str,
        data: Bytes,
        may: impl FnOnce(Option<&Object>) -> Result<(), Error>,
    ) -> Result<Version, Error> {
        key::check(key)?;
        let mut objects = self.objects.lock();
        may(objects.get(key))?;
        let below = format!("{key}/");
        let clash = objects
            .range(below.clone()..)
            .next()
            .map(|(other, _)| other)
            .filter(|other| other.starts_with(&below));
        let above = key
            .match_indices('/')
            .map(|(end, _)| &key[..end])
            .find(|folder| objects.contains_key(*folder));
        if let Some(other) = clash.map(String::as_str).or(above) {
            return Err(Error::Invalid(format!(
                "{key} cannot be written: {other} exists, and no object can lie below another"
            )));
        }
        let version = version_of(&data);
        objects.insert(key.to_owned(), (data, version.clone()));
        Ok(version)
    }

    fn read(&self, key: &str) -> Result<Object, Error> {
        key::check(key)?;
        self.objects.lock().get(key).cloned().ok_or_else(|| Error::NotFound(key.to_owned()))
    }

    fn page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Listed>, Error> {
        key::check_prefix(prefix)?;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let objects = self.objects.lock();
        let listed = objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix));
        Ok(listed
            .filter(|(key, _)| !key::is_marker(key))
            .take(LIST_OBJECTS_MAX)
            .map(|(key, (data, version))| Listed {
                key: key.clone(),
                length: data.len() as u64,
                tag: Some(Tag::of(version.0.as_bytes())),
            })
            .collect())
    }
}

/// Returns the version of an object with this content.
pub(super) fn version_of(data: &[u8]) -> Version {
    Version(blake3::hash(data).to_hex().to_string())
}

impl Datastore for Mem {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.write(key, data, |_| Ok(())).map(drop) })
    }

    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        let may = |old: Option<&Object>| old.map_or(Ok(()), |_| Err(Error::Exists(key.to_owned())));
        Box::pin(async move { self.write(key, data, may) })
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        let may = move |old: Option<&Object>| match old {
            Some((_, old)) if old == version => Ok(()),
            _ => Err(Error::Conflict(key.to_owned())),
        };
        Box::pin(async move { self.write(key, data, may) })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(async move { self.read(key) })
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
            let (data, _) = self.read(key)?;
            let clip = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(data.len());
            // A copy: a slice would keep the whole object alive.
            Ok(Bytes::copy_from_slice(&data[clip(range.start)..clip(range.end)]))
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(async move { self.page(prefix, after) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            key::check(key)?;
            self.objects.lock().remove(key);
            Ok(())
        })
    }

    fn delete_if<'a>(
        &'a self,
        key: &'a str,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Removal, Error>> {
        Box::pin(async move {
            key::check(key)?;
            let mut objects = self.objects.lock();
            if objects.get(key).is_some_and(|(_, found)| found != version) {
                return Err(Error::Conflict(key.to_owned()));
            }
            objects.remove(key);
            Ok(Removal::Done)
        })
    }

    fn may_be_covered(&self) -> bool {
        !self.is_bucket
    }

    fn describe(&self) -> String {
        "mem:".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::sim::{Faults, World};

    #[test]
    fn no_object_lies_below_another() {
        let world = World::new(1, Faults::none());
        let store = Mem::store();
        world.block_on(async {
            store.put("a", Bytes::new()).await.unwrap();
            store.put("b/c", Bytes::new()).await.unwrap();
            store.put("b-c", Bytes::new()).await.unwrap();
            for clash in ["a/b", "b"] {
                assert!(
                    matches!(store.create(clash, Bytes::new()).await, Err(Error::Invalid(_))),
                    "{clash}"
                );
            }
        });
    }
}
