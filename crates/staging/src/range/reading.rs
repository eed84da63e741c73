//! Reads of a volume in service: newer bytes from the overlay, the rest from the home at the same
//! root.

use crate::ack::paused::Paused;
use crate::ack::policy::Mode;
use crate::ack::staged::Staged;
use crate::queue::Change;
use crate::range::quarantine::{self, Lost};
use crate::state::changes::Changes;
use crate::{Error, Extent, Source, limits};
use rekindle_content::Hold;
use rekindle_content::tree::Root;

/// The parts of a range at one moment. The sources hold their bytes, so the picture stays true.
pub(super) struct Picture {
    /// From, to, and the source of the bytes if the overlay has them. Ascending, without a break.
    pub(super) parts: Vec<(u64, u64, Option<Source>)>,
    /// The home's root, with the parts that have no source.
    pub(super) root: Root,
    /// The lost stretches of the range under that root.
    pub(super) lost: Vec<Lost>,
}

impl Changes {
    /// The stretches of `start..end` that are newer than the home: from, to, and their change.
    /// Ascending.
    fn meeting(
        &self,
        start: u64,
        end: u64,
    ) -> Result<impl Iterator<Item = (u64, u64, &Change)>, Error> {
        Ok(self.shown.overlay()?.meeting(start, end).filter_map(|piece| {
            // The home has the changes that the queue has no more.
            Some((piece.position, piece.end, self.queue.at(piece.serial)?))
        }))
    }
}

impl Staged {
    /// Reads from memory only; `false` when some byte is not there. A plain call.
    pub fn read_now(&self, position: u64, out: &mut [u8]) -> Result<bool, Error> {
        let home = self.range_home()?;
        let end = end_of(position, out.len())?;
        if out.len() > limits::COPY_UNDER_LOCK_BYTES_MAX {
            return self.read_picture_now(position, out);
        }
        // Copies under the lock: cheaper than holding every segment that takes part.
        let mut gaps = Vec::new();
        let mut next = position;
        let root = {
            let gate = self.gate.lock();
            gate.in_service()?;
            let is_paused = gate.paused == Paused::All;
            if is_paused || !gate.changes.queue.is_listed() || !self.may_read() {
                return Ok(false);
            }
            for (start, stop, change) in gate.changes.meeting(position, end)? {
                if start > next {
                    gaps.push((next, start));
                }
                let skip = start - change.position;
                if !change.read_now(skip, part(out, position, start, stop))? {
                    return Ok(false);
                }
                next = stop;
            }
            let missing = gaps.iter().copied().chain([(next, end)]);
            self.refuse_lost(&gate.vault().lost, missing)?;
            gate.vault().root
        };
        for (start, stop) in gaps {
            if !home.read_now(&root, start, part(out, position, start, stop))? {
                return Ok(false);
            }
        }
        // The last gap apart: a read that meets nothing allocates nothing.
        if next < end {
            return home.read_now(&root, next, part(out, position, next, end));
        }
        Ok(true)
    }

    fn read_picture_now(&self, position: u64, out: &mut [u8]) -> Result<bool, Error> {
        let home = self.range_home()?;
        if !self.gate.lock().changes.queue.is_listed() || !self.may_read() {
            return Ok(false);
        }
        let readable = self.readable(position, end_of(position, out.len())?)?;
        let Some(picture) = readable else { return Ok(false) };
        for (start, stop, source) in picture.parts {
            let out = part(out, position, start, stop);
            let is_read = match source {
                Some(source) => source.read_now(0, out)?,
                None => home.read_now(&picture.root, start, out)?,
            };
            if !is_read {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads from memory, flash and the datastore.
    pub async fn read(&self, position: u64, out: &mut [u8]) -> Result<(), Error> {
        let end = end_of(position, out.len())?;
        self.listed().await?;
        self.read_as(position, out, || self.readable(position, end)).await
    }

    /// Reads what the picture shows that `take` makes.
    pub(super) async fn read_as(
        &self,
        position: u64,
        out: &mut [u8],
        take: impl Fn() -> Result<Option<Picture>, Error>,
    ) -> Result<(), Error> {
        let home = self.range_home()?;
        let (_hold, picture) = self.kept_picture(take).await?;
        let keep = self.mode != Mode::Store { keep: false };
        for (start, stop, source) in picture.parts {
            let out = part(out, position, start, stop);
            match source {
                Some(source) => source.read(0, out).await.map_err(|error| match error {
                    Error::Log(error) => self.log_failed(error),
                    error => error,
                })?,
                None => {
                    let read = home.read(&picture.root, start, out, keep).await;
                    read.inspect_err(|error| self.notice(error))?;
                }
            }
        }
        Ok(())
    }

    /// Data and holes of a range from its beginning on, adjacent equals merged. They end before the
    /// range does when these are many: the caller asks again for the rest.
    pub async fn extents(&self, position: u64, span: u64) -> Result<Vec<Extent>, Error> {
        let end = position.checked_add(span).ok_or_else(beyond)?;
        self.listed().await?;
        self.extents_as(|| self.picture(position, end, limits::EXTENTS_MAX)).await
    }

    /// Data and holes of the picture that `take` makes, from its beginning on.
    pub(super) async fn extents_as(
        &self,
        take: impl Fn() -> Result<Option<Picture>, Error>,
    ) -> Result<Vec<Extent>, Error> {
        let home = self.range_home()?;
        let (_hold, picture) = self.kept_picture(take).await?;
        let mut found = Vec::new();
        for (mut start, stop, source) in picture.parts {
            while start < stop {
                if found.len() >= limits::EXTENTS_MAX {
                    return Ok(found);
                }
                let upto = stop.min(start.saturating_add(limits::EXTENTS_STEP_BYTES));
                let known = match &source {
                    Some(source) => {
                        let data = !matches!(source, Source::Zero);
                        vec![Extent { position: start, span: upto - start, data }]
                    }
                    None => home.extents(&picture.root, start, upto - start).await?,
                };
                join(&mut found, quarantine::as_data(known, &picture.lost));
                start = upto;
            }
        }
        Ok(found)
    }

    /// Whether no other life of the node serves the volume now. A read counts from this look on:
    /// what it finds later, all copies had before any other life began.
    pub(crate) fn may_read(&self) -> bool {
        self.inner.may_go_on(self.needs_lease)
    }

    /// Waits until the volume may be read. The caller takes its picture without another wait.
    pub(crate) async fn leased(&self) -> Result<(), Error> {
        if self.may_read() {
            return Ok(());
        }
        match self.while_in_service(self.inner.goes_on(self.needs_lease)).await {
            Some(()) => Ok(()),
            None => Err(self.out_of_service()),
        }
    }

    /// The picture that `take` makes once this life may read, and the hold that keeps every chunk
    /// that its root reaches, even when newer roots do not reach it. `take` returns `None` while a
    /// hand-over makes reads wait.
    async fn kept_picture(
        &self,
        take: impl Fn() -> Result<Option<Picture>, Error>,
    ) -> Result<(Hold, Picture), Error> {
        loop {
            self.leased().await?;
            let hold = self.inner.content.hold();
            if let Some(picture) = take()? {
                return Ok((hold, picture));
            }
            drop(hold);
            self.unpaused(Paused::All).await?;
        }
    }

    /// The picture of a range; an error if some of it is lost.
    fn readable(&self, position: u64, end: u64) -> Result<Option<Picture>, Error> {
        let Some(picture) = self.picture(position, end, usize::MAX)? else { return Ok(None) };
        let missing = picture.parts.iter().filter(|(_, _, source)| source.is_none());
        self.refuse_lost(&picture.lost, missing.map(|(start, stop, _)| (*start, *stop)))?;
        Ok(Some(picture))
    }

    /// Returns an error that names the lost stretches in `gaps`, the stretches that the overlay
    /// does not have.
    pub(super) fn refuse_lost(
        &self,
        lost: &[Lost],
        gaps: impl Iterator<Item = (u64, u64)>,
    ) -> Result<(), Error> {
        if lost.is_empty() {
            return Ok(());
        }
        let met: Vec<Lost> =
            gaps.flat_map(|(from, upto)| quarantine::meeting(lost, from, upto)).copied().collect();
        if met.is_empty() {
            return Ok(());
        }
        let lost = quarantine::sentence(&quarantine::with(&met, &[]));
        Err(Error::Quarantined { volume: self.name.clone(), lost })
    }

    /// The picture of a range, or of its beginning, if that has `parts_max` parts already. `None`
    /// while a hand-over makes reads wait.
    fn picture(&self, position: u64, end: u64, parts_max: usize) -> Result<Option<Picture>, Error> {
        let gate = self.gate.lock();
        gate.in_service()?;
        if gate.paused == Paused::All {
            return Ok(None);
        }
        let vault = gate.vault();
        let lost = quarantine::meeting(&vault.lost, position, end).to_vec();
        let mut picture = Picture { parts: Vec::new(), root: vault.root, lost };
        let mut next = position;
        for (start, stop, change) in gate.changes.meeting(position, end)? {
            if picture.parts.len() >= parts_max {
                return Ok(Some(picture));
            }
            if start > next {
                picture.parts.push((next, start, None));
            }
            picture.parts.push((start, stop, Some(change.source(start - change.position))));
            next = stop;
        }
        if next < end {
            picture.parts.push((next, end, None));
        }
        Ok(Some(picture))
    }
}

/// The bytes `start..stop` of the volume in a buffer that begins at `position`.
fn part(out: &mut [u8], position: u64, start: u64, stop: u64) -> &mut [u8] {
    let offset = |at: u64| usize::try_from(at - position).expect("within the buffer");
    &mut out[offset(start)..offset(stop)]
}

pub(super) fn end_of(position: u64, length: usize) -> Result<u64, Error> {
    position.checked_add(length as u64).ok_or_else(beyond)
}

pub(super) fn beyond() -> Error {
    Error::Invalid("a range ends beyond 2^64".to_owned())
}

/// Appends extents, merging adjacent equals.
fn join(found: &mut Vec<Extent>, more: Vec<Extent>) {
    for extent in more {
        match found.last_mut() {
            Some(last)
                if last.data == extent.data && last.position + last.span == extent.position =>
            {
                last.span += extent.span;
            }
            _ => found.push(extent),
        }
    }
}
