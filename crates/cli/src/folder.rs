//! Which folder, and so which daemon.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::failure::{Failure, Outcome};
use base::Kind;
use std::path::{Path, PathBuf};

/// The folder of the daemon to talk to: the one named, else the default one that is there.
pub fn of_client(named: Option<&Path>) -> Outcome<PathBuf> {
    match named {
        Some(dir) => absolute(dir),
        None => default(|beside| beside.is_dir()),
    }
}

/// The folder to serve from: the one named, else the default; made if it is not there.
pub fn of_server(named: Option<&Path>) -> Outcome<PathBuf> {
    let dir = match named {
        Some(dir) => absolute(dir)?,
        None => default(|beside| std::fs::create_dir(beside).is_ok() || beside.is_dir())?,
    };
    std::fs::create_dir_all(&dir).map_err(|error| {
        Failure::new(format!("cannot make the folder {}", dir.display()))
            .because(error)
            .next("choose another one with --dir")
    })?;
    // Through links, so that one folder has one name.
    dir.canonicalize()
        .map_err(|error| Failure::new(format!("cannot read {}", dir.display())).because(error))
}

fn default(usable: impl Fn(&Path) -> bool) -> Outcome<PathBuf> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::new("the current folder cannot be read").because(error))?;
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let (data, home) = (variable("XDG_DATA_HOME"), variable("HOME"));
    node::config::default_dir(&here, data.as_deref(), home.as_deref(), usable).ok_or_else(|| {
        Failure::new("there is no folder to use: neither ./rekindle-data nor $HOME")
            .next("name one with --dir")
            .kind(Kind::NotFound)
    })
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        Failure::usage(format!("'{}' is not a folder", path.display())).because(error)
    })
}
