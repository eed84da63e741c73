//! Metadata chunks in warm memory: a restart finds them again without asking the store.
//!
//! A frame's key is the chunk's name, and the name is the hash of the chunk's bytes, so a frame
//! need not say that it is the latest. A chunk that is taken out must have the name that was asked
//! for. A lookup where the chunk lies goes by the frame's checksum, as all else in warm memory
//! does: the bytes had their name when they were put there, and to hash a node costs more than to
//! search it. Value of a frame: number of children (4 bytes, little-endian), then the body. See
//! `docs/format/warm.md`.

use crate::name::Namer;
use crate::pack::reader::Body;
use crate::{Class, Pointer, pack};
use bytes::Bytes;
use rekindle_warm::{Frames, Miss};

const _: () = assert!(
    4 + crate::format::node::bytes_max() <= rekindle_warm::limits::FRAME_BYTES[1],
    "every tree node fits a frame"
);

/// The frames, if the node has warm memory. Without them every call is a look at an `Option`.
pub(crate) struct WarmNodes {
    frames: Option<Frames>,
}

impl WarmNodes {
    pub(crate) fn new(frames: Option<Frames>) -> Self {
        Self { frames }
    }

    /// Returns a metadata chunk from warm memory, verified against its name. A plain call.
    /// `Err(None)`: warm memory keeps no such chunk.
    pub(crate) fn get(&self, namer: &Namer, pointer: &Pointer) -> Result<Body, Option<Miss>> {
        let body = |value: &[u8]| {
            let (children, bytes) = split(value)?;
            (namer.name(Class::Metadata, children, bytes) == pointer.name)
                .then(|| Body { bytes: Bytes::copy_from_slice(bytes), children })
        };
        self.frames_for(pointer).ok_or(None)?.get(&pointer.name, body).map_err(Some)
    }

    /// Hands the body of a metadata chunk to `look` where it lies, with its number of children;
    /// `None` when it is not there. A plain call that copies nothing. `look` must not come back
    /// here, and must do no harm on bytes that are no such chunk.
    pub(crate) fn look<R>(
        &self,
        pointer: &Pointer,
        look: impl FnOnce(&[u8], u32) -> R,
    ) -> Option<R> {
        let look = |value: &[u8]| split(value).map(|(children, bytes)| look(bytes, children));
        self.frames_for(pointer)?.get(&pointer.name, look).ok()
    }

    fn frames_for(&self, pointer: &Pointer) -> Option<&Frames> {
        self.frames.as_ref().filter(|_| pack::class(pointer.pack) == Class::Metadata)
    }

    /// Counts a look in vain, for the reader that has to ask the store.
    pub(crate) fn missed(&self, miss: Option<Miss>) {
        if let (Some(frames), Some(miss)) = (&self.frames, miss) {
            frames.missed(miss);
        }
    }

    /// Keeps a verified chunk, if it is metadata.
    pub(crate) fn keep(&self, pointer_name: &[u8; 32], class: Class, body: &Body) {
        if let (Some(frames), Class::Metadata) = (&self.frames, class) {
            frames.insert(pointer_name, &[&body.children.to_le_bytes(), &body.bytes]);
        }
    }
}

/// Splits a frame's value into the number of children and the body.
fn split(value: &[u8]) -> Option<(u32, &[u8])> {
    let (children, bytes) = value.split_first_chunk()?;
    Some((u32::from_le_bytes(*children), bytes))
}

#[cfg(test)]
mod tests {
    use crate::testing::{Broken, config, random, run};
    use crate::tree::{self, Lookup, Root};
    use crate::{Class, Content, Pointer};
    use rekindle_base::{NodeId, StoreId};
    use rekindle_datastore::Store;
    use rekindle_env::sim::{Faults, World};
    use rekindle_warm::{Arena, Beginning, Frames, FramesShape, Miss, Shape};
    use std::path::Path;
    use std::sync::Arc;

    const PATH: &str = "/memory/warm";

    /// The frames after a (re)start of the process.
    fn frames(world: &World, mebibytes: u64) -> Frames {
        world.crash_process();
        let frames = FramesShape { bytes: mebibytes << 20, store: StoreId([2; 16]) };
        let shape = Shape { slots: 1, slot_bytes: 16 << 10, frames: Some(frames) };
        let arena =
            Arena::open_shaped(&world.env(), Path::new(PATH), NodeId([1; 16]), shape).unwrap();
        arena.frames().unwrap()
    }

    /// A tree of `count` keys, each with a chunk of its own.
    async fn planted(content: &Content, count: u64) -> Root {
        let mut batch = content.batch();
        let mut entries = Vec::new();
        for key in 0..count {
            let chunk = batch.write(Class::Data, random(key, 64), &[]).await.unwrap();
            entries.push((key, Some(chunk)));
        }
        let root = tree::update(content, &mut batch, &None, &entries).await.unwrap();
        batch.flush().await.unwrap();
        batch.committed();
        root
    }

    fn present(content: &Content, root: &Root, key: u64) -> Option<Pointer> {
        match tree::floor_now(content, root, key) {
            Lookup::Present(found, pointer) => (found == key).then_some(pointer),
            Lookup::Absent | Lookup::Unknown => None,
        }
    }

    #[test]
    fn after_a_restart_every_lookup_is_a_plain_call_and_the_store_is_not_asked() {
        run(async |env| {
            let world = World::new(1, Faults::none());
            let broken = Arc::new(Broken::new());
            let store: Store = broken.clone();
            let open = |frames| Content::open_warm(env.clone(), store.clone(), config(), frames);
            let content = open(Some(frames(&world, 16)));
            let root = planted(&content, 20_000).await;
            drop(content);

            let kept = frames(&world, 16);
            assert_eq!(kept.stats().began, Beginning::Kept);
            let content = open(Some(kept.clone()));
            let before = broken.reads();
            assert!((0..20_000).all(|key| present(&content, &root, key).is_some()));
            assert!(present(&content, &root, 20_000).is_none());
            assert_eq!(tree::range(&content, &root, 0..30_000).await.unwrap().len(), 20_000);
            assert_eq!(broken.reads(), before, "not once");
            let stats = kept.stats();
            assert_eq!(stats.too_long, 0);
            assert_eq!(stats.misses(), 0);
            // Each node is verified once; a lookup by a plain call leaves it where it lies.
            assert!((79..200).contains(&stats.verifications), "{} nodes", stats.verifications);
            assert!(stats.hits > 2 * 20_000, "{} looks", stats.hits);
            drop(content);

            // Without frames the same start has to ask the store.
            let content = open(None);
            assert!(present(&content, &root, 1).is_none());
            assert!(tree::get(&content, &root, 1).await.unwrap().is_some());
            assert!(broken.reads() > before);
        });
    }

    #[test]
    fn nodes_come_with_their_siblings() {
        run(async |env| {
            let broken = Arc::new(Broken::new());
            let store: Store = broken.clone();
            let open = || Content::open(env.clone(), store.clone(), config());
            let root = planted(&open(), 5_000).await;
            let (content, before) = (open(), broken.reads());
            for key in (0..5_000).step_by(100) {
                assert!(tree::get(&content, &root, key).await.unwrap().is_some());
            }
            let reads = broken.reads() - before;
            assert!(reads <= 5, "{reads} requests for the root and 20 leaves of 18 kB");
        });
    }

    #[test]
    fn a_tree_can_be_read_ahead() {
        run(async |env| {
            let broken = Arc::new(Broken::new());
            let store: Store = broken.clone();
            let open = || Content::open(env.clone(), store.clone(), config());
            let root = planted(&open(), 5_000).await;
            let content = open();
            let all = 0..u64::MAX;
            tree::nodes_over(&content.inner, root.unwrap(), &all).await.unwrap();
            let before = broken.reads();
            assert!((0..5_000).all(|key| present(&content, &root, key).is_some()));
            assert_eq!(broken.reads(), before);
        });
    }

    #[test]
    fn what_is_damaged_or_gone_comes_from_the_store_and_stays_again() {
        run(async |env| {
            let world = World::new(2, Faults::none());
            let store: Store = Arc::new(Broken::new());
            let open = |frames| Content::open_warm(env.clone(), store.clone(), config(), frames);
            let content = open(Some(frames(&world, 16)));
            let root = planted(&content, 5_000).await;
            drop(content);
            let all = async |frames: &Frames| {
                let content = open(Some(frames.clone()));
                // A range looks for the root in the frames, and fetches all below it together.
                for key in (0..5_000).step_by(50) {
                    assert!(tree::get(&content, &root, key).await.unwrap().is_some());
                }
                let found = tree::range(&content, &root, 0..5_000).await.unwrap();
                assert_eq!(found.len(), 5_000);
            };
            // Bytes all over the frames: header page, table and slot come before.
            let part = 528_384 + (16 << 10);
            for at in (0..16u64 << 20).step_by(1 << 10) {
                world.flip_memory_bit(PATH, part + at);
            }
            let damaged = frames(&world, 16);
            all(&damaged).await;
            let stats = damaged.stats();
            assert!(stats.missed(Miss::Damaged) > 0, "{stats:?}");
            assert_eq!(stats.missed(Miss::Cold) + stats.missed(Miss::OtherLayout), 0);
            drop(damaged);
            let again = frames(&world, 16);
            all(&again).await;
            assert_eq!((again.stats().began, again.stats().misses()), (Beginning::Kept, 0));
            again.drop_all();
            all(&again).await;
            assert!(again.stats().missed(Miss::Absent) > 0);
            drop(again);
            let resized = frames(&world, 8);
            all(&resized).await;
            assert!(resized.stats().missed(Miss::Cold) > 0, "{:?}", resized.stats());
        });
    }

    #[test]
    fn a_frame_with_other_bytes_under_a_name_is_not_believed() {
        run(async |env| {
            let world = World::new(3, Faults::none());
            let store: Store = Arc::new(Broken::new());
            let frames = frames(&world, 16);
            let open =
                || Content::open_warm(env.clone(), store.clone(), config(), Some(frames.clone()));
            let content = open();
            let root = planted(&content, 100).await;
            let name = root.unwrap().name;
            drop(content);
            let content = open();
            for forged in [&b""[..], b"abc", b"\0\0\0\0", &[0xff; 500]] {
                frames.replace(&name, &[forged]);
                assert!(present(&content, &root, 7).is_none(), "{forged:?}");
            }
            assert!(tree::get(&content, &root, 7).await.unwrap().is_some());
            assert_eq!(frames.stats().began, Beginning::New);
        });
    }
}
