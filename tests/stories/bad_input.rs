//! Bad input gets an error that says what to do. No data is lost, no process panics, and other
//! volumes are unaffected.

use anyhow::{Context, Result};
use e2e::daemon::{binary, scratch};
use e2e::shell::Shell;
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[test]
fn sizes_and_names_that_cannot_be() -> Result<()> {
    let daemon = Daemon::start("bad-volumes")?;
    let long = "x".repeat(256);
    let cases: &[(&str, &str, &str)] = &[
        ("disk", "0", "0 bytes"),
        ("disk", "1000", "1000G"),
        ("disk", "1000B", "512"),
        ("disk", "99999T", "most"),
        ("disk", "banana", "size"),
        ("a/b", "1M", "name"),
        ("..", "1M", "name"),
        ("a\nb", "1M", "name"),
        (&long, "1M", "255"),
        ("", "1M", "empty"),
    ];
    for (name, size, hint) in cases {
        let error =
            daemon.create(name, size, &[]).expect_err(&format!("{name:?} of {size} was accepted"));
        let text = format!("{error:#}");
        assert!(text.contains(hint), "{name:?} of {size}: the error does not say '{hint}': {text}");
    }
    daemon.create("disk", "1M", &[])?;
    let again = daemon.create("disk", "1M", &[]).expect_err("the same name twice");
    assert!(format!("{again:#}").contains("exists"), "{again:#}");
    let gone = daemon.cli(&["volume", "show", "nothing"]).expect_err("an unknown volume");
    assert!(format!("{gone:#}").contains("volume ls"), "{gone:#}");
    for bad in ["3000", "2K", "2M"] {
        assert!(daemon.create("odd", "1M", &["--block-size", bad]).is_err(), "block size {bad}");
    }
    Ok(())
}

#[test]
fn stores_that_cannot_be_used() -> Result<()> {
    let folder = scratch("bad-stores")?;
    let somebody = folder.join("somebody");
    std::fs::create_dir_all(&somebody)?;
    std::fs::write(somebody.join("photo.jpg"), "not ours")?;
    let newer = folder.join("newer");
    std::fs::create_dir_all(&newer)?;
    let file = folder.join("file");
    std::fs::write(&file, "a file")?;
    let cases: Vec<(String, &str)> = vec![
        ("ftp://example".into(), "file://"),
        ("s3://".into(), "bucket"),
        (format!("file://{}", somebody.display()), "photo.jpg"),
        (format!("file://{}", file.display()), "folder"),
    ];
    for (store, hint) in cases {
        let text = up_fails(&folder.join("data"), &["--store", &store])?;
        assert!(text.contains(hint), "{store}: the error does not say '{hint}': {text}");
    }
    // A store of a newer version.
    let mut daemon = Daemon::start("newer-store")?;
    daemon.stop()?;
    let identity = daemon.dir.join("store/rekindle.json");
    let text = std::fs::read_to_string(&identity)?;
    let mut record: serde_json::Value = serde_json::from_str(&text)?;
    record["format"] = 99.into();
    std::fs::write(&identity, record.to_string())?;
    let text = up_fails(&daemon.dir, &[])?;
    assert!(text.contains("99") && text.contains("upgrade"), "{text}");
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn unknown_configuration_keys_are_refused_with_the_nearest_name() -> Result<()> {
    let folder = scratch("bad-config")?;
    let config = folder.join("rekindle.toml");
    std::fs::write(&config, "stor = \"file:///srv\"\n")?;
    let text = up_fails(&folder.join("data"), &["--config", &config.display().to_string()])?;
    assert!(text.contains("stor") && text.contains("store"), "{text}");
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

#[test]
fn a_flash_folder_in_use_is_refused_and_the_first_daemon_goes_on() -> Result<()> {
    let daemon = Daemon::start("in-use")?;
    daemon.create("disk", "1M", &[])?;
    let text = up_fails(&daemon.dir, &[])?;
    assert!(text.contains("another"), "{text}");
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    client.write(0, &[1; 4096])?;
    Ok(())
}

#[test]
fn a_damaged_pack_is_reported_exactly_and_others_are_unaffected() -> Result<()> {
    let mut daemon = Daemon::start("damaged-pack")?;
    for name in ["good", "bad"] {
        daemon.create(name, "16M", &[])?;
        let mut client = NbdClient::connect(&daemon.socket(), name)?;
        for block in 0..64u64 {
            client.write(
                block << 16,
                &Random::new(block + name.len() as u64 * 1000).bytes(1 << 16),
            )?;
        }
        drop(client);
        let before = packs(&daemon.dir)?;
        daemon.drain(name)?;
        if name == "bad" {
            let new: Vec<_> =
                packs(&daemon.dir)?.into_iter().filter(|pack| !before.contains(pack)).collect();
            for pack in &new {
                damage(pack, 200_000)?;
            }
            assert!(!new.is_empty());
        }
    }
    daemon.stop()?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "good")?;
    for block in 0..64u64 {
        assert!(client.read(block << 16, 1 << 16)? == Random::new(block + 4000).bytes(1 << 16));
    }
    let mut failed = 0;
    for block in 0..64u64 {
        let mut client = NbdClient::connect(&daemon.socket(), "bad")?;
        match client.read(block << 16, 1 << 16) {
            Ok(data) => assert!(
                data == Random::new(block + 3000).bytes(1 << 16),
                "wrong bytes instead of an error"
            ),
            Err(_) => failed += 1,
        }
    }
    assert!((1..=4).contains(&failed), "one damaged place, {failed} of 64 blocks failed");
    let report =
        Shell::new(binary()).args(["verify", "--json", "--dir"]).arg(&daemon.dir).output()?;
    let text = String::from_utf8_lossy(&report.stdout).into_owned()
        + &String::from_utf8_lossy(&report.stderr);
    assert!(
        text.contains("bad") && text.contains("damage"),
        "verify does not name what is damaged: {text}"
    );
    Ok(())
}

#[test]
fn a_damaged_vault_affects_its_volume_only() -> Result<()> {
    let mut daemon = Daemon::start("damaged-vault")?;
    daemon.create("good", "1M", &[])?;
    let before = files(&daemon.dir.join("store/volumes"))?;
    daemon.create("bad", "1M", &[])?;
    let vaults = files(&daemon.dir.join("store/volumes"))?;
    let vault = vaults.iter().find(|path| !before.contains(path)).context("no new vault")?;
    daemon.stop()?;
    std::fs::write(vault, "{ torn")?;
    daemon.up()?;
    NbdClient::connect(&daemon.socket(), "good")?.write(0, &[5; 512])?;
    assert!(NbdClient::connect(&daemon.socket(), "bad").is_err());
    let list = daemon.cli(&["volume", "ls"])?;
    assert!(list.to_string().contains("good") && list.to_string().contains("bad"), "{list}");
    Ok(())
}

#[test]
fn a_damaged_segment_is_reported_exactly_and_never_believed() -> Result<()> {
    let folder = scratch("damaged-segment-warm")?;
    let (warm, settings) = (folder.join("warm"), folder.join("settings.toml"));
    // Only what is drained by hand leaves the log.
    std::fs::write(&settings, "[destage]\nage = '1h'\n")?;
    let options = Options {
        arguments: [
            "--warm".to_owned(),
            warm.display().to_string(),
            "--config".into(),
            settings.display().to_string(),
        ]
        .to_vec(),
        ..Options::default()
    };
    let mut daemon = Daemon::start_with("damaged-segment", options)?;
    daemon.create("disk", "16M", &[])?;
    daemon.create("other", "16M", &[])?;
    NbdClient::connect(&daemon.socket(), "other")?.write(0, &[8; 4096])?;
    daemon.drain("other")?;
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    for block in 0..100u64 {
        client.write(block << 12, &Random::new(block).bytes(4096))?;
    }
    daemon.kill_all()?;
    let _ = std::fs::remove_file(daemon.warm());
    let needle = Random::new(50).bytes(4096);
    let mut hits = 0;
    for segment in files(&daemon.dir.join("flash"))? {
        let bytes = std::fs::read(&segment)?;
        for at in bytes
            .windows(64)
            .enumerate()
            .filter(|(_, window)| *window == &needle[..64])
            .map(|(at, _)| at)
        {
            damage(&segment, at as u64 + 1000)?;
            hits += 1;
        }
    }
    assert!(hits > 0, "the write is in no segment");
    daemon.set_arguments([]);
    daemon.up()?;
    assert_eq!(NbdClient::connect(&daemon.socket(), "other")?.read(0, 4096)?, [8; 4096]);
    let mut failed = 0;
    for block in 0..100u64 {
        let Ok(mut client) = NbdClient::connect(&daemon.socket(), "disk") else {
            failed += 1;
            continue;
        };
        match client.read(block << 12, 4096) {
            Ok(data) => assert!(
                data == Random::new(block).bytes(4096),
                "block {block}: wrong bytes, no error"
            ),
            Err(_) => failed += 1,
        }
    }
    assert!(failed >= 1, "a damaged acknowledged write was not noticed");
    let show =
        daemon.cli(&["volume", "show", "disk"]).map(|value| value.to_string()).unwrap_or_default();
    assert!(
        daemon.trace().contains("damaged") || show.contains("damaged"),
        "nobody says what is damaged: {show}"
    );
    Ok(())
}

/// Runs `up` and expects it to refuse at once, with exit status 1 or 2; returns its message.
fn up_fails(dir: &Path, arguments: &[&str]) -> Result<String> {
    let output = Shell::new("timeout")
        .arg("20")
        .arg(binary())
        .args([
            "up",
            "--nbd",
            "unix:/tmp/rekindle-story-unused.sock",
            "--http",
            "127.0.0.1:0",
            "--dir",
        ])
        .arg(dir)
        .args(arguments)
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        matches!(output.status.code(), Some(1 | 2)),
        "up did not refuse: {} {text}",
        output.status
    );
    assert!(!text.contains("panicked"), "{text}");
    Ok(text)
}

fn packs(dir: &Path) -> Result<Vec<PathBuf>> {
    files(&dir.join("store/packs/data"))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !folder.exists() {
        return Ok(found);
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(files(&entry.path())?);
        } else if !entry.file_name().to_string_lossy().starts_with('.') {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Flips a bit of a file.
fn damage(path: &Path, at: u64) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    let file = std::fs::File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x40], at)?;
    Ok(())
}
