//! Ends that lie, send garbage, or say nothing.

use super::*;
use crate::connection::Connection;
use crate::hello;
use crate::limits::{HELLO_TIME_MAX, IDLE_TIME_MAX, STRANGERS_MAX};
use crate::wire::{Hello, Message};
use rekindle_base::random::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(3);

async fn connect(pair: &Pair) -> Connection {
    let env = pair.owner.env();
    let stream = env.net().connect(&address()).await.expect("the holder listens");
    Connection::new(&env, stream)
}

/// A holder that serves is still well: an owner can copy to it.
async fn is_well(pair: &Pair) {
    let peer = pair.peer(1);
    peer.begin().await.expect("the holder is well");
}

async fn proven(pair: &Pair) -> Connection {
    let mut connection = connect(pair).await;
    hello::ask(&pair.owner.env(), &mut connection, &identity(), HOLDER)
        .await
        .expect("it is one of us");
    connection
}

#[test]
fn another_secret_another_store_and_the_node_itself_are_refused_at_both_ends() {
    let pair = Pair::new(1);
    pair.world.block_on(async {
        pair.holder().await;
        let refused = async |life: Life, change: fn(Calls) -> Calls| {
            pair.peer_as(life, change).begin().await.expect_err("refused")
        };
        let owner = life(OWNER, 1);
        let why = refused(owner, |calls| Calls { secret: Secret([41; 32]), ..calls }).await;
        assert_eq!(why, "the other end does not know this cluster's secret");
        let why = refused(owner, |calls| Calls { store: StoreId([4; 16]), ..calls }).await;
        assert_eq!(why, "the other end belongs to another store");
        let why = refused(life(HOLDER, 3), |calls| calls).await;
        assert_eq!(why, "a node keeps no copies of its own log");
        let why = refused(life(NodeId([1; 16]), 1), |calls| calls).await;
        assert!(why.contains("the store has no record of node 0101"), "{why}");
        let long = calls(&pair.owner.env(), owner, pair.records.clone());
        let long = Peer::new(&Arc::new(long), owner, HOLDER, vec![0; 65 << 10]);
        let why = long.begin().await.expect_err("refused");
        assert_eq!(why, "node.json is too long to be copied");
        is_well(&pair).await;
    });
    assert!(pair.holder.peek(held(HOLDER).join("node.json")).is_none());
}

#[test]
fn a_proof_is_good_for_the_two_ends_of_one_handshake() {
    let hello = |nonce| Hello { store: STORE, life: life(OWNER, 1), nonce: [nonce; 32] };
    let on = |binding| Identity { binding: [binding; 32], ..identity() };
    // What an end between the two could repeat: the same role, the same hellos.
    let proof = |binding| on(binding).proof(b"caller", &hello(1), &hello(2));
    assert_eq!(proof(1), proof(1));
    assert_ne!(proof(1), proof(2));
}

#[test]
fn copies_do_not_go_to_the_host_at_which_their_holder_is_a_guest() {
    let pair = Pair::new(1);
    pair.world.block_on(async {
        pair.holder().await;
        // Another holder was taken over by the one that serves, and its record leads there.
        let guest = NodeId([6; 16]);
        let there = |host| Entry { node: guest, host, ..entry(HOLDER, 3, address()) };
        pair.records.put(there(HOLDER));
        let calls = Arc::new(calls(&pair.owner.env(), life(OWNER, 1), pair.records.clone()));
        let why = Peer::new(&calls, life(OWNER, 1), guest, HOME.to_vec()).begin().await;
        let why = why.expect_err("that host's copies are not its copies");
        assert!(why.contains("without its host"), "{why}");
        is_well(&pair).await;
    });
}

#[test]
fn an_owner_that_does_not_know_the_secret_gets_nowhere() {
    let pair = Pair::new(2);
    pair.world.block_on(async {
        pair.holder().await;
        let life = Life { node: OWNER, incarnation: Incarnation(1) };
        let hello = Hello { store: STORE, life, nonce: [1; 32] };
        // It proves nothing, guesses, or sends the holder's own proof back.
        for way in 0..3 {
            let mut connection = connect(&pair).await;
            connection.send(&Message::Hello(hello)).await.expect("it listens");
            let theirs = connection.receive(PATIENCE, 1024).await;
            assert!(matches!(theirs, Ok(Message::Hello(_))));
            let Ok(Message::Proof(proof)) = connection.receive(PATIENCE, 1024).await else {
                panic!("the holder proves itself")
            };
            let attempt = match way {
                0 => Message::Begin,
                1 => Message::Proof([7; 32]),
                _ => Message::Proof(proof),
            };
            let why = connection.call(&attempt, PATIENCE).await.expect_err("it is refused");
            let expected = if way == 0 { "say hello" } else { "secret" };
            assert!(why.to_string().contains(expected), "{why}");
            assert!(connection.call(&Message::Begin, PATIENCE).await.is_err());
        }
        assert!(pair.holder().await.list().await.is_empty(), "it has left nothing");
        is_well(&pair).await;
    });
}

#[test]
fn a_holder_that_does_not_know_the_secret_gets_nothing() {
    let world = World::new(3, Faults::none());
    let (owner, holder) = (world.host("owner"), world.host("holder"));
    let env = holder.env();
    let seen = Arc::new(Mutex::new(None));
    let told = Arc::clone(&seen);
    env.clone().spawn("liar", async move {
        let acceptor = env.net().listen(&address()).await.expect("a port");
        let stream = acceptor.accept().await.expect("a peer")().expect("a stream");
        let mut connection = Connection::new(&env, stream);
        let hello = match connection.receive(PATIENCE, 1024).await {
            Ok(Message::Hello(hello)) => hello,
            other => panic!("{other:?}"),
        };
        // It is who it says, and sends what it has got.
        let life = Life { node: HOLDER, incarnation: Incarnation(3) };
        connection.send(&Message::Hello(Hello { life, ..hello })).await.expect("it listens");
        connection.send(&Message::Proof([7; 32])).await.expect("it listens");
        let next = connection.receive(PATIENCE, 1024).await;
        *told.lock() = Some(format!("{next:?}"));
    });
    world.block_on(async {
        let owner_calls = Arc::new(calls(&owner.env(), life(OWNER, 1), Records::new()));
        let peer = Peer::new(&owner_calls, life(OWNER, 1), HOLDER, HOME.to_vec());
        let why = peer.begin().await.expect_err("it is not believed");
        assert_eq!(why, "the other end does not know this cluster's secret");
        owner.env().sleep(SHORT).await;
    });
    let seen = seen.lock().clone().expect("the peer has answered");
    assert!(seen.contains("Refused") && seen.contains("secret"), "{seen}");
}

#[test]
fn a_recorded_beginning_is_worth_nothing_and_a_repeated_frame_ends_the_connection() {
    let pair = Pair::new(4);
    pair.world.block_on(async {
        pair.holder().await;
        // What a proven owner has sent.
        let (life, known) = (life(OWNER, 1), identity());
        let hello = Hello { store: STORE, life, nonce: [1; 32] };
        let mut recorded = Vec::new();
        for _ in 0..2 {
            let mut connection = connect(&pair).await;
            connection.send(&Message::Hello(hello)).await.expect("it listens");
            let Ok(Message::Hello(theirs)) = connection.receive(PATIENCE, 1024).await else {
                panic!("a hello")
            };
            connection.receive(PATIENCE, 1024).await.expect("a proof");
            let is_first = recorded.is_empty();
            if is_first {
                let proof = known.proof(b"rekindle peer: caller", &hello, &theirs);
                recorded.push(*proof.as_bytes());
            }
            let proof = Message::Proof(recorded[0]);
            assert_eq!(connection.call(&proof, PATIENCE).await.is_ok(), is_first);
        }
        // The same frame twice.
        let env = pair.owner.env();
        let mut stream = env.net().connect(&address()).await.expect("it listens");
        let mut frame = Vec::new();
        Message::Hello(hello).encode(0, &mut frame);
        stream.write_all(&[&frame[..], &frame[..]].concat()).await.expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("the holder hangs up");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("lost, or has come twice"), "{answer}");
        is_well(&pair).await;
    });
}

#[test]
fn garbage_half_frames_and_other_versions_end_their_own_connection_only() {
    let pair = Pair::new(5);
    let mut random = Random::new(5);
    pair.world.block_on(async {
        pair.holder().await;
        let env = pair.owner.env();
        let life = Life { node: OWNER, incarnation: Incarnation(1) };
        let mut hello = Vec::new();
        Message::Hello(Hello { store: STORE, life, nonce: [1; 32] }).encode(0, &mut hello);
        for round in 0..60 {
            let mut bytes = hello.clone();
            match round % 4 {
                0 => random.fill(&mut bytes),
                1 => bytes.truncate(random.index(hello.len())),
                2 => bytes[random.index(hello.len())] ^= 1 << random.below(8),
                _ => {
                    bytes[4] = 1;
                    let crc = rekindle_base::checksum::crc32c(&bytes[..28]);
                    bytes[28..32].copy_from_slice(&crc.to_le_bytes());
                }
            }
            let mut stream = env.net().connect(&address()).await.expect("it listens");
            stream.write_all(&bytes).await.expect("sent");
            let mut answer = Vec::new();
            let ended = env.timeout(HELLO_TIME_MAX * 2, stream.read_to_end(&mut answer)).await;
            ended.expect("the holder hangs up").expect("in good order");
            let answer = String::from_utf8_lossy(&answer);
            if round % 4 == 3 {
                assert!(answer.contains("version 1 of the protocol"), "{answer}");
            }
        }
        // The same behind the proofs.
        for round in 0..20 {
            let mut connection = proven(&pair).await;
            match round % 2 {
                0 => connection.send_raw(&hello).await,
                _ => connection.send_raw(&hello[..random.index(hello.len())]).await,
            }
            let answer = connection.receive(IDLE_TIME_MAX * 2, 1024).await;
            assert!(matches!(answer, Ok(Message::Refused(_))), "{answer:?}");
            assert!(connection.receive(PATIENCE, 1024).await.is_err());
        }
        is_well(&pair).await;
    });
}

#[test]
fn silent_connections_lock_peers_out_for_seconds_only_and_go() {
    let pair = Pair::new(6);
    pair.world.block_on(async {
        pair.holder().await;
        let env = pair.owner.env();
        let mut proven_ones = Vec::new();
        for _ in 0..3 {
            proven_ones.push(proven(&pair).await);
        }
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS_MAX + 4 {
            strangers.push(env.net().connect(&address()).await.expect("it listens"));
        }
        env.sleep(SHORT).await;
        assert!(pair.peer(1).begin().await.is_err(), "it is hung up on");
        env.sleep(HELLO_TIME_MAX).await;
        is_well(&pair).await;
        env.sleep(IDLE_TIME_MAX * 2).await;
        for connection in &mut proven_ones {
            let answer = connection.receive(PATIENCE, 1024).await;
            let Ok(Message::Refused(why)) = answer else { panic!("{answer:?}") };
            assert!(why.contains("silent"), "{why}");
        }
    });
}
