//! Rounds: the sides take turns. The middle run of each side counts, and the best one is shown
//! beside it.

use crate::arguments::{Arguments, Layout};
use crate::machine::{self, Watch};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Context of every experiment.
#[derive(Clone)]
pub struct Bench {
    pub rounds: usize,
    pub seconds: u64,
    /// Size of the data of a store, bytes.
    pub size: u64,
    pub layout: Layout,
    /// Longest wait of a run for other processes to leave the machine alone.
    pub patience: Duration,
    /// A folder on the real disk; emptied at the start.
    pub scratch: PathBuf,
    /// The released binary.
    pub binary: PathBuf,
    /// Whether experiments that take very long are run.
    pub nightly: bool,
}

/// A measured run.
#[derive(Debug, Clone, Copy)]
pub struct Run<T> {
    pub value: T,
    /// Share of one core that others used meanwhile.
    pub others: f64,
    /// CPU seconds that the whole machine used, of clients, servers and the kernel.
    pub used: f64,
}

impl<T> Run<T> {
    /// Returns the run with another value, which is made of its own.
    pub fn map<U>(&self, of: impl FnOnce(&T) -> U) -> Run<U> {
        Run { value: of(&self.value), others: self.others, used: self.used }
    }
}

/// The runs of two sides.
pub struct Sides<A, B> {
    pub ours: Vec<Run<A>>,
    pub theirs: Vec<Run<B>>,
}

impl Bench {
    /// Creates the context that the command line asks for.
    pub fn new(arguments: &Arguments) -> Result<Self> {
        let repository = repository();
        let scratch = repository.join("target/bench");
        match std::fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("the scratch folder cannot be emptied");
            }
            _ => std::fs::create_dir_all(&scratch)?,
        }
        let binary = std::env::var_os("REKINDLE_BINARY")
            .map_or_else(|| repository.join("target/release/rekindle"), PathBuf::from);
        Ok(Self {
            rounds: arguments.rounds,
            seconds: arguments.seconds,
            size: arguments.size,
            layout: arguments.layout.clone(),
            patience: arguments.patience,
            scratch,
            binary,
            nightly: arguments.nightly,
        })
    }

    /// Runs once, when the machine is quiet.
    pub fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Run<T>> {
        machine::wait_for_quiet(self.patience);
        let watch = Watch::start();
        let value = work()?;
        Ok(Run { value, others: watch.others(), used: watch.used() })
    }

    /// Runs two sides in turns. A disturbed run does not count, and is made up for as long as there
    /// are not twice as many runs as rounds.
    pub fn alternate<A, B>(
        &self,
        mut ours: impl FnMut() -> Result<A>,
        mut theirs: impl FnMut() -> Result<B>,
    ) -> Result<Sides<A, B>> {
        let mut sides = Sides { ours: Vec::new(), theirs: Vec::new() };
        for _ in 0..self.rounds * 2 {
            if enough(&sides.ours, self.rounds) && enough(&sides.theirs, self.rounds) {
                break;
            }
            sides.ours.push(self.run(&mut ours)?);
            sides.theirs.push(self.run(&mut theirs)?);
        }
        Ok(sides)
    }

    /// Runs one side, with the same rule for disturbed runs.
    pub fn repeat<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<Vec<Run<T>>> {
        let mut runs = Vec::new();
        for _ in 0..self.rounds * 2 {
            if enough(&runs, self.rounds) {
                break;
            }
            runs.push(self.run(&mut work)?);
        }
        Ok(runs)
    }
}

fn is_quiet<T>(run: &Run<T>) -> bool {
    run.others < machine::DISTURBED
}

fn enough<T>(runs: &[Run<T>], rounds: usize) -> bool {
    runs.iter().filter(|run| is_quiet(run)).count() >= rounds
}

/// Selects the undisturbed runs; all of them when each was disturbed.
fn counted<T>(runs: &[Run<T>]) -> Vec<&Run<T>> {
    let quiet = runs.iter().any(is_quiet);
    runs.iter().filter(|run| !quiet || is_quiet(run)).collect()
}

/// Finds the run with the largest measure: of the undisturbed ones, when there are some.
pub fn best<T>(runs: &[Run<T>], measure: impl Fn(&T) -> f64) -> &Run<T> {
    counted(runs)
        .into_iter()
        .max_by(|a, b| measure(&a.value).total_cmp(&measure(&b.value)))
        .expect("there is at least one round")
}

/// Finds the run in the middle: of the undisturbed ones, when there are some. Of an even number,
/// the one with the smaller measure.
pub fn middle<T>(runs: &[Run<T>], measure: impl Fn(&T) -> f64) -> &Run<T> {
    let mut counted = counted(runs);
    counted.sort_by(|a, b| measure(&a.value).total_cmp(&measure(&b.value)));
    counted[(counted.len() - 1) / 2]
}

/// Returns the middle value of a measure.
pub fn median<T>(runs: &[Run<T>], measure: impl Fn(&T) -> f64) -> f64 {
    measure(&middle(runs, &measure).value)
}

/// Formats a note beside a verdict that comes from the middle runs: the best ratio, and the number
/// of rounds.
pub fn beside<A, B>(
    sides: &Sides<A, B>,
    ours: impl Fn(&A) -> f64,
    theirs: impl Fn(&B) -> f64,
) -> String {
    let ratio = ours(&best(&sides.ours, &ours).value) / theirs(&best(&sides.theirs, &theirs).value);
    let rounds = (sides.ours.len(), sides.theirs.len());
    format!("best against best {ratio:.2}x; {} against {} rounds", rounds.0, rounds.1)
}

/// Formats the times of several rounds, ms.
pub fn times(runs: &[Run<f64>]) -> String {
    let (middle, best) = (median(runs, |ms| *ms), best(runs, |ms| -ms).value);
    format!("median {} ms, best {} ms, {} rounds", short(middle), short(best), runs.len())
}

/// Formats all values for a note, which shows how far apart the runs are.
pub fn spread<T>(runs: &[Run<T>], measure: impl Fn(&T) -> f64) -> String {
    let values: Vec<String> = runs.iter().map(|run| short(measure(&run.value))).collect();
    values.join(" ")
}

/// Returns the folder of the repository.
pub fn repository() -> PathBuf {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("bench lies in the repository").to_owned()
}

/// Formats a number with three digits or so.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{:.1}k", value / 1000.0),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_undisturbed_runs_count() {
        let run = |value, others| Run { value, others, used: 0.0 };
        let runs = [run(5.0, 0.0), run(9.0, 0.5), run(6.0, 0.01)];
        assert_eq!(best(&runs, |value| *value).value, 6.0);
        assert_eq!(best(&runs[1..2], |value| *value).value, 9.0);
        assert_eq!(best(&runs, |value| -*value).value, 5.0);
        assert_eq!(median(&runs, |value| *value), 5.0);
        let odd = [5.0, 9.0, 6.0].map(|value| run(value, 0.0));
        assert_eq!(median(&odd, |value| *value), 6.0);
        assert_eq!(median(&odd, |value| -*value), -6.0);
        assert!(enough(&runs, 2) && !enough(&runs, 3));
    }
}
