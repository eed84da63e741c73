//! The copies of one node's log on flash.
//!
//! A copy that counts is a file `NNNNNNNN.seg`, which a log reads. While a sync runs, new copies
//! are files `NNNNNNNN.new`, which no log reads. At the sync's end a record, [`Ending`], says which
//! files change their names and which go; as soon as it is durable, the rest is done in any case,
//! now or at the next start.
//!
//! Memory says how far a copy that is being written goes. After a restart, or an error of the disk,
//! that is not known: the owner copies such a segment again.

use crate::format::Ending;
use crate::limits::{CAPACITY_MAX, CAPACITY_STEP, FILES_MAX, SEGMENTS_MAX};
use crate::room::{Room, Share, Speed};
use rekindle_base::{Incarnation, NodeId, SegmentId};
use rekindle_env::{Env, File, FileKind, Open};
use rekindle_log::NewSegment;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the record in the node's folder.
const ENDING: &str = "ending";
/// Endings of the names of files: of a copy that counts, and of one that does not yet.
const COUNTED: &str = "seg";
const HIDDEN: &str = "new";
/// Least bytes of a segment: header and foot.
const CAPACITY_MIN: u32 = (NewSegment::HEADER_BYTES + NewSegment::FOOT_BYTES) as u32;
/// Bytes of zeros that are written at once.
const ZEROS: usize = 64 << 10;

/// The reason why a call has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The call asks for what may not be. Nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// The disk has failed: what memory knows of the copies may be wrong.
    #[error("{0}")]
    Disk(String),
}

pub(crate) fn refused<T>(why: &str) -> Result<T, Failure> {
    Err(Failure::Refused(why.to_owned()))
}

/// Names what the disk has failed at.
pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Disk(format!("{}: {error}", path.display()))
}

pub(crate) struct Copies {
    env: Env,
    node: NodeId,
    folder: PathBuf,
    room: Arc<Room>,
    speed: Arc<Speed>,
    /// The copies that count.
    counted: BTreeMap<SegmentId, Copy>,
    /// The copies of the sync that runs, and the life that runs it.
    hidden: Option<BTreeMap<SegmentId, Copy>>,
    life: Incarnation,
    /// The segments that the owner has opened since it began the sync, or went on with it.
    opened: BTreeSet<SegmentId>,
    /// The segments that the life has opened since the copies were: what is here under their
    /// numbers is theirs. Another life may have had other segments of the same numbers.
    known: BTreeSet<SegmentId>,
    /// Whether a sync has ended since the copies were opened.
    is_following: bool,
    /// Files that are named as copies and are none: they go at the end of the next sync.
    strays: Vec<(u32, Share)>,
    /// The file that was written last.
    last: Option<(u32, Arc<dyn File>)>,
}

struct Copy {
    file: u32,
    new: NewSegment,
    /// Count of the bytes that are known to be here, from the first on.
    front: u32,
    /// The segment's first bytes, while it is written.
    header: Vec<u8>,
    /// The segment gets no more bytes.
    is_ended: bool,
    /// It has a foot; all of it is here.
    is_sealed: bool,
    /// It is durable for sure.
    is_synced: bool,
    share: Share,
}

impl Copies {
    /// Opens the copies in a node's folder, whose lock the caller has: does the rest of a sync that
    /// has ended, gives up one that has not, and reads which segments are here.
    pub(crate) async fn open(
        env: &Env,
        node: NodeId,
        folder: &Path,
        (room, speed): (&Arc<Room>, &Arc<Speed>),
    ) -> Result<Copies, Failure> {
        let mut copies = Copies {
            env: env.clone(),
            node,
            folder: folder.to_owned(),
            room: Arc::clone(room),
            speed: Arc::clone(speed),
            counted: BTreeMap::new(),
            hidden: None,
            life: Incarnation(0),
            opened: BTreeSet::new(),
            known: BTreeSet::new(),
            is_following: false,
            strays: Vec::new(),
            last: None,
        };
        if let Some(ending) = copies.ending().await? {
            copies.end(&ending).await?;
        }
        copies.scan().await?;
        Ok(copies)
    }

    /// Bytes and count of the copies that count.
    pub(crate) fn size(&self) -> (u64, usize) {
        let bytes = self.counted.values().map(|copy| u64::from(copy.new.capacity)).sum();
        (bytes, self.counted.len())
    }

    /// The newest life that has written one of the segments.
    pub(crate) fn newest(&self) -> Option<Incarnation> {
        self.counted.values().map(|copy| copy.new.incarnation).max()
    }

    /// Begins a sync, or goes on with one of the same life.
    pub(crate) async fn begin(&mut self, life: Incarnation) -> Result<(), Failure> {
        if self.life != life {
            self.give_up_sync().await?;
            self.known.clear();
        }
        self.life = life;
        self.opened.clear();
        self.hidden.get_or_insert_default();
        Ok(())
    }

    /// Removes copies of the sync that runs whose segments have left the log since: the owner opens
    /// its segments in their order, and has left these out. Should it only have gone on behind
    /// them, the end of the sync fails, and the next one brings them again.
    async fn forget_left_out(&mut self, next: SegmentId) -> Result<(), Failure> {
        let Some(hidden) = self.hidden.take() else { return Ok(()) };
        let is_left_out = |id: &SegmentId| *id < next && !self.opened.contains(id);
        let (left, stay): (BTreeMap<_, _>, _) =
            hidden.into_iter().partition(|(id, _)| is_left_out(id));
        self.hidden = Some(stay);
        self.remove(files_of(&left), HIDDEN).await
    }

    /// Removes the copies of the sync that runs.
    pub(crate) async fn give_up_sync(&mut self) -> Result<(), Failure> {
        let hidden = self.hidden.take().unwrap_or_default();
        self.remove(files_of(&hidden), HIDDEN).await
    }

    pub(crate) async fn take(&mut self, new: &NewSegment) -> Result<u32, Failure> {
        self.check(new)?;
        if self.hidden.is_some() {
            self.opened.insert(new.segment);
        }
        let sealed = self.counted.get_mut(&new.segment);
        if let Some(copy) = sealed.filter(|copy| copy.is_sealed && copy.new == *new) {
            self.known.insert(new.segment);
            if !copy.is_synced {
                // The bytes read here may still be on their way, from before a process died.
                let path = path(&self.folder, copy.file, COUNTED);
                let file = self.env.disk().open(&path, Open::Read).await.map_err(at(&path))?;
                file.sync_data().await.map_err(at(&path))?;
                copy.is_synced = true;
            }
            return Ok(new.capacity);
        }
        let (there, suffix) = match &mut self.hidden {
            Some(hidden) => (hidden.get(&new.segment), HIDDEN),
            None if self.is_following => (self.counted.get(&new.segment), COUNTED),
            None => return refused("no sync has ended yet"),
        };
        match there {
            Some(copy) if copy.new == *new => {
                self.known.insert(new.segment);
                return Ok(if copy.is_sealed { new.capacity } else { copy.front });
            }
            Some(_) => return refused("another segment of this number is here"),
            None => {}
        }
        let is_full = self.counted.len() + self.hidden.as_ref().map_or(0, BTreeMap::len);
        if is_full >= FILES_MAX {
            return refused("a log has no so many segments");
        }
        let share = match self.room.take(new.capacity) {
            Ok(share) => share,
            Err(_) => {
                self.forget_left_out(new.segment).await?;
                self.room.take(new.capacity).map_err(Failure::Refused)?
            }
        };
        let file = self.free_number();
        self.make(file, suffix, new.capacity).await?;
        let copy = Copy {
            file,
            new: *new,
            front: 0,
            header: Vec::new(),
            is_ended: false,
            is_sealed: false,
            is_synced: true,
            share,
        };
        self.hidden.as_mut().unwrap_or(&mut self.counted).insert(new.segment, copy);
        self.known.insert(new.segment);
        Ok(0)
    }

    fn check(&self, new: &NewSegment) -> Result<(), Failure> {
        let sizes = CAPACITY_MIN..=CAPACITY_MAX;
        if !sizes.contains(&new.capacity) || !new.capacity.is_multiple_of(CAPACITY_STEP) {
            return refused("a segment has no such size");
        }
        if new.incarnation > self.life {
            return refused("the segment is of a later life than the one that sends it");
        }
        Ok(())
    }

    /// Makes a file, preallocated, with a durable name.
    async fn make(&mut self, file: u32, suffix: &str, capacity: u32) -> Result<(), Failure> {
        let path = path(&self.folder, file, suffix);
        let made = self.env.disk().open(&path, Open::CreateNew).await.map_err(at(&path))?;
        made.preallocate(u64::from(capacity)).await.map_err(at(&path))?;
        self.sync_names().await?;
        self.last = Some((file, made));
        Ok(())
    }

    /// The least number that no file has.
    fn free_number(&self) -> u32 {
        let copies = self.counted.values().chain(self.hidden.iter().flat_map(BTreeMap::values));
        let files = copies.map(|copy| copy.file).chain(self.strays.iter().map(|stray| stray.0));
        let taken: BTreeSet<u32> = files.collect();
        (1..)
            .zip(&taken)
            .find(|(free, taken)| free != *taken)
            .map_or_else(|| taken.last().map_or(1, |last| last + 1), |(free, _)| free)
    }

    /// The copy that is being written: amid a sync, only one of that sync.
    fn written(&mut self, segment: SegmentId) -> Result<&mut Copy, Failure> {
        let copies = match &mut self.hidden {
            Some(hidden) => Some(hidden),
            None => Some(&mut self.counted).filter(|_| self.is_following),
        };
        let copy = copies.and_then(|copies| copies.get_mut(&segment));
        copy.ok_or_else(|| Failure::Refused(format!("segment {segment} is not open here")))
    }

    pub(crate) async fn copy(
        &mut self,
        segment: SegmentId,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let node = self.node;
        let copy = self.written(segment)?;
        let (file, front, new) = (copy.file, copy.front, copy.new);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let end = offset.saturating_add(length);
        if copy.is_sealed {
            return refused("a sealed segment gets no more bytes");
        }
        if offset > front {
            return refused("bytes before these are not here");
        }
        if end > new.capacity {
            return refused("the segment is not that long");
        }
        if offset == 0
            && (NewSegment::read(bytes) != Some(new) || NewSegment::node(bytes) != Some(node))
        {
            return refused("the bytes are not of this segment");
        }
        if offset == 0 {
            copy.header = bytes[..NewSegment::HEADER_BYTES].to_vec();
        }
        let header = copy.header.clone();
        let handle = self.handle(file).await?;
        let path = self.folder.join(format!("flash/{file:08}"));
        let ends = match &self.hidden {
            // No log reads it before it is whole.
            Some(_) => Vec::new(),
            None => NewSegment::batches(&header, offset, bytes),
        };
        let began = self.env.now();
        let mut start = offset;
        for next in ends.into_iter().filter(|next| *next < end).chain([end]) {
            let piece = &bytes[(start - offset) as usize..(next - offset) as usize];
            handle.write_durable(piece, u64::from(start)).await.map_err(at(&path))?;
            start = next;
        }
        self.speed.measured(bytes.len(), self.env.now().since(began));
        let mut behind = end;
        while behind < front {
            let zeros = &[0; ZEROS][..ZEROS.min((front - behind) as usize)];
            handle.write_durable(zeros, u64::from(behind)).await.map_err(at(&path))?;
            behind += zeros.len() as u32;
        }
        let copy = self.written(segment)?;
        (copy.front, copy.is_ended) = (end, false);
        Ok(())
    }

    pub(crate) async fn seal(&mut self, segment: SegmentId, tail: &[u8]) -> Result<(), Failure> {
        if let Some(hidden) = &self.hidden
            && !hidden.contains_key(&segment)
            && self.known.contains(&segment)
            && self.counted.get(&segment).is_some_and(|copy| copy.is_sealed)
        {
            return Ok(());
        }
        let copy = self.written(segment)?;
        let (file, new) = (copy.file, copy.new);
        if copy.is_sealed {
            return Ok(());
        }
        if tail.is_empty() {
            copy.is_ended = true;
            return Ok(());
        }
        let Some(foot) = tail.len().checked_sub(NewSegment::FOOT_BYTES) else {
            return refused("the tail has no foot");
        };
        let start = (new.capacity as usize).checked_sub(tail.len());
        let Some(start) = start.filter(|_| new.is_sealed(&tail[foot..])) else {
            return refused("the tail does not seal this segment");
        };
        let handle = self.handle(file).await?;
        let path = self.folder.join(format!("flash/{file:08}"));
        handle.write_durable(tail, start as u64).await.map_err(at(&path))?;
        let copy = self.written(segment)?;
        (copy.is_ended, copy.is_sealed, copy.header) = (true, true, Vec::new());
        self.last = None;
        Ok(())
    }

    pub(crate) async fn keep(
        &mut self,
        head: SegmentId,
        kept: &[SegmentId],
    ) -> Result<(), Failure> {
        let Some(hidden) = &self.hidden else {
            // The reply to the first call was lost.
            return if self.is_following { Ok(()) } else { refused("no sync has begun") };
        };
        let is_whole = |segment: &SegmentId| match hidden.get(segment) {
            _ if !self.known.contains(segment) => false,
            Some(copy) => copy.is_ended,
            None => self.counted.get(segment).is_some_and(|copy| copy.is_sealed),
        };
        let is_begun = |copy: &Copy| copy.front as usize >= NewSegment::HEADER_BYTES;
        let has_head = is_whole(&head) || hidden.get(&head).is_some_and(is_begun);
        if let Some(lacks) = kept.iter().find(|segment| !is_whole(segment)) {
            return Err(Failure::Refused(format!("segment {lacks} is not here as a whole")));
        }
        if !has_head {
            return refused("the head is not here");
        }
        let kept: BTreeSet<SegmentId> = kept.iter().copied().collect();
        let counts = |segment: &SegmentId| {
            kept.contains(segment) || *segment >= head && self.known.contains(segment)
        };
        let stays = |segment: &SegmentId| counts(segment) && !hidden.contains_key(segment);
        let gone = self.counted.iter().filter(|(segment, _)| !stays(segment));
        let come = hidden.iter().filter(|(segment, _)| counts(segment));
        let ending = Ending {
            renamed: come.map(|(_, copy)| copy.file).collect(),
            removed: gone
                .map(|(_, copy)| copy.file)
                .chain(self.strays.iter().map(|stray| stray.0))
                .collect(),
        };
        self.note(&ending).await?;
        self.end(&ending).await?;
        // What the log has given up meanwhile.
        let known = std::mem::take(&mut self.known);
        let counts = |segment: &SegmentId| {
            kept.contains(segment) || *segment >= head && known.contains(segment)
        };
        let hidden = self.hidden.take().unwrap_or_default();
        let (come, left): (BTreeMap<_, _>, _) =
            hidden.into_iter().partition(|(segment, _)| counts(segment));
        self.counted.retain(|segment, _| counts(segment));
        self.counted.extend(come);
        self.known = known;
        self.strays.clear();
        self.is_following = true;
        self.remove(files_of(&left), HIDDEN).await
    }

    pub(crate) async fn free(&mut self, segment: SegmentId) -> Result<(), Failure> {
        if self.hidden.is_some() || !self.is_following {
            return refused("the end of a sync says which segments go");
        }
        let Some(copy) = self.counted.remove(&segment) else { return Ok(()) };
        self.remove(vec![copy.file], COUNTED).await
    }

    /// Opens a copy's file to write, or takes it as it was written last.
    async fn handle(&mut self, file: u32) -> Result<Arc<dyn File>, Failure> {
        if let Some((last, handle)) = &self.last
            && *last == file
        {
            return Ok(Arc::clone(handle));
        }
        let suffix = if self.hidden.is_some() { HIDDEN } else { COUNTED };
        let path = path(&self.folder, file, suffix);
        let handle = self.env.disk().open(&path, Open::Write).await.map_err(at(&path))?;
        self.last = Some((file, Arc::clone(&handle)));
        Ok(handle)
    }

    async fn remove(&mut self, files: Vec<u32>, suffix: &str) -> Result<(), Failure> {
        if files.is_empty() {
            return Ok(());
        }
        for file in files {
            self.last.take_if(|(last, _)| *last == file);
            let path = path(&self.folder, file, suffix);
            absent_is_well(self.env.disk().remove(&path).await).map_err(at(&path))?;
        }
        self.sync_names().await
    }

    async fn sync_names(&self) -> Result<(), Failure> {
        let flash = self.folder.join("flash");
        self.env.disk().sync_folder(&flash).await.map_err(at(&flash))
    }

    /// The record of a sync that has ended and is not done with.
    async fn ending(&self) -> Result<Option<Ending>, Failure> {
        let path = self.folder.join(ENDING);
        let file = match self.env.disk().open(&path, Open::Read).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        let length = file.length().await.map_err(at(&path))?;
        let mut bytes = vec![0; length.min(24 + 8 * FILES_MAX as u64) as usize];
        file.read_at(&mut bytes, 0).await.map_err(at(&path))?;
        let ending = Ending::decode(&bytes).map_err(|why| {
            Failure::Disk(format!(
                "{}: {why}: if the owner of these copies lives, remove their folder, and it copies its log again",
                path.display()
            ))
        })?;
        Ok(Some(ending))
    }

    async fn note(&self, ending: &Ending) -> Result<(), Failure> {
        replace(&self.env, &self.folder, ENDING, &ending.encode()).await
    }

    /// Does what the record of an ended sync says, and removes the record. May be done again.
    async fn end(&self, ending: &Ending) -> Result<(), Failure> {
        let disk = self.env.disk();
        for &file in &ending.renamed {
            let (from, to) = (path(&self.folder, file, HIDDEN), path(&self.folder, file, COUNTED));
            absent_is_well(disk.rename(&from, &to).await).map_err(at(&from))?;
        }
        for &file in &ending.removed {
            let path = path(&self.folder, file, COUNTED);
            absent_is_well(disk.remove(&path).await).map_err(at(&path))?;
        }
        self.sync_names().await?;
        let path = self.folder.join(ENDING);
        absent_is_well(disk.remove(&path).await).map_err(at(&path))?;
        disk.sync_folder(&self.folder).await.map_err(at(&self.folder))
    }

    /// Reads which segments are here, and removes files that no sync has ended with.
    async fn scan(&mut self) -> Result<(), Failure> {
        let flash = self.folder.join("flash");
        let list = self.env.disk().list(&flash).await.map_err(at(&flash))?;
        let mut litter = Vec::new();
        for (name, kind) in list {
            let Some((digits, suffix)) = name.split_once('.') else { continue };
            let number = Some(digits).filter(|digits| digits.len() == 8);
            let Some(file) = number.and_then(|digits| digits.parse().ok()) else { continue };
            if kind != FileKind::File {
                continue;
            }
            match suffix {
                HIDDEN => litter.push(name),
                COUNTED if !self.look(file).await? => litter.push(name),
                _ => {}
            }
        }
        for name in litter {
            let path = flash.join(name);
            absent_is_well(self.env.disk().remove(&path).await).map_err(at(&path))?;
        }
        self.sync_names().await
    }

    /// Takes a file for the copy that it is; `false` if it was never used.
    async fn look(&mut self, file: u32) -> Result<bool, Failure> {
        let path = path(&self.folder, file, COUNTED);
        let handle = self.env.disk().open(&path, Open::Read).await.map_err(at(&path))?;
        let length = handle.length().await.map_err(at(&path))?;
        let mut header = [0; NewSegment::HEADER_BYTES];
        let mut foot = [0; NewSegment::FOOT_BYTES];
        if length < u64::from(CAPACITY_MIN) {
            return Ok(false);
        }
        let read = handle.read_at(&mut header, 0).await;
        if read.is_ok() && header.iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
        let share = self.room.found(length);
        let new = NewSegment::read(&header).filter(|new| {
            read.is_ok()
                && u64::from(new.capacity) == length
                && NewSegment::node(&header) == Some(self.node)
                && self.counted.len() < SEGMENTS_MAX
        });
        let Some(new) = new else {
            tracing::warn!(file = %path.display(), "a file among the copies of a log is none of them");
            self.strays.push((file, share));
            return Ok(true);
        };
        let read = handle.read_at(&mut foot, length - NewSegment::FOOT_BYTES as u64).await;
        let is_sealed = read.is_ok() && new.is_sealed(&foot);
        let copy = Copy {
            file,
            new,
            front: 0,
            header: Vec::new(),
            is_ended: is_sealed,
            is_sealed,
            is_synced: false,
            share,
        };
        if let Some(other) = self.counted.insert(new.segment, copy) {
            self.strays.push((other.file, other.share));
        }
        Ok(true)
    }
}

fn files_of(copies: &BTreeMap<SegmentId, Copy>) -> Vec<u32> {
    copies.values().map(|copy| copy.file).collect()
}

fn path(folder: &Path, file: u32, suffix: &str) -> PathBuf {
    folder.join(format!("flash/{file:08}.{suffix}"))
}

pub(crate) fn absent_is_well(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Replaces a file in a folder as a whole, durably.
pub(crate) async fn replace(
    env: &Env,
    folder: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<(), Failure> {
    env.replace_file(folder, name, bytes).await.map_err(at(&folder.join(name)))
}
