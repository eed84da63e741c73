//! The choice of the daemon's folder, and so of the daemon.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use rekindle_base::Kind;
use rekindle_terminal::failure::{Failure, Outcome};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most links on the way to a folder.
const LINKS_MAX: usize = 40;

/// Finds the folder of the daemon to talk to: the named one, else the default one that exists.
///
/// A named folder may belong to another user, even when this user is root: a daemon may let a group
/// in, and only root can map another user's volumes. The daemon of the folder is asked and answers;
/// commands that write files there refuse another user's folder. A folder that was not named must
/// belong to this user or to root.
pub fn of_client(named: Option<&Path>) -> Outcome<PathBuf> {
    let Some(dir) = named else {
        let dir = default(|beside| beside.is_dir())?;
        if dir.exists() {
            resolve(&dir)?;
            check_owner(&dir)?;
        }
        return Ok(dir);
    };
    absolute(dir)
}

/// Refuses a folder of another user: any user may have made a folder of the default name in a
/// directory that all users share.
fn check_owner(dir: &Path) -> Outcome {
    let owner = std::fs::metadata(dir)?.uid();
    if is_trusted(owner) {
        return Ok(());
    }
    Err(Failure::new(format!("{} belongs to another user ({owner})", dir.display()))
        .next("name the folder with --dir: this one too, if you mean its daemon")
        .kind(Kind::Conflict))
}

fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}

/// Resolves all links of a path, so that one folder has one name. Refuses another user's link.
fn resolve(dir: &Path) -> Outcome<PathBuf> {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read {}", dir.display())).because(error)
    };
    let mut path = dir.to_owned();
    for _ in 0..LINKS_MAX {
        let mut found = None;
        // From the root down: the part behind a link is checked after the link is resolved.
        for way in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            let is = std::fs::symlink_metadata(way).map_err(failed)?;
            if is.is_symlink() {
                found = Some((way.to_owned(), is.uid()));
                break;
            }
        }
        let Some((link, owner)) = found else { return path.canonicalize().map_err(failed) };
        if !is_trusted(owner) {
            return Err(Failure::new(format!(
                "{} is a link that another user ({owner}) has made",
                link.display()
            ))
            .next("choose another folder with --dir")
            .kind(Kind::Conflict));
        }
        let target = std::fs::read_link(&link).map_err(failed)?;
        let rest = path.strip_prefix(&link).unwrap_or(Path::new("")).to_owned();
        path = link.parent().unwrap_or(Path::new("/")).join(target);
        if !rest.as_os_str().is_empty() {
            path.push(rest);
        }
    }
    Err(Failure::new(format!("too many links on the way to {}", dir.display())))
}

/// Finds the folder to serve from: the named one, else the default. Makes the folder if it does not
/// exist.
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
    resolve(&dir)
}

fn default(usable: impl Fn(&Path) -> bool) -> Outcome<PathBuf> {
    let here = std::env::current_dir()
        .map_err(|error| Failure::new("the current folder cannot be read").because(error))?;
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let (data, home) = (variable("XDG_DATA_HOME"), variable("HOME"));
    rekindle_node::config::default_dir(&here, data.as_deref(), home.as_deref(), usable).ok_or_else(
        || {
            Failure::new("there is no folder to use: neither ./rekindle-data nor $HOME")
                .next("name one with --dir")
                .kind(Kind::NotFound)
        },
    )
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        Failure::usage(format!("'{}' is not a folder", path.display())).because(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn our_links_lead_to_the_folder_and_those_of_others_are_refused() {
        let place = tempfile::tempdir().expect("a folder");
        let real = place.path().canonicalize().expect("there");
        let dir = real.join("far/d");
        std::fs::create_dir_all(&dir).expect("a folder");
        symlink("far", real.join("near")).expect("a link");
        symlink(real.join("near/d"), real.join("d")).expect("a link");
        assert_eq!(resolve(&real.join("d")).expect("ours"), dir);
        assert_eq!(resolve(&real.join("far/../near/d")).expect("ours"), dir);
        symlink("loop", real.join("loop")).expect("a link");
        assert!(resolve(&real.join("loop")).is_err());
        if rustix::process::geteuid().is_root() {
            lchown(real.join("near"), Some(65534), None).expect("root may");
            for way in ["near/d", "d"] {
                let error = resolve(&real.join(way)).expect_err("a stranger's").error;
                assert!(error.contains("another user (65534)"), "{error}");
            }
        }
    }
}
