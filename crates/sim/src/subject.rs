//! The volumes that a run is about, of two kinds.

use crate::boot::{Served, Setup};
use crate::region::{Region, SharedRegion};
use crate::{heard, map, records};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::units::KIB;
use rekindle_block::Device;
use rekindle_front::http::api::ApiError;
use rekindle_front::http::api::kept::{Keep, Restore};
use rekindle_front::nbd::ExportError;
use rekindle_staging::Staged;
use rekindle_volume::{Error, Handle};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a client's region of a disk: several blocks, so that clients share none but changes
/// share some.
pub const REGION_BYTES: u64 = 160 * KIB;
/// Pause before the next request to the store.
const PAUSE: Duration = Duration::from_millis(50);

/// The kind of a volume of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A block volume, whose clients have parts of its bytes.
    Disk,
    /// A map of records, whose clients have some of its keys.
    Map,
}

/// A volume of the run, over all lives.
#[derive(Clone)]
pub struct Subject {
    pub what: What,
    pub regions: Vec<SharedRegion>,
}

/// A volume in service.
#[derive(Clone)]
pub enum Attached {
    Disk(Device),
    Map(Handle),
}

impl What {
    /// Returns the volume's name.
    pub fn name(self) -> &'static str {
        match self {
            What::Disk => "disk",
            What::Map => "map",
        }
    }

    /// Returns the bytes of a client's region.
    pub fn region_bytes(self) -> usize {
        match self {
            What::Disk => REGION_BYTES as usize,
            What::Map => records::REGION_BYTES,
        }
    }

    /// Makes the volume, if no earlier life has.
    pub async fn create(self, served: &Served, setup: &Setup) -> Result<(), ApiError> {
        if self == What::Disk {
            return served.create(self.name(), setup).await;
        }
        // A life may have ended between its way into the trash and back.
        loop {
            match served.service.restore_volume(self.name(), Restore::default()).await {
                Ok(_) => heard::note("map: back from the trash"),
                Err(error) if matches!(error.kind, Kind::NotFound | Kind::Exists) => {}
                Err(error) if error.kind.is_retryable() => {
                    served.env.sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let setup = Setup { kind: Some(records::KIND), ..setup.clone() };
            return served.create(self.name(), &setup).await;
        }
    }

    /// Attaches the volume, as a client's session does; retries while the store fails.
    pub async fn attach(self, served: &Served) -> Result<Attached, ExportError> {
        if self == What::Disk {
            return served.device(self.name()).await.map(Attached::Disk);
        }
        loop {
            match served.volumes.attach_as(self.name(), records::KIND).await {
                Ok(handle) => {
                    served.volumes.client_is_back(self.name());
                    return Ok(Attached::Map(handle));
                }
                Err(error) if error.kind().is_retryable() => served.env.sleep(PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Subject {
    /// Makes a volume with so many clients, of which nothing is written yet.
    pub fn new(what: What, clients: u64) -> Self {
        let region = |_| Arc::new(Mutex::new(Region::new(what.region_bytes())));
        Self { what, regions: (0..clients).map(region).collect() }
    }
}

impl Attached {
    /// Returns the volume in service.
    pub fn staged(&self) -> &Arc<Staged> {
        match self {
            Attached::Disk(device) => device.handle().staged(),
            Attached::Map(handle) => handle.staged(),
        }
    }

    /// Reads a client's region.
    pub async fn read(&self, client: usize) -> Result<Vec<u8>, Error> {
        match self {
            Attached::Disk(device) => {
                let mut found = vec![0; REGION_BYTES as usize];
                device.read(client as u64 * REGION_BYTES, &mut found).await?;
                Ok(found)
            }
            Attached::Map(handle) => {
                Ok(records::region_of(&map::read(handle.staged()).await?, client))
            }
        }
    }

    /// Whether a commit of an earlier life has brought records that no client was told of: then the
    /// map goes out of service, and begins again with them.
    pub fn has_begun_again(&self) -> bool {
        matches!(self, Attached::Map(_))
            && self.staged().serves().is_err()
            && heard::happened("map: began again")
    }
}
