//! Compaction: live chunks of a mostly dead pack go into new packs, and a note says where.
//!
//! Blobs are copied as they are stored, after their bytes were checked against their name. Damage
//! is not copied: a damaged pack stays where it is, for the user to look at.

use super::mark::Verdict;
use super::pace::Pace;
use crate::format::footer::{self, Entry};
use crate::format::moved::{self as format, Moved};
use crate::format::parity;
use crate::name::PackMap;
use crate::pack::reader;
use crate::pack::writer::pointer;
use crate::{Batch, Content, Error, limits, moved, pack};
use bytes::Bytes;
use futures_util::future::join_all;
use rekindle_base::{Kind, PackId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The result of a compaction.
pub(super) struct Compacted {
    pub(super) packs: Vec<PackId>,
    pub(super) bytes_copied: u64,
}

/// Returns those of `packs` of whose blobs less than `live_percent` is alive, those first that free
/// most for what is copied.
///
/// Marks count small blobs that lie close together as one, so only the footer tells; without this
/// check every sweep would copy a pack of small blobs. `blob_bytes` gets the bytes of blobs of the
/// other packs, as their footers say.
pub(super) async fn worthwhile(
    content: &Content,
    (packs, live_percent): (&[(PackId, u64)], u8),
    verdict: &Verdict<'_>,
    blob_bytes: &mut PackMap<u64>,
) -> Result<Vec<(PackId, u64)>, Error> {
    let store = &content.inner.store;
    let mut worthwhile = Vec::new();
    for window in packs.chunks(limits::FETCH_WINDOW) {
        let footers =
            window.iter().map(|(pack, length)| reader::read_sound_footer(store, *pack, *length));
        for ((pack, length), footer) in window.iter().zip(join_all(footers).await) {
            let entries = match footer {
                Ok(entries) => entries,
                Err(error) if error.kind() == Kind::Damaged => continue,
                // It is gone since it was listed: the list was stale, or a sweep of a life that
                // another has replaced was still deleting.
                Err(error) if error.kind() == Kind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let live = entries.iter().filter(|entry| verdict.has(pack, entry.offset));
            let copied: u64 = live.map(|entry| u64::from(entry.stored)).sum();
            // Of the blobs alone: header and footer weigh much in a small pack, parity in any, and
            // a copy would have them as well.
            let stored: u64 = entries.iter().map(|entry| u64::from(entry.stored)).sum();
            if copied * 100 < stored * u64::from(live_percent) {
                let live_share = copied * 1000 / stored.max(1);
                worthwhile.push((live_share, *pack, *length));
            } else {
                blob_bytes.insert(*pack, stored);
            }
        }
    }
    // By the thousandth, and then by age: ids begin with the time of their making.
    worthwhile.sort_unstable();
    Ok(worthwhile.into_iter().map(|(_, pack, length)| (pack, length)).collect())
}

/// Moves live chunks out of `packs`. On return the copies and the notes are durable.
pub(super) async fn compact(
    content: &Content,
    packs: &[(PackId, u64)],
    verdict: &Verdict<'_>,
    pace: &Pace,
) -> Result<Compacted, Error> {
    let mut batch = content.batch();
    let mut notes = Vec::new();
    let mut bytes_copied = 0;
    for (pack, length) in packs {
        match move_out(content, &mut batch, *pack, *length, verdict, pace).await {
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
    verdict: &Verdict<'_>,
    pace: &Pace,
) -> Result<(Moved, u64), Error> {
    let inner = &content.inner;
    let mut live = reader::read_sound_footer(&inner.store, pack, length).await?;
    account(content, pack, length, &live, verdict).await?;
    live.retain(|entry| verdict.has(&pack, entry.offset));
    let mut places = BTreeMap::new();
    // A crash may have cut off a compaction of this pack: what its note says goes on being true.
    if let Some(note) = inner.moved.note(&inner.store, pack).await? {
        places.extend(note.entries.iter().copied());
    }
    let mut bytes_copied = 0;
    for group in neighbours(&live) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = u64::from(first.offset)..u64::from(last.offset) + u64::from(last.stored);
        pace.spend(range.end - range.start).await?;
        let stored = inner.store.get_range(&pack::key(pack), range).await?;
        for entry in group {
            let from = pointer(pack, entry);
            let at = (entry.offset - first.offset) as usize;
            let blob = stored
                .get(at..at + entry.stored as usize)
                .ok_or_else(|| Error::damaged(&from, "the pack ends within it"))?;
            reader::check_blob(&inner.namer, &from, blob)?;
            places.insert(entry.offset, batch.append_blob(&from, blob).await?);
            bytes_copied += u64::from(entry.stored);
        }
    }
    Ok((Moved { pack, entries: places.into_iter().collect() }, bytes_copied))
}

/// Refuses a pack whose footer leaves out a blob that may be alive: a compacted pack is deleted.
async fn account(
    content: &Content,
    pack: PackId,
    length: u64,
    entries: &[Entry],
    verdict: &Verdict<'_>,
) -> Result<(), Error> {
    let end_of = |entry: &Entry| u64::from(entry.offset) + u64::from(entry.stored);
    let footer = (entries.len() * footer::ENTRY_BYTES + footer::TRAILER_BYTES) as u64;
    let mut blobs_end = length.saturating_sub(footer);
    let mut at = crate::format::pack::BYTES as u64;
    let mut gaps = Vec::new();
    for entry in entries {
        gaps.push(at..u64::from(entry.offset));
        at = end_of(entry);
    }
    if at < blobs_end {
        // Parity lies there, or blobs that the footer does not name.
        let begin = blobs_end.saturating_sub(parity::HEAD_BYTES as u64);
        let head = content.inner.store.get_range(&pack::key(pack), begin..blobs_end).await?;
        let head = parity::decode(&head).ok().filter(|head| head.pack == pack);
        blobs_end = head.map_or(blobs_end, |head| head.layout.covered as u64);
    }
    gaps.push(at..blobs_end);
    // A bit of the marks stands for 4 KiB: bits that begin behind the blobs stand for no blob of
    // the footer.
    gaps.push(blobs_end.next_multiple_of(u64::from(limits::LIVE_GRANULE_BYTES))..u64::MAX);
    let is_hidden =
        |gap: &std::ops::Range<u64>| gap.start < gap.end && verdict.has_within(&pack, gap.clone());
    match gaps.iter().find(|gap| is_hidden(gap)) {
        None => Ok(()),
        Some(gap) => {
            let key = pack::key(pack);
            let reason = format!("its footer leaves out what lies at byte {}", gap.start);
            Err(rekindle_datastore::Error::Damaged { key, reason }.into())
        }
    }
}

/// Groups entries, so that one ranged read can fetch each group.
fn neighbours(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let end = |entry: &Entry| u64::from(entry.offset) + u64::from(entry.stored);
        let gap_is_small = |pair: &[Entry]| {
            u64::from(pair[1].offset) <= end(&pair[0]) + limits::PREFETCH_GAP_BYTES
        };
        let is_short =
            |entry: &Entry| end(entry) - u64::from(first.offset) <= limits::PREFETCH_READ_BYTES_MAX;
        let more =
            rest.windows(2).take_while(|pair| gap_is_small(pair) && is_short(&pair[1])).count();
        let (group, after) = rest.split_at(1 + more);
        rest = after;
        Some(group)
    })
}
