//! Two images with 80 % in common take about 1.2 times the space of one. Deleting one gives its
//! share back while the other is written.

use anyhow::{Context, Result};
use e2e::daemon::stored_bytes;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use rekindle_base::random::Random;
use rekindle_nbd_client::NbdClient;
use std::time::Duration;

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 2048;

#[test]
fn what_two_images_have_in_common_is_stored_once() -> Result<()> {
    let settings = "[sweep]\ncompact_below = 90\n";
    let daemon = Daemon::start_with("dedup", Options::with_settings("dedup", settings, &[])?)?;
    let store = daemon.dir.join("store");
    for name in ["one", "two"] {
        daemon.create(name, "128M", &[])?;
    }
    fill(&daemon, "one", 1)?;
    let alone = stored_bytes(&store);
    fill(&daemon, "two", 2)?;
    let both = stored_bytes(&store);
    let ratio = both as f64 / alone as f64;
    println!("one image {alone} bytes, both {both}: {ratio:.3}x");
    assert!((1.15..1.30).contains(&ratio), "{ratio}");

    // The first image is removed: the space of its own chunks comes back while the second is
    // written on.
    daemon.remove_now("one")?;
    let plan = daemon.cli(&["sweep", "plan"])?;
    let planned = |what: &str| plan[what].as_u64().with_context(|| format!("{what} of {plan}"));
    let freed = planned("bytes_freed")? as f64 / (both - alone) as f64;
    assert!((0.7..1.2).contains(&freed), "{freed} of the first image's share: {plan}");
    assert!(planned("deletes")? > 0 && planned("writes")? > 0, "{plan}");
    assert!(plan["cost"].is_string() && plan["saves_a_month"].is_string(), "{plan}");
    assert_eq!(stored_bytes(&store), both, "a plan changes nothing");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let writes = std::thread::scope(|scope| -> Result<usize> {
        let (stop, daemon) = (&stop, &daemon);
        let writer = scope.spawn(move || -> Result<usize> {
            let mut client = NbdClient::connect(&daemon.socket(), "two")?;
            let mut random = Random::new(3);
            let mut writes = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let block = random.below(BLOCKS / 20);
                client.write(block * BLOCK as u64, &image_block(2, block))?;
                writes += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(writes)
        });
        let freed = wait_until("the sweep to free the first image's share", || {
            let _ = daemon.cli(&["sweep", "run"]);
            stored_bytes(&store) as f64 <= alone as f64 * 1.12
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let writes = writer.join().expect("the writer does not panic")?;
        freed.with_context(|| format!("one image takes {alone}, now {}", stored_bytes(&store)))?;
        Ok(writes)
    })?;
    assert!(writes > 10);
    daemon.drain("two")?;
    let mut client = NbdClient::connect(&daemon.socket(), "two")?;
    for block in 0..BLOCKS {
        assert!(
            client.read(block * BLOCK as u64, BLOCK)? == image_block(2, block),
            "block {block}"
        );
    }
    Ok(())
}

fn fill(daemon: &Daemon, name: &str, image: u64) -> Result<()> {
    let mut client = NbdClient::connect(&daemon.socket(), name)?;
    for block in 0..BLOCKS {
        client.write(block * BLOCK as u64, &image_block(image, block))?;
    }
    drop(client);
    daemon.drain(name)
}

/// Builds an incompressible block; one file in five, of half a mebibyte, differs between the
/// images.
fn image_block(image: u64, block: u64) -> Vec<u8> {
    let file = block / 8;
    let seed = if file.is_multiple_of(5) { image << 32 | block } else { block };
    Random::new(seed).bytes(BLOCK)
}
