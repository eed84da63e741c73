//! Made-up content: noise that nothing compresses, and text that everything does.

/// Random numbers from a seed (splitmix64): the same content in every run and on every side.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Words of a made-up language, a few of them often and most of them seldom, with numbers in between: zstd takes
    /// such text to about 45 %.
    pub fn text(&mut self, length: usize) -> Vec<u8> {
        let words: Vec<Vec<u8>> = (0..4096)
            .map(|_| (0..2 + self.below(9)).map(|_| b'a' + self.below(26) as u8).collect())
            .collect();
        let mut text = Vec::with_capacity(length + 16);
        while text.len() < length {
            // The product of two even numbers is small more often than not.
            let word = self.below(64) * self.below(65);
            text.extend_from_slice(&words[word as usize]);
            text.push(if self.below(12) == 0 { b'\n' } else { b' ' });
            if self.below(16) == 0 {
                text.extend(self.below(1_000_000).to_string().bytes());
            }
        }
        text.truncate(length);
        text
    }

    /// Half text, half noise, in runs of 1 MiB.
    pub fn mixture(&mut self, mebibytes: usize) -> Vec<u8> {
        let mut mixture = Vec::with_capacity(mebibytes << 20);
        for at in 0..mebibytes {
            let run = if at % 2 == 0 { self.text(1 << 20) } else { self.bytes(1 << 20) };
            mixture.extend(run);
        }
        mixture
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compressible_and_noise_is_not() {
        let mut random = Random::new(1);
        let ratio =
            |data: &[u8]| zstd::bulk::compress(data, 1).unwrap().len() as f64 / data.len() as f64;
        let text = ratio(&random.text(1 << 20));
        assert!((0.3..0.6).contains(&text), "{text}");
        assert!(ratio(&random.bytes(1 << 20)) > 0.99);
        assert_eq!(random.mixture(3).len(), 3 << 20);
        assert!((0..1000).all(|_| random.below(7) < 7));
    }
}
