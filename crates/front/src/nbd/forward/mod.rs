//! A volume that another host serves, as a device: its requests go to the host at which the
//! volume's owner runs.
//!
//! | module | its part |
//! | --- | --- |
//! | `ledger` | the requests without a reply, pure: their order, and what a reply means |
//! | `courier` | carries requests and replies; looks for the owner when a connection ends |
//!
//! When the owner's host dies or hands over, the client keeps its connection here. Its requests
//! wait, and those without a reply go to the next owner, in their order. Two changes of the same
//! bytes are never under way together, so that no older one comes over a newer one that was
//! acknowledged.

mod courier;
mod ledger;

use super::limits;
use super::target::{ExportError, Target};
use super::wire::{command, flag};
use futures_util::future;
use ledger::{Answer, Asked, Ledger};
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_block::Gathered;
use rekindle_env::{BoxFuture, Env, Stream, TaskHandle};
use rekindle_staging::{Error as StagingError, Extent, Quantum, Ticket, Written};
use rekindle_volume::Error;
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};

/// The way to the host that serves a volume. The node implements it.
pub trait Way: Send + Sync + 'static {
    /// Asks for a session at the host at which the volume's owner runs now. What was sent in
    /// earlier sessions of this way is carried out before the session begins, or never.
    fn open(&self) -> BoxFuture<'_, Result<Passage, NoWay>>;
    /// Whether the owner runs elsewhere than where the last session was opened. `false`: not as far
    /// as this host can know.
    fn has_moved(&self) -> BoxFuture<'_, bool>;
    /// Notes why the client waits; `None`: it waits no more.
    fn note(&self, waits: Option<&str>);
}

/// A session at the host of a volume's owner, which serves [`super::serve_device`].
pub struct Passage {
    pub stream: Box<dyn Stream>,
    pub facts: Facts,
}

/// A volume as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub volume: VolumeId,
    /// Its size, bytes.
    pub size: u64,
    /// The preferred size of a request, bytes.
    pub block_size: u64,
}

/// The reason why there is no session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoWay {
    /// No host serves the volume now, and one may soon.
    Away(ExportError),
    /// The owner's host says so.
    Refused(ExportError),
}

/// A volume that another host serves. Clones share its session.
#[derive(Clone)]
pub struct Remote {
    facts: Facts,
    shared: Arc<Shared>,
    _courier: Arc<Courier>,
}

struct Shared {
    ledger: Mutex<Ledger>,
    /// Rung when a request may have become ready to be sent.
    news: Notify,
    /// Rung when requests have been sent.
    sent: Notify,
}

/// The task of the courier, which ends with the last clone of its device.
struct Courier(TaskHandle);

impl Drop for Courier {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Remote {
    /// Opens a session of a volume.
    pub async fn open(env: &Env, way: Arc<dyn Way>) -> Result<Self, ExportError> {
        Self::open_as(env, way, None).await
    }

    /// Opens a session for a client that has been served already, of the volume with these facts.
    /// It waits as long for its owner as after the loss of one.
    pub async fn go_on(env: &Env, way: Arc<dyn Way>, facts: Facts) -> Result<Self, StagingError> {
        let opened = Self::open_as(env, way, Some(facts)).await;
        opened.map_err(|refused| ledger::given_up(&refused.message))
    }

    async fn open_as(
        env: &Env,
        way: Arc<dyn Way>,
        known: Option<Facts>,
    ) -> Result<Self, ExportError> {
        let shared =
            Arc::new(Shared { ledger: Mutex::default(), news: Notify::new(), sent: Notify::new() });
        let (told, opened) = oneshot::channel();
        // The streams belong to the threads of the background.
        let carrying = courier::carry(env.clone(), way, shared.clone(), (told, known));
        let courier = Arc::new(Courier(env.spawn_foreground("nbd-forward", carrying)));
        let facts = opened.await.unwrap_or_else(|_| Err(ExportError::interrupted()))?;
        Ok(Self { facts, shared, _courier: courier })
    }

    /// The volume.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Adds a request; the answer comes later.
    fn ask(&self, asked: Asked) -> oneshot::Receiver<Result<Answer, StagingError>> {
        let receiver = self.shared.ledger.lock().add(asked);
        self.shared.news.notify_one();
        receiver
    }

    fn change(&self, asked: Asked) -> Written {
        let answer = self.ask(asked);
        Written::Pending(Box::pin(async move { answered(answer).await.map(drop) }))
    }
}

async fn answered(
    answer: oneshot::Receiver<Result<Answer, StagingError>>,
) -> Result<Answer, StagingError> {
    answer.await.unwrap_or_else(|_| Err(ledger::given_up("its way to the volume has ended")))
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a session keeps the bounds of requests")
}

fn fua(durable: bool) -> u16 {
    if durable { flag::FUA } else { 0 }
}

impl Target for Remote {
    fn size(&self) -> u64 {
        self.facts.size
    }

    fn block_size(&self) -> u64 {
        self.facts.block_size
    }

    /// Nothing of the volume is in this host's memory.
    fn read_now(&self, _: u64, out: &mut [u8]) -> Result<bool, Error> {
        Ok(out.is_empty())
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        if out.is_empty() {
            return Ok(());
        }
        let asked = Asked::new(command::READ, 0, offset, length(out.len()));
        match answered(self.ask(asked)).await? {
            Answer::Data(bytes) if bytes.len() == out.len() => {
                out.copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(ledger::given_up("its owner's host has answered something else").into()),
        }
    }

    /// The owner's host has its own flow control, which holds replies back.
    fn admits(&self, _: u64, _: u64) -> bool {
        true
    }

    async fn quantum(&self) -> Quantum {
        Quantum::free()
    }

    fn write(&self, offset: u64, data: &[u8], durable: bool) -> Result<Written, Error> {
        let asked = Asked::new(command::WRITE, fua(durable), offset, length(data.len()));
        Ok(self.change(Asked { payload: Arc::new(data.to_vec()), ..asked }))
    }

    fn all(&self, gathered: Gathered) -> Written {
        match gathered {
            Gathered::Acked => Written::Acked,
            Gathered::NeedsSync(ticket) => Written::NeedsSync(ticket),
            Gathered::Pending(_, mut later) if later.len() == 1 => {
                Written::Pending(later.remove(0))
            }
            Gathered::Pending(_, later) => Written::Pending(Box::pin(async move {
                future::join_all(later).await.into_iter().collect()
            })),
        }
    }

    fn clear(&self, offset: u64, length: u64, trim: bool, durable: bool) -> Result<Written, Error> {
        let command = if trim { command::TRIM } else { command::WRITE_ZEROES };
        let length = u32::try_from(length).expect("a session keeps the bounds of requests");
        Ok(self.change(Asked::new(command, fua(durable), offset, length)))
    }

    /// No change of this device needs a sync.
    async fn sync(&self, _: Ticket) -> Result<(), Error> {
        Ok(())
    }

    async fn flush(&self) -> Result<(), Error> {
        answered(self.ask(Asked::new(command::FLUSH, 0, 0, 0))).await?;
        Ok(())
    }

    async fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, Error> {
        let length = length.min(u64::from(limits::STATUS_BYTES_MAX));
        let length = u32::try_from(length).expect("it is bounded");
        match answered(self.ask(Asked::new(command::BLOCK_STATUS, 0, offset, length))).await? {
            Answer::Extents(extents) => Ok(extents),
            _ => Err(ledger::given_up("its owner's host has answered something else").into()),
        }
    }
}

#[cfg(test)]
mod tests;
