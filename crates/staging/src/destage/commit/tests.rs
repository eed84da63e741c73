//! Tests of the parent module.

use super::*;
use rekindle_base::{Generation, Incarnation, NodeId, PackId, Serial, VolumeId};
use rekindle_content::{Part, Pointer};

fn root(tag: u8) -> Root {
    Some(Pointer {
        name: [tag; 32],
        pack: PackId([tag; 16]),
        offset: 0,
        stored: 1,
        length: 1,
        part: Part::WHOLE,
    })
}

pub(crate) fn vault(tag: u8, checkpoint: u64) -> Vault {
    let (id, body) = (VolumeId([1; 16]), crate::vault::tests::body(16384));
    Vault {
        owner: Some(NodeId([2; 16])),
        generation: Generation(5),
        checkpoint: Serial(checkpoint),
        root: root(tag),
        ..Vault::new(id, "v".into(), "block".into(), 1 << 20, body)
    }
}

const LIFE: Incarnation = Incarnation(4);

fn of(life: u64, vault: Vault) -> Vault {
    Vault { incarnation: Incarnation(life), ..vault }
}

#[test]
fn a_vault_read_back_is_judged() {
    let ours = of(3, vault(1, 10));
    let attempt = Attempt { root: root(2), checkpoint: Serial(20), over: 0 };
    let judge = |found: Vault| judge(LIFE, &ours, &attempt, &found);
    assert_eq!(judge(of(4, vault(2, 20))), Verdict::Won);
    assert_eq!(judge(of(3, vault(2, 20))), Verdict::Late, "alike, and made by another life");
    for life in [0, 3, 4] {
        let judge = |found| judge(of(life, found));
        assert_eq!(judge(vault(1, 10)), Verdict::Unchanged);
        assert_eq!(judge(Vault { name: "renamed".into(), ..vault(1, 10) }), Verdict::Unchanged);
        let lost = vec![crate::Lost { position: 0, span: 1 }];
        assert_eq!(
            judge(Vault { lost, ..vault(3, 10) }),
            Verdict::Late,
            "a salvage leaves the checkpoint"
        );
        assert_eq!(judge(vault(3, 15)), Verdict::Late);
        assert_eq!(judge(vault(3, 30)), Verdict::Late);
        assert_eq!(judge(vault(3, 9)), Verdict::Absurd);
        assert_eq!(judge(vault(3, 10)), Verdict::Late, "also one that got everything back");
        assert_eq!(judge(Vault { generation: Generation(6), ..vault(2, 20) }), Verdict::Fenced);
        assert_eq!(judge(Vault { owner: Some(NodeId([3; 16])), ..vault(2, 20) }), Verdict::Fenced);
        assert_eq!(judge(Vault { owner: None, ..vault(1, 10) }), Verdict::Fenced);
        for state in [VaultState::Deleted, VaultState::Trashed] {
            assert_eq!(judge(Vault { state, ..vault(1, 10) }), Verdict::Fenced);
        }
        assert_eq!(judge(Vault { generation: Generation(4), ..vault(1, 10) }), Verdict::Absurd);
    }
}

#[test]
fn whoever_finds_a_newer_life_is_deposed_whatever_else_the_vault_says() {
    let ours = of(3, vault(1, 10));
    let attempt = Attempt { root: root(2), checkpoint: Serial(20), over: 0 };
    let judge = |found: Vault| judge(LIFE, &ours, &attempt, &of(5, found));
    for found in [vault(1, 10), vault(2, 20), vault(3, 9), vault(3, 30)] {
        assert_eq!(judge(found.clone()), Verdict::Deposed);
        assert_eq!(judge(Vault { generation: Generation(6), ..found.clone() }), Verdict::Deposed);
        assert_eq!(judge(Vault { state: VaultState::Deleted, ..found.clone() }), Verdict::Deposed);
        let taken_over = Vault { owner: Some(NodeId([3; 16])), generation: Generation(6), ..found };
        assert_eq!(judge(taken_over), Verdict::Fenced, "another node counts its own lives");
    }
}
