//! The S3 backend against a real server. Prints `SKIPPED` and passes where there is none, unless `CI` is set.

mod versitygw;

use bytes::Bytes;
use rekindle_datastore::backend::s3::{Place, S3};
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_datastore::{Error, conformance, identity, layer, probe};
use std::time::Duration;
use versitygw::Server;

fn with_server(test: impl AsyncFnOnce(&env::Env, &Server)) {
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => {
            assert!(std::env::var_os("CI").is_none(), "{reason}, and CI is set");
            println!("SKIPPED: {reason}");
            return;
        }
    };
    let (env, runtime) = env::real::env().expect("this machine has threads");
    runtime.block_on(test(&env, &server));
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn s3_keeps_all_rules() {
    with_server(async |env, server| {
        for prefix in ["", "some/prefix"] {
            let store = server.store(env, prefix);
            conformance::run(env, &store).await.unwrap();
            probe(env, &store).await.unwrap();
        }
        conformance::markers(env, &server.store(env, "marked")).await.unwrap();
        let store = server.store(env, "clash");
        store.put("a", Bytes::new()).await.unwrap();
        store.put("b/c", Bytes::new()).await.unwrap();
        for clash in ["a/b", "b"] {
            let error = store.put(clash, Bytes::new()).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{clash}: {error}");
        }
    });
}

#[test]
fn two_prefixes_are_two_stores() {
    with_server(async |env, server| {
        let (one, two) = (server.store(env, "one"), server.store(env, "one-more"));
        one.put("a/b", Bytes::from_static(b"1")).await.unwrap();
        assert_eq!(two.list("", None).await.unwrap(), []);
        let whole = server.store(env, "");
        assert_eq!(whole.list("", None).await.unwrap()[0].key, "one/a/b");
        let writer = |store| Writer::new(env.clone(), store, base::NodeId([1; 16]));
        let made = identity::open_or_create(&writer(two.clone())).await.unwrap();
        assert_eq!(identity::open_or_create(&writer(two)).await.unwrap(), made);
        let error = identity::open_or_create(&writer(whole)).await.unwrap_err();
        assert!(error.to_string().contains("'one"), "{error}");
    });
}

#[test]
fn wrong_settings_are_refused_with_the_reason() {
    with_server(async |env, server| {
        let place = server.place("");
        let no_bucket = Place { bucket: "absent".to_owned(), ..place.clone() };
        let no_entry =
            Place { credentials: Some(("access".to_owned(), "wrong".to_owned())), ..place.clone() };
        let stranger =
            Place { credentials: Some(("nobody".to_owned(), "wrong".to_owned())), ..place.clone() };
        for (wrong, says) in [
            (no_bucket, "bucket does not exist"),
            (no_entry, "Signature"),
            (stranger, "access key"),
        ] {
            let store = S3::open(env, &wrong).unwrap();
            let outcomes = [
                store.get("a").await.map(drop),
                store.list("", None).await.map(drop),
                store.put("a", Bytes::new()).await,
                store.create("a", Bytes::new()).await.map(drop),
                store
                    .replace("a", Bytes::new(), &rekindle_datastore::Version("\"x\"".to_owned()))
                    .await
                    .map(drop),
                store.get_range("a", 0..1).await.map(drop),
            ];
            for outcome in outcomes {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::Refused(_)), "{error:?}");
                assert!(error.to_string().contains(says), "{error}");
            }
        }
        let nobody = Place { endpoint: Some("http://127.0.0.1:1".to_owned()), ..place };
        let store = S3::open(env, &nobody).unwrap();
        for outcome in [
            store.get("a").await.map(drop),
            store.list("", None).await.map(drop),
            store.delete("a").await,
        ] {
            assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
        }
    });
}

#[test]
fn records_survive_lies_on_s3_too() {
    with_server(async |env, server| {
        let store = server.store(env, "lies");
        let plan: Plan = "latency=1ms,lie=30%,fail=10%".parse().unwrap();
        let writers: Vec<Writer> = (0..4)
            .map(|node| {
                let (store, ..) = layer::usual(env, store.clone(), plan.clone());
                Writer::new(env.clone(), store, base::NodeId([node; 16]))
            })
            .collect();
        let count = async |writer: &Writer| {
            let mut counted = 0;
            while counted < 10 {
                let held = match writer.read::<Tally>("tally").await.unwrap() {
                    Some(held) => held,
                    None => match writer.create("tally", Tally { count: 0 }).await {
                        Ok(held) => held,
                        Err(Error::Exists(_)) => continue,
                        Err(error) => panic!("{error}"),
                    },
                };
                let next = Tally { count: held.value.count + 1 };
                match writer.replace(&held, next).await {
                    Ok(_) => counted += 1,
                    Err(Error::Conflict(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        futures_util::future::join_all(writers.iter().map(count)).await;
        assert_eq!(writers[0].read::<Tally>("tally").await.unwrap().unwrap().value.count, 40);
    });
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Tally {
    count: u64,
}

impl rekindle_datastore::record::Body for Tally {
    const WHAT: &'static str = "tally";
    const FORMAT: u32 = 1;
}
