//! The node as the owner of copies: what its record, its volumes and its reads have to do with its
//! holders.

use super::Member;
use crate::limits::WANTED_COPIES_MIN;
use crate::own_record::OwnRecord;
use crate::record::{HolderNote, HoldersNote};
use rekindle_base::{Incarnation, NodeId};
use rekindle_cluster::machine::owner::Reads;
use rekindle_cluster::owner::{Home, Keeping, Parts};
use rekindle_env::BoxFuture;
use rekindle_log::Log;
use rekindle_staging::{Lease, Staging};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::Notify;

/// The parts of a life that its holders concern.
pub(crate) struct Life {
    pub(crate) life: rekindle_base::Life,
    pub(crate) own: OwnRecord,
    pub(crate) log: Log,
    pub(crate) staging: Staging,
    pub(crate) lease: Arc<Lease>,
    /// Rung when this life may be over.
    pub(crate) doubt: Arc<Notify>,
    /// `node.json` for its copies.
    pub(crate) file_of_copies: Vec<u8>,
    /// The holders that its record names, whose replicas its log requires already.
    pub(crate) recorded: Vec<NodeId>,
}

/// Begins to keep copies of a life's log.
pub(crate) fn begin(member: &Member, life: Life) -> Keeping {
    let Life { life, own, log, staging, lease, doubt, file_of_copies, recorded } = life;
    let required = AtomicU8::new(log.progress().copies.required);
    let env = member.calls.env.clone();
    let log_of_home = log.clone();
    let home = NodeHome {
        env,
        own,
        staging,
        log: log_of_home,
        lease,
        doubt,
        incarnation: life.incarnation,
        required,
    };
    Keeping::begin(Parts {
        calls: member.calls.clone(),
        log,
        life,
        file_of_copies,
        recorded,
        domain: member.contact().domain,
        spread: member.spread,
        pace: member.pace,
        home: Arc::new(home),
    })
}

struct NodeHome {
    env: rekindle_env::Env,
    own: OwnRecord,
    staging: Staging,
    log: Log,
    lease: Arc<Lease>,
    doubt: Arc<Notify>,
    incarnation: Incarnation,
    /// Count of the required holders at the last change.
    required: AtomicU8,
}

impl Home for NodeHome {
    fn name(&self, holders: BTreeSet<NodeId>) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let since = self.incarnation;
            self.own
                .change(|record| {
                    let mut nodes: Vec<HolderNote> = record.holders.nodes.clone();
                    nodes.retain(|one| holders.contains(&one.node));
                    for &node in &holders {
                        if nodes.iter().all(|one| one.node != node) {
                            nodes.push(HolderNote { node, since });
                        }
                    }
                    if nodes != record.holders.nodes {
                        record.holders = HoldersNote { epoch: record.holders.epoch + 1, nodes };
                    }
                })
                .await
        })
    }

    fn read(&self, reads: Reads) {
        match reads {
            Reads::Free => self.lease.set(None),
            Reads::Until(end) => self.lease.set(Some(end)),
            Reads::No => self.lease.set(Some(rekindle_env::Moment::default())),
        }
    }

    fn wanted(&self) -> usize {
        let volumes = self.staging.volumes();
        let most = volumes.iter().map(|volume| volume.copies()).max().unwrap_or(0);
        usize::from(most).max(WANTED_COPIES_MIN)
    }

    fn doubt(&self, why: &str) {
        tracing::debug!(why, "this life may be over");
        self.doubt.notify_one();
    }

    fn changed(&self) {
        let required = self.log.progress().copies.required;
        let before = self.required.swap(required, Ordering::Relaxed);
        if required >= before {
            return;
        }
        // What was acknowledged with the lost copy has fewer than were asked for.
        for volume in self.staging.volumes() {
            if volume.copies() <= required {
                continue;
            }
            let name = volume.vault().name;
            tracing::warn!(
                volume = name,
                copies = required,
                wanted = volume.copies(),
                "a copy is missing: its changes are brought into the store"
            );
            self.env.spawn("copy-missing", async move {
                if let Err(error) = volume.drain().await {
                    tracing::warn!(volume = name, %error, "its changes are not in the store yet");
                }
            });
        }
    }
}
