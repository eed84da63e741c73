//! `rekindle completions`: what a shell should offer at the Tab key, names of volumes and of nodes
//! too.

use super::client;
use crate::arguments::{Cli, Common, Completions, VolumeNames};
use clap::CommandFactory;
use clap_complete::Shell;

/// Name of the argument for a volume in the grammar.
const ARGUMENT: &str = "name";
/// Begin of the help of an argument that must be a new name.
const NEW: &str = ":name -- Its name";
/// Begin of the help of an argument that is a node.
const NODE: &str = ":to -- The node";
/// clap's way to have bash offer files: names with blanks fall apart, and nothing in them is
/// quoted. The shell's own way is right.
const FILES: &str = "COMPREPLY=($(compgen -f \"${cur}\"))";

/// Prints the script.
pub fn run(completions: &Completions) {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut grammar(), "rekindle", &mut script);
    let script = String::from_utf8_lossy(&script);
    rekindle_terminal::output::line(with_names(&script, completions.shell).trim_end());
}

/// Prints the names of the volumes; nothing when no daemon answers, since a shell asks in the
/// middle of a line.
pub fn names(common: &Common, asked: &VolumeNames) {
    let Ok(client) = client(common) else { return };
    let names = match (asked.nodes, asked.trash) {
        (true, _) => super::cluster::names(&client),
        (_, true) => super::kept::names(&client),
        (false, false) => client.volume_names(),
    };
    for name in names {
        rekindle_terminal::output::line(&name);
    }
}

/// Returns the grammar without hidden commands, which the scripts would offer.
fn grammar() -> clap::Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned();
    clap::Command::new("rekindle")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(shown.collect::<Vec<_>>())
}

/// Returns the commands that take an existing volume; with `trash`, those that take one from the
/// trash.
fn takers(trash: bool) -> Vec<String> {
    fn collect(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for inner in command.get_subcommands() {
            let path = format!("{path} {}", inner.get_name());
            let takes = inner.get_positionals().next();
            if takes.is_some_and(|argument| argument.get_id() == ARGUMENT) {
                let aliases = inner.get_visible_aliases().map(|alias| {
                    let (parent, _) = path.rsplit_once(' ').unwrap_or_default();
                    format!("{parent} {alias}").trim_start().to_owned()
                });
                found.extend(aliases);
                found.push(path.trim_start().to_owned());
            }
            collect(inner, &path, found);
        }
    }
    let mut found = Vec::new();
    collect(&grammar(), "", &mut found);
    let from_trash = |taker: &String| ["volume restore", "volume purge"].contains(&taker.as_str());
    found.retain(|taker| !taker.ends_with(" create") && from_trash(taker) == trash);
    found
}

fn with_names(script: &str, shell: Shell) -> String {
    let patterns = |trash| {
        let patterns: Vec<String> =
            takers(trash).iter().map(|taker| format!("*' {taker} '*")).collect();
        patterns.join("|")
    };
    let words = |trash| {
        let last = |taker: &String| taker.split(' ').next_back().map(str::to_owned);
        let mut words: Vec<String> = takers(trash).iter().filter_map(last).collect();
        words.sort();
        words.dedup();
        words.join(" ")
    };
    match shell {
        Shell::Bash => {
            let names = include_str!("names.bash")
                .replace("TRASH)", &format!("{})", patterns(true)))
                .replace("VOLUMES)", &format!("{})", patterns(false)));
            script.replace(FILES, "COMPREPLY=()") + &names
        }
        Shell::Zsh => {
            let line = |line: &str| {
                let from =
                    |trash: bool| if trash { ":_rekindle_trash" } else { ":_rekindle_names" };
                if line.contains(NODE) {
                    line.replace(":_default", ":_rekindle_nodes")
                } else if line.contains(":name -- ") && !line.contains(NEW) {
                    line.replace(":_default", from(line.contains("trash")))
                } else {
                    line.to_owned()
                }
            };
            let (head, rest) = script.split_once('\n').unwrap_or((script, ""));
            let rest: Vec<String> = rest.lines().map(line).collect();
            format!("{head}\n{}\n{}", include_str!("names.zsh"), rest.join("\n"))
        }
        Shell::Fish => {
            let names = include_str!("names.fish")
                .replace("VOLUMES", &words(false))
                .replace("TRASH", &words(true));
            script.to_owned() + &names
        }
        _ => script.to_owned(),
    }
}
