//! The requests of a forwarded client that have no reply yet. Pure: no clock, no stream.

use crate::nbd::limits;
use crate::nbd::wire::{self, Garbage, ReplyHead, Request, chunk, command, errno};
use rekindle_base::Kind;
use rekindle_env::Moment;
use rekindle_staging::{Error, Extent};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A request as a client has made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
    /// The bytes of a write. They are kept until its reply is here.
    pub(super) payload: Arc<Vec<u8>>,
}

/// The answer to a request that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Data(Vec<u8>),
    Extents(Vec<Extent>),
}

/// The meaning of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It answers a request.
    Answered,
    /// The host stops, and has not carried the request out: another session will.
    Stopping,
}

/// The requests without a reply, by their cookies, which count the requests of the client.
#[derive(Default)]
pub(super) struct Ledger {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// Count of the replies so far.
    answers: u64,
    /// The reason why there will be no reply any more.
    ended: Option<Error>,
}

struct Entry {
    asked: Asked,
    /// The moment at which it was sent in the present session; `None`: it was not.
    sent: Option<Moment>,
    reply: oneshot::Sender<Result<Answer, Error>>,
}

/// The error that ends a session: its client is hung up on, and may come back.
pub(super) fn given_up(reason: &str) -> Error {
    Error::Forwarded { kind: Kind::Fenced, message: reason.to_owned() }
}

impl Asked {
    pub(super) fn new(command: u16, flags: u16, offset: u64, length: u32) -> Self {
        Self { command, flags, offset, length, payload: Arc::default() }
    }

    fn is_change(&self) -> bool {
        matches!(self.command, command::WRITE | command::TRIM | command::WRITE_ZEROES)
    }

    /// Whether the order of the two matters: both change a byte.
    fn collides(&self, other: &Asked) -> bool {
        let end = |asked: &Asked| asked.offset.saturating_add(u64::from(asked.length));
        self.is_change()
            && other.is_change()
            && self.offset < end(other)
            && other.offset < end(self)
    }
}

impl Ledger {
    pub(super) fn add(&mut self, asked: Asked) -> oneshot::Receiver<Result<Answer, Error>> {
        let (reply, receiver) = oneshot::channel();
        match &self.ended {
            // A receiver that is gone needs no answer.
            Some(error) => drop(reply.send(Err(error.clone()))),
            None => {
                self.entries.insert(self.next, Entry { asked, sent: None, reply });
                self.next += 1;
            }
        }
        receiver
    }

    /// Takes requests that may be sent now, in order, until `bytes_max` are exceeded. A change
    /// waits for an earlier one of the same bytes: a server may carry them out in any order, and a
    /// repeated one may come after a newer one.
    pub(super) fn take(&mut self, now: Moment, bytes_max: usize) -> Vec<(Request, Arc<Vec<u8>>)> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let unsent: Vec<u64> =
            self.entries.iter().filter(|(_, one)| one.sent.is_none()).map(|(at, _)| *at).collect();
        for cookie in unsent {
            if bytes >= bytes_max {
                break;
            }
            let asked = &self.entries[&cookie].asked;
            if self.entries.range(..cookie).any(|(_, earlier)| earlier.asked.collides(asked)) {
                continue;
            }
            let Some(entry) = self.entries.get_mut(&cookie) else { continue };
            entry.sent = Some(now);
            let Asked { command, flags, offset, length, payload } = entry.asked.clone();
            bytes += wire::REQUEST_BYTES + payload.len();
            taken.push((Request { flags, command, cookie, offset, length }, payload));
        }
        taken
    }

    /// Notes that a session has ended: the next one gets all requests without a reply.
    pub(super) fn unsend(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.sent = None);
    }

    /// Returns the bytes that follow the head of a reply.
    pub(super) fn payload_bytes(&self, head: &ReplyHead) -> Result<usize, Garbage> {
        let entry = self.entries.get(&head.cookie()).filter(|entry| entry.sent.is_some());
        let asked = &entry.ok_or(Garbage::Strange)?.asked;
        let ReplyHead::Chunk { kind, length, .. } = *head else { return Ok(0) };
        let most = match (kind, asked.command) {
            (chunk::ERROR, _) => 6 + limits::MESSAGE_BYTES_MAX,
            (chunk::OFFSET_DATA, command::READ) => 8 + asked.length as usize,
            (chunk::BLOCK_STATUS, command::BLOCK_STATUS) => 4 + 8 * limits::EXTENTS_MAX,
            (chunk::NONE, _) => 0,
            _ => return Err(Garbage::Strange),
        };
        let length = length as usize;
        if length <= most { Ok(length) } else { Err(Garbage::Strange) }
    }

    /// Takes a reply, whose head was looked at before.
    pub(super) fn reply(&mut self, head: &ReplyHead, payload: Vec<u8>) -> Result<Meaning, Garbage> {
        let cookie = head.cookie();
        let asked = &self.entries.get(&cookie).ok_or(Garbage::Strange)?.asked;
        let answer = match *head {
            ReplyHead::Simple { errno: 0, .. } if !asked.has_data() => Ok(Answer::Done),
            ReplyHead::Simple { errno: 0, .. } => return Err(Garbage::Strange),
            ReplyHead::Simple { errno, .. } => Err((errno, String::new())),
            ReplyHead::Chunk { kind: chunk::NONE, .. } if !asked.has_data() => Ok(Answer::Done),
            ReplyHead::Chunk { kind: chunk::ERROR, .. } => {
                Err(wire::error_payload(&payload).ok_or(Garbage::Strange)?)
            }
            ReplyHead::Chunk { kind: chunk::OFFSET_DATA, .. } => {
                Ok(Answer::Data(data(asked, payload)?))
            }
            ReplyHead::Chunk { kind: chunk::BLOCK_STATUS, .. } => {
                let spans = wire::status_payload(&payload).ok_or(Garbage::Strange)?;
                Ok(Answer::Extents(extents(asked, &spans)))
            }
            ReplyHead::Chunk { .. } => return Err(Garbage::Strange),
        };
        if matches!(answer, Err((errno::ESHUTDOWN, _))) {
            return Ok(Meaning::Stopping);
        }
        let answer =
            answer.map_err(|(number, message)| Error::Forwarded { kind: kind_of(number), message });
        if let Some(entry) = self.entries.remove(&cookie) {
            self.answers += 1;
            // The client may have gone.
            drop(entry.reply.send(answer));
        }
        Ok(Meaning::Answered)
    }

    /// Answers all requests, also those to come, with an error.
    pub(super) fn end(&mut self, error: &Error) {
        self.ended = Some(error.clone());
        for entry in std::mem::take(&mut self.entries).into_values() {
            drop(entry.reply.send(Err(error.clone())));
        }
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    /// The moment at which the oldest request was sent that has no reply in this session.
    pub(super) fn waits_since(&self) -> Option<Moment> {
        self.entries.values().filter_map(|entry| entry.sent).min()
    }
}

impl Asked {
    fn has_data(&self) -> bool {
        matches!(self.command, command::READ | command::BLOCK_STATUS)
    }
}

/// The data of a read, which must be all that was asked for.
fn data(asked: &Asked, mut payload: Vec<u8>) -> Result<Vec<u8>, Garbage> {
    let (offset, bytes) = payload.split_first_chunk().ok_or(Garbage::Strange)?;
    if u64::from_be_bytes(*offset) != asked.offset || bytes.len() != asked.length as usize {
        return Err(Garbage::Strange);
    }
    payload.drain(..8);
    Ok(payload)
}

/// The extents of a block status, within what was asked for.
fn extents(asked: &Asked, spans: &[(u32, bool)]) -> Vec<Extent> {
    let mut position = asked.offset;
    let extent = |(span, data): &(u32, bool)| {
        let extent = Extent { position, span: u64::from(*span), data: *data };
        position = position.saturating_add(extent.span);
        extent
    };
    spans.iter().map(extent).collect()
}

/// The kind of error whose number a client gets.
fn kind_of(number: u32) -> Kind {
    match number {
        errno::EINVAL => Kind::Invalid,
        errno::ENOSPC => Kind::Full,
        errno::EOPNOTSUPP => Kind::Unsupported,
        _ => Kind::Io,
    }
}
