//! The mapped bytes of an arena: headers, the certificate table, and where each slot lies.

use crate::format::{
    FRAMES_HEADER_AT, FRAMES_HEADER_BYTES, FramesHeader, LabelBytes, NoHeader, RECORD_BYTES,
};
use crate::frames::{Beginning, Frames};
use crate::limits::{SLOT_BYTES_MAX, SLOTS_MAX};
use parking_lot::Mutex;
use rekindle_base::limits::SEGMENT_BYTES;
use rekindle_env::Region;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) const HEADER_PAGE_BYTES: usize = 4096;
/// Offset of the first slot, bytes. It does not depend on the number of slots.
pub(crate) const SLOTS_START: usize = HEADER_PAGE_BYTES + SLOTS_MAX * RECORD_BYTES;

const _: () = assert!(SEGMENT_BYTES == SLOT_BYTES_MAX as u64, "a slot holds a segment");
const _: () = assert!(SLOTS_START.is_multiple_of(4096), "slots are page-aligned");

/// The state in which an arena was found when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Began {
    /// Nothing was there.
    New,
    /// The content of an earlier process was kept.
    Kept,
    /// As `Kept`; one of the two headers was damaged, and is mended.
    Mended,
    /// Both headers were damaged: the slots are fresh, and changes that only they had are lost.
    Damaged,
}

pub(crate) struct Mapping {
    pub(crate) region: Arc<dyn Region>,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: u32,
    pub(crate) outlives_process: bool,
    pub(crate) began: Began,
    pub(crate) salt: u64,
    pub(crate) taken: AtomicBool,
    /// Slots whose last holder is gone, after [`crate::Arena::take_slots`].
    pub(crate) free: Mutex<Vec<usize>>,
}

pub(crate) fn length_of(slots: usize, slot_bytes: u32) -> u64 {
    SLOTS_START as u64 + slots as u64 * u64::from(slot_bytes)
}

impl Mapping {
    pub(crate) fn new(
        region: Arc<dyn Region>,
        slots: usize,
        slot_bytes: u32,
        outlives_process: bool,
        began: Began,
        salt: u64,
    ) -> io::Result<Mapping> {
        let enough = region.length() as u64 >= length_of(slots, slot_bytes);
        if !enough || !region.base().addr().is_multiple_of(RECORD_BYTES) {
            return Err(io::Error::other("the mapped region is too short or not aligned"));
        }
        Ok(Mapping {
            region,
            slots,
            slot_bytes,
            outlives_process,
            began,
            salt,
            taken: AtomicBool::new(false),
            free: Mutex::default(),
        })
    }

    /// Address of a slot's first byte.
    pub(crate) fn slot_base(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "there is such a slot");
        self.region.base().wrapping_add(SLOTS_START + slot * self.slot_bytes as usize)
    }

    /// One of the two atomic words of a slot's record.
    pub(crate) fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot < SLOTS_MAX && word < 2, "there is such a word");
        let address =
            self.region.base().wrapping_add(HEADER_PAGE_BYTES + slot * RECORD_BYTES + word * 8);
        // SAFETY: inside the region (checked in `new`), aligned to 8 because the base is aligned to
        // 64, mapped for as long as `self` lives, and only ever reached as an atomic.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }

    /// The label of a slot's record: its bytes behind the two words.
    pub(crate) fn label(&self, slot: usize) -> *mut LabelBytes {
        assert!(slot < SLOTS_MAX, "there is such a record");
        self.region.base().wrapping_add(HEADER_PAGE_BYTES + slot * RECORD_BYTES + 16).cast()
    }

    pub(crate) fn is_used(&self) -> bool {
        (0..SLOTS_MAX).any(|slot| self.word(slot, 0).load(Ordering::Acquire) != 0)
    }

    pub(crate) fn wipe_slots(&self) {
        (0..SLOTS_MAX).for_each(|slot| self.wipe_if_used(slot));
    }

    pub(crate) fn wipe_if_used(&self, slot: usize) {
        // Reads before it writes: a fresh file's table stays untouched memory.
        for word in 0..2 {
            if self.word(slot, word).load(Ordering::Acquire) != 0 {
                self.word(slot, word).store(0, Ordering::Release);
            }
        }
    }

    /// Opens the frames behind the slots: those of an earlier process when their header is `wanted`
    /// but for the salt.
    pub(crate) fn frames(
        &self,
        region: Arc<dyn Region>,
        wanted: FramesHeader,
        old: Result<FramesHeader, NoHeader>,
    ) -> io::Result<Frames> {
        let began = match old {
            Ok(old) if old == (FramesHeader { salt: old.salt, ..wanted }) => Beginning::Kept,
            Ok(old) if (old.node, old.store) != (wanted.node, wanted.store) => Beginning::Foreign,
            Ok(_) => Beginning::Resized,
            Err(NoHeader::Nothing) => Beginning::New,
            Err(NoHeader::Damaged) => Beginning::Damaged,
            Err(NoHeader::OtherLayout(_)) => Beginning::OtherLayout,
        };
        let salt = match old {
            Ok(old) if began == Beginning::Kept => old.salt,
            _ => {
                // The content of the sets stays where it is: under the new salt none of it
                // verifies.
                self.write_header(FRAMES_HEADER_AT, &[0; FRAMES_HEADER_BYTES]);
                self.write_header(FRAMES_HEADER_AT, &wanted.encode());
                wanted.salt
            }
        };
        let start = usize::try_from(wanted.start).expect("it was mapped");
        Frames::new(region, start, wanted.sets as usize, salt, began)
    }

    pub(crate) fn write_header(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= HEADER_PAGE_BYTES, "headers lie in the header page");
        // SAFETY: called before the arena is in use, by the task that opens it; the region is
        // longer than its header page.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.region.base().add(at), bytes.len());
        };
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}
