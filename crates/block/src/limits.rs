//! Bounds of this crate.

use rekindle_base::units::{KIB, MIB};

/// Steps that one fold assembles at once, and places of the tree that it looks at together.
pub const ASSEMBLED_MAX: usize = 32;
/// Most bytes of one step of a fold.
pub const STEP_BYTES_MAX: u64 = MIB;
/// Bytes that a fold holds in one window; the next window is made while this one is written.
pub const WINDOW_BYTES: u64 = 4 * MIB;
/// Buffers of a window's steps and chunks that a fold keeps for the next windows, at most.
pub const SPARE_MAX: usize = 6;
/// A shorter buffer is not kept, bytes.
pub const SPARE_BYTES_MIN: usize = 256 << 10;
/// Tree changes that a fold collects before it applies them.
pub const CHANGES_MAX: usize = 64 * 1024;
/// Pages of the first look into a large cleared range.
pub const STRETCH_PAGES_MIN: u64 = 4 * 1024;
/// Pages of the largest such look: bounds the entries that one look may find.
pub const STRETCH_PAGES_MAX: u64 = 256 * 1024;
/// Percent of a chunk below which the rest of it is written anew, so that a store never keeps more
/// than about as much again for chunks of which little is left.
pub const CHUNK_LIVE_PERCENT: u64 = 50;
/// Pages that are looked at together for scattered runs.
pub const SCATTERED_PAGES: u64 = 16;
/// Runs among so many pages from which on they are written anew together. Few would copy much for a
/// small write, many would make the tree large.
pub const SCATTERED_RUNS: usize = 12;
/// Sequential streams that read-ahead tells apart in one volume.
pub const STREAMS_MAX: usize = 8;
/// Length of the first read-ahead of a stream, at least; the next ones double.
pub const AHEAD_BYTES_MIN: u64 = 128 * KIB;
/// Reads that the first read-ahead of a stream covers.
pub const AHEAD_READS_MIN: u64 = 2;
/// Factor by which a window grows whose reader has waited: each wait is a round trip to the store.
pub const AHEAD_GROWTH_WAITING: u64 = 4;
/// Read-ahead to which the window of every stream grows.
pub const AHEAD_BYTES_USUAL: u64 = 4 * MIB;
/// Longest read-ahead, of a stream whose reader has waited for shorter ones: 1 GiB/s from a store
/// that answers after 60 ms.
pub const AHEAD_BYTES_MAX: u64 = 64 * MIB;
/// A window takes at most this share of the cache, so that no stream evicts what it has not read:
/// half of what the cache has for chunks that no reader has asked for.
pub const AHEAD_CACHE_SHARE: u64 = 8;
/// Most bytes that one read has fetched ahead: a larger window is filled step by step.
pub const AHEAD_STEP_BYTES: u64 = 4 * MIB;
/// Steps that one read takes at once whose reader waits.
pub const AHEAD_STEPS_WAITING: u64 = 4;
/// Windows that a reader has passed when one that was halved may grow again: what had no room in
/// the cache may have some now.
pub const AHEAD_WINDOWS_HALVED: u64 = 16;
/// Reads that a reader has under way at most, so that they may come in another order.
pub const AHEAD_READS_BEHIND: u64 = 4;
/// Runs that the map of a reader has, at most: those of the longest read-ahead, and 180 KiB of
/// RAM.
pub const MAPPED_RUNS_MAX: usize = 2048;
/// Distance from the expected position up to which a read still belongs to its stream.
pub const AHEAD_SLACK_BYTES: u64 = 64 * KIB;
/// Metadata is fetched this much further ahead than data, in bytes of the volume. A hit finds its
/// chunks only by cached tree nodes.
pub const AHEAD_METADATA_BYTES: u64 = 256 * MIB;
