//! `rekindle jobs`: long work of the daemon.

use super::{client, job};
use crate::arguments::{Common, Jobs};
use rekindle_front::http::api::{Job, JobState};
use rekindle_front::uri::escape;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;

/// Runs the command.
pub fn run(common: &Common, jobs: &Jobs) -> Outcome {
    let client = client(common)?;
    match jobs {
        Jobs::Ls => {
            let jobs: Vec<Job> = client.get("/api/v1/jobs")?;
            let head = ["ID", "JOB", "OF", "STATE", "BEGAN", "PROGRESS"];
            common.rows(jobs, "there were no jobs since the daemon started", head, row);
        }
        Jobs::Cancel(cancel) => {
            let job: Job = client.delete(&format!("/api/v1/jobs/{}", escape(&cancel.id)))?;
            common.told(
                &job,
                &format!("job {}, {} of {}: {}", job.id, job.kind, job.subject, told(&job)),
            );
        }
    }
    Ok(())
}

fn told(job: &Job) -> &'static str {
    match job.state {
        JobState::Running => "ends after the step that it is in",
        JobState::Done => "was done already",
        JobState::Failed => "had failed already",
        JobState::Cancelled => "is broken off",
    }
}

fn row(one: Job) -> [String; 6] {
    let state = match one.state {
        JobState::Running => "runs",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "broken off",
    };
    let progress = match &one.problem {
        Some(problem) => problem.message.clone(),
        // A job that counts nothing has no progress to show at its end.
        None if one.done == 0 && one.state != JobState::Running => "-".to_owned(),
        None => job::line(&one, "").trim_start_matches(": ").to_owned(),
    };
    [one.id, one.kind, one.subject, state.to_owned(), output::moment(one.started), progress]
}
