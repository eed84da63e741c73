//! The end of a generation while clients go on: the owner of a volume hands it over to another
//! node, or to itself under other settings.
//!
//! New changes wait, what is unfinished goes to the datastore, then reads wait, too, and one
//! conditional write of the vault names the next owner. All that was acknowledged is in the root
//! that the next owner begins with, so what waits for its acknowledgement then still gets it.
//! Requests that have waited end with [`Error::Moved`]; when the hand-over fails, they go on here.
//!
//! The outcome of that write is always found out: a write without an answer may land at any time,
//! and until then this node cannot know whether the volume is still its own. The death of the
//! process does not take such a write back either. So the vault says before it that the volume
//! [leaves](Vault::leaves), and the next life here writes the vault before it serves the volume.

use crate::ack::paused::Paused;
use crate::ack::staged::Staged;
use crate::destage::batch::{vault_now, wait};
use crate::destage::commit::{Attempt, Verdict, judge};
use crate::state::VolumeState;
use crate::{Beginning, Error, Unbroken, Vault, limits};
use rekindle_base::{Kind, Life, Serial};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The end of a generation. Dropped before [`HandOver::give`] has succeeded, it lets the volume's
/// requests go on here.
pub struct HandOver {
    volume: Arc<Staged>,
    /// Whether the vault may name another owner already.
    may_be_given: bool,
}

/// The verdict about a vault that was read back after an attempt to name the next owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    /// Another node owns the volume, or this one in its next generation.
    Gone,
    /// The volume is ours, as before: try again over the vault that was read.
    Ours,
    /// The volume is ours, and a commit has landed in between.
    Changed,
    /// A newer life of this node, or a newer generation, has it.
    Judged(Verdict),
}

impl Staged {
    /// Begins to hand the volume over: from now on, new changes wait.
    pub async fn hand_over(self: &Arc<Self>) -> Result<HandOver, Error> {
        let hand_over = HandOver { volume: self.clone(), may_be_given: false };
        // A moment before: a caller that has looked in vain has submitted its change by then.
        self.leaving.store(true, Ordering::SeqCst);
        self.inner.env.sleep(limits::HAND_OVER_NOTICE).await;
        let mut gate = self.gate.lock();
        gate.in_service()?;
        gate.paused = Paused::Changes;
        drop(gate);
        Ok(hand_over)
    }

    /// Whether a change that is submitted now may end with [`Error::Moved`]. A caller that wants to
    /// take it elsewhere then keeps its bytes.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Waits until a hand-over has failed; [`Error::Moved`] when it has succeeded.
    pub async fn stays(&self) -> Result<(), Error> {
        self.unpaused(Paused::Changes).await
    }

    /// Whether new changes wait for the end of a hand-over.
    pub(crate) fn is_paused(&self) -> bool {
        self.gate.lock().paused >= Paused::Changes
    }

    /// Waits while requests of this class wait for the end of a hand-over.
    pub(crate) async fn unpaused(&self, class: Paused) -> Result<(), Error> {
        loop {
            let resumed = self.resumed.notified();
            {
                let gate = self.gate.lock();
                gate.in_service()?;
                if gate.paused < class {
                    return Ok(());
                }
            }
            if self.while_in_service(resumed).await.is_none() {
                return Err(self.out_of_service());
            }
        }
    }
}

impl HandOver {
    /// Brings what is unfinished into the datastore.
    pub async fn settle(&self) -> Result<(), Error> {
        self.volume.drain().await?;
        is_settled(&self.volume, &self.volume.gate.lock())
    }

    /// Makes the life `to` the owner, changes the settings in the vault, and ends the volume's
    /// service here. The caller has written into the vault that the volume leaves. After an error
    /// the volume is still this node's as before, or the volume has ended with that error. The call
    /// lasts as long as the store does not say which.
    pub async fn give(
        mut self,
        to: Life,
        change: &(dyn Fn(Vault) -> Vault + Send + Sync),
    ) -> Result<(), Error> {
        let volume = self.volume.clone();
        let inner = &volume.inner;
        inner.not_dismissed().await?;
        let ours = {
            let mut gate = volume.gate.lock();
            volume.may_promise(&gate)?;
            is_settled(&volume, &gate)?;
            gate.paused = Paused::All;
            gate.basis.held.clone()
        };
        if ours.value.owner != Some(inner.writer.node) || ours.value.generation != volume.generation
        {
            return Err(volume.fenced());
        }
        let Vault { root, checkpoint, .. } = ours.value;
        let attempt = Attempt { root, checkpoint, over: 0 };
        let (mut over, mut pause, mut is_open) = (ours.clone(), Duration::ZERO, false);
        self.may_be_given = true;
        loop {
            let next = change(given(&over.value, to, inner.beginning(&ours.value)));
            let error = match inner.writer.replace(&over, next).await {
                Ok(_) => break,
                Err(error) => error,
            };
            is_open |= !matches!(error.kind(), Kind::Conflict | Kind::Full);
            if error.kind() != Kind::Conflict {
                wait(&volume, &error, &mut pause).await?;
            }
            let found = vault_now(&volume, &over.key, &mut pause).await?;
            match look((inner.writer.life(), to), &ours.value, &attempt, &found.value) {
                Given::Gone => break,
                // No attempt of this call can land any more.
                Given::Ours if error.kind() == Kind::Full && !is_open => {
                    self.may_be_given = false;
                    return Err(error.into());
                }
                Given::Ours => over = found,
                // Attempts so far were made over the vault before that.
                Given::Changed => {
                    self.may_be_given = false;
                    return Err(rekindle_datastore::Error::Conflict(over.key).into());
                }
                Given::Judged(Verdict::Deposed) => {
                    return Err(volume.deposed_by(found.value.incarnation));
                }
                Given::Judged(_) => return Err(volume.fenced()),
            }
        }
        tracing::info!(volume = %volume.name, owner = %to.node, "handed over");
        volume.end_with(Error::Moved(volume.name.clone()));
        Ok(())
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if self.may_be_given {
            // Does nothing to a volume that has ended already.
            self.volume.end_with(Error::Fenced(self.volume.name.clone()));
        } else {
            self.volume.gate.lock().paused = Paused::Nothing;
            let is_over = self.volume.serves().is_err();
            self.volume.leaving.store(is_over, Ordering::SeqCst);
        }
        self.volume.resumed.notify_waiters();
        self.volume.admit_waiting();
    }
}

/// The vault that names the next owner. Its log has nothing of the volume, and knows of no loss.
fn given(vault: &Vault, to: Life, since: Beginning) -> Vault {
    let generation = vault.generation.next();
    Vault {
        owner: Some(to.node),
        generation,
        incarnation: to.incarnation,
        begins: vault.checkpoint,
        logged: Vec::new(),
        accepted: None,
        leaves: None,
        unbroken: Some(Unbroken { since, generation, incarnation: to.incarnation }),
        ..vault.clone()
    }
}

/// An error when the datastore lacks a change: it would be lost with the old owner's log.
fn is_settled(volume: &Staged, gate: &VolumeState) -> Result<(), Error> {
    let last: Serial = gate.changes.queue.last();
    if last <= gate.checkpoint() {
        return Ok(());
    }
    let reason = format!(
        "volume {}: the store has its changes up to {}, and not those up to {last}",
        volume.name,
        gate.checkpoint()
    );
    Err(rekindle_datastore::Error::Unavailable(reason).into())
}

/// Judges `found` after an attempt of `life` to give `ours` to the life `to`.
fn look((life, to): (Life, Life), ours: &Vault, attempt: &Attempt, found: &Vault) -> Given {
    let is_next = match found.owner {
        Some(owner) if owner == life.node => {
            owner == to.node && found.incarnation == to.incarnation
        }
        Some(_) => true,
        None => false,
    };
    if is_next && found.id == ours.id && found.generation > ours.generation {
        return Given::Gone;
    }
    match judge(life.incarnation, ours, attempt, found) {
        Verdict::Won | Verdict::Unchanged => Given::Ours,
        Verdict::Late => Given::Changed,
        verdict => Given::Judged(verdict),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destage::commit::tests::vault;
    use rekindle_base::{Generation, Incarnation, NodeId};

    const SINCE: Beginning =
        Beginning { node: NodeId([3; 16]), incarnation: Incarnation(1), generation: Generation(1) };

    #[test]
    fn a_vault_that_was_read_back_tells_whose_the_volume_is() {
        let ours = Vault { incarnation: Incarnation(4), ..vault(3, 20) };
        let node = ours.owner.expect("it has one");
        let life = Life { node, incarnation: Incarnation(4) };
        let to = Life { node: NodeId([9; 16]), incarnation: Incarnation(7) };
        let attempt = Attempt { root: ours.root, checkpoint: ours.checkpoint, over: 0 };
        let seen = |found: Vault| look((life, to), &ours, &attempt, &found);
        assert_eq!(seen(given(&ours, to, SINCE)), Given::Gone);
        let on = Life { node: NodeId([8; 16]), ..to };
        assert_eq!(seen(given(&given(&ours, to, SINCE), on, SINCE)), Given::Gone, "and moved on");
        let written = Vault { checkpoint: Serial(25), ..given(&ours, to, SINCE) };
        assert_eq!(seen(written), Given::Gone, "the next owner has written it");
        assert_eq!(seen(ours.clone()), Given::Ours);
        assert_eq!(seen(Vault { pinned: true, ..ours.clone() }), Given::Ours);
        let late = Vault { checkpoint: Serial(21), ..ours.clone() };
        assert_eq!(seen(late), Given::Changed);
        let newer = Vault { incarnation: Incarnation(5), ..ours.clone() };
        assert_eq!(seen(newer), Given::Judged(Verdict::Deposed));
        let back = given(&given(&ours, to, SINCE), life, SINCE);
        assert_eq!(seen(back), Given::Judged(Verdict::Fenced));
        let older = Vault { generation: Generation(ours.generation.0 - 1), ..ours.clone() };
        assert_eq!(seen(older), Given::Judged(Verdict::Absurd));
        // Under other settings, at the same node.
        let seen = |found: Vault| look((life, life), &ours, &attempt, &found);
        assert_eq!(seen(given(&ours, life, SINCE)), Given::Gone);
        assert_eq!(seen(ours.clone()), Given::Ours);
        let newer = Life { incarnation: Incarnation(5), ..life };
        assert_eq!(seen(given(&ours, newer, SINCE)), Given::Judged(Verdict::Deposed));
    }

    #[test]
    fn the_next_owner_begins_with_a_generation_of_its_own_and_all_changes_done() {
        let ours = Vault { incarnation: Incarnation(4), ..vault(3, 20) };
        let to = Life { node: NodeId([9; 16]), incarnation: Incarnation(7) };
        let next = given(&ours, to, SINCE);
        assert_eq!((next.owner, next.incarnation), (Some(to.node), to.incarnation));
        assert!(next.generation > ours.generation);
        assert_eq!((next.root, next.checkpoint), (ours.root, ours.checkpoint));
        assert_eq!((next.begins, next.logged.len()), (ours.checkpoint, 0));
        let passed_on = next.unbroken.expect("nothing was lost");
        assert_eq!((passed_on.since, passed_on.generation), (SINCE, next.generation));
        assert_eq!(passed_on.incarnation, to.incarnation);
        next.check().expect("it is a sound vault");
    }
}
