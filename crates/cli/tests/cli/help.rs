//! Every `--help` is compared with its copy in `help/`: a change of the command line is seen.
//! `REKINDLE_SNAPSHOT=write cargo test` writes the copies anew.

use crate::{finish, rekindle, run, told};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads the page of a command and those of all commands below it, by name.
fn read_pages(words: &mut Vec<String>, pages: &mut BTreeMap<String, String>) {
    let (code, text, _) = told(&finish(rekindle().args(&*words).arg("--help")));
    assert_eq!(code, Some(0), "{words:?}");
    let listed = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    for line in listed.lines().take_while(|line| !line.is_empty()) {
        // A longer description goes on in lines that are indented more.
        let line = line.strip_prefix("  ").unwrap_or_default();
        match line.split(' ').next() {
            None | Some("" | "help") => {}
            Some(command) => {
                words.push(command.to_owned());
                read_pages(words, pages);
                words.pop();
            }
        }
    }
    let name = if words.is_empty() { "rekindle".to_owned() } else { words.join("-") };
    pages.insert(name, text);
}

#[test]
fn every_page_is_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/help");
    let write = std::env::var("REKINDLE_SNAPSHOT").as_deref() == Ok("write");
    let mut pages = BTreeMap::new();
    read_pages(&mut Vec::new(), &mut pages);
    for (name, text) in &pages {
        let copy = folder.join(format!("{name}.txt"));
        if write {
            std::fs::write(&copy, text).expect("a copy");
        }
        let kept = std::fs::read_to_string(&copy).unwrap_or_default();
        assert!(kept == *text, "{}: --help says now:\n{text}", copy.display());
    }
    for copy in std::fs::read_dir(&folder).expect("the copies").flatten() {
        let name = copy.path().file_stem().map(|name| name.to_string_lossy().into_owned());
        assert!(name.is_some_and(|name| pages.contains_key(&name)), "{copy:?} is of no command");
    }
}

#[test]
fn nothing_but_the_name_shows_the_help_and_is_wrong_usage() {
    let (code, _, error) = run(&[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("First five minutes"), "{error}");
}

#[test]
fn the_worker_is_nobodys_business() {
    let (_, text, _) = run(&["--help"]);
    assert!(!text.contains("\n  worker "), "{text}");
    let (code, _, error) = run(&["worker"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("rekindle up"), "{error}");
}

#[test]
fn shells_get_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&["completions", shell]);
        assert_eq!(code, Some(0));
        assert!(script.contains("rekindle") && script.contains("volume"), "{shell}");
    }
}

#[test]
fn man_pages_say_what_the_help_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, error) = run(&["man", &folder.path().display().to_string()]);
    assert_eq!(code, Some(0), "{error}");
    let page = std::fs::read_to_string(folder.path().join("rekindle-volume-create.1"));
    let page = page.expect("a page");
    for word in ["rekindle volume create", "Examples", "Gives all chunks"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert!(!folder.path().join("rekindle-worker.1").exists(), "nobody's business");
}

/// Returns what bash offers at the Tab key, each word as it was typed.
fn offered(daemon: &crate::Daemon, words: &[&str]) -> Vec<String> {
    let script = daemon.folder.path().join("completions");
    std::fs::write(&script, run(&["completions", "bash"]).1).expect("a file");
    let text = r#"source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _rekindle_with_names rekindle "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let binary = Path::new(env!("CARGO_BIN_EXE_rekindle")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = crate::clean(std::process::Command::new("bash"));
    shell.args(["--norc", "-c", text]).arg(script).args(words);
    shell.env("PATH", path).current_dir(daemon.folder.path());
    let (code, out, error) = told(&finish(&mut shell));
    assert_eq!((code, error.as_str()), (Some(0), ""), "{words:?}");
    out.lines().map(str::to_owned).collect()
}

#[test]
fn completions_offer_the_volumes_that_there_are_and_run_none_of_their_names() {
    let daemon = crate::Daemon::start();
    let hostile = ["$(touch PWNED)", "`touch PWNED`", "a;touch PWNED", "*", "it's"];
    for name in hostile.iter().chain(&["vm1", "vm two"]) {
        daemon.ask(&["volume", "create", name, "--size", "64M"]);
    }
    let dir = daemon.dir().display().to_string();
    let offer = |words: &[&str]| offered(&daemon, &[&["rekindle", "--dir", &dir], words].concat());
    let all = offer(&["volume", "show", ""]);
    assert_eq!(all.len(), 7, "{all:?}");
    for name in [r"\$\(touch\ PWNED\)", r"\`touch\ PWNED\`", r"a\;touch\ PWNED", r"\*", r"it\'s"] {
        assert!(all.contains(&name.to_owned()), "{name}: {all:?}");
    }
    assert_eq!(offer(&["volume", "show", r"vm\ "]), [r"vm\ two"]);
    assert_eq!(offer(&["volume", "show", "'vm"]), ["vm two", "vm1"]);
    // Within double quotes bash would still run these.
    let within = offer(&["volume", "show", "\""]);
    assert!(!within.iter().any(|name| name.contains(['$', '`'])), "{within:?}");
    assert!(!offer(&["volume", "create", "v"]).contains(&"vm1".to_owned()), "it must be new");
    // The folder on the line, as bash cuts it up; nothing in it is run either.
    assert_eq!(offered(&daemon, &["rekindle", "volume", "rm", "--dir", "=", &dir, "vm1"]), ["vm1"]);
    offered(&daemon, &["rekindle", "volume", "rm", "--dir", "$(touch PWNED)", "vm1"]);
    // A node in the second place; there is none without a cluster.
    assert_eq!(offer(&["volume", "move", "vm1"]), ["vm1"]);
    assert_eq!(offer(&["volume", "move", "vm1", ""]), [""]);
    // The trash, for the commands that ask for it.
    daemon.ask(&["volume", "rm", "vm1"]);
    for command in ["restore", "purge"] {
        assert_eq!(offer(&["volume", command, ""]), ["vm1"]);
    }
    assert!(!daemon.folder.path().join("PWNED").exists());
    for (begun, hidden) in [("w", "worker"), ("f", "formats"), ("vo", "volume-names")] {
        assert!(!offered(&daemon, &["rekindle", begun]).contains(&hidden.to_owned()));
    }
}
