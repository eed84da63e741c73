//! Carries out commits and rollovers. The flush leader, the task that holds the lead, writes to the
//! disk on its own thread. The other tasks append meanwhile, then find their bytes covered.
//!
//! Every step may be given up in the middle (a future that is dropped): the next leader repeats the
//! step, and writes the same bytes to the same place.

use crate::format::{Lost, Named, SegmentHeader, Statistics, VERSION};
use crate::head::Head;
use crate::heads::{Heads, Prepared, Sealed, Step};
use crate::inner::Inner;
use crate::known_end;
use crate::limits::{
    CONFIRM_AFTER, FILES_AHEAD, FILES_RESERVED, FLUSH_AHEAD_BYTES, RESERVE_FILES, STATISTICS_MAX,
};
use crate::segment::{Segment, spare_slot};
use crate::segment_pool::SegmentPool;
use crate::{Error, Position};
use rekindle_base::{Incarnation, SegmentId};
use rekindle_env::File;
use rekindle_warm::{Label, Slot};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{MutexGuard, Notify};

/// The lead: the right to write what heads hold. Given up on drop, which notifies all waiting
/// tasks.
struct FlushLeader<'a> {
    held: Option<MutexGuard<'a, ()>>,
    leader_left: &'a Notify,
}

impl Drop for FlushLeader<'_> {
    fn drop(&mut self) {
        self.held = None;
        self.leader_left.notify_waiters();
    }
}

/// A file taken from the pool. An unused file goes back on drop.
pub(crate) struct FileLease {
    pool: Arc<SegmentPool>,
    file: Option<u32>,
}

impl FileLease {
    pub(crate) async fn take(
        pool: &Arc<SegmentPool>,
        patient: bool,
        leave: impl Fn() -> usize,
    ) -> Result<FileLease, Error> {
        let file = Some(pool.take_file(patient, leave).await?);
        Ok(FileLease { file, pool: Arc::clone(pool) })
    }

    fn into_file(mut self) -> u32 {
        self.file.take().expect("a lease is used once")
    }
}

impl Drop for FileLease {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.pool.give_back(file);
        }
    }
}

impl Inner {
    fn try_lead(&self) -> Option<FlushLeader<'_>> {
        let held = Some(self.leader.try_lock().ok()?);
        Some(FlushLeader { held, leader_left: &self.leader_left })
    }

    /// Waits for the lead, but not in the mutex's own queue. A waiter there could be dropped just
    /// after it was handed the lock, and the tasks that wait for `leader_left` would not be
    /// notified.
    async fn lead(&self) -> FlushLeader<'_> {
        loop {
            let mut leader_left = std::pin::pin!(self.leader_left.notified());
            leader_left.as_mut().enable();
            if let Some(leader) = self.try_lead() {
                return leader;
            }
            leader_left.await;
        }
    }

    /// Adds an empty batch to the last one, for the next commit to write. Without it, damage in a
    /// last batch looks as if its write had been torn.
    fn confirm(&self) {
        let mut heads = self.heads.lock();
        if heads.open.confirm() {
            self.appended.store(heads.open.position(), Ordering::Release);
        }
    }

    pub(crate) async fn commit(&self, position: Position) -> Result<(), Error> {
        let position = position.min(self.appended());
        loop {
            if self.durable() >= position {
                return Ok(());
            }
            self.check()?;
            if let Some(_leader) = self.try_lead() {
                self.step().await?;
                continue;
            }
            let mut leader_left = std::pin::pin!(self.leader_left.notified());
            leader_left.as_mut().enable();
            // The leader may have left between the first look and `enable`, unheard.
            if self.durable() >= position {
                return Ok(());
            }
            if let Some(_leader) = self.try_lead() {
                self.step().await?;
                continue;
            }
            leader_left.await;
        }
    }

    /// Makes one write of bytes that heads have and flash lacks; returns whether there was any. The
    /// caller holds the lead.
    async fn step(&self) -> Result<bool, Error> {
        // While this task waited for the lead, the log may have ended.
        self.check()?;
        let step = {
            let mut heads = self.heads.lock();
            let step = heads.step();
            // A certificate may have been added.
            self.appended.store(heads.open.position(), Ordering::Release);
            step
        };
        match step {
            Step::Nothing => return Ok(false),
            Step::Write(batch) => {
                // Copies are made beside the write to flash.
                self.copies.extend(batch.segment, batch.end);
                batch
                    .write(&self.pool)
                    .await
                    .map_err(|error| self.latch(self.pool.write_error(&error)))?;
                let durable = self.heads.lock().written(&batch);
                self.durable.store(durable, Ordering::Release);
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("rekindle_log_commits_total").increment(1);
            }
            Step::Seal(seal) => {
                seal.write(&self.pool)
                    .await
                    .map_err(|error| self.latch(self.pool.write_error(&error)))?;
                self.retire();
            }
        }
        Ok(true)
    }

    /// Finishes a rollover, once the head before the open one is sealed on flash.
    fn retire(&self) {
        let (Sealed { head, leaving, durable }, open) = {
            let mut heads = self.heads.lock();
            (heads.sealed(), heads.open.segment.id())
        };
        self.durable.store(durable, Ordering::Release);
        let mut table = self.table.lock();
        self.copies.seal(head.segment.id());
        self.copies.free(&leaving, open);
        let gone: Vec<_> = leaving.into_iter().map(|id| table.remove_dead(id)).collect();
        drop(table);
        // Outside the locks, since the last holder of a segment gives the segment's file back.
        drop((gone, head));
        self.make_ahead();
        self.space.notify_waiters();
        self.note_litter();
    }

    /// Lets the next head take over although the open one has room, if the log is littered: so the
    /// dead segments leave, and no restart looks into them.
    fn tidy(&self) {
        if !self.is_littered() {
            return;
        }
        let mut heads = self.heads.lock();
        if self.roll_over(&mut heads) {
            self.appended.store(heads.open.position(), Ordering::Release);
        }
    }

    /// Lets the next head take over, if it is ready and the budget allows another segment. Returns
    /// whether it has. A plain call: flash shows the rollover once the next batch is written.
    pub(crate) fn roll_over(&self, heads: &mut Heads) -> bool {
        if !heads.can_roll() {
            return false;
        }
        let mut table = self.table.lock();
        if table.live() >= self.segments_max {
            return false;
        }
        let statistics = table.statistics(&heads.open.volumes, STATISTICS_MAX);
        let old = heads.roll(&statistics);
        let highest = old.volumes.iter().map(|(&volume, &serial)| (volume, serial));
        table.learn(old.segment.id(), highest, false);
        let segment = &heads.open.segment;
        self.copies.track(segment, heads.open.base, heads.open.durable());
        table.insert(segment.id(), segment.named(), Some(Arc::clone(segment)), false);
        drop(table);
        self.much_uncommitted.notify_one();
        metrics::counter!("rekindle_log_segments_opened_total").increment(1);
        true
    }

    pub(crate) async fn roll(&self, bytes: usize) -> Result<(), Error> {
        assert!(
            bytes <= self.pool.capacity as usize / 2,
            "{bytes} bytes are more than one append may have"
        );
        loop {
            let mut space = std::pin::pin!(self.space.notified());
            space.as_mut().enable();
            self.check()?;
            if self.held.load(Ordering::Acquire) {
                self.wanted.notify_one();
                space.await;
                continue;
            }
            if self.takes(bytes) {
                return Ok(());
            }
            let (live, unread) = {
                let table = self.table.lock();
                (table.live(), table.unread())
            };
            // An attach may have read segments since the start, and so have brought the log within
            // its budget.
            self.note_live(live);
            if live >= self.segments_max && unread > 0 {
                // A release frees an unread segment only when the content of the segment is known.
                self.read_recovered().await?;
                let live = self.table.lock().live();
                self.note_live(live);
                continue;
            }
            if live >= self.segments_max {
                space.await;
                continue;
            }
            if self.heads.lock().closing {
                // The closing task has the lead. When it gives the lead up, the log is closed or
                // goes on.
                drop(self.lead().await);
                continue;
            }
            // One task at a time: the others will find room in the new head.
            let mut next_id = self.next_id.lock().await;
            if self.takes(bytes) {
                return Ok(());
            }
            while self.heads.lock().is_sealing() {
                let _leader = self.lead().await;
                self.step().await?;
            }
            self.open_next(&mut next_id, true).await?;
        }
    }

    /// Whether an append of `bytes` would find room, as far as that can be told without its
    /// entries.
    fn takes(&self, bytes: usize) -> bool {
        let heads = self.heads.lock();
        let rolls = || heads.can_roll() && self.table.lock().live() < self.segments_max;
        !self.over_budget.load(Ordering::Acquire) && (heads.open.takes(bytes) || rolls())
    }

    /// Opens the next head, if there is none. Commits go on meanwhile: making a file may take long.
    async fn open_next(&self, next_id: &mut SegmentId, patient: bool) -> Result<(), Error> {
        if !self.heads.lock().lacks_next() {
            return Ok(());
        }
        let file = FileLease::take(&self.pool, patient, || self.files_to_leave()).await?;
        let slot = self.take_slot().await?;
        let edition = self.heads.lock().edition();
        let (named, leaving) = self.table.lock().next_digest();
        let plan = Plan {
            id: *next_id,
            incarnation: self.incarnation,
            class: self.copies.class(),
            named,
            statistics: None,
        };
        *next_id = next_id.next();
        let head = open_head(&self.pool, plan, slot, file).await;
        let head = head.map_err(|error| self.latch(error))?;
        let unwanted = self.heads.lock().put_ahead(Prepared { head, leaving, edition });
        drop(unwanted);
        Ok(())
    }

    /// Count of the free files that the next head must leave. On a full disk there will be no
    /// others, so the last ones are for heads that give some back. Dead segments leave with the
    /// next head; an open head without needed changes leaves with the head after that.
    fn files_to_leave(&self) -> usize {
        let head_is_needed = !self.heads.lock().open.volumes.is_empty();
        if self.table.lock().dead() > 0 {
            0
        } else if head_is_needed {
            FILES_RESERVED
        } else {
            FILES_RESERVED - 1
        }
    }

    /// Makes the next segment files before they are needed.
    pub(crate) fn make_ahead(&self) {
        let files_max = self.segments_max as u64 + RESERVE_FILES;
        self.pool
            .make_files(FILES_AHEAD + FILES_RESERVED, u32::try_from(files_max).unwrap_or(u32::MAX));
    }

    /// Takes an empty slot. When there is none, a segment gives up its own ([`spare_slot`]).
    async fn take_slot(&self) -> Result<Slot, Error> {
        loop {
            // The segments of a log that has ended keep their slots.
            self.check()?;
            match self.pool.arena.free_slot().or_else(|| spare_slot(&self.table.lock())) {
                Some(slot) => return Ok(slot),
                // A reader holds the bytes for a moment.
                None => self.pool.env.sleep(Duration::from_millis(1)).await,
            }
        }
    }

    pub(crate) async fn close(&self) -> Result<(), Error> {
        let _leader = self.lead().await;
        match self.check() {
            Err(Error::Closed) => return Ok(()),
            other => other?,
        }
        let closing = Closing::begin(self);
        while self.step().await? {}
        let seal = self.heads.lock().open.seal(None);
        seal.write(&self.pool).await.map_err(|error| self.latch(self.pool.write_error(&error)))?;
        self.heads.lock().open.segment.set_on_flash();
        self.latch(Error::Closed);
        drop(closing);
        self.folder_lock.lock().take();
        self.unasked.lock().drain(..).for_each(|task| task.abort());
        self.copies.end();
        Ok(())
    }
}

/// A close in progress: no append fits, and no head takes over. A close that is given up leaves a
/// log that goes on.
struct Closing<'a>(&'a Inner);

impl<'a> Closing<'a> {
    fn begin(inner: &'a Inner) -> Closing<'a> {
        let mut heads = inner.heads.lock();
        heads.closing = true;
        heads.open.stop();
        let unwanted = heads.outdate();
        drop(heads);
        drop(unwanted);
        Closing(inner)
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.heads.lock().closing = false;
    }
}

/// The plan of a new head: the contents of its opening.
pub(crate) struct Plan {
    pub(crate) id: SegmentId,
    pub(crate) incarnation: Incarnation,
    /// Count of the replicas.
    pub(crate) class: u32,
    /// The other segments of the log.
    pub(crate) named: Vec<Named>,
    /// The volumes with changes in these segments; `None` when that is known only once the head
    /// takes over.
    pub(crate) statistics: Option<Statistics>,
}

/// Opens a head, which is durable when this returns.
pub(crate) async fn open_head(
    pool: &Arc<SegmentPool>,
    plan: Plan,
    slot: Slot,
    file: FileLease,
) -> Result<Head, Error> {
    let header = SegmentHeader {
        version: VERSION,
        sector: pool.sector,
        class: plan.class,
        node: pool.node,
        segment: plan.id,
        epoch: 1,
        incarnation: plan.incarnation,
        birth: pool.env.random_u64(),
        capacity: pool.capacity,
    };
    let number = file.file.expect("a lease holds a file");
    let handle = pool.open_to_write(number).await?;
    complete(pool, &*handle).await?;
    let writer = slot.begin(Label { segment: plan.id, epoch: header.epoch, file: number });
    let number = file.into_file();
    let segment = Arc::new(Segment::new(pool, header, Some(number), Some(writer.memory()), true));
    let mut digest = plan.named;
    let who = segment.named().1;
    digest.push(Named { segment: plan.id, file: number, lost: Lost::Nothing, who });
    let mut head = Head::begin(segment, handle, writer, &digest);
    if let Some(statistics) = &plan.statistics {
        head.push_statistics(statistics);
    }
    flush(pool, &mut head).await?;
    Ok(head)
}

/// Lengthens a file whose making was interrupted.
async fn complete(pool: &SegmentPool, file: &dyn File) -> Result<(), Error> {
    let flash = |error: std::io::Error| pool.flash_error("making a segment file", &error);
    let completed = async || {
        let is_whole = file.length().await? >= u64::from(pool.capacity);
        if is_whole { Ok(()) } else { file.preallocate(u64::from(pool.capacity)).await }
    };
    while let Err(error) = completed().await {
        pool.ride_out(error).await.map_err(flash)?;
    }
    Ok(())
}

/// Writes the bytes that `head` has and flash lacks.
async fn flush(pool: &SegmentPool, head: &mut Head) -> Result<(), Error> {
    while let Some(batch) = head.close_batch() {
        batch.write(pool).await.map_err(|error| pool.write_error(&error))?;
        head.set_durable(batch.end);
    }
    Ok(())
}

/// Commits and seals a head of an earlier life.
pub(crate) async fn finish(
    pool: &SegmentPool,
    mut old: Head,
    successor: SegmentId,
) -> Result<(), Error> {
    old.stop();
    flush(pool, &mut old).await?;
    old.seal(Some(successor)).write(pool).await.map_err(|error| pool.write_error(&error))?;
    old.segment.set_on_flash();
    Ok(())
}

/// Commits without a request: now and then, and whenever many bytes are uncommitted, so that memory
/// does not run far ahead of flash. Records how far flash is.
pub(crate) async fn flush_unasked(inner: Weak<Inner>, interval: Duration) {
    let parts = |inner: Arc<Inner>| (inner.pool.env.clone(), Arc::clone(&inner.much_uncommitted));
    let Some((env, much)) = inner.upgrade().map(parts) else { return };
    let mut last = (Position(0), env.now());
    let mut known_end = known_end::Writer::default();
    loop {
        let _ = env.timeout(interval, much.notified()).await;
        loop {
            let Some(inner) = inner.upgrade() else { return };
            if inner.commit(Position(u64::MAX)).await.is_err() {
                return;
            }
            // Appends during the commit have rung no bell if many bytes were uncommitted already.
            if inner.uncommitted_bytes() < FLUSH_AHEAD_BYTES {
                break;
            }
        }
        let Some(inner) = inner.upgrade() else { return };
        match (inner.appended(), env.now()) {
            (at, now) if at != last.0 => last = (at, now),
            (_, now) if now.since(last.1) >= CONFIRM_AFTER => inner.confirm(),
            _ => {}
        }
        known_end.keep_up(&inner).await;
    }
}

/// Opens the next head when the present one is half full, or the log is littered.
pub(crate) async fn open_unasked(inner: Weak<Inner>) {
    let Some(wanted) = inner.upgrade().map(|inner| Arc::clone(&inner.next_wanted)) else { return };
    loop {
        wanted.notified().await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.check().is_err() {
            return;
        }
        if inner.table.lock().live() >= inner.segments_max {
            // An append that finds the head full will wait for room, and then open the next head
            // itself.
            continue;
        }
        let mut next_id = inner.next_id.lock().await;
        if let Err(error) = inner.open_next(&mut next_id, false).await {
            tracing::debug!(%error, "the next head was not opened ahead of need");
            inner.heads.lock().ask_again();
        }
        inner.tidy();
    }
}
