//! The kind `block`: the body of its vaults, and how a volume of it is opened.

use crate::Extents;
use crate::layout::{Layout, is_block_size};
use rekindle_base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use rekindle_base::units::{deserialize_size, format_size};
use rekindle_content::Content;
use rekindle_staging::{Vault, VaultBody};
use rekindle_volume::{Error, Kind, OpenedHome, Sizes};
use serde::{Deserialize, Deserializer};
use std::ops::Range;
use std::sync::Arc;

/// The word of the kind in vaults and requests.
pub const KIND: &str = "block";

/// The kind of block volumes.
pub struct Block;

/// The settings of a request for a new block volume.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Bytes of every chunk, or text such as "16K"; without it, chunks are cut by content.
    #[serde(deserialize_with = "deserialize_block_size")]
    block_size: Option<u64>,
}

fn deserialize_block_size<'de, D: Deserializer<'de>>(text: D) -> Result<Option<u64>, D::Error> {
    deserialize_size(text).map(Some)
}

/// Reads the body of a block volume's vault.
fn layout_of(vault: &Vault) -> Result<Layout, String> {
    vault.body.read::<Layout>()?.check()
}

/// Reads the layout of a volume in service. The error is [`Error::OtherKind`] if the volume is no
/// block volume.
pub(crate) fn served(vault: &Vault) -> Result<Layout, Error> {
    rekindle_volume::is_of(vault, KIND)?;
    layout_of(vault).map_err(Error::Invalid)
}

impl Kind for Block {
    fn name(&self) -> &'static str {
        KIND
    }

    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        let Settings { block_size } = settings
            .read()
            .map_err(|error| format!("this is no setting of a block volume: {error}"))?;
        let Some(block_size) = block_size else { return VaultBody::of(&Layout::default()) };
        if !is_block_size(block_size) {
            let (least, most) = (format_size(BLOCK_BYTES_MIN), format_size(BLOCK_BYTES_MAX));
            return Err(format!(
                "a block size of {block_size} bytes is not possible: use a power of two from {least} to {most}, as in 16K"
            ));
        }
        VaultBody::of(&Layout::Fixed { block_size })
    }

    fn check(&self, vault: &Vault) -> Result<(), String> {
        layout_of(vault).map(drop)
    }

    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        let extents = Extents::new(content.clone(), vault.size, layout_of(vault)?);
        Ok(OpenedHome::Range(Arc::new(extents)))
    }

    fn describe_damage(&self, vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        let layout = layout_of(vault).ok()?;
        let stretch = |keys: &Range<u64>| {
            let bytes = layout.bytes_of(keys, vault.size);
            let span = bytes.end.saturating_sub(bytes.start);
            format!("{} at byte {}", format_size(span), bytes.start)
        };
        Some(keys.iter().map(stretch).collect::<Vec<_>>().join(", "))
    }

    fn numbers<'a>(&'a self, _: &'a Content, _: &'a Vault) -> rekindle_env::BoxFuture<'a, u64> {
        Box::pin(std::future::ready(0))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Any { cut: |volume, end| volume.clear(end.start, end.end - end.start, true, true) }
    }
}

#[cfg(test)]
mod tests;
