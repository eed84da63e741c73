//! The sizes and times that no user sets.

use crate::limits;
use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_cluster::machine::Pace;
use rekindle_content::sweep::Options;
use rekindle_log::limits::COPY_BYTES_MAX;
use std::time::Duration;

/// Sizes and times that no user sets: by default the daemon's, small ones in a simulation.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Bytes of a segment of the log, and of its slot in warm memory.
    pub segment_bytes: u64,
    /// Least slots of warm memory.
    pub slots_min: usize,
    /// Longest time that a change is only in memory before it is committed.
    pub flush_interval: Duration,
    /// Unfinished changes that are indexed before a volume serves.
    pub index_at_once: usize,
    /// Bytes at which a pack is uploaded.
    pub pack_bytes: u64,
    /// Uploads in flight.
    pub uploads: usize,
    /// Delay of background work after the start.
    pub clients_first: Duration,
    /// Pause between two looks whether another node wants to delete packs; the second, while one
    /// does.
    pub sweep_look: Duration,
    pub sweep_agree: Duration,
    /// Habits of a sweep; the config has its budget and its grace.
    pub sweep: Options,
    /// Times of the fence.
    pub pace: Pace,
    /// Most bytes of the log that a holder gets at once.
    pub copy_bytes: u32,
    /// Whether peers speak without TLS, whose random numbers are none of a simulation's.
    pub plain_peers: bool,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES,
            slots_min: limits::WARM_SLOTS_MIN,
            flush_interval: limits::FLUSH_INTERVAL,
            index_at_once: limits::INDEX_AT_ONCE_MAX,
            pack_bytes: limits::PACK_BYTES,
            uploads: limits::UPLOADS,
            clients_first: limits::CLIENTS_FIRST,
            sweep_look: limits::SWEEP_LOOK_INTERVAL,
            sweep_agree: limits::SWEEP_AGREE_INTERVAL,
            sweep: Options::default(),
            pace: Pace::default(),
            copy_bytes: COPY_BYTES_MAX,
            plain_peers: false,
        }
    }
}
