//! One volume in service: how its writes are acknowledged.

use crate::flow::{Load, Share};
use crate::gatekeeper::{Gatekeeper, Teller, Waiting};
use crate::home::Home;
use crate::queue::{Change, Kept, Payload};
use crate::{Backlog, Error, Inner, Ticket, Vault, Written, limits};
use base::Serial;
use base::limits::CHANGE_BYTES_MAX;
use bytes::Bytes;
use datastore::record::Held;
use env::Moment;
use log::{Append, Position};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// Writes that wait for a new head of the log.
    rolling: AtomicU64,
    /// Writes that wait for RAM.
    memory_waiting: AtomicU64,
    /// The volume is closing: the batch in hand has a grace.
    pub(crate) closing: watch::Sender<bool>,
    /// A batch is in hand.
    pub(crate) busy: watch::Sender<bool>,
}

/// A change asked for.
#[derive(Clone, Copy)]
struct Request<'a> {
    change: log::Change,
    position: u64,
    span: u64,
    payload: &'a [u8],
    durable: bool,
}

impl Request<'_> {
    fn cost(&self) -> u64 {
        limits::ENTRY_BYTES + self.payload.len() as u64
    }
}

/// What the log took.
struct Taken {
    end: Position,
    /// How long the acknowledgement is held back.
    delay: Duration,
    /// The destager is to be told.
    rouse: Rouse,
}

/// What the destager needs to know of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rouse {
    /// Nothing.
    No,
    /// The volume has something to destage, and it had not.
    Join,
    /// It is due.
    Wake,
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
            rolling: AtomicU64::new(0),
            memory_waiting: AtomicU64::new(0),
            closing: watch::Sender::new(false),
            busy: watch::Sender::new(false),
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
    async fn settle(
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
        }
        Ok(())
    }

    /// Appends to the log and takes the change into the queue: serial order is append order. `None`: the log's head
    /// is full. `promised`: its bytes have been counted when it was let in.
    fn append(
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

    /// The slow way in: waits for room and for a head of the log with room. It goes on when the caller lets go.
    fn submit_later(self: &Arc<Self>, request: Request<'_>, submitted: Moment) -> Written {
        let payload = Bytes::copy_from_slice(request.payload);
        let Request { change, position, span, durable, .. } = request;
        let volume = self.clone();
        Written::Later(Box::pin(async move {
            let worker = volume.clone();
            let work = async move {
                let request = Request { change, position, span, payload: &payload, durable };
                worker.append_when_possible(request).await
            };
            let taken = volume.inner.env.run("staging-admission", work).await?;
            volume.settle(taken.end, taken.delay, submitted, durable).await
        }))
    }

    async fn append_when_possible(self: &Arc<Self>, request: Request<'_>) -> Result<Taken, Error> {
        let cost = request.cost();
        let waited = self.admit(cost).await?;
        loop {
            let now = self.inner.env.now();
            let taken = {
                let mut gate = self.gate.lock();
                match gate.in_service() {
                    Err(ended) => Err(ended),
                    Ok(()) => Ok(self.append(&mut gate, &request, now, true)),
                }
            };
            let problem = match taken {
                Ok(Some(mut taken)) => {
                    self.rouse(taken.rouse);
                    if waited {
                        // It has waited enough.
                        taken.delay = Duration::ZERO;
                    }
                    return Ok(taken);
                }
                Ok(None) => {
                    self.rolling.fetch_add(1, Ordering::Relaxed);
                    self.inner.destager.wake();
                    let rolled = self.inner.log.roll(request.payload.len()).await;
                    self.rolling.fetch_sub(1, Ordering::Relaxed);
                    match rolled {
                        Ok(()) => continue,
                        Err(error) => Error::Log(error),
                    }
                }
                Err(ended) => ended,
            };
            let mut gate = self.gate.lock();
            // A closed volume has given its promises back already.
            if gate.ended.is_none() {
                self.discount(&mut gate, cost);
            }
            return Err(problem);
        }
    }

    /// Waits for room on flash, first come first served; what comes back is counted. Gives whether it had to wait.
    async fn admit(self: &Arc<Self>, cost: u64) -> Result<bool, Error> {
        let told = {
            let mut gate = self.gate.lock();
            gate.in_service()?;
            if gate.waiting.is_empty() && self.has_room(&gate, cost) {
                self.count(&mut gate, cost);
                return Ok(false);
            }
            let (teller, told) = tokio::sync::oneshot::channel();
            gate.waiting.push_back(Waiting { cost, teller });
            self.inner.stalled.fetch_add(1, Ordering::Relaxed);
            told
        };
        tracing::debug!(volume = %self.name, "a write waits: the volume's share of flash is full");
        self.inner.destager.wake();
        match told.await {
            Ok(()) => Ok(true),
            Err(_) => {
                self.gate.lock().in_service()?;
                Err(Error::Closed(self.name.clone()))
            }
        }
    }

    /// Lets waiting writes in for which there is room now.
    pub(crate) fn admit_waiting(&self) {
        let mut gate = self.gate.lock();
        while let Some(first) = gate.waiting.front() {
            let cost = first.cost;
            if !self.has_room(&gate, cost) {
                break;
            }
            let Some(first) = gate.waiting.pop_front() else { break };
            self.inner.stalled.fetch_sub(1, Ordering::Relaxed);
            self.count(&mut gate, cost);
            if first.teller.send(()).is_err() {
                self.discount(&mut gate, cost);
            }
        }
    }

    /// `through` and `uncached`: kept in RAM, destaged at once, acknowledged when the datastore has it.
    fn submit_to_store(self: &Arc<Self>, request: Request<'_>) -> Written {
        // Payload::Zero takes RAM too: the entry.
        let cost = u32::try_from(request.cost()).unwrap_or(u32::MAX).min(self.inner.memory_permits);
        let payload = Bytes::copy_from_slice(request.payload);
        let (position, span) = (request.position, request.span);
        let keep = move |permit| Kept { bytes: payload, _permit: Some(permit) };
        if let Ok(permit) = self.inner.memory.clone().try_acquire_many_owned(cost) {
            return match self.keep(position, span, keep(permit)) {
                Ok(told) => Written::Later(Box::pin(told)),
                Err(error) => failed(error),
            };
        }
        let volume = self.clone();
        Written::Later(Box::pin(async move {
            let worker = volume.clone();
            let work = async move {
                worker.memory_waiting.fetch_add(1, Ordering::Relaxed);
                let permit = worker.inner.memory.clone().acquire_many_owned(cost).await;
                worker.memory_waiting.fetch_sub(1, Ordering::Relaxed);
                let permit = permit.map_err(|_| Error::Closed(worker.name.clone()))?;
                worker.keep(position, span, keep(permit))
            };
            volume.inner.env.run("staging-admission", work).await?.await
        }))
    }

    /// Takes a change that only RAM holds; what comes back ends when the datastore has it.
    fn keep(
        self: &Arc<Self>,
        position: u64,
        span: u64,
        kept: Kept,
    ) -> Result<impl Future<Output = Result<(), Error>> + Send + use<>, Error> {
        let now = self.inner.env.now();
        let (told, rouse) = {
            let mut gate = self.gate.lock();
            gate.in_service()?;
            if let Some(lost) = &gate.lost {
                return Err(lost.clone());
            }
            let payload = Payload::Memory(Arc::new(kept));
            gate.take(Change::kept(position, span, payload, now));
            (gate.await_all(), self.note(&mut gate))
        };
        self.rouse(rouse);
        let name = self.name.clone();
        Ok(async move {
            match told {
                Some(told) => told.await.unwrap_or(Err(Error::Closed(name))),
                None => Ok(()),
            }
        })
    }

    /// Makes staged changes up to `ticket` durable and visible. On the caller's thread: may drive the flash.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        if self.inner.log.committed() < ticket.0 {
            self.inner.log.commit(ticket.0).await?;
        }
        let mut gate = self.gate.lock();
        // A volume that was closed meanwhile keeps its changes in the log; one that is fenced must not promise.
        if let Some(fenced @ Error::Fenced(_)) = &gate.ended {
            return Err(fenced.clone());
        }
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
            if told.is_some() {
                gate.drain_to = gate.queue.last();
            }
            told
        };
        self.inner.destager.wake();
        self.until_told(told).await?;
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

    /// What is owed.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let now = self.inner.env.now();
        let usage = self.inner.log.usage();
        let gate = self.gate.lock();
        let age = gate.queue.get(0).map_or(Duration::ZERO, |oldest| now.since(oldest.at()));
        let load = self.load(&gate);
        let delay = match self.mode {
            Mode::Store { .. } => Duration::ZERO,
            Mode::Flash | Mode::Memory => load.delay(self.inner.latency()),
        };
        let failing = gate.destage_error.is_some();
        Backlog {
            changes: gate.queue.len() as u64,
            bytes: gate.queue.bytes(),
            age_ms: milliseconds(age),
            eta_ms: load.eta.filter(|_| !failing).map(milliseconds),
            late: age > self.inner.config.age_deadline,
            delay_ms: milliseconds(delay),
            stalled: self.why_stalled(&gate, &usage),
            destage_error: gate
                .lost
                .as_ref()
                .map(ToString::to_string)
                .or_else(|| gate.destage_error.clone()),
            serial: gate.queue.last().0,
            checkpoint: gate.checkpoint().0,
        }
    }

    fn why_stalled(&self, gate: &Gatekeeper, usage: &log::Usage) -> Option<String> {
        let because = gate
            .destage_error
            .as_ref()
            .map_or(String::new(), |error| format!("; destaging fails: {error}"));
        let size = base::units::format_size;
        if !gate.waiting.is_empty() {
            let share = self.share(gate);
            let (writes, taken, all) =
                (gate.waiting.len(), size(share.bytes), size(share.flash_bytes));
            return Some(format!(
                "{writes} write(s) wait for room on flash: {taken} of this volume and {} of all volumes wait to be \
                 destaged, {all} may{because}",
                size(share.total)
            ));
        }
        if self.rolling.load(Ordering::Relaxed) > 0 && usage.flash_bytes >= usage.flash_bytes_max {
            return Some(format!("the log is full ({}){because}", size(usage.flash_bytes)));
        }
        let waiting = self.memory_waiting.load(Ordering::Relaxed);
        (waiting > 0).then(|| {
            let most = size(self.inner.config.memory_bytes);
            format!("{waiting} write(s) wait for RAM ({most}) until the datastore has earlier ones{because}")
        })
    }

    /// Takes the volume out of service: later calls fail; unfinished changes stay in the log.
    pub async fn close(&self) -> Result<(), Error> {
        if !self.end_with(Error::Closed(self.name.clone())) {
            return Ok(());
        }
        self.closing.send_replace(true);
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
        tell(tellers, &Err(Error::Closed(self.name.clone())));
    }

    /// What the controller looks at.
    fn load(&self, gate: &Gatekeeper) -> Load {
        let share = self.share(gate);
        Load {
            changes: gate.queue.len() as u64,
            changes_max: limits::CHANGES_MAX / share.volumes.max(1),
            bytes: share.bytes,
            bytes_max: share.bytes_max(),
            eta: gate.drain.eta(gate.queue.bytes(), self.batch_bytes_max(&share)),
            eta_max: self.inner.config.age_deadline,
        }
    }

    pub(crate) fn share(&self, gate: &Gatekeeper) -> Share {
        Share {
            bytes: gate.flash_bytes,
            total: self.inner.total.load(Ordering::Relaxed),
            flash_bytes: self.inner.config.flash_bytes,
            volumes: self.inner.volumes_with_changes.load(Ordering::Relaxed)
                + u64::from(gate.flash_bytes == 0),
        }
    }

    /// Most bytes in one batch of this volume.
    pub(crate) fn batch_bytes_max(&self, share: &Share) -> u64 {
        let config = &self.inner.config;
        match self.mode {
            Mode::Store { .. } => config.batch_bytes,
            Mode::Flash | Mode::Memory => config
                .batch_bytes
                .min((share.bytes_max() / limits::BATCHES_IN_SHARE_MIN).max(CHANGE_BYTES_MAX)),
        }
    }

    fn has_room(&self, gate: &Gatekeeper, cost: u64) -> bool {
        let share = self.share(gate);
        share.has_room(cost)
            && (gate.queue.len() as u64) < limits::CHANGES_MAX / share.volumes.max(1)
    }

    fn count(&self, gate: &mut Gatekeeper, cost: u64) {
        if gate.flash_bytes == 0 {
            self.inner.volumes_with_changes.fetch_add(1, Ordering::Relaxed);
        }
        gate.flash_bytes += cost;
        self.inner.total.fetch_add(cost, Ordering::Relaxed);
    }

    fn discount(&self, gate: &mut Gatekeeper, cost: u64) {
        gate.flash_bytes -= cost;
        self.discounted(gate, cost);
    }

    /// Counts down what `gate` has counted down already.
    pub(crate) fn discounted(&self, gate: &Gatekeeper, cost: u64) {
        if cost > 0 && gate.flash_bytes == 0 {
            self.inner.volumes_with_changes.fetch_sub(1, Ordering::Relaxed);
        }
        self.inner.total.fetch_sub(cost, Ordering::Relaxed);
    }

    /// Whether the destager has to know: only when something changes for it, since telling costs.
    pub(crate) fn note(&self, gate: &mut Gatekeeper) -> Rouse {
        if !gate.ringed {
            gate.ringed = true;
            gate.told = true;
            return Rouse::Join;
        }
        if gate.told {
            return Rouse::No;
        }
        let due = gate.queue.bytes() >= self.inner.config.destage_bytes
            || matches!(self.mode, Mode::Store { .. })
            || self.is_pressed(gate);
        if !due {
            return Rouse::No;
        }
        gate.told = true;
        Rouse::Wake
    }

    /// Whether the volume takes so much of its share that it is to be destaged at once.
    pub(crate) fn is_pressed(&self, gate: &Gatekeeper) -> bool {
        let share = self.share(gate);
        share.bytes * 100 >= share.bytes_max() * limits::PRESSURE_PERCENT
            || !gate.waiting.is_empty()
    }

    pub(crate) fn rouse(self: &Arc<Self>, rouse: Rouse) {
        match rouse {
            Rouse::No => {}
            Rouse::Join => self.inner.destager.join(self.clone()),
            Rouse::Wake => self.inner.destager.wake(),
        }
    }
}

type Told = tokio::sync::oneshot::Receiver<Result<(), Error>>;

/// Tells all how it ended. A receiver that is gone does not care.
pub(crate) fn tell(tellers: Vec<Teller>, outcome: &Result<(), Error>) {
    for teller in tellers {
        let _ = teller.send(outcome.clone());
    }
}

fn failed(error: Error) -> Written {
    Written::Later(Box::pin(std::future::ready(Err(error))))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
