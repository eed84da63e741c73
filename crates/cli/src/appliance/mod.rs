//! `rekindle appliance`: a virtual machine that holds only a kernel and this binary. Its warm
//! memory is RAM of the host, so that a crash or a reset of the whole machine is a warm start too.
//!
//! `build` makes an appliance, `run` keeps it alive on the host, `guest` is its first process.

mod build;
mod cpio;
mod forward;
pub mod guest;
mod kernel;
mod libraries;
mod monitor;
mod qemu;
mod run;

use crate::arguments::{Appliance, Common};
use crate::failure::{Failure, Outcome};
use crate::{output, supervise::endpoints};
use rekindle_base::Kind;
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
struct Memory {
    kind: MemoryKind,
    /// A file on the host's tmpfs.
    path: PathBuf,
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

/// Runs the command.
pub fn run(common: &Common, command: &Appliance) -> Outcome<u8> {
    match command {
        Appliance::Build(build) => build::run(common, build).map(|()| 0),
        Appliance::Run(run) => run::run(common, run),
        Appliance::Reset(reset) => {
            // `run` resets the guest on USR1, and makes it panic on USR2.
            let signal = if reset.panic { Signal::USR2 } else { Signal::USR1 };
            tell(&reset.folder, signal)?;
            if common.json {
                output::json(&serde_json::json!({ "reset": true, "panic": reset.panic }));
            } else {
                output::line("the guest starts again");
            }
            Ok(0)
        }
    }
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

/// Sends a signal to the process that keeps the appliance of a folder alive.
fn tell(folder: &Path, signal: Signal) -> Outcome {
    let nobody = || {
        Failure::new(format!("no appliance runs from {}", folder.display()))
            .next(format!("rekindle appliance run {}", folder.display()))
            .kind(Kind::Unavailable)
    };
    Description::read(folder)?;
    let pid = endpoints::read(folder).filter(|found| found.guest).map(|found| found.pid);
    let told = endpoints::signal(folder, pid.ok_or_else(nobody)?, signal);
    if told.map_err(|error| nobody().because(error))? { Ok(()) } else { Err(nobody()) }
}
