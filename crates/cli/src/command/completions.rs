//! `rekindle completions`: what a shell should offer at the Tab key, names of volumes too.

use super::client;
use crate::arguments::{Cli, Common, Completions};
use clap::CommandFactory;
use clap_complete::Shell;

/// How the argument that is a volume is called in the grammar.
const ARGUMENT: &str = "name";

/// Prints the script.
pub fn run(completions: &Completions) {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "rekindle", &mut script);
    let script = String::from_utf8_lossy(&script);
    crate::output::line(with_names(&script, completions.shell).trim_end());
}

/// Prints the names of the volumes; nothing when no daemon answers, since a shell asks in the middle of a line.
pub fn names(common: &Common) {
    let Ok(client) = client(common) else { return };
    for name in client.volume_names() {
        crate::output::line(&name);
    }
}

/// Commands that take a volume which is there.
fn takers() -> Vec<String> {
    fn collect(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for inner in command.get_subcommands() {
            let path = format!("{path} {}", inner.get_name());
            let takes = inner.get_positionals().next();
            let takes = takes.is_some_and(|argument| argument.get_id() == ARGUMENT);
            if takes && inner.get_name() != "create" {
                found.push(path.trim_start().to_owned());
            }
            collect(inner, &path, found);
        }
    }
    let mut found = Vec::new();
    collect(&Cli::command(), "", &mut found);
    found
}

fn with_names(script: &str, shell: Shell) -> String {
    match shell {
        Shell::Bash => {
            let patterns: Vec<String> =
                takers().iter().map(|taker| format!("*' {taker} '*")).collect();
            format!(
                "{script}
_rekindle_with_names() {{
    _rekindle \"$@\"
    local line=\" ${{COMP_WORDS[*]:0:COMP_CWORD}} \" word=\"${{COMP_WORDS[COMP_CWORD]}}\" IFS=$'\\n'
    case \"$line\" in
        {})
            [[ $word == -* ]] || COMPREPLY+=($(compgen -W \"$(rekindle volume-names 2>/dev/null)\" -- \"$word\")) ;;
    esac
}}
complete -F _rekindle_with_names -o nosort -o bashdefault -o default rekindle",
                patterns.join("|")
            )
        }
        Shell::Zsh => {
            let names =
                "_rekindle_names() { compadd -- ${(f)\"$(rekindle volume-names 2>/dev/null)\"} }";
            let replaced = script
                .lines()
                .map(|line| {
                    if line.contains(":name -- The volume") {
                        line.replace(":_default", ":_rekindle_names")
                    } else {
                        line.to_owned()
                    }
                })
                .collect::<Vec<_>>()
                .join("\n");
            let (head, rest) = replaced.split_once('\n').unwrap_or((&replaced, ""));
            format!("{head}\n{names}\n{rest}")
        }
        Shell::Fish => {
            let mut words: Vec<String> = takers()
                .iter()
                .filter_map(|taker| taker.split(' ').next_back().map(str::to_owned))
                .collect();
            words.sort();
            words.dedup();
            format!(
                "{script}
complete -c rekindle -n \"__fish_seen_subcommand_from {}\" -f -a \"(rekindle volume-names 2>/dev/null)\"",
                words.join(" ")
            )
        }
        _ => script.to_owned(),
    }
}
