//! The client's view of a session.

mod admission;
mod memory;

use crate::nbd::limits;
use crate::nbd::testing::{
    Client, Memory, Server, Shelf, Whim, header, number, query, with_server, with_simulated_server,
};
use crate::nbd::wire::{chunk, command, errno, flag, option};
use rekindle_base::random::Random;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MIB: usize = 1 << 20;

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| u8::try_from(index % 251).unwrap().wrapping_add(seed)).collect()
}

#[test]
fn what_is_written_is_read_at_any_offset_and_length() {
    let memory = Memory::new(40 * MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        for (offset, length) in
            [(0, 1), (511, 3), (4096, 65536), (1, 300_000), (7, 5 * MIB), (3, 32 * MIB)]
        {
            let data = pattern(length, u8::try_from(length % 200).unwrap());
            let length = u32::try_from(length).unwrap();
            assert_eq!(client.call(command::WRITE, 0, offset, length, &data).await.errno, 0);
            let reply = client.call(command::READ, 0, offset, length, &[]).await;
            assert_eq!((reply.errno, reply.chunk), (0, Some(chunk::OFFSET_DATA)));
            assert!(reply.data == data, "{offset} {length}");
        }
    });
}

#[test]
fn clears_read_as_zeros_and_flags_reach_the_device() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        client.call(command::WRITE, flag::FUA, 0, 8192, &pattern(8192, 1)).await;
        assert_eq!(memory.durable.load(Ordering::Relaxed), 1);
        let flags = flag::NO_HOLE | flag::FAST_ZERO | flag::FUA;
        assert_eq!(client.call(command::WRITE_ZEROES, flags, 100, 1000, &[]).await.errno, 0);
        assert_eq!(memory.durable.load(Ordering::Relaxed), 2);
        *memory.whim.lock() = Whim::Acked;
        assert_eq!(client.call(command::TRIM, 0, 4096, 4096, &[]).await.errno, 0);
        let data = client.call(command::READ, flag::DF, 0, 8192, &[]).await.data;
        assert!(
            data[..100] == pattern(8192, 1)[..100]
                && data[1100..4096] == pattern(8192, 1)[1100..4096]
        );
        assert!(data[100..1100].iter().chain(&data[4096..]).all(|&byte| byte == 0));
        assert_eq!(client.call(command::CACHE, 0, 0, 8192, &[]).await.errno, 0);
        assert_eq!(client.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
        assert_eq!(memory.flushes.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn every_request_is_counted_for_its_volume_with_the_time_until_its_reply() {
    let (memory, other) = (Memory::new(MIB), Memory::new(MIB));
    let shelf = Shelf::of(&[("a", &memory), ("b", &other)]);
    with_simulated_server(1, &shelf, async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        client.call(command::READ, 0, 0, 4096, &[]).await;
        memory.close_gate();
        memory.slow_syncs.store(true, Ordering::Relaxed);
        client.request(command::WRITE, 0, 0, 8192, &pattern(8192, 1)).await;
        assert!(client.is_silent(&server.env).await, "for some seconds");
        memory.gate.add_permits(2);
        assert_eq!(client.reply(0).await.errno, 0);
        assert_eq!(client.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
        memory.cold.store(true, Ordering::Relaxed);
        memory.gate.add_permits(1);
        client.call(command::READ, 0, 0, 512, &[]).await;
        assert_ne!(client.call(command::READ, 0, MIB as u64, 4096, &[]).await.errno, 0);
        // A session adds its counts to the shared ones before it waits.
        assert!(client.is_silent(&server.env).await);
        let found = memory.meters.read();
        let sums = (found.read_bytes, found.written_bytes, found.errors);
        assert_eq!(sums, (4096 + 512 + 4096, 8192, 1));
        let names: Vec<_> = found.commands.iter().map(|row| (row.command, row.requests)).collect();
        assert_eq!(names, [("read", 3), ("write", 1), ("flush", 1)]);
        for row in &found.commands {
            assert_eq!(row.buckets.iter().sum::<u64>(), row.requests, "{}", row.command);
        }
        let write = &found.commands[1];
        let ten_seconds = crate::nbd::BUCKETS.len() - 1;
        assert_eq!(write.buckets[ten_seconds], 1, "{write:?}");
        assert!((1_000_000_000..10_000_000_000).contains(&write.nanoseconds), "{write:?}");
        assert!(other.meters.read().commands.is_empty(), "nobody came");
    });
}

#[test]
fn a_batch_of_writes_is_covered_by_few_syncs() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        let mut batch = Vec::new();
        for index in 0..32u64 {
            batch.extend(header(command::WRITE, 0, index, index * 4096, 4096));
            batch.extend(pattern(4096, 3));
        }
        batch.extend(header(command::FLUSH, 0, 32, 0, 0));
        client.send(&[&batch]).await;
        for cookie in 0..=32 {
            assert_eq!((client.reply(0).await.cookie, 0), (cookie, 0));
        }
        // A socket may deliver the batch in a few pieces, never in 32.
        assert!(memory.syncs.load(Ordering::Relaxed) <= 4);
        assert_eq!(memory.flushes.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_write_is_answered_only_after_its_sync() {
    for seed in 0..20 {
        let memory = Memory::new(MIB);
        with_simulated_server(seed, &Shelf::of(&[("a", &memory)]), async |server| {
            let mut client = Client::open(&server.env, &server.address, "a").await;
            memory.close_gate();
            memory.slow_syncs.store(true, Ordering::Relaxed);
            let first = client.request(command::WRITE, 0, 0, 4096, &pattern(4096, 1)).await;
            assert!(client.is_silent(&server.env).await, "its sync is under way");
            assert_eq!(memory.syncs.load(Ordering::Relaxed), 1);
            let reply = client.call(command::READ, 0, 0, 4096, &[]).await;
            assert!(reply.data == pattern(4096, 1), "who reads does not wait");
            let flags = flag::FUA;
            let second = client.request(command::WRITE, flags, 4096, 10, &[2; 10]).await;
            let clear = client.request(command::WRITE_ZEROES, 0, 8192, 10, &[]).await;
            assert!(client.is_silent(&server.env).await);
            memory.gate.add_permits(1);
            assert_eq!(client.reply(0).await.cookie, first);
            assert!(
                client.is_silent(&server.env).await,
                "the sync of the first is none of the others"
            );
            memory.gate.add_permits(2);
            let mut cookies = [client.reply(0).await.cookie, client.reply(0).await.cookie];
            cookies.sort_unstable();
            assert_eq!(cookies, [second, clear]);

            let gate = memory.gate.forget_permits(2);
            assert!(gate <= 1, "one sync may have covered both");
            let flush = client.request(command::FLUSH, 0, 0, 0, &[]).await;
            assert!(client.is_silent(&server.env).await, "nor is a flush answered before its end");
            memory.gate.add_permits(1);
            assert_eq!(client.reply(0).await.cookie, flush);
        });
    }
}

#[test]
fn a_sync_that_fails_fails_all_that_it_covers() {
    let memory = Memory::new(MIB);
    for slow in [false, true] {
        memory.slow_syncs.store(slow, Ordering::Relaxed);
        with_simulated_server(7, &Shelf::of(&[("a", &memory)]), async |server| {
            let mut client = Client::open(&server.env, &server.address, "a").await;
            memory.failing_syncs.store(true, Ordering::Relaxed);
            for command in [command::WRITE, command::WRITE_ZEROES, command::TRIM, command::FLUSH] {
                let length = if command == command::FLUSH { 0 } else { 4 };
                let data: &[u8] = if command == command::WRITE { &[1; 4] } else { &[] };
                let reply = client.call(command, 0, 0, length, data).await;
                assert_ne!(reply.errno, 0, "command {command}");
            }
            memory.failing_syncs.store(false, Ordering::Relaxed);
            assert_eq!(client.call(command::WRITE, 0, 0, 4, &[1; 4]).await.errno, 0);
        });
    }
}

#[test]
fn what_is_slow_holds_up_nothing_else() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.close_gate();
        memory.cold.store(true, Ordering::Relaxed);
        let miss = client.request(command::READ, 0, 0, 4096, &[]).await;
        memory.has_begun(&server.env, 1).await;
        *memory.whim.lock() = Whim::Pending;
        let late = client.request(command::WRITE, 0, 8192, 4, &[7; 4]).await;
        memory.has_begun(&server.env, 2).await;
        memory.cold.store(false, Ordering::Relaxed);
        *memory.whim.lock() = Whim::NeedsSync;
        assert_eq!(client.call(command::READ, 0, 8192, 4, &[]).await.data, [7; 4]);
        assert_eq!(client.call(command::WRITE, 0, 0, 4, &[1; 4]).await.errno, 0);
        memory.gate.add_permits(2);
        let mut cookies = [client.reply(0).await.cookie, client.reply(0).await.cookie];
        cookies.sort_unstable();
        assert_eq!(cookies, [miss, late]);
    });
}

#[test]
fn too_much_that_is_slow_waits_in_the_socket() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.close_gate();
        memory.cold.store(true, Ordering::Relaxed);
        let count = limits::SLOW_REQUESTS_MAX + 50;
        let requests: Vec<u8> =
            (0..count as u64).flat_map(|cookie| header(command::READ, 0, cookie, 0, 512)).collect();
        client.send(&[&requests]).await;
        memory.gate.add_permits(count);
        let mut cookies = Vec::new();
        for _ in 0..count {
            cookies.push(client.reply(0).await.cookie);
        }
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..count as u64));
    });
}

#[test]
fn a_client_that_sends_and_does_not_read_gets_all_its_replies_later() {
    let memory = Memory::new(4 * MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        let requests: Vec<u8> =
            (0..64).flat_map(|cookie| header(command::READ, 0, cookie, 0, MIB as u32)).collect();
        client.send(&[&requests]).await;
        server.env.sleep(Duration::from_millis(50)).await;
        for cookie in 0..64 {
            let reply = client.reply(0).await;
            assert_eq!((reply.cookie, reply.data.len()), (cookie, MIB));
        }
    });
}

#[test]
fn wrong_requests_are_refused_and_the_client_stays() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        let end = MIB as u64;
        for (command, flags, offset, length, expected) in [
            (command::READ, 0, end, 1, errno::EINVAL),
            (command::READ, 0, u64::MAX, 2, errno::EINVAL),
            (command::READ, 0, 0, limits::PAYLOAD_BYTES_MAX + 1, errno::EINVAL),
            (command::READ, flag::REQ_ONE, 0, 1, errno::EINVAL),
            (command::TRIM, 0, end - 1, 2, errno::EINVAL),
            (command::TRIM, flag::NO_HOLE, 0, 2, errno::EINVAL),
            (command::WRITE_ZEROES, 0, 1, u32::MAX, errno::ENOSPC),
            (command::CACHE, 0, end, 1, errno::EINVAL),
            (command::BLOCK_STATUS, 0, 0, 0, errno::EINVAL),
            (command::FLUSH, flag::DF, 0, 0, errno::EINVAL),
            (77, 0, 0, 0, errno::EINVAL),
        ] {
            let reply = client.call(command, flags, offset, length, &[]).await;
            assert_eq!(
                (reply.errno, reply.chunk),
                (expected, Some(chunk::ERROR)),
                "{command} {offset} {length}"
            );
            assert!(!reply.data.is_empty());
        }
        assert_eq!(client.call(command::WRITE, 0, end - 1, 2, &[1, 2]).await.errno, errno::ENOSPC);
        let long = vec![0; 33 * MIB];
        assert_eq!(
            client.call(command::WRITE, 0, 0, 33 * MIB as u32, &long).await.errno,
            errno::EINVAL
        );
        assert_eq!(client.call(command::READ, 0, 5, 0, &[]).await.chunk, Some(chunk::NONE));
        assert_eq!(client.call(command::WRITE, 0, 5, 0, &[]).await.errno, 0);
        memory.broken.store(true, Ordering::Relaxed);
        let reply = client.call(command::READ, 0, 0, 1, &[]).await;
        assert_eq!((reply.errno, &reply.data[..]), (errno::EINVAL, &b"the device is broken"[..]));
        assert_ne!(client.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
    });
}

#[test]
fn a_volume_that_grows_is_as_long_as_it_is_for_clients_old_and_new() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        let end = MIB as u64;
        assert_ne!(client.call(command::WRITE, 0, end, 4, &[1; 4]).await.errno, 0);
        memory.resize(2 * MIB);
        assert_eq!(client.call(command::WRITE, 0, end, 4, &[1; 4]).await.errno, 0);
        assert_eq!(client.call(command::READ, 0, end, 4, &[]).await.data, [1; 4]);
        assert_ne!(client.call(command::READ, 0, 2 * end, 1, &[]).await.errno, 0);
        let mut new = Client::connect(&server.env, &server.address).await;
        let replies = new.option(option::INFO, &query("a", &[])).await;
        assert_eq!(number(&replies[0].1[2..10]), 2 * end, "whoever asks is told");
        memory.resize(MIB / 2);
        let reply = client.call(command::WRITE, 0, end - 8, 8, &[1; 8]).await;
        assert_eq!(reply.errno, errno::ENOSPC);
    });
}

#[test]
fn block_status_tells_data_from_holes() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        client.call(command::WRITE, 0, 8192, 4096, &[1; 4096]).await;
        let pairs = |data: &[u8]| -> Vec<(u64, u64)> {
            data.chunks(8).map(|pair| (number(&pair[..4]), number(&pair[4..]))).collect()
        };
        let reply = client.call(command::BLOCK_STATUS, 0, 100, 20000, &[]).await;
        assert_eq!(pairs(&reply.data), [(8092, 3), (4096, 0), (20100 - 12288, 3)]);
        let reply = client.call(command::BLOCK_STATUS, flag::REQ_ONE, 8192, 20000, &[]).await;
        assert_eq!(pairs(&reply.data), [(4096, 0)]);
    });
}

#[test]
fn garbage_drops_only_the_one_who_sent_it() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut good = Client::open(&server.env, &server.address, "a").await;
        let mut bad = Client::open(&server.env, &server.address, "a").await;
        bad.send(&[b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]).await;
        assert!(bad.is_dropped().await);
        let mut absurd = Client::open(&server.env, &server.address, "a").await;
        absurd.request(command::WRITE, 0, 0, u32::MAX, &[]).await;
        assert!(absurd.is_dropped().await);
        assert_eq!(good.call(command::WRITE, 0, 0, 4, &[1; 4]).await.errno, 0);
    });
}

#[test]
fn goodbye_waits_for_what_was_asked_before() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.close_gate();
        memory.cold.store(true, Ordering::Relaxed);
        let miss = client.request(command::READ, 0, 0, 16, &[]).await;
        client.request(command::DISC, 0, 0, 0, &[]).await;
        memory.gate.add_permits(1);
        assert_eq!(client.reply(0).await.cookie, miss);
        assert!(client.is_dropped().await);
    });
}

#[test]
fn a_client_that_is_gone_leaves_with_its_reads_and_its_writes_go_on() {
    let memory = Memory::new(MIB);
    let shelf = Shelf::of(&[("a", &memory)]);
    let story = async |server: &Server| {
        memory.close_gate();
        memory.cold.store(true, Ordering::Relaxed);
        // One hangs up, one says goodbye first, and one has asked for more than is taken.
        for (reads, goodbye) in [(1, false), (1, true), (300, false)] {
            let mut client = Client::open(&server.env, &server.address, "a").await;
            for _ in 0..reads {
                client.request(command::READ, 0, 0, 16, &[]).await;
            }
            if goodbye {
                client.request(command::DISC, 0, 0, 0, &[]).await;
            }
            server.env.sleep(Duration::from_millis(100)).await;
            drop(client);
            server.env.sleep(Duration::from_millis(2500)).await;
            assert_eq!(server.connections.live(), 0, "{reads} {goodbye}");
        }
        *memory.whim.lock() = Whim::Pending;
        let mut client = Client::open(&server.env, &server.address, "a").await;
        client.request(command::WRITE, 0, 0, 4, &[7; 4]).await;
        server.env.sleep(Duration::from_millis(100)).await;
        drop(client);
        server.env.sleep(Duration::from_millis(2500)).await;
        assert_eq!(server.connections.live(), 1, "a write is not given up");
        memory.gate.add_permits(1);
        server.env.sleep(Duration::from_millis(500)).await;
        assert_eq!(server.connections.live(), 0);
    };
    with_simulated_server(1, &shelf, story);
    with_server(&shelf, story);
}

#[test]
fn a_client_that_closes_its_side_gets_an_answer_to_all_that_it_asked() {
    let memory = Memory::new(4 * MIB);
    let shelf = Shelf::of(&[("a", &memory)]);
    let story = async |server: &Server| {
        for (command, count, length, cold) in [
            (command::READ, 200, 65536, false),
            (command::READ, 1000, 4096, true),
            (command::WRITE, 200, 4096, false),
            (command::READ, 10, MIB as u32, false),
        ] {
            memory.cold.store(cold, Ordering::Relaxed);
            let mut client = Client::open(&server.env, &server.address, "a").await;
            let payload = if command == command::WRITE { pattern(4096, 1) } else { Vec::new() };
            let requests = (0..count)
                .flat_map(|cookie| [&header(command, 0, cookie, 0, length)[..], &payload].concat());
            client.send(&[&requests.collect::<Vec<u8>>()]).await;
            client.stream.shutdown().await.unwrap();
            for answered in 0..count {
                let reply =
                    server.env.timeout(Duration::from_secs(60), client.whole_reply(0)).await;
                let reply = reply.unwrap().unwrap_or_else(|| panic!("{answered} of {count}"));
                assert_eq!(reply.errno, 0);
            }
            assert!(client.is_dropped().await);
        }
    };
    with_simulated_server(1, &shelf, story);
    with_server(&shelf, story);
}

#[test]
fn a_stop_does_not_wait_for_clients_that_do_not_read() {
    for (cold, goodbye) in [(false, false), (true, false), (false, true)] {
        let memory = Memory::new(4 * MIB);
        memory.cold.store(cold, Ordering::Relaxed);
        with_simulated_server(1, &Shelf::of(&[("a", &memory)]), async |server| {
            let mut clients = Vec::new();
            for length in [256 << 10, 2 << 20] {
                let mut client = Client::open(&server.env, &server.address, "a").await;
                for cookie in 0..if goodbye { 1 } else { 8 } {
                    client.send(&[&header(command::READ, 0, cookie, 0, length)]).await;
                }
                if goodbye {
                    client.request(command::DISC, 0, 0, 0, &[]).await;
                }
                clients.push(client);
            }
            server.env.sleep(Duration::from_secs(1)).await;
            let before = server.env.now();
            assert_eq!(server.connections.stop(&server.env, Duration::from_secs(5)).await, 0);
            let took = server.env.now().since(before);
            assert!(took < Duration::from_secs(1), "{took:?}, {cold} {goodbye}");
        });
    }
}

#[test]
fn a_stop_delivers_what_was_begun_to_a_client_that_reads() {
    let memory = Memory::new(4 * MIB);
    with_simulated_server(1, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        client.request(command::READ, 0, 0, 2 << 20, &[]).await;
        server.env.sleep(Duration::from_secs(1)).await;
        let reading = async {
            // The client reads slowly.
            let mut found = 0;
            let mut piece = vec![0; 64 << 10];
            while let Ok(count @ 1..) = client.stream.read(&mut piece).await {
                found += count;
                server.env.sleep(Duration::from_millis(5)).await;
            }
            found
        };
        let stopping = server.connections.stop(&server.env, Duration::from_secs(5));
        let (found, cut_off) = futures_util::future::join(reading, stopping).await;
        assert_eq!((found, cut_off), ((2 << 20) + 28, 0));
    });
}

/// Requests come in batches, hot and cold, at once, staged and late. Each gets one reply, with the
/// data of a model.
#[test]
fn a_random_client_sees_a_disk() {
    const SIZE: u64 = 200_000;
    for seed in 0..20 {
        let memory = Memory::new(SIZE as usize);
        with_simulated_server(seed, &Shelf::of(&[("a", &memory)]), async |server| {
            let mut dice = Random::new(seed);
            let mut model = vec![0; SIZE as usize];
            let mut client = Client::open(&server.env, &server.address, "a").await;
            for _ in 0..60 {
                *memory.whim.lock() =
                    [Whim::Acked, Whim::NeedsSync, Whim::Pending][dice.below(3) as usize];
                memory.cold.store(dice.below(3) == 0, Ordering::Relaxed);
                let mut expected = std::collections::BTreeMap::new();
                // Ranges of one batch do not overlap: the order within a batch is not defined.
                let mut offset = dice.below(1000);
                while offset < SIZE - 40_000 {
                    let length = dice.below(40_000) + 1;
                    let range = offset as usize..(offset + length) as usize;
                    let (cookie, data) = match dice.below(4) {
                        0 => (client.request(command::FLUSH, 0, 0, 0, &[]).await, vec![]),
                        1 => {
                            let cookie =
                                client.request(command::READ, 0, offset, length as u32, &[]).await;
                            (cookie, model[range].to_vec())
                        }
                        2 => {
                            model[range].fill(0);
                            (
                                client.request(command::TRIM, 0, offset, length as u32, &[]).await,
                                vec![],
                            )
                        }
                        _ => {
                            let data = pattern(length as usize, dice.below(250) as u8);
                            model[range].copy_from_slice(&data);
                            (
                                client
                                    .request(command::WRITE, 0, offset, length as u32, &data)
                                    .await,
                                vec![],
                            )
                        }
                    };
                    expected.insert(cookie, data);
                    offset += length + dice.below(50_000);
                }
                while !expected.is_empty() {
                    let reply = client.reply(0).await;
                    assert_eq!(reply.errno, 0);
                    assert!(expected.remove(&reply.cookie).is_some_and(|data| data == reply.data));
                }
            }
        });
    }
}

/// The client sends arbitrary bytes, from the first one on or after a valid beginning. The server
/// survives and serves the next client.
#[test]
fn no_bytes_bring_the_server_down() {
    let memory = Memory::new(MIB);
    for seed in 0..60 {
        with_simulated_server(seed, &Shelf::of(&[("a", &memory)]), async |server| {
            let mut dice = Random::new(seed + 1000);
            let mut client = match seed % 3 {
                0 => Client::connect(&server.env, &server.address).await,
                _ => Client::open(&server.env, &server.address, "a").await,
            };
            for _ in 0..50 {
                let mut bytes: Vec<u8> =
                    (0..dice.below(100)).map(|_| dice.below(256) as u8).collect();
                if seed % 3 == 2 {
                    let (flags, command) = (dice.below(40) as u16, dice.below(10) as u16);
                    let (offset, length) = (dice.below(2 << 20), dice.below(1 << 14) as u32);
                    bytes = header(command, flags, 1, offset, length).to_vec();
                }
                // The server may have hung up.
                if tokio::io::AsyncWriteExt::write_all(&mut client.stream, &bytes).await.is_err() {
                    break;
                }
            }
            drop(client);
            let mut next = Client::open(&server.env, &server.address, "a").await;
            assert_eq!(next.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
        });
    }
}

#[test]
fn the_node_may_stop_while_a_client_waits() {
    let memory = Memory::new(MIB);
    with_simulated_server(1, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut waiting = Client::open(&server.env, &server.address, "a").await;
        let _idle = Client::open(&server.env, &server.address, "a").await;
        memory.close_gate();
        memory.cold.store(true, Ordering::Relaxed);
        let cookie = waiting.request(command::READ, 0, 0, 16, &[]).await;
        server.env.sleep(Duration::from_secs(1)).await;
        let (env, gate) = (server.env.clone(), memory.clone());
        server.env.spawn("gate", async move {
            env.sleep(Duration::from_secs(2)).await;
            gate.gate.add_permits(1);
        });
        assert_eq!(server.connections.stop(&server.env, Duration::from_secs(5)).await, 0);
        assert_eq!(waiting.reply(0).await.cookie, cookie);
        assert!(waiting.is_dropped().await);
    });
}
