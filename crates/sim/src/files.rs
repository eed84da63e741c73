//! The lives of a file volume on one node: a client calls as a kernel would, and syncs at times. A
//! sweep, drains, the collector and users go on beside it, the store fails, and the process dies or
//! the power goes at any step. [`Known`] judges: a killed process keeps all that it has answered, a
//! power cut all that was synced, and what a life shows is always a state that was. The client
//! takes snapshots, and goes back to them: each shows what was there when it was taken
//! ([`Frozen`]).

use crate::boot::{How, Served, Setup, found_store, kind_of};
use crate::end::{self, Begun, End};
use crate::frozen::Frozen;
use crate::heard;
use crate::join::join;
use crate::known::Known;
use crate::model::{Model, Unread, carry_out};
use crate::remote::{self, Pace};
use crate::scenario::Outcome;
use crate::trouble;
use parking_lot::Mutex;
use rekindle_base::Kind;
use rekindle_base::random::Random;
use rekindle_base::units::{KIB, MIB};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::World;
use rekindle_env::{BoxFuture, Env};
use rekindle_file::{Error, Files};
use rekindle_front::http::Api;
use rekindle_front::http::api::StartVerify;
use rekindle_front::http::api::kept::Keep;
use rekindle_staging::{Ack, Policy};
use rekindle_volume::collector::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod past;

const NAME: &str = "fs";
/// Calls of a life.
const CALLS: u64 = 60;
/// Longest write of a client, bytes: with large segments, and with small ones.
const WRITE_MAX: u64 = 700_000;
const SMALL_WRITE_MAX: u64 = 100_000;
/// Longest wait of any task: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Pause before another try.
const PAUSE: Duration = Duration::from_millis(50);
/// Faults of the store, each for a part of the lives.
const STORE: [&str; 9] = [
    "",
    "",
    "latency=2ms",
    "latency=1ms,fail=10%",
    "latency=1ms,fail=5%,lie=10%",
    "latency=1ms,absent=packs/:2s@20ms",
    "latency=1ms,late=10%,lie=5%",
    "latency=1ms,twice=20%,fail=5%",
    "latency=1ms,silent=3%",
];

/// State that all lives share.
struct Run {
    setup: Setup,
    store: Store,
    known: Mutex<Known>,
    frozen: Mutex<Frozen>,
    /// Whether the power was cut since a life has last looked at the volume: a life that ends
    /// before it has looked leaves the question to the next one.
    power_was_cut: AtomicBool,
}

/// One life, for its actors.
#[derive(Clone)]
struct Life {
    run: Arc<Run>,
    served: Served,
    begun: Begun,
    /// Whether the store may carry a write out late, or once more.
    repeats_writes: bool,
    /// Whether the client has more to do.
    is_busy: Arc<AtomicBool>,
}

fn setup(dice: &mut Random) -> Setup {
    let (policy, ack) = match dice.below(12) {
        0 => (Policy::Uncached, Ack::Flash),
        1 => (Policy::Through, Ack::Flash),
        2..=5 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    let segment_bytes = [MIB, 8 * MIB][dice.below(2) as usize];
    Setup {
        kind: Some(rekindle_file::KIND),
        policy,
        ack,
        size: 64 * MIB,
        cache_bytes: [64 * KIB, 4 * MIB][dice.below(2) as usize],
        segment_bytes,
        flash_bytes: segment_bytes * [4, 8][dice.below(2) as usize],
        warm_slots: [3, 6][dice.below(2) as usize],
        destage_age: Duration::from_millis([5, 50, 2000][dice.below(3) as usize]),
        batch_bytes: [64 * KIB, MIB][dice.below(2) as usize],
        index_at_once: [0, 8, usize::MAX][dice.below(3) as usize],
        collector: Settings {
            idle: Some(Duration::from_millis(1 + dice.below(300))),
            interval: Duration::from_millis(20),
            batch: 1,
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
    let world = World::new(seed, trouble::tears(&mut dice));
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let (setup, pace) = (setup(&mut dice), Pace::draw(&mut dice));
    let run = Arc::new(Run {
        setup,
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        known: Mutex::default(),
        frozen: Mutex::default(),
        power_was_cut: AtomicBool::default(),
    });
    world.block_on(found_store(&world.env(), &run.store))?;
    let mut outcome = Outcome::default();
    let lives = 3 + dice.below(3);
    for life in 1..=lives {
        let (drawn, begun) = (End::draw(&mut dice, CALLS), Begun::default());
        let end = if life == lives || dice.below(4) == 0 { End::Work } else { drawn };
        let faults = STORE[dice.below(STORE.len() as u64) as usize];
        let said = format!("seed {seed}, life {life}, {:?}, {faults}", run.setup);
        let work = live(
            (world.env(), run.clone(), begun.clone()),
            dice.next_u64(),
            faults.parse().expect("ours"),
        );
        let ended = end::run(&world, end, &begun, work).transpose();
        ended.map_err(|why| format!("{said}: {why}"))?;
        if life == lives {
            break;
        }
        outcome.amid_work += u64::from(run.known.lock().owes());
        if dice.below(2) == 0 {
            world.cut_power();
            run.power_was_cut.store(true, Ordering::Relaxed);
            outcome.power_cuts += 1;
        } else {
            world.crash_process();
            outcome.crashes += 1;
        }
    }
    outcome.acknowledged = run.known.lock().answered;
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

async fn live(
    (env, run, begun): (Env, Arc<Run>, Begun),
    dice: u64,
    faults: Plan,
) -> Result<(), String> {
    let mut dice = Random::new(dice);
    let served = Served::start(&env, run.store.clone(), &run.setup, How::default()).await?;
    let made = served.create(NAME, &run.setup).await;
    made.map_err(|error| format!("the volume cannot be made: {error}"))?;
    let (is_busy, repeats_writes) =
        (Arc::new(AtomicBool::new(true)), faults.twice_percent + faults.late_percent > 0.0);
    let life = Life { run, served, begun, repeats_writes, is_busy };
    let files = life.attach().await?;
    // What waits for the store is in the process's own memory.
    let may_be_lost =
        life.run.power_was_cut.load(Ordering::Relaxed) || life.run.setup.policy != Policy::Back;
    // What a start shows is durable.
    if life.judge(&files, (may_be_lost, true)).await? {
        heard::note("files: what was not synced is lost");
    }
    life.run.power_was_cut.store(false, Ordering::Relaxed);
    life.look_back(&files).await?;
    life.served.faults.set(faults);
    let actors: Vec<BoxFuture<'static, Result<(), String>>> = vec![
        Box::pin(life.clone().client(files, dice.fork())),
        Box::pin(life.clone().sweeps(dice.fork())),
        Box::pin(life.clone().people(dice.fork())),
    ];
    let ended = env.timeout(PATIENCE, join(actors)).await;
    ended.map_err(|_elapsed| "a call waits for ever".to_owned())??;
    life.served.faults.set(Plan::default());
    env.timeout(PATIENCE, life.finish(dice)).await.map_err(|_| "it waits for ever".to_owned())?
}

impl Life {
    async fn pause(&self) {
        self.served.env.sleep(PAUSE).await;
    }

    /// Attaches the volume; tries again while the store fails, or a commit of an earlier life
    /// begins it anew.
    async fn attach(&self) -> Result<Files, String> {
        loop {
            match Files::attach(&self.served.volumes, NAME).await {
                Ok(files) => {
                    self.served.volumes.client_is_back(NAME);
                    return Ok(files);
                }
                Err(error) if error.kind().is_retryable() => self.pause().await,
                Err(error) => return Err(format!("attach: {error}")),
            }
        }
    }

    /// Reads the volume whole; tries again while the store fails.
    async fn read(&self, files: &Files) -> Result<Model, String> {
        let mut files = files.clone();
        loop {
            match Model::read(&files).await {
                Ok(model) => return Ok(model),
                Err(Unread::Failed(Error::Volume(error))) if error.kind().is_retryable() => {
                    self.pause().await;
                    files = self.attach().await?;
                }
                Err(Unread::Failed(error)) => return Err(format!("read: {error}")),
                Err(Unread::Wrong(why)) => return Err(why),
            }
        }
    }

    async fn judge(&self, files: &Files, how: (bool, bool)) -> Result<bool, String> {
        let found = self.read(files).await?;
        self.run.known.lock().judge(found, how)
    }

    async fn compare(&self, files: &Files) -> Result<(), String> {
        let found = self.read(files).await?;
        self.run.known.lock().compare(&found)
    }

    /// Calls and syncs, and leaves at times, so that the volume goes out of service.
    async fn client(self, mut files: Files, mut dice: Random) -> Result<(), String> {
        for _ in 0..CALLS {
            self.begun.fetch_add(1, Ordering::Relaxed);
            match dice.below(30) {
                24 | 25 => files = self.take_snapshot(files).await?,
                26 => self.look_back(&files).await?,
                27 => self.remove_snapshot(&mut dice).await?,
                28 => self.clone_snapshot(&mut dice).await?,
                29 => files = self.go_back(files, &mut dice).await?,
                0 => self.compare(&files).await?,
                1 => {
                    drop(files);
                    self.served.env.sleep(Duration::from_millis(dice.below(600))).await;
                    files = self.attach().await?;
                    self.compare(&files).await?;
                }
                2 => self.drain(&files).await?,
                3..6 => {
                    let number = self.run.known.lock().number();
                    match files.sync().await {
                        Ok(()) => self.run.known.lock().synced(number)?,
                        Err(error) => files = self.after(error).await?,
                    }
                }
                _ => {
                    let is_small = self.run.setup.segment_bytes < 8 * MIB;
                    let longest = if is_small { SMALL_WRITE_MAX } else { WRITE_MAX };
                    let op = self.run.known.lock().model().draw(&mut dice, longest);
                    self.run.known.lock().begin(op.clone());
                    match carry_out(&files, &op).await {
                        Ok(made) => self.run.known.lock().end(Ok(made))?,
                        Err(Error::Posix(errno)) => self.run.known.lock().end(Err(errno))?,
                        Err(error) => files = self.after(error).await?,
                    }
                }
            }
            if dice.below(8) == 0 {
                self.served.env.sleep(Duration::from_millis(dice.below(2500))).await;
            }
        }
        self.is_busy.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on after an error that does not tell the fate of a call: the volume tells it.
    async fn after(&self, error: Error) -> Result<Files, String> {
        match &error {
            Error::Volume(error) if error.kind().is_retryable() => {}
            _ => return Err(format!("a client is told: {error}")),
        }
        let files = self.attach().await?;
        self.judge(&files, (false, false)).await?;
        Ok(files)
    }

    async fn drain(&self, files: &Files) -> Result<(), String> {
        match files.handle().staged().drain().await {
            Ok(_) => self.compare(files).await,
            Err(error) if error.kind().is_retryable() => Ok(()),
            Err(error) => Err(format!("drain: {error}")),
        }
    }

    async fn sweeps(self, mut dice: Random) -> Result<(), String> {
        while self.is_busy.load(Ordering::Relaxed) {
            match self.served.sweep().await {
                Ok(_) => {}
                Err(problem) if kind_of(&problem).is_retryable() => {}
                Err(problem) => return Err(format!("sweep: {}", problem.message)),
            }
            self.served.env.sleep(Duration::from_millis(1 + dice.below(400))).await;
        }
        Ok(())
    }

    /// Gives commands, as users do.
    async fn people(self, mut dice: Random) -> Result<(), String> {
        let service = &self.served.service;
        while self.is_busy.load(Ordering::Relaxed) {
            self.served.env.sleep(Duration::from_millis(dice.below(1500))).await;
            let told = match dice.below(5) {
                0 => service.pin_volume(NAME, dice.below(2) == 0).await.err(),
                1 => service.drain_volume(NAME).await.err(),
                2 => service.volumes().await.err(),
                3 => service.history(NAME).await.err(),
                _ => service.versions(NAME).await.err(),
            };
            if let Some(error) = told.filter(|error| !error.kind.is_retryable()) {
                return Err(format!("a person is told: {error}"));
            }
        }
        Ok(())
    }

    /// Drains the volume, whose store is well, compares it, has it verified, and stops the node.
    async fn finish(&self, mut dice: Random) -> Result<(), String> {
        let files = self.attach().await?;
        while let Err(error) = files.handle().staged().drain().await {
            if !error.kind().is_retryable() {
                return Err(format!("drain: {error}"));
            }
            self.pause().await;
        }
        self.compare(&files).await?;
        self.look_back(&files).await?;
        heard::note("files: drained");
        let job = self.served.service.start_verify(StartVerify::default()).await;
        let job = job.map_err(|error| format!("verify: {error}"))?;
        let verified = self.served.end_of(job).await.map_err(|problem| problem.message)?;
        if verified["damaged"] != 0 {
            return Err(format!("all is well, and verify says otherwise: {verified}"));
        }
        if dice.below(2) == 0 {
            return Ok(());
        }
        drop(files);
        // A volume that was stopped in good order owes nothing.
        let number = self.run.known.lock().number();
        self.served.stop(dice.below(2) == 0).await?;
        self.run.known.lock().synced(number)
    }
}

/// Whether an error may be told while faults last.
pub fn is_passing(error: &Error) -> bool {
    match error {
        Error::Posix(_) => false,
        Error::Volume(error) => {
            error.kind().is_retryable() || matches!(error.kind(), Kind::Fenced | Kind::Full)
        }
    }
}
