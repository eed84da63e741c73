//! Sweeps of a store that has not changed since the last one.

use super::*;
use bytes::Bytes;
use rekindle_base::random::Random;
use rekindle_content::Class;
use rekindle_content::sweep::{Budget, Options, SweepProgress, Sweeper};
use rekindle_datastore::key;
use rekindle_datastore::layer::meter::{self, Call, Meter, StorePart};
use rekindle_env::sim::Stop;
use rekindle_volume::Reaped;

const HOUR: Duration = Duration::from_secs(60 * 60);

struct Bed {
    store: Store,
    volumes: Volumes,
    content: Content,
    writer: Writer,
    sweeper: Sweeper,
    meter: Meter,
}

impl Bed {
    /// Starts a node whose volumes have garbage, earlier contents, and all states.
    async fn start(env: &Env) -> Self {
        let (store, meter) = meter::wrap(env, Mem::store());
        let (volumes, _, content, writer) = start_all(env, &store).await;
        let options = Options {
            budget: Budget::Unlimited,
            grace: Duration::ZERO,
            young: Duration::ZERO,
            ..Options::default()
        };
        let (roots, folder) = (Arc::new(volumes.clone()), Path::new("/node/sweep"));
        let sweeper = Sweeper::new(content.clone(), writer.clone(), roots, folder);
        let sweeper = sweeper.with_options(options);
        let bed = Self { store, volumes, content, writer, sweeper, meter };
        for name in ["served", "idle", "trashed", "removed"] {
            let spec = Spec { name: name.into(), ..spec(Policy::Through, Ack::Flash) };
            bed.volumes.create(spec).await.unwrap();
            bed.write(name, 1).await;
            bed.write(name, 2).await;
        }
        bed.volumes.detach("idle").await.unwrap();
        bed.volumes.trash("trashed", false).await.unwrap();
        bed.volumes.remove("removed", false).await.unwrap();
        bed
    }

    async fn write(&self, name: &str, seed: u8) {
        let device = Device::attach(&self.volumes, name).await.unwrap();
        // Bytes that neither repeat nor compress.
        let number = name.bytes().fold(u64::from(seed), |sum, byte| sum * 31 + u64::from(byte));
        let mut data = vec![0; SIZE as usize];
        Random::new(number).fill(&mut data);
        done(&device, device.write(0, &data, false)).await;
    }

    /// Writes one block, and takes the volume out of service.
    async fn change(&self, name: &str, number: u64) {
        let device = Device::attach(&self.volumes, name).await.unwrap();
        let data: Vec<u8> =
            (0..BLOCK / 8).flat_map(|at| (number * BLOCK + at).to_le_bytes()).collect();
        done(&device, device.write(0, &data, false)).await;
        drop(device);
        self.volumes.detach(name).await.unwrap();
    }

    /// Sweeps as a node does. Returns how many objects of volumes, and parts of packs, were read.
    async fn sweep(&self) -> (u64, Reaped, SweepProgress) {
        let reads = || {
            let of = |part| [Call::Get, Call::GetRange].map(|call| self.meter.requests(part, call));
            [StorePart::Records, StorePart::Data, StorePart::Metadata]
                .map(of)
                .as_flattened()
                .iter()
                .sum::<u64>()
        };
        let before = reads();
        let reaped = self.volumes.reap_orphans().await.unwrap();
        let status = self.sweeper.run().await.unwrap();
        (reads() - before, reaped, status)
    }

    /// Sweeps until nothing is left to do, and checks that the next sweep reads nothing.
    async fn settle(&self) {
        for _ in 0..4 {
            self.sweep().await;
        }
        let (reads, reaped, status) = self.sweep().await;
        assert_eq!((reads, reaped, status.is_unchanged), (0, Reaped::default(), true));
    }
}

#[test]
fn a_sweep_of_an_unchanged_store_costs_lists_only() {
    let world = World::new(11, Faults::none());
    world.block_on(async {
        let bed = Bed::start(&world.env()).await;
        let (_, _, first) = bed.sweep().await;
        assert!(first.packs_deleted > 0, "the garbage of the removed volume: {first:?}");
        bed.settle().await;
        let requests = || Call::ALL.map(|call| bed.meter.read(call).calls);
        let before = requests();
        bed.sweep().await;
        let made: Vec<u64> = requests().iter().zip(before).map(|(now, then)| now - then).collect();
        // The lease is taken and given back, and the record of what is condemned is read.
        let of = |call: Call| made[call as usize];
        assert_eq!((of(Call::Get), of(Call::Replace), of(Call::List)), (2, 2, 11), "{made:?}");
        assert_eq!(made.iter().sum::<u64>(), 15, "{made:?}");
    });
}

#[test]
fn of_a_thousand_volumes_a_sweep_reads_the_one_that_has_changed() {
    let world = World::new(14, Faults::none());
    world.block_on(async {
        let bed = Bed::start(&world.env()).await;
        for number in 0..1000 {
            let name = format!("v{number}");
            let spec = Spec { name: name.clone(), ..spec(Policy::Through, Ack::Flash) };
            bed.volumes.create(spec).await.unwrap();
            bed.change(&name, number).await;
        }
        bed.settle().await;
        bed.change("v500", 5000).await;
        let gets = || [Call::Get, Call::GetRange].map(|call| bed.meter.read(call).calls);
        let before: u64 = gets().iter().sum();
        let (reads, _, status) = bed.sweep().await;
        let all = gets().iter().sum::<u64>() - before;
        // The vault, for the reaping and for the sweep, and its new root. Then the lease, and the
        // record of what is condemned.
        assert_eq!((reads, all), (3, 5), "{status:?}");
        assert_eq!(status.counted_anew, None);
        bed.settle().await;
    });
}

#[test]
fn each_change_of_an_unchanged_store_is_seen_by_the_next_sweep() {
    let world = World::new(12, Faults::none());
    let bed = world.block_on(Bed::start(&world.env()));
    world.block_on(async {
        bed.settle().await;
        // A vault that leads elsewhere.
        bed.write("idle", 3).await;
        bed.volumes.detach("idle").await.unwrap();
        assert!(!bed.sweep().await.2.is_unchanged);
        bed.settle().await;
        // A vault with the same roots: no content is read.
        bed.volumes.pin("idle", true).await.unwrap();
        let (reads, _, status) = bed.sweep().await;
        assert!((2..20).contains(&reads) && status.is_unchanged, "{reads}: {status:?}");
        bed.settle().await;
        // A pack to which nothing leads.
        let mut batch = bed.content.batch();
        batch.write(Class::Data, Bytes::from_static(&[7; 5000]), &[]).await.unwrap();
        batch.flush().await.unwrap();
        drop(batch);
        assert_eq!(bed.sweep().await.2.packs_deleted, 1);
        bed.settle().await;
        // A vault that is replaced by other bytes of its length.
        let vault = bed.volumes.show("idle").await.unwrap().vault;
        let (sound, _) = bed.store.get(&Vault::key(vault.id)).await.unwrap();
        let mut wrong = sound.to_vec();
        wrong[sound.len() / 2] ^= 1;
        bed.store.put(&Vault::key(vault.id), wrong.into()).await.unwrap();
        let refused = bed.sweeper.run().await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("volumes/"), "{refused}");
        bed.store.put(&Vault::key(vault.id), sound).await.unwrap();
        bed.settle().await;
        // A volume without its name, once it is old enough not to be one that is being made.
        bed.store.delete(&key::name_key("idle")).await.unwrap();
        assert_eq!(bed.sweep().await.1, Reaped::default());
    });
    world.run_until(Stop::Time(24 * HOUR));
    world.block_on(async {
        assert_eq!(bed.sweep().await.1, Reaped { renamed: 1, ..Reaped::default() });
    });
}

#[test]
fn time_alone_ends_the_rest_of_a_store() {
    let world = World::new(13, Faults::none());
    let bed = world.block_on(Bed::start(&world.env()));
    world.run_until(Stop::Time(2 * HOUR));
    world.block_on(bed.settle());
    // What was written over an hour and a day ago is taken, and not before.
    world.run_until(Stop::Time(22 * HOUR));
    world.block_on(bed.settle());
    world.run_until(Stop::Time(2 * HOUR));
    world.block_on(async {
        let status = bed.sweep().await.2;
        assert!(!status.is_unchanged && status.packs_deleted > 0, "{status:?}");
        bed.settle().await;
        // A volume in the trash whose week is over in an hour.
        let row = bed.volumes.trashed().await.unwrap().remove(0);
        let key = Vault::key(row.id.parse().unwrap());
        let held = bed.writer.read::<Vault>(&key).await.unwrap().unwrap();
        let week = row.until - row.since;
        let soon = bed.writer.env.wall_clock().0 + HOUR.as_micros() as u64 - week;
        let old = Vault { trashed: Some(soon), ..held.value.clone() };
        bed.writer.replace(&held, old).await.unwrap();
        bed.settle().await;
        assert_eq!(bed.volumes.trashed().await.unwrap().len(), 1);
    });
    world.run_until(Stop::Time(HOUR));
    world.block_on(async {
        let (_, reaped, status) = bed.sweep().await;
        assert_eq!(reaped, Reaped { purged: 1, ..Reaped::default() });
        assert!(!status.is_unchanged && status.packs_deleted > 0, "{status:?}");
        bed.settle().await;
    });
}
