//! What happens between two lives to what the dead one left: bits turn on flash and in mapped memory, memory is cut, lost,
//! another's, or an older one that is put back; bits turn in records of the store. And what of it excuses which loss.

use crate::boot::{FLASH, NODE, WARM};
use crate::dice::Dice;
use crate::heard;
use base::{NodeId, SegmentId};
use datastore::{Store, Version};
use env::sim::World;
use log::inspect;
use std::path::{Path, PathBuf};

/// What is done.
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
    /// Another arena is in its place: an empty one, or the one that was before.
    MemorySwapped,
    /// That of another node.
    MemoryForeign,
    /// A bit of a record in the store turns, for as long as one start.
    Record,
}

/// What was done to which part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    Nothing,
    /// Of the log, and its file.
    Segment(SegmentId, PathBuf),
    /// All of memory or some of it.
    Memory,
    /// Memory is none that the node may use.
    Foreign,
    Record(Flipped),
}

/// A record with a wrong bit, and what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flipped {
    key: String,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// Of a log in which segments are damaged: one that is lost stays as evidence, and the smallest logs have no room left then.
pub const SEGMENTS_MIN: u64 = 6;

/// Memory that was taken out.
#[derive(Default)]
pub struct Drawer(Option<Vec<u8>>);

impl Harm {
    /// Some, for half of the crashes.
    pub fn draw(dice: &mut Dice, hurts_flash: bool) -> Self {
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

    /// Does it. Nobody lives just now.
    pub fn inflict(
        self,
        world: &World,
        store: &Store,
        drawer: &mut Drawer,
        dice: &mut Dice,
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

/// A person takes out the memory that is another node's.
pub fn take_out(world: &World) -> Result<(), String> {
    let gone = put(world, &[])?;
    gone.then_some(()).ok_or_else(|| "the memory of a node that did not start is in use".to_owned())
}

/// A person moves a file of the log away.
pub fn move_away(world: &World, path: &Path) -> Result<(), String> {
    world.plant(path, &[]).map_err(|error| error.to_string())
}

/// `false` while somebody has it: what was sent to the store is still on its way.
fn put(world: &World, bytes: &[u8]) -> Result<bool, String> {
    world.put_memory(WARM, bytes).map_err(|error| error.to_string())
}

/// An arena as another node has it.
fn foreign(world: &World) -> Result<Vec<u8>, String> {
    let other = world.host("another");
    let shape = warm::Shape { slots: 2, slot_bytes: 512 << 10, frames: None };
    let node = NodeId([NODE.0[0] ^ 1; 16]);
    drop(
        warm::Arena::open_shaped(&other.env(), Path::new(WARM), node, shape)
            .map_err(|error| error.to_string())?,
    );
    other.copy_memory(WARM).ok_or_else(|| "another's memory".to_owned())
}

/// A place in bytes near which something is written: most of what is mapped or preallocated is zeros.
fn written(bytes: &[u8], dice: &mut Dice) -> Option<u64> {
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
fn flash(world: &World, dice: &mut Dice, cuts: bool) -> Done {
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

/// Turns a bit of a record.
async fn flip(store: &Store, dice: &mut Dice) -> Option<Flipped> {
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
    /// A person puts the record right, unless somebody has written it meanwhile.
    pub async fn restore(self, store: &Store) -> Result<(), String> {
        let present: Result<(_, Version), _> = store.get(&self.key).await;
        if present.is_ok_and(|(data, _)| data == self.after) {
            let put = store.put(&self.key, self.before.into()).await;
            put.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
