//! The pages that a file takes of the volume's size: those that were written or reserved and not
//! given back since. What they hold does not matter, as in other file systems: a page of zeros that
//! was written is taken, and a hole is not. So a commit counts them by ranges, and reads no data.
//!
//! A file whose taken pages are its first ones needs no more than their number, which most files
//! do. Another one has a table: a row for each range, the first page as its key, the count of pages
//! in it.

use crate::format::Bad;
use crate::format::page::Row;
use crate::look::{Look, Stop, unreadable};
use crate::ranges::{Part, Ranges};
use crate::table::{self, Changes};
use crate::types::{Error, FILE_BYTES_MAX};
use rekindle_block::PAGE_BYTES;
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Content};
use std::collections::BTreeMap;
use std::ops::Range;

/// All pages that a file may have.
pub(crate) const ALL: Range<u64> = 0..FILE_BYTES_MAX / PAGE_BYTES;
/// Rows that one look counts, when less than all will do.
const ROWS_MAX: usize = 10_000;

/// The pages that a file of a root takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// An earlier version has written the row, and has estimated their number. The next commit that
    /// writes the row finds them.
    Unknown,
    /// The first so many.
    First(u64),
    /// Those that the table says.
    Table(Root),
}

/// The pages that a range of bytes touches.
pub(crate) fn touched(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES)
}

/// The pages that lie in a range of bytes as a whole.
pub(crate) fn whole(bytes: &Range<u64>) -> Range<u64> {
    let first = bytes.start.div_ceil(PAGE_BYTES);
    first..(bytes.end / PAGE_BYTES).max(first)
}

/// Returns the parts of a range that no piece covers.
pub(crate) fn gaps(pieces: &Ranges<bool>, range: &Range<u64>) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (Vec::new(), range.start);
    for Part { range, .. } in pieces.within(range.clone()) {
        gaps.push(at..range.start);
        at = range.end;
    }
    gaps.push(at..range.end.max(at));
    gaps.retain(|gap| !gap.is_empty());
    gaps
}

fn row(pages: u64) -> Row {
    Row { bytes: pages.to_le_bytes().to_vec(), children: Vec::new() }
}

/// Returns the range that a row says.
fn range(key: u64, bytes: &[u8]) -> Result<Range<u64>, Bad> {
    let count = bytes.try_into().map(u64::from_le_bytes).ok();
    let end = count.and_then(|count| key.checked_add(count)).filter(|end| *end <= ALL.end);
    end.map(|end| key..end).ok_or(Bad("a file takes pages that no file has"))
}

impl Taken {
    /// Counts the taken pages of a range, as far as the look knows them: one that need not be exact
    /// returns what it has found.
    pub(crate) fn count(&self, look: &Look<'_>, pages: &Range<u64>) -> Result<u64, Stop> {
        match self {
            Self::Unknown => Ok(0),
            Self::First(count) => Ok(length(&(pages.start..pages.end.min(*count)))),
            Self::Table(root) => {
                let (mut found, mut rows) = (0, 0);
                let counted = count_rows(look, root, pages, |pages| {
                    found += pages;
                    rows += 1;
                    look.is_exact() || rows < ROWS_MAX
                });
                match counted {
                    Err(Stop::Miss(_)) if !look.is_exact() => Ok(found),
                    counted => counted.map(|()| found),
                }
            }
        }
    }
}

/// Calls `each` with the pages of a range that each row has, until it returns `false`.
fn count_rows(
    look: &Look<'_>,
    root: &Root,
    pages: &Range<u64>,
    mut each: impl FnMut(u64) -> bool,
) -> Result<(), Stop> {
    let within = |row: Range<u64>| length(&(row.start.max(pages.start)..row.end.min(pages.end)));
    let Some(after) = pages.start.checked_add(1) else { return Ok(()) };
    if let Some((key, bytes)) = table::before(look, root, after)?
        && !each(within(range(key, &bytes)?))
    {
        return Ok(());
    }
    table::scan(look, root, after, |key, bytes| {
        Ok(key < pages.end && each(within(range(key, bytes)?)))
    })
}

fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// Ranges that neither overlap nor meet, by their first page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Set(BTreeMap<u64, u64>);

impl Set {
    fn of(range: Range<u64>) -> Self {
        Self((!range.is_empty()).then_some((range.start, range.end)).into_iter().collect())
    }

    /// Takes a range out. Returns how many pages were in.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        while let Some((&start, &end)) = self.0.range(..range.end).next_back()
            && end > range.start
        {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
            removed += end.min(range.end) - start.max(range.start);
        }
        removed
    }

    /// Puts a range in. Returns how many pages were not.
    pub(crate) fn insert(&mut self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let added = length(range) - self.remove(range);
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &meets)) = self.0.range(..start).next_back()
            && meets == start
        {
            start = before;
        }
        if let Some(behind) = self.0.remove(&end) {
            end = behind;
        }
        self.0.insert(start, end);
        added
    }

    /// How many pages there are, if they are the first ones.
    fn prefix(&self) -> Option<u64> {
        match (self.0.len(), self.0.first_key_value()) {
            (0, _) => Some(0),
            (1, Some((0, end))) => Some(*end),
            _ => None,
        }
    }

    fn changes_from(&self, before: &Self) -> Changes {
        let gone = before.0.keys().filter(|key| !self.0.contains_key(key));
        let mut changes: Changes = gone.map(|key| (*key, None)).collect();
        let new = self.0.iter().filter(|(start, end)| before.0.get(start) != Some(end));
        changes.extend(new.map(|(start, end)| (*start, Some(row(end - start)))));
        changes
    }
}

/// Writes which pages a file takes after changes of them, where it had `count`. Returns that, and
/// how many they are.
pub(crate) async fn update(
    content: &Content,
    batch: &mut Batch,
    (taken, mut count): (Taken, u64),
    pieces: &Ranges<bool>,
) -> Result<(Taken, u64), Error> {
    if pieces.is_empty() {
        return Ok((taken, count));
    }
    let (root, before) = match taken {
        Taken::Unknown => (None, Set::default()),
        Taken::First(pages) => (None, Set::of(0..pages)),
        Taken::Table(root) => (root, near(content, &root, pieces).await?),
    };
    let mut after = before.clone();
    for Part { range, backing: is_taken } in pieces.within(ALL) {
        match is_taken {
            true => count += after.insert(&range),
            false => count = count.saturating_sub(after.remove(&range)),
        }
    }
    // Rows that were not near are of pages behind the first ones.
    if let Some(pages) = after.prefix().filter(|pages| *pages == count) {
        return Ok((Taken::First(pages), count));
    }
    let before = if root.is_none() { Set::default() } else { before };
    let changes = after.changes_from(&before);
    let root = table::update(content, batch, &root, changes).await?;
    Ok((Taken::Table(root), count))
}

/// Writes which pages a file takes, all anew.
pub(crate) async fn write(
    content: &Content,
    batch: &mut Batch,
    ranges: impl Iterator<Item = Range<u64>>,
) -> Result<(Taken, u64), Error> {
    let mut all = Set::default();
    let count = ranges.map(|range| all.insert(&range)).sum();
    if let Some(pages) = all.prefix() {
        return Ok((Taken::First(pages), count));
    }
    let changes = all.changes_from(&Set::default());
    Ok((Taken::Table(table::update(content, batch, &None, changes).await?), count))
}

/// Reads the rows of a table that changes touch or meet, and others beside them.
async fn near(content: &Content, root: &Root, pieces: &Ranges<bool>) -> Result<Set, Error> {
    let mut found = Set::default();
    // Up to this key all rows behind the one before the last piece have been read.
    let mut read: Option<u64> = None;
    for Part { range, .. } in pieces.within(ALL) {
        if read.is_some_and(|read| range.end < read) {
            continue;
        }
        let mut key = range.start;
        let mut next = loop {
            let entry = tree::floor(content, root, key).await?;
            let Some((at, pointer)) = entry else { break tree::above(content, root, key).await? };
            let has_before =
                add(&mut found, table::rows_of(content, &pointer).await?, range.start)?;
            match at.checked_sub(1) {
                Some(below) if !has_before => key = below,
                _ => break tree::above(content, root, at).await?,
            }
        };
        while let Some((at, pointer)) = next.filter(|(at, _)| *at <= range.end) {
            add(&mut found, table::rows_of(content, &pointer).await?, range.start)?;
            next = tree::above(content, root, at).await?;
        }
        read = Some(next.map_or(u64::MAX, |(at, _)| at));
    }
    Ok(found)
}

/// Adds the rows of a page to those that were read. Returns whether one is at a key or before it.
fn add(found: &mut Set, rows: BTreeMap<u64, Row>, at: u64) -> Result<bool, Error> {
    let has_before = rows.keys().next().is_some_and(|key| *key <= at);
    for (key, row) in rows {
        let range = range(key, &row.bytes).map_err(|bad| unreadable(&bad))?;
        found.0.insert(range.start, range.end);
    }
    Ok(has_before)
}
