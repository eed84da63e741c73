//! Messages to an operator: of space and memory, of each volume, of warm memory without its file,
//! of a copied folder.

use crate::{Daemon, finish, kill, rekindle, told, wait_until};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A page of the API, with its head.
fn page(daemon: &Daemon, path: &str) -> String {
    let mut stream = UnixStream::connect(daemon.dir().join("rekindle.sock")).expect("it listens");
    let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

/// Measures a folder of files as `du` does.
fn du(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| entry.metadata().expect("a file").blocks() * 512).sum()
}

#[test]
fn status_says_what_is_on_the_disk_how_much_the_store_takes_and_what_memory_is_used() {
    let daemon = Daemon::start();
    // Files are made ahead: the test waits until the counts agree.
    wait_until("it counts as du does", || {
        let flash = || du(&daemon.dir().join("flash"));
        let (before, log) = (flash(), daemon.ask(&["status"])["log"].clone());
        let [all, used, kept] = ["files_bytes", "files_used_bytes", "files_kept_bytes"]
            .map(|name| log[name].as_u64().expect("a number"));
        assert_eq!(all, used + kept);
        all == before && used > 0 && kept > 0
    });
    let status = daemon.ask(&["status"]);
    let room = status["store_detail"]["room_bytes"].as_u64().expect("a folder has a bound");
    let disk = rustix::fs::statvfs(daemon.dir()).expect("a disk");
    assert!(room > 0 && room <= disk.f_blocks * disk.f_frsize, "{room}");
    assert_eq!(status["store_detail"]["unbounded"], false);
    let settings = include_str!("../../../../contrib/rekindle.toml");
    let budgets = status["memory"].as_array().expect("a list");
    assert_eq!(budgets.len(), 5);
    for budget in budgets {
        let name = budget["name"].as_str().expect("a name");
        assert!(settings.contains(&format!("\n# {name} = ")), "{name} is a setting");
        assert!(budget["used_bytes"].as_u64() <= budget["budget_bytes"].as_u64(), "{budget}");
    }
    let (_, text, _) = told(&finish(rekindle().args(["status", "--dir"]).arg(daemon.dir())));
    for word in
        ["on the disk: ", " kept to be written again", ", room for ", "cache ", " of 256 MiB"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn each_volume_has_metrics_until_it_is_removed() {
    let daemon = Daemon::start();
    let image = daemon.folder.path().join("image");
    std::fs::write(&image, vec![7; 1 << 20]).expect("a file");
    daemon.ask(&["volume", "import", &image.display().to_string(), "vm1"]);
    // The last requests may be counted a moment after their replies.
    let mut metrics = String::new();
    crate::wait_until("the import in the metrics", || {
        metrics = page(&daemon, "/metrics");
        metrics.contains("rekindle_volume_written_bytes_total{volume=\"vm1\"} 1048576")
            && metrics.contains("rekindle_volume_requests_total{volume=\"vm1\",command=\"flush\"}")
    });
    for line in [
        "# TYPE rekindle_volume_request_seconds histogram",
        "rekindle_volume_written_bytes_total{volume=\"vm1\"} 1048576",
        "rekindle_volume_request_seconds_bucket{volume=\"vm1\",command=\"write\",le=\"0.001\"}",
        "rekindle_volume_requests_total{volume=\"vm1\",command=\"flush\"}",
        "rekindle_memory_max_bytes{budget=\"cache\"} 268435456",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    daemon.ask(&["volume", "rename", "vm1", "vm2"]);
    let metrics = page(&daemon, "/metrics");
    assert!(!metrics.contains("\"vm1\"") && metrics.contains("\"vm2\""), "{metrics}");
    daemon.ask(&["volume", "rm", "vm2"]);
    assert!(!page(&daemon, "/metrics").contains("volume=\"vm"));
}

#[test]
fn warm_memory_whose_file_is_removed_is_told_once_and_is_no_illness() {
    let mut daemon = Daemon::start();
    assert_eq!(daemon.ask(&["warm", "show"])["removed"], false);
    std::fs::remove_file(daemon.warm()).expect("it is there");
    for _ in 0..2 {
        let health = daemon.ask(&["status"])["health"].clone();
        assert_eq!(health["state"], "well", "{health}");
        let note = health["notes"][0].as_str().expect("a note");
        assert!(note.contains("was removed") && note.contains("next start is cold"), "{note}");
    }
    assert_eq!(daemon.ask(&["warm", "show"])["removed"], true);
    assert!(page(&daemon, "/metrics").contains("\nrekindle_warm_removed 1\n"));
    assert!(page(&daemon, "/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(daemon.trace().matches("was removed").count(), 1, "{}", daemon.trace());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    daemon.up(&[]);
    let health = daemon.ask(&["status"])["health"].clone();
    assert_eq!(health["notes"].as_array().map(Vec::len), Some(0), "{health}");
}

#[test]
fn up_tells_of_warm_memory_whose_folder_is_gone() {
    let mut gone = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    // The default place of warm memory.
    gone.up_as(Path::new(env!("CARGO_BIN_EXE_rekindle")), &[]);
    let path = gone.ask(&["status"])["detail"]["warm"].as_str().expect("a file").to_owned();
    drop(gone);
    let _removed = Removed(path);
    let daemon = Daemon::start();
    wait_until("it is told", || daemon.trace().contains("rekindle warm drop --orphans"));
}

/// A file that goes with the test, however that ends.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A copy of a folder, with what is in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().expect("known");
        if kind.is_dir() {
            copy(&from, &to);
        } else if kind.is_file() {
            std::fs::copy(from, to).expect("a file");
        }
    }
}

/// A daemon that serves, a copy of its folder, and the store of both.
fn copied() -> (Daemon, Daemon, String) {
    let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    let store = daemon.folder.path().join("store").display().to_string();
    daemon.up(&["--store", &store]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    let other = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    copy(&daemon.dir(), &other.dir());
    daemon.up(&["--store", &store]);
    (daemon, other, store)
}

#[test]
fn a_daemon_that_is_replaced_while_it_serves_says_so_and_ends_with_a_code_of_its_own() {
    let (mut daemon, mut other, store) = copied();
    let image = daemon.folder.path().join("image");
    std::fs::write(&image, vec![7; 1 << 20]).expect("a file");
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    other.up(&["--store", &store, "--take-identity"]);
    // The daemon finds out while it works; the command that gives it the work waits.
    let mut work = rekindle();
    work.args(["volume", "import", "--dir"]).arg(daemon.dir()).arg(&image).arg("vm2");
    let nowhere = std::process::Stdio::null;
    let mut work = work.stdout(nowhere()).stderr(nowhere()).spawn().expect("the binary starts");
    wait_until("it finds out", || daemon.cli(&["status"]).1["state"] == "fenced");
    let _ = work.kill();
    work.wait().expect("it is ours");
    let reason = daemon.cli(&["status"]).1["health"]["reasons"][0].to_string();
    assert!(reason.contains("another copy") && reason.contains("--take-identity"), "{reason}");
    assert!(page(&daemon, "/healthz").starts_with("HTTP/1.1 503"));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(3), "{}", daemon.trace());
    assert_eq!(daemon.trace().matches("starting another").count(), 0, "{}", daemon.trace());
    assert_eq!(other.ask(&["status"])["state"], "serving");
}

#[test]
fn a_daemon_whose_folder_was_taken_stays_and_says_so_and_is_not_started_again_and_again() {
    let (mut daemon, mut other, store) = copied();
    let store = ["--store", &store];

    let warm = other.warm();
    let mut refused = rekindle();
    refused.arg("up").arg("--dir").arg(other.dir()).arg("--warm").arg(warm).args(store);
    let (code, _, error) = told(&finish(refused.args(["--warm-size", "64M"])));
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("--take-identity"), "{error}");

    other.up(&[&store[..], &["--take-identity"]].concat());
    let worker = daemon.worker();
    kill(worker);
    wait_until("the next one finds out", || daemon.cli(&["status"]).1["state"] == "fenced");
    let (code, status, _) = daemon.cli(&["status"]);
    let reason = status["health"]["reasons"][0].as_str().expect("a reason");
    assert!(reason.contains("another copy") && reason.contains("--take-identity"), "{reason}");
    assert_eq!((code, &status["health"]["ok"]), (Some(3), &false.into()));
    let health = page(&daemon, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("--take-identity"), "{health}");
    let (code, _, error) = daemon.cli(&["volume", "ls"]);
    assert!(code != Some(0) && error.contains("another copy"), "{error}");
    let trace = daemon.trace();
    assert_eq!(trace.matches("starting another").count(), 1, "{trace}");
    assert_eq!(trace.matches("fenced").count(), 1, "{trace}");
    assert_eq!(daemon.cli(&["status"]).1["pid"], status["pid"], "it stays");
    assert_eq!(other.ask(&["status"])["state"], "serving");

    // As always, `rekindle stop` does not tell the supervisor: it starts no other worker.
    daemon.cli(&["stop"]);
    assert_eq!(daemon.wait(), Some(3), "{}", daemon.trace());
    daemon.up(&[&store[..], &["--take-identity"]].concat());
    assert_eq!(daemon.ask(&["status"])["state"], "serving");
}

#[test]
fn of_several_in_the_trash_with_one_name_only_the_one_that_is_meant_goes() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
        daemon.ask(&["volume", "rm", "vm1"]);
    }
    let ids = || {
        let rows = daemon.ask(&["volume", "trash"]);
        let rows = rows.as_array().expect("a list").clone();
        rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    let before = ids();
    let (code, _, error) = daemon.cli(&["volume", "purge", "vm1"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(before.iter().all(|id| error.contains(id)), "{error}");
    assert_eq!(ids(), before, "nothing went");
    daemon.ask(&["volume", "purge", &before[1]]);
    assert_eq!(ids(), [&*before[0], &*before[2]]);
    let back = daemon.ask(&["volume", "restore", &before[2]]);
    assert_eq!((&back["name"], &back["id"]), (&"vm1".into(), &before[2].as_str().into()));
    daemon.ask(&["volume", "purge", "vm1"]);
    assert!(ids().is_empty());
    let (code, _, error) = daemon.cli(&["volume", "purge", "vm1"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("volume trash"), "{error}");
}

#[test]
fn a_drill_that_is_broken_off_takes_its_volume_along() {
    let daemon = Daemon::start();
    let mut drill = rekindle();
    drill.args(["drill", "restart", "--seconds", "600", "--dir"]).arg(daemon.dir());
    drill.stderr(std::process::Stdio::piped());
    let drill = drill.spawn().expect("the binary starts");
    let volumes = || daemon.ask(&["volume", "ls"]).as_array().map_or(0, Vec::len);
    wait_until("it works", || volumes() == 1);
    let pid = rustix::process::Pid::from_child(&drill);
    rustix::process::kill_process(pid, Signal::INT).expect("it runs");
    let ended = drill.wait_with_output().expect("it is ours");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && said.contains("broken off"), "{said}");
    assert_eq!(volumes(), 0);
}
