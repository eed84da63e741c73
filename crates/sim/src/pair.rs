//! Two nodes on one store. Each has its own volumes and clients, writes chunks that the other has,
//! too, sweeps and compacts, removes volumes and creates others under their names. Each crashes at
//! any moment and comes back, while lists of the store may be stale.
//!
//! Judged all the time: a read returns what was acknowledged of this volume, and never of an
//! earlier one under the name; a removed volume does not come back; a volume of the other node is
//! refused by name. Judged in the end, when both have swept: a reader with empty caches sees every
//! block, and the logs have nothing left.

mod life;

use crate::boot::{Node, Record, Setup};
use crate::dice::Dice;
use crate::end::Begun;
use crate::heard;
use crate::oracle::{BLOCK, Part};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::start::{self, Served, Start};
use crate::trouble;
use parking_lot::Mutex;
use rekindle_base::units::{KIB, MIB};
use rekindle_base::{NodeId, VolumeId};
use rekindle_content::sweep::{Budget, Options};
use rekindle_content::{Class, Content, tree};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_env::sim::{Host, Stop, World};
use rekindle_volume::{Ack, Policy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const NODES: [NodeId; 2] = [NodeId([1; 16]), NodeId([2; 16])];
/// Volumes of a node.
const VOLUMES: usize = 2;
const BLOCKS: usize = 4;
/// Most crashes in a run.
const CRASHES_MAX: u64 = 5;
/// How often a node looks for sweeps of the other: more often than real ones do.
const LOOK: Duration = Duration::from_millis(250);
/// Longest wait of any task: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Faults of a node's store in a life.
///
/// Writes that land late or twice are not among them. A creation that is repeated after the removal
/// of its object leaves a name that leads nowhere, or a volume without a name. Only a user can tell
/// that from a loss.
const STORE: [&str; 5] = [
    "",
    "latency=2ms",
    "latency=20ms",
    // With this latency a batch takes as long as a sweep.
    "latency=400ms",
    "latency=1ms,fail=5%,lie=5%",
];

/// A name that has a volume, most of the time.
struct Subject {
    name: String,
    /// The node that has the volume.
    owner: usize,
    state: Mutex<State>,
    /// Held while the other node asks for the volume, so that it is not removed meanwhile.
    door: tokio::sync::Mutex<()>,
}

struct State {
    id: Option<VolumeId>,
    /// Whether a user removes the volume: it may be gone at any time.
    leaving: bool,
    part: Part,
    /// Earlier volumes of the name.
    gone: BTreeSet<VolumeId>,
}

/// State that all lives share.
struct Run {
    store: Store,
    setups: [Setup; 2],
    records: [Record; 2],
    subjects: Vec<Subject>,
    serving: Mutex<[Option<Served>; 2]>,
    /// Actors of each node that have not ended.
    busy: [AtomicU64; 2],
    is_ending: AtomicBool,
    failure: Mutex<Option<String>>,
    begun: Begun,
}

/// One life of a node, for its actors.
#[derive(Clone)]
struct Life {
    run: Arc<Run>,
    who: usize,
    served: Served,
    env: Env,
    /// Volumes that this life has looked at.
    seen: Arc<Mutex<BTreeSet<VolumeId>>>,
    /// Names whose volume is being removed just now.
    removing: Arc<Mutex<BTreeSet<usize>>>,
}

fn setup(dice: &mut Dice) -> Setup {
    let (policy, ack) = match dice.below(8) {
        0 => (Policy::Through, Ack::Flash),
        1 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    Setup {
        policy,
        ack,
        size: (BLOCKS * BLOCK) as u64,
        cache_bytes: [64 * KIB, 4 * MIB][dice.below(2) as usize],
        segment_bytes: 512 * KIB,
        flash_bytes: 512 * KIB * [3, 6][dice.below(2) as usize],
        warm_slots: 3,
        destage_age: Duration::from_millis([5, 200, 2000][dice.below(3) as usize]),
        batch_bytes: 64 * KIB,
        index_at_once: [0, usize::MAX][dice.below(2) as usize],
    }
}

/// How the nodes sweep. A pack is young as long as a dead life's writes may still lead to it.
fn options() -> Options {
    Options {
        budget: Budget::Unlimited,
        compacts: true,
        grace: Duration::from_millis(50),
        young: Duration::from_secs(2),
        patience: Duration::from_secs(5),
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
    let subject = |number: usize| Subject {
        name: format!("v{number}"),
        owner: number % NODES.len(),
        state: Mutex::new(State {
            id: None,
            leaving: false,
            part: Part::new(BLOCKS),
            gone: BTreeSet::new(),
        }),
        door: tokio::sync::Mutex::default(),
    };
    let run = Arc::new(Run {
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        setups: [setup(&mut dice), setup(&mut dice)],
        records: Default::default(),
        subjects: (0..NODES.len() * VOLUMES).map(subject).collect(),
        serving: Mutex::default(),
        busy: Default::default(),
        is_ending: AtomicBool::new(false),
        failure: Mutex::default(),
        begun: Begun::default(),
    });
    let writer = Writer::new(world.env(), run.store.clone(), NODES[0]);
    world.block_on(Node::found_store(&writer))?;
    let hosts = [world.host("one"), world.host("two")];
    let mut outcome = Outcome::default();
    (0..hosts.len()).for_each(|who| run.begin(&hosts[who], who, &mut dice));
    let ended = (|| {
        for _ in 0..dice.below(CRASHES_MAX + 1) {
            run.work(&world, 1 + dice.below(30))?;
            world.run_until(Stop::Step(1 + dice.below(60)));
            run.check()?;
            let first = dice.below(2) as usize;
            for who in [first, 1 - first].into_iter().take(1 + usize::from(dice.below(4) == 0)) {
                run.crash(&hosts[who], who, &mut dice, &mut outcome);
                // The other node goes on alone for a while.
                if dice.below(2) == 0 {
                    world.run_until(Stop::Time(Duration::from_millis(dice.below(12_000))));
                    run.check()?;
                }
                run.begin(&hosts[who], who, &mut dice);
            }
        }
        run.work(&world, 10 + dice.below(30))?;
        let env = world.env();
        let end = env.timeout(PATIENCE, run.clone().end(env.clone()));
        world.block_on(end).map_err(|_elapsed| "it waits for ever".to_owned())??;
        run.look_once_more(&hosts, &world)
    })();
    ended.map_err(|why| format!("seed {seed}, {:?}: {why}", run.setups))?;
    let parts = run.subjects.iter().map(|subject| subject.state.lock().part.acknowledged);
    outcome.acknowledged += parts.sum::<u64>();
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

impl Run {
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
                return Err(format!("nobody does anything: {:?}", self.seen()));
            }
        }
        Ok(())
    }

    fn seen(&self) -> Vec<String> {
        let serving = self.serving.lock();
        let nodes = serving.iter().flatten().map(|served| &served.node);
        nodes
            .map(|node| format!("{:?}, {:?}", node.volumes.transitional(), node.staging.view(9)))
            .collect()
    }

    fn begin(self: &Arc<Self>, host: &Host, who: usize, dice: &mut Dice) {
        let (run, env, dice) = (self.clone(), host.env(), dice.fork());
        host.env().spawn("life", async move {
            if let Err(why) = run.clone().live(env, who, dice).await {
                run.failure.lock().get_or_insert(format!("node {who}: {why}"));
            }
        });
    }

    fn crash(&self, host: &Host, who: usize, dice: &mut Dice, outcome: &mut Outcome) {
        let served = self.serving.lock()[who].take();
        let owes = served.is_some_and(|served| {
            served.node.staging.volumes().iter().any(|staged| staged.backlog().changes > 0)
        });
        outcome.amid_work += u64::from(owes);
        // A power cut takes what only memory has, and this oracle excuses no loss.
        if self.setups[who].ack == Ack::Flash && dice.below(2) == 0 {
            host.cut_power();
            outcome.power_cuts += 1;
        } else {
            host.crash_process();
            outcome.crashes += 1;
        }
        self.busy[who].store(0, Ordering::Relaxed);
    }

    /// Runs one life of a node: starts it, and spawns all its actors.
    async fn live(self: Arc<Self>, env: Env, who: usize, mut dice: Dice) -> Result<(), String> {
        let (setup, record) = (&self.setups[who], &self.records[who]);
        let how = Start { node: NODES[who], setup, record, options: options(), takes: false };
        let served = start::start(&env, self.store.clone(), how).await?;
        if !self.is_ending() {
            let words = STORE[dice.below(STORE.len() as u64) as usize];
            tracing::info!("node {who} begins, {words}");
            served.faults.set(words.parse().expect("ours"));
            if dice.below(2) == 0 {
                heard::note("stale lists");
                let words = ["stale=20%", "stale=60%"][dice.below(2) as usize];
                served.lists.set(words.parse().expect("ours"));
            }
        }
        env.spawn("agree", served.clone().agree(LOOK));
        self.serving.lock()[who] = Some(served.clone());
        let (seen, removing) = (Arc::default(), Arc::default());
        let life = Life { run: self.clone(), who, served, env: env.clone(), seen, removing };
        for at in (0..self.subjects.len()).filter(|&at| self.subjects[at].owner == who) {
            life.act("client", life.clone().client(at, dice.fork()));
        }
        life.act("sweeps", life.clone().sweeps(dice.fork()));
        life.act("people", life.clone().people(dice.fork()));
        life.act("stranger", life.clone().stranger(dice.fork()));
        Ok(())
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Ends the run: heals the stores, waits for all actors, and checks the whole state.
    async fn end(self: Arc<Self>, env: Env) -> Result<(), String> {
        self.is_ending.store(true, Ordering::Relaxed);
        let lives = loop {
            self.check()?;
            let serving = self.serving.lock().clone();
            if let [Some(one), Some(two)] = serving {
                break [one, two];
            }
            env.sleep(Duration::from_millis(50)).await;
        };
        for served in &lives {
            served.faults.set(Plan::default());
            served.lists.set(Plan::default());
        }
        while self.busy.iter().any(|busy| busy.load(Ordering::Relaxed) > 0) {
            self.check()?;
            env.sleep(Duration::from_millis(50)).await;
        }
        self.check()?;
        for (who, served) in lives.iter().enumerate() {
            let (run, env) = (self.clone(), served.node.writer.env.clone());
            let (seen, removing) = (Arc::default(), Arc::default());
            let life = Life { run, who, served: served.clone(), env, seen, removing };
            for at in (0..self.subjects.len()).filter(|&at| self.subjects[at].owner == who) {
                let device = life.enter(at).await?;
                let drained = device.handle().staged().drain().await;
                drained.map_err(|error| format!("drain: {error}"))?;
            }
        }
        for served in [&lives[0], &lives[1], &lives[0]] {
            let mut tries = 0;
            while !served.sweep().await? {
                tries += 1;
                if tries > 50 {
                    return Err(format!("no sweep ends: {:?}", served.node.sweeper.status()));
                }
                env.sleep(Duration::from_secs(5)).await;
            }
            env.sleep(options().young).await;
        }
        self.compare_coldly(&env, &lives).await?;
        for (who, served) in lives.iter().enumerate() {
            let told = |error: &dyn std::fmt::Display| format!("node {who} stops: {error}");
            while served.recover().await? > 0 {
                env.sleep(Duration::from_secs(1)).await;
            }
            served.node.volumes.stop(true).await.map_err(|error| told(&error))?;
            served.node.staging.stop().await;
            served.node.log.close().await.map_err(|error| told(&error))?;
        }
        Ok(())
    }

    /// Checks that a reader with empty caches sees every block, whichever node swept meanwhile.
    async fn compare_coldly(&self, env: &Env, lives: &[Served; 2]) -> Result<(), String> {
        let eyes = Content::open(env.clone(), self.store.clone(), Node::content_config());
        let mut packs = [BTreeSet::new(), BTreeSet::new()];
        for Subject { name, owner, state, .. } in &self.subjects {
            let told = |error: &dyn std::fmt::Display| format!("{name} in the store: {error}");
            let info = lives[*owner].node.volumes.show(name).await.map_err(|error| told(&error))?;
            if info.vault.owner != Some(NODES[*owner]) {
                return Err(format!("{name} is another's: {:?}", info.vault));
            }
            for block in 0..BLOCKS {
                let found = tree::get(&eyes, &info.vault.root, block as u64).await;
                let found = match found.map_err(|error| told(&error))? {
                    Some(pointer) => {
                        packs[*owner].insert(pointer.pack);
                        let read = eyes.read(&pointer, Class::Data).await;
                        read.map_err(|error| told(&error))?.to_vec()
                    }
                    None => vec![0; BLOCK],
                };
                if !state.lock().part.allows(block, &found) {
                    return Err(format!(
                        "{name} in the store: block {block} is not what was written"
                    ));
                }
            }
        }
        heard::note_many("a pack of both", packs[0].intersection(&packs[1]).count() as u64);
        Ok(())
    }

    /// Checks, after both nodes have stopped in good order, that a new life finds no changes in its
    /// log.
    fn look_once_more(&self, hosts: &[Host; 2], world: &World) -> Result<(), String> {
        for (who, host) in hosts.iter().enumerate() {
            host.crash_process();
            let (env, store) = (host.env(), self.store.clone());
            let (setup, record) = (&self.setups[who], &self.records[who]);
            let how = Start { node: NODES[who], setup, record, options: options(), takes: false };
            let left = world.block_on(async {
                let served = start::start(&env, store, how).await?;
                let left = served.node.log.unfinished_volumes().await;
                left.map_err(|error| format!("log: {error}"))
            })?;
            if !left.is_empty() {
                return Err(format!("node {who}: the log is not empty in the end: {left:?}"));
            }
            host.crash_process();
        }
        Ok(())
    }
}
