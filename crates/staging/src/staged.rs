//! One volume in service: how its writes are acknowledged.

use crate::budget::Rouse;
use crate::gatekeeper::{Gatekeeper, Teller};
use crate::home::Home;
use crate::queue::Change;
use crate::{Error, Inner, Ticket, Vault, Written, limits};
use base::Serial;
use base::limits::CHANGE_BYTES_MAX;
use datastore::record::Held;
use env::{Moment, Switch};
use log::{Append, Position};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// After what a write of this volume is acknowledged: policy, ack and the machine taken together. Fixed while the volume
/// is in service (a change of policy is a new generation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The log has it on flash.
    Flash,
    /// The log has it in memory that outlives the process.
    Memory,
    /// The datastore has it. `keep`: what reads fetch is cached.
    Store { keep: bool },
}

/// One volume in service.
pub struct Staged {
    pub(crate) inner: Arc<Inner>,
    pub(crate) home: Arc<dyn Home>,
    pub(crate) id: base::VolumeId,
    pub(crate) name: String,
    pub(crate) generation: base::Generation,
    pub(crate) mode: Mode,
    pub(crate) gate: Mutex<Gatekeeper>,
    /// All unfinished changes are listed, or never will be; only looked at while some are not.
    pub(crate) listed: Switch,
    /// Writes that wait for a new head of the log.
    pub(crate) rolling: AtomicU64,
    /// Writes that wait for RAM.
    pub(crate) memory_waiting: AtomicU64,
    /// The volume is out of service: who waits for room waits in vain, and the batch in hand has a grace.
    pub(crate) closing: Switch,
    /// A batch is in hand.
    pub(crate) busy: watch::Sender<bool>,
    /// What was unfinished when it was closed.
    pub(crate) kept_bytes: AtomicU64,
    /// Whoever salvages was told of damage.
    pub(crate) hurt_told: AtomicBool,
}

/// A change asked for.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) change: log::Change,
    pub(crate) position: u64,
    pub(crate) span: u64,
    pub(crate) payload: &'a [u8],
    pub(crate) durable: bool,
}

impl Request<'_> {
    pub(crate) fn cost(&self) -> u64 {
        limits::ENTRY_BYTES + self.payload.len() as u64
    }
}

/// What the log took.
pub(crate) struct Taken {
    pub(crate) end: Position,
    /// How long the acknowledgement is held back.
    pub(crate) delay: Duration,
    /// The destager is to be told.
    pub(crate) rouse: Rouse,
}

impl Staged {
    pub(crate) fn new(
        inner: Arc<Inner>,
        home: Arc<dyn Home>,
        gate: Gatekeeper,
        mode: Mode,
    ) -> Arc<Self> {
        let vault = &gate.held.value;
        Arc::new(Self {
            id: vault.id,
            name: vault.name.clone(),
            generation: vault.generation,
            inner,
            home,
            mode,
            gate: Mutex::new(gate),
            listed: Switch::default(),
            rolling: AtomicU64::new(0),
            memory_waiting: AtomicU64::new(0),
            closing: Switch::default(),
            busy: watch::Sender::new(false),
            kept_bytes: AtomicU64::new(0),
            hurt_told: AtomicBool::new(false),
        })
    }

    /// The vault as of the last commit.
    #[must_use]
    pub fn vault(&self) -> Vault {
        self.gate.lock().held.value.clone()
    }

    /// The vault as of the last commit, for the next conditional write.
    #[must_use]
    pub fn held(&self) -> Held<Vault> {
        self.gate.lock().held.clone()
    }

    /// The vault has been rewritten with other settings (a pin); the next commit goes on from there. Does nothing when
    /// a commit has come in between: that has read the vault back.
    pub fn adopt_settings(&self, held: Held<Vault>) {
        let mut gate = self.gate.lock();
        let (ours, theirs) = (&gate.held.value, &held.value);
        let same = (ours.owner, ours.generation, ours.checkpoint, ours.root)
            == (theirs.owner, theirs.generation, theirs.checkpoint, theirs.root);
        let newer = held.mark().edition > gate.held.mark().edition;
        if newer && same && ours.id == theirs.id && ours.state == theirs.state {
            gate.held = held;
        }
    }

    /// Whether it stays in service however long nobody uses it.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.gate.lock().held.value.pinned
    }

    /// Whether it has changes that the datastore has not.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.gate.lock().queue.is_empty()
    }

    /// Bytes that it owes to the datastore.
    #[must_use]
    pub fn owed_bytes(&self) -> u64 {
        self.gate.lock().queue.bytes()
    }

    /// Once it is closed: bytes that it still owed, which are in the log.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Whether a batch of it is in hand.
    #[must_use]
    pub fn is_in_hand(&self) -> bool {
        *self.busy.borrow()
    }

    /// Submits a write of at most `limits::CHANGE_BYTES_MAX` bytes. A plain call (one copy into the log).
    /// `durable`: FUA, must reach flash (or the datastore) whatever the volume's ack.
    pub fn write(self: &Arc<Self>, position: u64, data: &[u8], durable: bool) -> Written {
        let span = data.len() as u64;
        if span > CHANGE_BYTES_MAX {
            return failed(Error::Invalid(format!(
                "a change has at most {CHANGE_BYTES_MAX} bytes, not {span}"
            )));
        }
        self.submit(Request { change: log::Change::Write, position, span, payload: data, durable })
    }

    /// Submits a write-zeroes (`trim = false`) or a trim of any length.
    pub fn clear(self: &Arc<Self>, position: u64, span: u64, trim: bool, durable: bool) -> Written {
        let change = if trim { log::Change::Trim } else { log::Change::Zero };
        self.submit(Request { change, position, span, payload: &[], durable })
    }

    fn submit(self: &Arc<Self>, request: Request<'_>) -> Written {
        if request.span == 0 {
            return Written::Done;
        }
        if request.position.checked_add(request.span).is_none() {
            return failed(Error::Invalid("a range ends beyond 2^64".to_owned()));
        }
        if matches!(self.mode, Mode::Store { .. }) {
            return self.submit_to_store(request);
        }
        let now = self.inner.env.now();
        let taken = {
            let mut gate = self.gate.lock();
            if let Some(ended) = &gate.ended {
                return failed(ended.clone());
            }
            let cost = request.cost();
            if gate.waiting.is_empty() && self.has_room(&gate, cost) {
                self.append(&mut gate, &request, now, false)
            } else {
                None
            }
        };
        let Some(taken) = taken else { return self.submit_later(request, now) };
        self.rouse(taken.rouse);
        self.acknowledge(&taken, now, request.durable)
    }

    /// How a change that the log took is acknowledged.
    fn acknowledge(self: &Arc<Self>, taken: &Taken, submitted: Moment, durable: bool) -> Written {
        let (end, delay) = (taken.end, taken.delay);
        let synced = self.mode == Mode::Flash || durable;
        match (synced, delay.is_zero()) {
            (false, true) => Written::Done,
            (true, true) => Written::Staged(Ticket(end)),
            _ => {
                let volume = self.clone();
                Written::Later(Box::pin(async move {
                    volume.settle(end, delay, submitted, durable).await
                }))
            }
        }
    }

    /// Waits until a change that the log took may be acknowledged.
    pub(crate) async fn settle(
        &self,
        end: Position,
        delay: Duration,
        submitted: Moment,
        durable: bool,
    ) -> Result<(), Error> {
        if self.mode == Mode::Flash || durable {
            self.sync(Ticket(end)).await?;
        }
        let rest = delay.saturating_sub(self.inner.env.now().since(submitted));
        if !rest.is_zero() {
            self.inner.env.sleep(rest).await;
            self.may_promise(&self.gate.lock())?;
        }
        Ok(())
    }

    /// Appends to the log and takes the change into the queue: serial order is append order. `None`: the log's head
    /// is full. `promised`: its bytes have been counted when it was let in.
    pub(crate) fn append(
        &self,
        gate: &mut Gatekeeper,
        request: &Request<'_>,
        now: Moment,
        promised: bool,
    ) -> Option<Taken> {
        let serial = gate.queue.last().next();
        let entry = Append {
            volume: self.id,
            generation: self.generation,
            serial,
            change: request.change,
            position: request.position,
            span: request.span,
            payload: request.payload,
        };
        let (end, mut places) = self.inner.log.append(&[entry]).ok()?;
        let place = if request.payload.is_empty() { None } else { places.pop() };
        let taken = gate.take(Change::logged(request.position, request.span, place, end, now));
        debug_assert_eq!(taken, serial, "serials have no gaps");
        if self.mode == Mode::Memory {
            gate.apply_all();
        }
        if !promised {
            self.count(gate, request.cost());
        }
        Some(Taken {
            end,
            delay: self.load(gate).delay(self.inner.latency()),
            rouse: self.note(gate),
        })
    }

    /// Makes staged changes up to `ticket` durable and visible. On the caller's thread: may drive the flash.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        if self.inner.log.committed() < ticket.0 {
            self.inner.log.commit(ticket.0).await?;
        }
        let mut gate = self.gate.lock();
        // A volume that was closed meanwhile keeps its changes in the log; one that is fenced must not promise.
        self.may_promise(&gate)?;
        gate.apply(self.inner.log.committed());
        Ok(())
    }

    /// Everything acknowledged so far is on flash or in the datastore when this returns.
    pub async fn flush(&self) -> Result<(), Error> {
        let (end, told) = {
            let mut gate = self.gate.lock();
            gate.in_service()?;
            let told = match self.mode {
                Mode::Store { .. } => self.await_store(&mut gate)?,
                Mode::Flash | Mode::Memory => None,
            };
            (gate.end, told)
        };
        self.sync(Ticket(end)).await?;
        self.until_told(told).await
    }

    /// Destages everything written before the call; returns the checkpoint reached.
    pub async fn drain(&self) -> Result<Serial, Error> {
        let end = {
            let gate = self.gate.lock();
            gate.in_service()?;
            gate.end
        };
        if let Err(error) = self.sync(Ticket(end)).await {
            // Flash that fails is no reason to keep from the datastore what is visible.
            tracing::warn!(volume = %self.name, %error, "draining without the log's commit");
        }
        let told = {
            let mut gate = self.gate.lock();
            let told = self.await_store(&mut gate)?;
            gate.drain_to = gate.queue.last();
            told
        };
        self.inner.destager.wake();
        self.until_told(told).await?;
        self.let_go();
        Ok(self.gate.lock().checkpoint())
    }

    fn await_store(&self, gate: &mut Gatekeeper) -> Result<Option<Told>, Error> {
        gate.in_service()?;
        match &gate.lost {
            Some(lost) => Err(lost.clone()),
            None => Ok(gate.await_all()),
        }
    }

    async fn until_told(&self, told: Option<Told>) -> Result<(), Error> {
        match told {
            Some(told) => told.await.unwrap_or_else(|_| Err(Error::Closed(self.name.clone()))),
            None => Ok(()),
        }
    }

    /// Takes the volume out of service: later calls fail; unfinished changes stay in the log. One that had to stop leaves
    /// thereby, too.
    pub async fn close(&self) -> Result<(), Error> {
        self.end_with(Error::Closed(self.name.clone()));
        self.inner.destager.wake();
        let mut busy = self.busy.subscribe();
        // The sender lives as long as `self`.
        let _ = busy.wait_for(|busy| !busy).await;
        let end = self.gate.lock().end;
        let committed = if self.inner.log.committed() < end {
            self.inner.log.commit(end).await
        } else {
            Ok(())
        };
        self.inner.park(self);
        committed.map_err(Error::Log)
    }

    /// Takes the volume out of service, once, and tells all who wait.
    pub(crate) fn end_with(&self, error: Error) -> bool {
        let tellers = {
            let mut gate = self.gate.lock();
            if gate.ended.is_some() {
                return false;
            }
            gate.ended = Some(error.clone());
            self.inner.stalled.fetch_sub(gate.waiting.len(), Ordering::Relaxed);
            gate.waiting.clear();
            gate.give_up()
        };
        self.closing.turn_on();
        self.let_go();
        tell(tellers, &Err(error));
        true
    }

    /// Staging has stopped: who waits for the datastore or for room waits in vain. The log goes on taking writes.
    pub(crate) fn abandon(&self) {
        let tellers = {
            let mut gate = self.gate.lock();
            self.inner.stalled.fetch_sub(gate.waiting.len(), Ordering::Relaxed);
            gate.waiting.clear();
            gate.give_up()
        };
        self.let_go();
        tell(tellers, &Err(Error::Closed(self.name.clone())));
    }
}

type Told = tokio::sync::oneshot::Receiver<Result<(), Error>>;

/// Tells all how it ended. A receiver that is gone does not care.
pub(crate) fn tell(tellers: Vec<Teller>, outcome: &Result<(), Error>) {
    for teller in tellers {
        let _ = teller.send(outcome.clone());
    }
}

pub(crate) fn failed(error: Error) -> Written {
    Written::Later(Box::pin(std::future::ready(Err(error))))
}
