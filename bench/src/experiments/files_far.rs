//! A large file over a store that is far away, and its removal.

use super::cold_read::Bare;
use super::files::{read, row, write};
use crate::data::mixture;
use crate::mounted::{Mounted, VOLUME};
use crate::rounds::{Bench, Sides, median, short, spread};
use crate::table::{Row, Wanted};
use anyhow::Result;
use rekindle_base::random::Random;
use rekindle_base::units::{GIB, MIB};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The stores: the latency of each request, give or take a half, without and with a bound on what
/// the line carries. Without one, the bare store is bound by its requests at once.
const STORES: [(&str, &str); 2] =
    [("30 ms", "latency=30ms"), ("30 ms and 250 MiB/s", "latency=30ms,rate=250M")];
/// Requests for 4 MiB that the bare store has at once.
const RANGES_AT_ONCE: usize = 8;
/// Size of the file that is removed, of which this much is written, and the rest copied by
/// reference.
const LARGE: u64 = 100 * GIB;
const WRITTEN: usize = 64;

/// Reads a file whose store answers late, with nothing in memory: against the same packs read from
/// the same store, each range when it is wanted.
pub fn read_far(bench: &Bench) -> Result<Vec<Row>> {
    let mebibytes = usize::try_from(bench.size / MIB)?;
    // What a compressor would shrink would be read faster than its packs.
    let data = Random::new(6).bytes(mebibytes << 20);
    let mut rows = Vec::new();
    for (store, fault) in STORES {
        let mut mounted = Mounted::start(bench, "files-far", &["--store-fault", fault])?;
        let path = mounted.folder.join("file");
        write(&path, &data, &mounted.server)?;
        let bare = Bare::open(&mounted.server.store(), fault)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            mounted.forget(bench)?;
            ours.push(bench.run(|| Ok(read(&path, data.len())? / MIB as f64))?);
            theirs.push(bench.run(|| bare.sequential(RANGES_AT_ONCE))?);
        }
        let what = format!(
            "store of {store}: a file of {mebibytes} MiB read, nothing in memory; its packs as they are, in \
             ranges of 4 MiB, {RANGES_AT_ONCE} at once"
        );
        rows.push(row("files-far", &what, "MiB/s", (&Sides { ours, theirs }, 1.0), Some(0.9)));
    }
    Ok(rows)
}

/// Removes a large file, most of which is copies by reference.
pub fn remove(bench: &Bench) -> Result<Vec<Row>> {
    let mounted = Mounted::start(bench, "files-remove", &[])?;
    let path = mounted.folder.join("large");
    let mut runs = Vec::new();
    for _ in 0..bench.rounds {
        make_large(&path)?;
        mounted.server.drain(VOLUME)?;
        runs.push(bench.run(|| {
            let begin = Instant::now();
            std::fs::remove_file(&path)?;
            File::open(&mounted.folder)?.sync_all()?;
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        })?);
    }
    let what = "a file of 100 GiB (64 MiB copied by reference, again and again) removed, durably";
    let middle = median(&runs, |time| *time);
    Ok(vec![
        Row::new("files-remove", what)
            .ours(format!("{} ms", short(middle)))
            .value(middle, "ms")
            .wanted(Wanted::AtMost(1000.0))
            .note(format!("all: {}", spread(&runs, |time| *time))),
    ])
}

fn make_large(path: &Path) -> Result<()> {
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.write_all(&mixture(&mut Random::new(7), WRITTEN))?;
    let mut length = WRITTEN as u64 * MIB;
    while length < LARGE {
        let (mut from, mut to) = (0, length);
        let wanted = length.min(LARGE - length);
        let mut left = usize::try_from(wanted)?;
        while left > 0 {
            left -=
                rustix::fs::copy_file_range(&file, Some(&mut from), &file, Some(&mut to), left)?;
        }
        length += wanted;
    }
    Ok(file.sync_all()?)
}
