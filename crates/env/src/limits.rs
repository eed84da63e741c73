//! Bounds of what is remembered about the start of a process.

/// Phases and their parts; an attach has six.
pub const BOOT_PHASES_MAX: usize = 128;
/// Chunks and tree nodes whose fetching is described one by one; the rest is counted.
pub const BOOT_FETCHES_MAX: usize = 256;
