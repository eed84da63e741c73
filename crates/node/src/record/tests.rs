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
        left_behind: None,
        host: Some(NodeId([8; 16])),
        peer: Some(PeerNote {
            address: "tcp:10.0.0.8:7733".to_owned(),
            domain: "rack1".to_owned(),
            name: "eight".to_owned(),
            pins: vec![PinNote { key: "ab".repeat(32), until: 1_800_000_000_000_000 }],
            proof: "cd".repeat(32),
        }),
        holders: HoldersNote {
            epoch: 3,
            nodes: vec![HolderNote { node: NodeId([9; 16]), since: Incarnation(40) }],
        },
        resting: true,
        draining: true,
        removed: true,
    }
}

/// A record with only the fields of format 2.
pub(crate) fn sample_2() -> NodeRecord {
    NodeRecord {
        host: None,
        peer: None,
        holders: HoldersNote::default(),
        resting: false,
        draining: false,
        removed: false,
        ..sample()
    }
}

#[test]
fn the_golden_images_are_read() {
    let decode = |bytes: &[u8]| decode_as::<NodeRecord>("nodes/7", bytes).expect("readable").0;
    let newest = include_bytes!("../../golden/node-3.json");
    assert_eq!(decode(newest), sample());
    let written: serde_json::Value = serde_json::from_slice(newest).expect("JSON");
    assert_eq!(serde_json::to_value(sample()).expect("plain data"), written["body"]);
    assert_eq!(decode(include_bytes!("../../golden/node-2.json")), sample_2());
    let old = NodeRecord { nonce: None, arena: None, taken: Incarnation(0), ..sample_2() };
    assert_eq!(decode(include_bytes!("../../golden/node-1.json")), old);
}

#[test]
fn the_life_that_was_left_behind_is_the_last_one_at_its_own_host() {
    let node = NodeId([8; 16]);
    let left = |incarnation, nonce, arena| LeftBehind {
        incarnation: Incarnation(incarnation),
        nonce,
        arena,
    };
    let home = NodeRecord { host: None, ..sample() };
    let first = left(41, 81_985_529_216_486_895, Some(5));
    assert_eq!(LeftBehind::by(&home, node), Some(first));
    assert_eq!(LeftBehind::by(&sample(), node), Some(first), "the host is named");
    let volatile = NodeRecord { arena: Some(0), ..home.clone() };
    assert_eq!(LeftBehind::by(&volatile, node), Some(LeftBehind { arena: None, ..first }));
    assert_eq!(LeftBehind::by(&NodeRecord { nonce: None, ..home }, node), None);
    // Taken over from a guest: what its own host has stays the last word of that host.
    let guest = NodeRecord { left_behind: Some(left(12, 3, None)), ..sample() };
    assert_eq!(LeftBehind::by(&guest, NodeId([9; 16])), Some(left(12, 3, None)));
    let bound =
        |record: &NodeRecord, copied_from| LeftBehind::bound(record, Incarnation(copied_from)).0;
    assert_eq!(bound(&guest, 41), 12, "the lives since let the store acknowledge");
    assert_eq!((bound(&guest, 0), bound(&sample(), 41)), (0, 41));
    let bytes = include_bytes!("../../golden/node-3-left-behind.json");
    let found = decode_as::<NodeRecord>("nodes/7", bytes).expect("readable").0;
    assert_eq!(found, NodeRecord { left_behind: Some(left(12, 3, Some(5))), ..sample() });
}

#[test]
fn what_no_start_can_have_written_is_damage() {
    assert!(sample().check().is_ok());
    assert!(NodeRecord { incarnation: Incarnation(0), ..sample() }.check().is_err());
    assert!(NodeRecord { taken: Incarnation(42), ..sample() }.check().is_err());
    let left = LeftBehind { incarnation: Incarnation(41), nonce: 3, arena: None };
    assert!(NodeRecord { left_behind: Some(left), ..sample() }.check().is_err());
    let copied = |since| NodeRecord { copied_since: Some(Incarnation(since)), ..sample() }.check();
    assert!(copied(41).is_ok() && copied(42).is_err());
    let held = |since, count| {
        let holder = HolderNote { node: NodeId([1; 16]), since: Incarnation(since) };
        let holders = HoldersNote { epoch: 1, nodes: vec![holder; count] };
        NodeRecord { holders, ..sample() }.check()
    };
    assert!(held(41, 3).is_ok() && held(42, 1).is_err() && held(41, 4).is_err());
}
