//! A mounted file volume: small files against a plain folder of the same disk, streams against the
//! content store alone, over the same kind of store and the same bytes.
//!
//! The folder has no FUSE in front: each of its calls is spared two changes of process. The same
//! load runs on a folder behind bindfs, too, where each call takes the same way. The **bare store**
//! cuts, packs and writes the bytes ([`rekindle_content::Batch`]), and reads chunk by chunk, a few
//! at a time, as a program could that knows where they lie. The second pair of rows is of bytes of
//! which most were there before.

use super::{SECRET, content_config};
use crate::data::{mixture, repeated};
use crate::machine;
use crate::mounted::{Mounted, Other, VOLUME, forget_page_cache};
use crate::rounds::{Bench, Run, Sides, beside, middle, short, spread};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rekindle_base::random::Random;
use rekindle_base::units::MIB;
use rekindle_content::chunker::{MinCdc, cuts};
use rekindle_content::{Class, Content, Pointer};
use rekindle_datastore::layer::fault;
use rekindle_env::Env;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

/// Files that are made durably in a run.
const DURABLE: u64 = 400;
/// Files, and calls on them, of a run of the small-file load.
const FILES: u64 = 500;
const CALLS: u64 = 3000;
/// Share of the duplicates among the bytes of the second stream.
const DUPLICATES: f64 = 0.8;
/// The store behind a line: what the line carries, MiB a second, and how late each request is.
const LINE: u64 = 100;
const LATENCY: &str = "2ms";
/// Chunks that are read at once without a file system.
const READ_AT_ONCE: usize = 8;
/// Small files: durable ones, and many calls without any promise.
pub fn small(bench: &Bench) -> Result<Vec<Row>> {
    let mounted = Mounted::start(bench, "files-small", &[])?;
    let plain = bench.scratch.join("files-plain");
    std::fs::create_dir_all(&plain)?;
    let durable = bench.alternate(|| make_durable(&mounted.folder), || make_durable(&plain))?;
    let calls = bench.alternate(|| call(&mounted.folder), || call(&plain))?;
    let mut rows = vec![
        row(
            "files-small",
            "a file of 4 KiB made and fsync'ed, one after the other; a folder of this disk",
            "files/s",
            (&durable, 1.0),
            None,
        ),
        row(
            "files-small",
            "small files as Postmark has them: read, appended, made, removed; a folder of this disk",
            "calls/s",
            (&calls, 1.0),
            None,
        ),
    ];
    let what =
        "small files as Postmark has them; a folder of this disk through the same front (bindfs)";
    rows.push(match Other::bindfs(bench, &plain, "files-behind")? {
        Some(behind) => {
            let calls = bench.alternate(|| call(&mounted.folder), || call(&behind.folder))?;
            row("files-small", what, "calls/s", (&calls, 1.0), Some(0.42))
        }
        None => Row::new("files-small", what).skipped(&["bindfs"]),
    });
    rows.extend(beside_juicefs(bench, &mounted)?);
    std::fs::remove_dir_all(&plain)?;
    Ok(rows)
}

/// The same loads against JuiceFS.
fn beside_juicefs(bench: &Bench, mounted: &Mounted) -> Result<[Row; 2]> {
    let whats = [
        "a file of 4 KiB made and fsync'ed; JuiceFS over a folder, whose fsync reaches no disk",
        "small files as Postmark has them; JuiceFS over a folder",
    ];
    let Some(theirs) = Other::juicefs(bench, "files-juice")? else {
        return Ok(whats.map(|what| Row::new("files-small", what).skipped(&["juicefs"])));
    };
    let durable =
        bench.alternate(|| make_durable(&mounted.folder), || make_durable(&theirs.folder))?;
    let calls = bench.alternate(|| call(&mounted.folder), || call(&theirs.folder))?;
    Ok([
        row("files-small", whats[0], "files/s", (&durable, 1.0), Some(1.0)),
        row("files-small", whats[1], "calls/s", (&calls, 1.0), None),
    ])
}

/// A row of two rates.
pub(super) fn row(
    name: &'static str,
    what: &str,
    unit: &str,
    (sides, scale): (&Sides<f64, f64>, f64),
    wanted: Option<f64>,
) -> Row {
    let rate = |runs: &[Run<f64>]| {
        let run = middle(runs, |rate| *rate);
        (run.value, run.others)
    };
    let (ours, theirs) = (rate(&sides.ours), rate(&sides.theirs));
    let row = Row::new(name, what)
        .ours(format!("{} {unit}", short(ours.0 / scale)))
        .theirs(format!("{} {unit}", short(theirs.0 / scale)))
        .value(ours.0 / theirs.0, "x")
        .others(ours.1.max(theirs.1))
        .note(format!(
            "{}; all: {} against {}",
            beside(sides, |rate| *rate, |rate| *rate),
            spread(&sides.ours, |rate| rate / scale),
            spread(&sides.theirs, |rate| rate / scale)
        ));
    wanted.into_iter().fold(row, |row, wanted| row.wanted(Wanted::AtLeast(wanted)))
}

fn make_durable(root: &Path) -> Result<f64> {
    let dir = root.join("durable");
    std::fs::create_dir(&dir)?;
    let bytes = Random::new(1).bytes(4096);
    let begin = Instant::now();
    for number in 0..DURABLE {
        let mut file = File::create_new(dir.join(number.to_string()))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
    }
    let rate = DURABLE as f64 / begin.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&dir)?;
    Ok(rate)
}

/// The load of Postmark: files of half a KiB to 10 KiB, of which one is read or appended to, and
/// one made or removed, again and again.
fn call(root: &Path) -> Result<f64> {
    let dir = root.join("small");
    std::fs::create_dir(&dir)?;
    let mut random = Random::new(2);
    let noise = Random::new(3).bytes(10 << 10);
    let name = |number: u64| dir.join(number.to_string());
    let make = |random: &mut Random, number: u64| -> Result<()> {
        let length = 512 + random.below(9728) as usize;
        Ok(std::fs::write(name(number), &noise[..length])?)
    };
    let begin = Instant::now();
    let (mut live, mut next) = ((0..FILES).collect::<Vec<_>>(), FILES);
    for number in 0..FILES {
        make(&mut random, number)?;
    }
    for _ in 0..CALLS {
        let number = live[random.below(live.len() as u64) as usize];
        if random.below(2) == 0 {
            std::fs::read(name(number))?;
        } else {
            let mut file = File::options().append(true).open(name(number))?;
            file.write_all(&noise[..512 + random.below(4096) as usize])?;
        }
        if random.below(2) == 0 {
            make(&mut random, next)?;
            live.push(next);
            next += 1;
        } else {
            let gone = live.swap_remove(random.below(live.len() as u64) as usize);
            std::fs::remove_file(name(gone))?;
        }
    }
    let rate = (FILES + 2 * CALLS) as f64 / begin.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&dir)?;
    Ok(rate)
}

/// A large file, written until all of it is in the store, and read with nothing in memory.
pub fn stream(bench: &Bench) -> Result<Vec<Row>> {
    let mebibytes = usize::try_from(bench.size / MIB)?;
    let new = mixture(&mut Random::new(4), mebibytes).into();
    let mut rows = stream_of(bench, &new, ("", (0.88, 0.82)), None)?;
    let which = format!(", store behind a line of {LINE} MiB/s,");
    let fault = format!("latency={LATENCY},rate={LINE}M");
    rows.extend(stream_of(bench, &new, (&which, (0.88, 0.82)), Some(&fault))?);
    drop(new);
    let again = repeated(&mut Random::new(5), mebibytes, DUPLICATES).into();
    let which = format!(", {:.0} % duplicates", DUPLICATES * 100.0);
    rows.extend(stream_of(bench, &again, (&which, (0.95, 0.95)), None)?);
    Ok(rows)
}

fn stream_of(
    bench: &Bench,
    data: &Bytes,
    (which, wanted): (&str, (f64, f64)),
    fault: Option<&str>,
) -> Result<Vec<Row>> {
    let arguments: Vec<&str> = fault.iter().flat_map(|fault| ["--store-fault", *fault]).collect();
    let (env, runtime) = rekindle_env::real::env()?;
    let bare = bench.scratch.join("files-bare");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut stored, mut reads, mut bare_reads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let mut mounted = Mounted::start(bench, "files-stream", &arguments)?;
        let path = mounted.folder.join("file");
        ours.push(bench.run(|| write(&path, data, &mounted.server))?);
        stored.push(machine::folder_bytes(&mounted.server.store())?);
        mounted.forget(bench)?;
        reads.push(bench.run(|| read(&path, data.len()))?);
        drop(mounted);

        let _ = std::fs::remove_dir_all(&bare);
        let content = open(&runtime, &env, &bare, fault)?;
        let mut pointers = Vec::new();
        theirs.push(bench.run(|| {
            let begin = Instant::now();
            pointers = runtime.block_on(ingest(&content, data))?;
            Ok(data.len() as f64 / begin.elapsed().as_secs_f64())
        })?);
        drop(content);
        forget_page_cache();
        let content = open(&runtime, &env, &bare, fault)?;
        bare_reads.push(bench.run(|| {
            let begin = Instant::now();
            let bytes = runtime.block_on(read_all(&content, &pointers))?;
            ensure!(bytes == data.len(), "{bytes} bytes");
            Ok(bytes as f64 / begin.elapsed().as_secs_f64())
        })?);
    }
    let in_store = stored.iter().max().copied().unwrap_or_default();
    let bare_store = machine::folder_bytes(&bare)?;
    std::fs::remove_dir_all(&bare)?;
    let scale = MIB as f64;
    let sizes =
        format!("in the store {} MiB, {} MiB without files", in_store / MIB, bare_store / MIB);
    let mebibytes = data.len() as u64 / MIB;
    let written = Sides { ours, theirs };
    let read = Sides { ours: reads, theirs: bare_reads };
    Ok(vec![
        row(
            "files-stream",
            &format!(
                "a file of {mebibytes} MiB{which} written until it is in the store; content alone"
            ),
            "MiB/s",
            (&written, scale),
            Some(wanted.0),
        )
        .note(cpu(&written, data.len()))
        .note(sizes),
        row(
            "files-stream",
            &format!("the same file{which} read from the store, nothing in memory; content alone"),
            "MiB/s",
            (&read, scale),
            Some(wanted.1),
        )
        .note(cpu(&read, data.len())),
    ])
}

/// Says what the middle runs of two rates took of the processor.
pub(super) fn cpu(sides: &Sides<f64, f64>, bytes: usize) -> String {
    let each = |runs: &[Run<f64>]| {
        short(middle(runs, |rate| *rate).used / (bytes as f64 / MIB as f64 / 1024.0))
    };
    let (ours, theirs) = (each(&sides.ours), each(&sides.theirs));
    format!("the machine's CPU, kernel and client included: {ours} against {theirs} s a GiB")
}

/// Writes a file until it is in the store; returns bytes a second.
pub(super) fn write(path: &Path, data: &[u8], server: &Rekindle) -> Result<f64> {
    let begin = Instant::now();
    let mut file = File::create_new(path)?;
    for piece in data.chunks(1 << 20) {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    server.drain(VOLUME)?;
    Ok(data.len() as f64 / begin.elapsed().as_secs_f64())
}

/// Reads a file from begin to end; returns bytes a second.
pub(super) fn read(path: &Path, length: usize) -> Result<f64> {
    let begin = Instant::now();
    let (mut file, mut buffer, mut bytes) = (File::open(path)?, vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => bytes += count,
        }
    }
    ensure!(bytes == length, "{bytes} bytes");
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}

/// Opens a content store with the node's settings.
fn open(
    runtime: &rekindle_env::real::Runtime,
    env: &Env,
    folder: &Path,
    fault: Option<&str>,
) -> Result<Content> {
    let url = folder.to_str().context("a path that is text")?;
    let store = runtime.block_on(rekindle_datastore::open(env, url))?;
    let store = match fault {
        Some(fault) => fault::wrap(env, store, fault.parse()?).0,
        None => store,
    };
    Ok(Content::open(env.clone(), store, content_config()))
}

async fn ingest(content: &Content, data: &Bytes) -> Result<Vec<Pointer>> {
    let (mut batch, mut pointers) = (content.batch(), Vec::new());
    for cut in cuts(&MinCdc::new(&SECRET), data, true) {
        pointers.push(batch.write(Class::Data, data.slice(cut), &[]).await?);
    }
    batch.flush().await?;
    batch.committed();
    Ok(pointers)
}

async fn read_all(content: &Content, pointers: &[Pointer]) -> Result<usize> {
    let mut bytes = 0;
    for some in pointers.chunks(READ_AT_ONCE) {
        let found = some.iter().map(|pointer| content.read(pointer, Class::Data));
        for chunk in futures_util::future::try_join_all(found).await? {
            bytes += chunk.len();
        }
    }
    Ok(bytes)
}
