//! One client, served to completion on one thread.
//!
//! [`Session::poll_turn`] is the whole session, a loop without a change of thread:
//!
//! 1. **Take** every complete request out of the read buffer. A read that hits memory goes from
//!    there into the reply buffer behind its header; a write goes from the read buffer into the
//!    log. Both are plain calls.
//! 2. **Cover** all writes that the log has taken by *one* sync; this thread writes to the flash
//!    itself.
//! 3. **Send** all replies in one write.
//! 4. Look at the **slow** requests: read misses, writes held back by flow control, flushes that
//!    wait for others. Each is a boxed future; meanwhile new requests are read and served.
//! 5. **Read** the bytes that have arrived. If there are none, linger for some microseconds when
//!    clients have been that quick lately; then sleep.
//!
//! So a client with one request at a time costs one read, one write and one wait in the kernel for
//! each; a client with many costs the same for a whole batch. Backpressure: while too many bytes of
//! replies or too many slow requests are pending, no more requests are taken.
//!
//! Memory: a session has a share of its own ([`limits::BUFFER_BYTES`] a buffer), which serves every
//! request up to that length. A longer request leases the rest from a budget of all sessions, first
//! come first served. A client that holds memory that others wait for, and moves hardly any bytes,
//! is dropped.

mod commands;
mod slow;
mod writing;

use super::buffers::{Input, Large, Output};
use super::handshake::{Agreed, Link};
use super::limits;
use super::meters::{Asked, Meters};
use super::replies::{self, Modes};
use super::target::Target;
use super::wire::{self, Garbage, Request, errno, flag};
use crate::conn::{Budget, Lease, Stop};
use rekindle_env::boot::Watch;
use rekindle_env::{BoxFuture, Env, Stream};
use rekindle_staging::{Extent, Ticket};
use rekindle_volume::Error;
use slow::{Held, Slow};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use writing::Writing;

/// The reason why a session ended.
#[derive(Debug)]
pub(super) enum End {
    /// The client said goodbye, or hung up.
    Client,
    /// The node stops.
    Stopped,
    /// The client sent bytes that are not NBD.
    Garbage(Garbage),
    /// Another daemon serves the volume now. The client gets no reply about it: a file system would
    /// turn read-only at an error, but waits for a connection that comes back.
    Fenced,
    /// The stream broke.
    Io(io::Error),
    /// The client moved hardly any bytes while it held memory that others wait for.
    Stalled,
}

/// Writes that the log has taken, and flushes, since the last sync.
#[derive(Default)]
struct Batch {
    /// Writes, by cookie.
    writes: Vec<(u64, Option<Asked>)>,
    /// The largest ticket of the writes.
    ticket: Ticket,
    /// Bytes of the writes.
    bytes: usize,
    /// Flushes, by cookie.
    flushes: Vec<(u64, Option<Asked>)>,
}

/// The result of a slow request.
enum Finished {
    Read {
        cookie: u64,
        /// Head and data.
        reply: Vec<u8>,
        result: Result<(), Error>,
        lease: Option<Lease>,
    },
    /// A long read, with a buffer that the session uses again.
    Large {
        cookie: u64,
        large: Large,
        result: Result<(), Error>,
    },
    /// A write, clear or cache.
    Plain {
        cookie: u64,
        result: Result<(), Error>,
        _lease: Option<Lease>,
    },
    Status {
        request: Request,
        result: Result<Vec<Extent>, Error>,
        _lease: Option<Lease>,
    },
    Covered {
        batch: Batch,
        synced: Result<(), Error>,
        flushed: Result<(), Error>,
    },
}

pub(super) struct Session<D> {
    stream: Box<dyn Stream>,
    input: Input,
    output: Output,
    device: D,
    modes: Modes,
    batch: Batch,
    /// An empty batch whose memory is used again.
    spare: Batch,
    writing: Writing,
    slow: Slow,
    /// The budget for memory beyond the session's own share.
    budget: Budget,
    /// The lease that the next request waits for.
    asking: Option<BoxFuture<'static, Lease>>,
    /// The timer of the next check; set while there are large buffers.
    tick: Option<BoxFuture<'static, ()>>,
    /// Bytes that have moved since the last tick.
    sent: usize,
    received: usize,
    /// Bytes by which the client is behind [`limits::RATE_BYTES_MIN`], counted while others wait
    /// for what this session holds.
    behind: usize,
    /// The timer of a stopping node that waits for the client to take its replies.
    patience: Option<BoxFuture<'static, ()>>,
    is_stopping: bool,
    /// The timer of the next look at a client that does not read or has said goodbye.
    look: Option<BoxFuture<'static, ()>>,
    /// Whether the client has hung up in both directions.
    is_gone: bool,
    env: Env,
    /// The reason to end; set once no more requests are taken.
    end: Option<End>,
    stop: Stop,
    meters: Meters,
    /// The current request, until it is answered or becomes a slow one.
    asked: Option<Asked>,
    /// The watch of the start, for its report; until the first reply is sent.
    starting: Option<Watch>,
}

/// Serves a client until it leaves or `stop` completes.
pub(super) async fn run<D: Target>(
    env: &Env,
    link: Link,
    agreed: Agreed<D>,
    budget: Budget,
    stop: Stop,
) -> End {
    let mut session = Session {
        stream: link.stream,
        input: link.input,
        output: link.output,
        device: agreed.device,
        modes: agreed.modes,
        batch: Batch::default(),
        spare: Batch::default(),
        writing: Writing::default(),
        slow: Slow::default(),
        budget,
        asking: None,
        tick: None,
        sent: 0,
        received: 0,
        behind: 0,
        patience: None,
        is_stopping: false,
        look: None,
        is_gone: false,
        env: env.clone(),
        end: None,
        stop,
        meters: Meters::new(agreed.meters),
        asked: None,
        starting: Some(env.watch()),
    };
    poll_fn(|context| session.poll_turn(context)).await
}

impl<D: Target> Session<D> {
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            let is_starved = self.take_requests();
            let was_full = !self.has_room();
            if let Err(error) = self.cover(context).and_then(|()| self.send(context)) {
                return Poll::Ready(End::Io(error));
            }
            let finished = self.poll_slow(context);
            if let Some(End::Fenced) = self.end {
                // The output holds only replies to changes that were acknowledged before.
                let _ = self.send(context);
                return Poll::Ready(End::Fenced);
            }
            // Replies of slow requests must be sent; they may also have made room.
            let mut again = finished || (was_full && self.has_room());
            again |= self.writing.poll(context);
            if self.end.is_none() {
                again |= match self.poll_lease(context) {
                    Some(granted) => granted,
                    // At the end of the stream no complete request is left over.
                    None => is_starved && self.has_room() && self.poll_input(context),
                };
            }
            if !self.is_stopping && Pin::new(&mut self.stop).poll(context).is_ready() {
                self.is_stopping = true;
                self.asking = None;
                self.end.get_or_insert(End::Stopped);
                again = true;
            }
            if again {
                continue;
            }
            let is_idle = self.end.is_none()
                && self.is_quiet()
                && self.asking.is_none()
                && !self.writing.is_waiting();
            if is_idle && self.stream.linger() {
                continue;
            }
            self.meters.tell();
            if self.tidy(context) {
                return Poll::Ready(End::Stalled);
            }
            self.notice_hangup(context);
            let is_over = self.is_quiet() || (self.is_gone && self.slow.changes == 0);
            if (is_over || self.is_out_of_patience(context))
                && let Some(end) = self.end.take()
            {
                return Poll::Ready(end);
            }
            return Poll::Pending;
        }
    }

    /// Whether the limits permit another request.
    fn has_room(&self) -> bool {
        self.output.len() < limits::REPLY_BYTES_HIGH
            && self.slow.count < limits::SLOW_REQUESTS_MAX
            && self.slow.bytes < limits::SLOW_BYTES_MAX
            && self.slow.own <= limits::BUFFER_BYTES
    }

    /// Whether no request is under way and no reply is unsent.
    fn is_quiet(&self) -> bool {
        self.slow.count == 0 && self.output.is_empty()
    }

    /// Polls the lease for the next request; returns whether it has been granted. `None` when none
    /// is asked for.
    fn poll_lease(&mut self, context: &mut Context<'_>) -> Option<bool> {
        match self.asking.as_mut()?.as_mut().poll(context) {
            Poll::Pending => Some(false),
            Poll::Ready(lease) => {
                self.asking = None;
                self.input.grow(lease);
                Some(true)
            }
        }
    }

    /// Gives back large buffers some time after their last use. Returns whether the client must be
    /// dropped: it holds memory that others wait for, and has moved hardly any bytes for long.
    fn tidy(&mut self, context: &mut Context<'_>) -> bool {
        loop {
            let leased = self.slow.bytes > self.slow.own;
            if !(leased || self.input.is_large() || self.output.is_large()) {
                self.tick = None;
                self.behind = 0;
                return false;
            }
            let tick = self.tick.get_or_insert_with(|| self.env.sleep(limits::TIDY_INTERVAL));
            if tick.as_mut().poll(context).is_pending() {
                return false;
            }
            self.tick = None;
            // Bytes in one direction do not make up for those that are stuck in the other.
            let (sent, received) =
                (std::mem::take(&mut self.sent), std::mem::take(&mut self.received));
            let waits_for_bytes = self.input.is_large()
                && self.input.is_begun()
                && self.asking.is_none()
                && self.has_room();
            if !self.output.is_empty() || waits_for_bytes {
                let moved = if self.output.is_empty() { received } else { sent };
                let due = if self.budget.is_wanted() { limits::RATE_BYTES_MIN } else { 0 };
                self.behind = (self.behind + due).saturating_sub(moved);
            } else {
                self.behind = 0;
                if sent + received == 0 {
                    self.input.relax(false);
                    self.output.relax(self.is_quiet());
                }
            }
            if self.behind >= limits::STALLED_LOOKS_MAX * limits::RATE_BYTES_MIN {
                return true;
            }
        }
    }

    /// Whether the node stops, all changes are done, and the client has taken no reply for a
    /// moment. Nothing waits for such a client; its reads may wait for memory that other such
    /// clients hold.
    fn is_out_of_patience(&mut self, context: &mut Context<'_>) -> bool {
        if !self.is_stopping || self.slow.changes > 0 || self.output.is_empty() {
            self.patience = None;
            return false;
        }
        let patience = self.patience.get_or_insert_with(|| self.env.sleep(limits::STOP_PATIENCE));
        patience.as_mut().poll(context).is_ready()
    }

    /// Looks each second whether a client that is waited for has hung up for good. No reply reaches
    /// it, so only its changes go on: a read may wait for the store for ever.
    fn notice_hangup(&mut self, context: &mut Context<'_>) {
        while !self.is_gone && self.slow.count > 0 && (self.end.is_some() || !self.has_room()) {
            let look = self.look.get_or_insert_with(|| self.env.sleep(limits::TIDY_INTERVAL));
            if look.as_mut().poll(context).is_pending() {
                return;
            }
            self.look = None;
            if self.stream.is_closed() {
                self.is_gone = true;
                self.end.get_or_insert(End::Client);
            }
        }
        self.look = None;
    }

    /// Reads once; returns whether there is news: bytes, or an end.
    fn poll_input(&mut self, context: &mut Context<'_>) -> bool {
        match self.input.poll_fill(context, &mut *self.stream) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.end = Some(End::Client),
            Poll::Ready(Ok(count)) => self.received += count,
            Poll::Ready(Err(error)) => self.end = Some(End::Io(error)),
        }
        true
    }

    fn send(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let sent = self.output.poll_send(context, &mut *self.stream)?;
        if sent > 0 {
            self.sent += sent;
            self.patience = None;
            if let Some(watch) = self.starting.take() {
                self.env.boot_over(watch);
            }
            if self.budget.is_wanted() {
                self.output.relax(false);
            }
        }
        Ok(())
    }

    /// Takes all complete requests for which there is room. Returns whether it stopped for lack of
    /// bytes.
    fn take_requests(&mut self) -> bool {
        let is_starved = self.take_while_admitted();
        self.writing.end_quantum();
        if self.end.is_some() {
            // Else the session would be the first of the queue for as long as its requests last.
            self.writing.give_up();
        }
        is_starved
    }

    fn take_while_admitted(&mut self) -> bool {
        while self.end.is_none() && self.has_room() {
            let request = match wire::request(self.input.unread()) {
                Ok(Some(request)) => request,
                Ok(None) => {
                    self.input.want(wire::REQUEST_BYTES);
                    return true;
                }
                Err(garbage) => {
                    self.end = Some(End::Garbage(garbage));
                    return false;
                }
            };
            let payload = request.payload_bytes();
            if payload > limits::PAYLOAD_BYTES_MAX {
                self.input.consume(wire::REQUEST_BYTES);
                self.input.skip(u64::from(payload));
                self.refuse(
                    request.cookie,
                    errno::EINVAL,
                    "longer than the 32 MiB that were advertised",
                );
                continue;
            }
            let total = wire::REQUEST_BYTES + payload as usize;
            if self.input.unread().len() < total {
                if !self.input.holds(total) && self.asking.is_none() {
                    // A session that waits for memory holds none: two of them could wait for each
                    // other.
                    self.input.relax(false);
                    self.asking = Some(Box::pin(self.budget.lease(Input::room(total))));
                }
                self.input.want(total);
                return true;
            }
            if !self.execute(request) {
                return false;
            }
            self.input.consume(total);
            self.input.settle(!self.budget.is_wanted());
        }
        false
    }

    /// Syncs the writes and flushes of the batch: by one call, on this thread, as far as that goes
    /// without waiting.
    fn cover(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        // The replies to reads need not wait for the flash.
        self.send(context)?;
        let batch = std::mem::replace(&mut self.batch, std::mem::take(&mut self.spare));
        let bytes = batch.bytes;
        let mut covering: BoxFuture<'static, Finished> =
            Box::pin(cover(self.device.clone(), batch));
        match covering.as_mut().poll(context) {
            Poll::Ready(finished) => self.finish(finished),
            Poll::Pending => self.slow.push(Held::default().of_change(bytes), None, covering),
        }
        Ok(())
    }

    /// Replies to the slow requests that are ready; returns whether there was one.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        // At a stop no request waits for a client that does not read.
        while self.is_stopping || self.output.len() < limits::REPLY_BYTES_HIGH {
            let Some((asked, finished)) = self.slow.poll_next(context) else { break };
            self.finish(finished);
            if let Some(asked) = asked {
                self.meters.answered(asked, self.env.now());
            }
            any = true;
        }
        any
    }

    fn finish(&mut self, finished: Finished) {
        match finished {
            Finished::Large { cookie, large, result } => match result {
                Ok(()) => self.output.push(large),
                Err(error) => self.fail(cookie, &error),
            },
            Finished::Read { cookie, reply, result, lease } => match result {
                Ok(()) => self.output.push_own(reply, lease),
                Err(error) => self.fail(cookie, &error),
            },
            Finished::Plain { cookie, result, .. } => self.settle(cookie, &result),
            Finished::Status { request, result, .. } => self.tell_status(request, result),
            Finished::Covered { mut batch, synced, flushed } => {
                let now = self.env.now();
                let replies = batch.writes.drain(..).map(|write| (write, &synced));
                for ((cookie, asked), result) in
                    replies.chain(batch.flushes.drain(..).map(|flush| (flush, &flushed)))
                {
                    self.settle(cookie, result);
                    if let Some(asked) = asked {
                        self.meters.answered(asked, now);
                    }
                }
                self.spare = Batch { ticket: Ticket::default(), bytes: 0, ..batch };
            }
        }
    }

    fn settle(&mut self, cookie: u64, result: &Result<(), Error>) {
        match result {
            Ok(()) => replies::done(&mut self.output, cookie),
            Err(error) => self.fail(cookie, error),
        }
    }

    fn tell_status(&mut self, request: Request, result: Result<Vec<Extent>, Error>) {
        let Request { cookie, offset, length, .. } = request;
        let one = request.flags & flag::REQ_ONE != 0;
        match result {
            Ok(extents)
                if replies::block_status(
                    &mut self.output,
                    (cookie, offset, length),
                    one,
                    &extents,
                ) => {}
            Ok(_) => self.refuse(cookie, errno::EIO, "the volume does not know its extents"),
            Err(error) => self.fail(cookie, &error),
        }
    }
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.flushes.is_empty()
    }
}

/// Syncs once for all writes of the batch, then flushes once for all its flushes.
async fn cover<D: Target>(device: D, batch: Batch) -> Finished {
    let synced = if batch.writes.is_empty() { Ok(()) } else { device.sync(batch.ticket).await };
    let flushed = match (&synced, batch.flushes.is_empty()) {
        (Err(error), _) => Err(error.clone()),
        (Ok(()), true) => Ok(()),
        (Ok(()), false) => device.flush().await,
    };
    Finished::Covered { batch, synced, flushed }
}

#[cfg(test)]
mod tests;
