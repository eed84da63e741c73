//! A real S3 server for a test: versitygw on a folder of its own, gone with the test.

use rekindle_datastore::Store;
use rekindle_datastore::backend::s3::{Place, S3};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MODULE: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// A running server with one bucket.
pub struct Server {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server, or says why that is not possible here.
    pub fn start() -> Result<Self, String> {
        let binary = binary()?;
        // Another process may take the free port before the server does.
        Self::start_once(&binary)
            .or_else(|_| Self::start_once(&binary))
            .or_else(|_| Self::start_once(&binary))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "looks for a free port on behalf of another process"
    )]
    fn start_once(binary: &Path) -> Result<Self, String> {
        // Beneath `target`, not in `/tmp`: the server needs extended attributes, which a tmpfs may
        // lack.
        let folder = tempfile::tempdir_in(tools())
            .map_err(|error| format!("no folder for the server: {error}"))?;
        std::fs::create_dir(folder.path().join("bucket")).map_err(|error| error.to_string())?;
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .map_err(|error| error.to_string())?
            .port();
        let child = Command::new(binary)
            .args([
                "--quiet",
                "--access",
                "access",
                "--secret",
                "secret",
                "--port",
                &format!("127.0.0.1:{port}"),
                "posix",
            ])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", binary.display()))?;
        let mut server = Self { child, port, _folder: folder };
        server.wait_for_port()?;
        println!("versitygw runs on port {port}");
        Ok(server)
    }

    /// Opens the store in the server's bucket, under a prefix.
    pub fn place(&self, prefix: &str) -> Place {
        Place {
            bucket: "bucket".to_owned(),
            prefix: prefix.to_owned(),
            endpoint: Some(format!("http://127.0.0.1:{}", self.port)),
            region: Some("us-east-1".to_owned()),
            credentials: Some(("access".to_owned(), "secret".to_owned())),
            patience: None,
        }
    }

    pub fn store(&self, env: &rekindle_env::Env, prefix: &str) -> Store {
        S3::open(env, &self.place(prefix)).expect("the settings are complete")
    }

    #[expect(clippy::disallowed_methods, reason = "waits for another process")]
    fn wait_for_port(&mut self) -> Result<(), String> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "versitygw ended at once with {status}: no extended attributes here?"
                ));
            }
            if began.elapsed() > START_TIME_MAX {
                return Err("versitygw does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns `target/tools` of this repository.
#[expect(clippy::disallowed_methods, reason = "prepares a test")]
fn tools() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools");
    std::fs::create_dir_all(folder.join("bin")).expect("target can be written");
    folder.canonicalize().expect("it was just made")
}

/// Returns the server's binary: on the path, built earlier, or built now.
fn binary() -> Result<PathBuf, String> {
    let runs = |binary: &Path| {
        Command::new(binary)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let built = tools().join("bin/versitygw");
    for binary in [PathBuf::from("versitygw"), built.clone()] {
        if runs(&binary) {
            return Ok(binary);
        }
    }
    println!("versitygw is not here: building it with go (once, a minute or two)");
    match Command::new("go").args(["install", MODULE]).env("GOBIN", tools().join("bin")).status() {
        Ok(status) if status.success() && runs(&built) => Ok(built),
        Ok(status) => Err(format!("go install {MODULE} failed ({status})")),
        Err(error) => Err(format!("neither versitygw nor go is on this machine ({error})")),
    }
}
