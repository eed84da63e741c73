//! Tests of the settings of faults, and of changes behind a host's back.

use super::super::{Cut, Failure, Faults, World};
use crate::{Env, Open};
use rustix::io::Errno;
use std::io;
use std::path::Path;

const SECTOR: usize = 512;

async fn write_under_way(env: Env) {
    let file = env.disk().open(Path::new("/file"), Open::Create).await.unwrap();
    file.preallocate(40 * SECTOR as u64).await.unwrap();
    env.disk().sync_folder(Path::new("/")).await.unwrap();
    let _ = file.write_durable(&[1; 40 * SECTOR], 0).await;
}

/// Content of each sector of a durable write that a crash found under way: as read, and as surely
/// on the medium.
fn interrupted(seed: u64, faults: Faults, power: bool) -> (Vec<u8>, Vec<u8>) {
    let world = World::new(seed, faults);
    world.env().spawn("writer", write_under_way(world.env()));
    world.run_until(super::super::Stop::DiskOperation(3));
    world.run_until_step(world.steps() + 1 + seed % 4);
    if power {
        world.cut_power();
    } else {
        world.crash_process();
    }
    let sectors = |bytes: Vec<u8>| bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
    (sectors(world.peek("/file").unwrap()), sectors(world.peek_durable("/file").unwrap()))
}

#[test]
fn a_write_under_way_is_torn_at_any_sectors_when_asked() {
    let (mut holes, mut prefixes) = (0, 0);
    for seed in 0..400 {
        let is_hole = |sectors: &[u8]| sectors.windows(2).any(|pair| pair == [0, 1]);
        let (found, _) = interrupted(seed, Faults::none(), false);
        prefixes += usize::from(is_hole(&found));
        let faults = Faults { torn_sectors: 1.0, ..Faults::none() };
        let (found, durable) = interrupted(seed, faults, false);
        holes += usize::from(is_hole(&found));
        assert!(durable.iter().all(|&byte| byte == 0) || durable == found, "torn or all durable");
    }
    assert_eq!(prefixes, 0);
    assert!(holes > 20, "{holes}");
}

#[test]
fn a_write_may_be_whole_in_the_page_cache_and_not_durable() {
    let mut seen = 0;
    for seed in 0..400 {
        let faults = Faults { torn_whole: 1.0, ..Faults::none() };
        let (found, durable) = interrupted(seed, faults.clone(), false);
        let is_all = |sectors: &[u8], byte| sectors.iter().all(|&sector| sector == byte);
        assert!(is_all(&found, 0) || is_all(&found, 1), "seed {seed}");
        if is_all(&found, 1) && is_all(&durable, 0) {
            seen += 1;
            // The same moment with a power cut that loses what was not synced.
            let (found, _) = interrupted(seed, Faults { cut: Cut::Lost, ..faults }, true);
            assert!(is_all(&found, 0), "seed {seed}");
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn power_cuts_keep_what_they_are_told() {
    let sectors = |seed, cut| {
        let world = World::new(seed, Faults { cut, ..Faults::none() });
        let env = world.env();
        world.block_on(async {
            let file = env.disk().open(Path::new("/file"), Open::Create).await.unwrap();
            file.preallocate(8192).await.unwrap();
            env.disk().sync_folder(Path::new("/")).await.unwrap();
            file.write_at(&[1; 8192], 0).await.unwrap();
        });
        assert_eq!(world.peek("/file").unwrap(), [1; 8192]);
        assert_eq!(world.peek_durable("/file").unwrap(), [0; 8192]);
        world.cut_power();
        let bytes = world.peek("/file").unwrap();
        bytes.chunks(SECTOR).map(|sector| sector[0]).collect::<Vec<u8>>()
    };
    let mut torn = 0;
    for seed in 0..50 {
        assert_eq!(sectors(seed, Cut::Lost), [0; 16]);
        assert_eq!(sectors(seed, Cut::Kept), [1; 16]);
        let pages = sectors(seed, Cut::Pages);
        assert!(pages.chunks(8).all(|page| page.iter().all(|&sector| sector == page[0])));
        let any = sectors(seed, Cut::Sectors);
        torn += usize::from(any[..8].contains(&0) && any[..8].contains(&1));
    }
    assert!(torn > 40, "{torn}");
}

fn errno(result: io::Result<impl Sized>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn calls_fail_with_the_error_that_was_asked_for() {
    let world = World::new(3, Faults::none());
    let env = world.env();
    let disk = env.disk();
    world.block_on(async {
        let path = Path::new("/log/file");
        disk.create_folder(Path::new("/log")).await.unwrap();
        let file = disk.open(path, Open::Create).await.unwrap();

        world.change_faults(|faults| faults.no_descriptors = 1.0);
        assert_eq!(errno(disk.open(path, Open::Read).await), Some(Errno::MFILE));
        assert_eq!(errno(disk.list(Path::new("/log")).await), Some(Errno::MFILE));
        assert_eq!(errno(disk.sync_folder(Path::new("/log")).await), Some(Errno::MFILE));
        let address = "tcp:127.0.0.1:7".parse().unwrap();
        assert_eq!(errno(env.net().listen(&address).await), Some(Errno::MFILE));
        file.write_at(&[1; 512], 0).await.expect("what is open needs no descriptor");
        file.sync_data().await.unwrap();

        world.change_faults(|faults| (faults.no_descriptors, faults.no_space) = (0.0, 1.0));
        assert_eq!(errno(file.write_at(&[2; 512], 0).await), Some(Errno::NOSPC));
        let new = Path::new("/log/new");
        assert_eq!(errno(disk.open(new, Open::Create).await), Some(Errno::NOSPC));
        file.sync_data().await.unwrap();

        world.change_faults(|faults| (faults.no_space, faults.no_memory) = (0.0, 1.0));
        assert_eq!(errno(file.length().await), Some(Errno::NOMEM));

        world.change_faults(|faults| faults.only = Some("/store/".to_owned()));
        file.length().await.expect("these faults are of another folder");
        world.change_faults(|faults| faults.only = Some("/log/".to_owned()));
        assert_eq!(errno(file.length().await), Some(Errno::NOMEM));

        let next = world.disk_operations() + 1;
        world.change_faults(|faults| {
            *faults = Faults {
                fail_operation: Some(next),
                fail_with: Failure::NoDescriptors,
                ..Faults::none()
            }
        });
        assert_eq!(errno(file.length().await), Some(Errno::MFILE));
        file.length().await.unwrap();
    });
}

#[test]
fn a_client_in_the_queue_waits_for_a_descriptor() {
    let world = World::new(3, Faults::none());
    let env = world.env();
    world.block_on(async {
        let address = "tcp:127.0.0.1:7".parse().unwrap();
        let acceptor = env.net().listen(&address).await.unwrap();
        let _client = env.net().connect(&address).await.unwrap();
        world.change_faults(|faults| faults.no_descriptors = 1.0);
        assert_eq!(errno(acceptor.accept().await), Some(Errno::MFILE));
        world.change_faults(|faults| faults.no_descriptors = 0.0);
        acceptor.accept().await.map(|_| ()).expect("it is still there");
    });
}

#[test]
fn mapped_memory_is_damaged_cut_or_swapped_for_an_older_copy() {
    let world = World::new(5, Faults::none());
    let path = Path::new("/memory/warm");
    let write = |byte| {
        let env = world.env();
        let region = env.memory().map(path, 4096).unwrap();
        // SAFETY: inside the mapping, on the only thread.
        unsafe { region.base().write_bytes(byte, 4096) };
        assert!(!world.put_memory(path, &[]).unwrap(), "it is in use");
    };
    write(1);
    let older = world.copy_memory(path).unwrap();
    assert_eq!(older, [1; 4096]);
    write(2);
    assert_eq!(world.damage_memory(path, 1000..2000, 10), 10);
    let found = world.copy_memory(path).unwrap();
    let wrong = |range: std::ops::Range<usize>| {
        found[range].iter().map(|byte| (byte ^ 2).count_ones()).sum::<u32>()
    };
    assert!((1..=10).contains(&wrong(1000..2000)));
    assert_eq!(wrong(0..1000) + wrong(2000..4096), 0);

    assert!(world.truncate_memory(path, 100).unwrap());
    let region = world.env().memory().map(path, 4096).unwrap();
    drop(region);
    let found = world.copy_memory(path).unwrap();
    assert!(found[..100].iter().all(|&byte| byte == 2) && found[100..] == [0; 3996]);

    assert!(world.put_memory(path, &older).unwrap());
    assert_eq!(world.copy_memory(path).unwrap(), older);
    assert_eq!(world.memory_files(), ["memory/warm"]);
    assert!(world.put_memory(path, &[]).unwrap());
    assert_eq!(world.copy_memory(path), None);
}

#[test]
fn a_folder_is_copied_to_another_host() {
    let world = World::new(5, Faults { cut: Cut::Lost, ..Faults::none() });
    let other = world.host("other");
    let env = world.env();
    world.block_on(async {
        let disk = env.disk();
        disk.create_folder(Path::new("/node/flash")).await.unwrap();
        disk.create_folder(Path::new("/node/empty")).await.unwrap();
        let file = disk.open(Path::new("/node/flash/log"), Open::Create).await.unwrap();
        file.write_at(b"written", 0).await.unwrap();
    });
    world.copy_folder("/node", &other, "/copy").unwrap();
    assert!(world.copy_folder("/none", &other, "/copy").is_err());
    world.plant("/node/flash/log", b"planted").unwrap();
    other.cut_power();
    world.cut_power();
    assert_eq!(other.peek("/copy/flash/log").unwrap(), b"written");
    assert_eq!(world.peek("/node/flash/log").unwrap(), b"planted");
    let env = other.env();
    let found = world.block_on(async { env.disk().list(Path::new("/copy")).await.unwrap() });
    assert_eq!(found.len(), 2);
}
