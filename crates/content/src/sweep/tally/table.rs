//! The counts of all places: files, of which a newer one replaces what older ones say of a pack,
//! and above them the packs that are being changed, in RAM.

use super::run::{Rows, Run, RunWriter};
use super::shelf::{Result, Shelf, Trouble};
use super::sorter::{CountChange, Merged};
use crate::Spot;
use crate::format::counts::{CountedPlace, Row};
use crate::name::PackMap;
use hashbrown::HashMap;
use rekindle_base::PackId;
use std::collections::BTreeMap;

/// The counts of a pack that is being changed.
#[derive(Default)]
pub(super) struct Counts {
    places: HashMap<Spot, Count>,
    blobs: u32,
    hops: u8,
    is_changed: bool,
}

#[derive(Clone, Copy)]
struct Count {
    count: u32,
    stored: u32,
}

/// RAM of a place that is being changed, bytes, at the usual filling.
const PLACE_BYTES: usize = 28;
/// RAM of a pack that is being changed, beside its places.
const PACK_BYTES: usize = 160;

/// The counts of all places.
pub(super) struct Table {
    shelf: Shelf,
    /// The oldest first.
    pub(super) runs: Vec<Run>,
    open: PackMap<Counts>,
    open_bytes: usize,
    open_bytes_max: usize,
    /// The number of the next file.
    pub(super) next: u64,
    /// How often places are named, in all.
    pub(super) edges: u64,
}

/// The direction in which a count changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Up,
    Down,
}

impl Counts {
    fn bytes(&self) -> usize {
        PACK_BYTES + self.places.len() * PLACE_BYTES
    }

    fn sorted(&self) -> Vec<CountedPlace> {
        let place = |(spot, count): (&Spot, &Count)| CountedPlace {
            spot: *spot,
            count: count.count,
            stored: count.stored,
        };
        let mut places: Vec<CountedPlace> = self.places.iter().map(place).collect();
        places.sort_unstable_by_key(|place| place.spot);
        places
    }
}

fn doubt(what: &str) -> Trouble {
    Trouble::Doubt(format!("a count is {what}"))
}

impl Table {
    pub(super) fn new(shelf: Shelf, open_bytes_max: usize) -> Self {
        let (runs, open) = Default::default();
        Self { shelf, runs, open, open_bytes: 0, open_bytes_max, next: 1, edges: 0 }
    }

    /// Counts a place of an open pack once more or less. Returns whether the place was not named
    /// before, or is not any more; `None` if the pack is not open.
    pub(super) fn count(
        &mut self,
        (pack, spot, stored): (&PackId, Spot, u32),
        step: Step,
    ) -> Result<Option<bool>> {
        let Some(counts) = self.open.get_mut(pack) else { return Ok(None) };
        counts.is_changed = true;
        if step == Step::Up {
            let place = counts.places.entry(spot).or_insert(Count { count: 0, stored });
            place.count = place.count.checked_add(1).ok_or_else(|| doubt("too great"))?;
            self.edges += 1;
            self.open_bytes += if place.count == 1 { PLACE_BYTES } else { 0 };
            return Ok(Some(place.count == 1));
        }
        let Some(place) = counts.places.get_mut(&spot) else { return Err(doubt("negative")) };
        place.count -= 1;
        let is_crossed = place.count == 0;
        if is_crossed {
            counts.places.remove(&spot);
        }
        self.edges = self.edges.checked_sub(1).ok_or_else(|| doubt("wrong"))?;
        Ok(Some(is_crossed))
    }

    /// Takes a pack into RAM, for changes.
    pub(super) async fn open(&mut self, pack: PackId) -> Result<&mut Counts> {
        if !self.open.contains_key(&pack) {
            let counts = match self.find(&pack).await? {
                None => Counts::default(),
                Some((row, places)) => Counts {
                    places: places
                        .iter()
                        .map(|one| (one.spot, Count { count: one.count, stored: one.stored }))
                        .collect(),
                    blobs: row.blobs,
                    hops: row.hops,
                    is_changed: false,
                },
            };
            self.open_bytes += counts.bytes();
            self.open.insert(pack, counts);
        }
        self.open.get_mut(&pack).ok_or_else(|| doubt("lost"))
    }

    /// Writes the changed packs to a file if they take too much RAM. To be called between steps
    /// that each open a bounded number of packs.
    pub(super) async fn relieve(&mut self) -> Result<()> {
        match self.open_bytes > self.open_bytes_max {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Writes the changed packs to a file.
    pub(super) async fn flush(&mut self) -> Result<()> {
        let changed: BTreeMap<PackId, Counts> =
            self.open.drain().filter(|(_, counts)| counts.is_changed).collect();
        self.open_bytes = 0;
        if changed.is_empty() {
            return Ok(());
        }
        let mut writer = self.writer().await?;
        for (pack, counts) in &changed {
            writer.push(*pack, &counts.sorted(), (counts.blobs, counts.hops)).await?;
        }
        self.runs.push(writer.end().await?);
        self.merge_small().await
    }

    async fn writer(&mut self) -> Result<RunWriter> {
        self.shelf.prepare().await?;
        self.next += 1;
        RunWriter::new(&self.shelf, self.next - 1).await
    }

    /// Applies sorted changes of packs that are not open.
    pub(super) async fn apply(&mut self, mut changes: Merged) -> Result<()> {
        self.flush().await?;
        let mut writer = None;
        while let Some((pack, changes)) = changes.next().await? {
            let (row, places) = self.find(&pack).await?.unzip();
            let before: u64 = row.map_or(0, |row: Row| row.edges);
            let places = changed(places.unwrap_or_default(), &changes)?;
            let after: u64 = places.iter().map(|place| u64::from(place.count)).sum();
            self.edges = (self.edges + after).checked_sub(before).ok_or_else(|| doubt("wrong"))?;
            let writer = match &mut writer {
                Some(writer) => writer,
                none => none.insert(self.writer().await?),
            };
            let kept = row.map_or((0, 0), |row| (row.blobs, row.hops));
            writer.push(pack, &places, kept).await?;
        }
        if let Some(writer) = writer {
            self.runs.push(writer.end().await?);
            self.merge_small().await?;
        }
        Ok(())
    }

    /// Merges the newest files as long as each is not much smaller than the one before: so there
    /// are few files, and each byte is written a few times.
    async fn merge_small(&mut self) -> Result<()> {
        while let [.., older, newer] = &self.runs[..]
            && newer.length() * 2 > older.length()
        {
            let (older, newer) = (older.clone(), newer.clone());
            let is_oldest = self.runs.len() == 2;
            let merged = self.merge(older, newer, is_oldest).await?;
            self.runs.truncate(self.runs.len() - 2);
            self.runs.push(merged);
        }
        Ok(())
    }

    async fn merge(&mut self, older: Run, newer: Run, is_oldest: bool) -> Result<Run> {
        let mut writer = self.writer().await?;
        let mut all = AllRows::of(&[older, newer]).await?;
        while let Some((run, row)) = all.next_with_run().await? {
            // Nothing below says otherwise any more.
            if row.places > 0 || !is_oldest {
                writer.copy(row, &run.encoded(&row).await?).await?;
            }
        }
        writer.end().await
    }

    /// Finds what the files say of a pack.
    async fn find(&mut self, pack: &PackId) -> Result<Option<(Row, Vec<CountedPlace>)>> {
        for run in self.runs.iter_mut().rev() {
            if let Some(row) = run.row(pack).await? {
                return Ok(Some((row, run.places(&row).await?)));
            }
        }
        Ok(None)
    }

    /// Returns the places of a pack that are named, ascending.
    pub(super) async fn places(&mut self, pack: &PackId) -> Result<Vec<CountedPlace>> {
        match self.open.get(pack) {
            Some(counts) => Ok(counts.sorted()),
            None => Ok(self.find(pack).await?.map(|(_, places)| places).unwrap_or_default()),
        }
    }

    /// Whether a place of the pack is named.
    pub(super) async fn is_named(&mut self, pack: &PackId) -> Result<bool> {
        if let Some(counts) = self.open.get(pack) {
            return Ok(!counts.places.is_empty());
        }
        for run in self.runs.iter_mut().rev() {
            if let Some(row) = run.row(pack).await? {
                return Ok(row.places > 0);
            }
        }
        Ok(false)
    }

    /// Returns the length of the longest chain of notes that leads into a pack.
    pub(super) async fn hops(&mut self, pack: &PackId) -> Result<u8> {
        if let Some(counts) = self.open.get(pack) {
            return Ok(counts.hops);
        }
        for run in self.runs.iter_mut().rev() {
            if let Some(row) = run.row(pack).await? {
                return Ok(row.hops);
            }
        }
        Ok(0)
    }

    /// Notes that a chain of so many notes leads into a pack.
    pub(super) async fn reached_by(&mut self, pack: PackId, hops: u8) -> Result<()> {
        let counts = self.open(pack).await?;
        counts.is_changed |= hops > counts.hops;
        counts.hops = hops.max(counts.hops);
        self.relieve().await
    }

    /// Keeps the bytes of all blobs of a pack, as its footer says.
    pub(super) async fn keep_blobs(&mut self, pack: PackId, blobs: u32) -> Result<()> {
        let counts = self.open(pack).await?;
        if !counts.places.is_empty() {
            counts.is_changed |= counts.blobs != blobs;
            counts.blobs = blobs;
        }
        Ok(())
    }

    /// Returns the rows of all packs that are named, in their order.
    pub(super) async fn rows(&mut self) -> Result<AllRows> {
        self.flush().await?;
        AllRows::of(&self.runs).await
    }
}

/// Applies changes, ascending, to places, ascending.
fn changed(places: Vec<CountedPlace>, changes: &[CountChange]) -> Result<Vec<CountedPlace>> {
    let mut merged = Vec::with_capacity(places.len() + changes.len());
    let mut changes = changes.iter().peekable();
    let new = |change: &CountChange| match u32::try_from(change.by) {
        Ok(count) => Ok(CountedPlace { spot: change.spot, count, stored: change.stored }),
        Err(_) => Err(doubt("negative")),
    };
    for place in places {
        while let Some(change) = changes.next_if(|one| one.spot < place.spot) {
            merged.push(new(change)?);
        }
        let by = changes.next_if(|one| one.spot == place.spot).map_or(0, |one| one.by);
        let count = i64::from(place.count) + i64::from(by);
        let count = u32::try_from(count).map_err(|_| doubt("negative, or too great"))?;
        if count > 0 {
            merged.push(CountedPlace { count, ..place });
        }
    }
    for change in changes {
        merged.push(new(change)?);
    }
    Ok(merged)
}

/// The rows of several files in the order of the packs: of each pack the newest.
pub(crate) struct AllRows {
    /// The oldest first, each with its next row.
    heads: Vec<(Rows, Option<Row>)>,
}

impl AllRows {
    async fn of(runs: &[Run]) -> Result<Self> {
        let mut heads = Vec::with_capacity(runs.len());
        for run in runs {
            let mut rows = run.rows();
            let first = rows.next().await?;
            heads.push((rows, first));
        }
        Ok(Self { heads })
    }

    /// Returns the next row, which may be that of a pack that is not named any more, and the place
    /// of its file in the list.
    async fn step(&mut self) -> Result<Option<(usize, Row)>> {
        let first = self.heads.iter().filter_map(|(_, row)| row.map(|row| row.pack)).min();
        let Some(pack) = first else { return Ok(None) };
        let mut newest = None;
        for (index, (rows, next)) in self.heads.iter_mut().enumerate() {
            if let Some(row) = next.take_if(|row| row.pack == pack) {
                newest = Some((index, row));
                *next = rows.next().await?;
            }
        }
        Ok(newest)
    }

    async fn next_with_run(&mut self) -> Result<Option<(&Run, Row)>> {
        let step = self.step().await?;
        Ok(step.map(|(index, row)| (&self.heads[index].0.run, row)))
    }

    /// Returns the row of the next pack that is named.
    pub(crate) async fn next(&mut self) -> Result<Option<Row>> {
        while let Some((_, row)) = self.step().await? {
            if row.places > 0 {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}
