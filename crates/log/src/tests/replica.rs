//! Copies on replicas: a write waits for them exactly when its class says so.

use super::{ARENA, NODE, SEGMENT, append, config, recovered, volume, world};
use crate::format::{Kind, SegmentHeader};
use crate::walk::walk;
use crate::{Error, Log, Media, NewSegment, Position, Replica};
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::{Incarnation, SegmentId, Serial};
use rekindle_env::{BoxFuture, Env};
use rekindle_warm::Arena;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const COPIES: Media = Media { flash: true, copies: 1 };
const SHORT: Duration = Duration::from_millis(100);

/// How a replica answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Well,
    Slow,
    /// A new segment is taken after a second.
    SlowToOpen,
    /// Every third call fails, before or after it was carried out.
    Failing,
    /// No call is answered.
    Gone,
}

/// A replica in memory.
struct Holder {
    env: Env,
    state: Mutex<State>,
}

struct State {
    manner: Manner,
    calls: u64,
    /// Count of the slow calls that are under way.
    opening: u64,
    open: BTreeMap<SegmentId, Held>,
    freed: Vec<SegmentId>,
}

struct Held {
    bytes: Vec<u8>,
    sealed: bool,
}

impl Holder {
    fn new(env: &Env, manner: Manner) -> Arc<Holder> {
        let state =
            State { manner, calls: 0, opening: 0, open: BTreeMap::new(), freed: Vec::new() };
        Arc::new(Holder { env: env.clone(), state: Mutex::new(state) })
    }

    fn set(&self, manner: Manner) {
        self.state.lock().manner = manner;
    }

    fn call<'a>(
        &'a self,
        act: impl FnOnce(&mut State) -> Result<(), String> + Send + 'a,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let (manner, call) = {
                let mut state = self.state.lock();
                state.calls += 1;
                (state.manner, state.calls)
            };
            let failed = || Err("it failed on purpose".to_owned());
            match manner {
                Manner::Gone => std::future::pending().await,
                Manner::Slow => self.env.sleep(SHORT / 10).await,
                Manner::Failing if call % 3 == 0 => return failed(),
                Manner::Well | Manner::Failing | Manner::SlowToOpen => {}
            }
            act(&mut self.state.lock())?;
            // The reply is lost: the same call comes again.
            if manner == Manner::Failing && call % 3 == 1 { failed() } else { Ok(()) }
        })
    }

    /// The serials that could be recovered from the copies alone.
    fn serials(&self) -> Vec<u64> {
        let state = self.state.lock();
        let mut serials = Vec::new();
        for copy in state.open.values().filter(|copy| !copy.bytes.is_empty()) {
            let mut image = copy.bytes.clone();
            image.resize(SEGMENT as usize, 0);
            let header = SegmentHeader::decode(&image).expect("a copy begins with its header");
            let walked = walk(&image, &header, true);
            assert_eq!(walked.end as usize, copy.bytes.len(), "only whole batches are copied");
            let changes = walked.listed.iter();
            let changes = changes.filter(|entry| matches!(entry.kind, Kind::Change(_)));
            serials.extend(changes.map(|entry| entry.serial.0));
        }
        serials
    }
}

impl Replica for Holder {
    fn name(&self) -> String {
        "holder".to_owned()
    }

    fn open<'a>(&'a self, new: &'a NewSegment) -> BoxFuture<'a, Result<(), String>> {
        let open = self.call(move |state| {
            state.open.entry(new.segment).or_insert(Held { bytes: Vec::new(), sealed: false });
            Ok(())
        });
        Box::pin(async move {
            if self.state.lock().manner == Manner::SlowToOpen {
                self.state.lock().opening += 1;
                self.env.sleep(SHORT * 10).await;
                self.state.lock().opening -= 1;
            }
            open.await
        })
    }

    fn copy<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> BoxFuture<'a, Result<(), String>> {
        self.call(move |state| {
            let copy = state.open.get_mut(&segment).ok_or("it is not open")?;
            let offset = offset as usize;
            assert!(offset <= copy.bytes.len(), "a copy has no gaps");
            assert!(!copy.sealed, "a sealed copy gets no more bytes");
            let known = (copy.bytes.len() - offset).min(bytes.len());
            assert_eq!(copy.bytes[offset..offset + known], bytes[..known], "bytes never change");
            copy.bytes.extend_from_slice(&bytes[known..]);
            Ok(())
        })
    }

    fn seal(&self, segment: SegmentId, length: u32) -> BoxFuture<'_, Result<(), String>> {
        self.call(move |state| {
            let copy = state.open.get_mut(&segment).ok_or("it is not open")?;
            assert_eq!(copy.bytes.len(), length as usize, "it is sealed as a whole");
            copy.sealed = true;
            Ok(())
        })
    }

    fn free(&self, segment: SegmentId) -> BoxFuture<'_, Result<(), String>> {
        self.call(move |state| {
            state.open.remove(&segment);
            state.freed.push(segment);
            Ok(())
        })
    }
}

async fn open(env: &Env, holders: &[Arc<Holder>]) -> Log {
    let arena = Arena::open_sized(env, Path::new(ARENA), NODE, 4, SEGMENT).expect("memory");
    let found = Log::find(env, arena, config(8), true, None).await.expect("a folder");
    let replicas = holders.iter().map(|holder| holder.clone() as Arc<dyn Replica>).collect();
    found.with_replicas(replicas).open(Incarnation(1)).await.expect("it opens").0
}

async fn reaches(env: &Env, log: &Log, media: Media, position: Position) -> bool {
    match env.timeout(SHORT, log.reach(media, position)).await {
        Ok(reached) => {
            reached.expect("the log is well");
            assert!(log.progress().covers(media, position), "what was waited for is so");
            true
        }
        Err(_) => false,
    }
}

#[test]
fn a_write_waits_for_a_replica_exactly_when_its_class_says_so() {
    let world = world(1);
    world.block_on(async {
        let env = world.env();
        let holder = Holder::new(&env, Manner::Gone);
        let log = open(&env, std::slice::from_ref(&holder)).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        assert!(reaches(&env, &log, Media::MEMORY, position).await);
        assert!(reaches(&env, &log, Media::FLASH, position).await, "flash waits for no peer");
        assert!(!reaches(&env, &log, COPIES, position).await, "the peer has not answered");
        assert_eq!(log.replicas_behind().len(), 1);
        assert!(holder.serials().is_empty());
        for manner in [Manner::Well, Manner::Slow, Manner::Failing] {
            holder.set(manner);
            // The call that hangs ends by its own time-out first.
            log.reach(COPIES, position).await.expect("it waits, and goes on");
            assert!(holder.serials().contains(&1));
            for serial in 2..20 {
                let (position, _) = append(&log, volume(2), serial, 500).await.unwrap();
                log.reach(COPIES, position).await.expect("the log is well");
                assert!(holder.serials().contains(&serial), "{manner:?}");
            }
            log.release(volume(2), Serial(19));
        }
    });
}

#[test]
fn every_replica_that_is_asked_for_counts() {
    let world = world(2);
    world.block_on(async {
        let env = world.env();
        let (well, gone) = (Holder::new(&env, Manner::Well), Holder::new(&env, Manner::Gone));
        let log = open(&env, &[gone.clone(), well]).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        assert!(reaches(&env, &log, COPIES, position).await, "one of them has it");
        let both = Media { flash: true, copies: 2 };
        assert!(!reaches(&env, &log, both, position).await, "only one of them has it");
        gone.set(Manner::Well);
        log.reach(both, position).await.expect("both have it");
        assert!(log.replicas_behind().is_empty());
        let three = Media { flash: true, copies: 3 };
        let refused = log.reach(three, position).await;
        assert!(matches!(refused, Err(Error::NoReplica { wanted: 3, has: 2 })), "{refused:?}");
    });
}

#[test]
fn a_peer_that_is_gone_costs_writes_without_copies_nothing() {
    let world = world(3);
    world.block_on(async {
        let env = world.env();
        let holder = Holder::new(&env, Manner::Gone);
        let log = open(&env, std::slice::from_ref(&holder)).await;
        // Ten times the slots and twice the files.
        for serial in 1..=1000 {
            let (position, _) = append(&log, volume(1), serial, 1000).await.unwrap();
            log.reach(Media::FLASH, position).await.expect("flash is well");
            log.release(volume(1), Serial(serial));
        }
        holder.set(Manner::Well);
        let (position, _) = append(&log, volume(1), 1001, 100).await.unwrap();
        log.reach(COPIES, position).await.expect("the peer catches up");
        let state = holder.state.lock();
        assert!(state.open.len() <= 8, "what has left the log is not copied: {}", state.open.len());
    });
}

#[test]
fn copies_follow_the_log_over_rollovers_and_are_freed_with_it() {
    let mut random = Random::new(4);
    for seed in 0..20 {
        let world = world(seed);
        world.block_on(async {
            let env = world.env();
            let holder = Holder::new(&env, Manner::Failing);
            let log = open(&env, std::slice::from_ref(&holder)).await;
            let mut released = 0;
            for serial in 1..=200 {
                let length = 100 + random.below(3000) as usize;
                let (position, _) = append(&log, volume(1), serial, length).await.unwrap();
                if random.below(4) == 0 {
                    log.reach(COPIES, position).await.expect("the log is well");
                    let serials = holder.serials();
                    let kept: Vec<u64> =
                        serials.into_iter().filter(|serial| *serial > released).collect();
                    assert_eq!(kept, (released + 1..=serial).collect::<Vec<_>>(), "seed {seed}");
                }
                if random.below(8) == 0 {
                    released = serial - random.below(serial - released);
                    log.release(volume(1), Serial(released));
                }
            }
            let (position, _) = append(&log, volume(1), 201, 10).await.unwrap();
            log.reach(COPIES, position).await.expect("the log is well");
            env.sleep(Duration::from_secs(20)).await;
            let freed = holder.state.lock().freed.clone();
            assert!(!freed.is_empty(), "what left the log has left the holder");
            let held: Vec<SegmentId> = holder.state.lock().open.keys().copied().collect();
            let live: Vec<SegmentId> =
                log.view().segments.iter().map(|segment| segment.segment).collect();
            assert!(held.iter().all(|segment| live.contains(segment)), "{held:?} of {live:?}");
            let kept = recovered_serials(&holder, released);
            assert_eq!(kept, (released + 1..=201).collect::<Vec<_>>());
        });
    }
}

fn recovered_serials(holder: &Holder, released: u64) -> Vec<u64> {
    holder.serials().into_iter().filter(|serial| *serial > released).collect()
}

#[test]
fn a_log_that_ends_ends_the_wait_for_its_replicas() {
    let world = world(5);
    world.block_on(async {
        let env = world.env();
        let holder = Holder::new(&env, Manner::Gone);
        let log = open(&env, &[holder]).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        let (waits, ended) = (log.clone(), Arc::new(Mutex::new(None)));
        let outcome = ended.clone();
        let wait = async move { *outcome.lock() = Some(waits.reach(COPIES, position).await) };
        env.spawn("waits", wait);
        env.sleep(SHORT).await;
        assert!(ended.lock().is_none(), "it waits");
        log.close().await.expect("a peer that is gone does not keep the log open");
        env.sleep(SHORT).await;
        assert!(matches!(*ended.lock(), Some(Err(Error::Closed))), "its end is told");
        drop(log);
        let log = open(&env, &[]).await;
        assert_eq!(recovered(&log, volume(1)).await, [1]);
    });
}

#[test]
fn a_segment_that_leaves_the_log_while_a_replica_opens_it_is_freed_there() {
    let world = world(6);
    world.block_on(async {
        let env = world.env();
        let holder = Holder::new(&env, Manner::Well);
        let log = open(&env, std::slice::from_ref(&holder)).await;
        env.sleep(SHORT).await;
        holder.set(Manner::SlowToOpen);
        // Several segments come and go while the first one is being opened.
        for serial in 1..=100 {
            let (position, _) = append(&log, volume(1), serial, 2000).await.unwrap();
            log.reach(Media::FLASH, position).await.expect("flash is well");
            log.release(volume(1), Serial(serial));
        }
        assert!(holder.state.lock().opening > 0, "it still opens one");
        holder.set(Manner::Well);
        let (position, _) = append(&log, volume(1), 101, 100).await.unwrap();
        log.reach(COPIES, position).await.expect("the log is well");
        env.sleep(SHORT).await;
        let held: Vec<SegmentId> = holder.state.lock().open.keys().copied().collect();
        let live: Vec<SegmentId> =
            log.view().segments.iter().map(|segment| segment.segment).collect();
        assert!(held.iter().all(|segment| live.contains(segment)), "{held:?} of {live:?}");
    });
}
