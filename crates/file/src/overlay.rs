//! The effects of records that the root does not have, by inode.
//!
//! An effect says what is, so the newest one counts. With a new root the effects that it has are
//! dropped, inode by inode (HydraFS's three cases of cleaning): the root has all effects on an
//! inode, and it goes; it has some, and the newer ones stay over it; or it has none of them.

use crate::format::Bad;
use crate::format::inode::Inode;
use crate::format::record::{self, Effect, WRITE_HEAD_BYTES, WriteHead};
use crate::format::rows::{Named, Totals, Xattr};
use crate::ranges::{Backing, Part, Ranges};
use crate::taken::{gaps, touched, whole};
use crate::types::{Call, FILE_BYTES_MAX, Ino, Origin};
use bytes::Bytes;
use rekindle_base::Serial;
use rekindle_staging::{Record, Source};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

/// The newest value of something, and the record that says so.
type Newest<T> = (Serial, Option<T>);

/// The effects of records that the root does not have.
#[derive(Default)]
pub(crate) struct Overlay {
    pub(crate) inodes: HashMap<Ino, Dirty>,
    /// What a front keeps of inodes.
    pub(crate) kept: BTreeMap<Ino, Newest<Bytes>>,
    /// What the records say of the whole volume, in serial order.
    whole: VecDeque<(Serial, Whole)>,
}

/// The effects on one inode.
#[derive(Default)]
pub(crate) struct Dirty {
    /// The inode; `None` in it: it is gone.
    pub(crate) inode: Option<Newest<Inode>>,
    pub(crate) names: BTreeMap<u64, Newest<Named>>,
    pub(crate) xattrs: BTreeMap<u64, Newest<Xattr>>,
    pub(crate) ranges: Ranges,
    /// Pages that the file takes, or takes no more.
    pub(crate) taken: Ranges<bool>,
    /// How many bytes more a record says that the file takes.
    more: VecDeque<(Serial, i64)>,
}

/// An effect on the whole volume.
#[derive(Clone)]
enum Whole {
    More {
        bytes: i64,
        inodes: i64,
    },
    Done(Origin),
    Called(Call),
    /// A front keeps something of so many inodes more.
    Kept(i64),
    /// An inode with this number exists.
    Numbered(Ino),
}

impl Overlay {
    /// Adds the effects of a record. Records come in serial order.
    pub(crate) fn add(&mut self, record: &Record, current: Option<&mut Totals>) -> Result<(), Bad> {
        let serial = record.serial;
        let begin = self.whole.len();
        match record.kind {
            record::EFFECTS => {
                // A record that changes the content of a file says of no other one what it takes.
                let mut changed = None;
                for effect in record::decode(&record.bytes)? {
                    match &effect {
                        Effect::Zero { ino, .. }
                        | Effect::Copy { ino, .. }
                        | Effect::Reserve { ino, .. } => changed = Some(*ino),
                        Effect::More { bytes, .. } => {
                            let dirty = changed.and_then(|ino| self.inodes.get_mut(&ino));
                            if let Some(dirty) = dirty.filter(|_| *bytes != 0) {
                                dirty.more.push_back((serial, *bytes));
                            }
                        }
                        _ => {}
                    }
                    self.effect(serial, effect)?;
                }
            }
            record::WRITE => {
                let WriteHead { ino, offset, more, inode } = WriteHead::decode(&record.bytes)?;
                let length = record.length.saturating_sub(WRITE_HEAD_BYTES as u64);
                let dirty = self.inodes.entry(ino).or_default();
                dirty.inode = Some((serial, Some(inode)));
                let range = offset..offset.saturating_add(length);
                dirty.take(&range, serial);
                let source = record.source.behind(WRITE_HEAD_BYTES as u64);
                dirty.ranges.put(range, serial, Backing::Record(source));
                if more != 0 {
                    dirty.more.push_back((serial, more));
                    self.whole.push_back((serial, Whole::More { bytes: more, inodes: 0 }));
                }
            }
            _ => return Err(Bad("the record is of an unknown kind: upgrade rekindle")),
        }
        if let Some(current) = current {
            self.whole.range(begin..).for_each(|(_, whole)| whole.apply(current));
        }
        Ok(())
    }

    fn effect(&mut self, serial: Serial, effect: Effect) -> Result<(), Bad> {
        match effect {
            Effect::Inode { ino, inode } => {
                self.whole.push_back((serial, Whole::Numbered(ino)));
                let dirty = self.inodes.entry(ino).or_default();
                if inode.is_none() {
                    *dirty = Dirty::default();
                }
                dirty.inode = Some((serial, inode));
            }
            Effect::Name { dir, position, named } => {
                let dirty = self.inodes.entry(dir).or_default();
                dirty.names.insert(position, (serial, named));
            }
            Effect::Xattr { ino, position, xattr } => {
                let dirty = self.inodes.entry(ino).or_default();
                dirty.xattrs.insert(position, (serial, xattr));
            }
            Effect::Zero { ino, offset, length } => {
                let dirty = self.inodes.entry(ino).or_default();
                let range = offset..offset.saturating_add(length).min(FILE_BYTES_MAX);
                dirty.taken.put(whole(&range), serial, false);
                dirty.ranges.put(range, serial, Backing::Record(Source::Zero));
            }
            Effect::Reserve { ino, offset, length } => {
                let dirty = self.inodes.entry(ino).or_default();
                dirty.take(&(offset..offset.saturating_add(length).min(FILE_BYTES_MAX)), serial);
            }
            Effect::Copy { ino, offset, length, from, at } => {
                let changed = self.inodes.get(&from);
                if changed.is_some_and(|dirty| dirty.ranges.has_any(at..at + length)) {
                    return Err(Bad("the record copies a range that the root does not have"));
                }
                let dirty = self.inodes.entry(ino).or_default();
                dirty.take(&(offset..offset + length), serial);
                let backing = Backing::File { ino: from, at };
                dirty.ranges.put(offset..offset + length, serial, backing);
            }
            Effect::More { bytes, inodes } => {
                self.whole.push_back((serial, Whole::More { bytes, inodes }));
            }
            Effect::Done(origin) => self.whole.push_back((serial, Whole::Done(origin))),
            Effect::Called(call) => self.whole.push_back((serial, Whole::Called(call))),
            Effect::Kept { ino, is_new, kept } => {
                let more = if kept.is_none() { -1 } else { i64::from(is_new) };
                self.kept.insert(ino, (serial, kept));
                if more != 0 {
                    self.whole.push_back((serial, Whole::Kept(more)));
                }
            }
        }
        Ok(())
    }

    /// Returns no fewer bytes than the next commit may find to be free that are not so now.
    pub(crate) fn in_doubt(&self) -> u64 {
        let more = self.whole.iter().map(|(_, whole)| match whole {
            Whole::More { bytes, .. } => bytes.max(&0).cast_unsigned(),
            _ => 0,
        });
        more.sum()
    }

    /// Adds what the records say of the whole volume.
    pub(crate) fn apply_to(&self, totals: &mut Totals) {
        self.whole.iter().for_each(|(_, whole)| whole.apply(totals));
    }

    /// Drops what a root has.
    pub(crate) fn finish(&mut self, checkpoint: Serial) {
        while self.whole.front().is_some_and(|(serial, _)| *serial <= checkpoint) {
            self.whole.pop_front();
        }
        self.kept.retain(|_, (serial, _)| *serial > checkpoint);
        self.inodes.retain(|_, dirty| {
            dirty.inode.take_if(|(serial, _)| *serial <= checkpoint);
            dirty.names.retain(|_, (serial, _)| *serial > checkpoint);
            dirty.xattrs.retain(|_, (serial, _)| *serial > checkpoint);
            dirty.ranges.finish(checkpoint);
            dirty.taken.finish(checkpoint);
            dirty.more.retain(|(serial, _)| *serial > checkpoint);
            !dirty.is_empty()
        });
    }
}

impl Dirty {
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.inode, Some((_, None)))
    }

    fn is_empty(&self) -> bool {
        let Dirty { inode, names, xattrs, ranges, taken, more: _ } = self;
        inode.is_none()
            && names.is_empty()
            && xattrs.is_empty()
            && ranges.is_empty()
            && taken.is_empty()
    }

    /// Notes that the file takes the pages of a range of bytes.
    fn take(&mut self, bytes: &Range<u64>, serial: Serial) {
        let mut pages = touched(bytes);
        if gaps(&self.taken, &pages).is_empty()
            && self.taken.within(pages.clone()).all(|part| part.backing)
        {
            return;
        }
        // What meets it may be said anew: it is as true.
        let wider = pages.start.saturating_sub(1)..pages.end.saturating_add(1);
        for Part { range, backing: is_taken } in self.taken.around(wider) {
            if is_taken {
                pages = pages.start.min(range.start)..pages.end.max(range.end);
            }
        }
        self.taken.put(pages, serial, true);
    }

    /// Corrects how many bytes the file takes: the root counts so many.
    pub(crate) fn recount(&mut self, allocated: u64) {
        if let Some((_, Some(inode))) = &mut self.inode {
            let more = self.more.iter().map(|(_, more)| more).sum();
            inode.allocated = allocated.saturating_add_signed(more);
        }
    }
}

impl Whole {
    fn apply(&self, totals: &mut Totals) {
        match self {
            Whole::More { bytes, inodes } => {
                totals.bytes = totals.bytes.saturating_add_signed(*bytes);
                totals.inodes = totals.inodes.saturating_add_signed(*inodes);
            }
            Whole::Done(origin) => totals.note(origin),
            Whole::Called(call) => totals.note_call(call),
            Whole::Kept(more) => totals.kept = totals.kept.saturating_add_signed(*more),
            Whole::Numbered(ino) => totals.next_ino = totals.next_ino.max(ino.saturating_add(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(serial: u64, effects: &[Effect]) -> Record {
        let bytes = bytes::Bytes::from(record::encode(effects));
        Record {
            serial: Serial(serial),
            kind: record::EFFECTS,
            length: bytes.len() as u64,
            source: Source::Memory(bytes.clone()),
            bytes,
            joined: false,
        }
    }

    #[test]
    fn a_record_that_copies_what_no_root_has_is_refused() {
        let copy = |at| Effect::Copy { ino: 7, offset: 0, length: 8192, from: 5, at };
        for (at, is_right) in [(0, true), (4096, false), (8192, false), (16384, true)] {
            let mut overlay = Overlay::default();
            let zero = Effect::Zero { ino: 5, offset: 9000, length: 2 };
            overlay.add(&record(1, &[zero]), None).unwrap();
            assert_eq!(overlay.add(&record(2, &[copy(at)]), None).is_ok(), is_right, "{at}");
            overlay.finish(Serial(1));
            assert!(overlay.add(&record(3, &[copy(at)]), None).is_ok(), "the root has it now");
        }
    }
}
