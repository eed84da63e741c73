//! The commands of a session: each is checked, then done at once, staged, or put among the slow
//! ones.

use super::slow::Held;
use super::{End, Finished, Session};
use crate::conn::Lease;
use crate::nbd::buffers::Large;
use crate::nbd::limits;
use crate::nbd::replies;
use crate::nbd::target::Target;
use crate::nbd::wire::{self, Request, command, errno, flag};
use rekindle_base::Kind;
use rekindle_staging::Written;
use rekindle_volume::Error;
use std::future::Future;

/// What a client is told that changes a snapshot.
const READ_ONLY: &str = "a snapshot cannot be changed";

impl<D: Target> Session<D> {
    /// Executes a request. Returns `false` for a write whose quantum must come first: it is
    /// executed again then.
    pub(super) fn execute(&mut self, request: Request) -> bool {
        if self.asked.is_none() {
            let asked = self.meters.request(request.command, request.length, self.env.now());
            self.asked = Some(asked);
        }
        match request.command {
            command::DISC => {
                // DISC has no reply.
                self.asked = None;
                self.end = Some(End::Client);
            }
            command::FLUSH if !request.has_only(flag::FUA) => self.refuse_flags(request),
            command::FLUSH => self.batch.flushes.push((request.cookie, self.asked.take())),
            command::READ => self.read(request),
            command::WRITE => {
                if !self.write(request) {
                    return false;
                }
            }
            command::TRIM | command::WRITE_ZEROES => self.clear(request),
            command::CACHE => self.cache(request),
            command::BLOCK_STATUS => self.block_status(request),
            _ => self.refuse(request.cookie, errno::EINVAL, "unknown command"),
        }
        // A command that is not answered at once has taken `asked`.
        if let Some(asked) = self.asked.take() {
            self.meters.answered(asked, self.env.now());
        }
        true
    }

    fn read(&mut self, request: Request) {
        let Request { cookie, offset, length, .. } = request;
        let permitted = flag::FUA | if self.modes.structured { flag::DF } else { 0 };
        if !request.has_only(permitted) {
            return self.refuse_flags(request);
        }
        if length > limits::PAYLOAD_BYTES_MAX {
            return self.refuse(
                cookie,
                errno::EINVAL,
                "longer than the 32 MiB that were advertised",
            );
        }
        if !self.is_inside(request) {
            return self.refuse(cookie, errno::EINVAL, "past the end of the volume");
        }
        if length == 0 {
            return replies::no_data(&mut self.output, self.modes, cookie);
        }
        if length as usize > limits::BUFFER_BYTES {
            return self.read_large(cookie, offset, length);
        }
        let device = &self.device;
        let fill = |place: &mut [u8]| device.read_now(offset, place);
        match replies::data(&mut self.output, self.modes, (cookie, offset, length), fill) {
            Ok(true) => {}
            Ok(false) => {
                let (device, modes) = (self.device.clone(), self.modes);
                let (held, lease) = self.hold_short(length as usize);
                self.defer(held, async move {
                    let head_bytes = replies::data_head_bytes(modes);
                    let mut reply = vec![0; head_bytes + length as usize];
                    let (head, data) = reply.split_at_mut(head_bytes);
                    let result = device.read(offset, data).await;
                    replies::data_head(head, modes, (cookie, offset, length));
                    Finished::Read { cookie, reply, result, lease }
                });
            }
            Err(error) => self.fail(cookie, &error),
        }
    }

    /// Starts a read that needs a buffer of its own, which becomes its reply without a copy.
    fn read_large(&mut self, cookie: u64, offset: u64, length: u32) {
        let (device, modes, budget) = (self.device.clone(), self.modes, self.budget.clone());
        let head_bytes = replies::data_head_bytes(modes);
        let total = head_bytes + length as usize;
        let spare = self.output.spare();
        self.defer(Held::leased(length as usize), async move {
            let mut large = match spare.take(total) {
                Some(large) => large,
                None => Large::new(budget, total).await,
            };
            let (head, data) = large.bytes[..total].split_at_mut(head_bytes);
            let result = match device.read_now(offset, data) {
                Ok(true) => Ok(()),
                Ok(false) => device.read(offset, data).await,
                Err(error) => Err(error),
            };
            replies::data_head(head, modes, (cookie, offset, length));
            Finished::Large { cookie, large, result }
        });
    }

    fn write(&mut self, request: Request) -> bool {
        let (cookie, length) = (request.cookie, request.length as usize);
        if !request.has_only(flag::FUA) {
            self.refuse_flags(request);
        } else if self.device.is_read_only() {
            self.refuse(cookie, errno::EPERM, READ_ONLY);
        } else if !self.is_inside(request) {
            // The volume may have shrunk since the first piece.
            self.writing.give_up();
            self.refuse(cookie, errno::ENOSPC, "past the end of the volume");
        } else if length == 0 {
            replies::done(&mut self.output, cookie);
        } else {
            let durable = request.flags & flag::FUA != 0;
            let under_way = self.batch.bytes + self.slow.changed;
            let payload = &self.input.unread()[wire::REQUEST_BYTES..wire::REQUEST_BYTES + length];
            let write = (request.offset, payload, durable);
            match self.writing.submit(&self.device, under_way, write) {
                Some(written) => self.written(cookie, length, written),
                None => return false,
            }
        }
        true
    }

    fn clear(&mut self, request: Request) {
        let cookie = request.cookie;
        let trim = request.command == command::TRIM;
        let permitted = flag::FUA | if trim { 0 } else { flag::NO_HOLE | flag::FAST_ZERO };
        if !request.has_only(permitted) {
            return self.refuse_flags(request);
        }
        if self.device.is_read_only() {
            return self.refuse(cookie, errno::EPERM, READ_ONLY);
        }
        if !self.is_inside(request) {
            let number = if trim { errno::EINVAL } else { errno::ENOSPC };
            return self.refuse(cookie, number, "past the end of the volume");
        }
        if request.length == 0 {
            return replies::done(&mut self.output, cookie);
        }
        let durable = request.flags & flag::FUA != 0;
        let written = self.device.clear(request.offset, u64::from(request.length), trim, durable);
        self.written(cookie, 0, written);
    }

    fn written(&mut self, cookie: u64, held: usize, written: Result<Written, Error>) {
        match written {
            Ok(Written::Acked) => replies::done(&mut self.output, cookie),
            Ok(Written::NeedsSync(ticket)) => {
                self.batch.writes.push((cookie, self.asked.take()));
                self.batch.ticket = self.batch.ticket.max(ticket);
                self.batch.bytes += held;
            }
            Ok(Written::Pending(later)) => {
                // The payload of a long request has its lease already.
                let (own, lease) = match self.input.take_lease() {
                    Some(lease) => (Held::leased(held), Some(lease)),
                    None => self.hold_short(held),
                };
                self.defer(own.of_change(held), async move {
                    let result = later.await.map_err(Error::from);
                    Finished::Plain { cookie, result, _lease: lease }
                });
            }
            Err(error) => self.fail(cookie, &error),
        }
    }

    fn cache(&mut self, request: Request) {
        let Request { cookie, offset, .. } = request;
        if !request.has_only(flag::FUA) {
            return self.refuse_flags(request);
        }
        if !self.is_inside(request) {
            return self.refuse(cookie, errno::EINVAL, "past the end of the volume");
        }
        let length = request.length.min(limits::CACHE_BYTES_MAX);
        let held = length.min(limits::CACHE_STEP_BYTES) as usize;
        let device = self.device.clone();
        let (counted, _lease) = self.hold_short(held);
        self.defer(counted, async move {
            let result = warm(&device, offset, u64::from(length), held).await;
            Finished::Plain { cookie, result, _lease }
        });
    }

    fn block_status(&mut self, request: Request) {
        let cookie = request.cookie;
        if !self.modes.block_status {
            return self.refuse(cookie, errno::EINVAL, "base:allocation was not negotiated");
        }
        if !request.has_only(flag::FUA | flag::REQ_ONE) {
            return self.refuse_flags(request);
        }
        if request.length == 0 || !self.is_inside(request) {
            return self.refuse(
                cookie,
                errno::EINVAL,
                "an empty range, or one past the end of the volume",
            );
        }
        let device = self.device.clone();
        let (held, lease) = self.hold_short(limits::STATUS_HELD_BYTES);
        self.defer(held, async move {
            let length = request.length.min(limits::STATUS_BYTES_MAX);
            let result = device.extents(request.offset, u64::from(length)).await;
            Finished::Status { request: Request { length, ..request }, result, _lease: lease }
        });
    }

    fn is_inside(&self, request: Request) -> bool {
        // The present size counts. The protocol cannot announce that a volume has grown, but the
        // client may know it from elsewhere.
        let size = self.device.size();
        request.offset.checked_add(u64::from(request.length)).is_some_and(|end| end <= size)
    }

    fn refuse_flags(&mut self, request: Request) {
        self.refuse(request.cookie, errno::EINVAL, "a flag that this command does not take");
    }

    pub(super) fn refuse(&mut self, cookie: u64, number: u32, message: &str) {
        self.meters.error();
        replies::failed(&mut self.output, self.modes, cookie, number, message);
    }

    pub(super) fn fail(&mut self, cookie: u64, error: &Error) {
        if error.kind() == Kind::Fenced {
            self.end = Some(End::Fenced);
            return;
        }
        self.refuse(cookie, replies::number(error), &error.to_string());
    }

    /// Takes memory for a short request that is slow, without waiting. Bytes beyond the session's
    /// own share are leased if no other session waits for memory. Otherwise the session takes no
    /// further request until its share is free again.
    fn hold_short(&self, bytes: usize) -> (Held, Option<Lease>) {
        let is_beyond = self.slow.own + bytes > limits::BUFFER_BYTES;
        match is_beyond.then(|| self.budget.try_lease(bytes)).flatten() {
            Some(lease) => (Held::leased(bytes), Some(lease)),
            None => (Held::own(bytes), None),
        }
    }

    fn defer(&mut self, held: Held, work: impl Future<Output = Finished> + Send + 'static) {
        self.slow.push(held, self.asked.take(), work);
    }
}

/// Reads a range, to fill the caches.
async fn warm<D: Target>(
    device: &D,
    offset: u64,
    length: u64,
    step_bytes: usize,
) -> Result<(), Error> {
    let mut scratch = vec![0; step_bytes];
    let mut done = 0;
    while done < length {
        let step = step_bytes.min(usize::try_from(length - done).unwrap_or(step_bytes));
        let place = &mut scratch[..step];
        if !device.read_now(offset + done, place)? {
            device.read(offset + done, place).await?;
        }
        done += step as u64;
    }
    Ok(())
}
