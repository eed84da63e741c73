//! Bounds of this crate.

use std::time::Duration;

/// Most bytes of the rows of a page. A page is read whole, and written anew for each commit that
/// changes one of its rows.
pub const PAGE_BYTES_MAX: usize = 16 << 10;
/// A page with fewer bytes is joined with the next one when it is written.
pub const PAGE_BYTES_MIN: usize = PAGE_BYTES_MAX / 4;
/// Most bytes of a file that lie in its row: it takes no chunk of its own, and is there with its
/// attributes. More would make long pages for a look at the attributes of many files.
pub const ROW_BYTES_MAX: usize = 1 << 10;
/// Most bytes that one call writes: its records are a group.
pub const WRITE_BYTES_MAX: usize = 1 << 20;
/// Most bytes that one call reads.
pub const READ_BYTES_MAX: usize = 8 << 20;
/// Bytes of files that a commit has read ahead together.
pub const READ_AHEAD_BYTES: u64 = 8 << 20;
/// Bytes in which a search for data or a hole looks at first.
pub const SEEK_BYTES: u64 = 64 << 20;
/// Files whose reader's windows are remembered.
pub const READERS_MAX: usize = 128;
/// Time after which a change reaches flash though no client waits for it: a volume goes on from
/// there when its host loses power. Local file systems take 5 s or more.
pub const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait of one change because the store takes less than clients give.
pub const DELAY_MAX: Duration = Duration::from_millis(100);
/// Longest wait of a change that the volume has no room for, for the commit that counts how much it
/// has.
pub const RECOUNT_TIME_MAX: Duration = Duration::from_secs(10);
/// Numbers of inodes that are noted at once: each time costs one write to flash, and a service
/// leaves what it has not given.
pub const NUMBERS_NOTED: u64 = 1 << 14;
/// Numbers that are left out where a volume goes on without changes that were durable: more than it
/// has noted in them.
pub const NUMBERS_SKIPPED: u64 = 1 << 24;
/// The same where no content says which number is the next.
pub const NUMBERS_SKIPPED_BLINDLY: u64 = 1 << 32;
/// Time that clients have to come back, after a start, to the files without a name that they use.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(60);
/// Clients whose requests are remembered; the longest unheard one is forgotten first.
pub const CLIENTS_MAX: usize = 256;
/// Requests that are remembered of a client that never says what it needs no more.
pub const REQUESTS_MAX: usize = 4096;
/// Calls of NFS that are remembered of a client, and for how long: more than it has under way, and
/// longer than it waits for a reply before it asks again.
pub const CALLS_MAX: usize = 512;
pub const CALLS_KEPT: Duration = Duration::from_secs(3600);
/// Most bytes that a front keeps of an inode, and inodes of which it keeps something.
pub const KEPT_BYTES_MAX: usize = 64 << 10;
pub const KEPT_MAX: u64 = 100_000;
/// Names with the same 55 bits of their hash that a directory takes.
pub const COLLISIONS_MAX: u64 = 256;
/// Deepest directory into which a rename moves another one: it looks at the way to the root.
pub const DEPTH_MAX: usize = 100_000;
/// Roots on their way to the store for which what was counted is kept: one is committed, one waits
/// for that, one is being folded.
pub const COUNTED_MAX: usize = 3;
