//! Repair of a volume in service: its clients go on meanwhile.
//!
//! The long part, reading everything, is beside all other work. Then the salvage takes the destager's place for one
//! commit: the root without what cannot be had, and the lost stretches, in one conditional write of the vault. Before it
//! gives anything up, it tries the way back: [`crate::replay`].

use crate::batch::{self, Committed};
use crate::commit::Attempt;
use crate::quarantine::{self, Lost};
use crate::replay::WayBack;
use crate::staged::Staged;
use crate::{Error, Version, limits, versions};
use content::salvage::{Findings, MayDrop, examine, mend_packs, repair};
use content::tree::Root;
use content::verify::Progress;
use futures_util::future::{Either, select};
use serde::Serialize;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a salvage may give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Most bytes that may be lost by it.
    pub bytes: u64,
    /// Whether also what is *absent* may be given up. It is not proven to be lost: whatever hides it may go away.
    pub absent: bool,
}

impl Allowance {
    /// Repairs what can be had; gives nothing up.
    pub const NOTHING: Self = Self { bytes: 0, absent: false };
    /// A person has said so.
    pub const ALL: Self = Self { bytes: u64::MAX, absent: true };

    fn covers(&self, lost: &[Lost], absent: u64) -> bool {
        let bytes = lost.iter().map(|one| one.span).fold(0, u64::saturating_add);
        lost.is_empty() || (bytes <= self.bytes && (self.absent || absent == 0))
    }
}

/// What a salvage has done.
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
    /// Changes that were folded once more, into the root before the last commit.
    pub replayed: u64,
    /// Packs that were mended: new footers, and blobs that parity rebuilt.
    pub footers: u64,
    /// Stretches that this salvage had to give up.
    pub lost: Vec<Lost>,
    /// Stretches that it would have to give up, and may not: what they lead to stays as it is.
    pub withheld: Vec<Lost>,
    /// Of the damaged chunks that cannot be had, those that are not there at all.
    pub absent: u64,
    /// The way that would lose less: an earlier content that is whole.
    pub back: Option<Back>,
    /// All that the volume has lost by now and nobody has written over, bytes.
    pub quarantined_bytes: u64,
    /// What was found and done, for people.
    pub lines: Vec<String>,
    /// Unfinished changes that cannot be read back, and what going on without them would give up, for people.
    pub unfinished: Vec<String>,
    /// Unfinished changes that were given up beforehand because somebody said so, for people.
    pub given_up: Vec<String>,
}

impl Salvaged {
    /// What was found is said once, however often it is met.
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

    /// Bytes that would be lost by going on.
    #[must_use]
    pub fn withheld_bytes(&self) -> u64 {
        self.withheld.iter().map(|lost| lost.span).fold(0, u64::saturating_add)
    }
}

/// An earlier content of a volume to which a person may go back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Back {
    /// What it is called by.
    pub version: String,
    /// When something was committed over it, microseconds since 1970.
    pub until: u64,
    /// What was written over since, at most, bytes: nobody knows which, so no salvage goes there by itself.
    pub bytes: u64,
}

/// A volume whose content turned out to be damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hurt {
    /// Its name.
    pub volume: String,
    /// What is wrong.
    pub reason: String,
}

/// A salvage under way: the earlier root is kept for it, however old.
struct Wanting<'a>(&'a Staged);

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.gate.lock().salvages -= 1;
        self.0.let_go_if_old();
    }
}

/// The destager's place; given back when dropped.
struct Turn<'a>(&'a Staged);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.send_replace(false);
        self.0.inner.destager.wake();
    }
}

impl Staged {
    /// Checks everything that the volume has in the datastore and repairs what can be. What cannot be had is quarantined:
    /// reads of it are errors that name it, writes over it heal it. What would be more than `allowance` is not given up at
    /// all: it is told ([`Salvaged::withheld`]). `chunks` counts what has been read.
    pub async fn salvage(
        self: &Arc<Self>,
        allowance: Allowance,
        chunks: &AtomicU64,
    ) -> Result<Salvaged, Error> {
        let work = pin!(self.repair_all(allowance, chunks));
        let cut = pin!(self.ending());
        match select(work, cut).await {
            Either::Left((outcome, _)) => {
                // Whatever came of it: the next reader who meets damage is heard.
                self.hurt_told.store(false, Ordering::Relaxed);
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
        self.gate.lock().salvages += 1;
        let _wanting = Wanting(self);
        let content = &self.inner.content;
        let mut salvaged = Salvaged::default();
        for _ in 0..limits::SALVAGE_PASSES_MAX {
            let findings = {
                // What this root reaches stays until it has been read.
                let _hold = content.hold();
                let root = self.gate.lock().held.value.root;
                let before = salvaged.chunks;
                let mut count = |progress: Progress| {
                    chunks.store(before + progress.chunks, Ordering::Relaxed);
                };
                examine(content, &root, &mut count).await?
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
                // Footers that leave out what is damaged would hide it from whoever can have it later.
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
        if !salvaged.withheld.is_empty() {
            salvaged.back = self.whole_version(&mut salvaged, chunks).await?;
        }
        salvaged.quarantined_bytes =
            self.gate.lock().held.value.lost.iter().map(|lost| lost.span).sum();
        Ok(salvaged)
    }

    /// The newest earlier content that is whole, of those that lose less than what is withheld.
    async fn whole_version(
        &self,
        salvaged: &mut Salvaged,
        chunks: &AtomicU64,
    ) -> Result<Option<Back>, Error> {
        let content = &self.inner.content;
        let _hold = content.hold();
        let now = self.inner.env.wall_clock().0;
        let kept = self.gate.lock().held.value.versions.clone();
        let mut bytes = 0_u64;
        let since = kept.into_iter().map(|version| {
            bytes = bytes.saturating_add(version.replaced);
            (version, bytes)
        });
        let is_better = |(_, bytes): &(Version, u64)| *bytes < salvaged.withheld_bytes();
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

    /// The way back, if there is one that this salvage has not gone.
    async fn way_back_of(
        &self,
        salvaged: &mut Salvaged,
        chunks: &AtomicU64,
    ) -> Result<Option<WayBack>, Error> {
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

    /// Whether what was committed has to be examined too.
    async fn commit_repair(
        self: &Arc<Self>,
        findings: &Findings,
        way: Option<WayBack>,
        allowance: Allowance,
        salvaged: &mut Salvaged,
    ) -> Result<bool, Error> {
        let _turn = self.turn().await;
        let (root, before) = {
            let gate = self.gate.lock();
            gate.in_service()?;
            let vault = &gate.held.value;
            (vault.root, vault.lost.clone())
        };
        let mut batch = self.inner.content.batch();
        let content = &self.inner.content;
        let all = MayDrop::Everything;
        let repaired = repair(content, &mut batch, &root, findings, all).await?;
        let mut more = self.bytes_of(&repaired.lost);
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
            return self.repair_without_loss(root, &before, findings, more_then, salvaged).await;
        }
        salvaged.withheld.clear();
        salvaged.note(&repaired.lines);
        let (new, again) = match replayed {
            None => {
                self.commit_root(root, repaired.root, &before, &lost).await?;
                let again = repaired.again;
                (repaired, again)
            }
            Some(replayed) => {
                lost = replayed.lost;
                more = quarantine::without(&lost, &before);
                self.commit_root(root, replayed.root, &before, &lost).await?;
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

    /// Commits what comes back without that anything is given up; `withheld` would be. With the destager's place taken.
    async fn repair_without_loss(
        self: &Arc<Self>,
        root: Root,
        before: &[Lost],
        findings: &Findings,
        withheld: Vec<Lost>,
        salvaged: &mut Salvaged,
    ) -> Result<bool, Error> {
        let mut batch = self.inner.content.batch();
        let content = &self.inner.content;
        let kept = repair(content, &mut batch, &root, findings, MayDrop::Nothing).await?;
        self.commit_root(root, kept.root, before, before).await?;
        batch.committed();
        salvaged.note(&kept.lines);
        salvaged.refetched += kept.refetched;
        salvaged.from_parity += kept.from_parity;
        (salvaged.withheld, salvaged.absent) = (withheld, kept.absent);
        Ok(kept.again)
    }

    /// Puts `new` in the place of `root`, with what is lost beside it.
    async fn commit_root(
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
                return Err(datastore::Error::Unavailable(late.into()).into());
            }
        }
        Ok(())
    }

    /// The bytes of lost keys.
    pub(crate) fn bytes_of(&self, keys: &[Range<u64>]) -> Vec<Lost> {
        keys.iter()
            .map(|keys| self.home.bytes_of(keys.clone()))
            .map(|bytes| Lost { position: bytes.start, span: bytes.end - bytes.start })
            .collect()
    }

    /// Takes the destager's place as soon as no batch is in hand.
    async fn turn(&self) -> Turn<'_> {
        let mut busy = self.busy.subscribe();
        loop {
            {
                let _gate = self.gate.lock();
                if !*self.busy.borrow() {
                    self.busy.send_replace(true);
                    return Turn(self);
                }
            }
            // The sender lives as long as `self`.
            let _ = busy.wait_for(|busy| !busy).await;
        }
    }

    /// It has grown: the vault says so already.
    pub fn resize(&self, size: u64) {
        self.home.grow(size);
    }

    /// Whether changes that it has acknowledged are damaged in the log, so that it cannot destage.
    #[must_use]
    pub fn has_lost_changes(&self) -> bool {
        self.gate.lock().lost.is_some()
    }

    /// The next reader who meets damage shall be heard, although nothing was repaired.
    pub fn heed(&self) {
        self.hurt_told.store(false, Ordering::Relaxed);
    }

    /// Tells whoever salvages that content is damaged, once until the next salvage.
    pub(crate) fn notice(&self, error: &Error) {
        let Error::Content(damage) = error else { return };
        if damage.missing().is_none() || self.hurt_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let hurt = Hurt { volume: self.name.clone(), reason: damage.to_string() };
        if self.inner.hurt.0.try_send(hurt).is_err() {
            // Too many at once: the next reader says it again.
            self.hurt_told.store(false, Ordering::Relaxed);
        }
    }
}
