//! Passages between two pipes whose far ends the test plays.

use super::super::wire::{OutHeader, opcode};
use super::*;
use rekindle_env::sim::{Faults, World};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::DuplexStream;
use zerocopy::IntoBytes;

/// The ends of a passage.
struct Ends {
    mount: DuplexStream,
    owner: DuplexStream,
    /// Whether the owner has moved, and how often that was asked.
    moved: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    end: tokio::sync::oneshot::Receiver<End>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

fn with_passage(story: impl AsyncFnOnce(&Env, Ends)) {
    let world = World::new(3, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (mount, near) = tokio::io::duplex(1 << 20);
        let (owner, far) = tokio::io::duplex(1 << 20);
        let (moved, looks) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stop, stopped) = Stop::pair();
        let (told, end) = tokio::sync::oneshot::channel();
        let (ground, has, asked) = (env.clone(), moved.clone(), looks.clone());
        env.spawn("passage", async move {
            let has_moved = || {
                asked.fetch_add(1, Ordering::Relaxed);
                std::future::ready(has.load(Ordering::Relaxed))
            };
            let _ = told.send(carry(&ground, (near, far), has_moved, stopped).await);
        });
        story(&env, Ends { mount, owner, moved, looks, end, _stop: stop }).await;
    });
}

fn hello(opens: u64) -> Vec<u8> {
    let mut bytes = Hello::new(7, opens as u32).as_bytes().to_vec();
    (0..opens).for_each(|ino| bytes.extend_from_slice(Open { ino, count: 1 }.as_bytes()));
    bytes
}

fn request(number: u64, length: u32) -> Vec<u8> {
    let frame = Frame::new(length, number, 1, false);
    [frame.as_bytes(), &vec![number as u8; length as usize]].concat()
}

fn reply(unique: u64, body: &[u8]) -> Vec<u8> {
    let length = (OUT_HEADER_BYTES + body.len()) as u32;
    [OutHeader { length, error: 0, unique }.as_bytes(), body].concat()
}

async fn arrives(stream: &mut DuplexStream, bytes: &[u8]) {
    let mut found = vec![0; bytes.len()];
    stream.read_exact(&mut found).await.unwrap();
    assert!(found == bytes);
}

#[test]
fn bytes_pass_as_they_are_and_messages_are_counted_however_they_are_cut() {
    let mut interrupt = request(4, 48);
    let words = FRAME_BYTES + 4..FRAME_BYTES + 8;
    interrupt[words].copy_from_slice(&opcode::INTERRUPT.to_ne_bytes());
    let up = [hello(3), request(1, 40), request(2, 70_000), interrupt, request(3, 41)].concat();
    // What answers no request does not count.
    let down = [reply(1, b""), reply(2, &[5; 3000]), reply(0, b"abc"), reply(3, b"x")].concat();
    for piece in [1, 7, 24, 1000, up.len()] {
        let (mut requests, mut replies) = (Requests::default(), Replies::default());
        let count = |counter: &mut dyn Messages, all: &[u8]| -> u64 {
            all.chunks(piece).map(|bytes| counter.count(bytes).unwrap()).sum()
        };
        assert_eq!((count(&mut requests, &up), count(&mut replies, &down)), (3, 3), "{piece}");
    }
    with_passage(async |_, mut ends| {
        ends.mount.write_all(&up).await.unwrap();
        arrives(&mut ends.owner, &up).await;
        ends.owner.write_all(&down).await.unwrap();
        arrives(&mut ends.mount, &down).await;
        drop(ends.owner);
        assert!(matches!(ends.end.await, Ok(End::HungUp)));
        assert_eq!(ends.mount.read(&mut [0]).await.unwrap(), 0, "the mount connects anew");
    });
}

#[test]
fn an_owner_is_looked_for_only_while_a_reply_is_missing() {
    with_passage(async |env, mut ends| {
        let hour = Duration::from_secs(3600);
        ends.mount.write_all(&[hello(1), request(1, 40), request(2, 40)].concat()).await.unwrap();
        env.sleep(limits::PASSAGE_LOOK / 2).await;
        ends.owner.write_all(&[reply(1, b"abc"), reply(2, b"")].concat()).await.unwrap();
        env.sleep(hour).await;
        assert_eq!(ends.looks.load(Ordering::Relaxed), 0, "nothing waits");
        ends.mount.write_all(&[request(3, 40), request(4, 40)].concat()).await.unwrap();
        ends.owner.write_all(&reply(4, b"")).await.unwrap();
        env.sleep(Duration::from_secs(10)).await;
        assert!(ends.looks.load(Ordering::Relaxed) > 3, "request 3 waits");
        ends.moved.store(true, Ordering::Relaxed);
        let end = env.timeout(Duration::from_secs(2), ends.end).await;
        assert!(matches!(end, Ok(Ok(End::Moved))), "{end:?}");
    });
}

#[test]
fn a_mount_that_sends_no_frames_is_hung_up_on() {
    with_passage(async |_, mut ends| {
        ends.mount.write_all(&[9; 100]).await.unwrap();
        assert!(matches!(ends.end.await, Ok(End::Garbage(Garbage::Magic))));
    });
    with_passage(async |_, mut ends| {
        ends.mount.write_all(&[hello(0), vec![0; 24]].concat()).await.unwrap();
        assert!(matches!(ends.end.await, Ok(End::Garbage(Garbage::Length(0)))));
    });
    with_passage(async |_, mut ends| {
        ends.owner.write_all(&[0; 16]).await.unwrap();
        assert!(matches!(ends.end.await, Ok(End::Garbage(Garbage::Length(0)))));
    });
}
