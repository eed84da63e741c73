//! Tests of the simulated world: it repeats itself, and it loses exactly what may be lost.

use super::{Faults, Stop, World};
use crate::{Env, Open};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECTOR: usize = 512;

/// About 500 disk operations by five tasks that also wait, meet and use a network.
async fn busy(env: Env) {
    let meeting = Arc::new(tokio::sync::Semaphore::new(2));
    let tasks = (0..5u64).map(|task| {
        let (env, meeting) = (env.clone(), meeting.clone());
        async move {
            let path = format!("/file-{task}");
            let file = env.disk().open(Path::new(&path), Open::Create).await?;
            let mut buffer = [0; 1000];
            for round in 0..30u64 {
                let permit = meeting.acquire().await.expect("never closed");
                let offset = env.random_u64() % 20_000;
                file.write_at(&[round as u8; 1000], offset).await?;
                drop(permit);
                file.read_at(&mut buffer, offset).await?;
                if round % 5 == 0 {
                    file.sync_data().await?;
                    env.sleep(Duration::from_millis(task)).await;
                }
            }
            std::io::Result::Ok(())
        }
    });
    let handles = tasks.map(|task| env.run("busy", async move { task.await.expect("no faults") }));
    futures_util::future::join_all(handles).await;
}

fn busy_hash(seed: u64) -> u64 {
    let world = World::new(seed, Faults::none());
    world.block_on(busy(world.env()));
    assert!(world.disk_operations() > 300);
    world.trace_hash()
}

#[test]
fn the_same_seed_is_the_same_world() {
    let hashes: Vec<u64> = (0..20).map(busy_hash).collect();
    assert_eq!(hashes, (0..20).map(busy_hash).collect::<Vec<u64>>());
    let distinct: std::collections::BTreeSet<u64> = hashes.iter().copied().collect();
    assert_eq!(distinct.len(), hashes.len(), "different seeds differ");
}

#[test]
fn a_crash_repeats_itself_too() {
    let hash = |stop| {
        let world = World::new(9, Faults::none());
        assert!(world.block_on_until(stop, busy(world.env())).is_none());
        world.cut_power();
        world.block_on(busy(world.env()));
        world.trace_hash()
    };
    for stop in [Stop::Step(100), Stop::DiskOperation(50), Stop::Time(Duration::from_millis(3))] {
        assert_eq!(hash(stop), hash(stop));
    }
}

#[test]
fn a_run_stops_right_after_the_operation_it_was_told() {
    for seed in 0..20 {
        for count in 1..=30 {
            let world = World::new(seed, Faults::none());
            let env = world.env();
            let writes = async {
                let file = env.disk().open(Path::new("/file"), Open::Create).await.unwrap();
                for index in 1..30u64 {
                    file.write_at(&[1], index - 1).await.unwrap();
                }
            };
            assert!(world.block_on_until(Stop::DiskOperation(count), writes).is_none());
            assert_eq!(world.disk_operations(), count);
            world.crash_process();
            assert_eq!(world.peek("/file").map(|bytes| bytes.len() as u64), Some(count - 1));
        }
    }
}

/// A file with a synced first half and an un-synced second one.
async fn half_synced(env: Env) {
    let file = env.disk().open(Path::new("/half"), Open::Create).await.unwrap();
    file.preallocate(8192).await.unwrap();
    env.disk().sync_folder(Path::new("/")).await.unwrap();
    file.write_at(&[1; 4096], 0).await.unwrap();
    file.sync_data().await.unwrap();
    for version in 2..5 {
        file.write_at(&[version; 4096], 4096).await.unwrap();
    }
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_tears_the_rest() {
    let (mut all, mut none, mut torn, mut older) = (0, 0, 0, 0);
    for seed in 0..400 {
        let world = World::new(seed, Faults::none());
        world.block_on(half_synced(world.env()));
        world.cut_power();
        let bytes = world.peek("/half").expect("its name was synced");
        assert!(bytes[..4096].iter().all(|&byte| byte == 1), "synced bytes are kept (seed {seed})");
        let sectors: Vec<u8> = bytes[4096..].chunks(SECTOR).map(|sector| sector[0]).collect();
        for (sector, &value) in bytes[4096..].chunks(SECTOR).zip(&sectors) {
            assert!(sector.iter().all(|&byte| byte == value), "a sector is whole (seed {seed})");
        }
        let is_all = |value| sectors.iter().all(|&sector| sector == value);
        all += usize::from(is_all(4));
        none += usize::from(is_all(0));
        torn += usize::from(!is_all(sectors[0]));
        older += usize::from(sectors.iter().any(|&sector| sector == 2 || sector == 3));
    }
    assert!(all > 20 && none > 5 && torn > 50 && older > 50, "{all} {none} {torn} {older}");
}

#[test]
fn a_process_crash_loses_no_bytes_and_no_memory() {
    for seed in 0..50 {
        let world = World::new(seed, Faults::none());
        let env = world.env();
        let region = env.memory().map(Path::new("/memory/warm"), 4096).unwrap();
        // SAFETY: inside the mapping, on the only thread.
        unsafe { region.base().write(77) };
        world.block_on(half_synced(world.env()));
        let held = world
            .block_on(async { env.disk().open(Path::new("/half"), Open::Write).await.unwrap() });
        assert!(held.try_lock().unwrap());
        world.crash_process();
        assert!(held.try_lock().is_err(), "a dead process's handle is dead");
        assert_eq!(world.peek("/half").unwrap()[4096..], [4; 4096]);

        let env = world.env();
        let region = env.memory().map(Path::new("/memory/warm"), 4096).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { region.base().read() }, 77);
        world.block_on(async {
            let file = env.disk().open(Path::new("/half"), Open::Write).await.unwrap();
            assert!(file.try_lock().unwrap(), "its locks are gone");
        });
        drop(region);
        world.cut_power();
        let region = world.env().memory().map(Path::new("/memory/warm"), 4096).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { region.base().read() }, 0, "memory goes with the power");
    }
}

#[test]
fn a_crash_interrupts_writes_half_way() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..1000 {
        let world = World::new(seed, Faults::none());
        let env = world.env();
        env.clone().spawn("writer", async move {
            let file = env.disk().open(Path::new("/file"), Open::Create).await.unwrap();
            let _ = file.write_at(&[1; 4 * SECTOR], 100).await;
        });
        world.run_until_step(1 + seed % 4);
        world.crash_process();
        lengths.insert(world.peek("/file").map(|bytes| bytes.len()));
    }
    // No file, an empty file, four torn ones, the whole.
    let expected = [None, Some(0), Some(512), Some(1024), Some(1536), Some(2048), Some(2148)];
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn names_survive_a_power_cut_in_order_and_for_sure_when_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let world = World::new(seed, Faults::none());
        let env = world.env();
        world.block_on(async {
            let disk = env.disk();
            disk.create_folder(Path::new("/folder")).await.unwrap();
            disk.sync_folder(Path::new("/")).await.unwrap();
            let file = disk.open(Path::new("/folder/synced"), Open::Create).await.unwrap();
            file.write_durable(b"old", 0).await.unwrap();
            disk.sync_folder(Path::new("/folder")).await.unwrap();
            let file = disk.open(Path::new("/folder/new"), Open::Create).await.unwrap();
            file.write_durable(b"new", 0).await.unwrap();
            disk.rename(Path::new("/folder/new"), Path::new("/folder/synced")).await.unwrap();
        });
        world.cut_power();
        let state = (world.peek("/folder/synced"), world.peek("/folder/new"));
        seen.insert(state);
    }
    let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    let lawful = [(new.clone(), None), (old.clone(), None), (old, new)];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), lawful);
}

#[test]
fn a_full_disk_says_so_and_recovers() {
    let world = World::new(1, Faults { disk_bytes: 64 << 10, ..Faults::none() });
    let env = world.env();
    world.block_on(async {
        let disk = env.disk();
        let file = disk.open(Path::new("/large"), Open::Create).await.unwrap();
        file.preallocate(60 << 10).await.unwrap();
        assert_eq!(disk.free_bytes(Path::new("/")).await.unwrap(), 4 << 10);
        let full = file.preallocate(100 << 10).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        // Inside what is preallocated there is always room.
        file.write_durable(&[1; 8192], 0).await.unwrap();
        let full = file.write_at(&[1; 16 << 10], 60 << 10).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);

        world.set_disk_bytes(128 << 10);
        file.write_at(&[1; 16 << 10], 60 << 10).await.unwrap();
        drop(file);
        disk.remove(Path::new("/large")).await.unwrap();
        disk.sync_folder(Path::new("/")).await.unwrap();
        assert_eq!(disk.free_bytes(Path::new("/")).await.unwrap(), 128 << 10);

        let file = disk.open(Path::new("/cut"), Open::Create).await.unwrap();
        file.preallocate(32 << 10).await.unwrap();
        file.write_at(&[1; 16 << 10], 24 << 10).await.unwrap();
        file.set_length(4 << 10).await.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(disk.free_bytes(Path::new("/")).await.unwrap(), 124 << 10);
    });
}

#[test]
fn faults_come_when_asked_for() {
    let world = World::new(3, Faults { fail_operation: Some(2), ..Faults::none() });
    let env = world.env();
    world.block_on(async {
        let file = env.disk().open(Path::new("/file"), Open::Create).await.unwrap();
        assert!(file.write_at(&[1; 512], 0).await.is_err(), "the second operation fails");
        file.write_at(&[1; 512], 0).await.unwrap();
        world.change_faults(|faults| faults.sync_error = 1.0);
        assert!(file.sync_data().await.is_err());
        world.change_faults(|faults| (faults.sync_error, faults.read_flip) = (0.0, 1.0));
        let mut buffer = [0; 512];
        file.read_at(&mut buffer, 0).await.unwrap();
        let wrong: u32 = buffer.iter().map(|byte| (byte ^ 1).count_ones()).sum();
        assert_eq!(wrong, 1);
    });
    assert!(
        world.flip_bit("/file", 5) && !world.flip_bit("/file", 512) && !world.flip_bit("/none", 0)
    );
    assert_ne!(world.peek("/file").unwrap()[5], 1);
}

#[test]
fn after_a_failed_sync_the_next_one_lies() {
    let mut lost = 0;
    for seed in 0..100 {
        let world = World::new(seed, Faults { sync_error: 1.0, ..Faults::none() });
        let env = world.env();
        world.block_on(async {
            let file = env.disk().open(Path::new("/file"), Open::Create).await.unwrap();
            file.preallocate(4096).await.unwrap();
            file.write_at(&[1; 4096], 0).await.unwrap();
            assert!(file.sync_data().await.is_err());
            world.change_faults(|faults| faults.sync_error = 0.0);
            file.sync_data().await.unwrap();
            env.disk().sync_folder(Path::new("/")).await.unwrap();
        });
        world.cut_power();
        lost += usize::from(world.peek("/file").unwrap()[0] == 0);
    }
    assert!((20..80).contains(&lost), "{lost}");
}

#[test]
fn a_deadlock_is_told_with_the_names_of_the_tasks() {
    let told = |run: &dyn Fn(&World)| {
        let world = World::new(1, Faults::none());
        let panic = catch_unwind(AssertUnwindSafe(|| run(&world))).unwrap_err();
        panic.downcast_ref::<String>().expect("a message").clone()
    };
    let message = told(&|world| {
        world.env().spawn("the-stuck-one", std::future::pending());
        world.block_on(std::future::pending::<()>());
    });
    assert!(message.contains("deadlock") && message.contains("the-stuck-one"), "{message}");
    let message = told(&|world| {
        let env = world.env();
        world.block_on(async {
            loop {
                env.sleep(Duration::from_secs(60)).await;
            }
        })
    });
    assert!(message.contains("no end"), "{message}");
}

#[test]
fn hosts_crash_alone_and_the_network_can_be_cut() {
    for seed in 0..50 {
        let world = World::new(seed, Faults::none());
        let other = world.host("other");
        let (here, there) = (world.env(), other.env());
        let address = "10.0.0.1:7".parse().unwrap();
        there.clone().spawn("server", async move {
            let acceptor = there.net().listen(&"10.0.0.1:7".parse().unwrap()).await.unwrap();
            let mut stream = acceptor.accept().await.unwrap()().unwrap();
            while let Ok(byte) = stream.read_u8().await {
                stream.write_u8(byte + 1).await.unwrap();
            }
        });
        assert!(!world.run_until(Stop::Never), "it rests when the server waits");
        world.block_on(async {
            let mut stream = here.net().connect(&address).await.unwrap();
            stream.write_u8(1).await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), 2);
            world.cut(&world, &other);
            stream.write_u8(5).await.unwrap();
            assert!(here.timeout(Duration::from_secs(1), stream.read_u8()).await.is_err());
            world.heal();
            assert_eq!(stream.read_u8().await.unwrap(), 6);
            if seed % 2 == 0 {
                other.crash_process();
                assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            } else {
                other.cut_power();
                assert_eq!(stream.read_u8().await.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
            let refused = here.net().connect(&address).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        });
    }
}

#[test]
fn nothing_ages_by_a_leap_of_the_wall_clock() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let day = Duration::from_secs(600);
        let aged = |since: crate::Timestamp| Duration::from_micros(env.aging_clock().0 - since.0);
        let begin = env.aging_clock();
        assert_eq!(begin, env.wall_clock());
        env.sleep(day).await;
        assert!((day..2 * day).contains(&aged(begin)) && (day..2 * day).contains(&env.uptime()));
        world.set_wall_clock_ahead(8 * day);
        env.sleep(day).await;
        assert!((2 * day..3 * day).contains(&aged(begin)));
        // Set right again, and then back: the wall clock counts when it says less.
        world.set_wall_clock_ahead(Duration::ZERO);
        assert!((2 * day..3 * day).contains(&aged(begin)));
    });
}

#[test]
fn a_dead_environment_is_inert() {
    let world = World::new(1, Faults::none());
    let old = world.env();
    world.crash_process();
    world.block_on(async {
        assert!(old.disk().open(Path::new("/file"), Open::Create).await.is_err());
        old.spawn("ghost", async { panic!("a dead process does nothing") });
        assert!(old.memory().map(Path::new("/memory/a"), 10).is_err());
        world.env().sleep(Duration::from_secs(1)).await;
    });
}

#[test]
fn a_world_costs_little() {
    // 10,000 of these shall take well under a minute; the bound here only notices a blunder.
    let (machine, _runtime) = crate::real::env().unwrap();
    let start = machine.now();
    for seed in 0..500 {
        busy_hash(seed);
    }
    let took = machine.now().since(start);
    eprintln!("500 worlds of about 350 disk operations each: {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_way_that_is_cut_keeps_what_is_sent_there_and_the_other_way_stays() {
    let world = World::new(5, Faults::none());
    let (one, other) = (world.host("one"), world.host("other"));
    let address: crate::Address = "tcp:10.0.0.1:9".parse().unwrap();
    world.block_on(async {
        let (here, there) = (one.env(), other.env());
        let acceptor = here.net().listen(&address).await.unwrap();
        let mut client = there.net().connect(&address).await.unwrap();
        let mut server = acceptor.accept().await.unwrap()().unwrap();
        world.cut_way(&other, &one);
        client.write_all(b"a").await.unwrap();
        server.write_all(b"b").await.unwrap();
        let mut byte = [0];
        client.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"b");
        let second = Duration::from_secs(1);
        assert!(here.timeout(second, server.read_exact(&mut byte)).await.is_err());
        assert!(here.timeout(second, there.net().connect(&address)).await.is_err());
        world.heal();
        server.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"a");
    });
}

#[test]
fn a_paused_host_stands_still_while_time_goes_on_and_a_clock_may_run_at_its_own_rate() {
    let world = World::new(6, Faults::none());
    let (paused, fast) = (world.host("paused"), world.host("fast"));
    fast.set_clock_rate(1100);
    let second = Duration::from_secs(1);
    let ticks = Arc::new(Mutex::new(Vec::new()));
    for (host, name) in [(&paused, "paused"), (&fast, "fast")] {
        let (env, ticks) = (host.env(), ticks.clone());
        host.env().spawn("ticks", async move {
            loop {
                env.sleep(second).await;
                ticks.lock().unwrap().push(name);
            }
        });
    }
    let count = |name| ticks.lock().unwrap().iter().filter(|one| **one == name).count();
    world.block_on(async {
        let env = world.env();
        env.sleep(second * 10 + second / 2).await;
        assert_eq!((count("paused"), count("fast")), (10, 11));
        paused.pause(second * 20);
        env.sleep(second * 19).await;
        assert_eq!(count("paused"), 10);
        env.sleep(second * 2).await;
        assert_eq!(count("paused"), 11, "it goes on");
        let (right, quick) = (env.now().0, fast.env().now().0);
        assert_eq!(quick, right * 1100 / 1000);
    });
}
