//! Volumes of byte ranges: a change writes, zeroes or trims a range, and hides older changes of the
//! same bytes.
//!
//! - [`home`]: the trait that a kind of such volumes implements.
//! - [`overlay`]: the newest unfinished change of each byte; [`reading`]: reads through it.
//! - [`frozen`]: reads of a snapshot.
//! - [`coalesce`]: the last write of each range of a batch; [`counting`]: how much content a batch
//!   writes over.
//! - [`quarantine`]: the lost stretches, which reads refuse and writes heal.

pub(crate) mod coalesce;
pub(crate) mod counting;
mod frozen;
pub(crate) mod home;
pub(crate) mod overlay;
pub(crate) mod quarantine;
pub(crate) mod reading;

use crate::ack::staged::{Request, Staged, Submission, failed};
use crate::queue::Change;
use crate::shape::Home;
use crate::{Error, Written, limits};
use home::{RangeHome, none};
use rekindle_base::Serial;
use rekindle_base::limits::CHANGE_BYTES_MAX;
use std::sync::Arc;

impl Staged {
    /// Submits a write of at most `limits::CHANGE_BYTES_MAX` bytes. A plain call (one copy into the
    /// log). `durable`: FUA, must reach flash (or the datastore) whatever the volume's ack.
    pub fn write(self: &Arc<Self>, position: u64, data: &[u8], durable: bool) -> Written {
        let span = data.len() as u64;
        if span > CHANGE_BYTES_MAX {
            return failed(Error::Invalid(format!(
                "a change has at most {CHANGE_BYTES_MAX} bytes, not {span}"
            )));
        }
        let change = rekindle_log::Change::Write;
        self.submit_range(Request { change, position, span, payload: data }, durable)
    }

    /// Submits a write-zeroes (`trim = false`) or a trim of any length.
    pub fn clear(self: &Arc<Self>, position: u64, span: u64, trim: bool, durable: bool) -> Written {
        let change = if trim { rekindle_log::Change::Trim } else { rekindle_log::Change::Zero };
        self.submit_range(Request { change, position, span, payload: &[] }, durable)
    }

    fn submit_range(self: &Arc<Self>, request: Request<'_>, durable: bool) -> Written {
        if matches!(self.home, Home::Record(_)) {
            return failed(none());
        }
        if request.span == 0 {
            return Written::Acked;
        }
        if request.position.checked_add(request.span).is_none() {
            return failed(Error::Invalid("a range ends beyond 2^64".to_owned()));
        }
        self.submit(Submission { requests: &[request], durable })
    }

    /// The home, if the volume has byte ranges.
    pub(crate) fn range_home(&self) -> Result<&dyn RangeHome, Error> {
        match &self.home {
            Home::Range(home) => Ok(&**home),
            Home::Record(_) => Err(none()),
        }
    }

    /// Notes that the volume has grown: the vault says so already.
    pub fn resize(&self, size: u64) {
        if let Home::Range(home) = &self.home {
            home.grow(size);
        }
    }

    /// Clears the overlay of changes that the datastore has. In slices, so that no client waits for
    /// thousands of removals.
    pub(crate) fn purge(&self, changes: &[Change], checkpoint: Serial) {
        if matches!(self.home, Home::Record(_)) {
            return;
        }
        for slice in changes.chunks(limits::SLICE_CHANGES) {
            let mut gate = self.gate.lock();
            let Some(overlay) = gate.changes.shown.overlay_mut() else { return };
            for change in slice.iter().filter(|change| change.is_logged()) {
                overlay.purge(change.position, change.span, checkpoint);
            }
        }
        // Dropped outside the lock, where no task waits for it.
        let sorted =
            self.gate.lock().changes.shown.overlay_mut().and_then(|it| it.purge_sorted(checkpoint));
        drop(sorted);
    }
}
