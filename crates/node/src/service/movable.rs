//! The device of a volume whose owner runs here. When the volume moves to another node, or gets
//! other settings, the client keeps its connection, and its requests go to the next owner: another
//! device here, or a [`Remote`].
//!
//! Requests that the old owner has taken get their replies from it, since the next owner began with
//! all of them. Those that have waited for the end of the hand-over, and all later ones, go to the
//! next owner.

use super::Service;
use super::forward::Forward;
use super::words::unavailable;
use rekindle_block::{Device, Gathered};
use rekindle_env::BoxFuture;
use rekindle_front::nbd::forward::{Facts, Remote};
use rekindle_front::nbd::{ExportError, Target};
use rekindle_staging::{Error as StagingError, Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A volume that may be handed over. Clones share its next owner.
#[derive(Clone)]
pub struct Movable {
    device: Device,
    shared: Arc<Shared>,
}

struct Shared {
    service: Service,
    volume: String,
    /// The next owner, once the volume was handed over.
    next: OnceCell<Next>,
}

/// The next owner of a volume.
enum Next {
    Here(Movable),
    There(Remote),
}

/// The place of a volume.
#[derive(Clone, Copy)]
enum Place<'a> {
    Here(&'a Movable),
    There(&'a Remote),
}

impl Movable {
    pub(super) fn new(service: &Service, volume: &str, device: Device) -> Self {
        let (service, volume) = (service.clone(), volume.to_owned());
        Self { device, shared: Arc::new(Shared { service, volume, next: OnceCell::new() }) }
    }

    /// The device of the owner that the client came to.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The last owner that is known here.
    fn place(&self) -> Place<'_> {
        let mut last = self;
        loop {
            match last.shared.next.get() {
                Some(Next::Here(next)) => last = next,
                Some(Next::There(remote)) => return Place::There(remote),
                None => return Place::Here(last),
            }
        }
    }

    /// Finds the next owner, after the end of this one.
    async fn follow(&self) -> Result<(), Error> {
        let Shared { service, volume, next } = &*self.shared;
        let facts = Facts {
            volume: self.device.handle().vault().id,
            size: self.device.size(),
            block_size: self.device.block_size(),
        };
        let find = async || -> Result<Next, Error> {
            if let Ok(Ok(device)) = service.attached(volume).await
                && device.handle().vault().id == facts.volume
                && (device.size(), device.block_size()) == (facts.size, facts.block_size)
            {
                tracing::debug!(volume, "was handed over: its client goes on here");
                return Ok(Next::Here(Self::new(service, volume, device)));
            }
            let node = service.node().await.map_err(|error| given_up(unavailable(error)))?;
            let way = Arc::new(Forward::new(service, &node, volume));
            tracing::info!(volume, "has moved: its client here is forwarded");
            Ok(Next::There(Remote::go_on(&node.env, way, facts).await?))
        };
        next.get_or_try_init(find).await.map(|_| ())
    }

    /// Submits a change to the last owner. While that one leaves, `keep` makes a copy of the
    /// change, which is submitted to the owner that takes it.
    fn submit<S, K>(&self, submit: S, keep: impl FnOnce() -> K) -> Result<Written, Error>
    where
        S: FnOnce(Place<'_>) -> Result<Written, Error>,
        K: Fn(Place<'_>) -> Result<Written, Error> + Send + Sync + 'static,
    {
        let place = self.place();
        let Place::Here(owner) = place else { return submit(place) };
        if owner.device.is_leaving() {
            return Ok(self.later(keep(), None));
        }
        match submit(place) {
            // The hand-over began, or even ended, since this task has looked: on a busy machine it
            // may not run for a while.
            Err(error) if is_moved(&error) => Ok(self.later(keep(), None)),
            Ok(Written::Pending(taken)) if owner.device.is_leaving() => {
                Ok(self.later(keep(), Some(taken)))
            }
            // A ticket that is returned is of the first device.
            Ok(Written::NeedsSync(ticket)) if !std::ptr::eq(owner, self) => {
                let device = owner.device.clone();
                let synced = async move { device.sync(ticket).await.map_err(staged) };
                Ok(Written::Pending(Box::pin(synced)))
            }
            written => written,
        }
    }

    /// Submits a change that was kept once an owner takes it, unless the one that has `taken` it
    /// answers it.
    fn later<K>(
        &self,
        kept: K,
        taken: Option<BoxFuture<'static, Result<(), StagingError>>>,
    ) -> Written
    where
        K: Fn(Place<'_>) -> Result<Written, Error> + Send + Sync + 'static,
    {
        let this = self.clone();
        Written::Pending(Box::pin(async move {
            match taken {
                None => this.submit_kept(kept).await,
                Some(taken) => match taken.await {
                    Err(StagingError::Moved(_)) => this.submit_kept(kept).await,
                    done => done,
                },
            }
        }))
    }

    async fn submit_kept(
        &self,
        submit: impl Fn(Place<'_>) -> Result<Written, Error> + Send + Sync,
    ) -> Result<(), StagingError> {
        loop {
            let place = self.place();
            let done = async {
                if let Place::Here(owner) = place {
                    owner.device.stays().await?;
                }
                match (submit(place)?, place) {
                    (Written::Acked, _) => Ok(()),
                    (Written::NeedsSync(ticket), Place::Here(owner)) => {
                        owner.device.sync(ticket).await
                    }
                    (Written::NeedsSync(ticket), Place::There(_)) => self.device.sync(ticket).await,
                    (Written::Pending(later), _) => Ok(later.await?),
                }
            };
            match (done.await, place) {
                (Err(error), Place::Here(owner)) if is_moved(&error) => {
                    owner.follow().await.map_err(staged)?;
                }
                (done, _) => return done.map_err(staged),
            }
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
            Place::Here(owner) => owner.device.size(),
            Place::There(remote) => remote.size(),
        }
    }

    fn block_size(&self) -> u64 {
        self.device.block_size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_now(&self, offset: u64, out: &mut [u8]) -> Result<bool, Error> {
        match self.place() {
            Place::Here(owner) => match owner.device.read_now(offset, out) {
                Err(error) if is_moved(&error) => Ok(false),
                done => done,
            },
            Place::There(remote) => remote.read_now(offset, out),
        }
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        loop {
            let owner = match self.place() {
                Place::Here(owner) => owner,
                Place::There(remote) => return remote.read(offset, out).await,
            };
            match owner.device.read(offset, out).await {
                Err(error) if is_moved(&error) => owner.follow().await?,
                done => return done,
            }
        }
    }

    fn admits(&self, under_way: u64, bytes: u64) -> bool {
        match self.place() {
            // The bytes are kept elsewhere than in the log meanwhile.
            Place::Here(owner) => {
                owner.device.is_leaving() || owner.device.admits(under_way, bytes)
            }
            Place::There(remote) => remote.admits(under_way, bytes),
        }
    }

    async fn quantum(&self) -> Quantum {
        match self.place() {
            Place::Here(owner) => owner.device.quantum().await,
            Place::There(remote) => remote.quantum().await,
        }
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        let write = move |place: Place<'_>, data: &[u8]| match place {
            Place::Here(owner) => owner.device.write(offset, data, durable),
            Place::There(remote) => remote.write(offset, data, durable),
        };
        let keep = || {
            let data = data.to_vec();
            move |place: Place<'_>| write(place, &data)
        };
        self.submit(|place| write(place, data), keep)
    }

    fn all(&self, gathered: Gathered) -> Written {
        // Tickets are of the first device.
        self.device.all(gathered)
    }

    fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error> {
        let clear = move |place: Place<'_>| match place {
            Place::Here(owner) => owner.device.clear(offset, length, trim, durable),
            Place::There(remote) => remote.clear(offset, length, trim, durable),
        };
        self.submit(clear, || clear)
    }

    /// The next owner began with what the tickets stand for.
    async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        self.device.sync(ticket).await
    }

    async fn flush(&self) -> Result<(), Error> {
        loop {
            let owner = match self.place() {
                Place::Here(owner) => owner,
                Place::There(remote) => return remote.flush().await,
            };
            match owner.device.flush().await {
                Err(error) if is_moved(&error) => owner.follow().await?,
                done => return done,
            }
        }
    }

    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        loop {
            let owner = match self.place() {
                Place::Here(owner) => owner,
                Place::There(remote) => return remote.extents(offset, length).await,
            };
            match owner.device.extents(offset, length).await {
                Err(error) if is_moved(&error) => owner.follow().await?,
                done => return done,
            }
        }
    }
}
