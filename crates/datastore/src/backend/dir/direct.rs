//! Writing a new file past the page cache. A pack is written once and read much later, in parts: in
//! the cache it would cost a copy and fresh pages, and drive out what is read.

#![expect(
    clippy::disallowed_methods,
    reason = "the folder is a store for all nodes, not this machine's own disk"
)]

use crate::limits::{DIRECT_FILE_BYTES_MIN, DIRECT_PIECE_BYTES};
use rekindle_env::real::access::own_path;
use rekindle_env::{Aligned, DIRECT_BYTES};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Fills an empty file; durable on return.
pub(super) fn write(file: &File, data: &[u8]) -> io::Result<()> {
    let written = if data.len() < DIRECT_FILE_BYTES_MIN { 0 } else { write_direct(file, data) };
    file.write_all_at(&data[written..], written as u64)?;
    file.sync_all()
}

/// Writes whole pages past the page cache, as far as the file system takes them. Returns the bytes
/// that were written: the rest meets any error again.
fn write_direct(file: &File, data: &[u8]) -> usize {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let mut options = OpenOptions::new();
    let Ok(direct) = options.write(true).custom_flags(flags).open(own_path(file)) else {
        return 0;
    };
    let whole = data.len() - data.len() % DIRECT_BYTES;
    let mut buffer = Aligned::zeroed(DIRECT_PIECE_BYTES.min(whole));
    let mut written = 0;
    for piece in data[..whole].chunks(DIRECT_PIECE_BYTES) {
        let aligned = &mut buffer[..piece.len()];
        aligned.copy_from_slice(piece);
        if direct.write_all_at(aligned, written as u64).is_err() {
            break;
        }
        written += piece.len();
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_holds_exactly_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let edges = [DIRECT_FILE_BYTES_MIN, 2 * DIRECT_PIECE_BYTES, 3 * DIRECT_PIECE_BYTES + 4096];
        for length in edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1, edge + 4095]) {
            let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let path = folder.path().join(length.to_string());
            let file = OpenOptions::new().create_new(true).write(true).open(&path).unwrap();
            write(&file, &data).unwrap();
            assert!(std::fs::read(&path).unwrap() == data, "{length}");
        }
    }
}
