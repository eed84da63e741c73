//! Makes segments of what a start has found: sealed ones as they are, the old head so that it can be committed and
//! sealed, each with its memory if that can be believed.

use crate::descriptors::one_by_one;
use crate::driver::finish;
use crate::format::{EntryHeader, Lost};
use crate::head::Head;
use crate::scan::{Found, Scan, read_image};
use crate::segment::Segment;
use crate::start::Starting;
use crate::walk::walk;
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
        for (id, found) in std::mem::take(&mut scan.segments) {
            if !self.is_member(id) {
                scan.slots.extend(found.warm.and_then(|copy| copy.memory.into_slot().ok()));
                continue;
            }
            let is_warm = found.warm.is_some();
            if self.history.empty == Some(id) {
                self.admit_empty(id, found, scan);
            } else if self.is_behind(id, &found) {
                opened.segments += 1;
                opened.segments_warm += u64::from(is_warm);
                let old = self.resume(id, found, scan, opened).await?;
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
            self.table.insert(named.segment, Some(named.file), None, false);
        }
        if let Some(lost) = self.history.tail_lost.filter(|&lost| !self.is_member(lost)) {
            self.table.insert(lost, None, None, false);
            self.history.next = self.history.next.max(lost.next());
        }
        for lost in
            self.losses().into_iter().filter(|lost| self.history.empty != Some(lost.segment))
        {
            self.table.mark_lost(lost.segment, lost.lost);
        }
        Ok(())
    }

    /// Flash does not have all of it, or not sealed.
    fn is_behind(&self, id: SegmentId, found: &Found) -> bool {
        let capacity = self.depot.capacity;
        let in_memory = |(_, header)| {
            found
                .warm
                .as_ref()
                .is_some_and(|copy| copy.header == header && copy.certificate.durable < capacity)
        };
        found.flash.is_some_and(|flash| self.history.resume == Some(id) || in_memory(flash))
    }

    fn admit_empty(&mut self, id: SegmentId, found: Found, scan: &mut Scan) {
        scan.slots.extend(found.warm.and_then(|copy| copy.memory.into_slot().ok()));
        // Without a file it never was durably open: nothing names it, nothing needs it.
        let Some((file, header)) = found.flash else { return };
        let segment = Arc::new(Segment::new(&self.depot, header, Some(file), None, false));
        self.table.insert(id, Some(file), Some(segment), false);
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
        self.table.insert(segment.id(), segment.file, Some(Arc::clone(&segment)), true);
        self.unread.push(segment);
    }

    /// The old head: from warm memory as it is, or read from flash into a slot.
    async fn resume(
        &mut self,
        id: SegmentId,
        found: Found,
        scan: &mut Scan,
        opened: &mut Opened,
    ) -> Result<Head, Error> {
        let (file, header) = found.flash.expect("only a head with a file is resumed");
        let handle = self.depot.open_to_write(file).await?;
        let new_segment =
            |memory| Arc::new(Segment::new(&self.depot, header, Some(file), Some(memory), false));
        let head = match found.warm {
            Some(copy) if copy.certificate.foot => {
                let segment = new_segment(copy.memory.clone());
                Head::resume_sealed(segment, handle, copy.memory, copy.certificate.durable)
            }
            Some(copy) if one_by_one(copy.memory.back(), id).is_some() => {
                let slot = copy.memory.into_slot().map_err(|_| self.busy(id))?;
                let writer = slot.resume().map_err(|_| self.busy(id))?;
                Head::resume(new_segment(writer.memory()), handle, writer, copy.certificate.durable)
            }
            damaged => {
                if let Some(copy) = damaged {
                    opened.damage.push(format!(
                        "segment {id} is damaged in warm memory: what was not on flash is lost"
                    ));
                    self.history.tail_lost.get_or_insert(id);
                    scan.slots.extend(copy.memory.into_slot().ok());
                }
                let image = read_image(&self.depot, file).await?;
                let walked = walk(&image, id, true);
                let slot =
                    scan.slots.pop().or_else(|| self.steal_slot()).ok_or_else(|| self.busy(id))?;
                let mut writer = slot.begin(Label { segment: id, epoch: header.epoch, file });
                writer.push_front(&image[..walked.end as usize]);
                walked
                    .changes
                    .iter()
                    .for_each(|change: &EntryHeader| writer.push_back(&change.encode(id)));
                writer.publish();
                // The last batch may be in the page cache only, or not even be going to flash (after a failed sync
                // the kernel forgets): it is written again.
                Head::resume(new_segment(writer.memory()), handle, writer, walked.last_start)
            }
        };
        self.insert_unread(Arc::clone(&head.segment));
        Ok(head)
    }

    /// Warm memory is full of sealed segments: the oldest goes.
    pub(crate) fn steal_slot(&self) -> Option<Slot> {
        self.table.segments().find_map(|(_, segment)| segment.as_ref()?.give_up_memory())
    }
}
