//! The one binary: the daemon, and the commands that talk to it.

mod arguments;
mod client;
mod command;
mod config_file;
mod drill;
mod failure;
mod folder;
mod inspect;
mod nbd;
mod nearest;
mod output;
mod parse;
mod signals;
mod supervise;
mod worker;

use arguments::{Cli, Command};
use clap::Parser;
use failure::Outcome;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print(cli.common.json);
            ExitCode::from(failure.exit)
        }
    }
}

fn run(cli: &Cli) -> Outcome<u8> {
    let common = &cli.common;
    match &cli.command {
        Command::Up(up) => command::up::run(common, up),
        Command::Worker => worker::run().map(|()| 0),
        Command::Volume(volume) => command::volume::run(common, volume).map(|()| 0),
        Command::Status(status) => command::status::run(common, status),
        Command::Stop(stop) => command::stop::run(common, stop).map(|()| 0),
        Command::Map(map) => command::map::run(common, map).map(|()| 0),
        Command::Verify(verify) => command::verify::run(common, verify),
        Command::Sweep(sweep) => command::sweep::run(common, sweep),
        Command::Salvage(salvage) => command::salvage::run(common, salvage).map(|()| 0),
        Command::Debug(debug) => command::debug::run(common, debug).map(|()| 0),
        Command::Drill(arguments::Drill::Restart(restart)) => drill::run(common, restart),
        Command::Inspect(inspect) => inspect::run(common, inspect),
        Command::Completions(completions) => {
            command::completions::run(completions);
            Ok(0)
        }
    }
}
