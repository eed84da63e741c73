//! One volume in service: how its writes are acknowledged.

use crate::ack::paused::Paused;
use crate::ack::policy::{MissingCopy, Mode, Verdict};
use crate::queue::Change;
use crate::shape::Home;
use crate::state::VolumeState;
use crate::state::destaging::Wakeup;
use crate::state::waiters::{Told, Waiter};
use crate::{Beginning, Error, Inner, Ticket, Vault, Written, limits};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use rekindle_base::Serial;
use rekindle_datastore::record::Held;
use rekindle_env::{Moment, Switch};
use rekindle_log::{Append, Media, Position, Progress, Refused};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// One volume in service.
pub struct Staged {
    pub(crate) inner: Arc<Inner>,
    pub(crate) home: Home,
    pub(crate) id: rekindle_base::VolumeId,
    pub(crate) name: String,
    pub(crate) generation: rekindle_base::Generation,
    pub(crate) mode: Mode,
    pub(crate) on_missing_copy: MissingCopy,
    /// Whether a read needs the node's lease.
    pub(crate) needs_lease: bool,
    pub(crate) gate: Mutex<VolumeState>,
    /// Turned on once all unfinished changes are listed, or never will be. Read only while a change
    /// is not listed.
    pub(crate) listed: Switch,
    /// Writes that wait for a new head of the log.
    pub(crate) rolling: AtomicU64,
    /// Writes that wait for RAM.
    pub(crate) memory_waiting: AtomicU64,
    /// Turned on when the volume goes out of service: writes stop waiting for room, and the batch
    /// in hand gets a short time to end.
    pub(crate) closing: Switch,
    /// Whether the volume is about to be handed over, or was.
    pub(crate) leaving: AtomicBool,
    /// Rung when a hand-over has ended.
    pub(crate) resumed: Notify,
    /// Whether a batch of the volume is in hand.
    pub(crate) busy: watch::Sender<bool>,
    /// Bytes that were unfinished when the volume was closed.
    pub(crate) kept_bytes: AtomicU64,
    /// Whether the salvaging task was told of damage since the last salvage.
    pub(crate) damage_reported: AtomicBool,
}

/// A change that a caller submits.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) change: rekindle_log::Change,
    pub(crate) position: u64,
    pub(crate) span: u64,
    pub(crate) payload: &'a [u8],
}

/// One change, or a group of changes, that a caller submits: it is taken as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Submission<'a> {
    pub(crate) requests: &'a [Request<'a>],
    /// Must reach flash (or the datastore) whatever the volume's ack.
    pub(crate) durable: bool,
}

impl Submission<'_> {
    /// Bytes of the budgets that the changes take.
    pub(crate) fn cost(&self) -> u64 {
        self.requests.iter().map(|one| limits::ENTRY_BYTES + one.payload.len() as u64).sum()
    }

    /// Whether the change at `index` is joined: the group goes on behind it.
    pub(crate) fn is_joined(&self, index: usize) -> bool {
        index + 1 < self.requests.len()
    }

    /// Returns an error when there are more changes, or more bytes, than the log takes at once.
    fn check(&self) -> Result<(), Error> {
        let grain = u64::from(rekindle_log::limits::GRAIN_BYTES);
        let bytes = |one: &Request<'_>| {
            (one.payload.len() as u64).next_multiple_of(grain) + 2 * limits::ENTRY_BYTES
        };
        let (count, bytes) = (self.requests.len(), self.requests.iter().map(bytes).sum::<u64>());
        let (count_max, bytes_max) =
            (rekindle_log::limits::GROUP_ENTRIES_MAX, rekindle_log::limits::APPEND_BYTES_MAX);
        if count <= count_max && bytes <= bytes_max {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a group has at most {count_max} changes and {bytes_max} bytes, not {count} and {bytes}"
        )))
    }
}

/// A change, or a group, that the log took: the conditions of its acknowledgement.
pub(crate) struct Taken {
    /// The wait before the reply, flow control apart.
    pub(crate) verdict: Verdict,
    /// Time for which flow control holds the acknowledgement back.
    pub(crate) delay: Duration,
    /// The signal to the destager.
    pub(crate) wakeup: Wakeup,
}

impl Staged {
    pub(crate) fn new(inner: Arc<Inner>, home: Home, gate: VolumeState, mode: Mode) -> Arc<Self> {
        let vault = gate.vault();
        Arc::new(Self {
            id: vault.id,
            name: vault.name.clone(),
            generation: vault.generation,
            on_missing_copy: vault.on_missing_copy,
            needs_lease: !vault.is_bound_to_its_machine(),
            inner,
            home,
            mode,
            gate: Mutex::new(gate),
            listed: Switch::default(),
            rolling: AtomicU64::new(0),
            memory_waiting: AtomicU64::new(0),
            closing: Switch::default(),
            leaving: AtomicBool::new(false),
            resumed: Notify::new(),
            busy: watch::Sender::new(false),
            kept_bytes: AtomicU64::new(0),
            damage_reported: AtomicBool::new(false),
        })
    }

    /// The vault as of the last commit.
    #[must_use]
    pub fn vault(&self) -> Vault {
        self.gate.lock().vault().clone()
    }

    /// The beginning of the span of service over which nothing is lost that was acknowledged.
    #[must_use]
    pub fn beginning(&self) -> Beginning {
        self.inner.beginning(&self.vault())
    }

    /// The vault as of the last commit, for the next conditional write.
    #[must_use]
    pub fn held(&self) -> Held<Vault> {
        self.gate.lock().basis.held.clone()
    }

    /// Takes over a vault that was rewritten with other settings (a pin): the next commit goes on
    /// from there. Does nothing when a commit has come in between, since that commit has read the
    /// vault back.
    pub fn adopt_settings(&self, held: Held<Vault>) {
        self.gate.lock().basis.adopt_settings(held);
    }

    /// Whether the volume stays in service even when no client uses it.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.gate.lock().vault().pinned
    }

    /// Whether the volume has changes that the datastore lacks.
    #[must_use]
    pub fn owes(&self) -> bool {
        !self.gate.lock().changes.queue.is_empty()
    }

    /// Count of the copies on other nodes that the volume's writes ask for.
    #[must_use]
    pub fn copies(&self) -> u8 {
        self.mode.barrier().copies
    }

    /// Bytes of the changes that the datastore lacks.
    #[must_use]
    pub fn owed_bytes(&self) -> u64 {
        self.gate.lock().changes.queue.bytes()
    }

    /// Bytes of unfinished changes that the volume left in the log when it was closed; 0 before.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Whether a batch of the volume is in hand.
    #[must_use]
    pub fn is_in_hand(&self) -> bool {
        *self.busy.borrow()
    }

    /// Submits one change or a group. A group is acknowledged with its last change.
    pub(crate) fn submit(self: &Arc<Self>, submission: Submission<'_>) -> Written {
        if let Err(error) = submission.check() {
            return failed(error);
        }
        if matches!(self.mode, Mode::Store { .. }) {
            return self.submit_to_store(submission);
        }
        let now = self.inner.env.now();
        let taken = {
            let mut gate = self.gate.lock();
            if let Err(ended) = gate.in_service() {
                return failed(ended);
            }
            if self.may_enter(&gate, submission.cost()) {
                self.append(&mut gate, &submission, now, false)
            } else {
                Ok(None)
            }
        };
        match taken {
            Ok(Some(taken)) => {
                self.wake_up(taken.wakeup);
                self.acknowledge(taken, now)
            }
            Ok(None) => self.submit_later(submission, now),
            Err(error) => failed(error),
        }
    }

    /// Acknowledges a change that the log took: at once, by a ticket, or by a future.
    fn acknowledge(self: &Arc<Self>, taken: Taken, submitted: Moment) -> Written {
        match taken.verdict {
            Verdict::Acked if taken.delay.is_zero() && self.may_answer() => Written::Acked,
            Verdict::Wait(end) if taken.delay.is_zero() => Written::NeedsSync(Ticket(end)),
            _ => {
                let volume = self.clone();
                Written::Pending(Box::pin(async move { volume.settle(taken, submitted).await }))
            }
        }
    }

    /// Whether what this machine alone has may be acknowledged now. What copies have, they vouch
    /// for.
    fn may_answer(&self) -> bool {
        self.needs_lease || self.inner.may_go_on(false)
    }

    /// Waits for that.
    async fn answers(&self) -> Result<(), Error> {
        if self.may_answer() {
            return Ok(());
        }
        let waited = self.while_in_service(self.inner.goes_on(false)).await;
        waited.ok_or_else(|| self.out_of_service())
    }

    /// Waits until a change that the log took may be acknowledged.
    pub(crate) async fn settle(&self, taken: Taken, submitted: Moment) -> Result<(), Error> {
        if let Verdict::Wait(end) = taken.verdict {
            self.sync(Ticket(end)).await?;
        }
        self.answers().await?;
        let rest = taken.delay.saturating_sub(self.inner.env.now().since(submitted));
        if !rest.is_zero() {
            self.inner.env.sleep(rest).await;
            self.may_acknowledge(&self.gate.lock())?;
        }
        Ok(())
    }

    /// Appends to the log and takes the changes into the queue: serial order is append order. A
    /// group has one end in the log, so all of it becomes visible at once. Returns `None` when the
    /// head of the log is full. `promised`: the bytes were counted when the write was admitted.
    pub(crate) fn append(
        &self,
        gate: &mut VolumeState,
        submission: &Submission<'_>,
        now: Moment,
        promised: bool,
    ) -> Result<Option<Taken>, Error> {
        let first = gate.changes.queue.last().next();
        // Flash as it was before: a change never finds itself covered here. So one that has to
        // reach flash always passes through `sync`, which asks the fence.
        let before = self.inner.log.progress();
        let appended = match submission.requests {
            [_] => self.inner.log.append(&[self.entry(first, submission, 0)]),
            group => {
                let entry = |index| self.entry(first, submission, index);
                let group: Vec<_> = (0..group.len()).map(entry).collect();
                self.inner.log.append(&group)
            }
        };
        let (end, places) = match appended {
            Ok(appended) => appended,
            Err(Refused::HeadFull) => return Ok(None),
            Err(Refused::Malformed(why)) => return Err(Error::Invalid(why.to_owned())),
        };
        let places = submission.requests.iter().zip(places).enumerate();
        let changes = places.map(|(index, (one, place))| {
            let place = Some(place).filter(|_| !one.payload.is_empty());
            let change = Change::logged(one.position, one.span, place, end, now);
            change.of(one.change).joined(submission.is_joined(index))
        });
        gate.changes.take_all(changes, submission.requests.iter().map(|one| one.payload));
        let progress = Progress { appended: end, ..before };
        gate.changes.apply(self.mode.shows(&progress));
        if !promised {
            self.count(&mut gate.room, submission.cost());
        }
        Ok(Some(Taken {
            verdict: self.mode.verdict(submission.durable, end, &progress),
            delay: self.load(gate).delay(self.inner.latency()),
            wakeup: self.note(gate),
        }))
    }

    /// The log's entry of one change; `first` is the serial of the first.
    fn entry<'a>(&self, first: Serial, submission: &Submission<'a>, index: usize) -> Append<'a> {
        let Request { change, position, span, payload } = submission.requests[index];
        Append {
            volume: self.id,
            generation: self.generation,
            serial: Serial(first.0 + index as u64),
            change,
            joined: submission.is_joined(index),
            position,
            span,
            payload,
        }
    }

    /// Returns the error with which the volume went out of service, if it did.
    pub fn serves(&self) -> Result<(), Error> {
        self.gate.lock().in_service()
    }

    /// Returns the error by which a read must not be answered now, if there is one. A kind that
    /// reads its home itself asks after a read, since another node may have the volume by then.
    pub fn check_read(&self) -> Result<(), Error> {
        let gate = self.gate.lock();
        gate.in_service()?;
        if gate.paused == Paused::All {
            return Err(Error::Moved(self.name.clone()));
        }
        if self.may_read() { Ok(()) } else { Err(Error::Unleased(self.name.clone())) }
    }

    /// Makes staged changes up to `ticket` durable and visible. The calling task may become the
    /// flush leader, and write to flash.
    pub async fn sync(&self, ticket: Ticket) -> Result<(), Error> {
        self.sync_as(ticket, self.on_missing_copy).await
    }

    /// The same, with what is done while there are fewer copies than the volume asks for.
    pub(crate) async fn sync_as(&self, ticket: Ticket, missing: MissingCopy) -> Result<(), Error> {
        let media = self.mode.barrier();
        let reached = match self.inner.log.progress().covers(media, ticket.0) {
            true => Ok(()),
            false => self.reach(media, ticket.0, missing).await,
        };
        self.answers().await?;
        let mut gate = self.gate.lock();
        // A volume that was closed meanwhile keeps its changes in the log. A fenced volume must not
        // acknowledge.
        self.may_acknowledge(&gate)?;
        gate.changes.apply(self.mode.shows(&self.inner.log.progress()));
        // Last: a fenced node closes its log, and the fence is the reason that counts.
        reached
    }

    /// The error of a request that the log has failed. A client of a volume with copies gets no
    /// error: it is hung up on, and finds the volume where it goes on.
    pub(crate) fn log_failed(&self, error: rekindle_log::Error) -> Error {
        match self.copies() > 0 && self.inner.log.failure().is_some() {
            true => Error::FlashFailed(self.name.clone(), error),
            false => Error::Log(error),
        }
    }

    /// Waits until the media have everything before `end`. While there are fewer copies than the
    /// volume asks for, the datastore may have it instead: that outlives this host, too.
    async fn reach(&self, media: Media, end: Position, missing: MissingCopy) -> Result<(), Error> {
        let log = &self.inner.log;
        let reached = log.reach(media, end);
        if media.copies == 0 {
            return reached.await.map_err(|error| self.log_failed(error));
        }
        if missing == MissingCopy::Stall {
            // The end of the service is no failure: a hand-over brings all into the datastore.
            let reached = self.while_in_service(reached).await;
            return reached.unwrap_or(Ok(())).map_err(|error| self.log_failed(error));
        }
        let stored = async {
            log.until_fewer(media.copies).await?;
            self.reach_store().await
        };
        match select(pin!(reached), pin!(stored)).await {
            Either::Left((reached, _)) => reached.map_err(|error| self.log_failed(error)),
            Either::Right((stored, _)) => stored,
        }
    }

    /// Waits until the datastore has everything submitted so far. It is visible before: all that
    /// may be found after a loss of this host has it.
    async fn reach_store(&self) -> Result<(), Error> {
        let end = self.gate.lock().changes.end;
        self.inner.log.reach_all(end).await.map_err(|error| self.log_failed(error))?;
        let told = {
            let mut gate = self.gate.lock();
            gate.changes.apply(self.mode.shows(&self.inner.log.progress()));
            self.await_store(&mut gate)?
        };
        self.inner.destager.wake();
        self.until_notified(told).await
    }

    /// Makes every change acknowledged so far durable, on flash or in the datastore.
    pub async fn flush(&self) -> Result<(), Error> {
        let (end, told) = {
            let mut gate = self.gate.lock();
            gate.in_service()?;
            let told = match self.mode {
                Mode::Store { .. } => self.await_store(&mut gate)?,
                Mode::Log { .. } => None,
            };
            (gate.changes.end, told)
        };
        self.sync(Ticket(end)).await?;
        self.until_notified(told).await
    }

    /// Destages everything written before the call; returns the checkpoint reached.
    pub async fn drain(&self) -> Result<Serial, Error> {
        let end = {
            let gate = self.gate.lock();
            gate.in_service()?;
            gate.changes.end
        };
        // What the datastore has needs no copies.
        if let Err(error) = self.sync_as(Ticket(end), MissingCopy::StepDown).await {
            // When flash fails, the datastore can still get the visible changes.
            tracing::warn!(volume = %self.name, %error, "draining without the log's commit");
        }
        let told = {
            let mut gate = self.gate.lock();
            let told = self.await_store(&mut gate)?;
            gate.waiters.drain_to = gate.changes.queue.last();
            told
        };
        self.inner.destager.wake();
        self.until_notified(told).await?;
        self.release_previous();
        Ok(self.gate.lock().checkpoint())
    }

    fn await_store(&self, gate: &mut VolumeState) -> Result<Option<Told>, Error> {
        gate.in_service()?;
        gate.destaging.loses_nothing()?;
        Ok(gate.await_all())
    }

    async fn until_notified(&self, told: Option<Told>) -> Result<(), Error> {
        match told {
            Some(told) => told.await.unwrap_or_else(|_| Err(Error::Closed(self.name.clone()))),
            None => Ok(()),
        }
    }

    /// Takes the volume out of service: later calls fail, and unfinished changes stay in the log. A
    /// volume that had to stop before leaves staging by this call, too.
    pub async fn close(&self) -> Result<(), Error> {
        self.end_with(Error::Closed(self.name.clone()));
        self.inner.destager.wake();
        let mut busy = self.busy.subscribe();
        // The sender lives as long as `self`.
        let _ = busy.wait_for(|busy| !busy).await;
        let end = self.gate.lock().changes.end;
        let committed = if self.inner.log.committed() < end {
            self.inner.log.commit(end).await
        } else {
            Ok(())
        };
        self.inner.park(self);
        committed.map_err(Error::Log)
    }

    /// Takes the volume out of service and notifies the waiting tasks. Returns `false` when the
    /// volume was out of service already.
    pub(crate) fn end_with(&self, error: Error) -> bool {
        let waiters = {
            let mut gate = self.gate.lock();
            if gate.ended.is_some() {
                return false;
            }
            gate.ended = Some(error.clone());
            self.give_up(&mut gate)
        };
        self.closing.turn_on();
        self.release_previous();
        notify(waiters, &Err(error));
        true
    }

    /// Ends all waits for the datastore and for room, because staging has stopped. The log goes on
    /// taking writes.
    pub(crate) fn abandon(&self) {
        let waiters = self.give_up(&mut self.gate.lock());
        self.release_previous();
        notify(waiters, &Err(Error::Closed(self.name.clone())));
    }

    /// Ends the waits for room. Returns the callers that wait for the datastore.
    fn give_up(&self, gate: &mut VolumeState) -> Vec<Waiter> {
        self.inner.stalled.fetch_sub(gate.room.turn_away(), Ordering::Relaxed);
        gate.waiters.give_up()
    }
}

/// Sends the outcome to all waiting callers. Some may have gone away since.
pub(crate) fn notify(waiters: Vec<Waiter>, outcome: &Result<(), Error>) {
    for waiter in waiters {
        let _ = waiter.send(outcome.clone());
    }
}

pub(crate) fn failed(error: Error) -> Written {
    Written::Pending(Box::pin(std::future::ready(Err(error))))
}
