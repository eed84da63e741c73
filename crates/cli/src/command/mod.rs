//! One file a command.

pub mod appliance;
pub mod boot_report;
pub mod cluster;
pub mod completions;
pub mod cost;
pub mod create;
pub mod debug;
pub mod formats;
pub mod fs;
pub mod job;
pub mod jobs;
mod kept;
pub mod lab;
pub mod man;
pub mod map;
pub mod mount;
pub mod salvage;
pub mod snapshot;
pub mod space;
pub mod status;
pub mod stop;
pub mod sweep;
mod timeline;
pub mod up;
pub mod upgrade;
pub mod verify;
pub mod volume;
pub mod warm;

use crate::arguments::Common;
use crate::client::Client;
use crate::folder;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde::Serialize;

/// Returns a client of the daemon that the command is meant for.
pub fn client(common: &Common) -> Outcome<Client> {
    Client::new(folder::of_client(common.dir.as_deref())?)
}

impl Common {
    /// Prints a value for programs, or a sentence for users.
    pub fn told(&self, value: &impl Serialize, sentence: &str) {
        self.shown(value, || output::line(sentence));
    }

    /// Prints a value for programs, or what `print` prints for users.
    pub fn shown(&self, value: &impl Serialize, print: impl FnOnce()) {
        if self.json { output::json(value) } else { print() }
    }

    /// Prints a list for programs, or a table for users; the sentence `none` if it has no rows.
    pub fn rows<T: Serialize, const N: usize>(
        &self,
        list: Vec<T>,
        none: &str,
        head: [&str; N],
        row: impl Fn(T) -> [String; N],
    ) {
        if self.json {
            return output::json(&list);
        }
        if list.is_empty() {
            return output::line(none);
        }
        let mut table = output::table(head);
        for one in list {
            table.add_row(row(one));
        }
        output::rows(&table);
    }
}
