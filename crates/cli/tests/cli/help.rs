//! Every `--help` is compared with its copy in `help/`: a change of the command line is a change that is seen.
//! `REKINDLE_SNAPSHOT=write cargo test` writes the copies anew.

use crate::{finish, rekindle, run, told};
use std::path::Path;

const PAGES: [&[&str]; 48] = [
    &[],
    &["up"],
    &["volume"],
    &["volume", "create"],
    &["volume", "ls"],
    &["volume", "show"],
    &["volume", "rm"],
    &["volume", "trash"],
    &["volume", "restore"],
    &["volume", "purge"],
    &["volume", "rename"],
    &["volume", "resize"],
    &["volume", "versions"],
    &["volume", "rollback"],
    &["volume", "drain"],
    &["volume", "import"],
    &["volume", "export"],
    &["volume", "history"],
    &["volume", "pin"],
    &["volume", "unpin"],
    &["space"],
    &["status"],
    &["stop"],
    &["debug"],
    &["debug", "volumes"],
    &["map"],
    &["verify"],
    &["salvage"],
    &["salvage", "run"],
    &["salvage", "history"],
    &["sweep"],
    &["sweep", "run"],
    &["sweep", "dismiss"],
    &["jobs"],
    &["jobs", "cancel"],
    &["man"],
    &["drill"],
    &["warm"],
    &["boot-report"],
    &["upgrade"],
    &["appliance"],
    &["appliance", "build"],
    &["appliance", "run"],
    &["appliance", "reset"],
    &["drill", "restart"],
    &["drill", "attach"],
    &["inspect"],
    &["completions"],
];

#[test]
fn every_page_is_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/help");
    let write = std::env::var("REKINDLE_SNAPSHOT").as_deref() == Ok("write");
    for page in PAGES {
        let output = finish(rekindle().args(page).arg("--help"));
        let (code, text, _) = told(&output);
        assert_eq!(code, Some(0), "{page:?}");
        let name = if page.is_empty() { "rekindle".to_owned() } else { page.join("-") };
        let copy = folder.join(format!("{name}.txt"));
        if write {
            std::fs::write(&copy, &text).expect("a copy");
        }
        let kept = std::fs::read_to_string(&copy).unwrap_or_default();
        assert!(kept == text, "{}: --help says now:\n{text}", copy.display());
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
    for word in ["rekindle volume create", "Examples", "Unit of deduplication"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert!(!folder.path().join("rekindle-worker.1").exists(), "nobody's business");
}

#[test]
fn completions_offer_the_volumes_that_there_are() {
    let daemon = crate::Daemon::start();
    for name in ["vm1", "vm two"] {
        daemon.ask(&["volume", "create", name, "--size", "64M"]);
    }
    let script = daemon.folder.path().join("completions");
    std::fs::write(&script, run(&["completions", "bash"]).1).expect("a file");
    let offered = |line: &str| {
        let words: Vec<String> = line.split(' ').map(|word| format!("'{word}'")).collect();
        let text = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={}; _rekindle_with_names rekindle '' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.join(" "),
            words.len() - 1
        );
        let binary = std::path::Path::new(env!("CARGO_BIN_EXE_rekindle"));
        let path = format!(
            "{}:{}",
            binary.parent().expect("a folder").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut shell = crate::clean(std::process::Command::new("bash"));
        let output =
            finish(shell.arg("-c").arg(text).env("PATH", path).env("REKINDLE_DIR", daemon.dir()));
        told(&output).1
    };
    assert!(
        offered("rekindle volume show v").contains("vm two\n"),
        "{}",
        offered("rekindle volume show v")
    );
    assert!(offered("rekindle volume rm vm1").contains("vm1"));
    assert!(!offered("rekindle volume create v").contains("vm1"), "it must be a new one");
}
