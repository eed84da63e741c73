//! Bounds of the record of a process's start, and of messages.

/// Most phases, their parts included; an attach has six.
pub const BOOT_PHASES_MAX: usize = 128;
/// Most fetches of chunks and tree nodes that are recorded one by one; the rest is counted.
pub const BOOT_FETCHES_MAX: usize = 256;
/// Most bytes of messages that wait for the reader of standard error.
pub const STANDARD_ERROR_BYTES_MAX: usize = 1 << 20;
