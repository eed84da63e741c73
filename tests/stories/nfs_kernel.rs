//! NFS in a cluster with the kernel's own client: a guest mounts at host two, while host one owns
//! the volume. No program in it sees an error when the volume moves, when its owner's host stands
//! still, and when that host is lost, nor when its own host's daemon is killed: what was synced is
//! right, and locks are held.

use crate::cluster::{Hosts, NAMES};
use crate::forwarding::row;
use crate::lives::Shared;
use anyhow::{Context, Result, ensure};
use e2e::guest::{self, Guest, LOCK, Namespace, STEPS, TREE};
use e2e::mounted::Mounted;
use e2e::shell::{repository, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Mounts at one of the ports. Each port is another server in the eyes of the kernel, so each mount
/// has caches of its own.
const AT_3: &str = r"
at() {
  mount -i -t nfs -o vers=3,nolock,proto=tcp,port=$1,mountport=$1,mountproto=tcp,addr=10.77.0.1 \
    10.77.0.1:/home $2
}
";
const AT_4: &str = r"
at() {
  mount -i -t nfs4 -o vers=4.1,proto=tcp,port=$1,addr=10.77.0.1,clientaddr=10.77.0.2 \
    10.77.0.1:/home $2
}
";

/// A program that writes a file again and again. Much of that is sent to the server at once, and
/// asked to be stable only later: what the server has lost by then, the kernel must send again.
const BYTES: &str = r#"
bytes() {
  mkdir /tmp/w && at 2050 /tmp/w || return 30
  perl -MIO::Handle -e '
    my ($name, $end) = @ARGV;
    my ($size, $count, @last) = (65536, 128);
    open(my $f, "+>", $name) or exit 31;
    for (my $n = 0; ! -e $end; $n++) {
      my $place = $n % $count;
      defined(sysseek($f, $place * $size, 0)) or exit 32;
      syswrite($f, pack("N", $n) x ($size / 4)) == $size or exit 33;
      $last[$place] = $n;
      # sync_file_range: written, and not synced.
      if ($n % 8 == 7) { syscall(277, fileno($f), 0, 0, 2) == 0 or exit 34 }
      if ($n % 64 == 63) { $f->sync or exit 35 }
      if ($n % 16 == 15) { open(my $o, ">", "/run/out/bytes"); print $o $n; close($o) }
      select(undef, undef, undef, 0.02);
    }
    $f->sync or exit 36;
    close($f) or exit 37;
    # Read anew.
    open(my $c, ">", "/proc/sys/vm/drop_caches"); print $c "3\n"; close($c);
    open($f, "<", $name) or exit 38;
    for my $place (0 .. $#last) {
      sysread($f, my $read, $size) == $size or exit 39;
      next if $read eq pack("N", $last[$place]) x ($size / 4);
      print "place $place has ", unpack("N", $read), ", and not $last[$place]\n";
      exit 40;
    }' /tmp/w/bytes /run/out/stop || return $?
  umount /tmp/w || return 41
}
"#;

/// Two clients of version 4.1: one holds a range locked, and a file open that the other one has
/// removed. The other one does not get the range, and gets the next one.
const LOCKS: &str = r#"
locks() {
  mkdir /tmp/a /tmp/b
  hostname first && at 2051 /tmp/a || return 50
  hostname second && at 2052 /tmp/b || return 51
  echo bytes >/tmp/a/f && echo more >/tmp/a/gone || return 52
  exec 5</tmp/a/gone
  rm /tmp/b/gone || return 53
  lock /tmp/a/f 0 10 /run/out/release & holder=$!
  while [ ! -e /run/out/locked ]; do sleep 0.1; done
  n=0
  while [ ! -e /run/out/stop ]; do
    lock /tmp/b/f 5 10
    [ $? = 3 ] || return 54
    lock /tmp/b/f 10 10 || return 55
    n=$((n+1))
    echo $n >/run/out/locks
    sleep 0.1
  done
  touch /run/out/release
  wait $holder || return 56
  lock /tmp/b/f 0 10 || return 57
  echo 3 >/proc/sys/vm/drop_caches
  [ "$(cat <&5)" = more ] || return 58
  exec 5<&-
  [ "$(head -c 5 /tmp/b/f)" = still ] || return 59
  umount /tmp/a /tmp/b || return 60
}
"#;

/// The work of the kernel's client: all of that at once.
fn work(version: u32) -> String {
    let (at, locks, begun) = match version {
        3 => (AT_3, "locks() { return 0; }", ""),
        // Names of machines change while the locks begin.
        _ => (AT_4, LOCKS, "while [ ! -e /run/out/locked ]; do sleep 0.1; done"),
    };
    let tree = TREE.replace("$U_TREE", &repository().join("crates/file").display().to_string());
    let tree = tree.replace("work()", "tree()");
    let all = format!(
        r"
work() {{
  locks & locks=$!
  {begun}
  bytes & bytes=$!
  tree || return $?
  wait $bytes || return $?
  wait $locks || return $?
  dmesg | grep -iE 'i/o error|reclaim|recovery failed|lost' && return 70
  return 0
}}"
    );
    [STEPS, LOCK, at, BYTES, locks, &tree, &all].concat()
}

/// A cluster whose second host serves a guest, and whose first one owns the volume.
struct Scene {
    hosts: Hosts,
    guest: Guest,
    version: u32,
    _namespace: Namespace,
}

impl Scene {
    fn new(name: &str, version: u32) -> Result<Self> {
        let namespace = Namespace::new(name)?;
        let shared = Shared::with_settings(name, "nfs_squash = 'none'")?;
        let mut hosts = Hosts::inside(shared, name, namespace.words())?;
        let ports = ["10.77.0.1:2049", "10.77.0.1:2050", "10.77.0.1:2051", "10.77.0.1:2052"];
        let places: Vec<_> = ports.iter().flat_map(|port| ["--nfs", port]).collect();
        hosts.join(&[&places[..], &["--insecure"]].concat())?;
        hosts.wait_for_holder(0)?;
        hosts.wait_for_holder(1)?;
        hosts.hosts[0].cli(&["fs", "create", "home", "--copies", "1"])?;
        // The host that mounts first has the volume.
        Mounted::new(&hosts.hosts[0], "home")?.unmount()?;
        let modules = if version == 3 { "nfsv3" } else { "nfsv4" };
        let scratch = hosts.hosts[1].scratch();
        let guest = Guest::boot(&namespace, scratch, modules, &work(version))?;
        let scene = Self { hosts, guest, version, _namespace: namespace };
        scene.goes_on("at first")?;
        let shown = scene.hosts.cluster(1)?;
        ensure!(row(&shown, "forwarded", "home")["name"] == "one", "{shown}");
        let shown = scene.hosts.cluster(0)?;
        ensure!(row(&shown, "visitors", "home")["name"] == "two", "{shown}");
        Ok(scene)
    }

    /// Waits until each part of the work has gone on, or all has ended.
    fn goes_on(&self, when: &str) -> Result<()> {
        let count = |name: &str| self.guest.read(name).trim().parse::<u64>().unwrap_or(0);
        let names =
            if self.version == 3 { &["count", "bytes"][..] } else { &["count", "bytes", "locks"] };
        let before: Vec<_> = names.iter().map(|name| count(name)).collect();
        for (name, before) in names.iter().zip(before) {
            let is_there = || count(name) > before + 3 || !self.guest.read("rc").is_empty();
            let waited = wait_until(name, is_there);
            waited.with_context(|| format!("{when}: {}", self.guest.said()))?;
            println!("{when}: {name} is at {}", count(name));
        }
        Ok(())
    }

    fn moves(&self, from: usize, to: usize) -> Result<()> {
        let moved = self.hosts.hosts[from].cli(&["volume", "move", "home", NAMES[to]])?;
        ensure!(moved["state"] == "done", "{moved}");
        self.goes_on(&format!("moved to {}", NAMES[to]))
    }

    /// Kills the daemon at the client's host, while host one has the volume.
    fn kills_the_clients_host(&self) -> Result<()> {
        let daemon = &self.hosts.hosts[1];
        let worker = daemon.worker()?;
        daemon.kill_worker()?;
        daemon.wait_for_worker_after(worker)?;
        self.goes_on("the client's host was killed")
    }

    /// Loses host one, and ends the work.
    fn end(mut self) -> Result<()> {
        self.hosts.wait_for_holder(0)?;
        let node = self.hosts.node(0)?;
        self.hosts.lose(0)?;
        self.hosts.wait_for_guest(1, &node)?;
        self.goes_on("lost")?;
        std::fs::write(self.guest.out.join("stop"), "")?;
        self.guest.ends_well()?;
        println!("{} steps of the kernel's own client", self.guest.count());
        self.hosts.end(&[0])
    }
}

fn moves_and_a_loss(name: &str, version: u32) -> Result<()> {
    if guest::skipped(&["diff", "setpriv", "perl"]) || e2e::mounted::skipped(&[]) {
        return Ok(());
    }
    let scene = Scene::new(name, version)?;
    scene.moves(0, 1)?;
    scene.moves(1, 0)?;
    for _ in 0..2 {
        scene.kills_the_clients_host()?;
    }
    scene.end()
}

#[test]
fn the_kernel_client_of_version_3_goes_on_over_moves_and_the_loss_of_its_owners_host() -> Result<()>
{
    moves_and_a_loss("nfsk3", 3)
}

#[test]
fn the_kernel_client_of_version_4_1_goes_on_over_moves_and_the_loss_of_its_owners_host()
-> Result<()> {
    moves_and_a_loss("nfsk4", 4)
}

#[test]
fn the_kernel_client_goes_on_when_its_owners_host_stands_still() -> Result<()> {
    if guest::skipped(&["diff", "setpriv", "perl"]) || e2e::mounted::skipped(&[]) {
        return Ok(());
    }
    let scene = Scene::new("nfsk-still", 4)?;
    let (node, worker) = (scene.hosts.node(0)?, scene.hosts.hosts[0].worker()?);
    let worker = Pid::from_raw(i32::try_from(worker)?).context("a pid")?;
    kill_process(worker, Signal::STOP)?;
    let taken = scene.hosts.wait_for_guest(1, &node);
    let went_on = scene.goes_on("one stands still");
    kill_process(worker, Signal::CONT)?;
    taken?;
    went_on?;
    // The host is back, as a new node, and gets the volume again.
    wait_until("the host to be a new node", || scene.hosts.node(0).is_ok_and(|now| now != node))?;
    scene.hosts.wait_for_holder(1)?;
    scene.moves(1, 0)?;
    scene.end()
}
