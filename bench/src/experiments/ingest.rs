//! The cost of packing, indexing, caching and uploading beside the unavoidable work: cutting,
//! hashing, compressing.
//!
//! Both sides run on one core, in a process that is pinned to it with all its threads, over the
//! same bytes cut by the same chunker. The **bare pipeline** hashes each chunk (keyed BLAKE3),
//! looks the hash up in a set, and compresses new chunks (zstd level 1, thrown away when it saves
//! less than a sixteenth) into one buffer that it uses again. **Ingest** is
//! [`rekindle_content::Batch`]: write each chunk, flush. Its packs go to a store that discards
//! them, so that the difference is our own code. The note has the rate into the in-memory store,
//! which keeps every pack: each takes memory that was never touched, and is hashed for its version.

use super::{SECRET, content_config};
use crate::data::mixture;
use crate::machine::pinned;
use crate::rounds::{Bench, Run, best, middle, short};
use crate::table::{Row, Wanted};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use rekindle_base::random::Random;
use rekindle_content::chunker::{Chunker, Fixed, MinCdc, cuts};
use rekindle_content::{Class, Content};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::{Datastore, Error, Listed, Store, Version};
use rekindle_env::{BoxFuture, Env};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// First word of the command line of the process that measures.
pub const WORKER: &str = "ingest-worker";
const NAME: &str = "ingest";
const MEBIBYTES: usize = 256;

/// Rates of each side, bytes a second.
#[derive(Debug, Clone, Copy)]
struct Rates {
    bare: f64,
    /// The rate into a store that discards packs.
    batch: f64,
    /// The rate into the store that keeps packs in memory.
    kept: f64,
}

/// Measures both chunkers, on unique data and on 80 % duplicates.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (chunker, title) in [("fixed", "16 KiB blocks"), ("mincdc", "MinCDC 64 KiB")] {
        for (share, wanted) in [("unique", 0.88), ("duplicates", 0.95)] {
            let runs = bench.repeat(|| measure(bench, chunker, share))?;
            rows.push(row(title, share, wanted, &runs));
        }
    }
    Ok(rows)
}

fn row(title: &str, share: &str, wanted: f64, runs: &[Run<Rates>]) -> Row {
    let side = |of: fn(&Rates) -> f64| {
        let run = middle(runs, of);
        (of(&run.value), run.others)
    };
    let (bare, batch, kept) =
        (side(|rates| rates.bare), side(|rates| rates.batch), side(|rates| rates.kept));
    let text = |rate: f64| format!("{} MB/s", short(rate / 1e6));
    let ratio = |rates: &Rates| rates.batch / rates.bare;
    let what = if share == "unique" { "unique data" } else { "80 % duplicates of what is stored" };
    let ours = "one core, into a store that discards packs";
    Row::new(NAME, format!("{what}, {title}, {ours}; bare chunk + hash + compress"))
        .ours(text(batch.0))
        .theirs(text(bare.0))
        .value(batch.0 / bare.0, "x")
        .wanted(Wanted::AtLeast(wanted))
        .others(batch.1.max(bare.1))
        .note(format!(
            "best ratio of {} rounds {:.2}x; into the store that keeps packs in memory {} ({:.2}x)",
            runs.len(),
            ratio(&best(runs, ratio).value),
            text(kept.0),
            kept.0 / bare.0
        ))
}

/// Measures one round in a process of its own, on one core.
fn measure(bench: &Bench, chunker: &str, share: &str) -> Result<Rates> {
    let core = bench.layout.client.split([',', '-']).next().unwrap_or("0");
    let output = pinned(core, std::env::current_exe()?).args([WORKER, chunker, share]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let value: Value = serde_json::from_str(&text)?;
    let rate = |name: &str| value[name].as_f64().context("a rate is missing");
    Ok(Rates { bare: rate("bare")?, batch: rate("batch")?, kept: rate("kept")? })
}

/// Runs the process that measures: `ingest-worker CHUNKER SHARE`.
pub fn work(words: &[String]) -> Result<()> {
    let [chunker, share] = words else { bail!("ingest-worker CHUNKER SHARE") };
    let chunker: Box<dyn Chunker> = match chunker.as_str() {
        "fixed" => Box::new(Fixed::new(16 << 10)),
        _ => Box::new(MinCdc::new(&SECRET)),
    };
    let (old, new) = generations(share == "duplicates");
    let input = Input { chunker: &*chunker, old, new };
    let (env, runtime) = rekindle_env::real::env()?;
    let mut rates = Rates { bare: 0.0, batch: 0.0, kept: 0.0 };
    // The sides take turns, twice: the first turn also touches the memory.
    for _ in 0..2 {
        rates.bare = rates.bare.max(bare(&input));
        let discarded = runtime.block_on(batch(&env, Arc::new(Discard), &input))?;
        rates.batch = rates.batch.max(discarded);
        let kept = runtime.block_on(batch(&env, Mem::store(), &input))?;
        rates.kept = rates.kept.max(kept);
    }
    let value = json!({ "bare": rates.bare, "batch": rates.batch, "kept": rates.kept });
    println!("{value}");
    Ok(())
}

/// Input of both sides: a generation that is stored already (not timed), and the timed one.
struct Input<'a> {
    chunker: &'a dyn Chunker,
    old: Bytes,
    new: Bytes,
}

/// Builds both generations. With `duplicates`, four fifths of the new one stand in the old one, in
/// long runs in another order.
fn generations(duplicates: bool) -> (Bytes, Bytes) {
    let mut random = Random::new(1);
    if !duplicates {
        return (Bytes::new(), mixture(&mut random, MEBIBYTES).into());
    }
    const RUN: usize = 8 << 20;
    let old = mixture(&mut random, MEBIBYTES / 5 * 4);
    let mut new = Vec::with_capacity(MEBIBYTES << 20);
    for (at, run) in old.chunks(RUN).enumerate().collect::<Vec<_>>().into_iter().rev() {
        new.extend_from_slice(run);
        // A quarter of the old size is added, which is a fifth of all.
        if at % 4 == 0 {
            new.extend(mixture(&mut random, RUN >> 20));
        }
    }
    (old.into(), new.into())
}

fn bare(input: &Input<'_>) -> f64 {
    let mut seen = HashSet::new();
    for cut in cuts(input.chunker, &input.old, true) {
        seen.insert(*blake3::keyed_hash(&SECRET, &input.old[cut]).as_bytes());
    }
    let mut compressor = zstd::bulk::Compressor::new(1).expect("level 1 exists");
    let mut packed = vec![0; input.chunker.bytes_max()];
    let mut bytes = 0;
    let begin = Instant::now();
    for cut in cuts(input.chunker, &input.new, true) {
        let chunk = &input.new[cut];
        if seen.insert(*blake3::keyed_hash(&SECRET, chunk).as_bytes()) {
            // The target is too short for a result that does not pay, so that zstd gives up early.
            let most = chunk.len() - chunk.len() / 16;
            let length = compressor.compress_to_buffer(chunk, &mut packed[..most]);
            bytes += length.unwrap_or(chunk.len());
        }
    }
    std::hint::black_box(bytes);
    input.new.len() as f64 / begin.elapsed().as_secs_f64()
}

async fn batch(env: &Env, store: Store, input: &Input<'_>) -> Result<f64> {
    let content = Content::open(env.clone(), store, content_config());
    ingest(&content, input.chunker, &input.old).await?;
    let begin = Instant::now();
    ingest(&content, input.chunker, &input.new).await?;
    Ok(input.new.len() as f64 / begin.elapsed().as_secs_f64())
}

async fn ingest(content: &Content, chunker: &dyn Chunker, data: &Bytes) -> Result<()> {
    let mut batch = content.batch();
    for cut in cuts(chunker, data, true) {
        batch.write(Class::Data, data.slice(cut), &[]).await?;
    }
    batch.flush().await?;
    batch.committed();
    Ok(())
}

/// A store that throws everything away, so that only the cost of our own code is left.
struct Discard;

fn gone<T: Send>(key: &str) -> BoxFuture<'_, Result<T, Error>> {
    Box::pin(async move { Err(Error::NotFound(key.to_owned())) })
}

impl Datastore for Discard {
    fn put<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
    fn create<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<Version, Error>> {
        Box::pin(async { Ok(Version(String::new())) })
    }
    fn replace<'a>(
        &'a self,
        key: &'a str,
        _: Bytes,
        _: &'a Version,
    ) -> BoxFuture<'a, Result<Version, Error>> {
        gone(key)
    }
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(Bytes, Version), Error>> {
        gone(key)
    }
    fn get_range<'a>(&'a self, key: &'a str, _: Range<u64>) -> BoxFuture<'a, Result<Bytes, Error>> {
        gone(key)
    }
    fn list<'a>(
        &'a self,
        _: &'a str,
        _: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<Listed>, Error>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn delete<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
    fn describe(&self) -> String {
        "discard:".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_fifths_of_the_new_generation_are_old() {
        let (old, new) = generations(true);
        let names = |data: &[u8]| -> Vec<_> {
            data.chunks(16 << 10).map(|chunk| *blake3::hash(chunk).as_bytes()).collect()
        };
        let known: HashSet<_> = names(&old).into_iter().collect();
        let found = names(&new);
        let share =
            found.iter().filter(|name| known.contains(*name)).count() as f64 / found.len() as f64;
        assert!((0.77..0.83).contains(&share), "{share}");
    }
}
