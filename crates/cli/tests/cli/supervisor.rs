//! The supervisor, and with it the sockets, must not end for anything that is not essential.

use crate::{Daemon, is_alive, kill, rekindle, wait_until};
use rustix::fs::OFlags;
use std::io::Write;

fn serves_again(daemon: &Daemon, before: i32) {
    wait_until("another worker serves", || {
        let status = daemon.cli(&["status"]).1;
        status["pid"].as_i64().is_some_and(|pid| pid != i64::from(before))
            && status["state"] == "serving"
    });
}

#[test]
fn a_supervisor_that_cannot_write_where_it_serves_goes_on_and_writes_it_later() {
    let daemon = Daemon::start();
    let worker = daemon.worker();
    // As on a full disk: the file cannot be written.
    let way = daemon.dir().join("endpoints.json.new");
    std::fs::create_dir(&way).expect("a folder");
    kill(worker);
    serves_again(&daemon, worker);
    wait_until("it is said", || daemon.trace().contains("cannot write in"));
    std::fs::remove_dir(&way).expect("it is empty");
    let now = daemon.worker();
    wait_until("it is written", || {
        let text = std::fs::read(daemon.dir().join("endpoints.json")).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        value["worker"] == now
    });
}

#[test]
fn what_cannot_be_said_on_a_full_disk_ends_nobody() {
    let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let mut command = rekindle();
    command.arg("up").arg("--dir").arg(daemon.dir()).arg("--warm").arg(daemon.warm());
    command.args(["--nbd", "off", "--http", "off", "--warm-size", "64M", "--verbose"]);
    daemon.process =
        Some(command.stdout(full()).stderr(full()).spawn().expect("the binary starts"));
    wait_until("the daemon serves", || daemon.cli(&["status"]).1["state"] == "serving");
    for _ in 0..2 {
        let worker = daemon.worker();
        kill(worker);
        serves_again(&daemon, worker);
    }
    let supervisor = daemon.process.as_ref().expect("it runs").id();
    assert!(is_alive(i32::try_from(supervisor).expect("a pid")));
}

#[test]
fn a_standard_error_that_is_not_read_stops_nothing() {
    let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    let (_reader, mut full) = std::io::pipe().expect("a pipe");
    rustix::fs::fcntl_setfl(&full, OFlags::NONBLOCK).expect("a pipe");
    while full.write(&[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, OFlags::empty()).expect("a pipe");
    let mut command = rekindle();
    command.arg("up").arg("--dir").arg(daemon.dir()).arg("--warm").arg(daemon.warm());
    command.args(["--nbd", "off", "--http", "off", "--warm-size", "64M"]).env("RUST_LOG", "trace");
    command.stdout(std::process::Stdio::null()).stderr(full);
    daemon.process = Some(command.spawn().expect("the binary starts"));
    wait_until("the daemon serves", || daemon.cli(&["status"]).1["state"] == "serving");
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    let worker = daemon.worker();
    kill(worker);
    serves_again(&daemon, worker);
    daemon.ask(&["stop"]);
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn rust_log_says_what_is_told() {
    for (filter, told) in [("trace", true), ("off", false)] {
        let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
        let mut command = rekindle();
        command.arg("up").arg("--dir").arg(daemon.dir()).arg("--warm").arg(daemon.warm());
        command.args(["--warm-size", "64M"]).env("RUST_LOG", filter);
        let trace = daemon.folder.path().join("trace");
        let trace = std::fs::File::create(trace).expect("a file");
        let command = command.stdout(std::process::Stdio::null()).stderr(trace);
        daemon.process = Some(command.spawn().expect("the binary starts"));
        wait_until("the daemon serves", || daemon.cli(&["status"]).1["state"] == "serving");
        assert_eq!(daemon.trace().contains("DEBUG"), told, "{}", daemon.trace());
    }
}
