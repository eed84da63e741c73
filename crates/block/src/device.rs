//! The device: a protocol's view of a block volume.

use crate::kind::{KIND, served};
use futures_util::future;
use rekindle_base::limits::CHANGE_BYTES_MAX;
use rekindle_env::BoxFuture;
use rekindle_staging::{Backlog, Error as StagingError, Extent, Quantum, Staged, Ticket, Written};
use rekindle_volume::{Error, Handle, Volumes};
use std::sync::Arc;

/// A volume as a block device. Offsets and lengths are in bytes, any alignment; a range out of
/// bounds is refused.
#[derive(Clone)]
pub struct Device {
    staged: Arc<Staged>,
    /// The number of the snapshot that the device shows; `None`: the present content.
    snapshot: Option<u32>,
    /// The size, cached because every request is checked against it.
    size: u64,
    block_size: u64,
    handle: Handle,
}

/// The common outcome of several changes.
#[derive(Default)]
pub enum Gathered {
    #[default]
    Acked,
    NeedsSync(Ticket),
    Pending(Option<Ticket>, Vec<BoxFuture<'static, Result<(), StagingError>>>),
}

impl Device {
    /// Attaches a volume, or a snapshot of one, which cannot be changed: `VOLUME@SNAPSHOT`. A
    /// volume of that whole name goes before. A volume of another kind is refused
    /// ([`Error::OtherKind`]), and stays as it is.
    ///
    /// What the datastore does not have of a snapshot yet is brought there first.
    pub async fn attach(volumes: &Volumes, name: &str) -> Result<Self, Error> {
        let (missing, (volume, snapshot)) = match volumes.attach_as(name, KIND).await {
            Err(error @ Error::NotFound(_)) => match name.rsplit_once('@') {
                Some(parts) => (error, parts),
                None => return Err(error),
            },
            attached => return Self::new(attached?),
        };
        let device = match volumes.attach_as(volume, KIND).await {
            Err(Error::NotFound(_)) => return Err(missing),
            attached => Self::new(attached?)?,
        };
        let found = device.staged.whole_snapshot(|one| one.name == snapshot).await?;
        let found = found.ok_or_else(|| rekindle_staging::Error::no_snapshot(volume, snapshot))?;
        Ok(Self { snapshot: Some(found.number), size: found.size, ..device })
    }

    /// Makes the device of an attached volume.
    fn new(handle: Handle) -> Result<Self, Error> {
        let vault = handle.vault();
        let (size, block_size) = (vault.size, served(vault)?.page_bytes());
        Ok(Self { staged: handle.staged().clone(), snapshot: None, size, block_size, handle })
    }

    /// Whether every change is refused: the device shows a snapshot.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Returns the volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.vault().name
    }

    /// Returns the volume's size, bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the preferred size of a request, bytes: a smaller write keeps bytes of a page, which
    /// are read.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Returns the handle that keeps the volume in service.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the changes that the volume owes to the datastore.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        self.staged.backlog()
    }

    /// Reads from memory only; `false` when some byte is not there. A plain call.
    pub fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        self.check("a read", offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(true);
        }
        Ok(match self.snapshot {
            Some(number) => self.staged.read_snapshot_now(number, offset, out)?,
            None => self.staged.read_now(offset, out)?,
        })
    }

    /// Reads a range.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check("a read", offset, out.len() as u64)?;
        if out.is_empty() {
            return Ok(());
        }
        match self.snapshot {
            Some(number) => self.staged.read_snapshot(number, offset, out).await?,
            None => self.staged.read(offset, out).await?,
        }
        Ok(())
    }

    /// Whether the caller may submit a write of `bytes` now: see [`Staged::admits`].
    #[must_use]
    pub fn admits(&self, under_way: u64, bytes: u64) -> bool {
        self.staged.admits(under_way, bytes)
    }

    /// Waits for the caller's quantum to submit some bytes.
    pub async fn quantum(&self) -> Quantum {
        self.staged.quantum().await
    }

    /// Submits a write; large ones become several changes. A plain call.
    pub fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        self.check("a write", offset, data.len() as u64)?;
        self.may_change()?;
        let most = usize::try_from(CHANGE_BYTES_MAX).expect("a change fits into memory");
        if data.len() <= most {
            return Ok(if data.is_empty() {
                Written::Acked
            } else {
                self.staged.write(offset, data, durable)
            });
        }
        let mut gathered = Gathered::default();
        let mut position = offset;
        for piece in data.chunks(most) {
            gathered.add(self.staged.write(position, piece, durable));
            position += piece.len() as u64;
        }
        Ok(self.all(gathered))
    }

    /// Combines the outcomes of several writes.
    #[must_use]
    pub fn all(&self, gathered: Gathered) -> Written {
        gathered.into_written(&self.staged)
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
        self.may_change()?;
        Ok(if length == 0 {
            Written::Acked
        } else {
            self.staged.clear(offset, length, trim, durable)
        })
    }

    /// Whether a change that is submitted now may end because the volume moves to another node: see
    /// [`Staged::is_leaving`].
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.staged.is_leaving()
    }

    /// Waits until the volume stays here after all; an error when it has moved.
    pub async fn stays(&self) -> Result<(), StagingError> {
        self.staged.stays().await
    }

    /// Makes staged changes up to `ticket` durable: one call may acknowledge many writes.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        Ok(self.staged.sync(ticket).await?)
    }

    /// Makes everything acknowledged so far durable.
    pub async fn flush(&self) -> Result<(), Error> {
        Ok(self.staged.flush().await?)
    }

    /// Returns the data and holes of a range, from its beginning, maybe not to its end.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        self.check("a query of extents", offset, length)?;
        if length == 0 {
            return Ok(Vec::new());
        }
        Ok(match self.snapshot {
            Some(number) => self.staged.extents_of_snapshot(number, offset, length).await?,
            None => self.staged.extents(offset, length).await?,
        })
    }

    fn check(&self, what: &str, offset: u64, length: u64) -> Result<(), Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(self.out_of_bounds(what, offset, length)),
        }
    }

    fn may_change(&self) -> Result<(), Error> {
        match self.is_read_only() {
            true => Err(Error::Invalid("a snapshot cannot be changed".to_owned())),
            false => Ok(()),
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
    /// Adds the outcome of another change.
    pub fn add(&mut self, written: Written) {
        let this = std::mem::replace(self, Gathered::Acked);
        *self = match (this, written) {
            (this, Written::Acked) => this,
            (Gathered::Acked, Written::NeedsSync(ticket)) => Gathered::NeedsSync(ticket),
            (Gathered::NeedsSync(one), Written::NeedsSync(other)) => {
                Gathered::NeedsSync(one.max(other))
            }
            (Gathered::Pending(ticket, later), Written::NeedsSync(other)) => {
                Gathered::Pending(ticket.max(Some(other)), later)
            }
            (Gathered::Acked, Written::Pending(wait)) => Gathered::Pending(None, vec![wait]),
            (Gathered::NeedsSync(ticket), Written::Pending(wait)) => {
                Gathered::Pending(Some(ticket), vec![wait])
            }
            (Gathered::Pending(ticket, mut later), Written::Pending(wait)) => {
                later.push(wait);
                Gathered::Pending(ticket, later)
            }
        };
    }

    /// Combines the outcomes. A staged change is synced here only when other changes make the
    /// caller wait anyway.
    fn into_written(self, staged: &Arc<Staged>) -> Written {
        match self {
            Gathered::Acked => Written::Acked,
            Gathered::NeedsSync(ticket) => Written::NeedsSync(ticket),
            Gathered::Pending(ticket, later) => {
                let staged = staged.clone();
                Written::Pending(Box::pin(async move {
                    // All futures are polled at once, in order, so that all changes are under way
                    // after the first poll.
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
