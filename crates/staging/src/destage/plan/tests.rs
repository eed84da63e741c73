//! Tests of the parent module.

use super::*;
use crate::queue::{KeptPayload, Payload};
use bytes::Bytes;
use rekindle_env::Moment;
use std::sync::Arc;

const CALM: Facts = Facts {
    ended: false,
    ready: 1,
    pending: 0,
    bytes: 10,
    age: Duration::ZERO,
    awaited: false,
    pressed: false,
    pause: Duration::ZERO,
};
const AGE: Duration = Duration::from_secs(5);

fn change(position: u64, bytes: &'static [u8]) -> Change {
    let kept = KeptPayload { bytes: Bytes::from_static(bytes), _permit: None };
    Change::kept(position, bytes.len() as u64, Payload::Memory(Arc::new(kept)), Moment::default())
}
fn zero(position: u64, span: u64) -> Change {
    Change::kept(position, span, Payload::Zero, Moment::default())
}

#[test]
fn each_trigger_makes_a_volume_due() {
    let due = |facts| due(&facts, AGE, 100);
    assert_eq!(due(CALM), Due::In(AGE));
    for (facts, now) in [
        (Facts { awaited: true, ..CALM }, Due::Now),
        (Facts { pressed: true, ..CALM }, Due::Now),
        (Facts { bytes: 100, age: AGE, ..CALM }, Due::Now),
        (Facts { age: AGE, ..CALM }, Due::ByAge),
    ] {
        assert_eq!(due(facts), now, "{facts:?}");
        let pause = Duration::from_secs(2);
        assert_eq!(due(Facts { pause, ..facts }), Due::In(pause), "after an error it pauses");
        assert_eq!(due(Facts { ended: true, ..facts }), Due::Never);
        assert_eq!(due(Facts { ready: 0, ..facts }), Due::Never);
        let pending = Facts { ready: 0, pending: 1, ..facts };
        assert_eq!(
            due(pending),
            Due::In(limits::PENDING_CHECK),
            "nobody may be waiting for its commit"
        );
    }
}

#[test]
fn a_stream_is_destaged_early_and_many_small_changes_are_not() {
    let (mib, most) = (1 << 20, 1 << 30);
    assert_eq!(bytes_due(100, 100 * mib, most), 32 * mib);
    assert_eq!(bytes_due(100, 100 * (64 << 10), most), 32 * mib);
    assert_eq!(bytes_due(100, 100 * (64 << 10) - 1, most), most);
    assert_eq!(bytes_due(100, 100 * mib, 7 * mib), 7 * mib, "the setting is a bound");
    assert_eq!(batch_bytes(100, 100 * mib, most), 64 * mib, "in small batches");
    assert_eq!(batch_bytes(100, 100 * (64 << 10) - 1, most), most);
    assert_eq!(batch_bytes(100, 100 * mib, 7 * mib), 7 * mib);
    assert_eq!(batch_bytes(0, 0, most), most);
}

#[test]
fn a_batch_follows_another_when_much_is_left() {
    let (mib, most) = (1 << 20, 1 << 30);
    assert!(!goes_on(0, 0, 0, 0), "nothing is left");
    assert!(goes_on(32, 32 * mib, most, most), "a stream is due");
    assert!(!goes_on(31, 31 * mib, most, most));
    // Small changes: half of a batch, or what makes the volume due.
    assert!(!goes_on(1 << 20, 511 * mib, most, most) && goes_on(1 << 20, 512 * mib, most, most));
    assert!(goes_on(1 << 20, 7 * mib, 7 * mib, most));
}

#[test]
fn commits_by_age_keep_a_pace_and_no_volume_waits_until_it_is_late() {
    let second = Duration::from_secs(1);
    assert_eq!(pause_after(1, 60), second * 3);
    assert_eq!(pause_after(64, 60), second * 66);
    assert_eq!(pause_after(64, 0), Duration::ZERO);
    // By the pause that is left; the age at which the volume is due.
    for (age, pause, wanted) in
        [(0, 0, 5), (9, 0, 5), (0, 3, 5), (4, 3, 7), (9, 3, 12), (40, 66, 45)]
    {
        let found = age_due(second * age, AGE, second * pause, second * 45);
        assert_eq!(found, second * wanted, "{age} {pause}");
    }
    assert_eq!(age_due(second, AGE, second * 66, second), AGE, "never before its time");
}

#[test]
fn a_batch_has_at_least_one_change_and_else_keeps_its_bound() {
    let changes =
        [change(0, &[1; 100]), change(0, &[1; 100]), zero(0, 1 << 40), change(0, &[1; 100])];
    let count = |ready, bytes| prefix(changes.iter(), ready, bytes);
    assert_eq!(count(4, 1), 1);
    assert_eq!(count(4, 328), 2);
    assert_eq!(count(4, 392), 3, "zeros cost nothing but their entry");
    assert_eq!(count(4, 1000), 4);
    assert_eq!(count(2, 1000), 2);
    assert_eq!(count(0, 1000), 0);
}

#[test]
fn a_batch_never_parts_a_group() {
    // One alone, a group of three, a group of two. Each takes 164 bytes.
    let joined = [false, true, true, false, true, false];
    let changes: Vec<_> =
        joined.iter().map(|&joined| change(0, &[1; 100]).joined(joined)).collect();
    for (bytes, expected) in [(1, 1), (500, 1), (655, 1), (656, 4), (983, 4), (984, 6)] {
        assert_eq!(prefix(changes.iter(), 6, bytes), expected, "{bytes}");
    }
    // A group larger than the bound goes as a whole.
    assert_eq!(prefix(changes[1..].iter(), 5, 1), 3);
    let many: Vec<_> = (0..limits::BATCH_CHANGES_MAX + 2)
        .map(|index| zero(0, 1).joined(index + 2 > limits::BATCH_CHANGES_MAX))
        .collect();
    let last = zero(0, 1);
    let changes = || many.iter().chain([&last]);
    let count = prefix(changes(), many.len() + 1, u64::MAX);
    assert_eq!(count, limits::BATCH_CHANGES_MAX - 1);
    assert_eq!(prefix(changes().skip(count), 4, u64::MAX), 4);
}
