//! Real kernels ride through daemon kills without an I/O error: the kernel's own NBD client in a
//! user-mode Linux with a file system over two connections, and a QEMU guest with its disk on a
//! volume.
//!
//! Debian's `nbd-client -persist` cannot set the kernel's dead-connection timeout. Without that,
//! the kernel fails all queued requests as soon as no connection is left. So the device is made by
//! `rekindle map`, which sets it.

use anyhow::{Context, Result};
use e2e::shell::{Shell, find, repository, skip, skip_without, tools, wait_until};
use e2e::{Daemon, Options};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A network namespace with a tap device for a guest; deleted on drop.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Self> {
        let namespace = Self(format!("rekindle-{}", std::process::id()));
        let name = &namespace.0;
        Shell::script(&format!(
            "ip netns add {name}; ip -n {name} link set lo up; ip -n {name} tuntap add tap0 mode tap; \
             ip -n {name} addr add 10.77.0.1/24 dev tap0; ip -n {name} link set tap0 up"
        ))
        .run()?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Shell::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// A guest; its whole process group is killed on drop.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

fn executable(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Init script of the user-mode guest. Its root is this machine's, read-only.
const UML_INIT: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc p /proc; mount -t sysfs s /sys
for d in /tmp /run /mnt; do mount -t tmpfs t $d; done
mkdir -p /run/out /run/uml
mount -t hostfs none /run/uml -o "$U_DIR"; mount -t hostfs none /run/out -o "$U_OUT"
modprobe -d /run/uml nbd
ip link set lo up; ip addr add 10.77.0.2/24 dev vec0; ip link set vec0 up
work() {
  /run/out/rekindle map disk --nbd 10.77.0.1:10809 --device /dev/nbd0 --connections 2 --timeout 2s &
  map=$!
  while ! [ -s /sys/block/nbd0/pid ]; do
    kill -0 $map || return 1
    sleep 0.1
  done
  mkfs.ext4 -q /dev/nbd0 || return 2
  mount /dev/nbd0 /mnt || return 3
  i=0
  while [ ! -e /run/out/stop ] && [ $i -lt 20000 ]; do
    dd if=/dev/urandom of=/mnt/f$i bs=16k count=2 conv=fsync 2>/dev/null || return 4
    (cd /mnt && md5sum f$i) >>/tmp/sums || return 5
    i=$((i+1)); echo $i >/run/out/count
  done
  umount /mnt || return 6
  echo 3 >/proc/sys/vm/drop_caches
  mount /dev/nbd0 /mnt || return 7
  (cd /mnt && md5sum -c --quiet /tmp/sums) || return 8
  umount /mnt || return 9
  kill $map; wait $map || return 11
  dmesg | grep -i 'i/o error' && return 10
  return 0
}
work >/run/out/log 2>&1; echo $? >/run/out/rc
poweroff -f 2>/dev/null || echo o >/proc/sysrq-trigger; sleep 5
"#;

#[test]
fn the_kernel_nbd_client_rides_through_daemon_kills() -> Result<()> {
    let uml = tools().join("uml");
    let mut missing = Vec::new();
    if !uml.join("usr/bin/linux.uml").is_file() {
        missing.push("user-mode-linux (cargo x tools)".to_owned());
    }
    if skip_without(&["ip", "mkfs.ext4", "cc"], true) || skip(&missing) {
        return Ok(());
    }
    let namespace = Namespace::new()?;
    let options = Options {
        arguments: ["--nbd", "tcp:10.77.0.1:10809", "--insecure"].map(str::to_owned).to_vec(),
        prefix: ["ip", "netns", "exec", &namespace.0].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("uml", options)?;
    daemon.create("disk", "256M", &[])?;
    let out = daemon.scratch().join("out");
    std::fs::create_dir_all(&out)?;
    let init = daemon.scratch().join("init");
    executable(&init, UML_INIT)?;
    let modules = uml.join("lib/modules");
    if !modules.exists() {
        std::fs::create_dir_all(uml.join("lib"))?;
        std::os::unix::fs::symlink("../usr/lib/uml/modules", &modules)?;
    }
    let console_file = daemon.scratch().join("console.txt");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace.0]).arg(uml.join("usr/bin/linux.uml"));
    command.args([
        "mem=512M",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
        "panic=1",
    ]);
    command.args([
        "con=null",
        "con0=null,fd:1",
        "ssl=null",
        "vec0:transport=tap,ifname=tap0,depth=128,gro=1",
    ]);
    command.arg(format!("init={}", init.display()));
    command.arg(format!("uml_dir={}/", daemon.scratch().display()));
    command.arg(format!("U_DIR={}", uml.display())).arg(format!("U_OUT={}", out.display()));
    // The binary goes beside the guest's output: the guest hides the folders for temporary files,
    // where the checkout may be.
    std::fs::copy(e2e::daemon::binary(), out.join("rekindle"))?;
    command.env("TMPDIR", "/dev/shm").stdin(Stdio::null());
    if std::fs::read_to_string("/proc/cpuinfo")?.contains(" amx_tile") {
        let (source, library) = ("tests/fixtures/xstate.c", daemon.scratch().join("xstate.so"));
        let compile = Shell::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library);
        compile.arg(repository().join(source)).run()?;
        command.env("LD_PRELOAD", library);
    }
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    let count = || read("count").trim().parse::<u64>().unwrap_or(0);
    let console = || std::fs::read_to_string(&console_file).unwrap_or_default();
    let log = || format!("guest log: {}\nconsole: {}", read("log"), console());
    let file = std::fs::File::create(&console_file)?;
    command.stdout(file.try_clone()?).stderr(file);
    let guest = Guest(command.spawn()?);
    let more = |files: u64| {
        let before = count();
        wait_until("the guest to write on", || count() >= before + files || !read("rc").is_empty())
            .with_context(log)
    };
    more(50)?;
    for kill in 0..3 {
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        println!("kill {kill} after {} files", count());
        more(50)?;
    }
    std::fs::write(out.join("stop"), "")?;
    wait_until("the guest to end", || !read("rc").is_empty()).with_context(log)?;
    assert_eq!(read("rc").trim(), "0", "{}", log());
    println!("{} files written and verified by the kernel's own client", count());
    drop(guest);
    Ok(())
}

/// Init script of the QEMU guest: raw writes to its disk, each synced, then all are read back.
const QEMU_INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /tmp
for m in $(cat /modules); do insmod /lib/$m 2>/dev/null; done
work() {
  [ -b /dev/vda ] || return 1
  i=0
  while [ $i -lt 120 ]; do
    dd if=/dev/urandom of=/tmp/piece bs=64k count=4 2>/dev/null
    dd if=/tmp/piece of=/dev/vda bs=64k seek=$((i*4)) count=4 conv=fsync 2>/dev/null || return 2
    md5sum </tmp/piece >>/tmp/sums
    echo "GUEST_COUNT=$i"
    i=$((i+1))
  done
  echo 3 >/proc/sys/vm/drop_caches
  i=0
  while [ $i -lt 120 ]; do
    dd if=/dev/vda bs=64k skip=$((i*4)) count=4 2>/dev/null | md5sum >>/tmp/found || return 3
    i=$((i+1))
  done
  cmp /tmp/sums /tmp/found || return 4
  dmesg | grep -i 'i/o error' && return 5
  return 0
}
work; echo "GUEST_RC=$?"
sleep 0.2
reboot -f
"#;

#[test]
fn a_qemu_guest_with_its_disk_on_a_volume_rides_through_daemon_kills() -> Result<()> {
    let kernel = tools().join("kernel");
    let mut missing = Vec::new();
    let image = first_match(&kernel.join("boot"), "vmlinuz");
    if image.is_none() {
        missing.push("linux-image-cloud-amd64 (cargo x tools)".to_owned());
    }
    if skip_without(&["qemu-system-x86_64", "busybox", "cpio", "depmod"], false) || skip(&missing) {
        return Ok(());
    }
    let daemon = Daemon::start("qemu-guest")?;
    daemon.create("disk", "64M", &[])?;
    let initramfs = build_initramfs(&kernel, daemon.scratch())?;
    let console_path = daemon.scratch().join("console.txt");
    let console = std::fs::File::create(&console_path)?;
    let socket = daemon.socket().display().to_string();
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-M",
        "q35",
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-m",
        "512",
        "-nographic",
        "-nodefaults",
    ]);
    command.args(["-no-reboot", "-serial", "stdio", "-monitor", "none", "-net", "none"]);
    command.arg("-kernel").arg(image.context("a kernel")?).arg("-initrd").arg(&initramfs);
    command
        .args(["-append", "console=ttyS0 quiet loglevel=3 panic=-1 reboot=t random.trust_cpu=on"]);
    command.arg("-blockdev").arg(format!(
        "driver=nbd,node-name=d0,server.type=unix,server.path={socket},export=disk,reconnect-delay=60"
    ));
    command.args(["-device", "virtio-blk-pci,drive=d0,romfile="]);
    command.stdin(Stdio::null()).stdout(console.try_clone()?).stderr(console);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut guest = Guest(command.spawn()?);
    let said =
        || String::from_utf8_lossy(&std::fs::read(&console_path).unwrap_or_default()).into_owned();
    let count = || said().matches("GUEST_COUNT=").count();
    for kill in 0..3 {
        let before = count();
        wait_until("the guest to write", || count() >= before + 5 || said().contains("GUEST_RC"))
            .with_context(said)?;
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        println!("kill {kill} after {} writes", count());
    }
    wait_until("the guest to end", || said().contains("GUEST_RC=")).with_context(said)?;
    assert!(said().contains("GUEST_RC=0"), "{}", said());
    let _ = guest.0.wait();
    Ok(())
}

fn first_match(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    })
}

/// Builds an initramfs of busybox, the modules of a virtio disk, and [`QEMU_INIT`].
fn build_initramfs(kernel: &Path, scratch: &Path) -> Result<PathBuf> {
    let version_folder = first_match(&kernel.join("lib/modules"), "").context("no modules")?;
    let version = version_folder.file_name().context("a version")?.to_string_lossy().into_owned();
    Shell::new("depmod").arg("-b").arg(kernel).arg(&version).run()?;
    let root = scratch.join("initramfs");
    for folder in ["bin", "lib", "proc", "sys", "dev", "tmp"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::copy(find("busybox").context("busybox")?, root.join("bin/busybox"))?;
    let dependencies = std::fs::read_to_string(version_folder.join("modules.dep"))?;
    let mut wanted = Vec::new();
    for module in ["virtio_pci", "virtio_blk"] {
        add_module(&dependencies, &format!("/{module}.ko"), &mut wanted);
    }
    let mut list = String::new();
    for module in &wanted {
        let name =
            Path::new(module).file_name().context("a module")?.to_string_lossy().into_owned();
        std::fs::copy(version_folder.join(module), root.join("lib").join(&name))?;
        list.push_str(&name);
        list.push('\n');
    }
    std::fs::write(root.join("modules"), list)?;
    executable(&root.join("init"), QEMU_INIT)?;
    let archive = scratch.join("initramfs.cpio");
    Shell::script(&format!(
        "cd {} && find . | cpio -o -H newc --quiet >{}",
        root.display(),
        archive.display()
    ))
    .run()?;
    Ok(archive)
}

/// Adds a module to `wanted` after the modules that it needs: the order in which they can be
/// loaded.
fn add_module(dependencies: &str, suffix: &str, wanted: &mut Vec<String>) {
    let found = dependencies.lines().find_map(|line| {
        let (module, needs) = line.split_once(':')?;
        module.ends_with(suffix).then_some((module, needs))
    });
    let Some((module, needs)) = found else { return };
    if wanted.iter().any(|known| known == module) {
        return;
    }
    for need in needs.split_whitespace() {
        add_module(dependencies, need, wanted);
    }
    wanted.push(module.to_owned());
}
