//! Two nodes on one store: each has its own volumes and clients, writes chunks that the other has, too, sweeps and compacts,
//! removes volumes and makes others under their names; each crashes at any moment and comes back, while lists of the store
//! may be old ones.
//!
//! Judged all the time: what can be read is what was acknowledged, of this volume and never of one before it under the name; a
//! removed volume does not come back; a volume of the other node is refused by name. Judged in the end, when both have swept:
//! every block is there for eyes that have nothing in memory, and the logs have nothing left.

use crate::boot::{Node, Record, Setup};
use crate::dice::Dice;
use crate::end::Begun;
use crate::heard;
use crate::oracle::{BLOCK, Change, Part};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::start::{self, Served, Start};
use crate::trouble;
use base::units::{KIB, MIB};
use base::{Kind, NodeId, VolumeId};
use block::Device;
use content::sweep::{Budget, Options};
use content::{Class, Content, tree};
use datastore::Store;
use datastore::backend::mem::Mem;
use datastore::layer::fault::Plan;
use datastore::record::Writer;
use env::Env;
use env::sim::{Host, Stop, World};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use volume::{Ack, Error, Policy, Written};

const NODES: [NodeId; 2] = [NodeId([1; 16]), NodeId([2; 16])];
/// Volumes of a node.
const VOLUMES: usize = 2;
const BLOCKS: usize = 4;
/// Different contents of whole blocks, on both nodes: what one has in the store, the other finds there.
const PATTERNS: u64 = 6;
/// Times that somebody is killed in a run.
const CRASHES_MAX: u64 = 5;
/// Nobody may wait for longer than this: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(3600);

/// What goes wrong at a node's store in a life.
const STORE: [&str; 6] =
    ["", "latency=2ms", "latency=1ms,fail=5%,lie=5%", "late=3%", "twice=10%", "latency=20ms"];

/// A name under which there is a volume, most of the time.
struct Subject {
    name: String,
    /// The node that has it.
    owner: usize,
    state: Mutex<State>,
    /// Somebody else is at the door: the volume is not removed now.
    door: tokio::sync::Mutex<()>,
}

struct State {
    id: Option<VolumeId>,
    /// Somebody wants it removed: it may be gone at any time.
    leaving: bool,
    part: Part,
    /// Volumes that had the name.
    gone: BTreeSet<VolumeId>,
}

/// What all lives share.
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

/// One life of a node, for those who act in it.
#[derive(Clone)]
struct Life {
    run: Arc<Run>,
    who: usize,
    served: Served,
    env: Env,
    /// Volumes that were looked at in this life.
    seen: Arc<Mutex<BTreeSet<VolumeId>>>,
    /// Names under which somebody removes just now what is there.
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

/// How the nodes sweep: what is young is what a dead life's writes may still lead to.
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
                // The other one goes on alone for a while.
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

    /// Lets the world go on until clients have begun so many requests more.
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
            .map(|node| format!("{:?}, {:?}", node.volumes.passing(), node.staging.view(9)))
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
        // What only memory has goes with the power, and this oracle excuses nothing.
        if self.setups[who].ack == Ack::Flash && dice.below(2) == 0 {
            host.cut_power();
            outcome.power_cuts += 1;
        } else {
            host.crash_process();
            outcome.crashes += 1;
        }
        self.busy[who].store(0, Ordering::Relaxed);
    }

    /// One life of a node: it starts, and sets all its actors going.
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
                served.lists.set("stale=20%".parse().expect("ours"));
            }
        }
        env.spawn("agree", served.clone().agree());
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

    /// All is well again: everybody comes to the end of what they do, and everything is as it should be.
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
                    return Err(format!("no sweep ends: {:?}", served.sweeper.status()));
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

    /// Eyes that have nothing in memory see every block, whoever swept meanwhile.
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

    /// Both were stopped in good order: a new life finds nothing of any volume in its log.
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

impl Life {
    /// Sets somebody going.
    fn act(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.run.busy[self.who].fetch_add(1, Ordering::Relaxed);
        let (run, who) = (self.run.clone(), self.who);
        self.env.spawn(name, async move {
            if let Err(why) = work.await {
                run.failure.lock().get_or_insert(format!("node {who}, {name}: {why}"));
            }
            run.busy[who].fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn pause(&self, dice: &mut Dice, most_ms: u64) {
        self.env.sleep(Duration::from_millis(dice.below(most_ms))).await;
    }

    /// The volume under this name, which is the one that was there, or a new one if that may be gone.
    async fn enter(&self, at: usize) -> Result<Device, String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        let told = |error: Error| format!("{name} cannot be attached: {error}");
        loop {
            let handle = match self.served.node.volumes.attach(name).await {
                Ok(handle) => handle,
                Err(Error::NotFound(_)) => {
                    let is_lost = {
                        let state = state.lock();
                        state.id.is_some() && !state.leaving
                    };
                    if is_lost {
                        return Err(format!("{name} is gone"));
                    }
                    let made = self.served.node.create_as(name, &self.run.setups[self.who]).await;
                    made.map_err(told)?;
                    continue;
                }
                // One that is being removed ends under whoever has it.
                Err(error) if error.kind().is_retryable() || error.kind() == Kind::Fenced => {
                    self.env.sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(error) if self.is_trace(at, &error) => {
                    heard::note("a name of a removed volume");
                    match self.served.node.volumes.remove(name, true).await {
                        Err(error) if !error.kind().is_retryable() => return Err(told(error)),
                        _ => continue,
                    }
                }
                Err(error) => return Err(told(error)),
            };
            let id = handle.vault().id;
            let device = Device::new(handle);
            self.meet(at, id)?;
            if self.seen.lock().contains(&id) || self.judge(at, id, &device).await? {
                return Ok(device);
            }
        }
    }

    /// Whether the store has carried out a creation once more, after the removal of what was made: nobody can tell that from a
    /// vault that is lost or was set back, so it takes a person.
    fn is_trace(&self, at: usize, error: &Error) -> bool {
        let state = self.run.subjects[at].state.lock();
        let leads_to_it =
            || state.gone.iter().any(|id| error.to_string().contains(&id.to_string()));
        error.kind() == Kind::Damaged && (state.leaving || leads_to_it())
    }

    /// A volume is there under a name.
    fn meet(&self, at: usize, id: VolumeId) -> Result<(), String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        let mut state = state.lock();
        if state.gone.contains(&id) {
            return Err(format!("{name} is a volume that was removed"));
        }
        if state.id == Some(id) {
            return Ok(());
        }
        if let Some(old) = state.id {
            if !state.leaving {
                return Err(format!("{name} is another volume"));
            }
            heard::note("made anew");
            state.gone.insert(old);
        }
        let acknowledged = state.part.acknowledged;
        (state.id, state.leaving) = (Some(id), self.removing.lock().contains(&at));
        state.part = Part::new(BLOCKS);
        state.part.acknowledged = acknowledged;
        Ok(())
    }

    /// What a new life shows is what was acknowledged; `false`: it went away under the look.
    async fn judge(&self, at: usize, id: VolumeId, device: &Device) -> Result<bool, String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        let mut found = Vec::new();
        for block in 0..BLOCKS {
            let mut bytes = vec![0xee; BLOCK];
            match device.read((block * BLOCK) as u64, &mut bytes).await {
                Ok(()) => found.push(Some(bytes)),
                Err(error) if self.expects(at, id, error.kind()) => {
                    self.env.sleep(Duration::from_millis(50)).await;
                    return Ok(false);
                }
                Err(error) => return Err(format!("{name}, block {block}: {error}")),
            }
        }
        let mut state = state.lock();
        if state.id != Some(id) {
            return Ok(false);
        }
        state.part.judge(&found).map_err(|why| format!("{name} in a new life: {why}"))?;
        self.seen.lock().insert(id);
        Ok(true)
    }

    /// Whether a client of this volume may be told this.
    fn expects(&self, at: usize, id: VolumeId, kind: Kind) -> bool {
        let state = self.run.subjects[at].state.lock();
        let is_removed = state.leaving || state.id != Some(id);
        kind.is_retryable() || (is_removed && matches!(kind, Kind::Fenced | Kind::NotFound))
    }

    /// Comes again and again, reads and writes, and goes.
    async fn client(self, at: usize, mut dice: Dice) -> Result<(), String> {
        let Subject { name, state, .. } = &self.run.subjects[at];
        while !self.run.is_ending() {
            let device = self.enter(at).await?;
            let id = device.handle().vault().id;
            for _ in 0..1 + dice.below(6) {
                // A client that was not told what became of its change waits for a new life, or a new volume.
                if state.lock().part.is_open() {
                    break;
                }
                let done = self.step(at, id, &device, &mut dice).await;
                done.map_err(|why| format!("{name}: {why}"))?;
                self.pause(&mut dice, 200).await;
            }
            if dice.below(8) == 0 {
                match device.handle().staged().drain().await {
                    Ok(_) => heard::note("drained"),
                    Err(error) if self.expects(at, id, error.kind()) => {}
                    Err(error) => return Err(format!("{name}, drain: {error}")),
                }
            }
            drop(device);
            self.pause(&mut dice, 1000).await;
        }
        Ok(())
    }

    async fn step(
        &self,
        at: usize,
        id: VolumeId,
        device: &Device,
        dice: &mut Dice,
    ) -> Result<(), String> {
        self.run.begun.fetch_add(1, Ordering::Relaxed);
        let state = &self.run.subjects[at].state;
        if dice.below(3) == 0 {
            let block = dice.below(BLOCKS as u64) as usize;
            let mut found = vec![0xee; BLOCK];
            let read = device.read((block * BLOCK) as u64, &mut found).await;
            let state = state.lock();
            return match read {
                Ok(()) if state.id != Some(id) || state.part.allows(block, &found) => Ok(()),
                Ok(()) => Err(format!("block {block} does not read as what was written")),
                Err(error) => {
                    drop(state);
                    match self.expects(at, id, error.kind()) {
                        true => Ok(()),
                        false => Err(format!("read: {error}")),
                    }
                }
            };
        }
        let (start, bytes) = some_bytes(dice);
        {
            let mut state = state.lock();
            if state.id != Some(id) {
                return Ok(());
            }
            state.part.submit(Change { start, bytes: bytes.clone() });
        }
        let told = match device.write(start as u64, &bytes, dice.below(4) == 0) {
            Ok(Written::Done) => Ok(()),
            Ok(Written::Staged(ticket)) => device.sync(ticket).await,
            Ok(Written::Later(later)) => later.await.map_err(block::Error::from),
            Err(error) => Err(error),
        };
        match told {
            Ok(()) => {
                let mut state = state.lock();
                if state.id == Some(id) {
                    state.part.acknowledge();
                }
                Ok(())
            }
            Err(error) if self.expects(at, id, error.kind()) => Ok(()),
            Err(error) => Err(format!("write: {error}")),
        }
    }

    async fn sweeps(self, mut dice: Dice) -> Result<(), String> {
        while !self.run.is_ending() {
            self.pause(&mut dice, 3000).await;
            self.served.sweep().await?;
            self.served.recover().await?;
        }
        Ok(())
    }

    /// Somebody removes volumes of this node, beside their clients.
    async fn people(self, mut dice: Dice) -> Result<(), String> {
        let volumes = &self.served.node.volumes;
        while !self.run.is_ending() {
            self.pause(&mut dice, 8000).await;
            let subjects = 0..self.run.subjects.len();
            let mine: Vec<_> =
                subjects.filter(|&at| self.run.subjects[at].owner == self.who).collect();
            let at = mine[dice.below(VOLUMES as u64) as usize];
            let Subject { name, state, door, .. } = &self.run.subjects[at];
            {
                let _door = door.lock().await;
                let mut state = state.lock();
                if state.id.is_none() {
                    continue;
                }
                state.leaving = true;
                self.removing.lock().insert(at);
            }
            let (by_force, by_trash) = (dice.below(2) == 0, dice.below(3) == 0);
            let removed = match by_trash {
                true => match volumes.trash(name, by_force).await {
                    Ok(()) => volumes.purge(name).await.map(drop),
                    refused => refused,
                },
                false => volumes.remove(name, by_force).await,
            };
            self.removing.lock().remove(&at);
            match removed {
                Ok(()) => heard::note("removed"),
                // Not there, or somebody has it.
                Err(error)
                    if error.kind().is_retryable()
                        || matches!(error.kind(), Kind::NotFound | Kind::Fenced) => {}
                Err(error) => return Err(format!("{name} cannot be removed: {error}")),
            }
        }
        Ok(())
    }

    /// Somebody asks this node for what the other one has.
    async fn stranger(self, mut dice: Dice) -> Result<(), String> {
        let volumes = &self.served.node.volumes;
        while !self.run.is_ending() {
            self.pause(&mut dice, 2000).await;
            let at = dice.below(self.run.subjects.len() as u64) as usize;
            let Subject { name, owner, state, door } = &self.run.subjects[at];
            let Ok(_door) = door.try_lock() else { continue };
            let is_there = {
                let state = state.lock();
                state.id.is_some() && !state.leaving
            };
            if !is_there || *owner == self.who {
                continue;
            }
            let refused = match dice.below(4) {
                0 => volumes.remove(name, true).await,
                1 => volumes.trash(name, true).await,
                _ => volumes.attach(name).await.map(drop),
            };
            match refused {
                Err(Error::Elsewhere(_, node)) if node == NODES[*owner] => {
                    heard::note("another's volume refused");
                }
                Err(error) if error.kind() == Kind::Unavailable => {}
                other => return Err(format!("{name} is another's, and it is told {other:?}")),
            }
        }
        Ok(())
    }
}

/// Where something is written, and what: often what others have written, too.
fn some_bytes(dice: &mut Dice) -> (usize, Vec<u8>) {
    if dice.below(2) == 0 {
        let blocks = 1 + dice.below(2) as usize;
        let start = dice.below((BLOCKS + 1 - blocks) as u64) as usize * BLOCK;
        let pattern = 1 + dice.below(PATTERNS);
        let block = (0..BLOCK as u64).map(|n| ((n * n * pattern) >> 4) as u8 | 1);
        return (start, block.cycle().take(blocks * BLOCK).collect());
    }
    let start = dice.below((BLOCKS * BLOCK / 512) as u64) as usize * 512;
    let length = (512 * (1 + dice.below(48) as usize)).min(BLOCKS * BLOCK - start);
    let fill = dice.next();
    let byte = |n: usize| (fill.wrapping_mul(n as u64 + 1).wrapping_add(fill >> 7) >> 11) as u8 | 1;
    (start, (0..length).map(byte).collect())
}
