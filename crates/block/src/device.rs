//! What a protocol sees of a block volume.

use base::limits::CHANGE_BYTES_MAX;
use env::BoxFuture;
use futures_util::future;
use std::sync::Arc;
use volume::{Backlog, Error, Extent, Handle, Staged, StagingError, Ticket, Written};

/// A volume as a block device. Offsets and lengths are in bytes, any alignment; what is out of bounds is refused.
#[derive(Clone)]
pub struct Device {
    staged: Arc<Staged>,
    /// At hand, because every request is checked against it.
    size: u64,
    handle: Handle,
}

/// The one outcome of several changes.
enum Gathered {
    Done,
    Staged(Ticket),
    Later(Option<Ticket>, Vec<BoxFuture<'static, Result<(), StagingError>>>),
}

impl Device {
    /// The device of an attached volume.
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        Self { staged: handle.staged().clone(), size: handle.vault().size, handle }
    }

    /// The volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.vault().name
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The size that suits it best for I/O, bytes (its chunk).
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.handle.vault().block_size
    }

    /// The hold on the volume.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What the volume owes to the datastore.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.staged.backlog()
    }

    /// Reads from memory only, `false` when some byte is not there. A plain call.
    pub fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        self.check("a read", offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(true);
        }
        Ok(self.staged.read_now(offset, out)?)
    }

    /// Reads.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check("a read", offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(());
        }
        Ok(self.staged.read(offset, out).await?)
    }

    /// Submits a write; large ones become several changes. A plain call.
    pub fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        self.check("a write", offset, data.len() as u64)?;
        let most = usize::try_from(CHANGE_BYTES_MAX).expect("a change fits into memory");
        if data.len() <= most {
            return Ok(if data.is_empty() {
                Written::Done
            } else {
                self.staged.write(offset, data, durable)
            });
        }
        let mut gathered = Gathered::Done;
        let mut position = offset;
        for piece in data.chunks(most) {
            gathered.add(self.staged.write(position, piece, durable));
            position += piece.len() as u64;
        }
        Ok(gathered.into_written(&self.staged))
    }

    /// Submits a write-zeroes, or a trim. A plain call.
    pub fn clear(
        &self,
        offset: u64,
        length: u64,
        trim: bool,
        durable: bool,
    ) -> Result<Written, Error> {
        self.check(if trim { "a trim" } else { "a write of zeros" }, offset, length)?;
        Ok(if length == 0 {
            Written::Done
        } else {
            self.staged.clear(offset, length, trim, durable)
        })
    }

    /// Makes staged changes up to `ticket` durable: one call may acknowledge many writes.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        Ok(self.staged.sync(ticket).await?)
    }

    /// Everything acknowledged so far is durable.
    pub async fn flush(&self) -> Result<(), Error> {
        Ok(self.staged.flush().await?)
    }

    /// Data and holes of a range.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        self.check("a query of extents", offset, length)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        Ok(self.staged.extents(offset, length).await?)
    }

    fn check(&self, what: &str, offset: u64, length: u64) -> Result<(), Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(self.out_of_bounds(what, offset, length)),
        }
    }

    #[cold]
    fn out_of_bounds(&self, what: &str, offset: u64, length: u64) -> Error {
        let (name, size) = (self.name(), self.size);
        Error::Invalid(format!(
            "{what} of {length} bytes at {offset} is beyond the end of volume '{name}' ({size} bytes)"
        ))
    }
}

impl Gathered {
    fn add(&mut self, written: Written) {
        let this = std::mem::replace(self, Gathered::Done);
        *self = match (this, written) {
            (this, Written::Done) => this,
            (Gathered::Done, Written::Staged(ticket)) => Gathered::Staged(ticket),
            (Gathered::Staged(one), Written::Staged(other)) => Gathered::Staged(one.max(other)),
            (Gathered::Later(ticket, later), Written::Staged(other)) => {
                Gathered::Later(ticket.max(Some(other)), later)
            }
            (Gathered::Done, Written::Later(wait)) => Gathered::Later(None, vec![wait]),
            (Gathered::Staged(ticket), Written::Later(wait)) => {
                Gathered::Later(Some(ticket), vec![wait])
            }
            (Gathered::Later(ticket, mut later), Written::Later(wait)) => {
                later.push(wait);
                Gathered::Later(ticket, later)
            }
        };
    }

    /// All of them: staged ones are synced only when the others make the caller wait anyway.
    fn into_written(self, staged: &Arc<Staged>) -> Written {
        match self {
            Gathered::Done => Written::Done,
            Gathered::Staged(ticket) => Written::Staged(ticket),
            Gathered::Later(ticket, later) => {
                let staged = staged.clone();
                Written::Later(Box::pin(async move {
                    // All are polled at once, in order, so that all are on their way after the first poll.
                    let waits = future::join_all(later);
                    let sync = async {
                        match ticket {
                            Some(ticket) => staged.sync(ticket).await,
                            None => Ok(()),
                        }
                    };
                    let (waits, synced) = future::join(waits, sync).await;
                    waits.into_iter().chain([synced]).collect()
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
