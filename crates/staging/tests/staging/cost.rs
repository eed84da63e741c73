//! Measures staging on the real machine. Run with `--ignored --nocapture`.

use crate::bed::{MIB, Node, Setup};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_staging::{Ack, Policy, Written};
use std::time::Duration;

fn run(setup: &mut Setup, test: impl AsyncFnOnce(&Env, &Setup)) {
    let folder = tempfile::tempdir().unwrap();
    setup.folder = folder.path().to_owned();
    let (env, runtime) = rekindle_env::real::env().unwrap();
    runtime.block_on(test(&env, setup));
}

fn quiet() -> Setup {
    let mut setup = Setup::new(Policy::Back, Ack::Memory);
    setup.size = 1 << 40;
    setup.log_bytes = 4096 * MIB;
    setup.config.flash_bytes = 4096 * MIB;
    setup.config.destage_age = Duration::from_secs(3600);
    setup.config.destage_bytes = 1 << 40;
    setup
}

#[test]
#[ignore = "measures"]
fn a_write_and_a_read_of_4_kib() {
    run(&mut quiet(), async |env, setup| {
        let node = Node::start(env, setup, &Mem::store(), Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        let data = [7; 4096];
        let rounds = 900_u64;
        let (mut staged, mut bare) = (Duration::MAX, Duration::MAX);
        for _ in 0..20 {
            node.log.roll(4_000_000).await.unwrap();
            let begun = env.now();
            for _ in 0..rounds {
                let block = env.now().0.as_nanos() as u64 % 1_000_003;
                assert!(matches!(volume.write(block * 4096, &data, false), Written::Acked));
            }
            staged = staged.min(env.now().since(begun) / rounds as u32);
            node.log.roll(4_000_000).await.unwrap();
            let begun = env.now();
            for serial in 0..rounds {
                let append = rekindle_log::Append {
                    volume: rekindle_base::VolumeId([99; 16]),
                    generation: rekindle_base::Generation(1),
                    serial: rekindle_base::Serial(serial + 1),
                    change: rekindle_log::Change::Write,
                    joined: false,
                    position: serial * 4096,
                    span: 4096,
                    payload: &data,
                };
                node.log.append(&[append]).unwrap();
            }
            bare = bare.min(env.now().since(begun) / rounds as u32);
        }
        println!("write of 4 KiB: {staged:?}, of which the log: {bare:?}");
        let mut out = [0; 4096];
        let begun = env.now();
        let mut hits = 0;
        for block in 0..1_000_000_u64 {
            hits += u64::from(volume.read_now(block * 4096, &mut out).unwrap());
        }
        println!("read of 4 KiB, mostly holes: {:?} ({hits})", env.now().since(begun) / 1_000_000);
    });
}

#[test]
#[ignore = "measures"]
fn recovery_of_262144_changes() {
    run(&mut quiet(), async |env, setup| {
        let store = Mem::store();
        let node = Node::start(env, setup, &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        for serial in 0..262_144_u64 {
            let block = serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            crate::bed::done(&volume, volume.write(block * 4096, &[serial as u8; 4096], false))
                .await
                .unwrap();
        }
        node.staging.stop().await;
        node.log.close().await.unwrap();
        drop((volume, node));
        let node = Node::start(env, setup, &store, Plan::default()).await;
        let begun = env.now();
        let recovered = node.log.unfinished(setup.vault(1).id).await.unwrap();
        println!("the log: {} changes in {:?}", recovered.len(), env.now().since(begun));
        drop(recovered);
        let begun = env.now();
        let recovered = node.log.unfinished(setup.vault(1).id).await.unwrap();
        let log = env.now().since(begun);
        drop(recovered);
        let begun = env.now();
        let volume = node.open(1).await.unwrap();
        let open = env.now().since(begun);
        assert_eq!(volume.backlog().changes, 262_144);
        println!("open: {open:?}, of which the log, asked again: {log:?}");
    });
}
