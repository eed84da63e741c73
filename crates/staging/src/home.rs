//! The home of a volume's changes, as the destager and the reader see it. The volume's kind
//! implements it.

use crate::Error;
use bytes::Bytes;
use rekindle_content::{Batch, tree::Root};
use rekindle_env::BoxFuture;
use rekindle_log::Place;
use std::ops::Range;

/// A stretch of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub position: u64,
    pub span: u64,
    /// `false`: a hole, which reads as zeros and takes no space.
    pub data: bool,
}

/// The place of a change's bytes.
#[derive(Clone)]
pub enum Source {
    /// Zeros.
    Zero,
    /// In the log, from this byte of the payload.
    Log(Place, u32),
    /// In memory.
    Memory(Bytes),
}

/// One coalesced piece of a batch: no two pieces of a batch overlap; pieces ascend by position.
#[derive(Clone)]
pub struct Fold {
    pub position: u64,
    pub span: u64,
    pub source: Source,
}

impl Source {
    /// The place in the log, if the bytes are there.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Source::Log(place, _) => Some(place),
            Source::Zero | Source::Memory(_) => None,
        }
    }

    /// Copies bytes from `start` within the piece.
    pub async fn read(&self, start: u64, out: &mut [u8]) -> Result<(), Error> {
        match self {
            Source::Log(place, first) => {
                Ok(place.read(payload_offset(*first, start)?, out).await?)
            }
            Source::Zero | Source::Memory(_) => self.read_now(start, out).map(|_| ()),
        }
    }

    /// Copies bytes from `start` within the piece if they are in memory; `false` when they are only
    /// on flash.
    pub fn read_now(&self, start: u64, out: &mut [u8]) -> Result<bool, Error> {
        match self {
            Source::Zero => out.fill(0),
            Source::Log(place, first) => {
                return Ok(place.read_now(payload_offset(*first, start)?, out)?);
            }
            Source::Memory(bytes) => {
                let piece = usize::try_from(start)
                    .ok()
                    .and_then(|start| bytes.get(start..start.checked_add(out.len())?))
                    .ok_or_else(|| beyond(start))?;
                out.copy_from_slice(piece);
            }
        }
        Ok(true)
    }
}

pub(crate) fn payload_offset(first: u32, start: u64) -> Result<u32, Error> {
    u32::try_from(u64::from(first) + start).map_err(|_| beyond(start))
}

fn beyond(start: u64) -> Error {
    Error::Invalid(format!("a change has no byte {start}"))
}

/// The home of one volume's content: knows what the bytes mean, owns no state.
pub trait Home: Send + Sync + 'static {
    /// Reads from cached chunks only; `false` when one is missing. A plain call.
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, Error>;
    /// Reads. `keep`: whether fetched chunks go to the cache.
    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// Writes the changes into `batch` and returns the root with them.
    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, Error>>;
    /// Notes that the volume has grown to so many bytes.
    fn grow(&self, _size: u64) {}
    /// The bytes that stand for a range of keys of the volume's tree, none beyond the volume's end.
    fn bytes_of(&self, keys: Range<u64>) -> Range<u64>;
    /// Data and holes of a range.
    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, Error>>;
}
