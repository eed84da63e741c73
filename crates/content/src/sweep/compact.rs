//! Compaction: live chunks of a mostly dead pack go into new packs, and a note says where.
//!
//! Blobs are copied as they are stored, after their bytes were checked against their names; the
//! live chunks of a bundle with dead ones go into new bundles. Damage is not copied: a damaged pack
//! stays where it is, for the user to look at.

use super::alive::Alive;
use super::books::ended;
use super::listing::Listed;
use super::pace::Pace;
use super::tally::Tally;
use crate::format::footer::Entry;
use crate::format::moved::{self as format, Moved};
use crate::pack::reader::{self, Opener};
use crate::pack::writer::pointer;
use crate::{Batch, Content, Error, Pointer, Spot, limits, moved, pack};
use bytes::Bytes;
use futures_util::future::join_all;
use rekindle_base::{Kind, PackId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The result of a compaction.
pub(super) struct Compacted {
    pub(super) packs: Vec<PackId>,
    pub(super) bytes_copied: u64,
}

/// The packs that are worth a compaction.
#[derive(Default)]
pub(super) struct Worthwhile {
    /// Those first that free most for what is copied.
    pub(super) packs: Vec<Listed>,
    /// Bytes of their live chunks.
    pub(super) bytes: u64,
    /// Requests that read these.
    pub(super) reads: u64,
    /// Whether the footers of all packs that were asked about could be read.
    pub(super) are_all_read: bool,
}

/// Returns those of `packs` of whose chunks less than `live_percent` is alive.
///
/// The length of a pack says too little about its blobs, so only the footer tells; without this
/// check every sweep would copy packs of small blobs, and packs with parity. The tally keeps what
/// the footers of the other packs said.
pub(super) async fn worthwhile(
    content: &Content,
    (packs, live_percent): (&[Listed], u8),
    tally: &mut Tally,
) -> Result<Worthwhile, Error> {
    let store = &content.inner.store;
    let (mut worthwhile, mut found) = (Vec::new(), Worthwhile::default());
    found.are_all_read = true;
    for window in packs.chunks(limits::FETCH_WINDOW) {
        let footers = window
            .iter()
            .map(|(pack, length)| reader::read_sound_footer(store, *pack, u64::from(*length)));
        for (listed, footer) in window.iter().zip(join_all(footers).await) {
            let entries = match footer {
                Ok(entries) => entries,
                // It is gone since it was listed: the list was stale, or a sweep of a life that
                // another has replaced was still deleting.
                Err(error) if matches!(error.kind(), Kind::Damaged | Kind::NotFound) => {
                    found.are_all_read = false;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let alive = Alive::of(tally, [listed.0]).await.map_err(ended)?;
            let is_live = |entry: &&Entry| alive.has(&listed.0, entry.spot());
            let copied: u64 =
                entries.iter().filter(is_live).map(|entry| u64::from(entry.share())).sum();
            // Of the blobs alone: header and footer weigh much in a small pack, parity in any, and
            // a copy would have them as well.
            let stored: u64 = entries.iter().map(|entry| u64::from(entry.share())).sum();
            if copied * 100 < stored * u64::from(live_percent) {
                let live_share = copied * 1000 / stored.max(1);
                worthwhile.push((live_share, *listed));
                // The footer is read once more.
                found.reads += 1 + neighbours(&live_blobs(&entries, is_live)).count() as u64;
                found.bytes += copied;
            } else {
                tally.keep_blobs(listed.0, stored).await.map_err(ended)?;
            }
        }
    }
    // By the thousandth, and then by age: ids begin with the time of their making.
    worthwhile.sort_unstable();
    found.packs = worthwhile.into_iter().map(|(_, listed)| listed).collect();
    Ok(found)
}

/// Moves live chunks out of `packs`. On return the copies and the notes are durable.
pub(super) async fn compact(
    content: &Content,
    packs: &[Listed],
    alive: &Alive,
    pace: &Pace,
) -> Result<Compacted, Error> {
    let mut batch = content.batch();
    let mut notes = Vec::new();
    let mut bytes_copied = 0;
    for (pack, length) in packs {
        match move_out(content, &mut batch, *pack, u64::from(*length), alive, pace).await {
            Ok((note, bytes)) => {
                notes.push(Arc::new(note));
                bytes_copied += bytes;
            }
            Err(error) if error.kind() == Kind::Damaged => {
                tracing::warn!(%pack, %error, "a pack is damaged and therefore not compacted");
            }
            Err(error) => return Err(error),
        }
    }
    // Copies before notes, notes before deletions.
    batch.flush().await?;
    for note in &notes {
        let bytes = Bytes::from(format::encode(note));
        content.inner.store.put(&moved::key(note.pack), bytes).await?;
        content.inner.moved.keep_own(note.clone());
    }
    batch.committed();
    Ok(Compacted { packs: notes.iter().map(|note| note.pack).collect(), bytes_copied })
}

async fn move_out(
    content: &Content,
    batch: &mut Batch,
    pack: PackId,
    length: u64,
    alive: &Alive,
    pace: &Pace,
) -> Result<(Moved, u64), Error> {
    let inner = &content.inner;
    let entries = reader::read_sound_footer(&inner.store, pack, length).await?;
    account(pack, &entries, alive)?;
    let is_live = |entry: &&Entry| alive.has(&pack, entry.spot());
    let blobs = live_blobs(&entries, is_live);
    let mut places = BTreeMap::new();
    let mut bytes_copied = 0;
    let mut rest = Rest::default();
    for group in neighbours(&blobs) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = first[0].blob().start..last[0].blob().end;
        pace.spend(range.end - range.start).await?;
        let stored = inner.store.get_range(&pack::key(pack), range).await?;
        for entries in group {
            let at = (entries[0].offset - first[0].offset) as usize;
            let blob = stored.get(at..at + entries[0].stored as usize).ok_or_else(|| {
                Error::damaged(&pointer(pack, &entries[0]), "the pack ends within it")
            })?;
            reader::check_blob(&inner.namer, pack, entries, blob)?;
            let live = || entries.iter().filter(is_live);
            bytes_copied += live().map(|entry| u64::from(entry.share())).sum::<u64>();
            if live().count() == entries.len() {
                batch.append_as_it_is(pack, entries, blob, &mut places).await?;
                continue;
            }
            let mut opener = Opener::new(&inner.namer);
            for entry in live() {
                if !rest.has_room(entry) {
                    rest.write(batch, &mut places).await?;
                }
                rest.add(entry, &opener.open(&pointer(pack, entry), blob)?.bytes);
            }
        }
    }
    rest.write(batch, &mut places).await?;
    Ok((Moved { pack, entries: places.into_iter().collect() }, bytes_copied))
}

/// Live chunks of bundles that have dead ones: on their way into new bundles.
#[derive(Default)]
struct Rest {
    entries: Vec<Entry>,
    bodies: Vec<u8>,
}

impl Rest {
    /// Whether a chunk may go into the same bundle. Those of one old bundle lie side by side in
    /// their volume, as a rule.
    fn has_room(&self, entry: &Entry) -> bool {
        let is_run = self.entries.first().is_none_or(|first| first.is_beside(entry));
        let most = if is_run { limits::BUNDLE_RUN_BYTES } else { limits::BUNDLE_APART_BYTES };
        self.entries.is_empty() || self.bodies.len() + entry.length as usize <= most
    }

    fn add(&mut self, entry: &Entry, body: &[u8]) {
        self.entries.push(*entry);
        self.bodies.extend_from_slice(body);
    }

    /// Writes the chunks, and notes their new places.
    async fn write(
        &mut self,
        batch: &mut Batch,
        places: &mut BTreeMap<Spot, Pointer>,
    ) -> Result<(), Error> {
        let chunks: Vec<_> =
            self.entries.iter().map(|entry| (entry.name, entry.length as usize)).collect();
        let pointers = batch.append_together(&chunks, &self.bodies).await?;
        places.extend(self.entries.drain(..).map(|entry| entry.spot()).zip(pointers));
        self.bodies.clear();
        Ok(())
    }
}

/// Refuses a pack whose footer leaves out a chunk that is alive: a compacted pack is deleted.
fn account(pack: PackId, entries: &[Entry], alive: &Alive) -> Result<(), Error> {
    let footer: BTreeSet<Spot> = entries.iter().map(Entry::spot).collect();
    match alive.spots(&pack).find(|spot| !footer.contains(spot)) {
        None => Ok(()),
        Some(spot) => {
            let key = pack::key(pack);
            let reason = format!("its footer leaves out what lies at byte {}", spot.position());
            Err(rekindle_datastore::Error::Damaged { key, reason }.into())
        }
    }
}

/// Returns the blobs in which a chunk is alive.
fn live_blobs(entries: &[Entry], is_live: impl Fn(&&Entry) -> bool) -> Vec<&[Entry]> {
    let blobs = entries.chunk_by(Entry::is_beside);
    blobs.filter(|blob| blob.iter().any(|entry| is_live(&entry))).collect()
}

/// Groups blobs, so that one ranged read can fetch each group.
fn neighbours<'a, 'b>(blobs: &'b [&'a [Entry]]) -> impl Iterator<Item = &'b [&'a [Entry]]> {
    let mut rest = blobs;
    std::iter::from_fn(move || {
        let begin = rest.first()?[0].blob().start;
        let gap_is_small = |pair: &[&[Entry]]| {
            pair[1][0].blob().start <= pair[0][0].blob().end + limits::PREFETCH_GAP_BYTES
        };
        let is_short =
            |blob: &[Entry]| blob[0].blob().end - begin <= limits::PREFETCH_READ_BYTES_MAX;
        let more =
            rest.windows(2).take_while(|pair| gap_is_small(pair) && is_short(pair[1])).count();
        let (group, after) = rest.split_at(1 + more);
        rest = after;
        Some(group)
    })
}
