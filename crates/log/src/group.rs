//! The rules of an append, checked before anything is copied. Pure.
//!
//! A group is a run of changes that are all joined but the last. An append may carry several groups
//! and single changes.

use crate::limits::{GRAIN_BYTES, GROUP_ENTRIES_MAX};
use crate::{Append, Change};

/// Checks an append to segments of `capacity` bytes. Returns the bytes of a segment that the append
/// takes, or the reason why no log takes it.
pub(crate) fn check(changes: &[Append<'_>], capacity: u32) -> Result<usize, &'static str> {
    let mut bytes = 0;
    let mut group = 1;
    for (index, change) in changes.iter().enumerate() {
        match change.change {
            Change::Write => {}
            Change::Record if change.span == change.payload.len() as u64 => {}
            Change::Record => return Err("the span of a record is not its length"),
            Change::Zero | Change::Trim if change.payload.is_empty() => {}
            Change::Zero | Change::Trim => return Err("only a write or a record has a payload"),
        }
        bytes += bytes_of(change);
        if bytes > capacity as usize / 2 {
            return Err("it has more bytes than one append may have");
        }
        if !change.joined {
            group = 1;
            continue;
        }
        group += 1;
        if group > GROUP_ENTRIES_MAX {
            return Err("a group has more changes than it may have");
        }
        let follows = |next: &Append<'_>| {
            (next.volume, next.generation) == (change.volume, change.generation)
                && change.serial.0.checked_add(1) == Some(next.serial.0)
        };
        if !changes.get(index + 1).is_some_and(follows) {
            return Err("a joined change is not followed by the next change of its group");
        }
    }
    Ok(bytes)
}

/// Bytes of a segment that a change takes: payload, header, descriptor.
fn bytes_of(change: &Append<'_>) -> usize {
    let grain = GRAIN_BYTES as usize;
    change.payload.len().next_multiple_of(grain) + 2 * grain
}
