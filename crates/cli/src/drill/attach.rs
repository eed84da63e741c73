//! `rekindle drill attach`: brings every volume into service and reads it here and there, as after
//! a restart of everything that has clients. The daemon reads by itself: clients and networks have
//! no part in the time.

use crate::arguments::{Attach, Common};
use crate::command::{self, job};
use rekindle_front::http::api::{BootReport, Job};
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde_json::json;

/// Runs the command.
pub fn run(common: &Common, attach: &Attach) -> Outcome<u8> {
    let client = command::client(common)?;
    let request =
        json!({ "first": attach.first, "reads": attach.reads, "at_once": attach.at_once });
    let begun: Job = client.post("/api/v1/attach", &request)?;
    let mut found = job::follow(&client, begun, "attach")?.result;
    let boot: BootReport = client.get("/api/v1/boot")?;
    let started = boot.listening_us.map(|time| time as f64 / 1e3);
    if common.json {
        // One line, which can be found in the log of a console.
        found["start_ms"] = json!(started);
        output::line(&found.to_string());
        return Ok(0);
    }
    let milliseconds =
        |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.1} ms"));
    output::pairs(&[
        ("volumes", found["volumes"].to_string()),
        ("blocks read", found["reads"].to_string()),
        ("took", milliseconds(found["took_ms"].as_f64())),
        ("last start", milliseconds(started)),
    ]);
    Ok(0)
}
