//! The buffers of a session. Their bytes are initialised once and then overwritten for ever: no
//! zeroing, no allocation, no first touch of memory per request. Each session has its own share; a
//! long request leases the rest from the budget of all sessions.

use super::limits::{
    BUFFER_BYTES, BUFFER_BYTES_KEPT, COPIED_BYTES_MAX, GROWTH_BYTES, LONG_REQUEST_BYTES,
};
use crate::conn::{Budget, Lease};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that have arrived and are not decoded yet.
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes to be thrown away; they precede those in the buffer that are not thrown away yet.
    skip: u64,
    /// Total length of the next request, as far as known.
    wanted: usize,
    /// The lease of a buffer that is larger than the session's own share.
    lease: Option<Lease>,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BUFFER_BYTES], start: 0, end: 0, skip: 0, wanted: 0, lease: None }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops the first `count` unread bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        self.wanted = 0;
    }

    /// Throws away the next `count` bytes, present or still to come.
    pub(super) fn skip(&mut self, count: u64) {
        self.skip += count;
        self.drop_skipped();
    }

    /// Notes that the next request has `total` bytes. A request that is longer than the buffer
    /// needs [`Input::grow`] first.
    pub(super) fn want(&mut self, total: usize) {
        self.wanted = total;
    }

    /// Whether a request of `total` bytes fits into the buffer.
    pub(super) fn holds(&self, total: usize) -> bool {
        total <= self.bytes.len()
    }

    /// Whether the buffer is larger than the session's own share.
    pub(super) fn is_large(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether the unread bytes fill the session's own share.
    pub(super) fn is_full(&self) -> bool {
        self.end - self.start >= BUFFER_BYTES
    }

    /// Whether a part of a request has arrived.
    pub(super) fn is_begun(&self) -> bool {
        self.end > self.start
    }

    /// Returns the length of a buffer for `total` bytes.
    pub(super) fn room(total: usize) -> usize {
        total.next_multiple_of(GROWTH_BYTES)
    }

    /// Makes the buffer as large as wanted, on this lease.
    pub(super) fn grow(&mut self, lease: Lease) {
        self.replace(Self::room(self.wanted));
        self.lease = Some(lease);
    }

    /// Gives a large buffer back, if the unread bytes allow it. With `keep`, only one that is too
    /// large to keep.
    pub(super) fn relax(&mut self, keep: bool) {
        let is_kept = keep && self.bytes.len() <= BUFFER_BYTES_KEPT;
        if self.is_large() && !is_kept && self.unread().len().max(self.wanted) <= BUFFER_BYTES {
            self.replace(BUFFER_BYTES);
            self.lease = None;
        }
    }

    /// Takes the lease of a large buffer, when the request in it lives on elsewhere.
    /// [`Input::settle`] must follow.
    pub(super) fn take_lease(&mut self) -> Option<Lease> {
        self.lease.take()
    }

    /// Ends a request: gives back a large buffer that has no lease any more, and any other as
    /// [`Input::relax`] does.
    pub(super) fn settle(&mut self, keep: bool) {
        if self.lease.is_none() && self.bytes.len() > BUFFER_BYTES {
            self.replace(BUFFER_BYTES);
        }
        self.relax(keep);
    }

    fn replace(&mut self, length: usize) {
        let unread = self.end - self.start;
        let mut other = vec![0; length.max(unread)];
        other[..unread].copy_from_slice(self.unread());
        self.bytes = other;
        (self.start, self.end) = (0, unread);
    }

    fn drop_skipped(&mut self) {
        let here = usize::try_from(self.skip).unwrap_or(usize::MAX).min(self.end - self.start);
        self.skip -= here as u64;
        self.start += here;
    }

    /// Reads once, as much as fits; 0 at the end of the stream.
    pub(super) fn poll_fill<S: AsyncRead + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        // At most the session's own share, unless the request is known to need more. Otherwise a
        // large buffer that is kept could not be given back for a larger one.
        let most = self.wanted.max(BUFFER_BYTES).saturating_sub(self.end - self.start);
        let room = (self.bytes.len() - self.end).min(most);
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

    /// Makes room for the request that has begun, and for at least one more byte.
    fn make_room(&mut self) {
        let unread = self.end - self.start;
        if unread == 0 {
            (self.start, self.end) = (0, 0);
        }
        let needed = self.wanted.max(unread + 1);
        debug_assert!(needed <= self.bytes.len(), "{needed} bytes were not leased");
        if self.start + needed > self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, unread);
        }
    }
}

/// A separate buffer for one long reply.
#[derive(Debug)]
pub(super) struct Large {
    pub(super) bytes: Vec<u8>,
    /// Length of the reply, bytes.
    pub(super) length: usize,
    _lease: Lease,
}

impl Large {
    /// Leases and makes a buffer of `length` bytes, when it is the session's turn.
    pub(super) async fn new(budget: Budget, length: usize) -> Self {
        let room = length.next_multiple_of(GROWTH_BYTES);
        let lease = budget.lease(room).await;
        Self { bytes: vec![0; room], length, _lease: lease }
    }

    /// Returns the same buffer for another reply, if that fits.
    pub(super) fn again(mut self, length: usize) -> Option<Self> {
        (length <= self.bytes.len()).then(|| {
            self.length = length;
            self
        })
    }
}

/// A part of the queue of replies.
enum Piece {
    Own(Vec<u8>, Option<Lease>),
    Large(Large),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Own(bytes, _) => bytes,
            Piece::Large(large) => &large.bytes[..large.length],
        }
    }
}

/// The replies that are not sent yet.
pub(super) struct Output {
    /// Queued pieces, sent before `bytes`.
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent already.
    sent: usize,
    /// Bytes of all pieces that are not sent yet.
    pieces_bytes: usize,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Whether the stream may hold bytes back that it has taken: one with encryption does.
    unflushed: bool,
    spare: Spare,
}

/// The place of a large buffer that can be used again. Clones share the place; all belong to one
/// session.
#[derive(Clone, Default)]
pub(super) struct Spare(Arc<Mutex<Option<Large>>>);

impl Spare {
    /// Takes the buffer for a reply of `length` bytes; one that is too short is given back.
    pub(super) fn take(&self, length: usize) -> Option<Large> {
        self.0.lock().take()?.again(length)
    }

    fn is_there(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            pieces: VecDeque::new(),
            sent: 0,
            pieces_bytes: 0,
            bytes: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            unflushed: false,
            spare: Spare::default(),
        }
    }

    /// Returns the number of unsent bytes.
    pub(super) fn len(&self) -> usize {
        self.pieces_bytes + self.end - self.start
    }

    /// Returns the unsent bytes.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> &[u8] {
        assert!(self.pieces.is_empty());
        &self.bytes[self.start..self.end]
    }

    /// Whether nothing is left to send, or to flush.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && !self.unflushed
    }

    /// Whether any buffer exceeds the share of an idle session.
    pub(super) fn is_large(&self) -> bool {
        self.has_leases() || self.bytes.len() > BUFFER_BYTES
    }

    /// Whether any buffer is leased.
    pub(super) fn has_leases(&self) -> bool {
        let is_leased = |piece: &Piece| matches!(piece, Piece::Large(_) | Piece::Own(_, Some(_)));
        self.spare.is_there() || self.pieces.iter().any(is_leased)
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Returns room for `count` bytes, with old content. The bytes count only after
    /// [`Output::commit`].
    pub(super) fn space(&mut self, count: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < count {
            self.make_room(count);
        }
        &mut self.bytes[self.end..self.end + count]
    }

    /// Adds `count` bytes of the space to the replies.
    pub(super) fn commit(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// Queues a long reply behind all others, without copying it.
    pub(super) fn push(&mut self, large: Large) {
        self.queue(Piece::Large(large));
    }

    /// Queues a reply that has a buffer of its own, with the lease of that buffer. The reply is
    /// copied only if it is short, or if more bytes before it had to be copied.
    pub(super) fn push_own(&mut self, reply: Vec<u8>, lease: Option<Lease>) {
        if reply.len() <= COPIED_BYTES_MAX.max(self.end - self.start) {
            self.put(&reply);
        } else {
            self.queue(Piece::Own(reply, lease));
        }
    }

    fn queue(&mut self, piece: Piece) {
        let small = &self.bytes[self.start..self.end];
        if !small.is_empty() {
            self.pieces_bytes += small.len();
            self.pieces.push_back(Piece::Own(small.to_vec(), None));
            (self.start, self.end) = (0, 0);
        }
        self.pieces_bytes += piece.bytes().len();
        self.pieces.push_back(piece);
    }

    /// Returns the place of the large buffer that can be used again.
    pub(super) fn spare(&self) -> Spare {
        self.spare.clone()
    }

    fn make_room(&mut self, count: usize) {
        let unsent = self.end - self.start;
        if unsent + count > self.bytes.len() {
            let mut larger = vec![0; (unsent + count).next_multiple_of(GROWTH_BYTES)];
            larger[..unsent].copy_from_slice(&self.bytes[self.start..self.end]);
            self.bytes = larger;
        } else {
            self.bytes.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, unsent);
    }

    /// Sends as much as the stream takes; returns how many bytes that was. Behind the last reply,
    /// the stream is flushed.
    pub(super) fn poll_send<S: AsyncWrite + Unpin + ?Sized>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut S,
    ) -> io::Result<usize> {
        let mut total = 0;
        loop {
            let next = match self.pieces.front() {
                Some(piece) => &piece.bytes()[self.sent..],
                None => &self.bytes[self.start..self.end],
            };
            if next.is_empty() {
                break;
            }
            match Pin::new(&mut *stream).poll_write(context, next) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.is_sent(count);
                    self.unflushed = true;
                    total += count;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(total),
            }
        }
        (self.start, self.end) = (0, 0);
        if self.bytes.len() > BUFFER_BYTES_KEPT {
            self.bytes = vec![0; BUFFER_BYTES];
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(stream).poll_flush(context)
        {
            flushed?;
            self.unflushed = false;
        }
        Ok(total)
    }

    fn is_sent(&mut self, count: usize) {
        let Some(piece) = self.pieces.front() else {
            self.start += count;
            return;
        };
        self.pieces_bytes -= count;
        self.sent += count;
        if self.sent < piece.bytes().len() {
            return;
        }
        self.sent = 0;
        if let Some(Piece::Large(large)) = self.pieces.pop_front()
            && large.bytes.len() <= BUFFER_BYTES_KEPT
        {
            *self.spare.0.lock() = Some(large);
        }
    }

    /// Gives back unused buffers: leased ones at once, the rest when the session is `idle`.
    pub(super) fn relax(&mut self, idle: bool) {
        *self.spare.0.lock() = None;
        if idle && self.is_empty() && self.bytes.len() > BUFFER_BYTES {
            self.bytes = vec![0; BUFFER_BYTES];
            (self.start, self.end) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests;
