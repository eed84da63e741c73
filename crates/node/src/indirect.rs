//! Reads by a message to another thread and back, as in most servers, also of what is in RAM: to
//! show what that costs (`direct_path = off`). Only the kinds of volumes are wrapped; the read path
//! itself knows nothing of it.

use rekindle_content::Content;
use rekindle_content::{Batch, Pointer, tree::Root};
use rekindle_env::{BoxFuture, Env};
use rekindle_staging::{Error, Extent, Fold, Home, RangeHome, Vault, VaultBody};
use rekindle_volume::{Kind, OpenedHome, Sizes};
use std::ops::Range;
use std::sync::Arc;

/// Wraps every home that these kinds open.
pub(crate) fn all(env: &Env, kinds: Vec<Box<dyn Kind>>) -> Vec<Box<dyn Kind>> {
    let wrapped = |kind| Box::new(IndirectKind { env: env.clone(), kind }) as Box<dyn Kind>;
    kinds.into_iter().map(wrapped).collect()
}

struct IndirectKind {
    env: Env,
    kind: Box<dyn Kind>,
}

impl Kind for IndirectKind {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn create(&self, size: u64, settings: &VaultBody) -> Result<VaultBody, String> {
        self.kind.create(size, settings)
    }

    fn check(&self, vault: &Vault) -> Result<(), String> {
        self.kind.check(vault)
    }

    fn open(&self, content: &Content, vault: &Vault) -> Result<OpenedHome, String> {
        Ok(match self.kind.open(content, vault)? {
            Home::Range(home) => Home::Range(Arc::new(Indirect { env: self.env.clone(), home })),
            // Its reads are its own.
            records @ Home::Record(_) => records,
        })
    }

    fn describe_damage(&self, vault: &Vault, keys: &[Range<u64>]) -> Option<String> {
        self.kind.describe_damage(vault, keys)
    }

    fn describe_chunk<'a>(
        &'a self,
        content: &'a Content,
        vault: &'a Vault,
        keys: &'a [Range<u64>],
        chunk: Pointer,
    ) -> BoxFuture<'a, Option<String>> {
        self.kind.describe_chunk(content, vault, keys, chunk)
    }

    fn numbers<'a>(&'a self, content: &'a Content, vault: &'a Vault) -> BoxFuture<'a, u64> {
        self.kind.numbers(content, vault)
    }

    fn sizes(&self) -> Sizes {
        self.kind.sizes()
    }
}

struct Indirect {
    env: Env,
    home: Arc<dyn RangeHome>,
}

impl RangeHome for Indirect {
    fn read_now(&self, _: &Root, _: u64, _: &mut [u8]) -> Result<bool, Error> {
        Ok(false)
    }

    fn read<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        out: &'a mut [u8],
        keep: bool,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.env.run("read-message", async {}).await;
            self.home.read(root, position, out, keep).await
        })
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        changes: &'a [Fold],
    ) -> BoxFuture<'a, Result<Root, Error>> {
        self.home.fold(batch, root, changes)
    }

    fn grow(&self, size: u64) {
        self.home.grow(size);
    }

    fn bytes_of(&self, keys: Range<u64>) -> Range<u64> {
        self.home.bytes_of(keys)
    }

    fn extents<'a>(
        &'a self,
        root: &'a Root,
        position: u64,
        span: u64,
    ) -> BoxFuture<'a, Result<Vec<Extent>, Error>> {
        self.home.extents(root, position, span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_env::sim::{Faults, World};

    /// A home that has everything in RAM.
    struct Sevens;

    impl RangeHome for Sevens {
        fn read_now(&self, _: &Root, _: u64, out: &mut [u8]) -> Result<bool, Error> {
            out.fill(7);
            Ok(true)
        }

        fn read<'a>(
            &'a self,
            root: &'a Root,
            position: u64,
            out: &'a mut [u8],
            _: bool,
        ) -> BoxFuture<'a, Result<(), Error>> {
            Box::pin(async move { self.read_now(root, position, out).map(drop) })
        }

        fn fold<'a>(
            &'a self,
            _: &'a mut Batch,
            root: &'a Root,
            _: &'a [Fold],
        ) -> BoxFuture<'a, Result<Root, Error>> {
            Box::pin(async { Ok(*root) })
        }

        fn bytes_of(&self, keys: Range<u64>) -> Range<u64> {
            keys
        }

        fn extents<'a>(
            &'a self,
            _: &'a Root,
            _: u64,
            _: u64,
        ) -> BoxFuture<'a, Result<Vec<Extent>, Error>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[test]
    fn each_read_costs_a_message_and_no_plain_call_reads() {
        let world = World::new(1, Faults::none());
        let home = Indirect { env: world.env(), home: Arc::new(Sevens) };
        world.block_on(async {
            let mut out = [0; 4];
            assert!(!home.read_now(&None, 0, &mut out).unwrap());
            let before = world.tasks_started();
            home.read(&None, 0, &mut out, true).await.unwrap();
            assert_eq!((out, world.tasks_started() - before), ([7; 4], 1));
        });
    }
}
