//! Tests of a crash at any store: a twin of the mapping is given every prefix of the stores.
//!
//! The frames note each store (place and bytes). The twin is the file as it was when the noting
//! began, with the first stores applied. Of the last store only a part is applied, from its front
//! or from its end, because a copy is many stores in an unknown order. Then the arena is opened
//! again on the twin.

use super::tests::{bed, get, open, value};
use super::{Beginning, Frames, Key, Miss};
use parking_lot::Mutex;
use rekindle_env::sim::{Faults, World};
use std::collections::BTreeSet;
use std::path::Path;

type Store = (usize, Vec<u8>);

/// The stores so far, while a test wants to know them.
#[derive(Default)]
pub(super) struct Stores(Mutex<Option<Vec<Store>>>);

impl Stores {
    pub(super) fn note(&self, at: usize, bytes: &[u8]) {
        if let Some(stores) = &mut *self.0.lock() {
            stores.push((at, bytes.to_vec()));
        }
    }
}

const PATH: &str = "/memory/warm";

fn image(world: &World, length: usize) -> Vec<u8> {
    let region = world.env().memory().map(Path::new(PATH), length as u64).unwrap();
    // SAFETY: inside the mapping; the world runs on one thread, and no code writes meanwhile.
    unsafe { std::slice::from_raw_parts(region.base(), length) }.to_vec()
}

/// Puts an image into a fresh world.
pub(super) fn world_of(image: &[u8]) -> World {
    let world = World::new(9, Faults::none());
    let region = world.env().memory().map(Path::new(PATH), image.len() as u64).unwrap();
    // SAFETY: inside the mapping, which no other code has.
    unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), region.base(), image.len()) };
    world
}

fn keys() -> Vec<Key> {
    (0..40u8).map(|number| [number; 32]).collect()
}

/// Versions of every key that the steps may have put in; [`value`] makes the bytes.
fn steps(frames: &Frames) -> Vec<BTreeSet<(Key, u32)>> {
    let mut put = Vec::new();
    let mut current = BTreeSet::new();
    let mut note = |current: &BTreeSet<(Key, u32)>| put.push(current.clone());
    // Far more than one set holds, so that evictions come in between.
    for (number, key) in keys().iter().enumerate() {
        let version = u32::try_from(number).unwrap();
        frames.insert(key, &[&value(key, version, 300 + number * 7)]);
        current.insert((*key, version));
        note(&current);
    }
    // Replaced in place, and by a value of the other size; removed; dropped.
    for (key, length) in [(keys()[39], 900), (keys()[38], 9000), (keys()[38], 40)] {
        let version = 100 + u32::try_from(length).unwrap();
        frames.replace(&key, &[&value(&key, version, length)]);
        current.retain(|(other, _)| *other != key);
        current.insert((key, version));
        note(&current);
    }
    frames.remove(&keys()[37]);
    current.retain(|(key, _)| *key != keys()[37]);
    note(&current);
    frames.drop_all();
    note(&BTreeSet::new());
    put
}

#[test]
fn a_crash_at_any_store_leaves_a_frame_absent_or_whole() {
    let (world, arena) = bed(1);
    let frames = arena.frames().unwrap();
    let length = arena.file_length();
    let before = image(&world, length);
    *frames.inner.sets.stores.0.lock() = Some(Vec::new());
    let put = steps(&frames);
    let stores = frames.inner.sets.stores.0.lock().take().unwrap();
    let everything: BTreeSet<_> = put.iter().flatten().copied().collect();
    drop((frames, arena));
    assert!(stores.len() > 200, "{} stores", stores.len());

    let mut twin = before;
    let (mut opened, mut seen) = (0, BTreeSet::new());
    for (at, bytes) in &stores {
        let half = bytes.len() / 2;
        for part in [0..0, 0..1, 0..half, half..bytes.len(), 1..bytes.len()] {
            let mut torn = twin.clone();
            // A word is one store.
            let part = if bytes.len() <= 8 { 0..0 } else { part };
            torn[at + part.start..at + part.end].copy_from_slice(&bytes[part]);
            seen.extend(check(&torn, &everything));
            opened += 1;
            if bytes.len() <= 8 {
                break;
            }
        }
        twin[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert!(check(&twin, &everything).is_empty(), "dropped at the end");
    assert!(opened > 500, "{opened} crashes");
    assert_eq!(seen, everything, "each version was found after one crash or another");
}

/// Finds the values in an image. Each was put in, and none is noticed as damaged: torn frames are
/// not published.
fn check(image: &[u8], everything: &BTreeSet<(Key, u32)>) -> BTreeSet<(Key, u32)> {
    let world = world_of(image);
    let arena = open(&world, 1);
    assert!(arena.was_kept());
    let frames = arena.frames().unwrap();
    let mut found = BTreeSet::new();
    for key in keys() {
        match frames.get(&key, |bytes| Some(bytes.to_vec())) {
            Ok(bytes) => {
                let version = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                assert_eq!(bytes, value(&key, version, bytes.len()), "whole");
                assert!(everything.contains(&(key, version)), "{version} of {key:?} was put in");
                found.insert((key, version));
            }
            Err(miss) => assert_ne!(miss, Miss::Damaged),
        }
    }
    found
}

#[test]
fn a_crash_while_the_part_is_made_leaves_no_part() {
    let (world, arena) = bed(1);
    arena.frames().unwrap().insert(&[1; 32], &[b"x"]);
    let length = arena.file_length();
    drop(arena);
    let whole = image(&world, length);
    for written in 0..128 {
        let mut image = whole.clone();
        // The header as far as its write had come, over the wiped bytes.
        image[2048 + written..2176].fill(0);
        let arena = open(&world_of(&image), 1);
        assert!(arena.was_kept());
        let frames = arena.frames().unwrap();
        let began = if written == 0 { Beginning::New } else { Beginning::Damaged };
        assert_eq!((frames.stats().began, get(&frames, &[1; 32])), (began, Err(Miss::Cold)));
    }
}
