//! Errors of the log.

use crate::Loss;
use rekindle_base::{Kind, SegmentId, VolumeId};

/// An error of the log.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Flash refused an I/O; the log has latched.
    #[error("flash failed in {folder}: {reason}: free or replace the device, then restart")]
    Flash {
        /// The log's folder.
        folder: String,
        /// The system's error.
        reason: String,
    },
    /// The file of the open segment is not where it was; the log has latched.
    #[error(
        "the log was taken away under the running daemon ({0}): put its folder back, or mount its disk, then start again"
    )]
    TakenAway(String),
    /// An entry's bytes fail their checksum.
    #[error("segment {segment} at {offset}: {reason}")]
    Damaged {
        /// The damaged segment.
        segment: SegmentId,
        /// Offset of the entry in the segment.
        offset: u32,
        /// The kind of damage.
        reason: String,
    },
    /// Acknowledged changes of a volume may be gone. [`crate::Log::salvage`] returns the rest, with
    /// the possible losses.
    #[error("changes of volume {volume} may be lost: {}", list(losses))]
    Lost {
        /// The volume.
        volume: VolumeId,
        /// The possible losses; never empty.
        losses: Vec<Loss>,
    },
    /// The folder belongs to another node or daemon.
    #[error("{0}")]
    Foreign(String),
    /// A segment of a newer format.
    #[error(
        "segment file {file} has format version {found}, this binary knows up to {known}: upgrade rekindle"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The newest known here.
        known: u32,
    },
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
}

impl Error {
    /// The class of the error, which decides what to do about it.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Error::Flash { .. } | Error::TakenAway(_) => Kind::Io,
            // The life ends; the next one, here or elsewhere, takes the request.
            Error::Closed => Kind::Unavailable,
            Error::Damaged { .. } | Error::Lost { .. } => Kind::Damaged,
            Error::Foreign(_) => Kind::Invalid,
            Error::Newer { .. } => Kind::Unsupported,
        }
    }
}

fn list(losses: &[Loss]) -> String {
    let one = |loss: &Loss| match loss.before {
        Some(before) => format!("serials between {} and {before} ({})", loss.after, loss.reason),
        None => format!("serials after {} ({})", loss.after, loss.reason),
    };
    losses.iter().map(one).collect::<Vec<_>>().join("; ")
}
