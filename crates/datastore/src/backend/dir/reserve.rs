//! Room for removals: a file whose bytes may be given up.
//!
//! Marking a vault deleted, or noting the intent of a sweep, takes a small write first. So nothing
//! could be removed from a store that is full.
//!
//! A few mebibytes are therefore taken while there is room, and given up when a small write finds
//! none. From then on no pack is accepted until there is room for the reserve again; otherwise a
//! batch that is tried again would use those bytes up.

#![expect(
    clippy::disallowed_methods,
    reason = "the folder is a store for all nodes, not this machine's own disk"
)]

use crate::limits::RESERVE_BYTES;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The name of the reserve: no key can name it, and no listing shows it.
const RESERVE: &str = ".reserve";
const PIECE: usize = 64 << 10;

/// Takes the room, if there is some and it is not taken yet; returns whether packs may be written.
pub(super) fn keep(root: &Path) -> bool {
    let path = root.join(RESERVE);
    let there = fs::metadata(&path).map(|meta| meta.len());
    if there.as_ref().is_ok_and(|&length| length >= RESERVE_BYTES) || write(&path).is_ok() {
        return true;
    }
    // The part that was written is too small to be of use, and other writes need the room.
    match there {
        // The reserve was given up, perhaps by another process: an empty file says so.
        Ok(_) => File::create(&path).is_err(),
        // The store never had room for the reserve.
        Err(_) => {
            let _ = fs::remove_file(&path);
            true
        }
    }
}

/// Returns how many bytes the reserve lacks.
pub(super) fn lacks(root: &Path) -> u64 {
    let taken = fs::metadata(root.join(RESERVE)).map_or(0, |meta| meta.len());
    RESERVE_BYTES.saturating_sub(taken)
}

/// Gives the room up; returns whether there was any.
pub(super) fn give_up(root: &Path) -> bool {
    let path = root.join(RESERVE);
    let some = fs::metadata(&path).is_ok_and(|meta| meta.len() > 0);
    some && File::create(&path).is_ok()
}

/// Whether the reserve was given up and not taken again since.
pub(super) fn is_given_up(root: &Path) -> bool {
    fs::metadata(root.join(RESERVE)).is_ok_and(|meta| meta.len() == 0)
}

/// Writes bytes that a file system can neither leave out nor compress.
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
