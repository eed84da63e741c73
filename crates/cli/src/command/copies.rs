//! `rekindle copies`: copies of logs over the network.

use super::client;
use crate::arguments::{Common, Copies as Arguments};
use rekindle_base::units::format_size;
use rekindle_front::http::api::{Copies, Guest, HeldCopies};
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use serde_json::json;
use std::path::Path;

/// Runs the command.
pub fn run(common: &Common, arguments: &Arguments) -> Outcome<u8> {
    let client = client(common)?;
    match arguments {
        Arguments::Ls => {
            let copies: Copies = client.get("/api/v1/copies")?;
            common.shown(&copies, || print(&copies));
        }
        Arguments::Takeover(wanted) => {
            let path = format!("/api/v1/copies/{}/takeover", wanted.node);
            let guest: Guest = client.post(&path, &json!({}))?;
            common.told(
                &guest,
                &format!(
                    "node {} goes on here, as its start {}: {} of its log were read in {} ms\n\
                     next: rekindle volume ls",
                    guest.node,
                    guest.incarnation,
                    format_size(guest.log_bytes),
                    guest.start_us.div_ceil(1000),
                ),
            );
        }
        Arguments::Release(wanted) => {
            let path = format!("/api/v1/copies/{}/release", wanted.node);
            let held: HeldCopies = client.post(&path, &json!({}))?;
            let folder = output::quoted(Path::new(&held.folder));
            common.told(
                &held,
                &format!(
                    "the copies of node {} take nothing more\n\
                     next, if that node is gone for good:\n  \
                     rekindle up --dir {folder} --take-identity --store URL",
                    held.node
                ),
            );
        }
    }
    Ok(0)
}

fn print(copies: &Copies) {
    let mut table = output::table(["COPIES OF", "AT", "STATE"]);
    for replica in &copies.replicas {
        let state = match (&replica.problem, replica.behind) {
            (Some(problem), _) => format!("behind: {problem}"),
            (None, true) => "behind".to_owned(),
            (None, false) => "whole".to_owned(),
        };
        table.add_row(["this node".to_owned(), replica.address.clone(), state]);
    }
    for held in &copies.held {
        let state = match held.released {
            // It has a row of its own.
            true if copies.guests.iter().any(|guest| guest.node == held.node) => continue,
            true => "released".to_owned(),
            false => format!("{} in {} segments", format_size(held.bytes), held.segments),
        };
        table.add_row([format!("node {}", held.node), "here".to_owned(), state]);
    }
    for guest in &copies.guests {
        let state = match &guest.reason {
            Some(reason) => format!("{}: {reason}", guest.state),
            None => format!("{} here, taken over", guest.state),
        };
        table.add_row([format!("node {}", guest.node), "here".to_owned(), state]);
    }
    output::rows(&table);
}
