//! File volumes over NFS: the kernel's own client in a guest, and libnfs, see a file system like
//! any other, and a `kill -9` of the daemon as a stall.

use anyhow::{Context, Result, ensure};
use e2e::guest::{self, Guest, Namespace, STEPS, TREE};
use e2e::shell::{Shell, repository, skip_without};
use e2e::{Daemon, Options};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Starts a daemon that serves NFS, with a volume `home`, and returns it with the port.
fn start(name: &str, settings: &str) -> Result<(Daemon, u16)> {
    let options = Options::with_settings(name, settings, &["--nfs", "127.0.0.1:0"])?;
    let daemon = Daemon::start_with(name, options)?;
    daemon.cli(&["fs", "create", "home"])?;
    let port = port(&daemon)?;
    Ok((daemon, port))
}

/// The port, which stays as long as the supervisor lives.
pub fn port(daemon: &Daemon) -> Result<u16> {
    let endpoints = std::fs::read_to_string(daemon.dir.join("endpoints.json"))?;
    let endpoints: serde_json::Value = serde_json::from_str(&endpoints)?;
    let place = endpoints["nfs"][0].as_str().context("it serves NFS")?;
    Ok(place.rsplit(':').next().context("a port")?.parse()?)
}

fn kill(daemon: &Daemon) -> Result<()> {
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker).map(drop)
}

/// A volume's URI for libnfs.
pub fn uri(port: u16, path: &str) -> String {
    format!("nfs://127.0.0.1/home/{path}?version=3&nfsport={port}&mountport={port}")
}

#[test]
fn programs_with_libnfs_read_and_write_files() -> Result<()> {
    if skip_without(&["nfs-ls", "nfs-cp", "nfs-cat"], true) {
        return Ok(());
    }
    let (daemon, port) = start("libnfs", "")?;
    let (source, back) = (daemon.scratch().join("source"), daemon.scratch().join("back"));
    let mut bytes = vec![0; 5_000_001];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    std::fs::write(&source, &bytes)?;
    Shell::new("nfs-cp").arg(&source).arg(uri(port, "copy")).run()?;
    kill(&daemon)?;
    Shell::new("nfs-cp").arg(uri(port, "copy")).arg(&back).run()?;
    ensure!(std::fs::read(&back)? == bytes, "the copy has other bytes");
    let cat = Shell::new("nfs-cat").arg(uri(port, "copy")).output()?;
    ensure!(cat.stdout == bytes, "nfs-cat: {}", String::from_utf8_lossy(&cat.stderr));
    let listed = Shell::new("nfs-ls").arg(uri(port, "")).run()?;
    ensure!(listed.contains("copy") && listed.contains("5000001"), "{listed}");
    // `fs show` has the address, and the command for the kernel's client.
    let shown = Shell::new(e2e::daemon::binary()).args(["fs", "show", "home", "--dir"]);
    let shown = shown.arg(&daemon.dir).run()?;
    let options = format!("vers=3,tcp,nolock,port={port},mountport={port} 127.0.0.1:/home DIR");
    ensure!(shown.contains(&options) && shown.contains("nfs://127.0.0.1/home?"), "{shown}");
    let missing = Shell::new("nfs-cat").arg(uri(port, "missing")).output()?;
    ensure!(!missing.status.success());
    let metrics = daemon.get("/metrics")?;
    for counted in
        ["rekindle_nfs_calls_total ", "rekindle_nfs_read_bytes_total ", "rekindle_nfs_sessions "]
    {
        let line = metrics.lines().find(|line| line.starts_with(counted));
        ensure!(
            line.is_some_and(|line| counted.contains("sessions") || !line.ends_with(" 0")),
            "{counted}"
        );
    }
    Ok(())
}

#[test]
fn settings_of_exports_are_kept_to() -> Result<()> {
    if skip_without(&["nfs-ls", "nfs-cp"], true) {
        return Ok(());
    }
    let (daemon, port) = start("nfs-settings", "nfs_read_only = 'home'")?;
    let copy = Shell::new("nfs-cp").arg("/bin/true").arg(uri(port, "copy")).output()?;
    ensure!(!copy.status.success(), "the volume is read-only");
    Shell::new("nfs-ls").arg(uri(port, "")).run()?;
    drop(daemon);
    let (daemon, port) = start("nfs-squash", "nfs_squash = 'all'")?;
    let copy = Shell::new("nfs-cp").arg("/bin/true").arg(uri(port, "copy")).output()?;
    ensure!(!copy.status.success(), "root is anonymous, and the root directory is root's");
    drop(daemon);
    Ok(())
}

#[test]
fn a_client_that_speaks_no_nfs_harms_no_other() -> Result<()> {
    if skip_without(&["nfs-ls"], true) {
        return Ok(());
    }
    let (daemon, port) = start("nfs-hostile", "")?;
    let mut held = Vec::new();
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\xff\xff\xff\xff",
        b"\x80\x00\x00\x04\x00\x00\x00\x01",
        // It stops amid a call.
        b"\x80\x00\x10\x00\x00\x00\x00\x01",
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(bytes)?;
        if bytes.len() == 8 && bytes[2] == 0x10 {
            held.push(stream);
        } else {
            ensure!(stream.read(&mut [0; 64]).is_ok_and(|count| count == 0), "{bytes:?}");
        }
    }
    // A flood of calls without a handle, whose replies are not read.
    let mut flood = TcpStream::connect(("127.0.0.1", port))?;
    flood.set_write_timeout(Some(Duration::from_secs(2)))?;
    let words = [7_u32, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    let call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let record = [&(0x8000_0000 | call.len() as u32).to_be_bytes()[..], &call].concat();
    let many = record.repeat(10_000);
    for _ in 0..100 {
        if flood.write_all(&many).is_err() {
            break;
        }
    }
    held.push(flood);
    Shell::new("nfs-ls").arg(uri(port, "")).run()?;
    let worker = daemon.worker()?;
    let resident = resident_bytes(worker)?;
    ensure!(resident < 600 << 20, "the daemon has {resident} bytes");
    Ok(())
}

fn resident_bytes(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// How the guest mounts.
const AT: &str = r"
at() {
  mount -i -t nfs -o vers=3,nolock,proto=tcp,port=2049,mountport=2049,mountproto=tcp,addr=10.77.0.1 \
    10.77.0.1:/home /mnt
}
";

#[test]
fn the_kernel_nfs_client_rides_through_daemon_kills() -> Result<()> {
    if guest::skipped(&["diff", "setpriv"]) {
        return Ok(());
    }
    let namespace = Namespace::new("nfs")?;
    let options = Options::with_settings(
        "nfs-guest",
        "nfs_squash = 'none'",
        &["--nfs", "10.77.0.1:2049", "--insecure"],
    )?;
    let daemon = Daemon::start_with("nfs-guest", Options { prefix: namespace.words(), ..options })?;
    daemon.cli(&["fs", "create", "home"])?;
    let tree = repository().join("crates/file");
    let tree = TREE.replace("$U_TREE", &tree.display().to_string());
    let work = format!("{STEPS}{AT}{tree}");
    let guest = Guest::boot(&namespace, daemon.scratch(), "nfsv3", &work)?;
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
