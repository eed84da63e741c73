//! The words to a user of the command line: [`output`] prints results, tables and progress,
//! [`failure`] says what failed, why, and what to do next. Both speak JSON to programs. [`words`]
//! reads what the user says.
//!
//! Commands, the supervisor and the appliance all speak through this crate, and so in one way.

#![warn(clippy::print_stderr, clippy::print_stdout)]

pub mod failure;
pub mod output;
pub mod words;
