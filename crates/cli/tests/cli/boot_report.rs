//! The report of a start: phases in order, reads, and a picture.

use crate::{Daemon, finish, rekindle, told, wait_until};
use serde_json::Value;

/// One block over NBD: connects to `vm1`, then writes it (`Some`) or reads it.
fn client(daemon: &Daemon, block: Option<u8>) -> Vec<u8> {
    let mut vm1 = daemon.connect("vm1");
    match block {
        Some(byte) => vm1.write(8192, &[byte; 4096]).map(|()| Vec::new()),
        None => vm1.read(8192, 4096),
    }
    .expect("no error")
}

fn restart(daemon: &Daemon) {
    let worker = daemon.worker();
    crate::kill(worker);
    wait_until("another worker", || {
        let status = daemon.cli(&["status"]).1;
        status["pid"].is_i64() && status["pid"] != worker && status["state"] == "serving"
    });
}

/// The report of a start that has served a client. The client may have its reply a moment before
/// the report does.
fn told_after_a_reply(daemon: &Daemon) -> Value {
    let mut report = Value::Null;
    wait_until("the first reply in the report", || {
        report = daemon.ask(&["boot-report"]);
        !report["first_reply_us"].is_null()
    });
    report
}

fn names(report: &Value) -> Vec<&str> {
    let phases = report["phases"].as_array().expect("phases");
    phases.iter().filter_map(|phase| phase["name"].as_str()).collect()
}

/// Phases begin one after the other, parts lie within their whole, all ends with the first reply.
fn check(report: &Value) {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{report:#}"));
    let all = number(&report["first_reply_us"]);
    let (mut last, mut sum, mut whole) = (0, 0, (String::new(), 0, 0));
    for phase in report["phases"].as_array().expect("phases") {
        let (began, took) = (number(&phase["began_us"]), number(&phase["took_us"]));
        if phase["part_of"].is_null() {
            assert!(began >= last, "{report:#}");
            assert!(began + took <= all, "{report:#}");
            (last, sum) = (began, sum + took);
            whole = (phase["name"].as_str().expect("a name").to_owned(), began, began + took);
        } else {
            assert_eq!(phase["part_of"], whole.0.as_str(), "{report:#}");
            // Rounded down to microseconds, each by itself.
            assert!(began >= whole.1 && began + took <= whole.2 + 1, "{report:#}");
        }
    }
    // One after the other, with gaps where a client or another thread has its turn.
    assert!(sum <= all, "{report:#}");
    assert!(number(&report["listening_us"]) <= all, "{report:#}");
    for fetch in report["fetches"].as_array().expect("fetches") {
        let began = number(&fetch["began_us"]);
        assert!(began <= all && fetch["took_us"].as_f64() >= Some(0.0), "{report:#}");
    }
}

/// Tags of `svg` that open and close each other. Gives how many of each name there are.
fn well_formed(svg: &str) -> std::collections::BTreeMap<String, usize> {
    let (mut open, mut counts) = (Vec::new(), std::collections::BTreeMap::new());
    let mut rest = svg;
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(!text.contains('>'), "a stray > in {text:?}");
        for escape in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|known| escape.starts_with(known)));
        }
        let (tag, after) = tag.split_once('>').expect("a tag ends");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        let name = tag.split_whitespace().next().expect("a name").trim_end_matches('/');
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        *counts.entry(name.to_owned()).or_insert(0) += 1;
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
    counts
}

#[test]
fn a_start_is_told_from_the_birth_of_the_process_to_the_first_reply() {
    let daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    let early = daemon.ask(&["boot-report"]);
    assert!(early["first_reply_us"].is_null() && early["listening_us"].is_u64(), "{early:#}");
    assert!(names(&early).contains(&"listening"), "{early:#}");
    client(&daemon, Some(5));
    check(&told_after_a_reply(&daemon));
    daemon.ask(&["volume", "drain", "vm1"]);

    restart(&daemon);
    assert_eq!(client(&daemon, None), vec![5; 4096]);
    let report = told_after_a_reply(&daemon);
    check(&report);
    assert_eq!(
        (report["incarnation"].as_u64(), report["born_by"].as_str()),
        (Some(2), Some("supervisor"))
    );
    let expected = [
        "exec",
        "settings",
        "signals",
        "metrics",
        "api",
        "folder",
        "store-and-warm",
        "warm-mapped",
        "store-opened",
        "records-read",
        "record",
        "log",
        "scanned",
        "decided",
        "old-heads",
        "new-head",
        "volumes",
        "listening",
        "first-connection",
        "attach vm1",
        // From the record cache: neither the name nor the owner is asked of the store.
        "vault",
        "log-index",
        "first-reply",
    ];
    let mut seen = names(&report);
    // Phases run side by side: which begins first is chance.
    seen.sort_unstable();
    let mut wanted = expected;
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
    // The root was in warm memory, the data only in the store.
    let fetched = &report["fetched"];
    assert!(
        fetched["warm"].as_u64() >= Some(1) && fetched["store"].as_u64() >= Some(1),
        "{report:#}"
    );
    let sources: Vec<_> = report["fetches"]
        .as_array()
        .expect("fetches")
        .iter()
        .map(|fetch| &fetch["source"])
        .collect();
    assert!(sources.iter().any(|source| **source == "warm"), "{report:#}");
    assert_eq!(report["frames"]["began"], "kept");

    // Work after the first reply is not of the start.
    assert_eq!(client(&daemon, None), vec![5; 4096]);
    let mut later = daemon.ask(&["boot-report"]);
    later["frames"] = report["frames"].clone();
    assert_eq!(later, report);

    // Without frames the root comes from the store, and the report says why.
    daemon.ask(&["warm", "drop"]);
    restart(&daemon);
    assert_eq!(client(&daemon, None), vec![5; 4096]);
    let cold = told_after_a_reply(&daemon);
    check(&cold);
    let (warm, misses) = (cold["fetched"]["warm"].as_u64(), &cold["misses"]);
    let missed: u64 = misses.as_object().expect("causes").values().filter_map(Value::as_u64).sum();
    assert!(warm == Some(0) && missed > 0, "{cold:#}");
}

#[test]
fn it_is_printed_and_drawn() {
    let daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    let svg = daemon.folder.path().join("boot.svg");
    let show = || {
        let mut command = rekindle();
        command.args(["boot-report", "--dir"]).arg(daemon.dir()).arg("--svg").arg(&svg);
        let (code, text, error) = told(&finish(&mut command));
        assert_eq!(code, Some(0), "{error}");
        let picture = std::fs::read_to_string(&svg).expect("a picture");
        (text, well_formed(&picture), picture)
    };
    let (text, _, _) = show();
    assert!(text.contains("no client has been answered"), "{text}");
    client(&daemon, Some(5));
    let (text, counts, picture) = show();
    for word in ["PHASE", "exec", "attach vm1", "log-index", "first-reply", "warm misses"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let phases = daemon.ask(&["boot-report"])["phases"].as_array().map_or(0, Vec::len);
    assert!(counts["rect"] >= phases && counts["svg"] == 1, "{counts:?}");
    assert!(picture.contains("first reply after"), "{picture}");
    let (code, _, error) = daemon.cli(&["boot-report", "--svg", "/nowhere/boot.svg"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("--svg"), "{error}");
}
