//! Changes of counts, brought into the order of the packs with bounded RAM: what is too much is
//! sorted in parts, which are merged from files.

use super::shelf::{Result, Sheet, Shelf, Trouble};
use crate::Spot;
use crate::format::counts::{NO_SPOT, push_number, push_spot, take_number, take_spot};
use rekindle_base::PackId;
use rekindle_base::checksum::crc32c;

/// The change of the count of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountChange {
    pub(super) spot: Spot,
    pub(super) stored: u32,
    pub(super) by: i32,
}

/// Parts that are merged at once.
const FAN_IN: usize = 32;
/// Bytes that a merge reads of a part at once.
const READ_BYTES: usize = 64 << 10;
/// Before the changes of a pack in a part: the pack, their number, their length, their checksum.
const GROUP_BYTES: usize = 28;

/// The sorter of changes.
pub(super) struct Sorter {
    shelf: Shelf,
    changes: Vec<(PackId, CountChange)>,
    changes_max: usize,
    parts: Vec<Sheet>,
    /// Names of the files, which the end removes.
    names: Vec<String>,
}

impl Sorter {
    /// Makes a sorter that holds so many changes in RAM.
    pub(super) fn new(shelf: Shelf, changes_max: usize) -> Self {
        Self { shelf, changes: Vec::new(), changes_max, parts: Vec::new(), names: Vec::new() }
    }

    pub(super) async fn add(&mut self, pack: PackId, change: CountChange) -> Result<()> {
        self.changes.push((pack, change));
        if self.changes.len() < self.changes_max {
            return Ok(());
        }
        self.sort();
        // What cancels out or joins makes room by itself.
        if self.changes.len() > self.changes_max / 2 {
            let mut heads = vec![Head::Ram(std::mem::take(&mut self.changes).into_iter())];
            self.spill(&mut heads).await?;
        }
        if self.parts.len() == FAN_IN {
            let parts = std::mem::take(&mut self.parts);
            let mut heads: Vec<Head> = parts.into_iter().map(Head::file).collect();
            self.spill(&mut heads).await?;
        }
        Ok(())
    }

    fn sort(&mut self) {
        self.changes.sort_unstable_by_key(|(pack, change)| (*pack, change.spot));
        self.changes.dedup_by(|later, kept| {
            let is_same = (later.0, later.1.spot) == (kept.0, kept.1.spot);
            if is_same {
                kept.1.join(&later.1);
            }
            is_same
        });
        self.changes.retain(|(_, change)| change.by != 0);
    }

    /// Merges what the heads have into a new part.
    async fn spill(&mut self, heads: &mut Vec<Head>) -> Result<()> {
        let name = format!("part-{}", self.names.len());
        let mut pen = self.shelf.write(&name);
        self.names.push(name);
        let mut merged = Merged { heads: std::mem::take(heads), groups: Vec::new() };
        merged.begin().await?;
        while let Some((pack, changes)) = merged.next().await? {
            let mut bytes = Vec::new();
            let mut before = NO_SPOT;
            for change in &changes {
                push_spot(before, change.spot, &mut bytes);
                push_number(u64::from(change.stored), &mut bytes);
                let by = i64::from(change.by);
                push_number(((by << 1) ^ (by >> 63)).cast_unsigned(), &mut bytes);
                before = change.spot;
            }
            let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
            let crc = crc32c(&bytes).to_le_bytes();
            let head = [&pack.0[..], &narrow(changes.len()), &narrow(bytes.len()), &crc].concat();
            pen.put(&head).await?;
            pen.put(&bytes).await?;
        }
        if pen.length() > 0 {
            self.parts.push(pen.end(false).await?);
        }
        Ok(())
    }

    /// Ends the sorting: the changes come by pack.
    pub(super) async fn end(&mut self) -> Result<Merged> {
        self.sort();
        let parts = std::mem::take(&mut self.parts);
        let mut heads: Vec<Head> = parts.into_iter().map(Head::file).collect();
        heads.push(Head::Ram(std::mem::take(&mut self.changes).into_iter()));
        let mut merged = Merged { heads, groups: Vec::new() };
        merged.begin().await?;
        Ok(merged)
    }

    /// Removes the files.
    pub(super) async fn clean(&mut self) {
        for name in std::mem::take(&mut self.names) {
            self.shelf.remove(&name).await;
        }
    }
}

impl CountChange {
    fn join(&mut self, other: &CountChange) {
        // A count has 32 bits: more than so many changes of one place cannot be right.
        self.by = self.by.saturating_add(other.by);
        self.stored = self.stored.max(other.stored);
    }
}

type Group = (PackId, Vec<CountChange>);

/// A source of groups, in the order of their packs.
enum Head {
    Ram(std::vec::IntoIter<(PackId, CountChange)>),
    File { sheet: Sheet, at: u64, buffer: Vec<u8>, taken: usize },
}

impl Head {
    fn file(sheet: Sheet) -> Self {
        Head::File { sheet, at: 0, buffer: Vec::new(), taken: 0 }
    }

    async fn next(&mut self) -> Result<Option<Group>> {
        match self {
            Head::Ram(changes) => {
                let Some((pack, first)) = changes.next() else { return Ok(None) };
                let same = changes.as_slice().iter().take_while(|(other, _)| *other == pack);
                let count = same.count();
                let rest = changes.by_ref().take(count).map(|(_, change)| change);
                Ok(Some((pack, std::iter::once(first).chain(rest).collect())))
            }
            Head::File { .. } => {
                let Some(head) = self.take(GROUP_BYTES).await? else { return Ok(None) };
                let wrong = || Trouble::Doubt("a part of the sorted changes is wrong".into());
                let number = |at: usize| {
                    let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
                    bytes.map(u32::from_le_bytes).ok_or_else(wrong)
                };
                let pack = head.first_chunk().map(|id| PackId(*id)).ok_or_else(wrong)?;
                let (count, length, crc) = (number(16)?, number(20)?, number(24)?);
                let bytes = self.take(length as usize).await?.ok_or_else(wrong)?;
                if crc32c(&bytes) != crc {
                    return Err(wrong());
                }
                Ok(Some((pack, changes_of(&bytes, count).ok_or_else(wrong)?)))
            }
        }
    }

    /// Takes bytes from the file; `None` at its end.
    async fn take(&mut self, length: usize) -> Result<Option<Vec<u8>>> {
        let Head::File { sheet, at, buffer, taken } = self else { return Ok(None) };
        if buffer.len() - *taken < length {
            buffer.drain(..*taken);
            *taken = 0;
            let left = usize::try_from(sheet.length() - *at).unwrap_or(usize::MAX);
            let more = left.min(length.max(READ_BYTES));
            buffer.append(&mut sheet.read(*at, more).await?);
            *at += more as u64;
        }
        let bytes = buffer.get(*taken..*taken + length).map(<[u8]>::to_vec);
        *taken += length;
        Ok(bytes)
    }
}

fn changes_of(mut bytes: &[u8], count: u32) -> Option<Vec<CountChange>> {
    let mut changes = Vec::with_capacity((count as usize).min(bytes.len()));
    let mut spot = NO_SPOT;
    for _ in 0..count {
        spot = take_spot(spot, &mut bytes)?;
        let stored = u32::try_from(take_number(&mut bytes)?).ok()?;
        let folded = take_number(&mut bytes)?;
        let by = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
        changes.push(CountChange { spot, stored, by: i32::try_from(by).ok()? });
    }
    bytes.is_empty().then_some(changes)
}

/// Sorted changes, pack by pack.
pub(super) struct Merged {
    heads: Vec<Head>,
    /// The next group of each head.
    groups: Vec<Option<Group>>,
}

impl Merged {
    async fn begin(&mut self) -> Result<()> {
        for head in &mut self.heads {
            self.groups.push(head.next().await?);
        }
        Ok(())
    }

    /// Returns the next pack with its changes, ascending; none of them is zero.
    pub(super) async fn next(&mut self) -> Result<Option<Group>> {
        loop {
            let packs = self.groups.iter().flatten().map(|(pack, _)| *pack);
            let Some(pack) = packs.min() else { return Ok(None) };
            let mut changes: Vec<CountChange> = Vec::new();
            for (head, group) in self.heads.iter_mut().zip(&mut self.groups) {
                if let Some((_, mut more)) = group.take_if(|(other, _)| *other == pack) {
                    changes.append(&mut more);
                    *group = head.next().await?;
                }
            }
            changes.sort_by_key(|change| change.spot);
            changes.dedup_by(|later, kept| {
                let is_same = later.spot == kept.spot;
                if is_same {
                    kept.join(later);
                }
                is_same
            });
            changes.retain(|change| change.by != 0);
            if !changes.is_empty() {
                return Ok(Some((pack, changes)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointer::Part;
    use proptest::prelude::*;
    use rekindle_env::sim::{Faults, World};
    use std::collections::BTreeMap;
    use std::path::Path;

    proptest! {
        #[test]
        fn changes_come_in_order_and_joined_whatever_fits_into_ram(
            added in proptest::collection::vec((0u8..9, (0u32..9, 0u32..5), -3i32..4), 0..600),
            changes_max in 2usize..40,
            in_ram in any::<bool>(),
        ) {
            let world = World::new(1, Faults::none());
            let env = world.env();
            let found = world.block_on(async {
                let shelf = match in_ram {
                    true => Shelf::memory(&env, [0; 16], 1 << 20),
                    false => Shelf::folder(&env, [0; 16], Path::new("/tally")),
                };
                shelf.prepare().await.unwrap();
                let mut sorter = Sorter::new(shelf.clone(), changes_max);
                for (pack, spot, by) in &added {
                    let spot = Spot { offset: spot.0, part: Part(spot.1) };
                    let change = CountChange { spot, stored: 7, by: *by };
                    sorter.add(PackId([*pack; 16]), change).await.unwrap();
                }
                let mut merged = sorter.end().await.unwrap();
                let mut found = Vec::new();
                while let Some((pack, changes)) = merged.next().await.unwrap() {
                    found.extend(changes.iter().map(|one| ((pack.0[0], one.spot.offset, one.spot.part.0), one.by)));
                }
                sorter.clean().await;
                assert_eq!(shelf.names().await.unwrap(), Vec::<String>::new());
                found
            });
            let mut expected: BTreeMap<(u8, u32, u32), i32> = BTreeMap::new();
            for (pack, spot, by) in added {
                *expected.entry((pack, spot.0, spot.1)).or_default() += by;
            }
            expected.retain(|_, by| *by != 0);
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }
}
