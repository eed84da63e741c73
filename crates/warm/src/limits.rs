//! Bounds of the arena.

/// Frames of each size in a set: a lookup compares them, and an eviction chooses from them.
pub const WAYS: usize = 8;
/// Bytes of a small and of a large frame. Small: the root of a volume with up to 56 blocks, or a
/// record. Large: the largest tree node (256 entries of 72 bytes, a header of 16, a count of 4), in
/// whole cache lines. See `docs/decisions/2026-11-20-block-frames.md`.
pub const FRAME_BYTES: [usize; 2] = [4096, 18_496];
/// Most sets: 700 GiB of frames. A header that names more is not believed.
pub const SETS_MAX: u64 = 1 << 22;
/// Locks that the sets share, so that opening costs the same however many sets there are.
pub const STRIPES: usize = 64;

/// Bytes at the end of a slot that are written once, when the segment in it is sealed.
pub const FOOT_BYTES: u32 = 512;
/// Unit of every publication, bytes: a cache line, and the size of a log descriptor.
pub const GRAIN_BYTES: u32 = 64;
/// Slots that the certificate table has room for. The table has this size whatever the number of
/// slots is, so that an arena may grow without moving its slots.
pub const SLOTS_MAX: usize = 8192;
/// Largest slot, bytes: lengths are kept in 18 bits, in grains.
pub const SLOT_BYTES_MAX: u32 = 8 << 20;
/// Smallest slot, bytes (tests use small ones).
pub const SLOT_BYTES_MIN: u32 = 8 << 10;
