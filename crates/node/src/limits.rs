//! Bounds of the node, and the defaults that it hands to the crates below.

use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_base::units::{GIB, MIB};
use std::time::Duration;

/// Delay of background work after the start: clients that come back at once go first.
pub const CLIENTS_FIRST: Duration = Duration::from_secs(1);
/// Volumes that one request may attach at once.
pub const ATTACHES_AT_ONCE_MAX: usize = 64;
/// Most blocks that such a request reads of a volume.
pub const ATTACH_READS_MAX: u64 = 1 << 16;
/// Default flash for the log, bytes.
pub const FLASH_BYTES_DEFAULT: u64 = 4 * GIB;
/// Least flash for the log, bytes: a few segments, so that one can fill while another is destaged.
pub const FLASH_BYTES_MIN: u64 = 8 * SEGMENT_BYTES;
/// Default warm memory, bytes.
pub const WARM_BYTES_DEFAULT: u64 = 256 * MIB;
/// Least warm memory, bytes.
pub const WARM_BYTES_MIN: u64 = WARM_SLOTS_MIN as u64 * SEGMENT_BYTES;
/// Default part of the warm memory for block frames, as a divisor.
pub const WARM_FRAMES_PART: u64 = 4;
/// Least slots of warm memory: the open segment, the one before it, and two to read at a restart.
pub const WARM_SLOTS_MIN: usize = 4;
/// RAM for cached chunks, bytes.
pub const CACHE_BYTES_DEFAULT: u64 = 256 * MIB;
/// RAM for the dedup index, bytes.
pub const INDEX_BYTES_DEFAULT: u64 = 32 * MIB;
/// Bytes at which a pack is uploaded.
pub const PACK_BYTES: u64 = 16 * MIB;
/// Uploads in flight.
pub const UPLOADS: usize = 4;
/// Unfinished bytes of a volume that start a destage before its age does. Large, because changes
/// that are overwritten meanwhile need not go to the store.
pub const DESTAGE_BYTES_DEFAULT: u64 = GIB;
/// Unfinished changes that are indexed before a volume serves, which takes a millisecond. With more
/// of them, the volume takes writes during the indexing.
pub const INDEX_AT_ONCE_MAX: usize = 8192;
/// Most bytes in a destage batch.
pub const BATCH_BYTES_DEFAULT: u64 = 512 * MIB;
/// Destage batches at once.
pub const DESTAGERS_DEFAULT: usize = 2;
/// RAM for payloads of `through` and `uncached` writes: default and least, bytes.
pub const HELD_BYTES_DEFAULT: u64 = 64 * MIB;
pub const HELD_BYTES_MIN: u64 = rekindle_base::limits::CHANGE_BYTES_MAX;
/// Part of its host's memory budgets that a node has which was taken over, as a divisor.
pub const GUEST_PART: u64 = 4;
/// RAM for long requests of all NBD clients together, beyond 512 KiB for each client: default and
/// least, bytes. The least holds two of the longest requests.
pub const REQUESTS_BYTES_DEFAULT: u64 = 128 * MIB;
pub const REQUESTS_BYTES_MIN: u64 = 64 * MIB;
/// Longest time that a change is only in memory before it is committed.
pub const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Time before a condemned pack is deleted. Longer than any read that began with an older root.
pub const SWEEP_GRACE: Duration = Duration::from_secs(10);

/// Pause before a log that was left behind is looked at again, the first time and later.
pub const LEFT_AGAIN: Duration = Duration::from_secs(2);
pub const LEFT_AGAIN_MAX: Duration = Duration::from_secs(60);
/// Volumes of such a log that are handed over at once.
pub const LEFT_AT_ONCE: usize = 8;

/// Time for which a life stands, without a lease, once the store has said that it goes on. Less
/// than a user needs to give up what another host lacks.
pub const STANDS: Duration = Duration::from_millis(300);
/// Longest wait for that answer; without one, the life stands for as long.
pub const STAND_WAIT: Duration = Duration::from_secs(1);
/// Pause before the store is asked again.
pub const STAND_PAUSE: Duration = Duration::from_millis(50);

/// Pause before a start is recorded again, after a full disk has prevented it.
pub const NOTE_RETRY: Duration = Duration::from_secs(1);
/// Time that a start waits for the end of an earlier worker of the same folder.
pub const PREDECESSOR_WAIT: Duration = Duration::from_secs(3);
/// Pause between two looks whether the record still names this start, while the node acknowledges
/// changes.
pub const RECORD_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a doubt whether this life is over, which the record did not confirm.
pub const DOUBT_PAUSE: Duration = Duration::from_millis(500);
/// Pause before the node's record is written again, after the store has failed.
pub const RECORD_RETRY: Duration = Duration::from_millis(200);
/// Pause between two looks whether another node wants to delete packs; the second, while one does.
pub const SWEEP_LOOK_INTERVAL: Duration = Duration::from_secs(60);
pub const SWEEP_AGREE_INTERVAL: Duration = Duration::from_secs(10);
/// Sweeps that a node leaves to the one that swept last, though that does not sweep any more.
pub const SWEEPS_MISSED: u32 = 3;
/// Time for telling the other nodes at a stop that no sweep need wait for this one.
pub const LEAVE_WAIT: Duration = Duration::from_secs(1);
/// Time after which a quick stop becomes a stop at once.
pub const STOP_WAIT: Duration = Duration::from_secs(20);
/// Time for NBD sessions to finish their requests in hand.
pub const SESSION_WAIT: Duration = Duration::from_secs(5);
/// The same at a node that is fenced: what its clients wait for comes from another host only.
pub const FENCED_SESSION_WAIT: Duration = Duration::from_millis(100);
/// Pause between two looks whether the flash of a log with copies has failed.
pub const FLASH_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a volume follows its clients to another host.
pub const FOLLOW_CLIENTS_DEFAULT: Duration = Duration::from_secs(30);
/// Least time between two such moves of one volume, also when a user asks for a shorter time.
pub const FOLLOW_REST: Duration = Duration::from_secs(60);
/// Pause between two looks for that.
pub const FOLLOW_LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Time for the store to tell a node that is fenced already which one goes on.
pub const FENCED_LOOK_WAIT: Duration = Duration::from_secs(2);
/// Time that a question for the progress of a stop waits for the end of the stop, before it is
/// answered anyway.
pub const NEWS_WAIT: Duration = Duration::from_millis(200);
/// Time that an ended stop waits for a last question of the client that follows it.
pub const FOLLOW_WAIT: Duration = Duration::from_millis(100);
/// Pause between two reports of a stop's progress.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Time for requests to the API to finish.
pub const HTTP_WAIT: Duration = Duration::from_millis(500);
/// NBD clients at a time; each has a thread. A node with a thousand volumes in use has more than a
/// thousand clients.
pub const NBD_CONNECTIONS: usize = 4096;
/// NFS clients at a time; they have no threads.
pub const NFS_CONNECTIONS: usize = 4096;
/// Default time after which a volume in a transitional state is reported as stuck.
pub const STUCK_AFTER_DEFAULT: Duration = Duration::from_secs(10);
/// Volumes with metrics of their own.
pub const VOLUMES_IN_METRICS: usize = 1000;
/// Volumes in service that the status lists.
pub const VOLUMES_IN_STATUS: usize = 100;
/// Rows of each list that `debug` shows.
pub const DEBUG_ROWS: usize = 1000;
/// Finished jobs that are remembered.
pub const JOBS_KEPT: usize = 16;
/// Numbers that each start has for its jobs.
pub const JOBS_OF_A_START: u64 = 1000;
/// Findings that one job keeps; the rest is counted.
pub const FINDINGS_KEPT: usize = 256;

const _: () = assert!(FLASH_BYTES_DEFAULT >= FLASH_BYTES_MIN);
const _: () = assert!(WARM_BYTES_DEFAULT >= WARM_BYTES_MIN);
const _: () = assert!(BATCH_BYTES_DEFAULT >= rekindle_base::limits::CHANGE_BYTES_MAX);
const _: () = assert!(NEWS_WAIT.as_millis() < HTTP_WAIT.as_millis());
/// Default rate of a scrub, bytes per second.
pub const SCRUB_BYTES_PER_SECOND: u64 = 16 << 20;
/// Chunk names that the count of space keeps; with more chunks it estimates.
pub const SPACE_SAMPLE: usize = 1 << 17;
/// Pause between two looks at the store and the disk, while they matter.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Age up to which such a look says that the store is away.
pub const LOOK_FRESH: Duration = Duration::from_secs(20);
/// Time after a question for the health in which they matter.
pub const LOOK_WANTED: Duration = Duration::from_secs(60);
/// Pause between two tries of a start whose store does not answer.
pub const START_AGAIN: Duration = Duration::from_secs(1);
/// Longest wait of a client for a write or for its volume that is not reported.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(1);
/// Time for the store to answer such a look.
pub const PROBE_TIME: Duration = Duration::from_secs(3);
/// Room on the disk of the node's folder below which it is reported, bytes.
pub const DISK_FREE_LOW: u64 = 4 * SEGMENT_BYTES;

/// Flash for copies of other nodes' logs, bytes.
pub const HOLD_BYTES_DEFAULT: u64 = 8 << 30;
/// Least count of the holders that a node in a cluster wants: one, so that a lease exists, and its
/// volumes go on elsewhere when it is lost.
pub const WANTED_COPIES_MIN: usize = 1;
/// Time of a key of this host, and what must be left of it.
pub const KEY_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
pub const KEY_LIFE_LEFT_MIN: Duration = Duration::from_secs(90 * 24 * 3600);
/// Keys of this host at a time.
pub const KEYS_MAX: usize = 2;
/// Pause between two looks whether the key of this host needs to be replaced.
pub const KEY_LOOK_INTERVAL: Duration = Duration::from_secs(12 * 3600);
/// Time for which the old key counts beside the new one.
pub const KEY_OVERLAP: Duration = Duration::from_secs(2);
/// Longest time for another node's answer to a user's question.
pub const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Longest name of a node or of a fault domain, bytes.
pub const WORD_BYTES_MAX: usize = 63;
/// Pause after a takeover that did not succeed.
pub const TAKEOVER_RETRY: Duration = Duration::from_secs(2);

/// Most owners of the volumes in the trash under one name that a request goes to.
pub const OWNERS_OF_A_NAME_MAX: usize = 64;
/// Longest look, at a stop, for changes that the log has of volumes that were not in service.
pub const LEFT_LOOK: Duration = Duration::from_secs(2);
