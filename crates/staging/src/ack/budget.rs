//! The volume's part in the budgets: its backlog, its room, and the moments when the destager has
//! to know.

use crate::ack::flow::{Load, Share};
use crate::ack::policy::Mode;
use crate::ack::staged::Staged;
use crate::queue::volume_state::VolumeState;
use crate::{Backlog, limits};
use rekindle_base::limits::CHANGE_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The signal of a write to the destager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// No signal.
    No,
    /// The volume has changes to destage, and had none before.
    Join,
    /// The volume is due.
    Wake,
}

impl Staged {
    /// The backlog: changes that are acknowledged or waiting, and not yet destaged.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        let now = self.inner.env.now();
        let usage = self.inner.log.usage();
        let gate = self.gate.lock();
        let age = gate.queue.get(0).map_or(Duration::ZERO, |oldest| now.since(oldest.at()));
        let load = self.load(&gate);
        let delay = match self.mode {
            Mode::Store { .. } => Duration::ZERO,
            Mode::Log { .. } => load.delay(self.inner.latency()),
        };
        let failing = gate.destage_error.is_some();
        Backlog {
            changes: gate.queue.len() as u64,
            bytes: gate.queue.bytes(),
            age_ms: milliseconds(age),
            eta_ms: load.eta.filter(|_| !failing).map(milliseconds),
            late: age > self.inner.config.age_deadline,
            delay_ms: milliseconds(delay),
            stalled: self.why_stalled(&gate, &usage),
            destage_error: gate
                .lost
                .as_ref()
                .map(ToString::to_string)
                .or_else(|| gate.destage_error.clone()),
            serial: gate.queue.last().0,
            checkpoint: gate.checkpoint().0,
        }
    }

    fn why_stalled(&self, gate: &VolumeState, usage: &rekindle_log::Usage) -> Option<String> {
        let because = gate
            .destage_error
            .as_ref()
            .map_or(String::new(), |error| format!("; destaging fails: {error}"));
        let size = rekindle_base::units::format_size;
        if !gate.waiting.is_empty() {
            let share = self.share(gate);
            let (writes, taken, all) =
                (gate.waiting.len(), size(share.bytes), size(share.flash_bytes));
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
        let share = self.share(gate);
        Load {
            changes: gate.queue.len() as u64,
            changes_max: limits::CHANGES_MAX / share.volumes.max(1),
            bytes: share.bytes,
            bytes_max: share.bytes_max(),
            eta: gate.drain.eta(gate.queue.bytes(), self.batch_bytes_max(&share)),
            eta_max: self.inner.config.age_deadline,
        }
    }

    pub(crate) fn share(&self, gate: &VolumeState) -> Share {
        Share {
            bytes: gate.flash_bytes,
            total: self.inner.total.load(Ordering::Relaxed),
            flash_bytes: self.inner.config.flash_bytes,
            volumes: self.inner.volumes_with_changes.load(Ordering::Relaxed)
                + u64::from(gate.flash_bytes == 0),
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

    pub(crate) fn has_room(&self, gate: &VolumeState, cost: u64) -> bool {
        let share = self.share(gate);
        share.has_room(cost)
            && (gate.queue.len() as u64) < limits::CHANGES_MAX / share.volumes.max(1)
    }

    pub(crate) fn count(&self, gate: &mut VolumeState, cost: u64) {
        if gate.flash_bytes == 0 {
            self.inner.volumes_with_changes.fetch_add(1, Ordering::Relaxed);
        }
        gate.flash_bytes += cost;
        self.inner.total.fetch_add(cost, Ordering::Relaxed);
    }

    pub(crate) fn discount(&self, gate: &mut VolumeState, cost: u64) {
        gate.flash_bytes -= cost;
        self.discounted(gate, cost);
    }

    /// Counts down for all volumes what `gate` has counted down already.
    pub(crate) fn discounted(&self, gate: &VolumeState, cost: u64) {
        if cost > 0 && gate.flash_bytes == 0 {
            self.inner.volumes_with_changes.fetch_sub(1, Ordering::Relaxed);
        }
        self.inner.total.fetch_sub(cost, Ordering::Relaxed);
    }

    /// Decides whether the destager has to know: only when its decision changes, since telling
    /// costs.
    pub(crate) fn note(&self, gate: &mut VolumeState) -> Wakeup {
        if !gate.ringed {
            gate.ringed = true;
            gate.told = true;
            return Wakeup::Join;
        }
        if gate.told {
            return Wakeup::No;
        }
        let due = gate.queue.bytes() >= self.inner.config.destage_bytes
            || matches!(self.mode, Mode::Store { .. })
            || self.is_pressed(gate);
        if !due {
            return Wakeup::No;
        }
        gate.told = true;
        Wakeup::Wake
    }

    /// Whether the volume takes so much of its share that it is to be destaged at once.
    pub(crate) fn is_pressed(&self, gate: &VolumeState) -> bool {
        let share = self.share(gate);
        share.bytes * 100 >= share.bytes_max() * limits::PRESSURE_PERCENT
            || !gate.waiting.is_empty()
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
