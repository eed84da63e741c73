//! Random numbers from a seed, for the simulation, tests, benches and drills: SplitMix64 (Steele,
//! Lea and Flood 2014), which is small, fast, and the same on every machine. Nothing secret comes
//! from here.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A sequence of random numbers.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Draws the seed of a sequence of its own, as for another actor.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// Draws any number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Draws a number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits")
    }

    /// Draws an index into something of `length` elements, which is not 0.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("below a usize")
    }

    /// Draws `true` or `false`, equally often.
    pub fn coin(&mut self) -> bool {
        self.next_u64() & 1 == 1
    }

    /// Draws `true` with this probability. The impossible costs no draw.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what an f64 holds exactly.
        probability > 0.0 && ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Draws a duration of the range.
    pub fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let spread = range.end().saturating_sub(*range.start()).as_nanos();
        let spread = u64::try_from(spread).unwrap_or(u64::MAX - 1);
        *range.start() + Duration::from_nanos(self.below(spread + 1))
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next_u64().to_le_bytes()[..piece.len()]);
        }
    }

    /// Draws `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that failures name must mean the same run for ever.
    #[test]
    fn a_seed_is_one_sequence_for_ever() {
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::new(7);
        for bound in [1, 2, 3, 1000, u64::MAX] {
            assert!((0..100).all(|_| random.below(bound) < bound));
        }
        assert!(!(0..100).any(|_| random.chance(0.0)) && (0..100).all(|_| random.chance(1.0)));
        assert_eq!(random.bytes(13).len(), 13);
    }
}
