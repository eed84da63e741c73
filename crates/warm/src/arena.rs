//! The arena: a header page, the certificate table, the slots.

use crate::format::{HEADER_BYTES, Header, LabelBytes, RECORD_BYTES};
use crate::heap::Heap;
use crate::limits::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX};
use crate::slot::Slot;
use base::NodeId;
use base::limits::SEGMENT_BYTES;
use env::{Env, Region};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const HEADER_PAGE_BYTES: usize = 4096;
/// Where the slots begin, bytes. Does not depend on their number.
pub(crate) const SLOTS_START: usize = HEADER_PAGE_BYTES + SLOTS_MAX * RECORD_BYTES;

const _: () = assert!(SEGMENT_BYTES == SLOT_BYTES_MAX as u64, "a slot holds a segment");
const _: () = assert!(SLOTS_START.is_multiple_of(4096), "slots are page-aligned");

/// A mapped arena: slots of `base::limits::SEGMENT_BYTES` each. Clones mean the same arena.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    region: Arc<dyn Region>,
    slots: usize,
    pub(crate) slot_bytes: u32,
    outlives_process: bool,
    kept: bool,
    taken: AtomicBool,
}

impl Arena {
    /// Maps (or makes) the arena of `node` at `path`. Slots keep their content when header, layout version and node
    /// agree; else all are fresh. An arena that has more slots already keeps them: one may hold the only copy of an
    /// acknowledged change.
    ///
    /// Two daemons must not open one arena (a foreign one is made fresh!): put the node's id into `path`, and hold the
    /// node's own lock before.
    pub fn open(env: &Env, path: &Path, node: NodeId, slots: usize) -> io::Result<Arena> {
        Arena::open_sized(env, path, node, slots, SLOT_BYTES_MAX)
    }

    /// As [`Arena::open`], with slots of another size: for tests that want many small segments.
    pub fn open_sized(
        env: &Env,
        path: &Path,
        node: NodeId,
        slots: usize,
        slot_bytes: u32,
    ) -> io::Result<Arena> {
        check_shape(slots, slot_bytes);
        let found = read_header(&*env.memory().map(path, HEADER_PAGE_BYTES as u64)?);
        let agrees = |header: &Header| header.node == node && header.slot_bytes == slot_bytes;
        let old = found.ok().filter(agrees);
        let slots = old
            .map_or(slots, |header| slots.max(usize::try_from(header.slots).unwrap_or(SLOTS_MAX)));
        let region = env.memory().map(path, length_of(slots, slot_bytes))?;
        let inner = Inner::new(region, slots, slot_bytes, true, old.is_some())?;
        let header = Header { node, slots: slots as u64, slot_bytes };
        if old.is_none() {
            // The header goes first and comes last: a process killed in between leaves no header, not a wrong one.
            inner.write_header(&[0; HEADER_BYTES]);
            (0..SLOTS_MAX).for_each(|slot| inner.wipe_if_used(slot));
        }
        if old != Some(header) {
            inner.write_header(&header.encode());
        }
        Ok(Arena { inner: Arc::new(inner) })
    }

    /// An arena in ordinary memory: same use, forgotten with the process.
    #[must_use]
    pub fn volatile(slots: usize) -> Arena {
        Arena::volatile_sized(slots, SLOT_BYTES_MAX)
    }

    /// As [`Arena::volatile`], with slots of another size.
    #[must_use]
    pub fn volatile_sized(slots: usize, slot_bytes: u32) -> Arena {
        check_shape(slots, slot_bytes);
        let length =
            usize::try_from(length_of(slots, slot_bytes)).expect("an arena fits the address space");
        // Only address space is asked for here: to be refused that is to be out of memory, and handled as such.
        let heap = Heap::new(length)
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(std::alloc::Layout::new::<Heap>()));
        let inner = Inner::new(Arc::new(heap), slots, slot_bytes, false, false);
        Arena { inner: Arc::new(inner.expect("the kernel gave what was asked")) }
    }

    /// Bytes of the file of an arena of `slots` slots.
    #[must_use]
    pub fn file_bytes(slots: usize) -> u64 {
        length_of(slots, SLOT_BYTES_MAX)
    }

    /// Whether the content outlives the process.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.inner.outlives_process
    }

    /// Whether what an earlier process left was kept.
    #[must_use]
    pub fn was_kept(&self) -> bool {
        self.inner.kept
    }

    /// Slots there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.inner.slots
    }

    /// Bytes of one slot: the size of a segment.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.inner.slot_bytes
    }

    /// Takes every slot, in order. Once only: afterwards the log owns them, and nobody gets any.
    #[must_use]
    pub fn take_slots(&self) -> Vec<Slot> {
        if self.inner.taken.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        (0..self.inner.slots).map(|index| Slot::new(Arc::clone(&self.inner), index)).collect()
    }
}

fn check_shape(slots: usize, slot_bytes: u32) {
    assert!((1..=SLOTS_MAX).contains(&slots), "an arena has 1 to {SLOTS_MAX} slots, not {slots}");
    assert!(
        (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes),
        "a slot has {SLOT_BYTES_MIN} bytes or more"
    );
    assert!(slot_bytes.is_multiple_of(4096), "slots are whole pages");
}

fn length_of(slots: usize, slot_bytes: u32) -> u64 {
    SLOTS_START as u64 + slots as u64 * u64::from(slot_bytes)
}

fn read_header(region: &dyn Region) -> Result<Header, String> {
    assert!(region.length() >= HEADER_BYTES, "a page was asked for");
    let mut bytes = [0; HEADER_BYTES];
    // SAFETY: the region is at least as long, and nobody else has mapped it yet in this process; another process is
    // kept out by the log's folder lock.
    unsafe { std::ptr::copy_nonoverlapping(region.base(), bytes.as_mut_ptr(), HEADER_BYTES) };
    Header::decode(&bytes)
}

impl Inner {
    fn new(
        region: Arc<dyn Region>,
        slots: usize,
        slot_bytes: u32,
        outlives_process: bool,
        kept: bool,
    ) -> io::Result<Inner> {
        let enough = region.length() as u64 >= length_of(slots, slot_bytes);
        if !enough || !region.base().addr().is_multiple_of(RECORD_BYTES) {
            return Err(io::Error::other("the mapped region is too short or not aligned"));
        }
        Ok(Inner {
            region,
            slots,
            slot_bytes,
            outlives_process,
            kept,
            taken: AtomicBool::new(false),
        })
    }

    /// First byte of a slot.
    pub(crate) fn slot_base(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "there is such a slot");
        self.region.base().wrapping_add(SLOTS_START + slot * self.slot_bytes as usize)
    }

    /// One of the two atomic words of a slot's record.
    pub(crate) fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot < SLOTS_MAX && word < 2, "there is such a word");
        let address =
            self.region.base().wrapping_add(HEADER_PAGE_BYTES + slot * RECORD_BYTES + word * 8);
        // SAFETY: inside the region (checked in `new`), aligned to 8 because the base is aligned to 64, mapped for as
        // long as `self` lives, and only ever reached as an atomic.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }

    /// The label of a slot's record: its bytes behind the two words.
    pub(crate) fn label(&self, slot: usize) -> *mut LabelBytes {
        assert!(slot < SLOTS_MAX, "there is such a record");
        self.region.base().wrapping_add(HEADER_PAGE_BYTES + slot * RECORD_BYTES + 16).cast()
    }

    fn wipe_if_used(&self, slot: usize) {
        // Reads before it writes: a fresh file's table stays untouched memory.
        for word in 0..2 {
            if self.word(slot, word).load(Ordering::Acquire) != 0 {
                self.word(slot, word).store(0, Ordering::Release);
            }
        }
    }

    fn write_header(&self, bytes: &[u8; HEADER_BYTES]) {
        // SAFETY: called before the arena is handed out; the region is longer than its header page.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.region.base(), HEADER_BYTES) };
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}
