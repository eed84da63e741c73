//! Staging as an observer of a live node sees it: the destager's ring, and the flow control of each
//! volume. Each volume is copied under a short lock of its own, one after the other.

use crate::ack::staged::Staged;
use crate::{Backlog, Staging};
use serde::Serialize;
use std::sync::atomic::Ordering;

/// A volume in service, as staging sees it.
#[derive(Debug, Clone, Serialize)]
pub struct StagedView {
    pub volume: String,
    /// The place that acknowledges the volume's writes: `flash`, `memory` or `store`.
    pub acknowledged_by: &'static str,
    pub generation: u64,
    #[serde(flatten)]
    pub backlog: Backlog,
    /// Unfinished changes that are not listed yet; reads wait for the list.
    pub unindexed: u64,
    /// Pieces of the overlay; 0 of a volume of records.
    pub overlay_pieces: u64,
    /// Flash that the volume's unfinished changes take, and its fair share, bytes.
    pub flash_bytes: u64,
    pub share_bytes: u64,
    /// Fill of the fullest of count, bytes and time, percent; delays begin at 50.
    pub pressure_percent: u64,
    /// Writes that wait for room on flash.
    pub writes_waiting: u64,
    /// Callers that wait until the datastore has their writes.
    pub awaiting: u64,
    /// Whether a batch is in hand.
    pub in_hand: bool,
    /// Rest of the pause after an error of the store.
    pub pause_ms: u64,
}

/// The destager.
#[derive(Debug, Clone, Serialize)]
pub struct DestagerView {
    /// Volumes in the ring, the next one first; no more than asked for.
    pub ring: Vec<String>,
    /// Count of all volumes in the ring.
    pub ring_length: u64,
    pub workers: u64,
    pub stopping: bool,
    /// Moving average of the latency of one store operation.
    pub latency_us: u64,
    /// Flash that the unfinished changes of all volumes take, and its bound, bytes.
    pub flash_bytes: u64,
    pub flash_bytes_max: u64,
    /// Volumes with unfinished changes.
    pub volumes_with_changes: u64,
}

impl Staged {
    /// The volume as staging sees it.
    #[must_use]
    pub fn view(&self) -> StagedView {
        let backlog = self.backlog();
        let now = self.inner.env.now();
        let gate = self.gate.lock();
        let load = self.load(&gate);
        // Beyond full it does not matter by how much.
        let pressure = (load.pressure() * 100.0).clamp(0.0, 1000.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 0 and 1000"
        )]
        let pressure_percent = pressure as u64;
        StagedView {
            volume: self.name.clone(),
            acknowledged_by: self.mode.as_str(),
            generation: self.generation.0,
            backlog,
            unindexed: gate.changes.queue.unindexed().count as u64,
            overlay_pieces: gate
                .changes
                .shown
                .overlay()
                .map_or(0, |overlay| overlay.length() as u64),
            flash_bytes: gate.room.bytes,
            share_bytes: load.bytes_max,
            pressure_percent,
            writes_waiting: gate.room.waiting() as u64,
            awaiting: gate.waiters.len() as u64,
            in_hand: *self.busy.borrow(),
            pause_ms: u64::try_from(gate.destaging.pause(now).as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Staging {
    /// The destager at this moment, with at most `most` names of the ring.
    #[must_use]
    pub fn view(&self, most: usize) -> DestagerView {
        let inner = &self.inner;
        let (ring, ring_length) = inner.destager.ring(most);
        DestagerView {
            ring,
            ring_length: ring_length as u64,
            workers: *inner.destager.workers.borrow() as u64,
            stopping: inner.destager.stopping.is_on(),
            latency_us: u64::try_from(inner.latency().as_micros()).unwrap_or(u64::MAX),
            flash_bytes: inner.total.load(Ordering::Relaxed),
            flash_bytes_max: inner.config.flash_bytes,
            volumes_with_changes: inner.volumes_with_changes.load(Ordering::Relaxed),
        }
    }
}
