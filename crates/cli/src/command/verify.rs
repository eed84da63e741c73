//! `rekindle verify`: read the chunks that volumes reach and compare them with their names.

use super::sweep::print_counters;
use super::{client, job};
use crate::arguments::{Common, Verify};
use rekindle_base::units::format_size;
use rekindle_front::http::api::Job;
use rekindle_terminal::failure::{EXIT_FAILED, Outcome};
use rekindle_terminal::output;
use serde_json::json;

/// Runs the command; exit code 1 when something is damaged.
pub fn run(common: &Common, verify: &Verify) -> Outcome<u8> {
    let client = client(common)?;
    let request = json!({
        "volume": verify.name,
        "salvage": verify.salvage,
        "bytes_per_second": verify.rate,
    });
    let begun: Job = client.post("/api/v1/verify", &request)?;
    if verify.no_wait && !verify.wait {
        job::begun(common, &begun);
        return Ok(0);
    }
    let done = job::follow(&client, begun, "verify")?;
    let damaged = done.result["damaged"].as_u64().unwrap_or(0);
    if common.json {
        output::json(&done);
    } else {
        let mut counters = done.result.clone();
        let findings = counters.as_object_mut().and_then(|counters| counters.remove("findings"));
        print_counters(&counters);
        for finding in
            findings.as_ref().and_then(|findings| findings.as_array()).into_iter().flatten()
        {
            output::line(&format!("damaged: {}", finding.as_str().unwrap_or_default()));
        }
        let unchecked = done.result["unchecked_bytes"].as_u64().unwrap_or(0);
        let owed = format_size(unchecked);
        output::line(&match (damaged, unchecked) {
            (0, 0) => "everything is what it should be".to_owned(),
            (0, _) => format!(
                "all that is in the store is what it should be; {owed} are not there yet, and were not checked"
            ),
            _ => "damage was found".to_owned(),
        });
    }
    Ok(if damaged == 0 { 0 } else { EXIT_FAILED })
}
