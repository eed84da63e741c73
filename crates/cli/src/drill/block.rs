//! Blocks that describe themselves: their run, their place, and how often that place was written.
//!
//! ```text
//! 0 magic "rkdrill1"  8 run:u64  16 block:u64  24 sequence:u64  32 crc:u32 of the rest  36 noise
//! ```
//! Noise, because zeros and repetitions would take no room in the store.

use rekindle_base::checksum::crc32c;
use rekindle_base::random::Random;

/// Bytes of a block.
pub const BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"rkdrill1";
const CRC: std::ops::Range<usize> = 32..36;

/// The content that was found in a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockFound {
    /// Zeros: never written, or lost.
    Nothing,
    /// The number of the write that the place holds.
    Sequence(u64),
    /// Neither: a torn or misplaced block, or bytes that another program wrote.
    Strange(String),
}

/// Makes the block that write number `sequence` puts into the place `block`.
pub fn make(run: u64, block: u64, sequence: u64, out: &mut [u8; BYTES]) {
    let mut noise = Random::new(run ^ block.rotate_left(32) ^ sequence.rotate_left(48));
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&noise.next_u64().to_le_bytes());
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
pub fn judge(run: u64, block: u64, bytes: &[u8; BYTES]) -> BlockFound {
    if bytes.iter().all(|&byte| byte == 0) {
        return BlockFound::Nothing;
    }
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    if bytes[..8] != MAGIC {
        return BlockFound::Strange("it is not a block of a drill".to_owned());
    }
    let mut copy = *bytes;
    copy[CRC].fill(0);
    if crc32c(&copy).to_le_bytes() != bytes[CRC] {
        return BlockFound::Strange("its checksum is wrong: it is torn".to_owned());
    }
    if word(8) != run {
        return BlockFound::Strange("it is of an earlier drill".to_owned());
    }
    if word(16) != block {
        return BlockFound::Strange(format!("it belongs to block {}", word(16)));
    }
    BlockFound::Sequence(word(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_what_it_is() {
        let mut bytes = [0; BYTES];
        assert_eq!(judge(7, 3, &bytes), BlockFound::Nothing);
        make(7, 3, 9, &mut bytes);
        assert_eq!(judge(7, 3, &bytes), BlockFound::Sequence(9));
        assert!(matches!(judge(8, 3, &bytes), BlockFound::Strange(_)));
        assert!(matches!(judge(7, 4, &bytes), BlockFound::Strange(_)));
        bytes[2048] ^= 1;
        assert!(matches!(judge(7, 3, &bytes), BlockFound::Strange(why) if why.contains("torn")));
    }
}
