//! The node's warm memory: its place and its split.

use crate::config::{Config, Sizes};
use crate::scale::Scale;
use crate::{Error, limits};
use rekindle_base::units::format_size;
use rekindle_base::{NodeId, StoreId};
use rekindle_env::Env;
use rekindle_warm::{Arena, Frames, FramesShape, Shape};
use std::io;
use std::path::{Path, PathBuf};

/// The warm memory, once the log has taken its slots.
pub struct WarmMemory {
    /// The path of its file; `None` if nothing outlives the process.
    pub path: Option<PathBuf>,
    /// The name of its file, if another file had taken the usual name.
    pub name: Option<String>,
    /// Planned length, bytes.
    pub budget_bytes: u64,
    /// Actual length, bytes.
    pub bytes: u64,
    /// The state in which its file was found.
    pub began: rekindle_warm::Began,
    /// Slots for segments.
    pub slots: usize,
    arena: Arena,
    /// Block frames, if there are any.
    pub frames: Option<Frames>,
}

impl WarmMemory {
    fn of(arena: &Arena, sizes: Sizes, path: Option<PathBuf>, name: Option<String>) -> Self {
        Self {
            path,
            name,
            budget_bytes: sizes.warm_bytes,
            bytes: arena.file_length() as u64,
            began: arena.began(),
            slots: arena.slots(),
            frames: arena.frames(),
            arena: arena.clone(),
        }
    }

    /// Whether its file was removed (`rm`; logind, at the end of its user's session).
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.arena.is_removed()
    }
}

/// Returns the room on a memory device, if the warm memory is on one. The device has its own
/// length, so none is chosen.
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

/// Maps the warm memory that an earlier node of this folder has left on this machine; `None`: there
/// is none, or another process uses it.
pub(crate) async fn look(
    env: &Env,
    (config, scale): (&Config, &Scale),
    (node, store): (NodeId, StoreId),
    sizes: Sizes,
    path: &Path,
) -> Option<Arena> {
    let split = config.split_warm(sizes.warm_bytes, scale).ok()?;
    // Only what is there: nothing is made.
    env.memory().head(path, 1).ok().flatten()?;
    let file = WarmFile {
        env,
        node,
        store,
        slot_bytes: slot_bytes(scale),
        is_chosen: true,
        folder: &config.dir,
        path: path.to_owned(),
        name: None,
    };
    file.map(split.slots, split.frames_bytes).await.ok()
}

/// The path of a node's warm memory; `None`: this machine has no place for one.
pub(crate) fn place(
    env: &Env,
    config: &Config,
    node: NodeId,
    noted: Option<&str>,
) -> Option<PathBuf> {
    let usual = format!("rekindle-{node}.warm");
    match (&config.warm, env.memory().default_folder()) {
        (Some(path), _) => {
            // Once begun, it stays the node's, whatever has become of the other file since.
            let beside = beside(path, node);
            let is_there = matches!(env.memory().head(&beside, 1), Ok(Some(_)));
            Some(if is_there { beside } else { path.clone() })
        }
        (None, Some(folder)) => Some(folder.join(noted.unwrap_or(&usual))),
        (None, None) => None,
    }
}

/// The file that a node uses where an earlier node of its folder has the chosen one.
fn beside(path: &Path, node: NodeId) -> PathBuf {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{file}-{node}"))
}

fn slot_bytes(scale: &Scale) -> u32 {
    u32::try_from(scale.segment_bytes).unwrap_or(u32::MAX)
}

/// Maps the warm memory. A machine without a place for it serves all the same; only `ack=memory`
/// promises less then, and a warning says so. `noted` is the name of the file, if it is not the
/// usual one.
pub(crate) async fn open(
    env: &Env,
    (config, scale): (&Config, &Scale),
    node: NodeId,
    store: StoreId,
    sizes: Sizes,
    noted: Option<&str>,
) -> Result<(Arena, WarmMemory), Error> {
    let watch = env.watch();
    let split = config.split_warm(sizes.warm_bytes, scale).map_err(Error::Usage)?;
    let Some(path) = place(env, config, node, noted) else {
        tracing::warn!(
            "this machine has no memory that outlives a process: name a file with --warm"
        );
        let arena = Arena::volatile(scale.slots_min);
        let known = WarmMemory::of(&arena, sizes, None, noted.map(str::to_owned));
        return Ok((arena, known));
    };
    let mut file = WarmFile {
        env,
        node,
        store,
        slot_bytes: slot_bytes(scale),
        is_chosen: config.warm.is_some(),
        folder: &config.dir,
        path,
        name: noted.map(str::to_owned),
    };
    let arena = match file.map_most(split.slots, split.frames_bytes).await {
        Err(error) if !file.is_chosen && config.warm_bytes.is_none() => {
            tracing::warn!(path = %file.path.display(), %error, "less warm memory than planned");
            file.map(scale.slots_min, 0).await
        }
        arena => arena,
    };
    let refuse =
        |error: io::Error| Error::Warm { path: file.path.clone(), reason: error.to_string() };
    let arena = arena.map_err(refuse)?;
    if let Some(frames) = arena.frames() {
        tracing::debug!(began = frames.stats().began.as_str(), "block frames");
    }
    arena.note_home(&std::path::absolute(&config.dir).unwrap_or_default().display().to_string());
    let known = WarmMemory::of(&arena, sizes, Some(file.path), file.name);
    env.boot_phase("warm-mapped", Some("store-and-warm"), watch);
    Ok((arena, known))
}

/// The file of the warm memory, to be mapped.
struct WarmFile<'a> {
    env: &'a Env,
    node: NodeId,
    store: StoreId,
    slot_bytes: u32,
    /// The user has named it.
    is_chosen: bool,
    /// The node's folder.
    folder: &'a Path,
    path: PathBuf,
    /// Its name, if it is not the usual one.
    name: Option<String>,
}

impl WarmFile<'_> {
    async fn map(&self, slots: usize, frames_bytes: u64) -> io::Result<Arena> {
        let (env, path, node) = (self.env.clone(), self.path.clone(), self.node);
        let frames = FramesShape { bytes: frames_bytes, store: self.store };
        let shape = Shape { slots, slot_bytes: self.slot_bytes, frames: Some(frames) };
        // Blocking: a new arena may have a gigabyte of pages to clear.
        let open = move || Arena::open_shaped(&env, &path, node, shape);
        self.env.clone().blocking(open).await
    }

    /// Maps another file if this one is a stranger's, and no frames if they have no room.
    async fn map_most(&mut self, slots: usize, frames_bytes: u64) -> io::Result<Arena> {
        let mut arena = self.map(slots, frames_bytes).await;
        if let Err(error) = &arena
            && !self.is_chosen
            && is_strange(error)
        {
            // The user did not choose this file, and in a folder for all users any user may have
            // taken its name.
            let other = format!("rekindle-{}-{:016x}.warm", self.node, self.env.random_u64());
            let instead = self.path.with_file_name(&other);
            tracing::warn!(path = %self.path.display(), %error, instead = %instead.display(), "another file is the warm memory");
            (self.path, self.name) = (instead, Some(other));
            arena = self.map(slots, frames_bytes).await;
        }
        if let Err(error) = &arena
            && self.is_chosen
            && error.kind() == io::ErrorKind::InvalidInput
            && crate::cluster::left::is_there(self.env, self.folder).await
        {
            // The file is that of a node that was taken over, which may have more there than in
            // its log.
            self.path = beside(&self.path, self.node);
            arena = self.map(slots, frames_bytes).await;
        }
        if let Err(error) = &arena
            && frames_bytes > 0
            && !is_strange(error)
        {
            // Frames only make the node faster. In an arena of an older binary, slots may have
            // taken their room.
            tracing::warn!(path = %self.path.display(), %error, "no room for block frames: serving without them");
            arena = self.map(slots, 0).await;
        }
        arena
    }
}

/// Whether an error says that the file is, or may be, another user's.
fn is_strange(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::AlreadyExists)
}
