//! A segment as readers see it, and the places in it.
//!
//! Whoever holds a [`Place`] holds its [`Segment`]; file and slot go back to the depot when the last holder lets go,
//! so neither is reused under a reader. A slot alone may be taken earlier (see [`Segment::give_up_memory`]): readers
//! copy under the `memory` lock and go to flash afterwards.

use crate::Error;
use crate::depot::Depot;
use crate::format::{ENTRY_BYTES, EntryHeader, HEADER_BYTES, SegmentHeader, Who};
use crate::limits::{EXHAUSTED_RETRY, GRAIN_BYTES, READ_AHEAD_GAP, READ_TRIES};
use base::SegmentId;
use base::checksum::crc32c;
use env::{File, Open};
use parking_lot::RwLock;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use warm::{Memory, Slot};

/// Where a change's payload lies. Holding it keeps the segment's bytes from being reused.
#[derive(Clone)]
pub struct Place {
    pub(crate) segment: Arc<Segment>,
    /// Where the entry begins in the segment.
    pub(crate) offset: u32,
    /// Payload bytes.
    pub(crate) length: u32,
}

pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    /// Number of its file; `None` when it is only in memory (its file is gone).
    pub(crate) file: Option<u32>,
    depot: Arc<Depot>,
    memory: RwLock<Option<Memory>>,
    /// All of it, seal included, is on flash: memory is only a faster copy.
    on_flash: AtomicBool,
    /// The device has refused to give parts of its file, which is not to be used again.
    spoilt: AtomicBool,
    /// Made by this process: what is in memory is what was written.
    ours: bool,
    verified_memory: Bits,
}

/// One bit an entry, made at first use.
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
        depot: &Arc<Depot>,
        header: SegmentHeader,
        file: Option<u32>,
        memory: Option<Memory>,
        ours: bool,
    ) -> Segment {
        Segment {
            header,
            file,
            depot: Arc::clone(depot),
            memory: RwLock::new(memory),
            on_flash: AtomicBool::new(false),
            spoilt: AtomicBool::new(false),
            ours,
            verified_memory: Bits::default(),
        }
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.header.segment
    }

    /// What digests say of it, beside its number.
    pub(crate) fn named(&self) -> (Option<u32>, Option<Who>) {
        let SegmentHeader { incarnation, birth, .. } = self.header;
        (self.file, Some(Who { incarnation, birth }))
    }

    pub(crate) fn depot(&self) -> &Arc<Depot> {
        &self.depot
    }

    /// Whether the file of its name is the one that it is written to.
    pub(crate) async fn is_at_its_place(&self) -> std::io::Result<bool> {
        let Some(file) = self.file else { return Ok(true) };
        let file = self.depot.env.disk().open(&self.depot.path(file), Open::Read).await?;
        let mut bytes = [0; HEADER_BYTES as usize];
        match file.read_at(&mut bytes, 0).await {
            Ok(()) => Ok(SegmentHeader::decode(&bytes) == Ok(self.header)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Everything of it is durable on flash.
    pub(crate) fn set_on_flash(&self) {
        assert!(self.file.is_some(), "what is on flash has a file");
        self.on_flash.store(true, Ordering::Release);
    }

    pub(crate) fn set_spoilt(&self) {
        self.spoilt.store(true, Ordering::Release);
    }

    /// The log ends, and needs it still: what cannot be read today is for another day.
    pub(crate) fn keep_file(&self) {
        self.spoilt.store(false, Ordering::Release);
    }

    pub(crate) fn is_on_flash(&self) -> bool {
        self.on_flash.load(Ordering::Acquire)
    }

    /// The slot, when the segment does not need it: then it is read from flash from here on.
    pub(crate) fn give_up_memory(&self) -> Option<Slot> {
        if self.is_on_flash() { self.leave_memory() } else { None }
    }

    /// The slot, of a segment that nobody needs any more, wherever else it is: its file may be gone.
    pub(crate) fn leave_memory(&self) -> Option<Slot> {
        let mut memory = self.memory.write();
        match memory.take()?.into_slot() {
            Ok(slot) => Some(slot),
            Err(busy) => {
                *memory = Some(busy);
                None
            }
        }
    }

    /// Runs `look` on the segment's memory, which stays for so long.
    pub(crate) fn with_memory<T>(&self, look: impl FnOnce(&Memory) -> T) -> Option<T> {
        self.memory.read().as_ref().map(look)
    }

    fn damaged(&self, offset: u32, reason: impl Into<String>) -> Error {
        Error::Damaged { segment: self.id(), offset, reason: reason.into() }
    }

    /// Checks an entry that lies whole in `bytes` (header, payload): it is the one meant, and its payload is right.
    fn check(&self, place: &Place, bytes: &[u8]) -> Result<(), Error> {
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

/// Says that all these places will be read soon: what only flash has of them is brought into memory, in the order in which
/// it lies there. A hint; a failure is met again by whoever reads.
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
            None => match segment.depot.open_to_read(segment.file).await {
                Ok(file) => file,
                Err(_) => continue,
            },
        };
        let end = last.offset + ENTRY_BYTES + last.length;
        let _ = file.read_ahead(u64::from(first.offset), u64::from(end - first.offset)).await;
        opened = Some((segment.id(), file));
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let slot = self.memory.get_mut().take().and_then(|memory| memory.into_slot().ok());
        let spoilt = *self.spoilt.get_mut();
        self.depot.give_back(self.file.filter(|_| !spoilt), slot);
        if let (true, Some(file)) = (spoilt, self.file) {
            self.depot.remove_soon(file);
        }
    }
}

impl Place {
    /// Payload bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The segment, for messages.
    #[must_use]
    pub fn segment_id(&self) -> SegmentId {
        self.segment.id()
    }

    /// Copies payload bytes from `start` if they are in memory (and verified, or verified now); `false` when they are
    /// only on flash (or memory is damaged and flash has a copy). A plain call.
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

    /// Copies payload bytes from `start`, from memory or flash. What is read from flash is verified each time, as a whole: what
    /// was right once may be misread later, and would then go to the datastore under a new checksum. What the device
    /// refuses to give, again and again, is damaged like what it gives wrongly.
    pub async fn read(&self, start: u32, out: &mut [u8]) -> Result<(), Error> {
        if self.read_now(start, out)? {
            return Ok(());
        }
        let segment = &*self.segment;
        // Where it has refused something lately, nobody waits for each change anew.
        let tries = if segment.spoilt.load(Ordering::Acquire) { 1 } else { READ_TRIES };
        for left in (0..tries).rev() {
            match self.read_flash(start, out).await {
                // Not every wrong bit is on the medium.
                Ok(Err(_)) if left > 0 => {}
                Ok(checked) => return checked,
                Err(_) if left > 0 => segment.depot.env.sleep(EXHAUSTED_RETRY).await,
                Err(error) => {
                    segment.set_spoilt();
                    return Err(segment.damaged(self.offset, format!("it cannot be read: {error}")));
                }
            }
        }
        unreachable!("the last try returns")
    }

    /// The outer error is the device's.
    async fn read_flash(&self, start: u32, out: &mut [u8]) -> io::Result<Result<(), Error>> {
        let segment = &*self.segment;
        let file = segment.depot.open(segment.file, Open::Read).await?;
        let mut whole = vec![0; (ENTRY_BYTES + self.length) as usize];
        segment.depot.read(&*file, &mut whole, self.offset).await?;
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
