//! Repair of a volume in service, whose clients go on meanwhile.
//!
//! The long part, reading everything, runs beside all other work. Then the salvage takes the
//! destager's place for one commit: the root without the chunks that cannot be had, and the lost
//! stretches, in one conditional write of the vault. Before it gives anything up, it tries the
//! rollback: [`crate::repair::replay`].

use crate::ack::staged::Staged;
use crate::destage::batch::{self, Committed};
use crate::destage::commit::Attempt;
use crate::destage::versions;
use crate::range::quarantine::{self, Lost};
use crate::repair::replay::RollbackPlan;
use crate::repair::snapshots::Kept;
use crate::shape::Home;
use crate::{Error, Version, limits};
use futures_util::future::{Either, select};
use rekindle_content::salvage::{Findings, MayDrop, examine, examine_beside, mend_packs};
use rekindle_content::tree::Root;
use rekindle_content::verify::Progress;
use serde::Serialize;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bounds of what a salvage may give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Most bytes that the salvage may lose.
    pub bytes: u64,
    /// Whether *absent* chunks may be given up, too. They are not proven to be lost: the obstacle
    /// that hides them may go away.
    pub absent: bool,
}

impl Allowance {
    /// Repairs damaged chunks where it can; gives nothing up.
    pub const NOTHING: Self = Self { bytes: 0, absent: false };
    /// Gives up everything that cannot be had: the user has decided so.
    pub const ALL: Self = Self { bytes: u64::MAX, absent: true };

    fn covers(&self, lost: &[Lost], absent: u64) -> bool {
        let bytes = lost.iter().map(|one| one.span).fold(0, u64::saturating_add);
        lost.is_empty() || (bytes <= self.bytes && (self.absent || absent == 0))
    }
}

/// The result of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Salvaged {
    /// Chunks read and checked.
    pub chunks: u64,
    /// Bytes read and checked.
    pub bytes: u64,
    /// Damaged chunks found.
    pub damages: u64,
    /// Chunks that came back: from the cache, warm memory or parity.
    pub refetched: u64,
    /// Of these, from parity.
    pub from_parity: u64,
    /// Changes that were folded once more, into the previous root.
    pub replayed: u64,
    /// Packs that were mended: new footers, and blobs rebuilt from parity.
    pub footers: u64,
    /// Whether the volume holds records: then stretches are keys of its tree.
    pub of_records: bool,
    /// Whether the volume can go on without what cannot be had. Volumes of some records cannot.
    pub can_give_up: bool,
    /// What of a volume of records is lost, or would be, in the words of its kind.
    pub losses: Vec<String>,
    /// What of its parts does not fit together, and stays so without an operator's word.
    pub untidy: Vec<String>,
    /// What was changed so that they do.
    pub tidied: Vec<String>,
    /// Stretches that this salvage had to give up.
    pub lost: Vec<Lost>,
    /// Stretches that the salvage may not give up, although it would have to: their pointers stay
    /// in the tree.
    pub withheld: Vec<Lost>,
    /// Count of the damaged chunks that cannot be had because they are absent from the store.
    pub absent: u64,
    /// An alternative that would lose less: an earlier content that is whole.
    pub back: Option<Back>,
    /// The snapshots that lack chunks, and how many: a name for each content.
    pub snapshots_lack: Vec<(String, u64)>,
    /// Lost bytes of the volume that no client has written over yet.
    pub quarantined_bytes: u64,
    /// Messages about findings and repairs.
    pub lines: Vec<String>,
    /// Messages about unfinished changes that cannot be read back, and about the cost of going on
    /// without them.
    pub unfinished: Vec<String>,
    /// Messages about unfinished changes that the user gave up beforehand.
    pub given_up: Vec<String>,
}

impl Salvaged {
    /// Adds findings, each once, however often they are met.
    fn note(&mut self, lines: &[String]) {
        for line in lines {
            if self.lines.len() >= limits::SALVAGE_LINES_MAX {
                return;
            }
            if !self.lines.contains(line) {
                self.lines.push(line.clone());
            }
        }
    }

    /// Bytes that the user of a volume of byte ranges would lose by going on.
    #[must_use]
    pub fn withheld_bytes(&self) -> u64 {
        self.withheld.iter().map(|lost| lost.span).fold(0, u64::saturating_add)
    }
}

/// An earlier content of a volume to which the user may go back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Back {
    /// The version's label.
    pub version: String,
    /// The moment when a commit replaced it, microseconds since 1970.
    pub until: u64,
    /// Most bytes written over since. Which bytes is unknown, so no salvage goes back by itself.
    pub bytes: u64,
}

/// The report that a volume's content is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamageReport {
    /// The volume's name.
    pub volume: String,
    /// The damage.
    pub reason: String,
}

/// A salvage under way: the previous root is kept for it, however old.
struct Wanting<'a>(&'a Staged);

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.gate.lock().previous.salvages -= 1;
        self.0.release_previous_if_old();
    }
}

impl Staged {
    /// Checks everything that the volume has in the datastore, snapshots included, and repairs what
    /// can be repaired. Lost bytes are quarantined: reads of them are errors that name them, writes
    /// over them heal them. A loss beyond `allowance` is not accepted at all, but reported
    /// ([`Salvaged::withheld`]). A volume of records gives something up only with
    /// [`Allowance::ALL`], and only if its kind can go on without. `chunks` counts the chunks read.
    pub async fn salvage(
        self: &Arc<Self>,
        allowance: Allowance,
        chunks: &AtomicU64,
    ) -> Result<Salvaged, Error> {
        // No write heals a record, and without one the others may mean something else: a kind that
        // can go on makes them fit, and only a user knows what that is worth.
        let allowance = match (&self.home, self.home.repair()) {
            (Home::Range(_), _) => allowance,
            (Home::Record(_), Some(_)) if allowance == Allowance::ALL => allowance,
            (Home::Record(_), _) => Allowance::NOTHING,
        };
        let work = pin!(self.repair_all(allowance, chunks));
        let cut = pin!(self.ending());
        match select(work, cut).await {
            Either::Left((outcome, _)) => {
                // Whatever the outcome: the next damage that a read meets is reported again.
                self.damage_reported.store(false, Ordering::Relaxed);
                outcome
            }
            Either::Right(_) => Err(Error::Closed(self.name.clone())),
        }
    }

    async fn repair_all(
        self: &Arc<Self>,
        allowance: Allowance,
        chunks: &AtomicU64,
    ) -> Result<Salvaged, Error> {
        self.listed().await?;
        self.gate.lock().previous.salvages += 1;
        let _wanting = Wanting(self);
        let content = &self.inner.content;
        let of_records = matches!(self.home, Home::Record(_));
        let can_give_up = !of_records || self.home.repair().is_some();
        let mut salvaged = Salvaged { of_records, can_give_up, ..Salvaged::default() };
        let mut beside = None;
        for _ in 0..limits::SALVAGE_PASSES_MAX {
            let findings = {
                // Every chunk that these roots reach stays until it has been read.
                let _hold = content.hold();
                let (root, kept) = {
                    let gate = self.gate.lock();
                    (gate.vault().root, Kept::of(gate.vault()))
                };
                let before = salvaged.chunks;
                let mut count = |progress: Progress| {
                    chunks.store(before + progress.chunks, Ordering::Relaxed);
                };
                match beside {
                    Some(_) => examine(content, &root, &mut count).await?,
                    None => {
                        let found = examine_beside(content, &root, &kept.roots, &mut count).await?;
                        beside = Some((kept, found.1));
                        found.0
                    }
                }
            };
            salvaged.chunks += findings.checked.chunks;
            salvaged.bytes += findings.checked.bytes;
            salvaged.damages += findings.checked.damages;
            if findings.is_sound() {
                break;
            }
            let again = !findings.are_chunks_sound() && {
                let way = self.way_back_of(&mut salvaged, chunks).await?;
                self.commit_repair(&findings, way, allowance, &mut salvaged).await?
            };
            if !salvaged.withheld.is_empty() {
                // Footers without the damaged chunks would hide them from a later repair that can
                // have them.
                if again {
                    continue;
                }
                break;
            }
            let (mended, lines) = mend_packs(content, &findings).await;
            salvaged.footers += mended;
            salvaged.lines.extend(lines);
            if !again {
                break;
            }
        }
        if salvaged.withheld.is_empty() {
            self.tidy(allowance, &mut salvaged).await?;
        } else {
            salvaged.back = self.whole_version(&mut salvaged, chunks).await?;
        }
        if let Some((kept, findings)) = beside {
            let mended = self.mend_snapshots(kept, findings).await?;
            salvaged.refetched += mended.refetched;
            salvaged.from_parity += mended.from_parity;
            salvaged.snapshots_lack = mended.lack;
            salvaged.note(&mended.lines);
        }
        salvaged.quarantined_bytes =
            self.gate.lock().vault().lost.iter().map(|lost| lost.span).sum();
        Ok(salvaged)
    }

    /// The newest earlier content that is whole, among those that lose less than the withheld
    /// bytes. No volume of records goes on without a key, so any of them counts.
    async fn whole_version(
        &self,
        salvaged: &mut Salvaged,
        chunks: &AtomicU64,
    ) -> Result<Option<Back>, Error> {
        let content = &self.inner.content;
        let _hold = content.hold();
        let now = self.inner.env.wall_clock().0;
        let kept = self.gate.lock().vault().versions.clone();
        let mut bytes = 0_u64;
        let since = kept.into_iter().map(|version| {
            bytes = bytes.saturating_add(version.replaced);
            (version, bytes)
        });
        let is_better =
            |(_, bytes): &(Version, u64)| salvaged.of_records || *bytes < salvaged.withheld_bytes();
        let better: Vec<_> = since.take_while(is_better).collect();
        let may_be_whole = |(version, _): &&(Version, u64)| {
            versions::is_kept(version, now) && version.lost.is_empty()
        };
        for (version, bytes) in
            better.iter().filter(may_be_whole).take(limits::SALVAGE_VERSIONS_MAX)
        {
            let before = salvaged.chunks;
            let mut count = |progress: Progress| {
                chunks.store(before + progress.chunks, Ordering::Relaxed);
            };
            let findings = examine(content, &version.root, &mut count).await?;
            salvaged.chunks += findings.checked.chunks;
            salvaged.bytes += findings.checked.bytes;
            if findings.are_chunks_sound() {
                let (version, until) = (version.label(), version.committed);
                return Ok(Some(Back { version, until, bytes: *bytes }));
            }
        }
        Ok(None)
    }

    /// The rollback plan, if there is one and this salvage has not carried it out yet.
    async fn way_back_of(
        &self,
        salvaged: &mut Salvaged,
        chunks: &AtomicU64,
    ) -> Result<Option<RollbackPlan>, Error> {
        if salvaged.replayed > 0 {
            return Ok(None);
        }
        let before = salvaged.chunks;
        let mut count = |progress: Progress| {
            chunks.store(before + progress.chunks, Ordering::Relaxed);
        };
        let way = self.way_back(&mut count).await?;
        let checked = way.as_ref().map(|way| way.checked).unwrap_or_default();
        salvaged.chunks += checked.chunks;
        salvaged.bytes += checked.bytes;
        Ok(way)
    }

    /// Commits the repair. Returns whether the committed root has to be examined too.
    async fn commit_repair(
        self: &Arc<Self>,
        findings: &Findings,
        way: Option<RollbackPlan>,
        allowance: Allowance,
        salvaged: &mut Salvaged,
    ) -> Result<bool, Error> {
        let _turn = self.turn().await;
        let (root, before) = {
            let gate = self.gate.lock();
            gate.in_service()?;
            let vault = gate.vault();
            (vault.root, vault.lost.clone())
        };
        let mut batch = self.inner.content.batch();
        let all = MayDrop::Everything;
        let (repaired, losses) = self.mend(&mut batch, &root, findings, all).await?;
        let mut more = self.stretches_of(&repaired.lost);
        let mut lost = quarantine::with(&before, &more);
        let replayed = match &way {
            Some(way) if !more.is_empty() => self.replay(way, &lost).await?,
            _ => None,
        };
        let (more_then, absent) = match &replayed {
            Some(replayed) => {
                (quarantine::without(&replayed.lost, &before), replayed.repaired.absent)
            }
            None => (more.clone(), repaired.absent),
        };
        if !allowance.covers(&quarantine::with(&salvaged.lost, &more_then), absent) {
            drop((batch, replayed));
            salvaged.losses = losses;
            return self.repair_without_loss(root, &before, findings, more_then, salvaged).await;
        }
        salvaged.withheld.clear();
        salvaged.note(&repaired.lines);
        // Where a volume of records goes on without something, no read has to be refused.
        let in_vault = |lost: &[Lost]| if salvaged.of_records { &before } else { lost }.to_vec();
        let (new, again) = match replayed {
            None => {
                self.commit_root(root, repaired.root, &before, &in_vault(&lost)).await?;
                salvaged.losses.extend(losses);
                let again = repaired.again;
                (repaired, again)
            }
            Some(replayed) => {
                lost = replayed.lost;
                more = quarantine::without(&lost, &before);
                self.commit_root(root, replayed.root, &before, &in_vault(&lost)).await?;
                // Only now may a sweep go on.
                batch = replayed.batch;
                salvaged.replayed += replayed.changes;
                salvaged.note(&replayed.repaired.lines);
                salvaged.lines.push(format!(
                    "went back to the root before the last commit and replayed {} change(s) out of the log",
                    replayed.changes
                ));
                (replayed.repaired, true)
            }
        };
        batch.committed();
        drop(way);
        salvaged.refetched += new.refetched;
        salvaged.from_parity += new.from_parity;
        salvaged.lost = quarantine::with(&salvaged.lost, &more);
        Ok(again)
    }

    /// Commits the chunks that come back, and gives nothing up: `withheld` would be lost otherwise.
    /// The caller has taken the destager's place.
    async fn repair_without_loss(
        self: &Arc<Self>,
        root: Root,
        before: &[Lost],
        findings: &Findings,
        withheld: Vec<Lost>,
        salvaged: &mut Salvaged,
    ) -> Result<bool, Error> {
        let mut batch = self.inner.content.batch();
        let nothing = MayDrop::Nothing;
        let (kept, _) = self.mend(&mut batch, &root, findings, nothing).await?;
        self.commit_root(root, kept.root, before, before).await?;
        batch.committed();
        salvaged.note(&kept.lines);
        salvaged.refetched += kept.refetched;
        salvaged.from_parity += kept.from_parity;
        (salvaged.withheld, salvaged.absent) = (withheld, kept.absent);
        Ok(kept.again)
    }

    /// Commits `new` in the place of `root`, with the lost stretches beside it.
    pub(super) async fn commit_root(
        self: &Arc<Self>,
        root: Root,
        new: Root,
        before: &[Lost],
        lost: &[Lost],
    ) -> Result<(), Error> {
        if lost.len() > limits::LOST_MAX {
            return Err(Error::Invalid(format!(
                "volume {}: {} separate stretches are lost, {} fit into a vault: restore it from a backup",
                self.name,
                lost.len(),
                limits::LOST_MAX
            )));
        }
        if new == root {
            return Ok(());
        }
        let checkpoint = self.gate.lock().checkpoint();
        let over = quarantine::without(lost, before).iter().map(|one| one.span).sum();
        let attempt = Attempt { root: new, checkpoint, over };
        match batch::commit(self, &attempt, lost).await? {
            Committed::Won(held) => drop(self.gate.lock().finish(*held)),
            Committed::Late(finished) => {
                batch::conclude(self, finished).await;
                let late = "a commit from before a restart landed in between: once more";
                return Err(rekindle_datastore::Error::Unavailable(late.into()).into());
            }
        }
        Ok(())
    }

    /// The stretches that stand for lost keys of the tree.
    pub(crate) fn stretches_of(&self, keys: &[Range<u64>]) -> Vec<Lost> {
        keys.iter().map(|keys| self.home.stretch_of(keys)).collect()
    }

    /// Whether acknowledged changes are damaged in the log, so that the volume cannot destage.
    #[must_use]
    pub fn has_lost_changes(&self) -> bool {
        self.gate.lock().destaging.lost.is_some()
    }

    /// Lets the next damage that a read meets be reported, although nothing was repaired.
    pub fn report_damage_again(&self) {
        self.damage_reported.store(false, Ordering::Relaxed);
    }

    /// Reports to the salvaging task that content is damaged, once until the next salvage. A kind
    /// of volume that reads content itself calls it with the error of such a read.
    pub fn notice(&self, error: &Error) {
        let Error::Content(damage) = error else { return };
        if damage.missing().is_none() || self.damage_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        let damage_reports = DamageReport { volume: self.name.clone(), reason: damage.to_string() };
        if self.inner.damage_reports.0.try_send(damage_reports).is_err() {
            // Too many reports at once: the next read reports it again.
            self.damage_reported.store(false, Ordering::Relaxed);
        }
    }
}
