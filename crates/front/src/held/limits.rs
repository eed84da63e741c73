//! Bounds of what is held of one file.

/// Opens, and owners of locks.
pub const HELD_MAX: usize = 512;
/// Ranges that are locked.
pub const SPANS_MAX: usize = 1024;
