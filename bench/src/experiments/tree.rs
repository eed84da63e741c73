//! A real tree, until it is in a folder store: against the backup programs that cut, deduplicate
//! and compress the same into a folder. It is the image of a disk, or the tree's files themselves.
//!
//! An image is copied by `nbdcopy`, files by `fs import`, and then drained; the CPU time of that
//! client is not the daemon's, and not counted. The rivals read files themselves, and leave out
//! those that look unchanged.

use crate::images::{Image, Original, Tree, pick};
use crate::rivals::{Effort, Keeper, Store};
use crate::rounds::{Bench, Run, median, middle, short, spread};
use crate::table::{Row, Wanted};
use anyhow::Result;
use rekindle_base::random::Random;
use std::path::{Path, PathBuf};

/// Share of the bytes that the second image has anew.
const CHANGED: f64 = 0.05;
/// Rounds at most: one takes three times as long as the slowest side.
const ROUNDS_MAX: usize = 3;
const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;

/// A side of the comparison.
struct Side {
    keeper: Keeper,
    runs: Vec<Run<Effort>>,
    /// Stored bytes of the first image, and what the second added.
    stored: f64,
    second: f64,
}

/// The image of a tree, into a volume.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let (first, second) = images(bench)?;
    let put = |store: &Store, is_second: bool| match is_second {
        false => store.put(&first, "first"),
        true => store.put(&second, "second"),
    };
    let said = Said {
        name: "tree",
        first: format!("a tree's ext4 image of {} MiB", first.size >> 20),
        second: "the image again".to_owned(),
    };
    let mut rows = compare(bench, first.size, &said, put)?;
    let shared = second.shared_with(&first)?;
    let new = (shared.filled - shared.found) as f64 / MIB;
    if let Some(row) = rows.last_mut() {
        row.notes.push(format!("{} MiB of its 4 KiB blocks are not in the first", short(new)));
    }
    Ok(rows)
}

/// The files of a tree, into a file system.
pub fn files(bench: &Bench) -> Result<Vec<Row>> {
    let mut random = Random::new(1);
    let picked = pick(&mut random, bench.size, 1.0)?;
    let copy = |name: &str| Tree::copy(bench.scratch.join(name), &picked, |_, file| below(file));
    let (first, second) = (copy("tree")?, copy("changed")?);
    second.change(&mut random, CHANGED)?;
    let bytes: u64 = picked.iter().map(|file| file.bytes).sum();
    let put = |store: &Store, is_second: bool| match is_second {
        false => store.put_tree(&bench.binary, &first.folder, "first"),
        true => store.put_tree(&bench.binary, &second.folder, "second"),
    };
    let said = Said {
        name: "files-tree",
        first: format!("a tree of {} files, {} MiB,", picked.len(), bytes >> 20),
        second: "another copy of the tree".to_owned(),
    };
    compare(bench, bytes, &said, put)
}

/// The words of a comparison.
struct Said {
    name: &'static str,
    first: String,
    second: String,
}

/// Puts the first and the second into each store in turn.
fn compare(
    bench: &Bench,
    bytes: u64,
    said: &Said,
    put: impl Fn(&Store, bool) -> Result<Effort>,
) -> Result<Vec<Row>> {
    let (rivals, missing) = Keeper::rivals();
    let side = |keeper| Side { keeper, runs: Vec::new(), stored: 0.0, second: 0.0 };
    let mut sides: Vec<Side> = [Keeper::Rekindle].into_iter().chain(rivals).map(side).collect();
    for round in 0..bench.rounds.min(ROUNDS_MAX) {
        for side in &mut sides {
            let store = side.keeper.open(bench)?;
            side.runs.push(bench.run(|| put(&store, false))?);
            if round == 0 {
                side.stored = store.bytes()? as f64;
                put(&store, true)?;
                side.second = store.bytes()? as f64 - side.stored;
            }
        }
    }
    let (ours, theirs) = sides.split_first().expect("ours is the first");
    let rows = rows(bytes as f64, said, ours, theirs);
    Ok(rows.into_iter().map(|row| row.skipped(&missing)).collect())
}

/// The place of a copy of a file, below the folder of copies.
fn below(file: &Original) -> PathBuf {
    file.path.strip_prefix("/").map_or_else(|_| PathBuf::new(), Path::to_owned)
}

/// Makes the image of a tree, and another of the same file system after files were changed.
fn images(bench: &Bench) -> Result<(Image, Image)> {
    let mut random = Random::new(1);
    let files = pick(&mut random, bench.size, 1.0)?;
    let tree = Tree::copy(bench.scratch.join("tree"), &files, |_, file| below(file))?;
    let first = tree.image(bench.scratch.join("first.img"), bench.size, 1)?;
    tree.change(&mut random, CHANGED)?;
    let second = tree.image(bench.scratch.join("second.img"), bench.size, 1)?;
    Ok((first, second))
}

fn rows(size: f64, said: &Said, ours: &Side, theirs: &[Side]) -> Vec<Row> {
    let rate = move |effort: &Effort| size / MIB / effort.seconds;
    let cpu = move |effort: &Effort| effort.cpu / (size / GIB);
    let all = |of: &dyn Fn(&Side) -> String| -> String {
        let texts: Vec<_> =
            theirs.iter().map(|side| format!("{} {}", side.keeper.name(), of(side))).collect();
        texts.join(", ")
    };
    // What is wanted is wanted against a rival; without one there is no verdict.
    let against =
        |row: Row, of: &dyn Fn(&Side) -> f64, rival: Option<&Side>, wanted: Wanted| match rival {
            Some(rival) => row.value(of(ours) / of(rival), "x").wanted(wanted),
            None => row,
        };
    let smallest = |of: fn(&Side) -> f64| theirs.iter().min_by(|a, b| of(a).total_cmp(&of(b)));
    let borg = theirs.iter().find(|side| side.keeper == Keeper::Borg);
    let others = |row: Row| {
        let middles = theirs.iter().chain([ours]).map(|side| middle(&side.runs, rate).others);
        row.others(middles.fold(0.0, f64::max))
    };
    let mebibytes = |bytes: f64| format!("{} MiB", short(bytes / MIB));
    let rates = |side: &Side| format!("{} MiB/s", short(median(&side.runs, rate)));
    let acknowledged = median(&ours.runs, |effort| size / MIB / effort.acknowledged);
    let mut row =
        Row::new(said.name, format!("{} until it is in a folder store; borg zstd,1", said.first))
            .ours(format!("{}, acknowledged at {}", rates(ours), short(acknowledged)))
            .theirs(all(&rates));
    for side in theirs.iter().chain([ours]) {
        let name = side.keeper.name();
        row = row.note(format!("{name}, MiB/s of all rounds: {}", spread(&side.runs, rate)));
    }
    let speed = others(against(row, &|side| median(&side.runs, rate), borg, Wanted::AtLeast(2.0)));

    let times = |side: &Side| format!("{} s/GiB", short(median(&side.runs, cpu)));
    let cpu = others(
        Row::new(said.name, "the same: CPU time, user and system, of the daemon; of the program")
            .ours(times(ours))
            .theirs(all(&times))
            .value(median(&ours.runs, cpu), "s/GiB")
            .wanted(Wanted::AtMost(3.9))
            .note("wanted is half of what 481c6f3 took for an image: 31 s for 4 GiB"),
    );

    let stored = Row::new(said.name, "the same: stored size; the smaller of theirs")
        .ours(mebibytes(ours.stored))
        .theirs(all(&|side| mebibytes(side.stored)));
    let second = Row::new(
        said.name,
        format!(
            "{} after files with {:.0} % of the bytes got other content: stored size of the second",
            said.second,
            CHANGED * 100.0
        ),
    )
    .ours(mebibytes(ours.second))
    .theirs(all(&|side| mebibytes(side.second)));
    vec![
        speed,
        cpu,
        against(stored, &|side| side.stored, smallest(|side| side.stored), Wanted::AtMost(1.05)),
        against(second, &|side| side.second, smallest(|side| side.second), Wanted::AtMost(1.05)),
    ]
}
