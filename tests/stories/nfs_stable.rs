//! The write verifier of NFS: a client sends again what it has not made stable when that has
//! changed. It changes where unstable writes may be lost, and stays where none are.

use crate::cluster::{Hosts, NAMES};
use crate::lives::Shared;
use crate::nfs::port;
use anyhow::{Context, Result, ensure};
use e2e::{Daemon, Options};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const CREATE: u32 = 8;
const WRITE: u32 = 7;
const COMMIT: u32 = 21;
/// Settings of a daemon whose clients may be any program of this machine.
const OPEN: &str = "nfs_any_port = 'on'\nnfs_squash = 'none'";

/// The arguments of a call.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn word(mut self, word: u32) -> Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn words(self, words: &[u32]) -> Self {
        words.iter().fold(self, |this, word| this.word(*word))
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let mut this = self.word(bytes.len() as u32);
        this.0.extend(bytes);
        this.0.resize(this.0.len().next_multiple_of(4), 0);
        this
    }
}

/// Calls a procedure, and returns what follows its status of success. A daemon that is on its way
/// is waited for.
fn call(port: u16, (program, procedure): (u32, u32), args: &Words) -> Result<Vec<u8>> {
    let head = Words::default().words(&[7, 0, 2, program, 3, procedure, 1]);
    // AUTH_SYS: a stamp, a machine, root.
    let credentials = Words::default().word(1).bytes(b"story").words(&[0, 0, 0]);
    let call = [head.bytes(&credentials.0).words(&[0, 0]).0, args.0.clone()].concat();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(&(0x8000_0000 | call.len() as u32).to_be_bytes())?;
    stream.write_all(&call)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut reply = vec![0; (u32::from_be_bytes(length) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut reply)?;
    // The reply's head, and the status of the call.
    let (head, rest) = reply.split_at_checked(28).context("a short reply")?;
    ensure!(head[8..28].iter().all(|byte| *byte == 0), "refused: {head:?} {rest:?}");
    Ok(rest.to_vec())
}

/// A file that a client of a port writes.
struct Open {
    port: u16,
    handle: Vec<u8>,
}

impl Open {
    fn new(port: u16, name: &str) -> Result<Self> {
        let root = call(port, (MOUNT, 1), &Words::default().bytes(b"/home"))?;
        let root = root.get(4..40).context("a handle")?.to_vec();
        // Unchecked, with a mode and nothing else.
        let args = Words::default().bytes(&root).bytes(name.as_bytes());
        let made = call(port, (NFS, CREATE), &args.words(&[0, 1, 0o644, 0, 0, 0, 0, 0]))?;
        Ok(Self { port, handle: made.get(8..44).context("a handle")?.to_vec() })
    }

    /// The same file by way of another port.
    fn at(&self, port: u16) -> Self {
        Self { port, handle: self.handle.clone() }
    }

    /// Writes bytes that need not be stable. Returns the verifier.
    fn write(&self, offset: u32, bytes: &[u8]) -> Result<Vec<u8>> {
        let args = Words::default().bytes(&self.handle).words(&[0, offset, bytes.len() as u32, 0]);
        verifier(&call(self.port, (NFS, WRITE), &args.bytes(bytes))?)
    }

    fn commit(&self) -> Result<Vec<u8>> {
        let args = Words::default().bytes(&self.handle).words(&[0, 0, 0]);
        verifier(&call(self.port, (NFS, COMMIT), &args)?)
    }
}

/// The verifier ends both replies.
fn verifier(reply: &[u8]) -> Result<Vec<u8>> {
    Ok(reply.last_chunk::<8>().context("a verifier")?.to_vec())
}

#[test]
fn a_stop_in_good_order_keeps_unstable_writes_and_a_kill_may_not() -> Result<()> {
    let options = Options::with_settings("nfs-stable", OPEN, &["--nfs", "127.0.0.1:0"])?;
    let mut daemon = Daemon::start_with("nfs-stable", options)?;
    daemon.cli(&["fs", "create", "home"])?;
    let file = Open::new(port(&daemon)?, "f")?;
    let first = file.write(0, b"unstable")?;
    ensure!(file.commit()? == first, "one life has one verifier");
    let mut file = file;
    for _ in 0..2 {
        file.write(0, b"unstable once more")?;
        daemon.stop()?;
        daemon.up()?;
        file = file.at(port(&daemon)?);
        let commit = file.commit()?;
        ensure!(commit == first, "nothing was lost: {first:?}, {commit:?}");
    }
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker)?;
    let killed = file.commit()?;
    ensure!(killed != first, "what was not stable may be lost");
    // And from there on.
    file.write(0, b"unstable")?;
    daemon.stop()?;
    daemon.up()?;
    ensure!(file.at(port(&daemon)?).commit()? == killed);
    daemon.stop()
}

#[test]
fn a_planned_move_keeps_unstable_writes_and_the_loss_of_a_host_may_not() -> Result<()> {
    let shared = Shared::with_settings("nfs-stable-moves", OPEN)?;
    let mut hosts = Hosts::over(shared, "nfs-stable-moves", 1, None)?;
    for _ in 0..2 {
        hosts.join(&["--nfs", "127.0.0.1:0"])?;
    }
    hosts.hosts[1].cli(&["fs", "create", "home", "--copies", "1"])?;
    let ports = [port(&hosts.hosts[1])?, port(&hosts.hosts[2])?];
    hosts.wait_for_holder(1)?;
    hosts.wait_for_holder(2)?;
    let file = Open::new(ports[0], "f")?;
    let first = file.write(0, b"unstable")?;
    for (from, to) in [(1, 2), (2, 1)] {
        file.write(0, b"unstable")?;
        hosts.hosts[from].cli(&["volume", "move", "home", NAMES[to]])?;
        for port in ports {
            let commit = file.at(port).commit()?;
            ensure!(commit == first, "at {}: {first:?}, {commit:?}", NAMES[to]);
        }
    }
    hosts.hosts[1].cli(&["volume", "set", "home", "--on-missing-copy", "stall"])?;
    ensure!(file.commit()? == first, "other settings lose nothing");
    hosts.wait_for_holder(1)?;
    hosts.lose(1)?;
    ensure!(file.at(ports[1]).commit()? != first, "what was not copied is lost");
    hosts.end(&[1])
}
