//! A mount whose volume another host serves: its bytes go there and back as they are, since the
//! mount itself keeps each request until it has the reply, and sends it again over its next
//! connection.
//!
//! A host that stands still, or is cut off, ends no connection. So requests and replies are
//! counted: while a reply is missing for long, the owner is looked for anew.

use super::frame::{FRAME_BYTES, Frame, Garbage, HELLO_BYTES, Hello, Open};
use super::limits;
use super::wire::{OUT_HEADER_BYTES, has_reply};
use crate::conn::{Pipe, Stop};
use parking_lot::Mutex;
use rekindle_env::{Env, Moment};
use std::future::Future;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// The reason why a passage has ended.
#[derive(Debug)]
pub enum End {
    /// One of the ends hung up.
    HungUp,
    /// The owner runs elsewhere now.
    Moved,
    /// The node stops.
    Stopped,
    /// The mount sent bytes that are no frames.
    Garbage(Garbage),
    Io(io::Error),
}

/// Carries a mount's bytes until either end hangs up, `has_moved` says that the owner runs
/// elsewhere now, or `stop` completes.
pub async fn carry<F: Future<Output = bool>>(
    env: &Env,
    (near, far): (impl Pipe, impl Pipe),
    has_moved: impl Fn() -> F,
    mut stop: Stop,
) -> End {
    let waits = Waits { env, state: Mutex::default(), begun: Notify::new() };
    let (near_reader, near_writer) = tokio::io::split(near);
    let (far_reader, far_writer) = tokio::io::split(far);
    let up = pass(near_reader, far_writer, Requests::default(), |count| waits.sent(count));
    let down = pass(far_reader, near_writer, Replies::default(), |count| waits.replied(count));
    let ended = tokio::select! {
        ended = up => ended,
        ended = down => ended,
        () = waits.look(has_moved) => return End::Moved,
        () = &mut stop => return End::Stopped,
    };
    ended.err().unwrap_or(End::HungUp)
}

/// Carries bytes in one direction. `told` hears of each message before it is passed on.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut messages: impl Messages,
    told: impl Fn(u64),
) -> Result<(), End> {
    let mut buffer = vec![0; limits::PASSED_BYTES];
    loop {
        let length = from.read(&mut buffer).await.map_err(End::Io)?;
        if length == 0 {
            return Ok(());
        }
        told(messages.count(&buffer[..length]).map_err(End::Garbage)?);
        to.write_all(&buffer[..length]).await.map_err(End::Io)?;
        to.flush().await.map_err(End::Io)?;
    }
}

/// Requests without a reply.
struct Waits<'a> {
    env: &'a Env,
    state: Mutex<Waiting>,
    /// Rung when there is one again.
    begun: Notify,
}

#[derive(Default)]
struct Waiting {
    requests: u64,
    /// The moment since which no reply has come, while there are any.
    since: Option<Moment>,
}

impl Waits<'_> {
    fn sent(&self, requests: u64) {
        let mut state = self.state.lock();
        state.requests += requests;
        if state.requests > 0 && state.since.is_none() {
            state.since = Some(self.env.now());
            self.begun.notify_one();
        }
    }

    fn replied(&self, replies: u64) {
        let mut state = self.state.lock();
        state.requests = state.requests.saturating_sub(replies);
        state.since = (state.requests > 0).then(|| self.env.now());
    }

    /// Completes when a reply is missing and the owner runs elsewhere.
    async fn look<F: Future<Output = bool>>(&self, has_moved: impl Fn() -> F) {
        loop {
            let since = self.state.lock().since;
            let Some(since) = since else {
                self.begun.notified().await;
                continue;
            };
            let waited = self.env.now().since(since);
            if waited < limits::PASSAGE_LOOK {
                self.env.sleep(limits::PASSAGE_LOOK - waited).await;
            } else if has_moved().await {
                return;
            } else {
                self.env.sleep(limits::PASSAGE_PAUSE).await;
            }
        }
    }
}

/// A count of the messages in a stream of bytes, each when its first bytes are complete.
trait Messages {
    fn count(&mut self, bytes: &[u8]) -> Result<u64, Garbage>;
}

/// The first bytes of a message, and how much of the last one is still to come.
#[derive(Default)]
struct Heads {
    head: Vec<u8>,
    rest: u64,
}

impl Heads {
    /// Returns the next `N` bytes that begin a message, once they are all there.
    fn next<const N: usize>(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        let skipped = self.rest.min(bytes.len() as u64);
        self.rest -= skipped;
        *bytes = &bytes[skipped as usize..];
        let (taken, rest) = bytes.split_at(bytes.len().min(N - self.head.len()));
        self.head.extend_from_slice(taken);
        *bytes = rest;
        let head = <[u8; N]>::try_from(&self.head[..]).ok()?;
        self.head.clear();
        Some(head)
    }
}

/// The first words of a request: its length and its opcode.
const WORDS_BYTES: usize = 8;

/// What a mount sends: a hello, then requests in frames.
#[derive(Default)]
struct Requests {
    heads: Heads,
    is_greeted: bool,
    /// Bytes of a request whose first words are still to come.
    length: Option<u32>,
}

impl Messages for Requests {
    fn count(&mut self, mut bytes: &[u8]) -> Result<u64, Garbage> {
        let mut count = 0;
        if !self.is_greeted {
            let Some(hello) = self.heads.next::<HELLO_BYTES>(&mut bytes) else { return Ok(0) };
            let opens = u64::from(Hello::decode(hello)?.opens);
            self.heads.rest = opens * size_of::<Open>() as u64;
            self.is_greeted = true;
        }
        loop {
            if let Some(length) = self.length {
                let Some(words) = self.heads.next::<WORDS_BYTES>(&mut bytes) else { break };
                let [_length, opcode]: [u32; 2] = zerocopy::transmute!(words);
                self.heads.rest = u64::from(length) - WORDS_BYTES as u64;
                self.length = None;
                count += u64::from(has_reply(opcode));
            } else {
                let Some(frame) = self.heads.next::<FRAME_BYTES>(&mut bytes) else { break };
                self.length = Some(Frame::decode(frame)?.length);
            }
        }
        Ok(count)
    }
}

/// What the daemon sends: the kernel's replies, each of which begins with its length.
#[derive(Default)]
struct Replies(Heads);

impl Messages for Replies {
    fn count(&mut self, mut bytes: &[u8]) -> Result<u64, Garbage> {
        let mut count = 0;
        while let Some(head) = self.0.next::<OUT_HEADER_BYTES>(&mut bytes) {
            let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
            if length < OUT_HEADER_BYTES as u32 {
                return Err(Garbage::Length(length));
            }
            self.0.rest = u64::from(length) - OUT_HEADER_BYTES as u64;
            // A notice answers no request.
            count += u64::from(head[8..] != [0; 8]);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
