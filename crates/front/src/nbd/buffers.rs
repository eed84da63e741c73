//! The two buffers of a session. Their bytes are initialised once and then overwritten for ever: no zeroing, no
//! allocation, no first touch of memory per request.

use super::limits::{BUFFER_BYTES, BUFFER_BYTES_KEPT, LONG_REQUEST_BYTES};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What has come and has not been understood yet.
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes to be thrown away, before those in the buffer that are still there.
    skip: u64,
    /// Bytes that the next request has altogether, as far as known.
    wanted: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BUFFER_BYTES], start: 0, end: 0, skip: 0, wanted: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `count` unread bytes are done with.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        self.wanted = 0;
    }

    /// The next `count` bytes, here or still to come, are of no interest.
    pub(super) fn skip(&mut self, count: u64) {
        self.skip += count;
        self.drop_skipped();
    }

    /// Nothing can be done before there are `total` unread bytes.
    pub(super) fn want(&mut self, total: usize) {
        self.wanted = total;
    }

    fn drop_skipped(&mut self) {
        let here = usize::try_from(self.skip).unwrap_or(usize::MAX).min(self.end - self.start);
        self.skip -= here as u64;
        self.start += here;
    }

    /// Reads once, as much as there is room for; 0 at the end of the stream.
    pub(super) fn poll_fill<S: AsyncRead + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let room = self.bytes.len() - self.end;
        let missing = self.wanted.saturating_sub(self.end - self.start);
        let is_long = self.wanted > LONG_REQUEST_BYTES && missing > 0;
        let limit = if is_long { room.min(missing) } else { room };
        let mut buffer = ReadBuf::new(&mut self.bytes[self.end..self.end + limit]);
        ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len();
        self.end += count;
        self.drop_skipped();
        Poll::Ready(Ok(count))
    }

    /// Sees to it that the request that is begun fits, and that there is room for at least one more byte.
    fn make_room(&mut self) {
        let unread = self.end - self.start;
        let needed = self.wanted.max(unread + 1);
        if unread == 0 {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > BUFFER_BYTES_KEPT && needed <= BUFFER_BYTES_KEPT {
                self.bytes = vec![0; BUFFER_BYTES];
            }
        }
        if self.start + needed <= self.bytes.len() {
            return;
        }
        if needed > self.bytes.len() {
            let mut larger = vec![0; needed.next_power_of_two()];
            larger[..unread].copy_from_slice(self.unread());
            self.bytes = larger;
        } else {
            self.bytes.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, unread);
    }
}

/// What is to be sent.
pub(super) struct Output {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Output {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BUFFER_BYTES], start: 0, end: 0 }
    }

    /// Bytes not sent yet.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// What is to be sent.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Room for `count` bytes; they count only when [`Output::commit`] follows. Holds old bytes.
    pub(super) fn space(&mut self, count: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < count {
            self.make_room(count);
        }
        &mut self.bytes[self.end..self.end + count]
    }

    /// `count` bytes of the space are to be sent.
    pub(super) fn commit(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    fn make_room(&mut self, count: usize) {
        let unsent = self.len();
        if unsent + count > self.bytes.len() {
            let mut larger = vec![0; (unsent + count).next_power_of_two()];
            larger[..unsent].copy_from_slice(&self.bytes[self.start..self.end]);
            self.bytes = larger;
        } else {
            self.bytes.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, unsent);
    }

    /// Sends as much as the stream takes. Ready when all is sent; returns how much it was this time.
    pub(super) fn poll_send<S: AsyncWrite + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut S,
    ) -> io::Result<usize> {
        let mut sent = 0;
        while self.start < self.end {
            match Pin::new(&mut *stream).poll_write(context, &self.bytes[self.start..self.end]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.start += count;
                    sent += count;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(sent),
            }
        }
        (self.start, self.end) = (0, 0);
        if self.bytes.len() > BUFFER_BYTES_KEPT {
            self.bytes = vec![0; BUFFER_BYTES];
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests;
