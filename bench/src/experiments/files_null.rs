//! The limit of any mounted file system: a stream through a FUSE file system that does nothing.
//!
//! Neither side has anything to do with a disk: what is read is in the daemon's memory, and what
//! is written need not be durable yet.

use super::files::{cpu, read, row};
use crate::mounted::{Mounted, VOLUME, forget_page_cache};
use crate::null_fuse::NullFuse;
use crate::rounds::{Bench, Sides};
use crate::table::Row;
use anyhow::Result;
use rekindle_base::random::Random;
use rekindle_base::units::MIB;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

const NAME: &str = "files-null";
/// Bytes of the file: a part of the cache, and of what the log takes at once.
const BYTES: usize = 128 * MIB as usize;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let null = NullFuse::mount(&bench.scratch.join("null-mnt"), BYTES as u64)?;
    let mounted = Mounted::start(bench, NAME, &[])?;
    let data = Random::new(10).bytes(BYTES);
    let ours = mounted.folder.join("file");
    File::create_new(&ours)?;
    let written = bench.alternate(
        || {
            let rate = write(&ours, &data)?;
            mounted.server.drain(VOLUME)?;
            Ok(rate)
        },
        || write(&null.file(), &data),
    )?;
    // So that the daemon has it in its memory.
    read(&ours, BYTES)?;
    let cold = |path: &Path| {
        forget_page_cache();
        read(path, BYTES)
    };
    cold(&ours)?;
    let passed = bench.alternate(|| cold(&ours), || cold(&null.file()))?;
    let mebibytes = BYTES as u64 / MIB;
    let whats = [
        format!("{mebibytes} MiB written over, not durably; a FUSE file system that does nothing"),
        format!(
            "{mebibytes} MiB read from the daemon's memory; a FUSE file system that does nothing"
        ),
    ];
    let sides = [&written, &passed];
    let rows = whats.iter().zip(sides);
    let row = |(what, sides): (&String, &Sides<f64, f64>)| {
        row(NAME, what, "MiB/s", (sides, MIB as f64), None).note(cpu(sides, BYTES))
    };
    Ok(rows.map(row).collect())
}

/// Writes a file that is there from begin to end; returns bytes a second.
fn write(path: &Path, data: &[u8]) -> Result<f64> {
    let mut file = File::options().write(true).open(path)?;
    let begin = Instant::now();
    for piece in data.chunks(1 << 20) {
        file.write_all(piece)?;
    }
    Ok(data.len() as f64 / begin.elapsed().as_secs_f64())
}
