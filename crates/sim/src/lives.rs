//! The lives of a few volumes. Clients come, read, write and go; the collector detaches idle
//! volumes. Packs are damaged, and users salvage, cancel, pin and detach. The store fails and goes
//! away; the node stops or dies, and comes back.
//!
//! Judged all the time: a read returns what was acknowledged, and an error of damage comes from a
//! damaged volume only. Judged at rest: no task waits, no volume is in a transitional state, the
//! salvage queue is empty, every volume can be attached, and only damaged places are quarantined.

use crate::boot::{How, Served, Setup, acknowledged, found_store, kind_of};
use crate::end::{self, Begun, End};
use crate::join::join;
use crate::oracle::{BLOCK, Change, ClientPart, check_prefix};
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_base::units::{KIB, MIB};
use rekindle_block::Device;
use rekindle_content::{Class, Pointer, pack, tree};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Env};
use rekindle_front::http::Api;
use rekindle_front::http::api::{ApiError, StartSalvage};
use rekindle_node::limits::STOP_WAIT;
use rekindle_staging::{Staging, Written};
use rekindle_volume::Error;
use rekindle_volume::collector::Settings;
use rekindle_volume::machine::TABLE;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const VOLUMES: usize = 3;
const CLIENTS: usize = 2;
/// Blocks of a client's part of a volume.
const BLOCKS: usize = 4;
/// Requests that most lives get to, over all clients.
const REQUESTS_USUAL: u64 = 60;
const PART: usize = BLOCKS * BLOCK;
/// Longest wait of any task once the store is well: attempts of a salvage are ten minutes apart at
/// most.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

/// Result of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Lives that were cut off, and how many of these owed something to the datastore.
    pub crashes: u64,
    pub amid_work: u64,
    /// Lives that came to rest; `stops` are those that stopped on command.
    pub ends: u64,
    pub stops: u64,
    pub acknowledged: u64,
    pub damages: u64,
    pub salvages: u64,
    pub collected: u64,
    pub refused_reads: u64,
    /// Salvages that went back to the root before the last commit.
    pub fallbacks: u64,
    /// Volumes that `verify` found sound, and not sound.
    pub sound: u64,
    pub unsound: u64,
    pub trace_hash: u64,
}

impl Outcome {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        self.amid_work += other.amid_work;
        self.ends += other.ends;
        self.stops += other.stops;
        self.acknowledged += other.acknowledged;
        self.damages += other.damages;
        self.salvages += other.salvages;
        self.collected += other.collected;
        self.refused_reads += other.refused_reads;
        self.fallbacks += other.fallbacks;
        self.sound += other.sound;
        self.unsound += other.unsound;
    }
}

/// The run's view of a volume, over all lives.
struct Subject {
    name: String,
    parts: Vec<Mutex<ClientPart>>,
    /// Blocks whose chunks, or the nodes above them, were damaged. Nothing else may ever be lost.
    hurt: Mutex<BTreeSet<u64>>,
    order: AtomicU64,
}

/// State that all actors share.
struct Run {
    setup: Setup,
    store: Store,
    subjects: Vec<Subject>,
    counts: Mutex<Outcome>,
}

/// One life, for its actors.
#[derive(Clone)]
struct Life {
    run: Arc<Run>,
    served: Served,
    env: Env,
    begun: Begun,
}

/// The part of a life that can be looked at after the cut.
type Eye = Arc<Mutex<Option<Staging>>>;

fn setup(dice: &mut Random) -> Setup {
    Setup {
        size: (CLIENTS * PART) as u64,
        // With a small cache a salvage needs the changes of the log.
        cache_bytes: [32 * KIB, 4 * MIB][dice.below(2) as usize],
        segment_bytes: 8 * MIB,
        flash_bytes: 64 * MIB,
        destage_age: Duration::from_millis([5, 50, 2000][dice.below(3) as usize]),
        batch_bytes: [64 * KIB, MIB][dice.below(2) as usize],
        index_at_once: [0, 8, usize::MAX][dice.below(3) as usize],
        ..Setup::default()
    }
}

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let mut dice = Random::new(seed);
    let world = World::new(seed, Faults::none());
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let subject = |number: usize| Subject {
        name: format!("v{number}"),
        parts: (0..CLIENTS).map(|_| Mutex::new(ClientPart::new(BLOCKS))).collect(),
        hurt: Mutex::default(),
        order: AtomicU64::new(0),
    };
    let run = Arc::new(Run {
        setup: setup(&mut dice),
        store: Mem::store(),
        subjects: (0..VOLUMES).map(subject).collect(),
        counts: Mutex::default(),
    });
    world.block_on(found_store(&world.env(), &run.store))?;
    let lives = 2 + dice.below(3);
    for life in 1..=lives {
        let (is_last, ends_well) = (life == lives, dice.below(2) == 0);
        let drawn = End::draw(&mut dice, REQUESTS_USUAL);
        let end = if is_last || ends_well { End::Work } else { drawn };
        let env = world.env();
        let (begun, eye) = (Begun::default(), Eye::default());
        let work =
            live(env, run.clone(), life, dice.next_u64(), is_last, (begun.clone(), eye.clone()));
        let ended = end::run(&world, end, &begun, work);
        let owes = eye.lock().take().is_some_and(|staging| {
            staging.volumes().iter().any(|staged| staged.backlog().changes > 0)
        });
        match ended {
            Some(ended) => {
                ended.map_err(|why| format!("seed {seed}, life {life}: {why}"))?;
                run.counts.lock().ends += 1;
            }
            None => {
                run.counts.lock().crashes += 1;
                run.counts.lock().amid_work += u64::from(owes);
            }
        }
        if is_last {
            break;
        }
        if dice.below(2) == 0 { world.cut_power() } else { world.crash_process() }
    }
    let mut outcome = *run.counts.lock();
    let parts = run.subjects.iter().flat_map(|subject| &subject.parts);
    outcome.acknowledged = parts.map(|part| part.lock().acknowledged).sum();
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

async fn live(
    env: Env,
    run: Arc<Run>,
    number: u64,
    dice: u64,
    is_last: bool,
    (begun, eye): (Begun, Eye),
) -> Result<(), String> {
    let mut dice = Random::new(dice);
    let setup = Setup {
        collector: Settings {
            idle: Some(Duration::from_millis(1 + dice.below(300))),
            interval: Duration::from_millis(20),
            batch: 1,
        },
        scrubs: (dice.below(2) == 0).then(|| Duration::from_secs(2)),
        ..run.setup.clone()
    };
    let served = Served::start(&env, run.store.clone(), &setup, How::default()).await?;
    let mut told = served.volumes.watch();
    for subject in &run.subjects {
        let made = served.create(&subject.name, &run.setup).await;
        made.map_err(|error| format!("{} cannot be made: {error}", subject.name))?;
    }
    *eye.lock() = Some(served.staging.clone());
    let life = Life { run, served, env, begun };
    let volumes = &life.served.volumes;
    if number > 1 {
        life.judge().await?;
    }
    let mut actors: Vec<BoxFuture<'static, Result<(), String>>> = Vec::new();
    for volume in 0..VOLUMES {
        for client in 0..CLIENTS {
            actors.push(Box::pin(life.clone().client(volume, client, dice.fork())));
        }
    }
    actors.push(Box::pin(life.clone().people(dice.fork())));
    actors.push(Box::pin(life.clone().harm(dice.fork())));
    let stops = !is_last && dice.below(2) == 0;
    if stops {
        actors.push(Box::pin(life.clone().stop(dice.fork())));
    }
    let ended = life.env.timeout(PATIENCE, join(actors)).await;
    ended.map_err(|_elapsed| format!("a call waits for ever: {}", life.seen()))??;
    while let Ok(change) = told.try_recv() {
        if !TABLE.contains(&(change.from, change.event, change.to)) {
            return Err(format!("{change:?} is not in the table"));
        }
    }
    life.run.counts.lock().collected += volumes.collected().detached;
    if stops {
        let (transitional, queue) = (volumes.transitional().1, volumes.salvages().len());
        life.run.counts.lock().stops += 1;
        return match (transitional, queue) {
            (0, 0) => Ok(()),
            _ => Err(format!("left over by the stop: {}", life.seen())),
        };
    }
    life.served.faults.set(Plan::default());
    life.rest().await?;
    life.judge().await?;
    for volume in 0..VOLUMES {
        life.verify(volume).await?;
    }
    if is_last { life.mend().await } else { Ok(()) }
}

/// Puts the answer of a volume into the words of the API.
fn told(answer: Result<(), Error>) -> Result<(), ApiError> {
    answer.map_err(|error| ApiError::new(error.kind(), error.to_string()))
}

impl Life {
    /// Describes the state of the volumes, for the message of a failure.
    fn seen(&self) -> String {
        let volumes = &self.served.volumes;
        let histories: Vec<_> = self
            .run
            .subjects
            .iter()
            .map(|subject| (&subject.name, volumes.history(&subject.name)))
            .collect();
        format!(
            "transitional {:?}, queue {:?}, histories {histories:?}",
            volumes.transitional(),
            volumes.salvages()
        )
    }

    /// Whether a client of this volume may see an error of this kind.
    fn expects(&self, volume: usize, kind: Kind) -> bool {
        let is_hurt = !self.run.subjects[volume].hurt.lock().is_empty();
        kind.is_retryable() || kind == Kind::Unavailable || (is_hurt && kind == Kind::Damaged)
    }

    /// Attaches, reads and writes its part, and detaches, again and again; ends early when the node
    /// stops.
    async fn client(self, volume: usize, client: usize, mut dice: Random) -> Result<(), String> {
        let subject = &self.run.subjects[volume];
        for _ in 0..8 {
            let device = match self.served.attach(&subject.name).await {
                Ok(device) => device,
                Err(error) if self.expects(volume, error.kind) => {
                    self.env.sleep(Duration::from_millis(200)).await;
                    continue;
                }
                Err(error) => return Err(format!("{} cannot be attached: {error}", subject.name)),
            };
            for _ in 0..1 + dice.below(4) {
                if subject.parts[client].lock().is_open() {
                    // The client does not know the fate of its last change, so it waits for the
                    // judge.
                    return Ok(());
                }
                let done = self.step(&device, volume, client, &mut dice).await;
                done.map_err(|why| format!("{}, client {client}: {why}", subject.name))?;
            }
            drop(device);
            self.env.sleep(Duration::from_millis(dice.below(500))).await;
        }
        Ok(())
    }

    async fn step(
        &self,
        device: &Device,
        volume: usize,
        client: usize,
        dice: &mut Random,
    ) -> Result<(), String> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let subject = &self.run.subjects[volume];
        let part = &subject.parts[client];
        if dice.below(3) == 0 {
            let block = dice.below(BLOCKS as u64) as usize;
            let mut found = vec![0xee; BLOCK];
            let at = (client * PART + block * BLOCK) as u64;
            return match device.read(at, &mut found).await {
                Ok(()) if part.lock().allows(block, &found) => Ok(()),
                Ok(()) => Err(format!("block {block} does not read as what was written")),
                Err(error) if self.expects(volume, error.kind()) => {
                    self.run.counts.lock().refused_reads += 1;
                    Ok(())
                }
                Err(error) => Err(format!("read: {error}")),
            };
        }
        let (start, length) = if dice.below(2) == 0 {
            (dice.below(BLOCKS as u64) as usize * BLOCK, BLOCK)
        } else {
            let start = dice.below((PART / 512) as u64) as usize * 512;
            (start, (512 * (1 + dice.below(48) as usize)).min(PART - start))
        };
        // No two changes have the same bytes, so no chunk is ever shared.
        let fill = dice.next_u64();
        let byte =
            |n: usize| (fill.wrapping_mul(n as u64 + 1).wrapping_add(fill >> 7) >> 11) as u8 | 1;
        let bytes: Vec<u8> = (0..length).map(byte).collect();
        part.lock().submit(Change { start, bytes: bytes.clone() });
        let written = device.write((client * PART + start) as u64, &bytes, dice.below(4) == 0);
        match &written {
            Ok(Written::NeedsSync(_)) => {
                part.lock().order(subject.order.fetch_add(1, Ordering::Relaxed));
            }
            Err(error) if self.expects(volume, error.kind()) => {
                part.lock().refused();
                return Ok(());
            }
            _ => {}
        }
        match acknowledged(device, written).await {
            Ok(()) => part.lock().acknowledge(),
            Err(error) if self.expects(volume, error.kind()) => {}
            Err(error) => return Err(format!("a write was not acknowledged: {error}")),
        }
        Ok(())
    }

    /// Gives commands, as users do.
    async fn people(self, mut dice: Random) -> Result<(), String> {
        let service = &self.served.service;
        for _ in 0..12 {
            let volume = dice.below(VOLUMES as u64) as usize;
            let name = &self.run.subjects[volume].name;
            let outcome = match dice.below(8) {
                0..=2 => self.salvage(name, false).await.map(|()| {
                    self.run.counts.lock().salvages += 1;
                }),
                3 => service.cancel_salvage(name).await,
                4 => service.pin_volume(name, dice.below(2) == 0).await.map(drop),
                5 => told(self.served.volumes.ask_salvage(name, "a scrub").await),
                6 => told(self.served.volumes.detach(name).await),
                _ => service.volumes().await.map(drop),
            };
            match outcome {
                // There is no salvage to cancel.
                Err(error) if error.kind == Kind::NotFound => {}
                Err(error) if !self.expects(volume, error.kind) => {
                    return Err(format!("a person with {name} is told: {error}"));
                }
                _ => self.env.sleep(Duration::from_millis(dice.below(400))).await,
            }
        }
        Ok(())
    }

    /// Damages packs, and makes the store slow, failing, lying, or away for a while.
    async fn harm(self, mut dice: Random) -> Result<(), String> {
        for _ in 0..8 {
            self.env.sleep(Duration::from_millis(dice.below(800))).await;
            let plan = match dice.below(6) {
                0 => "latency=20ms",
                1 => "latency=3ms,fail=10%,lie=5%",
                2 => "gone=3s",
                3 => "",
                _ => {
                    let volume = dice.below(VOLUMES as u64) as usize;
                    self.damage(volume, &mut dice).await;
                    continue;
                }
            };
            let plan = if plan.is_empty() { Plan::default() } else { plan.parse().expect("ours") };
            self.served.faults.set(plan);
        }
        self.served.faults.set(Plan::default());
        Ok(())
    }

    /// Has a volume salvaged, and waits for the end.
    async fn salvage(&self, name: &str, accept_losses: bool) -> Result<(), ApiError> {
        let job = self.served.service.start_salvage(name, StartSalvage { accept_losses }).await?;
        let ended = self.served.end_of(job).await;
        ended.map(drop).map_err(|problem| ApiError::new(kind_of(&problem), problem.message))
    }

    /// Flips a byte of a chunk or of a node of a volume in the store, or deletes a whole pack.
    async fn damage(&self, volume: usize, dice: &mut Random) {
        let subject = &self.run.subjects[volume];
        // The node's own content store would keep what it read in its cache.
        let eyes = self.served.content_of(&self.env, &self.run.store);
        let Some(root) = self.root(&subject.name).await else { return };
        let blocks = 0..(CLIENTS * BLOCKS) as u64;
        // A tree that cannot be walked any more is damaged enough.
        let Ok(entries) = tree::range(&eyes, &Some(root), blocks.clone()).await else { return };
        let whole = dice.below(4) == 0;
        let (victim, below): (Pointer, Range<u64>) = if dice.below(4) == 0 || entries.is_empty() {
            (root, blocks)
        } else {
            let (key, chunk) = entries[dice.below(entries.len() as u64) as usize];
            (chunk, key..key + 1)
        };
        // Previous roots may have chunks in this pack, too. None of these comes back as a
        // duplicate, since all bytes differ.
        let key = pack::key(victim.pack);
        let Ok((object, _)) = self.run.store.get(&key).await else { return };
        subject.hurt.lock().extend(below);
        self.run.counts.lock().damages += 1;
        if whole {
            self.hurt_by(|chunk| chunk.pack == victim.pack).await;
            let _ = self.run.store.delete(&key).await;
            // A batch that shared the pack may be committed only now.
            self.env.sleep(Duration::from_millis(300)).await;
            self.hurt_by(|chunk| chunk.pack == victim.pack).await;
            return;
        }
        // The chunks that are compressed together with this one.
        let blob = |chunk: &Pointer| (chunk.pack, chunk.offset);
        self.hurt_by(|chunk| blob(chunk) == blob(&victim)).await;
        let mut object = object.to_vec();
        let at = u64::from(victim.offset) + dice.below(u64::from(victim.stored));
        object[at as usize] ^= 1 << dice.below(8);
        let _ = self.run.store.put(&key, object.into()).await;
    }

    /// Notes the blocks of all volumes whose chunks are hurt: batches share packs.
    async fn hurt_by(&self, is_hurt: impl Fn(&Pointer) -> bool) {
        let eyes = self.served.content_of(&self.env, &self.run.store);
        let blocks = 0..(CLIENTS * BLOCKS) as u64;
        for subject in &self.run.subjects {
            let Some(root) = self.root(&subject.name).await else { continue };
            if is_hurt(&root) {
                subject.hurt.lock().extend(blocks.clone());
            } else if let Ok(entries) = tree::range(&eyes, &Some(root), blocks.clone()).await {
                let with_it = entries.iter().filter(|(_, chunk)| is_hurt(chunk));
                subject.hurt.lock().extend(with_it.map(|(block, _)| *block));
            }
        }
    }

    async fn root(&self, name: &str) -> Option<Pointer> {
        let staged = self.served.staging.volumes();
        let open = staged.iter().map(|staged| staged.vault()).find(|vault| vault.name == name);
        match open {
            Some(vault) => vault.root,
            None => self.served.volumes.show(name).await.ok().and_then(|info| info.vault.root),
        }
    }

    /// Stops the node while all other actors are at work.
    async fn stop(self, mut dice: Random) -> Result<(), String> {
        self.env.sleep(Duration::from_millis(dice.below(4000))).await;
        let drain = dice.below(4) == 0;
        let began = self.env.now();
        let stopped = self.served.stop(drain).await;
        let took = self.env.now().since(began);
        match stopped {
            _ if !drain && took > 2 * STOP_WAIT => Err(format!("a quick stop took {took:?}")),
            // A drain that cannot end (damage, a store that is away) returns an error, and the
            // changes stay in the log.
            Err(why) if !drain => Err(format!("it does not stop: {why}")),
            _ => Ok(()),
        }
    }

    /// Waits for rest: the store is well and no client works, so all transitions and salvages end
    /// soon.
    async fn rest(&self) -> Result<(), String> {
        let volumes = &self.served.volumes;
        let until = self.env.now() + PATIENCE;
        while volumes.transitional().1 > 0 || !volumes.salvages().is_empty() {
            if self.env.now() > until {
                return Err(format!("it does not come to rest: {}", self.seen()));
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn device(&self, volume: usize) -> Result<Device, String> {
        let name = &self.run.subjects[volume].name;
        for _ in 0..1000 {
            match self.served.attach(name).await {
                Ok(device) => return Ok(device),
                Err(error) if error.kind.is_retryable() => {
                    self.env.sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(format!("{name} cannot be attached: {error}")),
            }
        }
        Err(format!("{name} cannot be attached: {}", self.seen()))
    }

    /// Checks that every block of every volume is what was acknowledged, or an error where damage
    /// was done.
    async fn judge(&self) -> Result<(), String> {
        for (volume, subject) in self.run.subjects.iter().enumerate() {
            let device = self.device(volume).await?;
            let mut fates = Vec::new();
            for (client, part) in subject.parts.iter().enumerate() {
                let mut found = Vec::new();
                for block in 0..BLOCKS {
                    found.push(self.read_block(&device, volume, client * BLOCKS + block).await?);
                }
                let fate = part.lock().judge(&found);
                fates
                    .push(fate.map_err(|why| format!("{}, client {client}: {why}", subject.name))?);
            }
            check_prefix(&fates).map_err(|why| format!("{}: {why}", subject.name))?;
        }
        Ok(())
    }

    /// Reads a block; `None` for an error of damage where damage was done.
    async fn read_block(
        &self,
        device: &Device,
        volume: usize,
        block: usize,
    ) -> Result<Option<Vec<u8>>, String> {
        let subject = &self.run.subjects[volume];
        for _ in 0..60 {
            let mut found = vec![0xee; BLOCK];
            match device.read((block * BLOCK) as u64, &mut found).await {
                Ok(()) => return Ok(Some(found)),
                Err(error) if error.kind() == Kind::Damaged => {
                    if subject.hurt.lock().contains(&(block as u64)) {
                        return Ok(None);
                    }
                    return Err(format!(
                        "{}, block {block}, was never hurt: {error}",
                        subject.name
                    ));
                }
                Err(error) if error.kind().is_retryable() => {
                    self.env.sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(format!("{}, block {block}: {error}", subject.name)),
            }
        }
        // An absent pack is waited for, until a user accepts the loss.
        if subject.hurt.lock().contains(&(block as u64)) {
            return Ok(None);
        }
        Err(format!("{}, block {block}, cannot be read", subject.name))
    }

    /// Checks that `verify` names every block that a reader with empty caches cannot read, and none
    /// that was never hurt. Returns whether `verify` finds all sound. A block that parity restores
    /// can be read, and is damaged all the same.
    async fn verify(&self, volume: usize) -> Result<bool, String> {
        let name = &self.run.subjects[volume].name;
        let content = &self.served.content;
        let _hold = content.hold();
        let root = self.root(name).await;
        let proved = rekindle_content::verify::verify(content, &[root], &mut |_| {}).await;
        let report = proved.map_err(|error| format!("{name} cannot be verified: {error}"))?;
        let eyes = self.served.content_of(&self.env, &self.run.store);
        let mut unreadable = BTreeSet::new();
        for block in 0..(CLIENTS * BLOCKS) as u64 {
            let read = match tree::get(&eyes, &root, block).await {
                Ok(Some(pointer)) => eyes.read(&pointer, Class::Data).await.map(drop),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if read.is_err() {
                unreadable.insert(block);
            }
        }
        // The volume's own keys come last in a damage. Without keys, the root is damaged, and all
        // below it.
        let blocks = 0..(CLIENTS * BLOCKS) as u64;
        let said: BTreeSet<u64> = report
            .damages
            .iter()
            .flat_map(|damage| damage.keys.first().cloned().unwrap_or_else(|| blocks.clone()))
            .filter(|block| blocks.contains(block))
            .collect();
        let hurt = self.run.subjects[volume].hurt.lock().clone();
        if !(unreadable.is_subset(&said) && said.is_subset(&hurt)) {
            return Err(format!(
                "{name}: verify says {:?}, unreadable are {unreadable:?}, hurt were {hurt:?}",
                report.damages
            ));
        }
        let is_sound = report.damages.is_empty();
        let mut counts = self.run.counts.lock();
        *(if is_sound { &mut counts.sound } else { &mut counts.unsound }) += 1;
        Ok(is_sound)
    }

    /// Salvages every volume and writes over all losses, as a user would; then all must be whole.
    async fn mend(&self) -> Result<(), String> {
        for (volume, subject) in self.run.subjects.iter().enumerate() {
            let name = &subject.name;
            let told = |error: ApiError| format!("{name} cannot be salvaged: {error}");
            self.salvage(name, true).await.map_err(told)?;
            let accounts = self.served.service.salvage_history(Some(name)).await.map_err(told)?;
            let fell_back = accounts.iter().flat_map(|account| &account.lines);
            let fell_back = fell_back.filter(|line| line.contains("went back to the root")).count();
            self.run.counts.lock().fallbacks += fell_back as u64;
            self.rest().await?;
            let device = self.device(volume).await?;
            let vault = device.handle().staged().vault();
            let lost: BTreeSet<u64> = vault
                .lost
                .iter()
                .flat_map(|lost| {
                    let block = BLOCK as u64;
                    lost.position / block..(lost.position + lost.span).div_ceil(block)
                })
                .collect();
            if let Some(block) = lost.difference(&subject.hurt.lock()).next() {
                return Err(format!("{name}: block {block} is quarantined and was never hurt"));
            }
            for &block in &lost {
                let bytes = vec![block as u8 | 0x80; BLOCK];
                let wrote = |error| format!("{name}: writing over block {block}: {error}");
                let part = &subject.parts[block as usize / BLOCKS];
                let start = block as usize % BLOCKS * BLOCK;
                part.lock().submit(Change { start, bytes: bytes.clone() });
                let written = device.write(block * BLOCK as u64, &bytes, false);
                acknowledged(&device, written).await.map_err(wrote)?;
                part.lock().acknowledge();
            }
            device.handle().staged().drain().await.map_err(|error| format!("{name}: {error}"))?;
            let left = device.handle().staged().vault().lost;
            if !left.is_empty() {
                return Err(format!("{name}: written over and lost all the same: {left:?}"));
            }
            if !self.verify(volume).await? {
                return Err(format!("{name} is whole in the end, and verify says otherwise"));
            }
            for block in 0..CLIENTS * BLOCKS {
                let found = self.read_block(&device, volume, block).await?;
                let part = subject.parts[block / BLOCKS].lock();
                if !found.is_some_and(|found| part.allows(block % BLOCKS, &found)) {
                    return Err(format!("{name}: block {block} is not whole in the end"));
                }
            }
        }
        self.served.stop(true).await.map_err(|why| format!("the last stop: {why}"))
    }
}
