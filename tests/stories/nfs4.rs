//! File volumes over NFS 4.1: the kernel's own client in a guest keeps its opens and locks over
//! `kill -9` of the daemon, and no client waits for a grace period.

use anyhow::{Result, ensure};
use e2e::guest::{self, Guest, LOCK, Namespace, STEPS, TREE};
use e2e::shell::repository;
use e2e::{Daemon, Options};

/// Starts a daemon that serves NFS at three ports, with a volume `home`.
fn start(name: &str, namespace: &Namespace) -> Result<Daemon> {
    let ports = ["10.77.0.1:2049", "10.77.0.1:2050", "10.77.0.1:2051"];
    let places: Vec<_> = ports.iter().flat_map(|port| ["--nfs", port]).collect();
    let options = [&places[..], &["--insecure"]].concat();
    let options = Options::with_settings(name, "nfs_squash = 'none'", &options)?;
    let daemon = Daemon::start_with(name, Options { prefix: namespace.words(), ..options })?;
    daemon.cli(&["fs", "create", "home"])?;
    Ok(daemon)
}

fn kill(daemon: &Daemon) -> Result<()> {
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker).map(drop)
}

/// What all guests have: a mount.
const TOOLS: &str = r"
at() {
  mount -i -t nfs4 -o vers=4.1,proto=tcp,port=$1,addr=10.77.0.1,clientaddr=10.77.0.2 \
    10.77.0.1:/home $2
}
";

/// Boots a guest that does some work.
fn boot(namespace: &Namespace, daemon: &Daemon, work: &str) -> Result<Guest> {
    let tree = repository().join("crates/file");
    let work = work.replace("$U_TREE", &tree.display().to_string());
    Guest::boot(namespace, daemon.scratch(), "nfsv4", &format!("{STEPS}{LOCK}{TOOLS}{work}"))
}

#[test]
fn the_kernel_client_of_version_4_1_rides_through_daemon_kills() -> Result<()> {
    if guest::skipped(&["diff", "setpriv"]) {
        return Ok(());
    }
    let namespace = Namespace::new("nfs4")?;
    let daemon = start("nfs4-guest", &namespace)?;
    let guest = boot(&namespace, &daemon, TREE)?;
    guest.goes_on(3)?;
    for round in 0..4 {
        kill(&daemon)?;
        println!("kill {round} after {} steps", guest.count());
        guest.goes_on(6)?;
    }
    std::fs::write(guest.out.join("stop"), "")?;
    guest.ends_well()?;
    println!("{} steps of the kernel's own client", guest.count());
    Ok(())
}

/// Two clients, since the name of the machine changes between the mounts, which have a port each.
/// One holds a range locked, and a file open that has no name any more. The other one tries to get
/// the range, gets the next one, and makes and opens files. A third client comes after each kill.
const LOCKS: &str = r#"
work() {
  mkdir /mnt/a /mnt/b /mnt/c
  hostname first && at 2049 /mnt/a || return 1
  hostname second && at 2050 /mnt/b || return 2
  echo bytes >/mnt/a/f && echo more >/mnt/a/gone || return 3
  exec 5</mnt/a/gone
  rm /mnt/b/gone || return 4
  lock /mnt/a/f 0 10 /run/out/release & holder=$!
  while [ ! -e /run/out/locked ]; do sleep 0.1; done
  while [ ! -e /run/out/stop ]; do
    lock /mnt/b/f 5 10
    [ $? = 3 ] || return 5
    lock /mnt/b/f 10 10 || return 7
    echo $i >/mnt/b/new$i && [ $(cat /mnt/a/new$i) = $i ] || return 8
    if [ -e /run/out/stranger ]; then
      hostname third$i && at 2051 /mnt/c || return 9
      echo stranger >/mnt/c/stranger$i || return 10
      umount /mnt/c || return 11
      rm /run/out/stranger
    fi
    step
    sleep 0.1
  done
  lock /mnt/b/f 0 1
  [ $? = 3 ] || return 12
  touch /run/out/release
  wait $holder || return 13
  lock /mnt/b/f 0 10 || return 14
  echo 3 >/proc/sys/vm/drop_caches
  [ "$(cat <&5)" = more ] || return 15
  exec 5<&-
  umount /mnt/a /mnt/b || return 16
  dmesg | grep -iE 'i/o error|reclaim|recovery failed|lost' && return 17
  return 0
}"#;

#[test]
fn locks_of_a_kernel_client_exclude_others_over_daemon_kills() -> Result<()> {
    if guest::skipped(&["perl"]) {
        return Ok(());
    }
    let namespace = Namespace::new("nfs4-locks")?;
    let daemon = start("nfs4-locks", &namespace)?;
    let guest = boot(&namespace, &daemon, LOCKS)?;
    guest.goes_on(2)?;
    let stranger = guest.out.join("stranger");
    for round in 0..4 {
        kill(&daemon)?;
        std::fs::write(&stranger, "")?;
        println!("kill {round} after {} steps", guest.count());
        guest.goes_on(3)?;
        ensure!(!stranger.exists(), "the stranger has not come: {}", guest.said());
    }
    std::fs::write(guest.out.join("stop"), "")?;
    guest.ends_well()?;
    println!("{} steps of two clients", guest.count());
    Ok(())
}
