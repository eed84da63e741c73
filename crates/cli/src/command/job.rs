//! Long work of the daemon, as the command line follows it.

use crate::arguments::Common;
use crate::client::Client;
use indicatif::ProgressBar;
use rekindle_base::Kind;
use rekindle_base::units::format_size;
use rekindle_front::http::api::{Job, JobState};
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use std::time::Duration;

/// Pause between two looks at a job.
const INTERVAL: Duration = Duration::from_millis(200);

/// Waits for the end of a job, with progress for a user who watches. Ctrl-C ends the waiting, not
/// the job.
pub fn follow(client: &Client, job: Job, what: &'static str) -> Outcome<Job> {
    let mut interrupts = client.interrupts()?;
    let bar = output::progress();
    let mut job = job;
    while job.state == JobState::Running {
        show(&bar, &job, what);
        interrupts.pause(INTERVAL);
        if interrupts.interrupted() {
            bar.finish_and_clear();
            return Err(goes_on(&job, what));
        }
        job = match client.get(&format!("/api/v1/jobs/{}", job.id)) {
            Err(_) if interrupts.interrupted() => {
                bar.finish_and_clear();
                return Err(goes_on(&job, what));
            }
            Err(failure) if failure.kind == Kind::NotFound.to_string() => {
                bar.finish_and_clear();
                let ended = format!("the daemon was started again, and the {what} ended with it");
                return Err(Failure::new(ended).kind(Kind::Unavailable).next("try again"));
            }
            answer => answer?,
        };
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
        (JobState::Cancelled, _) => {
            Err(Failure::new(format!("the {what} was broken off")).kind(Kind::Unavailable))
        }
        _ => Ok(job),
    }
}

/// Prints that a job has begun, for a user who does not wait.
pub fn begun(common: &Common, job: &Job) {
    let id = &job.id;
    let words = format!(
        "job {id} has begun: `rekindle jobs ls` shows it, `rekindle jobs cancel {id}` ends it"
    );
    common.told(job, &words);
}

fn goes_on(job: &Job, what: &str) -> Failure {
    let end = match job.kind.as_str() {
        "drain" | "move" => String::new(),
        _ => format!(", `rekindle jobs cancel {}` ends it", job.id),
    };
    Failure::new(format!("not waiting any longer: the {what} goes on as job {}", job.id))
        .next(format!("`rekindle jobs ls` shows it{end}"))
        .kind(Kind::Unavailable)
}

fn show(bar: &ProgressBar, job: &Job, what: &str) {
    match job.total {
        Some(total) if total > 0 => output::show_share(bar, &line(job, what), job.done, total),
        _ => output::show_count(bar, &line(job, what)),
    }
}

/// Describes the progress of a job: counts always, time left only when it is known.
pub fn line(job: &Job, what: &str) -> String {
    let total = job.total.map(|total| format!(" of {}", count(total, &job.unit)));
    let eta = job.eta_ms.map(|eta| format!(", about {} left", output::time(eta)));
    let (total, eta) = (total.unwrap_or_default(), eta.unwrap_or_default());
    format!("{what}: {}{total}{eta}", count(job.done, &job.unit))
}

fn count(number: u64, unit: &str) -> String {
    if unit == "bytes" { format_size(number) } else { format!("{number} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_known_and_no_more() {
        let mut job = Job { done: 12, unit: "chunks".to_owned(), ..Job::default() };
        assert_eq!(line(&job, "verify"), "verify: 12 chunks");
        job.total = Some(40);
        assert_eq!(line(&job, "verify"), "verify: 12 chunks of 40 chunks");
        job.unit = "bytes".to_owned();
        (job.done, job.total, job.eta_ms) = (1 << 20, Some(3 << 20), Some(12_000));
        assert_eq!(line(&job, "drain"), "drain: 1 MiB of 3 MiB, about 12 s left");
    }

    #[test]
    fn who_stops_waiting_is_told_what_goes_on_and_how_to_end_it() {
        let mut job = Job { id: "7".to_owned(), kind: "verify".to_owned(), ..Job::default() };
        let told = goes_on(&job, "verify");
        assert!(told.error.contains("goes on as job 7"), "{}", told.error);
        assert!(told.next.is_some_and(|next| next.contains("jobs cancel 7")));
        job.kind = "drain".to_owned();
        assert!(!goes_on(&job, "drain").next.is_some_and(|next| next.contains("cancel")));
    }
}
