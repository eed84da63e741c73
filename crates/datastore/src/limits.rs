//! The bounds of this crate.

use std::time::Duration;

/// Longest key, bytes. S3 permits 1024 together with the prefix of the store, so a prefix has at
/// most 200.
pub const KEY_BYTES_MAX: usize = 800;
/// Longest segment of a key, bytes. A file name may have 255. versitygw adds to the name when it
/// overwrites, and fails (409, "is a directory") above 225.
pub const SEGMENT_BYTES_MAX: usize = 200;
/// Longest prefix of an `s3://` store, bytes.
pub const PREFIX_BYTES_MAX: usize = 200;
/// Most objects in one answer of `list`.
pub const LIST_OBJECTS_MAX: usize = 1000;
/// Most pages in a row without a key of ours that a listing passes over.
pub const LIST_EMPTY_PAGES_MAX: usize = 10_000;
/// Largest record, bytes.
pub const RECORD_BYTES_MAX: usize = 4 << 20;
/// Previous nonces that a record remembers.
pub const RECORD_HISTORY_MAX: usize = 32;
/// Bytes of objects that are read together, about: no further one is begun behind them.
pub const TOGETHER_BYTES_MAX: usize = 4 << 20;
/// Requests at once for objects that are read together, where each takes a request of its own.
pub const TOGETHER_READS: usize = 16;
/// Open pack files that the folder backend keeps.
pub const OPEN_PACKS_MAX: usize = 64;
/// Age from which the folder backend gives a file a tag: longer than the steps of any file system's
/// clock. A younger file may be replaced within the step, under its old inode number.
pub const TAG_AGE_MIN: Duration = Duration::from_secs(3);
/// Listings that the folder backend keeps for their next page.
pub const LISTINGS_MAX: usize = 8;
/// Pause between two looks for such listings that were given up. A listing whose next page is not
/// asked for is forgotten by the second look, and its next page reads the folder again.
pub const LISTING_AGE: Duration = Duration::from_secs(60);
/// Folders that the folder backend remembers as durable.
pub const DURABLE_FOLDERS_MAX: usize = 1024;
/// Records, and folders, that the folder backend remembers as durable.
pub const BELIEVED_MAX: usize = 16_384;
/// Room that the folder backend keeps free for removals: see [`crate::backend::dir`].
pub const RESERVE_BYTES: u64 = 4 << 20;
/// Files over which the folder backend spreads its locks.
pub const LOCK_FILES: u8 = 64;
/// Age from which a temporary file has no living writer.
pub const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);
/// How long an S3 store may take to answer, and to send the next bytes of an answer.
pub const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes in one of the pieces in which an upload is handed to its connection.
pub const UPLOAD_PIECE_BYTES: usize = 32 << 10;
/// Number of progress checks during the time within which an upload must move.
pub const UPLOAD_LOOKS: u32 = 8;
/// How long an upload may go on after its last byte was handed out, while this process' connections
/// still move bytes. The kernel does not say which upload those bytes belong to.
pub const UPLOAD_TAIL_MAX: Duration = Duration::from_secs(3600);
/// Most concurrent uploads to an S3 store; fewer after one that broke off.
pub const UPLOADS_AT_ONCE_MAX: usize = 32;
/// Size from which an upload waits its turn, bytes. Smaller ones start at once.
pub const UPLOAD_BYTES_LARGE: usize = 256 << 10;
/// Length of the parts in which an object goes up after its upload in one request broke off. S3
/// takes no shorter ones.
pub const PART_BYTES: usize = 5 << 20;
/// How long after such a break all large objects go up in parts.
pub const PARTS_TIME: Duration = Duration::from_secs(600);
/// Most objects that go up in parts; the oldest is given up for another one.
pub const PARTS_OBJECTS_MAX: usize = 64;
/// Room made at once for the answer to a read, bytes, whatever length the server announces.
pub const READ_AT_ONCE_BYTES: usize = 32 << 20;
/// How long connecting to an S3 store may take.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a folder's marker vouches for the folder, where an error would be harmless. Also how
/// long a store is taken to have no marker.
pub const MARKER_TRUST: Duration = Duration::from_secs(1);
/// Shortest file that a folder store writes past the page cache, bytes.
pub const DIRECT_FILE_BYTES_MIN: usize = 256 << 10;
/// Bytes that it writes there with one call. The log may be on the same device: a commit waits for
/// the calls that the device has before it.
pub const DIRECT_PIECE_BYTES: usize = 256 << 10;
/// Records of which a writer remembers that it has written them, at most.
pub const WRITTEN_KEYS_MAX: usize = 1 << 16;
