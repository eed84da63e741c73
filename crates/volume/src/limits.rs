//! Bounds of this crate.

use std::time::Duration;

/// Changes of state remembered per volume.
pub const HISTORY_MAX: usize = 32;
/// Changes of state that a watcher may be behind before it misses some.
pub const EVENTS_MAX: usize = 1024;
/// Records of the datastore read at once by one listing.
pub const READS_MAX: usize = 32;
/// Records that a long listing reads together, and how many such runs are read at once.
pub const RUN_MAX: usize = 512;
pub const RUNS_MAX: usize = 2;
/// Volumes whose vaults are kept between two lists for users, at most, of about 600 bytes each.
pub const SEEN_MAX: usize = 1 << 16;
/// Volumes up to which a list of names looks at the kind of each.
pub const NAMES_EXACT_MAX: usize = 4096;
/// Retries of a conditional write after another writer has changed the record.
pub const CONFLICTS_MAX: usize = 8;
/// Volumes attached at once ahead of their clients.
pub const WELCOMES_MAX: usize = 4;
/// Volumes taken out of service at once by a stop, at most.
pub const STOPS_MAX: usize = 64;
/// Longest wait, at stop, for the changes of all volumes to reach the datastore.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(600);
/// Longest wait, at stop, for one volume to go out of service.
pub const CLOSE_TIME_MAX: Duration = Duration::from_secs(30);
/// Age from which a vault without a name is taken for the rest of a failed creation.
pub const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Volumes of which a reaping remembers that there was nothing to do. The records of more are read
/// by each reaping.
pub const RESTED_MAX: usize = 1 << 20;
/// Time that a removed volume is kept in the trash.
pub const TRASH_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Longest wait for a volume's backlog to reach the store, before the volume goes to the trash,
/// shrinks or goes back.
pub const SETTLE_TIME_MAX: Duration = Duration::from_secs(120);
/// Rounds in which the changes of a volume that moves go to the store while its clients go on, at
/// most. A client that writes faster than the store takes leaves the rest to the end.
pub const MOVE_ROUNDS_MAX: u64 = 8;
/// Bytes that a volume may owe when its requests begin to wait, unless all rounds are used up.
pub const MOVE_REST_BYTES: u64 = 1 << 20;
/// Longest wait, while requests wait, for the rest of a volume's changes to reach the store.
pub const MOVE_CLOSING_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks at a full store while a task waits for it, and how many looks in a row
/// must find it full.
pub const FULL_PAUSE: Duration = Duration::from_secs(1);
pub const FULL_LOOKS: u32 = 5;
/// Least and longest pause between two looks of the watchdog.
pub const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(20);
pub const WATCH_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Volumes in a transitional state that one answer names; the rest is counted.
pub const TRANSITIONAL_MAX: usize = 100;
/// Warnings of one look of the watchdog; the rest is counted in one more.
pub const WARNINGS_MAX: usize = 8;
/// Pause before a stuck volume is warned of again.
pub const WARN_AGAIN: Duration = Duration::from_secs(60);
/// Default idle time: a volume without clients for this long is idle.
pub const COLLECT_IDLE: Duration = Duration::from_secs(2 * 60 * 60);
/// Default pause between two passes of the collector.
pub const COLLECT_INTERVAL: Duration = Duration::from_secs(30);
/// Default of the least number of volumes that a pass of the collector takes.
pub const COLLECT_BATCH: u64 = 64;
/// Time within which all volumes that are due at once are out of service.
pub const COLLECT_TIME: Duration = Duration::from_secs(45 * 60);
/// Volumes that a pass looks at before it lets other tasks run.
pub const COLLECT_SLICE: usize = 1024;
/// Salvages at once.
pub const SALVAGE_WORKERS: usize = 4;
/// Most volumes that wait for a salvage or are in one.
pub const SALVAGES_MAX: usize = 4096;
/// Time in which a waiting client raises the priority of a volume at most once.
pub const SALVAGE_RAISE_INTERVAL: Duration = Duration::from_secs(3);
/// Attempts to salvage a volume before an operator has to look.
pub const SALVAGE_ATTEMPTS_MAX: u32 = 16;
/// Least pause after the first attempt; it doubles with each one.
pub const SALVAGE_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
pub const SALVAGE_PAUSE_MAX: Duration = Duration::from_secs(600);
/// Time after which a good salvage without a successor has done its work: attempts are counted from
/// zero again.
pub const SALVAGE_HEALTHY: Duration = Duration::from_secs(60 * 60);
/// Time after the first sight of a fault in which the node gives nothing up by itself.
pub const SALVAGE_PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Most bytes that the node gives up by itself, or [`SALVAGE_LOSS_PERCENT`] of the volume, if that
/// is more.
pub const SALVAGE_LOSS_BYTES_MAX: u64 = 64 << 20;
/// See [`SALVAGE_LOSS_BYTES_MAX`]: the larger of the two counts.
pub const SALVAGE_LOSS_PERCENT: u64 = 1;
/// Hard bound of such a loss, as a part of the volume, however small the volume is. A loss of a
/// whole volume points to a wrong store or secret.
pub const SALVAGE_LOSS_PERCENT_MAX: u64 = 10;
/// Least pause before the next look at a fault that waits for absent chunks, which may come back.
/// It doubles with each look.
pub const SALVAGE_LOOK_MIN: Duration = Duration::from_secs(60);
/// Longest such pause.
pub const SALVAGE_LOOK_MAX: Duration = Duration::from_secs(60 * 60);
/// Pause before the next look at proven damage that waits for an operator: it does not heal.
pub const SALVAGE_LOOK_DAMAGED: Duration = Duration::from_secs(24 * 60 * 60);
/// Time without a salvage after which a fault counts as a new one when it is met again.
pub const SALVAGE_FAULT_FORGOTTEN: Duration = Duration::from_secs(3 * 24 * 60 * 60);
/// Pause between two looks for volumes whose fault is due for a look.
pub const SALVAGE_ROUND: Duration = Duration::from_secs(30);
/// Time, at stop, for recording that a salvage was cut off.
pub const SALVAGE_STOP_GRACE: Duration = Duration::from_secs(2);
/// Salvages of a volume that its record keeps.
pub const SALVAGE_ACCOUNTS_MAX: usize = 8;
/// Lines of one salvage that its record keeps; the rest is counted.
pub const SALVAGE_LINES_MAX: usize = 100;
/// Time after a kill of the daemon in which a volume's client is expected back, so that the volume
/// is not removed by mistake.
pub const CLIENT_RETURN: Duration = Duration::from_secs(60);

const _: () = assert!(COLLECT_TIME.as_secs() < 60 * 60, "a hundred thousand in an hour");
/// Looks for a volume's changes, in service or out of it, while it changes over; and the pause
/// between them.
pub(crate) const LOOKS_MAX: usize = 3;
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Pause before a vault that is older than the log knows is read a second time.
pub(crate) const SET_BACK_PAUSE: Duration = Duration::from_secs(1);
