//! Mutable truths: small JSON objects, changed only by conditional write.
//!
//! A conditional write can lie both ways: a lost answer or a client's retry reports a write as failed that landed, and
//! a server may answer "conflict" though nothing changed. So each write carries a nonce, and a record remembers the
//! nonces of the last writes: after any failure it is read back, and what lies there tells who won, even when somebody
//! has written on top in the meantime.

mod copies;
mod envelope;
mod judge;
mod seal;

pub use copies::Copies;
pub use envelope::{Envelope, History, Mark, Nonce, decode, decode_as};
pub use seal::Seal;

use crate::backoff::{Backoff, Policy};
use crate::identity::Secret;
use crate::{Error, Removal, Store, Version};
use base::{Incarnation, Life, NodeId};
use bytes::Bytes;
use copies::{Hand, Shelf};
use env::Env;
use envelope::Sort;
use judge::{Verdict, judge};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// The version of a write of ours that somebody has written over: matches nothing, and looks like any ETag.
const SUPERSEDED: &str = "\"00000000000000000000000000000000\"";

/// Who writes records here; its nonces tell our own writes from others'.
#[derive(Clone)]
pub struct Writer {
    /// The machine.
    pub env: Env,
    /// The store.
    pub store: Store,
    /// The node.
    pub node: NodeId,
    /// Which of its starts; 0 until that is known.
    incarnation: Incarnation,
    /// What records are proved with, once it is known.
    secret: Option<Secret>,
    shelf: Option<Shelf>,
}

/// A record as it was read or written last.
#[derive(Debug, Clone)]
pub struct Held<T> {
    /// The key.
    pub key: String,
    /// The content.
    pub value: T,
    /// For the next conditional write.
    pub version: Version,
    /// Which write this is.
    mark: Mark,
    writer: Life,
    seal: Seal,
}

impl<T> Held<T> {
    /// Who wrote it: another life than ours means that ours is over, wherever only we may write. Start 0 when the
    /// record does not say which start it was.
    #[must_use]
    pub fn writer(&self) -> Life {
        self.writer
    }

    /// What vouches for its bytes.
    #[must_use]
    pub fn seal(&self) -> Seal {
        self.seal
    }

    fn of(key: &str, version: Version, found: envelope::Decoded<T>) -> Self {
        let envelope::Decoded { value, mark, writer, seal } = found;
        Self { key: key.to_owned(), value, version, mark, writer, seal }
    }

    /// Which write of the record this is, and which came before.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }
}

/// What kind of record: its name in messages and the newest format version known.
pub trait Body: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// For messages: "vault", "node record".
    const WHAT: &'static str;
    /// Format version written; anything newer is refused.
    const FORMAT: u32;
    /// Whether copies of it are kept (see [`Copies`]): only of records that nobody but their owner writes.
    const COPIED: bool = false;

    /// Whether the fields mean something together: called whenever a record is read, and before it is written. The
    /// error names what is wrong; the record is then damaged.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The secret that proves this very record: of the record that holds the secret.
    fn own_secret(&self) -> Option<Secret> {
        None
    }
}

/// A conditional write, to be carried out until its outcome is known.
struct Attempt<'a> {
    key: &'a str,
    data: Bytes,
    mark: Mark,
    /// What it replaces: the version to name and the nonce to recognise. `None` when nothing may be there.
    base: Option<(&'a Version, Nonce)>,
}

/// What lies in the store after an attempt.
enum Sight {
    Absent,
    /// The mark of a record, or of the trace of a removed one.
    Present {
        mark: Mark,
        version: Version,
        removed: bool,
    },
}

/// Why a write did not win.
enum Failure {
    /// This.
    Is(Error),
    /// In place of the record that was to be made lies the trace of a removed one.
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

impl Writer {
    /// A writer without copies, of a life that is not known yet.
    #[must_use]
    pub fn new(env: Env, store: Store, node: NodeId) -> Self {
        Self { env, store, node, incarnation: Incarnation(0), secret: None, shelf: None }
    }

    /// The same writer, which says in each record which start of the node it is.
    #[must_use]
    pub fn with_incarnation(self, incarnation: Incarnation) -> Self {
        Self { incarnation, ..self }
    }

    /// The same writer, which proves each record with the secret of the store and believes no proof made with another.
    #[must_use]
    pub fn with_secret(self, secret: Secret) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// Who writes.
    #[must_use]
    pub fn life(&self) -> Life {
        Life { node: self.node, incarnation: self.incarnation }
    }

    /// The same writer, with copies of what it writes.
    #[must_use]
    pub fn with_copies(self, copies: Arc<dyn Copies>) -> Self {
        Self { shelf: Some(Shelf::new(copies)), ..self }
    }

    /// The copy of a record. Who uses it must know that nobody else has written the record since: its owner does.
    #[must_use]
    pub fn copy<T: Body>(&self, key: &str) -> Option<Held<T>> {
        self.shelf.as_ref()?.find(key, self.secret.as_ref())
    }

    /// What [`Writer::keep_hint`] has kept under a key. It may be outdated.
    #[must_use]
    pub fn hint(&self, key: &str) -> Option<Vec<u8>> {
        self.shelf.as_ref()?.hint(key)
    }

    /// Keeps bytes beside the copies, that somebody will look for and verify.
    pub fn keep_hint(&self, key: &str, bytes: &[u8]) {
        if let Some(shelf) = &self.shelf {
            shelf.keep_hint(key, bytes);
        }
    }

    /// As [`Writer::read`], and keeps a copy.
    pub async fn read_and_keep<T: Body>(&self, key: &str) -> Result<Option<Held<T>>, Error> {
        let hand = self.hand::<T>(key);
        let Some((held, data)) = self.read_with_data(key).await? else { return Ok(None) };
        if let Some(hand) = hand {
            hand.keep(&held.version, &data);
        }
        Ok(Some(held))
    }

    /// Begins an operation on a record of which copies are kept.
    fn hand<'a, T: Body>(&'a self, key: &'a str) -> Option<Hand<'a>> {
        self.shelf.as_ref().filter(|_| T::COPIED).map(|shelf| shelf.begin(key))
    }

    /// Reads a record; `None` when it does not exist.
    pub async fn read<T: Body>(&self, key: &str) -> Result<Option<Held<T>>, Error> {
        Ok(self.read_with_data(key).await?.map(|(held, _)| held))
    }

    async fn read_with_data<T: Body>(&self, key: &str) -> Result<Option<(Held<T>, Bytes)>, Error> {
        let (data, version) = match self.store.get(key).await {
            Ok(found) => found,
            Err(Error::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        match envelope::decode_any(key, &data, self.secret.as_ref())? {
            Sort::Record(found) => Ok(Some((Held::of(key, version, found), data))),
            Sort::Removed(_) => Ok(None),
        }
    }

    /// Makes a record. [`Error::Exists`] when somebody else's is there. After any failure the record is read back:
    /// ours (by nonce) means won.
    pub async fn create<T: Body>(&self, key: &str, value: T) -> Result<Held<T>, Error> {
        let mark = Mark::first(Nonce(self.env.random_u64()));
        match self.write(key, value.clone(), mark, None).await {
            Ok(held) => Ok(held),
            Err(Failure::Is(error)) => Err(error),
            // The trace of a removed record is replaced: of several that try, one wins.
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

    /// Removes a record that is still as `held` says; success when that is gone already, even if another one was made in
    /// its place. [`Error::Conflict`] when it has changed. What others have written stays, always. Where the store
    /// cannot remove under a condition, a trace of it is left in place of the record: [`Writer::read`] sees nothing
    /// there, and [`Writer::create`] replaces it.
    pub async fn remove<T: Body>(&self, held: &Held<T>) -> Result<(), Error> {
        if held.version.0 == SUPERSEDED {
            return Err(Error::Conflict(held.key.clone()));
        }
        let hand = self.hand::<T>(&held.key);
        if let Some(hand) = &hand {
            hand.forget();
        }
        let mut backoff = Backoff::new(&self.env, Policy::RECORDS);
        loop {
            let failure = match self.store.delete_if(&held.key, &held.version).await {
                Ok(Removal::Done) => return Ok(()),
                Ok(Removal::Unsupported) => break,
                Err(error @ Error::Invalid(_)) => return Err(error),
                Err(error) => error,
            };
            match self.look::<T>(&held.key, &failure, &mut backoff).await? {
                Sight::Absent => return Ok(()),
                Sight::Present { mark: seen, .. } => match judge(&held.mark, None, &seen) {
                    Verdict::Won | Verdict::Unchanged => {}
                    // Nobody has written on top of it, and yet it is not there: it was removed, and this is another.
                    Verdict::Lost => return Ok(()),
                    _ => return Err(Error::Conflict(held.key.clone())),
                },
            }
            if matches!(failure, Error::Full(_) | Error::Refused(_)) {
                return Err(failure);
            }
            if !backoff.pause().await {
                let text = format!("{} cannot be removed: {failure}", held.key);
                return Err(Error::Unavailable(text));
            }
        }
        let mark = held.mark.next(Nonce(self.env.random_u64()));
        let trace = envelope::Removed { kind: T::WHAT.to_owned() };
        let data = self.encode(&held.key, &trace, &mark)?;
        let base = Some((&held.version, held.mark.nonce));
        let attempt = Attempt { key: &held.key, data, mark, base };
        self.settle::<T>(&attempt).await.map(drop).map_err(Failure::plain)
    }

    /// Replaces a record that is still as `held` says. [`Error::Conflict`] when it is not. After any failure the
    /// record is read back and judged: won, lost, or unchanged so try again (within the retry budget, then
    /// [`Error::Unavailable`], and then the outcome is open: read before the next attempt).
    ///
    /// A write that landed but was written over before it could be seen is a success, too; the next `replace` with its
    /// result gives [`Error::Conflict`].
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
        let hand = self.hand::<T>(key);
        if let Some(hand) = &hand {
            hand.forget();
        }
        let seal = if self.secret.is_some() { Seal::Proof } else { Seal::Sum };
        let version = self.settle::<T>(&attempt).await?;
        if let Some(hand) = hand.filter(|_| version.0 != SUPERSEDED) {
            hand.keep(&version, &attempt.data);
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

    /// Carries out a write until it has won or lost. All attempts are the same bytes, so that a late one that lands
    /// after its answer was given up does no harm.
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
            // Full and refused are answers; the rest may be better next time.
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

    /// Reads back, as often as the budget permits.
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
