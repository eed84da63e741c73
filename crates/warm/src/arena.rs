//! The arena: a header page, the certificate table, the slots, the block frames.

use crate::format::{
    BadHeader, FRAMES_HEADER_AT, FRAMES_HEADER_BYTES, FramesHeader, HEADER_BYTES, HEADER_COPY_AT,
    Header, NoHeader, is_ours,
};
use crate::format::{home, users};
use crate::frames::{self, Frames};
use crate::heap::Heap;
use crate::limits::{SETS_MAX, SLOT_BYTES_MAX, SLOT_BYTES_MIN, SLOTS_MAX};
use crate::mapping::{Began, HEADER_PAGE_BYTES, Mapping, length_of};
use crate::slot::Slot;
use rekindle_base::{NodeId, StoreId};
use rekindle_env::{Env, Region};
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A mapped arena: slots of `rekindle_base::limits::SEGMENT_BYTES` each. Clones mean the same
/// arena.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Mapping>,
    frames: Option<Frames>,
}

/// The wanted shape of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Slots for segments, at least.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Block frames, if there shall be any.
    pub frames: Option<FramesShape>,
}

/// The wanted shape of an arena's frames part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramesShape {
    /// Bytes that the part may take. Too few for one set: no frames.
    pub bytes: u64,
    /// The store of the blocks. Frames of another store are not believed.
    pub store: StoreId,
}

impl Arena {
    /// Maps (or makes) the arena of `node` at `path`. Slots keep their content. An arena that has
    /// more slots already keeps them: a slot may hold the only copy of an acknowledged change. For
    /// the same reason an arena of another node or shape, or of a newer layout, is an error, and
    /// the file is left alone. So is a file that is no arena, because it may be precious to the
    /// user. See [`Arena::began`] for damage.
    ///
    /// Two daemons must not open one arena: hold the node's own lock before.
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
        Arena::open_shaped(env, path, node, Shape { slots, slot_bytes, frames: None })
    }

    /// As [`Arena::open`], with block frames. Slots and frames have headers and versions of their
    /// own: what is wrong with one does not touch the other.
    pub fn open_shaped(env: &Env, path: &Path, node: NodeId, shape: Shape) -> io::Result<Arena> {
        let Shape { slots, slot_bytes, .. } = shape;
        check_shape(slots, slot_bytes);
        let head = env.memory().head(path, HEADER_PAGE_BYTES)?;
        if head.is_some_and(|head| !is_ours(&head)) {
            // A file of zeros alone has no head, and counts as new.
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, STRANGE));
        }
        let page = env.memory().map(path, HEADER_PAGE_BYTES as u64)?;
        let (found, old_frames) = (find_header(&*page), read_frames_header(&*page));
        drop(page);
        let (old, began) = match found {
            HeaderPage::Header(header) => (Some(header), Began::Kept),
            HeaderPage::OneOfTwo(header) => (Some(header), Began::Mended),
            HeaderPage::Nothing => (None, Began::New),
            HeaderPage::Damaged => (None, Began::Damaged),
            HeaderPage::Newer { found, known } => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, newer(found, known)));
            }
        };
        if let Some(header) = old.filter(|old| (old.node, old.slot_bytes) != (node, slot_bytes)) {
            let reason = foreign(&header, node, slot_bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let slots = old
            .map_or(slots, |header| slots.max(usize::try_from(header.slots).unwrap_or(SLOTS_MAX)));
        let start = length_of(slots, slot_bytes);
        let sets = shape.frames.map_or(0, sets_of);
        let region = env.memory().map(path, start + frames::bytes_of(sets) as u64)?;
        let salt = old.map(|header| header.salt).filter(|&salt| salt != 0);
        let salt = salt.unwrap_or_else(|| new_salt(env));
        let mut inner = Mapping::new(region.clone(), slots, slot_bytes, true, began, salt)?;
        if began == Began::Damaged && !inner.is_used() {
            // No slot is used: a file that was cut within its header, as good as none.
            inner.began = Began::New;
        }
        let header = Header { node, slots: slots as u64, slot_bytes, salt };
        if old.is_none() {
            // The header is wiped first and written last: a process killed in between leaves no
            // header, not a wrong one.
            inner.write_header(0, &[0; HEADER_BYTES]);
            inner.write_header(HEADER_COPY_AT, &[0; HEADER_BYTES]);
            inner.wipe_slots();
        }
        if old != Some(header) || began == Began::Mended {
            // One header after the other, so that one of them is always whole.
            inner.write_header(HEADER_COPY_AT, &header.encode());
            inner.write_header(0, &header.encode());
        }
        let wanted = shape.frames.filter(|_| sets > 0).map(|frames| FramesHeader {
            node,
            store: frames.store,
            sets: u32::try_from(sets).expect("below the most"),
            start,
            salt: new_salt(env),
        });
        let frames = match (wanted, old_frames) {
            (None, Err(NoHeader::Nothing)) => None,
            (None, _) => {
                // A life that has frames again, after a life without them, must not find content
                // that the latter has not seen.
                inner.write_header(FRAMES_HEADER_AT, &[0; FRAMES_HEADER_BYTES]);
                None
            }
            (Some(wanted), old) => Some(inner.frames(region, wanted, old)?),
        };
        Ok(Arena { inner: Arc::new(inner), frames })
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
        // Only address space is asked for here: a refusal means that memory is out, and is handled
        // as such.
        let heap = Heap::new(length)
            .unwrap_or_else(|_| std::alloc::handle_alloc_error(std::alloc::Layout::new::<Heap>()));
        let inner = Mapping::new(Arc::new(heap), slots, slot_bytes, false, Began::New, 0);
        Arena { inner: Arc::new(inner.expect("the kernel gave what was asked")), frames: None }
    }

    /// Notes the folder to which the arena belongs, for a user that finds the file. Call it before
    /// the arena is used.
    pub fn note_home(&self, folder: &str) {
        self.inner.write_header(home::HOME_AT, &home::encode(folder));
    }

    /// The nonces of the starts that may have written here, as they noted themselves; none in an
    /// arena of an older binary.
    #[must_use]
    pub fn users(&self) -> Vec<u64> {
        let region = &*self.inner.region;
        let copy = |at: usize| users::decode(&copy_of::<{ users::USERS_BYTES }>(region, at));
        // A process may have been killed between the two writes: either copy may be the older one.
        let mut all: Vec<u64> = users::USERS_AT.into_iter().filter_map(copy).flatten().collect();
        let mut seen = HashSet::new();
        all.retain(|nonce| seen.insert(*nonce));
        all
    }

    /// Notes the starts that may have written here. A start notes itself beside those before it,
    /// before the node's record names it. Once the record does, and before the start writes
    /// anything, it notes itself alone.
    pub fn note_users(&self, nonces: &[u64]) {
        for at in users::USERS_AT {
            self.inner.write_header(at, &users::encode(nonces));
        }
    }

    /// The block frames, if the arena has any.
    #[must_use]
    pub fn frames(&self) -> Option<Frames> {
        self.frames.clone()
    }

    /// Bytes of the file of an arena of `slots` slots.
    #[must_use]
    pub fn file_bytes(slots: usize) -> u64 {
        length_of(slots, SLOT_BYTES_MAX)
    }

    /// Bytes of the file of this arena, frames included.
    #[must_use]
    pub fn file_length(&self) -> usize {
        self.inner.region.length()
    }

    /// Whether the content outlives the process.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        self.inner.outlives_process
    }

    /// Whether the content of an earlier process was kept.
    #[must_use]
    pub fn was_kept(&self) -> bool {
        matches!(self.inner.began, Began::Kept | Began::Mended)
    }

    /// Whether the arena's file has been removed: the content stays for as long as the arena is
    /// held, and the next start will not find it.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.inner.region.is_removed()
    }

    /// The state in which the arena was found.
    #[must_use]
    pub fn began(&self) -> Began {
        self.inner.began
    }

    /// Number that tells this arena from any other that the node may have had: random, drawn when
    /// the arena is made. 0 when the arena does not outlive the process.
    #[must_use]
    pub fn salt(&self) -> u64 {
        self.inner.salt
    }

    /// Forgets the content of slots and frames, also for the next process: another arena has been
    /// in use since. Call it before [`Arena::take_slots`].
    pub fn forget(&self) {
        assert!(!self.inner.taken.load(Ordering::Acquire), "no slots of it are given away yet");
        self.inner.wipe_slots();
        if let Some(frames) = &self.frames {
            frames.drop_all();
        }
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.inner.slots
    }

    /// Bytes of one slot: the size of a segment.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.inner.slot_bytes
    }

    /// Takes every slot, in order. Once only: a second call gives none. A slot comes back when its
    /// last holder is dropped, see [`Arena::free_slot`].
    #[must_use]
    pub fn take_slots(&self) -> Vec<Slot> {
        if self.inner.taken.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        (0..self.inner.slots).map(|index| Slot::new(Arc::clone(&self.inner), index)).collect()
    }

    /// Takes a slot that has come back, with the content that it had.
    #[must_use]
    pub fn free_slot(&self) -> Option<Slot> {
        let index = self.inner.free.lock().pop()?;
        Some(Slot::new(Arc::clone(&self.inner), index))
    }

    /// Count of the slots that have come back.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.inner.free.lock().len()
    }
}

/// The error for a file in which there never was an arena.
const STRANGE: &str = "it holds something, and that is no warm memory: it is left alone; name another file, or remove it";

fn check_shape(slots: usize, slot_bytes: u32) {
    assert!((1..=SLOTS_MAX).contains(&slots), "an arena has 1 to {SLOTS_MAX} slots, not {slots}");
    assert!(
        (SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes),
        "a slot has {SLOT_BYTES_MIN} bytes or more"
    );
    assert!(slot_bytes.is_multiple_of(4096), "slots are whole pages");
}

/// Sets that fit a budget.
fn sets_of(shape: FramesShape) -> usize {
    let sets = (shape.bytes / frames::set_bytes() as u64).min(SETS_MAX);
    usize::try_from(sets).unwrap_or(0)
}

fn newer(found: u32, known: u32) -> String {
    format!(
        "its layout {found} is of a newer rekindle than this one, which knows {known}; it may hold changes that are \
         nowhere else, so it is left alone: upgrade rekindle, or remove it to start without them"
    )
}

/// Draws a number that no earlier life of the part has had, and that no client can know.
fn new_salt(env: &Env) -> u64 {
    u64::from_le_bytes(env.random()) | 1
}

fn foreign(header: &Header, node: NodeId, slot_bytes: u32) -> String {
    if header.node == node {
        let found = header.slot_bytes;
        return format!("its slots have {found} bytes, here they have {slot_bytes}: remove it");
    }
    format!(
        "it belongs to node {}, this is node {node}; it may hold changes that are nowhere else, so it is left alone: name \
         another file, or remove it if that node is gone",
        header.node
    )
}

/// The finding of a header page, from its two headers.
enum HeaderPage {
    Header(Header),
    /// The other header is damaged, or not written yet. A missing second one is no damage: an older
    /// binary wrote the first one only.
    OneOfTwo(Header),
    Nothing,
    Damaged,
    Newer {
        found: u32,
        known: u32,
    },
}

fn find_header(page: &dyn Region) -> HeaderPage {
    let read = |at| {
        let bytes = copy_of::<HEADER_BYTES>(page, at);
        (Header::decode(&bytes), bytes == [0; HEADER_BYTES])
    };
    let ((first, first_is_empty), (second, second_is_empty)) = (read(0), read(HEADER_COPY_AT));
    for bad in [&first, &second] {
        if let &Err(BadHeader::Version { found, known }) = bad
            && found > known
        {
            return HeaderPage::Newer { found, known };
        }
    }
    match (first, second) {
        (Ok(header), Ok(_)) => HeaderPage::Header(header),
        (Ok(header), Err(_)) if second_is_empty => HeaderPage::Header(header),
        (Ok(header), Err(_)) | (Err(_), Ok(header)) => HeaderPage::OneOfTwo(header),
        (Err(_), Err(_)) if first_is_empty && second_is_empty => HeaderPage::Nothing,
        (Err(_), Err(_)) => HeaderPage::Damaged,
    }
}

fn read_frames_header(page: &dyn Region) -> Result<FramesHeader, NoHeader> {
    FramesHeader::decode(&copy_of::<FRAMES_HEADER_BYTES>(page, FRAMES_HEADER_AT))
}

fn copy_of<const N: usize>(page: &dyn Region, at: usize) -> [u8; N] {
    assert!(page.length() >= at + N, "a page was asked for");
    let mut bytes = [0; N];
    // SAFETY: the region is at least as long. This process writes the header page only before the
    // arena is in use, by the task that opens it; another process is kept out by the log's folder
    // lock.
    unsafe { std::ptr::copy_nonoverlapping(page.base().add(at), bytes.as_mut_ptr(), N) };
    bytes
}
