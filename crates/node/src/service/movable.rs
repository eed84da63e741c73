//! The device of a volume whose owner runs here, for as long as it does: when the volume moves to
//! another node, the client keeps its connection, and its requests go there.
//!
//! Requests that the old owner has taken get their replies from it, since the next owner began with
//! all of them. Those that have waited for the end of the move, and all later ones, go through a
//! [`Remote`].

use super::Service;
use super::forward::Forward;
use super::words::unavailable;
use rekindle_block::{Device, Gathered};
use rekindle_front::nbd::forward::{Facts, Remote};
use rekindle_front::nbd::{ExportError, Target};
use rekindle_staging::{Error as StagingError, Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A volume that may move. Clones share its place.
#[derive(Clone)]
pub struct Movable {
    device: Device,
    shared: Arc<Shared>,
}

struct Shared {
    service: Service,
    volume: String,
    /// The way to the next owner, once the volume has moved.
    there: OnceCell<Remote>,
}

/// The place of a volume.
enum Place<'a> {
    Here(&'a Device),
    There(&'a Remote),
}

impl Movable {
    pub(super) fn new(service: &Service, volume: &str, device: Device) -> Self {
        let (service, volume) = (service.clone(), volume.to_owned());
        Self { device, shared: Arc::new(Shared { service, volume, there: OnceCell::new() }) }
    }

    /// The device of the owner here, which has moved or has not.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    fn place(&self) -> Place<'_> {
        match self.shared.there.get() {
            Some(remote) => Place::There(remote),
            None => Place::Here(&self.device),
        }
    }

    /// The way to the next owner of a volume that has moved.
    async fn follow(&self) -> Result<&Remote, Error> {
        let Shared { service, volume, there } = &*self.shared;
        let open = async || {
            let node = service.node().await.map_err(|error| given_up(unavailable(error)))?;
            let way = Arc::new(Forward::new(service, &node, volume));
            let facts = Facts {
                volume: self.device.handle().vault().id,
                size: self.device.size(),
                block_size: self.device.block_size(),
            };
            tracing::info!(volume, "has moved: its client here is forwarded");
            Remote::go_on(&node.env, way, facts).await.map_err(Error::from)
        };
        there.get_or_try_init(open).await
    }

    /// Submits a change whose bytes the caller keeps: here, or where the volume has moved.
    async fn submit(
        &self,
        submit: impl Fn(Place<'_>) -> Result<Written, Error>,
    ) -> Result<(), StagingError> {
        if self.shared.there.get().is_none() {
            match self.submit_here(&submit).await {
                Err(StagingError::Moved(_)) => {}
                done => return done,
            }
        }
        let remote = self.follow().await.map_err(staged)?;
        self.settle(submit(Place::There(remote)).map_err(staged)?).await
    }

    async fn submit_here(
        &self,
        submit: impl Fn(Place<'_>) -> Result<Written, Error>,
    ) -> Result<(), StagingError> {
        self.device.stays().await?;
        self.settle(submit(Place::Here(&self.device)).map_err(staged)?).await
    }

    async fn settle(&self, written: Written) -> Result<(), StagingError> {
        match written {
            Written::Acked => Ok(()),
            Written::NeedsSync(ticket) => self.device.sync(ticket).await.map_err(staged),
            Written::Pending(later) => later.await,
        }
    }
}

fn is_moved(error: &Error) -> bool {
    matches!(error, Error::Staging(StagingError::Moved(_)))
}

/// The error of a change, in the words of staging.
fn staged(error: Error) -> StagingError {
    match error {
        Error::Staging(error) => error,
        error => StagingError::Forwarded { kind: error.kind(), message: error.to_string() },
    }
}

fn given_up(error: ExportError) -> Error {
    StagingError::Forwarded { kind: rekindle_base::Kind::Fenced, message: error.message }.into()
}

impl Target for Movable {
    fn size(&self) -> u64 {
        match self.place() {
            Place::Here(device) => device.size(),
            Place::There(remote) => remote.size(),
        }
    }

    fn block_size(&self) -> u64 {
        self.device.block_size()
    }

    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        match self.place() {
            Place::Here(device) => match device.read_now(offset, out) {
                Err(error) if is_moved(&error) => Ok(false),
                done => done,
            },
            Place::There(remote) => remote.read_now(offset, out),
        }
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        if let Place::Here(device) = self.place() {
            match device.read(offset, out).await {
                Err(error) if is_moved(&error) => {}
                done => return done,
            }
        }
        self.follow().await?.read(offset, out).await
    }

    fn admits(&self, under_way: u64, bytes: u64) -> bool {
        match self.place() {
            // The bytes are kept elsewhere than in the log meanwhile.
            Place::Here(device) => device.is_leaving() || device.admits(under_way, bytes),
            Place::There(remote) => remote.admits(under_way, bytes),
        }
    }

    async fn quantum(&self) -> Quantum {
        match self.place() {
            Place::Here(device) => device.quantum().await,
            Place::There(remote) => remote.quantum().await,
        }
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        match self.place() {
            Place::Here(device) if !device.is_leaving() => device.write(offset, data, durable),
            Place::There(remote) => remote.write(offset, data, durable),
            Place::Here(_) => {
                let (this, data) = (self.clone(), data.to_vec());
                Ok(Written::Pending(Box::pin(async move {
                    let write = |place: Place<'_>| match place {
                        Place::Here(device) => device.write(offset, &data, durable),
                        Place::There(remote) => remote.write(offset, &data, durable),
                    };
                    this.submit(write).await
                })))
            }
        }
    }

    fn all(&self, gathered: Gathered) -> Written {
        // Tickets are of the device here.
        self.device.all(gathered)
    }

    fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error> {
        match self.place() {
            Place::Here(device) if !device.is_leaving() => {
                device.clear(offset, length, trim, durable)
            }
            Place::There(remote) => remote.clear(offset, length, trim, durable),
            Place::Here(_) => {
                let this = self.clone();
                Ok(Written::Pending(Box::pin(async move {
                    let clear = |place: Place<'_>| match place {
                        Place::Here(device) => device.clear(offset, length, trim, durable),
                        Place::There(remote) => remote.clear(offset, length, trim, durable),
                    };
                    this.submit(clear).await
                })))
            }
        }
    }

    /// The next owner began with what the tickets stand for.
    async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        self.device.sync(ticket).await
    }

    async fn flush(&self) -> Result<(), Error> {
        if let Place::Here(device) = self.place() {
            match device.flush().await {
                Err(error) if is_moved(&error) => {}
                done => return done,
            }
        }
        self.follow().await?.flush().await
    }

    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        if let Place::Here(device) = self.place() {
            match device.extents(offset, length).await {
                Err(error) if is_moved(&error) => {}
                done => return done,
            }
        }
        self.follow().await?.extents(offset, length).await
    }
}
