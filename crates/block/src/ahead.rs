//! Read-ahead: notices sequential reads and tells what to fetch before a client asks for it. No
//! I/O.
//!
//! Two kinds of reads are noted: those that miss the cache, and hits at or behind the mark of a
//! stream (half of what has been fetched for it is used up, or nothing has been fetched yet). So a
//! hit costs a few comparisons, and the data ahead of a sequential reader never runs out.
//!
//! A reader may have several reads under way, as a kernel that reads ahead itself. They come in any
//! order, so a read that is a few reads behind the last one belongs to its stream, and one beyond
//! the mark counts as one at it.
//!
//! The window of a stream grows to the usual size with its first reads, and beyond it while its
//! reader waits for what is being fetched: until it covers what the store gives within its latency.
//! A window is too long if what was fetched is gone when its reader comes: the cache had no room
//! for it beside other streams. It is halved then, and is shorter for a good while.

use crate::limits::{
    AHEAD_BYTES_MIN, AHEAD_BYTES_USUAL, AHEAD_GROWTH_WAITING, AHEAD_METADATA_BYTES,
    AHEAD_READS_BEHIND, AHEAD_READS_MIN, AHEAD_SLACK_BYTES, AHEAD_STEP_BYTES, AHEAD_STEPS_WAITING,
    AHEAD_WINDOWS_HALVED, STREAMS_MAX,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A noted read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// All of it was in memory.
    Hit,
    /// Its reader waits.
    Miss,
    /// Its reader waits, and from this byte on nothing was there or on its way.
    Absent(u64),
}

/// The ranges that a sequential reader needs next. [`Ahead::asked`] is to hear when the data has
/// been asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fetch {
    stream: StreamId,
    pub(crate) data: Range<u64>,
    /// The range whose metadata is to be fetched; only after a miss.
    pub(crate) metadata: Option<Range<u64>>,
}

/// The sequential streams of one volume.
#[derive(Debug)]
pub(crate) struct Ahead {
    streams: Mutex<Streams>,
    /// Longest window, bytes.
    window_max: u64,
    marks: [Mark; STREAMS_MAX],
}

/// The mark of a stream: a hit is noted that begins before `upto` and ends behind `from`. No hit is
/// at an empty one.
#[derive(Debug, Default)]
struct Mark {
    from: AtomicU64,
    upto: AtomicU64,
}

impl Mark {
    fn set(&self, bytes: Range<u64>) {
        self.from.store(bytes.start, Ordering::Relaxed);
        self.upto.store(bytes.end, Ordering::Relaxed);
    }

    /// Whether a read is at the mark, or behind it.
    fn is_met(&self, position: u64, end: u64) -> bool {
        end > self.from.load(Ordering::Relaxed) && position < self.upto.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Streams {
    streams: [Stream; STREAMS_MAX],
    /// Number of noted reads.
    noted: u64,
}

/// The number of the read that began a stream.
type StreamId = u64;

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    id: StreamId,
    /// Fetches that have not been asked for yet: their readers look for the places first.
    unasked: u32,
    /// Number of its last noted read; 0: never.
    used: u64,
    /// Position of its first read.
    begin: u64,
    /// Position at which the next read is expected.
    next: u64,
    /// Begin of the range that was fetched ahead; `None`: nothing was.
    fetched_from: Option<u64>,
    /// End of the range that is fetched, or being fetched.
    until: u64,
    /// Bytes that are to be fetched ahead of the reader.
    window: u64,
    /// Longest window that the cache has room for, as far as this stream has found out.
    window_max: u64,
    /// The position from which on that may be tried again.
    retry_at: u64,
    /// End of the range whose metadata is fetched.
    metadata_until: u64,
}

impl Stream {
    /// The bytes that are left when more of the window is fetched.
    fn refill_at(&self) -> u64 {
        self.window - (self.window / 2).min(AHEAD_STEP_BYTES)
    }

    /// Bounds the window, for as long as its reader passes many such windows.
    fn bound(&mut self, window_max: u64) {
        self.window_max = window_max;
        self.retry_at = self.next.saturating_add(window_max * AHEAD_WINDOWS_HALVED);
    }
}

impl Ahead {
    /// Makes the streams of a volume, with windows of so many bytes at most.
    pub fn new(window_max: u64) -> Self {
        Self {
            streams: Mutex::default(),
            window_max: window_max.max(AHEAD_BYTES_MIN),
            marks: Default::default(),
        }
    }

    /// Whether a hit must be noted.
    pub fn is_marked(&self, position: u64, length: u64) -> bool {
        let end = position.saturating_add(length);
        self.marks.iter().any(|mark| mark.is_met(position, end))
    }

    /// Hears that the data of a fetch has been asked for, or never will be.
    pub fn asked(&self, fetch: &Fetch) {
        let mut streams = self.streams.lock();
        let stream = streams.streams.iter_mut().find(|stream| stream.id == fetch.stream);
        if let Some(stream) = stream {
            stream.unasked = stream.unasked.saturating_sub(1);
        }
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
        self.marks[index].set(0..0);
    }

    /// Notes a read and returns what to fetch now, if anything.
    pub fn note(&self, position: u64, length: u64, noted: Noted) -> Option<Fetch> {
        let mut streams = self.streams.lock();
        let end = position.saturating_add(length);
        let (index, fetch) = streams.note(position, end, noted, self.window_max);
        let stream = &streams.streams[index];
        // With nothing fetched, the read that follows is noted even if it is a hit: what lies
        // behind a chunk may have come with it.
        let mark = if stream.until > stream.next {
            stream.until.saturating_sub(stream.refill_at())
        } else {
            0
        };
        let upto = stream.until.saturating_add(AHEAD_SLACK_BYTES);
        self.marks[index].set(mark.max(stream.next)..upto);
        fetch
    }
}

impl Streams {
    fn note(
        &mut self,
        position: u64,
        end: u64,
        noted: Noted,
        window_max: u64,
    ) -> (usize, Option<Fetch>) {
        self.noted += 1;
        let used = self.noted;
        let belongs = |stream: &Stream| {
            let behind = AHEAD_SLACK_BYTES.max((end - position).saturating_mul(AHEAD_READS_BEHIND));
            let from = stream.next.saturating_sub(behind);
            stream.used > 0
                && (from..=stream.until.saturating_add(AHEAD_SLACK_BYTES)).contains(&position)
        };
        let Some(index) = self.streams.iter().position(belongs) else {
            let oldest =
                (0..STREAMS_MAX).min_by_key(|index| self.streams[*index].used).unwrap_or_default();
            // One that reads in long steps will want many of them.
            let window = AHEAD_BYTES_MIN.max(AHEAD_READS_MIN * (end - position)).min(window_max);
            self.streams[oldest] = Stream {
                id: used,
                used,
                begin: position,
                next: end,
                until: end,
                window,
                window_max,
                metadata_until: end,
                ..Stream::default()
            };
            return (oldest, None);
        };
        let stream = &mut self.streams[index];
        stream.used = used;
        let was_fetched =
            |at| stream.fetched_from.is_some_and(|from| (from..stream.until).contains(&at));
        let is_lost = stream.unasked == 0 && matches!(noted, Noted::Absent(at) if was_fetched(at));
        // The reader waits for bytes that are being fetched: they were asked for too late.
        let waits = noted != Noted::Hit && position < stream.until && !is_lost;
        stream.next = stream.next.max(end);
        stream.until = stream.until.max(stream.next);
        if is_lost {
            stream.window = (stream.window / 2).max(AHEAD_BYTES_MIN);
            stream.bound(stream.window);
            stream.until = stream.next;
        } else if stream.window_max < window_max && stream.next >= stream.retry_at {
            stream.bound((stream.window_max * 2).min(window_max));
        }
        let window_max = stream.window_max;
        let grows_to = if waits { window_max } else { AHEAD_BYTES_USUAL.min(window_max) };
        // A window that cannot grow is filled in steps, also for a reader who waits: a request for
        // each read would be many small ones, and in no time as many as there may be.
        let may_grow = waits && stream.window < grows_to;
        if !may_grow && stream.until - stream.next > stream.refill_at() {
            return (index, None);
        }
        let window_end = stream.next.saturating_add(stream.window);
        let step = if waits { AHEAD_STEP_BYTES * AHEAD_STEPS_WAITING } else { AHEAD_STEP_BYTES };
        let data = stream.until..window_end.min(stream.until.saturating_add(step));
        // Who has read little may read little more.
        let passed = stream.next.saturating_sub(stream.begin);
        let grown = match waits {
            true => stream.window.min(passed) * AHEAD_GROWTH_WAITING,
            false => stream.window * 2,
        };
        stream.window = stream.window.max(grown.min(grows_to));
        if data.is_empty() {
            return (index, None);
        }
        stream.fetched_from.get_or_insert(data.start);
        stream.until = data.end;
        let metadata_end = data.end.saturating_add(AHEAD_METADATA_BYTES);
        let is_short =
            metadata_end - stream.metadata_until.min(metadata_end) >= AHEAD_METADATA_BYTES / 2;
        let metadata = (noted != Noted::Hit && is_short).then(|| {
            let from = stream.metadata_until.max(data.start);
            stream.metadata_until = metadata_end;
            from..metadata_end
        });
        stream.unasked += 1;
        (index, Some(Fetch { stream: stream.id, data, metadata }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::AHEAD_BYTES_MAX;

    const READ: u64 = 64 * 1024;

    fn ahead() -> Ahead {
        Ahead::new(AHEAD_BYTES_MAX)
    }

    /// Reads at `position`; the read is a hit below `fetched`. Returns the range to fetch now.
    fn read(ahead: &Ahead, fetched: u64, position: u64) -> Option<Range<u64>> {
        let noted = if position + READ <= fetched { Noted::Hit } else { Noted::Miss };
        let is_noted = noted == Noted::Miss || ahead.is_marked(position, READ);
        is_noted.then(|| ahead.note(position, READ, noted)).flatten().map(|fetch| fetch.data)
    }

    #[test]
    fn a_sequential_reader_is_kept_ahead_of() {
        let ahead = ahead();
        let (mut fetched, mut misses) = (0, 0);
        for step in 0..1000 {
            misses += u32::from((step + 1) * READ > fetched);
            if let Some(fetch) = read(&ahead, fetched, step * READ) {
                assert!(step > 0, "one read is no sequence");
                assert!(
                    fetched == 0 || fetch.start == fetched,
                    "nothing twice, nothing left out: {fetch:?} {fetched}"
                );
                assert!(fetch.end - (step + 1) * READ <= AHEAD_BYTES_USUAL, "no reader waited");
                fetched = fetch.end;
            }
        }
        assert_eq!(misses, 2, "all but the first two are hits");
    }

    /// Makes 2,000 reads, one after the other, from a store in which each fetch takes as long as
    /// `slow` reads. Returns how many of the second half waited, and how far ahead fetches went.
    fn read_slowly(ahead: &Ahead, slow: u64) -> (u32, u64) {
        let (mut waits, mut distance, mut now) = (0, 0, 0);
        let mut fetches: Vec<(Range<u64>, u64)> = Vec::new();
        for step in 0..2000 {
            let (begin, end) = (step * READ, (step + 1) * READ);
            let is_in = |fetch: &Range<u64>| fetch.start < end && begin < fetch.end;
            let mine = fetches.iter().filter(|(fetch, _)| is_in(fetch));
            let there = mine.map(|(_, there)| *there).max().unwrap_or(now + slow);
            let noted = if there > now { Noted::Miss } else { Noted::Hit };
            waits += u32::from(noted == Noted::Miss && step >= 1000);
            if (noted == Noted::Miss || ahead.is_marked(begin, READ))
                && let Some(fetch) = ahead.note(begin, READ, noted)
            {
                distance = distance.max(fetch.data.end - end);
                let steps = if noted == Noted::Miss { AHEAD_STEPS_WAITING } else { 1 };
                assert!(fetch.data.end - fetch.data.start <= AHEAD_STEP_BYTES * steps);
                fetches.push((fetch.data, now + slow));
            }
            now = now.max(there) + 1;
        }
        (waits, distance)
    }

    #[test]
    fn the_window_grows_until_no_reader_waits_and_no_further() {
        // 6.25 MiB are read while one fetch is under way.
        let slow = 100;
        let (waits, distance) = read_slowly(&ahead(), slow);
        assert_eq!(waits, 0);
        assert!((slow * READ..AHEAD_BYTES_MAX).contains(&distance), "{distance}");
        let (waits, _) = read_slowly(&Ahead::new(AHEAD_BYTES_USUAL), slow);
        assert!(waits > 10, "{waits}: a window of the usual size is too short");
    }

    #[test]
    fn a_window_that_cannot_grow_is_filled_in_steps_also_for_who_waits() {
        let ahead = ahead();
        for step in 0..4000 {
            let fetch = ahead.note(step * READ, READ, Noted::Miss);
            if let Some(fetch) = fetch.filter(|_| step >= 2000) {
                assert!(fetch.data.end - fetch.data.start >= AHEAD_STEP_BYTES, "{fetch:?}");
            }
        }
    }

    #[test]
    fn reads_that_come_in_another_order_are_one_sequence() {
        let ahead = ahead();
        // Each pair of reads is on its way at one time.
        let (mut fetched, mut misses) = (0, 0);
        for pair in 0..500 {
            for step in [2 * pair + 1, 2 * pair] {
                misses += u32::from((step + 1) * READ > fetched);
                if let Some(fetch) = read(&ahead, fetched, step * READ) {
                    assert!(fetched == 0 || fetch.start == fetched, "{fetch:?} {fetched}");
                    fetched = fetch.end;
                }
            }
        }
        assert_eq!(misses, 2, "the first pair begins the sequence");
    }

    #[test]
    fn little_is_fetched_for_who_has_read_little() {
        let (ahead, read) = (ahead(), 128 << 10);
        let mut fetched = 0;
        // Each read waits, as those of a far store do at first.
        for step in 0..8 {
            if let Some(fetch) = ahead.note(step * read, read, Noted::Miss) {
                ahead.asked(&fetch);
                fetched = fetch.data.end;
            }
        }
        assert!((1 << 20..=5 << 20).contains(&fetched), "{fetched}: it has read 1 MiB");
    }

    #[test]
    fn who_reads_backwards_gets_nothing_ahead_but_once() {
        let (ahead, read) = (ahead(), 1 << 20);
        let mut fetched = 0;
        for step in (0..64).rev() {
            if let Some(fetch) = ahead.note(step * read, read, Noted::Absent(step * read)) {
                ahead.asked(&fetch);
                fetched += fetch.data.end.saturating_sub(fetch.data.start.max(64 * read));
            }
        }
        assert!(fetched <= AHEAD_BYTES_USUAL, "{fetched}: beyond what it has read");
    }

    #[test]
    fn a_hit_behind_the_mark_is_noted_as_one_at_it() {
        let ahead = ahead();
        for step in 0..3 {
            ahead.note(step * READ, READ, Noted::Miss);
        }
        let first = (3..1000).find(|step| ahead.is_marked(step * READ, READ)).expect("a mark");
        // The read at the mark came before it was set.
        assert!(ahead.is_marked((first + 1) * READ, READ));
        assert!(ahead.note((first + 1) * READ, READ, Noted::Hit).is_some());
        assert!(!ahead.is_marked(1 << 40, READ), "what is far away is no part of it");
    }

    #[test]
    fn a_window_that_the_cache_has_no_room_for_is_halved_and_stays_so() {
        let ahead = ahead();
        let mut longest = 0;
        let mut fetched = 0;
        for step in 0..4000 {
            let (begin, end) = (step * READ, (step + 1) * READ);
            // What is fetched more than 8 MiB ahead is gone before its reader comes.
            let is_gone = end <= fetched && fetched - end > 8 << 20 && step % 2 == 0;
            let noted = if is_gone { Noted::Absent(begin) } else { Noted::Miss };
            if let Some(fetch) = ahead.note(begin, READ, noted) {
                ahead.asked(&fetch);
                fetched = fetch.data.end;
                if step >= 2000 {
                    longest = longest.max(fetched - end);
                }
            }
        }
        assert!((4 << 20..=16 << 20).contains(&longest), "{longest}");
    }

    #[test]
    fn nothing_is_lost_that_was_not_asked_for_yet() {
        // Long reads, whose window could be shorter.
        let (ahead, long) = (ahead(), 1 << 20);
        assert_eq!(ahead.note(long, long, Noted::Absent(long)), None);
        // It came before its turn. What is behind it was never fetched.
        let fetch = ahead.note(0, long, Noted::Absent(0)).expect("a sequence");
        assert_eq!(fetch.data, 2 * long..4 * long);
        // Its places are looked for in the tree, which takes a while.
        let next = ahead.note(2 * long, long, Noted::Absent(2 * long)).expect("it waits");
        assert_eq!(next.data.start, fetch.data.end, "nothing twice");
        ahead.asked(&fetch);
        ahead.asked(&next);
        let again = ahead.note(3 * long, long, Noted::Absent(3 * long)).expect("it is gone");
        assert_eq!(again.data.start, 4 * long, "what is left of the window is fetched anew");
    }

    #[test]
    fn metadata_comes_in_long_stretches_and_for_a_sequence_only() {
        let ahead = ahead();
        let (mut until, mut count) = (None, 0);
        for step in 0..10_000 {
            let Some(fetch) = ahead.note(step * READ, READ, Noted::Miss) else { continue };
            let Some(metadata) = fetch.metadata else { continue };
            assert!(until.is_none_or(|until| until == metadata.start), "nothing twice");
            assert!(metadata.end >= fetch.data.end + AHEAD_METADATA_BYTES / 2);
            until = Some(metadata.end);
            count += 1;
        }
        let read = 10_000 * READ;
        assert!(
            until.is_some_and(|until| until > read)
                && count <= 2 + read / (AHEAD_METADATA_BYTES / 2)
        );
    }

    #[test]
    fn a_hit_right_behind_a_first_miss_begins_the_sequence() {
        let ahead = ahead();
        assert_eq!(read(&ahead, 0, 0), None);
        // The first chunk came with its neighbours.
        let fetched = 4 * READ;
        assert!(!ahead.is_marked(2 * READ, READ));
        assert!(read(&ahead, fetched, READ).is_some());
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let ahead = ahead();
        for step in 1..1000u64 {
            let scattered = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
            assert_eq!(ahead.note(scattered, 4096, Noted::Miss), None);
        }
    }

    #[test]
    fn streams_do_not_disturb_one_another() {
        let ahead = ahead();
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
        let ahead = ahead();
        for position in [u64::MAX - 10, u64::MAX - 5, u64::MAX] {
            ahead.note(position, 20, Noted::Miss);
            assert!(!ahead.is_marked(0, 4096));
        }
    }
}
