//! The bytes of a change, wherever they are.

use crate::Error;
use bytes::Bytes;
use rekindle_log::{Along, Place};

/// The place of a change's bytes.
#[derive(Clone)]
pub enum Source {
    /// Zeros.
    Zero,
    /// In the log, from this byte of the payload.
    Log(Place, u32),
    /// The same, for a reader that comes to its neighbours too.
    Along(Along, u32),
    /// In memory.
    Memory(Bytes),
}

impl Source {
    /// The place in the log, if the bytes are there and are read one by one.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Source::Log(place, _) => Some(place),
            Source::Along(..) | Source::Zero | Source::Memory(_) => None,
        }
    }

    /// The same bytes without the first ones.
    #[must_use]
    pub fn behind(&self, bytes: u64) -> Self {
        let further = |first: u32| u32::try_from(u64::from(first) + bytes).unwrap_or(u32::MAX);
        match self {
            Source::Zero => Source::Zero,
            Source::Log(place, first) => Source::Log(place.clone(), further(*first)),
            Source::Along(along, first) => Source::Along(along.clone(), further(*first)),
            Source::Memory(kept) => {
                let start = usize::try_from(bytes).unwrap_or(usize::MAX).min(kept.len());
                Source::Memory(kept.slice(start..))
            }
        }
    }

    /// Copies bytes from `start` within the piece.
    pub async fn read(&self, start: u64, out: &mut [u8]) -> Result<(), Error> {
        match self {
            Source::Log(place, first) => {
                Ok(place.read(payload_offset(*first, start)?, out).await?)
            }
            Source::Along(along, first) => {
                Ok(along.read(payload_offset(*first, start)?, out).await?)
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
            Source::Along(along, first) => {
                return Ok(along.read_now(payload_offset(*first, start)?, out)?);
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
