//! The warm memory of all folders on this machine, and the part that belongs to no folder any more.
//!
//! A folder that cannot be found may be on a disk that is not mounted now. So an arena with bytes
//! that are nowhere else is never dropped with the others: it is named, and the user removes the
//! file.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use crate::arguments::Common;
use rekindle_base::units::format_size;
use rekindle_env::real::folder::Folder;
use rekindle_node::node_file;
use rekindle_terminal::failure::Outcome;
use rekindle_terminal::output;
use rustix::fs::{FlockOperation, OFlags};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Default folder of warm memory.
const FOLDER: &str = "/dev/shm";

/// An arena, with its state.
#[derive(Debug, Serialize)]
struct FoundArena {
    path: PathBuf,
    /// Memory that it takes, bytes.
    bytes: u64,
    node: Option<String>,
    /// The daemon's folder, if the arena says so.
    folder: Option<String>,
    /// `in use`, `kept`, `orphan`, `unknown`.
    state: &'static str,
    /// Bytes of the log that no flash has.
    only_here: u64,
}

/// Lists all arenas.
pub fn list(common: &Common) -> Outcome<u8> {
    let found = find(Path::new(FOLDER));
    if common.json {
        output::json(&found);
        return Ok(0);
    }
    if found.is_empty() {
        output::line(&format!("no warm memory in {FOLDER}"));
        return Ok(0);
    }
    let mut table = output::table(["STATE", "TAKES", "ONLY HERE", "FOLDER", "FILE"]);
    for arena in &found {
        let folder = arena.folder.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([
            arena.state.to_owned(),
            format_size(arena.bytes),
            format_size(arena.only_here),
            folder,
            arena.path.display().to_string(),
        ]);
    }
    output::rows(&table);
    if found.iter().any(|arena| arena.state == "orphan") {
        output::line("\n`rekindle warm drop --orphans` frees what belongs to no folder any more");
    }
    Ok(0)
}

/// Removes the arenas whose folders are gone.
pub fn drop(common: &Common) -> Outcome<u8> {
    let mut orphans = find(Path::new(FOLDER));
    orphans.retain(|arena| arena.state == "orphan");
    let (kept, gone): (Vec<FoundArena>, Vec<FoundArena>) =
        orphans.into_iter().partition(|arena| arena.only_here > 0);
    let mut freed = 0;
    for arena in &gone {
        fs::remove_file(&arena.path)?;
        freed += arena.bytes;
    }
    if common.json {
        output::json(&serde_json::json!({ "dropped": gone, "kept": kept, "freed_bytes": freed }));
        return Ok(0);
    }
    for arena in &gone {
        output::line(&format!("removed {}", arena.path.display()));
    }
    for arena in &kept {
        output::line(&format!(
            "kept {}: {} of acknowledged changes are nowhere else. If the folder {} is really gone, remove the file",
            arena.path.display(),
            format_size(arena.only_here),
            arena.folder.as_deref().unwrap_or("of its daemon"),
        ));
    }
    output::line(&format!("{} freed", format_size(freed)));
    Ok(0)
}

/// Returns a line about orphans, if there are any.
pub fn note() -> Option<String> {
    note_on(&find(Path::new(FOLDER)))
}

fn note_on(found: &[FoundArena]) -> Option<String> {
    let orphans = found.iter().filter(|arena| arena.state == "orphan");
    let (count, bytes) =
        orphans.fold((0, 0), |(count, bytes), arena| (count + 1, bytes + arena.bytes));
    (count > 0).then(|| {
        let what = if count == 1 { "1 orphan" } else { &format!("{count} orphans") };
        format!(
            "warm memory of folders that are gone lies about: {what}, {}: rekindle warm drop --orphans",
            format_size(bytes)
        )
    })
}

fn find(folder: &Path) -> Vec<FoundArena> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // A node that came after another one in its folder adds its own name.
        name.starts_with("rekindle-") && (name.ends_with(".warm") || name.contains(".warm-"))
    };
    let mut found: Vec<FoundArena> = entries
        .map(|entry| entry.path())
        .filter(names)
        .filter_map(|path| look(path).ok())
        .collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn look(path: PathBuf) -> io::Result<FoundArena> {
    // Every user may put a link or a pipe there. Without `NONBLOCK`, the open of a pipe would wait.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(&path)?;
    let (about, user) = (file.metadata()?, rustix::process::geteuid());
    if !about.is_file() || !(user.is_root() || about.uid() == user.as_raw()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // The file is sparse: it takes less than its length.
    let bytes = about.blocks() * 512;
    let mut head = Vec::new();
    Read::by_ref(&mut &file)
        .take(rekindle_warm::inspect::BYTES_WANTED as u64)
        .read_to_end(&mut head)?;
    let folder = rekindle_warm::inspect::home(&head);
    let arena = rekindle_warm::inspect::arena(&head).ok();
    let node = arena.as_ref().map(|arena| arena.node.to_string());
    let only_here = arena
        .iter()
        .flat_map(|arena| &arena.used)
        .map(|(_, certificate)| u64::from(certificate.front.saturating_sub(certificate.durable)));
    let only_here = only_here.sum();
    // The lock goes with the descriptor.
    let in_use = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err();
    let state = match (&node, &folder) {
        _ if in_use => "in use",
        (None, _) | (_, None) => "unknown",
        (Some(node), Some(folder)) if belongs(Path::new(folder), node) => "kept",
        _ => "orphan",
    };
    Ok(FoundArena { path, bytes, node, folder, state, only_here })
}

/// Whether the folder exists and belongs to that node.
fn belongs(folder: &Path, node: &str) -> bool {
    // A folder that cannot be read may well belong to it: only "not there" and "another node's" are
    // answers. The arena may be another user's, and so may name any folder.
    match Folder::open(folder).and_then(|folder| folder.read(node_file::NAME)) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(text) => serde_json::from_slice::<serde_json::Value>(&text)
            .map_or(true, |home| home["node"].as_str() == Some(node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_base::NodeId;

    fn arena(folder: &Path, node: NodeId, home: &Path) -> PathBuf {
        let (env, _runtime) = rekindle_env::real::env().expect("an environment");
        let path = folder.join(format!("rekindle-{node}.warm"));
        let arena = rekindle_warm::Arena::open(&env, &path, node, 1).expect("an arena");
        arena.note_home(&home.display().to_string());
        path
    }

    #[test]
    fn what_another_user_has_put_there_is_no_arena_and_makes_nothing_wait() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let pipe = |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        let scratch = tempfile::tempdir().expect("a folder");
        let (shared, home) = (scratch.path().join("shm"), scratch.path().join("home"));
        fs::create_dir(&shared).expect("a folder");
        fs::create_dir(&home).expect("a folder");
        let path = arena(&shared, NodeId([7; 16]), &home);
        pipe(&home.join("node.json"));
        pipe(&shared.join("rekindle-x.warm"));
        std::os::unix::fs::symlink(&path, shared.join("rekindle-y.warm")).expect("a link");
        let (sender, found) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(find(&shared)));
        let found = found.recv_timeout(std::time::Duration::from_secs(10)).expect("no wait");
        let found: Vec<_> = found.iter().map(|arena| (&arena.path, arena.state)).collect();
        assert_eq!(found, [(&path, "kept")]);
    }

    #[test]
    fn an_arena_is_an_orphan_when_its_folder_is_gone_or_anothers_and_never_while_in_use() {
        let scratch = tempfile::tempdir().expect("a folder");
        let home = scratch.path().join("home");
        fs::create_dir(&home).expect("a folder");
        let node = NodeId([7; 16]);
        let path = arena(scratch.path(), node, &home);
        let state = || find(scratch.path()).pop().expect("it is found").state;
        assert_eq!(state(), "orphan", "no node.json");
        let write =
            |node: &str| fs::write(home.join("node.json"), format!("{{\"node\":\"{node}\"}}"));
        write(&node.to_string()).expect("a file");
        assert_eq!(state(), "kept");
        write("another").expect("a file");
        assert_eq!(state(), "orphan", "another node's");
        let later = scratch.path().join(format!("rekindle-chosen.warm-{node}"));
        fs::copy(&path, &later).expect("a copy");
        let found = find(scratch.path());
        assert!(found.iter().any(|arena| arena.path == later && arena.state == "orphan"));
        fs::remove_file(&later).expect("the copy");
        let said = note_on(&find(scratch.path())).expect("there is one");
        assert!(
            said.contains("1 orphan, ") && said.ends_with("rekindle warm drop --orphans"),
            "{said}"
        );
        assert!(note_on(&[]).is_none());
        let file = File::open(&path).expect("the file");
        rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("a lock");
        assert_eq!(state(), "in use");
    }
}
