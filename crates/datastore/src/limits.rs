//! The bounds of this crate.

use std::time::Duration;

/// Longest key, bytes. S3 permits 1024 with the prefix of the store, which therefore has at most 200.
pub const KEY_BYTES_MAX: usize = 800;
/// Longest segment of a key, bytes. A file name may have 255; versitygw adds to it when it overwrites and fails (409,
/// "is a directory") above 225.
pub const SEGMENT_BYTES_MAX: usize = 200;
/// Longest prefix of an `s3://` store, bytes.
pub const PREFIX_BYTES_MAX: usize = 200;
/// Most objects in one answer of `list`.
pub const LIST_OBJECTS_MAX: usize = 1000;
/// Pages of a listing without a key of ours that are passed over, one after another.
pub const LIST_EMPTY_PAGES_MAX: usize = 10_000;
/// Largest record, bytes.
pub const RECORD_BYTES_MAX: usize = 4 << 20;
/// How many earlier nonces a record remembers.
pub const RECORD_HISTORY_MAX: usize = 32;
/// Open pack files that the folder backend keeps.
pub const OPEN_PACKS_MAX: usize = 64;
/// Folders that the folder backend remembers as durable.
pub const DURABLE_FOLDERS_MAX: usize = 1024;
/// Records and folders of which the folder backend knows that they are durable.
pub const BELIEVED_MAX: usize = 16_384;
/// What the folder backend keeps free for removals: see [`crate::backend::dir`].
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Files over which the folder backend spreads its locks.
pub const LOCK_FILES: u8 = 64;
/// A temporary file that old belongs to nobody.
pub const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);
/// How long an S3 store may take to answer, and to send the next bytes of an answer.
pub const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// An upload is handed to its connection in pieces of so many bytes.
pub const UPLOAD_PIECE_BYTES: usize = 32 << 10;
/// How often an upload is looked at in the time in which it must move.
pub const UPLOAD_LOOKS: u32 = 8;
/// How long an upload that was handed out may go on because this process' connections still move bytes, of which the
/// kernel does not say whose they are.
pub const UPLOAD_TAIL_MAX: Duration = Duration::from_secs(3600);
/// Uploads to an S3 store at once, at most; fewer after one that took too long.
pub const UPLOADS_AT_ONCE_MAX: usize = 32;
/// A smaller upload is not held back by others.
pub const UPLOAD_BYTES_LARGE: usize = 256 << 10;
/// Connecting to an S3 store.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the marker of a folder vouches for it, where an error would be harmless, and how long a store is taken to
/// have none.
pub const MARKER_TRUST: Duration = Duration::from_secs(1);
