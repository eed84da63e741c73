//! Bounds of the NBD server.

use base::units::{KIB, MIB};
use std::time::Duration;

/// Longest string of the protocol (names, queries, messages), bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest message that goes with an error, bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Most bytes of an option's data that are looked at.
pub const OPTION_BYTES_MAX: u32 = 64 * KIB as u32;
/// Most bytes of an option's data that are read and thrown away; a client that announces more is dropped.
pub const OPTION_BYTES_SKIPPED_MAX: u32 = MIB as u32;
/// Most options in one handshake. (`qemu-nbd --list` asks once for every export.)
pub const OPTIONS_MAX: usize = 16 * 1024;
/// Most queries in one request for metadata contexts.
pub const QUERIES_MAX: u32 = 1024;
/// How long a client may take for its next option.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How many names an error message lists.
pub const NAMES_LISTED_MAX: usize = 20;

/// Longest READ or WRITE, bytes; it is advertised.
pub const PAYLOAD_BYTES_MAX: u32 = 32 * MIB as u32;
/// Longest WRITE whose payload is read and thrown away (with an error); a client that announces more is dropped.
pub const PAYLOAD_BYTES_SKIPPED_MAX: u32 = 64 * MIB as u32;
/// Smallest request, bytes; it is advertised.
pub const BLOCK_BYTES_MIN: u32 = 1;
/// Least preferred request, bytes.
pub const BLOCK_BYTES_PREFERRED_MIN: u64 = 4 * KIB;
/// Most a CACHE request warms, bytes; the rest is ignored.
pub const CACHE_BYTES_MAX: u32 = 32 * MIB as u32;
/// How CACHE requests read, bytes at a time.
pub const CACHE_STEP_BYTES: u32 = BUFFER_BYTES as u32;
/// How far one BLOCK_STATUS looks, bytes; the client asks again for the rest.
pub const STATUS_BYTES_MAX: u32 = 1024 * MIB as u32;
/// Most extents in one answer to BLOCK_STATUS.
pub const EXTENTS_MAX: usize = 16 * 1024;

/// A session's own share: a buffer in each direction, and as much for requests that wait, bytes. Everything beyond is leased
/// from the budget of all sessions; so requests up to this length never wait for memory.
pub const BUFFER_BYTES: usize = 256 * KIB as usize;
/// A buffer that has grown beyond this is given back when it is empty.
pub const BUFFER_BYTES_KEPT: usize = 4 * MIB as usize;
/// Buffers grow in steps of this, bytes.
pub const GROWTH_BYTES: usize = 64 * KIB as usize;
/// How often a session with large buffers looks whether it still needs them.
pub const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// So many looks' worth of bytes may be missing.
pub const STALLED_LOOKS_MAX: usize = 10;
/// What a client moves a second, bytes, while it holds memory that others wait for. Who stays behind that by more than
/// [`STALLED_LOOKS_MAX`] looks is dropped.
pub const RATE_BYTES_MIN: usize = MIB as usize;
/// Replies are sent before more requests are looked at when there are this many bytes of them.
pub const REPLY_BYTES_HIGH: usize = 256 * KIB as usize;
/// A request longer than this is read to its end and no further, so that the next need not be moved.
pub const LONG_REQUEST_BYTES: usize = 64 * KIB as usize;
/// Requests of a session that wait for something, at most.
pub const SLOW_REQUESTS_MAX: usize = 256;
/// How long a client of a node that stops may take nothing, when all that it has begun is done.
pub const STOP_PATIENCE: Duration = Duration::from_millis(100);
/// Bytes that such requests hold, at most (and one request more).
pub const SLOW_BYTES_MAX: usize = 32 * MIB as usize;

const _: () = assert!(PAYLOAD_BYTES_MAX <= PAYLOAD_BYTES_SKIPPED_MAX);
const _: () = assert!(BUFFER_BYTES <= BUFFER_BYTES_KEPT);
const _: () = assert!(OPTION_BYTES_MAX as usize + 16 <= BUFFER_BYTES);
const _: () = assert!(MESSAGE_BYTES_MAX <= STRING_BYTES_MAX);
