//! `rekindle status`: the daemon at a glance.

use super::client;
use crate::arguments::{Common, Status};
use crate::client::Client;
use crate::failure::Outcome;
use crate::output;
use base::units::format_size;
use front::http::api::{self, Job, JobState, LogUsage, StoreInfo, Volume};
use serde_json::{Value, json};

/// Runs the command.
#[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
pub fn run(common: &Common, status: &Status) -> Outcome {
    let client = client(common)?;
    loop {
        let found = Found::ask(&client)?;
        if common.json {
            output::json(&found.json());
        } else {
            found.print();
        }
        let Some(interval) = status.watch else { return Ok(()) };
        std::thread::sleep(interval);
        output::line("");
    }
}

struct Found {
    status: api::Status,
    log: LogUsage,
    store: StoreInfo,
    volumes: Vec<Volume>,
    jobs: Vec<Job>,
}

impl Found {
    fn ask(client: &Client) -> Outcome<Self> {
        Ok(Self {
            status: client.get("/api/v1/status")?,
            log: client.get("/api/v1/log")?,
            store: client.get("/api/v1/store")?,
            // A store that is away must not hide everything else.
            volumes: client.get("/api/v1/volumes").unwrap_or_default(),
            jobs: client.get("/api/v1/jobs")?,
        })
    }

    /// The daemon's own answer, with the rest beside it.
    fn json(&self) -> Value {
        let mut value = json!(self.status);
        value["pid"] = self.status.detail["pid"].clone();
        value["log"] = json!(self.log);
        value["store_detail"] = json!(self.store);
        value["volumes"] = json!(self.volumes);
        value["jobs"] = json!(self.jobs);
        value
    }

    fn print(&self) {
        let status = &self.status;
        let health =
            if status.health.ok { "well".to_owned() } else { status.health.reasons.join("; ") };
        let reach = if self.store.reachable { "" } else { "  (does not answer)" };
        let flash = format!(
            "{} of {} in {} segments",
            format_size(self.log.flash_bytes),
            format_size(self.log.flash_bytes_max),
            self.log.segments
        );
        output::pairs(&[
            (
                "node",
                format!(
                    "{}, start {}, version {}",
                    status.node, status.incarnation, status.version
                ),
            ),
            (
                "state",
                format!(
                    "{} for {}, pid {}",
                    status.state,
                    output::time(status.uptime_ms),
                    status.detail["pid"]
                ),
            ),
            ("health", health),
            ("store", format!("{}{reach}", status.store)),
            ("flash", flash),
            ("backlog", format_size(status.backlog_bytes)),
            ("clients", status.clients.to_string()),
        ]);
        for endpoint in &status.endpoints {
            output::pairs(&[(endpoint.protocol.as_str(), format!("   {}", endpoint.uri))]);
        }
        for job in self.jobs.iter().filter(|job| job.state == JobState::Running) {
            let total = job.total.map(|total| format!(" of {total}")).unwrap_or_default();
            output::pairs(&[(
                "job",
                format!("    {} {}: {}{total} {}", job.kind, job.subject, job.done, job.unit),
            )]);
        }
        if !self.volumes.is_empty() {
            output::line("");
            super::volume::print_list(&self.volumes);
        }
    }
}
