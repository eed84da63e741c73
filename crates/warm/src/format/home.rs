//! Page: docs/format/warm.md.
//!
//! The note of the folder to which an arena belongs, in the header page: for a user that finds the
//! file, and for the command that drops orphaned arenas. Nothing else rests on the note.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLhom` |
//! | 8 | 4 | bytes of the path |
//! | 12 | 4 | CRC-32C of the path |
//! | 16 | | the folder's path, UTF-8 |

use rekindle_base::checksum::crc32c;

/// Offset of the note in the header page.
pub(crate) const HOME_AT: usize = 3072;
/// Bytes of the note.
pub(crate) const HOME_BYTES: usize = 1024;
pub(super) const MAGIC: &[u8; 8] = b"RKNDLhom";
const PATH_AT: usize = 16;

/// Encodes the note of a folder; a path that is too long is left out, and the note is empty then.
pub(crate) fn encode(folder: &str) -> [u8; HOME_BYTES] {
    let mut note = [0; HOME_BYTES];
    let path = folder.as_bytes();
    if path.len() <= HOME_BYTES - PATH_AT {
        note[..8].copy_from_slice(MAGIC);
        note[8..12].copy_from_slice(&(path.len() as u32).to_le_bytes());
        note[12..16].copy_from_slice(&crc32c(path).to_le_bytes());
        note[PATH_AT..PATH_AT + path.len()].copy_from_slice(path);
    }
    note
}

/// The folder that a note names. Total: any bytes give a folder or `None`.
pub(crate) fn decode(note: &[u8]) -> Option<String> {
    let word = |at: usize| Some(u32::from_le_bytes(note.get(at..at + 4)?.try_into().ok()?));
    let path = note.get(PATH_AT..PATH_AT.checked_add(word(8)? as usize)?)?;
    let right = note.starts_with(MAGIC) && word(12)? == crc32c(path);
    right.then(|| String::from_utf8(path.to_vec()).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_folder_survives_and_damage_is_seen() {
        let note = encode("/srv/größe");
        assert_eq!(decode(&note).as_deref(), Some("/srv/größe"));
        for bit in 0..(16 + "/srv/größe".len()) * 8 {
            let mut bad = note;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        assert_eq!(decode(&encode(&"x".repeat(2000))), None);
        assert_eq!(decode(&[0; HOME_BYTES]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_note_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut note = MAGIC.to_vec();
            note.extend(&bytes);
            let _ = decode(&note);
            let _ = decode(&bytes);
        }
    }
}
