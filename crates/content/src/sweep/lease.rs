//! The record `sweep/lease`: one node sweeps at a time.
//!
//! Clocks of two machines are never compared. A node that finds the lease with another node
//! remembers the record and, by its own clock, the time. Only when the record has not changed for
//! [`EXPIRY`] does the node take the lease over, with the next epoch. The holder writes the record
//! anew all the time, and before each deletion: a write that fails shows that another node has
//! taken over.

use crate::Error;
use parking_lot::Mutex;
use rekindle_base::{Incarnation, NodeId};
use rekindle_datastore::record::{Body, Held, Mark, Writer};
use rekindle_env::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The key of the record.
pub const KEY: &str = "sweep/lease";
/// A lease that has not changed for so long, by one node's clock, is free.
pub const EXPIRY: Duration = Duration::from_secs(60);
/// Interval at which a holder shows that it lives.
const BEAT: Duration = Duration::from_secs(10);

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Lease {
    /// Counts holders.
    pub epoch: u64,
    /// The node that sweeps, if one does.
    pub holder: Option<NodeId>,
    /// The start of that node.
    pub incarnation: Incarnation,
    /// Counts signs of life.
    pub beat: u64,
    /// The node that swept last: it has counts that are up to date, so the others leave the next
    /// sweep to it. Absent in records of earlier binaries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<NodeId>,
}

impl Body for Lease {
    const WHAT: &'static str = "lease of the sweep";
    const FORMAT: u32 = 1;
}

/// Another node's lease as this node saw it, and since when it has been so.
pub(super) type Seen = Mutex<Option<(Mark, Moment)>>;

/// The tenure of a holder.
pub(super) struct Tenure<'a> {
    writer: &'a Writer,
    held: tokio::sync::Mutex<Held<Lease>>,
}

/// Takes the lease, or returns an error that names its holder.
pub(super) async fn take<'a>(writer: &'a Writer, seen: &Seen) -> Result<Tenure<'a>, Error> {
    let life = writer.life();
    let mine = |epoch| Lease {
        epoch,
        holder: Some(life.node),
        incarnation: life.incarnation,
        beat: 0,
        last: Some(life.node),
    };
    let taken = match writer.read::<Lease>(KEY).await? {
        None => writer.create(KEY, mine(1)).await,
        Some(found) => {
            let lease = &found.value;
            let is_free = match lease.holder {
                None => true,
                // An earlier start of this node is over. A later one is not.
                Some(node) if node == life.node => lease.incarnation <= life.incarnation,
                Some(_) => false,
            };
            if !is_free {
                let left = unchanged(writer, seen, found.mark(), EXPIRY);
                if !left.is_zero() {
                    return Err(held_by(lease, left));
                }
            }
            writer.replace(&found, mine(lease.epoch + 1)).await
        }
    };
    *seen.lock() = None;
    match taken {
        Ok(held) => Ok(Tenure { writer, held: tokio::sync::Mutex::new(held) }),
        Err(rekindle_datastore::Error::Exists(_) | rekindle_datastore::Error::Conflict(_)) => {
            Err(Error::Stopped("another node has begun to sweep at the same moment".into()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the node to which this one leaves the next sweep: another one, which swept last, unless
/// the lease has not changed for so long.
pub(super) async fn left_to(
    writer: &Writer,
    (seen, silence): (&Seen, Duration),
) -> Result<Option<NodeId>, Error> {
    let Some(found) = writer.read::<Lease>(KEY).await? else { return Ok(None) };
    let other = found.value.last.filter(|last| *last != writer.node);
    let left = unchanged(writer, seen, found.mark(), silence);
    Ok(other.filter(|_| !left.is_zero()))
}

/// Returns how much longer the record must stay as it is.
fn unchanged(writer: &Writer, seen: &Seen, mark: &Mark, time: Duration) -> Duration {
    let now = writer.env.now();
    let mut seen = seen.lock();
    match &*seen {
        Some((known, since)) if known == mark => time.saturating_sub(now.since(*since)),
        _ => {
            *seen = Some((mark.clone(), now));
            time
        }
    }
}

fn held_by(lease: &Lease, left: Duration) -> Error {
    let node = lease.holder.map(|node| node.to_string()).unwrap_or_default();
    Error::Stopped(format!(
        "node {node} sweeps this store; ask again in {} s, if it has shown no sign of life by then this node does it",
        left.as_secs() + 1
    ))
}

impl Tenure<'_> {
    /// Shows that this node lives, and proves that no other node has taken over.
    pub(super) async fn prove(&self) -> Result<(), Error> {
        let mut held = self.held.lock().await;
        let lease = Lease { beat: held.value.beat + 1, ..held.value.clone() };
        match self.writer.replace(&held, lease).await {
            Ok(next) => {
                *held = next;
                Ok(())
            }
            Err(rekindle_datastore::Error::Conflict(_)) => {
                Err(Error::Stopped("another node has taken the sweep over".into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Shows again and again that this node lives, until another node has taken over.
    pub(super) async fn keep(&self) -> Error {
        loop {
            self.writer.env.sleep(BEAT).await;
            // A store that is away now says nothing about the lease.
            if let Err(error @ Error::Stopped(_)) = self.prove().await {
                return error;
            }
        }
    }

    /// Gives the lease back.
    pub(super) async fn release(self) {
        let held = self.held.into_inner();
        let Lease { epoch, last, .. } = held.value;
        let free = Lease { epoch, last, ..Lease::default() };
        if let Err(error) = self.writer.replace(&held, free).await {
            tracing::debug!(%error, "the lease of the sweep could not be given back: it runs out");
        }
    }
}
