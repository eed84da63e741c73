//! The vocabulary of what is kept of a volume (earlier versions, the trash), and of its name, size
//! and settings.

use super::{Answer, Volume};
use rekindle_volume::{TrashedVolume, VolumeVersion, WriteSettings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The requests about names, sizes, versions and the trash.
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
    /// The version.
    pub version: String,
    /// Go back even when unfinished changes cannot reach the store: they are given up then.
    #[serde(default)]
    pub discard: bool,
}

/// The request to take a volume out of the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// A new name, in place of the one that it had.
    #[serde(default)]
    pub name: Option<String>,
}
