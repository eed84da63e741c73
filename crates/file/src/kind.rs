//! The kind `file`: the body of its vaults, and how a volume of it is opened.

use crate::home::Home;
use crate::numbers;
use crate::part;
use crate::settings::RootSettings;
use rekindle_content::{Content, Pointer};
use rekindle_env::BoxFuture;
use rekindle_staging::{Vault, VaultBody};
use rekindle_volume::{Kind, OpenedHome, Sizes};
use std::ops::Range;

/// The word of the kind in vaults and requests.
pub const KIND: &str = "file";

/// The kind of file volumes.
pub struct File;

impl Kind for File {
    fn name(&self) -> &'static str {
        KIND
    }

    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        VaultBody::of(&RootSettings::of(settings)?)
    }

    fn check(&self, vault: &Vault) -> Result<(), String> {
        RootSettings::of(&vault.body).map(drop)
    }

    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        let settings = RootSettings::of(&vault.body)?;
        Ok(OpenedHome::Record(Home::new(content, vault, &settings)))
    }

    fn describe_damage(&self, _vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        let inodes = |keys: &Range<u64>| match keys.end.checked_sub(keys.start) {
            Some(0 | 1) => format!("inode {}", keys.start),
            _ if keys == &(0..u64::MAX) => "all files and directories".to_owned(),
            _ if keys.end == u64::MAX => format!("inodes from {} on", keys.start),
            _ => format!("inodes {} to {}", keys.start, keys.end - 1),
        };
        Some(keys.iter().map(inodes).collect::<Vec<_>>().join(", "))
    }

    fn describe_chunk<'a>(
        &'a self,
        content: &'a Content,
        vault: &'a Vault,
        keys: &'a [Range<u64>],
        chunk: Pointer,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move { Some(part::of(content, &vault.root, keys, chunk).await) })
    }

    fn numbers<'a>(&'a self, content: &'a Content, vault: &'a Vault) -> BoxFuture<'a, u64> {
        Box::pin(numbers::unused(content, vault))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Limit
    }
}
