//! Memory that outlives the process: an arena of segment slots in a mapped file.
//!
//! In this version the arena holds log segments only (block frames and client state come with restart in O(1)).
//! Nothing in it is believed unverified: an unknown or torn header means a fresh arena, never a wrong one.

use base::NodeId;
use env::Env;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mapped arena: `slots` slots of `base::limits::SEGMENT_BYTES` each. Clones mean the same arena.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

struct Inner {}

/// One slot: zero or more bytes of a segment, owned by whoever took it.
pub struct Slot {}

impl Arena {
    /// Maps (or makes) the arena of `node` at `path`. Slots keep their content when header, layout version and node
    /// agree; else all are fresh.
    pub fn open(env: &Env, path: &Path, node: NodeId, slots: usize) -> io::Result<Arena> {
        let _ = (env, path, node, slots);
        todo!()
    }

    /// An arena in ordinary memory: same use, forgotten with the process.
    #[must_use]
    pub fn volatile(slots: usize) -> Arena {
        let _ = slots;
        todo!()
    }

    /// Whether the content outlives the process.
    #[must_use]
    pub fn outlives_process(&self) -> bool {
        todo!()
    }

    /// Takes every slot, in order. Once only: afterwards the log owns them.
    #[must_use]
    pub fn take_slots(&self) -> Vec<Slot> {
        todo!()
    }
}
