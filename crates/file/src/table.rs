//! Tables: rows by ascending `u64` keys, in pages ([`crate::format::page`]), in a tree of content.
//! Inodes by number, names by position and extended attributes are tables.
//!
//! The tree has each page under the key from which on its rows may be; the first one under 0. So a
//! row is in the page at or before its key, or nowhere.

use crate::format::Bad;
use crate::format::page::{self, Row, View};
use crate::limits;
use crate::look::{Look, Stop, unreadable};
use crate::types::Error;
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Class, Content, Parent, Pointer};
use std::collections::BTreeMap;
use std::ops::Range;

/// Looks a row up.
pub(crate) fn find(look: &Look<'_>, root: &Root, key: u64) -> Result<Option<Row>, Stop> {
    let Some((_, pointer)) = look.floor(root, key)? else { return Ok(None) };
    let page = look.page(&pointer)?;
    let view = View::of(page.content())?;
    let index = view.lower_bound(key);
    if index >= view.count() || view.key(index) != key {
        return Ok(None);
    }
    Ok(Some(row(&page, &view, index)?))
}

/// Calls `each` for the rows from the key `from` on, in order, until it returns `false`.
pub(crate) fn scan(
    look: &Look<'_>,
    root: &Root,
    from: u64,
    mut each: impl FnMut(u64, &[u8]) -> Result<bool, Stop>,
) -> Result<(), Stop> {
    let mut next = match look.floor(root, from)? {
        Some(entry) => Some(entry),
        None => look.above(root, from)?,
    };
    while let Some((at, pointer)) = next {
        let page = look.page(&pointer)?;
        let view = View::of(page.content())?;
        for index in view.lower_bound(from)..view.count() {
            if !each(view.key(index), view.row(index)?.0)? {
                return Ok(());
            }
        }
        next = look.above(root, at)?;
    }
    Ok(())
}

/// Looks for the last row before a key.
pub(crate) fn before(
    look: &Look<'_>,
    root: &Root,
    key: u64,
) -> Result<Option<(u64, Vec<u8>)>, Stop> {
    let mut key = key;
    while let Some(below) = key.checked_sub(1) {
        let Some((at, pointer)) = look.floor(root, below)? else { break };
        let page = look.page(&pointer)?;
        let view = View::of(page.content())?;
        if let Some(index) = view.lower_bound(key).checked_sub(1) {
            return Ok(Some((view.key(index), view.row(index)?.0.to_vec())));
        }
        key = at;
    }
    Ok(None)
}

fn row(page: &Parent, view: &View<'_>, index: usize) -> Result<Row, Bad> {
    let (bytes, children) = view.row(index)?;
    let child = |index| page.child(index).ok_or(Bad("a row names a child that is missing"));
    let children = children.map(child).collect::<Result<_, _>>()?;
    Ok(Row { bytes: bytes.to_vec(), children })
}

/// Looks a row up in a table that need not be in RAM.
pub(crate) async fn get(content: &Content, root: &Root, key: u64) -> Result<Option<Row>, Error> {
    let look = Look::new(content);
    loop {
        match find(&look, root, key) {
            Ok(row) => return Ok(row),
            Err(Stop::Miss(miss)) => look.fetch(miss).await?,
            Err(stop) => return Err(stop.into_error()),
        }
    }
}

/// Rows to put, and keys to remove, ascending.
pub(crate) type Changes = BTreeMap<u64, Option<Row>>;

/// Writes a table with changes into `batch` and returns its root.
pub(crate) async fn update(
    content: &Content,
    batch: &mut Batch,
    root: &Root,
    mut changes: Changes,
) -> Result<Root, Error> {
    let mut edits: BTreeMap<u64, Option<Pointer>> = BTreeMap::new();
    while let Some((&first, _)) = changes.first_key_value() {
        let (at, mut rows) = match tree::floor(content, root, first).await? {
            Some((at, pointer)) => (at, rows_of(content, &pointer).await?),
            None => (0, BTreeMap::new()),
        };
        let mut bound = tree::above(content, root, first).await?;
        apply(&mut rows, &mut changes, bound.map(|(key, _)| key));
        // A small page is joined with the next one, so that tables that shrink stay short.
        while let Some((key, pointer)) = bound
            && rows.values().map(Row::cost).sum::<usize>() < limits::PAGE_BYTES_MIN
        {
            rows.append(&mut rows_of(content, &pointer).await?);
            edits.insert(key, None);
            bound = tree::above(content, root, key).await?;
            apply(&mut rows, &mut changes, bound.map(|(key, _)| key));
        }
        edits.insert(at, None);
        let mut page_key = Some(at);
        for rows in pages(rows) {
            let (bytes, children) = page::encode(&rows);
            let pointer = batch.write(Class::Metadata, bytes.into(), &children).await?;
            edits.insert(page_key.take().unwrap_or(rows[0].0), Some(pointer));
        }
    }
    let edits: Vec<_> = edits.into_iter().collect();
    Ok(tree::update(content, batch, root, &edits).await?)
}

/// Reads a page.
pub(crate) async fn rows_of(
    content: &Content,
    pointer: &Pointer,
) -> Result<BTreeMap<u64, Row>, Error> {
    let page = content.parent(pointer).await?;
    let rows = || -> Result<BTreeMap<u64, Row>, Bad> {
        let view = View::of(page.content())?;
        (0..view.count()).map(|at| Ok((view.key(at), row(&page, &view, at)?))).collect()
    };
    rows().map_err(|bad| unreadable(&bad))
}

/// Moves the changes below `bound` into `rows`.
fn apply(rows: &mut BTreeMap<u64, Row>, changes: &mut Changes, bound: Option<u64>) {
    let rest = bound.map(|bound| changes.split_off(&bound)).unwrap_or_default();
    for (key, row) in std::mem::replace(changes, rest) {
        match row {
            Some(row) => drop(rows.insert(key, row)),
            None => drop(rows.remove(&key)),
        }
    }
}

/// Deals rows out to pages of about the same length.
fn pages(rows: BTreeMap<u64, Row>) -> Vec<Vec<(u64, Row)>> {
    let total: usize = rows.values().map(Row::cost).sum();
    let aim = total / total.div_ceil(limits::PAGE_BYTES_MAX).max(1);
    let (mut pages, mut bytes) = (Vec::<Vec<_>>::new(), usize::MAX);
    for (key, row) in rows {
        if bytes >= aim.max(1) {
            pages.push(Vec::new());
            bytes = 0;
        }
        bytes += row.cost();
        pages.last_mut().expect("the first row begins a page").push((key, row));
    }
    pages
}

/// Whether a table has a row with one of these keys.
pub(crate) async fn has_any(
    content: &Content,
    root: &Root,
    keys: Range<u64>,
) -> Result<bool, Error> {
    let mut pages = Pages { content, root: *root, next: Some(keys.start) };
    while let Some(rows) = pages.next().await? {
        if rows.range(keys.clone()).next().is_some() {
            return Ok(true);
        }
        if pages.next.is_none_or(|next| next >= keys.end) {
            break;
        }
    }
    Ok(false)
}

/// The pages of a table, one after the other.
pub(crate) struct Pages<'a> {
    content: &'a Content,
    root: Root,
    /// A key of the next page, or before it.
    next: Option<u64>,
}

impl<'a> Pages<'a> {
    pub(crate) fn of(content: &'a Content, root: &Root) -> Self {
        Self { content, root: *root, next: Some(0) }
    }

    /// Reads the rows of the next page.
    pub(crate) async fn next(&mut self) -> Result<Option<BTreeMap<u64, Row>>, Error> {
        let Some(key) = self.next.take() else { return Ok(None) };
        let mut entry = tree::floor(self.content, &self.root, key).await?;
        if entry.is_none() {
            entry = tree::above(self.content, &self.root, key).await?;
        }
        let Some((at, pointer)) = entry else { return Ok(None) };
        let rows = rows_of(self.content, &pointer).await?;
        self.next = tree::above(self.content, &self.root, at).await?.map(|(at, _)| at);
        Ok(Some(rows))
    }
}

/// Reads the tree of a table.
pub(crate) async fn check(content: &Content, root: &Root) -> Result<(), Error> {
    let mut next = tree::floor(content, root, 0).await?;
    if next.is_none() {
        next = tree::above(content, root, 0).await?;
    }
    while let Some((at, _)) = next {
        next = tree::above(content, root, at).await?;
    }
    Ok(())
}
