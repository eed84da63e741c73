//! One folder is one node: a copy of it, or a restored backup, never serves beside the original,
//! and no memory of an older time is believed.

use anyhow::{Context, Result, ensure};
use e2e::daemon::scratch;
use e2e::promises::Promises;
use e2e::random::for_story;
use e2e::shell::{PATIENCE, Shell, wait_until};
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::path::{Path, PathBuf};
use std::time::Instant;

const BLOCK: usize = 4096;
pub(crate) const BLOCKS: u64 = 512;

/// A store of its own beside the node's folder, so that copies of the folder share it. It is filled
/// by drains only.
pub(crate) struct Shared(PathBuf);

impl Shared {
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::with_settings(name, "")
    }

    /// The same, with further settings.
    pub(crate) fn with_settings(name: &str, settings: &str) -> Result<Self> {
        let folder = scratch(&format!("{name}-shared"))?;
        let settings = format!("{settings}\n[destage]\nage = '1h'\n");
        std::fs::write(folder.join("settings.toml"), settings)?;
        Ok(Self(folder))
    }

    pub(crate) fn options(&self, dir: Option<&Path>, more: &[&str]) -> Options {
        let mut arguments = vec![
            "--store".to_owned(),
            format!("file://{}", self.0.join("store").display()),
            "--config".to_owned(),
            self.0.join("settings.toml").display().to_string(),
        ];
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        Options { arguments, dir: dir.map(Path::to_owned), ..Options::default() }
    }

    pub(crate) fn remove(self) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.0)?)
    }
}

/// Copies a node's folder as a user would, but without the file that names the sockets of the
/// original daemon.
fn copy(from: &Path, to: &Path) -> Result<()> {
    Shell::new("cp").arg("-a").arg(from).arg(to).run()?;
    let _ = std::fs::remove_file(to.join("endpoints.json"));
    Ok(())
}

/// Builds the bytes of a block in a round of writes.
pub(crate) fn content(round: u64, block: u64) -> Vec<u8> {
    Random::new(round << 32 | block).bytes(BLOCK)
}

pub(crate) fn fill(
    daemon: &Daemon,
    volume: &str,
    round: u64,
    blocks: std::ops::Range<u64>,
) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), volume)?;
    for block in blocks {
        client.write(block * BLOCK as u64, &content(round, block))?;
    }
    Ok(client.flush()?)
}

pub(crate) fn check(
    daemon: &Daemon,
    volume: &str,
    round: u64,
    blocks: std::ops::Range<u64>,
) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), volume)?;
    for block in blocks {
        let found = client.read(block * BLOCK as u64, BLOCK)?;
        let rounds: Vec<u64> = (0..8).filter(|other| found == content(*other, block)).collect();
        ensure!(rounds == [round], "block {block} is not of round {round}, but of {rounds:?}");
    }
    Ok(())
}

/// Returns the error of a start that must be refused.
fn refused(name: &str, options: Options) -> Result<String> {
    let refused = Daemon::start_with(name, options).err().context("it was started")?;
    Ok(format!("{refused:#}"))
}

/// Writes until the server hangs up. An error in a reply is a failure, and so is a server that goes
/// on acknowledging.
fn write_to_the_end(daemon: &Daemon, volume: &str, promises: &mut Promises) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), volume)?;
    let end = Instant::now() + PATIENCE;
    let mut late = false;
    promises.write_until(&mut client, 16, &mut for_story(volume), |_| {
        late = Instant::now() > end;
        late
    })?;
    ensure!(!late, "volume '{volume}' goes on acknowledging");
    Ok(())
}

/// Checks that an original that was replaced while a client writes says so everywhere, and serves
/// no client.
fn is_deposed(daemon: &Daemon) -> Result<()> {
    let why = "another copy of this folder was started as the same node";
    wait_until("the original to know", || {
        daemon.status().is_ok_and(|status| status["state"] == "fenced")
    })?;
    let status = daemon.status()?;
    ensure!(status["health"]["state"] == "failing", "{status}");
    ensure!(status["health"]["reasons"].to_string().contains(why), "{status}");
    let health = daemon.get("/healthz")?;
    ensure!(health.starts_with("HTTP/1.1 503") && health.contains(why), "{health}");
    let metrics = daemon.get("/metrics")?;
    ensure!(metrics.contains("rekindle_health{state=\"failing\"} 1"), "{metrics}");
    wait_until("it to be said", || daemon.trace().contains(why))?;
    let told = daemon.cli(&["volume", "ls"]).err().context("it lists volumes")?;
    ensure!(format!("{told:#}").contains("--take-identity"), "{told:#}");
    ensure!(status["clients"] == 0, "a new client waits, and is not greeted: {status}");
    Ok(())
}

#[test]
fn a_copied_folder_is_refused_and_with_permission_the_original_is_deposed() -> Result<()> {
    let shared = Shared::new("lives-copied")?;
    let mut first = Daemon::start_with("lives-first", shared.options(None, &[]))?;
    first.create("disk", "16M", &[])?;
    let mut promises = Promises::new(BLOCKS);
    let mut random = for_story("lives");
    let mut client = NbdClient::connect(&first.socket(), "disk")?;
    promises.write_until(&mut client, 16, &mut random, |sent| sent >= 2000)?;
    drop(client);
    first.drain("disk")?;
    let drained = promises.sent();
    first.stop()?;
    let twin = shared.0.join("twin");
    copy(&first.dir, &twin)?;
    first.up()?;
    let said = refused("lives-second", shared.options(Some(&twin), &[]))?;
    for word in ["another copy of this folder was started", "--take-identity"] {
        ensure!(said.contains(word), "{word}: {said}");
    }

    // These are more writes than the copy will make: no checkpoint of it reaches the end of what
    // only the original has.
    let mut client = NbdClient::connect(&first.socket(), "disk")?;
    let ahead = drained + 4 * BLOCKS as usize;
    promises.write_until(&mut client, 16, &mut random, |sent| sent >= ahead)?;
    drop(client);
    // None of this goes to the store, so only the look into the node's record can tell the
    // original.
    let taking = shared.options(Some(&twin), &["--take-identity"]);
    let mut second = std::thread::scope(|scope| -> Result<Daemon> {
        let writer = scope.spawn(|| write_to_the_end(&first, "disk", &mut promises));
        let second = Daemon::start_with("lives-second", taking)?;
        writer.join().expect("it does not panic")?;
        Ok(second)
    })?;
    is_deposed(&first)?;
    promises.release_after(drained);
    promises.check(&mut NbdClient::connect(&second.socket(), "disk")?)?;

    // The original comes back and is refused. With permission it starts, and what only it has is
    // not laid over what was written since.
    fill(&second, "disk", 1, 0..BLOCKS)?;
    second.drain("disk")?;
    first.stop()?;
    let said = first.up().err().context("it was started")?.to_string();
    ensure!(said.contains("--take-identity"), "{said}");
    second.stop()?;
    first.set_options(shared.options(None, &["--take-identity"]));
    first.up()?;
    check(&first, "disk", 1, 0..BLOCKS)?;
    fill(&first, "disk", 2, 0..BLOCKS / 2)?;
    first.kill_all()?;
    first.set_options(shared.options(None, &[]));
    first.up()?;
    check(&first, "disk", 2, 0..BLOCKS / 2)?;
    check(&first, "disk", 1, BLOCKS / 2..BLOCKS)?;
    shared.remove()
}

#[test]
fn a_copy_that_is_started_beside_a_running_original_loses_nothing_that_is_acknowledged_from_the_store()
-> Result<()> {
    let shared = Shared::new("lives-running")?;
    let first = Daemon::start_with("lives-running-first", shared.options(None, &[]))?;
    first.create("disk", "16M", &["--policy", "through"])?;
    let mut promises = Promises::new(BLOCKS);
    let mut client = NbdClient::connect(&first.socket(), "disk")?;
    let mut random = for_story("lives-running");
    promises.write_until(&mut client, 16, &mut random, |sent| sent >= 64)?;
    drop(client);
    // This copy is from the middle of a life. It looks like the state after a crash, so the copy is
    // the one that goes on.
    let twin = shared.0.join("twin");
    copy(&first.dir, &twin)?;
    let second = std::thread::scope(|scope| -> Result<Daemon> {
        let writer = scope.spawn(|| write_to_the_end(&first, "disk", &mut promises));
        let second = Daemon::start_with("lives-running-second", shared.options(Some(&twin), &[]))?;
        // The first client of the copy attaches the volume there, while the original still writes.
        fill(&second, "disk", 0, BLOCKS..BLOCKS + 8)?;
        writer.join().expect("it does not panic")?;
        Ok(second)
    })?;
    is_deposed(&first)?;
    println!("{} writes were acknowledged by the original", promises.acknowledged());
    promises.check(&mut NbdClient::connect(&second.socket(), "disk")?)?;
    check(&second, "disk", 0, BLOCKS..BLOCKS + 8)?;
    shared.remove()
}

#[test]
fn a_restored_backup_is_refused_then_taken_and_replays_nothing_over_newer_writes() -> Result<()> {
    let shared = Shared::new("lives-backup")?;
    let mut daemon = Daemon::start_with("lives-backup", shared.options(None, &[]))?;
    daemon.create("disk", "16M", &[])?;
    fill(&daemon, "disk", 1, 0..BLOCKS)?;
    daemon.drain("disk")?;
    // The backup holds these, and the store does not.
    fill(&daemon, "disk", 2, 0..BLOCKS)?;
    daemon.stop()?;
    let backup = shared.0.join("backup");
    copy(&daemon.dir, &backup)?;
    daemon.up()?;
    fill(&daemon, "disk", 3, 0..BLOCKS)?;
    daemon.drain("disk")?;
    daemon.stop()?;
    // The memory is lost with the disk that is replaced.
    std::fs::rename(&daemon.dir, shared.0.join("broken"))?;
    std::fs::remove_file(daemon.warm())?;
    std::fs::rename(&backup, &daemon.dir)?;
    let said = daemon.up().err().context("it was started")?.to_string();
    for word in ["another copy of this folder was started", "--take-identity"] {
        ensure!(said.contains(word), "{word}: {said}");
    }
    daemon.set_options(shared.options(None, &["--take-identity"]));
    daemon.up()?;
    check(&daemon, "disk", 3, 0..BLOCKS)?;
    fill(&daemon, "disk", 4, 0..BLOCKS / 2)?;
    // A worker that dies does not take the node once more, and needs no permission.
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker)?;
    check(&daemon, "disk", 4, 0..BLOCKS / 2)?;
    check(&daemon, "disk", 3, BLOCKS / 2..BLOCKS)?;
    daemon.drain("disk")?;
    daemon.stop()?;
    daemon.set_options(shared.options(None, &[]));
    daemon.up()?;
    check(&daemon, "disk", 4, 0..BLOCKS / 2)?;
    check(&daemon, "disk", 3, BLOCKS / 2..BLOCKS)?;
    daemon.stop()?;
    shared.remove()
}

#[test]
fn warm_memory_of_an_older_time_is_not_believed() -> Result<()> {
    let other = scratch("lives-memory")?.join("other.warm").display().to_string();
    for between in [other.as_str(), "memfd"] {
        let mut daemon = Daemon::start("lives-warm")?;
        daemon.create("disk", "16M", &[])?;
        // The rounds use the harness's memory, another one, and the first one again; all is
        // drained.
        for (round, memory) in [None, Some(between), None].into_iter().enumerate() {
            let round = round as u64;
            if round > 0 {
                match memory {
                    Some(memory) => daemon.set_arguments(["--warm", memory]),
                    None => daemon.set_arguments([]),
                }
                daemon.up()?;
                check(&daemon, "disk", round - 1, 0..BLOCKS).context("a stale read")?;
            }
            fill(&daemon, "disk", round, 0..BLOCKS)?;
            daemon.drain("disk")?;
            daemon.stop()?;
        }
        daemon.up()?;
        check(&daemon, "disk", 2, 0..BLOCKS).context("after the third")?;
        // Writes that are acknowledged from here on outlive a crash, before they are in the store
        // and afterwards.
        fill(&daemon, "disk", 3, 0..BLOCKS / 2)?;
        daemon.kill_all()?;
        daemon.up()?;
        check(&daemon, "disk", 3, 0..BLOCKS / 2).context("after a crash")?;
        daemon.drain("disk")?;
        daemon.stop()?;
        daemon.up()?;
        check(&daemon, "disk", 3, 0..BLOCKS / 2).context("after a drain")?;
        check(&daemon, "disk", 2, BLOCKS / 2..BLOCKS).context("after a drain")?;
        ensure!(daemon.status()?["health"]["state"] == "well", "{}", daemon.status()?);
    }
    let _ = std::fs::remove_file(&other);
    Ok(())
}

/// The store lies in the folder, so record, log and content agree: only warm memory knows the
/// future that was given up.
#[test]
fn a_folder_put_back_with_its_store_serves_what_it_had_then_and_keeps_what_is_written_since()
-> Result<()> {
    for is_killed in [true, false] {
        let mut daemon = Daemon::start_with("lives-whole", Options::default())?;
        daemon.create("disk", "16M", &[])?;
        fill(&daemon, "disk", 1, 0..64)?;
        daemon.drain("disk")?;
        daemon.stop()?;
        let backup = scratch("lives-whole-backup")?.join("node");
        copy(&daemon.dir, &backup)?;
        daemon.up()?;
        fill(&daemon, "disk", 2, 0..64)?;
        daemon.drain("disk")?;
        fill(&daemon, "disk", 3, 0..32)?;
        if is_killed {
            daemon.kill_all()?
        } else {
            daemon.stop()?
        }
        std::fs::remove_dir_all(&daemon.dir)?;
        std::fs::rename(&backup, &daemon.dir)?;
        daemon.up()?;
        check(&daemon, "disk", 1, 0..64)?;
        fill(&daemon, "disk", 4, 8..24)?;
        daemon.drain("disk")?;
        daemon.kill_all()?;
        daemon.up()?;
        check(&daemon, "disk", 1, 0..8)?;
        check(&daemon, "disk", 4, 8..24)?;
        check(&daemon, "disk", 1, 24..64)?;
        ensure!(daemon.status()?["health"]["state"] == "well", "{}", daemon.status()?);
    }
    Ok(())
}
