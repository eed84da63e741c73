//! Every `--help` is compared with its copy in `help/`: a change of the command line is a change that is seen.
//! `REKINDLE_SNAPSHOT=write cargo test` writes the copies anew.

use crate::{finish, rekindle, run, told};
use std::path::Path;

const PAGES: [&[&str]; 32] = [
    &[],
    &["up"],
    &["volume"],
    &["volume", "create"],
    &["volume", "ls"],
    &["volume", "show"],
    &["volume", "rm"],
    &["volume", "drain"],
    &["volume", "history"],
    &["volume", "pin"],
    &["volume", "unpin"],
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
