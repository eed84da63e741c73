//! What S3 servers of tests have in common.

use anyhow::{Context, Result};
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The bucket that each server has.
pub const BUCKET: &str = "rekindle";
/// The key that each server knows, and its secret.
pub const KEY: (&str, &str) = ("story", "story-secret");

/// Starts a process that writes its messages into the folder.
pub(crate) fn spawn(command: &mut Command, folder: &Path) -> Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join("log.txt"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot run {command:?}"))
}

/// Returns a TCP port that is not in use.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
