//! Tests of the parent module.

use super::*;
use crate::queue::{Kept, Payload};
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
    let kept = Kept { bytes: Bytes::from_static(bytes), _permit: None };
    Change::kept(position, bytes.len() as u64, Payload::Memory(Arc::new(kept)), Moment::default())
}
fn zero(position: u64, span: u64) -> Change {
    Change::kept(position, span, Payload::Zero, Moment::default())
}

#[test]
fn each_trigger_makes_a_volume_due() {
    let due = |facts| due(&facts, AGE, 100);
    assert_eq!(due(CALM), Due::In(AGE));
    for facts in [
        Facts { awaited: true, ..CALM },
        Facts { pressed: true, ..CALM },
        Facts { bytes: 100, ..CALM },
        Facts { age: AGE, ..CALM },
    ] {
        assert_eq!(due(facts), Due::Now, "{facts:?}");
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
fn the_last_write_of_a_range_is_what_remains() {
    let folds = coalesce(&[
        change(0, b"aaaa"),
        change(8, b"bbbb"),
        change(2, b"cc"),
        zero(9, 3),
        zero(12, 4),
    ]);
    let seen: Vec<_> = folds
        .iter()
        .map(|fold| {
            let mut bytes = vec![b'.'; fold.span as usize];
            assert!(fold.source.read_now(0, &mut bytes).unwrap());
            (fold.position, bytes)
        })
        .collect();
    let want = [(0, b"aa".to_vec()), (2, b"cc".to_vec()), (8, b"b".to_vec()), (9, vec![0; 7])];
    assert_eq!(seen, want);
}
