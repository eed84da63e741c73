//! A block volume: extents of fixed blocks over content. The smallest kind; read it first.
//!
//! [`Extents`] is its [`volume::Home`]: what the bytes in the datastore mean. [`Device`] is what a protocol sees: bytes by
//! offset, trim, write-zeroes, flush, FUA.

use content::Content;
use volume::{Error, Extent, Handle, Ticket, Written};

/// A volume as a block device. Offsets and lengths are in bytes, any alignment; what is out of bounds is refused.
#[derive(Clone)]
pub struct Device {}

/// Fixed blocks in a tree: key = block number, value = chunk. A missing key is a hole.
pub struct Extents {}

impl Extents {
    /// The home of a block volume.
    #[must_use]
    pub fn new(content: Content, size: u64, block_size: u64) -> Self {
        let _ = (content, size, block_size);
        todo!()
    }
}

impl Device {
    /// The device of an attached volume.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        let _ = handle;
        todo!()
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        todo!()
    }

    /// The size that suits it best for I/O, bytes (its chunk).
    #[must_use]
    pub fn block_size(&self) -> u64 {
        todo!()
    }

    /// Reads from memory only, `false` when some byte is not there. A plain call.
    pub fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        let _ = (offset, out);
        todo!()
    }

    /// Reads.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let _ = (offset, out);
        todo!()
    }

    /// Submits a write; large ones become several changes. A plain call.
    pub fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        let _ = (offset, data, durable);
        todo!()
    }

    /// Submits a write-zeroes, or a trim. A plain call.
    pub fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error> {
        let _ = (offset, length, trim, durable);
        todo!()
    }

    /// Makes staged changes up to `ticket` durable: one call may acknowledge many writes.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        let _ = ticket;
        todo!()
    }

    /// Everything acknowledged so far is durable.
    pub async fn flush(&self) -> Result<(), Error> {
        todo!()
    }

    /// Data and holes of a range.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        let _ = (offset, length);
        todo!()
    }
}
