//! Random numbers from a seed: SplitMix64, which is small, fast and good enough to decide who goes next.

use std::ops::RangeInclusive;
use std::time::Duration;

pub(super) struct Rng {
    state: u64,
}

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits")
    }

    /// An index into something of `length` elements, which is not 0.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("below a usize")
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// True with this probability. The impossible costs no draw.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what an f64 holds exactly.
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    pub(super) fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let spread = range.end().saturating_sub(*range.start()).as_nanos();
        let spread = u64::try_from(spread).unwrap_or(u64::MAX - 1);
        *range.start() + Duration::from_nanos(self.below(spread + 1))
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}
