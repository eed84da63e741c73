//! Bounds of version 4.1.

use std::time::Duration;

/// Time without a word after which another client may have what a client holds.
pub const LEASE: Duration = Duration::from_secs(90);
/// Clients that are remembered; sessions of one of them, and of all.
pub const CLIENTS_MAX: usize = 1024;
pub const CLIENT_SESSIONS_MAX: usize = 16;
pub const SESSIONS_MAX: usize = 1024;
/// Destroyed sessions that are known not to come back.
pub const DESTROYED_MAX: usize = 4096;
/// Slots of a session: requests that a client has under way in it. The log remembers more changes
/// of a client than its slots have.
pub const SLOTS_MAX: u32 = 64;
/// Most operations of a COMPOUND.
pub const OPS_MAX: u32 = 64;
/// Longest reply that is kept for a request that comes again, bytes.
pub const CACHED_BYTES_MAX: usize = 2 << 10;
/// Bytes of the reply to a SEQUENCE alone, without a tag.
pub const SEQUENCED_BYTES: usize = 56;
/// Most bytes of data in the reply to a COMPOUND that is said beforehand, and without that.
pub const ROOM_BYTES_MAX: usize = 2 << 20;
pub const ROOM_BYTES: usize = 64 << 10;
/// Longest call and reply, besides the data of a READ or WRITE, bytes.
pub const AROUND_BYTES: u32 = 4 << 10;
/// Longest tag of a COMPOUND, and longest name of a client, an owner or a domain, bytes.
pub const TAG_BYTES_MAX: u32 = 1024;
pub const OWNER_BYTES_MAX: u32 = 1024;
/// Most entries of an access control list that is read: two lists of POSIX, and two denials for
/// each entry. Longest one that is read or shown, bytes: no client of Linux asks for more.
pub const ACL_ENTRIES_MAX: usize = 6 * rekindle_file::ACL_ENTRIES_MAX;
pub const ACL_BYTES_MAX: usize = 64 << 10;
/// Files of which one client holds something, since the daemon's start.
pub const CLIENT_HELD_MAX: u64 = 20_000;
/// Volumes that clients are known to be in, of all clients together.
pub const HAUNTS_MAX: usize = 4096;
/// Stateids of one TEST_STATEID.
pub const STATEIDS_MAX: u32 = 256;
/// Interval at which files without a name are looked for that only clients hold that have gone.
pub const TEND_INTERVAL: Duration = Duration::from_secs(60);

const _: () = assert!(SLOTS_MAX as usize * 2 <= rekindle_file::limits::CALLS_MAX);
