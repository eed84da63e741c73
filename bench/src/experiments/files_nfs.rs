//! A file volume over NFS 4.1 against nfs-ganesha over a folder of the same disk. One client drives
//! both: the same requests, with as many under way.
//!
//! A file is made as a kernel makes it when its program calls `fsync`: OPEN, a WRITE that is
//! durable before its reply, CLOSE. A rename and a removal are durable at the reply with us, and
//! with nfs-ganesha when its file system gets to it.

use super::files::row;
use super::ganesha::{self, Ganesha, Grace};
use crate::machine;
use crate::mounted::{VOLUME, forget_page_cache};
use crate::nfs::{DATA_BYTES, Handle, Ops, Session, Stable};
use crate::rounds::{Bench, Run, Sides, short};
use crate::servers::Rekindle;
use crate::table::Row;
use anyhow::{Context, Result, ensure};
use rekindle_base::random::Random;
use rekindle_base::units::MIB;
use serde_json::json;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const NAME: &str = "files-nfs";
const PORT: u16 = 22_050;
/// Longest wait for a server that has been started.
const PATIENCE: Duration = Duration::from_secs(30);
/// Clients at a time.
const CLIENTS: [usize; 2] = [1, 8];
/// Files of all clients together in a run.
const FILES: usize = 800;
const FILE_BYTES: usize = 4096;
/// Requests of a stream that are under way.
const AT_ONCE: u32 = 8;
const STREAM_MIB_MAX: u64 = 512;
/// The calls for each file, in their order.
const CALLS: [&str; 4] = ["made durably", "looked up with its attributes", "renamed", "removed"];
/// Time of each part of making a file, ms: OPEN, WRITE, CLOSE.
type Parts = [f64; 3];

/// A server that is measured.
trait Server: Sync {
    fn port(&self) -> u16;
    fn export(&self) -> &'static str;
    /// Waits until nothing is left to do.
    fn settle(&self) -> Result<()>;
    /// Begins anew without anything in memory.
    fn forget(&mut self, bench: &Bench) -> Result<()>;

    fn connect(&self) -> Result<Session> {
        // Servers remember clients by their names.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        let begin = Instant::now();
        loop {
            match Session::new(self.port(), self.export(), &name) {
                Err(_) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other,
            }
        }
    }
}

struct Ours(Rekindle);

struct Theirs {
    server: Option<Ganesha>,
    folder: PathBuf,
}

impl Ours {
    fn start(bench: &Bench) -> Result<Self> {
        let address = format!("127.0.0.1:{PORT}");
        let settings = "nfs_any_port = 'on'\n";
        let server = Rekindle::start_with(bench, NAME, settings, &["--nfs", &address])?;
        let body = json!({"name": VOLUME, "kind": "file", "size": 1_u64 << 40});
        server.api("POST", "/api/v1/volumes", Some(&body))?;
        Ok(Self(server))
    }
}

impl Server for Ours {
    fn port(&self) -> u16 {
        PORT
    }

    fn export(&self) -> &'static str {
        VOLUME
    }

    fn settle(&self) -> Result<()> {
        self.0.drain(VOLUME)
    }

    fn forget(&mut self, _: &Bench) -> Result<()> {
        self.0.stop()?;
        self.0.forget_warm_memory()?;
        forget_page_cache();
        self.0.up()?;
        self.0.wait_until_it_serves()
    }
}

impl Theirs {
    fn start(bench: &Bench) -> Result<Self> {
        let folder = Ganesha::folder(bench, "files-ganesha")?;
        let server = Some(Ganesha::start(bench, &folder, Grace::Without)?);
        Ok(Self { server, folder })
    }
}

impl Server for Theirs {
    fn port(&self) -> u16 {
        ganesha::PORT
    }

    fn export(&self) -> &'static str {
        "export"
    }

    fn settle(&self) -> Result<()> {
        rustix::fs::sync();
        Ok(())
    }

    fn forget(&mut self, bench: &Bench) -> Result<()> {
        self.server = None;
        forget_page_cache();
        self.server = Some(Ganesha::start(bench, &self.folder, Grace::Without)?);
        Ok(())
    }
}

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !Ganesha::is_installed() {
        let what = "a file volume over NFS 4.1; nfs-ganesha over a folder of this disk";
        return Ok(vec![Row::new(NAME, what).skipped(&["nfs-ganesha"])]);
    }
    let (mut ours, mut theirs) = (Ours::start(bench)?, Theirs::start(bench)?);
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let (ours_parts, theirs_parts) = (Cell::default(), Cell::default());
        let names = |server: &dyn Server, parts: &Cell<Parts>| -> Result<[f64; 4]> {
            let (rates, took) = names(bench, server, clients)?;
            parts.set(took);
            server.settle()?;
            Ok(rates)
        };
        let sides =
            bench.alternate(|| names(&ours, &ours_parts), || names(&theirs, &theirs_parts))?;
        for (at, call) in CALLS.into_iter().enumerate() {
            let plural = if clients == 1 { "client" } else { "clients" };
            let what = format!(
                "NFS 4.1, {clients} {plural}: a file of 4 KiB {call}; nfs-ganesha over a folder of this disk"
            );
            let row = row(NAME, &what, "files/s", (&of(&sides, at), 1.0), None);
            rows.push(match at {
                0 => row.note(told(ours_parts.get(), theirs_parts.get())),
                2 | 3 => row.note("nfs-ganesha replies before it is durable"),
                _ => row,
            });
        }
    }
    rows.extend(streams(bench, &mut ours, &mut theirs)?);
    drop(theirs);
    Ok(rows)
}

fn told(ours: Parts, theirs: Parts) -> String {
    let told = |parts: Parts| parts.map(short).join(" ");
    format!("OPEN, WRITE, CLOSE in the last round: {} ms against {} ms", told(ours), told(theirs))
}

/// The values of one kind of two sides that measure several.
fn of<const N: usize>(sides: &Sides<[f64; N], [f64; N]>, at: usize) -> Sides<f64, f64> {
    let one =
        |runs: &[Run<[f64; N]>]| runs.iter().map(|run| run.map(|values| values[at])).collect();
    Sides { ours: one(&sides.ours), theirs: one(&sides.theirs) }
}

/// Has clients make files, look them up, rename and remove them, each in a directory of its own;
/// returns files a second, and what making one took.
fn names(bench: &Bench, server: &dyn Server, clients: usize) -> Result<([f64; 4], Parts)> {
    let mut sessions = Vec::new();
    for client in 0..clients {
        let mut session = server.connect()?;
        let dir = session.make_dir(&format!("dir-{client}"))?;
        sessions.push((session, dir));
    }
    let (mut rates, parts) = ([0.0; 4], Mutex::new(Parts::default()));
    for (at, rate) in rates.iter_mut().enumerate() {
        *rate = together(bench, &mut sessions, |session, dir| {
            let mut took = Parts::default();
            (0..FILES / clients)
                .try_for_each(|number| one(session, dir, (at, number), &mut took))?;
            let mut parts = parts.lock().expect("no panic");
            (0..3).for_each(|part| parts[part] += took[part] * 1e3 / FILES as f64);
            Ok(())
        })?;
    }
    for client in 0..clients {
        let root = sessions[0].0.root.clone();
        sessions[0].0.ask(&Ops::remove(&root, &format!("dir-{client}")))?;
    }
    Ok((rates, parts.into_inner().expect("no panic")))
}

/// Calls for one file; adds up the seconds that the parts take.
fn one(
    session: &mut Session,
    dir: &Handle,
    (call, number): (usize, usize),
    took: &mut Parts,
) -> Result<()> {
    let (old, new) = (format!("file-{number}"), format!("renamed-{number}"));
    match call {
        0 => {
            let data = Random::new(number as u64).bytes(FILE_BYTES);
            let mut begin = Instant::now();
            let mut note = |part: usize| {
                took[part] += begin.elapsed().as_secs_f64();
                begin = Instant::now();
            };
            let file = session.open(dir, &old, true)?;
            note(0);
            session.ask(&Ops::write(&file, 0, Stable::Now, &data))?;
            note(1);
            session.close(&file)?;
            note(2);
            Ok(())
        }
        1 => session.ask(&Ops::stat(dir, &old)).map(drop),
        2 => session.ask(&Ops::rename(dir, &old, &new)).map(drop),
        _ => session.ask(&Ops::remove(dir, &new)).map(drop),
    }
}

/// Has all clients work at the same time, on the clients' cores; returns files a second.
fn together(
    bench: &Bench,
    sessions: &mut [(Session, Handle)],
    work: impl Fn(&mut Session, &Handle) -> Result<()> + Sync,
) -> Result<f64> {
    let (start, count) = (&Barrier::new(sessions.len() + 1), FILES / sessions.len());
    let (work, files) = (&work, count * sessions.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = sessions
            .iter_mut()
            .map(|(session, dir)| {
                scope.spawn(move || {
                    let pinned = machine::pin_this_thread(&bench.layout.client);
                    start.wait();
                    pinned.and_then(|()| work(session, dir))
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        for thread in threads {
            thread.join().expect("no panic")?;
        }
        Ok(files as f64 / begin.elapsed().as_secs_f64())
    })
}

/// The rates of one round of a stream, bytes a second: written durably, read with nothing in
/// memory, and read again.
type Stream = [f64; 3];

fn streams(bench: &Bench, ours: &mut Ours, theirs: &mut Theirs) -> Result<Vec<Row>> {
    let mebibytes = bench.size.min(STREAM_MIB_MAX * MIB) / MIB;
    let data = Random::new(8).bytes(usize::try_from(mebibytes * MIB)?);
    let mut sides = Sides { ours: Vec::new(), theirs: Vec::new() };
    for _ in 0..bench.rounds {
        sides.ours.push(bench.run(|| stream(bench, ours, &data))?);
        sides.theirs.push(bench.run(|| stream(bench, theirs, &data))?);
    }
    let sizes =
        format!("{mebibytes} MiB in requests of {} KiB, {AT_ONCE} under way", DATA_BYTES >> 10);
    let whats = [
        format!("NFS 4.1: {sizes}, written and committed; nfs-ganesha over a folder of this disk"),
        "NFS 4.1: the same read, nothing in memory; nfs-ganesha likewise".to_owned(),
        "NFS 4.1: the same read again; nfs-ganesha likewise".to_owned(),
    ];
    let row = |(at, what): (usize, String)| {
        row(NAME, &what, "MiB/s", (&of(&sides, at), MIB as f64), None)
    };
    Ok(whats.into_iter().enumerate().map(row).collect())
}

fn stream(bench: &Bench, server: &mut dyn Server, data: &[u8]) -> Result<Stream> {
    let written = on_client(bench, || {
        let mut session = server.connect()?;
        let root = session.root.clone();
        let file = session.open(&root, "stream", true)?;
        let pieces = data.chunks(DATA_BYTES as usize).enumerate().map(|(number, piece)| {
            Ops::write(&file, number as u64 * u64::from(DATA_BYTES), Stable::Later, piece)
        });
        let begin = Instant::now();
        session.many(AT_ONCE, pieces, |_| Ok(()))?;
        session.commit(&file)?;
        let rate = data.len() as f64 / begin.elapsed().as_secs_f64();
        session.close(&file)?;
        Ok(rate)
    })?;
    server.settle()?;
    server.forget(bench)?;
    let cold = on_client(bench, || read(server, data.len()))?;
    let again = on_client(bench, || read(server, data.len()))?;
    let mut session = server.connect()?;
    let root = session.root.clone();
    session.ask(&Ops::remove(&root, "stream"))?;
    server.settle()?;
    Ok([written, cold, again])
}

/// Reads the stream from begin to end; returns bytes a second.
fn read(server: &dyn Server, length: usize) -> Result<f64> {
    let mut session = server.connect()?;
    let root = session.root.clone();
    let file = session.open(&root, "stream", false)?;
    let asked = (0..length as u64).step_by(DATA_BYTES as usize);
    let asked = asked.map(|from| Ops::read(&file, from, DATA_BYTES));
    let (begin, mut bytes) = (Instant::now(), 0);
    session.many(AT_ONCE, asked, |reply| {
        bytes += reply.read()?;
        Ok(())
    })?;
    let rate = length as f64 / begin.elapsed().as_secs_f64();
    ensure!(bytes == length, "{bytes} bytes were read");
    session.close(&file)?;
    Ok(rate)
}

/// Does work in a thread on the clients' cores.
fn on_client<T: Send>(bench: &Bench, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            machine::pin_this_thread(&bench.layout.client)?;
            work()
        });
        thread.join().ok().context("a client has panicked")?
    })
}
