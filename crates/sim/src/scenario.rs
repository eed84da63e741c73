//! One run: clients work, the node dies at a random step, comes back, and is judged; several times over.

use crate::boot::{Node, Setup};
use crate::dice::{Dice, join};
use crate::region::{Operation, Region, Seen, SharedRegion, check_prefix};
use base::units::{KIB, MIB};
use block::Device;
use datastore::backend::mem::Mem;
use datastore::layer::{
    self,
    fault::{self, Plan},
};
use env::sim::{Faults, Stop, World};
use env::{BoxFuture, Env};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use volume::{Ack, Policy, Written};

/// Bytes of a client's region: several blocks, so that clients share none but changes share some.
const REGION_BYTES: u64 = 160 * KIB;

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    pub crashes: u64,
    pub power_cuts: u64,
    pub acknowledged: u64,
    pub trace_hash: u64,
}

fn setup(dice: &mut Dice, clients: u64) -> Setup {
    let (policy, ack) = match dice.below(8) {
        0 => (Policy::Uncached, Ack::Flash),
        1 => (Policy::Through, Ack::Flash),
        2..=3 => (Policy::Back, Ack::Memory),
        _ => (Policy::Back, Ack::Flash),
    };
    Setup {
        policy,
        ack,
        size: clients * REGION_BYTES,
        flash_bytes: 32 * MIB,
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

/// Runs one seed. `Err` says what promise was broken.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let mut dice = Dice::new(seed);
    let clients = 1 + dice.below(4);
    let setup = setup(&mut dice, clients);
    let world = World::new(seed, Faults::none());
    world.set_verbose(std::env::var_os("REKINDLE_VERBOSE").is_some());
    let store = Mem::store();
    let regions: Vec<SharedRegion> =
        (0..clients).map(|_| Arc::new(Mutex::new(Region::new(REGION_BYTES as usize)))).collect();
    let mut outcome = Outcome::default();
    let lives = 2 + dice.below(3);
    for life in 1..=lives {
        let env = world.env();
        let (faulty, _, faults) = layer::usual(&env, store.clone(), Plan::default());
        let plan = store_faults(&mut dice);
        let order = Arc::new(AtomicU64::new(0));
        let work = life_of(
            env.clone(),
            faulty,
            life,
            &setup,
            &regions,
            &order,
            dice.next(),
            (faults, plan),
        );
        let stop = match dice.below(3) {
            0 => Stop::DiskOperation(1 + dice.below(120)),
            _ => Stop::Step(1 + dice.below(1500)),
        };
        let stop = if life == lives { Stop::Never } else { stop };
        let judged = world.block_on_until(stop, work);
        if let Some(result) = judged {
            result.map_err(|why| format!("seed {seed}, life {life}, {setup:?}: {why}"))?;
        }
        if life < lives {
            if dice.below(2) == 0 {
                world.cut_power();
                outcome.power_cuts += 1;
            } else {
                world.crash_process();
                outcome.crashes += 1;
            }
            let fall_back = setup.policy == Policy::Back && setup.ack == Ack::Memory;
            judge_after_crash(&world, &setup, &regions, &store, life, fall_back)
                .map_err(|why| format!("seed {seed}, after life {life}, {setup:?}: {why}"))?;
        }
    }
    outcome.acknowledged = regions.iter().map(|region| region.lock().acknowledged).sum();
    outcome.trace_hash = world.trace_hash();
    Ok(outcome)
}

/// Boots a node only to look, then lets it crash again: recovery itself must survive that.
fn judge_after_crash(
    world: &World,
    setup: &Setup,
    regions: &[SharedRegion],
    store: &datastore::Store,
    life: u64,
    fall_back: bool,
) -> Result<(), String> {
    let env = world.env();
    let judged = world.block_on(async {
        let node = Node::boot(env, store.clone(), setup, life * 100 + 50).await;
        node.create(setup).await;
        let device = node.device().await;
        let mut seen = Vec::new();
        for (index, region) in regions.iter().enumerate() {
            let mut found = vec![0; REGION_BYTES as usize];
            device
                .read(index as u64 * REGION_BYTES, &mut found)
                .await
                .map_err(|error| error.to_string())?;
            let what = region
                .lock()
                .judge(&found, fall_back)
                .map_err(|why| format!("client {index}: {why}"))?;
            seen.push(what);
        }
        if !seen.contains(&Seen::Older) {
            check_prefix(&seen)?;
        }
        Ok(())
    });
    world.crash_process();
    judged
}

/// One life of the node: clients work on their regions, then all is drained and compared once more.
#[expect(clippy::too_many_arguments, reason = "a scenario is told in one place")]
async fn life_of(
    env: Env,
    store: datastore::Store,
    life: u64,
    setup: &Setup,
    regions: &[SharedRegion],
    order: &Arc<AtomicU64>,
    dice: u64,
    (faults, plan): (fault::Handle, Plan),
) -> Result<(), String> {
    let node = Node::boot(env.clone(), store, setup, life * 100).await;
    node.create(setup).await;
    let device = node.device().await;
    faults.set(plan);
    let clients = regions.iter().enumerate().map(|(index, region)| {
        let mut dice = Dice::plain(dice ^ index as u64);
        let (device, region, order) = (device.clone(), region.clone(), order.clone());
        Box::pin(async move {
            for _ in 0..12 {
                client_step(&device, &region, index as u64, &mut dice, &order).await?;
            }
            Ok(())
        }) as BoxFuture<'static, Result<(), String>>
    });
    join(clients.collect()).await?;
    faults.set(Plan::default());
    device.handle().staged().drain().await.map_err(|error| format!("drain: {error}"))?;
    for (index, region) in regions.iter().enumerate() {
        let mut found = vec![0; REGION_BYTES as usize];
        device
            .read(index as u64 * REGION_BYTES, &mut found)
            .await
            .map_err(|error| format!("read: {error}"))?;
        if found != region.lock().expected() {
            return Err(format!("client {index}: the drained volume is not what was written"));
        }
    }
    Ok(())
}

async fn client_step(
    device: &Device,
    region: &SharedRegion,
    index: u64,
    dice: &mut Dice,
    order: &AtomicU64,
) -> Result<(), String> {
    let start = dice.below(REGION_BYTES / 512) * 512;
    let longest = if dice.below(10) == 0 { 150 * KIB } else { 12 * KIB };
    let length = (512 * (1 + dice.below(longest / 512))).min(REGION_BYTES - start);
    let at = index * REGION_BYTES + start;
    match dice.below(10) {
        0 => {
            device.flush().await.map_err(|error| format!("flush: {error}"))?;
            region.lock().flushed();
        }
        1 => {
            let mut found = vec![0; length as usize];
            device.read(at, &mut found).await.map_err(|error| format!("read: {error}"))?;
            let region = region.lock();
            let expected = &region.expected()[start as usize..(start + length) as usize];
            if found != expected {
                return Err(format!("client {index} does not read at {start} what it wrote"));
            }
        }
        2..=3 => {
            region
                .lock()
                .submit(Operation { start: start as usize, bytes: vec![0; length as usize] });
            let written = device.clear(at, length, dice.below(2) == 0, dice.below(4) == 0);
            finish(device, region, order, written.map_err(|error| format!("clear: {error}"))?)
                .await?;
        }
        _ => {
            let fill = dice.next();
            let bytes: Vec<u8> =
                (0..length).map(|n| (fill.wrapping_add(n * n) >> 3) as u8 | 1).collect();
            region.lock().submit(Operation { start: start as usize, bytes: bytes.clone() });
            let written = device.write(at, &bytes, dice.below(4) == 0);
            finish(device, region, order, written.map_err(|error| format!("write: {error}"))?)
                .await?;
        }
    }
    Ok(())
}

async fn finish(
    device: &Device,
    region: &SharedRegion,
    order: &AtomicU64,
    written: Written,
) -> Result<(), String> {
    match written {
        Written::Done => {}
        Written::Staged(ticket) => {
            // The serial was given in this very poll, so the order of submission is known.
            region.lock().order(order.fetch_add(1, Ordering::Relaxed));
            device.sync(ticket).await.map_err(|error| format!("sync: {error}"))?;
        }
        Written::Later(later) => {
            later.await.map_err(|error| format!("a delayed write: {error}"))?
        }
    }
    region.lock().acknowledge();
    Ok(())
}
