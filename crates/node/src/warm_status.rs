//! The description of warm memory for users and programs.

use crate::assemble::Node;
use rekindle_base::Kind;
use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_front::http::api::{ApiError, WarmDropped, WarmFrames, WarmMisses, WarmStatus};
use rekindle_warm::{Frames, Miss};

/// Describes the warm memory for users and programs.
pub(crate) async fn status(node: &Node) -> WarmStatus {
    let warm = &node.warm;
    let usage = node.log.usage();
    let frames = match warm.frames.clone() {
        // Blocking: it reads every set.
        Some(frames) => Some(node.env.blocking(move || self::frames(&frames)).await),
        None => None,
    };
    WarmStatus {
        path: warm.path.as_ref().map(|path| {
            // The path must be valid in the process of the client.
            path.display()
                .to_string()
                .replace("/proc/self/", &format!("/proc/{}/", std::process::id()))
        }),
        budget_bytes: warm.budget_bytes,
        bytes: warm.bytes,
        slots: warm.slots as u64,
        slots_used: (warm.slots as u64).saturating_sub(usage.slots_free),
        slot_bytes: SEGMENT_BYTES,
        removed: warm.is_removed(),
        segments_kept: node.opened.segments_warm,
        frames,
    }
}

pub(crate) fn frames(frames: &Frames) -> WarmFrames {
    let (usage, stats) = (frames.usage(), frames.stats());
    WarmFrames {
        began: stats.began.as_str().to_owned(),
        bytes_max: usage.bytes_max,
        bytes: usage.bytes,
        frames: usage.frames.iter().sum(),
        frames_max: usage.frames_max.iter().sum(),
        frames_large: usage.frames[1],
        frames_large_max: usage.frames_max[1],
        in_use: usage.verified,
        hits: stats.hits,
        misses: misses(|cause| stats.missed(cause)),
        insertions: stats.insertions,
        evictions: stats.evictions,
        verifications: stats.verifications,
        too_long: stats.too_long,
    }
}

/// Gives the misses of each cause their names in the API.
pub(crate) fn misses(of: impl Fn(Miss) -> u64) -> WarmMisses {
    WarmMisses {
        absent: of(Miss::Absent),
        evicted: of(Miss::Evicted),
        damaged: of(Miss::Damaged),
        cold: of(Miss::Cold),
        other_layout: of(Miss::OtherLayout),
    }
}

/// Empties the frames; the segments stay.
pub(crate) async fn drop_frames(node: &Node) -> Result<WarmDropped, ApiError> {
    let Some(frames) = node.warm.frames.clone() else {
        return Err(ApiError::new(
            Kind::Invalid,
            "this node keeps no block frames, so there are none to drop: `rekindle up --warm-frames SIZE` gives it some",
        ));
    };
    let frames = node.env.blocking(move || frames.drop_all()).await;
    tracing::info!(frames, "block frames dropped");
    Ok(WarmDropped { frames })
}
