//! `rekindle sweep`: give back what no volume reaches.

use super::{client, job};
use crate::arguments::{Common, Sweep};
use crate::failure::Outcome;
use crate::output;
use front::http::api::{Job, SweepStatus};
use serde_json::{Value, json};

/// Runs the command.
pub fn run(common: &Common, sweep: &Sweep) -> Outcome<u8> {
    let client = client(common)?;
    match sweep {
        Sweep::Status => {
            let status: SweepStatus = client.get("/api/v1/sweep")?;
            if common.json {
                output::json(&status);
                return Ok(0);
            }
            let at = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), output::moment);
            output::pairs(&[
                ("running", status.running.clone().unwrap_or_else(|| "no".to_owned())),
                ("last", at(status.finished)),
                ("next", at(status.next)),
            ]);
            print_counters(&status.last);
        }
        Sweep::Run => {
            let begun: Job = client.post("/api/v1/sweep", &json!({}))?;
            let done = job::follow(&client, begun, "sweep")?;
            if common.json {
                output::json(&done);
            } else {
                output::line("swept");
                print_counters(&done.result);
            }
        }
    }
    Ok(0)
}

/// Counters that the daemon chose to give.
pub fn print_counters(counters: &Value) {
    let Some(counters) = counters.as_object() else { return };
    let shown = |name: &str, value: &Value| match (value.as_u64(), value.as_str()) {
        (Some(bytes), _) if name.contains("bytes") => base::units::format_size(bytes),
        (_, Some(text)) => text.to_owned(),
        _ => value.to_string(),
    };
    let pairs: Vec<_> =
        counters.iter().map(|(name, value)| (name.as_str(), shown(name, value))).collect();
    output::pairs(&pairs);
}
