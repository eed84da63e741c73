//! Lists that grow with a store: a folder of packs, the names of volumes, and the creation of many.

use super::many::populated;
use crate::rounds::{Bench, Run, median, middle, short, times};
use crate::servers::Rekindle;
use crate::table::{Row, Wanted};
use anyhow::{Result, ensure};
use rekindle_datastore::key;
use rekindle_nbd_client::Handshake;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

const NAME: &str = "list";
const PACKS: u64 = 160_000;
const NAMES: u64 = 60_000;
const CREATED: u64 = 10_000;
/// NBD's option that asks for all names.
const OPTION_LIST: u32 = 3;
/// Volumes that are timed together, and how many such parts are compared.
const PART: u64 = 1_000;
const PARTS: usize = 3;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    Ok(vec![packs(bench)?, names(bench)?, creation(bench)?])
}

/// Lists a folder of packs, against reading the folder and looking at each file.
fn packs(bench: &Bench) -> Result<Row> {
    let store = bench.scratch.join("listed");
    let folder = store.join(key::PACKS_DATA);
    std::fs::create_dir_all(&folder)?;
    // Ids that are spread as those of packs of many days are.
    for number in 0..PACKS {
        std::fs::write(folder.join(format!("{:032x}", u128::from(number) << 92)), b"pack")?;
    }
    let (env, runtime) = rekindle_env::real::env()?;
    let url = format!("file://{}", store.display());
    let opened = runtime.block_on(rekindle_datastore::open_known(&env, &url))?;
    let sides = bench.alternate(
        || {
            let begin = Instant::now();
            let listed = runtime.block_on(async {
                let (mut listed, mut after) = (0, None);
                loop {
                    let page = opened.list(key::PACKS_DATA, after.as_deref()).await?;
                    let Some(last) = page.last() else { return anyhow::Ok(listed) };
                    after = Some(last.key.clone());
                    listed += page.len() as u64;
                }
            })?;
            ensure!(listed == PACKS, "{listed} of {PACKS} packs are listed");
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        },
        || read_folder(&folder),
    )?;
    std::fs::remove_dir_all(&store)?;
    let ms = |runs: &[Run<f64>]| median(runs, |ms| *ms);
    let what = format!("a folder store with {PACKS} packs: all of them listed; readdir and stat");
    Ok(Row::new(NAME, what)
        .ours(times(&sides.ours))
        .theirs(times(&sides.theirs))
        .value(ms(&sides.ours), "ms")
        .wanted(Wanted::AtMost(1000.0))
        .others(middle(&sides.ours, |ms| *ms).others)
        .note(format!("{}x of the bare reading", short(ms(&sides.ours) / ms(&sides.theirs)))))
}

fn read_folder(folder: &Path) -> Result<f64> {
    let begin = Instant::now();
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    std::hint::black_box(bytes);
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

/// Lists the names of a node's volumes, over NBD.
fn names(bench: &Bench) -> Result<Row> {
    let mut server = populated(bench, NAMES)?;
    server.up()?;
    server.wait_until_it_serves()?;
    let runs = bench.repeat(|| {
        let begin = Instant::now();
        let replies =
            Handshake::new(UnixStream::connect(server.socket())?)?.option(OPTION_LIST, &[])?;
        // The last reply is the acknowledgement.
        ensure!(replies.len() as u64 == NAMES + 1, "{} names are listed", replies.len() - 1);
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    })?;
    let api = || {
        let begin = Instant::now();
        let volumes = server.api("GET", "/api/v1/volumes", None)?;
        let found = volumes.as_array().map_or(0, Vec::len) as u64;
        ensure!(found == NAMES, "{found} volumes are listed");
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    };
    // The first one of a process reads all records.
    let first = bench.run(api)?;
    let later = bench.repeat(api)?;
    let run = middle(&runs, |ms| *ms);
    Ok(Row::new(NAME, format!("the names of {NAMES} volumes, over NBD"))
        .ours(times(&runs))
        .value(run.value, "ms")
        .wanted(Wanted::AtMost(300.0))
        .others(run.others)
        .note(format!(
            "GET /api/v1/volumes, which tells all of each: first {} ms, then {}",
            short(first.value),
            times(&later)
        )))
}

/// Creates volumes one after the other, by the API.
fn creation(bench: &Bench) -> Result<Row> {
    let server = Rekindle::start(bench, NAME, &[])?;
    let run = bench.run(|| {
        (0..CREATED / PART)
            .map(|part| {
                let begin = Instant::now();
                for number in part * PART..(part + 1) * PART {
                    server.create(&format!("v{number}"), 1024, "flash")?;
                }
                Ok(begin.elapsed().as_secs_f64())
            })
            .collect::<Result<Vec<f64>>>()
    })?;
    let sum = |parts: &[f64]| parts.iter().sum::<f64>();
    let (first, last) = (sum(&run.value[..PARTS]), sum(&run.value[run.value.len() - PARTS..]));
    let each: Vec<String> = run.value.iter().map(|&part| short(part)).collect();
    let compared = PARTS as u64 * PART;
    let what = format!(
        "{CREATED} volumes created by the API: the last {compared}, against the first {compared}"
    );
    Ok(Row::new(NAME, what)
        .ours(format!("{} s, {} s in all", short(last), short(sum(&run.value))))
        .theirs(format!("{} s", short(first)))
        .value(last / first, "x")
        .wanted(Wanted::AtMost(1.2))
        .others(run.others)
        .note(format!("seconds, thousand by thousand: {}", each.join(" "))))
}
