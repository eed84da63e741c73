//! One file a command.

pub mod appliance;
pub mod boot_report;
pub mod completions;
pub mod cost;
pub mod create;
pub mod debug;
pub mod formats;
pub mod job;
pub mod jobs;
mod kept;
pub mod man;
pub mod map;
pub mod salvage;
pub mod space;
pub mod status;
pub mod stop;
pub mod sweep;
pub mod up;
pub mod upgrade;
pub mod verify;
pub mod volume;
pub mod warm;

use crate::arguments::Common;
use crate::client::Client;
use crate::folder;
use rekindle_terminal::failure::Outcome;

/// Returns a client of the daemon that the command is meant for.
pub fn client(common: &Common) -> Outcome<Client> {
    Client::new(folder::of_client(common.dir.as_deref())?)
}
