//! The kind `block`: the body of its vaults, and how a volume of it is opened.

use crate::Extents;
use rekindle_base::limits::{BLOCK_BYTES_DEFAULT, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use rekindle_base::units::{deserialize_size, format_size};
use rekindle_content::Content;
use rekindle_staging::{Vault, VaultBody};
use rekindle_volume::{Error, Kind, OpenedHome, Sizes};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

/// The word of the kind in vaults and requests.
pub const KIND: &str = "block";

/// The kind of block volumes.
pub struct Block;

/// The body of a block volume's vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// Bytes of a chunk, a power of two; fixed for life.
    pub block_size: u64,
}

/// The settings of a request for a new block volume.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Bytes, or text such as "16K".
    #[serde(deserialize_with = "deserialize_size")]
    block_size: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { block_size: BLOCK_BYTES_DEFAULT }
    }
}

impl Body {
    /// Reads the body of a block volume's vault. Another block size than that of the first write
    /// would give wrong bytes in silence, so one that no volume has is refused.
    fn of(vault: &Vault) -> Result<Self, String> {
        let body: Self = vault.body.read()?;
        match is_block_size(body.block_size) {
            true => Ok(body),
            false => Err(format!("no volume has blocks of {} bytes", body.block_size)),
        }
    }

    /// Reads the body of a volume in service. The error is [`Error::OtherKind`] if the volume is
    /// no block volume.
    pub(crate) fn served(vault: &Vault) -> Result<Self, Error> {
        rekindle_volume::is_of(vault, KIND)?;
        Self::of(vault).map_err(Error::Invalid)
    }

    /// Returns the bytes of a volume of `size` bytes that these keys of its tree stand for.
    pub(crate) fn bytes_of(self, keys: &Range<u64>, size: u64) -> Range<u64> {
        let byte = |key: u64| key.saturating_mul(self.block_size).min(size);
        byte(keys.start)..byte(keys.end)
    }
}

fn is_block_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes)
}

impl Kind for Block {
    fn name(&self) -> &'static str {
        KIND
    }

    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        let Settings { block_size } = settings
            .read()
            .map_err(|error| format!("this is no setting of a block volume: {error}"))?;
        if !is_block_size(block_size) {
            let (least, most) = (format_size(BLOCK_BYTES_MIN), format_size(BLOCK_BYTES_MAX));
            return Err(format!(
                "a block size of {block_size} bytes is not possible: use a power of two from {least} to {most}, as in 16K"
            ));
        }
        VaultBody::of(&Body { block_size })
    }

    fn check(&self, vault: &Vault) -> Result<(), String> {
        Body::of(vault).map(drop)
    }

    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        let body = Body::of(vault)?;
        let extents = Extents::new(content.clone(), vault.size, body.block_size);
        Ok(OpenedHome::Range(Arc::new(extents)))
    }

    fn describe_damage(&self, vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        let body = Body::of(vault).ok()?;
        let stretch = |keys: &Range<u64>| {
            let bytes = body.bytes_of(keys, vault.size);
            let span = bytes.end.saturating_sub(bytes.start);
            format!("{} at byte {}", format_size(span), bytes.start)
        };
        Some(keys.iter().map(stretch).collect::<Vec<_>>().join(", "))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Any { cut: |volume, end| volume.clear(end.start, end.end - end.start, true, true) }
    }
}

#[cfg(test)]
mod tests;
