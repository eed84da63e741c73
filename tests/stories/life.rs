//! The life of volumes: what is stuck is named, idle ones go out of service, a stop tells how far it is.

use anyhow::{Context, Result};
use e2e::nbd_client::NbdClient;
use e2e::shell::wait_until;
use e2e::{Daemon, Options};
use serde_json::Value;
use std::time::Duration;

/// Arguments of `up` with these settings in a file.
fn settings(name: &str, text: &str, more: &[&str]) -> Result<Options> {
    let file = e2e::daemon::scratch(&format!("{name}-settings"))?.join("settings.toml");
    std::fs::write(&file, text)?;
    let mut arguments = vec!["--config".to_owned(), file.display().to_string()];
    arguments.extend(more.iter().map(|word| (*word).to_owned()));
    Ok(Options { arguments, ..Options::default() })
}

#[test]
fn a_volume_that_hangs_is_named_with_what_it_waits_for() -> Result<()> {
    let options = settings("hangs", "stuck_after = '1s'", &["--store-fault", "latency=2s"])?;
    let daemon = Daemon::start_with("hangs", options)?;
    daemon.create("vm1", "64M", &[])?;
    let socket = daemon.socket();
    let client = std::thread::spawn(move || NbdClient::connect(&socket, "vm1").map(drop));
    let mut stuck = Value::Null;
    wait_until("the watchdog to name it", Duration::from_secs(30), || {
        let status = daemon.cli(&["status"]).unwrap_or_default();
        stuck = status["detail"]["stuck"]["volumes"][0].clone();
        stuck["volume"] == "vm1" && status["health"].to_string().contains("waits for the store")
    })?;
    assert_eq!(stuck["state"], "attaching", "{stuck}");
    client.join().ok().context("the client panicked")??;
    assert!(daemon.trace().contains("volume 'vm1' is attaching for"), "{}", daemon.trace());
    let history = daemon.cli(&["volume", "history", "vm1"])?;
    assert_eq!(
        (&history[0]["event"], &history[1]["event"]),
        (&"attach".into(), &"attach-done".into())
    );
    let status = daemon.cli(&["status"])?;
    assert_eq!(status["detail"]["states"]["attached"], 1);
    assert_eq!(status["detail"]["transitions"][0]["event"], "attach", "{status}");
    wait_until("the watchdog to look again", Duration::from_secs(10), || {
        daemon.cli(&["status"]).is_ok_and(|status| status["detail"]["stuck"]["total"] == 0)
    })
}
