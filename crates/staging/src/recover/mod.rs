//! The way back: the changes that the log has and the root lacks, after a restart.
//!
//! - [`recovery`]: which of the log's changes count for a vault.
//! - [`lives`]: which life wrote them, and behind which serial a life begins.
//! - [`deferred_index`]: the quick way in for a volume with many changes: count first, index later.
//! - [`accept`]: the user's decision to go on without the changes that the log has lost.

pub(crate) mod accept;
pub(crate) mod deferred_index;
pub(crate) mod lives;
pub(crate) mod recovery;
