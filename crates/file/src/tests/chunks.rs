//! What a commit makes of the bytes of files, line by line as HydraFS promises it.

use super::repairing::stored;
use super::*;
use rekindle_content::{Pointer, tree};
use std::collections::HashSet;

const MIB: usize = 1 << 20;

/// Writes data in pieces of any lengths, in any order.
async fn write_scattered(files: &Files, file: Ino, data: &[u8], dice: &mut Random) {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let length = (1 + dice.below(64 << 10) as usize).min(data.len() - at);
        pieces.push(at..at + length);
        at += length;
    }
    while !pieces.is_empty() {
        let index = dice.below(pieces.len() as u64) as usize;
        let piece = pieces.swap_remove(index);
        files.write(CALLER, file, piece.start as u64, &data[piece]).await.unwrap();
    }
}

/// The chunks that show a file's bytes.
async fn chunks(bed: &Bed, file: Ino) -> Vec<Pointer> {
    let content = stored(bed, file).await.body.tree();
    let all = tree::range(&bed.content, &content, 0..u64::MAX).await.unwrap();
    all.into_iter().map(|(_, pointer)| pointer).collect()
}

#[test]
fn bytes_are_cut_alike_in_whatever_order_and_lengths_they_were_written() {
    with_files(async |bed, files| {
        let mut dice = Random::new(1);
        // What one commit takes.
        let data = dice.bytes(3 * MIB);
        let one = make(files, ROOT, "in order", FileType::Regular).await;
        for (n, piece) in (0..).zip(data.chunks(MIB)) {
            files.write(CALLER, one, n * MIB as u64, piece).await.unwrap();
        }
        drain(files).await;
        let expected = chunks(bed, one).await;
        let before = bed.content.stats();
        for seed in 0..3 {
            let other = make(files, ROOT, &format!("{seed}"), FileType::Regular).await;
            write_scattered(files, other, &data, &mut Random::new(seed)).await;
            drain(files).await;
            let found = chunks(bed, other).await;
            assert_eq!(found, expected);
        }
        let found = bed.content.stats().bytes_deduplicated - before.bytes_deduplicated;
        assert!(found >= 3 * data.len() as u64, "{found}");
    });
}

#[test]
fn an_overwrite_of_a_page_writes_little_and_leaves_the_other_chunks() {
    with_files(async |bed, files| {
        let mut dice = Random::new(2);
        let file = make(files, ROOT, "file", FileType::Regular).await;
        for n in 0..16 {
            files.write(CALLER, file, n << 20, &dice.bytes(MIB)).await.unwrap();
        }
        drain(files).await;
        let mut before = chunks(bed, file).await;
        let mean = 16 * MIB / before.len();
        let (mut cut, rounds) = (0, 40);
        for round in 0..rounds {
            // Half of them are no whole pages.
            let offset = (dice.below(4000) << 12) + if round % 2 == 0 { 0 } else { 100 };
            files.write(CALLER, file, offset, &dice.bytes(4096)).await.unwrap();
            drain(files).await;
            let after = chunks(bed, file).await;
            let known: HashSet<Pointer> = before.iter().copied().collect();
            let new = after.iter().filter(|chunk| !known.contains(chunk));
            cut += new.map(|chunk| chunk.length as usize).sum::<usize>();
            before = after;
        }
        let each = cut / rounds;
        assert!(each >= 4096 && each * 10 <= mean * 14, "{each} bytes, a chunk has {mean}");
    });
}

/// Whole pages, names, and what only cuts and copies are folded without a look at any data: the
/// packs that have it are gone.
#[test]
fn a_commit_reads_no_data() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let file = make(&files, ROOT, "file", FileType::Regular).await;
        for n in 0..16 {
            files.write(CALLER, file, n << 20, &Random::new(n).bytes(MIB)).await.unwrap();
        }
        drain(&files).await;
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        let file = files.lookup(ROOT, b"file").await.unwrap().ino;
        let packs = store.list("packs/data/", None).await.unwrap();
        assert!(packs.len() >= 16, "{packs:?}");
        for pack in packs {
            store.delete(&pack.key).await.unwrap();
        }
        for n in 0..15 {
            files.write(CALLER, file, (n << 20) + (37 << 12), &[9; 4096]).await.unwrap();
            make(&files, ROOT, &format!("{n}"), FileType::Regular).await;
        }
        let copy = files.lookup(ROOT, b"3").await.unwrap().ino;
        files.copy(CALLER, (file, 0), (copy, 0), 8 << 20).await.unwrap();
        files.allocate(CALLER, file, Allocate::Punch, 9 << 20, 1 << 20).await.unwrap();
        files.rename(CALLER, (ROOT, b"file"), (ROOT, b"5"), Rename::Replace).await.unwrap();
        drain(&files).await;
        assert!(files.read(file, 1 << 20, 9).await.is_err(), "its pack is gone");
        assert_eq!(files.read(file, 37 << 12, 4096).await.unwrap(), [9; 4096][..]);
    });
}

#[test]
fn no_change_waits_for_a_store_that_is_far() {
    let (world, mem) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (store, far) = fault::wrap(&env, mem, Plan::default());
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let latency = std::time::Duration::from_secs(60);
        far.set(Plan { latency, ..Plan::default() });
        let begun = env.now();
        for n in 0..20 {
            let (name, other) = (format!("{n}"), format!("other {n}"));
            let file = make(&files, ROOT, &name, FileType::Regular).await;
            files.write(CALLER, file, 0, &[1; 3000]).await.unwrap();
            files.sync().await.unwrap();
            let (from, to) = ((ROOT, name.as_bytes()), (ROOT, other.as_bytes()));
            files.rename(CALLER, from, to, Rename::Replace).await.unwrap();
            files.sync().await.unwrap();
            if n % 2 == 0 {
                files.unlink(CALLER, ROOT, other.as_bytes()).await.unwrap();
                files.sync().await.unwrap();
            }
        }
        let took = env.now().since(begun);
        assert!(took < latency / 4, "{took:?} for 50 commits of the log");
        far.set(Plan::default());
    });
}

/// The answer of a store that is far may come when another node has the volume.
#[test]
fn a_read_that_ends_after_the_lease_shows_nothing() {
    let (world, mem) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let (store, _) = fault::wrap(&env, mem.clone(), Plan::default());
    let data = Random::new(3).bytes(2 * MIB);
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files_as(Policy::Through, Ack::Flash).await;
        let file = make(&files, ROOT, "file", FileType::Regular).await;
        files.write(CALLER, file, 0, &data[..MIB]).await.unwrap();
        files.write(CALLER, file, MIB as u64, &data[MIB..]).await.unwrap();
        drain(&files).await;
    });
    world.crash_process();
    let env = world.env();
    let (store, far) = fault::wrap(&env, mem, Plan::default());
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files_as(Policy::Through, Ack::Flash).await;
        let file = files.lookup(ROOT, b"file").await.unwrap().ino;
        // The tree is in memory now.
        assert_eq!(files.read(file, 0, 9).await.unwrap(), data[..9]);
        let latency = std::time::Duration::from_secs(10);
        far.set(Plan { latency, ..Plan::default() });
        bed.lease.set(Some(env.now() + latency / 4));
        let late = files.read(file, 3 * MIB as u64 / 2, 9).await;
        assert!(matches!(late, Err(Error::Volume(_))), "{late:?}");
    });
}
