//! The vocabulary of what is kept of a volume: earlier versions, the trash; and of its name and size.

use super::api::{Answer, Volume};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a node can be asked about what is kept.
pub trait Keep: Send + Sync + 'static {
    /// Gives a volume another name.
    fn rename_volume<'a>(&'a self, name: &'a str, request: Rename) -> Answer<'a, Volume>;
    /// Gives a volume another size.
    fn resize_volume<'a>(&'a self, name: &'a str, request: Resize) -> Answer<'a, Volume>;
    /// Earlier contents of a volume, the newest first.
    fn versions<'a>(&'a self, name: &'a str) -> Answer<'a, Vec<VolumeVersion>>;
    /// Goes back to one.
    fn rollback_volume<'a>(&'a self, name: &'a str, request: Rollback) -> Answer<'a, Volume>;
    /// What is in the trash, what went there last first.
    fn trash(&self) -> Answer<'_, Vec<TrashedVolume>>;
    /// Takes a volume out of the trash.
    fn restore_volume<'a>(&'a self, name: &'a str, request: Restore) -> Answer<'a, Volume>;
    /// Removes for good what is in the trash under a name.
    fn purge_volume<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
}

/// Another name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rename {
    /// The new one.
    pub name: String,
}

/// Another size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Bytes.
    pub size: u64,
    /// Also smaller: what is beyond is cut off.
    #[serde(default)]
    pub shrink: bool,
}

/// An earlier content of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VolumeVersion {
    /// What it is called by.
    pub version: String,
    /// When something was written over it, microseconds since 1970: it is the content of the moment before.
    pub until: u64,
    /// Bytes of the volume then.
    pub size: u64,
    /// At most what it alone keeps in the store, bytes.
    pub keeps: u64,
    /// Bytes that were lost in it.
    pub lost: u64,
}

/// Where to go back to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    /// The version.
    pub version: String,
    /// Also when what is unfinished cannot reach the store: that is given up then.
    #[serde(default)]
    pub discard: bool,
}

/// A volume in the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TrashedVolume {
    pub name: String,
    pub id: String,
    /// Bytes.
    pub size: u64,
    /// Since when, microseconds since 1970.
    pub since: u64,
    /// When it goes for good, at the earliest, microseconds since 1970.
    pub until: u64,
}

/// How to take a volume out of the trash.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// Under another name than it had.
    #[serde(default)]
    pub name: Option<String>,
}
