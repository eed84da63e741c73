//! A line whose other end is in the hand of the test.

use super::*;
use crate::nfs::forward::frame::{Part, Standing, Told, decode};
use crate::nfs::forward::testing::Piped;
use crate::nfs::permission::Credentials;
use rekindle_base::units::MIB;
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Stream};
use std::time::Duration;
use tokio::io::DuplexStream;

/// Gives the other ends of its connections to the test.
struct ByHand {
    opened: mpsc::UnboundedSender<DuplexStream>,
    has_moved: AtomicBool,
}

impl Way for ByHand {
    fn open(&self) -> BoxFuture<'_, Result<Box<dyn Stream>, String>> {
        Box::pin(async {
            let (ours, theirs) = tokio::io::duplex(8 << 20);
            self.opened.send(theirs).map_err(|_| "the test is over".to_owned())?;
            Ok(Box::new(Piped(ours)) as Box<dyn Stream>)
        })
    }

    fn has_moved(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { self.has_moved.load(Ordering::Relaxed) })
    }
}

/// The owner's end of a connection.
struct End(DuplexStream);

impl End {
    async fn new(ends: &mut mpsc::UnboundedReceiver<DuplexStream>) -> Self {
        let mut end = ends.recv().await.expect("it is opened");
        let mut greeting = [0; 8];
        end.read_exact(&mut greeting).await.unwrap();
        assert_eq!(greeting, GREETING);
        Self(end)
    }

    /// Returns the number of the next frame, and whether it is a call.
    async fn next(&mut self) -> (u64, bool) {
        let bytes = read_frame(&mut self.0, limits::FORWARDED_BYTES_MAX).await.unwrap();
        let (number, frame) = decode(&bytes).unwrap();
        (number, frame != Frame::Cut)
    }

    async fn tell(&mut self, number: u64, reply: &Reply) {
        self.0.write_all(&reply.encode(number)).await.unwrap();
    }
}

struct Scene {
    env: Env,
    line: Arc<Line>,
    way: Arc<ByHand>,
    ends: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Scene {
    /// Asks beside what the test does.
    fn ask(&self, record: usize, room: usize) -> oneshot::Receiver<Result<Reply, Away>> {
        let (done, outcome) = oneshot::channel();
        let line = self.line.clone();
        self.env.spawn("ask", async move {
            let record = vec![7; record];
            let _ = done.send(line.ask(&who(), Ask::Record(&record), room).await);
        });
        outcome
    }

    /// Counts the calls that have come, once no more come.
    async fn count(&self, end: &mut End) -> usize {
        let mut count = 0;
        while self.env.timeout(Duration::from_millis(100), end.next()).await.is_ok() {
            count += 1;
        }
        count
    }
}

fn who() -> Who {
    let caller = Credentials { uid: 0, gid: 0, groups: Vec::new() };
    Who { host: "10.0.0.1".to_owned(), caller, is_read_only: false }
}

fn told() -> Reply {
    Reply::Record(b"told".to_vec())
}

fn scene(story: impl AsyncFnOnce(&mut Scene)) {
    let world = World::new(7, Faults::none());
    let env = world.env();
    let (opened, ends) = mpsc::unbounded_channel();
    let way = Arc::new(ByHand { opened, has_moved: AtomicBool::new(false) });
    let line = Line::new(&env, way.clone());
    let mut scene = Scene { env, line, way, ends };
    world.block_on(async { story(&mut scene).await });
}

#[test]
fn calls_count_for_what_they_may_really_ask() {
    let under_way = |record, room, most: std::ops::RangeInclusive<usize>| {
        scene(async |scene| {
            let asked: Vec<_> = (0..300).map(|_| scene.ask(record, room)).collect();
            let mut end = End::new(&mut scene.ends).await;
            let count = scene.count(&mut end).await;
            assert!(most.contains(&count), "{count} of {record} and {room} bytes");
            drop(asked);
        });
    };
    // The other end takes so many at most.
    let all = limits::UNDER_WAY_BYTES_MAX / limits::CALL_COUNTS;
    under_way(200, 0, all..=all);
    under_way(200, 64 << 10, all / 2..=all / 2);
    under_way(200, MIB as usize, 12..=15);
    under_way(MIB as usize, 0, 12..=15);
}

#[test]
fn a_part_counts_for_its_operations_and_its_room() {
    let ops = vec![0; 100_000];
    let standing = Standing::default();
    let ids = (0, 0, 0);
    let part = |ops| Part {
        session: [0; 16],
        client: ids.0,
        machine: ids.1,
        slot: 0,
        sequence: 0,
        at: 0,
        count: 1,
        room: 0,
        standing: standing.clone(),
        ops,
    };
    assert_eq!(Ask::Part(part(&ops)).long_bytes(), 100_000);
    assert_eq!(Ask::Part(part(&ops[..1000])).long_bytes(), 0);
}

#[test]
fn a_line_that_breaks_amid_a_call_says_that_it_may_be_done() {
    scene(async |scene| {
        let first = scene.ask(100, 0);
        let mut end = End::new(&mut scene.ends).await;
        let (number, _) = end.next().await;
        let second = scene.ask(100, 0);
        end.next().await;
        end.tell(number, &told()).await;
        assert_eq!(first.await.unwrap(), Ok(told()));
        drop(end);
        assert_eq!(second.await.unwrap(), Err(Away { may_be_done: true }));
        // The next call goes over a new one; one that is never opened has taken nothing.
        let third = scene.ask(100, 0);
        let mut end = End::new(&mut scene.ends).await;
        let (number, _) = end.next().await;
        end.tell(number, &told()).await;
        assert_eq!(third.await.unwrap(), Ok(told()));
        scene.ends.close();
        drop(end);
        scene.env.sleep(Duration::from_millis(10)).await;
        assert_eq!(scene.ask(100, 0).await.unwrap(), Err(Away { may_be_done: false }));
    });
}

#[test]
fn a_call_whose_end_is_late_leaves_the_next_connection_alone() {
    scene(async |scene| {
        let (first, second) = (scene.ask(100, 0), scene.ask(100, 0));
        let mut old = End::new(&mut scene.ends).await;
        let (one, two) = (old.next().await.0, old.next().await.0);
        old.tell(one, &Reply::Away).await;
        assert!(first.await.unwrap().is_err());
        let again = scene.ask(100, 0);
        let mut new = End::new(&mut scene.ends).await;
        let (number, _) = new.next().await;
        old.tell(two, &Reply::Away).await;
        assert!(second.await.unwrap().is_err());
        let other = scene.ask(100, 0);
        let (other_number, _) = new.next().await;
        new.tell(number, &told()).await;
        new.tell(other_number, &told()).await;
        assert_eq!((again.await.unwrap(), other.await.unwrap()), (Ok(told()), Ok(told())));
        assert!(scene.ends.try_recv().is_err(), "a third connection");
    });
}

#[test]
fn a_call_that_is_given_up_is_cut_off_there_and_gives_its_room_back() {
    scene(async |scene| {
        let time = Duration::from_secs(5);
        for _ in 0..3 {
            let asked: Vec<_> = (0..20)
                .map(|_| {
                    let (line, env) = (scene.line.clone(), scene.env.clone());
                    async move {
                        let (who, room) = (who(), MIB as usize);
                        let asked = line.ask(&who, Ask::Record(b"call"), room);
                        env.timeout(time, asked).await.is_err()
                    }
                })
                .collect();
            let (done, all) = oneshot::channel();
            scene.env.spawn("ask", async move {
                let _ = done.send(futures_util::future::join_all(asked).await);
            });
            scene.env.sleep(time * 2).await;
            assert!(all.await.unwrap().into_iter().all(|is_late| is_late));
        }
        let mut end = End::new(&mut scene.ends).await;
        let (mut begun, mut cut) = (0, 0);
        let mut numbers = std::collections::BTreeSet::new();
        while let Ok((number, is_call)) =
            scene.env.timeout(Duration::from_millis(100), end.next()).await
        {
            if is_call {
                begun += 1;
                numbers.insert(number);
                assert!(numbers.len() <= 16, "{numbers:?}");
            } else {
                cut += 1;
                assert!(numbers.remove(&number), "{number}");
            }
        }
        assert!(begun >= 36 && begun == cut, "{begun} {cut}");
    });
}

#[test]
fn a_host_that_stands_still_is_left_when_the_volume_has_moved() {
    scene(async |scene| {
        let began = scene.env.now();
        let asked = scene.ask(100, 0);
        let mut still = End::new(&mut scene.ends).await;
        let (number, _) = still.next().await;
        let (way, env) = (scene.way.clone(), scene.env.clone());
        scene.env.spawn("moves", async move {
            env.sleep(Duration::from_secs(3)).await;
            way.has_moved.store(true, Ordering::Relaxed);
        });
        assert_eq!(asked.await.unwrap(), Err(Away { may_be_done: true }));
        let waited = scene.env.now() - began;
        assert!((3..5).contains(&waited.as_secs()), "{waited:?}");
        scene.way.has_moved.store(false, Ordering::Relaxed);
        // What it says when it goes on is heard by none.
        let _ = still.0.write_all(&told().encode(number)).await;
        let asked = scene.ask(100, 0);
        let mut end = End::new(&mut scene.ends).await;
        let (number, _) = end.next().await;
        let told = Told { status: 0, done: 1, has_changed: false, results: Vec::new() };
        end.tell(number, &Reply::Part(told.clone())).await;
        assert_eq!(asked.await.unwrap(), Ok(Reply::Part(told)));
    });
}
