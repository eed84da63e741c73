//! Makes segments of what a start has found: sealed ones as they are, the old head so that it can be committed and
//! sealed, each with its memory if that can be believed.

use crate::descriptors::{of_image, one_by_one};
use crate::driver::finish;
use crate::format::{EntryHeader, Lost};
use crate::head::Head;
use crate::scan::{Found, Scan, read_foot, read_image, sync};
use crate::segment::Segment;
use crate::start::Starting;
use crate::walk::{goes_on, walk};
use crate::{Error, Opened};
use base::SegmentId;
use std::sync::Arc;
use warm::{Label, Slot};

impl Starting {
    /// Makes segments of what was found, and rows of the table.
    pub(crate) async fn admit(
        &mut self,
        scan: &mut Scan,
        opened: &mut Opened,
    ) -> Result<(), Error> {
        for id in scan.segments.keys().copied().collect::<Vec<_>>() {
            let behind = self.is_member(id) && self.is_behind(id, scan).await?;
            let Some(found) = scan.segments.remove(&id) else { continue };
            if !self.is_member(id) {
                scan.slots.extend(found.warm.and_then(|copy| copy.memory.into_slot().ok()));
                continue;
            }
            let is_warm = found.warm.is_some();
            if self.history.empty == Some(id) {
                self.admit_empty(id, found, scan);
            } else if behind {
                opened.segments += 1;
                opened.segments_warm += u64::from(is_warm);
                let Some(old) = self.resume(id, found, scan, opened).await? else { continue };
                if self.history.resume == Some(id) {
                    self.resumed = Some(old);
                } else {
                    // Not the head any more: its successor had taken over, or an earlier start could not read it. Its
                    // slot may be needed.
                    let next = self.history.members.iter().find(|named| named.segment > id);
                    let successor = next.map_or(self.history.next, |named| named.segment);
                    finish(&self.depot, old, successor).await?;
                }
            } else {
                opened.segments += 1;
                opened.segments_warm += u64::from(is_warm);
                self.admit_sealed(found, scan, opened);
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

    /// Whether flash does not have all of it, or not sealed. What flash knows as sealed is never written from memory.
    async fn is_behind(&self, id: SegmentId, scan: &mut Scan) -> Result<bool, Error> {
        if self.history.resume == Some(id) {
            return Ok(scan.segments.get(&id).is_some_and(|found| found.flash.is_some()));
        }
        let capacity = self.depot.capacity;
        let has_more = |found: &&Found| {
            found.warm.as_ref().is_some_and(|copy| copy.certificate.durable < capacity)
        };
        let Some((file, header)) =
            scan.segments.get(&id).filter(has_more).and_then(|found| found.flash)
        else {
            return Ok(false);
        };
        // What is read here may still be on its way to flash, from before the last process died.
        let can_be_written = sync(&self.depot, file).await?;
        scan.settle(&self.depot, id).await;
        let is_sealed = matches!(read_foot(&self.depot, file, &header).await, Ok(Some(_)));
        let has_copy = scan.segments.get(&id).is_some_and(|found| found.warm.is_some());
        Ok(has_copy && !is_sealed && can_be_written)
    }

    fn admit_empty(&mut self, id: SegmentId, found: Found, scan: &mut Scan) {
        scan.slots.extend(found.warm.and_then(|copy| copy.memory.into_slot().ok()));
        // Without a file it never was durably open: nothing names it, nothing needs it.
        let Some((file, header)) = found.flash else { return };
        let segment = Arc::new(Segment::new(&self.depot, header, Some(file), None, false));
        self.table.insert(id, segment.named(), Some(segment), false);
        if self.history.tail_lost == Some(id) {
            // Flash has nothing of it, but memory may have had.
            self.table.mark_lost(id, Lost::Uncounted);
        } else {
            self.leaving.push(id);
        }
        self.table.learn(id, [], false);
    }

    fn admit_sealed(&mut self, found: Found, scan: &mut Scan, opened: &mut Opened) {
        let (header, file) = (found.header(), found.file());
        let memory = match found.warm {
            Some(copy) if copy.header == header => Some(copy.memory),
            // Another segment under this number: only what agrees with flash is believed.
            Some(copy) => {
                scan.slots.extend(copy.memory.into_slot().ok());
                None
            }
            None => None,
        };
        let segment = Arc::new(Segment::new(&self.depot, header, file, memory, false));
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

    /// The old head: from warm memory as it is, or read from flash into a slot. `None` when flash does not have all of it
    /// that it once had: then it stays as it is, for there lies the proof of what is lost.
    async fn resume(
        &mut self,
        id: SegmentId,
        found: Found,
        scan: &mut Scan,
        opened: &mut Opened,
    ) -> Result<Option<Head>, Error> {
        let (file, header) = found.flash.expect("only a head with a file is resumed");
        let new_segment =
            |memory| Arc::new(Segment::new(&self.depot, header, Some(file), memory, false));
        let head = match found.warm {
            Some(copy) if copy.certificate.foot => {
                let handle = self.depot.open_to_write(file).await?;
                let segment = new_segment(Some(copy.memory.clone()));
                Head::resume_sealed(segment, handle, copy.memory, copy.certificate.durable)
            }
            Some(copy) if one_by_one(copy.memory.back(), header.key()).is_some() => {
                let handle = self.depot.open_to_write(file).await?;
                let slot = copy.memory.into_slot().map_err(|_| self.busy(id))?;
                let writer = slot.resume().map_err(|_| self.busy(id))?;
                let segment = new_segment(Some(writer.memory()));
                Head::resume(segment, handle, writer, copy.certificate.durable)
            }
            damaged => {
                if let Some(copy) = damaged {
                    // What flash has counts, and it may have all there was.
                    if !copy.is_on_flash() {
                        opened.damage.push(format!(
                            "segment {id} is damaged in warm memory: what was not on flash is lost"
                        ));
                        self.history.tail_lost.get_or_insert(id);
                    }
                    scan.slots.extend(copy.memory.into_slot().ok());
                }
                let (image, unreadable) = read_image(&self.depot, file).await;
                let walked = walk(&image, &header, true);
                // A head that has had a successor was durably open: without its opening it is damaged, not torn.
                let is_cut = unreadable.is_some()
                    || walked.end == 0
                    || (header.version >= 3 && goes_on(&image, &header, &walked));
                if is_cut {
                    let found = of_image(&header, &image, None, unreadable);
                    opened.damage.extend(
                        found.damage.map(|damage| format!("segment {id}: {}", damage.reason)),
                    );
                    let segment = new_segment(None);
                    segment.set_on_flash();
                    self.insert_unread(segment);
                    return Ok(None);
                }
                let handle = self.depot.open_to_write(file).await?;
                let slot =
                    scan.slots.pop().or_else(|| self.steal_slot()).ok_or_else(|| self.busy(id))?;
                let mut writer = slot.begin(Label { segment: id, epoch: header.epoch, file });
                writer.push_front(&image[..walked.end as usize]);
                walked
                    .listed
                    .iter()
                    .for_each(|entry: &EntryHeader| writer.push_back(&entry.encode(header.key())));
                writer.publish();
                // The last batch may be in the page cache only, or not even be going to flash (after a failed sync
                // the kernel forgets): it is written again.
                Head::resume(new_segment(Some(writer.memory())), handle, writer, walked.last_start)
            }
        };
        self.insert_unread(Arc::clone(&head.segment));
        Ok(Some(head))
    }

    /// Warm memory is full of sealed segments: the oldest goes.
    pub(crate) fn steal_slot(&self) -> Option<Slot> {
        self.table.segments().find_map(|(_, segment)| segment.as_ref()?.give_up_memory())
    }
}
