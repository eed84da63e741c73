//! Tests of the parent module.

use super::*;
use crate::layout::Run;
use rekindle_base::VolumeId;
use serde_json::{Value, json};

fn body(fields: Value) -> VaultBody {
    VaultBody::of(&fields).unwrap()
}

fn vault(fields: Value) -> Vault {
    let size = 5 * 16384 + 512;
    Vault::new(VolumeId([1; 16]), "vm1".into(), KIND.into(), size, body(fields))
}

#[test]
fn settings_become_a_body_or_are_refused_with_what_is_possible() {
    for (settings, layout) in [
        (json!({}), json!({"page_size": 4096})),
        (json!({"block_size": 4096}), json!({"block_size": 4096})),
        (json!({"block_size": "64K"}), json!({"block_size": 65536})),
    ] {
        let made = Block.create(512, &body(settings)).unwrap();
        assert_eq!(made, body(layout));
        assert_eq!(Block.check(&Vault { body: made, ..vault(json!({})) }), Ok(()));
    }
    for (settings, advice) in [
        (json!({"block_size": 5000}), "power of two"),
        (json!({"block_size": 2048}), "from 4 KiB to 1 MiB"),
        (json!({"block_size": 2 << 20}), "from 4 KiB to 1 MiB"),
        (json!({"block_size": "16X"}), "is not a size"),
        (json!({"block_size": -1}), "a number of bytes"),
        (json!({"polcy": "back"}), "unknown field `polcy`"),
    ] {
        let refused = Block.create(512, &body(settings)).unwrap_err();
        assert!(refused.contains(advice), "{refused}");
    }
}

#[test]
fn a_layout_that_no_volume_has_is_refused_before_anything_is_served() {
    for (fields, word) in [
        (json!({}), "block_size"),
        (json!({"block_size": "16K"}), "invalid type"),
        (json!({"block_size": 16385}), "16385 bytes"),
        (json!({"block_size": 2048}), "2048 bytes"),
        (json!({"block_size": 2 << 20}), "2097152 bytes"),
        (json!({"page_size": 8192}), "8192 bytes"),
        (json!({"page_size": 4096, "block_size": 4096}), "either"),
    ] {
        let vault = vault(fields);
        let refused = Block.check(&vault).unwrap_err();
        assert!(refused.contains(word), "{word}: {refused}");
        assert_eq!(Block.describe_damage(&vault, &[0..1, 3..4]), None);
        assert!(served(&vault).is_err());
    }
}

#[test]
fn damage_is_described_in_bytes_of_the_volume() {
    let fixed = vault(json!({"block_size": 16384, "of another binary": true}));
    let keys = [0..1, 2..4, 5..u64::MAX];
    assert_eq!(
        Block.describe_damage(&fixed, &keys).unwrap(),
        "16 KiB at byte 0, 32 KiB at byte 32768, 512 B at byte 81920"
    );
    let by_content = vault(json!({"page_size": 4096}));
    let key = |page, count| Layout::default().key(&Run { page, from: 3, count });
    let keys = [key(0, 4)..key(0, 4) + 1, key(8, 2)..key(16, 1), key(20, 64)..u64::MAX];
    assert_eq!(
        Block.describe_damage(&by_content, &keys).unwrap(),
        "16 KiB at byte 0, 32 KiB at byte 32768, 512 B at byte 81920"
    );
}
