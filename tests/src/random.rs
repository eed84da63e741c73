//! The seed of a story: it is printed, so that a failure can be repeated.

use rekindle_base::random::Random;

/// Creates a sequence from `REKINDLE_SEED`, else from the clock, and prints the seed.
#[must_use]
pub fn for_story(story: &str) -> Random {
    let seed = std::env::var("REKINDLE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |since| since.as_nanos() as u64)
        });
    println!("{story}: REKINDLE_SEED={seed}");
    Random::new(seed)
}
