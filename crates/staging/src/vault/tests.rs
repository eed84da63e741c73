//! Tests of the parent module.

use super::*;
use proptest::prelude::*;
use rekindle_base::PackId;
use rekindle_content::{Part, Pointer};

const GOLDEN_1: &str = include_str!("../../golden/vault-1.json");
const GOLDEN_2: &str = include_str!("../../golden/vault-2.json");
const GOLDEN_3: &str = include_str!("../../golden/vault-3.json");
const GOLDEN_4: &str = include_str!("../../golden/vault-4.json");
const GOLDEN_5: &str = include_str!("../../golden/vault-5.json");
const GOLDEN_6: &str = include_str!("../../golden/vault-6.json");
const GOLDEN_7: &str = include_str!("../../golden/vault-7.json");
const GOLDEN_8: &str = include_str!("../../golden/vault-8.json");
const GOLDEN: &str = include_str!("../../golden/vault-9.json");

pub(crate) fn body(block_size: u64) -> VaultBody {
    VaultBody::of(&serde_json::json!({ "block_size": block_size })).unwrap()
}

const ROOT: Pointer = Pointer {
    name: [0xa5; 32],
    pack: PackId([0xc3; 16]),
    offset: 4096,
    stored: 700,
    length: 1500,
    part: Part::WHOLE,
};

pub(crate) fn example() -> Vault {
    let id = VolumeId([0x11; 16]);
    Vault {
        policy: Policy::Back,
        ack: Ack::Memory,
        copies: 2,
        on_missing_copy: MissingCopy::Stall,
        owner: Some(NodeId([0x5a; 16])),
        generation: Generation(3),
        checkpoint: Serial(u64::MAX),
        root: Some(ROOT),
        created: 1_767_225_600_000_000,
        pinned: true,
        lost: vec![Lost { position: 16384, span: 32768 }],
        accepted: Some(Accepted {
            generation: Generation(2),
            through: Serial(77),
            segment: SegmentId(5),
        }),
        incarnation: Incarnation(12),
        begins: Serial(76),
        logged: vec![
            Logged { node: NodeId([0x5a; 16]), incarnation: Incarnation(9), begins: Serial(70) },
            Logged { node: NodeId([0x5b; 16]), incarnation: Incarnation(2), begins: Serial(73) },
        ],
        versions: vec![Version {
            checkpoint: Serial(70),
            root: None,
            size: 10 << 30,
            committed: 1_767_225_700_000_000,
            lost: vec![Lost { position: 0, span: 16384 }],
            replaced: 0,
        }],
        snapshots: vec![Snapshot {
            name: "montag".into(),
            number: 3,
            taken: 1_767_225_750_000_000,
            checkpoint: Serial(71),
            size: 10 << 30,
            content: Some(SnapshotContent {
                root: Some(ROOT),
                lost: vec![Lost { position: 0, span: 16384 }],
            }),
        }],
        snapshots_taken: 4,
        trashed: Some(1_767_225_800_000_000),
        ..Vault::new(id, "größe 1".into(), "block".into(), 20 << 30, body(16384))
    }
}

/// A snapshot that waits for its content.
pub(crate) fn pending(number: u32, checkpoint: u64) -> Snapshot {
    let checkpoint = Serial(checkpoint);
    Snapshot { number, checkpoint, content: None, ..example().snapshots[0].clone() }
}

/// A vault with only the fields of format 8.
fn example_8() -> Vault {
    Vault { snapshots: Vec::new(), snapshots_taken: 0, ..example() }
}

/// A vault with only the fields of formats 5 to 7.
fn example_7() -> Vault {
    Vault { copies: 0, on_missing_copy: MissingCopy::StepDown, ..example_8() }
}

/// A vault with only the fields of format 4.
fn example_4() -> Vault {
    Vault {
        incarnation: Incarnation(0),
        begins: Serial(0),
        logged: Vec::new(),
        versions: Vec::new(),
        trashed: None,
        also: None,
        leaves: None,
        ..example_7()
    }
}

#[test]
fn the_golden_vault_is_read_and_written_as_ever() {
    let (vault, mark) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN.as_bytes()).unwrap();
    assert_eq!(vault, example());
    assert_eq!(mark.edition, 9);
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(serde_json::to_value(&vault).unwrap(), golden["body"]);
}

#[test]
fn a_vault_that_was_handed_over_has_a_golden_image_of_its_own() {
    const UNBROKEN: &str = include_str!("../../golden/vault-9-unbroken.json");
    let node = NodeId([0x5b; 16]);
    let since = Beginning { node, incarnation: Incarnation(7), generation: Generation(2) };
    let (generation, incarnation) = (Generation(3), Incarnation(12));
    let unbroken = Some(Unbroken { since, generation, incarnation });
    let decode = rekindle_datastore::record::decode_as::<Vault>;
    let (vault, _) = decode("volumes/x", UNBROKEN.as_bytes()).unwrap();
    assert_eq!(vault, Vault { unbroken, ..example() });
    let golden: serde_json::Value = serde_json::from_str(UNBROKEN).unwrap();
    assert_eq!(serde_json::to_value(&vault).unwrap(), golden["body"]);
}

#[test]
fn a_vault_that_went_back_has_a_golden_image_of_its_own() {
    const REWOUND: &str = include_str!("../../golden/vault-9-rewound.json");
    let decode = rekindle_datastore::record::decode_as::<Vault>;
    let (vault, _) = decode("volumes/x", REWOUND.as_bytes()).unwrap();
    assert_eq!(vault, Vault { rewound: Some(Generation(5)), ..example() });
    let golden: serde_json::Value = serde_json::from_str(REWOUND).unwrap();
    assert_eq!(serde_json::to_value(&vault).unwrap(), golden["body"]);
}

#[test]
fn a_vault_that_left_numbers_out_has_a_golden_image_of_its_own() {
    const NUMBERS: &str = include_str!("../../golden/vault-9-numbers.json");
    let decode = rekindle_datastore::record::decode_as::<Vault>;
    let (vault, _) = decode("volumes/x", NUMBERS.as_bytes()).unwrap();
    assert_eq!(vault, Vault { numbers_from: 20_480, ..example() });
    let golden: serde_json::Value = serde_json::from_str(NUMBERS).unwrap();
    assert_eq!(serde_json::to_value(&vault).unwrap(), golden["body"]);
}

#[test]
fn a_vault_of_format_1_is_read_and_has_no_pin() {
    let (vault, mark) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_1.as_bytes()).unwrap();
    assert_eq!(vault, Vault { pinned: false, lost: Vec::new(), accepted: None, ..example_4() });
    assert_eq!(mark.edition, 9);
}

#[test]
fn a_vault_of_format_2_has_lost_nothing() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_2.as_bytes()).unwrap();
    assert_eq!(vault, Vault { lost: Vec::new(), accepted: None, ..example_4() });
}

#[test]
fn a_vault_of_format_3_has_accepted_nothing() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_3.as_bytes()).unwrap();
    assert_eq!(vault, Vault { accepted: None, ..example_4() });
}

#[test]
fn a_vault_of_format_4_names_no_life_and_keeps_no_version() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_4.as_bytes()).unwrap();
    assert_eq!(vault, example_4());
}

#[test]
fn a_vault_of_format_6_reaches_no_bundles_and_has_the_same_fields() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_6.as_bytes()).unwrap();
    assert_eq!(vault, example_7());
}

#[test]
fn a_vault_of_format_5_has_its_body_among_its_own_fields() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_5.as_bytes()).unwrap();
    assert_eq!(vault, example_7());
}

#[test]
fn a_vault_of_format_7_steps_down_when_a_copy_is_missing() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_7.as_bytes()).unwrap();
    assert_eq!(vault, example_7());
}

#[test]
fn a_vault_of_format_8_has_no_snapshots() {
    let (vault, _) =
        rekindle_datastore::record::decode_as::<Vault>("volumes/x", GOLDEN_8.as_bytes()).unwrap();
    assert_eq!(vault, example_8());
}

#[test]
fn a_snapshot_gets_the_content_of_its_serial_and_no_other() {
    let pending = |name: &str, number, checkpoint| Snapshot {
        name: name.into(),
        ..pending(number, checkpoint)
    };
    let vault = Vault {
        checkpoint: Serial(80),
        snapshots: vec![example().snapshots[0].clone(), pending("a", 4, 90), pending("b", 5, 95)],
        snapshots_taken: 5,
        ..example()
    };
    assert_eq!(vault.check(), Ok(()));
    assert_eq!(snapshot::cut(&vault.snapshots), Some(Serial(90)));
    assert_eq!(snapshot::awaits(&vault.snapshots), Some(Serial(95)));
    let root = Some(Pointer { name: [1; 32], ..ROOT });
    let lost = [Lost { position: 0, span: 512 }];
    let before = snapshot::reached(&vault, Serial(89), &root, &lost);
    assert_eq!(before, vault.snapshots, "it is not there yet");
    let at = snapshot::reached(&vault, Serial(90), &root, &lost);
    assert_eq!(at[0], vault.snapshots[0]);
    assert_eq!(at[1].content, Some(SnapshotContent { root, lost: lost.to_vec() }));
    assert_eq!(snapshot::cut(&at), Some(Serial(95)));
    let behind = snapshot::reached(&vault, Serial(91), &root, &lost);
    assert_eq!(behind.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["montag", "b"]);
    // A salvage mends the content that the newest snapshot shares with the volume.
    let shared = Vault {
        checkpoint: Serial(71),
        snapshots: vec![example().snapshots[0].clone()],
        ..vault.clone()
    };
    let mended = snapshot::reached(&shared, Serial(71), &root, &[]);
    assert_eq!(mended[0].content, Some(SnapshotContent { root, lost: Vec::new() }));
    assert_eq!(snapshot::kept(&vault, Serial(92)).len(), 2);
    assert_eq!(snapshot::with_content(&vault).len(), 1);
}

#[test]
fn a_vault_without_a_body_or_with_two_is_damaged() {
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    let body = golden["body"].as_object().unwrap();
    for (bodies, is_vault) in [
        (serde_json::json!({}), false),
        (serde_json::json!({"body": {}, "block_size": 4096}), false),
        (serde_json::json!({"body": []}), false),
        (serde_json::json!({"body": null}), false),
        (serde_json::json!({"block_size": -1}), false),
        (serde_json::json!({"block_size": "16K"}), false),
        (serde_json::json!({"block_size": 1.5}), false),
        (serde_json::json!({"body": {}}), true),
        (serde_json::json!({"body": {"of": [{"another": 1.5}, null]}}), true),
    ] {
        let mut fields = body.clone();
        fields.remove("body");
        fields.extend(bodies.as_object().unwrap().clone());
        let mut record = golden.clone();
        record["body"] = serde_json::Value::Object(fields);
        let bytes = serde_json::to_vec(&record).unwrap();
        let read = rekindle_datastore::record::decode_as::<Vault>("volumes/x", &bytes);
        assert_eq!(read.is_ok(), is_vault, "{bodies}");
        if let Ok((vault, _)) = read {
            assert_eq!(serde_json::to_value(vault.body).unwrap(), bodies["body"], "kept whole");
        }
    }
}

#[test]
fn a_body_is_read_and_made_as_the_type_of_its_kind() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Typed {
        block_size: u64,
    }
    let typed = Typed { block_size: 16384 };
    assert_eq!(VaultBody::of(&typed), Ok(body(16384)));
    assert_eq!(example().body.read(), Ok(typed));
    let told = VaultBody::default().read::<Typed>().unwrap_err();
    assert!(told.contains("block_size"), "{told}");
    assert!(VaultBody::of(&7).is_err());
}

#[test]
fn a_vault_without_owner_and_content_survives_text() {
    let vault = Vault {
        owner: None,
        root: None,
        state: VaultState::Deleted,
        policy: Policy::Through,
        ..example()
    };
    let text = serde_json::to_string(&vault).unwrap();
    assert_eq!(serde_json::from_str::<Vault>(&text).unwrap(), vault);
}

#[test]
fn a_vault_whose_fields_mean_nothing_together_is_damaged_and_never_half_believed() {
    let lost = |position, span| Lost { position, span };
    let version = |change: fn(&mut Version)| {
        let mut vault = example();
        change(&mut vault.versions[0]);
        vault
    };
    let snapshot = |change: fn(&mut Snapshot)| {
        let mut vault = example();
        change(&mut vault.snapshots[0]);
        vault
    };
    let pointer = example().root.unwrap();
    let text = pointer.to_string().replace(":1500:", ":1500:4097:");
    let in_a_bundle = text.parse().unwrap();
    let bad = [
        ("name", Vault { name: String::new(), ..example() }),
        ("kind", Vault { kind: "Block".into(), ..example() }),
        ("size", Vault { size: 0, ..example() }),
        ("size", Vault { size: (20 << 30) + 1, ..example() }),
        ("size", Vault { size: 1 << 60, ..example() }),
        ("checkpoint", Vault { owner: None, generation: Generation(0), ..example() }),
        ("content", Vault { checkpoint: Serial(0), versions: Vec::new(), ..example() }),
        ("root", Vault { root: Some(Pointer { stored: 0, ..pointer }), ..example() }),
        ("root", Vault { root: Some(Pointer { offset: u32::MAX, ..pointer }), ..example() }),
        ("root", Vault { root: Some(in_a_bundle), ..example() }),
        ("lost", Vault { lost: vec![lost(0, 0)], ..example() }),
        ("lost", Vault { lost: vec![lost(20 << 30, 1)], ..example() }),
        ("lost", Vault { lost: vec![lost(u64::MAX, 2)], ..example() }),
        ("lost", Vault { lost: vec![lost(10, 10), lost(20, 10)], ..example() }),
        ("lost", Vault { lost: vec![lost(30, 10), lost(10, 10)], ..example() }),
        ("logged", Vault { logged: vec![example().logged[0]; 2], ..example() }),
        ("logged", Vault { begins: Serial(73), ..example() }),
        ("logged", Vault { logged: vec![example().logged[0]; 1025], ..example() }),
        ("accepts", Vault { generation: Generation(1), ..example() }),
        ("versions", Vault { versions: vec![example().versions[0].clone(); 100], ..example() }),
        ("version", Vault { checkpoint: Serial(69), ..example() }),
        ("version", version(|version| version.size = 7)),
        ("version", version(|version| version.lost[0].span = 11 << 30)),
        ("trash", Vault { state: VaultState::Trashed, trashed: None, ..example() }),
        ("snapshot", snapshot(|one| one.name = String::new())),
        ("snapshot", snapshot(|one| one.number = 5)),
        ("snapshot", snapshot(|one| one.size = 7)),
        ("snapshot", snapshot(|one| one.content = None)),
        ("snapshots", Vault { snapshots: vec![example().snapshots[0].clone(); 300], ..example() }),
        ("snapshot", Vault { snapshots: vec![example().snapshots[0].clone(); 2], ..example() }),
    ];
    assert_eq!(example().check(), Ok(()));
    for (word, vault) in bad {
        let told = vault.check().unwrap_err();
        assert!(told.contains(word), "{word}: {told}");
        // A reader of the record gets the same error.
        let mut golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        golden["body"] = serde_json::to_value(&vault).unwrap();
        let bytes = serde_json::to_vec(&golden).unwrap();
        let read = rekindle_datastore::record::decode_as::<Vault>("volumes/x", &bytes);
        assert_eq!(read.unwrap_err().kind(), rekindle_base::Kind::Damaged, "{word}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_vault_or_an_error(at in 0..GOLDEN.len(), byte in any::<u8>()) {
        let mut bytes = GOLDEN.as_bytes().to_vec();
        bytes[at] = byte;
        let _ = rekindle_datastore::record::decode_as::<Vault>("volumes/x", &bytes);
        let _ = rekindle_datastore::record::decode_as::<Vault>("volumes/x", &bytes[..at]);
    }
}
