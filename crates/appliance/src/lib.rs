//! The appliance: a virtual machine that holds only a kernel and this binary. Its warm memory is
//! RAM of the host, so that a crash or a reset of the whole machine is a warm start too.
//!
//! On the host, [`build()`] makes one out of the distribution's kernel (`kernel`), this binary and
//! the libraries that it needs (`libraries`), in an initramfs (`cpio`). [`run()`] keeps it alive:
//! it starts QEMU (`qemu`), hears of its end and of resets (`monitor`), and carries the connections
//! of clients, which wait while the guest starts (`forward`). [`reset`] asks that process to reset
//! the guest. In the guest, [`guest`] is the first process and keeps `rekindle up` running.

#![warn(clippy::print_stderr, clippy::print_stdout)]

mod build;
mod cpio;
mod forward;
pub mod guest;
mod kernel;
mod libraries;
mod monitor;
mod qemu;
mod run;

pub use build::{Build, Built, build};
pub use qemu::Accelerator;
pub use run::{Run, run};

use rekindle_base::Kind;
use rekindle_supervise::endpoints;
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// Version of the layout of an appliance's folder.
const VERSION: u32 = 1;
const DESCRIPTION: &str = "appliance.json";
const KERNEL: &str = "vmlinuz";
const INITRAMFS: &str = "initramfs.cpio";
const DISK: &str = "data.img";
const CONSOLE: &str = "console.log";
/// Messages of QEMU itself, of its present start.
const SAID: &str = "qemu.log";

/// The daemon's address inside: the one that QEMU's user networking gives to its guest.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
const NETWORK_BITS: u8 = 24;
const NBD: SocketAddrV4 = SocketAddrV4::new(GUEST, 10809);
const HTTP: SocketAddrV4 = SocketAddrV4::new(GUEST, 8809);
/// Name under which QEMU hands [`Start`] to the guest.
const START: &str = "opt/rekindle/start";
/// The byte that the guest writes to its second serial port when the daemon serves.
const SERVES: u8 = b'+';
/// The byte that the guest writes there when nothing of it is left but to be switched off.
const ENDS: u8 = b'-';
/// Signals at which [`run()`] resets the guest, and makes it panic.
const RESET: Signal = Signal::USR1;
const PANIC: Signal = Signal::USR2;

/// A description of what was built, in `appliance.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    version: u32,
    /// Version of the binary inside.
    rekindle: String,
    kernel: String,
    /// RAM of the host that outlives the guest.
    memory: Memory,
}

/// RAM of the host that outlives the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    kind: MemoryKind,
    /// A file on the host's tmpfs.
    pub path: PathBuf,
    bytes: u64,
}

/// The device through which the guest sees that RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// The memory of a PCI device
    Ivshmem,
    /// Persistent memory with a file system on it (virtio-pmem)
    Pmem,
}

/// The settings that the guest gets at each start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Start {
    /// Arguments of `up`.
    arguments: Vec<String>,
    /// Environment of `up`: credentials of a store.
    environment: Vec<(String, String)>,
    pmem: bool,
    /// A command to run when the daemon serves; what it prints goes to the console.
    then: Vec<String>,
}

/// Resets the guest of the appliance in `folder`, or makes its kernel panic. Returns at once: the
/// process that keeps the appliance alive does it.
pub fn reset(folder: &Path, panic: bool) -> Outcome {
    let none_runs = || {
        Failure::new(format!("no appliance runs from {}", folder.display()))
            .next(format!("rekindle appliance run {}", folder.display()))
            .kind(Kind::Unavailable)
    };
    Description::read(folder)?;
    let signal = if panic { PANIC } else { RESET };
    let pid = endpoints::read(folder).filter(|found| found.guest).map(|found| found.pid);
    let told = endpoints::signal(folder, pid.ok_or_else(none_runs)?, signal);
    if told.map_err(|error| none_runs().because(error))? { Ok(()) } else { Err(none_runs()) }
}

impl Description {
    fn read(folder: &Path) -> Outcome<Self> {
        let path = folder.join(DESCRIPTION);
        let refuse = |cause: String| {
            Failure::new(format!("{} is no appliance", folder.display()))
                .because(cause)
                .next(format!("rekindle appliance build --out {}", folder.display()))
                .kind(Kind::NotFound)
        };
        #[expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]
        let text =
            std::fs::read(&path).map_err(|error| refuse(format!("{}: {error}", path.display())))?;
        let found: Self =
            serde_json::from_slice(&text).map_err(|error| refuse(error.to_string()))?;
        if found.version != VERSION {
            return Err(refuse(format!(
                "its layout is {}, and this binary knows {VERSION}",
                found.version
            )));
        }
        Ok(found)
    }
}
