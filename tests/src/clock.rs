//! A daemon whose clock is late: its packs look as old as if the story had begun so long ago.

use crate::shell::skip;

/// Finds libfaketime's library, which the loader puts in front of the C library's clock.
fn library() -> Option<String> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    libraries.find(|library| library.is_file()).map(|library| library.display().to_string())
}

/// Returns the environment of a daemon whose clock is an hour late. Without libfaketime, prints
/// SKIPPED and returns `None`.
#[must_use]
pub fn an_hour_ago() -> Option<Vec<(String, String)>> {
    let Some(library) = library() else {
        let _ = skip(&["libfaketime (package faketime)".to_owned()]);
        return None;
    };
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", "-1h"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    Some(environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}
