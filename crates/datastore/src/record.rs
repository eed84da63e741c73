//! Records: small JSON objects, changed only by conditional write.
//!
//! The answer to a conditional write can be wrong in both directions. A lost answer or a client's
//! retry reports a write as failed that landed, and a server may answer "conflict" though nothing
//! changed. So each write carries a nonce, and a record remembers the nonces of the last writes.
//! After any failure the record is read back: its nonces tell which write won, even when another
//! writer has written on top in the meantime.

mod cache;
mod envelope;
mod judge;
mod seal;
mod written;

pub use cache::RecordCache;
pub use envelope::{Envelope, History, Mark, Nonce, decode, decode_as};
pub use seal::Seal;
pub use written::Written;

use crate::backoff::{Backoff, Policy};
use crate::secret::Secret;
use crate::{Error, Got, Removal, Store, Version};
use bytes::Bytes;
use cache::{Operation, WriterCache};
use envelope::Sort;
use judge::{Verdict, judge};
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_env::Env;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;
use written::Begun;

/// The version of a write of ours that another writer has written over. It matches nothing, and
/// looks like any ETag.
const SUPERSEDED: &str = "\"00000000000000000000000000000000\"";

/// The node's writer of records; its nonces tell our own writes from others'.
#[derive(Clone)]
pub struct Writer {
    /// The environment: clock, randomness and tasks.
    pub env: Env,
    /// The store.
    pub store: Store,
    /// The node.
    pub node: NodeId,
    /// The number of the node's start; 0 until it is known.
    incarnation: Incarnation,
    /// The secret that proves records, once it is known.
    secret: Option<Secret>,
    cache: Option<WriterCache>,
    /// The vaults that this writer and its clones have begun to write.
    vaults: Arc<Written>,
}

/// A record as it was read or written last.
#[derive(Debug, Clone)]
pub struct Held<T> {
    /// The key.
    pub key: String,
    /// The content.
    pub value: T,
    /// The version that the next conditional write names.
    pub version: Version,
    /// The mark of the write that made this content.
    mark: Mark,
    writer: Life,
    seal: Seal,
}

impl<T> Held<T> {
    /// Returns the life that wrote the record. Where only we may write, another life than ours
    /// means that ours is over. The incarnation is 0 when the record does not name one.
    #[must_use]
    pub fn writer(&self) -> Life {
        self.writer
    }

    /// Returns the seal that vouches for the record's bytes.
    #[must_use]
    pub fn seal(&self) -> Seal {
        self.seal
    }

    fn of(key: &str, version: Version, found: envelope::Decoded<T>) -> Self {
        let envelope::Decoded { value, mark, writer, seal } = found;
        Self { key: key.to_owned(), value, version, mark, writer, seal }
    }

    /// Returns the mark: the write that made this content, and the writes before.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }
}

/// A kind of record: its name in messages and the newest format version known.
pub trait Body: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The name of the kind, for messages: "vault", "node record".
    const WHAT: &'static str;
    /// Format version written; anything newer is refused.
    const FORMAT: u32;
    /// Whether the record cache keeps copies (see [`RecordCache`]): only of records that no other
    /// node than their owner writes.
    const CACHED: bool = false;

    /// Checks that the fields agree with each other; called whenever a record is read, and before
    /// it is written. The error names the contradiction; the record is then damaged.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the secret that proves this very record, if the record holds it.
    fn own_secret(&self) -> Option<Secret> {
        None
    }
}

/// A conditional write, repeated until its outcome is known.
struct Attempt<'a> {
    key: &'a str,
    data: Bytes,
    mark: Mark,
    /// The content to replace: the version to name and the nonce to recognise. `None` when no
    /// object may exist.
    base: Option<(&'a Version, Nonce)>,
}

/// The content of the store after an attempt.
enum Sight {
    Absent,
    /// The mark of a record, or of the trace of a removed one.
    Present {
        mark: Mark,
        version: Version,
        removed: bool,
    },
}

/// The reason why a write did not win.
enum Failure {
    /// The write failed with this error.
    Is(Error),
    /// The trace of a removed record lies where a record was to be made.
    Trace(Mark, Version),
}

impl Failure {
    fn plain(self) -> Error {
        match self {
            Failure::Is(error) => error,
            Failure::Trace(..) => Error::Unavailable("the record was removed meanwhile".to_owned()),
        }
    }
}

/// Notes the end of a write, as far as its outcome is known.
fn end<T>(begun: Option<Begun<'_>>, outcome: &Result<T, Failure>) {
    let Some(begun) = begun else { return };
    match outcome {
        Ok(_) => begun.has_won(),
        Err(Failure::Is(Error::Conflict(_) | Error::Exists(_)) | Failure::Trace(..)) => {
            begun.has_lost();
        }
        Err(Failure::Is(_)) => {}
    }
}

impl Writer {
    /// Makes a writer without a cache, of a life that is not known yet.
    #[must_use]
    pub fn new(env: Env, store: Store, node: NodeId) -> Self {
        Self {
            env,
            store,
            node,
            incarnation: Incarnation(0),
            secret: None,
            cache: None,
            vaults: Arc::default(),
        }
    }

    /// Returns the same writer, which names this start of the node in each record.
    #[must_use]
    pub fn with_incarnation(self, incarnation: Incarnation) -> Self {
        Self { incarnation, ..self }
    }

    /// Returns the same writer, which proves each record with the secret of the store, and rejects
    /// a proof made with another.
    #[must_use]
    pub fn with_secret(self, secret: Secret) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// Returns the life that writes.
    #[must_use]
    pub fn life(&self) -> Life {
        Life { node: self.node, incarnation: self.incarnation }
    }

    /// Returns the same writer, which keeps copies of its records in this cache.
    #[must_use]
    pub fn with_cache(self, records: Arc<dyn RecordCache>) -> Self {
        Self { cache: Some(WriterCache::new(records)), ..self }
    }

    /// Returns the vaults that this writer and its clones have begun to write.
    #[must_use]
    pub fn vaults(&self) -> &Written {
        &self.vaults
    }

    /// Notes that a record is about to be written, if it is one that a sweep reads.
    fn begin(&self, key: &str) -> Option<Begun<'_>> {
        key.starts_with(crate::key::VOLUMES).then(|| self.vaults.begin(key))
    }

    /// Returns the cached copy of a record. The caller must know that no other node has written the
    /// record since; its owner knows that.
    #[must_use]
    pub fn copy<T: Body>(&self, key: &str) -> Option<Held<T>> {
        self.cache.as_ref()?.find(key, self.secret.as_ref())
    }

    /// Returns the bytes that [`Writer::keep_hint`] has kept under a key. They may be outdated.
    #[must_use]
    pub fn hint(&self, key: &str) -> Option<Vec<u8>> {
        self.cache.as_ref()?.hint(key)
    }

    /// Keeps bytes in the record cache, for a later reader that verifies them.
    pub fn keep_hint(&self, key: &str, bytes: &[u8]) {
        if let Some(cache) = &self.cache {
            cache.keep_hint(key, bytes);
        }
    }

    /// Reads a record as [`Writer::read`] does, and keeps a copy in the cache.
    pub async fn read_and_keep<T: Body>(&self, key: &str) -> Result<Option<Held<T>>, Error> {
        let operation = self.operation::<T>(key);
        let Some((held, data)) = self.read_with_data(key).await? else { return Ok(None) };
        if let Some(operation) = operation {
            operation.keep(&held.version, &data);
        }
        Ok(Some(held))
    }

    /// Begins an operation on a record whose kind the cache keeps.
    fn operation<'a, T: Body>(&'a self, key: &'a str) -> Option<Operation<'a>> {
        self.cache.as_ref().filter(|_| T::CACHED).map(|cache| cache.begin(key))
    }

    /// Reads a record; `None` when it does not exist.
    pub async fn read<T: Body>(&self, key: &str) -> Result<Option<Held<T>>, Error> {
        Ok(self.read_with_data(key).await?.map(|(held, _)| held))
    }

    async fn read_with_data<T: Body>(&self, key: &str) -> Result<Option<(Held<T>, Bytes)>, Error> {
        self.decode(key, self.store.get(key).await)
    }

    /// Reads the records of the first keys, as many as the store reads together. In their order;
    /// each as of [`Writer::read`].
    pub async fn read_together<T: Body>(
        &self,
        keys: &[String],
    ) -> Vec<Result<Option<Held<T>>, Error>> {
        let found = self.store.get_together(keys).await.into_iter();
        let decoded = keys.iter().zip(found).map(|(key, got)| self.decode(key, got));
        decoded.map(|read| Ok(read?.map(|(held, _)| held))).collect()
    }

    fn decode<T: Body>(&self, key: &str, got: Got) -> Result<Option<(Held<T>, Bytes)>, Error> {
        let (data, version) = match got {
            Ok(found) => found,
            Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        match envelope::decode_any(key, &data, self.secret.as_ref())? {
            Sort::Record(found) => Ok(Some((Held::of(key, version, found), data))),
            Sort::Removed(_) => Ok(None),
        }
    }

    /// Makes a record. [`Error::Exists`] when another writer's record is there. After any failure
    /// the record is read back: our nonce in it means that we won.
    pub async fn create<T: Body>(&self, key: &str, value: T) -> Result<Held<T>, Error> {
        let mark = Mark::first(Nonce(self.env.random_u64()));
        match self.write(key, value.clone(), mark, None).await {
            Ok(held) => Ok(held),
            Err(Failure::Is(error)) => Err(error),
            // The trace of a removed record is replaced: of several writers that try, one wins.
            Err(Failure::Trace(trace, version)) => {
                let mark = trace.next(Nonce(self.env.random_u64()));
                match self.write(key, value, mark, Some((&version, trace.nonce))).await {
                    Err(Failure::Is(Error::Conflict(_)) | Failure::Trace(..)) => {
                        Err(Error::Exists(key.to_owned()))
                    }
                    done => done.map_err(Failure::plain),
                }
            }
        }
    }

    /// Removes a record that is still as `held` says. [`Error::Conflict`] when it has changed;
    /// success when it is gone already, even if another one was made in its place. Another writer's
    /// content always stays.
    ///
    /// Where the store cannot remove under a condition, a trace is left in place of the record.
    /// [`Writer::read`] sees no record there, and [`Writer::create`] replaces the trace.
    pub async fn remove<T: Body>(&self, held: &Held<T>) -> Result<(), Error> {
        if held.version.0 == SUPERSEDED {
            return Err(Error::Conflict(held.key.clone()));
        }
        let begun = self.begin(&held.key);
        let removed = self.try_remove(held).await;
        end(begun, &removed);
        removed.map_err(Failure::plain)
    }

    async fn try_remove<T: Body>(&self, held: &Held<T>) -> Result<(), Failure> {
        let operation = self.operation::<T>(&held.key);
        if let Some(operation) = &operation {
            operation.forget();
        }
        let mut backoff = Backoff::new(&self.env, Policy::RECORDS);
        loop {
            let failure = match self.store.delete_if(&held.key, &held.version).await {
                Ok(Removal::Done) => return Ok(()),
                Ok(Removal::Unsupported) => break,
                Err(error @ Error::Invalid(_)) => return Err(Failure::Is(error)),
                Err(error) => error,
            };
            let seen = self.look::<T>(&held.key, &failure, &mut backoff).await;
            match seen.map_err(Failure::Is)? {
                Sight::Absent => return Ok(()),
                Sight::Present { mark: seen, .. } => match judge(&held.mark, None, &seen) {
                    Verdict::Won | Verdict::Unchanged => {}
                    // The record's history does not name the held write: that record was removed,
                    // and another one made.
                    Verdict::Lost => return Ok(()),
                    _ => return Err(Failure::Is(Error::Conflict(held.key.clone()))),
                },
            }
            if matches!(failure, Error::Full(_) | Error::Refused(_)) {
                return Err(Failure::Is(failure));
            }
            if !backoff.pause().await {
                let text = format!("{} cannot be removed: {failure}", held.key);
                return Err(Failure::Is(Error::Unavailable(text)));
            }
        }
        let mark = held.mark.next(Nonce(self.env.random_u64()));
        let trace = envelope::Removed { kind: T::WHAT.to_owned() };
        let data = self.encode(&held.key, &trace, &mark).map_err(Failure::Is)?;
        let base = Some((&held.version, held.mark.nonce));
        let attempt = Attempt { key: &held.key, data, mark, base };
        self.settle::<T>(&attempt).await.map(drop)
    }

    /// Replaces a record that is still as `held` says. [`Error::Conflict`] when it is not.
    ///
    /// After any failure the record is read back and judged: won, lost, or unchanged so try again.
    /// When the retry budget is spent the result is [`Error::Unavailable`] and the outcome is open:
    /// read before the next attempt.
    ///
    /// A write that landed but was written over before it could be seen is a success, too; the next
    /// `replace` with its result gives [`Error::Conflict`].
    pub async fn replace<T: Body>(&self, held: &Held<T>, value: T) -> Result<Held<T>, Error> {
        if held.version.0 == SUPERSEDED {
            return Err(Error::Conflict(held.key.clone()));
        }
        let mark = held.mark.next(Nonce(self.env.random_u64()));
        let base = Some((&held.version, held.mark.nonce));
        self.write(&held.key, value, mark, base).await.map_err(Failure::plain)
    }

    async fn write<T: Body>(
        &self,
        key: &str,
        value: T,
        mark: Mark,
        base: Option<(&Version, Nonce)>,
    ) -> Result<Held<T>, Failure> {
        let data = self.encode(key, &value, &mark).map_err(Failure::Is)?;
        let attempt = Attempt { key, data, mark, base };
        let begun = self.begin(key);
        let operation = self.operation::<T>(key);
        if let Some(operation) = &operation {
            operation.forget();
        }
        let seal = if self.secret.is_some() { Seal::Proof } else { Seal::Sum };
        let settled = self.settle::<T>(&attempt).await;
        end(begun, &settled);
        let version = settled?;
        if let Some(operation) = operation.filter(|_| version.0 != SUPERSEDED) {
            operation.keep(&version, &attempt.data);
        }
        Ok(Held {
            key: key.to_owned(),
            value,
            version,
            mark: attempt.mark,
            writer: self.life(),
            seal,
        })
    }

    fn encode<T: Body>(&self, key: &str, value: &T, mark: &Mark) -> Result<Bytes, Error> {
        let written = self.env.wall_clock();
        envelope::encode(key, value, self.life(), mark, written, self.secret.as_ref())
    }

    /// Carries out a write until it has won or lost. All attempts are the same bytes, so an attempt
    /// that lands late, after its answer was given up, does no harm.
    async fn settle<T: Body>(&self, attempt: &Attempt<'_>) -> Result<Version, Failure> {
        let mut backoff = Backoff::new(&self.env, Policy::RECORDS);
        loop {
            let write = match attempt.base {
                None => self.store.create(attempt.key, attempt.data.clone()),
                Some((version, _)) => {
                    self.store.replace(attempt.key, attempt.data.clone(), version)
                }
            };
            let failure = match write.await {
                Ok(version) => return Ok(version),
                Err(error @ Error::Invalid(_)) => return Err(Failure::Is(error)),
                Err(error) => error,
            };
            let taken = || match attempt.base {
                None => Error::Exists(attempt.key.to_owned()),
                Some(_) => Error::Conflict(attempt.key.to_owned()),
            };
            let seen = self.look::<T>(attempt.key, &failure, &mut backoff).await;
            let verdict = match seen.map_err(Failure::Is)? {
                Sight::Absent if attempt.base.is_some() => return Err(Failure::Is(taken())),
                Sight::Absent => Verdict::Unchanged,
                Sight::Present { mark, version, removed } => {
                    match judge(&attempt.mark, attempt.base.map(|(_, nonce)| nonce), &mark) {
                        Verdict::Won => return Ok(version),
                        Verdict::Lost if removed && attempt.base.is_none() => {
                            return Err(Failure::Trace(mark, version));
                        }
                        other => other,
                    }
                }
            };
            tracing::debug!(key = attempt.key, %failure, ?verdict, "judged a conditional write");
            match verdict {
                Verdict::Won | Verdict::Superseded => return Ok(Version(SUPERSEDED.to_owned())),
                Verdict::Lost => return Err(Failure::Is(taken())),
                Verdict::Open => {
                    let text = format!(
                        "{} was written too often to tell who won ({failure})",
                        attempt.key
                    );
                    return Err(Failure::Is(Error::Unavailable(text)));
                }
                Verdict::Unchanged => {}
            }
            // Full and refused are answers; after any other error the next attempt may succeed.
            if matches!(failure, Error::Full(_) | Error::Refused(_)) {
                return Err(Failure::Is(failure));
            }
            if !backoff.pause().await {
                let text =
                    format!("{} cannot be written, the last answer was: {failure}", attempt.key);
                return Err(Failure::Is(Error::Unavailable(text)));
            }
        }
    }

    /// Reads the record back, as often as the budget permits.
    async fn look<T: Body>(
        &self,
        key: &str,
        failure: &Error,
        backoff: &mut Backoff<'_>,
    ) -> Result<Sight, Error> {
        loop {
            match self.store.get(key).await {
                Ok((data, version)) => {
                    let found = envelope::decode_any::<T>(key, &data, self.secret.as_ref())?;
                    let (mark, removed) = match found {
                        Sort::Record(found) => (found.mark, false),
                        Sort::Removed(mark) => (mark, true),
                    };
                    return Ok(Sight::Present { mark, version, removed });
                }
                Err(Error::NotFound(_)) => return Ok(Sight::Absent),
                Err(Error::Unavailable(reason)) => {
                    if !backoff.pause().await {
                        let text = format!(
                            "a write of {key} failed ({failure}) and reading it back did, too: {reason}"
                        );
                        return Err(Error::Unavailable(text));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests;
