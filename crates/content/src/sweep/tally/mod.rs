//! The tally: how often the counted roots name each place, on the node's flash.
//!
//! Chunks are immutable, so reachability can be counted: a place is alive as long as a root or a
//! chunk that is alive names it. The tally is a function of the roots and notes that its head
//! names. An update reads only what has become reached, or is reached no more ([`counter`]); so it
//! costs what changed.
//!
//! The tally may be lost at any time. One that is torn, of another store, or that contradicts
//! itself is not believed, and everything is counted anew. A node that is reached no more and
//! cannot be read any more, because another node has swept meanwhile, has the same consequence.
//!
//! Files are written once, and a new head replaces the old one by a rename: a crash leaves the
//! tally as it was before the update, or after it.

mod counter;
mod run;
mod shelf;
mod sorter;
mod table;

pub(super) use shelf::{Pen, Sheet, Shelf, Trouble};
pub(super) use table::AllRows;

use crate::format::counts::CountedPlace;
use crate::format::moved::{self, Moved};
use crate::format::tally::{self as format, FileOfCounts, Head, Heard, Note};
use crate::name::PackSet;
use crate::sweep::pace::Pace;
use crate::sweep::sources::{Source, Sources};
use crate::{Class, Content, Pointer, Spot, limits, pack};
use counter::Counter;
use rekindle_base::{NodeId, PackId};
use rekindle_datastore::Tag;
use rekindle_env::{Env, Timestamp};
use run::Run;
use shelf::Result;
use sorter::Sorter;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use table::{Step, Table};

/// The name of the head.
const HEAD: &str = "tally";

/// A tally.
pub(super) struct Tally {
    shelf: Shelf,
    /// All but its files and the number of the next one, which the table has.
    head: Head,
    table: Table,
    /// Compacted packs that are known to be deleted.
    gone: PackSet,
    /// Whether the head that is kept says something else.
    is_changed: bool,
}

/// The cost of an update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Metadata chunks that were read.
    pub(super) nodes: u64,
    /// Bytes of these.
    pub(super) bytes: u64,
    /// Whether what is counted has changed.
    pub(super) is_changed: bool,
}

/// The notes in the store, as a list shows them.
pub(super) type Notes = BTreeMap<PackId, Option<Tag>>;

impl Tally {
    /// Opens the tally that is kept in a folder; `None` when there is none.
    pub(super) async fn open(env: &Env, store: [u8; 16], folder: &Path) -> Result<Option<Self>> {
        let shelf = Shelf::folder(env, store, folder);
        if !shelf.names().await?.iter().any(|name| name == HEAD) {
            return Ok(None);
        }
        let sheet = shelf.open(HEAD).await?;
        let length = usize::try_from(sheet.length()).unwrap_or(usize::MAX);
        let head = format::decode(&sheet.read(0, length).await?, store)?;
        let mut table = Table::new(shelf.clone(), limits::TALLY_OPEN_BYTES);
        (table.next, table.edges) = (head.next, head.edges);
        for FileOfCounts { number, length } in &head.files {
            table.runs.push(Run::open(&shelf, *number, *length).await?);
        }
        let head = Head { files: Vec::new(), ..head };
        Ok(Some(Self { shelf, head, table, gone: PackSet::default(), is_changed: false }))
    }

    /// Makes an empty tally in a folder. The one that is kept there stays until the first commit.
    pub(super) async fn begin(env: &Env, store: [u8; 16], folder: &Path) -> Result<Self> {
        let shelf = Shelf::folder(env, store, folder);
        shelf.prepare().await?;
        // Above the numbers of all files that are there.
        let names = shelf.names().await?;
        let used = names.iter().filter_map(|name| run::number_of(name)).max();
        let mut tally = Self::of(shelf);
        tally.table.next = used.map_or(1, |used| used.saturating_add(1));
        Ok(tally)
    }

    /// Makes an empty tally in RAM, for a node whose disk has no room.
    pub(super) fn in_memory(env: &Env, store: [u8; 16]) -> Self {
        Self::of(Shelf::memory(env, store, limits::TALLY_MEMORY_BYTES))
    }

    fn of(shelf: Shelf) -> Self {
        let table = Table::new(shelf.clone(), limits::TALLY_OPEN_BYTES);
        let gone = PackSet::default();
        Self { shelf, head: Head::default(), table, gone, is_changed: true }
    }

    /// Whether the tally outlives the process.
    pub(super) fn is_kept(&self) -> bool {
        self.shelf.is_kept()
    }

    /// The roots that are counted.
    pub(super) fn sources(&self) -> &Sources {
        &self.head.sources
    }

    /// The nodes whose writes are counted.
    pub(super) fn heard(&self) -> &BTreeMap<NodeId, Heard> {
        &self.head.heard
    }

    /// Notes up to which write of each node the counted roots are those of the records.
    pub(super) fn hear(&mut self, heard: BTreeMap<NodeId, Heard>) {
        self.is_changed |= self.head.heard != heard;
        self.head.heard = heard;
    }

    /// When everything was counted anew last.
    pub(super) fn counted(&self) -> Timestamp {
        self.head.counted
    }

    /// Notes when everything was counted anew.
    pub(super) fn set_counted(&mut self, now: Timestamp) {
        (self.head.counted, self.is_changed) = (now, true);
    }

    /// How often places are named, in all.
    pub(super) fn edges(&self) -> u64 {
        self.table.edges
    }

    /// Whether the note of a pack is counted.
    pub(super) fn is_noted(&self, pack: &PackId) -> bool {
        self.head.notes.contains_key(pack)
    }

    /// The notes that are counted.
    #[cfg(test)]
    pub(super) fn notes(&self) -> Notes {
        self.head.notes.iter().map(|(pack, note)| (*pack, note.tag)).collect()
    }

    /// Counts other roots, and other notes beside those that are counted. After an error the tally
    /// is not to be used any more: the one that is kept is as before.
    pub(super) async fn update(
        &mut self,
        (content, pace): (&Content, &Pace),
        roots: Sources,
        notes: &Notes,
    ) -> Result<Cost> {
        let mut cost = Cost::default();
        self.forget_idle(notes).await?;
        self.take_notes((content, pace), notes, &mut cost).await?;
        let (gone, new) = difference(&self.head.sources, &roots);
        if !gone.is_empty() || !new.is_empty() {
            let mut counter =
                counter(content, pace, (&mut self.table, &self.shelf), &self.head.notes);
            counter.walk(&new, Step::Up).await?;
            counter.walk(&gone, Step::Down).await?;
            cost.add(&counter);
            counter.end().await?;
        }
        self.is_changed |= self.head.sources != roots;
        self.head.sources = roots;
        Ok(cost)
    }

    /// Forgets counted notes that the store does not list any more, and of whose packs no place is
    /// named.
    async fn forget_idle(&mut self, notes: &Notes) -> Result<()> {
        let unlisted: Vec<PackId> =
            self.head.notes.keys().filter(|pack| !notes.contains_key(pack)).copied().collect();
        for pack in unlisted {
            if !self.table.is_named(&pack).await? {
                self.forget(&[pack]);
            }
        }
        Ok(())
    }

    /// Forgets notes that are about to be deleted.
    pub(super) fn forget(&mut self, packs: &[PackId]) {
        for pack in packs {
            self.is_changed |= self.head.notes.remove(pack).is_some();
        }
    }

    /// Counts what new notes say. A pack that is still there is read in its own place, and may be
    /// compacted once more: a crash came between its note and its deletion.
    async fn take_notes(
        &mut self,
        (content, pace): (&Content, &Pace),
        notes: &Notes,
        cost: &mut Cost,
    ) -> Result<()> {
        for (pack, tag) in notes {
            let known = self.head.notes.get(pack).copied();
            if known.is_some_and(|known| tag.is_some() && known.tag == *tag) {
                continue;
            }
            let inner = &content.inner;
            // It may be gone since it was listed.
            let Some(moved) = inner.moved.look(&inner.store, *pack).await? else { continue };
            let note = Note { tag: *tag, hash: hash_of(&moved) };
            match known {
                Some(known) if known.hash == note.hash => {
                    self.head.notes.insert(*pack, note);
                }
                Some(_) => {
                    return Err(Trouble::Doubt(format!("the note of pack {pack} is another")));
                }
                None if self.is_there(content, *pack).await? => continue,
                None => self.follow((content, pace), (&moved, note), cost).await?,
            }
            self.is_changed = true;
        }
        Ok(())
    }

    async fn is_there(&self, content: &Content, pack: PackId) -> Result<bool> {
        if self.gone.contains(&pack) {
            return Ok(false);
        }
        match content.inner.store.get_range(&pack::key(pack), 0..1).await {
            Ok(_) => Ok(true),
            Err(rekindle_datastore::Error::NotFound(_)) => Ok(false),
            Err(error) => Err(Trouble::Other(error.into())),
        }
    }

    /// Counts that the chunks of a pack are elsewhere: from now on its places reach the new ones,
    /// and these what the old ones reached.
    async fn follow(
        &mut self,
        (content, pace): (&Content, &Pace),
        (moved, note): (&Moved, Note),
        cost: &mut Cost,
    ) -> Result<()> {
        let named = self.table.places(&moved.pack).await?;
        self.head.notes.insert(moved.pack, note);
        let is_named = |spot: &Spot| {
            named.binary_search_by_key(spot, |place: &CountedPlace| place.spot).is_ok()
        };
        let found = moved.entries.iter().filter(|(spot, _)| is_named(spot));
        let places: Vec<Pointer> = found.map(|(_, place)| *place).collect();
        let mut counter = counter(content, pace, (&mut self.table, &self.shelf), &self.head.notes);
        counter.lengthen_all(&moved.pack, &places).await?;
        counter.walk(&places, Step::Up).await?;
        if pack::class(moved.pack) == Class::Metadata {
            let mut open = Vec::new();
            for window in places.chunks(limits::WALK_WINDOW) {
                counter.expand(window, Step::Down, &mut open).await?;
            }
            counter.go_on(open, Step::Down).await?;
        }
        cost.add(&counter);
        counter.end().await
    }

    /// Notes that compacted packs are deleted.
    pub(super) fn are_gone(&mut self, packs: &[PackId]) {
        self.gone.extend(packs);
    }

    /// Counts a root once less than it should be, as by a fault of ours.
    #[cfg(test)]
    pub(super) async fn miscount(&mut self, content: &Content, root: Pointer) {
        let pace = Pace::new(
            &content.inner.env,
            crate::sweep::pace::Budget::Unlimited,
            Default::default(),
        );
        let mut counter = counter(content, &pace, (&mut self.table, &self.shelf), &self.head.notes);
        counter.walk(&[root], Step::Down).await.expect("it is there");
        counter.end().await.expect("there is room");
        self.is_changed = true;
    }

    /// Makes the tally durable as it is. Returns after nothing has to be done, too.
    pub(super) async fn commit(&mut self) -> Result<()> {
        self.table.flush().await?;
        if !self.is_changed || !self.is_kept() {
            return Ok(());
        }
        self.shelf.prepare().await?;
        let files: Vec<FileOfCounts> = self
            .table
            .runs
            .iter()
            .map(|run| FileOfCounts { number: run.number, length: run.length() })
            .collect();
        self.head.files = files;
        (self.head.next, self.head.edges) = (self.table.next, self.table.edges);
        let bytes = format::encode(&self.head, self.shelf.store);
        let numbers: BTreeSet<u64> = self.head.files.drain(..).map(|file| file.number).collect();
        self.shelf.replace(HEAD, &bytes).await?;
        self.is_changed = false;
        for name in self.shelf.names().await? {
            let is_used = run::number_of(&name).map_or(name == HEAD, |one| numbers.contains(&one));
            if !is_used {
                self.shelf.remove(&name).await;
            }
        }
        Ok(())
    }

    /// Returns the rows of all packs that are named, in their order.
    pub(super) async fn rows(&mut self) -> Result<AllRows> {
        self.table.rows().await
    }

    /// Returns the places of a pack that are named, ascending.
    pub(super) async fn places(&mut self, pack: &PackId) -> Result<Vec<CountedPlace>> {
        self.table.places(pack).await
    }

    /// Whether a place of the pack is named.
    pub(super) async fn is_named(&mut self, pack: &PackId) -> Result<bool> {
        self.table.is_named(pack).await
    }

    /// Keeps the bytes of all blobs of a pack, as its footer says.
    pub(super) async fn keep_blobs(&mut self, pack: PackId, blobs: u64) -> Result<()> {
        self.is_changed = true;
        self.table.keep_blobs(pack, u32::try_from(blobs).unwrap_or(u32::MAX)).await?;
        self.table.relieve().await
    }

    /// Returns the first pack of which two tallies of the same roots and notes say different
    /// things.
    pub(super) async fn first_difference(&mut self, other: &mut Tally) -> Result<Option<PackId>> {
        let (mut ours, mut theirs) = (self.rows().await?, other.rows().await?);
        loop {
            let (one, two) = (ours.next().await?, theirs.next().await?);
            let (Some(one), Some(two)) = (one, two) else {
                return Ok(one.or(two).map(|row| row.pack));
            };
            if (one.pack, one.length, one.crc) != (two.pack, two.length, two.crc) {
                return Ok(Some(one.pack.min(two.pack)));
            }
        }
    }
}

impl Cost {
    fn add(&mut self, counter: &Counter<'_>) {
        self.nodes += counter.read;
        self.bytes += counter.bytes;
        self.is_changed = true;
    }
}

fn counter<'a>(
    content: &'a Content,
    pace: &'a Pace,
    (table, shelf): (&'a mut Table, &Shelf),
    noted: &'a BTreeMap<PackId, Note>,
) -> Counter<'a> {
    let plain = Sorter::new(shelf.clone(), limits::TALLY_SORTED_CHANGES);
    Counter { content, pace, table, noted, plain, hops: BTreeMap::new(), read: 0, bytes: 0 }
}

/// Returns the roots that are not kept any more, and those that are new, each as often.
fn difference(old: &Sources, new: &Sources) -> (Vec<Pointer>, Vec<Pointer>) {
    let roots = |source: Option<&Source>| -> Vec<Pointer> {
        source.into_iter().flat_map(|source| &source.roots).map(|kept| kept.root).collect()
    };
    let (mut gone, mut come) = (old.live.clone(), new.live.clone());
    for id in old.records.keys().chain(new.records.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (old.records.get(id), new.records.get(id));
        if before.map(|source| &source.roots) != after.map(|source| &source.roots) {
            gone.extend(roots(before));
            come.extend(roots(after));
        }
    }
    // What one source has lost and another one has got stays.
    let key = |root: &Pointer| (root.pack, root.spot(), root.name);
    gone.sort_unstable_by_key(key);
    come.sort_unstable_by_key(key);
    let mut others = come.iter().peekable();
    let mut stays = Vec::new();
    gone.retain(|root| {
        while others.next_if(|other| key(other) < key(root)).is_some() {}
        let other = others.next_if(|other| key(other) == key(root));
        stays.extend(other);
        other.is_none()
    });
    let mut stays = stays.into_iter().peekable();
    let come = come.iter().filter(|root| stays.next_if(|stay| key(stay) == key(root)).is_none());
    (gone, come.copied().collect())
}

fn hash_of(note: &Moved) -> [u8; 16] {
    let hash = blake3::hash(&moved::encode(note));
    std::array::from_fn(|at| hash.as_bytes()[at])
}
