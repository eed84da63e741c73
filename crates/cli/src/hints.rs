//! Hints for words that are no command: the command that the user probably meant. clap's own guess
//! goes by how words begin, and so takes `rename` for `remove`: a slip must not become a loss.

use crate::arguments::Cli;
use crate::nearest::{distance, nearest};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use rekindle_terminal::failure::Failure;

/// Commands that remove something: offered only for a slip of one letter.
const TAKES_AWAY: [&str; 4] = ["rm", "remove", "purge", "drop"];
/// Words of other programs for our commands.
const SYNONYMS: [(&str, &str); 8] = [
    ("delete", "rm"),
    ("del", "rm"),
    ("info", "show"),
    ("add", "create"),
    ("new", "create"),
    ("start", "up"),
    ("serve", "up"),
    ("down", "stop"),
];

/// Parses the command line of this process; ends the process when the words are no command.
pub fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        let error = with_hint(error);
        // The words are not parsed, so that `--json` is looked for by hand: a program that asks for
        // JSON must get nothing else.
        if error.use_stderr() && std::env::args_os().any(|word| word == "--json") {
            let failure = for_programs(&error);
            failure.print(true);
            std::process::exit(failure.exit.into());
        }
        error.exit()
    })
}

/// Converts clap's text (what is wrong, tips, the usage) into a failure of one line.
fn for_programs(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::usage("a command is missing").next("`--help` shows which there are");
    }
    let text = error.render().to_string();
    let line = |lines: &str| lines.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = text.split("\n\n").map(line);
    let what = parts.next().unwrap_or_default();
    let failure = Failure::usage(what.trim_start_matches("error: "));
    match parts.find_map(|part| part.strip_prefix("tip: ").map(str::to_owned)) {
        Some(tip) => failure.next(tip),
        None => failure.next("`--help` shows how it is used"),
    }
}

fn with_hint(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let word = word.clone();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let hint = meant(&word, &known(&words, &word)).map(str::to_owned);
    let hint = hint.or_else(|| below(&words, &word));
    match hint {
        Some(hint) => {
            let hint = ContextValue::Strings(vec![hint]);
            error.insert(ContextKind::SuggestedSubcommand, hint);
        }
        None => drop(error.remove(ContextKind::SuggestedSubcommand)),
    }
    error
}

/// Returns the command that has the name of `wrong` but stands below another one.
fn below(words: &[String], wrong: &str) -> Option<String> {
    let all = Cli::command();
    if words
        .iter()
        .take_while(|word| *word != wrong)
        .any(|word| all.find_subcommand(word).is_some())
    {
        return None;
    }
    let mut groups = all.get_subcommands().filter(|group| !group.is_hide_set());
    let group = groups.find(|group| group.find_subcommand(wrong).is_some())?;
    Some(format!("{} {wrong}", group.get_name()))
}

/// Returns the commands that could stand where `wrong` stands.
fn known(words: &[String], wrong: &str) -> Vec<String> {
    let mut command = Cli::command();
    for word in words.iter().take_while(|word| *word != wrong) {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner.clone();
        }
    }
    command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
        .flat_map(|inner| inner.get_name_and_visible_aliases())
        .map(str::to_owned)
        .collect()
}

fn meant<'a>(word: &str, known: &'a [String]) -> Option<&'a str> {
    let synonym = SYNONYMS.iter().find(|(theirs, _)| *theirs == word).map(|(_, ours)| *ours);
    if let Some(ours) = known.iter().find(|known| Some(known.as_str()) == synonym) {
        return Some(ours);
    }
    let harmless: Vec<&str> = known
        .iter()
        .map(String::as_str)
        .filter(|known| !TAKES_AWAY.contains(known) || distance(word, known) <= 1)
        .collect();
    nearest(word, &harmless)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_gets_the_right_hint_and_never_one_that_takes_away() {
        let known: Vec<String> =
            ["create", "ls", "list", "show", "rm", "remove", "drain"].map(str::to_owned).into();
        assert_eq!(meant("crate", &known), Some("create"));
        assert_eq!(meant("rename", &known), None);
        assert_eq!(meant("remov", &known), Some("remove"));
        assert_eq!(meant("delete", &known), Some("rm"));
        let more: Vec<String> = ["remove", "rename"].map(str::to_owned).into();
        assert_eq!(meant("renmae", &more), Some("rename"));
    }

    #[test]
    fn programs_are_told_what_is_wrong_in_one_line() {
        let told = |words: &[&str]| {
            let error = Cli::try_parse_from(words).expect_err("they are wrong");
            for_programs(&with_hint(error))
        };
        let missing = told(&["rekindle", "volume", "create", "vm1"]);
        assert!(missing.error.contains("--size"), "{}", missing.error);
        assert_eq!((missing.exit, missing.error.lines().count()), (2, 1));
        let slip = told(&["rekindle", "status", "--wach"]);
        assert!(slip.next.is_some_and(|tip| tip.contains("--watch")));
        assert!(told(&["rekindle", "volume"]).error.contains("missing"));
        let below = told(&["rekindle", "trash"]);
        assert!(below.next.is_some_and(|tip| tip.contains("'volume trash'")));
        let unknown = told(&["rekindle", "xyzzy"]);
        assert_eq!(unknown.next.as_deref(), Some("`--help` shows how it is used"));
    }

    #[test]
    fn only_commands_of_the_same_place_are_offered() {
        let words = ["volume", "shwo"].map(str::to_owned);
        let known = known(&words, "shwo");
        assert!(known.contains(&"show".to_owned()) && !known.contains(&"stop".to_owned()));
    }
}
