//! The binary as its users meet it: its words, its refusals, and a daemon that lives, dies and
//! comes back.
#![expect(
    clippy::disallowed_methods,
    reason = "these tests run real processes on the real machine"
)]

mod boot_report;
mod contrib;
mod daemon;
mod help;
mod inspect;
mod operator;
mod refusals;
mod strangers;
mod supervisor;
mod transfer;
mod upgrade;

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time for any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the binary under test, without what the machine's user has set.
fn rekindle() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_rekindle")))
}

/// Without what the machine's user has set.
fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars()
        .filter(|(name, _)| name.starts_with("REKINDLE_") || name.starts_with("AWS_"))
    {
        command.env_remove(name);
    }
    command
        .env_remove("NOTIFY_SOCKET")
        .env_remove("INVOCATION_ID")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

/// Runs the binary; gives its exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&finish(rekindle().args(arguments)))
}

/// Runs a command to its end; a command that hangs is killed, and the test fails.
fn finish(command: &mut Command) -> Output {
    // Into files: a pipe is not read meanwhile, and would fill up.
    let (mut out, mut error) =
        (tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file"));
    command.stdout(out.try_clone().expect("a file")).stderr(error.try_clone().expect("a file"));
    let mut process = command.spawn().expect("the binary starts");
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = process.try_wait().expect("it is ours") {
            break status;
        }
        if Instant::now() > deadline {
            process.kill().expect("it is ours");
            panic!("{command:?} does not end: {}", String::from_utf8_lossy(&contents(&mut error)));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output { status, stdout: contents(&mut out), stderr: contents(&mut error) }
}

fn contents(file: &mut std::fs::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a file");
    bytes
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A daemon in a folder of its own; killed when the test ends, however it ends.
struct Daemon {
    folder: tempfile::TempDir,
    process: Option<Child>,
}

impl Daemon {
    fn start() -> Self {
        let mut daemon = Self { folder: tempfile::tempdir().expect("a folder"), process: None };
        daemon.up(&[]);
        daemon
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("d")
    }

    /// In the folder, so that the memory goes with it.
    fn warm(&self) -> PathBuf {
        self.folder.path().join("warm")
    }

    fn up(&mut self, more: &[&str]) {
        let warm = self.warm().display().to_string();
        let mut words = vec!["--warm", &warm];
        words.extend(more);
        self.up_as(Path::new(env!("CARGO_BIN_EXE_rekindle")), &words);
    }

    /// Starts the daemon from another file of the binary.
    fn up_as(&mut self, binary: &Path, more: &[&str]) {
        let mut command = clean(Command::new(binary));
        command
            .arg("up")
            .arg("--dir")
            .arg(self.dir())
            .args(["--nbd", "off", "--http", "off", "--warm-size", "64M"])
            .args(more);
        let trace = std::fs::File::create(self.folder.path().join("trace")).expect("a file");
        command.stdout(trace.try_clone().expect("a file")).stderr(trace);
        self.process = Some(command.spawn().expect("the binary starts"));
        wait_until("the daemon serves", || self.cli(&["status"]).1["state"] == "serving");
    }

    /// Runs a command against the daemon, with `--json`.
    fn cli(&self, arguments: &[&str]) -> (Option<i32>, serde_json::Value, String) {
        let output = finish(rekindle().args(arguments).arg("--json").arg("--dir").arg(self.dir()));
        let (code, out, error) = told(&output);
        (code, serde_json::from_str(&out).unwrap_or_default(), error)
    }

    /// As [`Daemon::cli`], and it must succeed.
    fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let (code, value, error) = self.cli(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {error}\n{}", self.trace());
        value
    }

    fn connect(&self, volume: &str) -> rekindle_nbd_client::NbdClient {
        let socket = self.dir().join("nbd.sock");
        rekindle_nbd_client::NbdClient::connect(&socket, volume).expect("it serves")
    }

    fn trace(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("trace")).unwrap_or_default()
    }

    fn worker(&self) -> i32 {
        i32::try_from(self.ask(&["status"])["pid"].as_i64().expect("a pid")).expect("a pid")
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let process = self.process.as_ref().expect("it runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(process), signal)
            .expect("it runs");
    }

    /// Waits for the end of the supervisor; gives its exit code.
    fn wait(&mut self) -> Option<i32> {
        let mut process = self.process.take().expect("it runs");
        let mut code = None;
        wait_until("the daemon ends", || {
            let ended = process.try_wait().expect("it is ours");
            code = ended.and_then(|status| status.code());
            ended.is_some()
        });
        code
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The worker dies with its supervisor.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
