//! A device against a model of plain bytes, through staging, log, content and store, over restarts.

mod sweeping;

use super::*;
use crate::{Block, Extents, KIND, Layout};
use proptest::prelude::*;
use rekindle_base::units::MIB;
use rekindle_base::{Incarnation, NodeId};
use rekindle_content::{Compression, Content};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::{self, Plan};
use rekindle_datastore::record::Writer;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_log::Log;
use rekindle_staging::{Ack, MissingCopy, Policy, Staging, Vault, VaultBody};
use rekindle_volume::{Kind, Kinds, OpenedHome, Parts, Sizes, Spec, Volumes};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

const NODE: NodeId = NodeId([7; 16]);
const BLOCK: u64 = 4096;
const SIZE: u64 = 3 * CHANGE_BYTES_MAX + 5 * BLOCK + 512;

/// Starts one life of a node with one volume.
async fn start(env: &Env, store: &Store) -> (Volumes, fault::Handle) {
    let (volumes, faults, _, _) = start_all(env, store).await;
    (volumes, faults)
}

async fn start_all(env: &Env, store: &Store) -> (Volumes, fault::Handle, Content, Writer) {
    let (store, faults) = fault::wrap(env, store.clone(), Plan::default());
    let arena = rekindle_warm::Arena::open(env, &PathBuf::from("/node/arena"), NODE, 4).unwrap();
    let config = rekindle_log::Config {
        folder: PathBuf::from("/node/log"),
        node: NODE,
        flash_bytes: 64 * MIB,
        flush_interval: Duration::from_millis(100),
    };
    let (log, opened) = Log::open(env, arena, config, Incarnation(1)).await.unwrap();
    assert_eq!(opened.damage, Vec::<String>::new());
    let config = rekindle_content::Config {
        secret: [3; 32],
        compression: Compression::Lz4,
        parity: None,
        pack_bytes: MIB,
        cache_bytes: 8 * MIB,
        index_bytes: MIB,
        uploads: 2,
    };
    let content = Content::open(env.clone(), store.clone(), config);
    let writer = Writer::new(env.clone(), store, NODE);
    let config = rekindle_staging::Config {
        flash_bytes: 32 * MIB,
        memory_bytes: 4 * MIB,
        destage_age: Duration::from_millis(200),
        destage_bytes: MIB,
        batch_bytes: MIB,
        destagers: 2,
        index_at_once: 4,
        age_deadline: Duration::from_secs(60),
        destage_writes_per_minute: 0,
        memory_outlives_process: true,
        copied_from: Incarnation(0),
        lease: rekindle_staging::Lease::for_ever(),
    };
    let staging = Staging::start(env.clone(), log, content.clone(), writer.clone(), config);
    let volumes = Volumes::open(Parts {
        env: env.clone(),
        writer: writer.clone(),
        content: content.clone(),
        staging,
        kinds: Kinds::new(vec![Box::new(Block), Box::new(Tape)]),
        read_ahead: false,
    });
    (volumes, faults, content, writer)
}

fn spec(policy: Policy, ack: Ack) -> Spec {
    let settings = VaultBody::of(&Layout::Fixed { block_size: BLOCK }).unwrap();
    Spec {
        name: "vm1".into(),
        kind: KIND.into(),
        size: SIZE,
        settings,
        policy,
        ack,
        copies: 0,
        on_missing_copy: MissingCopy::default(),
    }
}

/// Another kind of volume.
struct Tape;

impl Kind for Tape {
    fn name(&self) -> &'static str {
        "tape"
    }
    fn create(&self, _size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        Ok(settings.clone())
    }
    fn check(&self, _vault: &Vault) -> Result<(), String> {
        Ok(())
    }
    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        Ok(OpenedHome::Range(Arc::new(Extents::new(
            content.clone(),
            vault.size,
            Layout::Fixed { block_size: 4096 },
        ))))
    }
    fn describe_damage(&self, _vault: &Vault, _keys: &[Range<u64>]) -> Option<String> {
        None
    }
    fn numbers<'a>(&'a self, _: &'a Content, _: &'a Vault) -> BoxFuture<'a, u64> {
        Box::pin(std::future::ready(0))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Fixed
    }
}

async fn done(device: &Device, written: Result<Written, Error>) {
    match written.unwrap() {
        Written::Acked => {}
        Written::NeedsSync(ticket) => device.sync(ticket).await.unwrap(),
        Written::Pending(later) => later.await.unwrap(),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, length: u64, seed: u8, durable: bool },
    Clear { offset: u64, length: u64, trim: bool },
    Read { offset: u64, length: u64 },
    Extents { offset: u64, length: u64 },
    Flush,
    Wait,
    Drain,
    Reattach,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || {
        let offset = prop_oneof![0..SIZE, (0..SIZE / BLOCK).prop_map(|block| block * BLOCK)];
        let length = prop_oneof![
            4 => 0..3 * BLOCK,
            4 => (0u64..8).prop_map(|blocks| blocks * BLOCK),
            1 => 0..SIZE,
        ];
        (offset, length).prop_map(|(offset, length)| (offset, length.min(SIZE - offset)))
    };
    let step = prop_oneof![
        8 => (range(), any::<u8>(), any::<bool>())
            .prop_map(|((offset, length), seed, durable)| Step::Write { offset, length, seed, durable }),
        4 => (range(), any::<bool>()).prop_map(|((offset, length), trim)| Step::Clear { offset, length, trim }),
        6 => range().prop_map(|(offset, length)| Step::Read { offset, length }),
        2 => range().prop_map(|(offset, length)| Step::Extents { offset, length }),
        1 => Just(Step::Flush),
        2 => Just(Step::Wait),
        1 => Just(Step::Drain),
        1 => Just(Step::Reattach),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..40)
}

async fn compare(device: &Device, model: &[u8], offset: u64, length: u64) {
    let expected = &model[offset as usize..(offset + length) as usize];
    let mut out = vec![0xee; length as usize];
    if device.read_now(offset, &mut out).unwrap() {
        assert!(out == expected, "read_now {length} at {offset}");
    }
    out.fill(0xee);
    device.read(offset, &mut out).await.unwrap();
    assert!(out == expected, "read {length} at {offset}");
}

async fn run(device: &Device, env: &Env, model: &mut [u8], step: &Step) {
    match *step {
        Step::Write { offset, length, seed, durable } => {
            let data: Vec<u8> = (offset..offset + length)
                .map(|at| (at as u8 ^ seed).wrapping_mul(seed | 1))
                .collect();
            model[offset as usize..(offset + length) as usize].copy_from_slice(&data);
            done(device, device.write(offset, &data, durable)).await;
        }
        Step::Clear { offset, length, trim } => {
            model[offset as usize..(offset + length) as usize].fill(0);
            done(device, device.clear(offset, length, trim, false)).await;
        }
        Step::Read { offset, length } => compare(device, model, offset, length).await,
        Step::Extents { offset, length } => {
            let mut at = offset;
            for extent in device.extents(offset, length).await.unwrap() {
                assert_eq!(extent.position, at);
                let bytes = &model[at as usize..(at + extent.span) as usize];
                assert!(
                    extent.data || bytes.iter().all(|byte| *byte == 0),
                    "a hole reads as zeros"
                );
                at += extent.span;
            }
            assert_eq!(at, offset + length);
        }
        Step::Flush => device.flush().await.unwrap(),
        Step::Wait => env.sleep(Duration::from_millis(300)).await,
        Step::Drain => drop(device.handle().staged().drain().await.unwrap()),
        Step::Reattach | Step::Crash => unreachable!("not a step of one attach"),
    }
}

fn policies() -> impl Strategy<Value = (Policy, Ack)> {
    prop_oneof![
        Just((Policy::Back, Ack::Flash)),
        Just((Policy::Back, Ack::Memory)),
        Just((Policy::Through, Ack::Flash)),
        Just((Policy::Uncached, Ack::Flash)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_device_is_plain_bytes(seed: u64, (policy, ack) in policies(), mut steps in steps()) {
        let (world, store) = (World::new(seed, Faults::none()), Mem::store());
        let mut model = vec![0; SIZE as usize];
        let mut first = true;
        while !steps.is_empty() {
            world.block_on(async {
                let (volumes, _faults) = start(&world.env(), &store).await;
                if std::mem::take(&mut first) {
                    volumes.create(spec(policy, ack)).await.unwrap();
                }
                let mut device = Device::attach(&volumes, "vm1").await.unwrap();
                compare(&device, &model, 0, SIZE).await;
                while !steps.is_empty() {
                    match steps.remove(0) {
                        Step::Crash => break,
                        Step::Reattach => {
                            drop(device);
                            volumes.detach("vm1").await.unwrap();
                            device = Device::attach(&volumes, "vm1").await.unwrap();
                        }
                        step => run(&device, &world.env(), &mut model, &step).await,
                    }
                }
                compare(&device, &model, 0, SIZE).await;
            });
            world.crash_process();
        }
    }
}

#[test]
fn what_is_out_of_bounds_is_refused_with_numbers() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let (volumes, _faults) = start(&world.env(), &store).await;
        volumes.create(spec(Policy::Back, Ack::Flash)).await.unwrap();
        let device = Device::attach(&volumes, "vm1").await.unwrap();
        assert_eq!((device.name(), device.size(), device.block_size()), ("vm1", SIZE, BLOCK));
        let mut out = [0; 2];
        for offset in [SIZE - 1, SIZE, u64::MAX - 1, u64::MAX] {
            let refused = [
                device.read_now(offset, &mut out).err(),
                device.read(offset, &mut out).await.err(),
                device.write(offset, &out, false).err(),
                device.clear(offset, 2, true, false).err(),
                device.clear(offset, u64::MAX, false, false).err(),
                device.extents(offset, 2).await.err(),
            ];
            for error in refused {
                let error = error.expect("out of bounds");
                assert_eq!(error.kind(), rekindle_base::Kind::Invalid);
                assert!(error.to_string().contains(&offset.to_string()), "{error}");
            }
        }
        // An empty request at the very end is in bounds, and succeeds.
        assert!(matches!(device.write(SIZE, &[], true), Ok(Written::Acked)));
        assert!(matches!(device.clear(SIZE, 0, true, true), Ok(Written::Acked)));
        assert!(device.read_now(SIZE, &mut []).unwrap());
        device.read(SIZE, &mut []).await.unwrap();
        assert!(device.extents(SIZE, 0).await.unwrap().is_empty());
        assert_eq!(device.backlog().changes, 0);
    });
}

#[test]
fn extents_of_many_small_writes_are_told_in_parts() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let (volumes, _faults) = start(&world.env(), &store).await;
        volumes.create(spec(Policy::Back, Ack::Memory)).await.unwrap();
        let device = Device::attach(&volumes, "vm1").await.unwrap();
        for at in (0..10_000).step_by(2) {
            done(&device, device.write(at, &[1], false)).await;
        }
        let (mut at, mut asked) = (0, 0);
        while at < SIZE {
            let found = device.extents(at, SIZE - at).await.unwrap();
            assert!(found.len() <= 4097, "{} at once", found.len());
            for extent in found {
                assert_eq!((extent.position, extent.data), (at, at < 10_000 && at % 2 == 0));
                at += extent.span;
            }
            asked += 1;
        }
        assert_eq!((at, asked), (SIZE, 3));
    });
}

#[test]
fn a_snapshot_is_a_device_that_shows_its_time_and_refuses_changes() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    let data = |seed: u64| -> Vec<u8> {
        (0..SIZE).map(|at| (at * at / 5 + seed * at / 3) as u8).collect()
    };
    world.block_on(async {
        let (volumes, _) = start(&world.env(), &store).await;
        volumes.create(spec(Policy::Back, Ack::Flash)).await.unwrap();
        let device = Device::attach(&volumes, "vm1").await.unwrap();
        for seed in [1, 2] {
            done(&device, device.write(0, &data(seed), false)).await;
            volumes.take_snapshot("vm1", &seed.to_string()).await.unwrap();
        }
        // Its beginning is of neither, and only in the log.
        done(&device, device.write(0, &data(3)[..9000], false)).await;
        for seed in [1, 2] {
            let past = Device::attach(&volumes, &format!("vm1@{seed}")).await.unwrap();
            compare(&past, &data(seed), 0, SIZE).await;
            assert_eq!((past.size(), past.is_read_only()), (SIZE, true));
            assert!(past.extents(0, SIZE).await.unwrap()[0].data);
            let refused = [past.write(0, &[1], false), past.clear(0, 512, true, false)];
            assert!(refused.into_iter().all(|written| written.is_err()));
        }
        compare(&device, &data(3), 0, 9000).await;
        assert!(!device.is_read_only());
        // What is attached goes on to show what it did, until it is removed.
        let past = Device::attach(&volumes, "vm1@1").await.unwrap();
        volumes.remove_snapshot("vm1", "2").await.unwrap();
        compare(&past, &data(1), 0, SIZE).await;
        volumes.remove_snapshot("vm1", "1").await.unwrap();
        let mut byte = [0];
        let gone = past.read(0, &mut byte).await.unwrap_err();
        assert!(gone.to_string().contains("was removed"), "{gone}");
        assert!(past.read_now(0, &mut byte).is_err());
        for (name, told) in [
            ("vm1@1", "volume 'vm1' has no snapshot '1'"),
            ("vm2@1", "vm2@1"),
            ("vm1@", "volume 'vm1' has no snapshot ''"),
        ] {
            let error = Device::attach(&volumes, name).await.err().unwrap().to_string();
            assert!(error.contains(told), "{error}");
        }
        // A volume of the whole name goes before.
        let other = Spec { name: "vm1@1".into(), ..spec(Policy::Back, Ack::Flash) };
        volumes.create(other).await.unwrap();
        assert!(!Device::attach(&volumes, "vm1@1").await.unwrap().is_read_only());
    });
}

#[test]
fn one_outcome_of_many_changes() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let (volumes, faults) = start(&world.env(), &store).await;
        volumes.create(spec(Policy::Through, Ack::Flash)).await.unwrap();
        let device = Device::attach(&volumes, "vm1").await.unwrap();
        let data: Vec<u8> = (0..SIZE).map(|at| (at / 3) as u8).collect();
        // All pieces wait for the datastore concurrently, not one after the other.
        faults.set(Plan { latency: Duration::from_millis(10), ..Plan::default() });
        let began = world.env().now();
        done(&device, device.write(0, &data, false)).await;
        assert!(world.env().now().since(began) < Duration::from_millis(300));
        let vault = device.handle().staged().vault();
        assert_eq!(
            vault.checkpoint.0,
            SIZE.div_ceil(CHANGE_BYTES_MAX),
            "in the datastore, as several changes"
        );
        compare(&device, &data, 0, SIZE).await;
    });
}

#[test]
fn a_sweep_frees_what_a_removed_volume_had_and_nothing_else() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    let data = |seed: u64| -> Vec<u8> {
        (0..SIZE).map(|at| (at * at / 7 + seed * at / 3) as u8).collect()
    };
    world.block_on(async {
        let (volumes, _, content, writer) = start_all(&world.env(), &store).await;
        for (seed, name) in [(1, "gone"), (2, "kept"), (3, "idle")] {
            let spec = Spec { name: name.into(), ..spec(Policy::Through, Ack::Flash) };
            volumes.create(spec).await.unwrap();
            let device = Device::attach(&volumes, name).await.unwrap();
            done(&device, device.write(0, &data(seed), false)).await;
        }
        volumes.detach("idle").await.unwrap();
        let packs = async || store.list("packs/data/", None).await.unwrap().len();
        let before = packs().await;
        volumes.remove("gone", false).await.unwrap();
        let (roots, folder) = (Arc::new(volumes.clone()), Path::new("/node/sweep"));
        let sweeper = rekindle_content::sweep::Sweeper::new(content, writer, roots, folder);
        sweeper.run().await.unwrap();
        let after = packs().await;
        assert!(after < before && after > 0, "{before} -> {after}");
    });
    world.crash_process();
    world.block_on(async {
        let (volumes, _) = start(&world.env(), &store).await;
        for (seed, name) in [(2, "kept"), (3, "idle")] {
            let device = Device::attach(&volumes, name).await.unwrap();
            compare(&device, &data(seed), 0, SIZE).await;
        }
    });
}

#[test]
fn a_volume_of_another_kind_is_no_device() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let (volumes, _faults) = start(&world.env(), &store).await;
        let tape = Spec { kind: "tape".into(), ..spec(Policy::Back, Ack::Flash) };
        volumes.create(tape).await.unwrap();
        let refused = Device::attach(&volumes, "vm1").await.err().unwrap();
        assert!(matches!(&refused, Error::OtherKind { kind, .. } if kind == "tape"));
        assert_eq!(
            refused.to_string(),
            "volume 'vm1' is a 'tape' volume, and not a 'block' volume"
        );
        volumes.detach("vm1").await.unwrap();
    });
}

#[test]
fn a_vault_with_a_block_size_that_no_volume_has_is_neither_served_nor_repaired() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let (volumes, _, _, writer) = start_all(&world.env(), &store).await;
        let vault = volumes.create(spec(Policy::Through, Ack::Flash)).await.unwrap().vault;
        let device = Device::attach(&volumes, "vm1").await.unwrap();
        done(&device, device.write(0, &[1; 4096], false)).await;
        drop(device);
        volumes.detach("vm1").await.unwrap();
        let held = writer.read::<Vault>(&Vault::key(vault.id)).await.unwrap().unwrap();
        let body = VaultBody::of(&Layout::Fixed { block_size: 4097 }).unwrap();
        let changed = Vault { body, ..held.value.clone() };
        writer.replace(&held, changed.clone()).await.unwrap();
        let shown = volumes.show("vm1").await.unwrap();
        assert_eq!(shown.state, rekindle_volume::machine::State::Error);
        assert!(shown.reason.unwrap().contains("4097 bytes"));
        for refused in [
            volumes.attach("vm1").await.err(),
            volumes.salvage("vm1", true).await.err(),
            volumes.resize("vm1", 2 * SIZE, false).await.err(),
        ] {
            let refused = refused.expect("refused");
            assert_eq!(refused.kind(), rekindle_base::Kind::Damaged, "{refused}");
            assert!(refused.to_string().contains("4097 bytes"), "{refused}");
        }
        assert!(volumes.rollback("vm1", "x", true).await.is_err());
        let after = writer.read::<Vault>(&Vault::key(vault.id)).await.unwrap().unwrap();
        assert_eq!(after.value, changed, "no attempt has written anything");
        volumes.remove("vm1", false).await.unwrap();
    });
}

#[test]
fn outcomes_gather() {
    let staged = |at| Written::NeedsSync(Ticket(rekindle_log::Position(at)));
    let later = || Written::Pending(Box::pin(std::future::ready(Ok(()))));
    let gather = |all: Vec<Written>| {
        let mut gathered = Gathered::Acked;
        all.into_iter().for_each(|one| gathered.add(one));
        gathered
    };
    assert!(matches!(gather(vec![Written::Acked, Written::Acked]), Gathered::Acked));
    let ticket = Ticket(rekindle_log::Position(9));
    assert!(
        matches!(gather(vec![staged(3), Written::Acked, staged(9), staged(5)]), Gathered::NeedsSync(at) if at == ticket)
    );
    let mixed = gather(vec![staged(3), later(), staged(9), Written::Acked, later()]);
    assert!(
        matches!(mixed, Gathered::Pending(Some(at), later) if at == ticket && later.len() == 2)
    );
    assert!(
        matches!(gather(vec![later(), Written::Acked]), Gathered::Pending(None, later) if later.len() == 1)
    );
}
