//! Numbers of inodes are given once, whatever is lost.

use super::*;
use crate::format::record::{self, Effect};
use std::path::Path;

/// Starts a life of a node, and lets it make files. Returns their numbers.
async fn makes(bed: &Bed, name: &str, count: u64) -> (Files, Vec<Ino>) {
    let files = bed.files(Ack::Flash).await;
    let mut inos = Vec::new();
    for n in 0..count {
        inos.push(make(&files, ROOT, &format!("{name}{n}"), FileType::Regular).await);
    }
    (files, inos)
}

fn are_new(given: &mut Vec<Ino>, more: &[Ino]) {
    let before = given.iter().max().copied().unwrap_or(ROOT);
    assert!(more.iter().all(|ino| *ino > before), "{before} was given: {more:?}");
    given.extend(more);
}

#[test]
fn a_file_that_is_lost_with_the_memory_leaves_its_number() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let mut given = Vec::new();
    for life in 1..5 {
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start(&env, &store, life).await;
            let (files, inos) = makes(&bed, &format!("{life}-"), 20).await;
            are_new(&mut given, &inos);
            // A client that had one open is told that it is gone.
            for lost in given.iter().filter(|ino| !inos.contains(ino)) {
                assert_eq!(errno(files.attr(*lost).await), Some(Errno::STALE), "{lost}");
            }
        });
        world.cut_power();
    }
}

#[test]
fn numbers_are_noted_again_once_all_are_given() {
    with_files(async |_, files| {
        for n in 0..limits::NUMBERS_NOTED + 10 {
            let name = format!("file {n}");
            let ino = make(files, ROOT, &name, FileType::Symlink).await;
            assert_eq!(ino, ROOT + 1 + n);
            files.unlink(CALLER, ROOT, name.as_bytes()).await.unwrap();
        }
        drain(files).await;
        assert_eq!(files.space().await.unwrap().inodes, 1);
    });
}

#[test]
fn a_volume_that_went_back_gives_other_numbers() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let (files, mut given) = makes(&bed, "before", 1).await;
        bed.volumes.take_snapshot("fs", "s").await.unwrap();
        drop(files);
        for name in ["a", "b", "c"] {
            let (files, new) = makes(&bed, name, 3).await;
            for gone in &given[1..] {
                assert_eq!(errno(files.attr(*gone).await), Some(Errno::STALE));
            }
            are_new(&mut given, &new);
            drain(&files).await;
            drop(files);
            bed.volumes.rollback("fs", "s", false).await.unwrap();
        }
    });
}

#[test]
fn a_volume_that_goes_on_without_what_is_lost_gives_other_numbers() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let mut given = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let (files, inos) = makes(&bed, "lost", 9).await;
        files.sync().await.unwrap();
        make(&files, ROOT, "later", FileType::Regular).await;
        files.sync().await.unwrap();
        inos
    });
    world.cut_power();
    // The note itself is lost, and all behind it.
    let note = Effect::Inode { ino: ROOT + limits::NUMBERS_NOTED, inode: None };
    spoil(&world, &record::encode(&[note]));
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        assert!(Files::attach(&bed.volumes, "fs").await.is_err(), "what it owes is lost");
        bed.volumes.salvage("fs", true).await.unwrap();
        let (files, inos) = makes(&bed, "new", 9).await;
        assert_eq!(errno(files.attr(given[0]).await), Some(Errno::STALE));
        are_new(&mut given, &inos);
    });
}

/// Changes what the log has of some bytes.
fn spoil(world: &World, bytes: &[u8]) {
    for number in 1..20 {
        let path = format!("/node/log/{number:08}.seg");
        if let Some(content) = world.peek(Path::new(&path))
            && let Some(at) = content.windows(bytes.len()).position(|found| found == bytes)
        {
            assert!(world.flip_bit(&path, at as u64));
            return;
        }
    }
    panic!("the log does not have it");
}
