//! CRC-32C, the one checksum of everything that is not named by its hash.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `data`.
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    narrow(crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, data))
}

/// Returns the CRC-32C of `seed` (8 bytes, little-endian) followed by `data`, so that the bytes are
/// valid in one place only.
///
/// A reused segment file still holds entries of its earlier life, and payloads that clients chose.
/// The seed is drawn anew for each use of the file, so that none of them verifies.
#[must_use]
pub fn crc32c_seeded(seed: u64, data: &[u8]) -> u32 {
    crc32c_parts(seed, &[data])
}

/// As [`crc32c_seeded`], of bytes that lie in several places: the parts count as if they were
/// joined.
#[must_use]
pub fn crc32c_parts(seed: u64, parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&seed.to_le_bytes());
    parts.iter().for_each(|part| digest.update(part));
    narrow(digest.finalize())
}

fn narrow(crc: u64) -> u32 {
    u32::try_from(crc).expect("a CRC-32 has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_seed_makes_bytes_valid_in_one_place_only() {
        assert_ne!(crc32c_seeded(1, b"entry"), crc32c_seeded(2, b"entry"));
        let joined = [&1u64.to_le_bytes()[..], b"entry"].concat();
        assert_eq!(crc32c_seeded(1, b"entry"), crc32c(&joined));
        assert_eq!(crc32c_parts(1, &[b"en", b"", b"try"]), crc32c(&joined));
    }
}
