//! Damage in the store costs the lost bytes, and nothing else.

use anyhow::{Context, Result, ensure};
use e2e::daemon::{binary, damage, objects};
use e2e::random::for_story;
use e2e::shell::{Shell, wait_until};
use e2e::{Daemon, Options};
use rekindle_nbd_client::NbdClient;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BLOCK: usize = 16 << 10;
/// A damaged chunk is one block.
const FIXED: [&str; 2] = ["--block-size", "16K"];
const BLOCKS: usize = 4;
const OTHERS: usize = 20;

/// Returns which blocks of the volume can be read; these must be what was written.
fn whole(client: &mut NbdClient, image: &[u8]) -> Vec<bool> {
    (0..BLOCKS)
        .map(|block| {
            let wanted = &image[block * BLOCK..(block + 1) * BLOCK];
            match client.read((block * BLOCK) as u64, BLOCK) {
                Ok(found) => {
                    assert_eq!(found, wanted, "an error, or what was written: nothing else");
                    true
                }
                Err(_) => false,
            }
        })
        .collect()
}

#[test]
fn a_damaged_pack_costs_one_volume_one_block_while_twenty_others_serve() -> Result<()> {
    let mut daemon = Daemon::start("salvage")?;
    let mut random = for_story("salvage");
    let image = random.bytes(BLOCKS * BLOCK);
    daemon.create("hurt", "1M", &FIXED)?;
    NbdClient::connect(&daemon.socket(), "hurt")?.write(0, &image)?;
    daemon.drain("hurt")?;
    let pack = daemon.data_pack()?;
    let others: Vec<(String, Vec<u8>)> =
        (0..OTHERS).map(|number| (format!("other{number}"), random.bytes(BLOCK))).collect();
    for (name, bytes) in &others {
        daemon.create(name, "1M", &FIXED)?;
        NbdClient::connect(&daemon.socket(), name)?.write(0, bytes)?;
    }
    daemon.stop()?;
    damage(&pack)?;
    daemon.up()?;

    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    let mut clients = Vec::new();
    for (name, _) in &others {
        clients.push(NbdClient::connect(&daemon.socket(), name)?);
    }
    let before = whole(&mut client, &image);
    ensure!(before.iter().filter(|is_whole| !**is_whole).count() == 1, "{before:?}");
    wait_until("the salvage", || {
        for (client, (name, bytes)) in clients.iter_mut().zip(&others) {
            assert_eq!(&client.read(0, BLOCK).unwrap_or_default(), bytes, "{name} serves");
        }
        daemon
            .cli(&["salvage", "history", "hurt"])
            .is_ok_and(|history| history[0]["outcome"] == "waiting")
    })?;
    // Nothing is given up before the user says so; the plan tells what would be.
    let plan = daemon.cli_that_fails(&["salvage", "run", "hurt"])?["result"]["done"].to_string();
    ensure!(plan.contains("nothing was given up") && plan.contains("--accept-losses"), "{plan}");
    let shown = daemon.cli(&["volume", "show", "hurt"])?;
    ensure!(shown["reason"].to_string().contains("cannot be read since"), "{shown}");
    assert_eq!(whole(&mut client, &image), before);
    daemon.cli(&["salvage", "run", "hurt", "--accept-losses"])?;
    let history = daemon.cli(&["salvage", "history"])?;
    ensure!(history.to_string().contains("lost: bytes"), "{history}");
    assert_eq!(daemon.cli(&["volume", "show", "hurt"])?["state"], "attached");
    assert_eq!(whole(&mut client, &image), before, "the same block, no other");
    assert_eq!(daemon.cli(&["salvage", "queue"])?.as_array().map(Vec::len), Some(0));

    // A lost block stays lost over a crash, and is whole again once it is written, also with the
    // bytes of before.
    drop((client, clients));
    daemon.kill_all()?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    assert_eq!(whole(&mut client, &image), before);
    let lost = before.iter().position(|is_whole| !is_whole).context("one is lost")?;
    client.write((lost * BLOCK) as u64, &image[lost * BLOCK..(lost + 1) * BLOCK])?;
    daemon.drain("hurt")?;
    drop(client);
    daemon.stop()?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    assert_eq!(whole(&mut client, &image), [true; BLOCKS]);
    let sound = daemon.cli(&["salvage", "run", "hurt"])?;
    ensure!(sound["result"]["done"].to_string().contains("all of them sound"), "{sound}");
    Ok(())
}

/// Faults of a store that answers so slowly that a salvage takes a while.
const SLOW: [&str; 2] = ["--store-fault", "latency=400ms"];

/// Starts a daemon over a slow store, with a volume of which one chunk is damaged and no client has
/// read any yet.
fn hurt_and_slow(name: &str) -> Result<(Daemon, Vec<u8>)> {
    let mut daemon = Daemon::start(name)?;
    let image = for_story(name).bytes(BLOCKS * BLOCK);
    daemon.create("hurt", "1M", &FIXED)?;
    // Each block gets its own batch and pack, so that a salvage has many packs to read.
    for block in 0..BLOCKS {
        let bytes = &image[block * BLOCK..(block + 1) * BLOCK];
        NbdClient::connect(&daemon.socket(), "hurt")?.write((block * BLOCK) as u64, bytes)?;
        daemon.drain("hurt")?;
    }
    daemon.create("other", "1M", &FIXED)?;
    daemon.stop()?;
    damage(&daemon.data_pack()?)?;
    daemon.set_arguments(SLOW);
    daemon.up()?;
    Ok((daemon, image))
}

/// Waits until a worker has begun with the salvage.
fn wait_for_worker(daemon: &Daemon) -> Result<()> {
    wait_until("a salvage worker", || {
        daemon.cli(&["salvage", "queue"]).is_ok_and(|queue| {
            queue[0]["volume"] == "hurt" && queue[0]["chunks"].as_u64().is_some_and(|read| read > 0)
        })
    })
}

fn outcomes(daemon: &Daemon) -> Vec<String> {
    let history = daemon.cli(&["salvage", "history", "hurt"]).unwrap_or_default();
    let word = |account: &Value| account["outcome"].as_str().unwrap_or_default().to_owned();
    history.as_array().map(|accounts| accounts.iter().map(word).collect()).unwrap_or_default()
}

#[test]
fn a_salvage_that_is_killed_or_stopped_in_its_middle_goes_on_in_the_next_life() -> Result<()> {
    for kill in [true, false] {
        let (mut daemon, image) = hurt_and_slow("salvage-cut")?;
        let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
        let whole_before = whole(&mut client, &image);
        ensure!(whole_before.contains(&false), "{whole_before:?}");
        wait_for_worker(&daemon)?;
        if kill {
            let worker = daemon.worker()?;
            daemon.kill_worker()?;
            daemon.wait_for_worker_after(worker)?;
        } else {
            // `stop` of the daemon fails when it takes more than 30 s.
            daemon.stop()?;
            daemon.up()?;
        }
        // The salvage goes on without any client.
        wait_until("it to go on", || {
            outcomes(&daemon).last().is_some_and(|last| last == "waiting")
        })?;
        assert_eq!(outcomes(&daemon), ["interrupted", "waiting"], "kill: {kill}");
        let history = daemon.cli(&["salvage", "history", "hurt"])?;
        // A process that dies has used an attempt. One that stops in good order has not, if the
        // store lets it say so.
        let attempt = history[1]["attempt"].as_u64().context("attempt")?;
        ensure!(attempt == 2 || (!kill && attempt == 1), "{history}");
        let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
        assert_eq!(whole(&mut client, &image), whole_before);
    }
    Ok(())
}

#[test]
fn two_clients_are_served_while_one_salvage_of_their_volume_runs_for_two_people() -> Result<()> {
    let (daemon, image) = hurt_and_slow("salvage-wait")?;
    let json = ["--json", "--dir"];
    let mut command = std::process::Command::new(binary());
    command.args(["salvage", "run", "hurt"]).args(json).arg(&daemon.dir);
    command.stdout(std::process::Stdio::null());
    let mut people: Vec<_> = (0..2).map(|_| command.spawn()).collect::<std::io::Result<_>>()?;
    wait_for_worker(&daemon)?;
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let (socket, image) = (daemon.socket(), image.clone());
            std::thread::spawn(move || -> Result<Vec<bool>> {
                Ok(whole(&mut NbdClient::connect(&socket, "hurt")?, &image))
            })
        })
        .collect();
    // Other volumes are served meanwhile.
    NbdClient::connect(&daemon.socket(), "other")?.write(0, &[1; 512])?;
    let seen: Vec<Vec<bool>> = clients
        .into_iter()
        .map(|client| client.join().ok().context("a client panicked")?)
        .collect::<Result<_>>()?;
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].iter().filter(|is_whole| !**is_whole).count(), 1, "{seen:?}");
    for person in &mut people {
        assert_eq!(person.wait()?.code(), Some(1), "both are told that damage is left");
    }
    assert_eq!(outcomes(&daemon), ["waiting"], "one salvage for all of them");
    let history = daemon.cli(&["volume", "history", "hurt"])?.to_string();
    ensure!(history.contains("attach-done") && !history.contains("salvaging"), "{history}");
    Ok(())
}

#[test]
fn a_salvage_in_vain_is_not_tried_for_ever_and_a_person_decides_what_is_given_up() -> Result<()> {
    let text = "[destage]\nage = '1h'\nbytes = '1G'\n";
    let options = Options::with_settings("salvage-vain", text, &[])?;
    let mut daemon = Daemon::start_with("salvage-vain", options)?;
    daemon.create("other", "1M", &FIXED)?;
    NbdClient::connect(&daemon.socket(), "other")?.write(0, &[9; 4096])?;
    daemon.create("hurt", "64M", &FIXED)?;
    let segments = |daemon: &Daemon| -> Result<Vec<PathBuf>> {
        let files = std::fs::read_dir(daemon.dir.join("flash"))?;
        let paths = files.map(|file| Ok(file?.path())).collect::<Result<Vec<_>>>()?;
        let mut segments: Vec<_> = paths
            .into_iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
            .collect();
        segments.sort();
        Ok(segments)
    };
    // The writes take three segments and a bit, and the store has none of it.
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    let blocks = 7 * 64_u64;
    for block in 0..blocks {
        client.write(block * (64 << 10), &[block as u8 | 1; 64 << 10])?;
    }
    client.flush()?;
    daemon.kill_all()?;
    std::fs::remove_file(daemon.warm())?;
    let all = segments(&daemon)?;
    ensure!(all.len() >= 4, "{all:?}");
    std::fs::remove_file(&all[1])?;
    daemon.up()?;

    let told = |daemon: &Daemon| -> Result<String> {
        Ok(daemon.cli(&["volume", "show", "hurt"])?["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    };
    let in_vain = |daemon: &Daemon| {
        assert!(NbdClient::connect(&daemon.socket(), "hurt").is_err(), "it is out of service");
        outcomes(daemon).len() >= 2
    };
    wait_until("the second attempt", || in_vain(&daemon))?;
    wait_until("it to be given up", || {
        // A client asks once more.
        in_vain(&daemon);
        told(&daemon).is_ok_and(|reason| reason.contains("could change nothing"))
    })
    .with_context(|| format!("{:?}, {:?}", told(&daemon), outcomes(&daemon)))?;
    // Further clients do not start another attempt.
    for _ in 0..3 {
        in_vain(&daemon);
        std::thread::sleep(Duration::from_secs(1));
    }
    let reason = told(&daemon)?;
    ensure!(reason.contains("could change nothing"), "{reason}");
    ensure!(reason.contains("rekindle salvage run hurt --accept-losses"), "{reason}");
    assert_eq!(daemon.cli(&["volume", "show", "hurt"])?["state"], "error");
    assert_eq!(outcomes(&daemon), ["failed", "failed"], "and no third one");
    daemon.kill_all()?;
    daemon.up()?;
    ensure!(NbdClient::connect(&daemon.socket(), "hurt").is_err());
    assert_eq!(outcomes(&daemon).len(), 2, "no restart forgets that");
    let mut other = NbdClient::connect(&daemon.socket(), "other")?;
    assert_eq!(other.read(0, 4096)?, [9; 4096], "others serve");

    // The user tries again, in vain, and then accepts the losses.
    ensure!(daemon.cli(&["salvage", "run", "hurt"]).is_err());
    let done = daemon.cli(&["salvage", "run", "hurt", "--accept-losses"])?;
    let done = done["result"]["done"].to_string();
    ensure!(done.contains("were in segment") && done.contains("given up: serials"), "{done}");
    let kept_of = |client: &mut NbdClient| -> Result<u64> {
        // A prefix of the writes is kept, in order, and nothing after it.
        let mut kept = 0;
        for block in 0..blocks {
            let found = client.read(block * (64 << 10), 64 << 10)?;
            if found == vec![block as u8 | 1; 64 << 10] {
                ensure!(kept == block, "block {block} is there, {kept} is not");
                kept += 1;
            } else {
                ensure!(found == vec![0; 64 << 10], "block {block}: what it was before");
            }
        }
        Ok(kept)
    };
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    let kept = kept_of(&mut client)?;
    ensure!(kept > 64 && kept < blocks, "{kept}");
    client.write(63 << 20, &[7; 4096])?;
    drop(client);
    daemon.kill_all()?;
    daemon.up()?;
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    assert_eq!(kept_of(&mut client)?, kept, "for ever");
    assert_eq!(client.read(63 << 20, 4096)?, [7; 4096]);
    daemon.drain("hurt")?;
    Ok(())
}

#[test]
fn a_scrub_finds_what_nobody_reads_and_has_it_salvaged() -> Result<()> {
    let (mut daemon, image) = hurt_and_slow("salvage-scrub")?;
    daemon.stop()?;
    daemon.set_arguments([]);
    daemon.up()?;
    let verify = |more: &[&str]| -> Result<Value> {
        let dir = daemon.dir.display().to_string();
        let output =
            Shell::new(binary()).args(["verify", "--json", "--dir", &dir]).args(more).output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    assert_eq!(verify(&["--rate", "10M"])?["result"]["damaged"], 1);
    ensure!(outcomes(&daemon).is_empty(), "nobody has asked for a salvage");
    verify(&["--salvage"])?;
    wait_until("the salvage", || outcomes(&daemon) == ["waiting"])?;
    let history = daemon.cli(&["salvage", "history", "hurt"])?.to_string();
    ensure!(history.contains("a check found"), "{history}");
    daemon.cli(&["salvage", "run", "hurt", "--accept-losses"])?;
    let before = outcomes(&daemon).len();
    // The footer of another pack is damaged: nothing is lost by that.
    for path in objects(&daemon.dir.join("store/packs/data"))? {
        let mut object = std::fs::read(&path)?;
        let last = object.len() - 30;
        object[last] ^= 1;
        std::fs::write(&path, object)?;
    }
    // The second attempt is not due at once.
    wait_until("the second salvage", || {
        let found = verify(&["--salvage"]).unwrap_or_default().to_string();
        outcomes(&daemon).len() > before || !found.contains("its footer is damaged")
    })?;
    let history = daemon.cli(&["salvage", "history", "hurt"])?;
    ensure!(history.to_string().contains("nothing is lost"), "{history}");
    wait_until("all to be well", || {
        verify(&[]).is_ok_and(|found| !found.to_string().contains("footer"))
    })?;
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    assert_eq!(whole(&mut client, &image).iter().filter(|is_whole| !**is_whole).count(), 1);
    Ok(())
}

#[test]
fn a_scrub_begins_by_the_clock_and_nobody_has_to_ask() -> Result<()> {
    let (mut daemon, image) = hurt_and_slow("salvage-clock")?;
    daemon.stop()?;
    let text = "[scrub]\ninterval = '1s'\nrate = '100M'\n";
    daemon.set_options(Options::with_settings("salvage-clock", text, &[])?);
    daemon.up()?;
    let waits = |outcome: &String| outcome == "waiting";
    wait_until("the salvage", || outcomes(&daemon).iter().any(waits))?;
    let history = daemon.cli(&["salvage", "history", "hurt"])?.to_string();
    ensure!(history.contains("a check found"), "{history}");
    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    assert_eq!(whole(&mut client, &image).iter().filter(|is_whole| !**is_whole).count(), 1);
    Ok(())
}

/// Returns the files below a folder that have other bytes than below another one, or none there.
fn differing(folder: &Path, other: &Path) -> Result<Vec<PathBuf>> {
    let (mut open, mut found) = (vec![PathBuf::new()], Vec::new());
    while let Some(below) = open.pop() {
        for entry in std::fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                open.push(path);
            } else if std::fs::read(entry.path())?
                != std::fs::read(other.join(&path)).unwrap_or_default()
            {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[test]
fn damage_in_a_file_system_costs_what_a_salvage_names_by_path_and_the_rest_stays() -> Result<()> {
    let mut daemon = Daemon::start("salvage-files")?;
    daemon.cli(&["fs", "create", "home"])?;
    let mut random = for_story("salvage-files");
    let here = daemon.scratch().join("here");
    for folder in 0..10 {
        let folder = here.join(format!("folder {folder}"));
        std::fs::create_dir_all(&folder)?;
        for file in 0..20 {
            std::fs::write(folder.join(format!("file {file}")), random.bytes(9000 + file))?;
        }
    }
    let path = |path: &Path| path.display().to_string();
    daemon.cli(&["fs", "import", &path(&here), "home"])?;
    daemon.drain("home")?;
    let export = |daemon: &Daemon, name: &str| -> Result<PathBuf> {
        let folder = daemon.scratch().join(name);
        daemon.cli(&["fs", "export", "home", &path(&folder)])?;
        Ok(folder)
    };
    daemon.stop()?;
    damage(&daemon.data_pack()?)?;
    daemon.up()?;
    let is_well = || daemon.status().is_ok_and(|status| status["health"]["state"] == "well");
    ensure!(is_well(), "no one has met the damage");
    daemon.cli_that_fails(&["verify"])?;
    let health = daemon.status()?["health"].to_string();
    ensure!(
        health.contains("volume-unreadable") && health.contains("salvage run home"),
        "{health}"
    );
    let plan = daemon.cli_that_fails(&["salvage", "run", "home"])?["result"]["done"].to_string();
    ensure!(
        plan.contains("this would be lost: /folder ") && plan.contains("--accept-losses"),
        "{plan}"
    );
    ensure!(export(&daemon, "refused").is_err(), "an error, and no other bytes");
    let rest = daemon.scratch().join("rest");
    let arguments = ["fs", "export", "home", &path(&rest), "--keep-going"];
    let told = daemon.cli_that_fails(&arguments)?;
    let left_out: Vec<_> = told["left_out"].as_array().into_iter().flatten().collect();
    ensure!(!left_out.is_empty() && left_out.len() <= 20, "{told}");
    assert_eq!(told["damaged"], left_out.len());
    let missing = differing(&here, &rest)?;
    assert_eq!(missing.len(), left_out.len(), "{missing:?}: {told}");
    for one in left_out {
        let one = Path::new(one["path"].as_str().unwrap_or_default());
        ensure!(!rest.join(one).exists() && here.join(one).exists(), "{told}");
    }
    daemon.cli(&["salvage", "run", "home", "--accept-losses"])?;
    ensure!(is_well(), "{}", daemon.status()?);
    let history = daemon.cli(&["salvage", "history", "home"])?.to_string();
    let hurt = differing(&here, &export(&daemon, "first")?)?;
    ensure!(!hurt.is_empty() && hurt.len() <= 20, "{hurt:?}");
    for hurt in &hurt {
        ensure!(history.contains(&format!("lost: /{}: bytes ", hurt.display())), "{history}");
    }
    assert_eq!(daemon.cli(&["volume", "show", "home"])?["reason"], Value::Null);

    // A page of metadata, in each pack of them, and memory has none.
    daemon.stop()?;
    daemon.remove_warm();
    for pack in objects(&daemon.dir.join("store/packs/meta"))? {
        damage(&pack)?;
    }
    daemon.up()?;
    daemon.cli(&["salvage", "run", "home", "--accept-losses"])?;
    let left = export(&daemon, "second")?;
    let changed: Vec<_> = differing(&left, &here)?
        .into_iter()
        .filter(|path| !path.starts_with("lost+found") && !hurt.contains(path))
        .collect();
    ensure!(changed.is_empty(), "{changed:?}");
    let sound = daemon.cli(&["salvage", "run", "home"])?["result"]["done"].to_string();
    ensure!(sound.contains("all of them sound"), "{sound}");
    Ok(())
}

#[test]
fn a_check_tells_what_only_the_log_has_also_of_a_volume_at_rest() -> Result<()> {
    let mut daemon = Daemon::start("salvage-at-rest")?;
    daemon.create("disk", "8M", &[])?;
    let bytes = for_story("salvage-at-rest").bytes(1 << 20);
    NbdClient::connect(&daemon.socket(), "disk")?.write(0, &bytes)?;
    daemon.kill_all()?;
    daemon.up()?;
    let unchecked = || -> Result<u64> {
        let found = daemon.cli(&["verify", "disk"])?;
        found["result"]["unchecked_bytes"].as_u64().context("it says how much")
    };
    let count = unchecked()?;
    ensure!(count >= 1 << 20, "{count}");
    // In service, too, and also when it is damaged there.
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    daemon.store_goes()?;
    client.write(0, &bytes)?;
    client.flush()?;
    // The log confirms its last write.
    std::thread::sleep(Duration::from_secs(2));
    drop(client);
    daemon.kill_all()?;
    daemon.store_comes_back()?;
    daemon.remove_warm();
    let mut damaged = 0;
    for path in objects(&daemon.dir.join("flash"))? {
        let mut content = std::fs::read(&path)?;
        while let Some(at) = content.windows(64).position(|found| *found == bytes[..64]) {
            content[at] ^= 1;
            damaged += 1;
        }
        std::fs::write(&path, content)?;
    }
    ensure!(damaged > 0, "the log has what was written");
    daemon.up()?;
    let told = daemon.cli_that_fails(&["verify", "disk"])?.to_string();
    ensure!(told.contains("not in the store yet"), "{told}");
    let mut client = NbdClient::connect(&daemon.socket(), "disk")?;
    ensure!(client.read(0, 4096).is_err(), "it is damaged");
    let told = daemon.cli_that_fails(&["verify", "disk"])?.to_string();
    ensure!(told.contains("not in the store yet"), "{told}");
    Ok(())
}
