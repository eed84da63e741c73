//! The changes that outlived a restart: indexed once, at the first query, from the descriptor
//! tables of the recovered segments.
//!
//! A gibibyte of 4 KiB writes is 262,144 descriptors of 64 bytes: 16 MiB to read; payloads are not
//! touched. The inventory keeps only an index, and the descriptors are read again when a caller
//! asks for a volume. That touches no new memory but the answer: after a start, new memory is what
//! costs.

use crate::descriptors::{self, Damage, Entries};
use crate::format::{EntryHeader, Kind, Lost};
use crate::inner::Inner;
use crate::inventory::LostSegment;
use crate::limits::{EXHAUSTED_RETRY, READ_TRIES};
use crate::machine::table::NO_FILE;
use crate::recovered_index::{Index, List, SegmentPart, is_marked};
use crate::segment::Segment;
use crate::summary::LogSummary;
use crate::{Error, Loss, Recovered};
use rekindle_base::{Incarnation, Serial, VolumeId};
use std::sync::Arc;

impl Inner {
    /// Reads the tables of the recovered segments, once.
    pub(crate) async fn read_recovered(&self) -> Result<(), Error> {
        let read = || async {
            let unread = self.recovery.unread.lock().clone();
            for segment in &unread {
                // An earlier, interrupted attempt may have read this segment already.
                let known = self
                    .recovery
                    .inventory
                    .lock()
                    .indexes
                    .iter()
                    .any(|index| index.id == segment.id());
                if !known {
                    self.read_segment(segment).await?;
                }
            }
            self.recovery.unread.lock().clear();
            self.recovery.inventory.lock().forget_bounds();
            self.note_litter();
            Ok(())
        };
        self.recovery.done.get_or_try_init(read).await?;
        Ok(())
    }

    pub(crate) async fn accept_losses(&self) -> Result<(), Error> {
        self.read_recovered().await?;
        let mut lost: Vec<_> =
            self.recovery.inventory.lock().losses.drain(..).map(|lost| lost.segment).collect();
        lost.sort_unstable();
        lost.dedup();
        let mut files = std::mem::take(&mut *self.recovery.strays.lock());
        {
            let mut table = self.table.lock();
            // No segment holds these files, so no drop gives them back to the pool.
            let orphans =
                table.rows().filter(|(.., lost, held)| *lost != Lost::Nothing && held.is_none());
            files.extend(orphans.filter_map(|(_, file, ..)| file).filter(|&file| file != NO_FILE));
            lost.into_iter().for_each(|id| table.discard(id));
            self.note_live(table.live());
        }
        let outdated = self.heads.lock().outdate();
        drop(outdated);
        // Asks for a head whose digest does not name the lost segments.
        self.next_wanted.notify_one();
        for file in files {
            self.pool.remove(file).await;
        }
        self.space.notify_waiters();
        Ok(())
    }

    async fn read_segment(&self, segment: &Arc<Segment>) -> Result<(), Error> {
        let marks = self.recovery.inventory.lock().marks.clone();
        let in_memory = segment.with_memory(|memory| {
            Some(Index::of_table(segment, descriptors::in_memory(segment, memory)?, true, &marks))
        });
        let mut damage = None;
        let (index, parts) = match in_memory.flatten() {
            Some(found) => found,
            None => {
                if !segment.is_on_flash() {
                    // The old head may still be on its way to flash.
                    self.commit(self.begins).await?;
                }
                let read = descriptors::on_flash(segment).await.ok().flatten();
                match read.as_ref().and_then(|read| read.table()) {
                    Some(table) => Index::of_table(segment, table, false, &marks),
                    None => {
                        let found = self.entries_of(segment).await;
                        damage = found.damage;
                        Index::of_entries(segment, found.listed, &marks)
                    }
                }
            }
        };
        let highest: Vec<_> =
            parts.iter().map(|part| (part.volume, part.summary.highest)).collect();
        let damaged = damage.is_some();
        let mut inventory = self.recovery.inventory.lock();
        // No statistics cover the changes in the newest recovered head.
        let is_covered = inventory.statistics_of.is_some_and(|head| segment.id() < head);
        let lost = if is_covered { Lost::Counted } else { Lost::Uncounted };
        if let Some(Damage { reason, hole_ends, .. }) = damage {
            tracing::error!(segment = segment.id().0, %reason, "a segment of the log is damaged");
            let (segment, hole_ends) = (segment.id(), Some(hole_ends));
            inventory.losses.retain(|earlier| !earlier.hearsay || earlier.segment != segment);
            let hearsay = false;
            inventory.losses.push(LostSegment { segment, lost, hole_ends, hearsay, reason });
        }
        inventory.absorb(Arc::new(index), parts);
        drop(inventory);
        let mut table = self.table.lock();
        if damaged {
            table.mark_lost(segment.id(), lost);
        }
        table.learn(segment.id(), highest, true);
        Ok(())
    }

    /// Reads the entries of a segment whose table is damaged or missing.
    async fn entries_of(&self, segment: &Segment) -> Entries {
        let mut found = descriptors::out_of_entries(segment).await;
        let is_refused = |found: &Entries| found.damage.as_ref().is_some_and(|d| d.is_unreadable);
        for _ in 1..READ_TRIES {
            if !is_refused(&found) {
                break;
            }
            // An error of the device may be transient: read again.
            self.pool.env.sleep(EXHAUSTED_RETRY).await;
            found = descriptors::out_of_entries(segment).await;
        }
        if is_refused(&found) {
            segment.set_spoilt();
        }
        found
    }

    /// Adds the changes of a part whose table was whole when the index was made and is not any
    /// more. Returns the loss, if changes are missing now.
    async fn read_without_table(
        &self,
        volume: VolumeId,
        part: &SegmentPart,
        why: String,
        list: &mut List,
    ) -> Option<Loss> {
        let segment = part.index.segment.upgrade()?;
        let (marks, released) = {
            let inventory = self.recovery.inventory.lock();
            (inventory.marks.clone(), inventory.released_of(volume))
        };
        let found = self.entries_of(&segment).await;
        let is_ours = |entry: &EntryHeader| {
            let is_change = matches!(entry.kind, Kind::Change(_));
            is_change && entry.volume == volume && !is_marked(&marks, segment.id(), entry)
        };
        let found_of_it = found.listed.into_iter().filter(is_ours);
        let mut serials: Vec<u64> = Vec::new();
        for entry in found_of_it {
            serials.push(entry.serial.0);
            list.push(&segment, entry, released);
        }
        if serials.len() >= part.count() {
            return None;
        }
        let reason = found.damage.map_or(why, |damage| damage.reason);
        tracing::error!(segment = segment.id().0, %reason, "a segment of the log became damaged");
        let (after, before) = part.summary.missing(serials);
        Some(Loss { segment: segment.id(), after, before: Some(before), reason })
    }

    /// The recovered changes of a volume, in serial order, and those that may be missing.
    pub(crate) async fn salvage(
        &self,
        volume: VolumeId,
    ) -> Result<(Vec<Recovered>, Vec<Loss>), Error> {
        self.read_recovered().await?;
        let (parts, released, mut losses) = {
            let inventory = self.recovery.inventory.lock();
            let parts = inventory.volumes.get(&volume).cloned().unwrap_or_default();
            (parts, inventory.released_of(volume), inventory.losses_of(volume))
        };
        let mut list = List::with_capacity(parts.iter().map(SegmentPart::count).sum());
        for part in &parts {
            if let Err(why) = part.read(released, &mut list).await {
                losses.extend(self.read_without_table(volume, part, why, &mut list).await);
            }
        }
        if !parts.is_empty() {
            // A caller must not see a change that a power cut could still take back.
            self.commit(self.begins).await?;
        }
        Ok((list.into_ordered(), losses))
    }

    /// Sums up what [`Inner::salvage`] would give. `None` when changes may be missing: only a
    /// salvage can tell which.
    pub(crate) async fn summary(&self, volume: VolumeId) -> Result<Option<LogSummary>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let parts = inventory.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let summary = parts.iter().map(|part| part.summary).reduce(LogSummary::with);
        Ok(summary.filter(|_| inventory.losses_of(volume).is_empty()))
    }

    /// The lives that appended a volume's recovered changes: one line a segment, with the lowest
    /// and the highest serial.
    pub(crate) async fn lives(
        &self,
        volume: VolumeId,
    ) -> Result<Vec<(Incarnation, Serial, Serial)>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let parts = inventory.volumes.get(&volume).map_or(&[][..], Vec::as_slice);
        let line = |part: &SegmentPart| {
            // A segment that is gone has no change that is still needed.
            let life = part.index.segment.upgrade()?.header.incarnation;
            Some((life, part.summary.lowest, part.summary.highest))
        };
        Ok(parts.iter().filter_map(line).collect())
    }

    pub(crate) async fn unfinished_volumes(&self) -> Result<Vec<(VolumeId, Serial)>, Error> {
        self.read_recovered().await?;
        let inventory = self.recovery.inventory.lock();
        let highest = |parts: &Vec<SegmentPart>| {
            parts.iter().map(|part| part.summary.highest).max().unwrap_or_default()
        };
        let mut volumes: Vec<_> =
            inventory.volumes.iter().map(|(&volume, parts)| (volume, highest(parts))).collect();
        volumes.sort_unstable();
        Ok(volumes)
    }
}
