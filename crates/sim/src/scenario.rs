//! One run: clients work, the node dies in the midst of it, comes back, and is judged; several times over. Beside the
//! clients a sweep goes on, flash is small, and what was sent to the store may land after its sender's death.

use crate::boot::{Node, Setup};
use crate::clients::{REGION_BYTES, Table};
use crate::dice::{Dice, join};
use crate::end::{self, Begun, End};
use crate::heard::{self, Counts};
use crate::region::{Region, SharedRegion, judge};
use crate::remote::{self, Pace};
use base::units::{KIB, MIB};
use block::Device;
use datastore::Store;
use datastore::backend::mem::Mem;
use datastore::layer::{
    self,
    fault::{self, Plan},
};
use env::sim::{Faults, World};
use env::{BoxFuture, Env};
use log::Log;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use volume::{Ack, Policy};

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Ends of the process and of the power, wherever they fell.
    pub crashes: u64,
    pub power_cuts: u64,
    /// Of both, those that met acknowledged changes which the datastore had not.
    pub amid_work: u64,
    pub acknowledged: u64,
    /// What else happened.
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

/// A run, over all lives.
struct Run {
    world: World,
    setup: Setup,
    store: Store,
    regions: Vec<SharedRegion>,
}

/// Nobody may wait for longer than this: no fault lasts.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is left of a life to look at when it is cut off.
type Eye = Arc<Mutex<Option<(Device, Log)>>>;

fn setup(dice: &mut Dice, clients: u64) -> Setup {
    let (policy, ack) = match dice.below(16) {
        0 => (Policy::Uncached, Ack::Flash),
        1 => (Policy::Through, Ack::Flash),
        2..=5 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    // The smallest segments that take the largest change; with the least of flash every few writes fill it.
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
    }
}

fn store_faults(dice: &mut Dice) -> Plan {
    let plan = ["", "latency=2ms", "latency=1ms,fail=10%", "latency=1ms,fail=5%,lie=10%"]
        [dice.below(4) as usize];
    if plan.is_empty() { Plan::default() } else { plan.parse().expect("a plan of ours") }
}

/// How far the store is away, and how late some of it lands.
fn pace(dice: &mut Dice) -> Pace {
    let slow = Duration::from_millis([5, 50, 500][dice.below(3) as usize]);
    let usual = Duration::from_micros([50, 500, 3000][dice.below(3) as usize]);
    Pace { usual, slow_percent: [0, 10, 30][dice.below(3) as usize], slow }
}

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let (outcome, counts) = heard::listen(|| lives(seed));
    outcome.map(|outcome| Outcome { counts, ..outcome })
}

fn lives(seed: u64) -> Result<Outcome, String> {
    let mut dice = Dice::new(seed);
    let clients = 1 + dice.below(4);
    let world = World::new(seed, Faults::none());
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let (setup, pace) = (setup(&mut dice, clients), pace(&mut dice));
    let run = Run {
        setup,
        store: remote::wrap(world.host("store").env(), Mem::store(), pace),
        world,
        regions: (0..clients)
            .map(|_| Arc::new(Mutex::new(Region::new(REGION_BYTES as usize))))
            .collect(),
    };
    let mut outcome = Outcome::default();
    let lives = 2 + dice.below(3);
    for life in 1..=lives {
        let told = |why| format!("seed {seed}, life {life}, {:?}: {why}", run.setup);
        let requests = clients * Table::REQUESTS;
        let drawn = End::draw(&mut dice, requests);
        let end = if life == lives { End::Work } else { drawn };
        let (begun, eye) = (Begun::default(), Eye::default());
        let table = Table::new(run.regions.clone(), begun.clone());
        let plan = store_faults(&mut dice);
        let work = run.life(life, table, (dice.next(), plan), eye.clone());
        let judged = end::run(&run.world, end, &begun, work);
        let is_amid = run.is_amid_work(&eye, judged.is_none());
        judged.unwrap_or(Ok(())).map_err(told)?;
        if life == lives {
            break;
        }
        outcome.amid_work += u64::from(is_amid);
        let cuts_power = dice.below(2) == 0;
        if cuts_power {
            run.world.cut_power();
            outcome.power_cuts += 1;
        } else {
            run.world.crash_process();
            outcome.crashes += 1;
        }
        run.judge_after_crash(life, cuts_power).map_err(told)?;
    }
    outcome.acknowledged = run.regions.iter().map(|region| region.lock().acknowledged).sum();
    outcome.trace_hash = run.world.trace_hash();
    Ok(outcome)
}

impl Run {
    /// Whether a life that is cut off has acknowledged what the datastore does not have.
    fn is_amid_work(&self, eye: &Eye, cut_off: bool) -> bool {
        let Some((device, _log)) = eye.lock().take().filter(|_| cut_off) else { return false };
        let checkpoint = device.backlog().checkpoint;
        self.regions.iter().any(|region| region.lock().acknowledged_serial > checkpoint)
    }

    /// Boots a node only to look, then lets it crash again: recovery itself must survive that.
    fn judge_after_crash(&self, life: u64, cuts_power: bool) -> Result<(), String> {
        let (env, setup) = (self.world.env(), self.setup);
        let falls_back = cuts_power && setup.policy == Policy::Back && setup.ack == Ack::Memory;
        let judged = self.world.block_on(async {
            let node = Node::boot(env, self.store.clone(), &setup, life * 100 + 50).await;
            node.create(&setup).await;
            let device = node.device().await;
            let mut found = Vec::new();
            for index in 0..self.regions.len() {
                found.push(read_region(&device, index).await?);
            }
            if judge(&self.regions, &found, falls_back)? {
                heard::note("fell back with ack=memory");
            }
            Ok(())
        });
        self.world.crash_process();
        judged
    }

    /// One life of the node: clients work on their regions, then all is drained and compared once more.
    fn life(
        &self,
        life: u64,
        table: Arc<Table>,
        (dice, plan): (u64, Plan),
        eye: Eye,
    ) -> impl Future<Output = Result<(), String>> + Send + 'static {
        let (env, setup) = (self.world.env(), self.setup);
        let (store, _, faults) = layer::usual(&env, self.store.clone(), Plan::default());
        let regions = self.regions.clone();
        async move {
            let node = Arc::new(Node::boot(env.clone(), store, &setup, life * 100).await);
            node.create(&setup).await;
            let device = node.device().await;
            *eye.lock() = Some((device.clone(), node.log.clone()));
            faults.set(plan);
            let work = env.timeout(PATIENCE, work(&env, &node, &device, &table, dice)).await;
            let stuck = |_elapsed| {
                let (view, log) = (device.handle().staged().view(), node.log.view());
                let destager = node.staging.view(9);
                format!(
                    "somebody waits for ever: {view:?}, {destager:?}, {log:?}, {:?}",
                    node.log.usage()
                )
            };
            work.map_err(stuck)??;
            faults.set(Plan::default());
            finish(&device, &faults, &regions).await
        }
    }
}

/// Everybody who acts in a life.
async fn work(
    env: &Env,
    node: &Arc<Node>,
    device: &Device,
    table: &Arc<Table>,
    dice: u64,
) -> Result<(), String> {
    let mut actors: Vec<BoxFuture<'static, Result<(), String>>> = Vec::new();
    for client in 0..table.clients() {
        let dice = Dice::plain(dice ^ client as u64);
        actors.push(Box::pin(table.clone().client(client, device.clone(), node.log.clone(), dice)));
    }
    actors.push(Box::pin(table.clone().sweeps(env.clone(), node.clone(), Dice::new(dice))));
    join(actors).await
}

/// The store is well: all is drained, and is what was written.
async fn finish(
    device: &Device,
    faults: &fault::Handle,
    regions: &[SharedRegion],
) -> Result<(), String> {
    faults.set(Plan::default());
    device.handle().staged().drain().await.map_err(|error| format!("drain: {error}"))?;
    for (client, region) in regions.iter().enumerate() {
        if read_region(device, client).await? != region.lock().expected() {
            return Err(format!("client {client}: the drained volume is not what was written"));
        }
    }
    Ok(())
}

async fn read_region(device: &Device, client: usize) -> Result<Vec<u8>, String> {
    let mut found = vec![0; REGION_BYTES as usize];
    let read = device.read(client as u64 * REGION_BYTES, &mut found).await;
    read.map(|()| found).map_err(|error| format!("read: {error}"))
}
