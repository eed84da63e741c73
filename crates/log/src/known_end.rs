//! The file `known-end` beside the segments: how far the open segment was durable, written behind
//! that, now and then. Without it, a damaged end of the open segment looks like a write that was
//! torn.

use crate::format::{KNOWN_END_BYTES, KnownEnd};
use crate::inner::Inner;
use crate::limits::{KNOWN_END_AFTER, SECTOR_BYTES_MAX};
use crate::segment_pool::SegmentPool;
use rekindle_env::{File, Moment, Open};
use std::io;
use std::sync::Arc;

const NAME: &str = "known-end";
/// The slots take turns, and share no unit of the medium: a torn write leaves the other one.
const SLOTS: [usize; 2] = [0, SECTOR_BYTES_MAX as usize];
const FILE_BYTES: usize = SLOTS[1] + KNOWN_END_BYTES;

/// Reads the record; `None` when there is none that can be read.
pub(crate) async fn read(pool: &SegmentPool) -> Option<KnownEnd> {
    let file = pool.env.disk().open(&pool.folder.join(NAME), Open::Read).await.ok()?;
    let (_, known) = newest(&*file).await.ok()??;
    (known.node == pool.node).then_some(known)
}

/// The newer of the records in the bytes of the file, with its number.
pub(crate) fn newest_of(bytes: &[u8]) -> Option<(u64, KnownEnd)> {
    let slots = SLOTS.into_iter().filter_map(|at| KnownEnd::decode(bytes.get(at..)?));
    slots.max_by_key(|(number, _)| *number)
}

async fn newest(file: &dyn File) -> io::Result<Option<(u64, KnownEnd)>> {
    let mut bytes = vec![0; FILE_BYTES];
    file.read_at(&mut bytes, 0).await?;
    Ok(newest_of(&bytes))
}

/// The writer of the record, in one task.
#[derive(Default)]
pub(crate) struct Writer {
    file: Option<Arc<dyn File>>,
    /// The number of the next record.
    next: u64,
    /// The time of the last attempt.
    tried: Option<Moment>,
    written: Option<KnownEnd>,
}

impl Writer {
    /// Writes the record if the open segment's end has moved, and the last attempt is old enough.
    /// An error costs nothing but the record: the next attempt comes in its turn.
    pub(crate) async fn keep_up(&mut self, inner: &Inner) {
        let now = inner.pool.env.now();
        if self.tried.is_some_and(|at| now.since(at) < KNOWN_END_AFTER) {
            return;
        }
        let Some(known) = inner.known_end().filter(|known| self.written != Some(*known)) else {
            return;
        };
        self.tried = Some(now);
        match self.write(&inner.pool, &known).await {
            Ok(()) => self.written = Some(known),
            Err(error) => tracing::debug!(%error, "the end of the log was not recorded"),
        }
    }

    async fn write(&mut self, pool: &SegmentPool, known: &KnownEnd) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = pool.env.disk().open(&pool.folder.join(NAME), Open::Create).await?;
                if file.length().await? < FILE_BYTES as u64 {
                    file.preallocate(FILE_BYTES as u64).await?;
                    pool.env.disk().sync_folder(&pool.folder).await?;
                }
                self.next = newest(&*file).await?.map_or(0, |(number, _)| number + 1);
                Arc::clone(self.file.insert(file))
            }
        };
        let slot = SLOTS[usize::from(!self.next.is_multiple_of(2))];
        file.write_durable(&known.encode(self.next), slot as u64).await?;
        self.next += 1;
        Ok(())
    }
}
