//! Tests of salvages: out of service and in service, remembered attempts, waiting clients.

use super::bed::{Bed, SIZE, kind, read, spec, write};
use crate::*;
use bytes::Bytes;
use futures_util::future::{join, join3};
use rekindle_base::{Generation, Kind};
use rekindle_datastore::Store;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Vault;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Makes volumes with content in the store. The life that wrote them has ended, and its cache with
/// it.
async fn planted(env: &Env, store: &Store, names: &[&str]) -> Bed {
    let bed = Bed::start(env, store).await;
    for name in names {
        bed.volumes.create(spec(name)).await.unwrap();
        let handle = bed.volumes.attach(name).await.unwrap();
        write(&handle, 0, name.as_bytes()).await.unwrap();
    }
    bed.volumes.stop(true).await.unwrap();
    drop(bed);
    Bed::start(env, store).await
}

/// Flips a byte of a volume's content.
async fn damage(bed: &Bed, name: &str) {
    let chunk = bed.chunk(name).await;
    let key = rekindle_content::pack::key(chunk.pack);
    let (object, _) = bed.store.get(&key).await.unwrap();
    let mut object = object.to_vec();
    object[chunk.offset as usize + 1000] ^= 1;
    bed.store.put(&key, Bytes::from(object)).await.unwrap();
}

async fn refusal(handle: &Handle) -> String {
    handle.staged().read(0, &mut [0; 10]).await.unwrap_err().to_string()
}

async fn outcomes(bed: &Bed, name: &str) -> Vec<Outcome> {
    let history = bed.volumes.salvage_history(name).await.unwrap();
    history.iter().map(|account| account.outcome).collect()
}

#[test]
fn a_volume_out_of_service_comes_into_service_for_a_salvage_and_serves_meanwhile() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = planted(&world.env(), &store, &["a", "b"]).await;
        damage(&bed, "a").await;
        bed.faults.set(Plan { latency: SECOND, ..Plan::default() });
        let clients = async {
            bed.env.sleep(SECOND / 2).await;
            assert_eq!(bed.volumes.salvages()[0].volume, "a");
            assert_eq!(bed.volumes.states()[&State::Salvaging], 0);
            let (one, other, healthy) =
                join3(bed.volumes.attach("a"), bed.volumes.attach("a"), bed.volumes.attach("b"))
                    .await;
            assert_eq!(read(&healthy.unwrap(), 0, 1).await, b"b");
            (one.unwrap(), other.unwrap())
        };
        let (salvaged, (one, other)) = join(bed.volumes.salvage("a", true), clients).await;
        assert!(salvaged.unwrap().told.contains("1 damaged"));
        assert!(bed.volumes.salvages().is_empty());
        bed.faults.set(Plan::default());
        let refused = refusal(&one).await;
        assert!(refused.contains(&format!("bytes 0..{SIZE}")), "{refused}");
        write(&other, 0, &[7; SIZE as usize]).await.unwrap();
        assert_eq!(read(&one, 0, 10).await, [7; 10]);
        assert_eq!(outcomes(&bed, "a").await, [Outcome::Repaired]);
        let history = bed.volumes.history("a").unwrap();
        let states: Vec<_> = history.iter().map(|change| change.to).collect();
        assert_eq!(states, [State::Attaching, State::Attached]);
    });
}

#[test]
fn a_reader_who_meets_damage_brings_a_look_about_and_nothing_is_given_up_before_a_person_says_so() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = planted(&world.env(), &store, &["a", "b"]).await;
        bed.env.spawn("salvager", bed.volumes.salvager());
        damage(&bed, "a").await;
        let handle = bed.volumes.attach("a").await.unwrap();
        assert!(!refusal(&handle).await.contains("are lost"));
        for pause in [SECOND, 2 * HOUR, 3 * HOUR] {
            bed.env.sleep(pause).await;
            let shown = bed.volumes.show("a").await.unwrap();
            assert_eq!((shown.state, shown.vault.lost.len()), (State::Attached, 0));
            let reason = shown.reason.unwrap();
            assert!(
                reason.contains("since ") && reason.contains("nothing was given up"),
                "{reason}"
            );
            assert!(reason.contains("`rekindle salvage run a --accept-losses`"), "{reason}");
            assert!(!refusal(&handle).await.contains("are lost"));
        }
        // An operator asks what would be lost, and nothing is given up for that.
        let plan = bed.volumes.salvage("a", false).await.unwrap();
        assert!(plan.is_left, "{}", plan.told);
        let plan = plan.told;
        assert!(plan.contains(&format!("{SIZE} bytes would be lost (0..{SIZE})")), "{plan}");
        assert!(outcomes(&bed, "a").await.iter().all(|outcome| *outcome == Outcome::Waiting));
        assert!(bed.vault("a").await.root.is_some());
        // An operator accepts the losses, and no client is disconnected.
        assert!(!bed.volumes.salvage("a", true).await.unwrap().is_left);
        assert!(refusal(&handle).await.contains("are lost"));
        let shown = bed.volumes.show("a").await.unwrap();
        assert_eq!((shown.state, shown.reason), (State::Attached, None));
        write(&handle, 3, b"whole").await.unwrap();
        assert_eq!(read(&handle, 3, 5).await, b"whole");
        assert_eq!(bed.outcome_of_last("a").await, Some(Outcome::Repaired));
        bed.volumes.remove("a", true).await.unwrap();
    });
}

/// Overwrites a volume that has a snapshot `s`, and returns the chunk that the snapshot alone has.
async fn only_in_a_snapshot(bed: &Bed) -> rekindle_content::Pointer {
    bed.volumes.create(spec("a")).await.unwrap();
    let handle = bed.volumes.attach("a").await.unwrap();
    write(&handle, 0, &[1; SIZE as usize]).await.unwrap();
    bed.volumes.take_snapshot("a", "s").await.unwrap();
    handle.staged().drain().await.unwrap();
    let chunk = bed.chunk("a").await;
    write(&handle, 0, &[2; SIZE as usize]).await.unwrap();
    handle.staged().drain().await.unwrap();
    chunk
}

async fn flip(store: &Store, chunk: &rekindle_content::Pointer) {
    let key = rekindle_content::pack::key(chunk.pack);
    let mut object = store.get(&key).await.unwrap().0.to_vec();
    object[chunk.offset as usize + chunk.stored as usize / 2] ^= 1;
    store.put(&key, Bytes::from(object)).await.unwrap();
}

#[test]
fn what_a_check_found_is_told_until_a_salvage_or_another_check_ends_well() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = planted(&world.env(), &store, &["a"]).await;
        let told = || bed.volumes.impaired().into_iter().find_map(|one| one.unreadable);
        let found = || bed.volumes.note_check("a", Some("a chunk is damaged".to_owned()));
        assert_eq!(told(), None);
        found().await;
        let since = bed.env.wall_clock().0;
        bed.env.sleep(SECOND).await;
        assert_eq!(told(), Some((since, "a chunk is damaged".to_owned())), "it is not attached");
        bed.volumes.note_check("a", None).await;
        assert_eq!(told(), None, "another check has found nothing");
        found().await;
        drop(bed.volumes.attach("a").await.unwrap());
        bed.volumes.rename("a", "b").await.unwrap();
        assert!(told().is_some(), "neither an attach nor another name mends anything");
        bed.volumes.rename("b", "a").await.unwrap();
        bed.volumes.salvage("a", false).await.unwrap();
        assert_eq!(told(), None, "all is sound");
        // A salvage that finds what it may not give up says it in its own words.
        found().await;
        damage(&bed, "a").await;
        assert!(bed.volumes.salvage("a", false).await.unwrap().is_left);
        assert!(told().is_some_and(|(_, told)| told.contains("would be lost")), "{:?}", told());
    });
}

#[test]
fn damage_that_only_a_snapshot_reaches_is_mended_in_the_snapshot() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let chunk = only_in_a_snapshot(&bed).await;
        flip(&store, &chunk).await;
        let (root, snapshot) = {
            let vault = bed.vault("a").await;
            (vault.root, vault.snapshots[0].content.clone().unwrap().root)
        };
        let told = bed.volumes.salvage("a", false).await.unwrap().told;
        assert!(told.contains("1 damaged"), "{told}");
        assert_eq!(outcomes(&bed, "a").await, [Outcome::Repaired]);
        let vault = bed.vault("a").await;
        assert_eq!(vault.root, root, "nothing was damaged there");
        assert_ne!(vault.snapshots[0].content.as_ref().unwrap().root, snapshot);
        bed.volumes.stop(true).await.unwrap();
        drop(bed);
        // Without the cache that had the chunk.
        let bed = Bed::start(&world.env(), &store).await;
        let told = bed.volumes.salvage("a", false).await.unwrap().told;
        assert!(told.contains("all of them sound"), "{told}");
        bed.volumes.clone_of("a", "s", "b").await.unwrap();
        let clone = bed.volumes.attach("b").await.unwrap();
        assert_eq!(read(&clone, 0, SIZE as usize).await, [1; SIZE as usize]);
    });
}

#[test]
fn what_a_snapshot_lacks_is_told_until_it_is_back_or_given_up_and_is_never_invented() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let chunk = only_in_a_snapshot(&bed).await;
        bed.volumes.stop(true).await.unwrap();
        drop(bed);
        let bed = Bed::start(&world.env(), &store).await;
        flip(&store, &chunk).await;
        let before = bed.vault("a").await;
        // Not even a person's word changes what a snapshot is.
        for accepts in [false, true] {
            let told = bed.volumes.salvage("a", accepts).await.unwrap().told;
            assert!(told.contains("snapshot 's' lacks 1 chunk(s)"), "{told}");
            assert!(told.contains("`rekindle snapshot rm a s`"), "{told}");
            assert_eq!(bed.outcome_of_last("a").await, Some(Outcome::Waiting));
            let now = bed.vault("a").await;
            assert_eq!((now.root, &now.snapshots), (before.root, &before.snapshots));
        }
        let handle = bed.volumes.attach("a").await.unwrap();
        assert_eq!(read(&handle, 0, 10).await, [2; 10], "the volume itself is whole");
        flip(&store, &chunk).await;
        bed.volumes.salvage("a", false).await.unwrap();
        assert_eq!(bed.outcome_of_last("a").await, Some(Outcome::Sound), "it is back");
        flip(&store, &chunk).await;
        bed.volumes.salvage("a", false).await.unwrap();
        let told = || bed.volumes.impaired().into_iter().find_map(|one| one.unreadable);
        assert!(told().unwrap().1.contains("snapshot 's' lacks"), "{:?}", told());
        // A check that finds nothing has the fault looked at before its time.
        flip(&store, &chunk).await;
        bed.volumes.note_check("a", None).await;
        bed.env.sleep(SECOND).await;
        assert_eq!(told(), None, "it is back");
        flip(&store, &chunk).await;
        bed.volumes.salvage("a", false).await.unwrap();
        assert!(told().is_some());
        bed.volumes.remove_snapshot("a", "s").await.unwrap();
        bed.env.sleep(SECOND).await;
        assert_eq!(told(), None, "it is given up");
        assert_eq!(bed.outcome_of_last("a").await, Some(Outcome::Sound));
    });
}

#[test]
fn what_is_absent_is_waited_for_through_restarts_and_costs_nothing_when_it_comes_back() {
    let (world, store) = (World::new(9, Faults::none()), Mem::store());
    let (key, object, root) = world.block_on(async {
        let bed = planted(&world.env(), &store, &["a"]).await;
        bed.env.spawn("salvager", bed.volumes.salvager());
        let root = bed.vault("a").await.root;
        let key = rekindle_content::pack::key(bed.chunk("a").await.pack);
        let (object, _) = store.get(&key).await.unwrap();
        store.delete(&key).await.unwrap();
        let handle = bed.volumes.attach("a").await.unwrap();
        refusal(&handle).await;
        bed.env.sleep(5 * HOUR).await;
        refusal(&handle).await;
        bed.volumes.salvage("a", false).await.ok();
        assert_eq!(bed.vault("a").await.root, root);
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
        (key, object, root)
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.env.spawn("salvager", bed.volumes.salvager());
        bed.volumes.resume_salvages().await.unwrap();
        let reason = bed.volumes.show("a").await.unwrap().reason.unwrap();
        assert!(reason.contains("part of it cannot be read since"), "{reason}");
        let handle = bed.volumes.attach("a").await.unwrap();
        bed.env.sleep(5 * HOUR).await;
        assert_eq!(bed.vault("a").await.root, root);
        store.put(&key, object).await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, b"a");
        bed.env.sleep(2 * HOUR).await;
        assert_eq!(bed.volumes.show("a").await.unwrap().reason, None, "it is looked at again");
        assert_eq!(bed.outcome_of_last("a").await, Some(Outcome::Sound));
    });
}

#[test]
fn attempts_in_vain_are_few_and_no_restart_forgets_them() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("a")).await.unwrap();
        bed.faults.set(Plan::default());
        let handle = bed.volumes.attach("a").await.unwrap();
        write(&handle, 0, b"unfinished").await.unwrap();
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
        // Set the store back: the log then has changes of a generation that the vault has not seen.
        let vault = bed.vault("a").await;
        let key = Vault::key(vault.id);
        let set = async |bed: &Bed, generation| {
            let held = bed.writer.read::<Vault>(&key).await.unwrap().unwrap();
            let value = Vault { generation, ..held.value.clone() };
            bed.writer.replace(&held, value).await.unwrap();
        };
        set(&bed, Generation(0)).await;
        drop(bed);
        let bed = Bed::start(&world.env(), &store).await;

        let (one, other) = join(bed.volumes.attach("a"), bed.volumes.attach("a")).await;
        let (one, other) = (one.err().unwrap(), other.err().unwrap());
        assert_eq!((one.kind(), other.kind()), (Kind::Damaged, Kind::Damaged));
        assert!(one.to_string().contains("set back"), "{one}");
        assert_eq!(one.to_string(), other.to_string(), "both are told the same");
        assert_eq!(outcomes(&bed, "a").await, [Outcome::Failed], "one salvage for both");
        let soon = bed.volumes.attach("a").await.err().unwrap().to_string();
        assert!(soon.contains("just now") && soon.contains("set back"), "{soon}");
        bed.env.sleep(2 * SECOND).await;
        assert_eq!(kind(bed.volumes.attach("a").await), Kind::Damaged);
        assert_eq!(outcomes(&bed, "a").await.len(), 2);
        bed.volumes.stop(false).await.unwrap();
        drop(bed);

        let bed = Bed::start(&world.env(), &store).await;
        bed.env.sleep(60 * SECOND).await;
        let vain = bed.volumes.attach("a").await.err().unwrap().to_string();
        assert!(vain.contains("could change nothing"), "{vain}");
        assert_eq!(outcomes(&bed, "a").await.len(), 2);
        // An operator's salvage is allowed, and succeeds once the cause is gone.
        assert_eq!(kind(bed.volumes.salvage("a", false).await), Kind::Damaged);
        assert_eq!(bed.volumes.show("a").await.unwrap().state, State::Error);
        set(&bed, vault.generation).await;
        bed.volumes.salvage("a", false).await.unwrap();
        let handle = bed.volumes.attach("a").await.unwrap();
        assert_eq!(read(&handle, 0, 10).await, b"unfinished");
    });
}

#[test]
fn a_salvage_that_hangs_can_be_broken_off_and_holds_nobody_else_up() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = planted(&world.env(), &store, &["a", "b"]).await;
        let healthy = bed.volumes.attach("b").await.unwrap();
        damage(&bed, "a").await;
        bed.faults.set(Plan { latency: 1000 * SECOND, ..Plan::default() });
        let person = async {
            bed.env.sleep(2500 * SECOND).await;
            write(&healthy, 9, b"fine").await.unwrap();
            assert_eq!(read(&healthy, 9, 4).await, b"fine");
            assert!(bed.volumes.cancel_salvage("a"));
            bed.faults.set(Plan::default());
        };
        let (broken, ()) = join(bed.volumes.salvage("a", false), person).await;
        assert!(matches!(broken, Err(Error::Cancelled(_))), "{broken:?}");
        assert!(!bed.volumes.cancel_salvage("a"));
        assert_eq!(bed.volumes.transitional(), (Vec::new(), 0));
        drop(bed.volumes.attach("a").await.unwrap());
        assert!(bed.volumes.salvage("a", false).await.unwrap().told.contains("1 damaged"));
    });
}

#[test]
fn a_stop_does_not_wait_for_salvages() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = planted(&world.env(), &store, &["a"]).await;
        damage(&bed, "a").await;
        bed.faults.set(Plan { latency: SECOND, ..Plan::default() });
        let stop = async {
            bed.env.sleep(5 * SECOND / 2).await;
            assert_eq!(bed.volumes.salvages()[0].volume, "a");
            bed.volumes.stop(false).await.unwrap();
            assert_eq!(bed.volumes.transitional(), (Vec::new(), 0));
        };
        let (broken, ()) = join(bed.volumes.salvage("a", false), stop).await;
        assert!(matches!(broken, Err(Error::Cancelled(_))), "{broken:?}");
        drop(bed);
        let bed = Bed::start(&world.env(), &store).await;
        // The beginning of the salvage may not even have been recorded.
        assert!(outcomes(&bed, "a").await.iter().all(|one| *one == Outcome::Interrupted));
        assert!(bed.volumes.salvage("a", false).await.unwrap().told.contains("1 damaged"));
    });
}

#[test]
fn what_was_cut_off_goes_on_in_the_next_life() {
    for dies in [true, false] {
        let (world, store) = (World::new(6, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = planted(&world.env(), &store, &["a", "b"]).await;
            damage(&bed, "a").await;
            bed.faults.set(Plan { latency: SECOND, ..Plan::default() });
            let cut = async {
                while bed.outcome_of_last("a").await != Some(Outcome::Running) {
                    bed.env.sleep(SECOND / 4).await;
                }
                if !dies {
                    bed.volumes.stop(false).await.unwrap();
                }
            };
            let salvage = std::pin::pin!(bed.volumes.salvage("a", false));
            futures_util::future::select(salvage, std::pin::pin!(cut)).await;
        });
        world.crash_process();
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.env.sleep(10 * SECOND).await;
            assert_eq!(bed.volumes.resume_salvages().await.unwrap(), 1);
            bed.env.sleep(SECOND).await;
            assert_eq!(outcomes(&bed, "a").await, [Outcome::Interrupted, Outcome::Waiting]);
            let history = bed.volumes.salvage_history("a").await.unwrap();
            assert_eq!(history[1].attempt, if dies { 2 } else { 1 });
            assert!(history[1].reason.contains("an operator asked"), "{history:?}");
            assert_eq!(bed.volumes.resume_salvages().await.unwrap(), 0);
            assert_eq!(bed.volumes.show("a").await.unwrap().state, State::Attached);
        });
    }
}

#[test]
fn nobody_but_a_person_goes_on_without_lost_changes_and_not_while_clients_hold_the_volume() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("a")).await.unwrap();
        let handle = bed.volumes.attach("a").await.unwrap();
        for block in 0..3u64 {
            write(&handle, block * 4096, &[0xa0 + block as u8; 4096]).await.unwrap();
        }
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
    });
    world.cut_power();
    let path = "/node/log/00000001.seg";
    let bytes = world.peek(path).unwrap();
    let at = bytes.windows(4096).position(|window| window == [0xa1; 4096]).unwrap();
    assert!(world.flip_bit(path, at as u64 + 99));
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let handle = bed.volumes.attach("a").await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, [0xa0]);
        let lost = handle.staged().drain().await.unwrap_err().to_string();
        assert!(lost.contains("rekindle salvage run a --accept-losses"), "{lost}");
        assert_eq!(kind(bed.volumes.salvage("a", true).await), Kind::Conflict, "it is held");
        drop(handle);
        let told = bed.volumes.salvage("a", true).await.unwrap().told;
        assert!(told.contains("kept: the changes up to serial 1"), "{told}");
        let history = bed.volumes.salvage_history("a").await.unwrap();
        assert_eq!(history[0].outcome, Outcome::Repaired);
        assert!(history[0].lines.iter().any(|line| line.contains("serial 3, bytes 8192..12288")));
        let handle = bed.volumes.attach("a").await.unwrap();
        assert_eq!(read(&handle, 0, 1).await, [0xa0]);
        assert_eq!(read(&handle, 4096, 4097).await, [0; 4097]);
        handle.staged().drain().await.unwrap();
        drop(handle);
        let again = bed.volumes.salvage("a", true).await.unwrap().told;
        assert!(again.contains("all of them sound") && !again.contains("given up"), "{again}");
    });
}

#[test]
fn what_would_be_lost_is_told_with_the_version_to_go_back_to() {
    let (world, store) = (World::new(11, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("a")).await.unwrap();
        let handle = bed.volumes.attach("a").await.unwrap();
        for content in [b"one", b"two"] {
            write(&handle, 0, content).await.unwrap();
            handle.staged().drain().await.unwrap();
        }
        drop(handle);
        bed.volumes.stop(false).await.unwrap();
        drop(bed);
        let bed = Bed::start(&world.env(), &store).await;
        damage(&bed, "a").await;
        let plan = bed.volumes.salvage("a", false).await.unwrap().told;
        let version = bed.volumes.versions("a").await.unwrap().remove(0).version;
        let words = format!("`rekindle volume rollback a --to {version}`");
        assert!(plan.contains(&words) && plan.contains("at most 3 bytes"), "{plan}");
        bed.volumes.rollback("a", &version, false).await.unwrap();
        assert_eq!(read(&bed.volumes.attach("a").await.unwrap(), 0, 3).await, b"one");
    });
}

/// No batch has met the damage yet, and the store is sound: the operator is told all the same.
#[test]
fn a_person_who_asks_is_told_of_damaged_changes_that_are_not_in_the_store_yet() {
    for in_service in [false, true] {
        let (world, store) = (World::new(8, Faults::none()), Mem::store());
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            bed.volumes.create(spec("a")).await.unwrap();
            let handle = bed.volumes.attach("a").await.unwrap();
            for block in 0..3u64 {
                write(&handle, block * 4096, &[0xa0 + block as u8; 4096]).await.unwrap();
            }
            drop(handle);
            bed.volumes.stop(false).await.unwrap();
        });
        world.cut_power();
        let path = "/node/log/00000001.seg";
        let bytes = world.peek(path).unwrap();
        let at = bytes.windows(4096).position(|window| window == [0xa1; 4096]).unwrap();
        assert!(world.flip_bit(path, at as u64 + 99));
        world.block_on(async {
            let bed = Bed::start(&world.env(), &store).await;
            if in_service {
                drop(bed.volumes.attach("a").await.unwrap());
            }
            for _ in 0..2 {
                let told = bed.volumes.salvage("a", false).await.unwrap().told;
                assert!(told.contains("nothing was given up"), "{told}");
                assert!(told.contains("serial 2 is damaged"), "{told}");
                assert!(told.contains("given up: serial 3, bytes 8192..12288"), "{told}");
                assert!(told.contains("salvage run a --accept-losses"), "{told}");
            }
            assert_eq!(outcomes(&bed, "a").await, [Outcome::Waiting; 2]);
            // Sound changes can be read, and a client may overwrite the damaged one.
            if in_service {
                let handle = bed.volumes.attach("a").await.unwrap();
                assert_eq!(read(&handle, 8192, 1).await, [0xa2]);
            }
            let told = bed.volumes.salvage("a", true).await.unwrap().told;
            assert!(told.contains("kept: the changes up to serial 1"), "{told}");
            let handle = bed.volumes.attach("a").await.unwrap();
            assert_eq!(read(&handle, 0, 1).await, [0xa0]);
            assert_eq!(read(&handle, 4096, 8192).await, [0; 8192]);
            handle.staged().drain().await.unwrap();
            let again = bed.volumes.salvage("a", false).await.unwrap().told;
            assert!(again.contains("all of them sound"), "{again}");
            assert!(!again.contains("unfinished"), "{again}");
        });
    }
}
