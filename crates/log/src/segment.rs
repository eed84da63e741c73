//! A segment as readers see it, and the places in it.
//!
//! A [`Place`] holds its [`Segment`]. File and slot go back to the pool when the last holder lets
//! go, so neither is reused under a reader. A slot alone may be taken earlier (see [`spare_slot`]):
//! readers copy under the `memory` lock and go to flash afterwards.

use crate::Error;
use crate::format::{ENTRY_BYTES, EntryHeader, HEADER_BYTES, SegmentHeader, Who};
use crate::limits::{EXHAUSTED_RETRY, GRAIN_BYTES, READ_AHEAD_GAP, READ_TRIES};
use crate::machine::table::{Needed, Table};
use crate::segment_pool::SegmentPool;
use parking_lot::RwLock;
use rekindle_base::SegmentId;
use rekindle_base::checksum::crc32c;
use rekindle_env::{File, Open};
use rekindle_warm::{Memory, Slot};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The place of a change's payload. While it is held, the segment's bytes are not reused.
#[derive(Clone)]
pub struct Place {
    pub(crate) segment: Arc<Segment>,
    /// Offset of the entry in the segment.
    pub(crate) offset: u32,
    /// Payload bytes.
    pub(crate) length: u32,
}

pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// Number of the segment's file; `None` when the file is gone and memory has the only copy.
    pub(crate) file: Option<u32>,
    pool: Arc<SegmentPool>,
    memory: RwLock<Option<Memory>>,
    /// The whole segment, seal included, is on flash: memory is only a faster copy.
    on_flash: AtomicBool,
    /// The device has refused to give parts of the segment's file: the file is not used again.
    spoilt: AtomicBool,
    /// Payload bytes that were read along with others, which the destager does once.
    read_back: AtomicU32,
    /// This process made the segment: its memory needs no check.
    ours: bool,
    verified_memory: Bits,
}

/// One bit for each entry; allocated at first use.
#[derive(Default)]
struct Bits {
    words: OnceLock<Box<[AtomicU64]>>,
}

impl Bits {
    fn has(&self, offset: u32) -> bool {
        let bit = offset / GRAIN_BYTES;
        self.words.get().is_some_and(|words| {
            words[(bit / 64) as usize].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
        })
    }

    fn set(&self, offset: u32, capacity: u32) {
        let bit = offset / GRAIN_BYTES;
        let words = self
            .words
            .get_or_init(|| (0..=capacity / GRAIN_BYTES / 64).map(|_| AtomicU64::new(0)).collect());
        words[(bit / 64) as usize].fetch_or(1 << (bit % 64), Ordering::Relaxed);
    }
}

impl Segment {
    pub(crate) fn new(
        pool: &Arc<SegmentPool>,
        header: SegmentHeader,
        file: Option<u32>,
        memory: Option<Memory>,
        ours: bool,
    ) -> Segment {
        Segment {
            header,
            file,
            pool: Arc::clone(pool),
            memory: RwLock::new(memory),
            on_flash: AtomicBool::new(false),
            spoilt: AtomicBool::new(false),
            read_back: AtomicU32::new(0),
            ours,
            verified_memory: Bits::default(),
        }
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.header.segment
    }

    /// The file and identity by which digests name the segment, beside its number.
    pub(crate) fn named(&self) -> (Option<u32>, Option<Who>) {
        let SegmentHeader { incarnation, birth, .. } = self.header;
        (self.file, Some(Who { incarnation, birth }))
    }

    pub(crate) fn pool(&self) -> &Arc<SegmentPool> {
        &self.pool
    }

    /// Whether the file at the segment's path is still the one that the segment is written to. One
    /// misread does not prove another file.
    pub(crate) async fn is_at_its_place(&self) -> std::io::Result<bool> {
        let Some(file) = self.file else { return Ok(true) };
        let file = self.pool.env.disk().open(&self.pool.path(file), Open::Read).await?;
        let mut bytes = [0; HEADER_BYTES as usize];
        for _ in 0..READ_TRIES {
            match file.read_at(&mut bytes, 0).await {
                Ok(()) if SegmentHeader::decode(&bytes) == Ok(self.header) => return Ok(true),
                Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// Notes that the whole segment is durable on flash.
    pub(crate) fn set_on_flash(&self) {
        assert!(self.file.is_some(), "what is on flash has a file");
        self.on_flash.store(true, Ordering::Release);
    }

    pub(crate) fn set_spoilt(&self) {
        self.spoilt.store(true, Ordering::Release);
    }

    /// Keeps the file of a spoilt segment: the log ends and still needs the file, which a later
    /// life may be able to read.
    pub(crate) fn keep_file(&self) {
        self.spoilt.store(false, Ordering::Release);
    }

    pub(crate) fn is_on_flash(&self) -> bool {
        self.on_flash.load(Ordering::Acquire)
    }

    /// Notes payload bytes that the destager has read.
    pub(crate) fn note_read_back(&self, bytes: u32) {
        self.read_back.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the destager has read most of the segment.
    fn was_read_back(&self) -> bool {
        self.read_back.load(Ordering::Relaxed) >= self.header.capacity / 4 * 3
    }

    /// Takes the slot, unless a reader holds its bytes for a moment. From here on the segment is
    /// read from flash, if it is there.
    fn give_up_memory(&self) -> Option<Slot> {
        let mut memory = self.memory.write();
        match memory.take()?.into_slot() {
            Ok(slot) => Some(slot),
            Err(busy) => {
                *memory = Some(busy);
                None
            }
        }
    }

    /// Runs `look` on the segment's memory, which stays during the call.
    pub(crate) fn with_memory<T>(&self, look: impl FnOnce(&Memory) -> T) -> Option<T> {
        self.memory.read().as_ref().map(look)
    }

    /// Reads bytes from flash as they are there, unchecked.
    pub(crate) async fn read_raw(&self, start: u32, end: u32) -> io::Result<Vec<u8>> {
        let file = self.pool.open(self.file, Open::Read).await?;
        let mut bytes = vec![0; (end - start) as usize];
        self.pool.read(&*file, &mut bytes, start).await?;
        Ok(bytes)
    }

    fn damaged(&self, offset: u32, reason: impl Into<String>) -> Error {
        Error::Damaged { segment: self.id(), offset, reason: reason.into() }
    }

    /// Checks an entry that lies whole in `bytes` (header, payload): its place and its checksums
    /// must match.
    pub(crate) fn check(&self, place: &Place, bytes: &[u8]) -> Result<(), Error> {
        let header = EntryHeader::decode(bytes, self.header.key())
            .map_err(|reason| self.damaged(place.offset, reason))?;
        if header.offset != place.offset || header.length != place.length {
            return Err(self.damaged(place.offset, "another entry lies where this one was"));
        }
        let payload = bytes.get(ENTRY_BYTES as usize..).unwrap_or_default();
        match payload.get(..place.length as usize) {
            Some(payload) if crc32c(payload) == header.payload_crc => Ok(()),
            _ => Err(self.damaged(place.offset, "the payload does not match its checksum")),
        }
    }
}

/// Hints that these places will be read soon: the bytes that only flash has are brought into
/// memory, in the order in which they lie there. The later read meets any failure again.
pub async fn read_ahead(places: impl Iterator<Item = &Place>) {
    let mut on_flash: Vec<&Place> =
        places.filter(|place| place.segment.with_memory(|_| ()).is_none()).collect();
    on_flash.sort_unstable_by_key(|place| (place.segment.id(), place.offset));
    let follows = |one: &&Place, next: &&Place| {
        one.segment.id() == next.segment.id()
            && next.offset <= one.offset + ENTRY_BYTES + one.length + READ_AHEAD_GAP
    };
    let mut opened: Option<(SegmentId, Arc<dyn File>)> = None;
    for run in on_flash.chunk_by(follows) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let segment = &first.segment;
        let file = match opened.take().filter(|(id, _)| *id == segment.id()) {
            Some((_, file)) => file,
            None => match segment.pool.open_to_read(segment.file).await {
                Ok(file) => file,
                Err(_) => continue,
            },
        };
        let end = last.offset + ENTRY_BYTES + last.length;
        let _ = file.read_ahead(u64::from(first.offset), u64::from(end - first.offset)).await;
        opened = Some((segment.id(), file));
    }
}

/// The slot of a segment that does not need it: of one that is dead, or was read back already, else
/// of one that is on flash. Of these the destager will read the oldest ones next, and clients what
/// they wrote last: one in between goes. A segment whose file is gone keeps its slot for as long as
/// it is needed.
pub(crate) fn spare_slot(table: &Table<Option<Arc<Segment>>>) -> Option<Slot> {
    let rows = || table.rows().filter_map(|(.., needed, _, held)| Some((needed, held.as_ref()?)));
    let is_dead = |needed: Needed| needed == Needed::By(0);
    let on_flash = rows().filter(|(_, segment)| segment.is_on_flash());
    let in_memory = on_flash.filter(|(_, segment)| segment.with_memory(|_| ()).is_some());
    let (done, live): (Vec<_>, Vec<_>) =
        in_memory.partition(|(needed, segment)| is_dead(*needed) || segment.was_read_back());
    let (older, newer) = live.split_at(live.len() / 4 * 3);
    let on_flash = done.iter().chain(newer).chain(older.iter().rev()).copied();
    let mut spare = on_flash.chain(rows().filter(|(needed, _)| is_dead(*needed)));
    spare.find_map(|(_, segment)| segment.give_up_memory())
}

impl Drop for Segment {
    fn drop(&mut self) {
        match (self.file, *self.spoilt.get_mut()) {
            (Some(file), false) => self.pool.give_back(file),
            (Some(file), true) => self.pool.remove_soon(file),
            (None, _) => {}
        }
    }
}

impl Place {
    /// Payload bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The number of the segment.
    #[cfg(test)]
    pub(crate) fn segment_id(&self) -> SegmentId {
        self.segment.id()
    }

    /// Copies payload bytes from `start` if they are in memory (and verified, or verified now).
    /// `false` when they are only on flash, or memory is damaged and flash has a copy. A plain
    /// call.
    pub fn read_now(&self, start: u32, out: &mut [u8]) -> Result<bool, Error> {
        self.assert_inside(start, out);
        let segment = &*self.segment;
        let read = segment.with_memory(|memory| -> Result<(), Error> {
            if !segment.ours && !segment.verified_memory.has(self.offset) {
                let whole = memory.front(self.offset, self.offset + ENTRY_BYTES + self.length);
                let whole = whole
                    .ok_or_else(|| segment.damaged(self.offset, "the entry is not in memory"))?;
                segment.check(self, whole)?;
                segment.verified_memory.set(self.offset, segment.header.capacity);
            }
            let first = self.offset + ENTRY_BYTES + start;
            let bytes =
                memory.front(first, first + u32::try_from(out.len()).expect("inside the payload"));
            out.copy_from_slice(
                bytes.ok_or_else(|| segment.damaged(self.offset, "the entry is not in memory"))?,
            );
            Ok(())
        });
        match read {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(_)) if segment.is_on_flash() => Ok(false),
            Some(Err(error)) => Err(error),
        }
    }

    /// Copies payload bytes from `start`, from memory or flash. Bytes from flash are verified each
    /// time, as a whole entry: a later read may be wrong where an earlier one was right, and wrong
    /// bytes would go to the datastore under a new checksum. A payload that the device refuses
    /// repeatedly counts as damaged, like one that it gives wrongly.
    pub async fn read(&self, start: u32, out: &mut [u8]) -> Result<(), Error> {
        if self.read_now(start, out)? {
            return Ok(());
        }
        let segment = &*self.segment;
        // The device has refused parts of this segment lately: do not wait for each change anew.
        let is_spoilt = segment.spoilt.load(Ordering::Acquire);
        for left in (0..READ_TRIES).rev() {
            match self.read_flash(start, out).await {
                // A wrong bit need not be on the medium: read again. It costs no wait.
                Ok(Err(_)) if left > 0 => {}
                Ok(checked) => return checked,
                Err(_) if left > 0 && !is_spoilt => segment.pool.env.sleep(EXHAUSTED_RETRY).await,
                Err(error) => {
                    segment.set_spoilt();
                    return Err(segment.damaged(self.offset, format!("it cannot be read: {error}")));
                }
            }
        }
        unreachable!("the last try returns")
    }

    /// Reads and checks the whole entry on flash. The outer error is the device's.
    async fn read_flash(&self, start: u32, out: &mut [u8]) -> io::Result<Result<(), Error>> {
        let segment = &*self.segment;
        let file = segment.pool.open(segment.file, Open::Read).await?;
        let mut whole = vec![0; (ENTRY_BYTES + self.length) as usize];
        segment.pool.read(&*file, &mut whole, self.offset).await?;
        if let Err(damaged) = segment.check(self, &whole) {
            return Ok(Err(damaged));
        }
        let first = (ENTRY_BYTES + start) as usize;
        out.copy_from_slice(&whole[first..first + out.len()]);
        Ok(Ok(()))
    }

    fn assert_inside(&self, start: u32, out: &[u8]) {
        let end = u64::from(start) + out.len() as u64;
        assert!(
            end <= u64::from(self.length),
            "{start}+{} is not inside a payload of {}",
            out.len(),
            self.length
        );
    }
}
