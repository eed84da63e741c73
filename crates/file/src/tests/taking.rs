//! What files take of the volume's size: exact after each commit, and never refused for a doubt.

use super::*;
use crate::home::Home;
use crate::state::Stored;
use crate::taken::{self, Taken};

const PAGE: u64 = 4096;

/// Checks the bytes that files and the volume take, which are exact after a commit.
pub(super) async fn check_space(model: &Model, files: &Files, name: &str) {
    let mut total = Some(0);
    for (ino, node) in model.nodes.iter().filter(|(_, node)| node.kind == FileType::Regular) {
        let expected = node.taken.0.as_ref().map(|pages| pages.len() as u64);
        if let Some(expected) = expected {
            assert_eq!(takes(files, *ino).await, expected, "{name}: inode {ino}");
        }
        total = total.zip(expected).map(|(one, other)| one + other);
    }
    if let Some(total) = total {
        assert_eq!(all_take(files).await, total, "{name}: all");
    }
}

/// Forgets which pages are taken where another model, the same otherwise, says other ones.
pub(super) fn doubt(model: &mut Model, other: &Model) {
    for (ino, node) in &mut model.nodes {
        let also = other.nodes.get(ino).and_then(|other| other.taken.0.as_ref());
        if node.taken.0.as_ref() != also {
            node.taken.0 = None;
        }
    }
}

async fn takes(files: &Files, ino: Ino) -> u64 {
    files.attr(ino).await.unwrap().allocated / PAGE
}

async fn all_take(files: &Files) -> u64 {
    files.space().await.unwrap().bytes_used / PAGE
}

/// Writes into a file until the volume has no room. Returns how many pages it takes then.
async fn fill_up(files: &Files, ino: Ino) -> u64 {
    let mut at = 0;
    for bytes in [1 << 20, PAGE] {
        loop {
            match files.write(CALLER, ino, at, &vec![3; bytes as usize]).await {
                Ok(()) => at += bytes,
                Err(error) => {
                    assert_eq!(errno::<()>(Err(error)), Some(Errno::NOSPC));
                    break;
                }
            }
        }
    }
    at / PAGE
}

#[test]
fn an_overwrite_of_a_sparse_file_costs_nothing_and_no_hole_counts() {
    with_files(async |_, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        for drained in [false, true] {
            for n in 0..100 {
                files.write(CALLER, ino, n * 3 * PAGE, &[1; PAGE as usize]).await.unwrap();
                assert_eq!(takes(files, ino).await, if drained { 100 } else { n + 1 }, "{n}");
            }
            drain(files).await;
            assert_eq!((takes(files, ino).await, all_take(files).await), (100, 100));
        }
        // Two pages and a hole between them, then all three.
        files.write(CALLER, ino, PAGE - 1, &[2; 2 * PAGE as usize]).await.unwrap();
        assert_eq!(takes(files, ino).await, 102);
        let hole = files.allocate(CALLER, ino, Allocate::Punch, 3 * PAGE - 1, 3 * PAGE + 2);
        hole.await.unwrap();
        assert_eq!(takes(files, ino).await, 101, "parts of pages stay");
        let cut = SetAttr { size: Some(30 * PAGE + 1), ..SetAttr::default() };
        files.set_attr(CALLER, ino, &cut).await.unwrap();
        for _ in 0..2 {
            assert_eq!((takes(files, ino).await, all_take(files).await), (12, 12));
            drain(files).await;
        }
        let back = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
        files.set_attr(CALLER, ino, &back).await.unwrap();
        drain(files).await;
        assert_eq!((takes(files, ino).await, all_take(files).await), (12, 12));
        // Zeros that are written take what other bytes do.
        files.write(CALLER, ino, 1 << 30, &[0; 4 * PAGE as usize]).await.unwrap();
        drain(files).await;
        assert_eq!((takes(files, ino).await, all_take(files).await), (16, 16));
        files.unlink(CALLER, ROOT, b"a").await.unwrap();
        drain(files).await;
        assert_eq!(all_take(files).await, 0);
    });
}

#[test]
fn what_is_reserved_is_kept_for_its_file_when_the_volume_is_full() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let ino = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        bed.volumes.resize("fs", 64 << 20, true).await.unwrap();
        let ino = make(&files, ROOT, "a", FileType::Regular).await;
        files.write(CALLER, ino, 5 * PAGE, &[1; 10]).await.unwrap();
        let reserve = Allocate::Reserve { keep_size: false };
        files.allocate(CALLER, ino, reserve, PAGE + 1, 32 << 20).await.unwrap();
        assert_eq!(files.attr(ino).await.unwrap().size, (32 << 20) + PAGE + 1);
        let too_much = files.allocate(CALLER, ino, reserve, 0, 65 << 20).await;
        assert_eq!(errno(too_much), Some(Errno::NOSPC));
        let beyond = Allocate::Reserve { keep_size: true };
        files.allocate(CALLER, ino, beyond, 40 << 20, 1 << 20).await.unwrap();
        let pages = (32 << 20) / PAGE + 1 + (1 << 20) / PAGE;
        assert_eq!(takes(&files, ino).await, pages);
        assert_eq!(files.seek(ino, 6 * PAGE, Seek::Hole).await.unwrap(), 6 * PAGE);
        let other = make(&files, ROOT, "b", FileType::Regular).await;
        let filled = fill_up(&files, other).await;
        assert_eq!(filled + pages, (64 << 20) / PAGE);
        drain(&files).await;
        assert_eq!((takes(&files, ino).await, all_take(&files).await), (pages, (64 << 20) / PAGE));
        ino
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        let mut at = PAGE;
        for _ in 0..32 {
            files.write(CALLER, ino, at, &[2; 1 << 20]).await.unwrap();
            at += 1 << 20;
        }
        files.write(CALLER, ino, (40 << 20) + 7, &[2; 1000]).await.unwrap();
        let outside = files.write(CALLER, ino, 39 << 20, &[2; 1000]).await;
        assert_eq!(errno(outside), Some(Errno::NOSPC));
        // What is given back is there for others.
        files.allocate(CALLER, ino, Allocate::Punch, 10 * PAGE, 3 * PAGE).await.unwrap();
        files.write(CALLER, ino, 39 << 20, &[2; 3 * PAGE as usize]).await.unwrap();
        let more = files.write(CALLER, ino, 10 * PAGE, &[2; 1]).await;
        assert_eq!(errno(more), Some(Errno::NOSPC));
        // Zeros keep their place.
        files
            .allocate(CALLER, ino, Allocate::Zero { keep_size: true }, 0, 8 * PAGE)
            .await
            .unwrap_err();
        let zero = Allocate::Zero { keep_size: false };
        files.allocate(CALLER, ino, zero, PAGE, 8 * PAGE).await.unwrap();
        files.write(CALLER, ino, PAGE, &[4; 8 * PAGE as usize]).await.unwrap();
        drain(&files).await;
        assert_eq!(all_take(&files).await, (64 << 20) / PAGE);
        // A cut gives back what is reserved behind it, also one to the size that there is.
        let size = files.attr(ino).await.unwrap().size;
        let beyond = Allocate::Reserve { keep_size: true };
        let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        files.set_attr(CALLER, ino, &cut(20 << 20)).await.unwrap();
        let before = all_take(&files).await;
        files.allocate(CALLER, ino, beyond, size, 1 << 20).await.unwrap();
        assert_eq!(all_take(&files).await, before + 257);
        files.set_attr(CALLER, ino, &cut(20 << 20)).await.unwrap();
        assert_eq!(all_take(&files).await, before);
        drain(&files).await;
        assert_eq!(all_take(&files).await, before);
    });
}

/// A file of which every second page is written, and a volume that has no room for more.
async fn full(bed: &Bed, files: &Files, pages: u64) -> Ino {
    let ino = make(files, ROOT, "a", FileType::Regular).await;
    for n in 0..pages {
        files.write(CALLER, ino, 2 * n * PAGE, &[1; PAGE as usize]).await.unwrap();
    }
    drain(files).await;
    bed.volumes.resize("fs", pages * PAGE, true).await.unwrap();
    ino
}

#[test]
fn a_full_volume_takes_an_overwrite_also_when_nothing_is_in_memory() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let ino = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        full(&bed, &files, 3000).await
    });
    for (life, drained) in [(2, true), (3, false)] {
        world.crash_process();
        let env = world.env();
        world.block_on(async {
            let bed = Bed::start(&env, &store, life).await;
            let files = bed.files(Ack::Flash).await;
            for n in (0..3000).rev().step_by(7) {
                let what = [n as u8; PAGE as usize];
                files.write(CALLER, ino, 2 * n * PAGE, &what).await.unwrap();
            }
            let new = files.write(CALLER, ino, PAGE, &[1]).await;
            assert_eq!(errno(new), Some(Errno::NOSPC));
            if drained {
                drain(&files).await;
            }
            assert_eq!((takes(&files, ino).await, all_take(&files).await), (3000, 3000));
        });
    }
}

#[test]
fn a_change_is_refused_for_a_doubt_only_when_a_commit_has_not_removed_it() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    let ino = world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        let ino = full(&bed, &files, 3000).await;
        bed.volumes.resize("fs", 3100 * PAGE, false).await.unwrap();
        ino
    });
    world.crash_process();
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 2).await;
        let files = bed.files(Ack::Flash).await;
        files.attr(ino).await.unwrap();
        // What lies in the store is not looked up: it counts as new, until there is no room.
        for n in 0..100 {
            files.write(CALLER, ino, 2 * n * PAGE, &[7; PAGE as usize]).await.unwrap();
        }
        let other = make(&files, ROOT, "b", FileType::Regular).await;
        files.write(CALLER, other, 0, &[1; 100 * PAGE as usize]).await.unwrap();
        assert_eq!(errno(files.write(CALLER, other, 200 * PAGE, &[1]).await), Some(Errno::NOSPC));
        assert_eq!((takes(&files, ino).await, all_take(&files).await), (3000, 3100));
    });
}

#[test]
fn a_file_of_an_earlier_version_is_counted_by_its_content() {
    with_files(async |bed, files| {
        let ino = make(files, ROOT, "a", FileType::Regular).await;
        for n in 0..50 {
            files.write(CALLER, ino, 2 * n * PAGE, &[1; PAGE as usize]).await.unwrap();
        }
        drain(files).await;
        let home = files.handle().staged().record_home::<Home>().unwrap();
        let root = bed.volumes.show("fs").await.unwrap().vault.root;
        let stored = home.stored(&root, ino).await.unwrap().unwrap();
        assert!(matches!(stored.taken, Taken::Table(Some(_))));
        // Such a row has neither the table nor the flag.
        let mut old = stored.clone();
        (old.taken, old.inode.allocated) = (Taken::Unknown, 77_000);
        let old = Stored::decode(&old.encode()).unwrap();
        assert_eq!((old.taken, old.inode.allocated), (Taken::Unknown, 77_000));
        let mut batch = bed.content.batch();
        let counted = home.counted(&mut batch, old).await.unwrap();
        assert_eq!((counted.taken, counted.inode.allocated), (stored.taken, 50 * PAGE));
    });
}

#[test]
fn pages_are_those_of_their_bytes() {
    assert_eq!(taken::touched(&(0..1)), 0..1);
    assert_eq!(taken::touched(&(4095..4097)), 0..2);
    assert_eq!(taken::whole(&(1..4096)), 1..1);
    assert_eq!(taken::whole(&(4095..8193)), 1..2);
    assert_eq!(taken::whole(&(5000..5001)), 2..2);
}

#[test]
fn a_write_that_meets_the_end_of_the_room_writes_what_fits() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    let env = world.env();
    world.block_on(async {
        let bed = Bed::start(&env, &store, 1).await;
        let files = bed.files(Ack::Flash).await;
        bed.volumes.resize("fs", 64 << 20, true).await.unwrap();
        let other = make(&files, ROOT, "other", FileType::Regular).await;
        let reserve = Allocate::Reserve { keep_size: false };
        files.allocate(CALLER, other, reserve, 0, 63 << 20).await.unwrap();
        let ino = make(&files, ROOT, "a", FileType::Regular).await;
        let data: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
        // The first page is not written from its begin, so the last one has no room.
        let fits = (1 << 20) - 100;
        for drained in [false, true] {
            let whole = files.write(CALLER, ino, 100, &data).await;
            assert_eq!(errno(whole), Some(Errno::NOSPC), "pages that come as a whole");
            let written = files.write_some(CALLER, ino, 100, &data).await.unwrap();
            assert_eq!((written, takes(&files, ino).await), (fits, 256), "drained: {drained}");
            let found = files.read(ino, 100, 1 << 20).await.unwrap();
            assert!(found == data[..fits], "drained: {drained}");
            let rest = files.write_some(CALLER, ino, 1 << 20, &data[fits..]).await;
            assert_eq!(errno(rest.map(drop)), Some(Errno::NOSPC), "nothing fits");
            drain(&files).await;
        }
        files.allocate(CALLER, other, Allocate::Punch, 0, PAGE).await.unwrap();
        let page = [7; 3 * PAGE as usize];
        assert_eq!(files.write_some(CALLER, ino, 1 << 20, &page).await.unwrap(), PAGE as usize);
    });
}
