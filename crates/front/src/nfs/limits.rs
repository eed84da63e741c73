//! Bounds of the NFS server.

use rekindle_base::units::{KIB, MIB};
use std::time::Duration;

/// Longest data of a READ or WRITE, bytes; FSINFO tells the client.
pub const DATA_BYTES_MAX: u32 = MIB as u32;
/// Longest call, bytes: a WRITE with its headers.
pub const RECORD_BYTES_MAX: usize = (DATA_BYTES_MAX + 4 * KIB as u32) as usize;
/// Most fragments of a call; clients send one.
pub const FRAGMENTS_MAX: usize = 16;
/// Longest reply to READDIR and READDIRPLUS, bytes.
pub const LIST_BYTES_MAX: u32 = 128 * KIB as u32;
/// Longest credentials and verifier, bytes (RFC 5531).
pub const AUTH_BYTES_MAX: u32 = 400;
/// Most groups in credentials, and longest name of a machine there, bytes (RFC 5531).
pub const GROUPS_MAX: u32 = 16;
pub const MACHINE_BYTES_MAX: u32 = 255;
/// Longest path of an export, bytes (RFC 1813).
pub const PATH_BYTES_MAX: u32 = 1024;
/// Most names in the answer to EXPORT.
pub const EXPORTS_MAX: usize = 1000;
/// Deepest directory of a volume that can be mounted.
pub const MOUNT_DEPTH_MAX: usize = 64;

/// Time for the rest of a call whose beginning has come.
pub const RECORD_TIME_MAX: Duration = Duration::from_secs(30);
/// Time for a client to take replies.
pub const SEND_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of calls and replies under way in a session. Calls beyond wait in the socket.
pub const UNDER_WAY_BYTES_MAX: usize = 16 * MIB as usize;
/// Bytes that a call counts for besides its data, so that their number is bounded, too: less than
/// the calls of a client that the log remembers ([`rekindle_file::limits::CALLS_MAX`]).
pub const CALL_COUNTS: usize = 64 * KIB as usize;
/// Length up to which a call is read into the session's own share of memory, bytes.
pub const SHORT_CALL_BYTES: usize = 4 * KIB as usize;
/// Length up to which a call is known again when it comes again, bytes: two long access control
/// lists fit.
pub const KNOWN_CALL_BYTES: usize = 16 * KIB as usize;
/// Bytes of replies that are gathered before they are sent.
pub const GATHERED_BYTES: usize = 64 * KIB as usize;

/// Time after which a volume without calls is let go of: the collector may detach it then.
pub const IDLE: Duration = Duration::from_secs(60);
/// Interval at which the server looks for such volumes.
pub const IDLE_LOOK: Duration = Duration::from_secs(10);
/// Attributes that a READDIRPLUS looks up at a time.
pub const LOOKUPS_AT_ONCE: usize = 16;

/// Longest frame between hosts that forward calls: a call with its words, or a whole reply.
pub const FORWARDED_BYTES_MAX: usize = 4 * MIB as usize;
/// Time for which a call waits for an owner, and the pause between tries. Then its client is told
/// to ask again later.
pub const FORWARD_WAIT_MAX: Duration = Duration::from_secs(20);
pub const FORWARD_PAUSE: Duration = Duration::from_millis(50);
/// Wait for a reply of another host after which the owner is looked for anew, and the pause before
/// the next look.
pub const FORWARD_LOOK: Duration = Duration::from_secs(1);
pub const FORWARD_LOOK_PAUSE: Duration = Duration::from_millis(500);
/// Time for a look at where a volume is whose owner hears of its clients.
pub const TELL_TIME_MAX: Duration = Duration::from_secs(5);
/// Time after which the lines of a machine without sessions are let go of.
pub const LINES_IDLE: Duration = Duration::from_secs(120);

const _: () = assert!(RECORD_BYTES_MAX + 8 * (KIB as usize) < FORWARDED_BYTES_MAX);
const _: () = assert!(UNDER_WAY_BYTES_MAX / CALL_COUNTS < rekindle_file::limits::CALLS_MAX);
