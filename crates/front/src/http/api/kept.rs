//! The vocabulary of what is kept of a volume (snapshots, earlier versions, the trash), and of its
//! name, size and settings.

use super::{Answer, Volume};
use rekindle_volume::{TrashedVolume, VolumeSnapshot, VolumeVersion, WriteSettings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The requests about names, sizes, snapshots, versions and the trash.
pub trait Keep: Send + Sync + 'static {
    /// Gives a volume another name.
    fn rename_volume<'a>(&'a self, name: &'a str, request: Rename) -> Answer<'a, Volume>;
    /// Gives a volume another size.
    fn resize_volume<'a>(&'a self, name: &'a str, request: Resize) -> Answer<'a, Volume>;
    /// Gives a volume other settings.
    fn set_volume<'a>(&'a self, name: &'a str, settings: WriteSettings) -> Answer<'a, Volume>;
    /// Lists earlier contents of a volume, the newest first.
    fn versions<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeVersion>>;
    /// Goes back to an earlier content.
    fn rollback_volume<'a>(&'a self, name: &'a str, request: Rollback) -> Answer<'a, Volume>;
    /// Lists the snapshots of a volume, the oldest first.
    fn snapshots<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeSnapshot>>;
    /// Keeps what a volume has now under a name.
    fn take_snapshot<'a>(
        &'a self,
        name: &'a str,
        request: TakeSnapshot,
    ) -> Answer<'a, VolumeSnapshot>;
    /// Removes a snapshot.
    fn remove_snapshot<'a>(&'a self, name: &'a str, snapshot: &'a str) -> Answer<'a, ()>;
    /// Makes a volume that begins with the content of a snapshot.
    fn clone_volume<'a>(&'a self, name: &'a str, request: CloneVolume) -> Answer<'a, Volume>;
    /// Lists the volumes in the trash, the last removed first.
    fn trash(&self) -> Answer<'_, Vec<TrashedVolume>>;
    /// Takes a volume out of the trash.
    fn restore_volume<'a>(&'a self, name: &'a str, request: Restore) -> Answer<'a, Volume>;
    /// Removes for good the volumes in the trash under a name.
    fn purge_volume<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
}

/// The request for another name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// The new name.
    pub name: String,
}

/// The request for another size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Bytes.
    pub size: u64,
    /// Also to a smaller size: the bytes beyond are cut off.
    #[serde(default)]
    pub shrink: bool,
}

/// The version to go back to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The version, or the name of a snapshot.
    pub version: String,
    /// Go back even when unfinished changes cannot reach the store: they are given up then.
    #[serde(default)]
    pub discard: bool,
}

/// The request for a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeSnapshot {
    /// Its name.
    pub name: String,
}

/// The request for a clone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneVolume {
    /// The snapshot whose content it begins with.
    pub snapshot: String,
    /// The name of the new volume.
    pub name: String,
}

/// The request to take a volume out of the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// A new name, in place of the one that it had.
    #[serde(default)]
    pub name: Option<String>,
}
