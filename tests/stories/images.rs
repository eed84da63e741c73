//! A real file-system image goes in and comes out byte-identical, from a folder store and from S3.

use anyhow::{Context, Result, ensure};
use e2e::daemon::{Daemon, Options, binary, stored_bytes};
use e2e::s3::{Kind, S3Server};
use e2e::shell::{Shell, interruptible, skip, skip_without, wait_until};
use e2e::tree;
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

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
    if skip_without(TOOLS, false) || skip(&Kind::Versitygw.missing()) {
        return Ok(());
    }
    let server = S3Server::start(Kind::Versitygw, "image-s3")?;
    round_trip(Daemon::start_with("image-s3", server.options("story"))?)
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
    // After a restart only the store has the image.
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

/// Makes a sparse image: two stretches of data, the rest a hole.
fn sparse_image(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("disk.img");
    let file = std::fs::File::create(&path)?;
    file.set_len(1 << 30)?;
    file.write_all_at(&Random::new(1).bytes(48 << 20), 5 << 20)?;
    file.write_all_at(&Random::new(2).bytes(8 << 20), 900 << 20)?;
    Ok(path)
}

/// Returns the bytes that a file takes on its disk.
fn allocated(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file)?.blocks() * 512)
}

/// Begins an import of more than the log holds while the store is away, and stops it in the middle.
/// Ctrl-C reaches the whole process group, as in a terminal.
fn break_off(daemon: &Daemon, image: &Path) -> Result<()> {
    // The client attaches before the store goes away, since attaching needs the store.
    let client = NbdClient::connect(&daemon.socket(), "disk")?;
    daemon.store_goes()?;
    let mut import = interruptible(&binary())
        .args(["volume", "import", "--overwrite", "--force"])
        .arg(image)
        .args(["disk", "--dir"])
        .arg(&daemon.dir)
        .process_group(0)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    wait_until("something to be imported", || {
        daemon.backlog_bytes("disk").is_ok_and(|bytes| bytes > 8 << 20)
            || import.try_wait().is_ok_and(|ended| ended.is_some())
    })?;
    rustix::process::kill_process_group(
        rustix::process::Pid::from_child(&import),
        rustix::process::Signal::INT,
    )?;
    daemon.store_comes_back()?;
    ensure!(!import.wait()?.success(), "it was not broken off");
    drop(client);
    Ok(())
}

#[test]
fn a_qcow2_image_goes_in_and_comes_out_sparse_and_the_same() -> Result<()> {
    if skip_without(&["qemu-img"], false) {
        return Ok(());
    }
    let daemon = Daemon::start("image-qcow2")?;
    let raw = sparse_image(daemon.scratch())?;
    let at = |name: &str| daemon.scratch().join(name);
    let text = |name: &str| at(name).display().to_string();
    let qemu_img = |words: &[&str]| Shell::new("qemu-img").args(words).run();
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &text("disk.img"), &text("in.qcow2")])?;
    daemon.cli(&["volume", "import", &text("in.qcow2"), "disk"])?;
    // Neither the log nor the store holds the holes.
    ensure!(daemon.backlog_bytes("disk")? < 80 << 20, "{}", daemon.backlog_bytes("disk")?);
    daemon.drain("disk")?;
    for (out, format) in [("out.qcow2", "qcow2"), ("out.img", "raw")] {
        daemon.cli(&["volume", "export", "disk", &text(out)])?;
        qemu_img(&["compare", "-f", "raw", "-F", format, &text("disk.img"), &text(out)])?;
        ensure!(allocated(&at(out))? < 80 << 20, "{out} takes {}", allocated(&at(out))?);
    }
    tree::same(&raw, &at("out.img"))?;
    qemu_img(&["check", &text("out.qcow2")])?;
    Ok(())
}

#[test]
fn an_import_that_was_broken_off_by_ctrl_c_goes_on_or_begins_again() -> Result<()> {
    if skip_without(&["qemu-img"], false) {
        return Ok(());
    }
    let arguments = ["--flash-budget", "64M"].map(str::to_owned).to_vec();
    let options = Options { arguments, ..Options::default() };
    let daemon = Daemon::start_with("image-broken", options)?;
    let raw = sparse_image(daemon.scratch())?;
    let file = std::fs::File::options().write(true).open(&raw)?;
    file.write_all_at(&Random::new(3).bytes(80 << 20), 100 << 20)?;
    let text = |name: &str| daemon.scratch().join(name).display().to_string();
    let convert = ["convert", "-f", "raw", "-O", "qcow2"];
    Shell::new("qemu-img").args(convert).args([text("disk.img"), text("in.qcow2")]).run()?;
    daemon.create("disk", "1G", &[])?;
    for (image, again) in [("disk.img", "--resume"), ("in.qcow2", "--overwrite")] {
        break_off(&daemon, &daemon.scratch().join(image))?;
        let told = daemon.cli(&["volume", "import", &text(image), "disk", again])?;
        if again == "--resume" {
            // The part that is there already is not written once more.
            ensure!(told["written_bytes"].as_u64() < Some(130 << 20), "{told}");
        }
        daemon.cli(&["volume", "export", "disk", &text("out.img"), "--force"])?;
        tree::same(&raw, Path::new(&text("out.img"))).context(image)?;
    }
    Ok(())
}
