//! Repair of a volume in service: its clients go on meanwhile.
//!
//! The long part, reading everything, is beside all other work. Then the salvage takes the destager's place for one
//! commit: the root without what cannot be had, and the lost stretches, in one conditional write of the vault.

use crate::batch::{self, Committed};
use crate::commit::Attempt;
use crate::quarantine::{self, Lost};
use crate::staged::Staged;
use crate::{Error, limits};
use base::Kind;
use content::salvage::{Findings, examine, mend_packs, repair};
use content::verify::Progress;
use futures_util::future::{Either, select};
use serde::Serialize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Packs that have got new footers.
    pub footers: u64,
    /// Stretches that this salvage had to give up.
    pub lost: Vec<Lost>,
    /// All that the volume has lost by now and nobody has written over, bytes.
    pub quarantined_bytes: u64,
    /// What was found and done, for people.
    pub lines: Vec<String>,
    /// Unfinished changes that were given up beforehand because somebody said so, for people.
    pub given_up: Vec<String>,
}

/// A volume whose content turned out to be damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hurt {
    /// Its name.
    pub volume: String,
    /// What is wrong.
    pub reason: String,
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
    /// reads of it are errors that name it, writes over it heal it. `chunks` counts what has been read.
    pub async fn salvage(self: &Arc<Self>, chunks: &AtomicU64) -> Result<Salvaged, Error> {
        let work = pin!(self.repair_all(chunks));
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

    async fn repair_all(self: &Arc<Self>, chunks: &AtomicU64) -> Result<Salvaged, Error> {
        self.listed().await?;
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
            let again = !findings.are_chunks_sound()
                && self.commit_repair(&findings, &mut salvaged).await?;
            let (mended, lines) = mend_packs(content, &findings).await;
            salvaged.footers += mended;
            salvaged.lines.extend(lines);
            if !again {
                break;
            }
        }
        salvaged.quarantined_bytes =
            self.gate.lock().held.value.lost.iter().map(|lost| lost.span).sum();
        Ok(salvaged)
    }

    /// Whether what came back has to be examined too.
    async fn commit_repair(
        self: &Arc<Self>,
        findings: &Findings,
        salvaged: &mut Salvaged,
    ) -> Result<bool, Error> {
        let _turn = self.turn().await;
        let (root, checkpoint, before) = {
            let gate = self.gate.lock();
            gate.in_service()?;
            let vault = &gate.held.value;
            (vault.root, vault.checkpoint, vault.lost.clone())
        };
        let mut batch = self.inner.content.batch();
        let repaired = repair(&self.inner.content, &mut batch, &root, findings).await?;
        let more: Vec<Lost> = repaired
            .lost
            .iter()
            .map(|keys| self.home.bytes_of(keys.clone()))
            .map(|bytes| Lost { position: bytes.start, span: bytes.end - bytes.start })
            .collect();
        let lost = quarantine::with(&before, &more);
        if lost.len() > limits::LOST_MAX {
            return Err(Error::Invalid(format!(
                "volume {}: {} separate stretches are lost, {} fit into a vault: restore it from a backup",
                self.name,
                lost.len(),
                limits::LOST_MAX
            )));
        }
        if repaired.root != root {
            let attempt = Attempt { root: repaired.root, checkpoint };
            match batch::commit(self, &attempt, &lost).await? {
                Committed::Won(held) => drop(self.gate.lock().finish(held)),
                Committed::Late(held) => {
                    let finished = batch::adopt(self, held)?;
                    batch::conclude(self, finished).await;
                    let late = "a commit from before a restart landed in between: once more";
                    return Err(datastore::Error::Unavailable(late.into()).into());
                }
            }
        }
        batch.committed();
        salvaged.refetched += repaired.refetched;
        salvaged.from_parity += repaired.from_parity;
        salvaged.lost = quarantine::with(&salvaged.lost, &more);
        salvaged.lines.extend(repaired.lines);
        Ok(repaired.again)
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

    /// The next reader who meets damage shall be heard, although nothing was repaired.
    pub fn heed(&self) {
        self.hurt_told.store(false, Ordering::Relaxed);
    }

    /// Tells whoever salvages that content is damaged, once until the next salvage.
    pub(crate) fn notice(&self, error: &Error) {
        let Error::Content(damage) = error else { return };
        if damage.kind() != Kind::Damaged || self.hurt_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let hurt = Hurt { volume: self.name.clone(), reason: damage.to_string() };
        if self.inner.hurt.0.try_send(hurt).is_err() {
            // Too many at once: the next reader says it again.
            self.hurt_told.store(false, Ordering::Relaxed);
        }
    }
}
