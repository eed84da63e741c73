//! The S3 backend against real servers. The tests print `SKIPPED` and pass where there is none,
//! unless `CI` is set.

mod conformance;

use bytes::Bytes;
use e2e::s3::{BUCKET, KEY, Kind, S3Server};
use rekindle_datastore::backend::s3::{S3, S3Settings};
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_datastore::{Error, Store, Version, identity, layer, probe};
use rekindle_env::Env;
use std::time::Duration;

/// A running server.
struct Server {
    kind: Kind,
    process: S3Server,
}

impl Server {
    fn place(&self, prefix: &str) -> S3Settings {
        S3Settings {
            bucket: BUCKET.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: Some(format!("http://{}", self.process.address())),
            region: Some("us-east-1".to_owned()),
            credentials: Some((KEY.0.to_owned(), KEY.1.to_owned())),
            patience: None,
        }
    }

    fn store(&self, env: &Env, prefix: &str) -> Store {
        S3::open(env, &self.place(prefix)).expect("the settings are complete")
    }
}

fn with_server(kind: Kind, name: &str, test: impl AsyncFnOnce(&Env, &Server)) {
    if e2e::shell::skip(&kind.missing()) {
        return;
    }
    let process = S3Server::start(kind, name).expect("the server starts");
    let server = Server { kind, process };
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(test(&env, &server));
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn versitygw_keeps_all_rules() {
    with_server(Kind::Versitygw, "s3-rules", async |env, server| all_rules(env, server).await);
}

/// One cluster for all of it: a start takes longer than the tests.
#[test]
#[ignore = "Ceph's OSD hangs at some of its starts: cargo x tools --ceph, then with --ignored"]
fn ceph_keeps_all_rules() {
    with_server(Kind::Ceph, "s3-ceph", async |env, server| {
        prefixes(env, server).await;
        all_rules(env, server).await;
        wrong_settings(env, server).await;
        lies(env, server).await;
    });
}

async fn all_rules(env: &Env, server: &Server) {
    for prefix in ["", "some/prefix"] {
        let store = server.store(env, prefix);
        conformance::run(env, &store).await.expect("it answers");
        probe(env, &store).await.expect("it answers");
    }
    conformance::markers(env, &server.store(env, "marked")).await.expect("it answers");
    let store = server.store(env, "clash");
    store.put("a", Bytes::new()).await.expect("it answers");
    store.put("b/c", Bytes::new()).await.expect("it answers");
    // A folder cannot be an object, too. In a flat bucket there are no folders.
    for clash in ["a/b", "b"] {
        let put = store.put(clash, Bytes::new()).await;
        match server.kind {
            Kind::Versitygw => assert!(matches!(put, Err(Error::Invalid(_))), "{clash}: {put:?}"),
            Kind::Ceph => put.expect("it answers"),
        }
    }
}

/// A server behind a narrow way.
#[derive(Clone, Copy)]
struct Narrow {
    /// Bytes a second, of all its clients together.
    rate: u64,
    /// Bytes of a connection after which it takes nothing more.
    stops_after: usize,
    /// Bytes of all connections after which it cuts a request that is not whole.
    cuts_after: u64,
}

impl Narrow {
    const GOOD: Self = Self { rate: 10_000_000, stops_after: usize::MAX, cuts_after: u64::MAX };
}

/// The moment from which the way is free, and the bytes that were carried.
type Carried = std::sync::Mutex<(std::time::Instant, u64)>;

/// Starts a server, and returns its port.
#[expect(clippy::disallowed_methods, reason = "another machine")]
fn narrow_server(server: Narrow) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    // Bytes that a kernel takes for a server that does not read must not count as progress.
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4 << 10).expect("a socket");
    let port = listener.local_addr().expect("it is bound").port();
    let way = std::sync::Arc::new(std::sync::Mutex::new((std::time::Instant::now(), 0)));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let way = way.clone();
            std::thread::spawn(move || answer(stream, &way, server));
        }
    });
    port
}

#[expect(clippy::disallowed_methods, reason = "another machine")]
fn answer(mut stream: std::net::TcpStream, way: &Carried, server: Narrow) {
    use std::io::{Read, Write};
    let Narrow { rate, stops_after, cuts_after } = server;
    let (mut seen, mut piece, mut began) = (Vec::new(), vec![0; 1 << 10], 0);
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        let (free, carried) = {
            let mut way = way.lock().expect("no thread panics");
            let time = Duration::from_micros(length as u64 * 1_000_000 / rate);
            *way = (way.0.max(std::time::Instant::now()) + time, way.1 + length as u64);
            *way
        };
        std::thread::sleep(free.saturating_duration_since(std::time::Instant::now()));
        if seen.is_empty() {
            began = carried;
        }
        if carried - began > cuts_after {
            return;
        }
        seen.extend_from_slice(&piece[..length]);
        while seen.len() > stops_after {
            std::thread::park();
        }
        let text = String::from_utf8_lossy(&seen[..seen.len().min(4096)]).to_lowercase();
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let body = head.split("content-length: ").nth(1).and_then(|rest| {
            rest.split("\r\n").next().and_then(|number| number.trim().parse::<usize>().ok())
        });
        if seen.len() >= head.len() + 4 + body.unwrap_or(0) {
            let reply = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 0\r\n\r\n";
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
            seen.clear();
        }
    }
}

/// Opens the store behind such a server, with this patience.
fn behind(env: &Env, port: u16, patience: Duration) -> Store {
    let place = S3Settings {
        bucket: "bucket".to_owned(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: Some("us-east-1".to_owned()),
        credentials: Some(("access".to_owned(), "secret".to_owned())),
        patience: Some(patience),
        ..S3Settings::default()
    };
    S3::open(env, &place).expect("a good place")
}

#[test]
fn an_upload_that_moves_is_never_cut_however_slow_it_is() {
    // The bytes in the kernel take many times the patience, and so do those that are not handed out
    // yet.
    let port = narrow_server(Narrow { rate: 20_000, ..Narrow::GOOD });
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(async {
        let store = behind(&env, port, Duration::from_secs(2));
        assert_eq!(store.room().await.unwrap(), rekindle_datastore::Room::Unbounded);
        let puts = (0..4).map(|_| store.put("a", Bytes::from(vec![7; 64 << 10])));
        for put in futures_util::future::join_all(puts).await {
            put.unwrap();
        }
    });
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn an_upload_of_which_no_byte_moves_any_more_is_cut() {
    let port = narrow_server(Narrow { stops_after: 300_000, ..Narrow::GOOD });
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(async {
        let store = behind(&env, port, Duration::from_secs(1));
        let put = store.put("a", Bytes::from(vec![7; 1 << 20]));
        // The patience counts from the last byte. Without that limit this put would never end.
        let put = env.timeout(Duration::from_secs(120), put).await.expect("it is cut");
        let error = put.expect_err("it is refused");
        assert!(matches!(&error, Error::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("no byte has moved"), "{error}");
        // A short upload still gets through, past the one that hangs.
        store.put("b", Bytes::from(vec![7; 1 << 10])).await.unwrap();
    });
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn uploads_that_break_off_one_another_go_one_by_one() {
    // One upload alone is never cut, nor are two. Of eight at once not one would ever get through.
    const BYTES: usize = 256 << 10;
    let cuts_after = 3 * BYTES as u64;
    let port = narrow_server(Narrow { rate: 2_000_000, cuts_after, ..Narrow::GOOD });
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(async {
        let store = behind(&env, port, Duration::from_secs(60));
        let puts = (0..8).map(async |_| {
            for attempt in 1..=4 {
                match store.put("a", Bytes::from(vec![7; BYTES])).await {
                    Err(Error::Unavailable(_)) => {}
                    put => return put.map(|()| attempt).unwrap(),
                }
            }
            panic!("it is cut again and again");
        });
        println!("attempts: {:?}", futures_util::future::join_all(puts).await);
    });
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn two_prefixes_are_two_stores() {
    with_server(Kind::Versitygw, "s3-prefixes", async |env, server| prefixes(env, server).await);
}

async fn prefixes(env: &Env, server: &Server) {
    let (one, two) = (server.store(env, "one"), server.store(env, "one-more"));
    one.put("a/b", Bytes::from_static(b"1")).await.expect("it answers");
    assert_eq!(two.list("", None).await.expect("it answers"), []);
    let whole = server.store(env, "");
    assert_eq!(whole.list("", None).await.expect("it answers")[0].key, "one/a/b");
    let writer = |store| Writer::new(env.clone(), store, rekindle_base::NodeId([1; 16]));
    let made = identity::open_or_create(&writer(two.clone())).await.expect("it answers");
    assert_eq!(identity::open_or_create(&writer(two)).await.expect("it answers"), made);
    let error = identity::open_or_create(&writer(whole)).await.expect_err("it is refused");
    assert!(error.to_string().contains("'one"), "{error}");
}

#[test]
fn wrong_settings_are_refused_with_the_reason() {
    with_server(Kind::Versitygw, "s3-wrong-settings", async |env, server| {
        wrong_settings(env, server).await
    });
}

async fn wrong_settings(env: &Env, server: &Server) {
    let place = server.place("");
    let no_bucket = S3Settings { bucket: "absent".to_owned(), ..place.clone() };
    let no_entry =
        S3Settings { credentials: Some((KEY.0.to_owned(), "wrong".to_owned())), ..place.clone() };
    let stranger = S3Settings {
        credentials: Some(("nobody".to_owned(), "wrong".to_owned())),
        ..place.clone()
    };
    for (wrong, says) in
        [(no_bucket, "bucket does not exist"), (no_entry, "signature"), (stranger, "access")]
    {
        let store = S3::open(env, &wrong).expect("nothing is asked yet");
        let outcomes = [
            store.get("a").await.map(drop),
            store.list("", None).await.map(drop),
            store.put("a", Bytes::new()).await,
            store.create("a", Bytes::new()).await.map(drop),
            store.replace("a", Bytes::new(), &Version("\"x\"".to_owned())).await.map(drop),
            store.get_range("a", 0..1).await.map(drop),
        ];
        for outcome in outcomes {
            let error = outcome.expect_err("it is refused");
            assert!(matches!(error, Error::Refused(_)), "{error:?}");
            assert!(error.to_string().to_lowercase().contains(says), "{error}");
        }
    }
    let nobody = S3Settings { endpoint: Some("http://127.0.0.1:1".to_owned()), ..place };
    let store = S3::open(env, &nobody).expect("nothing is asked yet");
    for outcome in [
        store.get("a").await.map(drop),
        store.list("", None).await.map(drop),
        store.delete("a").await,
    ] {
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    }
}

#[test]
fn records_survive_lies_on_s3_too() {
    with_server(Kind::Versitygw, "s3-lies", async |env, server| lies(env, server).await);
}

async fn lies(env: &Env, server: &Server) {
    let store = server.store(env, "lies");
    let plan: Plan = "latency=1ms,lie=30%,fail=10%".parse().expect("a plan");
    let writers: Vec<Writer> = (0..4)
        .map(|node| {
            let store = layer::usual(env, store.clone(), plan.clone()).store;
            Writer::new(env.clone(), store, rekindle_base::NodeId([node; 16]))
        })
        .collect();
    let count = async |writer: &Writer| {
        let mut counted = 0;
        while counted < 10 {
            let held = match writer.read::<Tally>("tally").await.expect("it answers") {
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
    assert_eq!(
        writers[0]
            .read::<Tally>("tally")
            .await
            .expect("it answers")
            .expect("it is there")
            .value
            .count,
        40
    );
}

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Tally {
    count: u64,
}

impl rekindle_datastore::record::Body for Tally {
    const WHAT: &'static str = "tally";
    const FORMAT: u32 = 1;
}

/// Starts a server with one object, which compares `If-Match` with the ETag: with the quotes, or
/// without. The first sends on what `If-Match` said.
#[expect(clippy::disallowed_methods, reason = "another machine")]
fn comparing_server(quoted: bool) -> (u16, std::sync::mpsc::Receiver<String>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut version, mut object) = (0, String::new());
        for mut stream in listener.incoming().flatten() {
            let (mut seen, mut piece) = (String::new(), [0; 4096]);
            while let Ok(length @ 1..) = stream.read(&mut piece) {
                seen += &String::from_utf8_lossy(&piece[..length]);
                let Some((head, body)) = seen.split_once("\r\n\r\n") else { continue };
                let header = |name: &str| {
                    let lines = head.lines().filter_map(|line| line.split_once(": "));
                    let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.next().map(|(_, value)| value.to_owned())
                };
                let length =
                    header("content-length").map_or(0, |length| length.parse().expect("a number"));
                if body.len() < length {
                    continue;
                }
                let tag = if quoted { format!("\"{version}\"") } else { version.to_string() };
                let matches = header("if-match").inspect(|says| drop(say.send(says.clone())));
                let (mut status, mut content) = ("200 OK", object.clone());
                if head.starts_with("PUT") {
                    content.clear();
                    if matches.is_none_or(|says| says == tag) {
                        (version, object) = (version + 1, body.to_owned());
                    } else {
                        status = "412 Precondition Failed";
                    }
                }
                let reply = format!(
                    "HTTP/1.1 {status}\r\nETag: \"{version}\"\r\n\
                     Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n\
                     Content-Length: {}\r\nConnection: close\r\n\r\n{content}",
                    content.len()
                );
                let _ = stream.write_all(reply.as_bytes());
                break;
            }
        }
    });
    (port, said)
}

#[test]
fn a_server_that_compares_etags_without_quotes_gets_them_so_and_no_other_server_does() {
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(async {
        for quoted in [true, false] {
            let (port, said) = comparing_server(quoted);
            let store = behind(&env, port, Duration::from_secs(20));
            store.put("a", Bytes::from_static(b"one")).await.unwrap();
            let (_, one) = store.get("a").await.unwrap();
            store.put("a", Bytes::from_static(b"two")).await.unwrap();
            // Whatever the server takes: this version is gone.
            let stale = store.replace("a", Bytes::from_static(b"lost"), &one).await;
            assert!(matches!(stale, Err(Error::Conflict(_))), "{stale:?}");
            let (data, mut version) = store.get("a").await.unwrap();
            assert_eq!(data, "two");
            for _ in 0..2 {
                version = store.replace("a", Bytes::from_static(b"new"), &version).await.unwrap();
            }
            let stale = store.replace("a", Bytes::from_static(b"lost"), &one).await;
            assert!(matches!(stale, Err(Error::Conflict(_))), "{stale:?}");
            let said: Vec<String> = said.try_iter().collect();
            let expected: &[&str] = match quoted {
                true => &["\"1\"", "\"2\"", "\"3\"", "\"1\""],
                // The first right answer decides.
                false => &["\"1\"", "\"2\"", "2", "3", "1"],
            };
            assert_eq!(said, expected);
        }
    });
    runtime.shut_down(Duration::from_secs(1));
}

/// Starts a server that answers each listing by its token: none, `1`, `2`, ... With the last page
/// it says that there is no more.
#[expect(clippy::disallowed_methods, reason = "another machine")]
fn listing_server(pages: &'static [&'static [&'static str]], circles: bool) -> u16 {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(length @ 1..) = stream.read(&mut piece) {
                seen.extend_from_slice(&piece[..length]);
                let text = String::from_utf8_lossy(&seen).into_owned();
                let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
                let parameter = |name: &str| {
                    let (_, rest) = head.split_once(&format!("{name}="))?;
                    rest.split(['&', ' ']).next().map(|value| value.replace("%2F", "/"))
                };
                let page: usize = parameter("continuation-token")
                    .and_then(|token| token.parse().ok())
                    .unwrap_or(0);
                let after = parameter("start-after").unwrap_or_default();
                let keys: String = pages[page]
                    .iter()
                    .filter(|key| ***key > *after)
                    .map(|key| {
                        format!(
                            "<Contents><Key>{key}</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified>\
                             <ETag>1</ETag><Size>1</Size></Contents>"
                        )
                    })
                    .collect();
                let more = circles || page + 1 < pages.len();
                let next = if circles { page } else { page + 1 };
                let token = if more {
                    format!("<NextContinuationToken>{next}</NextContinuationToken>")
                } else {
                    String::new()
                };
                let body = format!(
                    "<ListBucketResult><Name>bucket</Name><IsTruncated>{more}</IsTruncated>{keys}{token}</ListBucketResult>"
                );
                let reply =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                if stream.write_all(reply.as_bytes()).is_err() {
                    break;
                }
                seen.clear();
            }
        }
    });
    port
}

#[test]
fn a_listing_ends_where_no_token_leads_on_and_nowhere_else() {
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(async {
        let all = |port: u16| {
            let store = behind(&env, port, Duration::from_secs(20));
            async move {
                let (mut keys, mut after) = (Vec::new(), None::<String>);
                loop {
                    let page = store.list("v/", after.as_deref()).await?;
                    let Some(last) = page.last() else { return Ok::<_, Error>(keys) };
                    after = Some(last.key.clone());
                    keys.extend(page.into_iter().map(|listed| listed.key));
                }
            }
        };
        // One page without keys in the middle, and one before all others.
        let pages: &[&[&str]] = &[&[], &["v/a", "v/b"], &[], &[], &["v/c"]];
        assert_eq!(all(listing_server(pages, false)).await.unwrap(), ["v/a", "v/b", "v/c"]);
        // An empty listing with two pages.
        let none: &[&[&str]] = &[&[], &[]];
        assert!(all(listing_server(none, false)).await.unwrap().is_empty());
        // A server that leads in a circle has not said that the listing is empty.
        let error = all(listing_server(&[&[]], true)).await.expect_err("it is refused");
        assert!(matches!(&error, Error::Unavailable(_)), "{error}");
    });
    runtime.shut_down(Duration::from_secs(1));
}
