//! The oracle for a volume whose store may be damaged: every byte of a client's part reads as it
//! was acknowledged, or as an error; never as anything else.

use rekindle_base::random::Random;

/// Bytes of a block of the volume.
pub const BLOCK: usize = 16 << 10;

/// A change of one client, small enough to be one change of the log.
#[derive(Debug, Clone)]
pub struct Change {
    /// First byte within the part.
    pub start: usize,
    pub bytes: Vec<u8>,
}

/// Part of a volume that belongs to one client: whole blocks.
#[derive(Debug, Default)]
pub struct ClientPart {
    /// The acknowledged bytes.
    bytes: Vec<u8>,
    /// A change that was submitted and whose fate is unknown, with its place in the order of
    /// submission.
    open: Option<(Change, Option<u64>)>,
    /// Whether each block may have the last open change or not: it could not be read since.
    vague: Vec<bool>,
    pub acknowledged: u64,
}

/// Fate of the open change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// No change was open, or its fate cannot be told.
    Unknown,
    There(Option<u64>),
    Absent(Option<u64>),
}

impl ClientPart {
    /// A part of zeros.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self { bytes: vec![0; blocks * BLOCK], vague: vec![false; blocks], ..Self::default() }
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.vague.len()
    }

    /// Whether a change is open, so that no other may be submitted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Notes that a change is submitted.
    pub fn submit(&mut self, change: Change) {
        assert!(self.open.is_none(), "a client has one change at a time");
        self.open = Some((change, None));
    }

    /// Notes the open change's place in the order.
    pub fn order(&mut self, order: u64) {
        if let Some((_, place)) = &mut self.open {
            *place = Some(order);
        }
    }

    /// Notes that the open change is acknowledged.
    pub fn acknowledge(&mut self) {
        let (change, _) = self.open.take().expect("something was submitted");
        let end = change.start + change.bytes.len();
        self.bytes[change.start..end].copy_from_slice(&change.bytes);
        for block in change.start.div_ceil(BLOCK)..end / BLOCK {
            self.vague[block] = false;
        }
        self.acknowledged += 1;
    }

    /// Notes that the open change was refused before it was submitted.
    pub fn refused(&mut self) {
        self.open = None;
    }

    /// Whether a block may read as `found` while nothing is open.
    #[must_use]
    pub fn allows(&self, block: usize, found: &[u8]) -> bool {
        self.vague[block] || &self.bytes[block * BLOCK..(block + 1) * BLOCK] == found
    }

    /// Judges what the blocks show (`None`: an error), and takes it as the truth.
    pub fn judge(&mut self, found: &[Option<Vec<u8>>]) -> Result<Fate, String> {
        let open = self.open.take();
        let mut after = self.bytes.clone();
        if let Some((change, _)) = &open {
            after[change.start..change.start + change.bytes.len()].copy_from_slice(&change.bytes);
        }
        let mut there = None;
        for (block, found) in found.iter().enumerate() {
            let range = block * BLOCK..(block + 1) * BLOCK;
            let (old, new) = (&self.bytes[range.clone()], &after[range]);
            let Some(found) = found.as_deref().filter(|_| !self.vague[block]) else { continue };
            let is_new = match (found == old, found == new) {
                (true, true) => continue,
                (old, new) if old != new => new,
                _ => {
                    let at = found.iter().zip(old).position(|(one, other)| one != other);
                    let at = at.unwrap_or_default();
                    return Err(format!(
                        "byte {at} of block {block} is {:#x}, acknowledged was {:#x}",
                        found[at], old[at]
                    ));
                }
            };
            if there.replace(is_new).is_some_and(|before| before != is_new) {
                return Err(format!("half of a change is in block {block}"));
            }
        }
        let Some((change, order)) = open else { return Ok(Fate::Unknown) };
        match there {
            Some(true) => {
                self.bytes = after;
                Ok(Fate::There(order))
            }
            Some(false) => Ok(Fate::Absent(order)),
            None => {
                let end = change.start + change.bytes.len();
                let touched = change.start / BLOCK..end.div_ceil(BLOCK);
                for (block, found) in
                    found.iter().enumerate().filter(|(at, _)| touched.contains(at))
                {
                    let range = block * BLOCK..(block + 1) * BLOCK;
                    // A block that can be read is the same with the change and without it.
                    self.vague[block] |=
                        found.is_none() && self.bytes[range.clone()] != after[range];
                }
                Ok(Fate::Unknown)
            }
        }
    }
}

/// Checks that among the changes that were open at a crash, those that are there are a prefix in
/// the order of submission.
pub fn check_prefix(fates: &[Fate]) -> Result<(), String> {
    let order = |fate: &Fate, there: bool| match fate {
        Fate::There(order) if there => *order,
        Fate::Absent(order) if !there => *order,
        _ => None,
    };
    let last_there = fates.iter().filter_map(|fate| order(fate, true)).max();
    let first_absent = fates.iter().filter_map(|fate| order(fate, false)).min();
    match (last_there, first_absent) {
        (Some(there), Some(absent)) if absent < there => {
            Err(format!("not a prefix: change {there} is there, change {absent} before it is not"))
        }
        _ => Ok(()),
    }
}

/// Number of different contents of whole blocks. They are few, so that contents repeat, on other
/// nodes, too, and while a sweep is about to delete the pack that has them.
const PATTERNS: u64 = 6;

/// Draws a change to so many blocks, as clients make them.
pub fn some_change(dice: &mut Random, blocks: usize) -> Change {
    if dice.below(2) == 0 {
        let count = 1 + dice.below(2) as usize;
        let start = dice.below((blocks + 1 - count) as u64) as usize * BLOCK;
        let pattern = 1 + dice.below(PATTERNS);
        let block = (0..BLOCK as u64).map(|n| ((n * n * pattern) >> 4) as u8 | 1);
        return Change { start, bytes: block.cycle().take(count * BLOCK).collect() };
    }
    let start = dice.below((blocks * BLOCK / 512) as u64) as usize * 512;
    let length = (512 * (1 + dice.below(48) as usize)).min(blocks * BLOCK - start);
    let fill = dice.next_u64();
    let byte = |n: usize| (fill.wrapping_mul(n as u64 + 1).wrapping_add(fill >> 7) >> 11) as u8 | 1;
    Change { start, bytes: (0..length).map(byte).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> ClientPart {
        let mut part = ClientPart::new(2);
        part.submit(Change { start: 0, bytes: vec![1; 2 * BLOCK] });
        part.acknowledge();
        part
    }

    #[test]
    fn an_error_is_allowed_and_another_byte_is_not() {
        let whole = vec![1; BLOCK];
        assert_eq!(part().judge(&[None, Some(whole.clone())]), Ok(Fate::Unknown));
        assert!(part().judge(&[None, Some(vec![0; BLOCK])]).is_err(), "zeros for what is lost");
        let mut hurt = part();
        hurt.submit(Change { start: BLOCK - 10, bytes: vec![2; 20] });
        hurt.order(7);
        let mut new = whole.clone();
        new[..10].fill(2);
        assert_eq!(hurt.judge(&[None, Some(new.clone())]), Ok(Fate::There(Some(7))));
        assert!(hurt.allows(1, &new) && !hurt.allows(1, &whole));
        hurt.submit(Change { start: 0, bytes: vec![3; 10] });
        assert_eq!(hurt.judge(&[None, Some(new)]), Ok(Fate::Unknown));
        assert!(hurt.allows(0, &[9; BLOCK]), "nobody knows");
        hurt.submit(Change { start: 0, bytes: vec![4; BLOCK] });
        hurt.acknowledge();
        assert!(!hurt.allows(0, &[9; BLOCK]) && hurt.allows(0, &[4; BLOCK]));
    }

    #[test]
    fn half_a_change_is_found_out() {
        let mut half = part();
        half.submit(Change { start: BLOCK - 10, bytes: vec![2; 20] });
        let mut first = vec![1; BLOCK];
        first[BLOCK - 10..].fill(2);
        assert!(half.judge(&[Some(first), Some(vec![1; BLOCK])]).is_err());
    }

    #[test]
    fn a_hole_before_a_later_change_is_found_out() {
        let (there, absent) = (Fate::There(Some(5)), Fate::Absent(Some(4)));
        assert!(check_prefix(&[there, absent]).is_err());
        assert!(check_prefix(&[there, Fate::Absent(Some(6)), Fate::Absent(None)]).is_ok());
    }
}
