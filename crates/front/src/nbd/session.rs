//! One client, served to completion on one thread.
//!
//! [`Session::poll_turn`] is the whole of it, a loop without a hop:
//!
//! 1. **Take** every complete request out of the read buffer. A read that hits memory goes from there into the reply
//!    buffer behind its header; a write goes from the read buffer into the log. Both are plain calls.
//! 2. **Cover** all writes that the log has taken by *one* sync, which drives the flash from this thread.
//! 3. **Send** all replies in one write.
//! 4. Look at the **slow** ones: read misses, writes held back by flow control, flushes that wait for others. Each is a
//!    boxed future; meanwhile new requests are read and served.
//! 5. **Read** what has come; if nothing has, linger for some microseconds when clients have been that quick lately;
//!    then sleep.
//!
//! So a client with one request at a time costs one read, one write and one wait in the kernel for each; a client with
//! many costs the same for a whole batch. Backpressure: when replies pile up, or too much is slow, nothing more is taken
//! until that has gone down.

mod commands;

use super::buffers::{Input, Output};
use super::handshake::{Agreed, Link};
use super::limits;
use super::meters::Meters;
use super::replies::{self, Modes};
use super::target::{Error, Extent, Target, Ticket};
use super::wire::{self, Garbage, Request, errno, flag};
use crate::conn::Stop;
use env::boot::Watch;
use env::{BoxFuture, Env, Stream};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// How a session ended.
#[derive(Debug)]
pub(super) enum End {
    /// The client said goodbye, or hung up.
    Client,
    /// The node stops.
    Stopped,
    /// The client cannot be understood any more.
    Garbage(Garbage),
    /// Another daemon serves the volume now. No reply says so: a file system would turn read-only at an error, and waits for
    /// a connection that comes back.
    Fenced,
    /// The stream broke.
    Io(io::Error),
}

/// Writes that the log has taken, and flushes, since the last sync.
#[derive(Default)]
struct Batch {
    /// Writes, by cookie.
    writes: Vec<u64>,
    /// The largest ticket of the writes.
    ticket: Ticket,
    /// Flushes, by cookie.
    flushes: Vec<u64>,
}

/// What a slow request came to.
enum Finished {
    Read {
        cookie: u64,
        offset: u64,
        data: Vec<u8>,
        result: Result<(), Error>,
    },
    /// Write, clear or cache. `held` is what it counted for.
    Plain {
        cookie: u64,
        held: usize,
        result: Result<(), Error>,
    },
    Status {
        request: Request,
        result: Result<Vec<Extent>, Error>,
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
    size: u64,
    modes: Modes,
    batch: Batch,
    /// An empty batch whose memory is used again.
    spare: Batch,
    slow: FuturesUnordered<BoxFuture<'static, Finished>>,
    slow_count: usize,
    /// Bytes that the slow ones hold.
    slow_bytes: usize,
    /// Set once no more requests are taken.
    end: Option<End>,
    stop: Stop,
    meters: Meters,
    /// Until the first reply is out: for the report of the start.
    starting: Option<(Env, Watch)>,
}

/// Serves a client until it goes or `stop` says so.
pub(super) async fn run<D: Target>(env: &Env, link: Link, agreed: Agreed<D>, stop: Stop) -> End {
    let mut session = Session {
        stream: link.stream,
        input: link.input,
        output: link.output,
        size: agreed.device.size(),
        device: agreed.device,
        modes: agreed.modes,
        batch: Batch::default(),
        spare: Batch::default(),
        slow: FuturesUnordered::new(),
        slow_count: 0,
        slow_bytes: 0,
        end: None,
        stop,
        meters: Meters::new(),
        starting: Some((env.clone(), env.watch())),
    };
    poll_fn(|context| session.poll_turn(context)).await
}

impl<D: Target> Session<D> {
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            self.take_requests();
            let was_full = !self.has_room();
            if let Err(error) = self.cover(context).and_then(|()| self.send(context)) {
                return Poll::Ready(End::Io(error));
            }
            let finished = self.poll_slow(context);
            if let Some(End::Fenced) = self.end {
                // What is in the output was acknowledged before.
                let _ = self.send(context);
                return Poll::Ready(End::Fenced);
            }
            // Replies of slow ones want sending; room that was missing may be there now.
            let mut again = finished || (was_full && self.has_room());
            if self.end.is_none() && self.has_room() {
                again |= self.poll_input(context);
            }
            if self.end.is_none() && Pin::new(&mut self.stop).poll(context).is_ready() {
                self.end = Some(End::Stopped);
                again = true;
            }
            if again {
                continue;
            }
            let is_idle = self.end.is_none() && self.slow_count == 0 && self.output.is_empty();
            if is_idle && self.stream.linger() {
                continue;
            }
            self.meters.tell();
            if self.slow_count == 0
                && self.output.is_empty()
                && let Some(end) = self.end.take()
            {
                return Poll::Ready(end);
            }
            return Poll::Pending;
        }
    }

    /// Whether another request may be taken.
    fn has_room(&self) -> bool {
        self.output.len() < limits::REPLY_BYTES_HIGH
            && self.slow_count < limits::SLOW_REQUESTS_MAX
            && self.slow_bytes < limits::SLOW_BYTES_MAX
    }

    /// Reads once. Whether there is something new: bytes, or an end.
    fn poll_input(&mut self, context: &mut Context<'_>) -> bool {
        match self.input.poll_fill(context, &mut *self.stream) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.end = Some(End::Client),
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => self.end = Some(End::Io(error)),
        }
        true
    }

    fn send(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let sent = self.output.poll_send(context, &mut *self.stream)?;
        if sent > 0
            && let Some((env, watch)) = self.starting.take()
        {
            env.boot_over(watch);
        }
        Ok(())
    }

    /// Takes all complete requests for which there is room.
    fn take_requests(&mut self) {
        while self.end.is_none() && self.has_room() {
            let request = match wire::request(self.input.unread()) {
                Ok(Some(request)) => request,
                Ok(None) => return self.input.want(wire::REQUEST_BYTES),
                Err(garbage) => {
                    self.end = Some(End::Garbage(garbage));
                    return;
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
                return self.input.want(total);
            }
            self.execute(request);
            self.input.consume(total);
        }
    }

    /// Syncs what the batch holds: by one call, on this thread, as far as that goes without waiting.
    fn cover(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        // Those who read need not wait for the flash.
        self.send(context)?;
        let batch = std::mem::replace(&mut self.batch, std::mem::take(&mut self.spare));
        let mut covering: BoxFuture<'static, Finished> =
            Box::pin(cover(self.device.clone(), batch));
        match covering.as_mut().poll(context) {
            Poll::Ready(finished) => self.finish(finished),
            Poll::Pending => {
                self.slow_count += 1;
                self.slow.push(covering);
            }
        }
        Ok(())
    }

    /// Replies to the slow ones that are ready. Whether there was one.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        while self.slow_count > 0 && self.output.len() < limits::REPLY_BYTES_HIGH {
            let Poll::Ready(Some(finished)) = self.slow.poll_next_unpin(context) else { break };
            self.slow_count -= 1;
            self.slow_bytes -= finished.held();
            self.finish(finished);
            any = true;
        }
        any
    }

    fn finish(&mut self, finished: Finished) {
        match finished {
            Finished::Read { cookie, offset, data, result } => match result {
                Ok(()) => {
                    let length = u32::try_from(data.len()).unwrap_or(0);
                    let fill = |place: &mut [u8]| {
                        place.copy_from_slice(&data);
                        Ok::<_, std::convert::Infallible>(true)
                    };
                    let Ok(_) =
                        replies::data(&mut self.output, self.modes, (cookie, offset, length), fill);
                }
                Err(error) => self.fail(cookie, &error),
            },
            Finished::Plain { cookie, result, .. } => self.settle(cookie, &result),
            Finished::Status { request, result } => self.tell_status(request, result),
            Finished::Covered { mut batch, synced, flushed } => {
                batch.writes.drain(..).for_each(|cookie| self.settle(cookie, &synced));
                batch.flushes.drain(..).for_each(|cookie| self.settle(cookie, &flushed));
                self.spare = Batch { ticket: Ticket::default(), ..batch };
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

impl Finished {
    /// Bytes it held while it was slow.
    fn held(&self) -> usize {
        match self {
            Finished::Read { data, .. } => data.len(),
            Finished::Plain { held, .. } => *held,
            Finished::Status { .. } | Finished::Covered { .. } => 0,
        }
    }
}

/// One sync for all writes of the batch, then one flush for all its flushes.
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
