//! Blocks that describe themselves: which run wrote them, where they belong, how often that place was written.
//!
//! ```text
//! 0  magic "rkdrill1"   8 run:u64   16 block:u64   24 sequence:u64   32 crc:u32 of everything else   36 noise
//! ```
//! Noise, because zeros and repetitions would be stored without being stored.

use base::checksum::crc32c;

/// Bytes of a block.
pub const BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"rkdrill1";
const CRC: std::ops::Range<usize> = 32..36;

/// What was found in a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Zeros: never written, or lost.
    Nothing,
    /// This write of the place.
    Sequence(u64),
    /// Neither: torn, misplaced, or of somebody else.
    Strange(String),
}

/// The block that write number `sequence` of the place `block` puts there.
pub fn make(run: u64, block: u64, sequence: u64, out: &mut [u8; BYTES]) {
    let mut noise = Noise(run ^ block.rotate_left(32) ^ sequence.rotate_left(48));
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&noise.next().to_le_bytes());
    }
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&run.to_le_bytes());
    out[16..24].copy_from_slice(&block.to_le_bytes());
    out[24..32].copy_from_slice(&sequence.to_le_bytes());
    out[CRC].fill(0);
    let crc = crc32c(&*out);
    out[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// Judges what was read from the place `block`.
pub fn judge(run: u64, block: u64, bytes: &[u8; BYTES]) -> Found {
    if bytes.iter().all(|&byte| byte == 0) {
        return Found::Nothing;
    }
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    if bytes[..8] != MAGIC {
        return Found::Strange("it is not a block of a drill".to_owned());
    }
    let mut copy = *bytes;
    copy[CRC].fill(0);
    if crc32c(&copy).to_le_bytes() != bytes[CRC] {
        return Found::Strange("its checksum is wrong: it is torn".to_owned());
    }
    if word(8) != run {
        return Found::Strange("it is of an earlier drill".to_owned());
    }
    if word(16) != block {
        return Found::Strange(format!("it belongs to block {}", word(16)));
    }
    Found::Sequence(word(24))
}

/// A stream of noise (splitmix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_what_it_is() {
        let mut bytes = [0; BYTES];
        assert_eq!(judge(7, 3, &bytes), Found::Nothing);
        make(7, 3, 9, &mut bytes);
        assert_eq!(judge(7, 3, &bytes), Found::Sequence(9));
        assert!(matches!(judge(8, 3, &bytes), Found::Strange(_)));
        assert!(matches!(judge(7, 4, &bytes), Found::Strange(_)));
        bytes[2048] ^= 1;
        assert!(matches!(judge(7, 3, &bytes), Found::Strange(why) if why.contains("torn")));
    }
}
