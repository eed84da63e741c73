//! A real file-system image goes in and comes out byte-identical, from a folder store and from S3.

use anyhow::Result;
use e2e::daemon::{Daemon, Options, stored_bytes};
use e2e::s3::{self, S3Server};
use e2e::shell::{Shell, skip, skip_without};
use e2e::tree;
use std::path::Path;

const TOOLS: &[&str] = &["nbdcopy", "nbdinfo", "mke2fs", "cmp", "rustc"];

#[test]
fn a_real_image_goes_in_by_nbdcopy_and_comes_out_byte_identical() -> Result<()> {
    if skip_without(TOOLS, false) {
        return Ok(());
    }
    let daemon = Daemon::start("image")?;
    round_trip(daemon)?;
    Ok(())
}

#[test]
fn the_same_on_an_s3_server() -> Result<()> {
    if skip_without(TOOLS, false) || skip(&s3_missing()) {
        return Ok(());
    }
    let bucket = e2e::daemon::scratch("image-s3-bucket")?;
    let server = S3Server::start(&bucket)?;
    let options = Options {
        arguments: ["--store", "s3://rekindle/story"].map(str::to_owned).to_vec(),
        environment: server.environment(),
        ..Options::default()
    };
    round_trip(Daemon::start_with("image-s3", options)?)?;
    drop(server);
    std::fs::remove_dir_all(bucket)?;
    Ok(())
}

/// What is missing for a story on S3.
pub fn s3_missing() -> Vec<String> {
    if s3::program().is_some() { Vec::new() } else { vec!["versitygw (cargo x tools)".to_owned()] }
}

fn round_trip(mut daemon: Daemon) -> Result<()> {
    let image = tree::real_image()?;
    let bytes = std::fs::metadata(&image)?.len();
    daemon.create("tree", &bytes.to_string(), &[])?;
    let uri = daemon.uri("tree");
    Shell::new("nbdcopy").arg("--flush").arg(&image).arg(&uri).run()?;
    comes_out(&daemon, &image, "before anything is in the store")?;
    daemon.drain("tree")?;
    assert_eq!(daemon.backlog_bytes("tree")?, 0);
    // Nothing is left here but what the store has.
    daemon.stop()?;
    daemon.up()?;
    comes_out(&daemon, &image, "from the store")?;
    let map = Shell::new("nbdinfo").args(["--map", "--totals", &uri]).run()?;
    let holes: u64 = map
        .lines()
        .filter(|line| line.contains("hole"))
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    assert!(holes > bytes / 20, "the free space of the image must be holes, nbdinfo says:\n{map}");
    assert!(holes < bytes / 2, "the files of the image must be data, nbdinfo says:\n{map}");
    let store = daemon.dir.join("store");
    if store.is_dir() {
        let stored = stored_bytes(&store);
        assert!(stored < bytes - holes, "stored {stored} bytes of {bytes}, {holes} of them holes");
    }
    Ok(())
}

fn comes_out(daemon: &Daemon, image: &Path, when: &str) -> Result<()> {
    let copy = daemon.scratch().join("copy.img");
    let _ = std::fs::remove_file(&copy);
    Shell::new("nbdcopy").arg(daemon.uri("tree")).arg(&copy).run()?;
    tree::same(image, &copy).map_err(|error| error.context(when.to_owned()))?;
    std::fs::remove_file(copy)?;
    Ok(())
}
