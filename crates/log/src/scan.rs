//! Looks for segments at start: in the folder and in warm memory. Reads headers only, and of the newest heads what
//! decides what the log is.

use crate::Error;
use crate::depot::Depot;
use crate::format::{
    BadHeader, EntryHeader, FOOT_BYTES, Foot, HEADER_BYTES, Key, Named, SegmentHeader, VERSION, Who,
};
use crate::limits::GRAIN_BYTES;
use crate::machine::history::{End, Probe};
use crate::walk::{Opening, Walk, goes_on, read_opening, walk};
use base::SegmentId;
use env::{FileKind, Open};
use std::collections::BTreeMap;
use warm::{Certificate, Content, Memory, Slot};

/// First bytes read of a head to find its digest; a digest of 4,000 segments fits.
const OPENING_BYTES: u32 = 64 << 10;

/// Pieces in which a file is read of which not all can be read.
const PIECE_BYTES: usize = 4096;

/// All copies of one segment.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) flash: Option<(u32, SegmentHeader)>,
    pub(crate) warm: Option<WarmCopy>,
}

pub(crate) struct WarmCopy {
    pub(crate) memory: Memory,
    pub(crate) certificate: Certificate,
    pub(crate) header: SegmentHeader,
}

/// What lies in folder and arena.
#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) segments: BTreeMap<SegmentId, Found>,
    pub(crate) files: Vec<u32>,
    /// Files whose header is damaged, with what is wrong.
    pub(crate) unreadable: Vec<(u32, String)>,
    pub(crate) slots: Vec<Slot>,
    /// What lay in slots whose certificate or segment header is damaged; `None` where nobody can tell.
    pub(crate) damaged_slots: Vec<Option<SegmentId>>,
    /// Memory held an older image of a segment than flash: somebody has put old memory back.
    pub(crate) is_memory_outdated: bool,
}

impl Found {
    pub(crate) fn header(&self) -> SegmentHeader {
        let warm = self.warm.as_ref().map(|copy| copy.header);
        self.flash.map(|(_, header)| header).or(warm).expect("what was found has a copy")
    }

    pub(crate) fn file(&self) -> Option<u32> {
        self.flash.map(|(file, _)| file)
    }
}

impl Scan {
    pub(crate) async fn run(depot: &Depot, slots: Vec<Slot>) -> Result<Scan, Error> {
        let mut scan = Scan::default();
        let doing = "listing the segment files";
        let list = depot
            .env
            .disk()
            .list(&depot.folder)
            .await
            .map_err(|error| depot.flash_error(doing, &error))?;
        for (name, kind) in list {
            let number = name
                .strip_suffix(".seg")
                .filter(|digits| digits.len() == 8)
                .and_then(|d| d.parse().ok());
            if let (FileKind::File, Some(number)) = (kind, number) {
                scan.file(depot, number, &name).await?;
            }
        }
        slots.into_iter().for_each(|slot| scan.slot(depot, slot));
        Ok(scan)
    }

    async fn file(&mut self, depot: &Depot, number: u32, name: &str) -> Result<(), Error> {
        self.files.push(number);
        let mut bytes = [0; HEADER_BYTES as usize];
        let opened = depot.open(Some(number), Open::Read).await;
        let read = match &opened {
            Ok(file) => depot.read(&**file, &mut bytes, 0).await,
            Err(error) => Err(std::io::Error::new(error.kind(), error.to_string())),
        };
        match read {
            Ok(()) => {}
            // Making it was interrupted.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => {
                self.unreadable.push((number, error.to_string()));
                return Ok(());
            }
        }
        match SegmentHeader::decode(&bytes) {
            Ok(header) if header.node != depot.node => Err(Error::Foreign(format!(
                "{} belongs to node {}, this is node {}: give this node a folder of its own, or adopt that one",
                depot.path(number).display(),
                header.node,
                depot.node
            ))),
            Ok(header) if header.capacity != depot.capacity => Err(Error::Foreign(format!(
                "{} has segments of {} bytes, here they have {}",
                depot.path(number).display(),
                header.capacity,
                depot.capacity
            ))),
            Ok(header) => {
                let found = self.segments.entry(header.segment).or_default();
                // Two files cannot have one number (it is never given twice); were it so, the later life is believed.
                if found.flash.is_none_or(|(_, other)| other.incarnation <= header.incarnation) {
                    found.flash = Some((number, header));
                }
                Ok(())
            }
            Err(BadHeader::Newer(found)) => {
                Err(Error::Newer { file: name.to_owned(), found, known: VERSION })
            }
            Err(BadHeader::NotASegment) if bytes.iter().all(|&byte| byte == 0) => Ok(()),
            Err(bad) => {
                self.unreadable.push((number, bad.to_string()));
                Ok(())
            }
        }
    }

    fn slot(&mut self, depot: &Depot, slot: Slot) {
        let certificate = match slot.content() {
            Content::Certified(certificate) => certificate,
            Content::Empty => return self.slots.push(slot),
            Content::Damaged { segment } => {
                self.damaged_slots.push(segment);
                return self.slots.push(slot);
            }
        };
        let memory = match slot.keep() {
            Ok(memory) => memory,
            Err(slot) => return self.slots.push(slot),
        };
        let header = memory.front(0, HEADER_BYTES).map(SegmentHeader::decode);
        let same = |header: &SegmentHeader| {
            let label = certificate.label;
            header.node == depot.node
                && header.capacity == depot.capacity
                && (header.segment, header.epoch) == (label.segment, label.epoch)
        };
        match header {
            Some(Ok(header)) if same(&header) => {
                let copy = WarmCopy { memory, certificate, header };
                self.segments.entry(header.segment).or_default().warm = Some(copy);
            }
            _ => {
                // A file that was cut short, for one. What flash has counts, and it may have all there was.
                if certificate.durable < certificate.front {
                    self.damaged_slots.push(Some(certificate.label.segment));
                }
                self.slots.extend(memory.into_slot().ok());
            }
        }
    }

    /// Whether warm memory may have had more of `id` than flash, and is damaged there.
    pub(crate) fn is_lost_in_memory(&self, id: SegmentId) -> bool {
        let has_copy = self.segments.get(&id).is_some_and(|found| found.warm.is_some());
        !has_copy && self.damaged_slots.iter().any(|slot| slot.is_none_or(|segment| segment == id))
    }

    /// Gives up copies of another life's segment under a number that a digest names; whether none is left.
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
        let other = found.warm.take_if(|copy| is_other(&copy.header));
        self.slots.extend(other.and_then(|copy| copy.memory.into_slot().ok()));
        let is_gone = found.flash.is_none() && found.warm.is_none();
        if is_gone {
            self.segments.remove(&named.segment);
        }
        is_gone
    }

    /// Gives up warm copies that are older than, or another segment than, what flash has under the same number.
    pub(crate) async fn settle(&mut self, depot: &Depot, id: SegmentId) {
        let Some(found) = self.segments.get_mut(&id) else { return };
        if found.is_outdated_in_memory(depot).await {
            tracing::warn!(
                segment = id.0,
                "warm memory holds an outdated copy of a segment: flash is used"
            );
            let copy = found.warm.take().expect("looked at just now");
            self.is_memory_outdated = true;
            self.slots.extend(copy.memory.into_slot().ok());
        }
    }
}

impl Found {
    async fn is_outdated_in_memory(&self, depot: &Depot) -> bool {
        let (Some((file, header)), Some(copy)) = (self.flash, &self.warm) else { return false };
        if header != copy.header {
            return true;
        }
        // Memory is never behind flash, unless somebody put an old image of it back.
        if let Ok(Some(foot)) = read_foot(depot, file, &header).await {
            let plain = |foot: Foot| (foot.front, foot.changes, foot.table_crc);
            return copy.foot().map(plain) != Some(plain(foot));
        }
        let front = copy.certificate.front;
        let places = [front, front.next_multiple_of(header.sector)];
        for next in places.into_iter().filter(|next| next + FOOT_BYTES < depot.capacity) {
            let mut bytes = [0; GRAIN_BYTES as usize];
            let read = read(depot, file, &mut bytes, next).await;
            let entry = EntryHeader::decode(&bytes, header.key());
            if read.is_ok() && entry.is_ok_and(|entry| entry.offset == next) {
                return !copy.certificate.foot;
            }
        }
        false
    }
}

impl WarmCopy {
    /// The foot, once it is sealed in memory.
    fn foot(&self) -> Option<Foot> {
        let tail = self.memory.tail()?;
        let SegmentHeader { segment, birth, capacity, .. } = self.header;
        Foot::decode(tail.get(tail.len() - FOOT_BYTES as usize..)?, segment, birth, capacity)
    }

    /// Flash has all that was ever published here.
    pub(crate) fn is_on_flash(&self) -> bool {
        self.certificate.durable >= self.certificate.front
    }
}

/// Why a segment, or a part of it, cannot be read: damage of that segment, and of nothing else.
#[derive(Debug, Clone)]
pub(crate) struct Unreadable(pub(crate) String);

pub(crate) async fn read(
    depot: &Depot,
    file: u32,
    bytes: &mut [u8],
    offset: u32,
) -> Result<(), Unreadable> {
    let unreadable = |error: std::io::Error| Unreadable(format!("it cannot be read: {error}"));
    let opened = depot.open(Some(file), Open::Read).await.map_err(unreadable)?;
    depot.read(&*opened, bytes, offset).await.map_err(unreadable)
}

/// The foot of a segment on flash, if it is sealed there.
pub(crate) async fn read_foot(
    depot: &Depot,
    file: u32,
    header: &SegmentHeader,
) -> Result<Option<Foot>, Unreadable> {
    let mut bytes = [0; FOOT_BYTES as usize];
    read(depot, file, &mut bytes, header.capacity - FOOT_BYTES).await?;
    Ok(Foot::decode(&bytes, header.segment, header.birth, header.capacity))
}

/// All bytes of a segment on flash that can be read, zeros where they cannot, and why that is.
pub(crate) async fn read_image(depot: &Depot, file: u32) -> (Vec<u8>, Option<Unreadable>) {
    let mut bytes = vec![0; depot.capacity as usize];
    let Err(why) = read(depot, file, &mut bytes, 0).await else { return (bytes, None) };
    let mut offset = 0;
    for piece in bytes.chunks_mut(PIECE_BYTES) {
        if read(depot, file, piece, offset).await.is_err() {
            piece.fill(0);
        }
        offset += u32::try_from(piece.len()).expect("a segment is far below 4 GiB");
    }
    (bytes, Some(why))
}

/// What came of looking at a segment as a head.
pub(crate) enum Looked {
    Head(Probe),
    /// No head; whether there are changes in it all the same.
    NoHead {
        traces: bool,
    },
}

/// Looks at a segment as a head: its opening, its end, whether it holds changes. One that cannot be read may hold some.
pub(crate) async fn look(depot: &Depot, found: &Found) -> Result<Looked, Error> {
    let header = found.header();
    let seen = match found.flash {
        Some((file, header)) => {
            // What this process reads may still be on its way to flash, from before the last one died.
            if sync(depot, file).await? { read_foot(depot, file, &header).await.ok() } else { None }
        }
        None => Some(None),
    };
    let is_readable = seen.is_some();
    let end = seen.flatten().map_or(Seal::Open, Seal::Sealed);
    let head = |opening, has_changes| {
        Looked::Head(Probe { segment: header.segment, opening, has_changes, end: end.plain() })
    };
    // A copy without changes proves nothing: its head may not have reached flash before the process died.
    let with_changes = found.warm.as_ref().filter(|copy| !copy.memory.back().is_empty());
    if let Some(copy) = with_changes {
        let front = copy.memory.front(0, copy.memory.front_length());
        let front = front.expect("what is published can be read");
        if let Some(opening) = read_opening(front, &header) {
            return Ok(head(opening, true));
        }
    }
    // From here on the changes in memory still count, should only its opening be damaged.
    let in_memory = with_changes.is_some();
    let Some((file, header)) = found.flash else { return Ok(Looked::NoHead { traces: in_memory }) };
    let front = read_opening_bytes(depot, file).await;
    if let Seal::Sealed(foot) = &end {
        let opening = match front.as_ref().and_then(|front| read_opening(front, &header)) {
            Some(opening) => Some(opening),
            None => read_opening(&read_image(depot, file).await.0, &header),
        };
        if let Some(opening) = opening {
            return Ok(head(opening, foot.changes > 0 || in_memory));
        }
    }
    // Memory says that nothing came behind the opening, or else all of the file is looked at.
    let is_known = found.warm.as_ref().is_some_and(|copy| copy.header == header) && is_readable;
    if let Some(opening) =
        front.filter(|_| is_known).and_then(|front| opening_alone(&front, &header))
    {
        return Ok(head(opening, in_memory));
    }
    let (image, unreadable) = read_image(depot, file).await;
    let walked = walk(&image, &header, true);
    let has_changes = !walked.listed.is_empty() || unreadable.is_some() || in_memory;
    let goes_on = header.version >= 3 && goes_on(&image, &header, &walked);
    Ok(match walked.opening {
        Some(opening) => head(opening, has_changes || goes_on),
        None => Looked::NoHead {
            traces: in_memory
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

/// The opening of a head behind which nothing lies: one that was opened ahead, as a crash leaves it most often. Its front
/// tells, as all of it would: a walk ends at the first bytes that are no entry.
fn opening_alone(front: &[u8], header: &SegmentHeader) -> Option<Opening> {
    let walked = walk(front, header, true);
    let behind = front.get(walked.end as usize..)?;
    let Walk { opening, listed, .. } = walked;
    let ends_there =
        behind.len() >= GRAIN_BYTES as usize && EntryHeader::decode(behind, header.key()).is_err();
    opening.filter(|_| listed.is_empty() && ends_there)
}

async fn read_opening_bytes(depot: &Depot, file: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; OPENING_BYTES.min(depot.capacity) as usize];
    read(depot, file, &mut bytes, 0).await.ok()?;
    Some(bytes)
}

/// Syncs a file; `false` when there is none to be opened.
pub(crate) async fn sync(depot: &Depot, file: u32) -> Result<bool, Error> {
    let Ok(opened) = depot.open(Some(file), Open::Write).await else { return Ok(false) };
    while let Err(error) = opened.sync_data().await {
        let waited = depot.ride_out(error).await;
        waited.map_err(|error| depot.flash_error("syncing a segment file", &error))?;
    }
    Ok(true)
}
