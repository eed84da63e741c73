//! Copies of ranges of files. Whole pages that the root has are copied by one record, however long
//! the range is: a commit has the copy show the same chunks. Other bytes are read and written.

use super::bytes::regular;
use super::frozen::{Whence, is_present, whence};
use super::{Done, Files};
use crate::caller::Caller;
use crate::files::draft::Draft;
use crate::format::inode::Inode;
use crate::limits;
use crate::look::Stop;
use crate::ranges::Backing;
use crate::state::View;
use crate::taken::touched;
use crate::types::{Errno, FILE_BYTES_MAX, Ino};
use rekindle_block::PAGE_BYTES;

/// A place in a file.
type Place = (Ino, u64);

/// Pages that the root has.
struct Pages {
    place: Place,
    /// Bytes, whole pages.
    length: u64,
    /// How many of them are in the file.
    within: u64,
}

impl Files {
    /// Copies at most `length` bytes of a regular file into one, maybe the same. Returns how many:
    /// 0 at the end of the first file, and fewer than asked for where the next ones are not copied
    /// in the same way. All of them are there or none, and not durable before [`Files::sync`]. A
    /// copy may be carried out again, so no client's request is remembered for it.
    pub async fn copy(
        &self,
        caller: Caller<'_>,
        (from, at): Place,
        (to, offset): Place,
        length: u64,
    ) -> Done<u64> {
        is_present(to)?;
        if length == 0 {
            return Ok(0);
        }
        let caller = Caller { origin: None, call: None, ..caller };
        let ends = [at, offset].map(|begin| begin.saturating_add(length));
        if from == to && at < ends[1] && offset < ends[0] {
            return Err(Errno::INVAL.into());
        }
        // The root of a snapshot may go before a commit has the copy.
        if whence(from).0 == Whence::Present {
            match self.share(&caller, (from, at), (to, offset), length).await? {
                0 => {}
                shared => return Ok(shared),
            }
        }
        let most = limits::READ_BYTES_MAX.min(limits::WRITE_BYTES_MAX);
        let length = usize::try_from(length).map_or(most, |length| length.min(most));
        let data = self.read(from, at, length).await?;
        self.write(caller, to, offset, &data).await?;
        Ok(data.len() as u64)
    }

    /// Copies pages that the root has. Returns how many bytes; 0 if there are none.
    async fn share(&self, caller: &Caller<'_>, from: Place, to: Place, length: u64) -> Done<u64> {
        let plan = |draft: &mut Draft<'_, '_>| {
            let (source, target) = (regular(draft.view, from.0)?, regular(draft.view, to.0)?);
            let pages = pages(draft.view, (from, &source), (to.1, &target), length)?;
            let Some(Pages { place, length, within }) = pages else { return Ok(0) };
            let end = to.1 + within;
            if end > FILE_BYTES_MAX {
                return Err(Errno::FBIG.into());
            }
            draft.copy(to, place, length);
            draft.inode(to.0)?.grow(end);
            draft.take(to.0, &touched(&(to.1..end)))?;
            let now = draft.now;
            let inode = draft.inode(to.0)?;
            inode.mode = caller.settled(inode.mode, &inode.attr(to.0));
            (inode.modified, inode.changed) = (now, now);
            Ok(within)
        };
        self.change(*caller, plan).await
    }
}

/// Returns the pages at the beginning of a range that the root has, maybe in a file from which they
/// were copied themselves. A last page that the file has in part counts only where the copy ends
/// with it, too.
fn pages(
    view: &View<'_>,
    ((ino, at), source): (Place, &Inode),
    (offset, target): (u64, &Inode),
    length: u64,
) -> Result<Option<Pages>, Stop> {
    if !at.is_multiple_of(PAGE_BYTES) || !offset.is_multiple_of(PAGE_BYTES) {
        return Ok(None);
    }
    let left = source.size.saturating_sub(at).min(length);
    let is_end = at + left == source.size && offset + left >= target.size;
    let whole = |bytes: u64| bytes / PAGE_BYTES * PAGE_BYTES;
    let most = if is_end { left.next_multiple_of(PAGE_BYTES) } else { whole(left) };
    let dirty = |ino: Ino| view.state.overlay.inodes.get(&ino);
    let newer = dirty(ino).and_then(|dirty| dirty.ranges.within(at..at + most).next());
    let (place, length) = match newer {
        None => ((ino, at), most),
        Some(part) if part.range.start > at => ((ino, at), whole(part.range.start - at)),
        Some(part) => match part.backing {
            Backing::File { ino, at: there } => {
                let length = whole(part.range.end - at);
                let range = there..there + length;
                // A file that is gone has no changes, and the next root has no content of it.
                let is_changed =
                    dirty(ino).is_some_and(|dirty| dirty.is_gone() || dirty.ranges.has_any(range));
                ((ino, there), if is_changed { 0 } else { length })
            }
            Backing::Record(_) => return Ok(None),
        },
    };
    Ok((length > 0).then_some(Pages { place, length, within: length.min(left) }))
}
