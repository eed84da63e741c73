//! The stage of a run with several hosts: the node that serves on each, and the actors around it.

use crate::boot::Served;
use crate::end::Begun;
use crate::scenario::Outcome;
use parking_lot::Mutex;
use rekindle_base::random::Random;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Host, Stop, World};
use rekindle_staging::Ack;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest wait of any task: no fault lasts.
pub const PATIENCE: Duration = Duration::from_secs(3600);
/// Pause before another look.
const PAUSE: Duration = Duration::from_millis(50);

/// State that all lives share, on all hosts.
pub struct Stage<const HOSTS: usize = 2> {
    pub serving: Mutex<[Option<Served>; HOSTS]>,
    pub begun: Begun,
    is_ending: AtomicBool,
    /// Actors of each host that have not ended.
    busy: [AtomicU64; HOSTS],
    failure: Mutex<Option<String>>,
}

impl<const HOSTS: usize> Default for Stage<HOSTS> {
    fn default() -> Self {
        Self {
            serving: Mutex::new(std::array::from_fn(|_| None)),
            begun: Begun::default(),
            is_ending: AtomicBool::default(),
            busy: std::array::from_fn(|_| AtomicU64::default()),
            failure: Mutex::default(),
        }
    }
}

impl<const HOSTS: usize> Stage<HOSTS> {
    /// Returns the first failure of an actor.
    pub fn check(&self) -> Result<(), String> {
        self.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Whether the actors shall come to their ends.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Spawns an actor on a host.
    pub fn act(
        self: &Arc<Self>,
        env: &Env,
        which: usize,
        name: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.busy[which].fetch_add(1, Ordering::Relaxed);
        let stage = self.clone();
        env.spawn(name, async move {
            if let Err(why) = work.await {
                stage.failure.lock().get_or_insert(format!("host {which}, {name}: {why}"));
            }
            stage.busy[which].fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Runs the world until clients have begun so many more requests.
    pub fn work(&self, world: &World, requests: u64) -> Result<(), String> {
        let target = self.begun.load(Ordering::Relaxed) + requests;
        let until = world.elapsed() + PATIENCE;
        while self.begun.load(Ordering::Relaxed) < target {
            world.run_until(Stop::Step(20));
            self.check()?;
            if world.elapsed() > until {
                return Err(format!("no client does anything: {:?}", self.seen()));
            }
        }
        Ok(())
    }

    fn seen(&self) -> Vec<String> {
        let seen = |node: &Served| {
            format!("{:?}, {:?}", node.volumes.transitional(), node.staging.view(9))
        };
        self.serving.lock().iter().flatten().map(seen).collect()
    }

    /// Ends the life on a host, by a crash or a power cut. A power cut takes what only memory has,
    /// and no loss is excused: with `ack=memory` there is none.
    pub fn crash(
        &self,
        (host, which): (&Host, usize),
        ack: Ack,
        dice: &mut Random,
        outcome: &mut Outcome,
    ) {
        let served = self.serving.lock()[which].take();
        let owes = served.is_some_and(|served| {
            served.staging.volumes().iter().any(|staged| staged.backlog().changes > 0)
        });
        outcome.amid_work += u64::from(owes);
        if ack == Ack::Flash && dice.below(2) == 0 {
            host.cut_power();
            outcome.power_cuts += 1;
        } else {
            host.crash_process();
            outcome.crashes += 1;
        }
        self.busy[which].store(0, Ordering::Relaxed);
    }

    /// Brings the actors to their ends: heals the stores once these hosts serve, and waits until no
    /// actor is busy. Returns the nodes that serve.
    pub async fn end(&self, env: &Env, hosts: &[usize]) -> Result<[Option<Served>; HOSTS], String> {
        self.is_ending.store(true, Ordering::Relaxed);
        let lives = loop {
            self.check()?;
            let serving = self.serving.lock().clone();
            if hosts.iter().all(|&which| serving[which].is_some()) {
                break serving;
            }
            env.sleep(PAUSE).await;
        };
        for served in lives.iter().flatten() {
            served.faults.set(Plan::default());
            served.lists.set(Plan::default());
        }
        while self.busy.iter().any(|busy| busy.load(Ordering::Relaxed) > 0) {
            self.check()?;
            env.sleep(PAUSE).await;
        }
        self.check().map(|()| lives)
    }
}
