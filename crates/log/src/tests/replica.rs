//! Copies on replicas: a write waits for them exactly when its class says so.

use super::{ARENA, NODE, SEGMENT, append, config, recovered, volume, world};
use crate::format::{Kind, SegmentHeader};
use crate::limits::COPY_BYTES_MAX;
use crate::walk::walk;
use crate::{Config, Error, Log, Media, NewSegment, Position, Replica};
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::{Incarnation, SegmentId, Serial};
use rekindle_env::{BoxFuture, Env, Open};
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
    /// A call in three fails before it is carried out, another one after that.
    Failing,
    /// One call in thirty fails before, and one after that.
    Shaky,
    /// No call is answered.
    Gone,
    /// No segment is taken.
    Full,
}

/// A replica in memory.
struct Holder {
    env: Env,
    state: Mutex<ReplicaState>,
}

struct ReplicaState {
    manner: Manner,
    /// Count of the slow calls that are under way.
    opening: u64,
    /// Count of the syncs that were begun.
    begun: u64,
    /// The copies that count.
    open: BTreeMap<SegmentId, Held>,
    /// The copies of a sync.
    hidden: Option<BTreeMap<SegmentId, Held>>,
    /// The highest serial that a write with copies has been acknowledged with, and the highest one
    /// that was released.
    acked: u64,
    released: u64,
    /// The files after each call, with these two; if wanted.
    history: Option<Vec<Moment>>,
}

#[derive(Clone)]
struct Moment {
    images: Vec<Vec<u8>>,
    acked: u64,
    released: u64,
}

impl ReplicaState {
    /// The copy that is being written.
    fn written(&mut self, segment: SegmentId) -> Result<&mut Held, String> {
        let hidden = self.hidden.as_mut().and_then(|hidden| hidden.get_mut(&segment));
        hidden.or(self.open.get_mut(&segment)).ok_or_else(|| "it is not open".to_owned())
    }

    fn moment(&self) -> Moment {
        let begun = self.open.values().filter(|copy| !copy.bytes.is_empty());
        Moment {
            images: begun.map(Held::image).collect(),
            acked: self.acked,
            released: self.released,
        }
    }
}

struct Held {
    new: NewSegment,
    bytes: Vec<u8>,
    /// Of a sealed segment.
    tail: Option<Vec<u8>>,
}

impl Held {
    fn new(new: &NewSegment) -> Held {
        Held { new: *new, bytes: Vec::new(), tail: None }
    }

    /// The file of the copy.
    fn image(&self) -> Vec<u8> {
        let mut image = self.bytes.clone();
        image.resize(SEGMENT as usize, 0);
        let tail = self.tail.as_deref().unwrap_or_default();
        image[SEGMENT as usize - tail.len()..].copy_from_slice(tail);
        image
    }
}

impl Holder {
    fn new(env: &Env, manner: Manner) -> Arc<Holder> {
        let state = ReplicaState {
            manner,
            opening: 0,
            begun: 0,
            open: BTreeMap::new(),
            hidden: None,
            acked: 0,
            released: 0,
            history: None,
        };
        Arc::new(Holder { env: env.clone(), state: Mutex::new(state) })
    }

    fn set(&self, manner: Manner) {
        self.state.lock().manner = manner;
    }

    fn call<'a, T: Send>(
        &'a self,
        act: impl FnOnce(&mut ReplicaState) -> Result<T, String> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, String>> {
        Box::pin(async move {
            let manner = self.state.lock().manner;
            let chances = if manner == Manner::Shaky { 30 } else { 3 };
            let chance = self.env.random_u64() % chances;
            let fails = matches!(manner, Manner::Failing | Manner::Shaky);
            let failed = || Err("it failed on purpose".to_owned());
            match manner {
                Manner::Gone => std::future::pending().await,
                Manner::Slow => self.env.sleep(SHORT / 10).await,
                _ if fails && chance == 0 => return failed(),
                _ => {}
            }
            let reply = {
                let mut state = self.state.lock();
                let reply = act(&mut state);
                let moment = state.moment();
                state.history.iter_mut().for_each(|history| history.push(moment.clone()));
                reply?
            };
            // The reply is lost: the same call comes again.
            if fails && chance == 1 { failed() } else { Ok(reply) }
        })
    }

    /// The serials that could be recovered from the copies alone.
    fn serials(&self) -> Vec<u64> {
        let state = self.state.lock();
        let mut serials = Vec::new();
        for copy in state.open.values().filter(|copy| !copy.bytes.is_empty()) {
            let image = copy.image();
            let header = SegmentHeader::decode(&image).expect("a copy begins with its header");
            let walked = walk(&image, &header, 0);
            let is_whole =
                copy.bytes.len() > walked.end as usize && copy.new.is_sealed(foot(&image));
            assert!(
                walked.end as usize == copy.bytes.len() || is_whole,
                "only whole batches are copied"
            );
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

    fn begin(&self) -> BoxFuture<'_, Result<(), String>> {
        self.call(|state| {
            state.begun += 1;
            state.hidden.get_or_insert_default();
            Ok(())
        })
    }

    fn open<'a>(&'a self, new: &'a NewSegment) -> BoxFuture<'a, Result<u32, String>> {
        let open = self.call(move |state| {
            if state.manner == Manner::Full {
                return Err("no room".to_owned());
            }
            let counted = state.open.get(&new.segment).filter(|held| held.tail.is_some());
            let held = match (&mut state.hidden, counted) {
                (Some(_), Some(sealed)) => sealed,
                (Some(hidden), None) => hidden.entry(new.segment).or_insert(Held::new(new)),
                (None, _) => state.open.entry(new.segment).or_insert(Held::new(new)),
            };
            assert_eq!(held.new, *new, "a segment's number is used once");
            let has = if held.tail.is_some() { SEGMENT as usize } else { held.bytes.len() };
            Ok(u32::try_from(has).unwrap())
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
            let copy = state.written(segment)?;
            let offset = offset as usize;
            assert!(offset <= copy.bytes.len(), "a copy has no gaps");
            assert!(copy.tail.is_none(), "a sealed copy gets no more bytes");
            let known = (copy.bytes.len() - offset).min(bytes.len());
            assert_eq!(copy.bytes[offset..offset + known], bytes[..known], "bytes never change");
            copy.bytes.extend_from_slice(&bytes[known..]);
            if offset == 0 {
                assert_eq!(NewSegment::read(bytes), Some(copy.new));
            }
            Ok(())
        })
    }

    fn seal<'a>(&'a self, segment: SegmentId, tail: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        self.call(move |state| {
            let copy = state.written(segment)?;
            copy.tail = Some(tail.to_vec());
            assert!(copy.new.is_sealed(foot(&copy.image())), "it is sealed as a whole");
            Ok(())
        })
    }

    fn keep<'a>(
        &'a self,
        head: SegmentId,
        kept: &'a [SegmentId],
    ) -> BoxFuture<'a, Result<(), String>> {
        self.call(move |state| {
            let Some(hidden) = state.hidden.take() else { return Ok(()) };
            // A reply was lost, and the log has begun anew.
            let is_there =
                |segment| hidden.contains_key(segment) || state.open.contains_key(segment);
            if !kept.iter().chain([&head]).all(is_there) {
                state.hidden = Some(hidden);
                return Err("it lacks a segment".to_owned());
            }
            state.open.retain(|segment, _| *segment >= head || kept.contains(segment));
            state.open.extend(hidden);
            Ok(())
        })
    }

    fn free(&self, segment: SegmentId) -> BoxFuture<'_, Result<(), String>> {
        self.call(move |state| {
            assert!(state.hidden.is_none(), "a sync says what is kept");
            state.open.remove(&segment);
            Ok(())
        })
    }
}

fn foot(image: &[u8]) -> &[u8] {
    &image[image.len() - NewSegment::FOOT_BYTES..]
}

/// Starts a log over nothing but the copies, and returns the serials that it recovers.
async fn restored(env: &Env, images: &[Vec<u8>], number: &mut u32) -> Vec<u64> {
    *number += 1;
    let config = Config { folder: format!("/copies/{number}").into(), ..config(8) };
    env.disk().create_folder(&config.folder).await.unwrap();
    for (file, image) in (1..).zip(images) {
        let path = config.folder.join(format!("{file:08}.seg"));
        let file = env.disk().open(&path, Open::Create).await.unwrap();
        file.write_at(image, 0).await.unwrap();
        file.sync_data().await.unwrap();
    }
    let memory = format!("/memory/copies{number}");
    let arena = Arena::open_sized(env, Path::new(&memory), NODE, 4, SEGMENT).expect("memory");
    let found = Log::find(env, arena, config, true, None).await.expect("a folder");
    let (log, opened) = found.open(Incarnation(2)).await.expect("the copies are a log");
    assert_eq!(opened.damage, Vec::<String>::new());
    let serials = recovered(&log, volume(1)).await;
    log.close().await.unwrap();
    serials
}

async fn open(env: &Env, holders: &[Arc<Holder>]) -> Log {
    begin(env, holders, 1).await
}

/// Opens the log in its folder as the start with this number.
async fn begin(env: &Env, holders: &[Arc<Holder>], life: u64) -> Log {
    begin_with(env, holders, life, COPY_BYTES_MAX).await
}

async fn begin_with(env: &Env, holders: &[Arc<Holder>], life: u64, copy_bytes: u32) -> Log {
    let arena = Arena::open_sized(env, Path::new(ARENA), NODE, 4, SEGMENT).expect("memory");
    let found = Log::find(env, arena, config(8), true, None).await.expect("a folder");
    let replicas = holders.iter().map(|holder| holder.clone() as Arc<dyn Replica>).collect();
    let found = found.with_replicas(replicas).with_copy_bytes(copy_bytes);
    found.open(Incarnation(life)).await.expect("it opens").0
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
fn every_replica_that_is_required_counts() {
    let world = world(2);
    world.block_on(async {
        let env = world.env();
        let (well, gone) = (Holder::new(&env, Manner::Well), Holder::new(&env, Manner::Gone));
        let log = open(&env, &[gone.clone(), well]).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        let both = Media { flash: true, copies: 2 };
        for media in [COPIES, both] {
            assert!(!reaches(&env, &log, media, position).await, "only one of them has it");
        }
        gone.set(Manner::Well);
        log.reach(both, position).await.expect("both have it");
        assert!(log.progress().covers(COPIES, position) && log.replicas_behind().is_empty());
        let three = Media { flash: true, copies: 3 };
        assert!(!reaches(&env, &log, three, position).await, "there are only two");
    });
}

#[test]
fn a_replica_that_comes_later_gets_all_of_the_log_and_counts_from_then_on() {
    for seed in 0..6 {
        let world = world(seed);
        world.block_on(async {
            let env = world.env();
            let mut random = Random::new(seed);
            let first = Holder::new(&env, Manner::Well);
            // Segments of an earlier life, and of this one.
            let log = begin(&env, std::slice::from_ref(&first), 1).await;
            work(&env, &log, &first, &mut random, (1, 60)).await;
            log.close().await.unwrap();
            drop(log);
            let log = begin(&env, &[], 2).await;
            for serial in 61..=90 {
                append(&log, volume(1), serial, 1000).await.unwrap();
            }
            let later = Holder::new(&env, [Manner::Well, Manner::Failing][seed as usize % 2]);
            let follower = log.follow(later.clone());
            let (position, _) = append(&log, volume(1), 91, 100).await.unwrap();
            assert!(!reaches(&env, &log, COPIES, position).await, "none is required");
            log.reach_all(position).await.expect("none is waited for");
            while !(follower.is_following() && follower.position() >= position) {
                env.sleep(SHORT).await;
            }
            follower.require();
            log.reach(COPIES, position).await.expect("it is there, and required");
            work(&env, &log, &later, &mut random, (92, 150)).await;
            let (position, _) = append(&log, volume(1), 151, 100).await.unwrap();
            log.reach(COPIES, position).await.expect("it follows");
            let released = first.state.lock().released.max(later.state.lock().released);
            let images = later.state.lock().moment().images;
            let serials = restored(&env, &images, &mut 0).await;
            let lacks = (released + 1..=151).find(|serial| !serials.contains(serial));
            assert_eq!(lacks, None, "seed {seed}: {serials:?}");
        });
    }
}

#[test]
fn no_write_waits_for_a_replica_that_was_dismissed_and_it_gets_nothing_more() {
    let world = world(8);
    world.block_on(async {
        let env = world.env();
        let (well, gone) = (Holder::new(&env, Manner::Well), Holder::new(&env, Manner::Gone));
        let log = open(&env, &[gone.clone(), well.clone()]).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        assert!(!reaches(&env, &log, COPIES, position).await, "one of them lacks it");
        let followers = log.followers();
        let waits = log.clone();
        let fewer = env.start("waits", async move { waits.until_fewer(2).await });
        followers[0].dismiss();
        fewer.await.expect("the log is well");
        log.reach(COPIES, position).await.expect("the other one has it");
        gone.set(Manner::Well);
        let (position, _) = append(&log, volume(1), 2, 100).await.unwrap();
        log.reach(COPIES, position).await.expect("the other one has it");
        env.sleep(SHORT * 60).await;
        assert!(gone.serials().is_empty() && well.serials() == [1, 2]);
        followers[1].dismiss();
        assert!(log.followers().is_empty() && log.replicas_behind().is_empty());
        assert!(!reaches(&env, &log, COPIES, position).await, "a copy is asked for");
        log.reach_all(position).await.expect("flash has it");
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
fn a_peer_without_room_is_asked_ever_less_often_and_its_reason_stays() {
    let world = world(7);
    world.block_on(async {
        let env = world.env();
        let holder = Holder::new(&env, Manner::Full);
        let log = open(&env, std::slice::from_ref(&holder)).await;
        let (position, _) = append(&log, volume(1), 1, 100).await.unwrap();
        log.reach(Media::FLASH, position).await.expect("flash is well");
        for _ in 0..600 {
            env.sleep(SHORT).await;
            let behind = log.replicas_behind();
            assert_eq!(behind, [("holder".to_owned(), Some("no room".to_owned()))]);
        }
        let begun = holder.state.lock().begun;
        assert!(begun < 80, "{begun} syncs within a minute");
        holder.set(Manner::Well);
        log.reach(COPIES, position).await.expect("the peer catches up");
        assert!(log.replicas_behind().is_empty());
    });
}

#[test]
fn copies_follow_the_log_over_rollovers_and_are_freed_with_it() {
    let mut random = Random::new(4);
    for seed in 0..20 {
        let world = world(seed);
        world.block_on(async {
            let env = world.env();
            let manner = if seed % 2 == 0 { Manner::Failing } else { Manner::Well };
            let holder = Holder::new(&env, manner);
            let log = open(&env, std::slice::from_ref(&holder)).await;
            let (mut released, mut number) = (0, 0);
            for serial in 1..=200 {
                let length = 100 + random.below(3000) as usize;
                let (position, _) = append(&log, volume(1), serial, length).await.unwrap();
                if random.below(4) == 0 {
                    log.reach(COPIES, position).await.expect("the log is well");
                    let serials = holder.serials();
                    let kept: Vec<u64> =
                        serials.into_iter().filter(|serial| *serial > released).collect();
                    assert_eq!(kept, (released + 1..=serial).collect::<Vec<_>>(), "seed {seed}");
                    let images = holder.state.lock().moment().images;
                    let restored = restored(&env, &images, &mut number).await;
                    let kept: Vec<u64> =
                        restored.into_iter().filter(|serial| *serial > released).collect();
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

/// Appends random changes until serial `last`, some of them acknowledged with their copies, and
/// releases some.
async fn work(
    env: &Env,
    log: &Log,
    holder: &Holder,
    random: &mut Random,
    (first, last): (u64, u64),
) {
    let mut appended = Vec::new();
    for serial in first..=last {
        let length = 100 + random.below(4000) as usize;
        let (position, _) = append(log, volume(1), serial, length).await.unwrap();
        appended.push((serial, position));
        match random.below(6) {
            0 => {
                log.reach(COPIES, position).await.expect("the log is well");
                holder.state.lock().acked = serial;
            }
            1 => {
                let mut state = holder.state.lock();
                state.released = serial - random.below(serial - state.released);
                log.release(volume(1), Serial(state.released));
            }
            2 => log.reach(Media::FLASH, position).await.expect("the log is well"),
            3 => env.sleep(SHORT / 20).await,
            _ => {}
        }
        // Each change is acknowledged as soon as it may be, also amid a batch.
        let progress = log.progress();
        let covered = |(_, position): &&(u64, Position)| progress.covers(COPIES, *position);
        if let Some((serial, _)) = appended.iter().rev().find(covered) {
            let mut state = holder.state.lock();
            state.acked = state.acked.max(*serial);
        }
    }
}

#[test]
fn after_each_call_the_copies_alone_are_a_log_with_everything_that_was_acknowledged() {
    for seed in 0..16 {
        let world = world(seed);
        let history = world.block_on(async {
            let env = world.env();
            let mut random = Random::new(seed);
            // Short pieces end amid batches, and syncs amid what was acknowledged. Of many calls in
            // a row one fails.
            let (manner, copy_bytes) = [
                (Manner::Well, 1500),
                (Manner::Failing, COPY_BYTES_MAX),
                (Manner::Slow, 1500),
                (Manner::Shaky, 1500),
            ][seed as usize % 4];
            let holder = Holder::new(&env, manner);
            holder.state.lock().history = Some(Vec::new());
            let mut last = 0;
            // Lives that end well, and lives that are killed.
            for life in 1..=4 {
                let holders = std::slice::from_ref(&holder);
                let log = begin_with(&env, holders, life, copy_bytes).await;
                let next = last + 20 + random.below(40);
                work(&env, &log, &holder, &mut random, (last + 1, next)).await;
                last = next;
                if random.below(2) == 0 {
                    log.close().await.unwrap();
                }
                drop(log);
                // The copiers end with the log.
                env.sleep(SHORT * 60).await;
            }
            holder.state.lock().history.take().unwrap()
        });
        assert!(history.len() > 50, "{}", history.len());
        for (call, moment) in history.iter().enumerate().filter(|(_, at)| at.acked > 0) {
            let elsewhere = self::world(seed);
            elsewhere.block_on(async {
                let serials = restored(&elsewhere.env(), &moment.images, &mut 0).await;
                let wanted = moment.released + 1..=moment.acked;
                let lacks = wanted.clone().find(|serial| !serials.contains(serial));
                assert_eq!(
                    lacks, None,
                    "of {wanted:?} after call {call}, seed {seed}: {serials:?}"
                );
            });
        }
    }
}

#[test]
fn a_holder_that_has_lost_its_copies_gets_them_all_at_the_next_start() {
    for seed in 0..4 {
        let world = world(seed);
        world.block_on(async {
            let env = world.env();
            let mut random = Random::new(seed);
            let holder = Holder::new(&env, Manner::Well);
            let log = begin(&env, std::slice::from_ref(&holder), 1).await;
            work(&env, &log, &holder, &mut random, (1, 60)).await;
            if seed % 2 == 0 {
                log.close().await.unwrap();
            }
            drop(log);
            let other = Holder::new(&env, Manner::Failing);
            other.state.lock().released = holder.state.lock().released;
            let log = begin(&env, std::slice::from_ref(&other), 2).await;
            let (position, _) = append(&log, volume(1), 61, 100).await.unwrap();
            log.reach(COPIES, position).await.expect("all of the log is copied");
            let Moment { images, released, .. } = other.state.lock().moment();
            let serials = restored(&env, &images, &mut 0).await;
            let lacks = (released + 1..=61).find(|serial| !serials.contains(serial));
            assert_eq!(lacks, None, "seed {seed}: {serials:?}");
        });
    }
}
