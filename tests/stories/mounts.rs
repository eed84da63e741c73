//! Mounts in a cluster: a mount comes to any host, and goes on when its volume is taken over, or
//! moves.

use crate::cluster::{Hosts, NAMES};
use crate::forwarding::row;
use crate::lives::Shared;
use anyhow::{Context, Result, ensure};
use e2e::mounted::{Mounted, skipped};
use e2e::network::{Network, PROGRAMS};
use e2e::shell::{Shell, repository, wait_until};
use e2e::tree::same_trees;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Programs that work on a mount until they are told to end.
struct Work<'a> {
    root: &'a Path,
    name: &'a str,
    is_over: AtomicBool,
    /// Copies of the tree that are whole.
    copies: AtomicUsize,
}

fn source() -> std::path::PathBuf {
    repository().join("crates/front")
}

impl<'a> Work<'a> {
    fn new(root: &'a Path, name: &'a str) -> Self {
        Self { root, name, is_over: AtomicBool::new(false), copies: AtomicUsize::new(0) }
    }

    /// Copies a real tree again and again.
    fn copy(&self) -> Result<()> {
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.copies.load(Ordering::Relaxed);
            Shell::new("cp").arg("-a").arg(source()).arg(self.copied(number)).run()?;
            self.copies.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes, renames and removes names, none of which may be there before or missing afterwards.
    fn rename(&self) -> Result<()> {
        let dir = self.root.join(format!("{}-names", self.name));
        std::fs::create_dir(&dir)?;
        let (one, two, below) = (dir.join("one"), dir.join("two"), dir.join("below"));
        let mut rounds = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let mut file = File::options().write(true).create_new(true).open(&one)?;
            write!(file, "{rounds}")?;
            std::fs::create_dir(&below).context("mkdir")?;
            std::fs::rename(&one, &two).context("rename")?;
            std::fs::hard_link(&two, below.join("three")).context("link")?;
            symlink("two", &one).context("symlink")?;
            ensure!(std::fs::read_to_string(&one)? == rounds.to_string(), "round {rounds}");
            for path in [&one, &two, &below.join("three")] {
                std::fs::remove_file(path).context("unlink")?;
            }
            std::fs::remove_dir(&below).context("rmdir")?;
            rounds += 1;
        }
        println!("{rounds} rounds of names");
        ensure!(rounds > 0, "no round of names");
        Ok(std::fs::remove_dir(&dir)?)
    }

    fn copied(&self, number: usize) -> std::path::PathBuf {
        self.root.join(format!("{}-{number}", self.name))
    }

    /// Runs `break_it` amid the work, and then waits for one more copy from its beginning to its
    /// end. No program may see an error, and each copy must be whole.
    fn amid(&self, break_it: impl FnOnce() -> Result<()>) -> Result<()> {
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| self.copy());
            let renaming = scope.spawn(|| self.rename());
            std::thread::sleep(Duration::from_millis(1500));
            let broken = break_it();
            let before = self.copies.load(Ordering::Relaxed);
            let goes_on = wait_until("another copy", || {
                self.copies.load(Ordering::Relaxed) > before + 1
                    || copying.is_finished()
                    || renaming.is_finished()
            });
            self.is_over.store(true, Ordering::Relaxed);
            copying.join().expect("it does not panic")?;
            renaming.join().expect("it does not panic")?;
            broken.and(goes_on)
        })?;
        self.check()
    }

    fn check(&self) -> Result<()> {
        (0..self.copies.load(Ordering::Relaxed))
            .try_for_each(|number| same_trees(&source(), &self.copied(number)))
    }
}

#[test]
fn a_copy_goes_on_when_the_owner_stands_still_is_killed_and_when_the_volume_moves() -> Result<()> {
    if skipped(&[&["cp", "diff"], PROGRAMS].concat()) {
        return Ok(());
    }
    let network = Some(Network::new(3)?);
    // On a busy machine the volume would follow its client within the story.
    let shared = Shared::with_settings("mounts", "follow_clients = 'off'")?;
    let mut hosts = Hosts::over(shared, "mounts", 3, network)?;
    hosts.hosts[0].cli(&["fs", "create", "home", "--copies", "1"])?;
    // The host that mounts first has the volume.
    let mounted = Mounted::new(&hosts.hosts[0], "home")?;
    std::fs::write(mounted.folder.join("first"), b"here")?;
    mounted.unmount()?;
    let holder = hosts.wait_for_holder(0)?;
    let holder = NAMES.iter().position(|name| *name == holder).context("a host")?;
    let third = 3 - holder;
    let mounted = Mounted::new(&hosts.hosts[third], "home")?;
    let root = mounted.folder.clone();
    ensure!(std::fs::read(root.join("first"))? == b"here", "it is another volume");
    let shown = hosts.cluster(third)?;
    ensure!(row(&shown, "forwarded", "home")["name"] == "one", "{shown}");
    let shown = hosts.cluster(0)?;
    ensure!(row(&shown, "visitors", "home")["name"] == NAMES[third], "{shown}");

    // A daemon that stands still ends no connection.
    let worker = Pid::from_raw(i32::try_from(hosts.hosts[0].worker()?)?).context("a pid")?;
    let still = Work::new(&root, "still");
    let went_on = still.amid(|| Ok(kill_process(worker, Signal::STOP)?));
    let shown = hosts.cluster(third);
    // A daemon that stands still answers no question.
    kill_process(worker, Signal::KILL)?;
    hosts.lose(0)?;
    went_on?;
    let shown = shown?;
    ensure!(row(&shown, "forwarded", "home")["name"] == NAMES[holder], "{shown}");
    wait_until("the guest to have a holder", || {
        hosts.cluster(holder).is_ok_and(|shown| shown["guests"][0]["holders"][0]["ready"] == true)
    })?;

    // The volume goes to the node of the host that has taken its owner over, and on to the mount's.
    for to in [holder, third] {
        let moved = Work::new(&root, NAMES[to]);
        moved.amid(|| {
            let told = hosts.hosts[holder].cli(&["volume", "move", "home", NAMES[to]])?;
            ensure!(told["state"] == "done", "{told}");
            Ok(())
        })?;
        still.check()?;
    }
    let shown = hosts.cluster(third)?;
    ensure!(row(&shown, "forwarded", "home").is_null(), "it is at home: {shown}");
    mounted.unmount()?;
    hosts.end(&[0])
}

#[test]
fn a_copy_goes_on_when_the_owners_host_is_lost_and_the_mounts_own_host_takes_over() -> Result<()> {
    if skipped(&[&["cp", "diff"], PROGRAMS].concat()) {
        return Ok(());
    }
    let network = Some(Network::new(2)?);
    let mut hosts = Hosts::over(Shared::new("mounts-lost")?, "mounts-lost", 2, network)?;
    hosts.hosts[0].cli(&["fs", "create", "home", "--copies", "1"])?;
    Mounted::new(&hosts.hosts[0], "home")?.unmount()?;
    let node = hosts.node(0)?;
    let mounted = Mounted::new(&hosts.hosts[1], "home")?;
    let root = mounted.folder.clone();
    // A file that has no name any more outlives its owner's host, too.
    let path = root.join("unnamed");
    let mut file = File::options().create_new(true).read(true).write(true).open(&path)?;
    file.write_all(b"before ")?;
    std::fs::remove_file(&path)?;
    Work::new(&root, "lost").amid(|| hosts.lose(0))?;
    hosts.wait_for_guest(1, &node)?;
    file.write_all(b"after")?;
    file.sync_all()?;
    let mut found = [0; 12];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, 0)?;
    ensure!(&found == b"before after", "{found:?}");
    drop(file);
    mounted.unmount()?;
    hosts.end(&[0])
}
