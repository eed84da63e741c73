//! The home of byte ranges, as the destager and the reader see it. The volume's kind implements it.

use crate::{Error, Source};
use rekindle_content::{Batch, tree::Root};
use rekindle_env::BoxFuture;
use std::ops::Range;

/// A stretch of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub position: u64,
    pub span: u64,
    /// `false`: a hole, which reads as zeros and takes no space.
    pub data: bool,
}

/// One coalesced piece of a batch: no two pieces of a batch overlap; pieces ascend by position.
#[derive(Clone)]
pub struct Fold {
    pub position: u64,
    pub span: u64,
    pub source: Source,
}

/// The home of a volume of byte ranges: knows what the bytes mean, owns no state.
pub trait RangeHome: Send + Sync + 'static {
    /// Reads from cached chunks only; `false` when one is missing. A plain call.
    fn read_now(&self, root: &Root, position: u64, out: &mut [u8]) -> Result<bool, Error>;
    /// Reads. `keep`: whether fetched chunks go to the cache.
    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// Writes the changes into `batch` and returns the root with them.
    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, Error>>;
    /// Notes that the volume has grown to so many bytes.
    fn grow(&self, _size: u64) {}
    /// The bytes that stand for a range of keys of the volume's tree, none beyond the volume's end.
    fn bytes_of(&self, keys: Range<u64>) -> Range<u64>;
    /// Data and holes of a range.
    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, Error>>;
}

/// Prepares sources of which so many bytes are read, each after the one before: joins those that
/// lie together in the log to runs, and hints at the others.
pub async fn read_ahead(mut sources: Vec<(&mut Source, u64)>) {
    let place = |(source, bytes)| Some((Source::place(source)?, bytes));
    let wanted: Vec<_> =
        sources.iter().map(|(source, bytes)| (&**source, *bytes)).filter_map(place).collect();
    let mut joined = rekindle_log::along(&wanted).into_iter();
    for (source, _) in &mut sources {
        if let Source::Log(_, first) = source
            && let Some(along) = joined.next().flatten()
        {
            **source = Source::Along(along, *first);
        }
    }
    // What is read in another order than the log's, by far.
    rekindle_log::read_ahead(sources.iter().filter_map(|(source, _)| source.place())).await;
}

/// The error of a call for byte ranges to a volume of records.
pub(crate) fn none() -> Error {
    Error::Invalid("the volume holds records, no byte ranges".to_owned())
}
