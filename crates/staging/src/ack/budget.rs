//! The volume's part in the budgets: its backlog, its room, and the moments when the destager has
//! to know.

use crate::ack::flow::{Load, Share};
use crate::ack::paused::Paused;
use crate::ack::policy::Mode;
use crate::ack::staged::Staged;
use crate::destage::plan;
use crate::queue::Queue;
use crate::state::VolumeState;
use crate::state::destaging::Wakeup;
use crate::state::room::Room;
use crate::{Backlog, limits};
use rekindle_base::limits::CHANGE_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Staged {
    /// The backlog: changes that are acknowledged or waiting, and not yet destaged.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let now = self.inner.env.now();
        let usage = self.inner.log.usage();
        let gate = self.gate.lock();
        let age = gate.changes.queue.get(0).map_or(Duration::ZERO, |oldest| now.since(oldest.at()));
        let load = self.load(&gate);
        let delay = match self.mode {
            Mode::Store { .. } => Duration::ZERO,
            Mode::Log { .. } => load.delay(self.inner.latency()),
        };
        let failing = gate.destaging.error.is_some();
        Backlog {
            changes: gate.changes.queue.len() as u64,
            bytes: gate.changes.queue.bytes(),
            age_ms: milliseconds(age),
            eta_ms: load.eta.filter(|_| !failing).map(milliseconds),
            late: age > self.inner.config.age_deadline,
            delay_ms: milliseconds(delay),
            stalled: self.why_stalled(&gate, &usage),
            destage_error: gate.destaging.problem(),
            serial: gate.changes.queue.last().0,
            checkpoint: gate.checkpoint().0,
        }
    }

    fn why_stalled(&self, gate: &VolumeState, usage: &rekindle_log::Usage) -> Option<String> {
        let error = gate.destaging.error.as_ref();
        let because = error.map_or(String::new(), |error| format!("; destaging fails: {error}"));
        let size = rekindle_base::units::format_size;
        if gate.paused != Paused::Nothing {
            let waits = "new writes wait for the end of the volume's move to another node";
            return Some(format!("{waits}{because}"));
        }
        if gate.room.waiting() > 0 {
            let share = self.share(&gate.room);
            let (writes, taken, all) =
                (gate.room.waiting(), size(share.bytes), size(share.flash_bytes));
            return Some(format!(
                "{writes} write(s) wait for room on flash: {taken} of this volume and {} of all volumes wait to be \
                 destaged, {all} may{because}",
                size(share.total)
            ));
        }
        if self.rolling.load(Ordering::Relaxed) > 0 {
            if usage.flash_bytes >= usage.flash_bytes_max {
                return Some(format!("the log is full ({}){because}", size(usage.flash_bytes)));
            }
            if let Some(why) = self.inner.log.why_it_waits() {
                return Some(format!("the log cannot make another segment file: {why}{because}"));
            }
        }
        let waiting = self.memory_waiting.load(Ordering::Relaxed);
        (waiting > 0).then(|| {
            let most = size(self.inner.config.memory_bytes);
            format!("{waiting} write(s) wait for RAM ({most}) until the datastore has earlier ones{because}")
        })
    }

    /// The load that flow control looks at.
    pub(crate) fn load(&self, gate: &VolumeState) -> Load {
        let share = self.share(&gate.room);
        Load {
            changes: gate.changes.queue.len() as u64,
            changes_max: limits::CHANGES_MAX / share.volumes.max(1),
            bytes: share.bytes,
            bytes_max: share.bytes_max(),
            eta: gate.destaging.drain.eta(gate.changes.queue.bytes(), self.batch_bytes_max(&share)),
            eta_max: self.inner.config.age_deadline,
        }
    }

    pub(crate) fn share(&self, room: &Room) -> Share {
        Share {
            bytes: room.bytes,
            total: self.inner.total.load(Ordering::Relaxed),
            flash_bytes: self.inner.config.flash_bytes,
            volumes: self.inner.volumes_with_changes.load(Ordering::Relaxed)
                + u64::from(room.bytes == 0),
        }
    }

    /// Most bytes in one batch of this volume.
    pub(crate) fn batch_bytes_max(&self, share: &Share) -> u64 {
        let config = &self.inner.config;
        match self.mode {
            Mode::Store { .. } => config.batch_bytes,
            Mode::Log { .. } => config
                .batch_bytes
                .min((share.bytes_max() / limits::BATCHES_IN_SHARE_MIN).max(CHANGE_BYTES_MAX)),
        }
    }

    /// Whether a new write may come in at once: it does not overtake those that wait.
    pub(crate) fn may_enter(&self, gate: &VolumeState, cost: u64) -> bool {
        gate.room.waiting() == 0 && self.has_room(gate, cost)
    }

    pub(crate) fn has_room(&self, gate: &VolumeState, cost: u64) -> bool {
        let share = self.share(&gate.room);
        gate.paused == Paused::Nothing
            && share.has_room(cost)
            && (gate.changes.queue.len() as u64) < limits::CHANGES_MAX / share.volumes.max(1)
    }

    pub(crate) fn count(&self, room: &mut Room, cost: u64) {
        if room.bytes == 0 {
            self.inner.volumes_with_changes.fetch_add(1, Ordering::Relaxed);
        }
        room.bytes += cost;
        self.inner.total.fetch_add(cost, Ordering::Relaxed);
    }

    pub(crate) fn discount(&self, room: &mut Room, cost: u64) {
        room.leave(cost);
        self.discounted(room, cost);
    }

    /// Counts down for all volumes what `room` has counted down already.
    pub(crate) fn discounted(&self, room: &Room, cost: u64) {
        if cost > 0 && room.bytes == 0 {
            self.inner.volumes_with_changes.fetch_sub(1, Ordering::Relaxed);
        }
        self.inner.total.fetch_sub(cost, Ordering::Relaxed);
    }

    /// Notes new changes: decides whether the destager has to know.
    pub(crate) fn note(&self, gate: &mut VolumeState) -> Wakeup {
        let VolumeState { changes, room, destaging, .. } = gate;
        destaging.note(|| {
            changes.queue.bytes() >= self.bytes_due(&changes.queue)
                || matches!(self.mode, Mode::Store { .. })
                || self.is_pressed(room)
        })
    }

    /// The unfinished bytes from which the volume is due by them alone.
    pub(crate) fn bytes_due(&self, queue: &Queue) -> u64 {
        plan::bytes_due(queue.len(), queue.bytes(), self.inner.config.destage_bytes)
    }

    /// Whether the volume takes so much of its share that it is to be destaged at once.
    pub(crate) fn is_pressed(&self, room: &Room) -> bool {
        let share = self.share(room);
        share.bytes * 100 >= share.bytes_max() * limits::PRESSURE_PERCENT || room.waiting() > 0
    }

    pub(crate) fn wake_up(self: &Arc<Self>, wakeup: Wakeup) {
        match wakeup {
            Wakeup::No => {}
            Wakeup::Join => self.inner.destager.join(self.clone()),
            Wakeup::Wake => self.inner.destager.wake(),
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
