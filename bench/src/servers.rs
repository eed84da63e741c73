//! The servers that are compared: started pinned, in the scratch folder, stopped and cleaned up on
//! drop.

use crate::http;
use crate::machine::{self, pinned};
use crate::nbd::Client;
use crate::rounds::Bench;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time of a server until it serves.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that is killed on drop.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.spawn().with_context(|| format!("cannot start {command:?}"))?))
    }

    /// Kills the process by `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        Ok(self.0.wait().map(drop)?)
    }

    pub fn is_over(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A server of one export.
pub struct Simple {
    _process: Process,
    socket: PathBuf,
}

impl Simple {
    /// Starts `nbdkit memory`.
    pub fn nbdkit_memory(bench: &Bench, mebibytes: u64) -> Result<Self> {
        let socket = bench.scratch.join("nbdkit.sock");
        let mut command = pinned(&bench.layout.server, "nbdkit");
        command.args(["-f", "-U"]).arg(&socket).arg("memory").arg(format!("{mebibytes}M"));
        Self::start(command, socket)
    }

    /// Starts `qemu-nbd` on a raw file that is written already.
    pub fn qemu_nbd(bench: &Bench, file: &Path) -> Result<Self> {
        let socket = bench.scratch.join("qemu-nbd.sock");
        let mut command = pinned(&bench.layout.server, "qemu-nbd");
        command.args(["-t", "-e", "8", "-f", "raw", "--cache=writeback", "-k"]);
        command.arg(&socket).arg(file);
        Self::start(command, socket)
    }

    fn start(mut command: Command, socket: PathBuf) -> Result<Self> {
        let _ = std::fs::remove_file(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = Self { _process: Process::start(&mut command)?, socket };
        Client::connect_soon(&server.socket, "", PATIENCE)?;
        Ok(server)
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Simple {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Writes a file of that many MiB.
pub fn written_file(path: &Path, mebibytes: usize) -> Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let noise = rekindle_base::random::Random::new(1).bytes(1 << 20);
    for _ in 0..mebibytes {
        file.write_all(&noise)?;
    }
    Ok(file.sync_all()?)
}

/// A running `rekindle up` and its folder.
pub struct Rekindle {
    dir: PathBuf,
    warm: PathBuf,
    arguments: Vec<String>,
    server_cores: String,
    binary: PathBuf,
    child: Option<Child>,
}

impl Rekindle {
    /// Starts a daemon in a fresh folder.
    pub fn start(bench: &Bench, name: &str, arguments: &[&str]) -> Result<Self> {
        let dir = bench.scratch.join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
        let warm = format!("/dev/shm/rekindle-bench-{name}-{}.warm", std::process::id());
        let mut server = Self {
            dir,
            warm: PathBuf::from(warm),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            server_cores: bench.layout.server.clone(),
            binary: bench.binary.clone(),
            child: None,
        };
        server.up()?;
        server.wait_until_it_serves()?;
        Ok(server)
    }

    /// Starts a daemon in a fresh folder, with settings as they stand in its file.
    pub fn start_with(bench: &Bench, name: &str, settings: &str, more: &[&str]) -> Result<Self> {
        let file = bench.scratch.join(format!("{name}.toml"));
        std::fs::write(&file, settings)?;
        let mut arguments = vec!["--config", file.to_str().context("a path that is text")?];
        arguments.extend(more);
        Self::start(bench, name, &arguments)
    }

    /// Runs `up` (again) and does not wait.
    pub fn up(&mut self) -> Result<()> {
        let trace = std::fs::File::options().create(true).append(true).open(self.trace())?;
        let mut command = pinned(&self.server_cores, &self.binary);
        command.arg("up").arg("--dir").arg(&self.dir).arg("--warm").arg(&self.warm);
        command.args(["--nbd", "off", "--http", "off"]).args(&self.arguments);
        for name in ["DIR", "STORE", "CONFIG", "STORE_FAULT", "FLASH_BUDGET", "CACHE", "WARM_SIZE"]
        {
            command.env_remove(format!("REKINDLE_{name}"));
        }
        command.stdin(Stdio::null()).stdout(trace.try_clone()?).stderr(trace);
        self.child = Some(command.spawn().context("cannot start rekindle: is it built?")?);
        Ok(())
    }

    /// Waits until the API answers that the daemon serves.
    pub fn wait_until_it_serves(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let status = self.api("GET", "/api/v1/status", None);
            if status.as_ref().is_ok_and(|status| status["state"] == "serving") {
                return Ok(());
            }
            let ended = self
                .child
                .as_mut()
                .is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if ended || begin.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(self.trace()).unwrap_or_default();
                bail!("rekindle does not serve: {status:?}\n{said}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a request to the API.
    pub fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        http::request(&self.dir.join("rekindle.sock"), method, path, body)
    }

    /// Creates a volume; `ack` is `flash`, `memory`, or another policy than `back`.
    pub fn create(&self, name: &str, mebibytes: u64, ack: &str) -> Result<()> {
        let mut body = json!({ "name": name, "size": mebibytes << 20 });
        let key = if matches!(ack, "flash" | "memory") { "ack" } else { "policy" };
        body[key] = json!(ack);
        self.api("POST", "/api/v1/volumes", Some(&body)).map(drop)
    }

    /// Drains a volume.
    pub fn drain(&self, name: &str) -> Result<()> {
        self.finish(&format!("/api/v1/volumes/{name}/drain")).map(drop)
    }

    /// Begins a job and waits for its end; returns its result.
    pub fn finish(&self, begin: &str) -> Result<Value> {
        self.finish_with(begin, &json!({}))
    }

    /// The same, with a body for the request that begins the job.
    pub fn finish_with(&self, begin: &str, body: &Value) -> Result<Value> {
        let job = self.api("POST", begin, Some(body))?;
        let path = format!("/api/v1/jobs/{}", job["id"].as_str().context("a job has an id")?);
        loop {
            let mut job = self.api("GET", &path, None)?;
            match job["state"].as_str() {
                Some("running") => std::thread::sleep(Duration::from_millis(20)),
                Some("done") => return Ok(job["result"].take()),
                _ => bail!("{begin} failed: {job}"),
            }
        }
    }

    /// Returns the CPU seconds that supervisor and worker have used.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let supervisor = self.child.as_ref().context("the daemon runs")?.id();
        let worker = self.worker()?.as_raw_nonzero().get().cast_unsigned();
        Ok(machine::cpu_seconds(supervisor)? + machine::cpu_seconds(worker)?)
    }

    /// Returns the counters of the requests to the store.
    pub fn requests(&self) -> Result<Requests> {
        Ok(Requests(self.api("GET", "/api/v1/store", None)?["detail"].take()))
    }

    /// Returns the folder of the store, when that is the default one.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Fills a volume from begin to end, so that both sides work on memory that was touched, and
    /// drains it.
    pub fn fill(&self, bench: &Bench, name: &str, mebibytes: u64) -> Result<()> {
        fill(bench, &self.uri(name), mebibytes)?;
        self.drain(name)
    }

    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket().display())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    fn trace(&self) -> PathBuf {
        self.dir.join("trace.txt")
    }

    /// Returns the pid of the worker.
    pub fn worker(&self) -> Result<Pid> {
        let status = self.api("GET", "/api/v1/status", None)?;
        let pid = status["detail"]["pid"].as_i64().context("status names no process")?;
        Pid::from_raw(i32::try_from(pid)?).context("not a process")
    }

    /// Kills the worker by `kill -9`; the supervisor starts another.
    pub fn kill_worker(&self) -> Result<()> {
        Ok(kill_process(self.worker()?, Signal::KILL)?)
    }

    /// Stops the daemon in good order.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        Ok(child.wait().map(drop)?)
    }

    /// Kills supervisor and worker by `kill -9`.
    pub fn kill(&mut self) -> Result<()> {
        let worker = self.worker().ok();
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill()?;
        child.wait()?;
        // The worker dies with its parent. Once it is gone, it has no memory to measure and no
        // locks.
        let alive = |pid: Pid| Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists();
        let begin = Instant::now();
        while worker.is_some_and(alive) && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Removes warm memory, as if the host had lost it.
    pub fn forget_warm_memory(&self) -> Result<()> {
        Ok(std::fs::remove_file(&self.warm)?)
    }

    /// Takes the log's segments out of the page cache.
    pub fn forget_cached_flash(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.dir.join("flash"))? {
            let file = std::fs::File::open(entry?.path())?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// The counters of a daemon's requests to its store, since its start.
pub struct Requests(Value);

impl Requests {
    /// Parts of a store that volumes and sweeps use: not those that a node needs for itself.
    pub const PARTS: [&str; 4] = ["data", "metadata", "records", "sweep"];
    pub const PUTS: &[&str] = &["put", "create", "replace"];
    pub const GETS: &[&str] = &["get", "get_range"];

    /// Counts the requests of these kinds for a part of the store.
    pub fn of(&self, part: &str, kinds: &[&str]) -> u64 {
        kinds.iter().filter_map(|kind| self.0["requests"][part][kind].as_u64()).sum()
    }

    /// Counts the requests of these kinds for all [`Requests::PARTS`].
    pub fn count(&self, kinds: &[&str]) -> u64 {
        Self::PARTS.iter().map(|part| self.of(part, kinds)).sum()
    }

    /// Counts the bytes of these kinds of requests, for the whole store.
    pub fn bytes(&self, kinds: &[&str]) -> u64 {
        kinds.iter().filter_map(|kind| self.0["calls"][kind]["bytes"].as_u64()).sum()
    }
}

impl Drop for Rekindle {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = std::fs::remove_file(&self.warm);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Fills an export from begin to end.
pub fn fill(bench: &Bench, uri: &str, mebibytes: u64) -> Result<()> {
    let mut command = pinned(&bench.layout.client, "fio");
    command.args(["--name=fill", "--output-format=json", "--ioengine=nbd", "--rw=write"]);
    command.args(["--bs=256k", "--iodepth=4"]).arg(format!("--uri={uri}"));
    let output = command.arg(format!("--size={mebibytes}m")).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}
