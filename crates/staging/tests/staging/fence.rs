//! The vault is the one truth: a node that has lost it stops; one that only seems to have lost it
//! goes on.

use crate::bed::{Node, Setup, done, read, until};
use rekindle_base::{Generation, Incarnation, NodeId, Serial};
use rekindle_content::Class;
use rekindle_content::tree;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::Env;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Home, Policy, Vault, VaultState};
use std::sync::Arc;

fn run(policy: Policy, test: impl AsyncFnOnce(&Env, Node)) {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let node =
            Node::start(&env, &Setup::new(policy, Ack::Flash), &Mem::store(), Plan::default())
                .await;
        test(&env, node).await;
    });
}

/// Rewrites the vault, as another process would.
async fn rewrite(node: &Node, change: impl FnOnce(&mut Vault)) {
    let held =
        node.writer.read::<Vault>(&Vault::key(node.setup.vault(1).id)).await.unwrap().unwrap();
    let mut value = held.value.clone();
    change(&mut value);
    node.writer.replace(&held, value).await.unwrap();
}

#[test]
fn another_owner_or_a_newer_generation_fences() {
    let changes: [fn(&mut Vault); 3] = [
        |vault| (vault.owner, vault.generation) = (Some(NodeId([9; 16])), Generation(2)),
        |vault| vault.generation = Generation(2),
        |vault| vault.state = VaultState::Deleted,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        run(Policy::Back, async |_, node| {
            let volume = node.open(1).await.unwrap();
            done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
            rewrite(&node, change).await;
            assert!(matches!(volume.drain().await, Err(Error::Fenced(_))), "{index}");
            let fenced = |error: Error| assert!(matches!(error, Error::Fenced(_)), "{error}");
            fenced(done(&volume, volume.write(0, &[1; 1], false)).await.unwrap_err());
            fenced(volume.flush().await.unwrap_err());
            fenced(volume.read(0, &mut [0; 1]).await.unwrap_err());
            fenced(volume.read_now(0, &mut [0; 1]).unwrap_err());
            assert_eq!(node.vault(1).await.checkpoint, Serial(0), "nothing was written over it");
        });
    }
}

#[test]
fn writes_through_that_wait_when_the_fence_falls_are_not_acknowledged() {
    run(Policy::Through, async |_, node| {
        let volume = node.open(1).await.unwrap();
        rewrite(&node, |vault| vault.generation = Generation(2)).await;
        let outcome = done(&volume, volume.write(0, &[1; 4096], false)).await;
        assert!(matches!(outcome, Err(Error::Fenced(_))));
    });
}

#[test]
fn a_vault_of_somebody_else_is_not_opened() {
    run(Policy::Back, async |_, node| {
        node.open(1).await.unwrap().close().await.unwrap();
        rewrite(&node, |vault| {
            (vault.owner, vault.generation) = (Some(NodeId([9; 16])), Generation(2))
        })
        .await;
        assert!(matches!(node.open(1).await, Err(Error::Fenced(_))));
    });
}

#[test]
fn a_volume_that_was_fenced_and_closed_comes_back_without_what_its_generation_owed() {
    run(Policy::Back, async |_, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        rewrite(&node, |vault| vault.owner = Some(NodeId([9; 16]))).await;
        rewrite(&node, |vault| {
            (vault.owner, vault.generation) =
                (Some(node.setup.vault(1).owner.unwrap()), Generation(3));
            vault.incarnation = node.writer.life().incarnation;
        })
        .await;
        assert!(matches!(volume.drain().await, Err(Error::Fenced(_))));
        volume.close().await.unwrap();
        volume.close().await.unwrap();
        assert!(node.staging.volumes().is_empty());
        let back = node.open(1).await.unwrap();
        assert_eq!(read(&back, 0, 4096).await, [0; 4096], "another generation came between");
        done(&back, back.write(4096, &[2; 4096], false)).await.unwrap();
        volume.close().await.unwrap();
        assert_eq!(node.staging.volumes().len(), 1, "the one that is gone takes none with it");
        let found = node.staging.find(node.setup.vault(1).id).expect("it is in service");
        assert!(Arc::ptr_eq(&found, &back), "the look-up by id knows the one that came back");
        assert!(node.staging.find(node.setup.vault(2).id).is_none(), "another id finds none");
        assert_eq!(back.drain().await.unwrap(), Serial(1));
        assert_eq!(read(&back, 4096, 4096).await, [2; 4096]);
    });
}

#[test]
fn a_vault_changed_under_the_same_owner_is_taken_as_it_is_now() {
    run(Policy::Back, async |_, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        rewrite(&node, |vault| vault.name = "renamed".into()).await;
        assert_eq!(volume.drain().await.unwrap(), Serial(1));
        assert_eq!(node.vault(1).await.name, "renamed");
        assert_eq!(volume.vault().name, "renamed");
    });
}

/// Writes a root with one block into the store, as a batch of an earlier life would have.
async fn root_with(node: &Node, key: u64, byte: u8) -> tree::Root {
    let mut batch = node.content.batch();
    let pointer = batch.write(Class::Data, vec![byte; 4096].into(), &[]).await.unwrap();
    let root =
        tree::update(&node.content, &mut batch, &None, &[(key, Some(pointer))]).await.unwrap();
    batch.flush().await.unwrap();
    batch.committed();
    root
}

#[test]
fn a_commit_of_an_earlier_life_that_lands_late_is_adopted() {
    run(Policy::Through, async |_, node| {
        let volume = node.open(1).await.unwrap();
        // Serials 1 to 5 of the life before, in RAM only, never acknowledged.
        let root = root_with(&node, 3, 9).await;
        rewrite(&node, |vault| (vault.root, vault.checkpoint) = (root, Serial(5))).await;
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        let vault = node.vault(1).await;
        assert_eq!(vault.checkpoint, Serial(6), "ours come after them");
        assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
        assert_eq!(read(&volume, 3 * 4096, 4096).await, [9; 4096]);
    });
}

#[test]
fn a_life_that_went_on_after_ours_began_is_gone_over() {
    run(Policy::Back, async |_, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        let root = root_with(&node, 3, 9).await;
        rewrite(&node, |vault| (vault.root, vault.checkpoint) = (root, Serial(5))).await;
        assert_eq!(volume.drain().await.unwrap(), Serial(1));
        let vault = node.vault(1).await;
        assert_eq!(
            (vault.checkpoint, vault.incarnation),
            (Serial(1), node.writer.life().incarnation)
        );
        assert_eq!(read(&volume, 0, 4096).await, [1; 4096]);
        assert_eq!(read(&volume, 3 * 4096, 4096).await, [0; 4096], "none of what it wrote");
        assert_eq!(vault.versions, Vec::new(), "nor is that an earlier content of the volume");
    });
}

#[test]
fn a_copy_of_the_vault_that_was_not_the_stores_ends_service_and_overwrites_nothing() {
    run(Policy::Back, async |env, node| {
        drop(node.open(1).await.unwrap().close().await);
        let key = Vault::key(node.setup.vault(1).id);
        let held = node.writer.read::<Vault>(&key).await.unwrap().unwrap();
        let root = root_with(&node, 3, 9).await;
        rewrite(&node, |vault| (vault.root, vault.checkpoint) = (root, Serial(5))).await;
        let volume = node.staging.open_from_cache(held, Home::Range(node.home())).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        until(env, &volume, |_| volume.read_now(0, &mut [0; 1]).is_err()).await;
        let error = done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap_err();
        assert!(matches!(error, Error::Deposed(_)), "{error}");
        assert_eq!(node.vault(1).await.checkpoint, Serial(5), "nothing was written over it");
    });
}

#[test]
fn a_vault_set_back_to_an_older_state_is_loss_not_a_new_owner() {
    run(Policy::Back, async |_, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        volume.drain().await.unwrap();
        rewrite(&node, |vault| (vault.root, vault.checkpoint) = (None, Serial(0))).await;
        done(&volume, volume.write(4096, &[2; 4096], false)).await.unwrap();
        assert!(matches!(volume.drain().await, Err(Error::Lost { .. })));
        assert_eq!(node.vault(1).await.checkpoint, Serial(0));
    });
}

#[test]
fn a_commit_that_lands_when_a_sweep_has_deleted_what_it_leads_to_is_made_again_from_the_log() {
    for policy in [Policy::Through, Policy::Back] {
        run(policy, async |_, node| {
            let volume = node.open(1).await.unwrap();
            if policy == Policy::Back {
                // This life has found the changes that the life before had logged: its commit would
                // be adopted.
                done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
            }
            let root = root_with(&node, 3, 9).await;
            let life = node.writer.life().incarnation;
            rewrite(&node, |vault| {
                (vault.root, vault.checkpoint) = (root, Serial(1));
                if policy == Policy::Back {
                    vault.incarnation = life;
                }
            })
            .await;
            for class in ["packs/data/", "packs/meta/"] {
                for listed in node.writer.store.list(class, None).await.unwrap() {
                    node.writer.store.delete(&listed.key).await.unwrap();
                }
            }
            done(&volume, volume.write(4096, &[2; 4096], false)).await.unwrap();
            volume.drain().await.unwrap();
            let found = node.vault(1).await.root;
            assert_ne!(found, root);
            let cold = rekindle_content::Content::open(
                node.env.clone(),
                node.writer.store.clone(),
                node.setup.content(),
            );
            let report =
                rekindle_content::verify::verify(&cold, &[found], &mut |_| ()).await.unwrap();
            assert!(report.damages.is_empty(), "{:?}", report.damages);
            assert_eq!(read(&volume, 4096, 4096).await, [2; 4096]);
        });
    }
}

#[test]
fn a_start_that_was_dismissed_commits_nothing_more() {
    run(Policy::Back, async |env, node| {
        let volume = node.open(1).await.unwrap();
        done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
        volume.drain().await.unwrap();
        let before = node.vault(1).await;
        // Another node's sweeper was told that this start is over.
        let life = node.writer.life();
        let ack = format!("{}{}", "sweep/acks/", life.node);
        let left = rekindle_content::sweep::Ack {
            incarnation: life.incarnation,
            set: 0,
            ending: 0,
            left: true,
            wrote: None,
        };
        node.writer.create(&ack, left).await.unwrap();
        env.sleep(std::time::Duration::from_secs(6)).await;
        let written = done(&volume, volume.write(0, &[2; 4096], false)).await;
        let error = match written {
            Ok(()) => volume.drain().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(error, Error::Deposed(_)), "{error}");
        assert_eq!(node.vault(1).await, before);
        let error = done(&volume, volume.write(0, &[3; 4096], false)).await.unwrap_err();
        assert!(matches!(error, Error::Deposed(_)), "{error}");
    });
}

/// The part of a node's record that the fence reads.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct NodeRecord {
    incarnation: Incarnation,
}

impl rekindle_datastore::record::Body for NodeRecord {
    const WHAT: &'static str = "node";
    const FORMAT: u32 = 2;
}

#[test]
fn a_start_that_a_newer_one_has_replaced_commits_nothing_on_volumes_that_this_has_not_claimed() {
    for policy in [Policy::Back, Policy::Through] {
        run(policy, async |env, node| {
            let volume = node.open(1).await.unwrap();
            let (key, life) =
                (rekindle_datastore::key::node_key(node.writer.node), node.writer.life());
            let ours = NodeRecord { incarnation: life.incarnation };
            let held = node.writer.create(&key, ours).await.unwrap();
            done(&volume, volume.write(0, &[1; 4096], false)).await.unwrap();
            volume.drain().await.unwrap();
            let before = node.vault(1).await;
            // A copy of the folder is started, and sweeps chunks that this start still believes to
            // be in the store.
            let newer = NodeRecord { incarnation: life.incarnation.next() };
            node.writer.replace(&held, newer).await.unwrap();
            env.sleep(std::time::Duration::from_secs(6)).await;
            let written = done(&volume, volume.write(0, &[2; 4096], false)).await;
            let error = match written {
                Ok(()) => volume.drain().await.unwrap_err(),
                Err(error) => error,
            };
            assert!(matches!(error, Error::Deposed(_)), "{error}");
            assert_eq!(node.vault(1).await, before);
            assert!(node.staging.fenced().is_some(), "and no other volume does");
        });
    }
}
