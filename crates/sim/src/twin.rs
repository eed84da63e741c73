//! Two lives of one node side by side: while the node serves, its folder is copied to another
//! machine, and the copy is started as the same node. Both have clients. Later the copy stops, and
//! the first folder goes on by a user's command.
//!
//! Judged of the newer life: it begins with the state of the folder at the copy, or with what the
//! store has had since, and from then on loses nothing that it acknowledges. Judged of the older
//! life: it meets the newer one soon, and then acknowledges nothing that the newer has not. Each
//! life reads what was acknowledged there, never a mix. The first folder, when it comes back, has
//! all that the copy has brought into the store, and nothing that its own deposed life wrote.

mod life;

use crate::boot::{FLASH, NODE, Node, Record, Setup};
use crate::dice::Dice;
use crate::end::Begun;
use crate::heard;
use crate::oracle::BLOCK;
use crate::region::{Region, SharedRegion};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::start::{self, Served, Start};
use crate::trouble;
use parking_lot::Mutex;
use rekindle_base::units::{KIB, MIB};
use rekindle_content::sweep::{Budget, Options};
use rekindle_content::{Class, Content, tree};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_env::sim::{Host, Stop, World};
use rekindle_volume::{Ack, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const VOLUMES: usize = 3;
const BLOCKS: usize = 4;
const REGION: usize = BLOCKS * BLOCK;
/// Longest wait of any task: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often a node looks for sweeps of other nodes.
const LOOK: Duration = Duration::from_secs(60);
/// The hosts, in the order of the lives.
const OLD: usize = 0;
const NEW: usize = 1;

/// Faults of the store in a life.
const STORE: [&str; 4] = ["", "latency=2ms", "latency=1ms,fail=5%,lie=5%", "latency=20ms"];

struct Volume {
    name: String,
    /// The promises to the clients of the first folder.
    old: SharedRegion,
    /// The oldest state of `old` with which the copy may begin.
    floor: AtomicU64,
    /// The promises before a crash, while the copy may be of that time: it may lack what only
    /// memory had.
    earlier: Mutex<Vec<(Region, usize)>>,
    new: Mutex<Option<Seen>>,
}

/// A volume in the newer life.
#[derive(Clone)]
struct Seen {
    /// The bytes at the newer life's first look.
    base: Vec<u8>,
    /// The promises to the newer life's clients.
    region: SharedRegion,
}

/// State that all lives share.
struct Run {
    store: Store,
    setup: Setup,
    /// The record of the node, which both lives share.
    record: Record,
    volumes: Vec<Volume>,
    serving: Mutex<[Option<Served>; 2]>,
    /// Actors of each life that have not ended.
    busy: [AtomicU64; 2],
    /// Whether the copy has been started once; `has_taken`: whether it has taken the node.
    is_copied: AtomicBool,
    has_taken: AtomicBool,
    /// How long the clients of the first folder pause when the copy is started.
    siesta: Duration,
    is_ending: AtomicBool,
    failure: Mutex<Option<String>>,
    begun: Begun,
}

/// One life, for its actors.
#[derive(Clone)]
struct Life {
    run: Arc<Run>,
    /// [`OLD`] or [`NEW`].
    which: usize,
    served: Served,
    env: Env,
}

fn setup(dice: &mut Dice) -> Setup {
    let (policy, ack) = match dice.below(8) {
        0 => (Policy::Uncached, Ack::Flash),
        1..=2 => (Policy::Through, Ack::Flash),
        3 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    Setup {
        policy,
        ack,
        size: REGION as u64,
        cache_bytes: [64 * KIB, 4 * MIB][dice.below(2) as usize],
        segment_bytes: 512 * KIB,
        flash_bytes: 512 * KIB * [3, 6][dice.below(2) as usize],
        warm_slots: 3,
        destage_age: Duration::from_millis([5, 500, 20_000][dice.below(3) as usize]),
        batch_bytes: 64 * KIB,
        index_at_once: [0, usize::MAX][dice.below(2) as usize],
    }
}

/// As a node sweeps, but packs are young for a shorter time.
fn options() -> Options {
    Options {
        budget: Budget::Unlimited,
        compacts: true,
        grace: Duration::from_secs(10),
        young: Duration::from_secs(15),
        patience: Duration::from_secs(20),
    }
}

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let (outcome, counts) = heard::listen(|| lives(seed));
    outcome.map(|outcome| Outcome { counts, ..outcome })
}

fn lives(seed: u64) -> Result<Outcome, String> {
    let mut dice = Dice::new(seed);
    let world = World::new(seed, trouble::tears(&mut dice));
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let slow = Duration::from_millis([5, 50, 500][dice.below(3) as usize]);
    let usual = Duration::from_micros([50, 500, 3000][dice.below(3) as usize]);
    let pace = Pace { usual, slow_percent: [0, 10, 30][dice.below(3) as usize], slow };
    let volume = |number: usize| Volume {
        name: format!("v{number}"),
        old: Arc::new(Mutex::new(Region::new(REGION))),
        floor: AtomicU64::new(0),
        earlier: Mutex::default(),
        new: Mutex::default(),
    };
    let run = Arc::new(Run {
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        setup: setup(&mut dice),
        record: Record::default(),
        volumes: (0..VOLUMES).map(volume).collect(),
        serving: Mutex::default(),
        busy: Default::default(),
        is_copied: AtomicBool::new(false),
        has_taken: AtomicBool::new(false),
        siesta: Duration::from_secs([0, 0, 100][dice.below(3) as usize]),
        is_ending: AtomicBool::new(false),
        failure: Mutex::default(),
        begun: Begun::default(),
    });
    let writer = Writer::new(world.env(), run.store.clone(), NODE);
    world.block_on(Node::found_store(&writer))?;
    let hosts = [world.host("one"), world.host("two")];
    let mut outcome = Outcome::default();
    let ended = run.drive(&world, &hosts, &mut dice, &mut outcome);
    ended.map_err(|why| format!("seed {seed}, {:?}: {why}", run.setup))?;
    for Volume { old, new, .. } in &run.volumes {
        outcome.acknowledged += old.lock().acknowledged;
        let new = new.lock().clone().map_or(0, |new| new.region.lock().acknowledged);
        outcome.acknowledged += new;
    }
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

impl Run {
    fn drive(
        self: &Arc<Self>,
        world: &World,
        hosts: &[Host; 2],
        dice: &mut Dice,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        self.begin(&hosts[OLD], OLD, dice);
        for _ in 0..dice.below(2) {
            self.work(world, 1 + dice.below(40))?;
            world.run_until(Stop::Step(1 + dice.below(40)));
            self.crash(&hosts[OLD], OLD, dice, outcome);
            self.begin(&hosts[OLD], OLD, dice);
        }
        self.work(world, 1 + dice.below(60))?;
        let is_stopped = dice.below(3) == 0;
        if is_stopped {
            self.crash(&hosts[OLD], OLD, dice, outcome);
        }
        let copied = hosts[OLD].copy_folder(FLASH, &hosts[NEW], FLASH);
        copied.map_err(|error| format!("the copy: {error}"))?;
        for volume in &self.volumes {
            // The copy has no memory, and so none of the changes that only memory has.
            if self.setup.ack == Ack::Flash {
                volume.floor.store(volume.old.lock().mark() as u64, Ordering::Relaxed);
                volume.earlier.lock().clear();
            }
        }
        if is_stopped {
            self.begin(&hosts[OLD], OLD, dice);
        }
        self.work(world, 1 + dice.below(40))?;
        if dice.below(6) == 0 {
            self.crash(&hosts[OLD], OLD, dice, outcome);
        }
        self.is_copied.store(true, Ordering::Relaxed);
        // A node that has not acknowledged anything for a while does not look whether it is
        // replaced.
        world.run_until(Stop::Time(self.siesta / 4));
        self.begin(&hosts[NEW], NEW, dice);
        for _ in 0..dice.below(3) {
            self.work(world, 1 + dice.below(40))?;
            world.run_until(Stop::Step(1 + dice.below(40)));
            if dice.below(6) == 0 {
                self.crash(&hosts[OLD], OLD, dice, outcome);
            }
            self.crash(&hosts[NEW], NEW, dice, outcome);
            self.begin(&hosts[NEW], NEW, dice);
        }
        self.work(world, 10 + dice.below(60))?;
        let env = world.env();
        let end = env.timeout(PATIENCE, self.clone().end(env.clone()));
        world.block_on(end).map_err(|_elapsed| "it waits for ever".to_owned())??;
        hosts.iter().for_each(Host::crash_process);
        // The first folder goes on by a user's command.
        let env = hosts[OLD].env();
        let back = env.timeout(PATIENCE, self.clone().take_back(env.clone()));
        world.block_on(back).map_err(|_elapsed| "taken back, it waits for ever".to_owned())?
    }

    fn check(&self) -> Result<(), String> {
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Runs the world until clients have begun so many more requests.
    fn work(&self, world: &World, requests: u64) -> Result<(), String> {
        let target = self.begun.load(Ordering::Relaxed) + requests;
        let until = world.elapsed() + PATIENCE;
        while self.begun.load(Ordering::Relaxed) < target {
            world.run_until(Stop::Step(20));
            self.check()?;
            if world.elapsed() > until {
                return Err("nobody does anything".to_owned());
            }
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, host: &Host, which: usize, dice: &mut Dice) {
        let (run, env, dice) = (self.clone(), host.env(), dice.fork());
        host.env().spawn("life", async move {
            if let Err(why) = run.clone().live(env, which, dice).await {
                run.failure.lock().get_or_insert(format!("life {which}: {why}"));
            }
        });
    }

    fn crash(&self, host: &Host, which: usize, dice: &mut Dice, outcome: &mut Outcome) {
        let served = self.serving.lock()[which].take();
        let owes = served.is_some_and(|served| {
            served.node.staging.volumes().iter().any(|staged| staged.backlog().changes > 0)
        });
        outcome.amid_work += u64::from(owes);
        // A power cut takes what only memory has, and this oracle excuses no loss.
        if self.setup.ack == Ack::Flash && dice.below(2) == 0 {
            host.cut_power();
            outcome.power_cuts += 1;
        } else {
            host.crash_process();
            outcome.crashes += 1;
        }
        self.busy[which].store(0, Ordering::Relaxed);
    }

    async fn start(&self, env: &Env, takes: bool) -> Result<Served, String> {
        let how = Start {
            node: NODE,
            setup: &self.setup,
            record: &self.record,
            options: options(),
            takes,
        };
        let served = start::start(env, self.store.clone(), how).await?;
        env.spawn("watch", served.clone().watch());
        Ok(served)
    }

    /// Runs one life: starts the node, and spawns all its actors.
    async fn live(self: Arc<Self>, env: Env, which: usize, mut dice: Dice) -> Result<(), String> {
        let takes = which == NEW && !self.has_taken.load(Ordering::Relaxed);
        let served = self.start(&env, takes).await?;
        self.has_taken.fetch_or(takes, Ordering::Relaxed);
        if !self.is_ending.load(Ordering::Relaxed) {
            let words = STORE[dice.below(STORE.len() as u64) as usize];
            served.faults.set(words.parse().expect("ours"));
            if dice.below(3) == 0 {
                heard::note("stale lists");
                served.lists.set("stale=20%".parse().expect("ours"));
            }
        }
        env.spawn("agree", served.clone().agree(LOOK));
        self.serving.lock()[which] = Some(served.clone());
        let life = Life { run: self.clone(), which, served, env: env.clone() };
        for at in 0..VOLUMES {
            life.act("client", life.clone().client(at, dice.fork()));
        }
        life.act("sweeps", life.clone().sweeps(dice.fork()));
        Ok(())
    }

    /// Ends the run: heals the stores, lets the older life meet the newer one, and checks that the
    /// newer one has all that it should.
    async fn end(self: Arc<Self>, env: Env) -> Result<(), String> {
        self.is_ending.store(true, Ordering::Relaxed);
        let pause = Duration::from_millis(50);
        let new = loop {
            self.check()?;
            let served = self.serving.lock()[NEW].clone();
            if let Some(served) = served {
                break served;
            }
            env.sleep(pause).await;
        };
        let old = self.serving.lock()[OLD].clone();
        for served in old.iter().chain([&new]) {
            served.faults.set(Plan::default());
            served.lists.set(Plan::default());
        }
        while self.busy.iter().any(|busy| busy.load(Ordering::Relaxed) > 0) {
            self.check()?;
            env.sleep(pause).await;
        }
        self.check()?;
        let life = |which, served: &Served| {
            let (run, env) = (self.clone(), served.node.writer.env.clone());
            Life { run, which, served: served.clone(), env }
        };
        let of_new = life(NEW, &new);
        for at in 0..VOLUMES {
            let device = of_new.enter(at).await?.ok_or("the newer life is fenced")?;
            let drained = device.handle().staged().drain().await;
            drained.map_err(|error| format!("drain: {error}"))?;
        }
        if let Some(old) = &old {
            life(OLD, old).meet().await?;
        }
        for _ in 0..2 {
            if !new.sweep().await? {
                env.sleep(Duration::from_secs(70)).await;
            }
            env.sleep(options().young).await;
        }
        self.compare_coldly(&env, &new).await?;
        new.node.volumes.stop(true).await.map_err(|error| format!("stop: {error}"))?;
        new.node.staging.stop().await;
        new.node.log.close().await.map_err(|error| format!("the log does not close: {error}"))
    }

    /// Checks that a reader with empty caches sees every block.
    async fn compare_coldly(&self, env: &Env, served: &Served) -> Result<(), String> {
        let eyes = Content::open(env.clone(), self.store.clone(), Node::content_config());
        for Volume { name, new, .. } in &self.volumes {
            let told = |error: &dyn std::fmt::Display| format!("{name} in the store: {error}");
            let info = served.node.volumes.show(name).await.map_err(|error| told(&error))?;
            let expected = new.lock().clone().ok_or("nobody looked")?;
            for block in 0..BLOCKS {
                let found = tree::get(&eyes, &info.vault.root, block as u64).await;
                let found = match found.map_err(|error| told(&error))? {
                    Some(pointer) => {
                        let read = eyes.read(&pointer, Class::Data).await;
                        read.map_err(|error| told(&error))?.to_vec()
                    }
                    None => vec![0; BLOCK],
                };
                let region = expected.region.lock();
                if region.expected()[block * BLOCK..(block + 1) * BLOCK] != found {
                    return Err(format!("{name} in the store: block {block} is another"));
                }
            }
        }
        Ok(())
    }

    /// Starts the first folder again, with its log as it was left.
    async fn take_back(self: Arc<Self>, env: Env) -> Result<(), String> {
        let served = self.start(&env, true).await?;
        let life = Life { run: self.clone(), which: NEW, served, env };
        let told = |why| format!("taken back: {why}");
        // All volumes are attached before any is written to: the log's changes of each may be in
        // the way of the others.
        let mut devices = Vec::new();
        for at in 0..VOLUMES {
            devices.push(life.enter(at).await.map_err(told)?.ok_or("taken back and fenced")?);
        }
        for (at, device) in devices.iter().enumerate() {
            let mut dice = Dice::new(at as u64);
            for _ in 0..4 {
                life.step(at, device, &mut dice).await.map_err(told)?;
            }
            let drained = device.handle().staged().drain().await;
            drained.map_err(|error| format!("taken back: drain: {error}"))?;
        }
        heard::note("taken back");
        self.compare_coldly(&life.env, &life.served).await
    }
}
