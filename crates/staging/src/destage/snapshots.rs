//! Snapshots of a volume in service, taken and removed by one conditional write of the vault.
//!
//! The write happens in the destager's place, so the volume's root stays as it is meanwhile, and
//! the next batch knows the serial that it must not pass. An attempt with an unknown outcome is
//! decided by reading the vault back, as that of a commit is.

use crate::ack::policy::Mode;
use crate::ack::staged::Staged;
use crate::destage::batch::{vault_now, wait};
use crate::destage::commit::{Attempt, Verdict, judge};
use crate::recover::lives;
use crate::{Error, MissingCopy, Snapshot, SnapshotContent, Ticket, Vault, limits};
use rekindle_base::{Kind, Serial};
use std::sync::Arc;
use std::time::Duration;

impl Staged {
    /// Looks at the volume's snapshots, by ascending number, under the volume's lock.
    pub fn look_at_snapshots<T>(&self, look: impl FnOnce(&[Snapshot]) -> T) -> T {
        look(&self.gate.lock().vault().snapshots)
    }

    /// Returns the snapshot that `is_it`, once the datastore has its content, and brings it there
    /// if need be; `None` if the volume has no such snapshot.
    pub async fn whole_snapshot(
        &self,
        is_it: impl Fn(&Snapshot) -> bool,
    ) -> Result<Option<Snapshot>, Error> {
        let find = || self.look_at_snapshots(|all| all.iter().find(|one| is_it(one)).cloned());
        match find() {
            Some(waiting) if waiting.content.is_none() => {
                self.drain().await?;
                Ok(find())
            }
            found => Ok(found),
        }
    }

    /// Keeps under a name what the volume has now: every change that was acknowledged before the
    /// call, and none that is submitted after its end. The log has these changes durably when it
    /// returns, and the datastore may get them later. Where the datastore acknowledges writes, it
    /// has them by then.
    pub async fn take_snapshot(self: &Arc<Self>, name: &str) -> Result<Snapshot, Error> {
        // Outside of the destager's place: the wait may be for a batch.
        let at = self.settled().await?;
        let _turn = self.turn().await;
        // A batch has passed it, perhaps.
        let at = at.max(self.gate.lock().checkpoint());
        let taken = self.inner.env.wall_clock().0;
        let add = |vault: &Vault| {
            if vault.snapshots.iter().any(|one| one.name == name) {
                return Err(Error::HasSnapshot {
                    volume: vault.name.clone(),
                    snapshot: name.to_owned(),
                });
            }
            if vault.snapshots_taken >= limits::SNAPSHOTS_TAKEN_MAX {
                return Err(Error::Invalid(format!(
                    "volume {} has had {} snapshots, and there are no numbers for more: go on with a clone",
                    vault.name, vault.snapshots_taken
                )));
            }
            if vault.snapshots.len() >= limits::SNAPSHOTS_MAX {
                return Err(Error::Invalid(format!(
                    "volume {} has {} snapshots, and no more fit: remove one first",
                    vault.name,
                    vault.snapshots.len()
                )));
            }
            let is_stored = at <= vault.checkpoint;
            let content = SnapshotContent { root: vault.root, lost: vault.lost.clone() };
            let mut next = vault.clone();
            next.snapshots_taken += 1;
            next.snapshots.push(Snapshot {
                name: name.to_owned(),
                number: next.snapshots_taken,
                taken,
                checkpoint: at,
                size: vault.size,
                content: is_stored.then_some(content),
            });
            Ok(next)
        };
        let is_ours = |vault: &Vault| {
            vault.snapshots.iter().any(|one| one.name == name && one.taken == taken)
        };
        let vault = self.rewrite(add, is_ours).await?;
        let mut found = vault.snapshots.into_iter().filter(|one| one.name == name);
        Ok(found.next().expect("it was just written"))
    }

    /// Waits until every change that was acknowledged before the call is kept as the policy says:
    /// by the datastore, or by the log of which a later owner has all. Returns the last serial.
    async fn settled(&self) -> Result<Serial, Error> {
        let (at, end) = {
            let gate = self.gate.lock();
            self.may_promise(&gate)?;
            // What only RAM has was not acknowledged.
            let logged = gate.changes.logged();
            (Serial(gate.checkpoint().0 + logged as u64), gate.changes.end)
        };
        match self.mode {
            // The datastore keeps it as copies do.
            Mode::Log { .. } => self.sync_as(Ticket(end), MissingCopy::StepDown).await?,
            Mode::Store { .. } => self.flush().await?,
        }
        Ok(at)
    }

    /// Removes a snapshot. What only it kept in the store is free for the sweep.
    pub async fn remove_snapshot(self: &Arc<Self>, name: &str) -> Result<(), Error> {
        let _turn = self.turn().await;
        let remove = |vault: &Vault| {
            let mut next = vault.clone();
            next.snapshots.retain(|one| one.name != name);
            match next.snapshots.len() < vault.snapshots.len() {
                true => Ok(next),
                false => Err(Error::no_snapshot(&vault.name, name)),
            }
        };
        let is_gone = |vault: &Vault| vault.snapshots.iter().all(|one| one.name != name);
        self.rewrite(remove, is_gone).await.map(drop)
    }

    /// Changes the vault without its content. The caller has the destager's place. `has_landed`
    /// tells a vault that was read back whether it has the change.
    pub(crate) async fn rewrite(
        self: &Arc<Self>,
        change: impl Fn(&Vault) -> Result<Vault, Error>,
        has_landed: impl Fn(&Vault) -> bool,
    ) -> Result<Vault, Error> {
        let inner = &self.inner;
        inner.not_dismissed().await?;
        let ours = self.held();
        if ours.value.owner != Some(inner.writer.node) || ours.value.generation != self.generation {
            return Err(self.fenced());
        }
        let Vault { root, checkpoint, .. } = ours.value;
        let attempt = Attempt { root, checkpoint, over: 0 };
        let life = inner.writer.life().incarnation;
        let (mut over, mut pause, mut is_open) = (ours.clone(), Duration::ZERO, false);
        loop {
            // A life that this one has replaced knows other changes by these serials: it must not
            // commit over the snapshot.
            let signed = {
                let gate = self.gate.lock();
                self.may_promise(&gate)?;
                let known = (gate.basis.begins, &gate.basis.runs);
                lives::signed(&over.value, life, known, checkpoint)
            };
            let error = match inner.writer.replace(&over, change(&signed)?).await {
                Ok(won) => {
                    over = won;
                    break;
                }
                Err(error) => error,
            };
            if error.kind() == Kind::Full && !is_open {
                return Err(error.into());
            }
            is_open |= !matches!(error.kind(), Kind::Conflict | Kind::Full);
            if error.kind() != Kind::Conflict {
                wait(self, &error, &mut pause).await?;
            }
            over = vault_now(self, &over.key, &mut pause).await?;
            match judge(life, &ours.value, &attempt, &over.value) {
                Verdict::Won if has_landed(&over.value) => break,
                Verdict::Won | Verdict::Unchanged => {}
                // The next batch adopts it, or goes over it.
                Verdict::Late => {
                    let late = "a commit from before a restart landed in between: once more";
                    return Err(rekindle_datastore::Error::Unavailable(late.into()).into());
                }
                Verdict::Deposed => return Err(self.deposed_by(over.value.incarnation)),
                Verdict::Fenced | Verdict::Absurd => return Err(self.fenced()),
            }
        }
        let vault = over.value.clone();
        self.adopt_settings(over);
        Ok(vault)
    }
}
