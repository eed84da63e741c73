//! Images in formats of others, by `qemu-img`.

use crate::client::escape;
use crate::command::up::nbd_uri;
use crate::failure::{Failure, Outcome};
use crate::output;
use base::Kind;
use env::Address;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "qemu-img";

/// The size of the disk in an image.
pub fn size(file: &Path) -> Outcome<u64> {
    let words = ["info", "--output=json", "-f", "qcow2"].map(OsStr::new);
    let output = run(&[&words[..], &[file.as_os_str()]].concat(), false)?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told["virtual-size"].as_u64().ok_or_else(|| {
        Failure::new(format!("{PROGRAM} does not say how large {} is", file.display()))
    })
}

/// Fills a volume. Gives nothing that was counted: `qemu-img` does not tell.
pub fn import(file: &Path, place: &Address, name: &str, fresh: bool) -> Outcome<u64> {
    let uri = nbd_uri(place, &escape(name));
    let mut words = ["convert", "-n", "-f", "qcow2", "-O", "raw"].map(OsStr::new).to_vec();
    if fresh {
        words.push(OsStr::new("--target-is-zero"));
    }
    words.extend([file.as_os_str(), OsStr::new(&uri)]);
    run(&words, output::is_watched())?;
    Ok(0)
}

/// Writes a volume into a file.
pub fn export(place: &Address, name: &str, part: &Path) -> Outcome {
    // The file is for its user only.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let uri = nbd_uri(place, &escape(name));
    let words = ["convert", "-f", "raw", "-O", "qcow2", &uri].map(OsStr::new);
    run(&[&words[..], &[part.as_os_str()]].concat(), output::is_watched()).map(|_| ())
}

/// Runs it; with its own progress for whoever watches.
fn run(words: &[&OsStr], watched: bool) -> Outcome<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(&words[..1]);
    if watched {
        // It writes its progress to standard output; ours is for the answer.
        command.arg("-p");
        if let Ok(error) = rustix::io::dup(std::io::stderr()) {
            command.stdout(Stdio::from(error));
        }
    } else {
        command.stdout(Stdio::piped());
    }
    command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::piped());
    let output =
        command.spawn().and_then(std::process::Child::wait_with_output).map_err(|error| {
            Failure::new(format!("cannot run {PROGRAM}"))
                .because(error)
                .next("install it (package qemu-utils), or use a raw image")
                .kind(Kind::Unsupported)
        })?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{PROGRAM} failed")).because(said.trim()))
}
