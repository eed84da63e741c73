//! Room for removals: a file that may be given up.
//!
//! In a store that is full, nothing could be removed: marking a vault deleted, or noting what a sweep is about, takes a
//! small write first. So a few mebibytes are taken when there is room, and given up when a small write finds none.

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

/// Takes the room, if it is not taken and there is some.
pub(super) fn keep(root: &Path) {
    let path = root.join(RESERVE);
    if fs::metadata(&path).is_ok_and(|meta| meta.len() >= RESERVE_BYTES) {
        return;
    }
    if write(&path).is_err() {
        // What is there is too little to be of use, and wanted elsewhere.
        let _ = fs::remove_file(&path);
    }
}

/// Gives the room up; whether there was any.
pub(super) fn give_up(root: &Path) -> bool {
    let path = root.join(RESERVE);
    let some = fs::metadata(&path).is_ok_and(|meta| meta.len() > 0);
    some && fs::remove_file(&path).is_ok()
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
