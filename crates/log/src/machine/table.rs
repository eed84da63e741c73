//! The segments that make up the log, and which of them are still needed.
//!
//! ```text
//!  open head --seal--> live --last change released--> dead --(*)--> out (file reused)
//!                       ^
//!  recovered, not read -+ (learn)
//! ```
//!
//! (*) A durable head's digest does not name the segment, and the head before that head is sealed.
//!
//! A dead segment leaves the table in two steps, because the newest durable digest still names it:
//! if its file were reused before the next head is durable, the log of a crashed node would seem
//! incomplete.

use crate::format::{Lost, Mark, Named, Statistics, Who};
use crate::limits::{LITTER_MIN, MARKS_MAX};
use hashbrown::HashMap;
use rekindle_base::{SegmentId, Serial, VolumeId};
use std::collections::BTreeMap;

/// All segments, each with a value of the driver (`T`).
pub(crate) struct Table<T> {
    rows: BTreeMap<SegmentId, Row<T>>,
    /// The places of each volume's unreleased changes: segment and highest serial there.
    volumes: HashMap<VolumeId, Vec<(SegmentId, Serial)>>,
    /// Releases that came before the recovered segments were read.
    early: HashMap<VolumeId, Serial>,
    /// Highest serials in the segments that have not been read, by an earlier head's statistics.
    carried: HashMap<VolumeId, Serial>,
    carried_whole: bool,
    /// The marks of changes that still lie in these segments and are not needed. They keep a
    /// restart from giving such changes again, whatever is released later.
    marks: HashMap<VolumeId, Vec<Mark>>,
    unread: usize,
    lost: usize,
    dead: usize,
}

struct Row<T> {
    file: Option<u32>,
    who: Option<Who>,
    needed: Needed,
    /// Changes of the segment are lost, and the loss is not accepted yet: the row stays, so that no
    /// restart forgets the loss.
    lost: Lost,
    segment: T,
}

/// The need for a segment, as far as the table knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The segment is open, or recovered and not read, or lost: in any case needed.
    Unknown,
    /// Count of the volumes with unreleased changes here; a loss not accepted yet counts as one.
    By(usize),
}

/// The serial of a mark that covers every change before it.
pub(crate) const EVERY: Serial = Serial(u64::MAX);

/// The number in a digest that stands for "no file".
pub(crate) const NO_FILE: u32 = u32::MAX;

impl<T> Table<T> {
    pub(crate) fn new(carried: HashMap<VolumeId, Serial>, carried_whole: bool) -> Self {
        Table {
            rows: BTreeMap::new(),
            volumes: HashMap::new(),
            early: HashMap::new(),
            carried,
            carried_whole,
            marks: HashMap::new(),
            unread: 0,
            lost: 0,
            dead: 0,
        }
    }

    /// Takes over the marks of earlier lives.
    pub(crate) fn take_over(&mut self, marks: &HashMap<VolumeId, Vec<Mark>>) {
        for (&volume, marks) in marks {
            marks.iter().for_each(|&mark| self.mark(volume, mark));
        }
    }

    /// Adds a segment whose content is not known (yet): the head, a recovered one, a lost one.
    pub(crate) fn insert(
        &mut self,
        id: SegmentId,
        (file, who): (Option<u32>, Option<Who>),
        segment: T,
        unread: bool,
    ) {
        self.unread += usize::from(unread);
        let row = Row { file, who, needed: Needed::Unknown, lost: Lost::Nothing, segment };
        let before = self.rows.insert(id, row);
        assert!(before.is_none(), "segment {id} is in the log once");
    }

    /// Adds the highest serials of an unread segment that no head's statistics cover. `None` when
    /// they cannot be told.
    pub(crate) fn carry(&mut self, highest: Option<Vec<(VolumeId, Serial)>>) {
        self.carried_whole &= highest.is_some();
        for (volume, serial) in highest.unwrap_or_default() {
            let entry = self.carried.entry(volume).or_default();
            *entry = serial.max(*entry);
        }
    }

    /// Marks a segment that has not been learnt of as lost: it stays until [`Table::discard`].
    pub(crate) fn mark_lost(&mut self, id: SegmentId, lost: Lost) {
        let row = self.rows.get_mut(&id).expect("a segment that is lost is in the log");
        assert!(row.needed == Needed::Unknown, "a loss in segment {id} is seen before all else");
        assert!(lost != Lost::Nothing, "a loss is a loss");
        self.lost += usize::from(row.lost == Lost::Nothing);
        row.lost = lost.max(row.lost);
    }

    /// Records the content of a segment that was unknown until now: the highest serial of each
    /// volume.
    pub(crate) fn learn(
        &mut self,
        id: SegmentId,
        highest: impl IntoIterator<Item = (VolumeId, Serial)>,
        was_unread: bool,
    ) {
        let mut count = 0;
        for (volume, serial) in highest {
            let released =
                was_unread && self.early.get(&volume).is_some_and(|&early| serial <= early);
            if !released {
                self.volumes.entry(volume).or_default().push((id, serial));
                count += 1;
            }
        }
        let row = self.rows.get_mut(&id).expect("a segment that is learnt of is in the log");
        assert!(row.needed == Needed::Unknown, "segment {id} is learnt of once");
        count += usize::from(row.lost != Lost::Nothing);
        row.needed = Needed::By(count);
        self.dead += usize::from(count == 0);
        self.unread = self
            .unread
            .checked_sub(usize::from(was_unread))
            .expect("only unread segments are read");
        self.forget_earlier_lives();
    }

    /// Drops data that only unread segments needed. Only `carried` knows which volumes may be in a
    /// lost segment, so it stays while one is lost.
    fn forget_earlier_lives(&mut self) {
        if self.unread == 0 {
            self.early.clear();
            if self.lost == 0 {
                self.carried.clear();
                self.carried_whole = true;
            }
        }
    }

    /// Marks changes of `volume` up to `serial` as not needed any more. Returns whether fewer
    /// segments are [live](Self::live) now: one died, or stays as the proof of a loss only.
    pub(crate) fn release(&mut self, volume: VolumeId, serial: Serial) -> bool {
        if self.unread > 0 {
            let early = self.early.entry(volume).or_default();
            *early = serial.max(*early);
        }
        if self.carried.get(&volume).is_some_and(|&highest| highest <= serial) {
            self.carried.remove(&volume);
        }
        let before = self.live();
        if let Some(places) = self.volumes.get_mut(&volume) {
            for (id, _) in places.extract_if(.., |&mut (_, highest)| highest <= serial) {
                let row =
                    self.rows.get_mut(&id).expect("a volume is listed in segments of the log only");
                let Needed::By(count) = &mut row.needed else {
                    panic!("segment {id} has been learnt of")
                };
                *count = count.checked_sub(1).expect("each volume leaves a segment once");
                self.dead += usize::from(*count == 0);
            }
            if places.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.live() < before
    }

    /// Whether unreleased changes of `volume` may lie here, or may have been in a lost segment.
    pub(crate) fn may_have(&self, volume: VolumeId) -> bool {
        self.unread > 0 || self.lost > 0 || self.volumes.contains_key(&volume)
    }

    /// The serial up to which changes of `volume` are marked as not needed; 0 without a mark, or
    /// when the volume was forgotten.
    pub(crate) fn marked(&self, volume: VolumeId) -> Serial {
        let marks = self.marks.get(&volume).map_or(&[][..], Vec::as_slice);
        let serials = marks.iter().map(|mark| mark.serial).filter(|&serial| serial != EVERY);
        serials.max().unwrap_or_default()
    }

    /// Remembers a mark for as long as the changes that it covers lie in the log. Marks come in the
    /// order of the log.
    pub(crate) fn mark(&mut self, volume: VolumeId, mark: Mark) {
        let marks = self.marks.entry(volume).or_default();
        marks.retain(|earlier| earlier.serial > mark.serial);
        marks.push(mark);
        if self.carried.get(&volume).is_some_and(|&highest| highest <= mark.serial) {
            self.carried.remove(&volume);
        }
    }

    /// The marks of changes that still lie here, in the order of volumes.
    fn marks(&self) -> Vec<(VolumeId, Mark)> {
        let oldest = self.rows.keys().next().copied().unwrap_or_default();
        let each = |(&volume, marks): (&VolumeId, &Vec<Mark>)| {
            marks.iter().map(move |&mark| (volume, mark)).collect::<Vec<_>>()
        };
        let mut marks: Vec<_> = self.marks.iter().flat_map(each).collect();
        marks.retain(|(_, mark)| mark.segment >= oldest);
        marks.sort_by_key(|&(volume, _)| volume);
        marks.truncate(MARKS_MAX);
        marks
    }

    /// Count of the segments that are needed, the head among them. Segments that stay as the proof
    /// of a loss only do not count: no progress of the datastore frees them, and writes would wait
    /// for ever for their room.
    pub(crate) fn live(&self) -> usize {
        self.rows.len() - self.dead - self.proofs()
    }

    fn proofs(&self) -> usize {
        if self.lost == 0 {
            return 0;
        }
        let is_proof = |row: &&Row<T>| {
            row.lost != Lost::Nothing && matches!(row.needed, Needed::Unknown | Needed::By(1))
        };
        self.rows.values().filter(is_proof).count()
    }

    /// Whether most of the segments that the newest digest names are dead.
    pub(crate) fn is_littered(&self) -> bool {
        self.dead >= LITTER_MIN && self.dead > 2 * self.live()
    }

    /// Count of the segments that leave the log with the next head.
    pub(crate) fn dead(&self) -> usize {
        self.dead
    }

    /// Count of the segments that hold a file.
    pub(crate) fn held(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// The segments that the next head's digest names beside that head, and those that leave the
    /// log when it has taken over.
    pub(crate) fn next_digest(&self) -> (Vec<Named>, Vec<SegmentId>) {
        let (mut named, mut leaving) = (Vec::new(), Vec::new());
        for (&segment, row) in &self.rows {
            match row.needed {
                Needed::By(0) => leaving.push(segment),
                _ => {
                    let file = row.file.unwrap_or(NO_FILE);
                    named.push(Named { segment, file, lost: row.lost, who: row.who });
                }
            }
        }
        (named, leaving)
    }

    /// The volumes with changes in the log. `head` lists those of the open head.
    pub(crate) fn statistics(&self, head: &HashMap<VolumeId, Serial>, most: usize) -> Statistics {
        let mut highest = self.carried.clone();
        let listed = self
            .volumes
            .iter()
            .flat_map(|(volume, places)| places.iter().map(move |&(_, serial)| (volume, serial)));
        for (volume, serial) in listed.chain(head.iter().map(|(volume, &serial)| (volume, serial)))
        {
            let entry = highest.entry(*volume).or_insert(serial);
            *entry = serial.max(*entry);
        }
        let mut volumes: Vec<_> = highest.into_iter().collect();
        volumes.sort_unstable();
        let whole = volumes.len() <= most && self.carried_whole;
        volumes.truncate(most);
        Statistics { volumes, whole, marks: self.marks() }
    }

    /// Takes a dead segment out.
    pub(crate) fn remove_dead(&mut self, id: SegmentId) -> T {
        let row = self.rows.remove(&id).expect("what leaves the log was in it");
        assert!(row.needed == Needed::By(0), "only dead segments leave the log");
        self.dead -= 1;
        let oldest = self.rows.keys().next().copied().unwrap_or_default();
        self.marks.retain(|_, marks| {
            marks.retain(|mark| mark.segment >= oldest);
            !marks.is_empty()
        });
        row.segment
    }

    /// All segments, ascending: file, need, whether changes are lost, and the driver's value.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (SegmentId, Option<u32>, Needed, Lost, &T)> {
        self.rows.iter().map(|(&id, row)| (id, row.file, row.needed, row.lost, &row.segment))
    }

    /// Segments whose memory could be given up, the oldest first.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (SegmentId, &T)> {
        self.rows.iter().map(|(&id, row)| (id, &row.segment))
    }

    /// Accepts the loss in a segment: what is left of the segment goes like any other.
    pub(crate) fn discard(&mut self, id: SegmentId) {
        let Some(row) = self.rows.get_mut(&id).filter(|row| row.lost != Lost::Nothing) else {
            return;
        };
        row.lost = Lost::Nothing;
        row.needed = match row.needed {
            Needed::Unknown => Needed::By(0),
            Needed::By(count) => Needed::By(count.checked_sub(1).expect("a loss counts as one")),
        };
        self.dead += usize::from(row.needed == Needed::By(0));
        self.lost -= 1;
        self.forget_earlier_lives();
    }
}

#[cfg(test)]
mod tests;
