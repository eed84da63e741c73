//! A second kind of volumes, in test code: a map of records. It comes through the same door as
//! `block`, with the home that the tests of `staging` have.
//!
//! A client of a map has keys of its own, as a client of a disk has bytes. The oracle knows the
//! values of these keys as bytes ([`region_of`]), and a group of records as one change of them. So
//! it judges maps by the same promises, and half a group is a state that never was.

use crate::map::{KEYS, Map, Op, Values};
use bytes::Bytes;
use rekindle_base::random::Random;
use rekindle_content::Content;
use rekindle_staging::{Vault, VaultBody};
use rekindle_volume::{Kind, OpenedHome, Sizes};
use std::ops::Range;

/// The word of the kind.
pub const KIND: &str = "map";
/// Keys of a client.
const SHARE: u64 = 10;
/// Most clients of a map.
pub const CLIENTS_MAX: u64 = KEYS / SHARE;
/// Most bytes of a value: the values of all keys of a client fit into one group, also in the
/// smallest segments.
const VALUE_BYTES_MAX: usize = 8 << 10;
/// Bytes of a region for each key: the length of the value plus one, and the value.
const SLOT_BYTES: usize = 2 + VALUE_BYTES_MAX;
/// Bytes of a client's region.
pub const REGION_BYTES: usize = SHARE as usize * SLOT_BYTES;
/// Most values that one group moves.
const MOVES_MAX: u64 = 4;

/// The kind of maps.
struct Maps;

impl Kind for Maps {
    fn name(&self) -> &'static str {
        KIND
    }

    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        Ok(settings.clone())
    }

    fn check(&self, _vault: &Vault) -> Result<(), String> {
        Ok(())
    }

    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        Ok(OpenedHome::Record(Map::new(content, vault)))
    }

    fn describe_damage(&self, _vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        Some(format!("the values of keys {keys:?}"))
    }

    fn numbers<'a>(&'a self, _: &'a Content, _: &'a Vault) -> rekindle_env::BoxFuture<'a, u64> {
        Box::pin(std::future::ready(0))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Fixed
    }
}

/// Returns the kinds of the daemon, and this one.
pub fn kinds() -> Vec<Box<dyn Kind>> {
    let mut kinds = rekindle_node::core::kinds();
    kinds.push(Box::new(Maps));
    kinds
}

fn keys_of(client: usize) -> Range<u64> {
    let first = client as u64 * SHARE;
    first..first + SHARE
}

/// Returns a client's values as the oracle knows them.
pub fn region_of(values: &Values, client: usize) -> Vec<u8> {
    let mut region = vec![0; REGION_BYTES];
    for (slot, key) in region.chunks_mut(SLOT_BYTES).zip(keys_of(client)) {
        if let Some(value) = values.get(&key) {
            let length = u16::try_from(value.len() + 1).expect("a value is short");
            slot[..2].copy_from_slice(&length.to_le_bytes());
            slot[2..2 + value.len()].copy_from_slice(value);
        }
    }
    region
}

fn values_of(region: &[u8], client: usize) -> Values {
    let slots = region.chunks(SLOT_BYTES).zip(keys_of(client));
    let value = |slot: &[u8]| {
        let length = usize::from(u16::from_le_bytes([slot[0], slot[1]])).checked_sub(1)?;
        Some(Bytes::copy_from_slice(&slot[2..2 + length]))
    };
    slots.filter_map(|(slot, key)| Some((key, value(slot)?))).collect()
}

/// Draws the next change of a client's values: a value is put or deleted, or a group moves several
/// values to keys that have none. Returns the records, and the region afterwards.
pub fn draw(region: &[u8], client: usize, dice: &mut Random) -> (Vec<Op>, Vec<u8>) {
    let mut values = values_of(region, client);
    let mut ops = Vec::new();
    for _ in 0..dice.below(1 + MOVES_MAX) {
        let (taken, free): (Vec<u64>, Vec<u64>) =
            keys_of(client).partition(|key| values.contains_key(key));
        if taken.is_empty() || free.is_empty() {
            break;
        }
        let from = taken[dice.below(taken.len() as u64) as usize];
        let to = free[dice.below(free.len() as u64) as usize];
        let moved = [Op::Delete(from), Op::Put(to, values[&from].clone())];
        moved.iter().for_each(|op| op.apply(&mut values));
        ops.extend(moved);
    }
    if ops.is_empty() || dice.below(3) == 0 {
        let key = keys_of(client).start + dice.below(SHARE);
        let op = match values.contains_key(&key) && dice.below(3) == 0 {
            true => Op::Delete(key),
            false => {
                let longest = if dice.below(4) == 0 { VALUE_BYTES_MAX as u64 } else { 600 };
                let (fill, length) = (dice.next_u64(), 1 + dice.below(longest));
                let byte = |n: u64| (fill.wrapping_add(n * n) >> 3) as u8;
                Op::Put(key, (0..length).map(byte).collect::<Vec<_>>().into())
            }
        };
        op.apply(&mut values);
        ops.push(op);
    }
    (ops, region_of(&values, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_tells_the_values_of_its_client_and_a_change_of_it_is_its_records() {
        let mut dice = Random::new(1);
        let (mut region, mut values, mut most) = (vec![0; REGION_BYTES], Values::new(), 0);
        for _ in 0..500 {
            let (ops, after) = draw(&region, 2, &mut dice);
            ops.iter().for_each(|op| op.apply(&mut values));
            assert_eq!(values_of(&after, 2), values);
            assert_eq!(region_of(&values, 2), after);
            (region, most) = (after, most.max(ops.len()));
        }
        assert_eq!(region_of(&values, 1), vec![0; REGION_BYTES], "no key of another client");
        assert!(most as u64 > MOVES_MAX && values.len() > 3, "{most}: {:?}", values.keys());
    }
}
