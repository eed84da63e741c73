//! Looks for segments at start: in the folder and in warm memory. Reads headers only, and of the
//! newest heads the parts that decide what the log is.

use crate::Error;
use crate::format::{
    BadHeader, EntryHeader, FOOT_BYTES, Foot, HEADER_BYTES, Key, Named, SegmentHeader, VERSION, Who,
};
use crate::limits::{GRAIN_BYTES, READ_TRIES};
use crate::machine::history::{End, Probe};
use crate::segment_pool::SegmentPool;
use crate::walk::{Opening, Walk, goes_on, proof, read_opening, walk};
use rekindle_base::SegmentId;
use rekindle_env::{FileKind, Open};
use rekindle_warm::{Certificate, Memory, Slot, SlotContent};
use std::collections::BTreeMap;

/// First bytes read of a head to find its digest; a digest of 4,000 segments fits.
const OPENING_BYTES: u32 = 64 << 10;

/// Pieces in which a partly unreadable file is read.
const PIECE_BYTES: usize = 4096;

/// All copies of one segment.
#[derive(Default)]
pub(crate) struct SegmentCopies {
    pub(crate) flash: Option<(u32, SegmentHeader)>,
    pub(crate) warm: Option<WarmCopy>,
}

pub(crate) struct WarmCopy {
    pub(crate) memory: Memory,
    pub(crate) certificate: Certificate,
    pub(crate) header: SegmentHeader,
}

/// The contents of folder and arena.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) segments: BTreeMap<SegmentId, SegmentCopies>,
    pub(crate) files: Vec<u32>,
    /// Files whose header is damaged or unreadable, with the reason.
    pub(crate) unreadable: Vec<(u32, String)>,
    /// The segments of slots whose certificate or segment header is damaged; `None` where the
    /// segment is unknown.
    pub(crate) damaged_slots: Vec<Option<SegmentId>>,
    /// Memory held an older image of a segment than flash: an old image of the memory was put back.
    pub(crate) is_memory_outdated: bool,
}

impl SegmentCopies {
    pub(crate) fn header(&self) -> SegmentHeader {
        let warm = self.warm.as_ref().map(|copy| copy.header);
        self.flash.map(|(_, header)| header).or(warm).expect("what was found has a copy")
    }

    pub(crate) fn file(&self) -> Option<u32> {
        self.flash.map(|(file, _)| file)
    }
}

impl Scan {
    pub(crate) async fn run(pool: &SegmentPool, slots: Vec<Slot>) -> Result<Scan, Error> {
        let mut scan = Scan::default();
        let doing = "listing the segment files";
        let list = pool
            .env
            .disk()
            .list(&pool.folder)
            .await
            .map_err(|error| pool.flash_error(doing, &error))?;
        for (name, kind) in list {
            let number = name
                .strip_suffix(".seg")
                .filter(|digits| digits.len() == 8)
                .and_then(|d| d.parse().ok());
            if let (FileKind::File, Some(number)) = (kind, number) {
                scan.file(pool, number, &name).await?;
            }
        }
        slots.into_iter().for_each(|slot| scan.slot(pool, slot));
        Ok(scan)
    }

    async fn file(&mut self, pool: &SegmentPool, number: u32, name: &str) -> Result<(), Error> {
        self.files.push(number);
        let mut bytes = [0; HEADER_BYTES as usize];
        let mut tries = READ_TRIES;
        let decoded = loop {
            let opened = pool.open(Some(number), Open::Read).await;
            let read = match &opened {
                Ok(file) => pool.read(&**file, &mut bytes, 0).await,
                Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
            };
            let decoded = match read {
                // It was never used.
                Ok(()) if bytes.iter().all(|&byte| byte == 0) => return Ok(()),
                Ok(()) => Ok(SegmentHeader::decode(&bytes)),
                // A crash interrupted the making of this file.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => Err(error),
            };
            tries -= 1;
            // A bit may be wrong on its way: a header counts as damaged when it is read so again.
            if tries == 0 || matches!(decoded, Ok(Ok(_))) {
                break decoded;
            }
        };
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                self.unreadable.push((number, error.to_string()));
                return Ok(());
            }
        };
        match decoded {
            Ok(header) if header.node != pool.node => Err(Error::Foreign(format!(
                "{} belongs to node {}, this is node {}: give this node a folder of its own, or adopt that one",
                pool.path(number).display(),
                header.node,
                pool.node
            ))),
            Ok(header) if header.capacity != pool.capacity => Err(Error::Foreign(format!(
                "{} has segments of {} bytes, here they have {}",
                pool.path(number).display(),
                header.capacity,
                pool.capacity
            ))),
            Ok(header) => {
                let found = self.segments.entry(header.segment).or_default();
                // Two files cannot have one number (it is never given twice). If they have, the
                // later life is believed.
                if found.flash.is_none_or(|(_, other)| other.incarnation <= header.incarnation) {
                    found.flash = Some((number, header));
                }
                Ok(())
            }
            Err(BadHeader::Newer(found)) => {
                Err(Error::Newer { file: name.to_owned(), found, known: VERSION })
            }
            Err(bad) => {
                self.unreadable.push((number, bad.to_string()));
                Ok(())
            }
        }
    }

    fn slot(&mut self, pool: &SegmentPool, slot: Slot) {
        let certificate = match slot.content() {
            SlotContent::Certified(certificate) => certificate,
            SlotContent::Empty => return,
            SlotContent::Damaged { segment } => {
                self.damaged_slots.push(segment);
                return;
            }
        };
        let Ok(memory) = slot.keep() else { return };
        let header = memory.front(0, HEADER_BYTES).map(SegmentHeader::decode);
        let same = |header: &SegmentHeader| {
            let label = certificate.label;
            header.node == pool.node
                && header.capacity == pool.capacity
                && (header.segment, header.epoch) == (label.segment, label.epoch)
        };
        match header {
            Some(Ok(header)) if same(&header) => {
                let copy = WarmCopy { memory, certificate, header };
                self.segments.entry(header.segment).or_default().warm = Some(copy);
            }
            _ => {
                // For example a memory file that was cut short. The copy on flash counts, and it
                // may be complete.
                if certificate.durable < certificate.front {
                    self.damaged_slots.push(Some(certificate.label.segment));
                }
            }
        }
    }

    /// Whether warm memory may have had more of `id` than flash, and is damaged there.
    pub(crate) fn is_lost_in_memory(&self, id: SegmentId) -> bool {
        let has_copy = self.segments.get(&id).is_some_and(|found| found.warm.is_some());
        !has_copy && self.damaged_slots.iter().any(|slot| slot.is_none_or(|segment| segment == id))
    }

    /// Gives up copies of another life's segment under a number that a digest names. Returns
    /// whether no copy is left.
    pub(crate) fn keep_only(&mut self, named: &Named) -> bool {
        let Some(found) = self.segments.get_mut(&named.segment) else { return false };
        let is_other = |header: &SegmentHeader| {
            let SegmentHeader { incarnation, birth, .. } = *header;
            named.who.is_some_and(|who| who != Who { incarnation, birth })
        };
        if let Some((file, header)) = found.flash.take_if(|(_, header)| is_other(header)) {
            let (segment, life) = (named.segment.0, header.incarnation.0);
            tracing::error!(segment, file, life, "a segment of another life has a member's number");
        }
        drop(found.warm.take_if(|copy| is_other(&copy.header)));
        let is_gone = found.flash.is_none() && found.warm.is_none();
        if is_gone {
            self.segments.remove(&named.segment);
        }
        is_gone
    }

    /// Gives up a warm copy that is older than flash's copy under the same number, or of another
    /// segment.
    pub(crate) async fn settle(&mut self, pool: &SegmentPool, id: SegmentId) {
        let Some(found) = self.segments.get_mut(&id) else { return };
        if found.is_outdated_in_memory(pool).await {
            tracing::warn!(
                segment = id.0,
                "warm memory holds an outdated copy of a segment: flash is used"
            );
            found.warm = None;
            self.is_memory_outdated = true;
        }
    }
}

impl SegmentCopies {
    async fn is_outdated_in_memory(&self, pool: &SegmentPool) -> bool {
        let (Some((file, header)), Some(copy)) = (self.flash, &self.warm) else { return false };
        if header != copy.header || copy.certificate.front < pool.known_end_of(&header).durable {
            return true;
        }
        // Memory is never behind flash, unless an old image of it was put back.
        if let Ok(Some(foot)) = read_foot(pool, file, &header).await {
            let plain = |foot: Foot| (foot.front, foot.changes, foot.table_crc);
            return copy.foot().map(plain) != Some(plain(foot));
        }
        let front = copy.certificate.front;
        let places = [front, front.next_multiple_of(header.sector)];
        for next in places.into_iter().filter(|next| next + FOOT_BYTES < pool.capacity) {
            let mut bytes = [0; GRAIN_BYTES as usize];
            let read = read(pool, file, &mut bytes, next).await;
            let entry = EntryHeader::decode(&bytes, header.key());
            if read.is_ok() && entry.is_ok_and(|entry| entry.offset == next) {
                return !copy.certificate.foot;
            }
        }
        false
    }
}

impl WarmCopy {
    /// The foot, once the segment is sealed in memory.
    fn foot(&self) -> Option<Foot> {
        let tail = self.memory.tail()?;
        let SegmentHeader { segment, birth, capacity, .. } = self.header;
        Foot::decode(tail.get(tail.len() - FOOT_BYTES as usize..)?, segment, birth, capacity)
    }

    /// Whether flash has every byte that was ever published here.
    pub(crate) fn is_on_flash(&self) -> bool {
        self.certificate.durable >= self.certificate.front
    }
}

/// The reason why a segment, or a part of it, cannot be read: damage of that segment, and of
/// nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable(pub(crate) String);

pub(crate) async fn read(
    pool: &SegmentPool,
    file: u32,
    bytes: &mut [u8],
    offset: u32,
) -> Result<(), Unreadable> {
    let unreadable = |error: std::io::Error| Unreadable(format!("it cannot be read: {error}"));
    let opened = pool.open(Some(file), Open::Read).await.map_err(unreadable)?;
    pool.read(&*opened, bytes, offset).await.map_err(unreadable)
}

/// The foot of a segment on flash, if it is sealed there.
pub(crate) async fn read_foot(
    pool: &SegmentPool,
    file: u32,
    header: &SegmentHeader,
) -> Result<Option<Foot>, Unreadable> {
    let mut bytes = [0; FOOT_BYTES as usize];
    read(pool, file, &mut bytes, header.capacity - FOOT_BYTES).await?;
    Ok(Foot::decode(&bytes, header.segment, header.birth, header.capacity))
}

/// Reads all readable bytes of a segment on flash, with zeros for the others, and the reason if
/// there are any. An image that something speaks against is read again, [`READ_TRIES`] times at
/// most, and the one that shows most is taken: a bit that was wrong on its way must not make
/// acknowledged changes look torn.
pub(crate) async fn read_image(
    pool: &SegmentPool,
    file: u32,
    header: &SegmentHeader,
) -> (Vec<u8>, Option<Unreadable>) {
    let (mut image, mut unreadable) = read_all(pool, file).await;
    let mut shown = proof(&image, header);
    for _ in 1..READ_TRIES {
        if shown.is_sound && unreadable.is_none() {
            break;
        }
        let (again, refused) = read_all(pool, file).await;
        let more = proof(&again, header);
        if more > shown || (more == shown && refused.is_none()) {
            (image, unreadable, shown) = (again, refused, more);
        }
    }
    (image, unreadable)
}

async fn read_all(pool: &SegmentPool, file: u32) -> (Vec<u8>, Option<Unreadable>) {
    let mut bytes = vec![0; pool.capacity as usize];
    let Err(why) = read(pool, file, &mut bytes, 0).await else { return (bytes, None) };
    let mut offset = 0;
    for piece in bytes.chunks_mut(PIECE_BYTES) {
        if read(pool, file, piece, offset).await.is_err() {
            piece.fill(0);
        }
        offset += u32::try_from(piece.len()).expect("a segment is far below 4 GiB");
    }
    (bytes, Some(why))
}

/// The result of a look at a segment as a head.
pub(crate) enum Looked {
    Head(Probe),
    /// No head; `traces`: whether the segment holds changes all the same.
    NoHead {
        traces: bool,
    },
}

/// Looks at a segment as a head: its opening, its end, whether it holds changes. A segment that
/// cannot be read may hold some.
pub(crate) async fn look(pool: &SegmentPool, found: &SegmentCopies) -> Result<Looked, Error> {
    let header = found.header();
    let seen = match found.flash {
        Some((file, header)) => {
            // The bytes read here may still be on their way to flash, from before the last process
            // died.
            if sync(pool, file).await? { read_foot(pool, file, &header).await.ok() } else { None }
        }
        None => Some(None),
    };
    let is_readable = seen.is_some();
    let end = seen.flatten().map_or(Seal::Open, Seal::Sealed);
    let head = |opening, has_changes| {
        Looked::Head(Probe { segment: header.segment, opening, has_changes, end: end.plain() })
    };
    // A copy without changes proves nothing: its head may not have reached flash before the process
    // died.
    let with_changes = found.warm.as_ref().filter(|copy| !copy.memory.back().is_empty());
    if let Some(copy) = with_changes {
        let front = copy.memory.front(0, copy.memory.front_length());
        let front = front.expect("what is published can be read");
        if let Some(opening) = read_opening(front, &header) {
            return Ok(head(opening, true));
        }
    }
    // From here on the changes in memory still count, even if only the opening there is damaged.
    let in_memory = with_changes.is_some();
    let Some((file, header)) = found.flash else { return Ok(Looked::NoHead { traces: in_memory }) };
    let front = read_opening_bytes(pool, file).await;
    if let Seal::Sealed(foot) = &end {
        let opening = match front.as_ref().and_then(|front| read_opening(front, &header)) {
            Some(opening) => Some(opening),
            None => read_opening(&read_image(pool, file, &header).await.0, &header),
        };
        if let Some(opening) = opening {
            return Ok(head(opening, foot.changes > 0 || in_memory));
        }
    }
    // Memory may show that nothing came behind the opening; otherwise the whole file is read.
    let is_known = found.warm.as_ref().is_some_and(|copy| copy.header == header) && is_readable;
    if let Some(opening) =
        front.filter(|_| is_known).and_then(|front| opening_alone(&front, &header))
    {
        return Ok(head(opening, in_memory));
    }
    let (image, unreadable) = read_image(pool, file, &header).await;
    let known = pool.known_end_of(&header);
    let walked = walk(&image, &header, known.durable);
    let has_changes =
        !walked.listed.is_empty() || known.changes > 0 || unreadable.is_some() || in_memory;
    let goes_on = header.version >= 3 && goes_on(&image, &header, &walked);
    Ok(match walked.opening {
        Some(opening) => head(opening, has_changes || goes_on),
        None => Looked::NoHead {
            traces: in_memory
                || known.changes > 0
                || unreadable.is_some()
                || matches!(end, Seal::Sealed(_))
                || has_traces(&image, header.key()),
        },
    })
}

enum Seal {
    Open,
    Sealed(Foot),
}

impl Seal {
    fn plain(&self) -> End {
        match self {
            Seal::Open => End::Open,
            Seal::Sealed(foot) => End::Sealed { successor: foot.successor },
        }
    }
}

/// Whether any change of the segment with this key lies anywhere in its bytes.
fn has_traces(image: &[u8], key: Key) -> bool {
    (HEADER_BYTES..)
        .step_by(GRAIN_BYTES as usize)
        .zip(image[HEADER_BYTES as usize..].chunks(GRAIN_BYTES as usize))
        .any(|(offset, bytes)| {
            EntryHeader::decode(bytes, key)
                .is_ok_and(|entry| entry.offset == offset && entry.kind.is_listed())
        })
}

/// The opening of a head that has no change behind it: one opened ahead, the usual remnant of a
/// crash. The front of the file suffices: a walk ends at the first bytes that are no entry.
fn opening_alone(front: &[u8], header: &SegmentHeader) -> Option<Opening> {
    let walked = walk(front, header, 0);
    let behind = front.get(walked.end as usize..)?;
    let Walk { opening, listed, .. } = walked;
    let ends_there =
        behind.len() >= GRAIN_BYTES as usize && EntryHeader::decode(behind, header.key()).is_err();
    opening.filter(|_| listed.is_empty() && ends_there)
}

async fn read_opening_bytes(pool: &SegmentPool, file: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; OPENING_BYTES.min(pool.capacity) as usize];
    read(pool, file, &mut bytes, 0).await.ok()?;
    Some(bytes)
}

/// Syncs a file; `false` when it cannot be opened.
pub(crate) async fn sync(pool: &SegmentPool, file: u32) -> Result<bool, Error> {
    let Ok(opened) = pool.open(Some(file), Open::Write).await else { return Ok(false) };
    while let Err(error) = opened.sync_data().await {
        let waited = pool.ride_out(error).await;
        waited.map_err(|error| pool.flash_error("syncing a segment file", &error))?;
    }
    Ok(true)
}
