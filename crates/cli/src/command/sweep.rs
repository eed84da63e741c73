//! `rekindle sweep`: give back what no volume reaches.

use super::{client, job};
use crate::arguments::{Common, Sweep};
use crate::failure::Outcome;
use crate::output;
use front::http::api::{Dismissed, Job, SweepStatus};
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
        Sweep::Run(run) => {
            let begun: Job = client.post("/api/v1/sweep", &json!({}))?;
            if run.detach {
                job::begun(&begun, common.json);
                return Ok(0);
            }
            let done = job::follow(&client, begun, "sweep")?;
            if common.json {
                output::json(&done);
            } else {
                output::line("swept");
                print_counters(&done.result);
            }
        }
        Sweep::Dismiss(gone) => {
            let request = json!({ "node": gone.node.to_string() });
            let dismissed: Dismissed = client.post("/api/v1/sweep/dismiss", &request)?;
            if common.json {
                output::json(&dismissed);
            } else {
                output::line(&format!(
                    "no sweep waits for node {} (start {}) any more",
                    dismissed.node, dismissed.start
                ));
            }
        }
    }
    Ok(0)
}

/// Counters that the daemon chose to give.
pub fn print_counters(counters: &Value) {
    let shown = shown(counters);
    let pairs: Vec<_> = shown.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    output::pairs(&pairs);
}

/// What a counter is called among people.
fn called(name: &str) -> String {
    let plain = match name {
        "sweeps" => "sweeps ended since the start",
        "packs_total" => "packs in the store",
        "packs_live" => "packs in use",
        "packs_condemned" => "packs found unused",
        "packs_rescued" => "packs used again meanwhile",
        "packs_compacted" => "packs written anew",
        "packs_deleted" => "packs deleted",
        "notes_deleted" => "notes of moves deleted",
        "bytes_freed" => "freed",
        "bytes_copied" => "copied to free it",
        "started_microseconds" => "began",
        "ended_microseconds" => "ended",
        other => return other.replace('_', " "),
    };
    plain.to_owned()
}

fn shown(counters: &Value) -> Vec<(String, String)> {
    let text = |name: &str, value: &Value| match (value.as_u64(), value.as_str()) {
        (Some(time), _) if name.ends_with("_microseconds") => output::moment(time),
        (Some(bytes), _) if name.contains("bytes") => base::units::format_size(bytes),
        (_, Some(text)) => text.to_owned(),
        _ => value.to_string(),
    };
    let counters = counters.as_object().into_iter().flatten();
    // What did not happen is not said.
    let counters = counters.filter(|(_, value)| !value.is_null());
    counters.map(|(name, value)| (called(name), text(name, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_happen_is_not_said() {
        let counters = json!({ "failure": null, "phase": "idle", "bytes_freed": 1024 });
        assert_eq!(
            shown(&counters),
            [("freed", "1 KiB"), ("phase", "idle")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }
}
