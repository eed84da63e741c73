//! Reading many payloads in an order that is known beforehand.
//!
//! Payloads that lie close together on flash make a *run*, which one read past the page cache
//! brings in. The run stays in memory from its first payload to its last one, and its bytes are
//! verified there once an entry. The next run is read by a task of its own meanwhile.
//!
//! A reader whose order has little to do with the log's would keep too many runs at once. The runs
//! that do not fit are left to [`crate::read_ahead`] and the page cache, which may be larger.

use crate::Error;
use crate::format::ENTRY_BYTES;
use crate::limits::{READ_AHEAD_GAP, READ_BYTES_MAX, RUN_BYTES_MAX, RUNS_KEPT_MAX};
use crate::segment::{Place, Segment};
use parking_lot::Mutex as Lock;
use rekindle_env::{Aligned, DIRECT_BYTES, Open};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Mutex;

/// A place whose payload is read along with its neighbours.
#[derive(Clone)]
pub struct Along {
    runs: Arc<Runs>,
    run: usize,
    place: Place,
}

struct Runs {
    /// In the order in which they are read.
    runs: Vec<Run>,
    /// Buffers of runs that are read to their end.
    spare: Lock<Vec<Aligned>>,
}

struct Run {
    segment: Arc<Segment>,
    /// Bytes of the segment, on multiples of [`DIRECT_BYTES`].
    bytes: Range<u32>,
    /// Wanted bytes that are not read yet.
    left: AtomicU64,
    /// Whether a reader has come to the run.
    begun: AtomicBool,
    content: Mutex<RunBytes>,
}

enum RunBytes {
    Unread,
    /// The bytes, and the offset of the entry that was verified last.
    Here(Aligned, Option<u32>),
    /// The run was read to its end, or cannot be read as a whole.
    Gone,
}

/// Joins places into runs. `wanted`: places with the bytes that will be read of each, in the order
/// of reading. Returns an [`Along`] for each place whose run is kept.
#[must_use]
pub fn along(wanted: &[(&Place, u64)]) -> Vec<Option<Along>> {
    let mut by_offset: Vec<usize> = (0..wanted.len()).collect();
    let key = |at: &usize| (wanted[*at].0.segment.id(), wanted[*at].0.offset);
    by_offset.sort_unstable_by_key(key);
    let mut spans: Vec<Span> = Vec::new();
    let mut span_of = vec![0; wanted.len()];
    for at in by_offset {
        let (place, bytes) = wanted[at];
        let (start, end) = (place.offset, place.offset + ENTRY_BYTES + place.length);
        match spans.last_mut() {
            Some(last)
                if last.segment.id() == place.segment.id()
                    && start <= last.bytes.end + READ_AHEAD_GAP
                    && end - last.bytes.start <= RUN_BYTES_MAX =>
            {
                last.bytes.end = last.bytes.end.max(end);
                last.reads = last.reads.start.min(at)..last.reads.end.max(at + 1);
                last.wanted += bytes;
            }
            _ => spans.push(Span {
                segment: &place.segment,
                bytes: start..end,
                reads: at..at + 1,
                wanted: bytes,
            }),
        }
        span_of[at] = spans.len() - 1;
    }
    let (mut runs, mut run_of, mut kept) = (Vec::new(), vec![None; spans.len()], 0);
    for (at, &index) in span_of.iter().enumerate() {
        let span = &spans[index];
        if span.reads.start == at && kept < RUNS_KEPT_MAX {
            run_of[index] = Some(runs.len());
            kept += 1;
            runs.push(Run::of(span));
        }
        if span.reads.end == at + 1 && run_of[index].is_some() {
            kept -= 1;
        }
    }
    let runs = Arc::new(Runs { runs, spare: Lock::default() });
    let along = |(at, span): (usize, &usize)| {
        let run = run_of[*span]?;
        Some(Along { runs: runs.clone(), run, place: wanted[at].0.clone() })
    };
    span_of.iter().enumerate().map(along).collect()
}

/// Bytes of a segment, and the stretch of the order in which they are read.
struct Span<'a> {
    segment: &'a Arc<Segment>,
    bytes: Range<u32>,
    reads: Range<usize>,
    wanted: u64,
}

impl Run {
    fn of(span: &Span<'_>) -> Run {
        let unit = u32::try_from(DIRECT_BYTES).expect("a page is small");
        let capacity = span.segment.pool().capacity;
        let end = span.bytes.end.next_multiple_of(unit).min(capacity);
        Run {
            segment: span.segment.clone(),
            bytes: span.bytes.start / unit * unit..end,
            left: AtomicU64::new(span.wanted),
            begun: AtomicBool::new(false),
            content: Mutex::new(RunBytes::Unread),
        }
    }

    /// Reads the run from flash. A failure is left to the readers of the single entries.
    async fn load(&self, mut buffer: Aligned) -> RunBytes {
        let pool = self.segment.pool();
        let read = async {
            let file = pool.open(self.segment.file, Open::Read).await?;
            let mut offset = u64::from(self.bytes.start);
            for piece in buffer[..self.bytes.len()].chunks_mut(READ_BYTES_MAX) {
                file.read_direct(piece, offset).await?;
                offset += piece.len() as u64;
            }
            Ok::<_, std::io::Error>(())
        };
        match read.await {
            Ok(()) => RunBytes::Here(buffer, None),
            Err(_) => RunBytes::Gone,
        }
    }
}

impl Runs {
    /// Takes a buffer in which every run has room.
    fn buffer(&self) -> Aligned {
        let longest = || self.runs.iter().map(|run| run.bytes.len()).max().unwrap_or(0);
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| Aligned::zeroed(longest()))
    }

    /// Counts bytes that were read; lets the run go with the last ones.
    fn used(&self, index: usize, bytes: usize) {
        let run = &self.runs[index];
        let is_last = run.left.fetch_sub(bytes as u64, Ordering::Relaxed) <= bytes as u64;
        if is_last
            && let Ok(mut content) = run.content.try_lock()
            && let RunBytes::Here(bytes, _) = std::mem::replace(&mut *content, RunBytes::Gone)
        {
            self.spare.lock().push(bytes);
        }
    }

    /// Copies bytes out of a run; `false` when the run does not have them, or they are damaged.
    async fn copy(
        self: &Arc<Self>,
        index: usize,
        place: &Place,
        start: u32,
        out: &mut [u8],
    ) -> bool {
        let run = &self.runs[index];
        if !run.begun.swap(true, Ordering::Relaxed) {
            self.begin(index + 1);
        }
        let mut content = run.content.lock().await;
        if matches!(*content, RunBytes::Unread) {
            *content = run.load(self.buffer()).await;
        }
        let RunBytes::Here(bytes, verified) = &mut *content else { return false };
        let entry = bytes.get((place.offset - run.bytes.start) as usize..).unwrap_or_default();
        if *verified != Some(place.offset) {
            if run.segment.check(place, entry).is_err() {
                return false;
            }
            *verified = Some(place.offset);
        }
        let first = (ENTRY_BYTES + start) as usize;
        out.copy_from_slice(&entry[first..first + out.len()]);
        true
    }

    /// Begins to read a run that a reader will come to soon.
    fn begin(self: &Arc<Self>, index: usize) {
        let Some(run) = self.runs.get(index) else { return };
        if run.segment.with_memory(|_| ()).is_some() {
            return;
        }
        let runs = self.clone();
        run.segment.pool().env.spawn("log-read", async move {
            let run = &runs.runs[index];
            let mut content = run.content.lock().await;
            if matches!(*content, RunBytes::Unread) {
                *content = run.load(runs.buffer()).await;
            }
        });
    }
}

impl Along {
    /// Copies payload bytes from `start` if they are in memory, as [`Place::read_now`] does.
    pub fn read_now(&self, start: u32, out: &mut [u8]) -> Result<bool, Error> {
        let is_read = self.place.read_now(start, out)?;
        if is_read {
            self.note(out);
        }
        Ok(is_read)
    }

    /// Copies payload bytes from `start`, as [`Place::read`] does.
    pub async fn read(&self, start: u32, out: &mut [u8]) -> Result<(), Error> {
        if self.read_now(start, out)? {
            return Ok(());
        }
        if !self.runs.copy(self.run, &self.place, start, out).await {
            // The device may give the entry rightly, or refuse it as it is.
            return self.place.read(start, out).await;
        }
        self.note(out);
        Ok(())
    }

    fn note(&self, out: &[u8]) {
        self.place.segment.note_read_back(u32::try_from(out.len()).expect("inside a payload"));
        self.runs.used(self.run, out.len());
    }

    /// The place itself.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }
}
