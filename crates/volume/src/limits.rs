//! Bounds of this crate.

use std::time::Duration;

/// Changes of state remembered per volume.
pub const HISTORY_MAX: usize = 32;
/// Changes of state that a watcher may be behind before it misses some.
pub const EVENTS_MAX: usize = 1024;
/// Records of the datastore read at once by one listing.
pub const READS_MAX: usize = 32;
/// Times that a conditional write is tried again after somebody else changed the record.
pub const CONFLICTS_MAX: usize = 8;
/// Volumes brought back at once ahead of their clients.
pub const WELCOMES_MAX: usize = 4;
/// Volumes taken out of service at once by a stop, at most.
pub const STOPS_MAX: usize = 64;
/// Longest wait, at stop, for the changes of all volumes to reach the datastore.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(600);
/// Longest wait, at stop, for one volume to go out of service.
pub const CLOSE_TIME_MAX: Duration = Duration::from_secs(30);
/// A vault without a name is believed to be the rest of a failed creation when it is this old.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a removed volume is kept in the trash.
pub const TRASH_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A start purges nothing, and leaves every earlier content that is listed, before this: the clock may have been wrong when
/// it began, and people have had time to set it right.
pub const PURGE_UPTIME: Duration = Duration::from_secs(60 * 60);
/// Longest wait for what a volume owes to reach the store, before it is laid aside or goes back.
pub const SETTLE_TIME_MAX: Duration = Duration::from_secs(120);
/// How often a full store is looked at while somebody waits for it, and how often it has to be full in a row.
pub const FULL_PAUSE: Duration = Duration::from_secs(1);
pub const FULL_LOOKS: u32 = 5;
/// Longest name of a kind, bytes.
pub const KIND_BYTES_MAX: usize = 16;
/// Least and longest pause between two looks of the watchdog.
pub const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(20);
pub const WATCH_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Volumes in a passing state that one answer names; the rest is counted.
pub const PASSING_MAX: usize = 100;
/// Warnings of one look of the watchdog; the rest is counted in one more.
pub const WARNINGS_MAX: usize = 8;
/// A volume that is stuck is warned of again after this time.
pub const WARN_AGAIN: Duration = Duration::from_secs(60);
/// A volume is idle when nobody has held it for this long, unless somebody says otherwise.
pub const COLLECT_IDLE: Duration = Duration::from_secs(2 * 60 * 60);
/// Pause between two passes of the collector, unless somebody says otherwise.
pub const COLLECT_INTERVAL: Duration = Duration::from_secs(30);
/// Volumes that a pass of the collector takes at least, unless somebody says otherwise.
pub const COLLECT_BATCH: u64 = 64;
/// Whatever is due at once is out of service within this time.
pub const COLLECT_TIME: Duration = Duration::from_secs(45 * 60);
/// Volumes that a pass looks at before it lets others go on.
pub const COLLECT_SLICE: usize = 1024;
/// Salvages at once, unless somebody says otherwise.
pub const SALVAGE_WORKERS: usize = 4;
/// Volumes that wait for a salvage or are being salvaged.
pub const SALVAGES_MAX: usize = 4096;
/// A waiting client raises the priority of a volume at most once in this time.
pub const SALVAGE_RAISE_INTERVAL: Duration = Duration::from_secs(3);
/// Attempts to salvage a volume before somebody has to look.
pub const SALVAGE_ATTEMPTS_MAX: u32 = 16;
/// Least time after the first attempt; it doubles with each one.
pub const SALVAGE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest time between two attempts.
pub const SALVAGE_PAUSE_MAX: Duration = Duration::from_secs(600);
/// A good salvage without another for this long has done its work: attempts are counted from none again.
pub const SALVAGE_HEALTHY: Duration = Duration::from_secs(60 * 60);
/// Nothing is given up by itself within this time after a fault was first seen.
pub const SALVAGE_PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Nothing is given up by itself if more than this would be lost, or more than [`SALVAGE_LOSS_PERCENT`] of the volume.
pub const SALVAGE_LOSS_BYTES_MAX: u64 = 64 << 20;
/// See [`SALVAGE_LOSS_BYTES_MAX`]: whichever is more.
pub const SALVAGE_LOSS_PERCENT: u64 = 1;
/// But never more than this part of the volume, however small it is: who loses a whole volume has a wrong store or secret.
pub const SALVAGE_LOSS_PERCENT_MAX: u64 = 10;
/// Least pause before a fault that waits is looked at again, in case that what is absent came back; it doubles.
pub const SALVAGE_LOOK_MIN: Duration = Duration::from_secs(60);
/// Longest such pause, while something is absent.
pub const SALVAGE_LOOK_MAX: Duration = Duration::from_secs(60 * 60);
/// Pause before proven damage that waits for a person is looked at again: it does not heal.
pub const SALVAGE_LOOK_DAMAGED: Duration = Duration::from_secs(24 * 60 * 60);
/// A fault that nobody has met for this long is another one when it is met again.
pub const SALVAGE_FAULT_FORGOTTEN: Duration = Duration::from_secs(3 * 24 * 60 * 60);
/// How often is looked for volumes that are due.
pub const SALVAGE_ROUND: Duration = Duration::from_secs(30);
/// Time, at stop, for writing down that a salvage was cut off.
pub const SALVAGE_STOP_GRACE: Duration = Duration::from_secs(2);
/// Salvages of a volume that are remembered.
pub const SALVAGE_ACCOUNTS_MAX: usize = 8;
/// Lines of one salvage that are remembered; the rest is counted.
pub const SALVAGE_LINES_MAX: usize = 100;
/// After a kill of the daemon the client of a volume is expected back for so long, and nobody removes it by mistake.
pub const CLIENT_RETURN: Duration = Duration::from_secs(60);

const _: () = assert!(COLLECT_TIME.as_secs() < 60 * 60, "a hundred thousand in an hour");
/// Bytes of an earlier content whose tree is looked at in one go before somebody goes back to it.
pub(crate) const VERSION_LOOK_BYTES: u64 = 16 << 30;
/// Time until a vault that is older than the log knows is read a second time.
pub(crate) const SET_BACK_PAUSE: Duration = Duration::from_secs(1);
