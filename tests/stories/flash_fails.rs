//! A host whose flash fails for good: reads and writes of its file system are errors from then on.

use crate::cluster::{Hosts, check_at, write_for};
use crate::forwarding::write_through;
use anyhow::{Result, ensure};
use e2e::daemon::scratch;
use e2e::mount::Mount;
use e2e::promises::Promises;
use e2e::shell::wait_until;
use e2e::{Shell, skip_without};
use rekindle_nbd_client::NbdClient;
use std::time::{Duration, Instant};

#[test]
fn an_owner_whose_flash_fails_is_taken_over_and_a_client_elsewhere_goes_on() -> Result<()> {
    if skip_without(&["mkfs.ext4", "losetup", "xfs_io"], true) {
        return Ok(());
    }
    let folder = scratch("flash-fails-disk")?;
    let image = folder.join("disk.img");
    Shell::new("truncate").args(["-s", "2G"]).arg(&image).run()?;
    Shell::new("mkfs.ext4").arg("-q").arg(&image).run()?;
    let disk = Mount::on(&image.display().to_string(), &folder.join("disk"), "loop")?;
    let mut hosts = Hosts::new("flash-fails", 2)?;
    hosts.join_in(Some(&disk.folder.join("data")), &[])?;
    hosts.wait_for_holder(2)?;
    let mut promises = Promises::new(2048);
    hosts.hosts[2].create("disk", "8M", &["--copies", "1"])?;
    write_for(&mut promises, &hosts.hosts[2], "disk", Duration::from_millis(300))?;
    let node = hosts.node(2)?;
    let mut client = NbdClient::connect(&hosts.hosts[0].socket(), "disk")?;
    let before = promises.acknowledged();
    let longest = std::thread::scope(|scope| -> Result<Duration> {
        let (promises, client) = (&mut promises, &mut client);
        let begun = Instant::now();
        let end = move || begun.elapsed() > Duration::from_secs(8);
        let writer = scope.spawn(move || write_through(promises, client, "flash-fails", end));
        std::thread::sleep(Duration::from_millis(1500));
        // The file system refuses everything, as that of a dead device does.
        Shell::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&disk.folder).run()?;
        writer.join().expect("it does not panic")
    })?;
    println!("stalled for {} ms", longest.as_millis());
    ensure!(promises.acknowledged() > before + 200, "{} {before}", promises.acknowledged());
    promises.check(&mut client)?;
    drop(client);
    wait_until("a holder to go on as the node", || {
        (0..2)
            .any(|host| hosts.cluster(host).is_ok_and(|one| crate::cluster::is_guest(&one, &node)))
    })?;
    let told = hosts.hosts[2].trace();
    ensure!(told.contains("the flash has failed"), "{told}");
    check_at(&mut promises, &hosts.hosts[0], "disk")?;
    check_at(&mut promises, &hosts.hosts[1], "disk")?;
    hosts.end(&[2])?;
    disk.unmount()?;
    Ok(std::fs::remove_dir_all(folder)?)
}
