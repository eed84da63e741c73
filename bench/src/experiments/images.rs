//! Two images that have most of their files in common, each at another place: the duplicates that
//! a store finds in the second.
//!
//! What a store did not find is its growth by the second image, against the size of a store that
//! has the second image alone.

use crate::images::{Image, Tree, pick, shuffle, split};
use crate::rivals::Keeper;
use crate::rounds::{Bench, short};
use crate::table::{Row, Wanted};
use anyhow::Result;
use rekindle_base::random::Random;
use std::path::PathBuf;

const NAME: &str = "images";
/// Share of the files' bytes that both images have.
const SHARED: f64 = 0.84;
const MIB: f64 = (1_u64 << 20) as f64;

pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let (first, second) = images(bench)?;
    let shared = second.shared_with(&first)?;
    let filled = shared.filled as f64;
    let (rivals, missing) = Keeper::rivals();
    // The share that a store finds of the second image, percent.
    let found = |keeper: Keeper| -> Result<f64> {
        let store = keeper.open(bench)?;
        store.put(&second, "second")?;
        let alone = store.bytes()?;
        drop(store);
        let store = keeper.open(bench)?;
        store.put(&first, "first")?;
        let before = store.bytes()?;
        store.put(&second, "second")?;
        Ok((1.0 - (store.bytes()? - before) as f64 / alone as f64) * 100.0)
    };
    let ours = found(Keeper::Rekindle)?;
    let mut theirs = Vec::new();
    for rival in rivals {
        theirs.push(format!("{} {} %", rival.name(), short(found(rival)?)));
    }
    let what = format!(
        "two ext4 images of {} MiB that share {:.0} % of their files' bytes, placed differently: found of the second",
        bench.size >> 20,
        SHARED * 100.0
    );
    let row = Row::new(NAME, what)
        .ours(format!("{} %", short(ours)))
        .theirs(theirs.join(", "))
        .value(ours, "%")
        .wanted(Wanted::AtLeast(80.0))
        .note(format!(
            "the second has {} MiB that are not zeros; of its 4 KiB blocks {} % are in the first",
            short(filled / MIB),
            short(shared.found as f64 / filled * 100.0)
        ));
    Ok(vec![row.skipped(&missing)])
}

/// Makes both images. The folders hold the files under numbers, given out in another order for the
/// second one, so that mke2fs meets and places the files in another order.
fn images(bench: &Bench) -> Result<(Image, Image)> {
    let mut random = Random::new(2);
    let all = pick(&mut random, bench.size, 2.0 - SHARED)?;
    // Of all files, the first image has those at the beginning and the second those at the end.
    let (of_first, _) = split(&all, 1.0 / (2.0 - SHARED));
    let (_, of_second) = split(&all, (1.0 - SHARED) / (2.0 - SHARED));
    let mut image = |files: &[_], name: &str, number| {
        let mut files = files.to_vec();
        shuffle(&mut random, &mut files);
        let place = |index: usize, _: &_| PathBuf::from(format!("{}/{index}", index % 100));
        let tree = Tree::copy(bench.scratch.join(name), &files, place)?;
        tree.image(bench.scratch.join(format!("{name}.img")), bench.size, number)
    };
    Ok((image(of_first, "first", 1)?, image(of_second, "second", 2)?))
}
