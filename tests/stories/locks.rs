//! Locks that mounts share: programs of two mounts exclude one another, on one host and on two,
//! over kills of the daemon, moves of the volume and the loss of a host.

use crate::cluster::{Hosts, NAMES};
use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped};
use e2e::shell::{Shell, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A program that locks as it is told: `fcntl` (of the process, and of the open file) and `flock`.
/// It answers each line with one.
const LOCKER: &str = r#"
use Fcntl qw(:DEFAULT :flock);
use Errno qw(EAGAIN EACCES EINTR);
$| = 1;
$SIG{ALRM} = sub {};
# struct flock of 64 bits; SETLK 6, SETLKW 7, GETLK 5; those of an open file 37, 38.
sub words { pack("s s x4 q q l x4", @_) }
sysopen(my $f, $ARGV[0], O_RDWR | O_CREAT) or die "open: $!";
while (my $line = <STDIN>) {
  my ($what, $kind, $start, $length, $alarm) = split(" ", $line);
  my $type = { r => F_RDLCK, w => F_WRLCK, u => F_UNLCK }->{$kind};
  alarm($alarm // 0);
  my $done;
  if ($what eq "flock" || $what eq "flockw") {
    my $how = { r => LOCK_SH, w => LOCK_EX, u => LOCK_UN }->{$kind};
    $done = flock($f, $how | ($what eq "flock" ? LOCK_NB : 0));
  } elsif ($what eq "reopen") {
    close($f); sysopen($f, $ARGV[0], O_RDWR) or die "open: $!"; $done = 1;
  } else {
    my $command = { lock => 6, lockw => 7, ofd => 37, ofdw => 38 }->{$what};
    $done = fcntl($f, $command, words($type, 0, $start, $length, 0));
  }
  alarm(0);
  print $done ? "got\n" : $! == EAGAIN || $! == EACCES ? "held\n" : $! == EINTR ? "interrupted\n" : "error $!\n";
}
"#;

struct Locker {
    process: Child,
    words: ChildStdin,
    told: Receiver<String>,
}

impl Locker {
    fn new(folder: &Path) -> Result<Self> {
        let mut process = Command::new("perl")
            .args(["-e", LOCKER])
            .arg(folder.join("f"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let words = process.stdin.take().context("a pipe")?;
        let lines = BufReader::new(process.stdout.take().context("a pipe")?).lines();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            lines.map_while(|line| line.ok()).try_for_each(|line| tell.send(line))
        });
        Ok(Self { process, words, told })
    }

    fn say(&mut self, words: &str) -> Result<()> {
        Ok(writeln!(self.words, "{words}")?)
    }

    fn hear(&self) -> Result<String> {
        self.told.recv_timeout(Duration::from_secs(100)).context("the locker says nothing")
    }

    fn ask(&mut self, words: &str) -> Result<String> {
        self.say(words)?;
        self.hear()
    }

    fn gets(&mut self, words: &str) -> Result<()> {
        let told = self.ask(words)?;
        ensure!(told == "got", "{words}: {told}");
        Ok(())
    }

    fn is_held_off(&mut self, words: &str) -> Result<()> {
        let told = self.ask(words)?;
        ensure!(told == "held", "{words}: {told}");
        Ok(())
    }

    fn is_waiting(&self) -> bool {
        self.told.recv_timeout(Duration::from_millis(700)).is_err()
    }

    fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn kill_daemon(daemon: &Daemon) -> Result<()> {
    let worker = daemon.worker()?;
    daemon.kill_worker()?;
    daemon.wait_for_worker_after(worker).map(drop)
}

/// Two programs at two mounts exclude one another in all ways; `trouble` strikes amid that.
fn exclude(one: &Path, two: &Path, mut trouble: impl FnMut() -> Result<()>) -> Result<()> {
    for (now, waits) in [("lock", "lockw"), ("ofd", "ofdw"), ("flock", "flockw")] {
        let (mut holder, mut other) = (Locker::new(one)?, Locker::new(two)?);
        holder.gets(&format!("{now} w 0 10"))?;
        other.is_held_off(&format!("{now} r 5 1"))?;
        trouble()?;
        other.is_held_off(&format!("{now} w 9 10"))?;
        if now != "flock" {
            other.gets(&format!("{now} w 10 10"))?;
            holder.is_held_off(&format!("{now} w 19 1"))?;
        }
        // A wait ends with a signal, goes on over the trouble, and ends with the lock.
        let told = other.ask(&format!("{waits} w 0 10 1"))?;
        ensure!(told == "interrupted", "{waits}: {told}");
        other.say(&format!("{waits} w 0 10"))?;
        ensure!(other.is_waiting(), "{waits} does not wait");
        trouble()?;
        ensure!(other.is_waiting(), "{waits} waits no longer");
        let began = Instant::now();
        holder.gets(&format!("{now} u 0 10"))?;
        ensure!(other.hear()? == "got");
        println!("{waits}: {} ms after the other one let go", began.elapsed().as_millis());
        holder.is_held_off(&format!("{now} r 0 1"))?;
        // What a process has goes with it, and what it waits for, too.
        let mut third = Locker::new(one)?;
        third.say(&format!("{waits} w 0 10"))?;
        ensure!(third.is_waiting());
        third.kill()?;
        other.kill()?;
        wait_until("a dead process's lock", || holder.gets(&format!("{now} w 0 10")).is_ok())?;
        // And with the closed file.
        holder.gets("reopen u")?;
        let mut next = Locker::new(two)?;
        wait_until("a closed file's lock", || next.gets(&format!("{now} w 0 10")).is_ok())?;
    }
    Ok(())
}

#[test]
fn programs_of_two_mounts_exclude_one_another_over_daemon_kills() -> Result<()> {
    if skipped(&["perl"]) {
        return Ok(());
    }
    let daemon = Daemon::start("locks")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (one, two) = Mounted::pair(&daemon, "home")?;
    exclude(&one.folder, &two.folder, || kill_daemon(&daemon))?;
    // flock and fcntl of one mount do not see one another.
    let (mut by_range, mut as_whole) = (Locker::new(&one.folder)?, Locker::new(&two.folder)?);
    by_range.gets("lock w 0 0")?;
    as_whole.gets("flock w")?;
    drop((by_range, as_whole));
    two.unmount()?;
    one.unmount()
}

#[test]
fn locks_of_a_mount_that_was_killed_go_after_a_minute() -> Result<()> {
    if skipped(&["perl"]) {
        return Ok(());
    }
    let daemon = Daemon::start("locks-killed")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (one, two) = Mounted::pair(&daemon, "home")?;
    let (mut holder, mut other) = (Locker::new(&one.folder)?, Locker::new(&two.folder)?);
    holder.gets("lock w 0 10")?;
    holder.gets("flock w")?;
    let began = Instant::now();
    drop(one);
    other.is_held_off("lock r 0 1")?;
    // Nor does another daemon know that it is gone.
    kill_daemon(&daemon)?;
    other.is_held_off("flock r")?;
    other.gets("lockw w 0 10")?;
    other.gets("flock w")?;
    println!("after {} s", began.elapsed().as_secs());
    ensure!(began.elapsed() > Duration::from_secs(50));
    drop((holder, other));
    two.unmount()
}

#[test]
fn locks_of_a_mount_that_is_told_to_end_go_at_once() -> Result<()> {
    if skipped(&["perl"]) {
        return Ok(());
    }
    let daemon = Daemon::start("locks-ended")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (mut one, two) = Mounted::pair(&daemon, "home")?;
    let (mut holder, mut other) = (Locker::new(&one.folder)?, Locker::new(&two.folder)?);
    holder.gets("lock w 0 10")?;
    holder.gets("flock w")?;
    other.is_held_off("lock r 0 1")?;
    let told = one.terminate()?;
    ensure!(told.contains("is in use"), "{told}");
    let began = Instant::now();
    other.gets("lockw w 0 10")?;
    other.gets("flockw w")?;
    ensure!(began.elapsed() < Duration::from_secs(30), "it is asked, and not waited for");
    drop((holder, other));
    two.unmount()
}

#[test]
fn locks_of_mounts_at_two_hosts_stay_over_moves_and_the_loss_of_the_owners_host() -> Result<()> {
    if skipped(&["perl"]) {
        return Ok(());
    }
    let mut hosts = Hosts::new("locks-hosts", 3)?;
    hosts.hosts[0].cli(&["fs", "create", "home", "--copies", "1"])?;
    let one = Mounted::new(&hosts.hosts[1], "home")?;
    let two = Mounted::new(&hosts.hosts[2], "home")?;
    // The volume is at host two or three now: whichever mount came first.
    let mut at = 1;
    exclude(&one.folder, &two.folder, || {
        let to = (at + 1) % 3;
        let from = (0..3)
            .find(|host| hosts.hosts[*host].cli(&["volume", "move", "home", NAMES[to]]).is_ok());
        println!("moved from {from:?} to {to}");
        at = to;
        Ok(())
    })?;
    let from =
        (1..3).find(|host| hosts.hosts[*host].cli(&["volume", "move", "home", NAMES[0]]).is_ok());
    println!("moved from {from:?} to one");
    let (mut holder, mut other) = (Locker::new(&one.folder)?, Locker::new(&two.folder)?);
    holder.gets("lock w 0 10")?;
    holder.gets("flock w")?;
    other.say("lockw w 0 10")?;
    ensure!(other.is_waiting());
    hosts.wait_for_holder(0)?;
    hosts.lose(0)?;
    let mut third = Locker::new(&two.folder)?;
    third.is_held_off("lock r 0 1")?;
    third.is_held_off("flock r")?;
    ensure!(other.is_waiting(), "the lock is held at the next owner");
    holder.gets("lock u 0 10")?;
    ensure!(other.hear()? == "got");
    drop((holder, other, third));
    two.unmount()?;
    one.unmount()?;
    hosts.end(&[0])
}

/// Two mounts write one database at the same time, while the daemon is killed. The journal is a
/// file beside it: each program looks for that of the other once it has the lock.
#[test]
fn databases_are_written_through_two_mounts_at_once() -> Result<()> {
    if skipped(&["sqlite3"]) {
        return Ok(());
    }
    let daemon = Daemon::start("locks-sqlite")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (one, two) = Mounted::pair(&daemon, "home")?;
    let ask = |folder: &Path, words: &str| {
        Shell::new("sqlite3")
            .args(["-cmd", ".timeout 60000", "-cmd", ".output /dev/null"])
            .args(["-cmd", "pragma journal_mode=delete;", "-cmd", ".output"])
            .arg(folder.join("db"))
            .arg(words)
            .run()
    };
    ask(&one.folder, "create table t (who text, n integer);")?;
    const ROWS: usize = 40;
    e2e::mounted::under_kills(&daemon, 5, || {
        std::thread::scope(|scope| {
            let write = |folder: &Path, who: &str| -> Result<()> {
                for n in 0..ROWS {
                    ask(folder, &format!("insert into t values ('{who}', {n});"))?;
                }
                Ok(())
            };
            let first = scope.spawn(move || write(&one.folder, "one").map(|()| one));
            let second = write(&two.folder, "two");
            let one = first.join().expect("it does not panic")?;
            second?;
            let count = ask(&one.folder, "select count(*) from t; pragma integrity_check;")?;
            ensure!(count.trim() == format!("{}\nok", 2 * ROWS), "{count}");
            let there = ask(&two.folder, "select count(distinct who || n) from t;")?;
            ensure!(there.trim() == (2 * ROWS).to_string(), "{there}");
            one.unmount()
        })
    })?;
    two.unmount()
}

/// A program that dies amid its change leaves a journal, by which the next one, at another mount,
/// undoes it: also when that has just seen that there is none.
#[test]
fn a_journal_that_a_dead_program_leaves_is_found_at_the_other_mount() -> Result<()> {
    if skipped(&["sqlite3"]) {
        return Ok(());
    }
    let daemon = Daemon::start("locks-journal")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (one, two) = Mounted::pair(&daemon, "home")?;
    let ask =
        |folder: &Path, words: &str| Shell::new("sqlite3").arg(folder.join("db")).arg(words).run();
    let rows = 2000;
    ask(
        &one.folder,
        &format!(
            "create table t (n integer, s text); with recursive c(n) as (select 1 union all \
             select n + 1 from c where n < {rows}) insert into t select n, hex(randomblob(100)) from c;"
        ),
    )?;
    let sum = "select count(*), sum(length(s)) from t; pragma integrity_check;";
    let before = ask(&one.folder, sum)?;
    for round in 0..5 {
        ensure!(ask(&two.folder, sum)? == before, "round {round}");
        // A small cache has the change reach the file before it is committed.
        let mut writer = Command::new("stdbuf")
            .args(["-oL", "sqlite3"])
            .arg(one.folder.join("db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut words = writer.stdin.take().context("a pipe")?;
        writeln!(words, "pragma cache_size=5; begin immediate; update t set s = 'gone';")?;
        writeln!(words, "select 'changed';")?;
        let mut lines = BufReader::new(writer.stdout.take().context("a pipe")?).lines();
        ensure!(lines.next().transpose()?.as_deref() == Some("changed"));
        ensure!(one.folder.join("db-journal").exists());
        // It is asked for often, so that it would be believed, and not be there.
        ensure!(round % 2 == 0 || two.folder.join("db-journal").exists());
        writer.kill()?;
        writer.wait()?;
        let after = ask(&two.folder, sum)?;
        ensure!(after == before, "round {round}: {after}");
        ensure!(!two.folder.join("db-journal").exists(), "it is undone");
    }
    two.unmount()?;
    one.unmount()
}
