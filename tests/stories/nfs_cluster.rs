//! NFS in a cluster: a client comes to any host, and goes on when its volume moves, and when its
//! owner's host is lost.

use crate::cluster::{Hosts, NAMES};
use crate::forwarding::row;
use crate::nfs::{port, uri};
use anyhow::{Result, bail, ensure};
use e2e::mounted::{Mounted, skipped};
use e2e::shell::{Shell, wait_until};
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const UNHURT: &str = "a thread that holds it does not panic";

/// What happens to the volume while copies are made.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    /// All that was written stays.
    Orderly,
    /// What was written and not yet committed may go, of one copy. A client sends it again when
    /// COMMIT tells of another life of the server; libnfs does not look at that.
    Loss,
}

/// Copies a file in again and again by libnfs, and reads each copy back, while `break_it` runs and
/// until two more copies are whole. No program may see an error, and no copy that was whole may be
/// anything else afterwards.
fn amid(
    (source, bytes): (&Path, &[u8]),
    (port, name, trouble): (u16, &str, Trouble),
    break_it: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (is_over, whole) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let uri_of = |number: usize| uri(port, &format!("{name}-{number}"));
    let made = |number: usize| -> Result<()> {
        Shell::new("nfs-cp").arg(source).arg(uri_of(number)).run().map(drop)
    };
    let differs = |number: usize| -> Result<Option<String>> {
        let cat = Shell::new("nfs-cat").arg(uri_of(number)).output()?;
        ensure!(cat.status.success(), "nfs-cat: {}", String::from_utf8_lossy(&cat.stderr));
        let same = cat.stdout.iter().zip(bytes).take_while(|(read, wrote)| read == wrote).count();
        let (length, differs) = (cat.stdout.len(), cat.stdout != bytes);
        Ok(differs.then(|| format!("{name}-{number}: {length} bytes, the first {same} are right")))
    };
    let copy = || -> Result<()> {
        let mut is_spared = trouble == Trouble::Orderly;
        for number in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            made(number)?;
            if let Some(difference) = differs(number)? {
                ensure!(!is_spared, difference);
                println!("written when the host was lost: {difference}");
                is_spared = true;
            } else {
                whole.lock().expect(UNHURT).push(number);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let copying = scope.spawn(copy);
        std::thread::sleep(Duration::from_millis(1500));
        let broken = break_it();
        let before = whole.lock().expect(UNHURT).len();
        let goes_on = wait_until("another copy", || {
            whole.lock().expect(UNHURT).len() > before + 1 || copying.is_finished()
        });
        is_over.store(true, Ordering::Relaxed);
        copying.join().expect("it does not panic")?;
        broken.and(goes_on)
    })?;
    let whole = whole.into_inner()?;
    for &number in &whole {
        if let Some(difference) = differs(number)? {
            bail!("a copy that was whole is not any more: {difference}");
        }
    }
    println!("{} copies {name}", whole.len());
    Ok(())
}

#[test]
fn copies_go_on_through_another_host_when_the_volume_moves_and_its_owner_is_lost() -> Result<()> {
    if skipped(&["nfs-cp", "nfs-cat", "nfs-ls"]) {
        return Ok(());
    }
    let mut hosts = Hosts::new("nfs-far", 1)?;
    hosts.join(&["--nfs", "127.0.0.1:0"])?;
    hosts.wait_for_holder(0)?;
    hosts.wait_for_holder(1)?;
    hosts.hosts[0].cli(&["fs", "create", "home", "--copies", "1"])?;
    // The host that mounts first has the volume.
    Mounted::new(&hosts.hosts[0], "home")?.unmount()?;
    let (node, port) = (hosts.node(0)?, port(&hosts.hosts[1])?);
    let mut bytes = vec![0; 3_000_001];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let source = hosts.hosts[1].scratch().join("source");
    std::fs::write(&source, &bytes)?;
    let file = (&*source, &*bytes);
    amid(file, (port, "far", Trouble::Orderly), || {
        let shown = hosts.cluster(1)?;
        ensure!(row(&shown, "forwarded", "home")["name"] == "one", "{shown}");
        let shown = hosts.cluster(0)?;
        ensure!(row(&shown, "visitors", "home")["name"] == "two", "{shown}");
        Ok(())
    })?;
    for (from, to) in [(0, 1), (1, 0)] {
        amid(file, (port, NAMES[to], Trouble::Orderly), || {
            let moved = hosts.hosts[from].cli(&["volume", "move", "home", NAMES[to]])?;
            ensure!(moved["state"] == "done", "{moved}");
            Ok(())
        })?;
    }
    hosts.wait_for_holder(0)?;
    amid(file, (port, "lost", Trouble::Loss), || hosts.lose(0))?;
    hosts.wait_for_guest(1, &node)?;
    let listed = Shell::new("nfs-ls").arg(uri(port, "")).run()?;
    ensure!(["far-0", "two-0", "one-0", "lost-0"].iter().all(|name| listed.contains(name)));
    hosts.end(&[0])
}
