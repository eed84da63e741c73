//! QEMU: its command line, and RAM of the host that outlives it.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::{
    CONSOLE, DISK, Description, HTTP, INITRAMFS, KERNEL, Memory, MemoryKind, NBD, Run, SAID, START,
    Start, build,
};
use rekindle_base::Kind;
use rekindle_supervise::worker::die_with;
use rekindle_terminal::failure::{Failure, Outcome};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "qemu-system-x86_64";
/// The kernel's command line. A panic, an oops or an NMI from outside resets the guest at once.
const KERNEL_LINE: &str =
    "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic unknown_nmi_panic random.trust_cpu=on";
/// The file of [`Start`]; may hold credentials.
const START_FILE: &str = "start.json";
const KERNEL_BASED: &str = "/dev/kvm";
/// The modules of a KVM that uses the processor. Another KVM runs a distribution's kernel slower
/// than QEMU does by itself.
const KERNEL_BASED_MODULES: [&str; 2] = ["/sys/module/kvm_intel", "/sys/module/kvm_amd"];
/// Bytes of persistent memory that are left to its file system.
const PMEM_FILESYSTEM_BYTES: u64 = 16 << 20;

/// The executor of the guest's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Accelerator {
    /// kvm where the processor does it, else tcg
    Auto,
    Kvm,
    Tcg,
}

/// A QEMU that runs, and the addresses at which its guest is reached.
pub struct Machine {
    pub child: Child,
    /// QEMU's own control connection.
    pub monitor: UnixStream,
    /// The guest's second serial port.
    pub signal: UnixStream,
    pub nbd: SocketAddr,
    pub http: SocketAddr,
}

/// Chooses the accelerator: `auto` is kvm where hardware can run the guest, else tcg.
pub fn accelerator(wanted: Accelerator) -> &'static str {
    let usable = || {
        KERNEL_BASED_MODULES.iter().any(|module| Path::new(module).exists())
            && std::fs::File::options().read(true).write(true).open(KERNEL_BASED).is_ok()
    };
    match wanted {
        Accelerator::Kvm => "kvm",
        Accelerator::Tcg => "tcg",
        Accelerator::Auto => {
            if usable() {
                "kvm"
            } else {
                "tcg"
            }
        }
    }
}

/// Starts QEMU, which dies with this process: its clients use the sockets of this process.
pub fn start(folder: &Path, description: &Description, run: &Run) -> Outcome<Machine> {
    let memory = &description.memory;
    prepare(memory)?;
    write_start(folder, &settings(memory, run))?;
    let (monitor, theirs) = UnixStream::pair()?;
    let (signal, serial) = UnixStream::pair()?;
    let (nbd, http) = (free_port()?, free_port()?);
    let mut command = Command::new(PROGRAM);
    command.args(words(folder, memory, run));
    command
        .arg("-netdev")
        .arg(format!("user,id=net,hostfwd=tcp:{nbd}-{NBD},hostfwd=tcp:{http}-{HTTP}"));
    command.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
    command.arg("-chardev").arg(format!("socket,id=signal,fd={}", pass_on(&serial)?));
    command.args(["-serial", "chardev:signal"]);
    command.arg("-chardev").arg(format!("socket,id=monitor,fd={}", pass_on(&theirs)?));
    command.args(["-mon", "chardev=monitor,mode=control"]);
    // A process group of its own: Ctrl-C at the terminal reaches only this process.
    let said = std::fs::File::create(folder.join(SAID))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).process_group(0);
    let parent = rustix::process::getpid();
    // SAFETY: only system calls and comparisons between fork and exec.
    unsafe { command.pre_exec(move || die_with(parent)) };
    let child = command.spawn().map_err(|error| {
        Failure::new(format!("cannot start {PROGRAM}"))
            .because(error)
            .next("apt-get install --no-install-recommends qemu-system-x86")
    })?;
    Ok(Machine { child, monitor, signal, nbd, http })
}

/// Returns all arguments but the network and the descriptors that are passed on by number.
fn words(folder: &Path, memory: &Memory, run: &Run) -> Vec<OsString> {
    let accelerator = accelerator(run.accelerator);
    let processor = if accelerator == "kvm" { "host" } else { "max" };
    let file = |name: &str| folder.join(name).into_os_string();
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
    add("-machine", format!("q35,accel={accelerator}").into());
    add("-cpu", processor.into());
    add("-smp", run.cpus.to_string().into());
    add(
        "-m",
        format!("size={}M,slots=2,maxmem={}M", run.ram >> 20, (run.ram + (memory.bytes * 2)) >> 20)
            .into(),
    );
    add("-display", "none".into());
    add("-kernel", file(KERNEL));
    add("-initrd", file(INITRAMFS));
    add("-append", KERNEL_LINE.into());
    let console = escape(&folder.join(CONSOLE));
    add("-chardev", format!("file,id=console,append=on,path={console}").into());
    add("-serial", "chardev:console".into());
    add("-fw_cfg", format!("name={START},file={}", escape(&folder.join(START_FILE))).into());
    let disk = escape(&folder.join(DISK));
    add(
        "-blockdev",
        format!("driver=raw,node-name=data,file.driver=file,file.filename={disk},discard=unmap")
            .into(),
    );
    add("-device", "virtio-blk-pci,drive=data,romfile=".into());
    let (path, bytes) = (escape(&memory.path), memory.bytes);
    // Allocated at once: a host without room for the memory fails now, and not by a signal later.
    add(
        "-object",
        format!("memory-backend-file,id=warm,share=on,prealloc=on,mem-path={path},size={bytes}")
            .into(),
    );
    add(
        "-device",
        match memory.kind {
            MemoryKind::Ivshmem => "ivshmem-plain,memdev=warm".into(),
            MemoryKind::Pmem => "virtio-pmem-pci,memdev=warm".into(),
        },
    );
    words.push("-nodefaults".into());
    words.extend(run.qemu.iter().flat_map(|text| text.split_whitespace().map(OsString::from)));
    words
}

/// Makes the settings for the guest.
fn settings(memory: &Memory, run: &Run) -> Start {
    let mut arguments = Vec::new();
    if let Some(store) = &run.store {
        arguments.extend(["--store".to_owned(), store.clone()]);
    }
    let pmem = memory.kind == MemoryKind::Pmem;
    if pmem {
        let bytes = memory.bytes - memory.bytes / 16 - PMEM_FILESYSTEM_BYTES;
        arguments.extend(["--warm-size".to_owned(), bytes.to_string()]);
    }
    arguments.extend(run.up.iter().cloned());
    let environment = std::env::vars().filter(|(name, _)| name.starts_with("AWS_")).collect();
    let then =
        run.then.iter().flat_map(|text| text.split_whitespace().map(str::to_owned)).collect();
    Start { arguments, environment, pmem, then }
}

fn write_start(folder: &Path, start: &Start) -> Outcome {
    let text = serde_json::to_string(start).map_err(io::Error::from)?;
    let mut options = std::fs::File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(folder.join(START_FILE))?;
    Ok(file.write_all(text.as_bytes())?)
}

/// Prepares the file of the memory. Its content is kept; persistent memory gets a file system when
/// it is new.
fn prepare(memory: &Memory) -> Outcome {
    let path = &memory.path;
    let failed = |error: io::Error| {
        let failure =
            Failure::new(format!("cannot have the memory {}", path.display())).because(error);
        failure.next("free memory in /dev/shm, or build the appliance anew with a smaller --memory")
    };
    match std::fs::File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            file.set_len(memory.bytes).map_err(failed)?;
            if memory.kind == MemoryKind::Pmem {
                // DAX refuses larger blocks, and smaller ones too; one file needs few inodes.
                let options = ["-b", "4096", "-m", "0", "-N", "64", "-J", "size=4"];
                build::make_filesystem(path, &options)
                    .inspect_err(|_| drop(std::fs::remove_file(path)))?;
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let bytes = std::fs::metadata(path).map_err(failed)?.len();
            if bytes == memory.bytes {
                return Ok(());
            }
            Err(Failure::new(format!("the memory {} has another size than the appliance", path.display()))
                .because(format!("{bytes} bytes, and not {}", memory.bytes))
                .next("stop the appliance cleanly under its old size, or remove the file: what only it holds is lost")
                .kind(Kind::Conflict))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Doubles commas: QEMU reads a single one as the end of a value.
fn escape(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Finds a port that is free at the moment.
fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Lets QEMU inherit a socket, under the number that this returns.
fn pass_on(socket: &UnixStream) -> Outcome<i32> {
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).map_err(io::Error::from)?;
    Ok(socket.as_raw_fd())
}

/// Gives the process and the sockets of a machine to the task that watches it.
impl Machine {
    pub fn take(self) -> (Child, OwnedFd, OwnedFd) {
        (self.child, self.monitor.into(), self.signal.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_a_path_are_not_the_end_of_it() {
        assert_eq!(escape(Path::new("/srv/a,b/data.img")), "/srv/a,,b/data.img");
    }

    #[test]
    fn memory_is_kept_and_never_used_under_another_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memory");
        let memory = Memory { kind: MemoryKind::Ivshmem, path: path.clone(), bytes: 1 << 20 };
        prepare(&memory).expect("made");
        std::fs::write(&path, vec![7; 1 << 20]).expect("a file");
        prepare(&memory).expect("kept");
        assert_eq!(std::fs::read(&path).expect("there")[0], 7);
        let failure = prepare(&Memory { bytes: 2 << 20, ..memory }).expect_err("another size");
        assert!(failure.error.contains("another size"), "{}", failure.error);
    }
}
