//! Reading: blocks in a tree, and holes between them. Writing is in `fold`.
//!
//! Every chunk has exactly `block_size` bytes, also the last one of a volume whose size is no
//! multiple of that. Its bytes beyond the size are zero, so that a volume may grow without touching
//! a block. A reader pads a chunk that ends early with zeros, and treats a longer one as damage.

use crate::ahead::Ahead;
use crate::kind::Body;
use crate::limits;
use bytes::Bytes;
use futures_util::future;
use rekindle_content::tree::{self, Lookup, Root};
use rekindle_content::{Batch, Class, Content, Pointer};
use rekindle_env::BoxFuture;
use rekindle_staging::{Error as StagingError, Extent, Fold, RangeHome};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fixed blocks in a tree: key = block number, value = chunk. A missing key is a hole.
pub struct Extents {
    pub(crate) content: Content,
    /// The volume's size, bytes; it only grows.
    size: AtomicU64,
    pub(crate) block_size: u64,
    /// The binary logarithm of `block_size`.
    shift: u32,
    ahead: Ahead,
}

/// A part of a read that falls into one block.
struct Piece<'a> {
    block: u64,
    /// First byte within the block.
    at: usize,
    out: &'a mut [u8],
}

impl Extents {
    /// Makes the home of a block volume. `block_size` is a power of two (the kind checks that).
    #[must_use]
    pub fn new(content: Content, size: u64, block_size: u64) -> Self {
        let block_size = block_size.max(1).next_power_of_two();
        Self {
            content,
            size: AtomicU64::new(size),
            block_size,
            shift: block_size.trailing_zeros(),
            ahead: Ahead::default(),
        }
    }

    /// Returns the volume's size, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Splits a read at block boundaries.
    fn pieces<'a>(
        &self,
        position: u64,
        out: &'a mut [u8],
    ) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let (shift, block_size) = (self.shift, self.block_size);
        let (mut rest, mut position) = (out, position);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let at = position & (block_size - 1);
            let length = usize::try_from(block_size - at).unwrap_or(usize::MAX).min(rest.len());
            let (out, after) = std::mem::take(&mut rest).split_at_mut(length);
            let block = position >> shift;
            (rest, position) = (after, position + length as u64);
            Some(Piece { block, at: usize::try_from(at).expect("a block is small"), out })
        })
    }

    /// Returns the blocks that a range touches.
    fn blocks(&self, position: u64, span: u64) -> Range<u64> {
        let end = position.saturating_add(span);
        position >> self.shift..(end >> self.shift) + u64::from(end & (self.block_size - 1) != 0)
    }

    /// Fills `out` from a chunk, from its byte `at`.
    pub(crate) fn fill(
        &self,
        pointer: &Pointer,
        chunk: &[u8],
        at: usize,
        out: &mut [u8],
    ) -> Result<(), StagingError> {
        if chunk.len() as u64 > self.block_size {
            return Err(self.too_long(pointer, chunk.len()));
        }
        match chunk.get(at..at + out.len()) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => {
                let bytes = chunk.get(at..).unwrap_or_default();
                let (data, zeros) = out.split_at_mut(bytes.len());
                data.copy_from_slice(bytes);
                zeros.fill(0);
            }
        }
        Ok(())
    }

    #[cold]
    fn too_long(&self, pointer: &Pointer, length: usize) -> StagingError {
        let name: String = pointer.name[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let reason = format!("it has {length} bytes, but a block has {}", self.block_size);
        rekindle_content::Error::Damaged {
            name,
            pack: pointer.pack,
            offset: pointer.offset,
            reason,
        }
        .into()
    }

    /// Reads from the cache, block by block; `false` when a block is not cached.
    fn copy_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, StagingError> {
        for piece in self.pieces(position, out) {
            match tree::get_now(&self.content, root, piece.block) {
                Lookup::Absent => piece.out.fill(0),
                Lookup::Unknown => return Ok(false),
                Lookup::Present(pointer) => match self.content.read_now(&pointer) {
                    Some(chunk) => self.fill(&pointer, &chunk, piece.at, piece.out)?,
                    None => return Ok(false),
                },
            }
        }
        Ok(true)
    }

    /// Reads a chunk; with `keep`, the cache keeps it.
    pub(crate) async fn chunk(&self, pointer: &Pointer, keep: bool) -> Result<Bytes, StagingError> {
        let chunk = if keep {
            self.content.read(pointer, Class::Data).await
        } else {
            self.content.read_uncached(pointer, Class::Data).await
        };
        Ok(chunk?)
    }

    /// Reads one block's piece.
    async fn copy_one(
        &self,
        root: &Root,
        piece: Piece<'_>,
        keep: bool,
    ) -> Result<(), StagingError> {
        match tree::get(&self.content, root, piece.block).await? {
            None => piece.out.fill(0),
            Some(pointer) => {
                let chunk = self.chunk(&pointer, keep).await?;
                self.fill(&pointer, &chunk, piece.at, piece.out)?;
            }
        }
        Ok(())
    }

    /// Reads many blocks' pieces: one look into the tree, then chunks together.
    async fn copy_many(
        &self,
        root: &Root,
        position: u64,
        out: &mut [u8],
        keep: bool,
    ) -> Result<(), StagingError> {
        let present =
            tree::range(&self.content, root, self.blocks(position, out.len() as u64)).await?;
        let mut present = present.into_iter().peekable();
        let mut missing = Vec::new();
        for piece in self.pieces(position, out) {
            match present.next_if(|(block, _)| *block == piece.block) {
                None => piece.out.fill(0),
                Some((_, pointer)) => match self.content.read_now(&pointer) {
                    Some(chunk) => self.fill(&pointer, &chunk, piece.at, piece.out)?,
                    None => missing.push((pointer, piece)),
                },
            }
        }
        let pointers: Vec<Pointer> = missing.iter().map(|(pointer, _)| *pointer).collect();
        let chunks = self.content.read_many(&pointers, Class::Data, keep).await?;
        for ((pointer, piece), chunk) in missing.into_iter().zip(chunks) {
            self.fill(&pointer, &chunk, piece.at, piece.out)?;
        }
        Ok(())
    }

    /// Reads a range that is not entirely in the cache.
    async fn copy(
        &self,
        root: &Root,
        position: u64,
        out: &mut [u8],
        keep: bool,
    ) -> Result<(), StagingError> {
        let blocks = self.blocks(position, out.len() as u64);
        if blocks.end - blocks.start > 1 {
            return self.copy_many(root, position, out, keep).await;
        }
        match self.pieces(position, out).next() {
            Some(piece) => self.copy_one(root, piece, keep).await,
            None => Ok(()),
        }
    }

    /// Fetches the range that a sequential reader needs next: its metadata, and more, then its
    /// chunks in the background.
    async fn fetch_ahead(&self, root: &Root, bytes: Range<u64>) {
        let end = bytes.end.min(self.size());
        let metadata_end = bytes.end.saturating_add(limits::AHEAD_METADATA_BYTES).min(self.size());
        let blocks = self.blocks(bytes.start, metadata_end.saturating_sub(bytes.start));
        let data_end = self.blocks(0, end).end;
        // Only a hint: a read of that range returns the error, if there is one.
        if let Ok(present) = tree::range(&self.content, root, blocks).await {
            let wanted = present.into_iter().take_while(|(block, _)| *block < data_end);
            let pointers: Vec<Pointer> = wanted.map(|(_, pointer)| pointer).collect();
            self.content.prefetch(&pointers, Class::Data);
        }
    }

    /// Fetches ahead after a hit, as far as the cached tree nodes tell. A plain call.
    #[cold]
    fn fetch_ahead_now(&self, root: &Root, position: u64, length: u64) {
        let Some(bytes) = self.ahead.note(position, length) else { return };
        let end = bytes.end.min(self.size());
        let mut pointers = Vec::new();
        for block in self.blocks(bytes.start, end.saturating_sub(bytes.start)) {
            match tree::get_now(&self.content, root, block) {
                Lookup::Present(pointer) => pointers.push(pointer),
                Lookup::Absent => {}
                Lookup::Unknown => {
                    self.ahead.fell_short(&bytes, block << self.shift);
                    break;
                }
            }
        }
        self.content.prefetch(&pointers, Class::Data);
    }

    /// Lists data and holes. It reads the tree in stretches, so that a large range does not become
    /// a large list of entries.
    async fn list(
        &self,
        root: &Root,
        position: u64,
        span: u64,
    ) -> Result<Vec<Extent>, StagingError> {
        let end = position.saturating_add(span);
        let mut found: Vec<Extent> = Vec::new();
        let mut add = |upto: u64, data: bool| match found.last_mut() {
            Some(last) if last.data == data => last.span = upto - last.position,
            last => {
                let from = last.map_or(position, |last| last.position + last.span);
                if upto > from {
                    found.push(Extent { position: from, span: upto - from, data });
                }
            }
        };
        let blocks = self.blocks(position, span);
        let mut from = blocks.start;
        while from < blocks.end {
            let upto = blocks.end.min(from + limits::STRETCH_KEYS_MAX);
            for (block, _) in tree::range(&self.content, root, from..upto).await? {
                let begin = block << self.shift;
                if begin > position {
                    add(begin, false);
                }
                add((begin + self.block_size).min(end), true);
            }
            from = upto;
        }
        add(end, false);
        Ok(found)
    }
}

impl RangeHome for Extents {
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, StagingError> {
        let found = self.copy_now(root, position, out)?;
        let length = out.len() as u64;
        if found && self.ahead.is_marked(position, length) {
            self.fetch_ahead_now(root, position, length);
        }
        Ok(found)
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), StagingError>> {
        Box::pin(async move {
            let ahead = if keep { self.ahead.note(position, out.len() as u64) } else { None };
            match ahead {
                // The client's own read is polled first.
                Some(bytes) => {
                    let (read, ()) = future::join(
                        self.copy(root, position, out, keep),
                        self.fetch_ahead(root, bytes),
                    )
                    .await;
                    read
                }
                None => self.copy(root, position, out, keep).await,
            }
        })
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, StagingError>> {
        Box::pin(self.write(batch, root, changes))
    }

    fn grow(&self, size: u64) {
        self.size.fetch_max(size, Ordering::AcqRel);
    }

    fn bytes_of(&self, keys: Range<u64>) -> Range<u64> {
        Body { block_size: self.block_size }.bytes_of(&keys, self.size())
    }

    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, StagingError>> {
        Box::pin(self.list(root, position, span))
    }
}

#[cfg(test)]
mod tests;
