//! A real S3 server for a story: versitygw over a folder.

use crate::shell::{find, tools, wait_until};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An S3 server; killed on drop.
pub struct S3Server {
    process: Child,
    port: u16,
}

/// Finds the server's program.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let fetched = tools().join("bin/versitygw");
    if fetched.is_file() { Some(fetched) } else { find("versitygw") }
}

impl S3Server {
    /// Starts a server with a bucket `rekindle` in `folder`.
    pub fn start(folder: &Path) -> Result<Self> {
        let program = program().context("versitygw is missing")?;
        let port = free_port()?;
        std::fs::create_dir_all(folder.join("rekindle"))?;
        let log = std::fs::File::create(folder.with_extension("txt"))?;
        let process = Command::new(program)
            .args([
                "--port",
                &format!("127.0.0.1:{port}"),
                "--access",
                "story",
                "--secret",
                "story-secret",
            ])
            .arg("posix")
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let server = Self { process, port };
        wait_until("the S3 server", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(server)
    }

    /// Returns the environment for a daemon that uses the server.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ACCESS_KEY_ID", "story".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "story-secret".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a TCP port that is not in use.
pub fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
