//! Room for removals: a file that may be given up.
//!
//! In a store that is full, nothing could be removed: marking a vault deleted, or noting what a sweep is about, takes a
//! small write first. So a few mebibytes are taken when there is room, and given up when a small write finds none. From then
//! on no pack is taken before there is room for them again: else a batch that is tried again would use them up.

#![expect(
    clippy::disallowed_methods,
    reason = "the folder is a store for all nodes, not this machine's own disk"
)]

use crate::limits::RESERVE_BYTES;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// No key can name it, and no listing shows it.
const RESERVE: &str = ".reserve";
const PIECE: usize = 64 << 10;

/// Takes the room, if it is not taken and there is some; whether packs may be written.
pub(super) fn keep(root: &Path) -> bool {
    let path = root.join(RESERVE);
    let there = fs::metadata(&path).map(|meta| meta.len());
    if there.as_ref().is_ok_and(|&length| length >= RESERVE_BYTES) || write(&path).is_ok() {
        return true;
    }
    // What is there is too little to be of use, and wanted elsewhere.
    match there {
        // Given up, also by another process: an empty file says so.
        Ok(_) => File::create(&path).is_err(),
        // There never was room for it.
        Err(_) => {
            let _ = fs::remove_file(&path);
            true
        }
    }
}

/// What is to be taken yet, bytes.
pub(super) fn lacks(root: &Path) -> u64 {
    let taken = fs::metadata(root.join(RESERVE)).map_or(0, |meta| meta.len());
    RESERVE_BYTES.saturating_sub(taken)
}

/// Gives the room up; whether there was any.
pub(super) fn give_up(root: &Path) -> bool {
    let path = root.join(RESERVE);
    let some = fs::metadata(&path).is_ok_and(|meta| meta.len() > 0);
    some && File::create(&path).is_ok()
}

/// Whether it was given up, and nobody has taken it since.
pub(super) fn is_given_up(root: &Path) -> bool {
    fs::metadata(root.join(RESERVE)).is_ok_and(|meta| meta.len() == 0)
}

/// Bytes that a file system cannot leave out or compress.
fn write(path: &Path) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut noise = blake3::Hasher::new_derive_key("rekindle reserve").finalize_xof();
    let mut piece = vec![0; PIECE];
    for _ in 0..RESERVE_BYTES / PIECE as u64 {
        noise.fill(&mut piece);
        file.write_all(&piece)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_taken_yet_is_no_room() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(lacks(folder.path()), RESERVE_BYTES);
        keep(folder.path());
        assert_eq!(lacks(folder.path()), 0, "the disk counts it");
        assert!(give_up(folder.path()));
        assert_eq!(lacks(folder.path()), RESERVE_BYTES);
    }
}
