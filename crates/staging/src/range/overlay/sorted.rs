//! The lower layer of the overlay: pieces in a vector that never changes.
//!
//! The reason: a volume that comes back with a gibibyte of unfinished 4 KiB writes shall serve
//! within milliseconds. So a piece takes 16 bytes, the sort counts, and the changes themselves are
//! touched only once.

use super::{Overlay, Piece};
use rekindle_base::Serial;

/// Fewer changes than this are sorted by comparing.
const COUNTED_MIN: usize = 2048;
/// Most bits of the positions that one round sorts by: the counters and the ends of the stretches
/// that are written side by side fit into the nearest cache.
const DIGIT_BITS: u32 = 11;
/// Stride of the table of first positions, which is small enough to stay in the cache.
const STRIDE: usize = 64;

/// A piece; during the sort, a change.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    position: u64,
    /// During the sort, `u32::MAX` stands for every longer span.
    span: u32,
    index: u32,
}

impl Entry {
    fn end(&self) -> u64 {
        self.position + u64::from(self.span)
    }
}

/// The sorted layer.
#[derive(Default)]
pub(crate) struct Sorted {
    /// Serial of index 0.
    first: Serial,
    /// Count of the changes that the layer was made of.
    count: usize,
    entries: Vec<Entry>,
    /// Position of every `STRIDE`-th entry.
    signposts: Vec<u64>,
}

impl Sorted {
    /// Builds the layer of the newest changes of all bytes. Returns also the pieces that do not fit
    /// into an entry.
    pub(super) fn build(
        first: Serial,
        count: usize,
        range: impl Fn(usize) -> (u64, u64),
    ) -> (Sorted, Vec<Piece>) {
        let entry = |index: usize| {
            let (position, span) = range(index);
            debug_assert!(span > 0, "a change covers something");
            let span = u32::try_from(span).unwrap_or(u32::MAX);
            Entry {
                position,
                span,
                index: u32::try_from(index).expect("a queue has fewer changes"),
            }
        };
        let (sorted, mut entries) = sort((0..count).map(entry).collect());
        let range_of = |entry: &Entry| match entry.span {
            u32::MAX => range(entry.index as usize),
            span => (entry.position, u64::from(span)),
        };
        let serial_of = |entry: &Entry| Serial(first.0 + u64::from(entry.index));
        let mut apart = Vec::new();
        entries.clear();
        let mut add = |position: u64, span: u64, serial: Serial| match u32::try_from(span) {
            Ok(span) => entries.push(Entry { position, span, index: (serial.0 - first.0) as u32 }),
            Err(_) => apart.push(Piece { position, end: position + span, serial }),
        };
        let mut rest = &sorted[..];
        while let Some(head) = rest.first() {
            let (position, span) = range_of(head);
            let mut end = position + span;
            let mut alike = true;
            let mut length = 1;
            while let Some(next) = rest.get(length).filter(|next| next.position < end) {
                let (next_position, next_span) = range_of(next);
                alike &= (next_position, next_span) == (position, span);
                end = end.max(next_position + next_span);
                length += 1;
            }
            let (group, others) = rest.split_at(length);
            rest = others;
            if alike {
                // Equal positions have kept their order: the last is the newest.
                add(position, span, serial_of(&group[length - 1]));
            } else {
                let mut group = group.to_vec();
                group.sort_unstable_by_key(|entry| entry.index);
                let mut mixed = Overlay::default();
                for entry in &group {
                    let (position, span) = range_of(entry);
                    mixed.insert(position, span, serial_of(entry));
                }
                for (position, cover) in mixed.pieces {
                    add(position, cover.span, cover.serial);
                }
            }
        }
        let signposts = entries.iter().step_by(STRIDE).map(|entry| entry.position).collect();
        (Sorted { first, count, entries, signposts }, apart)
    }

    pub(super) fn length(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Serial of the newest change that the layer was made of.
    pub(super) fn last(&self) -> Serial {
        Serial((self.first.0 + self.count as u64).saturating_sub(1))
    }

    /// The pieces from the last one on that begins at `start` or before.
    pub(super) fn from(&self, start: u64) -> Stretch<'_> {
        let sign = self.signposts.partition_point(|&position| position <= start);
        let begin = sign.saturating_sub(1) * STRIDE;
        let stretch = &self.entries[begin..self.entries.len().min(sign * STRIDE)];
        let behind = begin + stretch.partition_point(|entry| entry.position <= start);
        Stretch { first: self.first, entries: &self.entries[behind.saturating_sub(1)..] }
    }
}

/// Pieces of the layer, ascending.
pub(super) struct Stretch<'a> {
    first: Serial,
    entries: &'a [Entry],
}

impl Stretch<'_> {
    pub(super) fn first(&self) -> Option<Piece> {
        self.entries.first().map(|entry| Piece {
            position: entry.position,
            end: entry.end(),
            serial: Serial(self.first.0 + u64::from(entry.index)),
        })
    }

    /// Skips the pieces that end at `position` or before.
    pub(super) fn pass(&mut self, position: u64) {
        while let Some((first, rest)) = self.entries.split_first()
            && first.end() <= position
        {
            self.entries = rest;
        }
    }
}

/// Sorts by position; equal positions keep their order. Returns also a spare vector for reuse.
fn sort(mut entries: Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
    if entries.len() < COUNTED_MIN || entries.is_sorted_by_key(|entry| entry.position) {
        entries.sort_by_key(|entry| entry.position);
        let spare = Vec::with_capacity(entries.len());
        return (entries, spare);
    }
    let mut spare = vec![Entry::default(); entries.len()];
    // Only the bits in which positions differ are sorted by.
    let one = entries[0].position;
    let differing = entries.iter().fold(0, |bits, entry| bits | (entry.position ^ one));
    let (low, high) = (differing.trailing_zeros(), 64 - differing.leading_zeros());
    let rounds = (high - low).div_ceil(DIGIT_BITS);
    let bits = (high - low).div_ceil(rounds);
    for round in 0..rounds {
        let shift = low + round * bits;
        let digit = |entry: &Entry| (entry.position >> shift) as usize & ((1 << bits) - 1);
        let mut places = [0_u32; 1 << DIGIT_BITS];
        for entry in &entries {
            places[digit(entry)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for entry in &entries {
            let place = &mut places[digit(entry)];
            spare[*place as usize] = *entry;
            *place += 1;
        }
        std::mem::swap(&mut entries, &mut spare);
    }
    (entries, spare)
}
