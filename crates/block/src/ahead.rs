//! Read-ahead: notices sequential reads and tells what to fetch before a client asks for it. No
//! I/O.
//!
//! Two kinds of reads are noted: those that miss the cache, and hits that reach the mark of a
//! stream (half of what has been fetched for it is used up, or nothing has been fetched yet). So a
//! hit costs a few comparisons, and the data ahead of a sequential reader never runs out.

use crate::limits::{AHEAD_BYTES_MAX, AHEAD_BYTES_MIN, AHEAD_SLACK_BYTES, STREAMS_MAX};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mark that no read reaches.
const NEVER: u64 = u64::MAX;

/// The sequential streams of one volume.
#[derive(Debug)]
pub(crate) struct Ahead {
    streams: Mutex<Streams>,
    /// The mark of each stream: a hit that covers this byte is noted.
    marks: [AtomicU64; STREAMS_MAX],
}

#[derive(Debug, Default)]
struct Streams {
    streams: [Stream; STREAMS_MAX],
    /// Number of noted reads.
    noted: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// Number of its last noted read; 0: never.
    used: u64,
    /// Position at which the next read is expected.
    next: u64,
    /// End of the range that is fetched, or being fetched.
    until: u64,
    /// Length of the next fetch, bytes.
    window: u64,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { streams: Mutex::default(), marks: std::array::from_fn(|_| AtomicU64::new(NEVER)) }
    }
}

impl Ahead {
    /// Whether a hit must be noted.
    pub fn is_marked(&self, position: u64, length: u64) -> bool {
        self.marks.iter().any(|mark| mark.load(Ordering::Relaxed).wrapping_sub(position) < length)
    }

    /// Notes that a fetch ended short, at `until`. The mark is taken away, so that the reader
    /// misses there and its read is noted.
    pub fn fell_short(&self, fetch: &Range<u64>, until: u64) {
        let mut streams = self.streams.lock();
        let Some(index) = streams.streams.iter().position(|stream| stream.until == fetch.end)
        else {
            return;
        };
        streams.streams[index].until = until.max(streams.streams[index].next);
        self.marks[index].store(NEVER, Ordering::Relaxed);
    }

    /// Notes a read and returns the range to fetch now, if any.
    pub fn note(&self, position: u64, length: u64) -> Option<Range<u64>> {
        let mut streams = self.streams.lock();
        let (index, fetch) = streams.note(position, position.saturating_add(length));
        let stream = &streams.streams[index];
        // With nothing fetched, the read that follows is noted even if it is a hit: what lies
        // behind a chunk may have come with it.
        let mark = if stream.until > stream.next { stream.until - stream.window / 2 } else { 0 };
        self.marks[index].store(mark.max(stream.next), Ordering::Relaxed);
        fetch
    }
}

impl Streams {
    fn note(&mut self, position: u64, end: u64) -> (usize, Option<Range<u64>>) {
        self.noted += 1;
        let used = self.noted;
        let belongs = |stream: &Stream| {
            let from = stream.next.saturating_sub(AHEAD_SLACK_BYTES);
            stream.used > 0
                && (from..=stream.until.saturating_add(AHEAD_SLACK_BYTES)).contains(&position)
        };
        let Some(index) = self.streams.iter().position(belongs) else {
            let oldest =
                (0..STREAMS_MAX).min_by_key(|index| self.streams[*index].used).unwrap_or_default();
            self.streams[oldest] = Stream { used, next: end, until: end, window: AHEAD_BYTES_MIN };
            return (oldest, None);
        };
        let stream = &mut self.streams[index];
        stream.used = used;
        stream.next = stream.next.max(end);
        stream.until = stream.until.max(stream.next);
        if stream.until - stream.next > stream.window / 2 {
            return (index, None);
        }
        let fetch = stream.until..stream.next.saturating_add(stream.window);
        stream.until = fetch.end;
        stream.window = (stream.window * 2).min(AHEAD_BYTES_MAX);
        (index, Some(fetch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 64 * 1024;

    /// Reads at `position`; the read is a hit below `fetched`. Returns the range to fetch now.
    fn read(ahead: &Ahead, fetched: u64, position: u64) -> Option<Range<u64>> {
        let hit = position + READ <= fetched;
        if hit && !ahead.is_marked(position, READ) { None } else { ahead.note(position, READ) }
    }

    #[test]
    fn a_sequential_reader_is_kept_ahead_of() {
        let ahead = Ahead::default();
        let (mut fetched, mut misses) = (0, 0);
        for step in 0..1000 {
            misses += u32::from((step + 1) * READ > fetched);
            if let Some(fetch) = read(&ahead, fetched, step * READ) {
                assert!(step > 0, "one read is no sequence");
                assert!(
                    fetched == 0 || fetch.start == fetched,
                    "nothing twice, nothing left out: {fetch:?} {fetched}"
                );
                assert!(fetch.end - (step + 1) * READ <= AHEAD_BYTES_MAX);
                fetched = fetch.end;
            }
        }
        assert_eq!(misses, 2, "all but the first two are hits");
    }

    #[test]
    fn a_hit_right_behind_a_first_miss_begins_the_sequence() {
        let ahead = Ahead::default();
        assert_eq!(read(&ahead, 0, 0), None);
        // The first chunk came with its neighbours.
        let fetched = 4 * READ;
        assert!(!ahead.is_marked(2 * READ, READ));
        assert!(read(&ahead, fetched, READ).is_some());
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let ahead = Ahead::default();
        for step in 1..1000u64 {
            let scattered = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
            assert_eq!(ahead.note(scattered, 4096), None);
        }
    }

    #[test]
    fn streams_do_not_disturb_one_another() {
        let ahead = Ahead::default();
        let (apart, mut fetched, mut misses) = (1 << 40, [0; 4], 0);
        for step in 0..256 {
            for (stream, fetched) in fetched.iter_mut().enumerate() {
                let position = stream as u64 * apart + step * READ;
                misses += u32::from(position + READ > *fetched);
                if let Some(fetch) = read(&ahead, *fetched, position) {
                    *fetched = fetch.end;
                }
            }
        }
        assert_eq!(misses, 8);
    }

    #[test]
    fn the_end_of_the_address_space_is_no_overflow() {
        let ahead = Ahead::default();
        for position in [u64::MAX - 10, u64::MAX - 5, u64::MAX] {
            ahead.note(position, 20);
            assert!(!ahead.is_marked(0, 4096));
        }
    }
}
