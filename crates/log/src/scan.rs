//! Looks for segments at start: in the folder and in warm memory. Reads headers only, and of the newest heads what
//! decides what the log is.

use crate::Error;
use crate::depot::Depot;
use crate::format::{
    BadHeader, EntryHeader, FOOT_BYTES, Foot, HEADER_BYTES, Kind, SegmentHeader, VERSION,
};
use crate::limits::{GRAIN_BYTES, SECTOR_BYTES};
use crate::machine::history::{End, Probe};
use crate::walk::{Opening, Walk, read_opening, walk};
use base::SegmentId;
use env::{File, FileKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use warm::{Certificate, Content, Memory, Slot};

/// First bytes read of a head to find its digest; a digest of 4,000 segments fits.
const OPENING_BYTES: u32 = 64 << 10;

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
        let file = depot.open_to_read(Some(number)).await?;
        self.files.push(number);
        let mut bytes = [0; HEADER_BYTES as usize];
        match file.read_at(&mut bytes, 0).await {
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
                self.damaged_slots.push(Some(certificate.label.segment));
                self.slots.extend(memory.into_slot().ok());
            }
        }
    }

    /// Whether warm memory may have had more of `id` than flash, and is damaged there.
    pub(crate) fn is_lost_in_memory(&self, id: SegmentId) -> bool {
        let has_copy = self.segments.get(&id).is_some_and(|found| found.warm.is_some());
        !has_copy && self.damaged_slots.iter().any(|slot| slot.is_none_or(|segment| segment == id))
    }

    /// Gives up warm copies that are older than, or another segment than, what flash has under the same number.
    pub(crate) async fn settle(&mut self, depot: &Depot, id: SegmentId) -> Result<(), Error> {
        let Some(found) = self.segments.get_mut(&id) else { return Ok(()) };
        let (Some((file, header)), Some(copy)) = (found.flash, &found.warm) else { return Ok(()) };
        let mut stale = header != copy.header;
        let next = copy.certificate.front.next_multiple_of(SECTOR_BYTES);
        if !stale && !copy.certificate.foot && next + SECTOR_BYTES < depot.capacity {
            // Memory is never behind flash, unless somebody put an old image of it back.
            let mut bytes = [0; GRAIN_BYTES as usize];
            read(depot, file, &mut bytes, next).await?;
            stale = EntryHeader::decode(&bytes, id).is_ok_and(|entry| entry.offset == next);
        }
        if stale {
            tracing::warn!(
                segment = id.0,
                "warm memory holds an outdated copy of a segment: flash is used"
            );
            let copy = found.warm.take().expect("looked at just now");
            self.slots.extend(copy.memory.into_slot().ok());
        }
        Ok(())
    }
}

pub(crate) async fn read(
    depot: &Depot,
    file: u32,
    bytes: &mut [u8],
    offset: u32,
) -> Result<(), Error> {
    let opened = depot.open_to_read(Some(file)).await?;
    let doing = format!("reading segment file {file}");
    opened
        .read_at(bytes, u64::from(offset))
        .await
        .map_err(|error| depot.flash_error(&doing, &error))
}

/// The foot of a segment on flash, if it is sealed there.
pub(crate) async fn read_foot(
    depot: &Depot,
    file: u32,
    header: &SegmentHeader,
) -> Result<Option<Foot>, Error> {
    let mut bytes = [0; FOOT_BYTES as usize];
    read(depot, file, &mut bytes, header.capacity - FOOT_BYTES).await?;
    Ok(Foot::decode(&bytes, header.segment, header.birth, header.capacity))
}

/// All bytes of a segment on flash.
pub(crate) async fn read_image(depot: &Depot, file: u32) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; depot.capacity as usize];
    read(depot, file, &mut bytes, 0).await?;
    Ok(bytes)
}

/// What came of looking at a segment as a head.
pub(crate) enum Looked {
    Head(Probe),
    /// No head; whether there are changes in it all the same.
    NoHead {
        traces: bool,
    },
}

/// Looks at a segment as a head: its opening, its end, whether it holds changes.
pub(crate) async fn look(depot: &Depot, found: &Found) -> Result<Looked, Error> {
    let header = found.header();
    let end = match found.flash {
        Some((file, header)) => {
            // What this process reads may still be on its way to flash, from before the last one died.
            sync(depot, file).await?;
            match read_foot(depot, file, &header).await? {
                Some(foot) => Seal::Sealed(foot),
                None => Seal::Open,
            }
        }
        None => Seal::Open,
    };
    let head = |opening, has_changes| {
        Looked::Head(Probe { segment: header.segment, opening, has_changes, end: end.plain() })
    };
    // A copy without changes proves nothing: its head may not have reached flash before the process died.
    let with_changes = found.warm.as_ref().filter(|copy| !copy.memory.back().is_empty());
    if let Some(copy) = with_changes {
        let front = copy.memory.front(0, copy.memory.front_length());
        let front = front.expect("what is published can be read");
        if let Some(opening) = read_opening(front, header.segment) {
            return Ok(head(opening, true));
        }
    }
    // From here on the changes in memory still count, should only its opening be damaged.
    let in_memory = with_changes.is_some();
    let Some((file, header)) = found.flash else { return Ok(Looked::NoHead { traces: in_memory }) };
    if let Seal::Sealed(foot) = &end
        && let Some(opening) = opening_on_flash(depot, file, header.segment).await?
    {
        return Ok(head(opening, foot.changes > 0 || in_memory));
    }
    if let Some(opening) = opening_alone(depot, file, header.segment).await? {
        return Ok(head(opening, in_memory));
    }
    let image = read_image(depot, file).await?;
    let Walk { opening, changes, .. } = walk(&image, header.segment, true);
    Ok(match opening {
        Some(opening) => head(opening, !changes.is_empty() || in_memory),
        None => Looked::NoHead {
            traces: in_memory
                || matches!(end, Seal::Sealed(_))
                || has_traces(&image, header.segment),
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

/// Whether any change of `segment` lies anywhere in its bytes.
fn has_traces(image: &[u8], segment: SegmentId) -> bool {
    (HEADER_BYTES..)
        .step_by(GRAIN_BYTES as usize)
        .zip(image[HEADER_BYTES as usize..].chunks(GRAIN_BYTES as usize))
        .any(|(offset, bytes)| {
            EntryHeader::decode(bytes, segment)
                .is_ok_and(|entry| entry.offset == offset && matches!(entry.kind, Kind::Change(_)))
        })
}

/// The opening of a head on flash behind which nothing lies: one that was opened ahead, as a crash leaves it most often. Its
/// front tells, as all of it would: a walk ends at the first bytes that are no entry.
async fn opening_alone(
    depot: &Depot,
    file: u32,
    segment: SegmentId,
) -> Result<Option<Opening>, Error> {
    let bytes = read_opening_bytes(depot, file).await?;
    let Walk { opening, changes, end, .. } = walk(&bytes, segment, true);
    let behind = bytes.get(end as usize..).filter(|rest| rest.len() >= GRAIN_BYTES as usize);
    let ends_there = behind.is_some_and(|rest| EntryHeader::decode(rest, segment).is_err());
    Ok(opening.filter(|_| changes.is_empty() && ends_there))
}

async fn opening_on_flash(
    depot: &Depot,
    file: u32,
    segment: SegmentId,
) -> Result<Option<Opening>, Error> {
    if let Some(opening) = read_opening(&read_opening_bytes(depot, file).await?, segment) {
        return Ok(Some(opening));
    }
    Ok(read_opening(&read_image(depot, file).await?, segment))
}

async fn read_opening_bytes(depot: &Depot, file: u32) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; OPENING_BYTES.min(depot.capacity) as usize];
    read(depot, file, &mut bytes, 0).await?;
    Ok(bytes)
}

async fn sync(depot: &Depot, file: u32) -> Result<(), Error> {
    let opened: Arc<dyn File> = depot.open_to_write(file).await?;
    opened.sync_data().await.map_err(|error| depot.flash_error("syncing a segment file", &error))
}
