//! Tests of a volume's life: attach, serve, detach, attach again.

use super::bed::{Bed, kind, read, spec, write};
use crate::registry::machine::Event;
use crate::*;
use futures_util::FutureExt;
use futures_util::future::join_all;
use rekindle_base::{Kind, NodeId};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::Vault;

fn events(volumes: &Volumes, name: &str) -> Vec<Event> {
    volumes.history(name).unwrap_or_default().into_iter().map(|change| change.event).collect()
}

#[test]
fn what_was_written_is_there_after_detach_and_after_a_crash() {
    let (world, store) = (World::new(1, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let made = bed.volumes.create(spec("vm1")).await.unwrap();
        assert_eq!((made.state, made.clients, made.vault.owner), (State::Unattached, 0, None));
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(handle.vault().id, made.vault.id);
        write(&handle, 100, b"first").await.unwrap();
        let shown = bed.volumes.show("vm1").await.unwrap();
        assert_eq!((shown.state, shown.clients), (State::Attached, 1));
        assert_eq!(shown.backlog.unwrap().changes, 1);
        assert_eq!(kind(bed.volumes.detach("vm1").await), Kind::Conflict);
        let stale = handle.clone();
        drop(handle);
        assert_eq!(
            kind(bed.volumes.detach("vm1").await),
            Kind::Conflict,
            "a clone is the same hold"
        );
        drop(stale);
        bed.volumes.detach("vm1").await.unwrap();
        assert_eq!(bed.volumes.show("vm1").await.unwrap().state, State::Unattached);
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 98, 9).await, b"\0\0first\0\0");
        write(&handle, 103, b"second").await.unwrap();
        use Event::*;
        let expected = [Attach, AttachDone, Offline, OfflineDone, Attach, AttachDone];
        assert_eq!(events(&bed.volumes, "vm1"), expected);
    });
    world.crash_process();
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        assert_eq!(bed.volumes.history("vm1"), None, "nothing is known, nothing was read");
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(read(&handle, 100, 9).await, b"firsecond");
        assert_eq!(handle.vault().generation.0, 1, "it was ours: nothing to write");
    });
}

#[test]
fn an_attach_of_what_is_ours_writes_nothing() {
    let (world, store) = (World::new(2, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let id = bed.volumes.create(spec("vm1")).await.unwrap().vault.id;
        drop(bed.volumes.attach("vm1").await.unwrap());
        bed.volumes.detach("vm1").await.unwrap();
        let before = bed.writer.read::<Vault>(&Vault::key(id)).await.unwrap().unwrap();
        assert_eq!((before.value.owner, before.value.generation.0), (Some(bed.writer.node), 1));
        drop(bed.volumes.attach("vm1").await.unwrap());
        let after = bed.writer.read::<Vault>(&Vault::key(id)).await.unwrap().unwrap();
        assert_eq!(before.version, after.version);
    });
}

#[test]
fn concurrent_clients_share_one_attach() {
    let (world, store) = (World::new(3, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        let handles = join_all((0..20).map(|_| bed.volumes.attach("vm1"))).await;
        let handles: Vec<Handle> = handles.into_iter().map(Result::unwrap).collect();
        assert_eq!(events(&bed.volumes, "vm1"), [Event::Attach, Event::AttachDone]);
        assert_eq!(bed.volumes.show("vm1").await.unwrap().clients, 20);
        drop(handles);
        let shown = bed.volumes.show("vm1").await.unwrap();
        assert_eq!((shown.clients, shown.state), (0, State::Attached), "it stays for the next one");

        // Concurrent clients share a failure, too.
        let failures = join_all((0..5).map(|_| bed.volumes.attach("vm2"))).await;
        assert!(failures.into_iter().all(|failure| kind(failure) == Kind::NotFound));
        assert_eq!(bed.volumes.history("vm2"), None, "names that do not exist are not remembered");
    });
}

#[test]
fn an_attach_goes_on_when_its_client_has_gone() {
    let (world, store) = (World::new(4, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        bed.faults.set(Plan { latency: std::time::Duration::from_millis(1), ..Plan::default() });
        assert!(bed.volumes.attach("vm1").now_or_never().is_none(), "begun, then given up");
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(events(&bed.volumes, "vm1"), [Event::Attach, Event::AttachDone]);
        drop(handle);
    });
}

#[test]
fn a_store_that_is_away_fails_the_attach_and_the_next_client_tries_again() {
    let (world, store) = (World::new(5, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start_without_cache(&world.env(), &store).await;
        bed.volumes.create(spec("vm1")).await.unwrap();
        bed.faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::Unavailable);
        assert_eq!(bed.volumes.history("vm1"), None, "not known to exist");
        assert_eq!(kind(bed.volumes.list().await), Kind::Unavailable, "never an empty list");
        bed.faults.set(Plan::default());
        drop(bed.volumes.attach("vm1").await.unwrap());
        bed.volumes.detach("vm1").await.unwrap();
        bed.faults.set(Plan { fail_percent: 100.0, ..Plan::default() });
        assert_eq!(kind(bed.volumes.attach("vm1").await), Kind::Unavailable);
        bed.faults.set(Plan::default());
        let shown = bed.volumes.show("vm1").await.unwrap();
        assert_eq!(shown.state, State::Unattached);
        assert!(shown.reason.unwrap().contains("injected"));
        drop(bed.volumes.attach("vm1").await.unwrap());
        assert_eq!(bed.volumes.show("vm1").await.unwrap().reason, None);
    });
}

#[test]
fn a_volume_of_another_node_is_refused_and_one_that_was_taken_is_noticed() {
    let (world, store) = (World::new(6, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let id = bed.volumes.create(spec("vm1")).await.unwrap().vault.id;
        let handle = bed.volumes.attach("vm1").await.unwrap();
        write(&handle, 0, b"mine").await.unwrap();

        let other = NodeId([9; 16]);
        let held = bed.writer.read::<Vault>(&Vault::key(id)).await.unwrap().unwrap();
        let generation = held.value.generation.next();
        let taken = Vault { owner: Some(other), generation, ..held.value.clone() };
        bed.writer.replace(&held, taken).await.unwrap();
        assert!(handle.staged().drain().await.is_err(), "the vault refuses us");

        match bed.volumes.attach("vm1").await {
            Err(Error::Elsewhere(name, node)) => assert_eq!((name.as_str(), node), ("vm1", other)),
            other => panic!("{:?}", other.err()),
        }
        use Event::*;
        assert_eq!(events(&bed.volumes, "vm1"), [Attach, AttachDone, Failed, Attach, AttachFailed]);
        let shown = bed.volumes.show("vm1").await.unwrap();
        assert_eq!((shown.state, shown.vault.owner), (State::Unattached, Some(other)));
        assert!(matches!(bed.volumes.remove("vm1", true).await, Err(Error::Elsewhere(..))));
        // Another node's volume is neither damaged nor away, for any request.
        assert!(matches!(bed.volumes.trash("vm1", false).await, Err(Error::Elsewhere(..))));
        for accept_losses in [false, true] {
            let outcome = bed.volumes.salvage("vm1", accept_losses).await;
            assert!(matches!(outcome, Err(Error::Elsewhere(..))), "{outcome:?}");
        }
        let shown = bed.volumes.show("vm1").await.unwrap();
        assert_eq!(shown.state, State::Unattached);
        assert_eq!(bed.keys("names/").await, ["names/vm1"]);
    });
}

#[test]
fn changes_of_state_are_counted_told_and_timed() {
    let (world, store) = (World::new(7, Faults::none()), Mem::store());
    world.block_on(async {
        let bed = Bed::start(&world.env(), &store).await;
        let mut told = bed.volumes.watch();
        bed.volumes.create(spec("vm1")).await.unwrap();
        assert!(bed.volumes.states().values().all(|count| *count == 0));
        let handle = bed.volumes.attach("vm1").await.unwrap();
        assert_eq!(bed.volumes.states()[&State::Attached], 1);
        let first = told.recv().await.unwrap();
        assert_eq!(
            (first.from, first.to, first.cause.as_str()),
            (State::Unattached, State::Attaching, "first use")
        );
        bed.env.sleep(std::time::Duration::from_secs(3)).await;
        drop(handle);
        bed.volumes.remove("vm1", false).await.unwrap();
        let mut rest = Vec::new();
        while let Ok(change) = told.try_recv() {
            rest.push(change);
        }
        let path: Vec<State> = rest.iter().map(|change| change.to).collect();
        assert_eq!(path, [State::Attached, State::Offlining, State::Deleted]);
        assert!((3_000_000..4_000_000).contains(&rest[1].duration_us), "{}", rest[1].duration_us);
        assert!(
            bed.volumes.states().values().all(|count| *count == 0),
            "a removed volume is forgotten"
        );
    });
}
