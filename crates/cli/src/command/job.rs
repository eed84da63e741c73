//! Long work of the daemon, as the command line follows it.

use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::output;
use front::http::api::{Job, JobState};
use std::time::Duration;

/// How often a job is asked.
const INTERVAL: Duration = Duration::from_millis(200);

/// Waits for the end of a job, with progress for whoever watches.
#[expect(clippy::disallowed_methods, reason = "the command line has no Env")]
pub fn follow(client: &Client, job: Job, what: &'static str) -> Outcome<Job> {
    let bar = output::progress(what);
    let mut job = job;
    while job.state == JobState::Running {
        bar.set_length(job.total.unwrap_or(0));
        bar.set_position(job.done);
        std::thread::sleep(INTERVAL);
        job = client.get(&format!("/api/v1/jobs/{}", job.id))?;
    }
    bar.finish_and_clear();
    match (job.state, &job.problem) {
        (JobState::Failed, Some(problem)) => {
            let mut failure = Failure::new(format!("cannot {what}")).because(&problem.message);
            failure.kind.clone_from(&problem.error);
            Err(failure)
        }
        (JobState::Failed, None) => {
            Err(Failure::new(format!("cannot {what}")).next("see what the daemon printed"))
        }
        _ => Ok(job),
    }
}
