//! `rekindle salvage`: repair damaged volumes.

use super::{client, job};
use crate::arguments::{Common, Named, Salvage as Request, SalvageHistory, SalvageRun};
use crate::client::volume_path;
use rekindle_front::http::api::Job;
use rekindle_terminal::failure::{EXIT_FAILED, Outcome};
use rekindle_terminal::output;
use rekindle_volume::{Account, Salvage};
use serde_json::{Value, json};

/// Runs the command; exit code 1 when damage is left.
pub fn run(common: &Common, request: &Request) -> Outcome<u8> {
    match request {
        Request::Queue => queue(common)?,
        Request::Run(run) => return begin(common, run),
        Request::Cancel(named) => cancel(common, named)?,
        Request::History(of) => history(common, of)?,
    }
    Ok(0)
}

fn queue(common: &Common) -> Outcome {
    let rows: Vec<Salvage> = client(common)?.get("/api/v1/salvages")?;
    common.rows(
        rows,
        "no volume is being salvaged, and none waits for it",
        ["VOLUME", "WORKER", "PRIORITY", "AGE", "CHUNKS", "DEVICE", "REASON"],
        |row| {
            [
                row.volume,
                row.worker.map_or_else(|| "waits".to_owned(), |worker| worker.to_string()),
                row.priority.to_string(),
                output::time(row.age_ms),
                row.chunks.to_string(),
                row.device,
                row.reason,
            ]
        },
    );
    Ok(())
}

fn begin(common: &Common, run: &SalvageRun) -> Outcome<u8> {
    let client = client(common)?;
    let begun: Job = client
        .post(&volume_path(&run.name, "/salvage"), &json!({"accept_losses": run.accept_losses}))?;
    if run.detach {
        job::begun(common, &begun);
        return Ok(0);
    }
    let done = job::follow(&client, begun, "salvage")?;
    let what = done.result["done"].as_str().unwrap_or_default();
    common.told(&done, &format!("volume '{}': {what}", run.name));
    let is_left = done.result["damage_left"].as_bool().unwrap_or(false);
    Ok(if is_left { EXIT_FAILED } else { 0 })
}

fn cancel(common: &Common, named: &Named) -> Outcome {
    let _: Value = client(common)?.delete(&volume_path(&named.name, "/salvage"))?;
    common.told(
        &json!({"cancelled": named.name}),
        &format!("the salvage of volume '{}' is broken off", named.name),
    );
    Ok(())
}

fn history(common: &Common, of: &SalvageHistory) -> Outcome {
    let path = match &of.name {
        Some(name) => volume_path(name, "/salvage"),
        None => "/api/v1/salvages/history".to_owned(),
    };
    let accounts: Vec<Account> = client(common)?.get(&path)?;
    if common.json {
        output::json(&accounts);
        return Ok(());
    }
    if accounts.is_empty() {
        output::line("nothing was salvaged");
    }
    for account in accounts {
        let (began, outcome) = (output::moment(account.began), &account.outcome);
        let (volume, attempt, reason) = (&account.volume, account.attempt, &account.reason);
        output::line(&format!(
            "{began}  volume '{volume}', attempt {attempt}: {outcome} ({reason})"
        ));
        for line in &account.lines {
            output::line(&format!("  {line}"));
        }
        if account.lines_more > 0 {
            output::line(&format!("  ... {} more", account.lines_more));
        }
    }
    Ok(())
}
