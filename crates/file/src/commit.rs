//! The commit server: many records become one new version. It reads metadata, and of files only the
//! rest of pages that a write has changed in part.

use crate::format::inode::Inode;
use crate::format::page::Row;
use crate::format::rows::{Named, Xattr};
use crate::home::{Counted, Home};
use crate::limits;
use crate::look::unreadable;
use crate::overlay::{Dirty, Overlay};
use crate::ranges::{Backing, Part, Ranges};
use crate::state::{Body, ORPHANS, Stored, decode_own};
use crate::table::{self, Changes};
use crate::taken::{self, Taken, touched};
use crate::types::{Error, FILE_BYTES_MAX, FileType, Ino};
use bytes::Bytes;
use rekindle_base::Serial;
use rekindle_block::PAGE_BYTES;
use rekindle_content::Batch;
use rekindle_content::tree::Root;
use rekindle_staging::{Fold, RangeHome, Record, Source};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// The content of files that others were copied from, as the root has it.
type Others = BTreeMap<Ino, Body>;

impl Home {
    /// Makes one new version of records.
    pub(crate) async fn commit(
        &self,
        batch: &mut Batch,
        root: &Root,
        records: &[Record],
    ) -> Result<Root, Error> {
        let mut overlay = Overlay::default();
        for record in records {
            overlay.add(record, None).map_err(|bad| unreadable(&bad))?;
        }
        let own = table::get(&self.content, root, ORPHANS).await?;
        let (mut totals, mut own) = decode_own(own.as_ref()).map_err(|bad| unreadable(&bad))?;
        let bytes = totals.bytes;
        overlay.apply_to(&mut totals);
        totals.bytes = bytes;
        // An earlier version does not look for bytes in rows.
        let mut has_bytes_in_rows = totals.has_bytes_in_rows;
        let (mut rows, mut files) = (Changes::new(), Vec::new());
        let mut inodes: Vec<_> = overlay.inodes.into_iter().collect();
        inodes.sort_unstable_by_key(|(ino, _)| *ino);
        let mut read_ahead = 0;
        for at in 0..inodes.len() {
            if at == read_ahead {
                read_ahead += read_next(&mut inodes[at..]).await;
            }
            let (ino, dirty) = std::mem::take(&mut inodes[at]);
            if ino == ORPHANS {
                own.orphans = self.write_names(batch, &own.orphans, &dirty).await?;
                continue;
            }
            let stored = self.stored(root, ino).await?;
            let before = stored.as_ref().map_or(0, |stored| stored.inode.allocated);
            let row = self.write_inode((batch, root), stored, dirty).await?;
            let allocated = row.as_ref().map_or(0, |stored| stored.inode.allocated);
            // What records say of it is no less, and may be too much.
            totals.bytes = (totals.bytes + allocated).saturating_sub(before);
            files.extend(row.as_ref().map(|_| (ino, allocated)));
            has_bytes_in_rows |= row.as_ref().is_some_and(|row| matches!(row.body, Body::Row(_)));
            rows.insert(ino, row.map(|stored| stored.encode()));
        }
        let kept = changes_of(&overlay.kept, |kept| kept.to_vec());
        own.kept = self.write_table(batch, &own.kept, kept).await?;
        totals.has_bytes_in_rows = has_bytes_in_rows;
        rows.insert(ORPHANS, Some(own.row(&totals)));
        let root = table::update(&self.content, batch, root, rows).await?;
        self.counted.lock().note(Counted { root, totals, files });
        Ok(root)
    }

    pub(crate) async fn stored(&self, root: &Root, ino: u64) -> Result<Option<Stored>, Error> {
        let row = table::get(&self.content, root, ino).await?;
        row.map(|row| Stored::decode(&row).map_err(|bad| unreadable(&bad))).transpose()
    }

    /// Writes what has changed below an inode. Returns its row; `None`: it is gone.
    async fn write_inode(
        &self,
        (batch, base): (&mut Batch, &Root),
        stored: Option<Stored>,
        dirty: Dirty,
    ) -> Result<Option<Stored>, Error> {
        let inode = match &dirty.inode {
            Some((_, None)) => return Ok(None),
            Some((_, Some(inode))) => inode.clone(),
            None => match &stored {
                Some(stored) => stored.inode.clone(),
                // A name in a directory that is gone since.
                None => return Ok(None),
            },
        };
        let empty = || Stored::new(Inode { size: 0, allocated: 0, ..inode.clone() });
        let stored = stored.unwrap_or_else(empty);
        let stored = match inode.kind {
            FileType::Regular => self.count(batch, stored, &dirty).await?,
            _ => stored,
        };
        let body = match inode.kind {
            FileType::Regular if dirty.ranges.is_empty() => stored.body,
            FileType::Regular => {
                let (parts, others) = self.parts(base, &dirty.ranges).await?;
                let old = (stored.body, stored.inode.size);
                match in_row(&old.0, inode.size, &parts).await? {
                    Some(body) => body,
                    None => self.write_parts(batch, old, parts, &others).await?,
                }
            }
            FileType::Directory => {
                Body::Tree(self.write_names(batch, &stored.body.tree(), &dirty).await?)
            }
            _ => Body::Tree(None),
        };
        let changes = changes_of(&dirty.xattrs, Xattr::encode);
        let xattrs = self.write_table(batch, &stored.xattrs, changes).await?;
        let allocated = stored.inode.allocated;
        let (inode, taken) = (Inode { allocated, ..inode }, stored.taken);
        Ok(Some(Stored { inode, body, xattrs, taken }))
    }

    /// Returns the bytes of a file that these keys of its extents stand for.
    pub(crate) fn bytes_of(&self, keys: Range<u64>) -> Range<u64> {
        self.extents.bytes_of(keys)
    }

    /// Counts what a file takes after changes of it.
    async fn count(
        &self,
        batch: &mut Batch,
        stored: Stored,
        dirty: &Dirty,
    ) -> Result<Stored, Error> {
        let mut stored = self.counted(batch, stored).await?;
        let before = (stored.taken, stored.inode.allocated / PAGE_BYTES);
        let (taken, pages) = taken::update(&self.content, batch, before, &dirty.taken).await?;
        stored.taken = taken;
        stored.inode.allocated = pages * PAGE_BYTES;
        Ok(stored)
    }

    /// Finds out what a file takes where that is not known: an earlier version has written it, or
    /// it was damaged. Reads the tree of its content, once.
    pub(crate) async fn counted(
        &self,
        batch: &mut Batch,
        mut stored: Stored,
    ) -> Result<Stored, Error> {
        if stored.inode.kind != FileType::Regular || stored.taken != Taken::Unknown {
            return Ok(stored);
        }
        let size = stored.inode.size;
        let mut data: Vec<Range<u64>> = Vec::new();
        match &stored.body {
            Body::Tree(None) => {}
            Body::Tree(root) => {
                let extents = self.extents.extents(root, 0, size).await?.into_iter();
                let extents = extents.filter(|extent| extent.data);
                data.extend(extents.map(|data| data.position..data.position + data.span));
            }
            Body::Row(bytes) => data.push(0..bytes.len() as u64),
        }
        let ranges = data.iter().map(touched);
        let (taken, pages) = taken::write(&self.content, batch, ranges).await?;
        stored.taken = taken;
        stored.inode.allocated = pages * PAGE_BYTES;
        Ok(stored)
    }

    async fn write_names(
        &self,
        batch: &mut Batch,
        root: &Root,
        dirty: &Dirty,
    ) -> Result<Root, Error> {
        self.write_table(batch, root, changes_of(&dirty.names, Named::encode)).await
    }

    async fn write_table(
        &self,
        batch: &mut Batch,
        root: &Root,
        changes: Changes,
    ) -> Result<Root, Error> {
        match changes.is_empty() {
            true => Ok(*root),
            false => table::update(&self.content, batch, root, changes).await,
        }
    }

    /// Returns what records say of the bytes of a file, and the content of the files from which
    /// some of them were copied. Copies of bytes that lie in a row are these bytes.
    async fn parts(&self, base: &Root, ranges: &Ranges) -> Result<(Vec<Part>, Others), Error> {
        let (mut parts, mut others) = (Vec::new(), Others::new());
        for Part { range, backing } in ranges.within(0..FILE_BYTES_MAX) {
            let Backing::File { ino, at } = backing else {
                parts.push(Part { range, backing });
                continue;
            };
            let other = match others.entry(ino) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let stored = self.stored(base, ino).await?;
                    new.insert(stored.map_or(Body::Tree(None), |stored| stored.body))
                }
            };
            match other {
                Body::Row(bytes) => {
                    let within = |byte: u64| byte.min(bytes.len() as u64) as usize;
                    let data = bytes.slice(within(at)..within(at + range.end - range.start));
                    let end = range.start + data.len() as u64;
                    let zeros = Backing::Record(Source::Zero);
                    let data = Backing::Record(Source::Memory(data));
                    parts.push(Part { range: range.start..end, backing: data });
                    parts.push(Part { range: end..range.end, backing: zeros });
                }
                Body::Tree(_) => parts.push(Part { range, backing }),
            }
        }
        parts.retain(|part| !part.range.is_empty());
        Ok((parts, others))
    }

    /// Writes parts of a file. Nothing is stored beyond its old size but what is copied.
    async fn write_parts(
        &self,
        batch: &mut Batch,
        (body, old_size): (Body, u64),
        parts: Vec<Part>,
        others: &Others,
    ) -> Result<Body, Error> {
        let page = self.extents.page_bytes();
        let (mut root, old_size, parts) = match body {
            Body::Tree(root) => (root, old_size, parts),
            Body::Row(bytes) => (None, 0, above(bytes, parts)),
        };
        let mut stored_end = old_size.next_multiple_of(page);
        // Whole pages are copied first: what was changed in some of them since goes over them.
        for Part { range, backing } in &parts {
            let Backing::File { ino, at } = *backing else { continue };
            let other = others.get(&ino).and_then(Body::tree);
            let begin = range.start / page * page;
            let end = range.end.next_multiple_of(page);
            let from = at - (range.start - begin);
            let other = (&other, from..from + (end - begin));
            root = self.extents.share(batch, (&root, begin), other).await?;
            stored_end = stored_end.max(end);
        }
        let mut folds: Vec<Fold> = Vec::new();
        for Part { range, backing } in parts {
            let is_zero = backing.is_zero();
            let Backing::Record(source) = backing else { continue };
            let end = if is_zero { range.end.min(stored_end) } else { range.end };
            let Some(span) = end.checked_sub(range.start).filter(|span| *span > 0) else {
                continue;
            };
            if is_zero && range.start == 0 && end >= stored_end {
                root = None;
                continue;
            }
            folds.push(Fold { position: range.start, span, source });
        }
        if !folds.is_empty() {
            root = self.extents.fold(batch, &root, &folds).await?;
        }
        Ok(Body::Tree(root))
    }
}

/// Prepares the bytes of the next inodes, which are read one after the other: those of many small
/// files lie together in the log. Returns the count of the inodes.
async fn read_next(inodes: &mut [(Ino, Dirty)]) -> usize {
    let (mut sources, mut bytes, mut count) = (Vec::new(), 0, 0);
    for (_, dirty) in inodes {
        if bytes >= limits::READ_AHEAD_BYTES {
            break;
        }
        count += 1;
        // Of a file that is gone nothing is read.
        if !matches!(dirty.inode, Some((_, None))) {
            let more = dirty.ranges.sources().filter(|(source, _)| !matches!(source, Source::Zero));
            sources.extend(more.inspect(|(_, more)| bytes += more));
        }
    }
    rekindle_staging::read_ahead(sources).await;
    count
}

/// Returns the content of a file that has few bytes after changes; `None`: it has too many, or some
/// of them are not known without a look at data. Parts ascend.
async fn in_row(body: &Body, size: u64, parts: &[Part]) -> Result<Option<Body>, Error> {
    let below = match body {
        Body::Row(bytes) => bytes.slice(..bytes.len().min(usize::try_from(size).unwrap_or(0))),
        Body::Tree(None) => Bytes::new(),
        Body::Tree(Some(_)) if covers(parts, size) => Bytes::new(),
        Body::Tree(Some(_)) => return Ok(None),
    };
    let data = parts.iter().filter(|part| !part.backing.is_zero());
    let data_end = data.map(|part| part.range.end.min(size)).max().unwrap_or(0);
    let Ok(length) = usize::try_from(data_end.max(below.len() as u64)) else { return Ok(None) };
    if length > limits::ROW_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = below.to_vec();
    bytes.resize(length, 0);
    for Part { range, backing } in parts {
        let within = |byte: u64| usize::try_from(byte).map_or(length, |byte| byte.min(length));
        let out = &mut bytes[within(range.start)..within(range.end)];
        match backing {
            Backing::Record(source) if out.is_empty() || source.read_now(0, out)? => {}
            Backing::Record(source) => source.read(0, out).await?,
            Backing::File { .. } => return Ok(None),
        }
    }
    let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(length);
    Ok(Some(if bytes.is_empty() { Body::Tree(None) } else { Body::Row(bytes.into()) }))
}

/// Whether parts leave out no byte of a file that has few.
fn covers(parts: &[Part], size: u64) -> bool {
    let reach =
        |end, part: &Part| if part.range.start <= end { part.range.end.max(end) } else { end };
    size <= limits::ROW_BYTES_MAX as u64 && parts.iter().fold(0, reach) >= size
}

/// Adds the bytes that lie in a row below the parts that change them.
fn above(bytes: Bytes, parts: Vec<Part>) -> Vec<Part> {
    let (mut all, mut at) = (Vec::new(), 0);
    let below = |range: Range<u64>| {
        let within = |byte: u64| byte.min(bytes.len() as u64);
        let range = within(range.start)..within(range.end);
        let data = bytes.slice(range.start as usize..range.end as usize);
        Part { range, backing: Backing::Record(Source::Memory(data)) }
    };
    for part in parts {
        all.push(below(at..part.range.start));
        at = part.range.end;
        all.push(part);
    }
    all.push(below(at..u64::MAX));
    all.retain(|part| !part.range.is_empty());
    all
}

/// The changes of a table whose rows have no children.
fn changes_of<T>(
    newest: &BTreeMap<u64, (Serial, Option<T>)>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Changes {
    let row = |value: &T| Row { bytes: encode(value), children: Vec::new() };
    newest.iter().map(|(position, (_, value))| (*position, value.as_ref().map(row))).collect()
}
