//! The one binary: the daemon, and the commands that talk to it.

#![warn(clippy::print_stderr, clippy::print_stdout)]

mod arguments;
mod client;
mod command;
mod config_file;
mod drill;
mod folder;
mod hints;
mod inspect;
mod nbd;
mod nearest;
mod parse;
mod running;
mod transfer;

use arguments::{Cli, Command};
use rekindle_env::real::standard_error;
use rekindle_supervise::{resume_after_exec, worker};
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    rekindle_env::real::first_instruction();
    if rekindle_appliance::guest::is_first() {
        rekindle_appliance::guest::run();
    }
    if let Some(ended) = resume_after_exec() {
        return exit(ended, false);
    }
    if worker::is_meant() {
        return exit(worker::run().map(|()| 0), false);
    }
    let cli = hints::parse();
    exit(run(&cli), cli.common.json)
}

/// Time that a daemon's last messages get to be read.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn exit(ended: Outcome<u8>, json: bool) -> ExitCode {
    let code = ended.unwrap_or_else(|failure| {
        failure.print(json);
        failure.exit
    });
    let code = if output::is_cut_off() { code.max(1) } else { code };
    standard_error::flush(LAST_WORDS);
    ExitCode::from(code)
}

fn run(cli: &Cli) -> Outcome<u8> {
    let common = &cli.common;
    match &cli.command {
        Command::Up(up) => command::up::run(common, up),
        Command::Worker => worker::run().map(|()| 0),
        Command::Volume(volume) => command::volume::run(common, volume).map(|()| 0),
        Command::Fs(fs) => command::fs::run(common, fs).map(|()| 0),
        Command::Snapshot(snapshot) => command::snapshot::run(common, snapshot).map(|()| 0),
        Command::Status(status) => command::status::run(common, status),
        Command::Stop(stop) => command::stop::run(common, stop).map(|()| 0),
        Command::Map(map) => command::map::run(common, map).map(|()| 0),
        Command::Mount(mount) => command::mount::run(common, mount).map(|()| 0),
        Command::Verify(verify) => command::verify::run(common, verify),
        Command::Cost(_) => command::cost::run(common),
        Command::Space(space) => command::space::run(common, space),
        Command::Cluster(cluster) => command::cluster::run(common, cluster),
        Command::Sweep(sweep) => command::sweep::run(common, sweep),
        Command::Jobs(jobs) => command::jobs::run(common, jobs).map(|()| 0),
        Command::Upgrade(upgrade) => command::upgrade::run(common, upgrade).map(|()| 0),
        Command::BootReport(report) => command::boot_report::run(common, report).map(|()| 0),
        Command::Appliance(appliance) => command::appliance::run(common, appliance),
        Command::Formats => {
            command::formats::run(common);
            Ok(0)
        }
        Command::Warm(warm) => command::warm::run(common, warm),
        Command::Salvage(salvage) => command::salvage::run(common, salvage),
        Command::Debug(debug) => command::debug::run(common, debug).map(|()| 0),
        Command::Drill(arguments::Drill::Restart(restart)) => drill::run(common, restart),
        Command::Drill(arguments::Drill::Attach(attach)) => drill::attach::run(common, attach),
        Command::Drill(arguments::Drill::Failover(failover)) => {
            drill::failover::run(common, failover)
        }
        Command::Lab(lab) => command::lab::run(common, lab),
        Command::Inspect(inspect) => inspect::run(common, inspect),
        Command::Completions(completions) => {
            command::completions::run(completions);
            Ok(0)
        }
        Command::VolumeNames(asked) => {
            command::completions::names(common, asked);
            Ok(0)
        }
        Command::Man(man) => command::man::run(common, man).map(|()| 0),
    }
}
