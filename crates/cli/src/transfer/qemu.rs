//! Images in foreign formats, by `qemu-img`.

use super::{LOOK, Watch, qcow2, unusable};
use crate::arguments::Import;
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_env::real::access::own_path;
use rekindle_front::uri;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use rustix::io::FdFlags;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "qemu-img";

/// Returns the size of the disk in an image. Refuses an image that leads to other files: its writer
/// chose them.
pub fn size(import: &Import) -> Outcome<u64> {
    let file = &import.file;
    let head = qcow2::read(file).map_err(|error| unusable(file, &error))?;
    let Some(head) = head else {
        return Err(Failure::usage(format!("{} is no qcow2 image", file.display()))
            .next("`--format raw` takes it as the bytes of a disk"));
    };
    if (head.backed || head.data_elsewhere) && !import.with_backing_files {
        let what = if head.backed { "a backing file" } else { "an external data file" };
        return Err(Failure::usage(format!(
            "{} names {what}, which would be read too, whatever it is",
            file.display()
        ))
        .next("look with `qemu-img info`; if you trust the image, add --with-backing-files"));
    }
    // Checked before a volume is made for the image.
    run(&["--version".as_ref()], None)?;
    Ok(head.bytes)
}

/// Fills a volume. Returns 0: `qemu-img` does not tell how much it wrote.
pub fn import(
    import: &Import,
    place: &Address,
    fresh: bool,
    watch: &mut Watch<'_>,
) -> Outcome<u64> {
    let uri = uri::nbd(place, &import.volume);
    let image = source(import)?;
    let mut words = ["convert", "-n", "-O", "raw"].map(OsStr::new).to_vec();
    if fresh {
        words.push(OsStr::new("--target-is-zero"));
    }
    words.extend([OsStr::new(&image), OsStr::new(&uri)]);
    run(&words, Some(watch))?;
    Ok(0)
}

/// Returns the image in QEMU's words: as qcow2 and nothing else, of a file and nothing else
/// (`nbd:x.qcow2` is the name of a file, too). The backing file is left out unless it was allowed.
fn source(import: &Import) -> Outcome<String> {
    let failed = |error: std::io::Error| unusable(&import.file, &error);
    let path = std::path::absolute(&import.file).map_err(failed)?;
    let device = import.file.metadata().map_err(failed)?.file_type().is_block_device();
    let driver = if device { "host_device" } else { "file" };
    let Some(path) = path.to_str() else {
        return Err(Failure::usage(format!("the path {} is not text", path.display())));
    };
    let mut image = json!({"driver": "qcow2", "file": {"driver": driver, "filename": path}});
    if !import.with_backing_files {
        image["backing"] = Value::Null;
    }
    Ok(format!("json:{image}"))
}

/// Writes a volume into an open file.
pub fn export(place: &Address, name: &str, file: &File, watch: &mut Watch<'_>) -> Outcome {
    let failed = |error: rustix::io::Errno| Failure::new("cannot share a file").because(error);
    // By its descriptor: another file may have the name by now.
    rustix::io::fcntl_setfd(file, FdFlags::empty()).map_err(failed)?;
    let (uri, path) = (uri::nbd(place, name), own_path(file));
    let words = ["convert", "-f", "raw", "-O", "qcow2", &uri].map(OsStr::new);
    run(&[&words[..], &[path.as_os_str()]].concat(), Some(watch))
}

/// Runs `qemu-img`, with its own progress for a user who watches, until it ends or the user ends
/// it.
fn run(words: &[&OsStr], watch: Option<&mut Watch<'_>>) -> Outcome {
    let mut command = Command::new(PROGRAM);
    command.args(&words[..1]).stdout(Stdio::null());
    if watch.is_some() && output::is_watched() {
        // `qemu-img` writes its progress to standard output; ours is for the answer.
        command.arg("-p");
        if let Ok(error) = rustix::io::dup(std::io::stderr()) {
            command.stdout(Stdio::from(error));
        }
    }
    command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        Failure::new(format!("cannot run {PROGRAM}"))
            .because(error)
            .next("install it (package qemu-utils), or use a raw image")
            .kind(Kind::Unsupported)
    })?;
    if let Some(watch) = watch
        && let Err(failure) = wait(&mut child, watch)
    {
        let _ = child.kill();
        let _ = child.wait();
        return Err(failure);
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{PROGRAM} failed")).because(said.trim()))
}

/// Waits until `qemu-img` has ended. Its message about a failure fits into the pipe.
fn wait(child: &mut Child, watch: &mut Watch<'_>) -> Outcome {
    while child.try_wait()?.is_none() {
        if watch.interrupts.interrupted() {
            return Err(watch.broken_off());
        }
        watch.interrupts.pause(LOOK);
    }
    Ok(())
}
