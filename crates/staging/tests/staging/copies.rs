//! Volumes whose writes wait for copies on other nodes, beside volumes whose writes do not.

use crate::bed::{Node, Setup, done, read, until};
use parking_lot::Mutex;
use rekindle_base::SegmentId;
use rekindle_datastore::backend::mem::Mem;
use rekindle_datastore::layer::fault::Plan;
use rekindle_env::sim::{Faults, World};
use rekindle_env::{BoxFuture, Env};
use rekindle_log::{NewSegment, Replica};
use rekindle_staging::{Ack, Error, Policy, Staged, Vault};
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(500);

/// A holder that keeps nothing, and answers while it is there.
struct Holder {
    env: Env,
    is_there: Mutex<bool>,
}

impl Holder {
    fn answer<T: Send + 'static>(&self, reply: T) -> BoxFuture<'_, Result<T, String>> {
        Box::pin(async {
            while !*self.is_there.lock() {
                self.env.sleep(Duration::from_millis(10)).await;
            }
            Ok(reply)
        })
    }
}

impl Replica for Holder {
    fn name(&self) -> String {
        "holder".to_owned()
    }

    fn begin(&self) -> BoxFuture<'_, Result<(), String>> {
        self.answer(())
    }

    fn open<'a>(&'a self, _: &'a NewSegment) -> BoxFuture<'a, Result<u32, String>> {
        self.answer(0)
    }

    fn copy<'a>(&'a self, _: SegmentId, _: u32, _: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        self.answer(())
    }

    fn seal<'a>(&'a self, _: SegmentId, _: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        self.answer(())
    }

    fn keep<'a>(&'a self, _: SegmentId, _: &'a [SegmentId]) -> BoxFuture<'a, Result<(), String>> {
        self.answer(())
    }

    fn free(&self, _: SegmentId) -> BoxFuture<'_, Result<(), String>> {
        self.answer(())
    }
}

async fn write(volume: &Arc<Staged>, byte: u8, durable: bool) -> Result<(), Error> {
    let written = volume.write(0, &[byte; 4096], durable);
    done(volume, written).await
}

#[test]
fn a_write_waits_for_copies_exactly_when_its_volume_asks_for_them() {
    for ack in [Ack::Flash, Ack::Memory] {
        let world = World::new(1, Faults::none());
        let env = world.env();
        world.block_on(async {
            let holder = Arc::new(Holder { env: env.clone(), is_there: Mutex::new(false) });
            let mut setup = Setup::new(Policy::Back, ack);
            setup.replicas = vec![holder.clone()];
            let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
            let plain = node.open(1).await.unwrap();
            let copied = Vault { copies: 1, ..setup.vault(2) };
            let copied = node.open_as(copied).await.unwrap();
            for durable in [false, true] {
                let written = env.timeout(SHORT, write(&plain, 1, durable)).await;
                written.expect("it asks for no copy").unwrap();
                let written = env.timeout(SHORT, write(&copied, 1, durable)).await;
                assert!(written.is_err(), "its copy is not there");
            }
            assert_eq!(read(&copied, 0, 4096).await, [0; 4096], "what may vanish is not shown");
            assert!(env.timeout(SHORT, copied.flush()).await.is_err(), "nor is it flushed");
            *holder.is_there.lock() = true;
            write(&copied, 2, false).await.unwrap();
            copied.flush().await.unwrap();
            assert_eq!(read(&copied, 0, 4096).await, [2; 4096]);
            copied.drain().await.unwrap();
            until(&env, &copied, |backlog| backlog.changes == 0).await;
        });
    }
}

#[test]
fn a_volume_that_asks_for_more_copies_than_there_are_is_not_served() {
    let world = World::new(1, Faults::none());
    let env = world.env();
    world.block_on(async {
        let setup = Setup::new(Policy::Back, Ack::Flash);
        let node = Node::start(&env, &setup, &Mem::store(), Plan::default()).await;
        let refused = node.open_as(Vault { copies: 1, ..setup.vault(1) }).await;
        let refused = refused.err().expect("it would promise less than it says").to_string();
        assert!(refused.contains("copies on other nodes are asked for"), "{refused}");
    });
}
