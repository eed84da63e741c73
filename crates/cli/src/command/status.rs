//! `rekindle status`: the daemon at a glance.

use super::{client, job};
use crate::arguments::{Common, Status};
use crate::client::Client;
use rekindle_base::units::format_size;
use rekindle_front::http::api::{self, Job, JobState, LogUsage, MemoryBudget, StoreInfo, Volume};
use rekindle_terminal::failure::{EXIT_FAILED, EXIT_FENCED, Outcome};
use rekindle_terminal::output;
use serde_json::{Value, json};

/// Runs the command; exit code 1 while the daemon does not serve.
#[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
pub fn run(common: &Common, status: &Status) -> Outcome<u8> {
    let client = client(common)?;
    loop {
        let found = Answers::ask(&client)?;
        common.shown(&found.json(), || found.print());
        let Some(interval) = status.watch else { return Ok(found.exit()) };
        std::thread::sleep(interval);
        output::line("");
    }
}

struct Answers {
    status: api::Status,
    log: LogUsage,
    store: StoreInfo,
    jobs: Vec<Job>,
}

impl Answers {
    fn ask(client: &Client) -> Outcome<Self> {
        let status: api::Status = client.get("/api/v1/status")?;
        if status.state != "serving" {
            // Every other request would wait for the start, or be refused.
            let (log, store) = (LogUsage::default(), StoreInfo::default());
            return Ok(Self { status, log, store, jobs: Vec::new() });
        }
        Ok(Self {
            status,
            log: client.get("/api/v1/log")?,
            store: client.get("/api/v1/store")?,
            jobs: client.get("/api/v1/jobs")?,
        })
    }

    fn exit(&self) -> u8 {
        match self.status.state.as_str() {
            "serving" => 0,
            "fenced" => EXIT_FENCED,
            _ => EXIT_FAILED,
        }
    }

    /// The daemon's own answer, with the rest beside it.
    fn json(&self) -> Value {
        let mut value = json!(self.status);
        value["pid"] = self.status.detail["pid"].clone();
        value["volumes"] = value["detail"]["volumes"].take();
        value["log"] = json!(self.log);
        value["store_detail"] = json!(self.store);
        value["jobs"] = json!(self.jobs);
        value
    }

    fn print(&self) {
        let status = &self.status;
        let uptime = output::time(status.uptime_ms);
        let mut pairs =
            vec![("state", format!("{} for {uptime}, pid {}", status.state, status.detail["pid"]))];
        let health = match status.health.reasons.as_slice() {
            [] => "well".to_owned(),
            reasons => reasons.join("; "),
        };
        pairs.push(("health", health));
        pairs.extend(status.health.notes.iter().map(|note| ("note", note.clone())));
        if let Some(stopping) = &status.stopping {
            let (done, volumes) = (stopping.done, stopping.volumes);
            let waits = &stopping.waits_for;
            pairs.push(("stop", format!("{done} of {volumes} volumes; waiting for {waits}")));
        }
        if status.state == "serving" {
            pairs.extend(self.inside());
        }
        for endpoint in &status.endpoints {
            pairs.push((endpoint.protocol.as_str(), endpoint.uri.clone()));
        }
        for job in self.jobs.iter().filter(|job| job.state == JobState::Running) {
            pairs.push(("job", job::line(job, &format!("{} {}", job.kind, job.subject))));
        }
        output::pairs(&pairs);
        let volumes: Vec<Volume> =
            serde_json::from_value(status.detail["volumes"].clone()).unwrap_or_default();
        if !volumes.is_empty() {
            output::line("");
            super::volume::print_list(&volumes);
        }
    }

    /// Returns the facts that are known once the node serves.
    fn inside(&self) -> Vec<(&str, String)> {
        let status = &self.status;
        let (used, most) =
            (format_size(self.log.flash_bytes), format_size(self.log.flash_bytes_max));
        let reach = if self.store.reachable { "" } else { "  (does not answer)" };
        vec![
            (
                "node",
                format!(
                    "{}, start {}, version {}",
                    status.node, status.incarnation, status.version
                ),
            ),
            ("store", format!("{}{reach}{}", status.store, room(&self.store))),
            (
                "flash",
                format!("{used} of {most} in {} segments{}", self.log.segments, files(&self.log)),
            ),
            ("memory", memory(&status.memory)),
            ("backlog", format_size(status.backlog_bytes)),
            ("clients", status.clients.to_string()),
            (
                "volumes",
                format!("{} in service; `rekindle volume ls` shows all", status.volumes_attached),
            ),
            ("states", states(&status.detail["states"])),
        ]
    }
}

/// Describes how much more the store takes.
fn room(store: &StoreInfo) -> String {
    match store.room_bytes {
        Some(bytes) => format!(", room for {} more", format_size(bytes)),
        None if store.unbounded => ", no bound to its room".to_owned(),
        None => String::new(),
    }
}

/// Describes the room that the log's files take.
fn files(log: &LogUsage) -> String {
    let Some(all) = log.files_bytes else { return String::new() };
    let (used, kept) = (format_size(log.files_used_bytes), format_size(log.files_kept_bytes));
    format!("; {} on the disk: {used} in use, {kept} kept to be written again", format_size(all))
}

/// Describes the memory budgets and their use.
fn memory(budgets: &[MemoryBudget]) -> String {
    let word = |budget: &MemoryBudget| {
        let (used, most) = (format_size(budget.used_bytes), format_size(budget.budget_bytes));
        format!("{} {used} of {most}", budget.name)
    };
    budgets.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Describes how many volumes are in each state, of those that were asked for since the start.
fn states(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten();
    let some = counts.filter(|(_, count)| count.as_u64() != Some(0));
    let words: Vec<String> = some.map(|(state, count)| format!("{count} {state}")).collect();
    if words.is_empty() { "none was asked for yet".to_owned() } else { words.join(", ") }
}
