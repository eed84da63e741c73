//! The daemon as a user starts it: `rekindle up`, and the other commands against it.

use crate::shell::{Shell, repository, wait_until};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest path of a Unix socket, bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Options of a start.
#[derive(Clone, Default)]
pub struct Options {
    /// Further arguments of `up`.
    pub arguments: Vec<String>,
    /// Environment (credentials of a store).
    pub environment: Vec<(String, String)>,
    /// Words in front of the binary: `ip netns exec NAME`.
    pub prefix: Vec<String>,
    /// A folder for `--dir` in place of one in the scratch folder.
    pub dir: Option<PathBuf>,
}

impl Options {
    /// Writes a settings file with `text`, and adds further arguments.
    pub fn with_settings(name: &str, text: &str, more: &[&str]) -> Result<Self> {
        let arguments = more.iter().map(|word| (*word).to_owned()).collect();
        Self { arguments, ..Self::default() }.and_settings(name, text)
    }

    /// Writes a settings file with `text`, to be read besides what these options say.
    pub fn and_settings(mut self, name: &str, text: &str) -> Result<Self> {
        let file = scratch(&format!("{name}-settings"))?.join("settings.toml");
        std::fs::write(&file, text)?;
        self.arguments.extend(["--config".to_owned(), file.display().to_string()]);
        Ok(self)
    }
}

/// A running `rekindle up`; killed on drop, its scratch folder removed.
pub struct Daemon {
    pub dir: PathBuf,
    scratch: PathBuf,
    options: Options,
    supervisor: Option<Child>,
}

/// Makes a folder for one story, on the disk of the repository's target folder. Stories run side by
/// side, and some give one name twice: each call makes a folder of its own.
pub fn scratch(name: &str) -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = format!("{name}-{}.{next}", std::process::id());
    let folder = repository().join("target/stories").join(folder);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Returns the path of the binary under test.
#[must_use]
pub fn binary() -> PathBuf {
    std::env::var_os("REKINDLE_BINARY")
        .map_or_else(|| repository().join("target/release/rekindle"), PathBuf::from)
}

impl Daemon {
    /// Starts a daemon with a folder store in a fresh folder.
    pub fn start(name: &str) -> Result<Self> {
        Self::start_with(name, Options::default())
    }

    /// Starts a daemon with these options, and waits until it serves.
    pub fn start_with(name: &str, options: Options) -> Result<Self> {
        let scratch = scratch(name)?;
        let dir = options.dir.clone().unwrap_or_else(|| scratch.join("data"));
        let mut daemon = Self { dir, scratch, options, supervisor: None };
        daemon.up()?;
        Ok(daemon)
    }

    /// Returns the story's own folder, beside the daemon's.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Changes the arguments of later starts.
    pub fn set_arguments<const N: usize>(&mut self, arguments: [&str; N]) {
        self.options.arguments = arguments.map(str::to_owned).to_vec();
    }

    /// Changes the options of later starts; the folder stays.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// Runs `up` (again).
    pub fn up(&mut self) -> Result<()> {
        let trace = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join("trace.txt"))?;
        let mut words = self.options.prefix.clone();
        words.push(binary().display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("up").arg("--dir").arg(&self.dir);
        if !self.options.arguments.iter().any(|argument| argument == "--nbd") {
            command.arg("--nbd").arg(format!("unix:{}", self.socket().display()));
        }
        if !self.options.arguments.iter().any(|argument| argument == "--http") {
            command.arg("--http").arg("127.0.0.1:0");
        }
        if !self.options.arguments.iter().any(|argument| argument == "--warm") {
            command.arg("--warm").arg(self.warm());
        }
        if !self.options.arguments.iter().any(|argument| argument == "--warm-size") {
            command.args(["--warm-size", "64M"]);
        }
        command.args(&self.options.arguments).envs(self.options.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(trace.try_clone()?).stderr(trace);
        let mut child = command.spawn().context("cannot start the daemon: is it built?")?;
        let served = wait_until("the daemon to serve", || {
            (self.cli(&["status"]).is_ok_and(|status| status["state"] == "serving")
                && self.dir.join("endpoints.json").is_file())
                || child.try_wait().is_ok_and(|ended| ended.is_some())
        });
        if let Ok(Some(status)) = child.try_wait() {
            bail!("the daemon ended at once, {status}:\n{}", self.trace());
        }
        self.supervisor = Some(child);
        served.with_context(|| self.trace())
    }

    /// Returns what the daemon has printed.
    #[must_use]
    pub fn trace(&self) -> String {
        std::fs::read_to_string(self.scratch.join("trace.txt")).unwrap_or_default()
    }

    /// Returns the path of the warm memory: real memory, gone after the story.
    #[must_use]
    pub fn warm(&self) -> PathBuf {
        let name = self
            .scratch
            .file_name()
            .map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
        Path::new("/dev/shm").join(format!("rekindle-story-{name}.warm"))
    }

    /// Removes the warm memory, also that of a later node of the same host.
    pub fn remove_warm(&self) {
        let warm = self.warm();
        let name = warm.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&name) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Returns the path of the NBD socket: that in the daemon's folder, unless its path is too long
    /// for a socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let own = self.dir.join("nbd.sock");
        if own.as_os_str().len() <= SOCKET_PATH_MAX { own } else { self.scratch.join("nbd.sock") }
    }

    /// Returns the URI of a volume for NBD clients.
    #[must_use]
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }

    /// Runs a command against the daemon and returns its `--json` answer.
    pub fn cli(&self, arguments: &[&str]) -> Result<Value> {
        let text =
            Shell::new(binary()).args(arguments).arg("--json").arg("--dir").arg(&self.dir).run()?;
        serde_json::from_str(&text)
            .with_context(|| format!("{arguments:?} did not print JSON: {text}"))
    }

    /// Runs a client command that ends with exit code 1 and JSON on its output: it did its work,
    /// and found damage.
    pub fn cli_that_fails(&self, arguments: &[&str]) -> Result<Value> {
        let command = Shell::new(binary()).args(arguments).arg("--json").arg("--dir");
        let output = command.arg(&self.dir).output()?;
        ensure!(output.status.code() == Some(1), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).with_context(|| format!("{arguments:?}: {output:?}"))
    }

    /// Returns the answer of `status`, whether the daemon serves or not.
    pub fn status(&self) -> Result<Value> {
        let command = Shell::new(binary()).args(["status", "--json", "--dir"]).arg(&self.dir);
        let output = command.output()?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("status did not print JSON: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Sends a GET to the API socket and returns the answer with its head.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(self.dir.join("rekindle.sock"))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Moves the store in the daemon's folder away, until it comes back.
    pub fn store_goes(&self) -> Result<()> {
        Ok(std::fs::rename(self.dir.join("store"), self.dir.join("store-away"))?)
    }

    /// Moves the store back to its place.
    pub fn store_comes_back(&self) -> Result<()> {
        Ok(std::fs::rename(self.dir.join("store-away"), self.dir.join("store"))?)
    }

    /// Returns the path of a pack of data in the folder store.
    pub fn data_pack(&self) -> Result<PathBuf> {
        objects(&self.dir.join("store/packs/data"))?.pop().context("a pack")
    }

    /// Removes a volume for good, once the daemon has noticed that its clients have gone.
    pub fn remove_now(&self, name: &str) -> Result<()> {
        let mut removed = Ok(Value::Null);
        wait_until("the volume's clients to be gone", || {
            removed = self.cli(&["volume", "rm", name, "--now"]);
            !matches!(&removed, Err(error) if format!("{error:#}").contains("client(s)"))
        })?;
        removed.map(drop)
    }

    /// Creates a volume.
    pub fn create(&self, name: &str, size: &str, more: &[&str]) -> Result<()> {
        let mut arguments = vec!["volume", "create", name, "--size", size];
        arguments.extend(more);
        self.cli(&arguments).map(|_| ())
    }

    /// Drains a volume.
    pub fn drain(&self, name: &str) -> Result<()> {
        self.cli(&["volume", "drain", name]).map(|_| ())
    }

    /// Returns the pid of the worker.
    pub fn worker(&self) -> Result<u32> {
        let status = self.cli(&["status"])?;
        status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).context("status has no pid")
    }

    /// Kills the worker by `kill -9`; the supervisor starts another.
    pub fn kill_worker(&self) -> Result<()> {
        kill(self.worker()?)
    }

    /// Waits until another worker than `old` serves; returns the time that took.
    pub fn wait_for_worker_after(&self, old: u32) -> Result<Duration> {
        let begin = Instant::now();
        wait_until("another worker", || self.worker().is_ok_and(|pid| pid != old))?;
        Ok(begin.elapsed())
    }

    /// Kills supervisor and worker by `kill -9`, as if the host had died (its memory lives on).
    pub fn kill_all(&mut self) -> Result<()> {
        let worker = self.worker().ok();
        if let Some(mut supervisor) = self.supervisor.take() {
            supervisor.kill()?;
            supervisor.wait()?;
        }
        if let Some(worker) = worker {
            let _ = kill(worker);
            wait_until("the worker to die", || !alive(worker))?;
        }
        Ok(())
    }

    /// Stops the daemon in good order.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut supervisor) = self.supervisor.take() else { return Ok(()) };
        let pid = rustix::process::Pid::from_child(&supervisor);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        wait_until("the daemon to stop", || {
            supervisor.try_wait().is_ok_and(|ended| ended.is_some())
        })
    }

    /// Returns the backlog of a volume, in bytes.
    pub fn backlog_bytes(&self, volume: &str) -> Result<u64> {
        let info = self.cli(&["volume", "show", volume])?;
        info["backlog"]["bytes"].as_u64().context("no backlog in volume show")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        // The test harness shows this of stories that fail only.
        let trace = self.trace();
        let tail = trace.len().saturating_sub(4000);
        println!("--- the daemon said:\n{}", trace.get(tail..).unwrap_or(&trace));
        let _ = self.kill_all();
        self.remove_warm();
        remove_warm_of_guests(&self.dir);
        if !failed {
            let _ = std::fs::remove_dir_all(&self.scratch);
        }
    }
}

/// Removes the warm memory of nodes that went on in a daemon: each is named by the node's id, as
/// the folder of the copies of its log is.
fn remove_warm_of_guests(dir: &Path) {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries(dir).flat_map(|above| entries(&above.path())) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let _ = std::fs::remove_file(format!("/dev/shm/rekindle-{name}.warm"));
    }
}

fn kill(pid: u32) -> Result<()> {
    let pid =
        i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).context("not a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    Ok(())
}

fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z'))
        && !stat.is_empty()
}

/// Turns a bit of a chunk in a pack.
///
/// # Errors
/// When the file cannot be read or written.
pub fn damage(pack: &Path) -> std::io::Result<()> {
    let mut object = std::fs::read(pack)?;
    object[400] ^= 1;
    std::fs::write(pack, object)
}

/// Lists the objects in a folder of a store, without the marker.
///
/// # Errors
/// When the folder cannot be read.
pub fn objects(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Returns a record's text without its seal, so that it may be changed: older versions wrote
/// records like that.
#[must_use]
pub fn unsealed(record: &str) -> String {
    let sealed = |line: &&str| {
        !["  \"incarnation\": ", "  \"proof\": ", "  \"sum\": "]
            .iter()
            .any(|name| line.starts_with(name))
    };
    record.lines().filter(sealed).collect::<Vec<_>>().join("\n").replace("},\n}", "}\n}")
}

/// Counts the bytes that the packs of a folder store take.
#[must_use]
pub fn stored_bytes(store: &Path) -> u64 {
    let mut total = 0;
    for class in ["data", "meta"] {
        let Ok(entries) = std::fs::read_dir(store.join("packs").join(class)) else { continue };
        total += entries
            .flatten()
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|entry| entry.metadata().ok())
            .map(|data| data.len())
            .sum::<u64>();
    }
    total
}
