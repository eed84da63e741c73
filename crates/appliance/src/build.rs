//! Building an appliance.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::cpio::Archive;
use crate::kernel::{Kernel, Module};
use crate::{
    DESCRIPTION, DISK, Description, INITRAMFS, KERNEL, Memory, MemoryKind, NAME_SERVER, VERSION,
    libraries,
};
use clap::Args;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::words::size;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Places of the guest's files.
pub(crate) const BINARY: &str = "/bin/rekindle";
pub(crate) const MODULES: &str = "/lib/modules.list";
/// Certificates that the guest trusts when it reaches a store through TLS.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Mount points.
const FOLDERS: [&str; 7] = ["proc", "sys", "dev", "run", "tmp", "data", "warm"];
/// The memory of a PCI device is a power of two, and holds four segments of the log at least.
const MEMORY_BYTES_MIN: u64 = 64 << 20;

// The appliance that a user wants: the comments are its help.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle appliance build --out /srv/appliance
  rekindle appliance build --out /srv/appliance --memory 1G --disk 100G
  dpkg -x linux-image-6.1.0-*-cloud-amd64_*.deb kernel
  rekindle appliance build --out /srv/appliance --kernel kernel
      not installed, only unpacked

In a folder that holds an appliance the kernel and the binary are replaced;
disk and memory stay. Wants mkfs.ext4 (package e2fsprogs).")]
pub struct Build {
    /// Where: a new folder, or one that holds an appliance
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// A kernel image, or a folder into which a kernel package was unpacked [default: the newest in
    /// /boot]
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<PathBuf>,
    /// The folder of its modules [default: lib/modules/VERSION beside it]
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,
    /// RAM of this host that outlives the guest; a power of two
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256M")]
    pub memory: u64,
    /// How the guest sees that RAM
    #[arg(long, value_name = "KIND", default_value = "ivshmem")]
    pub memory_kind: MemoryKind,
    /// The disk of the log and of the folder store; takes space as it is written
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "8G")]
    pub disk: u64,
}

/// An appliance that was built.
#[derive(Debug)]
pub struct Built {
    /// The appliance, without links on the way.
    pub folder: PathBuf,
    /// Version of the kernel.
    pub kernel: String,
    /// Names of the modules that the guest loads.
    pub modules: Vec<String>,
    /// Bytes of the initramfs.
    pub initramfs_bytes: usize,
    /// RAM of the host that outlives the guest.
    pub memory: Memory,
    /// The file of the data disk.
    pub disk: PathBuf,
    /// Whether the data disk was there already.
    pub disk_kept: bool,
}

/// Builds an appliance: kernel, initramfs, data disk, description, and a script to run it.
pub fn build(build: &Build) -> Outcome<Built> {
    rekindle_env::real::access::keep_private();
    if !build.memory.is_power_of_two() || build.memory < MEMORY_BYTES_MIN {
        return Err(Failure::usage(format!(
            "--memory is a power of two from {} on, as in 256M",
            format_size(MEMORY_BYTES_MIN)
        )));
    }
    let kernel = Kernel::find(build.kernel.as_deref(), build.modules.as_deref())?;
    let modules = kernel.modules()?;
    let out = prepare(&build.out)?;
    let initramfs = initramfs(&modules)?;
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(out.join(name), bytes).map_err(|error| unwritable(&out).because(error))
    };
    let image = std::fs::read(&kernel.image).map_err(|error| {
        Failure::new(format!("cannot read {}", kernel.image.display())).because(error)
    })?;
    write(KERNEL, &image)?;
    write(INITRAMFS, &initramfs)?;
    let disk = out.join(DISK);
    let kept = disk.exists();
    if !kept {
        make_disk(&disk, build.disk)?;
    }
    // An appliance that is built anew in the same folder finds its memory again.
    let memory = Description::read(&out).ok().map(|old| old.memory.path);
    let description = Description {
        version: VERSION,
        rekindle: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: kernel.version.clone(),
        memory: Memory {
            kind: build.memory_kind,
            path: memory.map_or_else(memory_path, Ok)?,
            bytes: build.memory,
        },
    };
    write(DESCRIPTION, &serde_json::to_vec_pretty(&description).map_err(std::io::Error::from)?)?;
    write("run", script(&std::env::current_exe()?).as_bytes())?;
    std::fs::set_permissions(out.join("run"), std::fs::Permissions::from_mode(0o700))?;
    Ok(Built {
        folder: out,
        kernel: description.kernel,
        modules: modules.into_iter().map(|module| module.name).collect(),
        initramfs_bytes: initramfs.len(),
        memory: description.memory,
        disk,
        disk_kept: kept,
    })
}

fn prepare(out: &Path) -> Outcome<PathBuf> {
    std::fs::create_dir_all(out).map_err(|error| unwritable(out).because(error))?;
    let mut foreign = std::fs::read_dir(out)?.flatten().peekable();
    if foreign.peek().is_some() && !out.join(DESCRIPTION).exists() {
        return Err(Failure::new(format!("{} is not empty, and no appliance", out.display()))
            .next("name another folder with --out")
            .kind(Kind::Exists));
    }
    Ok(out.canonicalize()?)
}

fn unwritable(out: &Path) -> Failure {
    Failure::new(format!("cannot write in {}", out.display()))
        .next("free space, or choose another folder with --out")
}

/// Packs the initramfs: this binary as the first process, its libraries, and the modules that the
/// kernel needs to find its devices.
fn initramfs(modules: &[Module]) -> Outcome<Vec<u8>> {
    let program = std::env::current_exe()?;
    let mut archive = Archive::default();
    FOLDERS.iter().for_each(|folder| archive.folder(folder));
    archive.file(BINARY, 0o755, &std::fs::read("/proc/self/exe")?);
    archive.link("init", BINARY);
    for library in libraries::of(&program)? {
        let bytes = std::fs::read(&library).map_err(|error| {
            Failure::new(format!("cannot read {}", library.display())).because(error)
        })?;
        archive.file(&library.to_string_lossy(), 0o755, &bytes);
    }
    let mut list = String::new();
    for module in modules {
        let path = format!("/lib/modules/{}.ko", module.name);
        archive.file(&path, 0o644, &module.bytes);
        list.push_str(&path);
        list.push('\n');
    }
    archive.file(MODULES, 0o644, list.as_bytes());
    archive.file("/etc/resolv.conf", 0o644, format!("nameserver {}\n", NAME_SERVER).as_bytes());
    if let Ok(certificates) = std::fs::read(CERTIFICATES) {
        archive.file(CERTIFICATES, 0o644, &certificates);
    }
    Ok(archive.finish())
}

/// Makes a sparse file with an empty ext4 file system.
fn make_disk(path: &Path, bytes: u64) -> Outcome {
    std::fs::File::create_new(path)?.set_len(bytes)?;
    make_filesystem(path, &[]).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Makes an ext4 in a file.
pub(crate) fn make_filesystem(path: &Path, options: &[&str]) -> Outcome {
    let failed = || Failure::new(format!("cannot make a file system in {}", path.display()));
    // Other users than root lack these folders in their path.
    let search = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("mkfs.ext4")
        .env("PATH", search)
        .args(["-q", "-F"])
        .args(options)
        .arg(path)
        .output();
    let output =
        output.map_err(|error| failed().because(error).next("apt-get install e2fsprogs"))?;
    if !output.status.success() {
        return Err(failed().because(String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(())
}

/// Chooses a file that only this appliance uses.
fn memory_path() -> Outcome<PathBuf> {
    let mut number = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut number)?;
    Ok(PathBuf::from(format!(
        "/dev/shm/rekindle-appliance-{:016x}.ram",
        u64::from_le_bytes(number)
    )))
}

/// Returns a script that runs the appliance of its own folder.
fn script(binary: &Path) -> String {
    let binary = binary.display().to_string().replace('\'', "'\\''");
    format!(
        "#!/bin/sh\n\
         # Runs this appliance; see `rekindle appliance run --help`. REKINDLE names another binary.\n\
         exec \"${{REKINDLE:-'{binary}'}}\" appliance run \"$(dirname \"$(readlink -f \"$0\")\")\" \"$@\"\n"
    )
}
