//! The ways in on which a write waits: for room on flash, for a head of the log, for RAM. First
//! come, first served. A waiting write goes on when its caller drops the future.

use crate::ack::paused::Paused;
use crate::ack::staged::{Request, Staged, Submission, Taken, failed};
use crate::queue::{Change, KeptPayload, Payload};
use crate::{Error, Written};
use bytes::Bytes;
use futures_util::future::{Either, select};
use rekindle_env::Moment;
use rekindle_log::Quantum;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// A submission that outlives its caller's buffers.
struct Owned {
    /// The changes, without their bytes.
    parts: Vec<RequestShape>,
    payload: Bytes,
    durable: bool,
}

/// A [`Request`] with the length of its payload in the payload's place.
struct RequestShape {
    change: rekindle_log::Change,
    position: u64,
    span: u64,
    length: usize,
}

impl Owned {
    fn of(submission: Submission<'_>) -> Self {
        let Submission { requests, durable } = submission;
        let part = |one: &Request<'_>| {
            let Request { change, position, span, payload } = *one;
            RequestShape { change, position, span, length: payload.len() }
        };
        let parts = requests.iter().map(part).collect();
        Self { parts, payload: joined_payload(requests), durable }
    }

    fn requests(&self) -> Vec<Request<'_>> {
        let mut rest = &self.payload[..];
        let mut requests = Vec::with_capacity(self.parts.len());
        for &RequestShape { change, position, span, length } in &self.parts {
            let (payload, behind) = rest.split_at(length);
            rest = behind;
            requests.push(Request { change, position, span, payload });
        }
        requests
    }
}

/// The payloads of all changes, one after the other.
fn joined_payload(requests: &[Request<'_>]) -> Bytes {
    match requests {
        [one] => Bytes::copy_from_slice(one.payload),
        all => Bytes::from(all.iter().map(|one| one.payload).collect::<Vec<_>>().concat()),
    }
}

impl Staged {
    /// Takes the slow way in: waits for room, and for a head of the log with room. Goes on when the
    /// caller drops the future.
    pub(crate) fn submit_later(
        self: &Arc<Self>,
        submission: Submission<'_>,
        submitted: Moment,
    ) -> Written {
        let owned = Owned::of(submission);
        let volume = self.clone();
        Written::Pending(Box::pin(async move {
            let worker = volume.clone();
            let work = async move { worker.append_when_possible(&owned).await };
            let taken = volume.inner.env.run("staging-admission", work).await?;
            volume.settle(taken, submitted).await
        }))
    }

    /// Whether a caller may submit a write of `bytes` now. `under_way`: the bytes of its writes
    /// that are not acknowledged yet. If not, the caller waits for [`Staged::quantum`], and leaves
    /// the bytes where they are meanwhile.
    #[must_use]
    pub fn admits(&self, under_way: u64, bytes: u64) -> bool {
        !self.mode.waits_for_flash() || self.inner.log.admits(under_way, bytes)
    }

    /// Waits for the caller's quantum to submit some bytes ([`Quantum::take`]). The calling task
    /// may become the flush leader, and write to flash.
    pub async fn quantum(&self) -> Quantum {
        self.inner.log.quantum().await
    }

    async fn append_when_possible(self: &Arc<Self>, owned: &Owned) -> Result<Taken, Error> {
        let requests = owned.requests();
        let submission = Submission { requests: &requests, durable: owned.durable };
        let cost = submission.cost();
        let waited = self.admit(cost).await?;
        loop {
            // Many writes may have waited for the same head.
            let quantum = match self.admits(0, cost) {
                true => Some(Quantum::free()),
                false => self.while_in_service(self.quantum()).await,
            };
            let now = self.inner.env.now();
            let taken = {
                let mut gate = self.gate.lock();
                match gate.in_service() {
                    Err(ended) => Err(ended),
                    // It had its room before the hand-over began.
                    Ok(()) if gate.paused >= Paused::Changes => Ok(None),
                    Ok(()) => self.append(&mut gate, &submission, now, true),
                }
            };
            drop(quantum);
            let problem = match taken {
                Ok(None) if self.is_paused() => match self.unpaused(Paused::Changes).await {
                    Ok(()) => continue,
                    Err(ended) => ended,
                },
                Ok(Some(mut taken)) => {
                    self.wake_up(taken.wakeup);
                    if waited {
                        // The write has waited for room: no further delay.
                        taken.delay = Duration::ZERO;
                    }
                    return Ok(taken);
                }
                Ok(None) => {
                    self.rolling.fetch_add(1, Ordering::Relaxed);
                    self.inner.destager.wake();
                    // A batch may keep the destager busy for long, and no write shall wait for room
                    // that only previous roots hold.
                    self.inner.release_old_previous();
                    let rolled = self.roll(owned.payload.len()).await;
                    self.rolling.fetch_sub(1, Ordering::Relaxed);
                    match rolled {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(ended) => ended,
            };
            let mut gate = self.gate.lock();
            // A volume out of service has given its promises back already.
            if gate.ended.is_none() {
                self.discount(&mut gate.room, cost);
            }
            return Err(problem);
        }
    }

    /// Waits for a head of the log that takes so many bytes, as long as the volume is in service:
    /// once it is not, its own changes may be what fills the log.
    async fn roll(&self, bytes: usize) -> Result<(), Error> {
        let log = self.inner.log.clone();
        // A task of its own, which goes on when the caller drops the future: a head is not left
        // half made.
        let rolled = self.inner.env.run("staging-roll", async move { log.roll(bytes).await });
        match self.while_in_service(rolled).await {
            Some(rolled) => rolled.map_err(|error| self.log_failed(error)),
            None => Err(self.out_of_service()),
        }
    }

    /// Awaits `wait`; `None` when the volume goes out of service before.
    pub(crate) async fn while_in_service<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        match select(pin!(wait), pin!(self.closing.wait())).await {
            Either::Left((given, _)) => Some(given),
            Either::Right(_) => None,
        }
    }

    pub(crate) fn out_of_service(&self) -> Error {
        let ended = self.gate.lock().in_service().err();
        ended.unwrap_or_else(|| Error::Closed(self.name.clone()))
    }

    /// Waits for room on flash, first come first served, and counts the admitted cost. Returns
    /// whether the write had to wait.
    async fn admit(self: &Arc<Self>, cost: u64) -> Result<bool, Error> {
        let told = {
            let mut gate = self.gate.lock();
            gate.in_service()?;
            if self.may_enter(&gate, cost) {
                self.count(&mut gate.room, cost);
                return Ok(false);
            }
            self.inner.stalled.fetch_add(1, Ordering::Relaxed);
            gate.room.wait(cost)
        };
        tracing::debug!(volume = %self.name, "a write waits: the volume's share of flash is full");
        self.inner.destager.wake();
        match told.await {
            Ok(()) => Ok(true),
            Err(_) => Err(self.out_of_service()),
        }
    }

    /// Admits the waiting writes for which there is room now.
    pub(crate) fn admit_waiting(&self) {
        let mut gate = self.gate.lock();
        while let Some(cost) = gate.room.next_cost().filter(|cost| self.has_room(&gate, *cost)) {
            self.inner.stalled.fetch_sub(1, Ordering::Relaxed);
            self.count(&mut gate.room, cost);
            if !gate.room.admit() {
                self.discount(&mut gate.room, cost);
            }
        }
    }

    /// Takes a write of the policies `through` and `uncached`: it is kept in RAM, destaged at once,
    /// and acknowledged when the datastore has it.
    pub(crate) fn submit_to_store(self: &Arc<Self>, submission: Submission<'_>) -> Written {
        // A change without payload takes RAM too: for its entry.
        let cost = u32::try_from(submission.cost()).unwrap_or(u32::MAX);
        let cost = cost.min(self.inner.memory_permits);
        let permit = self.inner.memory.clone().try_acquire_many_owned(cost);
        let mut permit = permit.ok();
        if permit.is_some() {
            let payload = joined_payload(submission.requests);
            match self.keep(submission.requests, &payload, &mut permit) {
                Ok(Some(told)) => return Written::Pending(Box::pin(told)),
                Ok(None) => drop(permit),
                Err(error) => return failed(error),
            }
        }
        let owned = Owned::of(submission);
        let volume = self.clone();
        Written::Pending(Box::pin(async move {
            let worker = volume.clone();
            let work = async move {
                worker.memory_waiting.fetch_add(1, Ordering::Relaxed);
                let room = worker.inner.memory.clone().acquire_many_owned(cost);
                let permit = worker.while_in_service(room).await;
                worker.memory_waiting.fetch_sub(1, Ordering::Relaxed);
                let mut permit = permit.and_then(Result::ok);
                if permit.is_none() {
                    return Err(worker.out_of_service());
                }
                loop {
                    worker.unpaused(Paused::Changes).await?;
                    let kept = worker.keep(&owned.requests(), &owned.payload, &mut permit)?;
                    if let Some(told) = kept {
                        return Ok(told);
                    }
                }
            };
            volume.inner.env.run("staging-admission", work).await?.await
        }))
    }

    /// Takes a change, or a group, that only RAM holds; `payload` has the bytes of all, one after
    /// the other. The future returned ends when the datastore has them. Takes neither the change
    /// nor the permit, and returns `None`, while a hand-over makes changes wait.
    fn keep(
        self: &Arc<Self>,
        requests: &[Request<'_>],
        payload: &Bytes,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Option<impl Future<Output = Result<(), Error>> + Send + use<>>, Error> {
        let now = self.inner.env.now();
        let (told, wakeup) = {
            let mut gate = self.gate.lock();
            gate.in_service()?;
            gate.destaging.loses_nothing()?;
            if gate.paused >= Paused::Changes {
                return Ok(None);
            }
            let mut start = 0;
            let changes = requests.iter().enumerate().map(|(index, one)| {
                let end = start + one.payload.len();
                // A group leaves the queue as a whole, and gives the RAM back with its first
                // change.
                let kept = KeptPayload { bytes: payload.slice(start..end), _permit: permit.take() };
                let payload = Payload::Memory(Arc::new(kept));
                let change = Change::kept(one.position, one.span, payload, now);
                start = end;
                change.of(one.change).joined(index + 1 < requests.len())
            });
            gate.changes.take_all(changes, requests.iter().map(|one| one.payload));
            (gate.await_all(), self.note(&mut gate))
        };
        self.wake_up(wakeup);
        let name = self.name.clone();
        Ok(Some(async move {
            match told {
                Some(told) => told.await.unwrap_or(Err(Error::Closed(name))),
                None => Ok(()),
            }
        }))
    }
}
