//! `rekindle sweep`: give back what no volume reaches.

use super::{client, job};
use crate::arguments::{Common, Sweep};
use rekindle_front::http::api::{Dismissed, Job, SweepStatus};
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
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
        Sweep::Plan => {
            let begun: Job = client.post("/api/v1/sweep/plan", &json!({}))?;
            let done = job::follow(&client, begun, "sweep plan")?;
            common.shown(&done.result, || print_counters(&done.result));
        }
        Sweep::Run(run) => {
            let begun: Job = client.post("/api/v1/sweep", &json!({}))?;
            if run.detach {
                job::begun(common, &begun);
                return Ok(0);
            }
            let done = job::follow(&client, begun, "sweep")?;
            common.shown(&done, || {
                output::line("swept");
                print_counters(&done.result);
            });
        }
        Sweep::Dismiss(gone) => {
            let request = json!({ "node": gone.node.to_string() });
            let dismissed: Dismissed = client.post("/api/v1/sweep/dismiss", &request)?;
            common.told(
                &dismissed,
                &format!(
                    "no sweep waits for node {} (start {}) any more",
                    dismissed.node, dismissed.start
                ),
            );
        }
    }
    Ok(0)
}

/// Prints the counters that the daemon chose to give.
pub fn print_counters(counters: &Value) {
    let shown = shown(counters);
    let pairs: Vec<_> = shown.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    output::pairs(&pairs);
}

/// Returns the words for a counter.
fn called(name: &str) -> String {
    let plain = match name {
        "sweeps" => "sweeps ended since the start",
        "packs_total" => "packs in the store",
        "bytes_total" => "length of these packs",
        "packs_live" => "packs in use",
        "packs_young" => "unused packs, too young to delete",
        "bytes_young" => "length of those",
        "is_unchanged" => "nothing changed since the last sweep",
        "packs_dead" => "packs to delete",
        "packs_sparse" => "packs to write anew",
        "notes" => "notes of moves to delete",
        "reads" => "requests that read, about",
        "writes" => "requests that write or list, about",
        "deletes" => "requests that delete",
        "cost" => "cost of these",
        "saves_a_month" => "saved a month",
        "nodes_read" => "tree nodes read",
        "counted_anew" => "everything was counted anew, for",
        "miscounted" => "the counts had been wrong, first at pack",
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
    let parts = |value: &Value| {
        let parts = shown(value).into_iter().filter(|(_, count)| count != "0");
        parts.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    let text = |name: &str, value: &Value| match (value.as_u64(), value.as_str()) {
        _ if value.is_object() => match parts(value) {
            none if none.is_empty() => "none".to_owned(),
            some => some,
        },
        _ if value.is_boolean() => if value == true { "yes" } else { "no" }.to_owned(),
        (Some(time), _) if name.ends_with("_microseconds") => output::moment(time),
        (Some(bytes), _) if name.contains("bytes") => rekindle_base::units::format_size(bytes),
        (_, Some(text)) => text.to_owned(),
        _ => value.to_string(),
    };
    let counters = counters.as_object().into_iter().flatten();
    // A counter of nothing that happened is left out.
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
        let orphans = json!({ "orphans": { "names": 0, "removed": 2 }, "others": { "names": 0 } });
        let texts: Vec<_> = shown(&orphans).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["2 removed", "none"]);
    }
}
