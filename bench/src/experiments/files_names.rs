//! Many names in one directory, against a folder of the same disk.

use super::files::row;
use crate::mounted::{Mounted, forget_page_cache};
use crate::rounds::{Bench, Sides};
use crate::table::Row;
use anyhow::{Result, ensure};
use rekindle_base::random::Random;
use rustix::fs::{FileType, Mode, OFlags};
use std::cell::Cell;
use std::path::Path;
use std::time::Instant;

/// Names of the directory.
const NAMES: u64 = 100_000;
/// The same with `--nightly`.
const NAMES_NIGHTLY: u64 = 10_000_000;
/// Names that are looked up when nothing is in memory.
const LOOKUPS: u64 = 100;

/// Empty files are made, listed, and looked up.
pub fn names(bench: &Bench) -> Result<Vec<Row>> {
    let count = if bench.nightly { NAMES_NIGHTLY } else { NAMES };
    let mut mounted = Mounted::start(bench, "files-names", &[])?;
    let plain = bench.scratch.join("names-plain");
    let round = Cell::new(0);
    let next = |root: &Path| {
        round.set(round.get() + 1);
        root.join(format!("names-{}", round.get()))
    };
    let made =
        bench.alternate(|| make(&next(&mounted.folder), count), || make(&next(&plain), count))?;
    // The first round's: of this side, and of the other.
    let (ours, theirs) = (mounted.folder.join("names-1"), plain.join("names-2"));
    let mut cold = |look: fn(&Path, u64) -> Result<f64>| -> Result<Sides<f64, f64>> {
        let mut sides = Sides { ours: Vec::new(), theirs: Vec::new() };
        for _ in 0..bench.rounds {
            mounted.forget(bench)?;
            sides.ours.push(bench.run(|| look(&ours, count))?);
            forget_page_cache();
            sides.theirs.push(bench.run(|| look(&theirs, count))?);
        }
        Ok(sides)
    };
    let (listed, looked_up) = (cold(list)?, cold(look_up)?);
    std::fs::remove_dir_all(&plain)?;
    let rows = [
        ("made, one after the other", "names/s", &made),
        ("listed, nothing in memory", "names/s", &listed),
        ("looked up at random, nothing in memory", "lookups/s", &looked_up),
    ];
    let row = |(what, unit, sides)| {
        let what = format!("{count} empty files in one directory: {what}; a folder of this disk");
        row("files-names", &what, unit, (sides, 1.0), None)
    };
    Ok(rows.into_iter().map(row).collect())
}

/// The names do not come in the order of any hash.
fn name(number: u64) -> String {
    format!("{:08x}-{number}", Random::new(number).below(1 << 32))
}

fn make(dir: &Path, count: u64) -> Result<f64> {
    std::fs::create_dir_all(dir)?;
    let opened = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let begin = Instant::now();
    for number in 0..count {
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(&opened, name(number), FileType::RegularFile, mode, 0)?;
    }
    rustix::fs::fsync(&opened)?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn list(dir: &Path, count: u64) -> Result<f64> {
    let begin = Instant::now();
    let found = std::fs::read_dir(dir)?.count() as u64;
    ensure!(found == count, "{found} of {count} names are listed");
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn look_up(dir: &Path, count: u64) -> Result<f64> {
    let mut random = Random::new(4);
    let begin = Instant::now();
    for _ in 0..LOOKUPS {
        std::fs::symlink_metadata(dir.join(name(random.below(count))))?;
    }
    Ok(LOOKUPS as f64 / begin.elapsed().as_secs_f64())
}
