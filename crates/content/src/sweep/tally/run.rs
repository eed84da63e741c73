//! A file of counts: written once, in the order of the packs.

use super::shelf::{Pen, Result, Sheet, Shelf, Trouble};
use crate::format::counts::{
    self, BLOCK_ROWS, Block, CountedPlace, HEADER_BYTES, INDEX_BYTES, ROW_BYTES, Row, TRAILER_BYTES,
};
use rekindle_base::PackId;
use rekindle_base::checksum::crc32c;
use std::sync::Arc;

/// A file of counts that is complete.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) number: u64,
    sheet: Sheet,
    index: Arc<Vec<Block>>,
    /// The block that was read last: packs are asked for in their order, mostly.
    last: Option<(usize, Arc<Vec<Row>>)>,
}

const BLOCK_BYTES: usize = BLOCK_ROWS * ROW_BYTES;

/// The name of a file of counts.
pub(super) fn name_of(number: u64) -> String {
    format!("counts-{number:016x}")
}

/// The number in the name of a file of counts.
pub(super) fn number_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("counts-")?, 16).ok()
}

impl Run {
    /// Opens a file that is kept on the shelf.
    pub(super) async fn open(shelf: &Shelf, number: u64, length: u64) -> Result<Self> {
        let sheet = shelf.open(&name_of(number)).await?;
        if sheet.length() != length {
            return Err(Trouble::Doubt(format!("{} has another length", name_of(number))));
        }
        let header = sheet.read(0, HEADER_BYTES).await?;
        counts::check_header(&header, shelf.store, number)?;
        Self::with_index(number, sheet).await
    }

    async fn with_index(number: u64, sheet: Sheet) -> Result<Self> {
        let cut = || Trouble::Doubt("a file of counts is too short".into());
        let end = sheet.length().checked_sub(TRAILER_BYTES as u64).ok_or_else(cut)?;
        let trailer = counts::decode_trailer(&sheet.read(end, TRAILER_BYTES).await?)?;
        let length = end.checked_sub(trailer.index_begin);
        let is_its = |length: &u64| *length / INDEX_BYTES as u64 == trailer.blocks;
        let length = length.filter(is_its).and_then(|length| usize::try_from(length).ok());
        let index = sheet.read(trailer.index_begin, length.ok_or_else(cut)?).await?;
        let index = Arc::new(counts::decode_index(&index, trailer.index_crc)?);
        Ok(Self { number, sheet, index, last: None })
    }

    /// Length, bytes.
    pub(super) fn length(&self) -> u64 {
        self.sheet.length()
    }

    async fn block(&mut self, at: usize) -> Result<Option<Arc<Vec<Row>>>> {
        if let Some((_, rows)) = self.last.as_ref().filter(|(last, _)| *last == at) {
            return Ok(Some(rows.clone()));
        }
        let Some(block) = self.index.get(at) else { return Ok(None) };
        let bytes = self.sheet.read(block.begin, block.rows as usize * ROW_BYTES).await?;
        let rows = Arc::new(counts::decode_rows(&bytes, block)?);
        self.last = Some((at, rows.clone()));
        Ok(Some(rows))
    }

    /// Returns the row of a pack, if the file has one.
    pub(super) async fn row(&mut self, pack: &PackId) -> Result<Option<Row>> {
        let behind = self.index.partition_point(|block| block.first <= *pack);
        let Some(at) = behind.checked_sub(1) else { return Ok(None) };
        let Some(rows) = self.block(at).await? else { return Ok(None) };
        let found = rows.binary_search_by(|row| row.pack.cmp(pack));
        Ok(found.ok().map(|index| rows[index]))
    }

    /// Returns the places of a row of this file, as they are stored.
    pub(super) async fn encoded(&self, row: &Row) -> Result<Vec<u8>> {
        self.sheet.read(row.begin, row.length as usize).await
    }

    /// Returns the places of a row of this file.
    pub(super) async fn places(&self, row: &Row) -> Result<Vec<CountedPlace>> {
        Ok(counts::decode_places(&self.encoded(row).await?, row)?)
    }

    /// Returns all rows, one after another.
    pub(super) fn rows(&self) -> Rows {
        Rows { run: Self { last: None, ..self.clone() }, block: 0, at: 0, rows: None }
    }
}

/// The rows of a file, in the order of the packs.
pub(super) struct Rows {
    pub(super) run: Run,
    block: usize,
    at: usize,
    rows: Option<Arc<Vec<Row>>>,
}

impl Rows {
    pub(super) async fn next(&mut self) -> Result<Option<Row>> {
        loop {
            if let Some(row) = self.rows.as_ref().and_then(|rows| rows.get(self.at)) {
                self.at += 1;
                return Ok(Some(*row));
            }
            self.rows = self.run.block(self.block).await?;
            if self.rows.is_none() {
                return Ok(None);
            }
            (self.block, self.at) = (self.block + 1, 0);
        }
    }
}

/// The writer of a file of counts.
pub(super) struct RunWriter {
    number: u64,
    pen: Pen,
    /// Rows of the block at hand, encoded.
    block: Vec<u8>,
    first: PackId,
    index: Vec<u8>,
}

impl RunWriter {
    pub(super) async fn new(shelf: &Shelf, number: u64) -> Result<Self> {
        let mut pen = shelf.write(&name_of(number));
        pen.put(&counts::header(shelf.store, number)).await?;
        let (block, index) = Default::default();
        Ok(Self { number, pen, block, first: PackId([0; 16]), index })
    }

    /// Adds a pack with its places, which may be none.
    pub(super) async fn push(
        &mut self,
        pack: PackId,
        places: &[CountedPlace],
        (blobs, hops): (u32, u8),
    ) -> Result<()> {
        let mut encoded = Vec::with_capacity(places.len() * 6);
        counts::push_places(places, &mut encoded);
        let row = Row {
            pack,
            begin: 0,
            length: narrow(encoded.len()),
            crc: crc32c(&encoded),
            places: narrow(places.len()),
            blobs,
            bytes: places.iter().map(|place| u64::from(place.stored)).sum(),
            edges: places.iter().map(|place| u64::from(place.count)).sum(),
            hops,
        };
        self.copy(row, &encoded).await
    }

    /// Adds a row of another file with its places, as they are stored there.
    pub(super) async fn copy(&mut self, row: Row, encoded: &[u8]) -> Result<()> {
        let row = Row { begin: self.pen.length(), ..row };
        self.pen.put(encoded).await?;
        if self.block.is_empty() {
            self.first = row.pack;
        }
        counts::push_row(&row, &mut self.block);
        match self.block.len() {
            BLOCK_BYTES => self.end_block().await,
            _ => Ok(()),
        }
    }

    async fn end_block(&mut self) -> Result<()> {
        let block = Block {
            first: self.first,
            begin: self.pen.length(),
            crc: crc32c(&self.block),
            rows: narrow(self.block.len() / ROW_BYTES),
        };
        counts::push_block(&block, &mut self.index);
        self.pen.put(&self.block).await?;
        self.block.clear();
        Ok(())
    }

    /// Ends the file, durable if it is kept.
    pub(super) async fn end(mut self) -> Result<Run> {
        if !self.block.is_empty() {
            self.end_block().await?;
        }
        let index_begin = self.pen.length();
        self.pen.put(&self.index).await?;
        self.pen.put(&counts::trailer(&self.index, index_begin)).await?;
        Run::with_index(self.number, self.pen.end(true).await?).await
    }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
