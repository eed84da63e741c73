//! Tests of the parent module.

use super::*;

fn gaps(checkpoint: u64, serials: &[u64]) -> Option<String> {
    missing(Serial(checkpoint), serials.iter().map(|&serial| Serial(serial)))
}

#[test]
fn missing_serials_are_named_exactly() {
    assert_eq!(gaps(0, &[]), None);
    assert_eq!(gaps(0, &[1, 2, 3]), None);
    assert_eq!(gaps(7, &[8, 9]), None);
    assert_eq!(gaps(0, &[2]).as_deref(), Some("1"));
    assert_eq!(gaps(7, &[8, 10, 14]).as_deref(), Some("9, 11-13"));
    assert_eq!(gaps(7, &[10]).as_deref(), Some("8-9"));
}

#[test]
fn losses_count_unless_the_datastore_has_what_is_lost() {
    let loss = |after, before: Option<u64>| Loss {
        segment: base::SegmentId(3),
        after: Serial(after),
        before: before.map(Serial),
        reason: "gone".into(),
    };
    let harm = |loss| harm(Serial(10), &[loss]);
    assert_eq!(harm(loss(5, Some(11))), None, "up to 10 they are in the datastore");
    assert_eq!(
        harm(loss(5, Some(13))).as_deref(),
        Some("serials 11 to 12 were in segment 3: gone")
    );
    assert_eq!(
        harm(loss(15, None)).as_deref(),
        Some("serials 16 to an unknown one were in segment 3: gone")
    );
}
