//! The resources of the node: the disk, the store's room, memory.

use crate::assemble::Node;
use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_front::conn::Connections;
use rekindle_front::http::api::MemoryBudget;

/// The log's files on the disk, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) used: u64,
    /// Free segments, kept for reuse.
    pub(crate) kept: u64,
}

impl Files {
    /// Splits the bytes on the disk, of which so many segments are in use. A segment that is only
    /// in memory has no file.
    fn split(taken: u64, segments: u64) -> Self {
        let used = segments.saturating_mul(SEGMENT_BYTES).min(taken);
        Self { used, kept: taken - used }
    }
}

/// Measures the log's files; `None` if that fails.
pub(crate) async fn files(node: &Node) -> Option<Files> {
    let (env, flash) = (node.env.clone(), node.config.flash());
    // In the background: it looks at some hundred files.
    let taken =
        node.env.run("log-files", async move { env.disk().taken_bytes(&flash).await }).await;
    Some(Files::split(taken.ok()?, node.log.usage().segments))
}

/// Lists the budgets of the node's memory.
pub(crate) fn memory(node: &Node, sessions: &Connections) -> Vec<MemoryBudget> {
    let (config, content) = (&node.config, node.content.stats());
    let slots_free = node.log.usage().slots_free.min(node.warm.slots as u64) * SEGMENT_BYTES;
    let row = |name: &str, what: &str, used_bytes: u64, budget_bytes: u64| MemoryBudget {
        name: name.to_owned(),
        what: what.to_owned(),
        used_bytes,
        budget_bytes,
    };
    let requests = sessions.budget();
    vec![
        // The whole warm memory is allocated at the start, so that a full tmpfs shows then. Its
        // free slots do not count as used.
        row(
            "warm_size",
            "outlives the daemon: open segments, tree nodes",
            node.warm.bytes.saturating_sub(slots_free),
            node.warm.bytes,
        ),
        row("cache", "cached blocks and tree nodes", content.cache_bytes, config.cache_bytes),
        row("index", "finds duplicates", content.index_bytes, config.index_bytes),
        row(
            "requests",
            "long requests of clients",
            requests.used() as u64,
            requests.bytes_max() as u64,
        ),
        row(
            "held",
            "writes that wait until the store has them",
            node.staging.held_bytes(),
            config.held_bytes,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_the_disk_is_in_use_or_kept_and_nothing_twice() {
        assert_eq!(
            Files::split(10 * SEGMENT_BYTES, 3),
            Files { used: 3 * SEGMENT_BYTES, kept: 7 * SEGMENT_BYTES }
        );
        assert_eq!(Files::split(100, 3), Files { used: 100, kept: 0 });
        assert_eq!(Files::split(100, 0), Files { used: 0, kept: 100 });
    }
}
