//! Which attributes a SETATTR sets.

pub const MODE: u32 = 1 << 0;
pub const UID: u32 = 1 << 1;
pub const GID: u32 = 1 << 2;
pub const SIZE: u32 = 1 << 3;
pub const ATIME: u32 = 1 << 4;
pub const MTIME: u32 = 1 << 5;
pub const ATIME_NOW: u32 = 1 << 7;
pub const MTIME_NOW: u32 = 1 << 8;
/// The request names an open file, or the owner of locks.
pub const HANDLE: u32 = 1 << 6;
pub const LOCK_OWNER: u32 = 1 << 9;
pub const CTIME: u32 = 1 << 10;
pub const KILL_SET_ID: u32 = 1 << 11;
