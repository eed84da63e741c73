//! Damage in the store costs the bytes that are lost, and nothing else.

use anyhow::{Context, Result, ensure};
use e2e::Daemon;
use e2e::nbd_client::NbdClient;
use e2e::random::Random;
use e2e::shell::wait_until;
use std::time::Duration;

const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 4;
const OTHERS: usize = 20;

/// Which blocks of the volume can be read and are what was written.
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
    let mut random = Random::for_story("salvage");
    let image = random.bytes(BLOCKS * BLOCK);
    daemon.create("hurt", "1M", &[])?;
    NbdClient::connect(&daemon.socket(), "hurt")?.write(0, &image)?;
    daemon.drain("hurt")?;
    let folder = daemon.dir.join("store/packs/data");
    let pack = std::fs::read_dir(&folder)?.next().context("a pack")??.path();
    let others: Vec<(String, Vec<u8>)> =
        (0..OTHERS).map(|number| (format!("other{number}"), random.bytes(BLOCK))).collect();
    for (name, bytes) in &others {
        daemon.create(name, "1M", &[])?;
        NbdClient::connect(&daemon.socket(), name)?.write(0, bytes)?;
    }
    daemon.stop()?;
    let mut object = std::fs::read(&pack)?;
    object[400] ^= 1;
    std::fs::write(&pack, object)?;
    daemon.up()?;

    let mut client = NbdClient::connect(&daemon.socket(), "hurt")?;
    let mut clients = Vec::new();
    for (name, _) in &others {
        clients.push(NbdClient::connect(&daemon.socket(), name)?);
    }
    let before = whole(&mut client, &image);
    ensure!(before.iter().filter(|is_whole| !**is_whole).count() == 1, "{before:?}");
    wait_until("the salvage", Duration::from_secs(60), || {
        for (client, (name, bytes)) in clients.iter_mut().zip(&others) {
            assert_eq!(&client.read(0, BLOCK).unwrap_or_default(), bytes, "{name} serves");
        }
        daemon
            .cli(&["salvage", "history", "hurt"])
            .is_ok_and(|history| history[0]["outcome"] == "repaired")
    })?;
    let history = daemon.cli(&["salvage", "history"])?;
    ensure!(history.to_string().contains("lost: bytes"), "{history}");
    assert_eq!(daemon.cli(&["volume", "show", "hurt"])?["state"], "attached");
    assert_eq!(whole(&mut client, &image), before, "the same block, no other");
    assert_eq!(daemon.cli(&["salvage", "queue"])?.as_array().map(Vec::len), Some(0));

    // What is lost stays lost over a crash, and is whole again once it is written; also with the bytes of before.
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
