//! The tally of a sweeper: opened when a sweep needs it, begun anew when it cannot be believed,
//! kept in RAM when the disk has no room.

use super::pace::Pace;
use super::progress::SweepProgress;
use super::sources::Sources;
use super::tally::{Cost, Notes, Shelf, Tally, Trouble};
use crate::{Content, Error};
use rekindle_base::PackId;
use rekindle_env::{Env, Timestamp};
use std::path::{Path, PathBuf};

/// The books of a sweeper.
pub(super) struct Books {
    folder: PathBuf,
    tally: Option<Tally>,
    is_in_use: bool,
}

/// The account of an update of the tally.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) cost: Cost,
    /// Why everything was counted anew, if it was.
    pub(super) anew: Option<String>,
}

impl Counted {
    pub(super) fn tell(self, progress: &mut SweepProgress) {
        progress.nodes_read += self.cost.nodes;
        progress.counted_anew = self.anew.or(progress.counted_anew.take());
    }
}

impl Books {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), tally: None, is_in_use: false }
    }

    /// A shelf beside the tally, for what a sweep needs for a while.
    pub(super) fn shelf(&self, content: &Content) -> Shelf {
        Shelf::folder(&content.inner.env, content.store_fingerprint(), &self.folder)
    }

    /// Returns the tally, if there is one that can be opened. After an error the next call opens
    /// the one that is kept.
    pub(super) async fn tally(&mut self, content: &Content) -> Result<Option<&mut Tally>, Error> {
        if self.tally.is_none() {
            let (env, store) = (&content.inner.env, content.store_fingerprint());
            self.tally = match Tally::open(env, store, &self.folder).await {
                Ok(tally) => tally,
                Err(Trouble::Other(error)) => return Err(error),
                Err(Trouble::Doubt(why) | Trouble::Shelf(why)) => {
                    tracing::warn!(
                        "the counts of the sweep cannot be read, and are made anew: {why}"
                    );
                    None
                }
            };
        }
        Ok(self.tally.as_mut())
    }

    /// Returns the tally after an update.
    pub(super) fn at_hand(&mut self) -> Result<&mut Tally, Error> {
        self.tally.as_mut().ok_or_else(|| Error::Stopped("nothing is counted".into()))
    }

    /// Brings the tally to these roots and notes: by what has changed, or, if there is none that
    /// can be believed, by counting everything. What was counted is durable then, unless the disk
    /// has no room.
    pub(super) async fn update(
        &mut self,
        (content, pace): (&Content, &Pace),
        roots: &Sources,
        notes: &Notes,
    ) -> Result<(&mut Tally, Counted), Error> {
        let why = match self.tally.take() {
            None => "there was no count".to_owned(),
            Some(mut tally) => {
                let updated = async {
                    let cost = tally.update((content, pace), roots.clone(), notes).await?;
                    tally.commit().await?;
                    Ok(cost)
                };
                match updated.await {
                    Ok(cost) => {
                        let counted = Counted { cost, anew: None };
                        return Ok((self.tally.insert(tally), counted));
                    }
                    Err(Trouble::Other(error)) => return Err(error),
                    Err(Trouble::Doubt(why) | Trouble::Shelf(why)) => why,
                }
            }
        };
        tracing::info!("everything is counted anew: {why}");
        let (tally, cost) = self.anew((content, pace), roots, notes).await?;
        let counted = Counted { cost, anew: Some(why) };
        Ok((self.tally.insert(tally), counted))
    }

    /// Counts everything, on the disk, or in RAM if that has no room.
    async fn anew(
        &self,
        (content, pace): (&Content, &Pace),
        roots: &Sources,
        notes: &Notes,
    ) -> Result<(Tally, Cost), Error> {
        let (env, store) = (&content.inner.env, content.store_fingerprint());
        let on_disk = async {
            let tally = Tally::begin(env, store, &self.folder).await?;
            count(tally, (content, pace), roots, notes).await
        };
        match on_disk.await {
            Ok(counted) => return Ok(counted),
            Err(Trouble::Shelf(why)) => {
                tracing::warn!("the counts of the sweep are kept in RAM: {why}");
            }
            Err(trouble) => return Err(ended(trouble)),
        }
        let tally = Tally::in_memory(env, store);
        count(tally, (content, pace), roots, notes).await.map_err(ended)
    }

    /// Counts everything beside the tally, and returns the first pack of which the two differ. The
    /// new count stays.
    pub(super) async fn compare(
        &mut self,
        (content, pace): (&Content, &Pace),
        roots: &Sources,
        notes: &Notes,
    ) -> Result<(Cost, Option<PackId>), Error> {
        let (mut fresh, cost) = self.anew((content, pace), roots, notes).await?;
        let difference = match &mut self.tally {
            Some(tally) => tally.first_difference(&mut fresh).await.map_err(ended)?,
            None => None,
        };
        if let Some(known) = &self.tally {
            fresh.hear(known.heard().clone());
        }
        self.tally = Some(fresh);
        Ok((cost, difference))
    }

    /// Begins or ends the use of the books by a sweep. A sweep that was broken off between may have
    /// left the tally in the middle of a change: the next one opens the one that is kept.
    pub(super) fn is_in_use(&mut self, is_in_use: bool) {
        if self.is_in_use && is_in_use {
            self.tally = None;
        }
        self.is_in_use = is_in_use;
    }

    /// Forgets the tally: the next sweep opens the one that is kept.
    pub(super) fn forget(&mut self) {
        self.tally = None;
    }
}

async fn count(
    mut tally: Tally,
    (content, pace): (&Content, &Pace),
    roots: &Sources,
    notes: &Notes,
) -> Result<(Tally, Cost), Trouble> {
    let env: &Env = &content.inner.env;
    let now: Timestamp = env.aging_clock();
    let cost = tally.update((content, pace), roots.clone(), notes).await?;
    tally.set_counted(now);
    tally.commit().await?;
    Ok((tally, cost))
}

/// The error for a sweep that cannot go on.
pub(super) fn ended(trouble: Trouble) -> Error {
    match trouble {
        Trouble::Other(error) => error,
        Trouble::Doubt(why) => Error::Stopped(format!("its counts contradict one another: {why}")),
        Trouble::Shelf(why) => Error::NoRoomForCounts(why),
    }
}
