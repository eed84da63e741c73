//! The first process of the appliance: finds the devices, mounts the disk, keeps `up` running,
//! switches the machine off.
//!
//! A mistake in here ends the first process, so that the kernel panics and the machine is reset:
//! the host starts it again.
#![expect(clippy::disallowed_methods, reason = "the first process of a machine has no Env")]

mod button;
mod network;

use crate::build::{BINARY, MODULES};
use crate::{ENDS, GATEWAY, GUEST, HTTP, NBD, NETWORK_BITS, SERVES, START, Start};
use anyhow::{Context, Result, bail};
use rekindle_supervise::ivshmem;
use rekindle_terminal::failure::EXIT_UNCLEAN;
use rekindle_terminal::output;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, WaitOptions, wait};
use rustix::system::RebootCommand;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable, set for `up`: its network is the host's, which decides which clients come
/// through.
pub const VARIABLE: &str = "REKINDLE_GUEST";
/// Path by which the kernel starts the first process.
const NAME: &str = "/init";
const DISK: &str = "/dev/vda";
const DATA: &str = "/data";
const PMEM: &str = "/dev/pmem0";
const PMEM_FOLDER: &str = "/warm";
/// Serial port at which the host listens for [`SERVES`] and [`ENDS`].
const SIGNAL: &str = "/dev/ttyS1";
/// Longest wait for a device to appear.
const DEVICE_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before `up` starts again after an end that was not asked for.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Whether this process is the first one of an appliance.
#[must_use]
pub fn is_first() -> bool {
    std::process::id() == 1 && std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Runs until the machine is off.
pub fn run() -> ! {
    let ended = live();
    if let Err(error) = ended {
        // The console is the only output.
        output::tell(&format!("appliance: {error:#}"));
    }
    switch_off()
}

fn live() -> Result<()> {
    mount_system()?;
    load_modules();
    let start = read_start();
    network::configure(GUEST, NETWORK_BITS, GATEWAY).context("the network")?;
    wait_for(DISK)?;
    mount(DISK, DATA, "ext4", MountFlags::NOATIME, None).context("the data disk")?;
    let warm = warm_memory(&start)?;
    let (mut served, pressed) = (false, button::watch());
    loop {
        let up = Up::start(&start, &warm, served)?;
        pressed.stops(&up.process);
        let code = up.watch()?;
        served |= up.served();
        match code {
            Some(code) if code == 0 || code == i32::from(EXIT_UNCLEAN) => return Ok(()),
            code if !served => bail!("`rekindle up` gave up, exit code {code:?}"),
            code => output::tell(&format!(
                "appliance: `rekindle up` ended, exit code {code:?}; starting it again"
            )),
        }
        std::thread::sleep(RESTART_PAUSE);
    }
}

fn mount_system() -> Result<()> {
    for (kind, place) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
    ] {
        mount(kind, place, kind, MountFlags::NOSUID, None).with_context(|| place.to_owned())?;
    }
    std::fs::create_dir_all("/dev/shm")?;
    mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::NOSUID, None).context("/dev/shm")?;
    Ok(())
}

/// Loads the modules. A failure is only reported: a later step fails if it needs the module's
/// device.
fn load_modules() {
    let list = std::fs::read_to_string(MODULES).unwrap_or_default();
    for path in list.lines() {
        let loaded =
            File::open(path).and_then(|file| Ok(rustix::system::finit_module(&file, c"", 0)?));
        if let Err(error) = loaded
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            output::tell(&format!("appliance: {path}: {error}"));
        }
    }
}

/// Reads the host's settings; the defaults under a QEMU that `appliance run` has not started.
fn read_start() -> Start {
    let path = format!("/sys/firmware/qemu_fw_cfg/by_name/{START}/raw");
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
            output::tell(&format!("appliance: {path}: {error}"));
            Start::default()
        }),
        Err(_) => Start::default(),
    }
}

fn wait_for(device: &str) -> Result<()> {
    let end = Instant::now() + DEVICE_PATIENCE;
    while !Path::new(device).exists() {
        if Instant::now() > end {
            bail!("there is no {device}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Prepares the memory that outlives this machine; returns the word for `--warm`.
fn warm_memory(start: &Start) -> Result<String> {
    if !start.pmem {
        return Ok(ivshmem::WORD.to_owned());
    }
    wait_for(PMEM)?;
    mount(PMEM, PMEM_FOLDER, "ext4", MountFlags::NOATIME, Some(c"dax=always"))
        .context("the persistent memory")?;
    Ok(format!("{PMEM_FOLDER}/rekindle.warm"))
}

/// A running `rekindle up`, with the thread that reads its output.
struct Up {
    process: Child,
    listener: std::thread::JoinHandle<bool>,
}

impl Up {
    /// Starts `up`. The first one runs the host's command when it serves.
    fn start(start: &Start, warm: &str, again: bool) -> Result<Self> {
        let mut process = Command::new(BINARY)
            .args(["up", "--json", "--warm", warm, "--dir"])
            .arg(Path::new(DATA).join("rekindle"))
            .args(["--nbd", &NBD.to_string(), "--http", &HTTP.to_string()])
            .args(&start.arguments)
            .envs(start.environment.iter().cloned())
            .env(VARIABLE, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `rekindle up`")?;
        let output = process.stdout.take().context("its output")?;
        let then = if again { Vec::new() } else { start.then.clone() };
        let listener = std::thread::spawn(move || listen(output, &then));
        Ok(Self { process, listener })
    }

    /// Waits for the end of `up`, and meanwhile reaps every orphan. Returns the exit code, `None`
    /// if `up` was killed.
    fn watch(&self) -> Result<Option<i32>> {
        let own = Pid::from_child(&self.process);
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == own => return Ok(status.exit_status()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("nothing to wait for"),
            }
        }
    }

    /// Whether `up` ever served.
    fn served(self) -> bool {
        self.listener.join().unwrap_or(false)
    }
}

/// Copies the output of `up` to the console, and tells the host at the first line of JSON: `up`
/// serves.
fn listen(output: impl std::io::Read, then: &[String]) -> bool {
    let mut served = false;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        output::line(&line);
        if !served && line.starts_with('{') {
            served = true;
            signal(SERVES);
            if !then.is_empty() {
                // The command's result is only for the reader of the console.
                let ran = Command::new(BINARY)
                    .args(then)
                    .arg("--dir")
                    .arg(Path::new(DATA).join("rekindle"))
                    .spawn();
                if let Err(error) = ran {
                    output::tell(&format!("appliance: {then:?}: {error}"));
                }
            }
        }
    }
    served
}

/// Tells the host.
fn signal(word: u8) {
    let told =
        File::options().write(true).open(SIGNAL).and_then(|mut port| port.write_all(&[word]));
    if let Err(error) = told {
        output::tell(&format!("appliance: {SIGNAL}: {error}"));
    }
}

/// Switches the machine off. Every other process is gone, or about to be.
fn switch_off() -> ! {
    rustix::fs::sync();
    let _ = unmount(DATA, UnmountFlags::empty());
    let _ = unmount(PMEM_FOLDER, UnmountFlags::empty());
    rustix::fs::sync();
    // A kernel may hang on its way down: the host need not wait for it.
    signal(ENDS);
    let _ = rustix::system::reboot(RebootCommand::PowerOff);
    // A machine without a switch stays on: its operator sees the last line of the console.
    output::tell("appliance: off");
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
