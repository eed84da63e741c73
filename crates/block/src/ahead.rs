//! Read-ahead: notices sequential reads and says what to fetch before it is asked for. Pure.

use crate::limits::{AHEAD_BYTES_MAX, AHEAD_BYTES_MIN, AHEAD_SLACK_BYTES, STREAMS_MAX};
use std::ops::Range;

/// The sequential streams of one volume.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    streams: Vec<Stream>,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Where the next read is expected.
    next: u64,
    /// Fetched, or being fetched, up to here.
    until: u64,
    /// Bytes to be ahead.
    window: u64,
}

impl Ahead {
    /// Notes a read and returns what should be fetched now, if anything.
    pub fn note(&mut self, position: u64, length: u64) -> Option<Range<u64>> {
        let end = position.saturating_add(length);
        let expected = |stream: &Stream| {
            let from = stream.next.saturating_sub(AHEAD_SLACK_BYTES);
            (from..=stream.until.saturating_add(AHEAD_SLACK_BYTES)).contains(&position)
        };
        let Some(index) = self.streams.iter().rposition(expected) else {
            if self.streams.len() == STREAMS_MAX {
                // The first is the one used longest ago.
                self.streams.remove(0);
            }
            self.streams.push(Stream { next: end, until: end, window: AHEAD_BYTES_MIN });
            return None;
        };
        let mut stream = self.streams.remove(index);
        stream.next = stream.next.max(end);
        stream.until = stream.until.max(stream.next);
        let fetch = if stream.until - stream.next <= stream.window / 2 {
            let target = stream.next.saturating_add(stream.window);
            stream.window = (stream.window * 2).min(AHEAD_BYTES_MAX);
            let fetch = stream.until..target;
            stream.until = target;
            Some(fetch)
        } else {
            None
        };
        self.streams.push(stream);
        fetch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 64 * 1024;

    #[test]
    fn a_sequential_reader_is_kept_ahead_of() {
        let mut ahead = Ahead::default();
        let mut fetched = 0;
        for step in 0..1000 {
            if let Some(fetch) = ahead.note(step * READ, READ) {
                assert!(step > 0, "one read is no sequence");
                assert!(fetched == 0 || fetch.start == fetched, "nothing twice, nothing left out");
                assert!(fetch.end - (step + 1) * READ <= AHEAD_BYTES_MAX);
                fetched = fetch.end;
            }
            assert!(step == 0 || fetched >= (step + 1) * READ + AHEAD_BYTES_MIN / 2);
        }
    }

    #[test]
    fn random_reads_fetch_nothing_and_streams_do_not_disturb_one_another() {
        let mut ahead = Ahead::default();
        for step in 1..1000u64 {
            let scattered = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
            assert_eq!(ahead.note(scattered, 4096), None);
        }
        let apart = 1 << 40;
        let mut fetches = [0; 4];
        for step in 0..64 {
            for stream in 0..4u64 {
                let fetch = ahead.note(stream * apart + step * READ, READ);
                fetches[stream as usize] += u32::from(fetch.is_some());
            }
        }
        assert!(fetches.iter().all(|count| *count > 3), "{fetches:?}");
    }

    #[test]
    fn the_end_of_the_address_space_is_no_overflow() {
        let mut ahead = Ahead::default();
        ahead.note(u64::MAX - 10, 20);
        ahead.note(u64::MAX - 5, u64::MAX);
    }
}
