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

use crate::boot::{FOLDER, How, Served, Setup, block_of, found_store};
use crate::heard;
use crate::oracle::BLOCK;
use crate::region::{Region, SharedRegion};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::stage::{PATIENCE, Stage};
use crate::trouble;
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::units::{KIB, MIB};
use rekindle_content::sweep::{Budget, Options};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::Env;
use rekindle_env::sim::{Host, Stop, World};
use rekindle_staging::{Ack, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const VOLUMES: usize = 3;
const BLOCKS: usize = 4;
const REGION: usize = BLOCKS * BLOCK;
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
    volumes: Vec<Volume>,
    stage: Arc<Stage>,
    /// Whether the copy has been started once; `has_taken`: whether it has taken the node.
    is_copied: AtomicBool,
    has_taken: AtomicBool,
    /// How long the clients of the first folder pause when the copy is started.
    siesta: Duration,
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

fn setup(dice: &mut Random) -> Setup {
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
        flash_bytes: 512 * KIB * [3, 6][dice.below(2) as usize],
        destage_age: Duration::from_millis([5, 500, 20_000][dice.below(3) as usize]),
        index_at_once: [0, usize::MAX][dice.below(2) as usize],
        sweep: options(),
        looks: LOOK,
        ..Setup::default()
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
        ..Options::default()
    }
}

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    Outcome::with_counts(|| lives(seed))
}

fn lives(seed: u64) -> Result<Outcome, String> {
    let mut dice = Random::new(seed);
    let world = World::new(seed, trouble::tears(&mut dice));
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let pace = Pace::draw(&mut dice);
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
        volumes: (0..VOLUMES).map(volume).collect(),
        stage: Arc::default(),
        is_copied: AtomicBool::new(false),
        has_taken: AtomicBool::new(false),
        siesta: Duration::from_secs([0, 0, 100][dice.below(3) as usize]),
    });
    world.block_on(found_store(&world.env(), &run.store))?;
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
        dice: &mut Random,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        self.begin(&hosts[OLD], OLD, dice);
        for _ in 0..dice.below(2) {
            self.stage.work(world, 1 + dice.below(40))?;
            world.run_until(Stop::Step(1 + dice.below(40)));
            self.crash(&hosts[OLD], OLD, dice, outcome);
            self.begin(&hosts[OLD], OLD, dice);
        }
        self.stage.work(world, 1 + dice.below(60))?;
        let is_stopped = dice.below(3) == 0;
        if is_stopped {
            self.crash(&hosts[OLD], OLD, dice, outcome);
        }
        let copied = hosts[OLD].copy_folder(FOLDER, &hosts[NEW], FOLDER);
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
        self.stage.work(world, 1 + dice.below(40))?;
        if dice.below(6) == 0 {
            self.crash(&hosts[OLD], OLD, dice, outcome);
        }
        self.is_copied.store(true, Ordering::Relaxed);
        // A node that has not acknowledged anything for a while does not look whether it is
        // replaced.
        world.run_until(Stop::Time(self.siesta / 4));
        self.begin(&hosts[NEW], NEW, dice);
        for _ in 0..dice.below(3) {
            self.stage.work(world, 1 + dice.below(40))?;
            world.run_until(Stop::Step(1 + dice.below(40)));
            if dice.below(6) == 0 {
                self.crash(&hosts[OLD], OLD, dice, outcome);
            }
            self.crash(&hosts[NEW], NEW, dice, outcome);
            self.begin(&hosts[NEW], NEW, dice);
        }
        self.stage.work(world, 10 + dice.below(60))?;
        let env = world.env();
        let end = env.timeout(PATIENCE, self.clone().end(env.clone()));
        world.block_on(end).map_err(|_elapsed| "it waits for ever".to_owned())??;
        hosts.iter().for_each(Host::crash_process);
        // The first folder goes on by a user's command.
        let env = hosts[OLD].env();
        let back = env.timeout(PATIENCE, self.clone().take_back(env.clone()));
        world.block_on(back).map_err(|_elapsed| "taken back, it waits for ever".to_owned())?
    }

    fn begin(self: &Arc<Self>, host: &Host, which: usize, dice: &mut Random) {
        let (env, dice) = (host.env(), dice.fork());
        self.stage.act(&env, which, "life", self.clone().live(env.clone(), which, dice));
    }

    fn crash(&self, host: &Host, which: usize, dice: &mut Random, outcome: &mut Outcome) {
        self.stage.crash((host, which), self.setup.ack, dice, outcome);
    }

    async fn start(&self, env: &Env, takes: bool) -> Result<Served, String> {
        let how = How { takes, ..How::default() };
        Served::start(env, self.store.clone(), &self.setup, how).await
    }

    /// Runs one life: starts the node, and spawns all its actors.
    async fn live(self: Arc<Self>, env: Env, which: usize, mut dice: Random) -> Result<(), String> {
        let takes = which == NEW && !self.has_taken.load(Ordering::Relaxed);
        let served = self.start(&env, takes).await?;
        self.has_taken.fetch_or(takes, Ordering::Relaxed);
        if !self.stage.is_ending() {
            let words = STORE[dice.below(STORE.len() as u64) as usize];
            served.faults.set(words.parse().expect("ours"));
            if dice.below(3) == 0 {
                heard::note("stale lists");
                served.lists.set("stale=20%".parse().expect("ours"));
            }
        }
        self.stage.serving.lock()[which] = Some(served.clone());
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
        let [old, Some(new)] = self.stage.end(&env, &[NEW]).await? else {
            return Err("the newer life serves no more".to_owned());
        };
        let life = |which, served: &Served| {
            let (run, env) = (self.clone(), served.env.clone());
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
            if !new.sweep().await.map_err(|problem| problem.message)? {
                env.sleep(Duration::from_secs(70)).await;
            }
            env.sleep(options().young).await;
        }
        self.compare_coldly(&env, &new).await?;
        new.stop(true).await.map_err(|why| format!("it does not stop: {why}"))
    }

    /// Checks that a reader with empty caches sees every block.
    async fn compare_coldly(&self, env: &Env, served: &Served) -> Result<(), String> {
        let eyes = served.content_of(env, &self.store);
        for Volume { name, new, .. } in &self.volumes {
            let told = |error: &dyn std::fmt::Display| format!("{name} in the store: {error}");
            let info = served.volumes.show(name).await.map_err(|error| told(&error))?;
            let expected = new.lock().clone().ok_or("no client looked")?;
            for block in 0..BLOCKS {
                let found = block_of(&eyes, &info.vault.root, block as u64).await;
                let (found, _) = found.map_err(|error| told(&error))?;
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
            let mut dice = Random::new(at as u64);
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
