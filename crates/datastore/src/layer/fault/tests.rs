//! The layers, alone and together, in virtual time.

use super::{Plan, wrap};
use crate::backend::mem::Mem;
use crate::backoff::Policy;
use crate::layer::meter::Call;
use crate::layer::{retry, usual};
use crate::{Error, Version};
use bytes::Bytes;
use rekindle_env::sim::{Faults, World};
use std::time::Duration;

fn plan(text: &str) -> Plan {
    text.parse().unwrap()
}

#[test]
fn a_store_is_gone_for_a_while_and_comes_back() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, handle) = wrap(&env, Mem::store(), plan("gone=60s@5s"));
        store.put("a", Bytes::from_static(b"1")).await.unwrap();
        env.sleep(Duration::from_secs(6)).await;
        assert!(matches!(store.get("a").await, Err(Error::Unavailable(_))));
        env.sleep(Duration::from_secs(60)).await;
        store.get("a").await.unwrap();
        handle.set(plan("gone=1s"));
        assert!(matches!(store.list("", None).await, Err(Error::Unavailable(_))));
        handle.set(Plan::default());
        store.list("", None).await.unwrap();
    });
}

#[test]
fn latency_and_failures_come_as_often_as_asked_for() {
    let world = World::new(2, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, _) = wrap(&env, Mem::store(), plan("latency=10ms,fail=20%"));
        let began = env.now();
        let mut failed = 0;
        for _ in 0..1000 {
            let call = env.now();
            failed += u32::from(store.put("a", Bytes::new()).await.is_err());
            let took = env.now().since(call);
            assert!(
                took >= Duration::from_millis(5) && took <= Duration::from_millis(16),
                "{took:?}"
            );
        }
        assert!((150..250).contains(&failed), "{failed} of 1000");
        let mean = env.now().since(began) / 1000;
        assert!(mean > Duration::from_millis(9) && mean < Duration::from_millis(11), "{mean:?}");
    });
}

#[test]
fn all_calls_share_the_rate_of_the_line() {
    let world = World::new(2, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, _) = wrap(&env, Mem::store(), plan("rate=1M"));
        let began = env.now();
        store.put("a", Bytes::from(vec![0; 1 << 20])).await.unwrap();
        let half = || store.get_range("a", 0..1 << 19);
        futures_util::try_join!(half(), half(), store.get("a")).unwrap();
        let took = env.now().since(began);
        assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(4), "{took:?}");
    });
}

#[test]
fn what_may_be_repeated_is_repeated_and_the_rest_is_not() {
    let world = World::new(3, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (faulty, handle) = wrap(&env, Mem::store(), plan("fail=50%"));
        let store = retry::wrap(&env, faulty, Policy::CALLS);
        for _ in 0..200 {
            store.put("a", Bytes::from_static(b"1")).await.unwrap();
            assert_eq!(store.get("a").await.unwrap().0, "1");
            assert_eq!(store.get_range("a", 0..9).await.unwrap(), "1");
            assert_eq!(store.list("", None).await.unwrap().len(), 1);
            store.delete("a").await.unwrap();
        }
        handle.set(plan("fail=100%"));
        let began = env.now();
        assert!(matches!(store.create("b", Bytes::new()).await, Err(Error::Unavailable(_))));
        assert!(matches!(
            store.replace("b", Bytes::new(), &Version("x".into())).await,
            Err(Error::Unavailable(_))
        ));
        assert_eq!(
            env.now().since(began).as_millis(),
            0,
            "conditional writes are not repeated here"
        );
        assert!(matches!(store.get("a").await, Err(Error::Unavailable(_))));
        let took = env.now().since(began);
        assert!(took > Policy::CALLS.budget / 2 && took <= Policy::CALLS.budget, "{took:?}");
        handle.set(Plan::default());
        assert!(
            matches!(store.get("a").await, Err(Error::NotFound(_))),
            "an answer is not repeated"
        );
    });
}

#[test]
fn the_meter_tells_what_callers_saw() {
    let world = World::new(4, Faults::none());
    let env = world.env();
    world.block_on(async {
        let layers = usual(&env, Mem::store(), plan("latency=4ms"));
        let (store, meter, handle) = (layers.store, layers.meter, layers.faults);
        for _ in 0..20 {
            store.put("a", Bytes::from_static(b"1234")).await.unwrap();
        }
        assert!(store.get("absent").await.is_err());
        handle.set(plan("gone=1h"));
        assert!(store.get("a").await.is_err());
        let put = meter.read(Call::Put);
        assert_eq!((put.calls, put.errors, put.bytes), (20, 0, 80));
        assert!(
            put.latency > Duration::from_millis(2) && put.latency < Duration::from_millis(7),
            "{:?}",
            put.latency
        );
        let get = meter.read(Call::Get);
        assert_eq!((get.calls, get.errors, get.bytes), (2, 1, 0));
        assert_eq!(meter.read(Call::List).calls, 0);
    });
}

#[test]
fn a_prefix_is_empty_for_a_while_and_what_is_written_there_meanwhile_is_lost() {
    let world = World::new(5, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, _) = wrap(&env, Mem::store(), plan("absent=packs/data/:60s@5s"));
        for key in ["packs/data/a", "packs/meta/b"] {
            store.put(key, Bytes::from_static(b"1")).await.unwrap();
        }
        env.sleep(Duration::from_secs(6)).await;
        assert!(matches!(store.get("packs/data/a").await, Err(Error::NotFound(_))));
        assert!(store.list("packs/data/", None).await.unwrap().is_empty());
        let listed = store.list("packs/", None).await.unwrap();
        assert!(listed.len() == 1 && listed[0].key == "packs/meta/b", "{listed:?}");
        store.put("packs/data/c", Bytes::new()).await.unwrap();
        assert_eq!(store.list("packs/data/", None).await.unwrap().len(), 1);
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!(store.get("packs/data/a").await.unwrap().0, "1");
        assert!(matches!(store.get("packs/data/c").await, Err(Error::NotFound(_))));
    });
}

#[test]
fn answers_are_old_late_doubled_silent_and_wrong_as_asked_for() {
    let world = World::new(6, Faults::none());
    let env = world.env();
    world.block_on(async {
        let (store, handle) = wrap(&env, Mem::store(), plan("stale=100%"));
        store.put("a", Bytes::from_static(b"1")).await.unwrap();
        assert!(matches!(store.get("a").await, Err(Error::NotFound(_))), "before the first write");
        store.put("a", Bytes::from_static(b"2")).await.unwrap();
        assert_eq!(store.get("a").await.unwrap().0, "1");
        store.list("", None).await.unwrap();
        store.delete("a").await.unwrap();
        assert_eq!(store.list("", None).await.unwrap().len(), 1, "an old list");
        // A late write is reported as failed, and lands after all.
        handle.set(plan("late=100%"));
        assert!(matches!(store.put("late", Bytes::new()).await, Err(Error::Unavailable(_))));
        handle.set(Plan::default());
        assert!(matches!(store.get("late").await, Err(Error::NotFound(_))));
        env.sleep(Plan::LATE).await;
        store.get("late").await.unwrap();
        // A duplicated write arrives again, over a newer one.
        handle.set(plan("twice=100%"));
        store.put("twice", Bytes::from_static(b"1")).await.unwrap();
        handle.set(Plan::default());
        store.put("twice", Bytes::from_static(b"2")).await.unwrap();
        env.sleep(Plan::LATE).await;
        assert_eq!(store.get("twice").await.unwrap().0, "1");
        handle.set(plan("silent=100%"));
        let began = env.now();
        assert!(matches!(store.get("twice").await, Err(Error::Unavailable(_))));
        assert_eq!(env.now().since(began).as_secs(), Plan::SILENCE.as_secs());
        handle.set(plan("flip=100%"));
        let (wrong, _) = store.get("twice").await.unwrap();
        assert_eq!((wrong[0] ^ b'1').count_ones(), 1);
        store.put("packs/data/a", Bytes::from_static(b"1")).await.unwrap();
        assert_eq!(store.get("packs/data/a").await.unwrap().0, "1", "records only");
    });
}
