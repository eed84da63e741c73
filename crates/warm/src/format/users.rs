//! Page: docs/format/warm.md.
//!
//! The note of the arena's users, twice in the header page: the nonces of the starts that may have
//! written here. A folder, or a whole store, may be put back to an older state. The node's
//! record then names none of the nonces, and the arena's content is of a future that the node has
//! not had.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `RKNDLuse` |
//! | 8 | 4 | how many, at most 16 |
//! | 12 | 4 | CRC-32C of the nonces |
//! | 16 | 8 each | nonces, the oldest first |

use rekindle_base::checksum::crc32c;

/// Offsets of the two copies in the header page.
pub(crate) const USERS_AT: [usize; 2] = [512, 1536];
/// Bytes of one copy.
pub(crate) const USERS_BYTES: usize = 16 + 8 * USERS_MAX;
/// Most starts that are noted. All but one of them were killed before they wrote anything.
pub(crate) const USERS_MAX: usize = 16;
pub(super) const MAGIC: &[u8; 8] = b"RKNDLuse";
const NONCES_AT: usize = 16;

/// Encodes the note of the last [`USERS_MAX`] of these nonces.
pub(crate) fn encode(nonces: &[u64]) -> [u8; USERS_BYTES] {
    let nonces = &nonces[nonces.len().saturating_sub(USERS_MAX)..];
    let listed: Vec<u8> = nonces.iter().flat_map(|nonce| nonce.to_le_bytes()).collect();
    let mut note = [0; USERS_BYTES];
    note[..8].copy_from_slice(MAGIC);
    note[8..12].copy_from_slice(&(nonces.len() as u32).to_le_bytes());
    note[12..16].copy_from_slice(&crc32c(&listed).to_le_bytes());
    note[NONCES_AT..NONCES_AT + listed.len()].copy_from_slice(&listed);
    note
}

/// The nonces of a note. Total: any bytes give some or `None`.
pub(crate) fn decode(note: &[u8]) -> Option<Vec<u64>> {
    let word = |at: usize| Some(u32::from_le_bytes(note.get(at..at + 4)?.try_into().ok()?));
    let count = word(8)? as usize;
    let listed = note.get(NONCES_AT..NONCES_AT + count.min(USERS_MAX) * 8)?;
    let is_right = note.starts_with(MAGIC) && count <= USERS_MAX && word(12)? == crc32c(listed);
    let nonce = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
    is_right.then(|| listed.chunks_exact(8).filter_map(nonce).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_starts_survive_and_damage_is_seen() {
        let many: Vec<u64> = (1..=20).collect();
        assert_eq!(decode(&encode(&many)), Some(many[4..].to_vec()));
        let note = encode(&[5, u64::MAX]);
        assert_eq!(decode(&note), Some(vec![5, u64::MAX]));
        for bit in 0..(NONCES_AT + 16) * 8 {
            let mut bad = note;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        assert_eq!(decode(&[0; USERS_BYTES]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_note_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut note = MAGIC.to_vec();
            note.extend(&bytes);
            let _ = decode(&note);
            let _ = decode(&bytes);
        }
    }
}
