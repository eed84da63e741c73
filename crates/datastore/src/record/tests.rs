//! Records over a store whose answers are wrong.

use super::*;
use crate::backend::mem::Mem;
use crate::layer::fault::{self, Plan};
use futures_util::future::join_all;
use proptest::prelude::*;
use rekindle_env::sim::{Faults, World};
use serde::Deserialize;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Counter {
    count: u64,
}

impl Body for Counter {
    const WHAT: &'static str = "counter";
    const FORMAT: u32 = 2;
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Other {}

impl Body for Other {
    const WHAT: &'static str = "other";
    const FORMAT: u32 = 1;
}

const SECRET: Secret = Secret([0x53; 32]);

fn writer(world: &World, store: &Store, number: u8) -> Writer {
    Writer::new(world.env(), store.clone(), NodeId([number; 16]))
}

/// The counts that one writer knows of.
#[derive(Debug, Default)]
struct Tally {
    counted: u64,
    open: u64,
    created: u64,
}

/// Counts `rounds` times, as callers must: after an open outcome it reads before it goes on.
async fn count(writer: &Writer, rounds: u64) -> Tally {
    let mut tally = Tally::default();
    match writer.create("counter", Counter { count: 0 }).await {
        Ok(_) => tally.created += 1,
        Err(Error::Exists(_)) => {}
        Err(error) => panic!("create: {error}"),
    }
    while tally.counted + tally.open < rounds {
        let held = match writer.read::<Counter>("counter").await {
            Ok(held) => held.expect("it was created"),
            Err(Error::Unavailable(_)) => continue,
            Err(error) => panic!("read: {error}"),
        };
        let next = Counter { count: held.value.count + 1 };
        match writer.replace(&held, next.clone()).await {
            Ok(now) => {
                assert_eq!(now.value, next);
                tally.counted += 1;
            }
            Err(Error::Conflict(_)) => {}
            Err(Error::Unavailable(_)) => tally.open += 1,
            Err(error) => panic!("replace: {error}"),
        }
    }
    tally
}

/// Lets several writers, each over a bad connection of its own, count in one good store. Returns
/// the known and the open counts, and the final value.
fn race(seed: u64, plan: &str, writers: u8, rounds: u64) -> (Tally, u64) {
    let world = World::new(seed, Faults::none());
    let store = Mem::store();
    let all: Vec<Writer> = (0..writers)
        .map(|number| {
            let (faulty, _) =
                fault::wrap(&world.env(), store.clone(), plan.parse::<Plan>().unwrap());
            writer(&world, &faulty, number)
        })
        .collect();
    let tallies = world.block_on(join_all(all.iter().map(|writer| count(writer, rounds))));
    let mut sum = Tally::default();
    for tally in tallies {
        sum.counted += tally.counted;
        sum.open += tally.open;
        sum.created += tally.created;
    }
    let (data, _) = world.block_on(store.get("counter")).unwrap();
    let (end, mark) = decode_as::<Counter>("counter", &data).unwrap();
    assert_eq!(mark.edition, end.count + 1, "each write counts one (seed {seed})");
    (sum, end.count)
}

#[test]
fn no_lie_loses_or_doubles_an_increment() {
    for seed in 0..2000 {
        let lies = 10 + seed % 50;
        let (sum, end) = race(seed, &format!("latency=2ms,lie={lies}%,fail=10%"), 4, 6);
        assert_eq!(
            (sum.created, sum.open, sum.counted, end),
            (1, 0, 24, 24),
            "seed {seed}: {sum:?}"
        );
    }
}

#[test]
fn after_a_long_absence_what_cannot_be_known_is_left_open() {
    let mut opened = 0;
    for seed in 0..30 {
        // One writer is cut off for longer than the record's history; it must not guess.
        let world = World::new(seed, Faults::none());
        let store = Mem::store();
        let (far, handle) = fault::wrap(&world.env(), store.clone(), Plan::default());
        let (near, far) = (writer(&world, &store, 1), writer(&world, &far, 2));
        world.block_on(async {
            let held = near.create("counter", Counter { count: 0 }).await.unwrap();
            handle.set("latency=1ms,lie=100%,gone=10s@2ms".parse().unwrap());
            let away = far.replace(&held, Counter { count: 1 });
            let others = async {
                near.env.sleep(Duration::from_secs(1)).await;
                count(&near, 50).await
            };
            let (outcome, others) = futures_util::future::join(away, others).await;
            let end = near.read::<Counter>("counter").await.unwrap().unwrap().value.count;
            match outcome {
                Err(Error::Unavailable(_)) => {
                    opened += 1;
                    assert!(end == others.counted || end == others.counted + 1);
                }
                Ok(_) => assert_eq!(end, others.counted + 1, "seed {seed}"),
                Err(_) => assert_eq!(end, others.counted, "seed {seed}"),
            }
        });
    }
    assert!(opened > 0, "the case that this is about came up");
}

#[test]
fn a_write_of_a_vault_is_told_until_it_cannot_land_any_more() {
    let world = World::new(1, Faults::none());
    let (slow, _) =
        fault::wrap(&world.env(), Mem::store(), "latency=20ms".parse::<Plan>().unwrap());
    let writer = writer(&world, &slow, 1);
    world.block_on(async {
        let told = |since| writer.vaults().since(since).unwrap();
        writer.create("names/a", Counter { count: 0 }).await.unwrap();
        assert_eq!(told(0), (0, Vec::new()), "no vault");
        let key = "volumes/a".to_owned();
        let held = writer.create(&key, Counter { count: 0 }).await.unwrap();
        assert_eq!((told(0), told(1)), ((1, vec![key.clone()]), (1, Vec::new())));
        let write = writer.replace(&held, Counter { count: 1 });
        assert!(world.env().timeout(Duration::from_millis(1), write).await.is_err());
        assert_eq!(told(1), (1, vec![key.clone()]), "it may be on its way");
        let held = writer.read::<Counter>(&key).await.unwrap().unwrap();
        let held = writer.replace(&held, Counter { count: 2 }).await.unwrap();
        assert_eq!(told(1), (3, vec![key.clone()]));
        writer.replace(&held, Counter { count: 3 }).await.unwrap();
        assert!(matches!(writer.remove(&held).await, Err(Error::Conflict(_))));
        assert_eq!(told(3), (5, vec![key]));
    });
}

#[test]
fn an_unreachable_store_is_said_to_be_so() {
    let world = World::new(1, Faults::none());
    let (faulty, handle) = fault::wrap(&world.env(), Mem::store(), Plan::default());
    let writer = writer(&world, &faulty, 1);
    world.block_on(async {
        let held = writer.create("counter", Counter { count: 0 }).await.unwrap();
        handle.set("gone=1h".parse().unwrap());
        let began = writer.env.now();
        let error = writer.replace(&held, Counter { count: 1 }).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(writer.env.now().since(began) <= Policy::RECORDS.budget);
        assert!(matches!(
            writer.create("x", Counter { count: 0 }).await,
            Err(Error::Unavailable(_))
        ));
        // The store is back within the budget: the same call succeeds.
        handle.set("gone=3s".parse().unwrap());
        let held = writer.replace(&held, Counter { count: 1 }).await.unwrap();
        assert_eq!(held.mark().edition, 2);
    });
}

#[test]
fn a_record_says_who_wrote_what_when() {
    let world = World::new(1, Faults::none());
    let store = Mem::store();
    let writer = writer(&world, &store, 0xab);
    world.block_on(async {
        let held = writer.create("counter", Counter { count: 7 }).await.unwrap();
        assert!(matches!(
            writer.create("counter", Counter { count: 8 }).await,
            Err(Error::Exists(_))
        ));
        let stale = held.clone();
        writer.replace(&held, Counter { count: 8 }).await.unwrap();
        assert!(matches!(
            writer.replace(&stale, Counter { count: 9 }).await,
            Err(Error::Conflict(_))
        ));
        let (data, _) = store.get("counter").await.unwrap();
        let envelope = decode("counter", &data).unwrap();
        assert_eq!(
            (envelope.what.as_str(), envelope.format, envelope.writer.node),
            ("counter", 2, NodeId([0xab; 16]))
        );
        assert_eq!((envelope.mark.edition, envelope.mark.before.0.len()), (2, 1));
        assert_eq!(envelope.body["count"], 8);
        store.delete("counter").await.unwrap();
        let gone = Held { version: store.create("dummy", data).await.unwrap(), ..held };
        assert!(matches!(
            writer.replace(&gone, Counter { count: 9 }).await,
            Err(Error::Conflict(_))
        ));
    });
}

#[test]
fn old_records_are_read_for_ever() {
    let golden = include_bytes!("../../golden/record-1.json");
    let (value, mark) = decode_as::<Counter>("golden", golden).unwrap();
    assert_eq!((value.count, mark.edition, mark.nonce), (41, 3, Nonce(0x0123_4567_89ab_cdef)));
    assert_eq!(mark.before.0, [Nonce(0xfedc_ba98_7654_3210), Nonce(0x0f0f_0f0f_0f0f_0f0f)]);
}

#[test]
fn what_is_written_today_reads_and_writes_the_same_for_ever() {
    let golden = include_bytes!("../../golden/record-2.json");
    let found = envelope::decode_with::<Counter>("golden", golden, Some(&SECRET)).unwrap();
    let writer = Life { node: NodeId([0x5a; 16]), incarnation: Incarnation(7) };
    assert_eq!((found.value.count, found.mark.edition, found.writer), (41, 3, writer));
    let written = rekindle_env::Timestamp(1_767_225_600_000_000);
    let again =
        envelope::encode("golden", &found.value, writer, &found.mark, written, Some(&SECRET));
    assert_eq!(String::from_utf8_lossy(&again.unwrap()), String::from_utf8_lossy(golden));
    assert_eq!(decode("golden", golden).unwrap().seal, Seal::Proof);
}

#[test]
fn no_byte_of_a_record_changes_unnoticed() {
    let world = World::new(1, Faults::none());
    let store = Mem::store();
    for secret in [None, Some(SECRET)] {
        let plain = writer(&world, &store, 1).with_incarnation(Incarnation(3));
        let writer = secret.map_or(plain.clone(), |secret| plain.clone().with_secret(secret));
        let key = if secret.is_some() { "proved" } else { "summed" };
        let whole = world.block_on(async {
            writer.create(key, Counter { count: 24 }).await.unwrap();
            let held = plain.read::<Counter>(key).await.unwrap().unwrap();
            assert_eq!(held.writer(), Life { node: NodeId([1; 16]), incarnation: Incarnation(3) });
            store.get(key).await.unwrap().0
        });
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 1 << bit;
                let error = decode_as::<Counter>(key, &bytes).map(drop).unwrap_err();
                assert!(
                    matches!(&error, Error::Damaged { .. }),
                    "bit {bit} of byte {at} in {}: {error}",
                    String::from_utf8_lossy(&whole)
                );
            }
            for end in ["", "\n", " ", "}"] {
                let cut = [&whole[..at], end.as_bytes()].concat();
                let read = decode_as::<Counter>(key, &cut);
                assert!(matches!(read, Err(Error::Damaged { .. })) || cut == whole, "{at} {end:?}");
            }
        }
        let longer = [&whole[..], b"\n"].concat();
        assert!(matches!(decode_as::<Counter>(key, &longer), Err(Error::Damaged { .. })));
    }
}

#[test]
fn a_record_of_another_store_is_damage_and_is_called_so() {
    let world = World::new(1, Faults::none());
    let store = Mem::store();
    let ours = writer(&world, &store, 1).with_secret(SECRET);
    let theirs = writer(&world, &store, 2).with_secret(Secret([9; 32]));
    world.block_on(async {
        let held = theirs.create("counter", Counter { count: 1 }).await.unwrap();
        let error = ours.read::<Counter>("counter").await.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("the secret of this store"), "{error}");
        let error = ours.create("counter", Counter { count: 2 }).await.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Damaged { .. }), "never written over: {error}");
        theirs.replace(&held, Counter { count: 2 }).await.unwrap();
        // This record is from a writer without the secret, as an older version is.
        writer(&world, &store, 3).create("plain", Counter { count: 1 }).await.unwrap();
        assert_eq!(ours.read::<Counter>("plain").await.unwrap().unwrap().value.count, 1);
    });
}

/// A store that cannot remove under a condition.
struct Plain(Store);

impl crate::Datastore for Plain {
    fn put<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> rekindle_env::BoxFuture<'a, Result<(), Error>> {
        self.0.put(key, data)
    }
    fn create<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
    ) -> rekindle_env::BoxFuture<'a, Result<Version, Error>> {
        self.0.create(key, data)
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        data: Bytes,
        version: &'a Version,
    ) -> rekindle_env::BoxFuture<'a, Result<Version, Error>> {
        self.0.replace(key, data, version)
    }
    fn get<'a>(
        &'a self,
        key: &'a str,
    ) -> rekindle_env::BoxFuture<'a, Result<(Bytes, Version), Error>> {
        self.0.get(key)
    }
    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: std::ops::Range<u64>,
    ) -> rekindle_env::BoxFuture<'a, Result<Bytes, Error>> {
        self.0.get_range(key, range)
    }
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
    ) -> rekindle_env::BoxFuture<'a, Result<Vec<crate::Listed>, Error>> {
        self.0.list(prefix, after)
    }
    fn delete<'a>(&'a self, key: &'a str) -> rekindle_env::BoxFuture<'a, Result<(), Error>> {
        self.0.delete(key)
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

fn both_kinds_of_stores() -> [Store; 2] {
    [Mem::store(), Arc::new(Plain(Mem::store()))]
}

#[test]
fn a_record_is_removed_only_as_it_was_seen_and_can_be_made_anew() {
    for store in both_kinds_of_stores() {
        let world = World::new(1, Faults::none());
        let writer = writer(&world, &store, 1);
        world.block_on(async {
            let old = writer.create("counter", Counter { count: 1 }).await.unwrap();
            let held = writer.replace(&old, Counter { count: 2 }).await.unwrap();
            assert!(matches!(writer.remove(&old).await, Err(Error::Conflict(_))));
            let there = writer.read::<Counter>("counter").await.unwrap().unwrap();
            assert_eq!(there.value.count, 2);
            writer.remove(&held).await.unwrap();
            assert!(writer.read::<Counter>("counter").await.unwrap().is_none());
            let gone = writer.replace(&held, Counter { count: 3 }).await;
            assert!(matches!(gone, Err(Error::Conflict(_))));
            let made = writer.create("counter", Counter { count: 4 }).await.unwrap();
            // The removed record stays gone; the new one is another.
            let _ = writer.remove(&held).await;
            let there = writer.read::<Counter>("counter").await.unwrap().unwrap();
            assert_eq!((there.value.count, there.mark().nonce), (4, made.mark().nonce));
            let taken = writer.create("counter", Counter { count: 5 }).await;
            assert!(matches!(taken, Err(Error::Exists(_))));
        });
    }
}

/// Several writers make and remove one record over bad connections. A writer that was told of its
/// success finds the record until a holder of that record removes it.
#[test]
fn no_removal_takes_away_what_somebody_else_has_made() {
    for seed in 0..600 {
        let world = World::new(seed, Faults::none());
        let store = both_kinds_of_stores()[seed as usize % 2].clone();
        let plan = format!("latency=2ms,lie={}%,fail=10%", seed % 40);
        let made = parking_lot::Mutex::new(std::collections::HashMap::<u64, u32>::new());
        let writers: Vec<Writer> = (0..4)
            .map(|number| {
                let (faulty, _) =
                    fault::wrap(&world.env(), store.clone(), plan.parse::<Plan>().unwrap());
                writer(&world, &faulty, number)
            })
            .collect();
        let work = |writer: Writer| {
            let made = &made;
            async move {
                for _ in 0..8 {
                    let count = writer.env.random_u64() >> 12;
                    match writer.create("counter", Counter { count }).await {
                        Ok(held) => {
                            *made.lock().entry(count).or_default() += 1;
                            writer.env.sleep(Duration::from_millis(3)).await;
                            // No other writer holds this very record, so it must still be there.
                            writer.remove(&held).await.unwrap_or_else(|error| {
                                assert!(matches!(error, Error::Unavailable(_)), "{seed}: {error}");
                            });
                        }
                        Err(Error::Exists(_) | Error::Unavailable(_)) => {}
                        Err(error) => panic!("{seed}: {error}"),
                    }
                    writer.env.sleep(Duration::from_millis(writer.env.random_u64() % 4)).await;
                }
            }
        };
        world.block_on(join_all(writers.into_iter().map(work)));
        assert!(!made.lock().is_empty());
    }
}

/// A record whose fields must agree.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Span {
    from: u64,
    to: u64,
}

impl Body for Span {
    const WHAT: &'static str = "span";
    const FORMAT: u32 = 1;

    fn check(&self) -> Result<(), String> {
        let good = self.from <= self.to;
        if good { Ok(()) } else { Err(format!("it ends at {}, before it begins", self.to)) }
    }
}

#[test]
fn fields_that_mean_nothing_together_are_neither_read_nor_written() {
    let world = World::new(1, Faults::none());
    let store = Mem::store();
    let writer = writer(&world, &store, 1);
    world.block_on(async {
        let error = writer.create("span", Span { from: 2, to: 1 }).await.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains("before it begins")));
        let text = r#"{"rekindle":"span","format":1,"writer":"00000000000000000000000000000000",
            "nonce":"0000000000000001","body":{"from":2,"to":1}}"#;
        store.put("span", Bytes::from(text)).await.unwrap();
        let error = writer.read::<Span>("span").await.map(drop).unwrap_err();
        assert!(matches!(&error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("before it begins"), "{error}");
    });
}

#[test]
fn unknown_fields_are_tolerated_and_wrong_records_refused() {
    let fine = r#"{"rekindle":"counter","format":1,"writer":"00000000000000000000000000000000","nonce":"0000000000000001",
        "later":[1,2],"body":{"count":3,"colour":"red"}}"#;
    assert_eq!(decode_as::<Counter>("k", fine.as_bytes()).unwrap().0.count, 3);
    let newer =
        fine.replace("\"format\":1", "\"format\":3").replace("\"count\":3", "\"amount\":{}");
    let error = decode_as::<Counter>("k", newer.as_bytes()).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 3, known: 2, .. }), "{error}");
    assert!(decode("k", newer.as_bytes()).is_ok(), "inspect reads what it does not know");
    let error = decode_as::<Other>("k", fine.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("it is a 'counter', a 'other' was expected"), "{error}");
    let wrong = fine.replace("\"count\":3", "\"count\":\"many\"");
    let error = decode_as::<Counter>("k", wrong.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    for garbage in ["", "{", "[]", "null", "{\"rekindle\":1}", &"[".repeat(100_000)] {
        assert!(
            matches!(decode("k", garbage.as_bytes()), Err(Error::Damaged { .. })),
            "{garbage:.20}"
        );
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode("k", &bytes);
        let _ = decode_as::<Counter>("k", &bytes);
    }

    #[test]
    fn any_bytes_within_a_record_too(at in 0..600_usize, piece in prop::collection::vec(any::<u8>(), 0..40)) {
        let golden = include_bytes!("../../golden/record-2.json");
        let (head, rest) = golden.split_at(at % golden.len());
        let bytes = [head, &piece, &rest[piece.len().min(rest.len())..]].concat();
        let read = decode_as::<Counter>("k", &bytes);
        prop_assert!(read.is_err() || bytes == golden);
    }

    #[test]
    fn a_record_with_a_wrong_byte_too(at in 0..250_usize, byte in any::<u8>()) {
        let mut bytes = include_bytes!("../../golden/record-1.json").to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = decode("k", &bytes);
        let _ = decode_as::<Counter>("k", &bytes);
    }
}

/// A record that the cache keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Owned {
    count: u64,
}

impl Body for Owned {
    const WHAT: &'static str = "owned";
    const FORMAT: u32 = 1;
    const CACHED: bool = true;
}

#[derive(Default)]
struct MapCache(parking_lot::Mutex<std::collections::HashMap<String, Vec<u8>>>);

impl RecordCache for MapCache {
    fn find(&self, key: &str) -> Option<Vec<u8>> {
        self.0.lock().get(key).cloned()
    }

    fn keep(&self, key: &str, bytes: &[u8]) {
        self.0.lock().insert(key.to_owned(), bytes.to_vec());
    }

    fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

/// Several tasks of one node write and read one record over a bad connection to the store; at any
/// moment the process may die. A copy that is cached then equals the record in the store.
#[test]
fn a_copy_is_what_lies_in_the_store_whenever_one_looks() {
    let (mut found, mut none) = (0, 0);
    for seed in 0..2000 {
        let world = World::new(seed, Faults::none());
        let store = Mem::store();
        let plan = format!("latency=2ms,fail={}%", seed % 30);
        let (faulty, _) = fault::wrap(&world.env(), store.clone(), plan.parse::<Plan>().unwrap());
        let kept = Arc::new(MapCache::default());
        let writer = writer(&world, &faulty, 1).with_cache(kept.clone());
        let stop = rekindle_env::sim::Stop::Step(world.env().random_u64() % 400);
        world.block_on_until(stop, async {
            let _ = writer.create("owned", Owned { count: 0 }).await;
            let work = (0..1 + seed % 3).map(|number| {
                let writer = &writer;
                async move {
                    for _ in 0..10 {
                        if number == 2 {
                            let _ = writer.read_and_keep::<Owned>("owned").await;
                        } else if let Ok(Some(held)) = writer.read::<Owned>("owned").await {
                            let next = Owned { count: held.value.count + 1 };
                            let _ = writer.replace(&held, next).await;
                        }
                        writer.env.sleep(Duration::from_millis(writer.env.random_u64() % 4)).await;
                    }
                }
            });
            join_all(work).await;
        });
        // The next life reads its copy.
        let copy = writer.copy::<Owned>("owned");
        let Some(copy) = copy else {
            none += 1;
            continue;
        };
        found += 1;
        let (data, version) = world.block_on(store.get("owned")).unwrap();
        let (value, mark) = decode_as::<Owned>("owned", &data).unwrap();
        assert_eq!((copy.value, copy.version, copy.mark), (value, version, mark), "seed {seed}");
    }
    assert!(found > 300 && none > 300, "{found} found, {none} not");
}

#[test]
fn damaged_copies_are_not_believed() {
    let world = World::new(1, Faults::none());
    let kept = Arc::new(MapCache::default());
    let writer = writer(&world, &Mem::store(), 1).with_cache(kept.clone());
    let held = world.block_on(writer.create("owned", Owned { count: 7 })).unwrap();
    assert_eq!(writer.copy::<Owned>("owned").unwrap().version, held.version);
    let whole = kept.find("owned").unwrap();
    for length in 0..whole.len() {
        kept.keep("owned", &whole[..length]);
        let _ = writer.copy::<Owned>("owned");
        kept.keep("owned", &[&whole[..length], &[0xff], &whole[length + 1..]].concat());
        let _ = writer.copy::<Owned>("owned");
    }
    assert!(writer.copy::<Other>("owned").is_none());
}
