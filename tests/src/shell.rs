//! Runs programs, and tells when one is missing.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program to run, with errors that show its output.
pub struct Shell(Command);

impl Shell {
    /// Prepares to run `program`.
    #[must_use]
    pub fn new(program: impl AsRef<std::ffi::OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Self(command)
    }

    /// Prepares to run `sh -euc script`.
    #[must_use]
    pub fn script(script: &str) -> Self {
        Self::new("sh").args(["-euc", script])
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<std::ffi::OsStr>>(
        mut self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        self.0.args(arguments);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs the program, and returns its output whether it fails or not.
    pub fn output(mut self) -> Result<Output> {
        self.0.output().with_context(|| format!("cannot run {:?}", self.0))
    }

    /// Runs the program and returns its output; a failure is an error that shows all.
    pub fn run(self) -> Result<String> {
        let shown = format!("{:?}", self.0);
        let output = self.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{shown}: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(text)
    }
}

/// Finds a program, also in the folders that only root has in its path.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file())
}

/// Returns the folder of fetched tools (an S3 server, kernels).
#[must_use]
pub fn tools() -> PathBuf {
    std::env::var_os("REKINDLE_TOOLS")
        .map_or_else(|| repository().join("target/tools"), PathBuf::from)
}

/// Returns the folder of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the repository").to_owned()
}

/// Whether a story must be skipped; then prints SKIPPED and why. In CI nothing may be missing.
#[must_use]
pub fn skip_without(programs: &[&str], root: bool) -> bool {
    let mut missing: Vec<String> = programs
        .iter()
        .filter(|program| find(program).is_none())
        .map(|program| (*program).to_owned())
        .collect();
    if root && !rustix::process::geteuid().is_root() {
        missing.push("root".to_owned());
    }
    skip(&missing)
}

/// As [`skip_without`], for a list of what is missing.
#[must_use]
pub fn skip(missing: &[String]) -> bool {
    if missing.is_empty() {
        return false;
    }
    let why = missing.join(", ");
    assert!(std::env::var_os("CI").is_none(), "CI must have everything; missing: {why}");
    // Past the test harness, which shows the output of failures only.
    let story = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED {story}: needs {why}");
    true
}

/// Prepares to run `program` so that Ctrl-C ends it: a shell that runs the tests in the background
/// may have it ignored.
#[must_use]
pub fn interruptible(program: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(program);
    command
}

/// Starts a process that writes its messages into the folder.
pub(crate) fn spawn(command: &mut Command, folder: &Path) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log.txt"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot run {command:?}"))
}

/// Returns a TCP port that is not in use.
pub fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Longest wait for any event, on a machine with much other load.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Polls until `done` returns true.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > end {
            bail!("waited {PATIENCE:?} for {what}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
