//! Bounds of the log.

use rekindle_base::limits::{CHANGE_BYTES_MAX, SEGMENT_BYTES};
use std::time::Duration;

/// Least unit of a write to flash, bytes: batches begin and end on its multiples. A larger physical
/// sector of the drive takes its place. Acknowledged sectors are never written again with other
/// bytes, so a torn write cannot hurt them.
pub const SECTOR_BYTES: u32 = 512;
/// Largest unit of a write to flash, bytes: a drive that reports a larger sector is not believed.
pub const SECTOR_BYTES_MAX: u32 = 16 << 10;
/// Entries begin on a multiple of this, bytes.
pub const GRAIN_BYTES: u32 = 64;
/// Most bytes of a segment that one [`crate::Log::append`] may take: payloads, each padded to 64,
/// and 128 a change. With this bound a new head has room for any append.
pub const APPEND_BYTES_MAX: u64 = SEGMENT_BYTES / 2;
/// Most changes of one group. A reader holds a group as a whole, and a batch of the datastore takes
/// it as a whole.
pub const GROUP_ENTRIES_MAX: usize = 1024;
/// Fewest segments of a flash budget: a head, and one to be destaged meanwhile.
pub const SEGMENTS_MIN: u64 = 2;
/// Segment files that are kept for a full disk: one for a start; one for a head behind a head that
/// is not needed any more; and one for the head behind that, with which the first goes.
pub const FILES_RESERVED: usize = 3;
/// Segment files kept beyond the budget, so that opening a head never waits for one to be freed.
pub const RESERVE_FILES: u64 = 2 + FILES_RESERVED as u64;
/// Dead segments from this count on are litter, if they are more than twice the live ones: a
/// restart would look into each of them.
pub const LITTER_MIN: usize = 8;
/// Segment files made before they are needed: while the log grows fast, a head fills in the time
/// that making one takes.
pub const FILES_AHEAD: usize = 4;
/// Uncommitted bytes that start a commit unasked: a rollover waits for the rest.
pub const FLUSH_AHEAD_BYTES: u64 = 1 << 20;
/// Uncommitted bytes up to which a stream may append more: as long as a batch is written, the next
/// one gathers. With more, the write of another volume would wait for it.
pub const AHEAD_BYTES_MAX: u64 = 384 << 10;
/// Time without an append after which the last batch is confirmed by an empty one.
pub const CONFIRM_AFTER: Duration = Duration::from_secs(1);
/// Bytes that a caller may append when it has come first in the queue of the streams.
pub const QUANTUM_BYTES: u64 = CHANGE_BYTES_MAX;
/// Bytes that any caller may have on their way to flash without a quantum.
pub const UNDER_WAY_BYTES_FREE: u64 = 64 << 10;
/// Largest gap between two wanted ranges that is read ahead with them, bytes: one longer read is
/// cheaper than two.
pub const READ_AHEAD_GAP: u32 = 32 << 10;
/// Longest run of neighbouring entries that is read at once, bytes.
pub const RUN_BYTES_MAX: u32 = (1 << 20) + (64 << 10);
/// Bytes of a run that one call reads: a commit waits for the calls that the device has before it.
pub const READ_BYTES_MAX: usize = 256 << 10;
/// Runs that one batch of the destager keeps in memory, at most; beside them, the one that is read
/// ahead.
pub const RUNS_KEPT_MAX: usize = 8;
/// Most segments of a log: their digest takes 2 MiB then.
pub const SEGMENTS_MAX: u64 = 65_536;
/// Most volumes named in the statistics of a head; with more, a lost segment is taken to concern
/// every volume.
pub const STATISTICS_MAX: usize = 16_384;
/// Most low-water marks that a head takes over; changes whose marks are beyond them may come back
/// after a restart.
pub const MARKS_MAX: usize = 16_384;
/// Segments that a replica may have and the log does not need. With more, the replica is told the
/// segments that are needed.
pub(crate) const FREED_MAX: usize = 1024;
/// Most replicas of a log: with local flash, four copies.
pub const REPLICAS_MAX: usize = 3;
/// Most bytes of one call to a replica.
pub const COPY_BYTES_MAX: u32 = 1 << 20;
/// Ends of batches that are kept of a segment, to tell how much of a copy counts.
pub(crate) const BATCHES_KEPT: usize = 4096;
/// Longest wait for a replica's answer to one call.
pub const COPY_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(5);
/// Failed calls to open one segment at a replica before a sync looks at all segments again.
pub(crate) const COPY_REFUSALS_MAX: u32 = 8;
/// Shortest and longest pause before a replica is asked again.
pub const COPY_RETRY_MIN: std::time::Duration = std::time::Duration::from_millis(10);
pub const COPY_RETRY_MAX: std::time::Duration = std::time::Duration::from_secs(1);
/// Slots that the arena must have: the head, its successor.
pub const SLOTS_MIN: usize = 2;
/// Shortest time between two records of the open segment's end.
pub const KNOWN_END_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Reads of a segment that must fail before it counts as damaged.
pub const READ_TRIES: usize = 3;
/// Pause before a retry when room, memory or descriptors were exhausted.
pub const EXHAUSTED_RETRY: std::time::Duration = std::time::Duration::from_millis(100);
/// Pause before another attempt to make a segment file on a full file system.
pub const FULL_RETRY: std::time::Duration = std::time::Duration::from_secs(1);

const _: () = assert!(CHANGE_BYTES_MAX <= APPEND_BYTES_MAX, "the largest change can be appended");
const _: () = assert!(
    SEGMENTS_MAX * 32
        + STATISTICS_MAX as u64 * 24
        + MARKS_MAX as u64 * 40
        + 8 * SECTOR_BYTES_MAX as u64
        + APPEND_BYTES_MAX
        < SEGMENT_BYTES,
    "a head has room for data"
);
