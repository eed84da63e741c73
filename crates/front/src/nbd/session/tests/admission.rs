//! Writes that wait for a quantum of the log.

use super::{MIB, pattern};
use crate::nbd::testing::{Client, Memory, Shelf, with_simulated_server};
use crate::nbd::wire::{command, errno};
use std::sync::atomic::Ordering;

const PIECE: usize = 256 << 10;

#[test]
fn a_write_waits_for_quanta_piece_by_piece_and_holds_up_no_other_client() {
    let (streamed, other) = (Memory::new(4 * MIB), Memory::new(MIB));
    let shelf = Shelf::of(&[("stream", &streamed), ("other", &other)]);
    with_simulated_server(1, &shelf, async |server| {
        let mut stream = Client::open(&server.env, &server.address, "stream").await;
        streamed.free_bytes.store(0, Ordering::Relaxed);
        let data = pattern(MIB, 1);
        stream.request(command::WRITE, 0, 512, MIB as u32, &data).await;
        for pieces in 0..4 {
            assert!(stream.is_silent(&server.env).await);
            assert_eq!(streamed.begun(), pieces, "a quantum has the bytes of one piece");
            let mut other = Client::open(&server.env, &server.address, "other").await;
            assert_eq!(other.call(command::WRITE, 0, 0, 4, &[7; 4]).await.errno, 0);
            streamed.quanta.add_permits(1);
        }
        assert_eq!(stream.reply(0).await.errno, 0);
        let found = stream.call(command::READ, 0, 512, MIB as u32, &[]).await.data;
        assert!(found == data);
    });
}

#[test]
fn the_rest_of_a_quantum_is_not_kept_for_later_writes() {
    let memory = Memory::new(MIB);
    with_simulated_server(1, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.free_bytes.store(0, Ordering::Relaxed);
        for begun in 0..3 {
            client.request(command::WRITE, 0, 0, 4096, &pattern(4096, 2)).await;
            assert!(client.is_silent(&server.env).await);
            assert_eq!(memory.begun(), begun);
            memory.quanta.add_permits(1);
            assert_eq!(client.reply(0).await.errno, 0);
        }
    });
}

#[test]
fn writes_that_are_not_acknowledged_count_as_under_way() {
    let memory = Memory::new(4 * MIB);
    with_simulated_server(1, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.close_gate();
        memory.slow_syncs.store(true, Ordering::Relaxed);
        memory.free_bytes.store(16 * 4096, Ordering::Relaxed);
        for at in 0..20u64 {
            client.request(command::WRITE, 0, at * 4096, 4096, &pattern(4096, 3)).await;
        }
        assert!(client.is_silent(&server.env).await);
        assert_eq!(memory.begun(), 16);
        // The last four go on when the others are acknowledged, without a quantum.
        memory.gate.add_permits(40);
        for _ in 0..20 {
            assert_eq!(client.reply(0).await.errno, 0);
        }
        assert_eq!(memory.begun(), 20);
    });
}

#[test]
fn a_write_that_is_refused_in_the_middle_leaves_nothing_to_the_next() {
    let memory = Memory::new(4 * MIB);
    with_simulated_server(1, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.free_bytes.store(0, Ordering::Relaxed);
        client.request(command::WRITE, 0, 0, MIB as u32, &pattern(MIB, 1)).await;
        memory.quanta.add_permits(1);
        assert!(client.is_silent(&server.env).await);
        memory.resize(MIB / 2);
        memory.quanta.add_permits(1);
        assert_eq!(client.reply(0).await.errno, errno::ENOSPC);
        memory.free_bytes.store(u64::MAX, Ordering::Relaxed);
        let data = pattern(PIECE + 4096, 9);
        let length = data.len() as u32;
        assert_eq!(client.call(command::WRITE, 0, 0, length, &data).await.errno, 0);
        assert!(client.call(command::READ, 0, 0, length, &[]).await.data == data);
    });
}
