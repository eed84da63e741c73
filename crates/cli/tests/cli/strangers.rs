//! Files that other users have put in the places of a daemon's own, and files that a killed daemon
//! left: none of them is believed.

use crate::{Daemon, finish, is_alive, kill, rekindle, told, wait_until};
use rustix::process::Signal;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

fn nobody_serves() -> Daemon {
    Daemon { folder: tempfile::tempdir().expect("a folder"), process: None }
}

/// Runs `up`, which must refuse.
fn refused(daemon: &Daemon, dir: &Path) -> String {
    let mut command = rekindle();
    command.arg("up").arg("--dir").arg(dir).arg("--warm").arg(daemon.warm());
    let (code, _, error) = told(&finish(command.args(["--warm-size", "64M"])));
    assert_eq!(code, Some(1), "{error}");
    error
}

#[test]
fn a_folder_of_another_user_is_refused_and_nothing_is_made_in_it() {
    let daemon = nobody_serves();
    let is_root = rustix::process::geteuid().is_root();
    // Any other user than root meets a folder of root's.
    let dir = if is_root { daemon.dir() } else { "/usr".into() };
    if is_root {
        std::fs::create_dir(&dir).expect("a folder");
        chown(&dir, Some(65534), None).expect("root may");
    }
    let error = refused(&daemon, &dir);
    assert!(error.contains("belongs to user") && error.contains("run it as that user"), "{error}");
    if is_root {
        assert_eq!(std::fs::read_dir(&dir).expect("there").count(), 0);
    }
}

#[test]
fn a_link_in_the_folder_is_never_written_through() {
    let mut daemon = nobody_serves();
    let victim = daemon.folder.path().join("victim");
    std::fs::write(&victim, "precious").expect("a file");
    std::fs::create_dir(daemon.dir()).expect("a folder");
    let lock = daemon.dir().join("rekindle.pid");
    symlink(&victim, &lock).expect("a link");
    assert!(refused(&daemon, &daemon.dir()).contains("is a link"));
    std::fs::remove_file(&lock).expect("ours");
    symlink(&victim, daemon.dir().join("endpoints.json.new")).expect("a link");
    daemon.up(&[]);
    assert!(daemon.dir().join("endpoints.json").symlink_metadata().expect("there").is_file());
    assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
}

#[test]
fn a_stranger_that_has_the_number_of_a_killed_daemon_is_not_signalled() {
    let mut daemon = Daemon::start();
    let path = daemon.dir().join("endpoints.json");
    let mut process = daemon.process.take().expect("it runs");
    process.kill().and_then(|()| process.wait()).expect("it is ours");
    let text = std::fs::read_to_string(&path).expect("a killed daemon leaves it");
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().expect("there");
    let mut found: serde_json::Value = serde_json::from_str(&text).expect("ours");
    found["pid"] = stranger.id().into();
    std::fs::write(&path, found.to_string()).expect("ours");
    let (code, _, error) = daemon.cli(&["upgrade"]);
    let lives = stranger.try_wait().expect("it is ours").is_none();
    stranger.kill().and_then(|()| stranger.wait()).expect("it is ours");
    assert!(lives, "it was signalled");
    assert!(code == Some(1) && error.contains("no daemon serves"), "{error}");
}

#[test]
fn a_stop_ends_when_the_daemon_is_killed_meanwhile() {
    let mut daemon = nobody_serves();
    daemon.up(&["--store-fault", "latency=500ms"]);
    let image = daemon.folder.path().join("image");
    std::fs::write(&image, vec![7; 8 << 20]).expect("a file");
    daemon.ask(&["volume", "import", image.to_str().expect("text"), "vm1"]);
    let mut command = rekindle();
    command.args(["stop", "--drain", "--dir"]).arg(daemon.dir());
    let stop = std::thread::spawn(move || told(&finish(&mut command)));
    wait_until("it stops", || daemon.cli(&["status"]).1["state"] != "serving");
    let mut process = daemon.process.take().expect("it runs");
    process.kill().and_then(|()| process.wait()).expect("it is ours");
    let (code, _, error) = stop.join().expect("it ends");
    assert_eq!(code, Some(1), "{error}");
}

#[test]
fn who_starts_it_with_nohup_keeps_it_when_the_terminal_goes() {
    let mut daemon = nobody_serves();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_rekindle"));
    command.arg("up").arg("--dir").arg(daemon.dir()).arg("--warm").arg(daemon.warm());
    command.args(["--warm-size", "64M"]).stdout(std::process::Stdio::null());
    daemon.process = Some(command.spawn().expect("a shell"));
    wait_until("it serves", || daemon.cli(&["status"]).1["state"] == "serving");
    let worker = daemon.worker();
    daemon.signal(Signal::HUP);
    // An ignored signal leaves no trace. A supervisor that had heard it would end, and start no
    // other worker.
    kill(worker);
    wait_until("another worker serves", || {
        let status = daemon.cli(&["status"]).1;
        status["pid"].as_i64().is_some_and(|pid| pid != i64::from(worker))
            && status["state"] == "serving"
    });
    assert!(is_alive(daemon.worker()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
}

/// Removes what a test leaves in a folder that outlives it.
struct Cleaner(Vec<std::path::PathBuf>);

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| _ = std::fs::remove_file(path));
    }
}

#[test]
fn a_stranger_in_the_place_of_warm_memory_keeps_nobody_from_starting() {
    let mut daemon = nobody_serves();
    let home = |daemon: &Daemon| -> serde_json::Value {
        let text = std::fs::read(daemon.dir().join("node.json")).expect("there");
        serde_json::from_slice(&text).expect("ours")
    };
    let up = |daemon: &mut Daemon| {
        let mut command = rekindle();
        command.arg("up").arg("--dir").arg(daemon.dir()).args(["--warm-size", "64M"]);
        daemon.process =
            Some(command.stdout(std::process::Stdio::null()).spawn().expect("the binary starts"));
        wait_until("it serves", || daemon.cli(&["status"]).1["state"] == "serving");
        let path = daemon.ask(&["debug", "warm"])["path"].as_str().expect("text").to_owned();
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.wait(), Some(0));
        std::path::PathBuf::from(path)
    };
    let usual = up(&mut daemon);
    let mut cleaner = Cleaner(vec![usual.clone()]);
    assert_eq!(home(&daemon)["warm"], serde_json::Value::Null);
    // As after a restart of the machine: the name is free, and another user takes it.
    std::fs::remove_file(&usual).expect("ours");
    std::fs::write(&usual, "of a stranger").expect("free");
    std::fs::set_permissions(&usual, PermissionsExt::from_mode(0o666)).expect("ours");
    let other = up(&mut daemon);
    cleaner.0.push(other.clone());
    assert_ne!(other, usual);
    assert_eq!(home(&daemon)["warm"], other.file_name().and_then(|name| name.to_str()).unwrap());
    assert_eq!(std::fs::read(&usual).expect("there"), b"of a stranger");
    std::fs::remove_file(&usual).expect("ours");
    assert_eq!(up(&mut daemon), other, "what lies there is found again");
}
