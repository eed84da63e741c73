//! Bounds of staging that are not settings.

use std::time::Duration;

/// Most unfinished changes of all volumes together. They are metadata in RAM (about 200 bytes
/// each), and recovery time is proportional to them.
pub(crate) const CHANGES_MAX: u64 = 1 << 20;
/// Bytes of a log entry beside its payload; also the cost of a change without payload.
pub(crate) const ENTRY_BYTES: u64 = 64;
/// Most changes in one destage batch.
pub(crate) const BATCH_CHANGES_MAX: usize = 128 * 1024;
/// Mean length of changes from which they are a stream, bytes.
pub(crate) const STREAM_CHANGE_BYTES: u64 = 64 << 10;
/// Unfinished bytes of a stream from which it is destaged: the store is not idle for long.
pub(crate) const STREAM_DUE_BYTES: u64 = 32 << 20;
/// Most bytes of a stream in one batch. A stream hardly writes over itself, so a larger batch
/// spares nothing but requests; and so few bytes are still in warm memory when they are folded.
pub(crate) const STREAM_BATCH_BYTES: u64 = 64 << 20;
/// Batches that are folded and wait for those before them: the commit of one waits behind packs of
/// the next ones where the line to the store is narrow.
pub(crate) const ROW_BATCHES_READY: usize = 1;
/// Most batches that one volume destages in a row: then others have their turn.
pub(crate) const ROW_BATCHES_MAX: usize = 16;
/// Least number of batches that make up a volume's share: a commit then frees small portions, and
/// flow control can follow.
pub(crate) const BATCHES_IN_SHARE_MIN: u64 = 8;
/// Most volumes that a worker of the destager takes at once: their batches share packs.
pub(crate) const COMPANY_VOLUMES_MAX: usize = 64;
/// Unfinished bytes of these volumes together; a volume with more is taken alone.
pub(crate) const COMPANY_BYTES_MAX: u64 = 4 << 20;
/// A volume goes along with another that is due if it would be due within this part (a divisor) of
/// the destage age. A larger part would make more commits of the same writes.
pub(crate) const COMPANY_EARLY_PART: u32 = 4;
/// Percent of the deadline up to which a volume waits for the pace of commits by age.
pub(crate) const PACED_PERCENT: u32 = 75;
/// Changes handled under one hold of a volume's lock.
pub(crate) const SLICE_CHANGES: usize = 256;
/// Latency of the store before the first measurement.
pub(crate) const LATENCY_START: Duration = Duration::from_millis(10);
/// Highest latency that flow control believes: a store that hangs shall fill the flash, not freeze
/// the clients.
pub(crate) const LATENCY_MAX: Duration = Duration::from_millis(250);
/// First pause of the destager after an error of the store.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest pause of the destager after errors of the store.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest time that a batch tries to get its packs into the store, before it is given up and
/// folded again later: a sweep waits for it.
pub(crate) const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);
/// Time for which one look whether this start was dismissed is enough for all commits. Shorter than
/// the least grace of a sweep.
pub(crate) const DISMISSAL_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time that a batch in hand gets to end when its volume closes or staging stops.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// Interval of the look whether the log has unawaited changes on flash by now.
pub(crate) const PENDING_CHECK: Duration = Duration::from_millis(100);
/// Percent of the flash budget at which volumes above their fair share wait; the rest is for those
/// below theirs.
pub(crate) const SHARED_PERCENT: u64 = 95;
/// Percent of its share at which a volume is destaged at once, and of the flash at which all are.
pub(crate) const PRESSURE_PERCENT: u64 = 50;
/// Longest read that is copied while the volume's lock is held, bytes.
pub(crate) const COPY_UNDER_LOCK_BYTES_MAX: usize = 64 * 1024;
/// Extents after which a list of them ends: an answer to a client carries no more. It bounds the
/// time for which the volume's lock is held, too.
pub(crate) const EXTENTS_MAX: usize = 4096;
/// Bytes whose extents the home is asked for at once. It bounds what a home of small pieces finds
/// beyond [`EXTENTS_MAX`].
pub(crate) const EXTENTS_STEP_BYTES: u64 = 64 << 20;
/// Most runs of unfinished changes whose lives a vault names; the oldest ones beyond are not told
/// apart.
pub(crate) const LOGGED_MAX: usize = 1024;
/// Most separate lost stretches of a volume: its vault holds them all.
pub(crate) const LOST_MAX: usize = 32 * 1024;
/// Most rounds of one salvage: each brings back one level of a tree at least.
pub(crate) const SALVAGE_PASSES_MAX: usize = 17;
/// Most earlier contents that one salvage reads through, to find one that is whole.
pub(crate) const SALVAGE_VERSIONS_MAX: usize = 3;
/// Most lines that a salvage keeps about its findings and repairs; the damages are counted all the
/// same.
pub(crate) const SALVAGE_LINES_MAX: usize = 1000;
/// Most damage reports that wait to be taken.
pub(crate) const DAMAGE_REPORTS_MAX: usize = 1024;
/// Conflicts over one commit after which the destager pauses between attempts.
pub(crate) const CONFLICTS_MAX: u32 = 3;
/// Time for which a salvage can have the root before the last commit, and the log keeps the changes
/// of that commit.
pub(crate) const EARLIER_AGE_MAX: Duration = Duration::from_secs(60);
/// Most changes kept with the previous root of one volume: a commit of more keeps none.
pub(crate) const EARLIER_CHANGES_MAX: usize = 64 * 1024;
/// Most changes kept with the previous roots of all volumes; with more, the oldest go first. They
/// are metadata in RAM (under 100 bytes each).
pub(crate) const EARLIER_CHANGES_SUM_MAX: usize = 256 * 1024;
/// Longest time that an earlier content of a volume is kept.
pub(crate) const VERSION_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which the sweep leaves an earlier content alone beyond that.
pub(crate) const VERSION_GRACE: Duration = Duration::from_secs(60 * 60);
/// Most snapshots of a volume: each commit of the volume writes them, too.
pub(crate) const SNAPSHOTS_MAX: usize = 256;
/// Most snapshots that a volume ever has: the numbers of inodes leave 20 bits for theirs.
pub const SNAPSHOTS_TAKEN_MAX: u32 = (1 << 20) - 1;
/// Most versions of a volume.
pub(crate) const VERSIONS_MAX: usize = 24;
/// Of these, the last ones that stay, however soon one came after the other.
pub(crate) const VERSIONS_LAST: usize = 3;
/// Of these, the last ones that stay, whatever they keep in the store.
pub(crate) const VERSIONS_LAST_ALWAYS: usize = 2;
/// Least length of an overwritten stretch for which the tree is asked how much content it had.
pub(crate) const COUNTED_SPAN_MIN: u64 = 1 << 20;
/// Most bytes of a volume for which one batch asks that; of the rest, [`COUNTED_SAMPLES`] samples
/// are taken.
pub(crate) const COUNTED_BYTES_MAX: u64 = 4 << 30;
pub(crate) const COUNTED_SAMPLES: u64 = 64;
/// Least bound of the bytes written over since the oldest version; half of the volume, if that is
/// more.
pub(crate) const VERSION_BYTES_MIN: u64 = 1 << 30;
/// Longest name of a kind of volume, bytes.
pub(crate) const KIND_BYTES_MAX: usize = 16;
/// Bytes of an earlier content whose tree is checked in one call before a rollback to it.
pub(crate) const LOOK_BYTES: u64 = 16 << 30;
/// Time between the notice of a hand-over and the moment from which changes wait.
pub(crate) const HAND_OVER_NOTICE: Duration = Duration::from_millis(2);
