//! Killed with a gigabyte of data: redis reads its file before it answers; a volume with a gigabyte
//! of unfinished changes (experiment `overlay`) reads what it needs.

use crate::machine::pinned;
use crate::rounds::{Bench, middle, times};
use crate::servers::Process;
use crate::table::Row;
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const NAME: &str = "redis";
const KEYS: usize = 250_000;
const VALUE_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(120);

struct Redis {
    process: Process,
    socket: PathBuf,
}

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let folder = bench.scratch.join(NAME);
    std::fs::create_dir_all(&folder)?;
    let mut server = Redis::start(bench, &folder)?;
    server.wait(Instant::now())?;
    let said = server.ask(&format!("DEBUG POPULATE {KEYS} key {VALUE_BYTES}\r\n"))?;
    ensure!(said.starts_with("+OK"), "redis: {said}");
    let said = server.ask("SAVE\r\n")?;
    ensure!(said.starts_with("+OK"), "redis: {said}");
    let mut runs = Vec::new();
    for _ in 0..bench.rounds {
        server.process.kill()?;
        let begin = Instant::now();
        runs.push(bench.run(|| {
            server = Redis::start(bench, &folder)?;
            server.wait(begin)
        })?);
    }
    let run = middle(&runs, |ms| *ms);
    let what = format!(
        "kill -9 of redis with {KEYS} values of 4 KiB in its snapshot: exec to the first GET that is answered"
    );
    Ok(vec![Row::new(NAME, what).theirs(times(&runs)).others(run.others)])
}

impl Redis {
    fn start(bench: &Bench, folder: &Path) -> Result<Self> {
        let socket = folder.join("redis.sock");
        let _ = std::fs::remove_file(&socket);
        let mut command = pinned(&bench.layout.server, "redis-server");
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "local", "--dir"]);
        command.arg(folder).arg("--unixsocket").arg(&socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::start(&mut command).context("is redis-server installed?")?;
        Ok(Self { process, socket })
    }

    fn ask(&self, command: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = [0; 4200];
        let count = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
    }

    /// Waits until a key is answered; returns the time since `begin`, ms.
    fn wait(&self, begin: Instant) -> Result<f64> {
        loop {
            // While redis loads, it answers with an error.
            if self.ask("GET key:0\r\n").is_ok_and(|answer| answer.starts_with('$')) {
                return Ok(begin.elapsed().as_secs_f64() * 1e3);
            }
            ensure!(begin.elapsed() < PATIENCE, "redis does not answer");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
