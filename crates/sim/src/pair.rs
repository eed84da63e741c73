//! Two nodes on one store. Each has its own volumes and clients, writes chunks that the other has,
//! too, sweeps and compacts, removes volumes and creates others under their names. Each crashes at
//! any moment and comes back, while lists of the store may be stale.
//!
//! Judged all the time: a read returns what was acknowledged of this volume, and never of an
//! earlier one under the name; a removed volume does not come back; a volume of the other node is
//! refused by name. Judged in the end, when both have swept: a reader with empty caches sees every
//! block, and the logs have nothing left.

mod life;

use crate::boot::{How, Served, Setup, block_of, found_store};
use crate::heard;
use crate::oracle::{BLOCK, ClientPart};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::stage::{PATIENCE, Stage};
use crate::trouble;
use parking_lot::Mutex;
use rekindle_base::VolumeId;
use rekindle_base::random::Random;
use rekindle_base::units::{KIB, MIB};
use rekindle_content::sweep::{Budget, Options};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_env::Env;
use rekindle_env::sim::{Host, Stop, World};
use rekindle_staging::{Ack, Policy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const NODES: usize = 2;
/// Volumes of a node.
const VOLUMES: usize = 2;
const BLOCKS: usize = 4;
/// Most crashes in a run.
const CRASHES_MAX: u64 = 5;
/// How often a node looks for sweeps of the other: more often than real ones do.
const LOOK: Duration = Duration::from_millis(250);

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
    part: ClientPart,
    /// Earlier volumes of the name.
    gone: BTreeSet<VolumeId>,
}

/// State that all lives share.
struct Run {
    store: Store,
    setups: [Setup; 2],
    subjects: Vec<Subject>,
    stage: Arc<Stage>,
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

fn setup(dice: &mut Random) -> Setup {
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
        flash_bytes: 512 * KIB * [3, 6][dice.below(2) as usize],
        destage_age: Duration::from_millis([5, 200, 2000][dice.below(3) as usize]),
        index_at_once: [0, usize::MAX][dice.below(2) as usize],
        sweep: options(),
        looks: LOOK,
        ..Setup::default()
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
        condemned_max: 4,
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
    let subject = |number: usize| Subject {
        name: format!("v{number}"),
        owner: number % NODES,
        state: Mutex::new(State {
            id: None,
            leaving: false,
            part: ClientPart::new(BLOCKS),
            gone: BTreeSet::new(),
        }),
        door: tokio::sync::Mutex::default(),
    };
    let run = Arc::new(Run {
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        setups: [setup(&mut dice), setup(&mut dice)],
        subjects: (0..NODES * VOLUMES).map(subject).collect(),
        stage: Arc::default(),
    });
    world.block_on(found_store(&world.env(), &run.store))?;
    let hosts = [world.host("one"), world.host("two")];
    let mut outcome = Outcome::default();
    (0..hosts.len()).for_each(|who| run.begin(&hosts[who], who, &mut dice));
    let ended = (|| {
        for _ in 0..dice.below(CRASHES_MAX + 1) {
            run.stage.work(&world, 1 + dice.below(30))?;
            world.run_until(Stop::Step(1 + dice.below(60)));
            run.stage.check()?;
            let first = dice.below(2) as usize;
            for who in [first, 1 - first].into_iter().take(1 + usize::from(dice.below(4) == 0)) {
                let ack = run.setups[who].ack;
                run.stage.crash((&hosts[who], who), ack, &mut dice, &mut outcome);
                // The other node goes on alone for a while.
                if dice.below(2) == 0 {
                    world.run_until(Stop::Time(Duration::from_millis(dice.below(12_000))));
                    run.stage.check()?;
                }
                run.begin(&hosts[who], who, &mut dice);
            }
        }
        run.stage.work(&world, 10 + dice.below(30))?;
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
    fn begin(self: &Arc<Self>, host: &Host, who: usize, dice: &mut Random) {
        let (env, dice) = (host.env(), dice.fork());
        self.stage.act(&env, who, "life", self.clone().live(env.clone(), who, dice));
    }

    /// Runs one life of a node: starts it, and spawns all its actors.
    async fn live(self: Arc<Self>, env: Env, who: usize, mut dice: Random) -> Result<(), String> {
        let served = self.start(&env, who).await?;
        if !self.stage.is_ending() {
            let words = STORE[dice.below(STORE.len() as u64) as usize];
            tracing::info!("node {who} begins, {words}");
            served.faults.set(words.parse().expect("ours"));
            if dice.below(2) == 0 {
                heard::note("stale lists");
                let words = ["stale=20%", "stale=60%"][dice.below(2) as usize];
                served.lists.set(words.parse().expect("ours"));
            }
        }
        self.stage.serving.lock()[who] = Some(served.clone());
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

    async fn start(&self, env: &Env, who: usize) -> Result<Served, String> {
        Served::start(env, self.store.clone(), &self.setups[who], How::default()).await
    }

    /// Ends the run: heals the stores, waits for all actors, and checks the whole state.
    async fn end(self: Arc<Self>, env: Env) -> Result<(), String> {
        let [Some(one), Some(two)] = self.stage.end(&env, &[0, 1]).await? else {
            return Err("a node serves no more".to_owned());
        };
        let lives = [one, two];
        for (who, served) in lives.iter().enumerate() {
            let (run, env) = (self.clone(), served.env.clone());
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
            while !served.sweep().await.map_err(|problem| problem.message)? {
                tries += 1;
                if tries > 50 {
                    return Err(format!("no sweep ends: {:?}", served.sweeper.progress()));
                }
                env.sleep(Duration::from_secs(5)).await;
            }
            env.sleep(options().young).await;
        }
        self.compare_coldly(&env, &lives).await?;
        for (who, served) in lives.iter().enumerate() {
            let stopped = served.stop(true).await;
            stopped.map_err(|why| format!("node {who} does not stop: {why}"))?;
        }
        Ok(())
    }

    /// Checks that a reader with empty caches sees every block, whichever node swept meanwhile.
    async fn compare_coldly(&self, env: &Env, lives: &[Served; 2]) -> Result<(), String> {
        let eyes = lives[0].content_of(env, &self.store);
        let mut packs = [BTreeSet::new(), BTreeSet::new()];
        for Subject { name, owner, state, .. } in &self.subjects {
            let told = |error: &dyn std::fmt::Display| format!("{name} in the store: {error}");
            let info = lives[*owner].volumes.show(name).await.map_err(|error| told(&error))?;
            if info.vault.owner != Some(lives[*owner].id) {
                return Err(format!("{name} is another's: {:?}", info.vault));
            }
            for block in 0..BLOCKS {
                let found = block_of(&eyes, &info.vault.root, block as u64).await;
                let (found, pack) = found.map_err(|error| told(&error))?;
                packs[*owner].extend(pack);
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

    /// Checks, after both nodes have stopped in good order, that a new life ends what its log has
    /// of volumes that are gone, and finds nothing else there.
    fn look_once_more(&self, hosts: &[Host; 2], world: &World) -> Result<(), String> {
        for (who, host) in hosts.iter().enumerate() {
            host.crash_process();
            let env = host.env();
            let left = world.block_on(async {
                let served = self.start(&env, who).await?;
                let until = env.now() + Duration::from_secs(60);
                loop {
                    let left = served.log.unfinished_volumes().await;
                    let left = left.map_err(|error| format!("log: {error}"))?;
                    if left.is_empty() || env.now() > until {
                        return Ok::<_, String>(left);
                    }
                    env.sleep(Duration::from_secs(1)).await;
                }
            })?;
            if !left.is_empty() {
                return Err(format!("node {who}: the log is not empty in the end: {left:?}"));
            }
            host.crash_process();
        }
        Ok(())
    }
}
