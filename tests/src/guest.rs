//! A user-mode Linux guest: a real kernel's clients, as a process of this machine. Its root is
//! this machine's, read-only; `/tmp`, `/run` and `/mnt` are its own, `/run/out` is a folder of the
//! story.

use crate::shell::{Shell, repository, skip, skip_without, tools, wait_until};
use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The count of the steps of a guest's work.
pub const STEPS: &str = r"
step() { i=$((i+1)); echo $i >/run/out/count; }
i=0
";

/// A step of a guest's work: `lock FILE START LENGTH [RELEASE]` locks a range of bytes; 3: another
/// program has it. With a fourth word it says so in `/run/out/locked`, holds the range until that
/// file exists, and then writes to the file, which is open still.
pub const LOCK: &str = r#"
lock() {
  perl -MFcntl -e '
    open(my $f, "+<", $ARGV[0]) or exit 2;
    fcntl($f, F_SETLK, pack("s s x4 q q i x4", F_WRLCK, 0, $ARGV[1], $ARGV[2], 0)) or exit 3;
    if ($ARGV[3]) { open(my $o, ">", "/run/out/locked"); close($o);
      while (! -e $ARGV[3]) { select(undef, undef, undef, 0.1) }
      # The file is open still.
      syswrite($f, "still") == 5 or exit 4; }
    close($f) or exit 5;
    exit 0;' "$@"
}
"#;

/// Work of a guest that has [`STEPS`], and mounts by `at PORT DIR`: it copies a tree in, works on
/// names meanwhile, and compares all at the end, read anew.
pub const TREE: &str = r"
work() {
  at 2049 /mnt || return 1
  cp -a $U_TREE /tmp/tree || return 2
  round=0
  while [ ! -e /run/out/stop ] && [ $round -lt 200 ]; do
    d=/mnt/r$round
    mkdir $d || return 3
    cp -a /tmp/tree $d/tree || return 4
    step
    for n in 1 2 3 4 5 6 7 8 9 10; do
      echo $round.$n >$d/f || return 5
      mv $d/f $d/g$n || return 6
      ln $d/g$n $d/h$n || return 7
      ln -s g$n $d/s$n || return 8
      [ $(cat $d/s$n) = $round.$n ] || return 9
      rm $d/h$n || return 10
      mkfifo $d/p$n || return 11
      mkdir $d/d$n && rmdir $d/d$n || return 12
      step
    done
    dd if=/dev/urandom of=/tmp/big bs=1M count=4 2>/dev/null
    cp /tmp/big $d/big && sync $d/big || return 13
    md5sum </tmp/big >/tmp/sum$round
    step
    round=$((round+1))
  done
  umount /mnt || return 14
  at 2049 /mnt || return 15
  r=0
  while [ $r -lt $round ]; do
    d=/mnt/r$r
    diff -r --no-dereference /tmp/tree $d/tree || return 16
    md5sum <$d/big | cmp - /tmp/sum$r || return 17
    [ $(ls $d | wc -l) = 32 ] || return 18
    r=$((r+1))
  done
  chmod 700 /mnt/r0 && touch /mnt/r0/x && chown 1000:1000 /mnt/r0/x || return 19
  setpriv --reuid 1000 --regid 1000 --clear-groups cat /mnt/r0/x 2>/dev/null && return 20
  rm -r /mnt/r0 || return 21
  umount /mnt || return 22
  dmesg | grep -iE 'i/o error|reclaim|recovery failed' && return 23
  return 0
}";

/// A network namespace with a tap device for a guest, at 10.77.0.1; the guest is 10.77.0.2. Deleted
/// on drop.
pub struct Namespace(pub String);

impl Namespace {
    /// Makes a namespace; `story` tells those of one process apart.
    pub fn new(story: &str) -> Result<Self> {
        let namespace = Self(format!("rekindle-{story}-{}", std::process::id()));
        let name = &namespace.0;
        Shell::script(&format!(
            "ip netns add {name}; ip -n {name} link set lo up; ip -n {name} tuntap add tap0 mode tap; \
             ip -n {name} addr add 10.77.0.1/24 dev tap0; ip -n {name} link set tap0 up"
        ))
        .run()?;
        Ok(namespace)
    }

    /// Returns the words that run a program inside.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        ["ip", "netns", "exec", &self.0].map(str::to_owned).to_vec()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Shell::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// A process with its whole group, killed on drop.
pub struct Group(pub Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A running guest.
pub struct Guest {
    _process: Group,
    /// The folder that the guest has as `/run/out`.
    pub out: PathBuf,
    console: PathBuf,
}

/// Writes a script that can be run.
pub fn executable(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Whether a story with a guest cannot run here: without root, the kernel or these programs.
#[must_use]
pub fn skipped(programs: &[&str]) -> bool {
    let mut missing = Vec::new();
    if !tools().join("uml/usr/bin/linux.uml").is_file() {
        missing.push("user-mode-linux (cargo x tools)".to_owned());
    }
    skip_without(&[&["ip", "cc"], programs].concat(), true) || skip(&missing)
}

/// What each guest does around the story's own work: the function `work` of the script.
const INIT: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc p /proc; mount -t sysfs s /sys
for d in /tmp /run /mnt; do mount -t tmpfs t $d; done
mkdir -p /run/out /run/uml
mount -t hostfs none /run/uml -o "$U_DIR"; mount -t hostfs none /run/out -o "$U_OUT"
ip link set lo up; ip addr add 10.77.0.2/24 dev vec0; ip link set vec0 up
for module in MODULES; do modprobe -d /run/uml $module; done
WORK
work >/run/out/log 2>&1; echo $? >/run/out/rc
poweroff -f 2>/dev/null || echo o >/proc/sysrq-trigger; sleep 5
"#;

impl Guest {
    /// Boots a guest that runs the shell function `work`, with files in `scratch`.
    pub fn boot(namespace: &Namespace, scratch: &Path, modules: &str, work: &str) -> Result<Self> {
        let uml = tools().join("uml");
        let (out, init) = (scratch.join("out"), scratch.join("init"));
        std::fs::create_dir_all(&out)?;
        executable(&init, &INIT.replace("MODULES", modules).replace("WORK", work))?;
        let modules = uml.join("lib/modules");
        if !modules.exists() {
            std::fs::create_dir_all(uml.join("lib"))?;
            std::os::unix::fs::symlink("../usr/lib/uml/modules", &modules)?;
        }
        let console = scratch.join("console.txt");
        let words = namespace.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(uml.join("usr/bin/linux.uml"));
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
        command.arg(format!("uml_dir={}/", scratch.display()));
        command.arg(format!("U_DIR={}", uml.display())).arg(format!("U_OUT={}", out.display()));
        // The binary goes beside the guest's output: the guest hides the folders for temporary
        // files, where the checkout may be.
        std::fs::copy(crate::daemon::binary(), out.join("rekindle"))?;
        command.env("TMPDIR", "/dev/shm").stdin(Stdio::null());
        if std::fs::read_to_string("/proc/cpuinfo")?.contains(" amx_tile") {
            let (source, library) = ("tests/fixtures/xstate.c", scratch.join("xstate.so"));
            let compile = Shell::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library);
            compile.arg(repository().join(source)).run()?;
            command.env("LD_PRELOAD", library);
        }
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let file = std::fs::File::create(&console)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Self { _process: Group(command.spawn()?), out, console })
    }

    /// Returns a file that the guest has written.
    #[must_use]
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.out.join(name)).unwrap_or_default()
    }

    /// Returns the number in the file `count`.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.read("count").trim().parse().unwrap_or(0)
    }

    /// Returns what the guest has said.
    #[must_use]
    pub fn said(&self) -> String {
        let console = std::fs::read_to_string(&self.console).unwrap_or_default();
        format!("guest log: {}\nconsole: {console}", self.read("log"))
    }

    /// Waits until the guest has counted so much further, or has ended.
    pub fn goes_on(&self, more: u64) -> Result<()> {
        let before = self.count();
        let is_there = || self.count() >= before + more || !self.read("rc").is_empty();
        wait_until("the guest to go on", is_there).with_context(|| self.said())
    }

    /// Waits for the end of the guest's work, which must be well.
    pub fn ends_well(&self) -> Result<()> {
        wait_until("the guest to end", || !self.read("rc").is_empty())
            .with_context(|| self.said())?;
        anyhow::ensure!(self.read("rc").trim() == "0", "{}", self.said());
        Ok(())
    }
}
