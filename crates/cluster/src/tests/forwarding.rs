//! Sessions of clients at other hosts.

use super::*;
use crate::connection::Connection;
use crate::forward::{NoPassage, Passage};
use crate::hello;
use crate::limits::PEERS_MAX;
use crate::wire::{Message, Protocol, Serve, Unserved};
use rekindle_base::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(3);

fn serve_request(volume: &str) -> Serve {
    Serve { client: [4; 16], volume: volume.to_owned(), protocol: Protocol::Nbd }
}

impl Pair {
    async fn forward(&self, owner: NodeId, volume: &str) -> Result<Passage, NoPassage> {
        let calls = calls(&self.owner.env(), life(OWNER, 1), self.records.clone());
        calls.forward(owner, &serve_request(volume)).await
    }
}

async fn echoes(passage: &mut Passage, bytes: &[u8]) {
    passage.stream.write_all(bytes).await.expect("it listens");
    let mut found = vec![0; bytes.len()];
    passage.stream.read_exact(&mut found).await.expect("it answers");
    assert!(found == bytes);
}

fn why(refused: Result<Passage, NoPassage>) -> String {
    match refused.err().expect("it is refused") {
        NoPassage::Away(why) => why,
        NoPassage::Refused(unserved) => panic!("{unserved:?}"),
    }
}

#[test]
fn what_follows_the_reply_passes_as_it_is_and_takes_no_place_of_peers() {
    let pair = Pair::new(1);
    pair.world.block_on(async {
        pair.holder().await;
        let mut passages = Vec::new();
        for _ in 0..PEERS_MAX + 4 {
            let passage = pair.forward(HOLDER, "vm1").await;
            passages.push(passage.unwrap_or_else(|_| panic!("session {}", passages.len())));
        }
        for (at, passage) in passages.iter_mut().enumerate() {
            assert_eq!((passage.served.volume, passage.served.size), (VOLUME, 1 << 20));
            echoes(passage, &payload(at as u64, 100_000)).await;
        }
        // No time-out of peers applies.
        pair.world.env().sleep(Duration::from_secs(3600)).await;
        echoes(&mut passages[0], b"still there").await;
        pair.peer(1).begin().await.expect("owners have their places");
    });
}

#[test]
fn the_owners_host_says_why_not_and_whether_to_look_elsewhere() {
    let pair = Pair::new(2);
    pair.world.block_on(async {
        pair.holder().await;
        let not_found = Unserved { kind: Some(Kind::NotFound), reason: "not this one".to_owned() };
        for name in ["vm2", "", "../x", &"x".repeat(1000)] {
            let refused = pair.forward(HOLDER, name).await.err();
            assert_eq!(refused, Some(NoPassage::Refused(not_found.clone())), "{name}");
        }
        let moved = why(pair.forward(HOLDER, "elsewhere").await);
        assert!(moved.contains("not this one"), "{moved}");
        let missing = why(pair.forward(NodeId([1; 16]), "vm1").await);
        assert!(missing.contains("no record"), "{missing}");
        // The record of a node that was taken over leads to the host that runs it.
        let guest = NodeId([6; 16]);
        pair.records.put(Entry { node: guest, host: HOLDER, ..entry(HOLDER, 3, address()) });
        let mut passage = pair.forward(guest, "vm1").await.unwrap_or_else(|_| panic!("a session"));
        echoes(&mut passage, b"at the guest's host").await;
        let calls = calls(&pair.owner.env(), life(OWNER, 1), pair.records.clone());
        assert!(!calls.has_moved(passage.place).await);
        pair.records.change(guest, |entry| entry.incarnation = Incarnation(4));
        assert!(calls.has_moved(passage.place).await);
        // This host may be the one, a moment before it serves.
        pair.records.change(guest, |entry| entry.host = OWNER);
        assert!(why(pair.forward(guest, "vm1").await).contains("does not serve yet"));
        pair.kill_holder(false);
        let dead = why(pair.forward(HOLDER, "vm1").await);
        assert!(dead.contains("which owns it, runs at the host of node"), "{dead}");
    });
}

/// A host that proves itself, reads one request, and answers with these frames.
fn answers(pair: &Pair, reply: Option<Message<'static>>) {
    let env = pair.holder.env();
    env.clone().spawn("answers", async move {
        let place = "tcp:10.0.0.3:7000".parse().expect("an address");
        let acceptor = env.net().listen(&place).await.expect("a port");
        let stream = acceptor.accept().await.expect("a peer")().expect("a stream");
        let mut connection = Connection::new(&env, stream);
        let identity = hello::Identity {
            secret: SECRET,
            store: STORE,
            life: life(NodeId([3; 16]), 1),
            binding: [0; 32],
        };
        hello::answer(&env, &mut connection, &identity).await.expect("one of us");
        connection.send(&Message::Done(0)).await.expect("it listens");
        let request = connection.receive(PATIENCE, 2048).await;
        assert!(matches!(request, Ok(Message::Serve(_))), "{request:?}");
        match reply {
            Some(reply) => connection.send(&reply).await.expect("it listens"),
            None => connection.send_raw(&[0x52; 40]).await,
        }
        env.sleep(PATIENCE).await;
    });
    let there = NodeId([3; 16]);
    let place = "tcp:10.0.0.3:7000".parse().expect("an address");
    pair.records.put(Entry { node: there, host: there, ..entry(there, 1, place) });
}

#[test]
fn an_older_host_and_one_that_answers_with_garbage_are_clear_errors() {
    let cases: [(Option<Message<'static>>, &str); 3] = [
        // The words of a host that does not know the request.
        (
            Some(Message::Refused("a frame from the other end is damaged".to_owned())),
            "upgrade rekindle there",
        ),
        (Some(Message::Done(3)), "does not answer as it should"),
        (None, "does not speak the protocol of peers"),
    ];
    for (reply, told) in cases {
        let pair = Pair::new(3);
        pair.world.block_on(async {
            pair.holder().await;
            answers(&pair, reply);
            pair.world.env().sleep(SHORT).await;
            let refused = why(pair.forward(NodeId([3; 16]), "vm1").await);
            assert!(refused.contains(told), "{refused}");
        });
    }
}
