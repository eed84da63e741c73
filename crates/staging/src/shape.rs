//! The two shapes of a volume's changes: byte ranges ([`crate::range`]) and records
//! ([`crate::record`]). The core knows serials, payloads and groups; where it needs more, it asks
//! here, and nowhere else.

use crate::queue::{Change, Queue};
use crate::range::coalesce::coalesce;
use crate::range::counting;
use crate::range::home::{self, Fold, RangeHome};
use crate::range::overlay::Overlay;
use crate::range::quarantine::{self, Lost};
use crate::record::{self, Coming, Record, RecordHome};
use crate::{Error, limits};
use rekindle_base::Serial;
use rekindle_content::{Batch, tree::Root};
use rekindle_log::Position;
use std::ops::Range;
use std::sync::Arc;

/// The home of one volume's content, by the shape of the volume's changes. The volume's kind makes
/// it.
#[derive(Clone)]
pub enum Home {
    /// Changes of byte ranges: the newest change of a byte hides the older ones.
    Range(Arc<dyn RangeHome>),
    /// Records: each counts, in serial order.
    Record(Arc<dyn RecordHome>),
}

impl Home {
    /// Reads the tree of a root, as far as lookups need it; fails if part of it cannot be read.
    /// `size`: the volume's under that root.
    pub async fn check_tree(&self, root: &Root, size: u64) -> Result<(), Error> {
        match self {
            Home::Range(home) => {
                let mut position = 0;
                while position < size {
                    let span = limits::LOOK_BYTES.min(size - position);
                    home.extents(root, position, span).await?;
                    position += span;
                }
                Ok(())
            }
            Home::Record(home) => home.check_tree(root).await,
        }
    }

    /// The stretch of a volume that stands for a range of keys of its tree: bytes, or, of records,
    /// the keys themselves.
    pub(crate) fn stretch_of(&self, keys: &Range<u64>) -> Lost {
        let stretch = match self {
            Home::Range(home) => home.bytes_of(keys.clone()),
            Home::Record(_) => keys.clone(),
        };
        Lost { position: stretch.start, span: stretch.end - stretch.start }
    }
}

/// The visible changes, in the form in which reads need them.
pub(crate) enum Shown {
    /// The newest change of each byte.
    Range(Overlay),
    /// The home has the visible records; this has those that come next.
    Record(Coming),
}

impl Shown {
    /// Shows the changes at the front of `queue` that the log has up to `committed`. Returns their
    /// count, too.
    pub(crate) async fn front_of(
        queue: &Queue,
        committed: Position,
        (home, volume): (&Home, &str),
    ) -> Result<(Shown, usize), Error> {
        let count = queue.iter().take_while(|change| change.is_committed(committed)).count();
        let shown = match home {
            Home::Range(_) => {
                let change =
                    |index: usize| queue.get(index).expect("the count is within the queue");
                let range = |index: usize| (change(index).position, change(index).span);
                Shown::Range(Overlay::build(queue.serial(0), count, range))
            }
            Home::Record(home) => {
                let (first, next) = (queue.serial(0), queue.serial(count));
                record::replay(&**home, volume, first, queue.iter().take(count)).await?;
                let rest = queue.iter().skip(count).take_while(|change| change.is_logged());
                Shown::Record(Coming::with(home.clone(), volume, next, rest).await?)
            }
        };
        Ok((shown, count))
    }

    /// Shows changes that the log has listed. No later change is visible yet.
    pub(crate) async fn listed(
        first: Serial,
        changes: &std::collections::VecDeque<Change>,
        (home, volume): (&Home, &str),
    ) -> Result<Shown, Error> {
        match home {
            Home::Range(_) => {
                let range = |index: usize| (changes[index].position, changes[index].span);
                Ok(Shown::Range(Overlay::build(first, changes.len(), range)))
            }
            Home::Record(home) => {
                record::replay(&**home, volume, first, changes.iter()).await?;
                Ok(Shown::Record(Coming::new(home.clone())))
            }
        }
    }

    /// Takes over the changes before the first one of these.
    pub(crate) fn begin_with(&mut self, older: Shown) {
        match (self, older) {
            (Shown::Range(overlay), Shown::Range(older)) => {
                debug_assert!(overlay.length() == 0, "nothing is visible before");
                *overlay = older;
            }
            // The home has the older records already.
            (Shown::Record(_), Shown::Record(_)) => {}
            _ => unreachable!("a volume has one shape"),
        }
    }

    pub(crate) fn is_of_records(&self) -> bool {
        matches!(self, Shown::Record(_))
    }

    /// Notes changes that have entered the queue together; the first has the serial `first`.
    pub(crate) fn enter(&mut self, first: Serial, changes: &[Change], payloads: &[&[u8]]) {
        match self {
            Shown::Range(_) => {}
            Shown::Record(coming) => coming.enter(first, changes, payloads),
        }
    }

    /// Shows a change, which is the next one.
    pub(crate) fn show(&mut self, change: &Change, serial: Serial) {
        match self {
            Shown::Range(overlay) => overlay.insert(change.position, change.span, serial),
            Shown::Record(coming) => coming.show(change, serial),
        }
    }

    /// Shows changes that the datastore has before they were visible. A root of byte ranges shows
    /// them itself.
    pub(crate) fn show_stored<'a>(&mut self, changes: impl Iterator<Item = (&'a Change, Serial)>) {
        if let Shown::Record(coming) = self {
            changes.for_each(|(change, serial)| coming.show(change, serial));
        }
    }

    /// Notes that the datastore has everything up to `checkpoint` under `root`.
    pub(crate) fn finish(&self, root: &Root, checkpoint: Serial) {
        match self {
            // Its readers take the root from the vault.
            Shown::Range(_) => {}
            Shown::Record(coming) => coming.finish(root, checkpoint),
        }
    }

    /// The index of byte ranges.
    pub(crate) fn overlay(&self) -> Result<&Overlay, Error> {
        match self {
            Shown::Range(overlay) => Ok(overlay),
            Shown::Record(_) => Err(home::none()),
        }
    }

    /// The same, to change it; `None` for records.
    pub(crate) fn overlay_mut(&mut self) -> Option<&mut Overlay> {
        match self {
            Shown::Range(overlay) => Some(overlay),
            Shown::Record(_) => None,
        }
    }
}

/// The changes of a batch, as their home folds them.
pub(crate) enum Folds<'a> {
    Range(&'a dyn RangeHome, Vec<Fold>),
    Record(&'a dyn RecordHome, Vec<Record>),
}

impl<'a> Folds<'a> {
    /// Prepares changes of which the first has the serial `first`.
    pub(crate) async fn of(
        home: &'a Home,
        first: Serial,
        changes: &[Change],
    ) -> Result<Folds<'a>, Error> {
        match home {
            Home::Range(home) => {
                let mut folds = coalesce(changes);
                // The fold reads by position in the volume, which is any order in the log.
                let sources = folds.iter_mut().map(|fold| (&mut fold.source, fold.span));
                home::read_ahead(sources.collect()).await;
                Ok(Folds::Range(&**home, folds))
            }
            Home::Record(home) => {
                let records = record::read(&**home, first, changes).await?;
                Ok(Folds::Record(&**home, records))
            }
        }
    }

    /// Writes the changes into `batch` and returns the root with them.
    pub(crate) async fn fold(&self, batch: &mut Batch, root: &Root) -> Result<Root, Error> {
        match self {
            Folds::Range(home, folds) => home.fold(batch, root, folds).await,
            Folds::Record(home, records) => home.fold(batch, root, records).await,
        }
    }

    /// Estimates the bytes with content in `root` that the changes write over.
    pub(crate) async fn written_over(&self, root: &Root) -> u64 {
        match self {
            Folds::Range(home, folds) => counting::written_over(*home, root, folds).await,
            // A record replaces no more than what an earlier record brought.
            Folds::Record(_, records) => {
                records.iter().map(|record| record.bytes.len() as u64).sum()
            }
        }
    }

    /// The rest of `lost` without what the changes write over.
    pub(crate) fn healed(&self, lost: &[Lost]) -> Vec<Lost> {
        match self {
            Folds::Range(_, folds) => quarantine::healed(lost, folds),
            Folds::Record(..) => lost.to_vec(),
        }
    }
}
