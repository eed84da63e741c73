//! `inspect` reads what a daemon left, without the daemon, and writes nothing.

use crate::{Daemon, run};
use rustix::process::Signal;
use std::path::Path;

fn inspect(path: &Path) -> (Option<i32>, serde_json::Value) {
    let (code, out, error) = run(&["inspect", &path.display().to_string(), "--json"]);
    (
        code,
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{}: {out}{error}", path.display())),
    )
}

fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path() {
            path if path.is_dir() => files(&path, found),
            path => found.push(path),
        }
    }
}

/// A volume whose content is in the store.
fn write_and_drain(daemon: &Daemon) {
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    let drill = ["drill", "restart", "--rounds", "1", "--seconds", "1"];
    daemon.ask(&[&drill[..], &["--volume", "vm1", "--overwrite"]].concat());
    daemon.ask(&["volume", "drain", "vm1"]);
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    let path = folder.path().join("rekindle-1.warm");
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a pipe");
    assert_eq!(inspect(&path).1["problems"].as_array().map(Vec::len), Some(1));
}

#[test]
fn everything_that_a_daemon_leaves_can_be_read() {
    let mut daemon = Daemon::start();
    daemon.ask(&["drill", "restart", "--rounds", "1", "--seconds", "1"]);
    write_and_drain(&daemon);
    daemon.signal(Signal::KILL);
    daemon.wait();
    let dir = daemon.dir();
    for (path, format) in
        [("", "a daemon's folder"), ("store", "store"), ("flash", "a log's folder")]
    {
        let (code, report) = inspect(&dir.join(path));
        assert_eq!((code, report["format"].as_str()), (Some(0), Some(format)), "{report}");
    }
    let mut all = Vec::new();
    files(&dir.join("store"), &mut all);
    all.retain(|path| {
        ["packs/", "volumes/", "names/", "nodes/", "rekindle.json"]
            .iter()
            .any(|part| path.display().to_string().contains(part))
    });
    assert!(all.len() >= 6, "{all:?}");
    for path in &all {
        let (code, report) = inspect(path);
        assert_eq!(
            (code, report["problems"].as_array().map(Vec::len)),
            (Some(0), Some(0)),
            "{report}"
        );
    }
    let node =
        inspect(&dir.join("node.json")).1["facts"]["node"].as_str().expect("a node").to_owned();
    let (code, warm) = inspect(&daemon.warm());
    assert_eq!((code, warm["format"].as_str()), (Some(0), Some("warm memory")), "{warm}");
    assert!(warm["entries"].as_array().is_some_and(|slots| !slots.is_empty()), "{warm}");
    // A key instead of a path.
    let (code, out, _) =
        run(&["inspect", &format!("nodes/{node}"), "--dir", &dir.display().to_string(), "--json"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("incarnation"), "{out}");
}

#[test]
fn damage_is_reported_and_the_rest_is_shown() {
    let mut daemon = Daemon::start();
    write_and_drain(&daemon);
    daemon.signal(Signal::TERM);
    daemon.wait();
    let mut packs = Vec::new();
    files(&daemon.dir().join("store/packs/data"), &mut packs);
    packs.retain(|path| !path.ends_with(".rekindle"));
    let pack = packs.first().expect("a pack");
    let mut bytes = std::fs::read(pack).expect("a pack");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(pack, &bytes).expect("a pack");
    let (code, report) = inspect(pack);
    assert_eq!(code, Some(1));
    assert!(
        report["problems"][0].as_str().is_some_and(|problem| problem.contains("scanning")),
        "{report}"
    );
    assert!(report["entries"].as_array().is_some_and(|chunks| !chunks.is_empty()), "{report}");
    let (code, _, error) =
        run(&["inspect", "/no/such/thing", "--dir", &daemon.dir().display().to_string()]);
    assert_eq!(code, Some(1));
    assert!(error.contains("neither a file nor an object"), "{error}");
}
