//! The description of a volume for users.

use crate::registry::machine::State;
use crate::{Ack, Backlog, Policy, Vault};
use rekindle_base::{Generation, NodeId, Serial, VolumeId};
use rekindle_content::tree::Root;
use serde::{Serialize, Serializer};

/// The description of a volume for users.
#[derive(Debug, Clone)]
pub struct Info {
    pub vault: Vault,
    pub state: State,
    pub clients: u64,
    /// Only when in service.
    pub backlog: Option<Backlog>,
    /// Reason of the state `error` or `stalled`, of the last failed attach, or of a fault that
    /// waits.
    pub reason: Option<String>,
    /// The part of it that cannot be read and waits for a decision or a repair.
    pub unreadable: Option<String>,
}

/// The vault's fields, flat, with the state that matters to users: the one on this node.
#[derive(Serialize)]
struct Shown<'a> {
    id: VolumeId,
    name: &'a str,
    kind: &'a str,
    state: State,
    size: u64,
    block_size: u64,
    policy: Policy,
    ack: Ack,
    owner: Option<NodeId>,
    generation: Generation,
    checkpoint: Serial,
    root: &'a Root,
    created: u64,
    pinned: bool,
    clients: u64,
    backlog: Option<&'a Backlog>,
    reason: Option<&'a str>,
}

impl Serialize for Info {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let vault = &self.vault;
        let shown = Shown {
            id: vault.id,
            name: &vault.name,
            kind: &vault.kind,
            state: self.state,
            size: vault.size,
            block_size: vault.block_size,
            policy: vault.policy,
            ack: vault.ack,
            owner: vault.owner,
            generation: vault.generation,
            checkpoint: vault.checkpoint,
            root: &vault.root,
            created: vault.created,
            pinned: vault.pinned,
            clients: self.clients,
            backlog: self.backlog.as_ref(),
            reason: self.reason.as_deref(),
        };
        shown.serialize(serializer)
    }
}
