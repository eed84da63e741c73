//! Bounds of the node, and the defaults that it hands to the crates below.

use base::limits::SEGMENT_BYTES;
use base::units::{GIB, MIB};
use std::time::Duration;

/// What nobody waits for begins so long after the start: clients that come back at once go first.
pub const CLIENTS_FIRST: Duration = Duration::from_secs(1);
/// Volumes that one request may attach side by side.
pub const ATTACHES_AT_ONCE_MAX: usize = 64;
/// Blocks that such a request reads of a volume, at most.
pub const ATTACH_READS_MAX: u64 = 1 << 16;
/// Flash for the log when nobody says, bytes.
pub const FLASH_BYTES_DEFAULT: u64 = 4 * GIB;
/// Least flash for the log, bytes: a few segments, so that one can fill while another is destaged.
pub const FLASH_BYTES_MIN: u64 = 8 * SEGMENT_BYTES;
/// Warm memory when nobody says, bytes.
pub const WARM_BYTES_DEFAULT: u64 = 256 * MIB;
/// Least warm memory, bytes.
pub const WARM_BYTES_MIN: u64 = WARM_SLOTS_MIN as u64 * SEGMENT_BYTES;
/// Part of the warm memory that block frames get when nobody says: one in so many.
pub const WARM_FRAMES_PART: u64 = 4;
/// Least slots of warm memory: the open segment, the one before it, and two to be read at a restart.
pub const WARM_SLOTS_MIN: usize = 4;
/// RAM for cached chunks, bytes.
pub const CACHE_BYTES_DEFAULT: u64 = 256 * MIB;
/// RAM for the dedup index, bytes.
pub const INDEX_BYTES_DEFAULT: u64 = 32 * MIB;
/// A pack is uploaded when it has this many bytes.
pub const PACK_BYTES: u64 = 16 * MIB;
/// Uploads in flight.
pub const UPLOADS: usize = 4;
/// Unfinished bytes of a volume that start a destage before its age does. Much, because what is overwritten meanwhile
/// need not go to the store.
pub const DESTAGE_BYTES_DEFAULT: u64 = GIB;
/// Unfinished changes that are indexed before a volume serves, which takes a millisecond; with more, it takes writes meanwhile.
pub const INDEX_AT_ONCE_MAX: usize = 8192;
/// Most bytes in a destage batch.
pub const BATCH_BYTES_DEFAULT: u64 = 512 * MIB;
/// Destage batches at once.
pub const DESTAGERS_DEFAULT: usize = 2;
/// RAM for payloads of `through` and `uncached` writes, bytes; and the least.
pub const HELD_BYTES_DEFAULT: u64 = 64 * MIB;
pub const HELD_BYTES_MIN: u64 = base::limits::CHANGE_BYTES_MAX;
/// RAM for long requests of all clients of NBD together, beyond 512 KiB for each client, bytes; and the least: two of the
/// longest.
pub const REQUESTS_BYTES_DEFAULT: u64 = 128 * MIB;
pub const REQUESTS_BYTES_MIN: u64 = 64 * MIB;
/// What is only in memory is committed at least this often.
pub const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// How long condemned packs are left alone. Longer than any read takes that began with an older root.
pub const SWEEP_GRACE: Duration = Duration::from_secs(10);

/// Wait before it is tried again to write a start down: the disk is full.
pub const NOTE_RETRY: Duration = Duration::from_secs(1);
/// How long a start waits for an earlier worker of the same folder to be gone.
pub const PREDECESSOR_WAIT: Duration = Duration::from_secs(3);
/// While it acknowledges anything, the node looks this often whether its record still names it.
pub const RECORD_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How often the node looks whether another one wants to delete packs; and how often while one does.
pub const SWEEP_LOOK_INTERVAL: Duration = Duration::from_secs(60);
pub const SWEEP_AGREE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a stop tries to tell the other nodes that none need wait for this one.
pub const LEAVE_WAIT: Duration = Duration::from_secs(1);
/// A quick stop that takes longer than this becomes a stop at once.
pub const STOP_WAIT: Duration = Duration::from_secs(20);
/// How long NBD sessions may take to finish what they have begun.
pub const SESSION_WAIT: Duration = Duration::from_secs(5);
/// How long the question how far a stop is waits for its end, before it is answered all the same.
pub const NEWS_WAIT: Duration = Duration::from_millis(200);
/// How long a stop that has ended waits for whoever follows it to ask once more.
pub const FOLLOW_WAIT: Duration = Duration::from_millis(100);
/// A stop tells how far it is after this time, and then again and again.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// How long requests to the API may take to finish.
pub const HTTP_WAIT: Duration = Duration::from_millis(500);
/// Clients of NBD at a time; each has a thread. A node with a thousand volumes in use has more than a thousand.
pub const NBD_CONNECTIONS: usize = 4096;
/// A volume in a passing state is reported as stuck after this time, when nobody says.
pub const STUCK_AFTER_DEFAULT: Duration = Duration::from_secs(10);
/// Volumes with metrics of their own.
pub const VOLUMES_IN_METRICS: usize = 1000;
/// Volumes in service that the status lists.
pub const VOLUMES_IN_STATUS: usize = 100;
/// Rows of each list that `debug` shows.
pub const DEBUG_ROWS: usize = 1000;
/// Finished jobs that are remembered.
pub const JOBS_KEPT: usize = 16;
/// Findings that one job keeps; more are counted only.
pub const FINDINGS_KEPT: usize = 256;

const _: () = assert!(FLASH_BYTES_DEFAULT >= FLASH_BYTES_MIN);
const _: () = assert!(WARM_BYTES_DEFAULT >= WARM_BYTES_MIN);
const _: () = assert!(BATCH_BYTES_DEFAULT >= base::limits::CHANGE_BYTES_MAX);
const _: () = assert!(NEWS_WAIT.as_millis() < HTTP_WAIT.as_millis());
/// What a scrub reads in a second, unless somebody says otherwise, bytes.
pub const SCRUB_BYTES_PER_SECOND: u64 = 16 << 20;
/// Chunks of which the count of space keeps the names; with more it estimates.
pub const SPACE_SAMPLE: usize = 1 << 17;
/// How often the node looks whether the store answers and how much room the disk has, while it matters.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// It matters so long after somebody has asked how the node is.
pub const LOOK_WANTED: Duration = Duration::from_secs(60);
/// Between two looks for a store without which a start cannot go on.
pub const START_AGAIN: Duration = Duration::from_secs(1);
/// A client that waits longer for a write or for its volume is said to wait.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// How long the store may take to answer such a look.
pub const PROBE_TIME: Duration = Duration::from_secs(3);
/// Less room than this on the disk of the node's folder is said, bytes.
pub const DISK_FREE_LOW: u64 = 4 * SEGMENT_BYTES;
