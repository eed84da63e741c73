//! The libraries that a program needs, found as by `ldd`: the program's own loader is asked.

use rekindle_terminal::failure::{Failure, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that makes the loader list what it would load, and end.
const LIST: &str = "LD_TRACE_LOADED_OBJECTS";

/// Returns the files that must lie at the same places where `program` is to run, its loader among
/// them. Empty for a static program.
pub fn of(program: &Path) -> Outcome<Vec<PathBuf>> {
    // A program without a loader runs, and prints its version.
    let output =
        Command::new(program).arg("--version").env(LIST, "1").output().map_err(|error| {
            Failure::new(format!("cannot run {}", program.display())).because(error)
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (found, missing) = parse(&text);
    if let Some(missing) = missing {
        return Err(Failure::new(format!(
            "{} needs {missing}, which is not here",
            program.display()
        ))
        .next("install the library that has it"));
    }
    Ok(found)
}

/// Parses lines `name => path (address)`, `path (address)` (the loader itself), `name (address)`
/// (of the kernel, no file) and `name => not found`. Returns the paths, and the first name that was
/// not found.
fn parse(text: &str) -> (Vec<PathBuf>, Option<String>) {
    let mut found = Vec::new();
    for line in text.lines() {
        let (name, place) = line.split_once("=>").unwrap_or(("", line));
        if place.trim() == "not found" {
            return (found, Some(name.trim().to_owned()));
        }
        let Some((path, _)) = place.split_once(" (0x") else { continue };
        if path.trim().starts_with('/') {
            found.push(PathBuf::from(path.trim()));
        }
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_understood() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc3a5f2000)\n\
                    \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";
        let (found, missing) = parse(text);
        assert_eq!(
            found,
            [
                Path::new("/lib/x86_64-linux-gnu/libgcc_s.so.1"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert_eq!(missing, None);
        assert_eq!(parse("rekindle 0.1.0\n"), (Vec::new(), None));
        let (_, missing) = parse("\tlibzstd.so.1 => not found\n");
        assert_eq!(missing.as_deref(), Some("libzstd.so.1"));
    }

    #[test]
    fn a_program_of_this_machine_has_its_loader_among_them() {
        let found = of(Path::new("/bin/sh")).expect("sh runs");
        assert!(found.iter().all(|path| path.exists()), "{found:?}");
    }
}
