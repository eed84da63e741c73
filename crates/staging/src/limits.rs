//! Bounds of staging that are not settings.

use std::time::Duration;

/// Unfinished changes of all volumes together. They are metadata in RAM (about 200 bytes each), and recovery time is
/// proportional to them.
pub(crate) const CHANGES_MAX: u64 = 1 << 20;
/// What an entry of the log takes beside its payload, and what a change without payload is counted as, bytes.
pub(crate) const ENTRY_BYTES: u64 = 64;
/// Most changes in one destage batch.
pub(crate) const BATCH_CHANGES_MAX: usize = 128 * 1024;
/// A batch takes at most this part of the volume's share, so that what a commit frees comes in small portions and flow
/// control can follow.
pub(crate) const BATCHES_IN_SHARE_MIN: u64 = 8;
/// Changes handled under one hold of a volume's lock.
pub(crate) const SLICE_CHANGES: usize = 256;
/// Latency of the store before anything was measured.
pub(crate) const LATENCY_START: Duration = Duration::from_millis(10);
/// Flow control believes no latency above this: a store that hangs shall fill the flash, not freeze the clients.
pub(crate) const LATENCY_MAX: Duration = Duration::from_millis(250);
/// First pause of the destager after an error of the store.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest pause of the destager after errors of the store.
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long a batch tries to get its packs into the store before it is given up and folded again later: a sweep waits for it.
pub(crate) const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);
/// A commit looks whether this start was dismissed unless somebody has looked so shortly before. Shorter than the least
/// grace of a sweep.
pub(crate) const DISMISSAL_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// What a batch in hand gets to end when its volume closes or staging stops.
pub(crate) const CLOSE_GRACE: Duration = Duration::from_secs(2);
/// How often changes that nobody waits for are looked at: whether the log has them on flash by now.
pub(crate) const PENDING_CHECK: Duration = Duration::from_millis(100);
/// Volumes above their fair share wait when this part of the flash budget is taken; the rest is for those below theirs.
pub(crate) const SHARED_PERCENT: u64 = 95;
/// A volume is destaged at once when it has this part of its share, or the log this part of the flash.
pub(crate) const PRESSURE_PERCENT: u64 = 50;
/// Longest read that is copied while the volume's lock is held, bytes.
pub(crate) const COPY_UNDER_LOCK_BYTES_MAX: usize = 64 * 1024;
/// Runs of unfinished changes of which a vault says who logged them; the oldest ones beyond are not told apart.
pub(crate) const LOGGED_MAX: usize = 1024;
/// Separate lost stretches of a volume: its vault holds them all.
pub(crate) const LOST_MAX: usize = 32 * 1024;
/// Rounds of one salvage: each brings back one level of a tree at least.
pub(crate) const SALVAGE_PASSES_MAX: usize = 17;
/// Earlier contents that one salvage reads through, to name one that is whole.
pub(crate) const SALVAGE_VERSIONS_MAX: usize = 3;
/// Lines of what a salvage found and did that are kept; the damages are counted all the same.
pub(crate) const SALVAGE_LINES_MAX: usize = 1000;
/// News of damaged volumes that nobody has taken yet.
pub(crate) const HURT_MAX: usize = 1024;
/// Conflicts over one commit after which the destager pauses between attempts.
pub(crate) const CONFLICTS_MAX: u32 = 3;
/// How long the root before the last commit is kept for a salvage, and what the log has of that commit.
pub(crate) const EARLIER_AGE_MAX: Duration = Duration::from_secs(60);
/// Most changes kept with it for one volume: one that commits more keeps none.
pub(crate) const EARLIER_CHANGES_MAX: usize = 64 * 1024;
/// Most changes kept so for all volumes; with more, the oldest go first. They are metadata in RAM (under 100 bytes each).
pub(crate) const EARLIER_CHANGES_SUM_MAX: usize = 256 * 1024;
/// How long an earlier content of a volume is kept.
pub(crate) const VERSION_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How much longer the sweep leaves it alone.
pub(crate) const VERSION_GRACE: Duration = Duration::from_secs(60 * 60);
/// Versions of a volume.
pub(crate) const VERSIONS_MAX: usize = 24;
/// Of these, the last ones, however soon one came after the other.
pub(crate) const VERSIONS_LAST: usize = 3;
/// Of these, the last ones, whatever they keep in the store.
pub(crate) const VERSIONS_LAST_ALWAYS: usize = 2;
/// Least length of what a batch writes over for which the tree is asked how much of it there was.
pub(crate) const COUNTED_SPAN_MIN: u64 = 1 << 20;
/// Bytes of a volume of which one batch asks that; of what is beyond, samples of this many stretches are taken.
pub(crate) const COUNTED_BYTES_MAX: u64 = 4 << 30;
pub(crate) const COUNTED_SAMPLES: u64 = 64;
/// Bytes that may have been written over since the oldest version: this, or half of the volume if that is more.
pub(crate) const VERSION_BYTES_MIN: u64 = 1 << 30;
/// Longest name of a kind of volume, bytes.
pub(crate) const KIND_BYTES_MAX: usize = 16;
