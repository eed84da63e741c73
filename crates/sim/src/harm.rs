//! Harm between two lives to what the dead one left. On flash, bits turn and segments are cut.
//! Mapped memory is damaged, cut, lost, or replaced by an older arena or one of another node. In
//! the store, bits of records turn. The result tells the oracle which loss is excused.

use crate::boot::{FLASH, WARM};
use crate::heard;
use rekindle_base::random::Random;
use rekindle_base::{NodeId, SegmentId};
use rekindle_datastore::{Store, Version};
use rekindle_env::sim::World;
use rekindle_log::inspect;
use std::path::{Path, PathBuf};

/// Kind of harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    Nothing,
    /// A bit of a segment's file turns.
    Flash,
    /// A file of a segment cannot be read to its end.
    FlashCut,
    /// Bits of memory turn.
    Memory,
    MemoryCut,
    /// Another arena takes the place of memory: an empty one, or the one that was taken out before.
    MemorySwapped,
    /// The arena of another node takes the place of memory.
    MemoryForeign,
    /// A bit of a record in the store turns, and is put right after one start.
    Record,
}

/// Harm that was done, and to which part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    Nothing,
    /// A segment of the log, and its file.
    Segment(SegmentId, PathBuf),
    /// All of memory or a part of it.
    Memory,
    /// Memory was replaced by an arena that the node may not use.
    Foreign,
    Record(Flipped),
}

/// A record with a wrong bit, with the bytes before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flipped {
    key: String,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Fewest segments of a log that may be damaged: a lost segment stays as evidence, and the smallest
/// logs have no room left then.
pub const SEGMENTS_MIN: u64 = 6;

/// Place of the arena that was taken out.
#[derive(Default)]
pub struct Drawer(Option<Vec<u8>>);

impl Harm {
    /// Draws a harm; a part of the crashes have none.
    pub fn draw(dice: &mut Random, hurts_flash: bool) -> Self {
        match dice.below(20) {
            0..=5 if hurts_flash => Harm::Flash,
            6..=7 if hurts_flash => Harm::FlashCut,
            8..=9 => Harm::Memory,
            10 => Harm::MemoryCut,
            11..=12 => Harm::MemorySwapped,
            13 => Harm::MemoryForeign,
            14..=15 => Harm::Record,
            _ => Harm::Nothing,
        }
    }

    /// Does the harm. The caller guarantees that no process of the node runs meanwhile.
    pub fn inflict(
        self,
        world: &World,
        store: &Store,
        drawer: &mut Drawer,
        dice: &mut Random,
    ) -> Result<Done, String> {
        let done = match self {
            Harm::Nothing => Done::Nothing,
            Harm::Flash | Harm::FlashCut => flash(world, dice, self == Harm::FlashCut),
            Harm::Memory => {
                let Some(bytes) = world.copy_memory(WARM) else { return Ok(Done::Nothing) };
                let Some(at) = written(&bytes, dice) else { return Ok(Done::Nothing) };
                let bits = 1 + dice.below(8) as u32;
                let turned = world.damage_memory(WARM, at..at + 64, bits);
                if turned == 0 { Done::Nothing } else { Done::Memory }
            }
            Harm::MemoryCut => {
                let length = world.copy_memory(WARM).map_or(0, |bytes| bytes.len() as u64);
                let left = dice.below(length.max(1)) as usize;
                let cut = world.truncate_memory(WARM, left).map_err(|error| error.to_string())?;
                if cut { Done::Memory } else { Done::Nothing }
            }
            Harm::MemorySwapped => {
                let Some(present) = world.copy_memory(WARM) else { return Ok(Done::Nothing) };
                let earlier = drawer.0.replace(present).unwrap_or_default();
                if !earlier.is_empty() {
                    heard::note("memory: an older one put back");
                }
                if put(world, &earlier)? { Done::Memory } else { Done::Nothing }
            }
            Harm::MemoryForeign => {
                if put(world, &foreign(world)?)? {
                    Done::Foreign
                } else {
                    Done::Nothing
                }
            }
            Harm::Record => match world.block_on(flip(store, dice)) {
                Some(flipped) => Done::Record(flipped),
                None => Done::Nothing,
            },
        };
        if done != Done::Nothing {
            heard::note(match self {
                Harm::Nothing => "nothing",
                Harm::Flash => "flash: a bit turned",
                Harm::FlashCut => "flash: a segment cut",
                Harm::Memory => "memory: bits turned",
                Harm::MemoryCut => "memory: cut",
                Harm::MemorySwapped => "memory: swapped",
                Harm::MemoryForeign => "memory: of another node",
                Harm::Record => "store: a record with a wrong bit",
            });
        }
        Ok(done)
    }
}

/// Takes out the memory of another node, as a user would.
pub fn take_out(world: &World) -> Result<(), String> {
    let gone = put(world, &[])?;
    gone.then_some(()).ok_or_else(|| "the memory of a node that did not start is in use".to_owned())
}

/// Moves a file of the log away, as a user would.
pub fn move_away(world: &World, path: &Path) -> Result<(), String> {
    world.plant(path, &[]).map_err(|error| error.to_string())
}

/// Replaces memory. `false` while memory is in use: a request to the store is still under way.
fn put(world: &World, bytes: &[u8]) -> Result<bool, String> {
    world.put_memory(WARM, bytes).map_err(|error| error.to_string())
}

/// Builds an arena of another node.
fn foreign(world: &World) -> Result<Vec<u8>, String> {
    let other = world.host("another");
    let shape = rekindle_warm::Shape { slots: 2, slot_bytes: 512 << 10, frames: None };
    let node = NodeId([0xee; 16]);
    drop(
        rekindle_warm::Arena::open_shaped(&other.env(), Path::new(WARM), node, shape)
            .map_err(|error| error.to_string())?,
    );
    other.copy_memory(WARM).ok_or_else(|| "another's memory".to_owned())
}

/// Finds a place near which something is written: most of what is mapped or preallocated is zeros.
fn written(bytes: &[u8], dice: &mut Random) -> Option<u64> {
    const PIECE: usize = 512;
    let pieces: Vec<usize> = bytes
        .chunks(PIECE)
        .enumerate()
        .filter(|(_, piece)| piece.iter().any(|&byte| byte != 0))
        .map(|(index, _)| index)
        .collect();
    let piece = *pieces.get(dice.below(pieces.len().max(1) as u64) as usize)?;
    Some((piece * PIECE) as u64 + dice.below(PIECE as u64))
}

/// Damages one segment of the log.
fn flash(world: &World, dice: &mut Random, cuts: bool) -> Done {
    let files: Vec<_> = (1..=64)
        .map(|number| Path::new(FLASH).join(format!("{number:08}.seg")))
        .filter_map(|path| world.peek(&path).map(|bytes| (path, bytes)))
        .filter_map(|(path, bytes)| {
            let id = inspect::segment(&bytes).ok()?.segment;
            Some((path, bytes, id))
        })
        .collect();
    if files.is_empty() {
        return Done::Nothing;
    }
    let (path, mut bytes, id) = files[dice.below(files.len() as u64) as usize].clone();
    if cuts {
        bytes.truncate(dice.below(bytes.len() as u64) as usize);
        let planted = world.plant(&path, &bytes).is_ok();
        return if planted { Done::Segment(id, path) } else { Done::Nothing };
    }
    match written(&bytes, dice) {
        Some(at) if world.flip_bit(&path, at) => Done::Segment(id, path),
        _ => Done::Nothing,
    }
}

/// Turns a bit of a record in the store.
async fn flip(store: &Store, dice: &mut Random) -> Option<Flipped> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let page = store.list("", after.as_deref()).await.ok()?;
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        keys.extend(page.into_iter().map(|object| object.key));
    }
    keys.retain(|key| !key.starts_with("packs/"));
    let key = keys.get(dice.below(keys.len().max(1) as u64) as usize)?.clone();
    let (data, _) = store.get(&key).await.ok()?;
    let (before, mut after) = (data.to_vec(), data.to_vec());
    let at = dice.below(after.len().max(1) as u64) as usize;
    *after.get_mut(at)? ^= 1 << dice.below(8);
    store.put(&key, after.clone().into()).await.ok()?;
    Some(Flipped { key, before, after })
}

impl Flipped {
    /// Puts the record right, as a user would, unless a node has written it meanwhile.
    pub async fn restore(self, store: &Store) -> Result<(), String> {
        let present: Result<(_, Version), _> = store.get(&self.key).await;
        if present.is_ok_and(|(data, _)| data == self.after) {
            let put = store.put(&self.key, self.before.into()).await;
            put.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
