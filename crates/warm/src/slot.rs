//! Slots: append-only memory with one writer and any number of readers.
//!
//! Why the slices handed out are sound:
//! - a slot's bytes are reached only through its [`Core`]; there is one core a slot, because
//!   [`Slot`] is not `Clone`, a slot becomes a [`Writer`] or a [`Memory`] by value, and comes back
//!   only when its core has a single holder;
//! - a core that is dropped gives its index to the arena's free list, so no slot is ever lost: not
//!   by a task that is given up, nor by a reader that outlives the segment;
//! - the only writes are the `Writer`'s, through `&mut self`, and only into bytes that are not
//!   published;
//! - readers reach only published bytes: the bounds are loaded (Acquire) from a word that the
//!   writer stores (Release) after it has written the bytes;
//! - the lengths that bound a slice are kept in ordinary memory, so that a damaged mapping cannot
//!   move them;
//! - no other process writes: the log's folder lock keeps a second daemon out.

use crate::format::{Label, LabelBytes, Published, durable_pack, durable_unpack};
use crate::limits::{FOOT_BYTES, GRAIN_BYTES};
use crate::mapping::Mapping;
use rekindle_base::SegmentId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The certificate of a slot. Only its own words are checked, not the segment's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate {
    pub label: Label,
    /// Published bytes from the slot's beginning.
    pub front: u32,
    /// Published bytes before the foot (descriptors).
    pub back: u32,
    /// Whether the foot is written.
    pub foot: bool,
    /// Bytes that [`Memory::note_durable`] was given last; 0 when they are not known.
    pub durable: u32,
}

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotContent {
    /// Nothing.
    Empty,
    /// A segment, as far as the certificate tells.
    Certified(Certificate),
    /// Something was published, but its certificate is damaged.
    Damaged {
        /// The segment, if its label can be read.
        segment: Option<SegmentId>,
    },
}

/// One slot: zero or more bytes of a segment, owned by the code that took the slot.
pub struct Slot {
    core: Core,
}

/// The one way to a slot's bytes. On drop, the slot goes back to the arena, with its content.
pub(crate) struct Core {
    arena: Arc<Mapping>,
    index: usize,
    segment: SegmentId,
    /// Lengths published, as [`Published::word`].
    published: AtomicU64,
}

/// Read access to the published bytes of a slot; clones are cheap. The bytes do not change while
/// one exists.
#[derive(Clone)]
pub struct Memory {
    core: Arc<Core>,
}

/// The only writer of a slot.
pub struct Writer {
    core: Arc<Core>,
    /// Bytes written from the beginning, published or not.
    front: u32,
    /// Bytes written before the foot, published or not.
    back: u32,
}

impl Slot {
    pub(crate) fn new(arena: Arc<Mapping>, index: usize) -> Slot {
        Slot { core: Core { arena, index, segment: SegmentId(0), published: AtomicU64::new(0) } }
    }

    /// Number of the slot in the arena.
    #[must_use]
    pub fn index(&self) -> usize {
        self.core.index
    }

    /// The content of the slot.
    #[must_use]
    pub fn content(&self) -> SlotContent {
        match self.core.certificate() {
            Some(certificate) => SlotContent::Certified(certificate),
            None if self.core.arena.word(self.core.index, 0).load(Ordering::Acquire) == 0 => {
                SlotContent::Empty
            }
            None => SlotContent::Damaged { segment: self.core.label().map(|label| label.segment) },
        }
    }

    /// The slot's certificate; `None` when the slot is empty or the certificate is damaged.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        self.core.certificate()
    }

    /// Forgets the slot's content and makes room for a new segment. Nothing is published until
    /// [`Writer::publish`].
    #[must_use]
    pub fn begin(mut self, label: Label) -> Writer {
        self.core.forget();
        self.core.segment = label.segment;
        self.core.write_label(label);
        Writer { core: Arc::new(self.core), front: 0, back: 0 }
    }

    /// Keeps the certified content for reading; gives the slot back when there is none.
    pub fn keep(mut self) -> Result<Memory, Slot> {
        match self.core.adopt() {
            Some(_) => Ok(Memory { core: Arc::new(self.core) }),
            None => Err(self),
        }
    }

    /// Keeps the certified content and goes on writing behind it. Gives the slot back when there is
    /// none, or when the segment in it is finished.
    pub fn resume(mut self) -> Result<Writer, Slot> {
        match self.core.adopt() {
            Some(state) if !state.foot => {
                Ok(Writer { core: Arc::new(self.core), front: state.front, back: state.back })
            }
            _ => Err(self),
        }
    }

    /// Marks the slot empty, also for the next process.
    pub fn clear(&mut self) {
        self.core.forget();
    }
}

impl Writer {
    /// Read access to the bytes that have been and will be published.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory { core: Arc::clone(&self.core) }
    }

    /// Bytes written from the beginning, published or not.
    #[must_use]
    pub fn front(&self) -> u32 {
        self.front
    }

    /// Bytes written before the foot, published or not.
    #[must_use]
    pub fn back(&self) -> u32 {
        self.back
    }

    /// Bytes between the two ends.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.core.capacity() - FOOT_BYTES - self.front - self.back
    }

    /// Writes `bytes` at the front. Not yet published.
    pub fn push_front(&mut self, bytes: &[u8]) {
        let length = self.fit(bytes.len());
        // SAFETY: `fit` has checked that these bytes lie between front and back. They are not
        // published, so no reader reaches them, and `&mut self` of the only writer keeps other
        // writes out.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.core.at(self.front), bytes.len())
        };
        self.front += length;
    }

    /// Writes zeros at the front up to a multiple of `alignment`. Not yet published.
    pub fn pad_front(&mut self, alignment: u32) {
        let length = self.fit((self.front.next_multiple_of(alignment) - self.front) as usize);
        // SAFETY: as in `push_front`.
        unsafe { std::ptr::write_bytes(self.core.at(self.front), 0, length as usize) };
        self.front += length;
    }

    /// Writes `bytes` below the present descriptors. Not yet published.
    pub fn push_back(&mut self, bytes: &[u8]) {
        let length = self.fit(bytes.len());
        self.back += length;
        // SAFETY: as in `push_front`; the bytes end where the descriptors so far begin.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.core.at(self.back_start()),
                bytes.len(),
            )
        };
    }

    /// Writes zeros below the descriptors until they make a multiple of `alignment`. Not yet
    /// published.
    pub fn pad_back(&mut self, alignment: u32) {
        let length = self.fit((self.back.next_multiple_of(alignment) - self.back) as usize);
        self.back += length;
        // SAFETY: as in `push_back`.
        unsafe { std::ptr::write_bytes(self.core.at(self.back_start()), 0, length as usize) };
    }

    /// Publishes all written bytes: from here on they outlive the process, all of them or none.
    pub fn publish(&mut self) {
        self.core.publish(Published { front: self.front, back: self.back, foot: false });
    }

    /// Writes the foot, publishes everything, and writes no more.
    pub fn finish(self, foot: &[u8; FOOT_BYTES as usize]) -> Memory {
        let start = self.core.capacity() - FOOT_BYTES;
        // SAFETY: the foot's bytes are published only below, once in the life of a writer, which
        // ends here.
        unsafe { std::ptr::copy_nonoverlapping(foot.as_ptr(), self.core.at(start), foot.len()) };
        self.core.publish(Published { front: self.front, back: self.back, foot: true });
        Memory { core: self.core }
    }

    fn back_start(&self) -> u32 {
        self.core.capacity() - FOOT_BYTES - self.back
    }

    fn fit(&self, length: usize) -> u32 {
        assert!(
            length <= self.room() as usize,
            "{length} bytes do not fit the {} that are left",
            self.room()
        );
        u32::try_from(length).expect("below the room")
    }
}

impl Memory {
    /// Published bytes from `start` to `end`; `None` when not all of them are published.
    #[must_use]
    pub fn front(&self, start: u32, end: u32) -> Option<&[u8]> {
        let state = self.core.state();
        // SAFETY: these bytes are published (see the top of the file).
        (start <= end && end <= state.front).then(|| unsafe { self.core.slice(start, end) })
    }

    /// Bytes published at the front.
    #[must_use]
    pub fn front_length(&self) -> u32 {
        self.core.state().front
    }

    /// The published descriptors, the newest first.
    #[must_use]
    pub fn back(&self) -> &[u8] {
        let end = self.core.capacity() - FOOT_BYTES;
        // SAFETY: these bytes are published (see the top of the file).
        unsafe { self.core.slice(end - self.core.state().back, end) }
    }

    /// Descriptors and foot up to the end of the slot, once the writer has finished.
    #[must_use]
    pub fn tail(&self) -> Option<&[u8]> {
        let state = self.core.state();
        let end = self.core.capacity();
        // SAFETY: these bytes are published (see the top of the file).
        state.foot.then(|| unsafe { self.core.slice(end - FOOT_BYTES - state.back, end) })
    }

    /// Number of the slot.
    #[must_use]
    pub fn index(&self) -> usize {
        self.core.index
    }

    /// Notes, for the next process, up to where the segment is on flash.
    pub fn note_durable(&self, bytes: u32) {
        self.core
            .arena
            .word(self.core.index, 1)
            .store(durable_pack(bytes, self.core.segment), Ordering::Release);
    }

    /// Gives the slot back when no other holder reads or writes it; its certificate stays.
    pub fn into_slot(self) -> Result<Slot, Memory> {
        Arc::try_unwrap(self.core).map(|core| Slot { core }).map_err(|core| Memory { core })
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.arena.free.lock().push(self.index);
    }
}

impl Core {
    fn capacity(&self) -> u32 {
        self.arena.slot_bytes
    }

    /// Address of the byte `offset` of the slot.
    fn at(&self, offset: u32) -> *mut u8 {
        debug_assert!(offset <= self.capacity(), "inside the slot");
        self.arena.slot_base(self.index).wrapping_add(offset as usize)
    }

    /// # Safety
    /// `start..end` is published.
    unsafe fn slice(&self, start: u32, end: u32) -> &[u8] {
        assert!(start <= end && end <= self.capacity(), "inside the slot");
        // SAFETY: the caller says that the bytes are published, so no code writes them while a core
        // is held.
        unsafe { std::slice::from_raw_parts(self.at(start), (end - start) as usize) }
    }

    fn state(&self) -> Published {
        Published::from_word(self.published.load(Ordering::Acquire))
    }

    fn publish(&self, state: Published) {
        assert!(
            state.front > 0 && state.front.is_multiple_of(GRAIN_BYTES),
            "something is published, in whole grains"
        );
        self.published.store(state.word(), Ordering::Release);
        self.arena.word(self.index, 0).store(state.pack(self.segment), Ordering::Release);
    }

    fn forget(&mut self) {
        self.arena.word(self.index, 0).store(0, Ordering::Release);
        self.arena.word(self.index, 1).store(0, Ordering::Release);
        self.published.store(0, Ordering::Release);
        self.segment = SegmentId(0);
    }

    fn write_label(&mut self, label: Label) {
        let bytes = LabelBytes::encode(label, self.index);
        // SAFETY: the record of this slot is written by the owner of its core only, and `&mut self`
        // is exclusive.
        unsafe { self.arena.label(self.index).write_unaligned(bytes) };
    }

    fn label(&self) -> Option<Label> {
        // SAFETY: the label is written through `&mut Core` only; any bytes are a valid
        // `LabelBytes`.
        unsafe { self.arena.label(self.index).read_unaligned() }.decode(self.index)
    }

    fn certificate(&self) -> Option<Certificate> {
        let label = self.label()?;
        let packed = self.arena.word(self.index, 0).load(Ordering::Acquire);
        let state = Published::unpack(packed, label.segment, self.capacity())?;
        let durable =
            durable_unpack(self.arena.word(self.index, 1).load(Ordering::Acquire), label.segment);
        Some(Certificate { label, front: state.front, back: state.back, foot: state.foot, durable })
    }

    /// Takes over the state that the certificate tells.
    fn adopt(&mut self) -> Option<Published> {
        let certificate = self.certificate()?;
        let state =
            Published { front: certificate.front, back: certificate.back, foot: certificate.foot };
        self.segment = certificate.label.segment;
        self.published.store(state.word(), Ordering::Release);
        Some(state)
    }
}
