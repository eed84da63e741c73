//! Repair of a damaged file volume: what cannot be had leaves the tables ([`cut`]), and then the
//! tables are made to fit together again ([`tidy`]), by what a [`survey`] of them has found.
//!
//! The two are two commits. A damaged page may be in the way of a commit of changes, and the log
//! may be full of those. So the first commit takes out what is lost, and no more. Then no change
//! begins, the changes that the log has are committed, and the second commit can judge a tree
//! beside which nothing is unfinished.

mod cut;
mod survey;
mod tidy;

use crate::home::{Home, into_staging};
use crate::types::{FileType, Ino};
use rekindle_content::Batch;
use rekindle_content::tree::{Fates, Root};
use rekindle_env::{BoxFuture, Timestamp};
use rekindle_staging::{Cut, Error as StagingError, RecordRepair, Still, Tidied};

/// Paths, sizes and numbers that a report names; what is beyond them is counted.
const NAMED_MAX: usize = 1000;

impl RecordRepair for Home {
    fn cut<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        fates: &'a Fates,
    ) -> BoxFuture<'a, Result<Cut, StagingError>> {
        Box::pin(async move { cut::cut(self, batch, root, fates).await.map_err(into_staging) })
    }

    fn still(&self) -> BoxFuture<'_, Still> {
        Box::pin(async move {
            let turn: Still = Box::new(self.turn.clone().lock_owned().await);
            turn
        })
    }

    fn tidy<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Tidied, StagingError>> {
        Box::pin(async move { tidy::tidy(self, batch, root, now).await.map_err(into_staging) })
    }
}

/// The directory, in the root directory, of what no name leads to any more.
const LOST_AND_FOUND: &str = "lost+found";

/// How a report calls an inode that no path leads to.
fn number(ino: Ino) -> String {
    format!("inode {ino}")
}

/// Tells that an inode without a name gets one.
fn found(ino: Ino, facts: survey::Facts) -> String {
    let what = match facts.kind {
        FileType::Regular => format!("a file of {} bytes", facts.size),
        FileType::Directory => "a directory".to_owned(),
        FileType::Symlink => "a symlink".to_owned(),
        _ => "a device, pipe or socket".to_owned(),
    };
    format!("/{LOST_AND_FOUND}/#{ino}: {what} that lost its name")
}
