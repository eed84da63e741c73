//! One run: clients work, the node dies among their work, comes back, and is judged; several times
//! over. Beside the clients a sweep goes on, flash is small, and a request to the store may land
//! after its sender's death.

use crate::boot::{self, FOLDER, How, Served, Setup};
use crate::clients::Table;
use crate::end::{self, Begun, End};
use crate::harm::{self, Done, Drawer, Harm};
use crate::heard::{self, Counts};
use crate::join::join;
use crate::records;
use crate::region::{Excuse, Operation, SharedRegion, judge};
use crate::remote::{self, Pace};
use crate::subject::{Attached, REGION_BYTES, Subject, What};
use crate::trouble::{self, Disk, Trouble};
use crate::user;
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_base::units::{KIB, MIB};
use rekindle_content::sweep::Options;
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::World;
use rekindle_env::{BoxFuture, Env};
use rekindle_front::http::Api;
use rekindle_front::http::api::kept::{Keep, Restore};
use rekindle_front::http::api::{ApiError, Job, StartAttach, StartSalvage, StartVerify};
use rekindle_front::nbd::ExportError;
use rekindle_staging::{Ack, Policy, Staged};
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
    /// Does a run, and counts its events.
    pub(crate) fn with_counts(run: impl FnOnce() -> Result<Self, String>) -> Result<Self, String> {
        let (outcome, counts) = heard::listen(run);
        outcome.map(|outcome| Self { counts, ..outcome })
    }

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
    subjects: Vec<Subject>,
    /// Whether segments of the log are damaged between lives. Then all is destaged after each
    /// crash, so that the log holds changes of one life only, and the oracle knows the segment of
    /// each.
    hurts_flash: bool,
}

/// Longest wait of any task: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Times that a node may report damage until it must be out of the way.
const TOLD_MAX: u32 = 3;

/// Of how many seeds one has a map of records.
const MAPS_SHARE: u64 = 4;

/// Most tries of a drain.
const TRIES_MAX: u64 = 20;

/// The judge's knowledge of the life that has ended.
#[derive(Debug, Clone)]
struct After {
    memory_is_lost: bool,
    /// Whether a part was damaged once, so that starts may report damage.
    was_hurt: bool,
    /// The serial of each volume up to which the datastore had all changes.
    checkpoints: Vec<u64>,
}

/// State that a new life shows of a volume: the regions of its clients.
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

/// The part of a life that can be looked at after the cut: each volume, if all are in service.
type Eye = Arc<Mutex<Vec<Arc<Staged>>>>;

fn setup(dice: &mut Random, clients: u64) -> Setup {
    let (policy, ack) = match dice.below(16) {
        0 => (Policy::Uncached, Ack::Flash),
        1 => (Policy::Through, Ack::Flash),
        2..=5 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    // The smallest segments that take the largest change. With the least flash every few writes
    // fill the log.
    let segment_bytes = [320 * KIB, 512 * KIB, 8 * MIB][dice.below(3) as usize];
    let sweep = Setup::default().sweep;
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
        sweep: match dice.below(3) {
            0 => Options { grace: Duration::ZERO, condemned_max: 2, ..sweep },
            1 => Options { grace: Duration::from_millis(5), condemned_max: 5, ..sweep },
            _ => Options { grace: Duration::from_millis(50), ..sweep },
        },
        ..Setup::default()
    }
}

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    Outcome::with_counts(|| lives(seed))
}

fn lives(seed: u64) -> Result<Outcome, String> {
    let mut dice = Random::new(seed);
    let clients = 1 + dice.below(4);
    // Drawn apart, so that a seed without a map is the run that it was before there were maps.
    let mut maps = Random::new(seed.rotate_left(32));
    let records = match maps.below(MAPS_SHARE) {
        0 => 1 + maps.below(records::CLIENTS_MAX),
        _ => 0,
    };
    let world = World::new(seed, trouble::tears(&mut dice));
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let (setup, pace) = (setup(&mut dice, clients), Pace::draw(&mut dice));
    let segments = setup.flash_bytes / setup.segment_bytes;
    let hurts_flash = segments >= harm::SEGMENTS_MIN && dice.below(2) == 0;
    // A segment that is in memory only keeps its slot.
    let slots_min = if hurts_flash { 3 } else { 2 };
    let block_size = setup.block_size.filter(|_| maps.below(4) == 0);
    let setup = Setup { warm_slots: setup.warm_slots.max(slots_min), block_size, ..setup };
    let run = Run {
        setup,
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        world,
        subjects: [(What::Disk, clients), (What::Map, records)]
            .into_iter()
            .filter(|&(_, clients)| clients > 0)
            .map(|(what, clients)| Subject::new(what, clients))
            .collect(),
        hurts_flash,
    };
    run.world.block_on(boot::found_store(&run.world.env(), &run.store))?;
    let (mut outcome, mut was_hurt) = (Outcome::default(), false);
    let (lives, mut drawer) = (2 + dice.below(3), Drawer::default());
    for life in 1..=lives {
        let requests = (clients + records) * Table::REQUESTS;
        let drawn = End::draw(&mut dice, requests);
        let end = if life == lives { End::Work } else { drawn };
        let (begun, eye) = (Begun::default(), Eye::default());
        let trouble = Trouble::draw(&mut dice);
        let (env, subjects) = (run.world.env(), run.subjects.clone());
        let table = Table::new(env, subjects, begun.clone(), trouble.clone());
        let described = format!("seed {seed}, life {life}, {:?}, {trouble:?}", run.setup);
        let told = |why| format!("{described}: {why}");
        let work = run.life(table, (dice.next_u64(), was_hurt), eye.clone());
        let ended = end::run(&run.world, end, &begun, work).transpose().map_err(told)?;
        Disk::end(&run.world);
        // A start reports what it could not read, and the next ones repeat the report until they
        // have read it.
        was_hurt |= trouble.disk == Disk::Misreads;
        if life == lives && ended == Some(Ended::Well) {
            break;
        }
        let open = std::mem::take(&mut *eye.lock());
        let checkpoint = |at: usize| open.get(at).map_or(0, |volume| volume.backlog().checkpoint);
        let checkpoints: Vec<u64> = (0..run.subjects.len()).map(checkpoint).collect();
        let is_amid_work = ended != Some(Ended::Well) && run.is_amid_work(&open);
        outcome.amid_work += u64::from(is_amid_work);
        drop(open);
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
        let after = After { memory_is_lost, was_hurt, checkpoints };
        run.judge_after_crash(&after, &done).map_err(told)?;
    }
    trouble::note(&run.world.mishaps());
    let regions = run.subjects.iter().flat_map(|subject| &subject.regions);
    outcome.acknowledged = regions.map(|region| region.lock().acknowledged).sum();
    outcome.trace_hash = run.world.trace_hash();
    Ok(outcome)
}

impl Run {
    /// Whether a life that was cut off has acknowledged changes that the datastore does not have.
    fn is_amid_work(&self, open: &[Arc<Staged>]) -> bool {
        let mut amid_work = false;
        for (subject, volume) in self.subjects.iter().zip(open) {
            let checkpoint = volume.backlog().checkpoint;
            let owes = |region: &SharedRegion| region.lock().acknowledged_serial > checkpoint;
            if subject.regions.iter().any(owes) {
                amid_work = true;
                if subject.what == What::Map {
                    heard::note("map: cut off among unfinished records");
                }
            }
        }
        amid_work
    }

    /// Boots a node only to look, then lets it crash again: recovery itself must survive that.
    fn judge_after_crash(&self, after: &After, done: &Done) -> Result<(), String> {
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
            looked = looked.map(|mut looked| {
                looked.iter_mut().for_each(|one| one.was_told = true);
                looked
            });
        }
        self.judge(looked?, after, done)
    }

    /// Judges what a new life shows of each volume. Only what the fault has taken is excused.
    fn judge(&self, looked: Vec<Looked>, after: &After, done: &Done) -> Result<(), String> {
        let waits_for_memory = self.setup.policy == Policy::Back && self.setup.ack == Ack::Memory;
        let unflushed = waits_for_memory && after.memory_is_lost;
        for ((subject, looked), &checkpoint) in
            self.subjects.iter().zip(looked).zip(&after.checkpoints)
        {
            let excuse = match done {
                Done::Segment(damaged, _) => Excuse::Segment {
                    damaged: *damaged,
                    checkpoint,
                    silent: !looked.was_told,
                    unflushed,
                },
                _ if unflushed => Excuse::Unflushed,
                _ => Excuse::Nothing,
            };
            let judged = judge(&subject.regions, &looked.found, excuse);
            if judged.map_err(|why| format!("{}, {why}", subject.what.name()))? {
                heard::note(match done {
                    Done::Segment(..) if looked.was_told => "fell back, and it was told",
                    Done::Segment(..) => "fell back by the last batch",
                    _ => "fell back with ack=memory",
                });
            }
        }
        Ok(())
    }

    /// Starts a node and reads all volumes.
    fn look(&self, after: &After, done: Option<&Done>) -> Result<Vec<Looked>, String> {
        let (env, setup) = (self.world.env(), self.setup.clone());
        let explained = matches!(done, Some(Done::Segment(..) | Done::Memory | Done::Foreign))
            || may_be_accused(&self.subjects, after.was_hurt);
        let work = async {
            let how = How { was_hurt: after.was_hurt, ..How::default() };
            let served = start(&env, &self.store, &setup, how, &self.subjects).await?;
            if !served.opened.damage.is_empty() {
                heard::note("told: damage at a start");
            }
            let mut all = Vec::new();
            for subject in &self.subjects {
                all.push(self.look_at(&served, subject, explained).await?);
            }
            Ok(all)
        };
        let looked = self.world.block_on(env.timeout(PATIENCE, work));
        self.world.crash_process();
        looked.map_err(|_elapsed| "it waits for ever".to_owned())?
    }

    /// Reads all of a volume. Losses that the volume reports are accepted, as a user would, if they
    /// are explained.
    async fn look_at(
        &self,
        served: &Served,
        subject: &Subject,
        explained: bool,
    ) -> Result<Looked, String> {
        let what = subject.what;
        let mut told = 0;
        loop {
            match read_all(served, subject, self.hurts_flash).await {
                Ok(found) => return Ok(Looked { found, was_told: told > 0 }),
                // A batch may hold damaged bytes without the change that has written over them.
                // Nothing need be accepted then: the next batch takes both.
                Err(error) if error.kind == Kind::Damaged && (1..TOLD_MAX).contains(&told) => {
                    told += 1;
                    served.env.sleep(Duration::from_secs(5)).await;
                }
                Err(error) if error.kind == Kind::Damaged && explained && told == 0 => {
                    told += 1;
                    heard::note("told: changes are lost");
                    if what == What::Map {
                        heard::note("map: told: records are lost");
                    }
                    // A drain that fails makes the volume report which changes are damaged.
                    if let Ok(volume) = what.attach(served).await {
                        let _ = volume.staged().drain().await;
                    }
                    accept_losses(served, what).await?;
                }
                // A commit of an earlier life has landed meanwhile, and the map begins with it.
                Err(error) if what == What::Map && error.kind == Kind::Unavailable => {
                    tracing::debug!("the map is read again: {}", error.message);
                }
                Err(error) => {
                    return Err(format!("the {} cannot be read: {}", what.name(), error.message));
                }
            }
        }
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
        let store = self.store.clone();
        async move {
            if trouble.from_the_start {
                trouble.disk.begin(&host);
            }
            // A user goes on without lost changes when the disk is well, not while it misreads.
            let accepts = !(trouble.from_the_start && trouble.disk == Disk::Misreads);
            let begin = begin(&env, &store, &setup, (how, accepts), table.subjects());
            let begun = env.timeout(PATIENCE, begin).await;
            let (served, open) = match begun.map_err(|_elapsed| "it does not start".to_owned())? {
                Ok(begun) => begun,
                Err(why) if trouble.may_refuse_a_start() => {
                    heard::note("a start was refused");
                    tracing::debug!("a start was refused: {why}");
                    return Ok(Ended::Refused);
                }
                Err(why) => return Err(why),
            };
            *eye.lock() = open.iter().map(|volume| volume.staged().clone()).collect();
            trouble.disk.begin(&host);
            served.faults.set(trouble.store.clone());
            let work = env.timeout(PATIENCE, work(&served, &open, &table, (dice, was_hurt))).await;
            let stuck = |_elapsed| {
                let views: Vec<_> = served
                    .staging
                    .volumes()
                    .iter()
                    .map(|volume| (volume.view(), volume.vault()))
                    .collect();
                let (log, destager) = (served.log.view(), served.staging.view(9));
                let usage = served.log.usage();
                format!("an actor waits for ever: {views:?}, {destager:?}, {log:?}, {usage:?}")
            };
            work.map_err(stuck)??;
            served.faults.set(Plan::default());
            Disk::end(&host);
            let has_failed = trouble.ends(Kind::Io) && served.log.failure().is_some();
            if table.was_refused() || has_failed {
                return Ok(Ended::Refused);
            }
            finish(&served, open, &table, (dice, was_hurt)).await.map(|()| Ended::Well)
        }
    }
}

/// Reads all regions of a volume, which is attached for it. `drains`: first all is destaged.
async fn read_all(
    served: &Served,
    subject: &Subject,
    drains: bool,
) -> Result<Vec<Vec<u8>>, ExportError> {
    let told = |error: rekindle_volume::Error| ExportError::from(error);
    let volume = subject.what.attach(served).await?;
    if drains {
        volume.staged().drain().await.map_err(|error| told(error.into()))?;
    }
    let mut all = Vec::new();
    for client in 0..subject.regions.len() {
        all.push(volume.read(client).await.map_err(told)?);
    }
    Ok(all)
}

/// Starts a node with its volumes, or returns why not.
async fn start(
    env: &Env,
    store: &Store,
    setup: &Setup,
    how: How,
    subjects: &[Subject],
) -> Result<Served, String> {
    let served = Served::start(env, store.clone(), setup, how).await?;
    for subject in subjects {
        let made = subject.what.create(&served, setup).await;
        made.map_err(|error| format!("create: {error}"))?;
    }
    Ok(served)
}

/// Starts a node and attaches its volumes, or returns why not. `accepts`: its user goes on without
/// lost changes.
async fn begin(
    env: &Env,
    store: &Store,
    setup: &Setup,
    (how, accepts): (How, bool),
    subjects: &[Subject],
) -> Result<(Served, Vec<Attached>), String> {
    let may_be_accused = accepts && may_be_accused(subjects, how.was_hurt);
    let served = start(env, store, setup, how, subjects).await?;
    let mut open = Vec::new();
    for subject in subjects {
        let told = |error: ExportError| format!("attach: {}", error.message);
        let volume = match subject.what.attach(&served).await {
            Err(error) if error.kind == Kind::Damaged && may_be_accused => {
                heard::note("told: a loss that is another volume's");
                accept_losses(&served, subject.what).await?;
                let volume = subject.what.attach(&served).await.map_err(told)?;
                compare(subject, &volume).await?;
                volume
            }
            attached => attached.map_err(told)?,
        };
        open.push(volume);
    }
    Ok((served, open))
}

/// Whether a volume may report a loss that it does not have. Of a damaged segment, the log knows
/// which volume's change is lost by the changes around it. Once that volume goes on without them,
/// another one may be meant as well, until a digest without the segment is on flash.
fn may_be_accused(subjects: &[Subject], was_hurt: bool) -> bool {
    was_hurt && subjects.len() > 1
}

/// Goes on without what the log has lost, as a user would.
async fn accept_losses(served: &Served, what: What) -> Result<(), String> {
    /// How often a user asks for the same, while the store leaves it open.
    const ASKED_MAX: usize = 20;
    let told = |why: String| format!("losses are not accepted: {why}");
    for _ in 0..ASKED_MAX {
        let job =
            served.service.start_salvage(what.name(), StartSalvage { accept_losses: true }).await;
        let job = job.map_err(|error| told(error.message))?;
        match served.end_of(job).await {
            // The store did not say what became of a write: a user asks once more.
            Err(problem) if problem.retryable => {}
            ended => return ended.map(drop).map_err(|problem| told(problem.message)),
        }
    }
    Err(told(format!("{ASKED_MAX} times, since the store did not answer")))
}

/// Runs all actors of a life.
async fn work(
    served: &Served,
    open: &[Attached],
    table: &Arc<Table>,
    (dice, was_hurt): (u64, bool),
) -> Result<(), String> {
    let mut actors: Vec<BoxFuture<'static, Result<(), String>>> = Vec::new();
    for (at, (subject, volume)) in table.subjects().iter().zip(open).enumerate() {
        for client in 0..subject.regions.len() {
            let dice = Random::new(dice ^ client as u64 ^ (at as u64) << 32);
            let both = (served.clone(), volume.clone());
            actors.push(Box::pin(table.clone().client((at, client), both, dice)));
        }
    }
    let mut dice = Random::new(dice);
    actors.push(Box::pin(table.clone().sweeps(served.clone(), dice.fork())));
    let (user, others) = (served.clone(), table.clone());
    actors.push(Box::pin(user::look_and_command(user, others, was_hurt, dice.fork())));
    if table.has_map() {
        actors.push(Box::pin(user::knock(served.clone(), table.clone(), dice.fork())));
    }
    join(actors).await
}

/// Drains the volumes, whose store is well, compares them with what was written, has them verified,
/// and stops the node.
async fn finish(
    served: &Served,
    open: Vec<Attached>,
    table: &Table,
    (dice, was_hurt): (u64, bool),
) -> Result<(), String> {
    for (subject, volume) in table.subjects().iter().zip(open) {
        compare(subject, &drained(served, subject, volume).await?).await?;
        if subject.what == What::Map {
            heard::note("map: drained");
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
        // The job attaches disks. A map whose record was misread comes back with its next client.
        let infos = served.volumes.list().await.map_err(|error| error.to_string())?;
        for info in infos.iter().filter(|info| info.vault.kind == records::KIND) {
            let attached = served.volumes.attach_as(&info.vault.name, records::KIND).await;
            attached.map_err(|error| format!("a map stays out of service: {error}"))?;
        }
    }
    for subject in table.subjects() {
        let volume = was_hurt.then(|| subject.what.name().to_owned());
        let is_all = volume.is_none();
        let request = StartVerify { volume, ..StartVerify::default() };
        let verified = ended(served.service.start_verify(request).await).await;
        let verified = verified.map_err(|why| format!("verify: {why}"))?;
        if verified["damaged"] != 0 {
            return Err(format!("all is well, and verify says otherwise: {verified}"));
        }
        if is_all {
            break;
        }
    }
    if let Some(map) = table.subjects().iter().find(|subject| subject.what == What::Map) {
        take_away(served, map, &mut Random::new(!dice)).await?;
    }
    served.stop(false).await
}

/// Drains a volume, and returns it in service.
async fn drained(served: &Served, subject: &Subject, volume: Attached) -> Result<Attached, String> {
    let (mut volume, mut tries) = (volume, 0);
    while let Err(error) = volume.staged().drain().await {
        if volume.has_begun_again() {
            volume = subject.what.attach(served).await.map_err(|error| error.message)?;
            continue;
        }
        // The destager reads once more what was misread, when it comes back to it.
        tries += 1;
        if tries > TRIES_MAX || error.kind() != Kind::Damaged {
            return Err(format!("drain of the {}: {error}", subject.what.name()));
        }
        heard::note("drained in the end");
        served.env.sleep(Duration::from_secs(10)).await;
    }
    Ok(volume)
}

/// Compares a volume with what its clients wrote.
async fn compare(subject: &Subject, volume: &Attached) -> Result<(), String> {
    let name = subject.what.name();
    for (client, region) in subject.regions.iter().enumerate() {
        let found = match volume.read(client).await {
            // The read may share a request that was sent while the store was silent.
            Err(error) if error.kind().is_retryable() => volume.read(client).await,
            found => found,
        };
        let found = found.map_err(|error| format!("read: {error}"))?;
        if found != region.lock().expected() {
            return Err(format!("client {client}: the {name} is not what was written"));
        }
    }
    Ok(())
}

/// Removes the map in part of the lives, for good or into the trash and back.
async fn take_away(served: &Served, map: &Subject, dice: &mut Random) -> Result<(), String> {
    let (service, name) = (&served.service, map.what.name());
    let told = |error: ApiError| format!("the map is not taken away: {error}");
    match dice.below(3) {
        0 => {
            let serial = {
                let volume = map.what.attach(served).await.map_err(|error| error.message)?;
                volume.staged().backlog().serial + 1
            };
            let nothing = Operation { start: 0, bytes: vec![0; map.what.region_bytes()] };
            for region in &map.regions {
                let mut region = region.lock();
                region.submit(&nothing);
                region.order(serial);
            }
            service.remove_volume(name, false, true).await.map_err(told)?;
            map.regions.iter().for_each(|region| region.lock().take_as_truth(&nothing.bytes));
            heard::note("map: removed");
            match service.volume(name).await {
                Err(error) if error.kind == Kind::NotFound => Ok(()),
                other => Err(format!("the map was removed: {other:?}")),
            }
        }
        1 => {
            service.remove_volume(name, false, false).await.map_err(told)?;
            service.restore_volume(name, Restore::default()).await.map_err(told)?;
            heard::note("map: restored");
            let volume = map.what.attach(served).await.map_err(|error| error.message)?;
            compare(map, &volume).await
        }
        _ => Ok(()),
    }
}
