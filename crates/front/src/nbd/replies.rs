//! Replies, written into the output buffer.

use super::buffers::Output;
use super::limits;
use super::wire::{self, chunk, errno};
use rekindle_base::Kind;
use rekindle_staging::Extent;
use rekindle_volume::Error;

/// The modes that a session and its client have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modes {
    /// Structured replies.
    pub structured: bool,
    /// The client may ask for `base:allocation`.
    pub block_status: bool,
}

/// Replies success of a command without data. A simple reply is lawful in both modes, and shorter.
pub(super) fn done(output: &mut Output, cookie: u64) {
    output.put(&wire::simple_reply(cookie, 0));
}

/// Replies success of a READ of no bytes: a data chunk must not be empty.
pub(super) fn no_data(output: &mut Output, modes: Modes, cookie: u64) {
    if modes.structured {
        output.put(&wire::last_chunk(cookie, chunk::NONE, 0));
    } else {
        done(output, cookie);
    }
}

/// Replies success of a READ: `fill` writes `length` bytes into the buffer. When it returns `false`
/// or fails, no reply is made.
pub(super) fn data<E>(
    output: &mut Output,
    modes: Modes,
    (cookie, offset, length): (u64, u64, u32),
    fill: impl FnOnce(&mut [u8]) -> Result<bool, E>,
) -> Result<bool, E> {
    let total = data_head_bytes(modes) + length as usize;
    let (head, place) = output.space(total).split_at_mut(data_head_bytes(modes));
    if !fill(place)? {
        return Ok(false);
    }
    data_head(head, modes, (cookie, offset, length));
    output.commit(total);
    Ok(true)
}

/// Returns the bytes of a READ's reply before its data.
pub(super) fn data_head_bytes(modes: Modes) -> usize {
    if modes.structured { wire::DATA_CHUNK_BYTES } else { wire::SIMPLE_REPLY_BYTES }
}

/// Writes the bytes of a READ's reply before its data.
pub(super) fn data_head(head: &mut [u8], modes: Modes, (cookie, offset, length): (u64, u64, u32)) {
    if modes.structured {
        head.copy_from_slice(&wire::data_chunk(cookie, offset, length));
    } else {
        head.copy_from_slice(&wire::simple_reply(cookie, 0));
    }
}

/// Replies failure; with a message when the client can take one.
pub(super) fn failed(output: &mut Output, modes: Modes, cookie: u64, errno: u32, message: &str) {
    if !modes.structured {
        output.put(&wire::simple_reply(cookie, errno));
        return;
    }
    let message = wire::clip(message, limits::MESSAGE_BYTES_MAX);
    let message_bytes = u16::try_from(message.len()).unwrap_or(0);
    output.put(&wire::last_chunk(cookie, chunk::ERROR, 6 + u32::from(message_bytes)));
    output.put(&errno.to_be_bytes());
    output.put(&message_bytes.to_be_bytes());
    output.put(&message.as_bytes()[..usize::from(message_bytes)]);
}

/// Returns the protocol's number for an error of the volume. Numbers that the protocol does not
/// know become EIO.
pub(super) fn number(error: &Error) -> u32 {
    let number = match error.kind() {
        // ESHUTDOWN: the client did nothing wrong, and the state ends soon.
        Kind::Unavailable if matches!(error, Error::Stopping) => 108,
        kind => kind.errno(),
    };
    if errno::KNOWN.contains(&number) { number } else { errno::EIO }
}

/// Answers BLOCK_STATUS. The `extents` are in order from `offset`; at most `length` bytes are told.
/// Returns `false` when they tell nothing about the first byte.
pub(super) fn block_status(
    output: &mut Output,
    (cookie, offset, length): (u64, u64, u32),
    one: bool,
    extents: &[Extent],
) -> bool {
    let count_max = if one { 1 } else { limits::EXTENTS_MAX };
    let end = offset.saturating_add(u64::from(length));
    let mut told: Vec<(u32, u32)> = Vec::with_capacity(extents.len().min(count_max));
    let mut position = offset;
    for extent in extents {
        let extent_end = extent.position.saturating_add(extent.span).min(end);
        if extent.position > position || extent_end <= position {
            continue;
        }
        let Ok(span) = u32::try_from(extent_end - position) else { break };
        let state = if extent.data { 0 } else { wire::STATE_HOLE_ZERO };
        position = extent_end;
        if let Some((last_span, last_state)) = told.last_mut()
            && *last_state == state
        {
            *last_span += span;
        } else if told.len() == count_max {
            break;
        } else {
            told.push((span, state));
        }
    }
    if told.is_empty() {
        return false;
    }
    let bytes = u32::try_from(4 + told.len() * 8).unwrap_or(u32::MAX);
    output.put(&wire::last_chunk(cookie, chunk::BLOCK_STATUS, bytes));
    output.put(&wire::BASE_ALLOCATION_ID.to_be_bytes());
    for (span, state) in told {
        output.put(&span.to_be_bytes());
        output.put(&state.to_be_bytes());
    }
    true
}

#[cfg(test)]
mod tests;
