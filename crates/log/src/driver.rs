//! Carries out commits and rollovers. Whoever holds the baton drives the disk, on its own thread; the others append
//! meanwhile, then find their bytes covered.
//!
//! Every step may be given up in the middle (a future that is dropped): the next holder of the baton repeats it, and
//! writes the same bytes to the same place.

use crate::depot::Depot;
use crate::format::{Lost, Named, SegmentHeader};
use crate::head::Head;
use crate::inner::{Driver, Inner, Prepared};
use crate::limits::{FILES_AHEAD, FLUSH_AHEAD_BYTES, RESERVE_FILES, STATISTICS_MAX};
use crate::segment::Segment;
use crate::{Error, Position};
use base::{Incarnation, SegmentId, Serial, VolumeId};
use env::File;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{MutexGuard, Notify};
use warm::{Label, Slot};

/// The right to drive. Put down on drop, and everybody who waits is told.
struct Baton<'a> {
    driver: Option<MutexGuard<'a, Driver>>,
    put_down: &'a Notify,
}

impl Drop for Baton<'_> {
    fn drop(&mut self) {
        self.driver = None;
        self.put_down.notify_waiters();
    }
}

/// A file taken from the depot; goes back unless it is used.
pub(crate) struct FileLease {
    depot: Arc<Depot>,
    file: Option<u32>,
}

impl FileLease {
    pub(crate) async fn take(depot: &Arc<Depot>, patient: bool) -> Result<FileLease, Error> {
        Ok(FileLease { file: Some(depot.take_file(patient).await?), depot: Arc::clone(depot) })
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
        let driver = Some(self.baton.try_lock().ok()?);
        Some(Baton { driver, put_down: &self.put_down })
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
                self.flush().await?;
                continue;
            }
            let mut put_down = std::pin::pin!(self.put_down.notified());
            put_down.as_mut().enable();
            // Between the first look and this one the driver may have ended, unheard.
            if self.durable() >= position {
                return Ok(());
            }
            if let Some(_baton) = self.try_baton() {
                self.flush().await?;
                continue;
            }
            put_down.await;
        }
    }

    /// Writes what the head has and flash has not. The caller holds the baton.
    async fn flush(&self) -> Result<(), Error> {
        // Whoever waited for the baton may have been covered, or the log have ended, meanwhile.
        self.check()?;
        let flushed = flush(&self.depot, &self.head, |head| {
            self.appended.store(head.base + u64::from(head.front()), Ordering::Release);
        });
        match flushed.await {
            Ok(Some(durable)) => {
                self.durable.store(durable, Ordering::Release);
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("rekindle_log_commits_total").increment(1);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.latch(error)),
        }
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
            if self.head_takes(bytes) {
                return Ok(());
            }
            let (live, unread) = {
                let table = self.table.lock();
                (table.live(), table.unread())
            };
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
            // One at a time: the others will find room in the new head. Then the file, before the baton: making one may
            // take long, and commits must go on meanwhile.
            let _rolling = self.rolling.lock().await;
            if self.head_takes(bytes) {
                return Ok(());
            }
            let file = FileLease::take(&self.depot, true).await?;
            let mut baton = self.baton().await;
            self.check()?;
            if !self.head_takes(bytes) && self.table.lock().live() < self.segments_max {
                let driver = baton.driver.as_mut().expect("held until dropped");
                self.roll_over(driver, file).await.map_err(|error| self.latch(error))?;
            }
        }
    }

    fn head_takes(&self, bytes: usize) -> bool {
        !self.over_budget.load(Ordering::Acquire) && self.head.lock().takes(bytes)
    }

    /// New head durably open, old one sealed, then the new one takes over.
    async fn roll_over(&self, driver: &mut Driver, file: FileLease) -> Result<(), Error> {
        // Before the statistics are made: they must cover all that this head will ever hold.
        self.head.lock().stop();
        if driver.next.is_none() {
            let slot = self.take_slot().await;
            let (named, leaving) = self.table.lock().next_digest();
            let (statistics, whole) = {
                let volumes = self.head.lock().volumes.clone();
                self.table.lock().statistics(&volumes, STATISTICS_MAX)
            };
            let id = driver.next_id;
            driver.next_id = id.next();
            let plan = Plan {
                id,
                incarnation: self.incarnation,
                named,
                statistics,
                statistics_whole: whole,
            };
            let head = open_head(&self.depot, plan, slot, file).await?;
            driver.next = Some(Prepared { head, leaving });
        }
        let next = driver.next.as_ref().map(|next| next.head.segment.id());
        self.flush().await?;
        seal(&self.depot, &self.head, next).await?;
        let prepared = driver.next.take().expect("made above");
        self.take_over(prepared);
        Ok(())
    }

    fn take_over(&self, prepared: Prepared) {
        let Prepared { head: mut next, leaving } = prepared;
        let mut head = self.head.lock();
        next.base = head.base + u64::from(self.depot.capacity);
        let position = next.base + u64::from(next.front());
        let id = next.segment.id();
        let old = std::mem::replace(&mut *head, next);
        let mut table = self.table.lock();
        table.learn(
            old.segment.id(),
            old.volumes.iter().map(|(&volume, &serial)| (volume, serial)),
            false,
        );
        table.insert(id, head.segment.file, Some(Arc::clone(&head.segment)), false);
        let gone: Vec<_> = leaving.into_iter().map(|id| table.remove_dead(id)).collect();
        self.appended.store(position, Ordering::Release);
        self.durable.store(position, Ordering::Release);
        drop(table);
        drop(head);
        // Outside the locks: the last holder of a segment gives its file back.
        drop((gone, old));
        self.make_ahead();
        self.space.notify_waiters();
        metrics::counter!("rekindle_log_segments_opened_total").increment(1);
    }

    /// Makes the next segment files before they are needed.
    pub(crate) fn make_ahead(&self) {
        let files_max = self.segments_max as u64 + RESERVE_FILES;
        self.depot.make_files(FILES_AHEAD, u32::try_from(files_max).unwrap_or(u32::MAX));
    }

    /// An empty slot; the oldest sealed segment gives its own when there is none.
    async fn take_slot(&self) -> Slot {
        loop {
            let found = self.depot.take_slot().or_else(|| {
                let table = self.table.lock();
                table.segments().find_map(|(_, segment)| segment.as_ref()?.give_up_memory())
            });
            match found {
                Some(slot) => return slot,
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
        self.head.lock().stop();
        self.flush().await?;
        seal(&self.depot, &self.head, None).await.map_err(|error| self.latch(error))?;
        self.latch(Error::Closed);
        self.folder_lock.lock().take();
        if let Some(flusher) = self.flusher.lock().take() {
            flusher.abort();
        }
        Ok(())
    }
}

/// What a new head shall say.
pub(crate) struct Plan {
    pub(crate) id: SegmentId,
    pub(crate) incarnation: Incarnation,
    /// The other segments of the log.
    pub(crate) named: Vec<Named>,
    pub(crate) statistics: Vec<(VolumeId, Serial)>,
    pub(crate) statistics_whole: bool,
}

/// Opens a head: durable when this returns.
pub(crate) async fn open_head(
    depot: &Arc<Depot>,
    plan: Plan,
    slot: Slot,
    file: FileLease,
) -> Result<Head, Error> {
    let header = SegmentHeader {
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
    digest.push(Named { segment: plan.id, file: number, lost: Lost::Nothing });
    let head =
        Head::begin(segment, handle, writer, 0, &digest, &plan.statistics, plan.statistics_whole);
    let head = Mutex::new(head);
    flush(depot, &head, |_| ()).await?;
    Ok(head.into_inner())
}

/// Lengthens a file whose making was interrupted.
async fn complete(depot: &Depot, file: &dyn File) -> Result<(), Error> {
    let flash = |error: std::io::Error| depot.flash_error("making a segment file", &error);
    if file.length().await.map_err(flash)? < u64::from(depot.capacity) {
        file.preallocate(u64::from(depot.capacity)).await.map_err(flash)?;
    }
    Ok(())
}

/// Writes what `head` has and flash has not; says up to which position all is durable now, if anything was missing.
pub(crate) async fn flush(
    depot: &Depot,
    head: &Mutex<Head>,
    note: impl FnOnce(&Head),
) -> Result<Option<u64>, Error> {
    let batch = {
        let mut head = head.lock();
        let batch = head.close_batch();
        note(&head);
        batch
    };
    let Some(batch) = batch else { return Ok(None) };
    batch.write().await.map_err(|error| depot.flash_error("writing a segment", &error))?;
    let mut head = head.lock();
    head.set_durable(batch.end);
    Ok(Some(head.base + u64::from(batch.end)))
}

/// Seals a head all of which is on flash.
pub(crate) async fn seal(
    depot: &Depot,
    head: &Mutex<Head>,
    successor: Option<SegmentId>,
) -> Result<(), Error> {
    let (memory, file, segment) = {
        let mut head = head.lock();
        (head.seal(successor), Arc::clone(&head.file), Arc::clone(&head.segment))
    };
    let tail = memory.tail().expect("a sealed segment has its foot");
    let start = u64::from(depot.capacity) - tail.len() as u64;
    file.write_durable(tail, start)
        .await
        .map_err(|error| depot.flash_error("sealing a segment", &error))?;
    memory.note_durable(depot.capacity);
    segment.set_on_flash();
    Ok(())
}

/// Commits what nobody has asked to be committed: now and then, and whenever much of it has come together, so that a
/// rollover finds little left to write.
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
