//! Another binary takes over, or is refused, or is left again; the supervisor's process stays.

use crate::{Daemon, is_alive, rekindle, wait_until};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// Makes a program of a file, by a process of its own. A file that this process has open for
/// writing would be open in a child that another test is just starting, and such a file cannot be
/// run.
fn install(source: &Path, daemon: &Daemon, name: &str) -> PathBuf {
    let path = daemon.folder.path().join(name);
    let mut install = std::process::Command::new("install");
    let status = install.args(["-m", "755"]).arg(source).arg(&path).status();
    assert!(status.expect("install is there").success());
    path
}

/// The binary under test, as another file.
fn copy(daemon: &Daemon, name: &str) -> PathBuf {
    install(Path::new(env!("CARGO_BIN_EXE_rekindle")), daemon, name)
}

/// A program that only looks like one of ours.
fn script(daemon: &Daemon, name: &str, text: &str) -> PathBuf {
    let source = daemon.folder.path().join("source");
    std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).expect("a file");
    install(&source, daemon, name)
}

/// A binary whose workers die before they serve: a lock's name leads into a folder that is not
/// there.
fn broken(daemon: &Daemon) -> PathBuf {
    let mut bytes = std::fs::read(env!("CARGO_BIN_EXE_rekindle")).expect("the binary");
    let name = b"node.lock";
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(name)).collect();
    assert!(!places.is_empty(), "the name is in the binary");
    for at in places {
        bytes[at..at + name.len()].copy_from_slice(b"node/lock");
    }
    let source = daemon.folder.path().join("source");
    std::fs::write(&source, bytes).expect("a file");
    install(&source, daemon, "broken")
}

fn supervisor(daemon: &Daemon) -> i32 {
    i32::try_from(daemon.process.as_ref().expect("it runs").id()).expect("a pid")
}

fn image(pid: i32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/exe")).expect("it runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn another_binary_goes_on_in_the_same_process() {
    let mut daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    let supervisor = supervisor(&daemon);
    for (round, name) in ["second", "third"].iter().enumerate() {
        let before = daemon.worker();
        let binary = copy(&daemon, name);
        let answer = daemon.ask(&["upgrade", "--binary", text(&binary)]);
        assert_eq!(answer["outcome"], "upgraded", "{answer}");
        assert_eq!(answer["supervisor"], supervisor, "{answer}");
        let worker = daemon.worker();
        assert_ne!(worker, before);
        assert_eq!(answer["worker"], worker, "{answer}");
        assert!(!is_alive(before));
        assert_eq!((image(supervisor), image(worker)), (binary.clone(), binary));
        assert_eq!(daemon.ask(&["status"])["incarnation"], round + 2);
        assert_eq!(daemon.ask(&["volume", "ls"])[0]["name"], "vm1");
    }
    // Still a supervisor, and still one that holds the folder.
    let worker = daemon.worker();
    crate::kill(worker);
    wait_until("another worker", || {
        let status = daemon.cli(&["status"]).1;
        status["pid"].is_i64() && status["pid"] != worker && status["state"] == "serving"
    });
    let second = crate::finish(
        rekindle().args(["up", "--nbd", "off", "--http", "off", "--dir"]).arg(daemon.dir()),
    );
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(error.contains(&format!("in use by another daemon (pid {supervisor})")), "{error}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(
        !daemon.dir().join("nbd.sock").exists() && !daemon.dir().join("endpoints.json").exists()
    );
}

#[test]
fn a_replaced_file_is_taken_without_being_named() {
    let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    let binary = copy(&daemon, "rekindle");
    daemon.up_as(&binary, &["--warm", "memfd"]);
    let supervisor = supervisor(&daemon);
    let inode = |path: &Path| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("a file"))
    };
    let before = inode(&binary);
    let new = copy(&daemon, "new");
    std::fs::rename(new, &binary).expect("replaced");
    assert_ne!(inode(&binary), before);
    // The running one is a file without a name now: its worker is replaced all the same.
    let worker = daemon.worker();
    crate::kill(worker);
    wait_until("another worker of the old binary", || {
        let status = daemon.cli(&["status"]).1;
        status["pid"].is_i64() && status["pid"] != worker && status["state"] == "serving"
    });
    assert_eq!(daemon.ask(&["upgrade"])["outcome"], "upgraded");
    assert_eq!(inode(Path::new(&format!("/proc/{supervisor}/exe"))), inode(&binary));
    let warm = daemon.ask(&["warm", "show"]);
    assert_eq!(warm["frames"]["began"], "kept", "the memory without a file came along: {warm}");
}

#[test]
fn what_cannot_take_over_is_refused_and_nothing_is_touched() {
    let daemon = Daemon::start();
    let (supervisor, worker) = (supervisor(&daemon), daemon.worker());
    let own = String::from_utf8(crate::finish(rekindle().args(["formats", "--json"])).stdout)
        .expect("text");
    let mut poorer: serde_json::Value = serde_json::from_str(&own).expect("JSON");
    let segment =
        format!("log segment: in use {}, known to it 0", poorer["formats"]["log segment"]);
    let vault = format!("vault: in use {}, unknown to it", poorer["formats"]["vault"]);
    poorer["formats"]["log segment"] = 0.into();
    poorer["formats"].as_object_mut().expect("names").remove("vault");
    let not_a_program = daemon.folder.path().join("text");
    std::fs::write(&not_a_program, "hello").expect("a file");
    for (binary, word) in [
        (daemon.folder.path().join("nowhere"), "does not run"),
        (not_a_program, "does not run"),
        (daemon.dir(), "does not run"),
        (script(&daemon, "fails", "exit 1"), "did not say what it knows"),
        (PathBuf::from("/bin/true"), "no rekindle"),
        (script(&daemon, "older", &format!("echo '{poorer}'")), &segment),
        (script(&daemon, "older", &format!("echo '{poorer}'")), &vault),
        // A program that says the right words, and is gone when it matters.
        (script(&daemon, "gone", &format!("echo '{own}'; rm \"$0\"")), "cannot go on as"),
    ] {
        let (code, _, error) = daemon.cli(&["upgrade", "--binary", text(&binary)]);
        assert_eq!(code, Some(1), "{}: {error}", binary.display());
        assert!(error.contains(word) && error.contains("next"), "{}: {error}", binary.display());
        assert_eq!(daemon.worker(), worker, "untouched");
    }
    assert_eq!(image(supervisor), image(worker));
}

#[test]
fn a_binary_that_never_serves_is_left_again() {
    let mut daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    let (supervisor, worker) = (supervisor(&daemon), daemon.worker());
    let before = image(supervisor);
    for _ in 0..2 {
        let broken = broken(&daemon);
        let (code, _, error) = daemon.cli(&["upgrade", "--binary", text(&broken)]);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains("never served") && error.contains("serves again"), "{error}");
        assert_eq!(image(supervisor), before, "{}", daemon.trace());
    }
    assert_ne!(daemon.worker(), worker);
    assert_eq!(daemon.ask(&["volume", "ls"])[0]["name"], "vm1");
    assert!(daemon.trace().contains("going back to"), "{}", daemon.trace());
    // And this state can still be left for a good binary.
    let good = copy(&daemon, "good");
    assert_eq!(daemon.ask(&["upgrade", "--binary", text(&good)])["outcome"], "upgraded");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn without_a_supervisor_it_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("d");
    let upgrade = || {
        let output = crate::finish(rekindle().args(["upgrade", "--dir"]).arg(&dir));
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = upgrade();
    assert_eq!(code, Some(1));
    assert!(error.contains("no daemon serves") && error.contains("rekindle up"), "{error}");
    let mut command = rekindle();
    command.arg("up").arg("--dir").arg(&dir).args(["--nbd", "off", "--http", "off"]);
    command.args(["--warm-size", "32M"]).arg("--warm").arg(folder.path().join("warm"));
    command.env("NOTIFY_SOCKET", folder.path().join("nobody")).stdout(std::process::Stdio::null());
    let mut process = command.spawn().expect("the binary starts");
    wait_until("it serves", || dir.join("endpoints.json").exists());
    let (code, error) = upgrade();
    process.kill().and_then(|()| process.wait()).expect("it is ours");
    assert_eq!(code, Some(1));
    assert!(error.contains("systemctl restart"), "{error}");
}
