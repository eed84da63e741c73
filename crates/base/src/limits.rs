//! Bounds that more than one crate must agree on. A crate's own bounds are in its `limits.rs`.

use crate::units::{KIB, MIB, TIB};

/// Longest volume name, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Smallest unit in which volume sizes count, bytes.
pub const SECTOR_BYTES: u64 = 512;
/// Largest volume, bytes.
pub const VOLUME_BYTES_MAX: u64 = 1024 * TIB;
/// Smallest chunk of a block volume with chunks of one size, bytes.
pub const BLOCK_BYTES_MIN: u64 = 4 * KIB;
/// Largest such chunk, bytes.
pub const BLOCK_BYTES_MAX: u64 = MIB;
/// Most payload bytes in one log entry; larger writes become several changes.
pub const CHANGE_BYTES_MAX: u64 = 256 * KIB;
/// A log segment, bytes.
pub const SEGMENT_BYTES: u64 = 8 * MIB;

const _: () = assert!(BLOCK_BYTES_MIN.is_multiple_of(SECTOR_BYTES));
const _: () = assert!(
    CHANGE_BYTES_MAX * 8 <= SEGMENT_BYTES,
    "a segment must hold several of the largest changes"
);
