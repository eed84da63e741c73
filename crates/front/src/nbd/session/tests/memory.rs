//! The memory of all sessions together.

use super::{MIB, pattern};
use crate::nbd::limits;
use crate::nbd::testing::{Client, Memory, Server, Shelf, Whim, header, with_budget};
use crate::nbd::wire::command;
use rekindle_base::limits::CHANGE_BYTES_MAX;
use rekindle_env::Address;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LONG: u32 = 2 * MIB as u32;

/// Checks that the budget is kept while a story runs.
fn watch(server: &Server) {
    let (env, budget) = (server.env.clone(), server.connections.budget().clone());
    server.env.spawn("watch", async move {
        loop {
            assert!(budget.used() <= budget.bytes_max());
            env.sleep(Duration::from_millis(100)).await;
        }
    });
}

/// Opens clients that ask for much and do not read: they hold all memory that they can get, and
/// wait for more.
async fn hold_all(server: &Server, address: &Address) -> Vec<Client> {
    let mut silent = Vec::new();
    for _ in 0..6 {
        let mut client = Client::open(&server.env, address, "a").await;
        for cookie in 0..4 {
            client.send(&[&header(command::READ, 0, cookie, 0, LONG)]).await;
        }
        silent.push(client);
    }
    server.env.sleep(Duration::from_secs(1)).await;
    assert!(server.connections.budget().used() > 4 * MIB);
    silent
}

/// Checks that the short requests of a client do not wait for memory.
async fn check_short_requests(server: &Server, client: &mut Client) {
    let before = server.env.now();
    let length = limits::BUFFER_BYTES as u32 - 4096;
    for length in [4096, length] {
        let data = pattern(length as usize, 9);
        assert_eq!(client.call(command::WRITE, 0, 0, length, &data).await.errno, 0);
        assert!(client.call(command::READ, 0, 0, length, &[]).await.data == data);
    }
    assert!(server.env.now().since(before) < Duration::from_millis(500), "it had to wait");
}

#[test]
fn half_sent_writes_share_one_budget_and_those_that_stall_make_room() {
    let memory = Memory::new(8 * MIB);
    with_budget(1, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        watch(server);
        let mut short = Client::open(&server.env, &server.address, "a").await;
        let mut stalled = Vec::new();
        for _ in 0..8 {
            let mut client = Client::open(&server.env, &server.address, "a").await;
            client.send(&[&header(command::WRITE, 0, 1, 0, LONG), &[1; 1000]]).await;
            stalled.push(client);
        }
        server.env.sleep(Duration::from_secs(1)).await;
        let budget = server.connections.budget();
        assert!(budget.is_wanted() && budget.used() > 4 * MIB, "{}", budget.used());
        check_short_requests(server, &mut short).await;

        let mut honest = Client::open(&server.env, &server.address, "a").await;
        let data = pattern(LONG as usize, 5);
        let before = server.env.now();
        assert_eq!(honest.call(command::WRITE, 0, 0, LONG, &data).await.errno, 0);
        let waited = server.env.now().since(before);
        assert!(waited < Duration::from_secs(60), "{waited:?}");
        assert!(stalled[0].is_dropped().await && stalled[1].is_dropped().await);
        assert!(honest.call(command::READ, 0, 0, LONG, &[]).await.data == data);
        drop(stalled);
        server.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(budget.used(), 0, "clients that are idle hold nothing");
    });
}

#[test]
fn clients_that_never_read_share_one_budget_and_make_room_when_others_wait() {
    let memory = Memory::new(8 * MIB);
    for cold in [false, true] {
        memory.cold.store(cold, Ordering::Relaxed);
        with_budget(2, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
            watch(server);
            let mut short = Client::open(&server.env, &server.address, "a").await;
            let _silent = hold_all(server, &server.address).await;
            assert!(server.connections.budget().is_wanted());
            if !cold {
                check_short_requests(server, &mut short).await;
            }
            let mut honest = Client::open(&server.env, &server.address, "a").await;
            let before = server.env.now();
            let reply = honest.call(command::READ, 0, 0, LONG, &[]).await;
            assert_eq!(reply.data.len(), LONG as usize);
            let waited = server.env.now().since(before);
            assert!(waited < Duration::from_secs(120), "{waited:?}");
        });
    }
}

#[test]
fn a_stop_waits_for_no_client_whose_reads_wait_for_memory_of_others_that_do_not_read() {
    let memory = Memory::new(8 * MIB);
    for cold in [false, true] {
        memory.cold.store(cold, Ordering::Relaxed);
        with_budget(2, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
            let _silent = hold_all(server, &server.address).await;
            assert!(server.connections.budget().is_wanted());
            let before = server.env.now();
            assert_eq!(server.connections.stop(&server.env, Duration::from_secs(5)).await, 0);
            let took = server.env.now().since(before);
            assert!(took < Duration::from_secs(2), "{took:?}");
        });
    }
}

#[test]
fn questions_for_extents_hold_memory_of_the_budget() {
    let memory = Memory::new(8 * MIB);
    with_budget(5, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        memory.close_gate();
        memory.slow_extents.store(true, Ordering::Relaxed);
        let mut client = Client::open(&server.env, &server.address, "a").await;
        for cookie in 0..200 {
            client.send(&[&header(command::BLOCK_STATUS, 0, cookie, 0, LONG)]).await;
        }
        server.env.sleep(Duration::from_secs(1)).await;
        assert!(server.connections.budget().used() > 4 * MIB);
        memory.gate.add_permits(200);
        for _ in 0..200 {
            assert_eq!(client.reply(0).await.errno, 0);
        }
        server.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(server.connections.budget().used(), 0);
    });
}

#[test]
fn a_client_that_pauses_is_kept_while_nobody_wants_its_memory() {
    let memory = Memory::new(8 * MIB);
    with_budget(3, 16 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut paused = Client::open(&server.env, &server.address, "a").await;
        for cookie in 0..4 {
            paused.send(&[&header(command::READ, 0, cookie, 0, LONG)]).await;
        }
        server.env.sleep(Duration::from_secs(600)).await;
        let mut other = Client::open(&server.env, &server.address, "a").await;
        assert_eq!(other.call(command::READ, 0, 0, LONG, &[]).await.errno, 0);
        for _ in 0..4 {
            assert_eq!(paused.reply(0).await.data.len(), LONG as usize);
        }
    });
}

#[test]
fn long_writes_that_wait_in_the_volume_keep_their_lease() {
    let memory = Memory::new(8 * MIB);
    with_budget(4, 16 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        let budget = server.connections.budget();
        let mut client = Client::open(&server.env, &server.address, "a").await;
        memory.close_gate();
        *memory.whim.lock() = Whim::Pending;
        client.request(command::WRITE, 0, 0, LONG, &pattern(LONG as usize, 1)).await;
        client.request(command::WRITE, 0, 0, LONG, &pattern(LONG as usize, 2)).await;
        server.env.sleep(Duration::from_secs(30)).await;
        assert!(budget.used() >= 4 * MIB, "{}", budget.used());
        // The volume gets a long write in pieces.
        memory.gate.add_permits(2 * LONG as usize / CHANGE_BYTES_MAX as usize);
        for _ in 0..2 {
            assert_eq!(client.reply(0).await.errno, 0);
        }
        server.env.sleep(Duration::from_secs(5)).await;
        assert_eq!(budget.used(), 0);
    });
}

#[test]
fn clients_that_keep_a_buffer_and_want_a_larger_one_do_not_wait_for_each_other() {
    let memory = Memory::new(8 * MIB);
    with_budget(5, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        let larger = 2 * LONG;
        let data = pattern(larger as usize, 3);
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(Client::open(&server.env, &server.address, "a").await);
        }
        for client in &mut clients {
            let reply = client.call(command::WRITE, 0, 0, LONG, &data[..LONG as usize]).await;
            assert_eq!(reply.errno, 0);
        }
        assert!(server.connections.budget().used() > 4 * MIB, "each keeps its buffer for a moment");
        let writes = clients.iter_mut().map(|client| async {
            let before = server.env.now();
            assert_eq!(client.call(command::WRITE, 0, 0, larger, &data).await.errno, 0);
            server.env.now().since(before)
        });
        for waited in futures_util::future::join_all(writes).await {
            assert!(waited < Duration::from_secs(8), "{waited:?}");
        }
    });
}

#[test]
fn a_burst_of_short_requests_does_not_wait_for_memory_that_others_hold() {
    let memory = Memory::new(8 * MIB);
    with_budget(6, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut good = Client::open(&server.env, &server.address, "a").await;
        let _silent = hold_all(server, &server.address).await;
        memory.cold.store(true, Ordering::Relaxed);
        *memory.whim.lock() = Whim::Pending;
        let before = server.env.now();
        let burst = async {
            for cookie in 0..256 {
                good.send(&[&header(command::READ, 0, cookie, cookie << 12, 4096)]).await;
            }
            for _ in 0..256 {
                assert_eq!(good.reply(0).await.errno, 0);
            }
            for cookie in 0..64 {
                let write = header(command::WRITE, 0, cookie, cookie << 12, 65536);
                good.send(&[&write, &[1; 65536]]).await;
                good.send(&[&header(command::CACHE, 0, cookie, 0, LONG)]).await;
            }
            for _ in 0..128 {
                assert_eq!(good.reply(0).await.errno, 0);
            }
        };
        assert!(server.env.timeout(Duration::from_secs(100), burst).await.is_ok(), "no answer");
        let took = server.env.now().since(before);
        assert!(took < Duration::from_secs(5), "it had to wait for others: {took:?}");
        assert!(server.connections.budget().is_wanted());
    });
}

#[test]
fn clients_that_take_or_send_a_few_bytes_now_and_then_make_room() {
    let memory = Memory::new(8 * MIB);
    with_budget(7, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut writer = Client::open(&server.env, &server.address, "a").await;
        writer.send(&[&header(command::WRITE, 0, 1, 0, LONG)]).await;
        let env = server.env.clone();
        server.env.spawn("writer", async move {
            while writer.stream.write_all(&[1; 3000]).await.is_ok() {
                env.sleep(Duration::from_secs(1)).await;
            }
        });
        for mut reader in hold_all(server, &server.address).await {
            let env = server.env.clone();
            server.env.spawn("reader", async move {
                while let Ok(1..) = reader.stream.read(&mut [0; 3000]).await {
                    env.sleep(Duration::from_secs(1)).await;
                }
            });
        }
        let mut honest = Client::open(&server.env, &server.address, "a").await;
        let call = honest.call(command::READ, 0, 0, LONG, &[]);
        let reply = server.env.timeout(Duration::from_secs(200), call).await;
        assert_eq!(reply.expect("an answer in the end").data.len(), LONG as usize);
    });
}

#[test]
fn a_client_that_is_merely_slow_is_kept_while_others_wait() {
    let memory = Memory::new(8 * MIB);
    with_budget(8, 5 * MIB, &Shelf::of(&[("a", &memory)]), async |server| {
        let mut slow = Client::open(&server.env, &server.address, "a").await;
        for cookie in 0..20 {
            slow.send(&[&header(command::READ, 0, cookie, 0, 2 * LONG)]).await;
        }
        server.env.sleep(Duration::from_secs(1)).await;
        let mut other = Client::open(&server.env, &server.address, "a").await;
        let waiting = other.call(command::READ, 0, 0, 2 * LONG, &[]);
        let taking = async {
            let bytes = 20 * (2 * LONG as usize + 28);
            let pace = limits::RATE_BYTES_MIN / 4 * 5;
            for start in (0..bytes).step_by(pace) {
                slow.take(pace.min(bytes - start)).await;
                server.env.sleep(Duration::from_secs(1)).await;
            }
        };
        let (reply, ()) = futures_util::future::join(waiting, taking).await;
        assert_eq!(reply.data.len(), 2 * LONG as usize);
    });
}

#[test]
fn strangers_at_a_port_do_not_reach_the_memory_of_the_socket() {
    let memory = Memory::new(8 * MIB);
    let shelf = Shelf::of(&[("a", &memory)]);
    with_budget(9, 10 * MIB, &shelf, async |server| {
        watch(server);
        let port = server.listen("tcp:127.0.0.1:10809", &shelf).await;
        let _silent = hold_all(server, &port).await;
        let mut guest = Client::open(&server.env, &server.address, "a").await;
        let before = server.env.now();
        for _ in 0..3 {
            let data = pattern(LONG as usize, 5);
            assert_eq!(guest.call(command::WRITE, 0, 0, LONG, &data).await.errno, 0);
            assert!(guest.call(command::READ, 0, 0, LONG, &[]).await.data == data);
        }
        let took = server.env.now().since(before);
        assert!(took < Duration::from_secs(5), "it had to wait for strangers: {took:?}");
        let mut stranger = Client::open(&server.env, &port, "a").await;
        assert_eq!(stranger.call(command::READ, 0, 0, LONG, &[]).await.errno, 0, "its turn comes");
    });
}
