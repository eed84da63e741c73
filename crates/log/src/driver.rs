//! Carries out commits and rollovers. Whoever holds the baton drives the disk, on its own thread; the others append
//! meanwhile, then find their bytes covered.
//!
//! Every step may be given up in the middle (a future that is dropped): the next holder of the baton repeats it, and
//! writes the same bytes to the same place.

use crate::depot::Depot;
use crate::format::{Lost, Named, SegmentHeader, Statistics, VERSION};
use crate::head::Head;
use crate::heads::{Heads, Prepared, Sealed, Step};
use crate::inner::Inner;
use crate::limits::{
    FILES_AHEAD, FILES_RESERVED, FLUSH_AHEAD_BYTES, RESERVE_FILES, STATISTICS_MAX,
};
use crate::machine::table::Needed;
use crate::segment::Segment;
use crate::{Error, Position};
use base::{Incarnation, SegmentId};
use env::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{MutexGuard, Notify};
use warm::{Label, Slot};

/// The right to drive. Put down on drop, and everybody who waits is told.
struct Baton<'a> {
    held: Option<MutexGuard<'a, ()>>,
    put_down: &'a Notify,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        self.held = None;
        self.put_down.notify_waiters();
    }
}

/// A file taken from the depot; goes back unless it is used.
pub(crate) struct FileLease {
    depot: Arc<Depot>,
    file: Option<u32>,
}

impl FileLease {
    pub(crate) async fn take(
        depot: &Arc<Depot>,
        patient: bool,
        leave: impl Fn() -> usize,
    ) -> Result<FileLease, Error> {
        let file = Some(depot.take_file(patient, leave).await?);
        Ok(FileLease { file, depot: Arc::clone(depot) })
    }

    fn into_file(mut self) -> u32 {
        self.file.take().expect("a lease is used once")
    }
}

impl Drop for FileLease {
    fn drop(&mut self) {
        self.depot.give_back(self.file.take(), None);
    }
}

impl Inner {
    fn try_baton(&self) -> Option<Baton<'_>> {
        let held = Some(self.baton.try_lock().ok()?);
        Some(Baton { held, put_down: &self.put_down })
    }

    /// Waits for the baton. Not in the mutex's own queue: were a waiter there dropped just after it was handed the
    /// lock, nobody would tell those who wait for `put_down`.
    async fn baton(&self) -> Baton<'_> {
        loop {
            let mut put_down = std::pin::pin!(self.put_down.notified());
            put_down.as_mut().enable();
            if let Some(baton) = self.try_baton() {
                return baton;
            }
            put_down.await;
        }
    }

    pub(crate) async fn commit(&self, position: Position) -> Result<(), Error> {
        let position = position.min(self.appended());
        loop {
            if self.durable() >= position {
                return Ok(());
            }
            self.check()?;
            if let Some(_baton) = self.try_baton() {
                self.step().await?;
                continue;
            }
            let mut put_down = std::pin::pin!(self.put_down.notified());
            put_down.as_mut().enable();
            // Between the first look and this one the driver may have ended, unheard.
            if self.durable() >= position {
                return Ok(());
            }
            if let Some(_baton) = self.try_baton() {
                self.step().await?;
                continue;
            }
            put_down.await;
        }
    }

    /// Makes one write of what heads have and flash has not; says whether there was anything. The caller holds the
    /// baton.
    async fn step(&self) -> Result<bool, Error> {
        // Whoever waited for the baton may have been covered, or the log have ended, meanwhile.
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
                batch
                    .write(&self.depot)
                    .await
                    .map_err(|error| self.latch(self.depot.write_error(&error)))?;
                let durable = self.heads.lock().written(&batch);
                self.durable.store(durable, Ordering::Release);
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("rekindle_log_commits_total").increment(1);
            }
            Step::Seal(seal) => {
                seal.write(&self.depot)
                    .await
                    .map_err(|error| self.latch(self.depot.write_error(&error)))?;
                self.retire();
            }
        }
        Ok(true)
    }

    /// The head before the open one has been sealed.
    fn retire(&self) {
        let Sealed { head, leaving, durable } = self.heads.lock().sealed();
        self.durable.store(durable, Ordering::Release);
        let mut table = self.table.lock();
        let gone: Vec<_> = leaving.into_iter().map(|id| table.remove_dead(id)).collect();
        drop(table);
        // Outside the locks: the last holder of a segment gives its file back.
        drop((gone, head));
        self.make_ahead();
        self.space.notify_waiters();
        self.note_litter();
    }

    /// Lets the next head take over although the present one has room, if the log is littered: so the dead segments
    /// leave, and no restart looks into them.
    fn tidy(&self) {
        if !self.is_littered() {
            return;
        }
        let mut heads = self.heads.lock();
        if self.roll_over(&mut heads) {
            self.appended.store(heads.open.position(), Ordering::Release);
        }
    }

    /// Lets the next head take over, if it is there and the budget allows another segment. A plain call: flash sees of
    /// it when the next batch is written.
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
        table.insert(segment.id(), segment.named(), Some(Arc::clone(segment)), false);
        drop(table);
        self.much_uncommitted.notify_one();
        metrics::counter!("rekindle_log_segments_opened_total").increment(1);
        true
    }

    pub(crate) async fn roll(&self, bytes: usize) -> Result<(), Error> {
        assert!(
            bytes <= self.depot.capacity as usize / 2,
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
            // What an attach has read since the start may have brought the log within its budget.
            self.note_live(live);
            if live >= self.segments_max && unread > 0 {
                // What was released before may free segments, once it is known what is in them.
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
                // Whoever closes has the baton: then it is closed, or it goes on.
                drop(self.baton().await);
                continue;
            }
            // One at a time: the others will find room in the new head.
            let mut next_id = self.next_id.lock().await;
            if self.takes(bytes) {
                return Ok(());
            }
            while self.heads.lock().is_sealing() {
                let _baton = self.baton().await;
                self.step().await?;
            }
            self.open_next(&mut next_id, true).await?;
        }
    }

    /// Whether an append of so much would find room, as far as one can tell.
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
        let file = FileLease::take(&self.depot, patient, || self.files_to_leave()).await?;
        let slot = self.take_slot().await?;
        let edition = self.heads.lock().edition();
        let (named, leaving) = self.table.lock().next_digest();
        let plan = Plan { id: *next_id, incarnation: self.incarnation, named, statistics: None };
        *next_id = next_id.next();
        let head = open_head(&self.depot, plan, slot, file).await;
        let head = head.map_err(|error| self.latch(error))?;
        let unwanted = self.heads.lock().put_ahead(Prepared { head, leaving, edition });
        drop(unwanted);
        Ok(())
    }

    /// How many free files the next head may not take. On a full disk there will be no others, so the last ones are for
    /// heads that give some back: dead segments leave with the next head, one that nobody needs any more with the one after.
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
        self.depot
            .make_files(FILES_AHEAD + FILES_RESERVED, u32::try_from(files_max).unwrap_or(u32::MAX));
    }

    /// An empty slot; the oldest sealed segment gives its own when there is none.
    async fn take_slot(&self) -> Result<Slot, Error> {
        loop {
            // What the log held when it ended stays where it is.
            self.check()?;
            let found = self.depot.take_slot().or_else(|| {
                let table = self.table.lock();
                let mut all = table.segments();
                let sealed = all.find_map(|(_, segment)| segment.as_ref()?.give_up_memory());
                // One whose file is gone keeps its slot for as long as it is needed.
                let mut dead = table.rows().filter(|row| row.2 == Needed::By(0));
                sealed.or_else(|| dead.find_map(|(.., segment)| segment.as_ref()?.leave_memory()))
            });
            match found {
                Some(slot) => return Ok(slot),
                // Somebody holds the bytes for a moment.
                None => self.depot.env.sleep(Duration::from_millis(1)).await,
            }
        }
    }

    pub(crate) async fn close(&self) -> Result<(), Error> {
        let _baton = self.baton().await;
        match self.check() {
            Err(Error::Closed) => return Ok(()),
            other => other?,
        }
        let closing = Closing::begin(self);
        while self.step().await? {}
        let seal = self.heads.lock().open.seal(None);
        seal.write(&self.depot)
            .await
            .map_err(|error| self.latch(self.depot.write_error(&error)))?;
        self.heads.lock().open.segment.set_on_flash();
        self.latch(Error::Closed);
        drop(closing);
        self.folder_lock.lock().take();
        self.unasked.lock().drain(..).for_each(|task| task.abort());
        Ok(())
    }
}

/// While it lasts nothing is appended and no head takes over. A closing that is given up leaves a log that goes on.
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

/// What a new head shall say.
pub(crate) struct Plan {
    pub(crate) id: SegmentId,
    pub(crate) incarnation: Incarnation,
    /// The other segments of the log.
    pub(crate) named: Vec<Named>,
    /// Who has changes there; `None` when that will be known when it takes over.
    pub(crate) statistics: Option<Statistics>,
}

/// Opens a head: durable when this returns.
pub(crate) async fn open_head(
    depot: &Arc<Depot>,
    plan: Plan,
    slot: Slot,
    file: FileLease,
) -> Result<Head, Error> {
    let header = SegmentHeader {
        version: VERSION,
        sector: depot.sector,
        class: 0,
        node: depot.node,
        segment: plan.id,
        epoch: 1,
        incarnation: plan.incarnation,
        birth: depot.env.random_u64(),
        capacity: depot.capacity,
    };
    let number = file.file.expect("a lease holds a file");
    let handle = depot.open_to_write(number).await?;
    complete(depot, &*handle).await?;
    let writer = slot.begin(Label { segment: plan.id, epoch: header.epoch, file: number });
    let number = file.into_file();
    let segment = Arc::new(Segment::new(depot, header, Some(number), Some(writer.memory()), true));
    let mut digest = plan.named;
    let who = segment.named().1;
    digest.push(Named { segment: plan.id, file: number, lost: Lost::Nothing, who });
    let mut head = Head::begin(segment, handle, writer, &digest);
    if let Some(statistics) = &plan.statistics {
        head.push_statistics(statistics);
    }
    flush(depot, &mut head).await?;
    Ok(head)
}

/// Lengthens a file whose making was interrupted.
async fn complete(depot: &Depot, file: &dyn File) -> Result<(), Error> {
    let flash = |error: std::io::Error| depot.flash_error("making a segment file", &error);
    let completed = async || {
        let is_whole = file.length().await? >= u64::from(depot.capacity);
        if is_whole { Ok(()) } else { file.preallocate(u64::from(depot.capacity)).await }
    };
    while let Err(error) = completed().await {
        depot.ride_out(error).await.map_err(flash)?;
    }
    Ok(())
}

/// Writes what `head` has and flash has not.
async fn flush(depot: &Depot, head: &mut Head) -> Result<(), Error> {
    while let Some(batch) = head.close_batch() {
        batch.write(depot).await.map_err(|error| depot.write_error(&error))?;
        head.set_durable(batch.end);
    }
    Ok(())
}

/// Commits and seals a head of an earlier life.
pub(crate) async fn finish(
    depot: &Depot,
    mut old: Head,
    successor: SegmentId,
) -> Result<(), Error> {
    old.stop();
    flush(depot, &mut old).await?;
    old.seal(Some(successor)).write(depot).await.map_err(|error| depot.write_error(&error))?;
    old.segment.set_on_flash();
    Ok(())
}

/// Commits what nobody has asked to be committed: now and then, and whenever much of it has come together, so that
/// memory does not run far ahead of flash.
pub(crate) async fn flush_unasked(inner: Weak<Inner>, interval: Duration) {
    let parts = |inner: Arc<Inner>| (inner.depot.env.clone(), Arc::clone(&inner.much_uncommitted));
    let Some((env, much)) = inner.upgrade().map(parts) else { return };
    loop {
        let _ = env.timeout(interval, much.notified()).await;
        loop {
            let Some(inner) = inner.upgrade() else { return };
            if inner.commit(Position(u64::MAX)).await.is_err() {
                return;
            }
            // What came meanwhile has rung no bell if it was much already.
            if inner.uncommitted_bytes() < FLUSH_AHEAD_BYTES {
                break;
            }
        }
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
            // An append that finds the head full will wait for room, and then open one itself.
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
