//! The bare pipeline: chunk, name, look for a duplicate, compress; no packs, no store. Ingest is
//! measured against it: the distance to [`crate::Batch::write`] is the cost of packing, indexing,
//! caching and uploading.

use crate::chunker::{Chunker, cuts};
use crate::compression::Compressor;
use crate::name::{NameSet, Namer};
use crate::{Class, Compression};

/// The totals of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Chunks cut.
    pub chunks: u64,
    /// Of these, duplicates of earlier ones.
    pub duplicates: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Bytes that a pack would have to hold.
    pub bytes_stored: u64,
}

/// A pipeline, which remembers the names of everything that went through.
pub struct Pipeline {
    namer: Namer,
    compressor: Compressor,
    /// A buffer for payloads; each one overwrites the one before.
    payload: Vec<u8>,
    seen: NameSet,
    totals: Totals,
}

impl Pipeline {
    /// Creates a pipeline that has seen nothing.
    #[must_use]
    pub fn new(secret: &[u8; 32], compression: Compression) -> Self {
        Self {
            namer: Namer::new(secret),
            compressor: Compressor::new(compression),
            payload: Vec::new(),
            seen: NameSet::default(),
            totals: Totals::default(),
        }
    }

    /// Sends one stream through.
    pub fn stream(&mut self, chunker: &(impl Chunker + ?Sized), data: &[u8]) {
        for chunk in cuts(chunker, data, true) {
            self.chunk(&data[chunk]);
        }
    }

    /// Sends one chunk through.
    pub fn chunk(&mut self, data: &[u8]) {
        self.totals.chunks += 1;
        self.totals.bytes_in += data.len() as u64;
        if self.seen.insert(self.namer.name(Class::Data, 0, data)) {
            let room = self.compressor.room(data.len());
            if self.payload.len() < room {
                self.payload.resize(room, 0);
            }
            let (_, length) = self.compressor.compress(data, &mut self.payload);
            self.totals.bytes_stored += length as u64;
        } else {
            self.totals.duplicates += 1;
        }
    }

    /// The totals so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunker::Fixed;
    use crate::testing::random;

    #[test]
    fn duplicates_are_counted_and_cost_nothing() {
        let mut pipeline = Pipeline::new(&[1; 32], Compression::Zstd);
        let data = random(1, 100_000);
        pipeline.stream(&Fixed::new(16 << 10), &data);
        let once = pipeline.totals();
        pipeline.stream(&Fixed::new(16 << 10), &data);
        assert_eq!((once.chunks, once.duplicates, once.bytes_stored), (7, 0, 100_000));
        let twice = Totals { chunks: 14, duplicates: 7, bytes_in: 200_000, bytes_stored: 100_000 };
        assert_eq!(pipeline.totals(), twice);
    }
}
