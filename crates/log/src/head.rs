//! The open head: the bytes of appends, commits and seals. Only [`Batch::write`] and
//! [`Seal::write`] do I/O here.

use crate::Append;
use crate::format::{
    ENTRY_BYTES, EntryHeader, FOOT_BYTES, Foot, HEADER_BYTES, Key, Kind, Named, Statistics,
    encode_digest, encode_marks, encode_statistics, padded,
};
use crate::segment::{Place, Segment};
use crate::segment_pool::SegmentPool;
use crate::walk::certified_ends;
use hashbrown::HashMap;
use rekindle_base::checksum::crc32c;
use rekindle_base::{SegmentId, Serial, VolumeId};
use rekindle_env::File;
use rekindle_warm::{Memory, Writer};
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) struct Head {
    pub(crate) file: Arc<dyn File>,
    /// `None` once sealed in memory.
    writer: Option<Writer>,
    memory: Memory,
    /// Position of the segment's first byte.
    pub(crate) base: u64,
    /// Front bytes that are on flash.
    durable: u32,
    /// The ends of the batches that are certified and not on flash. Each batch is written by
    /// itself: if two were torn at once, the rest of the second would look like the remnant of a
    /// durable one.
    certified: VecDeque<u32>,
    /// Descriptor bytes covered by a certificate.
    certified_back: u32,
    /// Whether the last batch that is certified has changes, or releases: no later batch says that
    /// it was durable.
    unconfirmed: bool,
    /// Bytes on flash, and the changes and releases within them, when the last certificate was
    /// made.
    before: (u32, u32),
    /// Highest serial of each volume with changes here; fully released volumes are taken out.
    pub(crate) volumes: HashMap<VolumeId, Serial>,
    /// Whether an append did not fit: then the next `roll` must not believe that there is room.
    refused: bool,
    /// Whether appends have ended, because the head is about to be sealed.
    stopped: bool,
    pub(crate) segment: Arc<Segment>,
}

/// One write of a commit: the bytes of `memory` from `start` to `end`.
pub(crate) struct Batch {
    pub(crate) segment: SegmentId,
    pub(crate) memory: Memory,
    pub(crate) file: Arc<dyn File>,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Batch {
    /// Writes the batch. Returns errors of the device only: exhausted room, memory or descriptors
    /// are waited for. Nothing is lost meanwhile, since memory has all bytes.
    pub(crate) async fn write(&self, pool: &SegmentPool) -> std::io::Result<()> {
        let bytes = self.memory.front(self.start, self.end).expect("a batch is published");
        // Direct: recent bytes are read from warm memory, the others are read ahead when needed.
        while let Err(error) = self.file.write_direct(bytes, u64::from(self.start)).await {
            pool.ride_out(error).await?;
        }
        Ok(())
    }
}

/// The write of a seal: the end of `memory`.
pub(crate) struct Seal {
    memory: Memory,
    file: Arc<dyn File>,
    capacity: u32,
}

impl Seal {
    /// Writes the seal. Returns errors as [`Batch::write`] does.
    pub(crate) async fn write(&self, pool: &SegmentPool) -> std::io::Result<()> {
        let tail = self.memory.tail().expect("a sealed segment has its foot");
        let start = u64::from(self.capacity) - tail.len() as u64;
        while let Err(error) = self.file.write_durable(tail, start).await {
            pool.ride_out(error).await?;
        }
        self.memory.note_durable(self.capacity);
        Ok(())
    }
}

impl Head {
    /// Makes a new head: header and digest are in memory. [`Head::close_batch`] gives the first
    /// batch, which makes the head durably open. [`Head::push_statistics`] must come before the
    /// first change.
    pub(crate) fn begin(
        segment: Arc<Segment>,
        file: Arc<dyn File>,
        mut writer: Writer,
        digest: &[Named],
    ) -> Head {
        assert!(
            digest.iter().any(|named| named.segment == segment.id()),
            "a digest names its own segment"
        );
        writer.push_front(&segment.header.encode());
        let payload = encode_digest(digest);
        push_entry(
            &mut writer,
            segment.header.key(),
            EntryHeader::plain(Kind::Digest, HEADER_BYTES),
            &payload,
        );
        let memory = writer.memory();
        Head {
            segment,
            file,
            writer: Some(writer),
            memory,
            base: 0,
            durable: 0,
            certified: VecDeque::new(),
            certified_back: 0,
            unconfirmed: false,
            before: (0, 0),
            volumes: HashMap::new(),
            refused: false,
            stopped: false,
        }
    }

    /// Adds the volumes with changes in the other segments of the log. `statistics` must cover all
    /// that those segments will ever hold.
    pub(crate) fn push_statistics(&mut self, statistics: &Statistics) {
        let key = self.segment.header.key();
        let writer = self.writer.as_mut().expect("a new head is not sealed");
        assert_eq!(writer.back(), 0, "statistics come before all changes");
        let mut entry = EntryHeader::plain(Kind::Statistics, writer.front());
        entry.span = u64::from(!statistics.whole);
        push_entry(writer, key, entry, &encode_statistics(&statistics.volumes));
        if !statistics.marks.is_empty() {
            let entry = EntryHeader::plain(Kind::Marks, writer.front());
            push_entry(writer, key, entry, &encode_marks(&statistics.marks));
        }
        writer.publish();
    }

    /// Resumes a head of an earlier life, to be committed and sealed; no change is appended to it.
    pub(crate) fn resume(
        segment: Arc<Segment>,
        file: Arc<dyn File>,
        writer: Writer,
        durable: u32,
    ) -> Head {
        let memory = writer.memory();
        let durable = durable.min(writer.front());
        let front = memory.front(0, writer.front()).expect("what is resumed is published");
        // Behind a certificate at the end no other is needed, and there may be no room for one.
        // Else the next certificate covers the descriptors of the entries behind the last certified
        // end.
        let sector = segment.header.sector;
        let room = (writer.front() + ENTRY_BYTES).next_multiple_of(sector);
        let no_room = room + writer.back().next_multiple_of(FOOT_BYTES) + FOOT_BYTES
            > segment.header.capacity;
        let (mut certified, is_whole) = certified_ends(front, &segment.header, durable);
        if no_room && !is_whole {
            certified.push_back(writer.front());
        }
        let certified_front = certified.back().copied().unwrap_or(durable);
        let is_open = |bytes: &&[u8]| {
            let entry = EntryHeader::decode_verified(bytes, segment.header.key());
            entry.is_ok_and(|entry| entry.offset >= certified_front)
        };
        let descriptors = memory.back().chunks_exact(ENTRY_BYTES as usize);
        let open = descriptors.take_while(is_open).count();
        let certified_back = writer.back() - u32::try_from(open).unwrap_or(0) * ENTRY_BYTES;
        Head {
            segment,
            file,
            certified,
            certified_back,
            unconfirmed: false,
            before: (0, 0),
            writer: Some(writer),
            memory,
            base: 0,
            durable,
            volumes: HashMap::new(),
            refused: false,
            stopped: true,
        }
    }

    /// Resumes a head of an earlier life that is sealed in memory and not known to be on flash.
    pub(crate) fn resume_sealed(
        segment: Arc<Segment>,
        file: Arc<dyn File>,
        memory: Memory,
        durable: u32,
    ) -> Head {
        let durable = durable.min(memory.front_length());
        let front = memory.front(0, memory.front_length()).unwrap_or_default();
        let certified = certified_ends(front, &segment.header, durable).0;
        Head {
            segment,
            file,
            writer: None,
            certified,
            certified_back: 0,
            unconfirmed: false,
            before: (0, 0),
            durable,
            memory,
            base: 0,
            volumes: HashMap::new(),
            refused: false,
            stopped: true,
        }
    }

    /// Ends appends: the head is about to be sealed.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Bytes appended, from the segment's beginning.
    pub(crate) fn front(&self) -> u32 {
        self.writer.as_ref().map_or_else(|| self.memory.front_length(), Writer::front)
    }

    /// The position at which the log ends.
    pub(crate) fn position(&self) -> u64 {
        self.base + u64::from(self.front())
    }

    pub(crate) fn durable(&self) -> u32 {
        self.durable
    }

    /// Bytes that are on flash, and the changes and releases within them; while a batch is written,
    /// those before it.
    pub(crate) fn known_end(&self) -> (u32, u32) {
        match self.certified.is_empty() {
            true => (self.durable, self.certified_back / ENTRY_BYTES),
            false => self.before,
        }
    }

    /// Whether half of the segment is taken: then the next head should be opened.
    pub(crate) fn is_half_full(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|w| w.front() + w.back() >= self.segment.header.capacity / 2)
    }

    /// Whether `entries` more, with `payload` bytes of padded payload together, leave room for the
    /// certificate, the padding, the batch that confirms them, and the foot.
    fn fits(&self, entries: u32, payload: u32) -> bool {
        let Some(writer) = self.writer.as_ref().filter(|_| !self.stopped) else { return false };
        let front = writer.front() + entries * ENTRY_BYTES + payload + ENTRY_BYTES;
        let back = writer.back() + entries * ENTRY_BYTES;
        let sector = self.segment.header.sector;
        let total = front.next_multiple_of(sector) + back.next_multiple_of(FOOT_BYTES) + FOOT_BYTES;
        let to_confirm = if entries > 0 { sector } else { 0 };
        total + to_confirm <= self.segment.header.capacity
    }

    /// Whether `bytes` of payload may fit, as far as that can be told without the entries.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        let room = u32::try_from(bytes).is_ok_and(|bytes| bytes <= self.segment.header.capacity);
        !self.refused && room && self.fits(1, padded(u32::try_from(bytes).unwrap_or(u32::MAX)))
    }

    /// Copies changes in; returns `false` and copies nothing when they do not fit. They are
    /// published together: neither a certificate nor a death of the process falls within a group.
    /// The payloads' checksums are given, so that the caller could compute them before it took the
    /// lock of the heads.
    pub(crate) fn append(
        &mut self,
        changes: &[Append<'_>],
        payload_crcs: &[u32],
        places: &mut Vec<Place>,
    ) -> bool {
        let payload: u32 = changes.iter().map(|change| padded(payload_length(change))).sum();
        if !self.fits(u32::try_from(changes.len()).unwrap_or(u32::MAX / ENTRY_BYTES / 4), payload) {
            self.refused = true;
            return false;
        }
        let writer = self.writer.as_mut().expect("only an unsealed head fits anything");
        for (change, crc) in changes.iter().zip(payload_crcs) {
            let header = EntryHeader {
                kind: Kind::Change(change.change),
                joined: change.joined,
                offset: writer.front(),
                length: payload_length(change),
                payload_crc: *crc,
                volume: change.volume,
                serial: change.serial,
                position: change.position,
                span: change.span,
                generation: change.generation,
            };
            let bytes = header.encode(self.segment.header.key());
            writer.push_front(&bytes);
            writer.push_front(change.payload);
            writer.pad_front(crate::limits::GRAIN_BYTES);
            writer.push_back(&bytes);
            let highest = self.volumes.entry(change.volume).or_insert(change.serial);
            *highest = change.serial.max(*highest);
            places.push(Place {
                segment: Arc::clone(&self.segment),
                offset: header.offset,
                length: header.length,
            });
        }
        writer.publish();
        true
    }

    /// Appends a mark: changes of `volume` up to `serial`, here and before, are not needed any
    /// more. Returns the mark's offset, or `None` when there is no room.
    pub(crate) fn push_release(&mut self, volume: VolumeId, serial: Serial) -> Option<u32> {
        if !self.fits(1, 0) {
            return None;
        }
        let writer = self.writer.as_mut()?;
        let mut entry = EntryHeader::plain(Kind::Release, writer.front());
        (entry.volume, entry.serial) = (volume, serial);
        let bytes = entry.encode(self.segment.header.key());
        writer.push_front(&bytes);
        writer.push_back(&bytes);
        writer.publish();
        Some(entry.offset)
    }

    /// Adds an empty batch behind the last one that is on flash, if that has changes: so a start
    /// knows that it was durable. Returns whether there is anything to write.
    pub(crate) fn confirm(&mut self) -> bool {
        let is_worth_it = self.unconfirmed && self.durable == self.front() && self.fits(0, 0);
        if is_worth_it {
            self.certify();
        }
        is_worth_it
    }

    /// Ends the batch with a certificate and returns the next write; `None` when all is on flash.
    pub(crate) fn close_batch(&mut self) -> Option<Batch> {
        if self.durable == self.front() {
            return None;
        }
        let sector = self.segment.header.sector;
        // An earlier leader may have certified some bytes, and was dropped before all were written.
        if self.certified.is_empty() {
            self.certify();
        }
        let start = self.durable;
        let end = self.certified.front().copied().unwrap_or_else(|| self.front());
        assert!(
            start.is_multiple_of(sector) && end.is_multiple_of(sector) && start < end,
            "whole sectors are written"
        );
        let (segment, file) = (self.segment.id(), Arc::clone(&self.file));
        Some(Batch { segment, memory: self.memory.clone(), file, start, end })
    }

    fn certify(&mut self) {
        if self.certified.is_empty() {
            self.before = (self.durable, self.certified_back / ENTRY_BYTES);
        }
        let Some(writer) = self.writer.as_mut() else { return };
        let key = self.segment.header.key();
        let back = writer.back() - self.certified_back;
        let table = &self.memory.back()[..back as usize];
        let listed = writer.back() / ENTRY_BYTES;
        let entry = EntryHeader::certificate(key, writer.front(), table, listed);
        writer.push_front(&entry.encode(key));
        writer.pad_front(self.segment.header.sector);
        writer.publish();
        self.certified.push_back(writer.front());
        self.certified_back = writer.back();
        self.unconfirmed = back > 0;
    }

    /// Notes that a batch is on flash, up to `end`.
    pub(crate) fn set_durable(&mut self, end: u32) {
        assert!(end >= self.durable && end <= self.front(), "durability only grows");
        self.durable = end;
        self.certified.pop_front_if(|certified| *certified <= end);
        self.memory.note_durable(end);
    }

    /// Ends the segment in memory: no append fits any more. The whole front must be on flash.
    /// Returns the write of the segment's end. May be called again when that write was given up.
    pub(crate) fn seal(&mut self, successor: Option<SegmentId>) -> Seal {
        if let Some(mut writer) = self.writer.take() {
            assert!(self.stopped, "appends have been stopped");
            assert_eq!(self.durable, writer.front(), "what is sealed is on flash");
            let changes = writer.back();
            let table_crc = self.segment.header.key().checksum(self.memory.back());
            // The padding is published together with the foot that tells it from descriptors.
            writer.pad_back(FOOT_BYTES);
            let foot = Foot {
                segment: self.segment.id(),
                birth: self.segment.header.birth,
                successor,
                front: writer.front(),
                changes: changes / ENTRY_BYTES,
                table: writer.back(),
                table_crc,
            };
            self.memory = writer.finish(&foot.encode());
        }
        let (memory, file) = (self.memory.clone(), Arc::clone(&self.file));
        Seal { memory, file, capacity: self.segment.header.capacity }
    }
}

fn payload_length(change: &Append<'_>) -> u32 {
    u32::try_from(change.payload.len()).expect("an append that was checked is far below 4 GiB")
}

fn push_entry(writer: &mut Writer, key: Key, mut header: EntryHeader, payload: &[u8]) {
    header.length = u32::try_from(payload.len()).expect("a digest is far below 4 GiB");
    header.payload_crc = crc32c(payload);
    writer.push_front(&header.encode(key));
    writer.push_front(payload);
    writer.pad_front(crate::limits::GRAIN_BYTES);
}
