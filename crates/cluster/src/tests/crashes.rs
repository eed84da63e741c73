//! Kills and power cuts of both ends: the copies alone are a log with everything that was
//! acknowledged with copies.

use super::*;
use crate::adopt;
use rekindle_base::SegmentId;
use rekindle_base::random::Random;
use rekindle_env::sim::Stop;
use std::collections::BTreeMap;

/// What the owner has promised and given up.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    life: u64,
    acked: u64,
    released: u64,
    acks: u64,
}

/// One life of the owner: appends changes, acknowledges some of them with copies, releases some.
async fn live(env: Env, peer: Peer, told: Arc<Mutex<Told>>, seed: u64) {
    let mut random = Random::new(seed);
    let life = told.lock().life;
    let replicas: Vec<Arc<dyn Replica>> = vec![Arc::new(peer)];
    let log = open_log(&env, Path::new("/flash"), life, replicas).await.expect("its flash is well");
    let recovered = log.unfinished_volumes().await.expect("nothing is lost");
    let highest = recovered.first().map_or(0, |(_, serial)| serial.0);
    assert!(highest >= told.lock().acked || told.lock().released >= told.lock().acked);
    let mut serial = highest.max(told.lock().released);
    loop {
        serial += 1;
        let length = 100 + random.below(4000) as usize;
        let position = append(&log, serial, length).await;
        let open = serial - told.lock().released;
        match random.below(6) {
            0 => {
                log.reach(COPIES, position).await.expect("the log is well");
                let mut told = told.lock();
                (told.acked, told.acks) = (serial, told.acks + 1);
            }
            1 => log.reach(Media::FLASH, position).await.expect("the log is well"),
            2 => env.sleep(SHORT / 20).await,
            _ if open > 25 || random.below(8) == 0 => {
                let released = serial - random.below(open.min(20));
                told.lock().released = released;
                log.release(VOLUME, Serial(released));
            }
            _ => {}
        }
    }
}

/// Starts a log over a copy of the copies, and checks that it has what was acknowledged.
fn check(pair: &Pair, told: Told, why: &str) {
    if told.acked == 0 {
        return;
    }
    let elsewhere = World::new(pair.world.seed(), Faults::none());
    let folder = held(OWNER);
    pair.holder.copy_folder(&folder, &elsewhere, &folder).expect("there are copies");
    let env = elsewhere.env();
    let serials = elsewhere.block_on(async {
        adopt(&env, &folder, OWNER).await.expect("the copies can be taken over");
        assert_eq!(read(&env, &folder.join("node.json")).await.as_deref(), Some(HOME));
        let life = told.life + 1;
        let log = open_log(&env, &folder.join("flash"), life, Vec::new()).await;
        recovered(&log.expect("the copies are a log")).await
    });
    let wanted = told.released + 1..=told.acked;
    let lacks = wanted.clone().find(|serial| !serials.contains(serial));
    assert_eq!(lacks, None, "of {wanted:?} {why}, seed {}: {serials:?}", pair.world.seed());
}

fn run(seed: u64) -> Told {
    let mut random = Random::new(seed);
    let pair = Pair::new(seed);
    let told = Arc::new(Mutex::new(Told::default()));
    let start = |random: &mut Random| {
        told.lock().life += 1;
        let (env, peer) = (pair.owner.env(), pair.peer(told.lock().life));
        env.spawn("owner", live(env.clone(), peer, Arc::clone(&told), random.next_u64()));
    };
    start(&mut random);
    for round in 0..20 {
        pair.world.run_until(match random.coin() {
            true => Stop::Step(1 + random.below(3000)),
            false => Stop::Time(Duration::from_millis(random.below(400))),
        });
        check(&pair, *told.lock(), &format!("in round {round}"));
        let happens = random.below(8);
        let (power, both) = (random.coin(), random.coin());
        pair.world.heal();
        pair.world.change_faults(|faults| {
            faults.only = Some(HELD.to_owned());
            (faults.write_error, faults.sync_error) = (0.0, 0.0);
            faults.network_latency = Faults::none().network_latency;
        });
        match happens {
            0..=2 => {
                pair.kill_holder(power);
                check(&pair, *told.lock(), &format!("after the holder's end in round {round}"));
                pair.serve(BUDGET);
            }
            3 => pair.world.cut(&pair.owner, &pair.holder),
            4 => pair.world.change_faults(|faults| {
                (faults.write_error, faults.sync_error) = (0.02, 0.02);
            }),
            5 => pair.world.change_faults(|faults| {
                faults.network_latency = SHORT..=Duration::from_secs(8);
            }),
            _ => {}
        }
        if happens == 6 || (both && happens < 3) {
            if random.coin() {
                pair.owner.cut_power()
            } else {
                pair.owner.crash_process()
            }
            start(&mut random);
        }
    }
    *told.lock()
}

#[test]
fn the_copies_alone_are_a_log_whenever_an_end_is_killed_or_loses_its_power() {
    let seeds = std::env::var("REKINDLE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let mut acks = 0;
    let seeds: u64 = seeds.unwrap_or(16);
    for seed in 0..seeds {
        acks += run(seed).acks;
    }
    assert!(acks > seeds * 20, "{acks}: the runs acknowledge hardly anything");
}

/// A first sync of two segments, and a second one without the first of them.
async fn sync_twice(pair: &Pair, images: &[(NewSegment, Vec<u8>)]) -> Result<(), String> {
    pair.holder().await;
    let peer = pair.peer(1);
    for first in [0, 1] {
        peer.begin().await?;
        let synced = &images[first..first + 2];
        for image in synced {
            send(&peer, image).await?;
        }
        peer.keep(synced[1].0.segment, &[synced[0].0.segment]).await?;
    }
    Ok(())
}

#[test]
fn the_end_of_a_sync_is_whole_wherever_the_power_is_cut() {
    let images = images();
    let mut seen = BTreeMap::new();
    for operation in 1.. {
        let pair = Pair::new(operation);
        let stop = Stop::DiskOperation(operation);
        let ended = pair.world.block_on_until(stop, sync_twice(&pair, &images));
        if operation % 2 == 0 {
            pair.kill_holder(true);
        }
        let elsewhere = World::new(operation, Faults::none());
        let folder = held(OWNER);
        if pair.holder.copy_folder(&folder, &elsewhere, &folder).is_err() {
            continue;
        }
        let env = elsewhere.env();
        let here: Vec<SegmentId> = elsewhere.block_on(async {
            if adopt(&env, &folder, OWNER).await.is_err() {
                return Vec::new();
            }
            let mut here = Vec::new();
            for (name, _) in env.disk().list(&folder.join("flash")).await.expect("a folder") {
                let Some(bytes) = read(&env, &folder.join("flash").join(&name)).await else {
                    continue;
                };
                let Some(new) = NewSegment::read(&bytes) else { continue };
                assert!(images.contains(&(new, bytes)), "a copy is what the owner has");
                here.push(new.segment);
            }
            here.sort();
            here
        });
        let numbers: Vec<usize> = here
            .iter()
            .filter_map(|id| images.iter().position(|(new, _)| new.segment == *id))
            .collect();
        assert!([&[][..], &[0, 1], &[1, 2]].contains(&&numbers[..]), "{numbers:?} at {operation}");
        *seen.entry(numbers).or_insert(0) += 1;
        if let Some(ended) = ended {
            assert_eq!(ended, Ok(()));
            break;
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn a_copy_of_many_batches_that_is_broken_off_is_a_torn_end_and_no_damage() {
    let images = images();
    let (head, sealed) = images.split_last().expect("a head");
    let opening = NewSegment::batches(&head.1, 0, &head.1);
    assert!(opening.len() >= 3, "{opening:?}");
    let (first, last) = (opening[0] as usize, *opening.last().expect("some") as usize);
    let mut broken_off = 0;
    for seed in 0..120 {
        let pair = Pair::new(seed);
        pair.world.change_faults(|faults| faults.torn_sectors = 0.7);
        let peer = pair.world.block_on(async {
            pair.holder().await;
            let peer = pair.peer(1);
            peer.begin().await.expect("a sync");
            for image in sealed {
                send(&peer, image).await.expect("a segment");
            }
            peer.open(&head.0).await.expect("a head");
            peer.copy(head.0.segment, 0, &head.1[..first]).await.expect("its opening");
            let kept: Vec<SegmentId> = sealed.iter().map(|(new, _)| new.segment).collect();
            peer.keep(head.0.segment, &kept).await.expect("the end of the sync");
            peer
        });
        let rest = peer.copy(head.0.segment, first as u32, &head.1[first..last]);
        let stop = Stop::Step(1 + seed % 16);
        broken_off += u64::from(pair.world.block_on_until(stop, rest).is_none());
        pair.kill_holder(seed % 2 == 0);
        check(&pair, Told { life: 1, acked: 1, ..Told::default() }, "after the holder's end");
    }
    assert!(broken_off > 60, "{broken_off}");
}
