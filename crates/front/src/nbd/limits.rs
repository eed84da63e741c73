//! Bounds of the NBD server.

use rekindle_base::units::{KIB, MIB};
use std::time::Duration;

/// Longest string of the protocol (names, queries, messages), bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest message that goes with an error, bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Longest data of an option that is decoded, bytes.
pub const OPTION_BYTES_MAX: u32 = 64 * KIB as u32;
/// Longest data of an option that is read and thrown away, bytes; a client that announces more is
/// dropped.
pub const OPTION_BYTES_SKIPPED_MAX: u32 = MIB as u32;
/// Most options in one handshake. (`qemu-nbd --list` asks once for every export.)
pub const OPTIONS_MAX: usize = 16 * 1024;
/// Most queries in one request for metadata contexts.
pub const QUERIES_MAX: u32 = 1024;
/// How long a client may take for its next option.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of a list of exports that are made before the client has taken those before.
pub const LIST_BYTES_AT_ONCE: usize = 64 * KIB as usize;
/// Most names that an error message lists.
pub const NAMES_LISTED_MAX: usize = 20;

/// Longest READ or WRITE, bytes; the handshake advertises it.
pub const PAYLOAD_BYTES_MAX: u32 = 32 * MIB as u32;
/// Longest WRITE whose payload is read and thrown away (with an error); a client that announces
/// more is dropped.
pub const PAYLOAD_BYTES_SKIPPED_MAX: u32 = 64 * MIB as u32;
/// Smallest request, bytes; the handshake advertises it.
pub const BLOCK_BYTES_MIN: u32 = 1;
/// Smallest preferred request, bytes.
pub const BLOCK_BYTES_PREFERRED_MIN: u64 = 4 * KIB;
/// Longest range that a CACHE request warms, bytes; the rest is ignored.
pub const CACHE_BYTES_MAX: u32 = 32 * MIB as u32;
/// Bytes that a CACHE request reads at a time.
pub const CACHE_STEP_BYTES: u32 = BUFFER_BYTES as u32;
/// Longest range that one BLOCK_STATUS covers, bytes; the client asks again for the rest.
pub const STATUS_BYTES_MAX: u32 = 1024 * MIB as u32;
/// Most extents in one answer to BLOCK_STATUS; the client asks again for the rest.
pub const EXTENTS_MAX: usize = 4 * 1024;
/// Bytes that a BLOCK_STATUS holds while its answer is made.
pub const STATUS_HELD_BYTES: usize = BUFFER_BYTES;

/// A session's own share: a buffer in each direction, and as much for waiting requests, bytes. All
/// memory beyond is leased from the budget of all sessions, so requests up to this length never
/// wait for memory.
pub const BUFFER_BYTES: usize = 256 * KIB as usize;
/// Size beyond which an empty buffer is given back, bytes.
pub const BUFFER_BYTES_KEPT: usize = 4 * MIB as usize;
/// Step by which buffers grow, bytes.
pub const GROWTH_BYTES: usize = 64 * KIB as usize;
/// Interval at which a session with large buffers checks whether it still needs them.
pub const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks without any moved byte after which a client is dropped.
pub const STALLED_LOOKS_MAX: usize = 10;
/// Bytes that a client must move a second while it holds memory that others wait for. A client that
/// falls behind by [`STALLED_LOOKS_MAX`] times this is dropped.
pub const RATE_BYTES_MIN: usize = MIB as usize;
/// Bytes of unsent replies from which they are sent before more requests are taken.
pub const REPLY_BYTES_HIGH: usize = 256 * KIB as usize;
/// Length up to which the reply to a missed read is copied behind the replies before it, bytes: one
/// call sends them all. A longer one is sent out of its own buffer.
pub const COPIED_BYTES_MAX: usize = 16 * KIB as usize;
/// Length from which a request is read to its end and no further, bytes. The next request need not
/// be moved then.
pub const LONG_REQUEST_BYTES: usize = 64 * KIB as usize;
/// Most waiting requests of a session.
pub const SLOW_REQUESTS_MAX: usize = 256;
/// How long a stopping node waits for a client that takes no replies, when all its requests are
/// done.
pub const STOP_PATIENCE: Duration = Duration::from_millis(100);
/// Most bytes that waiting requests hold (and one request more).
pub const SLOW_BYTES_MAX: usize = 32 * MIB as usize;

/// Longest wait of a new client for a host at which the volume's owner runs: a takeover takes one
/// to two seconds.
pub const FORWARD_OPEN_TIME_MAX: Duration = Duration::from_secs(5);
/// Longest time for which requests of a forwarded client wait without any reply while no host
/// serves the volume. The client is hung up on then, and decides by itself.
pub const FORWARD_PATIENCE: Duration = Duration::from_secs(60);
/// Pause before another look for the owner's host, at least and at most; between that, this part of
/// the time since the last reply, as a divisor.
pub const FORWARD_PAUSE_PART: u32 = 8;
pub const FORWARD_PAUSE: Duration = Duration::from_millis(20);
pub const FORWARD_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Wait for a reply after which the forwarding host looks whether the owner runs elsewhere by now.
pub const FORWARD_LOOK: Duration = Duration::from_secs(1);
/// Bytes of requests that are sent at once to the owner's host.
pub const FORWARD_BYTES_AT_ONCE: usize = BUFFER_BYTES;

const _: () = assert!(PAYLOAD_BYTES_MAX <= PAYLOAD_BYTES_SKIPPED_MAX);
const _: () = assert!(BUFFER_BYTES <= BUFFER_BYTES_KEPT);
const _: () = assert!(OPTION_BYTES_MAX as usize + 16 <= BUFFER_BYTES);
const _: () = assert!(MESSAGE_BYTES_MAX <= STRING_BYTES_MAX);
