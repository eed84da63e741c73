//! Real S3 servers for tests: versitygw over a folder, and Ceph's gateway over a cluster in memory.

use crate::daemon::scratch;
use crate::shell::{find, free_port, spawn, tools, wait_until};
use crate::{Options, ceph};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command};

/// The bucket that each server has.
pub const BUCKET: &str = "rekindle";
/// The key that each server knows, and its secret.
pub const KEY: (&str, &str) = ("story", "story-secret");

/// A program that speaks S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Versitygw,
    Ceph,
}

impl Kind {
    /// Lists what the server lacks on this machine.
    #[must_use]
    pub fn missing(self) -> Vec<String> {
        let what = match self {
            Self::Versitygw if versitygw().is_some() => return Vec::new(),
            Self::Versitygw => "versitygw".to_owned(),
            Self::Ceph => match ceph::missing() {
                lacks if lacks.is_empty() => return Vec::new(),
                lacks => lacks.join(", "),
            },
        };
        vec![format!("{what} (cargo x tools)")]
    }
}

/// An S3 server with a folder of its own; both go with it.
pub struct S3Server {
    processes: Vec<Child>,
    folder: PathBuf,
    port: u16,
}

impl S3Server {
    /// Starts a server, and makes its bucket.
    pub fn start(kind: Kind, name: &str) -> Result<Self> {
        // Another process may take a free port before the server does.
        Self::start_once(kind, name).or_else(|_| Self::start_once(kind, name))
    }

    fn start_once(kind: Kind, name: &str) -> Result<Self> {
        let folder = scratch(&format!("{name}-server"))?;
        let mut server = Self { processes: Vec::new(), folder, port: free_port()? };
        let address = server.address();
        match kind {
            Kind::Versitygw => {
                std::fs::create_dir_all(server.bucket())?;
                let mut command = Command::new(versitygw().context("versitygw is missing")?);
                command.args(["--quiet", "--port", &address, "--access", KEY.0, "--secret", KEY.1]);
                server.processes.push(spawn(
                    command.arg("posix").arg(server.folder.join("buckets")),
                    &server.folder,
                )?);
                server.wait()?;
            }
            Kind::Ceph => {
                let cluster = ceph::Cluster::configure(&server.folder, &address)?;
                cluster.start(KEY, &mut server.processes)?;
                server.wait()?;
                ceph::make_bucket(&address, KEY, BUCKET)?;
            }
        }
        Ok(server)
    }

    /// Waits until the server takes connections.
    fn wait(&mut self) -> Result<()> {
        let (port, processes) = (self.port, &mut self.processes);
        let mut ended = false;
        wait_until("the S3 server", || {
            ended = processes.iter_mut().any(|process| !matches!(process.try_wait(), Ok(None)));
            ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
        })?;
        ensure!(!ended, "the S3 server ended at once: see {}", self.folder.display());
        Ok(())
    }

    /// Returns the folder in which versitygw keeps the bucket.
    #[must_use]
    pub fn bucket(&self) -> PathBuf {
        self.folder.join("buckets").join(BUCKET)
    }

    /// Returns the address of the server.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Makes the server stand still, with its connections open, until the guard is dropped. What a
    /// test expects of a slow store then lasts for as long as the test needs to see it.
    pub fn hold(&self) -> Result<Held> {
        let held = Held(self.processes.iter().map(Pid::from_child).collect());
        held.0.iter().try_for_each(|process| kill_process(*process, Signal::STOP))?;
        Ok(held)
    }

    /// Returns options for a daemon with a store below this prefix of the bucket.
    #[must_use]
    pub fn options(&self, prefix: &str) -> Options {
        options_at(&self.address(), prefix)
    }
}

/// A server that stands still; it goes on when this is dropped.
#[must_use]
pub struct Held(Vec<Pid>);

impl Drop for Held {
    fn drop(&mut self) {
        for process in &self.0 {
            let _ = kill_process(*process, Signal::CONT);
        }
    }
}

/// Returns options for a daemon that reaches the store at this address.
#[must_use]
pub fn options_at(address: &str, prefix: &str) -> Options {
    let environment = [
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ACCESS_KEY_ID", KEY.0.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", KEY.1.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
    ];
    Options {
        arguments: vec!["--store".to_owned(), format!("s3://{BUCKET}/{prefix}")],
        environment: environment.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        ..Options::default()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // What uses another process ends before it.
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn versitygw() -> Option<PathBuf> {
    let fetched = tools().join("bin/versitygw");
    if fetched.is_file() { Some(fetched) } else { find("versitygw") }
}
