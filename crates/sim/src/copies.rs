//! Copies of a node's log on another machine. The node writes, it and its holders die and come
//! back, the network between them is cut or slow, the store fails. Then the node's host is lost for
//! good, and the node starts again from a holder's copies. In some runs the lost host is not lost
//! at all: it goes on beside its successor. In some runs the successor's host is lost, too.
//!
//! Judged of volumes that the copies or the store acknowledge: a successor has everything that any
//! host before it has acknowledged, and shows no mix. What a replaced host acknowledges later, the
//! successor had at its first look. Judged of a volume that asked for no copies: a successor
//! refuses it, or has everything, too. In the end a reader with empty caches sees in the store what
//! the last successor has.

mod life;

use crate::boot::{How, Served, Setup, block_of, found_store};
use crate::dice::Dice;
use crate::heard;
use crate::oracle::BLOCK;
use crate::region::{Excuse, Region, SharedRegion, judge};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::stage::{PATIENCE, Stage};
use crate::trouble;
use parking_lot::Mutex;
use rekindle_base::units::{KIB, MIB};
use rekindle_base::{Incarnation, NodeId};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, Host, Stop, World};
use rekindle_front::http::Api;
use rekindle_staging::{Ack, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const VOLUMES: usize = 3;
const BLOCKS: usize = 4;
const REGION: usize = BLOCKS * BLOCK;
/// Hosts on which the node lives, one after the other, if all goes wrong; generation 0 is the
/// original.
const GENERATIONS: usize = 3;
/// Nodes of a run: the generations, and two holders of copies behind them.
const NODES: usize = GENERATIONS + HOLDERS;
const HOLDERS: usize = 2;
/// The hosts by number. A generation may live on the machine of a holder.
const MACHINES: [&str; NODES] = ["original", "second", "third", "holder", "other-holder"];
/// Where the holders take copies.
const PLACES: [&str; HOLDERS] = ["tcp:10.0.0.1:7733", "tcp:10.0.0.2:7733"];
/// Folder of the holders with the copies, and that of a machine to which copies were carried.
const HELD: &str = "/node/copies";
const CARRIED: &str = "/carried";
/// Pause before another look.
const PAUSE: Duration = Duration::from_millis(50);

/// Faults of the store in a life.
const STORE: [&str; 4] = ["", "latency=2ms", "latency=1ms,fail=5%,lie=5%", "latency=20ms"];

struct Volume {
    name: String,
    setup: Setup,
    /// Whether the creation is acknowledged.
    is_created: AtomicBool,
    /// The volume as each generation has it.
    seen: Mutex<[Option<Seen>; GENERATIONS]>,
    /// The original's states that the store may show, with the oldest of them: of each life since
    /// the last drain.
    past: Mutex<Vec<(Region, usize)>>,
    drained: AtomicUsize,
}

/// A volume in one generation.
#[derive(Clone)]
struct Seen {
    /// The bytes at the generation's first look.
    base: Vec<u8>,
    /// The promises to its clients.
    region: SharedRegion,
    /// The promises before each start since the last acknowledgement. A start shows a change that
    /// was in flight, and no copy may have it yet: it is promised with the next acknowledgement.
    earlier: Arc<Mutex<Vec<Region>>>,
}

impl Seen {
    fn new(base: Vec<u8>, region: SharedRegion) -> Self {
        Self { base, region, earlier: Arc::default() }
    }
}

impl Volume {
    fn new(number: usize, setup: &Setup, dice: &mut Dice) -> Self {
        let (copies, policy) = match number {
            0 => (1, Policy::Back),
            1 => ([1, 1, 1, 2][dice.below(4) as usize], Policy::Back),
            _ => (0, [Policy::Back, Policy::Back, Policy::Through][dice.below(3) as usize]),
        };
        let region = Arc::new(Mutex::new(Region::new(REGION)));
        Self {
            name: format!("v{number}"),
            setup: Setup { copies, policy, ..setup.clone() },
            is_created: AtomicBool::new(false),
            seen: Mutex::new([Some(Seen::new(vec![0; REGION], region)), None, None]),
            past: Mutex::default(),
            drained: AtomicUsize::new(0),
        }
    }

    /// Whether only the lost machine may have had changes of the volume.
    fn is_alone(&self) -> bool {
        self.setup.copies == 0 && self.setup.policy == Policy::Back
    }

    /// The volume as the newest generation before this one has it.
    fn before(&self, generation: usize) -> Seen {
        let seen = self.seen.lock()[..generation].iter().rev().flatten().next().cloned();
        seen.expect("the original has each volume")
    }

    /// The volume as the first generation after this one has it.
    fn after(&self, generation: usize) -> Option<Seen> {
        self.seen.lock()[generation + 1..].iter().flatten().next().cloned()
    }
}

/// State that all lives share.
struct Run {
    store: Store,
    volumes: Vec<Volume>,
    stage: Arc<Stage<NODES>>,
    /// The settings of each node.
    setups: Mutex<Vec<Setup>>,
    /// The node's id, once the original has started.
    node: Mutex<Option<NodeId>>,
    /// The newest generation that has begun, and that has taken the node.
    newest: AtomicUsize,
    taken: AtomicUsize,
    /// The last life of each generation, and whether its holders had all of its log at some time.
    last_life: Mutex<[(Incarnation, bool); GENERATIONS]>,
    /// Whether the holders' disks fail just now.
    disks_fail: AtomicBool,
    /// Whether a generation found no copies to start from.
    is_over: AtomicBool,
}

/// One life of a generation, for its actors.
#[derive(Clone)]
struct Life {
    run: Arc<Run>,
    generation: usize,
    served: Served,
    env: Env,
}

fn setup(dice: &mut Dice) -> Setup {
    Setup {
        ack: [Ack::Flash, Ack::Flash, Ack::Memory][dice.below(3) as usize],
        size: REGION as u64,
        cache_bytes: [64 * KIB, 4 * MIB][dice.below(2) as usize],
        // A volume that a successor refuses keeps its part of the log.
        flash_bytes: 512 * KIB * [6, 12][dice.below(2) as usize],
        destage_age: Duration::from_millis([5, 500, 20_000][dice.below(3) as usize]),
        index_at_once: [0, usize::MAX][dice.below(2) as usize],
        looks: Duration::from_secs(60),
        ..Setup::default()
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
    let pace = Pace::draw(&mut dice);
    let setup = setup(&mut dice);
    let holders = 1 + usize::from(dice.below(3) == 0);
    let copy_to = PLACES[..holders].iter().map(|place| (*place).to_owned()).collect();
    let mut setups = vec![setup.clone(); NODES];
    setups[0].copy_to = copy_to;
    for (holder, place) in PLACES.iter().enumerate() {
        setups[GENERATIONS + holder].hold = Some((*place).to_owned());
    }
    let run = Arc::new(Run {
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        volumes: (0..VOLUMES).map(|number| Volume::new(number, &setup, &mut dice)).collect(),
        stage: Arc::default(),
        setups: Mutex::new(setups),
        node: Mutex::default(),
        newest: AtomicUsize::new(0),
        taken: AtomicUsize::new(0),
        last_life: Mutex::default(),
        disks_fail: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
    });
    world.block_on(found_store(&world.env(), &run.store))?;
    let mut story = Story {
        hosts: MACHINES.iter().map(|name| world.host(name)).collect(),
        machines: std::array::from_fn(|node| node),
        has_begun: [false; NODES],
        said: Vec::new(),
        outcome: Outcome::default(),
        run,
        dice,
        world,
    };
    let ended = story.drive(holders);
    let Story { run, world, mut outcome, said, .. } = story;
    ended.map_err(|why| format!("seed {seed}, {setup:?}, {said:?}: {why}"))?;
    for volume in &run.volumes {
        for seen in volume.seen.lock().iter().flatten() {
            outcome.acknowledged += seen.region.lock().acknowledged;
        }
    }
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

/// The course of a run.
struct Story {
    world: World,
    run: Arc<Run>,
    hosts: Vec<Host>,
    /// The machine of each node.
    machines: [usize; NODES],
    /// The nodes that come back after a crash.
    has_begun: [bool; NODES],
    dice: Dice,
    /// The events so far, for the message of a failure.
    said: Vec<String>,
    outcome: Outcome,
}

impl Story {
    fn drive(&mut self, holders: usize) -> Result<(), String> {
        let nodes: Vec<_> = (GENERATIONS..GENERATIONS + holders).chain([0]).collect();
        nodes.iter().for_each(|&node| self.begin(node));
        let mut newest = 0;
        let generations = 1 + usize::from(self.dice.below(4) == 0);
        self.trouble(newest)?;
        for generation in 1..=generations {
            let holder = match generation {
                1 => GENERATIONS + self.dice.below(holders as u64) as usize,
                // The second generation has its copies at the holder that was not released.
                _ => self.holders_of(newest)[0],
            };
            if !self.replace(newest, holder, generation < generations)? {
                heard::note("copies: none yet");
                return Ok(());
            }
            newest = generation;
            self.trouble(newest)?;
        }
        self.heal();
        let env = self.world.env();
        let end = env.timeout(PATIENCE, self.run.clone().end(env.clone(), newest));
        self.world.block_on(end).map_err(|_elapsed| "it waits for ever".to_owned())?
    }

    fn say(&mut self, what: String) {
        self.said.push(format!("{what} at {:?}", self.world.elapsed()));
    }

    fn work(&mut self, most: u64) -> Result<(), String> {
        let requests = 1 + self.dice.below(most);
        self.run.stage.work(&self.world, requests)?;
        self.world.run_until(Stop::Step(1 + self.dice.below(60)));
        self.run.stage.check()
    }

    /// The holders that a generation copies its log to.
    fn holders_of(&self, generation: usize) -> Vec<usize> {
        let copy_to = self.run.setups.lock()[generation].copy_to.clone();
        let is_one = |holder: &usize| copy_to.iter().any(|place| place == PLACES[*holder]);
        (0..HOLDERS).filter(is_one).map(|holder| GENERATIONS + holder).collect()
    }

    fn begin(&mut self, node: usize) {
        self.has_begun[node] = true;
        let (env, dice) = (self.hosts[self.machines[node]].env(), self.dice.fork());
        let run = self.run.clone();
        if node < GENERATIONS {
            self.run.stage.act(&env, node, "life", run.live(env.clone(), node, dice));
        } else {
            self.run.stage.act(&env, node, "holder", run.hold(env.clone(), node));
        }
    }

    /// Crashes the machine of a node, and everything there.
    fn crash(&mut self, node: usize) {
        self.say(format!("{node} crashes"));
        let machine = self.machines[node];
        let others = (0..NODES).filter(|&other| other != node && self.machines[other] == machine);
        others.for_each(|other| self.run.stage.leaves(other));
        let ack = match node {
            0 => self.run.volumes[0].setup.ack,
            _ => Ack::Flash,
        };
        let host = (&self.hosts[machine], node);
        self.run.stage.crash(host, ack, &mut self.dice, &mut self.outcome);
    }

    /// Begins all nodes of a machine again.
    fn come_back(&mut self, node: usize) {
        let machine = self.machines[node];
        for other in 0..NODES {
            if self.machines[other] == machine && self.has_begun[other] {
                self.begin(other);
            }
        }
    }

    /// Lets clients work in this generation while machines, network and disks have their faults.
    fn trouble(&mut self, generation: usize) -> Result<(), String> {
        for _ in 0..self.dice.below(5) {
            self.work(40)?;
            if self.dice.below(2) == 0 {
                self.heal();
            }
            if let Some(old) = (0..generation).find(|&old| self.has_begun[old])
                && self.dice.below(6) == 0
            {
                self.crash(old);
                self.come_back(old);
            }
            let holders = self.holders_of(generation);
            let Some(count) = Some(holders.len() as u64).filter(|count| *count > 0) else {
                self.crash(generation);
                self.come_back(generation);
                continue;
            };
            let holder = holders[self.dice.below(count) as usize];
            match self.dice.below(9) {
                0..=1 => {
                    self.crash(generation);
                    self.come_back(generation);
                }
                2..=3 => {
                    self.crash(holder);
                    if self.dice.below(2) == 0 {
                        self.world.run_until(Stop::Time(Duration::from_secs(self.dice.below(4))));
                    }
                    self.come_back(holder);
                }
                4 => {
                    self.crash(holder);
                    if self.machines[generation] != self.machines[holder] {
                        self.crash(generation);
                        self.come_back(generation);
                        self.world.run_until(Stop::Step(1 + self.dice.below(400)));
                    }
                    self.come_back(holder);
                }
                5..=6 => self.cut(generation, holder),
                7 => {
                    self.say("the network is slow".to_owned());
                    let most = [50, 500, 8000][self.dice.below(3) as usize];
                    let latency = Duration::from_millis(1)..=Duration::from_millis(most);
                    self.world.change_faults(|faults| faults.network_latency = latency);
                }
                _ => self.fail_disks(),
            }
        }
        self.work(40)
    }

    fn cut(&mut self, generation: usize, holder: usize) {
        self.say(format!("{generation} is cut off from {holder}"));
        let [one, other] = [generation, holder].map(|node| &self.hosts[self.machines[node]]);
        self.world.cut(one, other);
    }

    /// Lets the holders' disks fail, if no generation has its own log there.
    fn fail_disks(&mut self) {
        if self.machines[..GENERATIONS].iter().any(|&machine| machine >= GENERATIONS) {
            return;
        }
        self.say("the holders' disks fail".to_owned());
        self.run.disks_fail.store(true, Ordering::Relaxed);
        self.world.change_faults(|faults| {
            faults.only = Some(HELD.to_owned());
            (faults.write_error, faults.sync_error) = (0.05, 0.05);
        });
    }

    /// Ends all faults of the network and of disks.
    fn heal(&mut self) {
        self.say("healed".to_owned());
        self.mend_disks();
        self.world.heal();
        let latency = Faults::none().network_latency;
        self.world.change_faults(|faults| faults.network_latency = latency);
    }

    fn mend_disks(&mut self) {
        self.run.disks_fail.store(false, Ordering::Relaxed);
        self.world.change_faults(|faults| (faults.write_error, faults.sync_error) = (0.0, 0.0));
    }

    /// Replaces a generation by the next one, which starts from a holder's copies. `false` if there
    /// are none.
    fn replace(&mut self, old: usize, holder: usize, is_replaced: bool) -> Result<bool, String> {
        let is_dead = match self.dice.below(4) {
            0..=1 => true,
            2 => false,
            _ => {
                self.heal();
                self.cut(old, holder);
                self.work(20)?;
                false
            }
        };
        if is_dead {
            self.has_begun[old] = false;
            self.crash(old);
            if self.machines[old] == self.machines[holder] {
                self.come_back(holder);
            }
        }
        self.mend_disks();
        let node = self.run.node.lock().ok_or("the original has not started")?;
        // The disk of a holder that is lost, too, is carried elsewhere.
        let is_carried = self.dice.below(2) == 0;
        let is_found = is_carried && is_dead && self.dice.below(2) == 0;
        if is_found {
            self.crash(holder);
        } else if !self.release(node, holder)? {
            return Ok(false);
        }
        let new = old + 1;
        let held = format!("{HELD}/{node}");
        let folder = match is_carried {
            true => format!("{CARRIED}/{node}"),
            false => held.clone(),
        };
        if is_carried {
            let machine = &self.hosts[self.machines[holder]];
            if machine.copy_folder(&held, &self.hosts[new], &folder).is_err() {
                return Ok(false);
            }
        } else {
            self.machines[new] = self.machines[holder];
        }
        self.say(format!("{new} begins with copies of {holder}, carried {is_carried}"));
        let other = GENERATIONS + (holder + 1 - GENERATIONS) % HOLDERS;
        let copy_to = match self.dice.below(3) {
            _ if is_replaced => Some(other),
            0 => Some(holder),
            1 => Some(other),
            _ => None,
        };
        {
            let mut setups = self.run.setups.lock();
            let setup = &mut setups[new];
            setup.folder = folder.into();
            setup.warm = format!("/warm-{new}").into();
            setup.copy_to =
                copy_to.map(|holder| PLACES[holder - GENERATIONS].to_owned()).into_iter().collect();
        }
        if is_found {
            self.come_back(holder);
        }
        if let Some(holder) = copy_to.filter(|holder| !self.has_begun[*holder]) {
            self.begin(holder);
        }
        self.run.newest.store(new, Ordering::Relaxed);
        self.begin(new);
        if self.dice.below(3) == 0 {
            self.world.run_until(Stop::Step(1 + self.dice.below(300)));
            self.crash(new);
            self.come_back(new);
        }
        self.wait_for(new)?;
        Ok(!self.run.is_over.load(Ordering::Relaxed))
    }

    /// Waits until a generation serves, or has found that it cannot.
    fn wait_for(&self, generation: usize) -> Result<(), String> {
        let has_ended = || {
            self.run.stage.serving.lock()[generation].is_some()
                || self.run.is_over.load(Ordering::Relaxed)
        };
        let until = self.world.elapsed() + PATIENCE;
        while !has_ended() {
            self.world.run_until(Stop::Step(20));
            self.run.stage.check()?;
            if self.world.elapsed() > until {
                return Err(format!("{generation} does not start"));
            }
        }
        Ok(())
    }

    /// Releases the copies of the node at a holder, which may crash meanwhile; `false` if there are
    /// none.
    fn release(&mut self, node: NodeId, holder: usize) -> Result<bool, String> {
        let crashes = self.dice.below(3) == 0;
        let stop = match crashes {
            true => Stop::Step(1 + self.dice.below(80)),
            false => Stop::Never,
        };
        self.say(format!("the copies of {holder} are released"));
        let release = |run: &Arc<Run>| run.clone().release(self.world.env(), node, holder);
        if let Some(released) = self.world.block_on_until(stop, release(&self.run)) {
            return released;
        }
        self.crash(holder);
        self.come_back(holder);
        let release = self.run.clone().release(self.world.env(), node, holder);
        self.world.block_on(release)
    }
}

impl Run {
    /// Starts a holder of copies.
    async fn hold(self: Arc<Self>, env: Env, holder: usize) -> Result<(), String> {
        let setup = self.setups.lock()[holder].clone();
        let served = loop {
            match Served::start(&env, self.store.clone(), &setup, How::default()).await {
                Ok(served) => break served,
                Err(_) if self.disks_fail.load(Ordering::Relaxed) => env.sleep(PAUSE).await,
                Err(why) => return Err(why),
            }
        };
        self.stage.serving.lock()[holder] = Some(served);
        Ok(())
    }

    /// Has a holder release the node's copies, as a user would. `false` if it has none.
    async fn release(
        self: Arc<Self>,
        env: Env,
        node: NodeId,
        holder: usize,
    ) -> Result<bool, String> {
        loop {
            self.stage.check()?;
            let served = self.stage.serving.lock()[holder].clone();
            if let Some(served) = served {
                match served.service.release_copies(&node.to_string()).await {
                    Ok(_) => return Ok(true),
                    Err(error) if error.message.contains("there are no copies") => {
                        return Ok(false);
                    }
                    Err(error) => tracing::info!("not released: {}", error.message),
                }
            }
            env.sleep(PAUSE).await;
        }
    }

    /// Ends the run: heals the stores, lets replaced generations meet the newest one, and checks
    /// that it has all that it should.
    async fn end(self: Arc<Self>, env: Env, newest: usize) -> Result<(), String> {
        let serving = self.stage.end(&env, &[newest]).await?;
        let life = |generation: usize| {
            let served = serving[generation].clone()?;
            let env = served.env.clone();
            Some(Life { run: self.clone(), generation, served, env })
        };
        for old in (0..newest).filter_map(life) {
            heard::note("copies: replaced while it lives");
            old.meet().await?;
        }
        let new = life(newest).ok_or("the newest generation serves no more")?;
        for at in 0..VOLUMES {
            let Some(device) = new.enter(at).await? else { continue };
            let drained = device.handle().staged().drain().await;
            drained.map_err(|error| format!("drain: {error}"))?;
        }
        self.compare_coldly(&env, &new).await?;
        new.served.stop(true).await.map_err(|why| format!("it does not stop: {why}"))
    }

    /// Checks that a reader with empty caches sees every block.
    async fn compare_coldly(&self, env: &Env, life: &Life) -> Result<(), String> {
        let eyes = life.served.content_of(env, &self.store);
        for volume in self.volumes.iter().filter(|one| one.is_created.load(Ordering::Relaxed)) {
            let name = &volume.name;
            let told = |error: &dyn std::fmt::Display| format!("{name} in the store: {error}");
            let info = life.served.volumes.show(name).await.map_err(|error| told(&error))?;
            let mut found = Vec::new();
            for block in 0..BLOCKS {
                let block = block_of(&eyes, &info.vault.root, block as u64).await;
                found.extend(block.map_err(|error| told(&error))?.0);
            }
            let seen = volume.seen.lock()[life.generation].clone();
            match seen {
                Some(seen) if seen.region.lock().expected() != found => {
                    return Err(format!("{name} in the store is another"));
                }
                Some(_) => {}
                // It was refused. The store has a state since the last drain.
                None => volume.judge_past(found).map_err(|why| told(&why))?,
            }
        }
        Ok(())
    }
}

impl Volume {
    /// Judges what the store has of a volume that no successor serves.
    fn judge_past(&self, found: Vec<u8>) -> Result<(), String> {
        let mut past = self.past.lock().clone();
        let last = self.before(1).region.lock().clone();
        past.push((last, self.drained.load(Ordering::Relaxed)));
        let mut judged = Err("there is nothing to compare it with".to_owned());
        let found = [found];
        for (mut region, drained) in past {
            region.flushed(drained);
            judged = judge(&[Arc::new(Mutex::new(region))], &found, Excuse::Unflushed);
            if judged.is_ok() {
                break;
            }
        }
        judged.map(drop)
    }
}
