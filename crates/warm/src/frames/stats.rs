//! Counters of the frames.

use crate::limits::WAYS;
use std::sync::atomic::{AtomicU64, Ordering};

/// The beginning of the frames in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// With the frames of an earlier process.
    Kept,
    /// Empty: there were none in the file.
    New,
    /// Empty: the frames there have another layout version, older or newer.
    OtherLayout,
    /// Empty: the header of the part was damaged.
    Damaged,
    /// Empty: the frames there belong to another node or another store.
    Foreign,
    /// Empty: the budget, or the number of segment slots before it, has changed.
    Resized,
}

impl Beginning {
    /// One word for display and for programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Beginning::Kept => "kept",
            Beginning::New => "new",
            Beginning::OtherLayout => "other-layout",
            Beginning::Damaged => "damaged",
            Beginning::Foreign => "foreign",
            Beginning::Resized => "resized",
        }
    }

    /// The cause of the miss of a key that is in no frame.
    pub(super) fn miss(self) -> Miss {
        match self {
            Beginning::Kept => Miss::Absent,
            Beginning::OtherLayout => Miss::OtherLayout,
            Beginning::New | Beginning::Damaged | Beginning::Foreign | Beginning::Resized => {
                Miss::Cold
            }
        }
    }
}

/// The cause of a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// The key was never there, or so long ago that its eviction is forgotten.
    Absent,
    /// The key had to make room for others lately.
    Evicted,
    /// The key was there, but its bytes did not verify.
    Damaged,
    /// The frames of this life began empty: whether the key was there before cannot be known.
    Cold,
    /// As [`Miss::Cold`], because another version of the layout was found.
    OtherLayout,
}

impl Miss {
    /// Every cause.
    pub const ALL: [Miss; 5] =
        [Miss::Absent, Miss::Evicted, Miss::Damaged, Miss::Cold, Miss::OtherLayout];

    /// One word for display and for programs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Miss::Absent => "absent",
            Miss::Evicted => "evicted",
            Miss::Damaged => "damaged",
            Miss::Cold => "cold",
            Miss::OtherLayout => "other-layout",
        }
    }
}

/// Counters, all since the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    pub began: Beginning,
    pub hits: u64,
    /// By cause, in the order of [`Miss::ALL`].
    misses: [u64; 5],
    /// Values put in.
    pub insertions: u64,
    /// Values that made room for others.
    pub evictions: u64,
    /// Values that an earlier process left and that were found sound.
    pub verifications: u64,
    /// Values refused because they fit no frame.
    pub too_long: u64,
}

impl Stats {
    /// Misses of any cause.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses.iter().sum()
    }

    /// Misses of one cause.
    #[must_use]
    pub fn missed(&self, cause: Miss) -> u64 {
        self.misses[cause as usize]
    }
}

/// The content of the frames; `[small, large]` where there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Memory that the part takes, bytes.
    pub bytes_max: u64,
    /// Bytes of the values in it.
    pub bytes: u64,
    pub frames_max: [u64; 2],
    pub frames: [u64; 2],
    /// Number of sets of which so many ways are taken (0 to all), of each size.
    pub sets: [[u64; WAYS + 1]; 2],
    /// Frames that this process has verified or written.
    pub verified: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) hits: AtomicU64,
    misses: [AtomicU64; 5],
    pub(super) insertions: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) verifications: AtomicU64,
    pub(super) too_long: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn missed(&self, miss: Miss) {
        Counters::add(&self.misses[miss as usize]);
    }

    pub(super) fn stats(&self, began: Beginning) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            began,
            hits: get(&self.hits),
            misses: self.misses.each_ref().map(get),
            insertions: get(&self.insertions),
            evictions: get(&self.evictions),
            verifications: get(&self.verifications),
            too_long: get(&self.too_long),
        }
    }
}
