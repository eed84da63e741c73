//! The owner of copies: one life of a node, and the holders of its log.
//!
//! ```text
//!             follows            caught up             recorded
//!  (chosen) ----------> Following --------> Required ----------> Recorded
//!              gone <------'  ^  <-----------'  gone  ^             | silent, behind, dismissed
//!                             |                       |             v
//!                             '------------ off the record ----- Leaving --> (dropped)
//!                                           (was behind)
//! ```
//! - Writes wait for every holder that is Required, Recorded or Leaving.
//! - The record names every holder that is Recorded or Leaving, and perhaps those that are
//!   Required while a write of the record is under way.
//! - So what the record may name, writes wait for: before it is named, and until it is not named
//!   any more for sure.
//! - Reads go on while every holder that the record may name has granted a lease. One that the
//!   record has named since before this life has to have all of this life's log first: what this
//!   life has recovered and shows, a successor must have.

use super::Pace;
use rekindle_base::NodeId;
use rekindle_env::Moment;
use std::collections::{BTreeMap, BTreeSet};

/// The stand of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stand {
    /// It gets the log; no write waits for it.
    Following,
    /// Writes wait for it. `whole`: it has everything from before that moment.
    Required { whole: bool },
    /// The record names it. `whole`: it has all of this life's log.
    Recorded { whole: bool },
    /// The record is to name it no more. `stays`: it follows on afterwards.
    Leaving { whole: bool, stays: bool },
}

impl Stand {
    /// Whether the holder has the log that its stand asks for.
    #[must_use]
    pub fn is_whole(self) -> bool {
        match self {
            Stand::Following => false,
            Stand::Required { whole }
            | Stand::Recorded { whole }
            | Stand::Leaving { whole, .. } => whole,
        }
    }

    /// Whether the holder could take the node over now.
    #[must_use]
    pub fn is_ready(self) -> bool {
        matches!(self, Stand::Recorded { whole: true })
    }
}

/// One holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    pub stand: Stand,
    /// The moment at which its lease ends; `None`: it has granted none.
    pub lease: Option<Moment>,
    /// The last sign of life, or the moment at which it was chosen.
    pub heard: Moment,
    /// The moment at which its stand began.
    pub since: Moment,
    /// The moment since which it refuses this life, or `None`.
    pub refuses: Option<Moment>,
}

/// The state of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pace: Pace,
    holders: BTreeMap<NodeId, Holder>,
    /// The holders that a write of the record, which is under way, will name.
    writing: Option<BTreeSet<NodeId>>,
    /// The last answer to how long reads may go on.
    reads: Reads,
}

/// The time for which reads may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reads {
    /// No other node may take this one over.
    Free,
    Until(Moment),
    /// Not now.
    No,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// A holder was chosen.
    Chosen(NodeId),
    /// A holder has everything that the log had at some moment since its stand began.
    CaughtUp(NodeId),
    /// A holder has granted the lease that was asked for at that moment.
    Granted(NodeId, Moment),
    /// A holder has refused a beat: it takes this node over, perhaps by a user's command, or has
    /// met a newer life.
    Refused(NodeId),
    /// A holder makes no progress, though it is heard.
    Lags(NodeId),
    /// A holder is not wanted any more.
    Dismissed(NodeId),
    /// The write of the record has succeeded.
    Written,
}

/// A command to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Begin to send the log and beats to a holder.
    Follow(NodeId),
    /// Let writes wait for a holder.
    Require(NodeId),
    /// Let writes not wait for a holder, which follows on.
    Excuse(NodeId),
    /// Let writes not wait for a holder, and send it nothing more.
    Drop(NodeId),
    /// Write the record with these holders, until it is known to have succeeded, or this life to be
    /// over.
    Record(BTreeSet<NodeId>),
    /// Let reads go on for that time.
    Read(Reads),
}

impl Owner {
    /// A life that begins now, whose record names these holders. Writes wait for them already.
    #[must_use]
    pub fn begin(pace: Pace, recorded: impl IntoIterator<Item = NodeId>, now: Moment) -> Self {
        let stand = Stand::Recorded { whole: false };
        let holder = Holder { stand, lease: None, heard: now, since: now, refuses: None };
        let holders: BTreeMap<_, _> = recorded.into_iter().map(|node| (node, holder)).collect();
        let reads = if holders.is_empty() { Reads::Free } else { Reads::No };
        Self { pace, holders, writing: None, reads }
    }

    /// The holders.
    #[must_use]
    pub fn holders(&self) -> &BTreeMap<NodeId, Holder> {
        &self.holders
    }

    /// The time for which reads may go on.
    #[must_use]
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// The holders that stay.
    pub fn staying(&self) -> impl Iterator<Item = NodeId> {
        let stays = |holder: &Holder| !matches!(holder.stand, Stand::Leaving { stays: false, .. });
        self.holders.iter().filter(move |(_, holder)| stays(holder)).map(|(node, _)| *node)
    }

    /// Whether a write of the record is under way.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Takes an event.
    pub fn step(&mut self, now: Moment, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Tick => self.look(now, &mut commands),
            Event::Chosen(node) => {
                self.holders.entry(node).or_insert_with(|| {
                    commands.push(Command::Follow(node));
                    let stand = Stand::Following;
                    Holder { stand, lease: None, heard: now, since: now, refuses: None }
                });
            }
            Event::CaughtUp(node) => self.caught_up(node, now, &mut commands),
            Event::Granted(node, asked) => self.granted(node, asked, now),
            Event::Refused(node) => self.refused(node, now),
            Event::Lags(node) => self.leaves(node, true, now, &mut commands),
            Event::Dismissed(node) => self.leaves(node, false, now, &mut commands),
            Event::Written => self.written(now, &mut commands),
        }
        self.record(&mut commands);
        let reads = self.allowed();
        if reads != self.reads {
            self.reads = reads;
            // First: reads ask a holder before the record may name it.
            commands.insert(0, Command::Read(reads));
        }
        commands
    }

    fn caught_up(&mut self, node: NodeId, now: Moment, commands: &mut Vec<Command>) {
        let Some(holder) = self.holders.get_mut(&node) else { return };
        match &mut holder.stand {
            stand @ Stand::Following => {
                *stand = Stand::Required { whole: false };
                holder.since = now;
                commands.push(Command::Require(node));
            }
            Stand::Required { whole }
            | Stand::Recorded { whole }
            | Stand::Leaving { whole, .. } => {
                *whole = true;
            }
        }
    }

    fn granted(&mut self, node: NodeId, asked: Moment, now: Moment) {
        let Some(holder) = self.holders.get_mut(&node) else { return };
        holder.lease = holder.lease.max(Some(asked + self.pace.lease));
        holder.heard = holder.heard.max(now);
        holder.refuses = None;
    }

    /// A holder that takes this node over is not replaced meanwhile: that would only make its write
    /// of the record fail. But it has its time for that.
    fn refused(&mut self, node: NodeId, now: Moment) {
        let Some(holder) = self.holders.get_mut(&node) else { return };
        let since = *holder.refuses.get_or_insert(now);
        if now.since(since) < self.pace.insist {
            holder.heard = holder.heard.max(now);
        }
    }

    /// A holder is to go.
    fn leaves(&mut self, node: NodeId, stays: bool, now: Moment, commands: &mut Vec<Command>) {
        let is_being_named = self.writing.as_ref().is_some_and(|target| target.contains(&node));
        let Some(holder) = self.holders.get_mut(&node) else { return };
        let stand = match holder.stand {
            Stand::Following if stays => return,
            Stand::Required { .. } if stays && !is_being_named => {
                commands.push(Command::Excuse(node));
                Stand::Following
            }
            Stand::Following | Stand::Required { .. } if !is_being_named => {
                commands.push(Command::Drop(node));
                self.holders.remove(&node);
                return;
            }
            Stand::Following => unreachable!("what is being named is required"),
            Stand::Required { whole } | Stand::Recorded { whole } => {
                Stand::Leaving { whole, stays }
            }
            Stand::Leaving { whole, stays: before } => {
                Stand::Leaving { whole, stays: stays && before }
            }
        };
        (holder.stand, holder.since) = (stand, now);
    }

    /// Looks for holders that are silent, or that lack a new life's log for too long.
    fn look(&mut self, now: Moment, commands: &mut Vec<Command>) {
        let pace = self.pace;
        let is_silent = |holder: &Holder| now.since(holder.heard) > pace.replace;
        let is_late = |holder: &Holder| {
            holder.stand == Stand::Recorded { whole: false } && now.since(holder.since) > pace.whole
        };
        let is_leaving = |holder: &Holder| matches!(holder.stand, Stand::Leaving { .. });
        let gone: Vec<_> = self
            .holders
            .iter()
            .filter(|(_, holder)| !is_leaving(holder))
            .filter_map(|(node, holder)| match (is_silent(holder), is_late(holder)) {
                (true, _) => Some((*node, false)),
                (false, true) => Some((*node, true)),
                _ => None,
            })
            .collect();
        for (node, stays) in gone {
            self.leaves(node, stays, now, commands);
        }
    }

    /// Begins a write of the record, if it should name others and none is under way.
    fn record(&mut self, commands: &mut Vec<Command>) {
        if self.writing.is_some() {
            return;
        }
        let named = |holder: &Holder| {
            matches!(holder.stand, Stand::Recorded { .. } | Stand::Leaving { .. })
        };
        let wanted = |holder: &Holder| {
            matches!(holder.stand, Stand::Recorded { .. } | Stand::Required { whole: true })
        };
        if self.holders.values().all(|holder| named(holder) == wanted(holder)) {
            return;
        }
        let target: BTreeSet<_> = self
            .holders
            .iter()
            .filter(|(_, holder)| wanted(holder))
            .map(|(node, _)| *node)
            .collect();
        commands.push(Command::Record(target.clone()));
        self.writing = Some(target);
    }

    fn written(&mut self, now: Moment, commands: &mut Vec<Command>) {
        let Some(target) = self.writing.take() else { return };
        let mut dropped = Vec::new();
        for (node, holder) in &mut self.holders {
            let (stand, is_named) = (holder.stand, target.contains(node));
            match stand {
                Stand::Required { .. } if is_named => {
                    (holder.stand, holder.since) = (Stand::Recorded { whole: true }, now);
                }
                Stand::Leaving { stays: true, .. } if !is_named => {
                    (holder.stand, holder.since) = (Stand::Following, now);
                    commands.push(Command::Excuse(*node));
                }
                Stand::Leaving { stays: false, .. } if !is_named => {
                    commands.push(Command::Drop(*node));
                    dropped.push(*node);
                }
                _ => {}
            }
        }
        for node in dropped {
            self.holders.remove(&node);
        }
    }

    /// How long reads may go on: as long as the leases of all that the record may name.
    fn allowed(&self) -> Reads {
        let may_be_named = |(node, holder): &(&NodeId, &Holder)| match holder.stand {
            Stand::Following => false,
            Stand::Required { .. } => {
                self.writing.as_ref().is_some_and(|target| target.contains(node))
            }
            Stand::Recorded { .. } | Stand::Leaving { .. } => true,
        };
        let mut reads = Reads::Free;
        for (_, holder) in self.holders.iter().filter(may_be_named) {
            let lease = holder.lease.filter(|_| holder.stand.is_whole());
            let Some(lease) = lease else { return Reads::No };
            reads = match reads {
                Reads::Until(end) => Reads::Until(end.min(lease)),
                _ => Reads::Until(lease),
            };
        }
        reads
    }
}

#[cfg(test)]
mod tests;
