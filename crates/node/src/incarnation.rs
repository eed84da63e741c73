//! The start of the next incarnation of a node.
//!
//! Each start raises the incarnation by a conditional write, and the winner is the node. A process
//! that has lost (a copied folder, a machine believed dead) finds out when it meets the newer start
//! in a vault, or looks into the record ([`crate::fencing`]).

use crate::Error;
use crate::record::{HoldersNote, LeftBehind, NodeRecord, PeerNote, read};
use crate::starts::{Past, Starts};
use rekindle_base::{Incarnation, NodeId};
use rekindle_cluster::roster::Entry;
use rekindle_datastore::record::{Held, Writer};
use rekindle_datastore::{Error as StoreError, key};

/// Times that a start reads the record again, because an earlier attempt of its folder has landed
/// late.
const TRIES_MAX: usize = 4;

/// The facts of a start that is about to be recorded.
pub struct Beginning<'a> {
    /// URL of the store, for messages.
    pub url: &'a str,
    /// The starts that the folder remembered before this one.
    pub starts: &'a Starts,
    pub nonce: u64,
    /// Whether the user permits that this folder goes on, although there are other copies.
    pub permitted: bool,
    /// The folder consists of copies of the log of lives up to this one; 0: it is the node's own.
    pub copied_from: Incarnation,
    /// The life that wrote the newest part of these copies, or 0. An owner sends `node.json` before
    /// its log: if the host was lost amid the first sync of a life, the copies are older than their
    /// `node.json` says.
    pub copied_log: Incarnation,
    /// Whether the user permits that copies of an older life than the last one go on.
    pub older_copies: bool,
    pub arena: u64,
    /// Whether this life has a record cache.
    pub copies: bool,
    pub trusted: bool,
    /// Whether the warm memory is another one, and the last life did not close its log.
    pub lost: bool,
    pub host: StartHost<'a>,
}

/// The host on which a start happens.
#[derive(Clone, Copy)]
pub struct StartHost<'a> {
    /// Its home node.
    pub host: NodeId,
    /// The home nodes that it had before.
    pub former: &'a [NodeId],
    /// The way to it for peers; `None`: it is in no cluster, and no other node holds copies.
    pub peer: Option<&'a PeerNote>,
    /// The host takes a lost node over, as a holder of copies of its log: the node's record as the
    /// host has seen it.
    pub takes: Option<&'a Entry>,
}

impl StartHost<'_> {
    fn is_here(&self, home: NodeId) -> bool {
        home == self.host || self.former.contains(&home)
    }
}

impl Beginning<'_> {
    /// The last life of whose log the folder has copies.
    fn copies_end(&self) -> Incarnation {
        self.copied_from.min(self.copied_log)
    }
}

/// Whether the folder has copies of the log of an older life than the record names: copies up to
/// the life `end`. No start of the folder itself has added to them.
pub fn has_older_copies(
    starts: &Starts,
    (copied_from, end): (Incarnation, Incarnation),
    found: Option<&NodeRecord>,
) -> bool {
    let is_copied = copied_from != Incarnation(0);
    let is_untouched = starts.landed.is_none_or(|landed| landed.incarnation <= copied_from);
    let is_older = found.is_some_and(|found| found.incarnation > end);
    is_copied && is_untouched && is_older && starts.judge(found) != Past::Ours
}

/// Whether the warm memory is as the last start of this folder left it: the record names its salt,
/// and the memory's `users` include the start that the record names.
///
/// Otherwise another memory was in use since. Or this memory was in use by a start that the folder
/// or the store does not know, because it was put back to an older state.
pub fn is_trusted(found: Option<&NodeRecord>, past: Past, arena: u64, users: &[u64]) -> bool {
    let Some(found) = found else { return true };
    let is_the_one = found.arena.is_none_or(|last| last == arena && last != 0);
    // Older binaries noted no users.
    let was_used_last = users.is_empty() || found.nonce.is_none_or(|nonce| users.contains(&nonce));
    is_the_one && was_used_last && past == Past::Ours
}

/// Checks by the record that this folder may go on. Returns whether it takes the node from another
/// copy.
fn allow(
    beginning: &Beginning<'_>,
    writer: &Writer,
    found: Option<&NodeRecord>,
) -> Result<bool, Error> {
    let Beginning { starts, permitted, .. } = beginning;
    let node = writer.node;
    if found.is_some_and(|found| found.removed) {
        return Err(Error::Copied(format!("node {node} was removed from the cluster")));
    }
    if let Some(seen) = beginning.host.takes {
        return may_take(beginning, seen, found).map(|()| true);
    }
    let past = match starts.judge(found) {
        Past::Ours => return Ok(false),
        past => past,
    };
    let copies = (beginning.copied_from, beginning.copies_end());
    let is_older = has_older_copies(starts, copies, found);
    if let Some(found) = found.filter(|_| is_older && !beginning.older_copies) {
        let has = match beginning.copies_end() {
            Incarnation(0) => format!("no copy of the log of node {node} has become whole here"),
            end => format!("these are copies of what node {node} wrote up to its start {end}"),
        };
        return Err(Error::Usage(format!(
            "{has}, and its last start was start {}: what it acknowledged since then is elsewhere. Start from the newest \
             copies; `rekindle up --take-identity --older-copies` goes on without what these lack",
            found.incarnation
        )));
    }
    if *permitted {
        return Ok(true);
    }
    is_at_home(starts, node, found)?;
    let reason = match (past, found) {
        (Past::SetBack, _) | (_, None) => format!(
            "the store was set back to a time before the last start of this folder (node {node}): what this folder knows to \
             be there may be missing"
        ),
        (_, Some(found)) => format!(
            "another copy of this folder was started since this one was used last (node {node}, start {}): that one may have \
             acknowledged what this one does not have",
            found.incarnation
        ),
    };
    Err(Error::Copied(reason))
}

/// An error when another host has taken over the node of a folder. Asked before the folder's log
/// and warm memory are touched: they stay as that life has left them.
pub fn is_at_home(starts: &Starts, node: NodeId, found: Option<&NodeRecord>) -> Result<(), Error> {
    let there = found.filter(|found| !found.removed);
    let host = there.and_then(|found| found.host).filter(|host| *host != node);
    match host.filter(|_| starts.judge(found) != Past::Ours) {
        Some(host) => Err(Error::TakenOver { node, host }),
        None => Ok(()),
    }
}

/// Checks that a holder may take a lost node over: the record is as it was when the holder's wait
/// began, and names it, and the copies are those that it means.
fn may_take(
    beginning: &Beginning<'_>,
    seen: &Entry,
    found: Option<&NodeRecord>,
) -> Result<(), Error> {
    let changed = || Error::Copied(format!("the record of node {} has changed", seen.node));
    let found = found.ok_or_else(changed)?;
    let host = found.host.unwrap_or(seen.node);
    let is_as_seen = (found.incarnation, host, found.holders.epoch)
        == (seen.incarnation, seen.host, seen.holders.epoch);
    let here = beginning.host;
    let named = found.holders.nodes.iter().find(|holder| holder.node == here.host);
    // A life that was to begin here, and did not. An earlier home node of this host may be at home
    // elsewhere by now, so its name proves nothing; but the folder has noted its own attempts.
    let was_begun_here = host == here.host || (here.is_here(host) && beginning.starts.name(found));
    if !is_as_seen || (named.is_none() && !was_begun_here) {
        return Err(changed());
    }
    let since = named.map_or(Incarnation(1), |holder| holder.since);
    if beginning.copied_log < since {
        return Err(Error::Usage(format!(
            "the copies of node {} here end with its start {}, and its record means those of start {since}: were they put \
             back from a backup, or removed?",
            seen.node, beginning.copied_log
        )));
    }
    Ok(())
}

/// The holders that the next life begins with.
fn holders(beginning: &Beginning<'_>, last: Option<&NodeRecord>, takes: bool) -> HoldersNote {
    let last = last.map(|last| last.holders.clone()).unwrap_or_default();
    let here @ StartHost { peer, takes: taken_over, .. } = beginning.host;
    match (peer, taken_over) {
        (Some(_), Some(_)) => last.without(|node| here.is_here(node)),
        // The copies are of the log that this one replaces.
        (Some(_), None) if takes => last.without(|_| true),
        (Some(_), None) => last,
        // No holder is asked for anything.
        (None, _) => last.without(|_| true),
    }
}

/// Starts the next incarnation by one conditional write of the record that was `found`.
pub async fn start(
    writer: &Writer,
    beginning: &Beginning<'_>,
    mut found: Option<Held<NodeRecord>>,
) -> Result<Held<NodeRecord>, Error> {
    let failed = |source| Error::Store { url: beginning.url.to_owned(), source };
    for _ in 0..TRIES_MAX {
        let last = found.as_ref().map(|held| &held.value);
        let takes = allow(beginning, writer, last)?;
        let incarnation = beginning.starts.next(last);
        let era = last.and_then(|last| last.copies).filter(|_| beginning.trusted && !takes);
        let taken =
            if takes { incarnation } else { last.map_or(Incarnation(0), |last| last.taken) };
        let next = NodeRecord {
            incarnation,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: writer.env.wall_clock().0,
            nonce: Some(beginning.nonce),
            arena: Some(beginning.arena),
            taken,
            copies: beginning.copies.then(|| era.unwrap_or_else(|| writer.env.random_u64())),
            copied_since: match beginning.lost {
                true => Some(incarnation),
                false => last.and_then(|last| last.copied_since),
            },
            left_behind: match beginning.host.takes {
                Some(_) => last.and_then(|last| LeftBehind::by(last, writer.node)),
                // A start at home, by a user's word, has the log of its own again.
                None if beginning.host.host == writer.node => None,
                None => last.and_then(|last| last.left_behind),
            },
            host: Some(beginning.host.host).filter(|host| *host != writer.node),
            peer: beginning.host.peer.cloned(),
            holders: holders(beginning, last, takes),
            resting: false,
            draining: last.is_some_and(|last| last.draining),
            removed: false,
        };
        let watch = writer.env.watch();
        let signed = writer.clone().with_incarnation(incarnation);
        let written = match &found {
            Some(held) => signed.replace(held, next).await,
            None => signed.create(&key::node_key(writer.node), next).await,
        };
        writer.env.boot_phase("record", Some("log"), watch);
        match written {
            Ok(held) => return Ok(held),
            // An attempt of a killed start has landed late, or another copy has started: the record
            // tells which.
            Err(StoreError::Conflict(_) | StoreError::Exists(_))
                if beginning.host.takes.is_none() =>
            {
                found = read(writer).await.map_err(failed)?;
            }
            Err(source) => return Err(failed(source)),
        }
    }
    Err(Error::Copied(format!(
        "another process starts as this node ({}) again and again",
        writer.node
    )))
}

#[cfg(test)]
mod tests;
