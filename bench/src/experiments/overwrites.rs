//! Random 4 KiB overwrites of a full volume, with sweeps in between: the bytes that the store takes
//! for each byte of the client, and the space that it needs for what is live.
//!
//! The content is noise, so that compression hides nothing. A batch is much smaller than the
//! volume, so that few blocks are written over twice before they are stored, and a sweep finds
//! packs of which an eighth is dead.

use crate::live;
use crate::machine::folder_bytes;
use crate::nbd::{BLOCK, Client, Until};
use crate::rounds::{Bench, short};
use crate::servers::{Rekindle, Requests};
use crate::table::{Row, Wanted};
use anyhow::Result;
use std::path::Path;

const NAME: &str = "overwrites";
/// The default of `[sweep] compact_below`, and two other values of it.
const COMPACT_BELOW: [u8; 3] = [67, 50, 84];
/// Batches, each with a sweep behind it, until a size of the volume is written over.
const BATCHES: u64 = 32;
/// Sweeps between two looks at the space.
const SWEEPS_A_LOOK: u64 = 8;
/// Sizes of the volume that are written over.
const TIMES: u64 = 2;
const DEPTH: usize = 32;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let rows: Result<Vec<_>> = COMPACT_BELOW.iter().map(|&below| measure(bench, below)).collect();
    Ok(rows?.concat())
}

/// Measures the bytes that are written, and the space in the end.
fn measure(bench: &Bench, below: u8) -> Result<Vec<Row>> {
    let settings = format!(
        "[destage]\nage = \"1h\"\n[sweep]\ninterval = \"off\"\npercent = 100\ngrace = \"0s\"\n\
         compact_below = {below}\n"
    );
    let server = Rekindle::start_with(bench, NAME, &settings, &[])?;
    let size = bench.size / 8;
    server.create("v", size >> 20, "flash")?;
    let mut client = Client::connect(&server.socket(), "v")?;
    client.fill(size, 1)?;
    server.drain("v")?;
    let before = server.requests()?;
    let mut copied = 0.0;
    let mut ratios = Vec::new();
    for batch in 1..=TIMES * BATCHES {
        let writes = (size / BATCHES) as usize / BLOCK;
        client.write_randomly(DEPTH, size / BLOCK as u64, batch + 1, Until::Sent(writes))?;
        server.drain("v")?;
        let swept = server.finish("/api/v1/sweep")?;
        copied += swept["bytes_copied"].as_f64().unwrap_or(0.0);
        if batch % SWEEPS_A_LOOK == 0 {
            ratios.push(times(space(&server.store())?.0));
        }
    }
    let client_bytes = (TIMES * size) as f64;
    let after = server.requests()?;
    let made = |of: fn(&Requests) -> u64| of(&after) - of(&before);
    let written = made(|requests| requests.bytes(Requests::PUTS)) as f64 / client_bytes;
    let (kept, present) = space(&server.store())?;
    let mut parts = Vec::new();
    for part in ["packs/data", "packs/meta", "moved"] {
        let bytes = folder_bytes(&server.store().join(part))?;
        parts.push(format!("{part} {} MiB", short(bytes as f64 / (1 << 20) as f64)));
    }
    let what =
        format!("random 4 KiB overwrites of {TIMES} x {} MiB, compact_below = {below}", size >> 20);
    let bytes = Row::new(NAME, format!("{what}: bytes into the store for a byte of the client"))
        .ours(format!(
            "{}, of which compaction copied {}",
            times(written),
            times(copied / client_bytes)
        ))
        .value(written, "x")
        .note(format!("{} PUTs", made(|requests| requests.count(Requests::PUTS))));
    let space = Row::new(NAME, format!("{what}: space against present and kept earlier contents"))
        .ours(format!("{}; against the present contents alone {}", times(kept), times(present)))
        .value(kept, "x")
        .note(format!("after each {SWEEPS_A_LOOK}th sweep: {}", ratios.join(" ")))
        .note(format!("in the end: {}", parts.join(", ")));
    Ok(if below == COMPACT_BELOW[0] {
        vec![bytes.wanted(Wanted::AtMost(6.0)), space.wanted(Wanted::AtMost(1.2))]
    } else {
        vec![bytes, space]
    })
}

/// Returns the space of a store against what is live in it: with the earlier contents that are
/// kept, and without.
fn space(store: &Path) -> Result<(f64, f64)> {
    let (bytes, live) = (folder_bytes(store)? as f64, live::count(store)?);
    Ok((bytes / live.kept as f64, bytes / live.present as f64))
}

fn times(ratio: f64) -> String {
    format!("{}x", short(ratio))
}
