//! Synthetic content: noise that no compressor shrinks, and text that each does.

use rekindle_base::random::Random;

/// Builds text of a made-up language: a few words are frequent and most are rare, with numbers
/// in between. zstd shrinks such text to about 45 %.
pub fn text(random: &mut Random, length: usize) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..4096)
        .map(|_| (0..2 + random.below(9)).map(|_| b'a' + random.below(26) as u8).collect())
        .collect();
    let mut text = Vec::with_capacity(length + 16);
    while text.len() < length {
        // The product of two evenly distributed numbers is small more often than not.
        let word = random.below(64) * random.below(65);
        text.extend_from_slice(&words[word as usize]);
        text.push(if random.below(12) == 0 { b'\n' } else { b' ' });
        if random.below(16) == 0 {
            text.extend(random.below(1_000_000).to_string().bytes());
        }
    }
    text.truncate(length);
    text
}

/// Builds half text, half noise, in runs of 1 MiB.
pub fn mixture(random: &mut Random, mebibytes: usize) -> Vec<u8> {
    let mut mixture = Vec::with_capacity(mebibytes << 20);
    for at in 0..mebibytes {
        let run = if at % 2 == 0 { text(random, 1 << 20) } else { random.bytes(1 << 20) };
        mixture.extend(run);
    }
    mixture
}

/// Builds such a mixture, of which this share repeats earlier bytes of it, in runs of 1 MiB.
pub fn repeated(random: &mut Random, mebibytes: usize, share: f64) -> Vec<u8> {
    const RUN: usize = 1 << 20;
    let fresh = mixture(random, ((mebibytes as f64 * (1.0 - share)).ceil() as usize).max(1));
    let (mut repeated, mut used) = (Vec::with_capacity(mebibytes * RUN), 0);
    for at in 0..mebibytes {
        // The fresh runs are spread evenly among the others.
        let due = (at + 1) * (fresh.len() / RUN) >= mebibytes * (used + 1);
        let run = if due || used == 0 { used } else { random.index(used) };
        used += usize::from(run == used);
        repeated.extend_from_slice(&fresh[run * RUN..(run + 1) * RUN]);
    }
    repeated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compressible_and_noise_is_not() {
        let mut random = Random::new(1);
        let ratio =
            |data: &[u8]| zstd::bulk::compress(data, 1).unwrap().len() as f64 / data.len() as f64;
        let text = ratio(&text(&mut random, 1 << 20));
        assert!((0.3..0.6).contains(&text), "{text}");
        assert!(ratio(&random.bytes(1 << 20)) > 0.99);
        assert_eq!(mixture(&mut random, 3).len(), 3 << 20);
    }

    #[test]
    fn four_of_five_runs_are_there_before() {
        let data = repeated(&mut Random::new(1), 20, 0.8);
        let runs: std::collections::HashSet<_> = data.chunks(1 << 20).collect();
        assert_eq!((data.len(), runs.len()), (20 << 20, 4));
    }
}
