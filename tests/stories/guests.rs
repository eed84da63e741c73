//! Real kernels ride through daemon kills without an I/O error: the kernel's own NBD client in a
//! user-mode Linux with a file system over two connections, and a QEMU guest with its disk on a
//! volume.
//!
//! Debian's `nbd-client -persist` cannot set the kernel's dead-connection timeout. Without that,
//! the kernel fails all queued requests as soon as no connection is left. So the device is made by
//! `rekindle map`, which sets it.

use anyhow::{Context, Result};
use e2e::guest::{self, Group, Guest, Namespace, executable};
use e2e::shell::{Shell, find, skip, skip_without, tools, wait_until};
use e2e::{Daemon, Options};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the user-mode guest does: files through the kernel's NBD client, all compared at the end.
const UML_WORK: &str = r"
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
}";

#[test]
fn the_kernel_nbd_client_rides_through_daemon_kills() -> Result<()> {
    if guest::skipped(&["mkfs.ext4"]) {
        return Ok(());
    }
    let namespace = Namespace::new("nbd")?;
    let options = Options {
        arguments: ["--nbd", "tcp:10.77.0.1:10809", "--insecure"].map(str::to_owned).to_vec(),
        prefix: namespace.words(),
        ..Options::default()
    };
    let daemon = Daemon::start_with("uml", options)?;
    daemon.create("disk", "256M", &[])?;
    let guest = Guest::boot(&namespace, daemon.scratch(), "nbd", UML_WORK)?;
    guest.goes_on(50)?;
    for kill in 0..3 {
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        println!("kill {kill} after {} files", guest.count());
        guest.goes_on(50)?;
    }
    std::fs::write(guest.out.join("stop"), "")?;
    guest.ends_well()?;
    println!("{} files written and verified by the kernel's own client", guest.count());
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
    let mut guest = Group(command.spawn()?);
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
