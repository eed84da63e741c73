//! The state of a file volume: a root, and what records say beyond it.

use crate::format::Bad;
use crate::format::inode::Inode;
use crate::format::page::Row;
use crate::format::rows::{Named, Tables, Totals, Xattr};
use crate::look::{Look, Stop};
use crate::overlay::{Dirty, Overlay};
use crate::ranges::Ranges;
use crate::table;
use crate::taken::{Taken, gaps};
use crate::types::{Errno, FileType, Ino, ROOT};
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_base::Serial;
use rekindle_block::PAGE_BYTES;
use rekindle_content::Pointer;
use rekindle_content::tree::Root;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Flags of an inode's row: which children it has.
pub(crate) const HAS_CONTENT: u8 = 1;
pub(crate) const HAS_XATTRS: u8 = 2;
pub(crate) const HAS_TAKEN: u8 = 4;
/// Flag of a regular file whose taken pages are known: without a table, they are its first ones.
pub(crate) const IS_COUNTED: u8 = 8;
/// Flag of a regular file whose bytes follow the inode.
pub(crate) const IN_ROW: u8 = 16;

/// The directory of the files that have no name and are in use. Its row is the volume's own.
pub(crate) const ORPHANS: Ino = 0;

/// The state of a volume in service.
pub(crate) struct State {
    pub(crate) root: Root,
    /// The last record whose effects are in the root or in the overlay.
    pub(crate) applied: Serial,
    pub(crate) overlay: Overlay,
    /// What the volume says of itself now; known once its row was read.
    pub(crate) totals: Option<Totals>,
    /// The record that could not be understood.
    pub(crate) broken: Option<Bad>,
    /// Uses of inodes by clients.
    pub(crate) uses: HashMap<Ino, u64>,
    /// The root directory, as long as no change names it.
    pub(crate) first_root: Inode,
    /// The tables below the volume's own row, and the root that has them: calls ask often.
    pub(crate) own: Mutex<Option<(Root, Own)>>,
}

/// A row of the table of inodes.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) inode: Inode,
    pub(crate) body: Body,
    pub(crate) xattrs: Root,
    /// Of a regular file: the pages that it takes.
    pub(crate) taken: Taken,
}

/// The content of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// Of a file: its extents. Of a directory: its names.
    Tree(Root),
    /// Of a regular file with few bytes: these, up to the last one that is not zero.
    Row(Bytes),
}

impl Body {
    /// Returns the names of a directory, or the extents of a file whose bytes are not in its row.
    pub(crate) fn tree(&self) -> Root {
        match self {
            Self::Tree(root) => *root,
            Self::Row(_) => None,
        }
    }
}

impl Stored {
    /// An inode without content.
    pub(crate) fn new(inode: Inode) -> Self {
        Self { inode, body: Body::Tree(None), xattrs: None, taken: Taken::First(0) }
    }

    pub(crate) fn decode(row: &Row) -> Result<Self, Bad> {
        let (mut inode, flags) = Inode::decode(&row.bytes)?;
        let mut children = row.children.iter().copied();
        let body = match flags & (HAS_CONTENT | IN_ROW) {
            0 => Body::Tree(None),
            HAS_CONTENT => Body::Tree(children.next()),
            IN_ROW if inode.kind == FileType::Regular => {
                Body::Row(std::mem::take(&mut inode.target))
            }
            _ => return Err(Bad("the content of an inode is in two places")),
        };
        let xattrs = if flags & HAS_XATTRS != 0 { children.next() } else { None };
        let table = if flags & HAS_TAKEN != 0 { children.next() } else { None };
        let taken = match table {
            _ if flags & IS_COUNTED == 0 => Taken::Unknown,
            Some(table) => Taken::Table(Some(table)),
            None => Taken::First(inode.allocated / PAGE_BYTES),
        };
        Ok(Self { inode, body, xattrs, taken })
    }

    pub(crate) fn encode(&self) -> Row {
        let flag = |root: &Root, flag| if root.is_some() { flag } else { 0 };
        let is_counted = self.inode.kind == FileType::Regular && self.taken != Taken::Unknown;
        let counted = if is_counted { IS_COUNTED } else { 0 };
        let table = if let Taken::Table(table) = self.taken { table } else { None };
        let (tree, in_row) = match &self.body {
            Body::Tree(root) => (*root, None),
            Body::Row(bytes) => (None, Some(bytes)),
        };
        let flags = flag(&tree, HAS_CONTENT)
            | flag(&self.xattrs, HAS_XATTRS)
            | flag(&table, HAS_TAKEN)
            | in_row.map_or(0, |_| IN_ROW)
            | counted;
        let children: Vec<Pointer> = tree.into_iter().chain(self.xattrs).chain(table).collect();
        let mut bytes = self.inode.encode(flags);
        bytes.extend_from_slice(in_row.map_or(&[], |bytes| bytes));
        Row { bytes, children }
    }
}

/// The row of the volume: what it says of itself, and its files without a name.
pub(crate) fn decode_own(row: Option<&Row>) -> Result<(Totals, Own), Bad> {
    let Some(row) = row else { return Ok((Totals::default(), Own::default())) };
    let (totals, tables) = Totals::decode(&row.bytes)?;
    Ok((totals, Own::of(row, tables)))
}

/// The tables below the row of the volume.
#[derive(Clone, Copy, Default)]
pub(crate) struct Own {
    /// The files without a name that are in use.
    pub(crate) orphans: Root,
    /// What a front keeps of inodes.
    pub(crate) kept: Root,
}

impl Own {
    fn of(row: &Row, tables: Tables) -> Self {
        let mut children = row.children.iter().copied();
        let mut next = |has: bool| if has { children.next() } else { None };
        Self { orphans: next(tables.orphans), kept: next(tables.kept) }
    }

    /// Encodes the row.
    pub(crate) fn row(&self, totals: &Totals) -> Row {
        let tables = Tables { orphans: self.orphans.is_some(), kept: self.kept.is_some() };
        let children = self.orphans.into_iter().chain(self.kept).collect();
        Row { bytes: totals.encode(tables), children }
    }
}

/// A look at the state, under its lock.
pub(crate) struct View<'a> {
    pub(crate) state: &'a State,
    pub(crate) look: &'a Look<'a>,
    pub(crate) names: &'a crate::names::Names,
}

impl View<'_> {
    fn dirty(&self, ino: Ino) -> Option<&Dirty> {
        self.state.overlay.inodes.get(&ino)
    }

    pub(crate) fn totals(&self) -> &Totals {
        self.state.totals.as_ref().expect("a volume is ready before it is looked at")
    }

    /// Returns an inode as the root has it.
    pub(crate) fn stored(&self, ino: Ino) -> Result<Option<Stored>, Stop> {
        let row = table::find(self.look, &self.state.root, ino)?;
        let stored = row.map(|row| Stored::decode(&row)).transpose()?;
        let first = || Stored::new(self.state.first_root.clone());
        Ok(stored.or_else(|| (ino == ROOT).then(first)))
    }

    /// Returns an inode.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Inode, Stop> {
        if ino == ORPHANS {
            return Err(Errno::STALE.into());
        }
        let found = match self.dirty(ino).and_then(|dirty| dirty.inode.as_ref()) {
            Some((_, inode)) => inode.clone(),
            None => self.stored(ino)?.map(|stored| stored.inode),
        };
        found.ok_or(Stop::Posix(Errno::STALE))
    }

    /// Counts the pages of a range that a file takes. Unless the look must be exact, the count may
    /// be too small: what is not in RAM is left out.
    pub(crate) fn taken(&self, ino: Ino, pages: &Range<u64>) -> Result<u64, Stop> {
        let none = Ranges::default();
        let newer = self.dirty(ino).map_or(&none, |dirty| &dirty.taken);
        let newer_pages = newer.within(pages.clone()).filter(|part| part.backing);
        let mut count: u64 = newer_pages.map(|part| part.range.end - part.range.start).sum();
        let gaps = gaps(newer, pages);
        if gaps.is_empty() {
            return Ok(count);
        }
        let stored = match self.stored(ino) {
            Err(Stop::Miss(_)) if !self.look.is_exact() => return Ok(count),
            stored => stored?,
        };
        let taken = stored.map_or(Taken::First(0), |stored| stored.taken);
        for gap in gaps {
            count += taken.count(self.look, &gap)?;
        }
        Ok(count)
    }

    /// Refuses a change for which the volume has no room.
    pub(crate) fn fits(&self, more: i64, room: u64) -> Result<(), Stop> {
        let after = self.totals().bytes.saturating_add_signed(more);
        match after.checked_sub(room) {
            Some(lack @ 1..) if more > 0 => Err(Stop::Full(lack)),
            _ => Ok(()),
        }
    }

    /// Returns a directory; another inode is refused.
    pub(crate) fn dir(&self, ino: Ino) -> Result<Inode, Stop> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileType::Directory => Ok(inode),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Returns the names that a directory has in the root.
    fn stored_names(&self, dir: Ino) -> Result<Root, Stop> {
        if dir == ORPHANS {
            return Ok(self.own()?.orphans);
        }
        Ok(self.stored(dir)?.and_then(|stored| stored.body.tree()))
    }

    /// Returns the tables below the volume's own row.
    fn own(&self) -> Result<Own, Stop> {
        let root = self.state.root;
        if let Some((of, own)) = *self.state.own.lock()
            && of == root
        {
            return Ok(own);
        }
        let row = table::find(self.look, &root, ORPHANS)?;
        let own = match &row {
            Some(row) => Own::of(row, Tables::decode(&row.bytes)?),
            None => Own::default(),
        };
        *self.state.own.lock() = Some((root, own));
        Ok(own)
    }

    /// Returns what a front keeps of an inode.
    pub(crate) fn kept(&self, ino: Ino) -> Result<Option<Bytes>, Stop> {
        if let Some((_, kept)) = self.state.overlay.kept.get(&ino) {
            return Ok(kept.clone());
        }
        let row = table::find(self.look, &self.own()?.kept, ino)?;
        Ok(row.map(|row| row.bytes.into()))
    }

    /// Whether an inode is in use, and so stays without a name: by a client of a front that says so
    /// anew after a restart, or by one of which something is kept.
    pub(crate) fn is_used(&self, ino: Ino) -> Result<bool, Stop> {
        Ok(self.state.uses.contains_key(&ino) || self.kept(ino)?.is_some())
    }

    /// Returns the rows of a table with those that the overlay has newer, from `from` on, as long
    /// as `each` wants more.
    fn merged<T: Clone>(
        &self,
        stored: &Root,
        newer: Option<&BTreeMap<u64, (Serial, Option<T>)>>,
        from: u64,
        decode: impl Fn(&[u8]) -> Result<T, Bad>,
        mut each: impl FnMut(u64, T) -> bool,
    ) -> Result<(), Stop> {
        let none = BTreeMap::new();
        let mut newer = newer.unwrap_or(&none).range(from..).peekable();
        let mut wants = true;
        table::scan(self.look, stored, from, |key, bytes| {
            while let Some((at, (_, value))) = newer.next_if(|(at, _)| **at < key) {
                wants = value.clone().is_none_or(|value| each(*at, value));
                if !wants {
                    return Ok(false);
                }
            }
            wants = match newer.next_if(|(at, _)| **at == key) {
                Some((_, (_, value))) => value.clone().is_none_or(|value| each(key, value)),
                None => each(key, decode(bytes)?),
            };
            Ok(wants)
        })?;
        while wants && let Some((at, (_, value))) = newer.next() {
            wants = value.clone().is_none_or(|value| each(*at, value));
        }
        Ok(())
    }

    /// Calls `each` for the names of a directory from a position on, until it returns `false`.
    pub(crate) fn names_from(
        &self,
        dir: Ino,
        from: u64,
        each: impl FnMut(u64, Named) -> bool,
    ) -> Result<(), Stop> {
        let stored = self.stored_names(dir)?;
        let newer = self.dirty(dir).map(|dirty| &dirty.names);
        self.merged(&stored, newer, from, Named::decode, each)
    }

    /// Looks a name up. Also returns the position that it has, or that a new one would have.
    pub(crate) fn name(&self, dir: Ino, name: &[u8]) -> Result<(u64, Option<Named>), Stop> {
        let mut search = Search::new(self.names.places(name));
        self.names_from(dir, search.places.start, |position, named| {
            let is_it = named.name == name;
            search.goes_on(position, named, is_it)
        })?;
        search.end()
    }

    /// Calls `each` for the extended attributes of an inode.
    pub(crate) fn xattrs(
        &self,
        ino: Ino,
        from: u64,
        each: impl FnMut(u64, Xattr) -> bool,
    ) -> Result<(), Stop> {
        let stored = self.stored(ino)?.and_then(|stored| stored.xattrs);
        let newer = self.dirty(ino).map(|dirty| &dirty.xattrs);
        self.merged(&stored, newer, from, Xattr::decode, each)
    }

    /// Looks an extended attribute up, as [`View::name`] does.
    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<(u64, Option<Xattr>), Stop> {
        let mut search = Search::new(self.names.places(name));
        self.xattrs(ino, search.places.start, |position, xattr| {
            let is_it = xattr.name == name;
            search.goes_on(position, xattr, is_it)
        })?;
        search.end()
    }
}

/// A search for a name among those with the same hash.
struct Search<T> {
    places: Range<u64>,
    /// The first place that no name has.
    free: u64,
    found: Option<(u64, T)>,
}

impl<T> Search<T> {
    fn new(places: Range<u64>) -> Self {
        Self { free: places.start, places, found: None }
    }

    /// Looks at the next row; `false`: no further one is wanted.
    fn goes_on(&mut self, position: u64, row: T, is_it: bool) -> bool {
        if position >= self.places.end {
            return false;
        }
        if is_it {
            self.found = Some((position, row));
            return false;
        }
        self.free += u64::from(position == self.free);
        true
    }

    fn end(self) -> Result<(u64, Option<T>), Stop> {
        match self.found {
            Some((position, row)) => Ok((position, Some(row))),
            None if self.free >= self.places.end => Err(Errno::NOSPC.into()),
            None => Ok((self.free, None)),
        }
    }
}
