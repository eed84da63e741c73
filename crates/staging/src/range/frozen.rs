//! Reads of a snapshot of a volume in service: its root, without an overlay.

use super::quarantine;
use super::reading::{Picture, beyond, end_of};
use crate::ack::paused::Paused;
use crate::ack::staged::Staged;
use crate::{Error, Extent};

impl Staged {
    /// Reads what the snapshot of this number has, from memory only; `false` when some byte is not
    /// there. A plain call.
    pub fn read_snapshot_now(
        &self,
        number: u32,
        position: u64,
        out: &mut [u8],
    ) -> Result<bool, Error> {
        if !self.may_read() {
            return Ok(false);
        }
        match self.readable_snapshot(number, position, end_of(position, out.len())?)? {
            Some(picture) => self.range_home()?.read_now(&picture.root, position, out),
            None => Ok(false),
        }
    }

    /// Reads what the snapshot of this number has.
    pub async fn read_snapshot(
        &self,
        number: u32,
        position: u64,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let end = end_of(position, out.len())?;
        self.read_as(position, out, || self.readable_snapshot(number, position, end)).await
    }

    /// Data and holes of a snapshot: see [`Staged::extents`].
    pub async fn extents_of_snapshot(
        &self,
        number: u32,
        position: u64,
        span: u64,
    ) -> Result<Vec<Extent>, Error> {
        let end = position.checked_add(span).ok_or_else(beyond)?;
        self.extents_as(|| self.snapshot_picture(number, position, end)).await
    }

    /// The picture of a range of a snapshot; an error if some of it is lost.
    fn readable_snapshot(
        &self,
        number: u32,
        position: u64,
        end: u64,
    ) -> Result<Option<Picture>, Error> {
        let Some(picture) = self.snapshot_picture(number, position, end)? else { return Ok(None) };
        self.refuse_lost(&picture.lost, std::iter::once((position, end)))?;
        Ok(Some(picture))
    }

    /// The picture of a range of a snapshot, which the vault has to have still. `None` while a
    /// hand-over makes reads wait.
    fn snapshot_picture(
        &self,
        number: u32,
        position: u64,
        end: u64,
    ) -> Result<Option<Picture>, Error> {
        let gate = self.gate.lock();
        gate.in_service()?;
        if gate.paused == Paused::All {
            return Ok(None);
        }
        let found = gate.vault().snapshots.iter().find(|one| one.number == number);
        // A salvage may have mended it: each read asks for its root.
        let Some(content) = found.and_then(|snapshot| snapshot.content.as_ref()) else {
            let volume = &self.name;
            return Err(Error::Invalid(format!("the snapshot of volume {volume} was removed")));
        };
        let lost = quarantine::meeting(&content.lost, position, end).to_vec();
        Ok(Some(Picture { parts: vec![(position, end, None)], root: content.root, lost }))
    }
}
