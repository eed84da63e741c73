//! A cluster: two or three hosts keep copies of one another's logs, and take lost nodes over. Hosts
//! die, lose their power, stand still, come back, or are lost for good; their clocks run at rates
//! of their own; ways between them are cut, one or both; messages are slow; the store fails, loses
//! replies and is far; disks with copies fail. In half of the runs, volumes move between the hosts.
//!
//! In the runs of [`run_with_files`] a file volume is there, too.
//!
//! Clients on every host write and read every volume that the host serves, old owners among them.
//! Every block is a register, and its history must be linearizable: so no acknowledged write is
//! lost, no read goes back in time, and no two lives serve one volume at one time.

mod files;
mod life;

use crate::boot::Setup;
use crate::heard;
use crate::linear::History;
use crate::oracle::BLOCK;
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::stage::{PATIENCE, Stage};
use crate::trouble;
use files::FileVolume;
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_base::units::{KIB, MIB};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, Host, Stop, World};
use rekindle_front::http::Api;
use rekindle_staging::{Ack, MissingCopy, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const BLOCKS: usize = 3;
const SIZE: usize = BLOCKS * BLOCK;
const HOSTS: usize = 3;
const NAMES: [&str; HOSTS] = ["one", "two", "three"];
/// Folder of the hosts with the copies.
const HELD: &str = "/copies/";
/// Time in which a cluster without faults has every volume in service, and holders for every node.
const SETTLES_WITHIN: Duration = Duration::from_secs(120);
/// Time after which a volume follows its clients, in a part of the runs.
const FOLLOW: Duration = Duration::from_secs(2);
/// Time for which one host has the clients of a volume, in these runs.
const SHIFT: Duration = Duration::from_secs(5);
/// Sets the sequence of the moves apart: a run without them is as it was before there were any.
const MOVES: u64 = 0x6d6f_7665;
/// Pause before another look.
const PAUSE: Duration = Duration::from_millis(50);

struct Volume {
    name: String,
    setup: Setup,
    /// One history for each block.
    blocks: Mutex<Vec<History>>,
    /// Whether it was refused, since only the machine of its owner may have its last changes.
    is_refused: AtomicBool,
}

impl Volume {
    fn new(number: usize, setup: &Setup, dice: &mut Random, hosts: usize) -> Self {
        let copies = match number {
            0 => 1,
            1 if hosts > 2 => 1 + u8::from(dice.below(2) == 0),
            1 => 1,
            _ => 0,
        };
        let on_missing_copy =
            [MissingCopy::StepDown, MissingCopy::Stall][usize::from(dice.below(4) == 0)];
        Self {
            name: format!("v{number}"),
            setup: Setup { copies, on_missing_copy, ..setup.clone() },
            blocks: Mutex::new(vec![History::default(); BLOCKS]),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Whether the machine of its owner alone may have its last changes.
    fn is_alone(&self) -> bool {
        self.setup.copies == 0
    }
}

/// State that all lives share.
struct Run {
    store: Store,
    volumes: Vec<Volume>,
    files: Option<FileVolume>,
    /// Count of the troubles so far.
    troubles: AtomicU64,
    stage: Arc<Stage<HOSTS>>,
    setups: Vec<Setup>,
    /// The token of the cluster, once it is made.
    token: Mutex<Option<String>>,
    /// The right time.
    clock: Env,
    values: AtomicU64,
    /// Whether clients come to any host.
    forwards: bool,
    /// The sequence of the users who move volumes, if there are any.
    moves: Option<Mutex<Random>>,
    /// Whether disks with copies fail just now.
    disks_fail: AtomicBool,
    /// Whether the faults are over.
    is_calm: AtomicBool,
    /// The hosts whose daemon has ended because its node goes on elsewhere. A supervisor would
    /// start it again.
    replaced: [AtomicBool; HOSTS],
}

impl Run {
    fn now(&self) -> Duration {
        self.clock.now().0
    }

    /// Whether the writes of a client may be forwarded, because it came to another host than the
    /// owner's, or the volume has moved away from it. Then each block has one writer: a forwarded
    /// write that is sent again may come after one of another client.
    fn may_forward(&self) -> bool {
        self.forwards || self.moves.is_some()
    }
}

fn setup(dice: &mut Random) -> Setup {
    Setup {
        ack: [Ack::Flash, Ack::Flash, Ack::Memory][dice.below(3) as usize],
        policy: Policy::Back,
        size: SIZE as u64,
        cache_bytes: [64 * KIB, 4 * MIB][dice.below(2) as usize],
        flash_bytes: 512 * KIB * 12,
        destage_age: Duration::from_millis([5, 500, 20_000][dice.below(3) as usize]),
        index_at_once: [0, usize::MAX][dice.below(2) as usize],
        looks: Duration::from_secs(60),
        ..Setup::default()
    }
}

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    Outcome::with_counts(|| lives(seed, false))
}

/// The same, with a file volume beside the others.
pub fn run_with_files(seed: u64) -> Result<Outcome, String> {
    Outcome::with_counts(|| lives(seed, true))
}

fn lives(seed: u64, has_files: bool) -> Result<Outcome, String> {
    let mut dice = Random::new(seed);
    let world = World::new(seed, trouble::tears(&mut dice));
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let pace = Pace::draw(&mut dice);
    let setup = setup(&mut dice);
    let hosts = 2 + usize::from(dice.below(2) == 0);
    let setups = (0..HOSTS).map(|host| Setup {
        advertise: Some(format!("tcp:10.0.0.{}:7733", host + 1)),
        name: NAMES[host].to_owned(),
        folder: format!("/{}", NAMES[host]).into(),
        follow: (seed % 4 == 1).then_some(FOLLOW),
        ..setup.clone()
    });
    let run = Arc::new(Run {
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        volumes: (0..3).map(|number| Volume::new(number, &setup, &mut dice, hosts)).collect(),
        files: has_files.then(|| FileVolume::new(&setup)),
        troubles: AtomicU64::new(0),
        stage: Arc::default(),
        setups: setups.collect(),
        token: Mutex::default(),
        clock: world.env(),
        values: AtomicU64::new(1),
        forwards: dice.below(2) == 0,
        moves: (seed % 2 == 1).then(|| Mutex::new(Random::new(seed ^ MOVES))),
        disks_fail: AtomicBool::new(false),
        is_calm: AtomicBool::new(true),
        replaced: Default::default(),
    });
    let machines: Vec<Host> = NAMES.iter().map(|name| world.host(name)).collect();
    for machine in &machines {
        machine.set_clock_rate(1000 + dice.below(41) as u32 - 20);
    }
    let mut story = Story {
        hosts,
        machines,
        is_up: [false; HOSTS],
        stands_until: Duration::ZERO,
        said: Vec::new(),
        outcome: Outcome::default(),
        run,
        dice,
        world,
    };
    let ended = story.drive();
    let Story { run, world, mut outcome, said, .. } = story;
    ended.map_err(|why| format!("seed {seed}, {hosts} hosts, {setup:?}, {said:?}: {why}"))?;
    for volume in &run.volumes {
        for history in &*volume.blocks.lock() {
            outcome.acknowledged += history.acknowledged();
        }
    }
    outcome.acknowledged += run.files.as_ref().map_or(0, FileVolume::answered);
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

/// The course of a run.
struct Story {
    world: World,
    run: Arc<Run>,
    hosts: usize,
    machines: Vec<Host>,
    /// The hosts whose process runs.
    is_up: [bool; HOSTS],
    /// The moment from which no host stands still.
    stands_until: Duration,
    dice: Random,
    /// The events so far, for the message of a failure.
    said: Vec<String>,
    outcome: Outcome,
}

impl Story {
    fn drive(&mut self) -> Result<(), String> {
        (0..self.hosts).for_each(|host| self.begin(host));
        self.settle()?;
        for _ in 0..1 + self.dice.below(5) {
            self.run.is_calm.store(false, Ordering::Relaxed);
            self.event();
            self.pass(5000)?;
            if self.dice.below(2) == 0 {
                self.event();
                self.pass(3000)?;
            }
            if self.dice.below(3) > 0 {
                self.heal();
                self.pass(1000)?;
            }
            if self.dice.below(3) == 0 {
                self.calm()?;
            }
        }
        self.calm()?;
        // A volume that would rather wait than go on with fewer copies does so.
        let holders = self.hosts - 2;
        let may_lose_one = self.run.volumes.iter().all(|volume| {
            usize::from(volume.setup.copies) <= holders
                || volume.setup.on_missing_copy == MissingCopy::StepDown
        });
        if self.dice.below(2) == 0 && may_lose_one {
            self.lose_a_host()?;
        }
        self.check()?;
        self.end()
    }

    fn say(&mut self, what: String) {
        self.said.push(format!("{what} at {:?}", self.world.elapsed()));
    }

    /// Lets some time pass.
    fn pass(&mut self, most_ms: u64) -> Result<(), String> {
        let time = Duration::from_millis(1 + self.dice.below(most_ms));
        let end = self.world.elapsed() + time;
        while self.world.elapsed() < end {
            self.wait(end.saturating_sub(self.world.elapsed()).min(PAUSE));
            self.tend();
        }
        self.run.stage.check()?;
        self.check()
    }

    /// Lets so much time pass, even if all hosts are dead.
    fn wait(&self, time: Duration) {
        self.world.block_on(self.world.env().sleep(time));
    }

    /// Starts daemons again that have ended because their nodes go on elsewhere.
    fn tend(&mut self) {
        for host in 0..self.hosts {
            if self.run.replaced[host].load(Ordering::Relaxed) {
                // The guests of the process end with it.
                self.crash(host);
                self.begin(host);
            }
        }
    }

    /// Judges the histories so far.
    fn check(&self) -> Result<(), String> {
        for volume in &self.run.volumes {
            for (block, history) in volume.blocks.lock().iter().enumerate() {
                history.check().map_err(|why| format!("{}, block {block}: {why}", volume.name))?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, host: usize) {
        self.is_up[host] = true;
        let (env, dice) = (self.machines[host].env(), self.dice.fork());
        self.run.stage.act(&env, host, "host", self.run.clone().live(env.clone(), host, dice));
    }

    fn crash(&mut self, host: usize) {
        self.run.troubles.fetch_add(1, Ordering::Relaxed);
        self.say(format!("{} dies", NAMES[host]));
        self.is_up[host] = false;
        self.run.replaced[host].store(false, Ordering::Relaxed);
        let machine = (&self.machines[host], host);
        let ack = self.run.setups[host].ack;
        self.run.stage.crash(machine, ack, &mut self.dice, &mut self.outcome);
    }

    fn some_host(&mut self) -> usize {
        self.dice.below(self.hosts as u64) as usize
    }

    fn event(&mut self) {
        self.run.troubles.fetch_add(1, Ordering::Relaxed);
        let host = self.some_host();
        let other = (host + 1 + self.dice.below(self.hosts as u64 - 1) as usize) % self.hosts;
        match self.dice.below(17) {
            // A worker that dies is back at once.
            0..=1 => {
                self.crash(host);
                self.world.run_until(Stop::Time(Duration::from_millis(self.dice.below(60))));
                self.begin(host);
            }
            2..=4 => {
                self.crash(host);
                self.world.run_until(Stop::Time(Duration::from_millis(self.dice.below(5000))));
                if self.dice.below(3) > 0 {
                    self.begin(host);
                }
            }
            5..=7 => {
                self.say(format!("{} and {} are cut apart", NAMES[host], NAMES[other]));
                self.world.cut(&self.machines[host], &self.machines[other]);
            }
            8..=9 => {
                self.say(format!("nothing comes from {} to {}", NAMES[host], NAMES[other]));
                self.world.cut_way(&self.machines[host], &self.machines[other]);
            }
            10..=11 => {
                let length =
                    Duration::from_millis([100, 700, 1300, 8000][self.dice.below(4) as usize]);
                self.say(format!("{} stands still for {length:?}", NAMES[host]));
                self.machines[host].pause(length);
                self.stands_until = self.stands_until.max(self.world.elapsed() + length);
            }
            12 => {
                self.say(format!("the store is away from {}", NAMES[host]));
                let served = self.run.stage.serving.lock()[host].clone();
                if let Some(served) = served {
                    served.faults.set("gone=2s".parse().expect("ours"));
                }
            }
            13 => {
                self.say("the network is slow".to_owned());
                let most = [50, 300, 2000][self.dice.below(3) as usize];
                let latency = Duration::from_millis(1)..=Duration::from_millis(most);
                self.world.change_faults(|faults| faults.network_latency = latency);
            }
            14 => {
                self.say("disks with copies fail".to_owned());
                self.run.disks_fail.store(true, Ordering::Relaxed);
                self.world.change_faults(|faults| {
                    faults.only = Some(HELD.to_owned());
                    (faults.write_error, faults.sync_error) = (0.05, 0.05);
                });
            }
            15 => {
                self.say(format!("the flash of {} fails", NAMES[host]));
                self.run.disks_fail.store(true, Ordering::Relaxed);
                self.world.change_faults(|faults| {
                    faults.only = Some(format!("/{}/flash", NAMES[host]));
                    (faults.write_error, faults.sync_error) = (1.0, 1.0);
                });
            }
            // One dies amid the takeover of another one.
            _ => {
                self.crash(host);
                let taking = Duration::from_millis(800 + self.dice.below(1000));
                self.world.run_until(Stop::Time(taking));
                self.crash(other);
                self.world.run_until(Stop::Time(Duration::from_millis(self.dice.below(1500))));
                self.begin(other);
            }
        }
    }

    /// Ends all faults but those of lost hosts. A log that has met a failing disk needs a restart.
    fn heal(&mut self) {
        self.say("healed".to_owned());
        if self.run.disks_fail.swap(false, Ordering::Relaxed) {
            for host in (0..self.hosts).filter(|host| self.is_up[*host]).collect::<Vec<_>>() {
                self.crash(host);
                self.begin(host);
            }
        }
        self.world.heal();
        self.world.change_faults(|faults| {
            (faults.write_error, faults.sync_error) = (0.0, 0.0);
            faults.network_latency = Faults::none().network_latency;
        });
        for served in self.run.stage.serving.lock().iter().flatten() {
            served.faults.set("".parse().expect("ours"));
        }
    }

    /// Ends all faults, and waits until the cluster has settled.
    fn calm(&mut self) -> Result<(), String> {
        self.heal();
        for host in 0..self.hosts {
            if !self.is_up[host] {
                self.begin(host);
            }
        }
        self.settle()
    }

    /// Lets the hosts go on that stand still. Each finds out then what has become of its node.
    fn awake(&mut self) {
        while self.world.elapsed() < self.stands_until {
            self.wait(PAUSE);
            self.tend();
        }
    }

    /// Waits until every host serves, every node has a holder that could take it over, and every
    /// volume with copies is in service.
    fn settle(&mut self) -> Result<(), String> {
        self.run.is_calm.store(true, Ordering::Relaxed);
        self.awake();
        let env = self.world.env();
        let end = self.world.elapsed() + SETTLES_WITHIN;
        loop {
            let settled = self.run.clone().settled(env.clone(), self.is_up, self.hosts);
            let waited = self.world.block_on(env.timeout(PAUSE * 60, settled));
            self.check()?;
            if let Ok(done) = waited {
                return done;
            }
            self.tend();
            if self.world.elapsed() > end {
                return Err(format!("it does not settle: {}", self.seen()));
            }
        }
    }

    fn seen(&self) -> String {
        let serving = self.run.stage.serving.lock().clone();
        let shown = serving.iter().enumerate().map(|(host, served)| match served {
            Some(served) => {
                let shown = self.world.block_on(async { served.service.cluster().await });
                format!("{}: {shown:?}", NAMES[host])
            }
            None => format!("{}: nothing", NAMES[host]),
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    /// Loses a host for good: the others serve all that asked for copies.
    fn lose_a_host(&mut self) -> Result<(), String> {
        let host = self.some_host();
        self.crash(host);
        self.say(format!("{} is lost for good", NAMES[host]));
        heard::note("cluster: a host is lost for good");
        self.settle()
    }

    /// Ends the run: all clients come to their ends, and all that asked for copies is there.
    fn end(&mut self) -> Result<(), String> {
        let env = self.world.env();
        let up: Vec<usize> = (0..self.hosts).filter(|host| self.is_up[*host]).collect();
        let ending = async {
            self.run.stage.end(&env, &up).await?;
            self.run.clone().read_all(&env).await
        };
        let ended = self.world.block_on(env.timeout(PATIENCE, ending));
        ended.map_err(|_elapsed| format!("it waits for ever: {}", self.seen()))??;
        self.check()
    }
}
