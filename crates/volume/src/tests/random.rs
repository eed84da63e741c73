//! Tests with many clients and operators at once, over a store that fails and lies. Every
//! transition is checked (an unlawful one panics in tests), and in the end the state agrees with
//! the answers.

use super::bed::{Bed, NODE, spec, write};
use crate::attach::collector::{Pace, Settings};
use crate::registry::machine::TABLE;
use crate::*;
use futures_util::future::join_all;
use rekindle_base::Kind;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use std::sync::Arc;
use std::time::Duration;

const NAMES: [&str; 3] = ["a", "b", "c"];

async fn busy_body(bed: &Bed, steps: u32) {
    let mut held: Vec<Handle> = Vec::new();
    for _ in 0..steps {
        let dice = bed.env.random_u64();
        let name = NAMES[(dice >> 8) as usize % NAMES.len()];
        let outcome = match dice % 16 {
            0 | 1 => bed.volumes.create(spec(name)).await.map(drop),
            2..=4 => bed.volumes.attach(name).await.map(|handle| held.push(handle)),
            5 => bed.volumes.remove(name, dice & 1 << 20 == 0).await,
            6 => bed.volumes.detach(name).await,
            7 => bed.volumes.list().await.map(drop),
            8 => bed.volumes.show(name).await.map(drop),
            9 => bed.volumes.reap_orphans().await.map(drop),
            10 => {
                held.clear();
                Ok(())
            }
            11 => bed.volumes.pin(name, dice & 1 << 20 == 0).await.map(drop),
            12 => {
                let (settings, idle) = (Settings::default(), Duration::from_nanos(1));
                collect::pass(&bed.volumes.inner, &settings, idle, &mut Pace::default()).await;
                Ok(())
            }
            13 => bed.volumes.salvage(name, false).await.map(drop),
            14 => {
                bed.volumes.cancel_salvage(name);
                Ok(())
            }
            _ => match held.last() {
                Some(handle) => {
                    write(handle, dice >> 40 & 0xfff, b"bytes").await.map_err(Error::from)
                }
                None => Ok(()),
            },
        };
        if let Err(error) = outcome {
            let expected =
                [Kind::NotFound, Kind::Exists, Kind::Conflict, Kind::Unavailable, Kind::Fenced];
            assert!(expected.contains(&error.kind()), "{error:?}");
        }
        bed.env.sleep(Duration::from_millis(dice >> 50 & 0x3f)).await;
    }
}

#[test]
fn crowds_on_a_bad_store_never_leave_the_table() {
    for seed in 0..25 {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            let mut told = bed.volumes.watch();
            bed.faults.set(Plan {
                latency: Duration::from_millis(3),
                fail_percent: 5.0,
                lie_percent: 10.0,
                ..Plan::default()
            });
            join_all((0..6).map(|_| busy_body(&bed, 40))).await;
            bed.faults.set(Plan::default());
            while let Ok(change) = told.try_recv() {
                assert!(TABLE.contains(&(change.from, change.event, change.to)), "{change:?}");
            }
            for name in NAMES {
                match bed.volumes.attach(name).await {
                    Ok(handle) => write(&handle, 0, b"end").await.unwrap(),
                    Err(error) => assert_eq!(error.kind(), Kind::NotFound, "seed {seed}: {error}"),
                }
            }
            assert!(
                bed.volumes.salvages().is_empty(),
                "seed {seed}: none is forgotten in the queue"
            );
            assert_eq!(
                bed.volumes.transitional(),
                (Vec::new(), 0),
                "seed {seed}: nothing is stuck"
            );
            let all = bed.volumes.list().await.unwrap();
            assert!(
                all.iter().all(|info| info.state == State::Attached && info.clients == 0),
                "seed {seed}: {all:?}"
            );
            let states = bed.volumes.states();
            assert_eq!(states[&State::Attached], all.len() as u64, "seed {seed}");
            assert_eq!(states.values().sum::<u64>(), all.len() as u64, "seed {seed}: {states:?}");
            bed.reap_all().await;
            assert_eq!(bed.keys("volumes/").await.len(), all.len(), "seed {seed}");
            bed.volumes.stop(true).await.unwrap();
        });
    }
}

/// The same on real threads, one for each client.
#[test]
fn crowds_on_real_threads_never_leave_the_table() {
    let (env, runtime) = rekindle_env::real::env().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let bed = Arc::new(Bed::start_in(folder.path(), NODE, &env, &Mem::store()).await);
        bed.faults.set(Plan { fail_percent: 5.0, lie_percent: 10.0, ..Plan::default() });
        let clients = (0..6).map(|_| {
            let (ended, end) = tokio::sync::oneshot::channel();
            let bed = bed.clone();
            env.spawn_session("client", async move {
                busy_body(&bed, 60).await;
                let _ = ended.send(());
            });
            end
        });
        let clients: Vec<_> = clients.collect();
        assert!(join_all(clients).await.into_iter().all(|end| end.is_ok()), "no client panicked");
        bed.faults.set(Plan::default());
        let all = bed.volumes.list().await.unwrap();
        assert!(
            all.iter().all(|info| !info.state.is_transitional() && info.clients == 0),
            "{all:?}"
        );
        bed.volumes.stop(true).await.unwrap();
    });
}
