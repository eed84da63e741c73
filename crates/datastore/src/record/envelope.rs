//! The form of a record in the store: JSON that users can read. See `docs/format/record.md`.

use super::Body;
use super::seal::{self, Seal};
use crate::Error;
use crate::limits::{RECORD_BYTES_MAX, RECORD_HISTORY_MAX};
use crate::secret::Secret;
use bytes::Bytes;
use rekindle_base::{Incarnation, Life, NodeId};
use rekindle_env::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A random number that tells one write from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(pub u64);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Nonce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = Some(text)
            .filter(|text| text.len() == 16)
            .and_then(|text| u64::from_str_radix(text, 16).ok());
        number
            .map(Nonce)
            .ok_or_else(|| format!("'{text}' is not a nonce: 16 hexadecimal digits are expected"))
    }
}

impl Serialize for Nonce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Nonce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The nonces of the writes before this one, the latest first; one line of text, for readability.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History(pub Vec<Nonce>);

impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let words: Vec<String> = self.0.iter().map(Nonce::to_string).collect();
        serializer.serialize_str(&words.join(" "))
    }
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let nonces = text.split_whitespace().take(RECORD_HISTORY_MAX).map(str::parse);
        nonces.collect::<Result<_, String>>().map(History).map_err(serde::de::Error::custom)
    }
}

/// The write that made a record's content, and the writes before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The nonce of the write.
    pub nonce: Nonce,
    /// The number of writes of the record, this one included.
    pub edition: u64,
    /// The previous writes, the latest first, as far as they are remembered.
    pub before: History,
}

impl Mark {
    /// Makes the mark of a new record.
    pub(super) fn first(nonce: Nonce) -> Self {
        Self { nonce, edition: 1, before: History::default() }
    }

    /// Makes the mark of the write that follows.
    pub(super) fn next(&self, nonce: Nonce) -> Self {
        let mut before = vec![self.nonce];
        before.extend(self.before.0.iter().copied().take(RECORD_HISTORY_MAX - 1));
        Self { nonce, edition: self.edition.saturating_add(1), before: History(before) }
    }
}

/// A record of any kind, taken apart; the body is undecoded JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// The kind of record: [`Body::WHAT`].
    pub what: String,
    /// The version of the body's format.
    pub format: u32,
    /// The life that wrote the record; incarnation 0 when the record does not name one.
    pub writer: Life,
    /// The mark of the write.
    pub mark: Mark,
    /// The seal that vouches for the record's bytes.
    pub seal: Seal,
    /// The time of the write.
    pub written: Timestamp,
    /// The body.
    pub body: serde_json::Value,
}

/// The trace in the place of a record that was removed where the store cannot remove under a
/// condition. Readers see no record, and a writer that makes the record again replaces the trace.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Removed {
    /// The kind of the removed record.
    pub(super) kind: String,
}

impl Body for Removed {
    const WHAT: &'static str = "removed record";
    const FORMAT: u32 = 1;
}

/// A record of one kind, or the trace of a removed one.
pub(super) enum Sort<T> {
    Record(Decoded<T>),
    Removed(Mark),
}

/// The part that tells whether the rest can be read.
#[derive(Deserialize)]
struct Head {
    rekindle: String,
    format: u32,
}

#[derive(Serialize)]
struct Written<'a, T> {
    rekindle: &'a str,
    format: u32,
    writer: NodeId,
    incarnation: Incarnation,
    nonce: Nonce,
    edition: u64,
    before: &'a History,
    written: u64,
    body: &'a T,
}

#[derive(Deserialize)]
struct ReadEnvelope<T> {
    writer: NodeId,
    incarnation: Option<Incarnation>,
    nonce: Nonce,
    #[serde(default)]
    edition: u64,
    #[serde(default)]
    before: History,
    #[serde(default)]
    written: u64,
    body: T,
}

impl<T> ReadEnvelope<T> {
    fn writer(&self) -> Life {
        Life { node: self.writer, incarnation: self.incarnation.unwrap_or_default() }
    }
}

/// A record of one kind, taken apart.
pub(super) struct Decoded<T> {
    pub(super) value: T,
    pub(super) mark: Mark,
    pub(super) writer: Life,
    pub(super) seal: Seal,
}

/// Encodes a record as bytes; with a proof when the secret of the store is known.
pub(super) fn encode<T: Body>(
    key: &str,
    value: &T,
    writer: Life,
    mark: &Mark,
    written: Timestamp,
    secret: Option<&Secret>,
) -> Result<Bytes, Error> {
    // A value that every reader would reject is not written.
    value.check().map_err(|reason| Error::Invalid(format!("{key} cannot be written: {reason}")))?;
    let record = Written {
        rekindle: T::WHAT,
        format: T::FORMAT,
        writer: writer.node,
        incarnation: writer.incarnation,
        nonce: mark.nonce,
        edition: mark.edition,
        before: &mark.before,
        written: written.0,
        body: value,
    };
    let bytes = serde_json::to_vec_pretty(&record)
        .map_err(|error| Error::Invalid(format!("{key} cannot be written as JSON: {error}")))?;
    let own = value.own_secret();
    let bytes = seal::close(bytes, own.as_ref().or(secret));
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "{key} would have {} bytes, at most {RECORD_BYTES_MAX} are possible",
            bytes.len()
        )));
    }
    Ok(Bytes::from(bytes))
}

/// Takes a record of any kind and version apart, for `inspect`. Total: any bytes give an envelope
/// or an error.
pub fn decode(key: &str, bytes: &[u8]) -> Result<Envelope, Error> {
    let (head, seal) = head(key, bytes, None)?;
    let found: ReadEnvelope<serde_json::Value> = parse(key, bytes)?;
    check_sealed(key, seal, found.incarnation)?;
    Ok(Envelope {
        what: head.rekindle,
        format: head.format,
        writer: found.writer(),
        mark: Mark { nonce: found.nonce, edition: found.edition, before: found.before },
        seal,
        written: Timestamp(found.written),
        body: found.body,
    })
}

/// Takes a record of one kind apart: its body and its mark. Total, as [`decode`].
///
/// The checksum is verified. The proof is not: that takes a [`super::Writer`] that knows the
/// secret.
pub fn decode_as<T: Body>(key: &str, bytes: &[u8]) -> Result<(T, Mark), Error> {
    decode_with(key, bytes, None).map(|found| (found.value, found.mark))
}

/// Takes a record apart as [`decode_as`] does. Verifies a proof, too, when the secret is known.
pub(super) fn decode_with<T: Body>(
    key: &str,
    bytes: &[u8],
    secret: Option<&Secret>,
) -> Result<Decoded<T>, Error> {
    let damaged = |reason| Error::Damaged { key: key.to_owned(), reason };
    let (head, seal) = head(key, bytes, secret)?;
    if head.rekindle != T::WHAT {
        let reason = format!("it is a '{}', a '{}' was expected", head.rekindle, T::WHAT);
        return Err(damaged(reason));
    }
    if head.format > T::FORMAT {
        return Err(Error::Newer { key: key.to_owned(), found: head.format, known: T::FORMAT });
    }
    let found: ReadEnvelope<T> = parse(key, bytes)?;
    check_sealed(key, seal, found.incarnation)?;
    if let Some(own) = found.body.own_secret() {
        seal::open(bytes, Some(&own)).map_err(damaged)?;
    }
    found.body.check().map_err(damaged)?;
    let writer = found.writer();
    let mark = Mark { nonce: found.nonce, edition: found.edition, before: found.before };
    Ok(Decoded { value: found.body, mark, writer, seal })
}

/// Takes a record apart as [`decode_with`] does, or the trace of a removed one.
pub(super) fn decode_any<T: Body>(
    key: &str,
    bytes: &[u8],
    secret: Option<&Secret>,
) -> Result<Sort<T>, Error> {
    match decode_with::<T>(key, bytes, secret) {
        Ok(found) => Ok(Sort::Record(found)),
        Err(error) => match decode_with::<Removed>(key, bytes, secret) {
            Ok(trace) => Ok(Sort::Removed(trace.mark)),
            Err(_) => Err(error),
        },
    }
}

/// Rejects a record with an incarnation and no checksum. Both were introduced together, so that
/// record has lost its checksum.
fn check_sealed(key: &str, seal: Seal, incarnation: Option<Incarnation>) -> Result<(), Error> {
    if seal == Seal::None && incarnation.is_some() {
        let reason = "its checksum is gone: some of its bytes have changed".to_owned();
        return Err(Error::Damaged { key: key.to_owned(), reason });
    }
    Ok(())
}

/// Verifies the seal of a record before anything in it is believed, its format included.
fn head(key: &str, bytes: &[u8], secret: Option<&Secret>) -> Result<(Head, Seal), Error> {
    let damaged = |reason| Error::Damaged { key: key.to_owned(), reason };
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(damaged(format!(
            "it has {} bytes, a record has at most {RECORD_BYTES_MAX}",
            bytes.len()
        )));
    }
    let seal = seal::open(bytes, secret).map_err(damaged)?;
    Ok((parse(key, bytes)?, seal))
}

fn parse<'a, T: Deserialize<'a>>(key: &str, bytes: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| Error::Damaged {
        key: key.to_owned(),
        reason: format!("it is not a record of rekindle: {error}"),
    })
}
