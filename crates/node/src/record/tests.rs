//! Tests of the parent module.

use super::*;
use rekindle_datastore::record::decode_as;

pub(crate) fn sample() -> NodeRecord {
    NodeRecord {
        incarnation: Incarnation(41),
        version: "0.1.0".to_owned(),
        started: 1_767_225_600_000_000,
        nonce: Some(81_985_529_216_486_895),
        arena: Some(5),
        taken: Incarnation(40),
        copies: Some(9),
        copied_since: None,
    }
}

#[test]
fn the_golden_images_are_read() {
    let decode = |bytes: &[u8]| decode_as::<NodeRecord>("nodes/7", bytes).expect("readable").0;
    assert_eq!(decode(include_bytes!("../../golden/node-2.json")), sample());
    let old = NodeRecord { nonce: None, arena: None, taken: Incarnation(0), ..sample() };
    assert_eq!(decode(include_bytes!("../../golden/node-1.json")), old);
}

#[test]
fn what_no_start_can_have_written_is_damage() {
    assert!(sample().check().is_ok());
    assert!(NodeRecord { incarnation: Incarnation(0), ..sample() }.check().is_err());
    assert!(NodeRecord { taken: Incarnation(42), ..sample() }.check().is_err());
    let copied = |since| NodeRecord { copied_since: Some(Incarnation(since)), ..sample() }.check();
    assert!(copied(41).is_ok() && copied(42).is_err());
}
