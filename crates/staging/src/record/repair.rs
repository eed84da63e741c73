//! The repair that only the kind of a volume of records can make.

use crate::Error;
use rekindle_content::Batch;
use rekindle_content::tree::{Fates, Root};
use rekindle_env::{BoxFuture, Timestamp};
use std::any::Any;
use std::ops::Range;

/// Keeps new changes of a volume away while it lives.
pub type Still = Box<dyn Any + Send>;

/// A tree without what is lost.
#[derive(Debug, Default)]
pub struct Cut {
    pub root: Root,
    /// Keys of the tree below which something is lost, ascending, apart from one another.
    pub lost: Vec<Range<u64>>,
    /// What is lost, for the user.
    pub losses: Vec<String>,
    /// What [`RecordRepair::tidy`] will do about it, for the user.
    pub follows: Vec<String>,
}

/// A tree whose parts fit together.
#[derive(Debug, Default)]
pub struct Tidied {
    pub root: Root,
    /// What did not fit and was changed, for the user.
    pub lines: Vec<String>,
}

/// The repair of a home of records that goes on without what is lost.
pub trait RecordRepair: Send + Sync {
    /// Writes the tree below `root` without what `fates` gives up into `batch`, which is flushed.
    fn cut<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        fates: &'a Fates,
    ) -> BoxFuture<'a, Result<Cut, Error>>;

    /// Waits for the change that is under way, and keeps further ones away.
    fn still(&self) -> BoxFuture<'_, Still>;

    /// Makes the tree below `root` fit together, into `batch`, which is flushed. The same root: it
    /// does.
    fn tidy<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Tidied, Error>>;
}
