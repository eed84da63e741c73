//! The node's warm memory: where it is, how it is split, what is said about it.

use crate::assemble::Node;
use crate::config::{Config, Sizes};
use crate::{Error, limits};
use base::limits::SEGMENT_BYTES;
use base::units::format_size;
use base::{Kind, NodeId, StoreId};
use env::Env;
use front::http::api::{ApiError, WarmDropped, WarmFrames, WarmMisses, WarmStatus};
use std::io;
use std::path::{Path, PathBuf};
use warm::{Arena, Frames, FramesShape, Shape};

/// What is known of the warm memory once the log has taken its slots.
pub struct WarmMemory {
    /// Its file; `None` when nothing outlives the process.
    pub path: Option<PathBuf>,
    /// The file's name, where the usual one was taken by a stranger once.
    pub name: Option<String>,
    /// What it was to take, bytes.
    pub budget_bytes: u64,
    /// What it takes, bytes.
    pub bytes: u64,
    /// What its file was found to be.
    pub began: warm::Began,
    /// Slots for segments.
    pub slots: usize,
    arena: Arena,
    /// Block frames, if there are any.
    pub frames: Option<Frames>,
}

impl WarmMemory {
    /// Whether somebody has removed its file (`rm`; logind, at the end of its user's session).
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.arena.is_removed()
    }
}

/// What a device of memory has room for, when the warm memory is one. It brings its length along: nothing is chosen.
pub(crate) fn device_bytes(env: &Env, config: &Config) -> Result<Option<u64>, Error> {
    let Some(path) = &config.warm else { return Ok(None) };
    let refuse = |reason: String| Error::Warm { path: path.clone(), reason };
    let found = env.memory().device_bytes(path).map_err(|error| refuse(error.to_string()))?;
    let Some(bytes) = found else { return Ok(None) };
    let room = bytes.saturating_sub(Arena::file_bytes(0));
    let needed = config.warm_bytes.unwrap_or(0).max(limits::WARM_BYTES_MIN);
    if room < needed {
        let (room, needed) = (format_size(room), format_size(needed));
        return Err(refuse(format!("the device has room for {room}, and {needed} are needed")));
    }
    Ok(Some(room))
}

/// Maps the warm memory. Without a place for it the node serves all the same; only `ack=memory` is then worth less, and
/// it says so. `noted` is the name of the file where it is not the usual one.
pub(crate) async fn open(
    env: &Env,
    config: &Config,
    node: NodeId,
    store: StoreId,
    sizes: Sizes,
    noted: Option<&str>,
) -> Result<(Arena, WarmMemory), Error> {
    let watch = env.watch();
    let split = config.split_warm(sizes.warm_bytes).map_err(Error::Usage)?;
    let mut name = noted.map(str::to_owned);
    let known = |arena: &Arena, path: Option<PathBuf>, name: Option<String>| WarmMemory {
        path,
        name,
        budget_bytes: sizes.warm_bytes,
        bytes: arena.file_length() as u64,
        began: arena.began(),
        slots: arena.slots(),
        frames: arena.frames(),
        arena: arena.clone(),
    };
    let usual = format!("rekindle-{node}.warm");
    let mut path = match (&config.warm, env.memory().default_folder()) {
        (Some(path), _) => path.clone(),
        (None, Some(folder)) => folder.join(noted.unwrap_or(&usual)),
        (None, None) => {
            tracing::warn!(
                "this machine has no memory that outlives a process: name a file with --warm"
            );
            let arena = Arena::volatile(limits::WARM_SLOTS_MIN);
            let known = known(&arena, None, name);
            return Ok((arena, known));
        }
    };
    let map = |path: &Path, slots: usize, frames_bytes: u64| {
        let (env, path) = (env.clone(), path.to_owned());
        let frames = FramesShape { bytes: frames_bytes, store };
        let shape = Shape { slots, slot_bytes: warm::limits::SLOT_BYTES_MAX, frames: Some(frames) };
        // A new arena is a gigabyte of pages to clear.
        async move { env.clone().blocking(move || Arena::open_shaped(&env, &path, node, shape)).await }
    };
    let mut arena = map(&path, split.slots, split.frames_bytes).await;
    if let (None, Err(error)) = (&config.warm, &arena)
        && is_strange(error)
    {
        // Nobody said that it must be this one, and in a folder for all users anybody can take any name.
        let other = format!("rekindle-{node}-{:016x}.warm", env.random_u64());
        let instead = path.with_file_name(&other);
        tracing::warn!(path = %path.display(), %error, instead = %instead.display(), "another file is the warm memory");
        (path, name) = (instead, Some(other));
        arena = map(&path, split.slots, split.frames_bytes).await;
    }
    if let (Err(error), true) = (&arena, split.frames_bytes > 0) {
        // They only make things faster. An arena of an older binary may have taken the room with slots.
        tracing::warn!(path = %path.display(), %error, "no room for block frames: serving without them");
        arena = map(&path, split.slots, 0).await;
    }
    let arena = match arena {
        Ok(arena) => Ok(arena),
        Err(error) if config.warm.is_some() || config.warm_bytes.is_some() => Err(error),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "less warm memory than planned");
            map(&path, limits::WARM_SLOTS_MIN, 0).await
        }
    };
    let arena =
        arena.map_err(|error| Error::Warm { path: path.clone(), reason: error.to_string() })?;
    if let Some(frames) = arena.frames() {
        tracing::debug!(began = frames.stats().began.as_str(), "block frames");
    }
    arena.note_home(&std::path::absolute(&config.dir).unwrap_or_default().display().to_string());
    let known = known(&arena, Some(path), name);
    env.boot_phase("warm-mapped", Some("store-and-warm"), watch);
    Ok((arena, known))
}

/// Whether an error says that the file is somebody else's, or may be.
fn is_strange(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::AlreadyExists)
}

/// The warm memory for people and programs.
pub(crate) async fn status(node: &Node) -> WarmStatus {
    let warm = &node.warm;
    let usage = node.log.usage();
    let frames = match warm.frames.clone() {
        // A look at every set.
        Some(frames) => Some(node.env.blocking(move || frames_status(&frames)).await),
        None => None,
    };
    WarmStatus {
        path: warm.path.as_ref().map(|path| {
            // Whoever asks is another process.
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

pub(crate) fn frames_status(frames: &Frames) -> WarmFrames {
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
        misses: WarmMisses {
            absent: stats.absent,
            evicted: stats.evicted,
            damaged: stats.damaged,
            cold: stats.cold,
            other_layout: stats.other_layout,
        },
        insertions: stats.insertions,
        evictions: stats.evictions,
        verifications: stats.verifications,
        too_long: stats.too_long,
    }
}

/// Empties the frames; the segments are not touched.
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
