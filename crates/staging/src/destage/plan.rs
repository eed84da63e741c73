//! The destager's decisions. Pure.

use crate::limits;
use crate::queue::Change;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The facts behind a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// The volume is out of service.
    pub(crate) ended: bool,
    /// Changes that may be destaged.
    pub(crate) ready: usize,
    /// Changes that wait for the log's commit.
    pub(crate) pending: usize,
    /// Bytes of the budgets that all of them take.
    pub(crate) bytes: u64,
    /// Age of the oldest change.
    pub(crate) age: Duration,
    /// A caller waits for the datastore.
    pub(crate) awaited: bool,
    /// Flash is scarce.
    pub(crate) pressed: bool,
    /// Rest of the pause after an error.
    pub(crate) pause: Duration,
}

/// The time when a volume is to be destaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// Now, because it is old enough and for no other reason.
    ByAge,
    /// Look again after this.
    In(Duration),
    /// Not before a write.
    Never,
}

/// Whether `count` changes with `bytes` are a stream.
fn are_stream(count: usize, bytes: u64) -> bool {
    count > 0 && bytes >= (count as u64).saturating_mul(limits::STREAM_CHANGE_BYTES)
}

/// The unfinished bytes from which a volume is due by them alone: `bytes_max`, or fewer where its
/// `count` changes with `bytes` are a stream.
pub(crate) fn bytes_due(count: usize, bytes: u64, bytes_max: u64) -> u64 {
    match are_stream(count, bytes) {
        true => limits::STREAM_DUE_BYTES.min(bytes_max),
        false => bytes_max,
    }
}

/// Most bytes of one batch of `count` changes with `bytes`: `bytes_max`, or fewer of a stream.
pub(crate) fn batch_bytes(count: usize, bytes: u64, bytes_max: u64) -> u64 {
    match are_stream(count, bytes) {
        true => limits::STREAM_BATCH_BYTES.min(bytes_max),
        false => bytes_max,
    }
}

/// Whether `count` changes with `bytes` that may be destaged are worth a batch behind the one in
/// hand: they would make the volume due by themselves, or fill half of a batch.
pub(crate) fn goes_on(count: usize, bytes: u64, destage_bytes: u64, bytes_max: u64) -> bool {
    count > 0 && bytes >= bytes_due(count, bytes, destage_bytes).min(bytes_max / 2)
}

/// Decides when to destage a volume.
pub(crate) fn due(facts: &Facts, age_max: Duration, bytes_max: u64) -> Due {
    let look_again = |wait: Duration| {
        Due::In(if facts.pending > 0 { wait.min(limits::PENDING_CHECK) } else { wait })
    };
    if facts.ended || facts.ready + facts.pending == 0 {
        Due::Never
    } else if facts.ready == 0 {
        Due::In(limits::PENDING_CHECK)
    } else if facts.pause > Duration::ZERO {
        look_again(facts.pause)
    } else if facts.awaited || facts.pressed || facts.bytes >= bytes_max {
        Due::Now
    } else if facts.age >= age_max {
        Due::ByAge
    } else {
        look_again(age_max - facts.age)
    }
}

/// The age from which a volume is due by it alone: `age_max`, or later when commits by age have
/// to wait for `pause`, but never later than `latest`.
pub(crate) fn age_due(
    age: Duration,
    age_max: Duration,
    pause: Duration,
    latest: Duration,
) -> Duration {
    age_max.max(if pause.is_zero() { age_max } else { (age + pause).min(latest) })
}

/// The pause of commits by age after a company of so many volumes. Each costs the write of a vault,
/// and all together cost a pack of each class.
pub(crate) fn pause_after(volumes: usize, writes_per_minute: u32) -> Duration {
    match u32::try_from(volumes + 2) {
        Ok(writes) if writes_per_minute > 0 => MINUTE * writes / writes_per_minute,
        _ => Duration::ZERO,
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Count of the first `ready` changes that go into one batch: whole groups, at least one, else no
/// more than `bytes_max`. A batch commits as a whole, and so does a group.
pub(crate) fn prefix<'a>(
    changes: impl Iterator<Item = &'a Change>,
    ready: usize,
    bytes_max: u64,
) -> usize {
    let (mut bytes, mut whole) = (0, 0);
    for (index, change) in changes.take(ready).enumerate() {
        bytes += change.cost();
        if whole > 0 && (bytes > bytes_max || index >= limits::BATCH_CHANGES_MAX) {
            break;
        }
        if !change.joined {
            whole = index + 1;
        }
    }
    whole
}
