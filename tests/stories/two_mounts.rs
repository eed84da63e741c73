//! Mounts beside one another: programs that write the same files through two mounts of a file
//! system, and the end of a mount that is in use, or below another one.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::mounted::{Mounted, skipped, under_kills};
use e2e::shell::Shell;
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::Path;

const LINES: usize = 400;

/// The line of a program; some are longer than a page.
fn line(who: &str, number: usize) -> String {
    format!("{who} {number} {}", who.repeat(if number.is_multiple_of(3) { 6000 } else { 10 }))
}

/// Appends lines one by one through a mount, and now and then reads the file there. Some programs
/// could read it by the same file.
fn append(folder: &Path, who: &str) -> Result<()> {
    let path = folder.join("log");
    let reads = ["c", "d"].contains(&who);
    let mut file = File::options().read(reads).append(true).create(true).open(&path)?;
    for number in 0..LINES {
        file.write_all(format!("{}\n", line(who, number)).as_bytes())?;
        if number % 50 == 0 {
            let text = std::fs::read_to_string(&path)?;
            let own = text.lines().filter(|line| line.starts_with(who)).count();
            ensure!(own == number + 1, "{own} of {} lines are there", number + 1);
        }
    }
    Ok(())
}

#[test]
fn lines_that_are_appended_at_two_mounts_are_all_there_once_also_over_kills() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = Daemon::start("two-mounts-append")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (one, two) = Mounted::pair(&daemon, "home")?;
    under_kills(&daemon, 5, || {
        std::thread::scope(|scope| {
            let tasks = [(&one, "a"), (&two, "b"), (&one, "c"), (&two, "d")]
                .map(|(mount, who)| scope.spawn(move || append(&mount.folder, who)));
            tasks.into_iter().try_for_each(|task| task.join().expect("it does not panic"))
        })
    })?;
    let text = std::fs::read_to_string(one.folder.join("log")).context("the log")?;
    for who in ["a", "b", "c", "d"] {
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(who)).collect();
        let expected: Vec<_> = (0..LINES).map(|number| line(who, number)).collect();
        ensure!(lines == expected, "{who}: {} lines of {LINES}", lines.len());
    }
    one.unmount()?;
    two.unmount()
}

/// A kernel that has just seen that there is no such name makes the file, and finds that another
/// mount has made it. Then it must ask who may open it.
#[test]
fn a_new_file_of_another_mount_is_its_owners() -> Result<()> {
    if skipped(&["perl"]) {
        return Ok(());
    }
    let daemon = Daemon::start("two-mounts-owner")?;
    daemon.cli(&["fs", "create", "home"])?;
    // Where other users may go.
    let place = std::env::temp_dir().join(format!("rekindle-owner-{}", std::process::id()));
    let one = Mounted::at(&daemon, "home", place.join("one"))?;
    let two = Mounted::at(&daemon, "home", place.join("two"))?;
    Shell::new("chmod").arg("777").arg(&one.folder).run()?;
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let program = r#"
        use Fcntl;
        $( = $) = 65534; $< = $> = 65534;
        my ($one, $two) = @ARGV;
        -e $two and die "it is there";
        $| = 1; print "ready\n"; <STDIN>;
        print sysopen(my $f, $two, O_RDWR | O_CREAT, 0600) ? "opened\n" : "refused: $!\n";
    "#;
    for (mode, expected) in [("600", "refused: Permission denied"), ("666", "opened")] {
        let mut other = std::process::Command::new("perl")
            .args(["-e", program])
            .args([one.folder.join(mode), two.folder.join(mode)])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let mut lines = std::io::BufReader::new(other.stdout.take().context("a pipe")?).lines();
        ensure!(lines.next().transpose()?.as_deref() == Some("ready"));
        std::fs::write(one.folder.join(mode), "secret")?;
        Shell::new("chmod").arg(mode).arg(one.folder.join(mode)).run()?;
        other.stdin.take().context("a pipe")?.write_all(b"\n")?;
        let told = lines.next().transpose()?;
        ensure!(told.as_deref() == Some(expected), "{mode}: {told:?}");
        other.wait()?;
    }
    one.unmount()?;
    two.unmount()?;
    Ok(std::fs::remove_dir_all(place)?)
}

/// A signal ends a mount, and no other one: the kernel would take away what is on top.
#[test]
fn a_mount_that_is_told_to_end_leaves_the_one_on_top_of_it() -> Result<()> {
    if skipped(&["mount"]) {
        return Ok(());
    }
    let daemon = Daemon::start("two-mounts-covered")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mut mount = Mounted::new(&daemon, "home")?;
    let folder = mount.folder.clone();
    let cover = || Shell::new("mount").args(["-t", "tmpfs", "none"]).arg(&folder).run();
    cover()?;
    std::fs::write(folder.join("on top"), "")?;
    let told = mount.terminate()?;
    ensure!(told.contains("another mount is on top of"), "{told}");
    ensure!(folder.join("on top").exists());
    Shell::new("umount").arg(&folder).run()?;
    let error = std::fs::read_dir(&folder).err().context("the mount below is dead")?;
    ensure!(error.kind() == std::io::ErrorKind::NotConnected, "{error}");
    Ok(())
}

/// What programs have mapped and changed is kept when their mount is told to end.
#[test]
fn a_mount_that_is_told_to_end_keeps_what_programs_have_mapped() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = Daemon::start("two-mounts-mapped")?;
    daemon.cli(&["fs", "create", "home"])?;
    let (mut one, two) = Mounted::pair(&daemon, "home")?;
    let how = File::options().read(true).write(true).create_new(true).to_owned();
    let file = how.open(one.folder.join("mapped"))?;
    file.set_len(8192)?;
    // SAFETY: nothing else changes the file.
    let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }?;
    map[5000..5005].copy_from_slice(b"dirty");
    let told = one.terminate()?;
    ensure!(told.contains("is in use"), "{told}");
    let kept = std::fs::read(two.folder.join("mapped"))?;
    ensure!(kept.get(5000..5005) == Some(b"dirty"), "{} bytes", kept.len());
    two.unmount()
}

/// A mount that is broken off while a program uses it leaves its folder, and says so.
#[test]
fn a_mount_that_is_broken_off_by_force_leaves_the_folder() -> Result<()> {
    if skipped(&[]) {
        return Ok(());
    }
    let daemon = Daemon::start("two-mounts-forced")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mut mount = Mounted::new(&daemon, "home")?;
    let used = File::create_new(mount.folder.join("used"))?;
    let done = Shell::new("umount").arg("-f").arg(&mount.folder).output()?;
    ensure!(!done.status.success(), "the folder is in use");
    let told = mount.ended()?;
    ensure!(told.contains("was broken off"), "{told}");
    ensure!(std::fs::read_dir(&mount.folder)?.next().is_none(), "it is the plain folder again");
    drop(used);
    Ok(())
}
