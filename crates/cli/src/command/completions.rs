//! `rekindle completions`: what a shell should offer at the Tab key.

use crate::arguments::{Cli, Completions};
use clap::CommandFactory;

/// Prints the script.
pub fn run(completions: &Completions) {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "rekindle", &mut script);
    crate::output::line(String::from_utf8_lossy(&script).trim_end());
}
