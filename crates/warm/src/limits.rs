//! Bounds of the arena.

/// Bytes at the end of a slot that are written once, when the segment in it is sealed.
pub const FOOT_BYTES: u32 = 512;
/// Everything that is published is a multiple of this, bytes: a cache line, and the size of a log descriptor.
pub const GRAIN_BYTES: u32 = 64;
/// Slots that the certificate table has room for. The table has this size whatever the number of slots is, so that
/// an arena may grow without moving its slots.
pub const SLOTS_MAX: usize = 8192;
/// Largest slot, bytes: lengths are kept in 18 bits, in grains.
pub const SLOT_BYTES_MAX: u32 = 8 << 20;
/// Smallest slot, bytes (tests use small ones).
pub const SLOT_BYTES_MIN: u32 = 8 << 10;
