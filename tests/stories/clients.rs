//! Common clients: qemu-img, qemu-io, fio, nbdinfo, several at once, and bad ones.

use anyhow::{Result, bail};
use e2e::random::for_story;
use e2e::shell::{Shell, skip_without};
use e2e::{Daemon, tree};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::io::{Read, Write};

#[test]
fn qemu_img_converts_and_compares() -> Result<()> {
    if skip_without(&["qemu-img", "mke2fs", "rustc"], false) {
        return Ok(());
    }
    let daemon = Daemon::start("qemu-img")?;
    let image = tree::real_image()?;
    let bytes = std::fs::metadata(&image)?.len();
    daemon.create("vm", &bytes.to_string(), &["--block-size", "64K"])?;
    let uri = daemon.uri("vm");
    let image = image.display().to_string();
    Shell::new("qemu-img").args(["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]).run()?;
    Shell::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &image, &uri]).run()?;
    Ok(())
}

#[test]
fn qemu_io_writes_zeroes_discards_and_reads_patterns_back() -> Result<()> {
    if skip_without(&["qemu-io"], false) {
        return Ok(());
    }
    let daemon = Daemon::start("qemu-io")?;
    daemon.create("disk", "64M", &[])?;
    let uri = daemon.uri("disk");
    let io = |commands: &[&str]| {
        let mut shell = Shell::new("qemu-io").args(["-f", "raw", &uri]);
        for command in commands {
            shell = shell.args(["-c", command]);
        }
        let text = shell.run()?;
        if text.contains("failed") || text.contains("rror") {
            bail!("qemu-io: {text}");
        }
        anyhow::Ok(())
    };
    io(&[
        "write -P 0x11 0 1M",
        "write -P 0x22 512k 512",
        "write -f -P 0x33 1536k 12k",
        "write -z 4k 8k",
        "discard 900k 64k",
        "flush",
        "read -P 0x11 0 4k",
        "read -P 0 4k 8k",
        "read -P 0x11 12k 500k",
        "read -P 0x22 512k 512",
        "read -P 0 900k 64k",
        "read -P 0x33 1536k 12k",
        "read -P 0 2M 60M",
    ])?;
    daemon.drain("disk")?;
    io(&["read -P 0x22 512k 512", "read -P 0 4k 8k", "read -P 0 900k 64k", "read -P 0x11 964k 60k"])
}

#[test]
fn fio_verifies_what_it_wrote_under_every_policy() -> Result<()> {
    if skip_without(&["fio"], false) {
        return Ok(());
    }
    let daemon = Daemon::start("fio")?;
    let jobs: &[(&str, &[&str], &str)] = &[
        ("back", &["--policy", "back"], "96M"),
        ("memory", &["--ack", "memory"], "96M"),
        ("through", &["--policy", "through"], "24M"),
        ("uncached", &["--policy", "uncached"], "24M"),
    ];
    for (name, arguments, amount) in jobs {
        daemon.create(name, "256M", arguments)?;
        let uri = daemon.uri(name);
        Shell::new("fio")
            .args([
                "--name=verify",
                "--ioengine=nbd",
                "--rw=randwrite",
                "--bsrange=4k-64k",
                "--iodepth=16",
            ])
            .args([
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                "--size=256M",
                "--verify_state_save=0",
            ])
            .arg(format!("--io_size={amount}"))
            .arg(format!("--uri={uri}"))
            .run()?;
    }
    Ok(())
}

#[test]
fn two_connections_see_each_others_writes() -> Result<()> {
    let daemon = Daemon::start("two-connections")?;
    daemon.create("shared", "16M", &[])?;
    let mut one = NbdClient::connect(&daemon.socket(), "shared")?;
    let mut two = NbdClient::connect(&daemon.socket(), "shared")?;
    let mut random = Random::new(7);
    for _ in 0..200 {
        let offset = random.below(16 << 20 >> 12) << 12;
        let data = random.bytes(4096);
        one.write(offset, &data)?;
        assert_eq!(two.read(offset, 4096)?, data);
        std::mem::swap(&mut one, &mut two);
    }
    Ok(())
}

#[test]
fn the_export_list_names_the_volumes() -> Result<()> {
    if skip_without(&["nbdinfo"], false) {
        return Ok(());
    }
    let daemon = Daemon::start("exports")?;
    daemon.create("alpha", "1M", &[])?;
    daemon.create("größe", "2M", &[])?;
    let uri = format!("nbd+unix:///?socket={}", daemon.socket().display());
    let list = Shell::new("nbdinfo").args(["--list", "--json", &uri]).run()?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    let names: Vec<_> = list["exports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|export| export["export-name"].as_str())
        .collect();
    assert_eq!(names, ["alpha", "größe"]);
    Ok(())
}

#[test]
fn garbage_drops_that_client_only() -> Result<()> {
    let daemon = Daemon::start("garbage")?;
    daemon.create("disk", "16M", &[])?;
    let mut good = NbdClient::connect(&daemon.socket(), "disk")?;
    let mut random = for_story("garbage");
    for _ in 0..100 {
        if let Ok(mut bad) = NbdClient::connect(&daemon.socket(), "disk") {
            let length = 1 + random.below(200) as usize;
            let noise = random.bytes(length);
            let _ = bad.raw().write_all(&noise);
        }
        let mut bad = std::os::unix::net::UnixStream::connect(daemon.socket())?;
        let length = 1 + random.below(4000) as usize;
        let _ = bad.write_all(&random.bytes(length));
        good.write(random.below(1000) * 4096, &[7; 4096])?;
    }
    // A request with a wrong magic number ends the connection; it is not answered.
    let mut bad = NbdClient::connect(&daemon.socket(), "disk")?;
    bad.raw().write_all(&[0xff; 28])?;
    let mut rest = Vec::new();
    let _ = bad.raw().read_to_end(&mut rest);
    // A request out of bounds is answered with an error, and the connection lives on.
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    assert!(client.write((16 << 20) - 4096, &[1; 8192]).is_err());
    client.write(0, &[9; 512])?;
    assert_eq!(good.read(0, 512)?, [9; 512]);
    Ok(())
}
