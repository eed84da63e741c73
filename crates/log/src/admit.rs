//! Turns the findings of a start into segments: sealed ones as they are, and the old head so that
//! it can be committed and sealed. A segment keeps its memory if that can be believed.

use crate::descriptors::{of_image, one_by_one};
use crate::driver::finish;
use crate::format::{ENTRY_BYTES, EntryHeader, FOOT_BYTES, KnownEnd, Lost, SegmentHeader};
use crate::head::Head;
use crate::scan::{Scan, SegmentCopies, read_foot, read_image, sync};
use crate::segment::{Segment, spare_slot};
use crate::segment_pool::SegmentPool;
use crate::start::Starting;
use crate::walk::{goes_on, walk};
use crate::{Error, Opened};
use rekindle_base::SegmentId;
use rekindle_warm::Label;
use std::sync::Arc;

impl Starting {
    /// Turns each member of the log into a segment and a row of the table.
    pub(crate) async fn admit(
        &mut self,
        scan: &mut Scan,
        opened: &mut Opened,
    ) -> Result<(), Error> {
        for id in scan.segments.keys().copied().collect::<Vec<_>>() {
            let behind = self.is_member(id) && self.is_behind(id, scan).await?;
            let Some(found) = scan.segments.remove(&id) else { continue };
            if !self.is_member(id) {
                continue;
            }
            let is_warm = found.warm.is_some();
            if self.history.empty == Some(id) {
                self.admit_empty(id, found);
            } else if behind {
                opened.segments += 1;
                opened.segments_warm += u64::from(is_warm);
                let Some(old) = self.resume(id, found, opened).await? else { continue };
                if self.history.resume == Some(id) {
                    self.resumed = Some(old);
                } else {
                    // No longer the head: its successor had taken over, or an earlier start could
                    // not read it. Its slot may be needed.
                    let next = self.history.members.iter().find(|named| named.segment > id);
                    let successor = next.map_or(self.history.next, |named| named.segment);
                    finish(&self.pool, old, successor).await?;
                }
            } else {
                opened.segments += 1;
                opened.segments_warm += u64::from(is_warm);
                self.admit_sealed(found, opened);
            }
        }
        for named in self.history.missing.clone() {
            self.table.insert(named.segment, (Some(named.file), named.who), None, false);
        }
        if let Some(lost) = self.history.tail_lost.filter(|&lost| !self.is_member(lost)) {
            self.table.insert(lost, (None, None), None, false);
            self.history.next = self.history.next.max(lost.next());
        }
        for lost in
            self.losses().into_iter().filter(|lost| self.history.empty != Some(lost.segment))
        {
            self.table.mark_lost(lost.segment, lost.lost);
        }
        Ok(())
    }

    /// Whether flash lacks a part of the segment, or its seal. A segment that is sealed on flash is
    /// never written from memory.
    async fn is_behind(&self, id: SegmentId, scan: &mut Scan) -> Result<bool, Error> {
        if self.history.resume == Some(id) {
            return Ok(scan.segments.get(&id).is_some_and(|found| found.flash.is_some()));
        }
        let capacity = self.pool.capacity;
        let has_more = |found: &&SegmentCopies| {
            found.warm.as_ref().is_some_and(|copy| copy.certificate.durable < capacity)
        };
        let Some((file, header)) =
            scan.segments.get(&id).filter(has_more).and_then(|found| found.flash)
        else {
            return Ok(false);
        };
        // The bytes read here may still be on their way to flash, from before the last process
        // died.
        let can_be_written = sync(&self.pool, file).await?;
        scan.settle(&self.pool, id).await;
        let is_sealed = matches!(read_foot(&self.pool, file, &header).await, Ok(Some(_)));
        let has_copy = scan.segments.get(&id).is_some_and(|found| found.warm.is_some());
        Ok(has_copy && !is_sealed && can_be_written)
    }

    fn admit_empty(&mut self, id: SegmentId, found: SegmentCopies) {
        // Without a file the segment was never durably open: nothing names it, nothing needs it.
        let Some((file, header)) = found.flash else { return };
        let segment = Arc::new(Segment::new(&self.pool, header, Some(file), None, false));
        self.table.insert(id, segment.named(), Some(segment), false);
        if self.history.tail_lost == Some(id) {
            // Flash has no changes of this segment, but memory may have had some.
            self.table.mark_lost(id, Lost::Uncounted);
        } else {
            self.leaving.push(id);
        }
        self.table.learn(id, [], false);
    }

    fn admit_sealed(&mut self, found: SegmentCopies, opened: &mut Opened) {
        let (header, file) = (found.header(), found.file());
        // Memory may have another segment under this number: only a copy that agrees with flash is
        // believed.
        let copy = found.warm.filter(|copy| copy.header == header);
        let memory = copy.map(|copy| copy.memory);
        let segment = Arc::new(Segment::new(&self.pool, header, file, memory, false));
        if file.is_some() {
            segment.set_on_flash();
        } else {
            opened
                .damage
                .push(format!("segment {} is only in memory: its file is gone", segment.id()));
        }
        self.insert_unread(segment);
    }

    fn insert_unread(&mut self, segment: Arc<Segment>) {
        self.table.insert(segment.id(), segment.named(), Some(Arc::clone(&segment)), true);
        self.unread.push(segment);
    }

    /// Resumes the old head: from warm memory as it is, or read from flash into a slot. `None` when
    /// flash lacks a part of the head that it once had: the segment then stays as it is, as the
    /// proof of the loss.
    async fn resume(
        &mut self,
        id: SegmentId,
        found: SegmentCopies,
        opened: &mut Opened,
    ) -> Result<Option<Head>, Error> {
        let (file, header) = found.flash.expect("only a head with a file is resumed");
        let new_segment =
            |memory| Arc::new(Segment::new(&self.pool, header, Some(file), memory, false));
        let head = match found.warm {
            Some(copy) if copy.certificate.foot => {
                let handle = self.pool.open_to_write(file).await?;
                let segment = new_segment(Some(copy.memory.clone()));
                Head::resume_sealed(segment, handle, copy.memory, copy.certificate.durable)
            }
            Some(copy) if one_by_one(copy.memory.back(), header.key()).is_some() => {
                let handle = self.pool.open_to_write(file).await?;
                let slot = copy.memory.into_slot().map_err(|_| self.busy(id))?;
                let writer = slot.resume().map_err(|_| self.busy(id))?;
                let segment = new_segment(Some(writer.memory()));
                Head::resume(segment, handle, writer, copy.certificate.durable)
            }
            damaged => {
                if let Some(copy) = damaged {
                    // The copy on flash counts, and it may be complete.
                    if !copy.is_on_flash() {
                        opened.damage.push(format!(
                            "segment {id} is damaged in warm memory: what was not on flash is lost"
                        ));
                        self.history.tail_lost.get_or_insert(id);
                    }
                }
                let (mut image, unreadable) = read_image(&self.pool, file, &header).await;
                let known = self.pool.known_end_of(&header);
                let walked = walk(&image, &header, known.durable);
                let goes_on = header.version >= 3 && goes_on(&image, &header, &walked);
                let is_short =
                    walked.end < known.durable && walked.listed.len() < known.changes as usize;
                if is_short
                    && !goes_on
                    && unreadable.is_none()
                    && let Err(error) = prove(&self.pool, file, &known, &header, &mut image).await
                {
                    // The digest of the next head names the loss instead.
                    tracing::warn!(segment = id.0, %error, "a loss cannot be noted in its segment");
                    self.history.tail_lost.get_or_insert(id);
                }
                // A head that has had a successor was durably open: without its opening it is
                // damaged, not torn.
                let is_cut = unreadable.is_some() || walked.end == 0 || is_short || goes_on;
                if is_cut {
                    let found = of_image(&header, &image, None, unreadable, known.durable);
                    opened.damage.extend(
                        found.damage.map(|damage| format!("segment {id}: {}", damage.reason)),
                    );
                    let segment = new_segment(None);
                    segment.set_on_flash();
                    self.insert_unread(segment);
                    return Ok(None);
                }
                let handle = self.pool.open_to_write(file).await?;
                let slot = self.pool.arena.free_slot().or_else(|| spare_slot(&self.table));
                let slot = slot.ok_or_else(|| self.busy(id))?;
                let mut writer = slot.begin(Label { segment: id, epoch: header.epoch, file });
                writer.push_front(&image[..walked.end as usize]);
                walked
                    .listed
                    .iter()
                    .for_each(|entry: &EntryHeader| writer.push_back(&entry.encode(header.key())));
                writer.publish();
                // The last batch may be in the page cache only. After a failed sync the kernel does
                // not even write it to flash later (it forgets), so the resumed head writes it
                // again.
                Head::resume(new_segment(Some(writer.memory())), handle, writer, walked.last_start)
            }
        };
        self.insert_unread(Arc::clone(&head.segment));
        Ok(Some(head))
    }
}

/// Writes a certificate behind the known end of a segment that has less: from now on the segment
/// itself proves that it has lost something, and how many changes it had, as it does where another
/// batch lies behind the damage.
async fn prove(
    pool: &SegmentPool,
    file: u32,
    known: &KnownEnd,
    header: &SegmentHeader,
    image: &mut [u8],
) -> Result<(), Error> {
    // At the end of the segment there may be no room behind: then it takes the end of the padding,
    // or of the certificate that is damaged.
    let at = known.durable.min(header.capacity - FOOT_BYTES - ENTRY_BYTES);
    let entry = EntryHeader::certificate(header.key(), at, &[], known.changes);
    let bytes = entry.encode(header.key());
    image[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    let handle = pool.open_to_write(file).await?;
    while let Err(error) = handle.write_durable(&bytes, at.into()).await {
        pool.ride_out(error).await.map_err(|error| pool.write_error(&error))?;
    }
    Ok(())
}
