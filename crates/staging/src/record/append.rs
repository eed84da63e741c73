//! The way of records into a volume.

use super::RecordHome;
use crate::ack::policy::Mode;
use crate::ack::staged::{Request, Staged, Submission, failed};
use crate::shape::Home;
use crate::{Error, Written};
use rekindle_base::limits::CHANGE_BYTES_MAX;
use std::any::Any;
use std::sync::Arc;

/// A record that a caller submits.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// The record's own kind.
    pub kind: u64,
    /// At most `limits::CHANGE_BYTES_MAX`.
    pub bytes: &'a [u8],
}

impl Staged {
    /// Submits one record, or several as a group: all of them count, or none, also after a crash.
    /// A group has at most `rekindle_log::limits::GROUP_ENTRIES_MAX` records, and is acknowledged
    /// as a whole. `durable`: must reach flash (or the datastore) whatever the volume's ack.
    pub fn append_records(self: &Arc<Self>, records: &[NewRecord<'_>], durable: bool) -> Written {
        if matches!(self.home, Home::Range(_)) {
            return failed(Error::Invalid("the volume holds byte ranges, no records".to_owned()));
        }
        if records.is_empty() {
            return Written::Acked;
        }
        if let Some(large) = records.iter().find(|one| one.bytes.len() as u64 > CHANGE_BYTES_MAX) {
            return failed(Error::Invalid(format!(
                "a record has at most {CHANGE_BYTES_MAX} bytes, not {}",
                large.bytes.len()
            )));
        }
        let mut requests = Vec::with_capacity(records.len());
        for &NewRecord { kind, bytes } in records {
            requests.push(Request {
                change: rekindle_log::Change::Record,
                position: kind,
                span: bytes.len() as u64,
                payload: bytes,
            });
        }
        self.submit(Submission { requests: &requests, durable })
    }

    /// Returns the home of the volume's records, for the readers of its kind; `None` if `H` is not
    /// what the kind has made.
    #[must_use]
    pub fn record_home<H: RecordHome>(&self) -> Option<Arc<H>> {
        match &self.home {
            Home::Range(_) => None,
            Home::Record(home) => {
                let home: Arc<dyn Any + Send + Sync> = home.clone();
                home.downcast().ok()
            }
        }
    }

    /// Whether all that the home is told of outlives this process: the log has it, in memory that
    /// does.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        matches!(self.mode, Mode::Log { .. }) && self.inner.config.memory_outlives_process
    }

    /// Waits until the home has all records that were visible before the volume came into service.
    /// Reads before that would miss some.
    pub async fn until_readable(&self) -> Result<(), Error> {
        self.listed().await
    }
}
