//! The NBD exports: block volumes by name. A volume whose owner runs at another host is forwarded.

use super::Service;
use super::forward::Forward;
use super::movable::Movable;
use super::words::unavailable;
use crate::assemble::Node;
use rekindle_block::{Device, Gathered, KIND};
use rekindle_env::BoxFuture;
use rekindle_front::nbd::forward::Remote;
use rekindle_front::nbd::{ExportError, Exports, Target, VolumeMeters};
use rekindle_staging::{Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::sync::Arc;

/// The device of a volume.
#[derive(Clone)]
pub enum Export {
    /// Its owner runs here.
    Here(Movable),
    /// Its owner runs at another host of the cluster.
    There {
        remote: Remote,
        /// It is a snapshot of the volume.
        is_read_only: bool,
    },
}

impl Service {
    /// Attaches a volume whose owner is this node or a guest.
    pub async fn attach_here(&self, name: &str) -> Result<Device, ExportError> {
        self.attached(name).await?.map_err(|error| error.into())
    }

    /// The same, as NBD clients of this host have it.
    pub async fn export_here(&self, name: &str) -> Result<Export, ExportError> {
        let device = self.attach_here(name).await?;
        Ok(Export::Here(Movable::new(self, name, device)))
    }

    /// The same; the inner error is of the volume.
    pub(super) async fn attached(&self, name: &str) -> Result<Result<Device, Error>, ExportError> {
        let node = self.node().await.map_err(unavailable)?;
        let attached = Device::attach(&node.volumes, name).await;
        let (node, device): (Arc<Node>, _) = match attached {
            Err(Error::Elsewhere(volume, owner)) => {
                let guest = self.guests().find(owner).await.map_err(unavailable)?;
                let Some(guest) = guest else {
                    self.inner.arrivals.is_elsewhere(&volume);
                    return Ok(Err(Error::Elsewhere(volume, owner)));
                };
                let began = guest.env.now();
                let attached = Device::attach(&guest.volumes, name).await;
                if let Ok(device) = &attached {
                    let id = device.handle().vault().id;
                    let found = guest.staging.find(id).map_or(0, |staged| staged.owed_bytes());
                    let times = (began, guest.env.now());
                    self.inner.recoveries.attached(owner, (&volume, found), times);
                }
                (guest, attached)
            }
            attached => (node, attached),
        };
        if let Ok(device) = &device {
            self.inner.arrivals.is_here(device.name(), self.inner.env.now());
            node.volumes.client_is_back(device.name());
        }
        Ok(device)
    }

    pub(super) fn meters_of(&self, device: &Device) -> Arc<VolumeMeters> {
        let vault = device.handle().vault();
        self.inner.meters.of(vault.id, &vault.name)
    }
}

impl Exports for Service {
    type Device = Export;

    fn names(&self) -> BoxFuture<'_, Result<Arc<[String]>, ExportError>> {
        Box::pin(async move {
            let node = self.node().await.map_err(unavailable)?;
            Ok(node.volumes.names(KIND).await?)
        })
    }

    /// The owner's host counts the requests of forwarded clients.
    fn meters(&self, device: &Export) -> Arc<VolumeMeters> {
        match device {
            Export::Here(movable) => self.meters_of(movable.device()),
            Export::There { .. } => Arc::default(),
        }
    }

    fn attach<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Export, ExportError>> {
        Box::pin(async move {
            let attached = self.attached(name).await?;
            let node = self.node().await.map_err(unavailable)?;
            let (volume, owner) = match attached {
                Ok(device) => return Ok(Export::Here(Movable::new(self, name, device))),
                Err(Error::Elsewhere(volume, owner)) => (volume, owner),
                Err(error) => return Err(error.into()),
            };
            if node.membership().is_none() {
                return Err(Error::Elsewhere(volume, owner).into());
            }
            let way = Arc::new(Forward::new(self, &node, name));
            let remote = Remote::open(&node.env, way).await?;
            Ok(Export::There { remote, is_read_only: volume != name })
        })
    }
}

impl Target for Export {
    fn size(&self) -> u64 {
        match self {
            Export::Here(movable) => movable.size(),
            Export::There { remote, .. } => remote.size(),
        }
    }

    fn block_size(&self) -> u64 {
        match self {
            Export::Here(movable) => movable.block_size(),
            Export::There { remote, .. } => remote.block_size(),
        }
    }

    fn is_read_only(&self) -> bool {
        match self {
            Export::Here(movable) => movable.is_read_only(),
            Export::There { is_read_only, .. } => *is_read_only,
        }
    }

    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        match self {
            Export::Here(movable) => movable.read_now(offset, out),
            Export::There { remote, .. } => remote.read_now(offset, out),
        }
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        match self {
            Export::Here(movable) => movable.read(offset, out).await,
            Export::There { remote, .. } => remote.read(offset, out).await,
        }
    }

    fn admits(&self, under_way: u64, bytes: u64) -> bool {
        match self {
            Export::Here(movable) => movable.admits(under_way, bytes),
            Export::There { remote, .. } => remote.admits(under_way, bytes),
        }
    }

    async fn quantum(&self) -> Quantum {
        match self {
            Export::Here(movable) => movable.quantum().await,
            Export::There { remote, .. } => remote.quantum().await,
        }
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        match self {
            Export::Here(movable) => movable.write(offset, data, durable),
            Export::There { remote, .. } => remote.write(offset, data, durable),
        }
    }

    fn all(&self, gathered: Gathered) -> Written {
        match self {
            Export::Here(movable) => movable.all(gathered),
            Export::There { remote, .. } => remote.all(gathered),
        }
    }

    fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error> {
        match self {
            Export::Here(movable) => movable.clear(offset, length, trim, durable),
            Export::There { remote, .. } => remote.clear(offset, length, trim, durable),
        }
    }

    async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        match self {
            Export::Here(movable) => movable.sync(ticket).await,
            Export::There { remote, .. } => remote.sync(ticket).await,
        }
    }

    async fn flush(&self) -> Result<(), Error> {
        match self {
            Export::Here(movable) => movable.flush().await,
            Export::There { remote, .. } => remote.flush().await,
        }
    }

    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        match self {
            Export::Here(movable) => movable.extents(offset, length).await,
            Export::There { remote, .. } => remote.extents(offset, length).await,
        }
    }
}
