//! Acknowledged bytes that flash does not give back: reported exactly, never folded, never passed
//! over.

use crate::bed::{Node, Setup, done, read};
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_staging::{Ack, Error, Policy};
use std::path::Path;
use std::time::Duration;

/// Finds `pattern` on flash: file and offset.
pub fn find(world: &World, pattern: &[u8]) -> (String, u64) {
    for number in 1..20 {
        let path = format!("/node/log/{number:08}.seg");
        if let Some(bytes) = world.peek(Path::new(&path))
            && let Some(at) = bytes.windows(pattern.len()).position(|window| window == pattern)
        {
            return (path, at as u64);
        }
    }
    panic!("flash has it");
}

#[test]
fn a_damaged_change_is_reported_exactly_and_healed_by_overwriting() {
    let world = World::new(3, Faults::none());
    let mut setup = Setup::new(Policy::Back, Ack::Flash);
    setup.config.destage_age = Duration::from_secs(3600);
    let store = Mem::store();
    let env = world.env();
    world.block_on(async {
        let node = Node::start(&env, &setup, &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        for block in 0..3_u64 {
            done(&volume, volume.write(block * 4096, &[0xa0 + block as u8; 4096], false))
                .await
                .unwrap();
        }
    });
    world.cut_power();
    let (path, at) = find(&world, &[0xa1; 4096]);
    assert!(world.flip_bit(&path, at + 1000));
    let env = world.env();
    world.block_on(async {
        let node = Node::start(&env, &setup, &store, Plan::default()).await;
        let volume = node.open(1).await.unwrap();
        assert_eq!(volume.backlog().changes, 3);
        assert_eq!(read(&volume, 0, 4096).await, [0xa0; 4096]);
        assert_eq!(read(&volume, 8192, 4096).await, [0xa2; 4096]);
        assert!(matches!(volume.read(4096, &mut [0; 512]).await, Err(Error::Log(_))));
        let Err(Error::Lost { reason, .. }) = volume.drain().await else { panic!("it is lost") };
        assert!(reason.contains("serial 2 (4096 bytes at 4096)"), "{reason}");
        assert_eq!(volume.backlog().checkpoint, 0, "nothing beyond it is claimed to be home");
        assert!(volume.backlog().destage_error.unwrap().contains("serial 2"));
        // New writes are still taken, and one over the damage makes it whole.
        done(&volume, volume.write(4096, &[0xb1; 4096], false)).await.unwrap();
        assert_eq!(read(&volume, 4096, 4096).await, [0xb1; 4096]);
        for _ in 0..1000 {
            if volume.drain().await.is_ok() {
                break;
            }
            env.sleep(Duration::from_millis(100)).await;
        }
        let backlog = volume.backlog();
        assert_eq!((backlog.checkpoint, backlog.destage_error), (4, None));
    });
}
