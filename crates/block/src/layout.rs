//! Layouts: what a key of a volume's tree says about the chunk that is its value. Pure.
//!
//! A volume is a row of pages. An entry of its tree is a *run*: pages that lie side by side in the
//! volume and in one chunk. In a fixed layout a page is a whole chunk and the key is its number. In
//! a layout by content chunks have many pages, so the key also says which of them the run shows: a
//! write into the middle of a chunk leaves a run on each side, and neither is copied.

use rekindle_base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, VOLUME_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The layout of a block volume, fixed for life: the body of its vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub enum Layout {
    /// Every chunk has so many bytes, a power of two, and begins at a multiple of them.
    Fixed { block_size: u64 },
    /// Chunks end where the content says so, at a multiple of so many bytes.
    ByContent { page_size: u64 },
}

/// The fields of a vault's body; one of them says which layout it is.
#[derive(Serialize, Deserialize)]
struct Fields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    page_size: Option<u64>,
}

impl TryFrom<Fields> for Layout {
    type Error = &'static str;

    fn try_from(fields: Fields) -> Result<Self, Self::Error> {
        match fields {
            Fields { block_size: Some(block_size), page_size: None } => {
                Ok(Self::Fixed { block_size })
            }
            Fields { block_size: None, page_size: Some(page_size) } => {
                Ok(Self::ByContent { page_size })
            }
            _ => Err("a block volume has either `block_size` or `page_size`"),
        }
    }
}

impl From<Layout> for Fields {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Fixed { block_size } => Self { block_size: Some(block_size), page_size: None },
            Layout::ByContent { page_size } => {
                Self { block_size: None, page_size: Some(page_size) }
            }
        }
    }
}

/// Bytes of a page of a layout by content. Smaller ones would double the tree, larger ones miss
/// files that file systems place anew.
pub const PAGE_BYTES: u64 = 4096;
/// Most pages of a chunk in a layout by content.
pub(crate) const CHUNK_PAGES_MAX: u64 = 32;

/// Bits of a key for the first page within the chunk, and for the count of pages.
const FROM_BITS: u32 = 10;
const COUNT_BITS: u32 = 10;
const RUN_BITS: u32 = FROM_BITS + COUNT_BITS;

const _: () = assert!(VOLUME_BYTES_MAX / PAGE_BYTES < 1 << (u64::BITS - RUN_BITS));
const _: () = assert!(CHUNK_PAGES_MAX <= 1 << COUNT_BITS && CHUNK_PAGES_MAX <= 1 << FROM_BITS);

/// Pages that lie side by side in the volume and in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Number of the first page in the volume.
    pub page: u64,
    /// Number of the first page in the chunk.
    pub from: u64,
    /// Count of pages, at least one.
    pub count: u64,
}

impl Run {
    /// The pages of the volume.
    pub fn pages(&self) -> Range<u64> {
        self.page..self.page + self.count
    }

    /// The part of the run that lies in `pages`, if there is one.
    pub fn within(&self, pages: &Range<u64>) -> Option<Self> {
        let page = self.page.max(pages.start);
        let end = (self.page + self.count).min(pages.end);
        (page < end).then(|| Self { page, from: self.from + (page - self.page), count: end - page })
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::ByContent { page_size: PAGE_BYTES }
    }
}

impl Layout {
    /// Refuses a layout that no volume has: with another than that of the first write, a volume
    /// would show wrong bytes in silence.
    pub(crate) fn check(self) -> Result<Self, String> {
        match self {
            Self::Fixed { block_size } if !is_block_size(block_size) => {
                Err(format!("no volume has blocks of {block_size} bytes"))
            }
            Self::ByContent { page_size } if page_size != PAGE_BYTES => {
                Err(format!("no volume has pages of {page_size} bytes"))
            }
            layout => Ok(layout),
        }
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(self) -> u64 {
        match self {
            Self::Fixed { block_size: bytes } | Self::ByContent { page_size: bytes } => bytes,
        }
    }

    /// Most pages of a chunk.
    pub(crate) fn chunk_pages_max(self) -> u64 {
        match self {
            Self::Fixed { .. } => 1,
            Self::ByContent { .. } => CHUNK_PAGES_MAX,
        }
    }

    /// The key of a run.
    pub(crate) fn key(self, run: &Run) -> u64 {
        match self {
            Self::Fixed { .. } => run.page,
            Self::ByContent { .. } => {
                run.page << RUN_BITS | run.from << COUNT_BITS | (run.count - 1)
            }
        }
    }

    /// The run of a key.
    pub(crate) fn run(self, key: u64) -> Run {
        match self {
            Self::Fixed { .. } => Run { page: key, from: 0, count: 1 },
            Self::ByContent { .. } => Run {
                page: key >> RUN_BITS,
                from: key >> COUNT_BITS & ((1 << FROM_BITS) - 1),
                count: (key & ((1 << COUNT_BITS) - 1)) + 1,
            },
        }
    }

    /// The keys of all runs that begin in `pages`.
    pub(crate) fn keys(self, pages: &Range<u64>) -> Range<u64> {
        match self {
            Self::Fixed { .. } => pages.clone(),
            Self::ByContent { .. } => pages.start << RUN_BITS..pages.end << RUN_BITS,
        }
    }

    /// Returns the bytes of a volume of `size` bytes that these keys of its tree stand for: one
    /// key, or all from one entry to before another.
    pub(crate) fn bytes_of(self, keys: &Range<u64>, size: u64) -> Range<u64> {
        let first = self.run(keys.start);
        let end = match keys.end.saturating_sub(keys.start) {
            1 => first.page + first.count,
            _ => self.run(keys.end).page,
        };
        let byte = |page: u64| page.saturating_mul(self.page_bytes()).min(size);
        byte(first.page)..byte(end)
    }
}

/// Whether the chunks of a fixed layout may have so many bytes.
pub(crate) fn is_block_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout::ByContent { page_size: PAGE_BYTES };

    #[test]
    fn the_golden_key() {
        let run = Run { page: 0x12345, from: 3, count: 32 };
        assert_eq!(LAYOUT.key(&run), 0x1234_500c1f);
    }

    proptest! {
        #[test]
        fn keys_are_runs_and_ascend_with_their_pages(
            page in 0..VOLUME_BYTES_MAX / PAGE_BYTES, from in 0..64u64, count in 1..=64u64, size in 1..=VOLUME_BYTES_MAX,
        ) {
            let run = Run { page, from, count };
            let key = LAYOUT.key(&run);
            prop_assert_eq!(LAYOUT.run(key), run);
            prop_assert!(LAYOUT.keys(&(page..page + 1)).contains(&key));
            let next = Run { page: page + count, from: 0, count: 1 };
            let bytes = |page: u64| (page * PAGE_BYTES).min(size);
            let expected = bytes(page)..bytes(page + count);
            prop_assert_eq!(LAYOUT.bytes_of(&(key..key + 1), size), expected.clone());
            prop_assert_eq!(LAYOUT.bytes_of(&(key..LAYOUT.key(&next)), size), expected);
            prop_assert_eq!(LAYOUT.bytes_of(&(key..u64::MAX), size), bytes(page)..size);
        }
    }
}
