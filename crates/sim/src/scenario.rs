//! One run: clients work, the node dies among their work, comes back, and is judged; several times
//! over. Beside the clients a sweep goes on, flash is small, and a request to the store may land
//! after its sender's death.

use crate::boot::{self, FOLDER, How, Served, Setup, VOLUME};
use crate::clients::{REGION_BYTES, Table};
use crate::dice::{Dice, join};
use crate::end::{self, Begun, End};
use crate::harm::{self, Done, Drawer, Harm};
use crate::heard::{self, Counts};
use crate::region::{Excuse, Region, SharedRegion, judge};
use crate::remote::{self, Pace};
use crate::trouble::{self, Disk, Trouble};
use crate::user;
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::units::{KIB, MIB};
use rekindle_block::Device;
use rekindle_content::sweep::Options;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::World;
use rekindle_env::{BoxFuture, Env};
use rekindle_front::http::Api;
use rekindle_front::http::api::{ApiError, Job, StartAttach, StartSalvage, StartVerify};
use rekindle_front::nbd::ExportError;
use rekindle_staging::{Ack, Policy};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Crashes of the process and power cuts, at any point of a life.
    pub crashes: u64,
    pub power_cuts: u64,
    /// Crashes and power cuts that met acknowledged changes which the datastore had not.
    pub amid_work: u64,
    pub acknowledged: u64,
    /// Events that happened besides.
    pub counts: Counts,
    pub trace_hash: u64,
}

impl Outcome {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        self.power_cuts += other.power_cuts;
        self.amid_work += other.amid_work;
        self.acknowledged += other.acknowledged;
        heard::add(&mut self.counts, &other.counts);
    }
}

/// State of a run, over all lives.
struct Run {
    world: World,
    setup: Setup,
    store: Store,
    regions: Vec<SharedRegion>,
    /// Whether segments of the log are damaged between lives. Then all is destaged after each
    /// crash, so that the log holds changes of one life only, and the oracle knows the segment of
    /// each.
    hurts_flash: bool,
}

/// Longest wait of any task: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Times that a node may report damage until it must be out of the way.
const TOLD_MAX: u32 = 3;

/// Most tries of a drain.
const TRIES_MAX: u64 = 20;

/// The judge's knowledge of the life that has ended.
#[derive(Debug, Clone, Copy)]
struct After {
    memory_is_lost: bool,
    /// Whether a part was damaged once, so that starts may report damage.
    was_hurt: bool,
    /// The serial up to which the datastore had all changes.
    checkpoint: u64,
}

/// State that a new life shows.
#[derive(Debug)]
struct Looked {
    found: Vec<Vec<u8>>,
    /// Whether the volume reported lost changes.
    was_told: bool,
}

/// End of a life that is not cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// All was drained.
    Well,
    /// The disk failed, and every client was told.
    Refused,
}

/// The part of a life that can be looked at after the cut.
type Eye = Arc<Mutex<Option<Device>>>;

fn setup(dice: &mut Dice, clients: u64) -> Setup {
    let (policy, ack) = match dice.below(16) {
        0 => (Policy::Uncached, Ack::Flash),
        1 => (Policy::Through, Ack::Flash),
        2..=5 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    // The smallest segments that take the largest change. With the least flash every few writes
    // fill the log.
    let segment_bytes = [320 * KIB, 512 * KIB, 8 * MIB][dice.below(3) as usize];
    Setup {
        policy,
        ack,
        size: clients * REGION_BYTES,
        cache_bytes: [64 * KIB, 4 * MIB][dice.below(2) as usize],
        segment_bytes,
        flash_bytes: segment_bytes * [2, 3, 6][dice.below(3) as usize],
        warm_slots: [2, 3, 6][dice.below(3) as usize],
        destage_age: Duration::from_millis([5, 50, 2000][dice.below(3) as usize]),
        batch_bytes: [64 * KIB, MIB][dice.below(2) as usize],
        index_at_once: [0, 8, usize::MAX][dice.below(3) as usize],
        clients_first: Duration::from_millis([1, 50, 1000][dice.below(3) as usize]),
        sweep: Options {
            grace: Duration::from_millis([0, 5, 50][dice.below(3) as usize]),
            ..Setup::default().sweep
        },
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
    let clients = 1 + dice.below(4);
    let world = World::new(seed, trouble::tears(&mut dice));
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let (setup, pace) = (setup(&mut dice, clients), Pace::draw(&mut dice));
    let segments = setup.flash_bytes / setup.segment_bytes;
    let hurts_flash = segments >= harm::SEGMENTS_MIN && dice.below(2) == 0;
    // A segment that is in memory only keeps its slot.
    let slots_min = if hurts_flash { 3 } else { 2 };
    let setup = Setup { warm_slots: setup.warm_slots.max(slots_min), ..setup };
    let run = Run {
        setup,
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        world,
        regions: (0..clients)
            .map(|_| Arc::new(Mutex::new(Region::new(REGION_BYTES as usize))))
            .collect(),
        hurts_flash,
    };
    run.world.block_on(boot::found_store(&run.world.env(), &run.store))?;
    let (mut outcome, mut was_hurt) = (Outcome::default(), false);
    let (lives, mut drawer) = (2 + dice.below(3), Drawer::default());
    for life in 1..=lives {
        let requests = clients * Table::REQUESTS;
        let drawn = End::draw(&mut dice, requests);
        let end = if life == lives { End::Work } else { drawn };
        let (begun, eye) = (Begun::default(), Eye::default());
        let trouble = Trouble::draw(&mut dice);
        let (env, regions) = (run.world.env(), run.regions.clone());
        let table = Table::new(env, regions, begun.clone(), trouble.clone());
        let described = format!("seed {seed}, life {life}, {:?}, {trouble:?}", run.setup);
        let told = |why| format!("{described}: {why}");
        let work = run.life(table, (dice.next(), was_hurt), eye.clone());
        let ended = end::run(&run.world, end, &begun, work).transpose().map_err(told)?;
        Disk::end(&run.world);
        // A start reports what it could not read, and the next ones repeat the report until they
        // have read it.
        was_hurt |= trouble.disk == Disk::Misreads;
        if life == lives && ended == Some(Ended::Well) {
            break;
        }
        let checkpoint = eye.lock().as_ref().map_or(0, |device| device.backlog().checkpoint);
        outcome.amid_work += u64::from(run.is_amid_work(&eye, ended != Some(Ended::Well)));
        let cuts_power = dice.below(2) == 0;
        if cuts_power {
            run.world.cut_power();
            outcome.power_cuts += 1;
        } else {
            run.world.crash_process();
            outcome.crashes += 1;
        }
        let harm = Harm::draw(&mut dice, run.hurts_flash);
        let done = harm.inflict(&run.world, &run.store, &mut drawer, &mut dice).map_err(told)?;
        tracing::info!(life, ?end, ?ended, cuts_power, ?done, "a life has ended");
        let told = |why| format!("{described}, then {harm:?} ({done:?}): {why}");
        was_hurt |= matches!(done, Done::Segment(..) | Done::Memory);
        let memory_is_lost = cuts_power || matches!(done, Done::Memory | Done::Foreign);
        let after = After { memory_is_lost, was_hurt, checkpoint };
        run.judge_after_crash(after, &done).map_err(told)?;
    }
    trouble::note(&run.world.mishaps());
    outcome.acknowledged = run.regions.iter().map(|region| region.lock().acknowledged).sum();
    outcome.trace_hash = run.world.trace_hash();
    Ok(outcome)
}

impl Run {
    /// Whether a life that was cut off has acknowledged changes that the datastore does not have.
    fn is_amid_work(&self, eye: &Eye, cut_off: bool) -> bool {
        let Some(device) = eye.lock().take().filter(|_| cut_off) else { return false };
        let checkpoint = device.backlog().checkpoint;
        self.regions.iter().any(|region| region.lock().acknowledged_serial > checkpoint)
    }

    /// Boots a node only to look, then lets it crash again: recovery itself must survive that.
    fn judge_after_crash(&self, after: After, done: &Done) -> Result<(), String> {
        match done {
            Done::Foreign => {
                match self.look(after, None) {
                    Err(why) if why.starts_with("memory: ") => heard::note("told: foreign memory"),
                    other => return Err(format!("another's memory is believed: {other:?}")),
                }
                harm::take_out(&self.world)?;
            }
            Done::Record(flipped) => {
                let looked = self.look(after, None);
                self.world.block_on(flipped.clone().restore(&self.store))?;
                match looked {
                    Ok(looked) => return self.judge(looked, after, done),
                    Err(why) => {
                        heard::note("told: a damaged record");
                        tracing::debug!("told: {why}");
                    }
                }
            }
            _ => {}
        }
        let mut looked = self.look(after, Some(done));
        if let (Err(why), Done::Segment(_, path)) = (&looked, done)
            && why.starts_with("log: ")
        {
            heard::note("told: no log can be read");
            harm::move_away(&self.world, path)?;
            looked = self.look(after, Some(done));
            looked = looked.map(|looked| Looked { was_told: true, ..looked });
        }
        self.judge(looked?, after, done)
    }

    /// Judges what a new life shows. Only what the fault has taken is excused.
    fn judge(&self, looked: Looked, after: After, done: &Done) -> Result<(), String> {
        let waits_for_memory = self.setup.policy == Policy::Back && self.setup.ack == Ack::Memory;
        let unflushed = waits_for_memory && after.memory_is_lost;
        let excuse = match done {
            Done::Segment(damaged, _) => Excuse::Segment {
                damaged: *damaged,
                checkpoint: after.checkpoint,
                silent: !looked.was_told,
                unflushed,
            },
            _ if unflushed => Excuse::Unflushed,
            _ => Excuse::Nothing,
        };
        if judge(&self.regions, &looked.found, excuse)? {
            heard::note(match done {
                Done::Segment(..) if looked.was_told => "fell back, and it was told",
                Done::Segment(..) => "fell back by the last batch",
                _ => "fell back with ack=memory",
            });
        }
        Ok(())
    }

    /// Starts a node and reads all. Losses that the volume reports are accepted, as a user would,
    /// if `done` explains them.
    fn look(&self, after: After, done: Option<&Done>) -> Result<Looked, String> {
        let (env, setup) = (self.world.env(), self.setup.clone());
        let explained = matches!(done, Some(Done::Segment(..) | Done::Memory | Done::Foreign));
        let work = async {
            let how = How { was_hurt: after.was_hurt, ..How::default() };
            let served = start(&env, &self.store, &setup, how).await?;
            if !served.opened.damage.is_empty() {
                heard::note("told: damage at a start");
            }
            let mut told = 0;
            loop {
                match read_all(&served, self.regions.len(), self.hurts_flash).await {
                    Ok(found) => return Ok(Looked { found, was_told: told > 0 }),
                    // A batch may hold damaged bytes without the change that has written over them.
                    // Nothing need be accepted then: the next batch takes both.
                    Err(error) if error.kind == Kind::Damaged && (1..TOLD_MAX).contains(&told) => {
                        told += 1;
                        env.sleep(Duration::from_secs(5)).await;
                    }
                    Err(error) if error.kind == Kind::Damaged && explained && told == 0 => {
                        told += 1;
                        heard::note("told: changes are lost");
                        // A drain that fails makes the volume report which changes are damaged.
                        if let Ok(device) = served.device(VOLUME).await {
                            let _ = device.handle().staged().drain().await;
                        }
                        accept_losses(&served).await?;
                    }
                    Err(error) => return Err(format!("it cannot be read: {}", error.message)),
                }
            }
        };
        let looked = self.world.block_on(env.timeout(PATIENCE, work));
        self.world.crash_process();
        looked.map_err(|_elapsed| "it waits for ever".to_owned())?
    }

    /// Runs one life of the node: clients work on their regions, then all is drained and compared
    /// once more.
    fn life(
        &self,
        table: Arc<Table>,
        (dice, was_hurt): (u64, bool),
        eye: Eye,
    ) -> impl Future<Output = Result<Ended, String>> + Send + 'static {
        let (env, setup, host) = (self.world.env(), self.setup.clone(), (*self.world).clone());
        let trouble = table.trouble().clone();
        // The first start in a folder refuses a store that breaks promises.
        let is_first = self.world.peek(Path::new(FOLDER).join("node.json")).is_none();
        let faults = match trouble.from_the_start && !is_first {
            true => trouble.store.clone(),
            false => Plan::default(),
        };
        let how = How { faults, was_hurt, ..How::default() };
        let (store, regions) = (self.store.clone(), self.regions.clone());
        async move {
            if trouble.from_the_start {
                trouble.disk.begin(&host);
            }
            let begin = begin(&env, &store, &setup, how);
            let begun = env.timeout(PATIENCE, begin).await;
            let (served, device) = match begun.map_err(|_elapsed| "it does not start".to_owned())? {
                Ok(begun) => begun,
                Err(why) if trouble.may_refuse_a_start() => {
                    heard::note("a start was refused");
                    tracing::debug!("a start was refused: {why}");
                    return Ok(Ended::Refused);
                }
                Err(why) => return Err(why),
            };
            *eye.lock() = Some(device.clone());
            trouble.disk.begin(&host);
            served.faults.set(trouble.store.clone());
            let work =
                env.timeout(PATIENCE, work(&served, &device, &table, (dice, was_hurt))).await;
            let stuck = |_elapsed| {
                let (view, log) = (device.handle().staged().view(), served.log.view());
                let (destager, usage) = (served.staging.view(9), served.log.usage());
                format!("an actor waits for ever: {view:?}, {destager:?}, {log:?}, {usage:?}")
            };
            work.map_err(stuck)??;
            served.faults.set(Plan::default());
            Disk::end(&host);
            let has_failed = trouble.ends(Kind::Io) && served.log.failure().is_some();
            if table.was_refused() || has_failed {
                return Ok(Ended::Refused);
            }
            finish(&served, device, &regions, was_hurt).await.map(|()| Ended::Well)
        }
    }
}

/// Reads all regions, of the volume that is attached for it. `drains`: first all is destaged.
async fn read_all(
    served: &Served,
    regions: usize,
    drains: bool,
) -> Result<Vec<Vec<u8>>, ExportError> {
    let told = |error: rekindle_volume::Error| ExportError {
        kind: error.kind(),
        message: error.to_string(),
    };
    let device = served.device(VOLUME).await?;
    if drains {
        device.handle().staged().drain().await.map_err(|error| told(error.into()))?;
    }
    let mut all = Vec::new();
    for index in 0..regions {
        let mut found = vec![0; REGION_BYTES as usize];
        device.read(index as u64 * REGION_BYTES, &mut found).await.map_err(told)?;
        all.push(found);
    }
    Ok(all)
}

/// Starts a node with its volume, or returns why not.
async fn start(env: &Env, store: &Store, setup: &Setup, how: How) -> Result<Served, String> {
    let served = Served::start(env, store.clone(), setup, how).await?;
    served.create(VOLUME, setup).await.map_err(|error| format!("create: {error}"))?;
    Ok(served)
}

/// Starts a node and attaches the volume, or returns why not.
async fn begin(
    env: &Env,
    store: &Store,
    setup: &Setup,
    how: How,
) -> Result<(Served, Device), String> {
    let served = start(env, store, setup, how).await?;
    let device = served.device(VOLUME).await;
    let device = device.map_err(|error| format!("attach: {}", error.message))?;
    Ok((served, device))
}

/// Goes on without what the log has lost, as a user would.
async fn accept_losses(served: &Served) -> Result<(), String> {
    let request = StartSalvage { accept_losses: true };
    let told = |why: String| format!("losses are not accepted: {why}");
    let job = served.service.start_salvage(VOLUME, request).await;
    let job = job.map_err(|error| told(error.message))?;
    let ended = served.end_of(job).await;
    ended.map(drop).map_err(|problem| told(problem.message))
}

/// Runs all actors of a life.
async fn work(
    served: &Served,
    device: &Device,
    table: &Arc<Table>,
    (dice, was_hurt): (u64, bool),
) -> Result<(), String> {
    let mut actors: Vec<BoxFuture<'static, Result<(), String>>> = Vec::new();
    for client in 0..table.clients() {
        let (dice, both) = (Dice::plain(dice ^ client as u64), (served.clone(), device.clone()));
        actors.push(Box::pin(table.clone().client(client, both, dice)));
    }
    let mut dice = Dice::new(dice);
    actors.push(Box::pin(table.clone().sweeps(served.clone(), dice.fork())));
    let (user, table) = (served.clone(), table.clone());
    actors.push(Box::pin(user::look_and_command(user, table, was_hurt, dice.fork())));
    join(actors).await
}

/// Drains a volume whose store is well, compares it with what was written, has it verified, and
/// stops the node.
async fn finish(
    served: &Served,
    device: Device,
    regions: &[SharedRegion],
    was_hurt: bool,
) -> Result<(), String> {
    let mut tries = 0;
    while let Err(error) = device.handle().staged().drain().await {
        // The destager reads once more what was misread, when it comes back to it.
        tries += 1;
        if tries > TRIES_MAX || error.kind() != Kind::Damaged {
            return Err(format!("drain: {error}"));
        }
        heard::note("drained in the end");
        served.env.sleep(Duration::from_secs(10)).await;
    }
    for (client, region) in regions.iter().enumerate() {
        if read_region(&device, client).await? != region.lock().expected() {
            return Err(format!("client {client}: the drained volume is not what was written"));
        }
    }
    let ended = async |job: Result<Job, ApiError>| {
        let job = job.map_err(|error| error.message)?;
        served.end_of(job).await.map_err(|problem| problem.message)
    };
    // A volume that a fault kept out of service says so until it comes back. The log may have lost
    // changes of the user's volumes, whose loss no user has accepted.
    if !was_hurt {
        let attached = ended(served.service.start_attach(StartAttach::default()).await).await;
        attached.map_err(|why| format!("a volume stays out of service: {why}"))?;
    }
    let volume = was_hurt.then(|| VOLUME.to_owned());
    let request = StartVerify { volume, ..StartVerify::default() };
    let verified = ended(served.service.start_verify(request).await).await;
    let verified = verified.map_err(|why| format!("verify: {why}"))?;
    if verified["damaged"] != 0 {
        return Err(format!("all is well, and verify says otherwise: {verified}"));
    }
    drop(device);
    served.stop(false).await
}

async fn read_region(device: &Device, client: usize) -> Result<Vec<u8>, String> {
    let mut found = vec![0; REGION_BYTES as usize];
    let read = device.read(client as u64 * REGION_BYTES, &mut found).await;
    read.map(|()| found).map_err(|error| format!("read: {error}"))
}
