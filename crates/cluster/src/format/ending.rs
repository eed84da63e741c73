//! The record of a sync that ends. Page: docs/format/copies.md.

use crate::limits::FILES_MAX;
use rekindle_base::checksum::crc32c;

const MAGIC: [u8; 8] = *b"RKNDLkep";
pub(crate) const VERSION: u32 = 1;
const FIXED_BYTES: usize = 20;

/// The files that change when a sync ends. From the moment at which the record is durable, the new
/// copies count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ending {
    /// `NNNNNNNN.new` that become `NNNNNNNN.seg`.
    pub renamed: Vec<u32>,
    /// `NNNNNNNN.seg` that go.
    pub removed: Vec<u32>,
}

impl Ending {
    /// The bytes of the record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = |files: &[u32]| u32::try_from(files.len()).expect("at most FILES_MAX");
        let mut bytes = MAGIC.to_vec();
        let counts = [VERSION, count(&self.renamed), count(&self.removed)];
        for number in counts.iter().chain(&self.renamed).chain(&self.removed) {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the record; the error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Ending, String> {
        let damaged = || "it is damaged".to_owned();
        if bytes.len() < FIXED_BYTES + 4 || bytes[..8] != MAGIC {
            return Err(damaged());
        }
        let (bytes, crc) = bytes.split_at(bytes.len() - 4);
        if crc32c(bytes).to_le_bytes() != *crc {
            return Err(damaged());
        }
        let mut numbers = bytes[8..]
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")));
        let mut next = || numbers.next().ok_or_else(damaged);
        let version = next()?;
        if version != VERSION {
            return Err(format!("it has version {version}, this binary knows {VERSION}: upgrade"));
        }
        let (renamed, removed) = (next()? as usize, next()? as usize);
        let is_long = renamed > FILES_MAX || removed > FILES_MAX;
        if is_long || bytes.len() != FIXED_BYTES + 4 * (renamed + removed) {
            return Err(damaged());
        }
        let mut files: Vec<u32> = numbers.collect();
        let removed = files.split_off(renamed);
        Ok(Ending { renamed: files, removed })
    }
}
