//! The client's view of a handshake.

use super::refusal;
use crate::nbd::limits;
use crate::nbd::target::ExportError;
use crate::nbd::testing::{
    Client, Memory, Shelf, header, meta, number, query, with_server, with_simulated_server,
};
use crate::nbd::wire::{command, errno, info, option, reply, transmission};
use rekindle_base::Kind;
use rekindle_volume::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const MIB: usize = 1 << 20;

fn text(data: &[u8]) -> &str {
    std::str::from_utf8(data).unwrap()
}

#[test]
fn an_export_tells_what_it_is() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("disk", &memory)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        let items = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 99];
        client.option(option::STRUCTURED_REPLY, &[]).await;
        for which in [option::INFO, option::GO] {
            let replies = client.option(which, &query("disk", &items)).await;
            let kinds: Vec<u32> = replies.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, [reply::INFO, reply::INFO, reply::INFO, reply::INFO, reply::ACK]);
            let export = &replies[0].1;
            assert_eq!((number(&export[..2]), number(&export[2..10])), (0, MIB as u64));
            assert_eq!(number(&export[10..]), u64::from(transmission::STRUCTURED));
            assert_eq!(text(&replies[1].1[2..]), "disk");
            assert_eq!(text(&replies[2].1[2..]), "Rekindle block volume, 1 MiB");
            let sizes: Vec<u64> = replies[3].1[2..].chunks(4).map(number).collect();
            assert_eq!(sizes, [1, 16384, 32 << 20]);
        }
        assert_eq!(client.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
    });
}

#[test]
fn names_are_listed_and_unknown_ones_explained() {
    let (one, two) = (Memory::new(MIB), Memory::new(MIB));
    with_server(&Shelf::of(&[("one", &one), ("two", &two)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        let replies = client.option(option::LIST, &[]).await;
        assert_eq!(replies[0], (reply::SERVER, b"\0\0\0\x03one".to_vec()));
        assert_eq!((replies[1].0, replies[2].0), (reply::SERVER, reply::ACK));
        let replies = client.option(option::GO, &query("three", &[])).await;
        assert_eq!(
            (replies[0].0, text(&replies[0].1)),
            (reply::ERR_UNKNOWN, "no volume is called 'three'")
        );
        let replies = client.option(option::GO, &query("", &[])).await;
        assert_eq!(
            (replies[0].0, text(&replies[0].1)),
            (reply::ERR_UNKNOWN, "which volume? There are 2: one, two")
        );
        assert_eq!(client.option(option::ABORT, &[]).await[0].0, reply::ACK);
        assert!(client.is_dropped().await);
    });
}

#[test]
fn no_name_means_the_only_volume() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("only", &memory)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        let replies = client.option(option::GO, &query("", &[info::NAME])).await;
        assert_eq!(text(&replies[1].1[2..]), "only");
    });
}

#[test]
fn old_clients_are_served_with_simple_replies() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("disk", &memory)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        client.send(&[b"IHAVEOPT", &[0, 0, 0, 1], &[0, 0, 0, 4], b"disk"]).await;
        let export = client.take(10).await;
        assert_eq!(number(&export[..8]), MIB as u64);
        assert_eq!(number(&export[8..]), u64::from(transmission::SIMPLE));
        assert_eq!(client.call(command::WRITE, 0, 1, 3, b"abc").await.errno, 0);
        client.request(command::READ, 0, 0, 5, &[]).await;
        let reply = client.reply(5).await;
        assert_eq!((reply.chunk, &reply.data[..]), (None, &b"\0abc\0"[..]));
        assert_eq!(client.call(command::READ, 0, MIB as u64, 1, &[]).await.errno, errno::EINVAL);
        assert_eq!(client.call(command::BLOCK_STATUS, 0, 0, 1, &[]).await.errno, errno::EINVAL);

        let mut unknown = Client::connect(&server.env, &server.address).await;
        unknown.send(&[b"IHAVEOPT", &[0, 0, 0, 1], &[0, 0, 0, 4], b"what"]).await;
        assert!(unknown.is_dropped().await);
    });
}

#[test]
fn contexts_need_structured_replies_and_the_same_export() {
    let (one, two) = (Memory::new(MIB), Memory::new(MIB));
    with_server(&Shelf::of(&[("one", &one), ("two", &two)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        let set = meta("one", &["base:allocation"]);
        assert_eq!(client.option(option::SET_META_CONTEXT, &set).await[0].0, reply::ERR_INVALID);
        client.option(option::STRUCTURED_REPLY, &[]).await;
        for queries in [&[][..], &["base:"], &["x:y", "base:allocation"]] {
            let replies = client.option(option::LIST_META_CONTEXT, &meta("one", queries)).await;
            assert_eq!(replies[0], (reply::META_CONTEXT, b"\0\0\0\0base:allocation".to_vec()));
            assert_eq!(replies[1].0, reply::ACK);
        }
        for queries in [&[][..], &["base:"], &["base:dirty"]] {
            assert_eq!(
                client.option(option::SET_META_CONTEXT, &meta("one", queries)).await[0].0,
                reply::ACK
            );
        }
        assert_eq!(client.option(option::SET_META_CONTEXT, &set).await.len(), 2);
        client.option(option::GO, &query("two", &[])).await;
        assert_eq!(client.call(command::BLOCK_STATUS, 0, 0, 1, &[]).await.errno, errno::EINVAL);
    });
}

#[test]
fn wrong_options_are_refused_and_the_client_stays() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("disk", &memory)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        let long = "x".repeat(limits::STRING_BYTES_MAX + 1);
        let bulky = vec![0; limits::OPTION_BYTES_MAX as usize + 1];
        for (which, data, expected) in [
            (option::STARTTLS, &[][..], reply::ERR_UNSUP),
            (option::STARTTLS, &[1], reply::ERR_INVALID),
            (option::LIST, &[1], reply::ERR_INVALID),
            (option::STRUCTURED_REPLY, &[1], reply::ERR_INVALID),
            (option::GO, &[], reply::ERR_INVALID),
            (option::GO, &[0xff; 20], reply::ERR_INVALID),
            (option::GO, &query(&long, &[]), reply::ERR_INVALID),
            (option::GO, &[0, 0, 0, 1, 0xff, 0, 0], reply::ERR_INVALID),
            (option::INFO, &[&query("disk", &[1])[..], &[0]].concat(), reply::ERR_INVALID),
            (option::LIST_META_CONTEXT, &[0, 0, 0, 0, 0, 0, 0, 9], reply::ERR_INVALID),
            (11, &[1, 2, 3], reply::ERR_UNSUP),
            (4711, &[], reply::ERR_UNSUP),
            (4711, &bulky, reply::ERR_TOO_BIG),
        ] {
            let replies = client.option(which, data).await;
            assert_eq!(replies[0].0, expected, "option {which}");
            assert!(!replies[0].1.is_empty());
        }
        client.option(option::GO, &query("disk", &[])).await;
        assert_eq!(client.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
    });
}

#[test]
fn what_has_no_answer_that_says_no_is_hung_up_on_when_it_is_too_long() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("disk", &memory)]), async |server| {
        for which in [option::EXPORT_NAME, option::ABORT] {
            let mut client = Client::connect(&server.env, &server.address).await;
            let length = limits::OPTION_BYTES_MAX + 1;
            client.send(&[b"IHAVEOPT", &which.to_be_bytes(), &length.to_be_bytes()]).await;
            assert!(client.is_dropped().await, "option {which}");
        }
        let mut client = Client::connect(&server.env, &server.address).await;
        let replies =
            client.option(option::GO, &vec![0; limits::OPTION_BYTES_MAX as usize + 1]).await;
        assert_eq!(replies[0].0, reply::ERR_TOO_BIG, "others are answered");
    });
}

#[test]
fn strangers_are_dropped() {
    let memory = Memory::new(MIB);
    with_server(&Shelf::of(&[("disk", &memory)]), async |server| {
        for opening in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff"] {
            let mut client = Client::connect(&server.env, &server.address).await;
            client.send(&[opening]).await;
            assert!(client.is_dropped().await);
        }
    });
}

#[test]
fn a_silent_client_is_dropped_a_slow_one_is_not() {
    let memory = Memory::new(MIB);
    with_simulated_server(1, &Shelf::of(&[("disk", &memory)]), async |server| {
        let mut silent = Client::connect(&server.env, &server.address).await;
        let mut slow = Client::connect(&server.env, &server.address).await;
        for _ in 0..5 {
            server.env.sleep(limits::HANDSHAKE_TIME_MAX * 2 / 3).await;
            slow.option(option::LIST, &[]).await;
        }
        slow.option(option::GO, &query("disk", &[])).await;
        assert!(silent.is_dropped().await);
        // After the handshake a client may be idle for ever.
        server.env.sleep(std::time::Duration::from_secs(3600)).await;
        assert_eq!(slow.call(command::FLUSH, 0, 0, 0, &[]).await.errno, 0);
    });
}

#[test]
fn a_store_that_refuses_us_is_no_mistake_of_the_client() {
    assert_eq!(refusal(Kind::Refused), reply::ERR_PLATFORM);
    assert_eq!(Kind::Refused.errno(), 5, "EIO");
}

#[test]
fn who_asks_for_a_volume_that_is_away_and_hangs_up_leaves_nothing() {
    let memory = Memory::new(MIB);
    memory.away.store(true, Ordering::Relaxed);
    memory.close_gate();
    with_simulated_server(1, &Shelf::of(&[("disk", &memory)]), async |server| {
        let set = [&b"IHAVEOPT\0\0\0\x08\0\0\0\0"[..]].concat();
        for (number, data) in [
            (option::GO, query("disk", &[])),
            (option::INFO, query("disk", &[])),
            (option::EXPORT_NAME, b"disk".to_vec()),
            (option::SET_META_CONTEXT, meta("disk", &["base:allocation"])),
        ] {
            let mut client = Client::connect(&server.env, &server.address).await;
            let length = u32::try_from(data.len()).unwrap().to_be_bytes();
            let asking = [&b"IHAVEOPT"[..], &number.to_be_bytes(), &length, &data].concat();
            client.send(&[&set, &asking]).await;
            client.take(20).await;
            server.env.sleep(Duration::from_secs(60)).await;
            assert_eq!(server.connections.live(), 1, "option {number}: it may wait");
            drop(client);
            server.env.sleep(Duration::from_secs(1)).await;
            assert_eq!(server.connections.live(), 0, "option {number}");
        }
    });
}

#[test]
fn who_sends_everything_at_once_and_closes_its_side_is_served() {
    let memory = Memory::new(MIB);
    memory.away.store(true, Ordering::Relaxed);
    memory.close_gate();
    with_simulated_server(1, &Shelf::of(&[("disk", &memory)]), async |server| {
        let mut client = Client::connect(&server.env, &server.address).await;
        let data = query("disk", &[]);
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        let flush = header(command::FLUSH, 0, 7, 0, 0);
        client.send(&[b"IHAVEOPT", &option::GO.to_be_bytes(), &length, &data, &flush]).await;
        client.stream.shutdown().await.unwrap();
        server.env.sleep(Duration::from_secs(5)).await;
        memory.gate.add_permits(1);
        client.take(20 + 12 + 20).await;
        assert_eq!(client.reply(0).await.cookie, 7);
        assert!(client.is_dropped().await);
    });
}

#[test]
fn a_volume_of_another_kind_is_refused_by_name() {
    let (name, kind) = ("x".to_owned(), "map".to_owned());
    let refused = ExportError::from(Error::OtherKind { name, kind, wanted: "block" });
    assert_eq!(refused.message, "volume 'x' is a 'map' volume; NBD serves block volumes");
    assert_eq!(refusal(refused.kind), reply::ERR_POLICY);
}
