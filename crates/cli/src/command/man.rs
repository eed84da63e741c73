//! `rekindle man`: the words of `--help` as man pages.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::arguments::{Cli, Common, Man};
use clap::CommandFactory;
use rekindle_terminal::failure::{Failure, Outcome};
use std::io;

/// Writes a page for each command.
pub fn run(common: &Common, man: &Man) -> Outcome {
    let mut grammar = Cli::command();
    grammar.build();
    let mut pages = Vec::new();
    let written = std::fs::create_dir_all(&man.folder)
        .and_then(|()| write(&grammar, "rekindle", man, &mut pages));
    written.map_err(|error| {
        Failure::new(format!("cannot write in {}", man.folder.display())).because(error)
    })?;
    common.told(&pages, &format!("{} pages in {}", pages.len(), man.folder.display()));
    Ok(())
}

fn write(
    command: &clap::Command,
    name: &str,
    man: &Man,
    pages: &mut Vec<String>,
) -> io::Result<()> {
    let file = format!("{name}.1");
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    std::fs::write(man.folder.join(&file), text)?;
    pages.push(file);
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        if inner.get_name() != "help" {
            write(inner, &format!("{name}-{}", inner.get_name()), man, pages)?;
        }
    }
    Ok(())
}
