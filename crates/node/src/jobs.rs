//! Long work: a request begins it, others ask about it, and its result is kept for a while.

use crate::limits;
use parking_lot::Mutex;
use rekindle_base::Incarnation;
use rekindle_env::{Env, Moment};
use rekindle_front::http::api::{ApiError, Job, JobState, Problem};
use serde_json::Value;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The jobs of a node. Clones mean the same ones.
#[derive(Clone)]
pub struct Jobs {
    env: Env,
    state: Arc<Mutex<JobList>>,
}

#[derive(Default)]
struct JobList {
    /// The id of the last job.
    last: u64,
    /// Oldest first.
    jobs: VecDeque<Entry>,
}

struct Entry {
    job: Job,
    began: Moment,
    /// Whether the end of the job was requested.
    cancelled: bool,
    /// Sender that ends the job at once.
    interrupt: Option<oneshot::Sender<()>>,
}

/// The reporter of a job's progress.
#[derive(Clone)]
pub struct Progress {
    jobs: Jobs,
    id: String,
}

impl Progress {
    /// Sets the done units, and the total if it is known.
    pub fn set(&self, done: u64, total: Option<u64>) {
        self.jobs.change(&self.id, |entry, now| {
            entry.job.done = done;
            entry.job.total = total;
            let taken = u64::try_from((now - entry.began).as_millis()).unwrap_or(u64::MAX);
            // Other units vary too much in time for an estimate.
            let counts = entry.job.unit == "bytes";
            entry.job.eta_ms = if counts { eta(done, total, taken) } else { None };
        });
    }
}

/// Estimates the time left, at the pace so far.
fn eta(done: u64, total: Option<u64>, taken_ms: u64) -> Option<u64> {
    let left = total?.saturating_sub(done);
    (done > 0).then(|| {
        u64::try_from(u128::from(taken_ms) * u128::from(left) / u128::from(done))
            .unwrap_or(u64::MAX)
    })
}

impl Jobs {
    /// Makes an empty list of jobs.
    #[must_use]
    pub fn new(env: Env) -> Self {
        Self { env, state: Arc::default() }
    }

    /// Numbers the jobs of this start apart from those of others: one that waits for a job of an
    /// earlier start must not find another one.
    pub fn number_for(&self, incarnation: Incarnation) {
        self.state.lock().last = incarnation.0 * limits::JOBS_OF_A_START;
    }

    /// Begins a job of `kind` on `subject`, counted in `unit`. If a job of this kind and subject
    /// runs already, returns that one: asking twice is asking once.
    pub fn begin<F>(
        &self,
        kind: &'static str,
        subject: &str,
        unit: &str,
        work: impl FnOnce(Progress) -> F,
    ) -> Job
    where
        F: Future<Output = Result<Value, ApiError>> + Send + 'static,
    {
        let (interrupt, interrupted) = oneshot::channel();
        let job = {
            let mut state = self.state.lock();
            let same = |job: &Job| {
                job.state == JobState::Running && job.kind == kind && job.subject == subject
            };
            if let Some(entry) = state.jobs.iter().find(|entry| same(&entry.job)) {
                return entry.job.clone();
            }
            state.last += 1;
            let job = Job {
                id: state.last.to_string(),
                kind: kind.to_owned(),
                subject: subject.to_owned(),
                unit: unit.to_owned(),
                started: self.env.wall_clock().0,
                ..Job::default()
            };
            state.jobs.push_back(Entry {
                job: job.clone(),
                began: self.env.now(),
                cancelled: false,
                interrupt: Some(interrupt),
            });
            forget(&mut state.jobs);
            job
        };
        let progress = Progress { jobs: self.clone(), id: job.id.clone() };
        let work = work(progress);
        let (jobs, id) = (self.clone(), job.id.clone());
        self.env.spawn(kind, async move {
            // A panic of the work ends the job as well, so that no client polls for ever.
            let mut end = End {
                jobs,
                id,
                outcome: Some(Err(ApiError::new(rekindle_base::Kind::Io, "it was interrupted"))),
            };
            let mut work = std::pin::pin!(work);
            tokio::select! {
                biased;
                outcome = &mut work => end.outcome = Some(outcome),
                // A job that is forgotten has ended; its sender goes with it.
                Ok(()) = interrupted => {}
            }
        });
        job
    }

    /// Ends a job at once, wherever it is: only for work that changes nothing.
    pub fn interrupt(&self, id: &str) {
        self.change(id, |entry, _| {
            if let Some(interrupt) = entry.interrupt.take() {
                let _ = interrupt.send(());
            }
        });
    }

    /// Notes a request for the job's end: unless the job succeeds, its state is then `Cancelled`.
    pub fn cancelled(&self, id: &str) {
        self.change(id, |entry, _| {
            entry.cancelled = true;
            if entry.job.state == JobState::Failed {
                entry.job.state = JobState::Cancelled;
            }
        });
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Entry, Moment)) {
        let now = self.env.now();
        if let Some(entry) = self.state.lock().jobs.iter_mut().find(|entry| entry.job.id == id) {
            change(entry, now);
        }
    }

    /// Lists all jobs, newest first.
    #[must_use]
    pub fn all(&self) -> Vec<Job> {
        self.state.lock().jobs.iter().rev().map(|entry| entry.job.clone()).collect()
    }

    /// Returns one job.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<Job> {
        self.state
            .lock()
            .jobs
            .iter()
            .find(|entry| entry.job.id == id)
            .map(|entry| entry.job.clone())
    }

    /// Returns the newest job of a kind in a state.
    #[must_use]
    pub fn latest(&self, kind: &str, state: JobState) -> Option<Job> {
        self.all().into_iter().find(|job| job.kind == kind && job.state == state)
    }
}

/// Drops the oldest finished jobs beyond the bound.
fn forget(jobs: &mut VecDeque<Entry>) {
    while jobs.len() > limits::JOBS_KEPT {
        let Some(oldest) = jobs.iter().position(|entry| entry.job.state != JobState::Running)
        else {
            return;
        };
        jobs.remove(oldest);
    }
}

/// The end of a job: records the outcome when it is dropped, however that comes about.
struct End {
    jobs: Jobs,
    id: String,
    outcome: Option<Result<Value, ApiError>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let Some(outcome) = self.outcome.take() else { return };
        let finished = self.jobs.env.wall_clock().0;
        self.jobs.change(&self.id, |entry, _| {
            entry.job.finished = Some(finished);
            entry.job.eta_ms = None;
            match outcome {
                Ok(result) => {
                    entry.job.state = JobState::Done;
                    entry.job.result = result;
                }
                Err(_) if entry.cancelled => entry.job.state = JobState::Cancelled,
                Err(error) => {
                    entry.job.state = JobState::Failed;
                    entry.job.problem = Some(Problem::from(&error));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::Kind;
    use std::time::Duration;

    async fn ended(jobs: &Jobs, id: &str) -> Job {
        loop {
            let job = jobs.find(id).expect("remembered");
            if job.state != JobState::Running {
                return job;
            }
            jobs.env.sleep(Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn jobs_tell_how_far_they_are_and_how_they_ended() {
        let (env, runtime) = rekindle_env::real::env().expect("an environment");
        let jobs = Jobs::new(env);
        runtime.block_on(async {
            let (go, wait) = tokio::sync::oneshot::channel::<()>();
            let first = jobs.begin("verify", "vm1", "chunks", |progress| async move {
                progress.set(1, Some(4));
                let _ = wait.await;
                Ok(serde_json::json!({"damaged": 0}))
            });
            let again = jobs.begin("verify", "vm1", "chunks", |_| async { Ok(Value::Null) });
            assert_eq!(first.id, again.id, "asking twice is asking once");
            go.send(()).expect("it waits");
            let done = ended(&jobs, &first.id).await;
            assert_eq!((done.state, done.done, done.total), (JobState::Done, 1, Some(4)));
            let failed = jobs.begin("verify", "vm1", "chunks", |_| async {
                Err(ApiError::new(Kind::Damaged, "a pack is gone"))
            });
            let failed = ended(&jobs, &failed.id).await;
            assert_eq!(failed.problem.expect("a reason").error, "damaged");
            let panicked = jobs.begin("drain", "vm1", "bytes", |_| async { panic!("on purpose") });
            assert_eq!(ended(&jobs, &panicked.id).await.state, JobState::Failed);
            assert_eq!(jobs.all().len(), 3);
        });
    }

    #[test]
    fn a_job_that_is_broken_off_ends_at_once_and_says_so() {
        let (env, runtime) = rekindle_env::real::env().expect("an environment");
        let jobs = Jobs::new(env);
        runtime.block_on(async {
            let job = jobs.begin("verify", "vm1", "chunks", |progress| async move {
                progress.set(3, Some(4));
                std::future::pending().await
            });
            jobs.cancelled(&job.id);
            jobs.interrupt(&job.id);
            let ended = ended(&jobs, &job.id).await;
            assert_eq!((ended.state, ended.problem), (JobState::Cancelled, None));
            assert_eq!(ended.eta_ms, None, "nobody knows how long chunks take");
        });
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (env, runtime) = rekindle_env::real::env().expect("an environment");
        let jobs = Jobs::new(env);
        runtime.block_on(async {
            for number in 0..limits::JOBS_KEPT * 2 {
                let job = jobs
                    .begin("drain", &number.to_string(), "bytes", |_| async { Ok(Value::Null) });
                ended(&jobs, &job.id).await;
            }
        });
        assert_eq!(jobs.all().len(), limits::JOBS_KEPT);
    }

    #[test]
    fn a_job_of_an_earlier_start_is_not_found() {
        let (env, runtime) = rekindle_env::real::env().expect("an environment");
        let before = Jobs::new(env.clone());
        before.number_for(Incarnation(7));
        let now = Jobs::new(env);
        now.number_for(Incarnation(8));
        runtime.block_on(async {
            let begin =
                |jobs: &Jobs| jobs.begin("drain", "", "bytes", |_| async { Ok(Value::Null) });
            let (old, _) = (begin(&before), begin(&now));
            assert!(now.find(&old.id).is_none(), "{}", old.id);
        });
    }

    #[test]
    fn the_time_left_follows_the_time_taken() {
        assert_eq!(eta(25, Some(100), 1000), Some(3000));
        assert_eq!(eta(0, Some(100), 1000), None);
        assert_eq!(eta(5, None, 1000), None);
    }
}
