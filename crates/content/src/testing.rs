//! Helpers that the tests of this crate share.

use crate::{Compression, Config, Stretch};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::{Datastore, Error, Listed, Store, Version};
use rekindle_env::{BoxFuture, Env};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn config() -> Config {
    Config {
        secret: [7; 32],
        compression: Compression::Zstd,
        parity: None,
        pack_bytes: 256 << 10,
        cache_bytes: 4 << 20,
        index_bytes: 4 << 20,
        uploads: 3,
    }
}

/// Bytes that do not compress, different for every seed.
pub(crate) fn random(seed: u64, length: usize) -> bytes::Bytes {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.into()
}

/// Bytes that compress to half of their length, different for every seed.
pub(crate) fn text(seed: u64, length: usize) -> Bytes {
    let digits = random(seed, length.div_ceil(2)).into_iter().flat_map(|byte| {
        [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)])
    });
    digits.take(length).collect()
}

/// Chunks that lie side by side.
pub(crate) fn stretch(chunks: &[Bytes]) -> Stretch {
    let mut end = 0;
    let ends = chunks.iter().map(|chunk| {
        end += chunk.len();
        end
    });
    Stretch { ends: ends.collect(), bytes: chunks.concat().into(), is_apart: false }
}

/// Runs a test on the real machine.
pub(crate) fn run(test: impl AsyncFnOnce(Env)) {
    let (env, runtime) = rekindle_env::real::env().unwrap();
    runtime.block_on(test(env));
}

/// A store in RAM that can be broken.
pub(crate) struct Broken {
    inner: Store,
    refuses_writes: AtomicBool,
    refuses_reads: AtomicBool,
    is_full: AtomicBool,
    reads: AtomicU64,
    flips: Mutex<Vec<(String, u64)>>,
    lost: Mutex<Vec<String>>,
    hidden: Mutex<Option<String>>,
    misreads: Mutex<Vec<(String, u64, u64)>>,
    last_answer: Mutex<Bytes>,
}

impl Broken {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mem::store(),
            refuses_writes: AtomicBool::new(false),
            refuses_reads: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            flips: Mutex::default(),
            lost: Mutex::default(),
            hidden: Mutex::default(),
            misreads: Mutex::default(),
            last_answer: Mutex::default(),
        }
    }

    pub(crate) fn refuse_writes(&self, refuse: bool) {
        self.refuses_writes.store(refuse, Ordering::SeqCst);
    }

    pub(crate) fn refuse_reads(&self, refuse: bool) {
        self.refuses_reads.store(refuse, Ordering::SeqCst);
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// The last range that was read.
    pub(crate) fn last_answer(&self) -> Bytes {
        self.last_answer.lock().clone()
    }

    /// Makes one bit of this byte wrong from now on.
    pub(crate) fn flip(&self, key: &str, at: u64) {
        self.flips.lock().push((key.to_owned(), at));
    }

    /// Makes every flipped byte as it was.
    pub(crate) fn unflip(&self) {
        self.flips.lock().clear();
    }

    /// Makes so many reads of this byte wrong, each in another way.
    pub(crate) fn misread(&self, key: &str, at: u64, reads: u64) {
        self.misreads.lock().push((key.to_owned(), at, reads));
    }

    /// Makes objects with this prefix absent, also from lists: a folder that is not mounted.
    pub(crate) fn hide(&self, prefix: Option<&str>) {
        *self.hidden.lock() = prefix.map(str::to_owned);
    }

    fn is_hidden(&self, key: &str) -> bool {
        self.hidden.lock().as_ref().is_some_and(|prefix| key.starts_with(prefix))
    }

    /// Makes the object absent from now on.
    pub(crate) fn lose(&self, key: &str) {
        self.lost.lock().push(key.to_owned());
    }

    /// Sets whether there is no room for new packs.
    pub(crate) fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    fn may_write(&self) -> Result<(), Error> {
        if self.refuses_writes.load(Ordering::SeqCst) {
            return Err(Error::Unavailable("it refuses writes".into()));
        }
        Ok(())
    }

    fn may_read(&self, key: &str) -> Result<(), Error> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.refuses_reads.load(Ordering::SeqCst) {
            return Err(Error::Unavailable("it refuses reads".into()));
        }
        if self.is_hidden(key) || self.lost.lock().iter().any(|lost| lost == key) {
            Err(Error::NotFound(key.into()))
        } else {
            Ok(())
        }
    }

    fn with_flips(&self, key: &str, begin: u64, data: Bytes) -> Bytes {
        let mut data = data.to_vec();
        for (flipped, at) in &*self.flips.lock() {
            let byte =
                at.checked_sub(begin).and_then(|at| data.get_mut(usize::try_from(at).unwrap()));
            if let (true, Some(byte)) = (flipped == key, byte) {
                *byte ^= 1;
            }
        }
        for (misread, at, reads) in &mut *self.misreads.lock() {
            let byte =
                at.checked_sub(begin).and_then(|at| data.get_mut(usize::try_from(at).unwrap()));
            if let (true, true, Some(byte)) = (misread == key, *reads > 0, byte) {
                *byte ^= u8::try_from(*reads % 255 + 1).unwrap();
                *reads -= 1;
            }
        }
        data.into()
    }
}

impl Datastore for Broken {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.may_write()?;
            if self.is_full.load(Ordering::SeqCst) {
                return Err(Error::Full("no room".into()));
            }
            self.inner.put(key, data).await
        })
    }
    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async move {
            self.may_write()?;
            self.inner.create(key, data).await
        })
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async move {
            self.may_write()?;
            self.inner.replace(key, data, version).await
        })
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(async move {
            self.may_read(key)?;
            let (data, version) = self.inner.get(key).await?;
            Ok((self.with_flips(key, 0, data), version))
        })
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(async move {
            self.may_read(key)?;
            let data = self.inner.get_range(key, range.clone()).await?;
            let answer = self.with_flips(key, range.start, data);
            *self.last_answer.lock() = answer.clone();
            Ok(answer)
        })
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(async move {
            let mut page = self.inner.list(prefix, after).await?;
            page.retain(|listed| !self.is_hidden(&listed.key));
            Ok(page)
        })
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.may_write()?;
            self.inner.delete(key).await
        })
    }
    fn describe(&self) -> String {
        "broken".into()
    }
}

/// A store on another machine: a request takes a while, and arrives even when its sender has
/// crashed meanwhile.
pub(crate) struct Remote {
    env: Env,
    inner: Store,
}

impl Remote {
    pub(crate) fn new(env: Env, inner: Store) -> Self {
        Self { env, inner }
    }

    fn ask<'a, T: Send + 'static, F>(
        &'a self,
        call: impl FnOnce(Store) -> F + Send + 'static,
    ) -> BoxFuture<'a, T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let (env, inner) = (self.env.clone(), self.inner.clone());
        Box::pin(self.env.run("remote", async move {
            env.sleep(Duration::from_micros(env.random_u64() % 8000)).await;
            let answer = call(inner).await;
            env.sleep(Duration::from_micros(env.random_u64() % 2000)).await;
            answer
        }))
    }
}

impl Datastore for Remote {
    fn put<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        self.ask(|inner| async move { inner.put(&key, data).await })
    }
    fn create<'a>(&'a self, key: &'a str, data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        let key = key.to_owned();
        self.ask(|inner| async move { inner.create(&key, data).await })
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        let (key, version) = (key.to_owned(), version.clone());
        self.ask(|inner| async move { inner.replace(&key, data, &version).await })
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        let key = key.to_owned();
        self.ask(|inner| async move { inner.get(&key).await })
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        let key = key.to_owned();
        self.ask(|inner| async move { inner.get_range(&key, range).await })
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.ask(|inner| async move { inner.list(&prefix, after.as_deref()).await })
    }
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        let key = key.to_owned();
        self.ask(|inner| async move { inner.delete(&key).await })
    }
    fn describe(&self) -> String {
        "remote".into()
    }
}

/// A store that takes everything and keeps nothing.
pub(crate) struct Sink;

impl Datastore for Sink {
    fn put<'a>(&'a self, _key: &'a str, _data: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
    fn create<'a>(&'a self, key: &'a str, _data: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async { Err(Error::Exists(key.into())) })
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        _data: Bytes,
        _version: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async { Err(Error::Conflict(key.into())) })
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        Box::pin(async { Err(Error::NotFound(key.into())) })
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        _range: Range<u64>,
    ) -> BoxFuture<'a, Result<Bytes, Error>> {
        Box::pin(async { Err(Error::NotFound(key.into())) })
    }
    fn list<'a>(
        &'a self,
        _prefix: &'a str,
        _after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn delete<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
    fn describe(&self) -> String {
        "sink".into()
    }
}
