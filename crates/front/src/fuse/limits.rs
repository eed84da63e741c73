//! Bounds of the FUSE server.

use rekindle_base::units::{KIB, MIB};
use std::time::Duration;

/// Longest data of a READ or WRITE, bytes; INIT tells the kernel.
pub const DATA_BYTES_MAX: u32 = MIB as u32;
/// Longest request, bytes: a WRITE with its headers, rounded up to a page.
pub const REQUEST_BYTES_MAX: u32 = DATA_BYTES_MAX + 4 * KIB as u32;
/// Length up to which a request is read into the session's own share of memory, bytes.
pub const SHORT_REQUEST_BYTES: usize = 4 * KIB as usize;
/// Most inodes that a mount says it has open.
pub const OPENS_MAX: u32 = 1 << 20;
/// Time for a mount to say its hello.
pub const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for which the opens and locks of a mount that is gone stay: a connection that breaks comes
/// back within a moment, and a file that has no name must be there then.
pub const OPENS_GRACE: Duration = Duration::from_secs(60);

/// Bytes of requests and replies under way in a session. Requests beyond wait in the socket.
pub const UNDER_WAY_BYTES_MAX: usize = 32 * MIB as usize;
/// Bytes that a request counts for besides its data, so that their number is bounded, too.
pub const REQUEST_COUNTS: usize = 16 * KIB as usize;
/// Bytes of replies that are gathered before they are sent.
pub const GATHERED_BYTES: usize = 64 * KIB as usize;
/// Length from which data of a reply is sent from where it lies, bytes.
pub const COPIED_BYTES_MAX: usize = 16 * KIB as usize;

/// Locks that the programs of a mount wait for at a time.
pub const LOCK_WAITS_MAX: usize = 512;
/// Time after which a lock that is waited for is looked at again: its holder may have gone.
pub const LOCK_LOOK: Duration = Duration::from_secs(1);

/// Most bytes of a copy, whose reply has 32 bits for the number: whole pages.
pub const COPY_BYTES_MAX: u64 = u32::MAX as u64 & !4095;

/// Bytes of a mount that are passed on at once to another host, or back.
pub const PASSED_BYTES: usize = 256 * KIB as usize;
/// Wait for a reply of another host after which the owner is looked for anew, and the pause before
/// the next look.
pub const PASSAGE_LOOK: Duration = Duration::from_secs(1);
pub const PASSAGE_PAUSE: Duration = Duration::from_millis(500);

/// Time for which the kernel believes a name and attributes. Another mount of the same volume sees
/// a change after this time at most; within a mount, the kernel knows of its own changes.
pub const BELIEVED: Duration = Duration::from_secs(1);
/// Requests that the kernel has under way in the background (read-ahead, asynchronous I/O); its
/// default of 12 is too few for a store that answers after milliseconds.
pub const BACKGROUND_MAX: u16 = 64;
/// Number of these from which the kernel holds writers back.
pub const BACKGROUND_MANY: u16 = 48;
/// The size that programs are told to read and write in, bytes: with the 4 KiB of other file
/// systems, each small write of theirs would be a request.
pub const BLOCK_BYTES: u32 = 64 * KIB as u32;
/// Attributes that a READDIRPLUS looks up at a time.
pub const LOOKUPS_AT_ONCE: usize = 16;
