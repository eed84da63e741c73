//! The bytes of files.

use super::{Done, Files, Rest, Turn, judge};
use crate::caller::Caller;
use crate::files::draft::Draft;
use crate::files::frozen::is_present;
use crate::format::inode::Inode;
use crate::format::record::{self, Effect, WRITE_HEAD_BYTES, WriteHead};
use crate::limits;
use crate::look::Stop;
use crate::ranges::{Backing, Part};
use crate::state::{Body, View};
use crate::taken::{touched, whole};
use crate::types::{Allocate, Errno, Error, FILE_BYTES_MAX, FileType, Ino, Origin, Seek};
use bytes::Bytes;
use rekindle_base::limits::CHANGE_BYTES_MAX;
use rekindle_block::PAGE_BYTES;
use rekindle_staging::{NewRecord, RangeHome, Source};
use std::ops::Range;

/// Most bytes of a write that one record carries; a longer write is a group of records.
const PIECE_BYTES_MAX: usize = (CHANGE_BYTES_MAX as usize - WRITE_HEAD_BYTES) & !4095;

/// Where the bytes of a file are.
struct Whereabouts {
    size: u64,
    /// What the root has.
    body: Body,
    /// What is newer, within the range that was asked for.
    parts: Vec<(Range<u64>, Newer)>,
}

/// Where bytes are that the root does not have at their place.
enum Newer {
    Record(Source),
    /// The content of another file, and the first byte there.
    Content(Body, u64),
}

/// How much of its bytes a write carries out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    Whole,
    /// As much as there is room for, if there is room for any.
    AsFits,
}

/// Returns the lengths, ascending, at which a write of `length` bytes may be cut.
fn page_ends(offset: u64, length: usize) -> Vec<usize> {
    let first = PAGE_BYTES - offset % PAGE_BYTES;
    let cuts = (first..length as u64).step_by(PAGE_BYTES as usize);
    cuts.map(|cut| usize::try_from(cut).unwrap_or(usize::MAX)).collect()
}

/// Plans a write of the greatest of these lengths for which there is room.
fn most_that_fits<T>(
    lengths: &[usize],
    plan: impl Fn(usize) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let (mut fits, mut refused) = (None, None);
    let (mut low, mut high) = (0, lengths.len());
    while low < high {
        let middle = low.midpoint(high);
        match plan(lengths[middle]) {
            Ok(planned) => (fits, low) = (Some(planned), middle + 1),
            Err(stop @ Stop::Full(_)) => (refused, high) = (Some(stop), middle),
            Err(stop) => return Err(stop),
        }
    }
    fits.ok_or_else(|| refused.unwrap_or(Stop::Posix(Errno::NOSPC)))
}

/// Makes one buffer of pieces; one alone stays where it is.
pub fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        0 | 1 => pieces.pop().unwrap_or_default(),
        _ => pieces.concat().into(),
    }
}

/// Returns a regular file.
pub(super) fn regular(view: &View<'_>, ino: Ino) -> Result<Inode, Stop> {
    let inode = view.inode(ino)?;
    match inode.kind {
        FileType::Regular => Ok(inode),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}

fn whereabouts(view: &View<'_>, ino: Ino, range: Range<u64>) -> Result<Whereabouts, Stop> {
    let size = regular(view, ino)?.size;
    let body = |ino| {
        let stored = view.stored(ino)?;
        Ok::<_, Stop>(stored.map_or(Body::Tree(None), |stored| stored.body))
    };
    let mut parts = Vec::new();
    if let Some(dirty) = view.state.overlay.inodes.get(&ino) {
        for Part { range, backing } in dirty.ranges.within(range.start..range.end.min(size)) {
            let newer = match backing {
                Backing::Record(source) => Newer::Record(source),
                Backing::File { ino, at } => Newer::Content(body(ino)?, at),
            };
            parts.push((range, newer));
        }
    }
    Ok(Whereabouts { size, body: body(ino)?, parts })
}

impl Files {
    /// Reads at most `length` bytes, as [`Files::pieces`] does, into one buffer.
    pub async fn read(&self, ino: Ino, offset: u64, length: usize) -> Done<Bytes> {
        Ok(joined(self.pieces(ino, offset, length).await?))
    }

    /// Reads at most `length` bytes; fewer at the end of the file, and never more than
    /// [`limits::READ_BYTES_MAX`]. What the store has comes as the cache has it, without a copy.
    pub async fn pieces(&self, ino: Ino, offset: u64, length: usize) -> Done<Vec<Bytes>> {
        let length = length.min(limits::READ_BYTES_MAX);
        let range = offset..offset.saturating_add(length as u64);
        let hold = self.home.content.hold();
        let Whereabouts { size, body, parts } =
            self.look_into(ino, |view, ino| whereabouts(view, ino, range.clone())).await?;
        let length = range.end.min(size).saturating_sub(offset);
        let root = body.tree();
        if parts.is_empty() && root.is_some() {
            let read = self.home.reader(ino).pieces(&root, offset, length).await;
            let pieces = read.inspect_err(|error| self.staged().notice(error))?;
            drop(hold);
            self.staged().check_read()?;
            return Ok(pieces);
        }
        let mut out = vec![0; usize::try_from(length).unwrap_or(0)];
        let covered: u64 = parts.iter().map(|(range, _)| range.end - range.start).sum();
        if covered < length {
            self.read_content(ino, &body, offset, &mut out).await?;
        }
        for (range, newer) in parts {
            let within = |byte: u64| usize::try_from(byte - offset).unwrap_or(usize::MAX);
            let out = &mut out[within(range.start)..within(range.end)];
            match newer {
                Newer::Record(source) if source.read_now(0, out)? => {}
                Newer::Record(source) => source.read(0, out).await?,
                Newer::Content(body, at) => self.read_content(ino, &body, at, out).await?,
            }
        }
        drop(hold);
        self.staged().check_read()?;
        Ok(vec![out.into()])
    }

    /// Fills `out` with what the root has of a file, for a reader of this file.
    async fn read_content(&self, ino: Ino, body: &Body, at: u64, out: &mut [u8]) -> Done<()> {
        let root = match body {
            Body::Tree(root @ Some(_)) => root,
            Body::Tree(None) => {
                out.fill(0);
                return Ok(());
            }
            Body::Row(bytes) => {
                let there = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]);
                let (begin, rest) = out.split_at_mut(there.len().min(out.len()));
                begin.copy_from_slice(&there[..begin.len()]);
                rest.fill(0);
                return Ok(());
            }
        };
        let reader = self.home.reader(ino);
        if !reader.read_now(root, at, out)? {
            let read = reader.read(root, at, out, true).await;
            read.inspect_err(|error| self.staged().notice(error))?;
        }
        Ok(())
    }

    /// Writes all of `data`, at most [`limits::WRITE_BYTES_MAX`]. Not durable before
    /// [`Files::sync`].
    pub async fn write(&self, caller: Caller<'_>, ino: Ino, offset: u64, data: &[u8]) -> Done<()> {
        let caller = Caller { origin: None, ..caller };
        self.write_there(caller, ino, Some(offset), data, Length::Whole).await.map(drop)
    }

    /// The same, but writes as much of `data` as the volume has room for, to the end of a page.
    /// Returns how many bytes that is, at least one.
    pub async fn write_some(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Done<usize> {
        let caller = Caller { origin: None, ..caller };
        self.write_there(caller, ino, Some(offset), data, Length::AsFits).await
    }

    /// The same, behind the end that the file has in the turn of the change. It is noted as carried
    /// out: a second time, the bytes would be there twice.
    pub async fn write_at_end(&self, caller: Caller<'_>, ino: Ino, data: &[u8]) -> Done<()> {
        self.write_there(caller, ino, None, data, Length::Whole).await.map(drop)
    }

    /// Writes at an offset, or else at the end. A caller's origin is noted. Returns the length of
    /// what was written.
    async fn write_there(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
        length: Length,
    ) -> Done<usize> {
        is_present(ino)?;
        if data.len() > limits::WRITE_BYTES_MAX {
            return Err(Errno::INVAL.into());
        }
        let end_of = |begin: u64, length: usize| {
            let end = begin.checked_add(length as u64).filter(|end| *end <= FILE_BYTES_MAX);
            end.ok_or(Errno::FBIG)
        };
        end_of(offset.unwrap_or(0), data.len())?;
        if data.is_empty() {
            return Ok(0);
        }
        let (now, room) = (self.now(), self.size());
        let plan = |view: &View<'_>, length: usize| {
            judge(&caller, view)?;
            let mut inode = regular(view, ino)?;
            let begin = offset.unwrap_or(inode.size);
            let end = end_of(begin, length)?;
            let pages = touched(&(begin..end));
            let new = pages.end - pages.start - view.taken(ino, &pages)?;
            inode.grow(end);
            let more = inode.take(new);
            view.fits(more, room)?;
            (inode.modified, inode.changed) = (now, now);
            inode.mode = caller.settled(inode.mode, &inode.attr(ino));
            if let Some(witness) = caller.witness {
                witness.changed(&inode.attr(ino));
            }
            Ok((WriteHead { ino, offset: begin, more, inode }, length))
        };
        let ends = page_ends(offset.unwrap_or(0), data.len());
        let whole = |view: &View<'_>| plan(view, data.len());
        let as_fits = |view: &View<'_>| most_that_fits(&ends, |length| plan(view, length));
        let planned = match self.in_turn(whole).await {
            Err(Error::Posix(Errno::NOSPC)) if length == Length::AsFits && !ends.is_empty() => {
                self.in_turn(as_fits).await?
            }
            planned => planned?,
        };
        let (turn, (head, length)) = planned;
        let rest = self.append_bytes(turn, head, caller.origin, &data[..length]).await?;
        self.keep_pace(rest).await?;
        Ok(length)
    }

    async fn append_bytes(
        &self,
        turn: Turn,
        mut head: WriteHead,
        origin: Option<Origin>,
        data: &[u8],
    ) -> Done<Rest> {
        let mut pieces = Vec::new();
        for piece in data.chunks(PIECE_BYTES_MAX) {
            let mut bytes = head.encode(piece.len());
            bytes.extend_from_slice(piece);
            pieces.push(bytes);
            head.offset += piece.len() as u64;
            head.more = 0;
        }
        let done = origin.map(|origin| record::encode(&[Effect::Done(origin)]));
        let pieces = pieces.iter().map(|bytes| NewRecord { kind: record::WRITE, bytes });
        let done = done.iter().map(|bytes| NewRecord { kind: record::EFFECTS, bytes });
        let records: Vec<_> = pieces.chain(done).collect();
        self.append(turn, &records).await
    }

    /// Changes what a range of a file is.
    pub async fn allocate(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Done<()> {
        is_present(ino)?;
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Errno::FBIG)?;
        if length == 0 {
            return Err(Errno::INVAL.into());
        }
        let plan = |draft: &mut Draft<'_, '_>| {
            regular(draft.view, ino)?;
            let now = draft.now;
            if what != (Allocate::Reserve { keep_size: true })
                && what != (Allocate::Reserve { keep_size: false })
            {
                draft.zero(ino, offset, length);
            }
            match what {
                Allocate::Punch => draft.give_back(ino, &whole(&(offset..end)))?,
                Allocate::Reserve { keep_size } | Allocate::Zero { keep_size } => {
                    let inode = draft.inode(ino)?;
                    match keep_size {
                        true => inode.reach(touched(&(offset..end)).end),
                        false => inode.grow(end),
                    }
                    draft.reserve(ino, offset, length);
                    draft.take(ino, &touched(&(offset..end)))?;
                }
            }
            let inode = draft.inode(ino)?;
            inode.mode = caller.settled(inode.mode, &inode.attr(ino));
            (inode.modified, inode.changed) = (now, now);
            Ok(())
        };
        self.change(caller, plan).await
    }

    /// Finds data or a hole at an offset or behind it; the end of a file is a hole. `ENXIO` beyond
    /// the end, and when no data follows.
    pub async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Done<u64> {
        let _hold = self.home.content.hold();
        let all = |view: &View<'_>, ino| whereabouts(view, ino, offset..FILE_BYTES_MAX);
        let Whereabouts { size, body, parts } = self.look_into(ino, all).await?;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        let (mut at, mut parts) = (offset, parts.into_iter().peekable());
        while at < size {
            // A copied part may be looked at in several steps.
            let (is_data, end) = match parts.peek().filter(|(range, _)| range.start <= at) {
                Some((range, Newer::Record(source))) => {
                    (!matches!(source, Source::Zero), range.end)
                }
                Some((range, Newer::Content(body, from))) => {
                    let there = |byte: u64| byte - range.start + from;
                    let (is_data, end) =
                        self.stored_extent(body, there(at), there(range.end)).await?;
                    (is_data, end - from + range.start)
                }
                None => {
                    let end = parts.peek().map_or(size, |(range, _)| range.start.min(size));
                    self.stored_extent(&body, at, end).await?
                }
            };
            while parts.next_if(|(range, _)| range.end <= end).is_some() {}
            if is_data == (what == Seek::Data) {
                return Ok(at);
            }
            at = end;
        }
        match what {
            Seek::Data => Err(Errno::NXIO.into()),
            Seek::Hole => Ok(size),
        }
    }

    /// Says whether the root has data at `at`, and where that ends, before `end` or there. Data may
    /// go on behind that: a search in a file of many extents must not list all of them each time.
    async fn stored_extent(&self, body: &Body, at: u64, end: u64) -> Result<(bool, u64), Error> {
        let root = match body {
            Body::Tree(root @ Some(_)) => root,
            Body::Tree(None) => return Ok((false, end)),
            Body::Row(bytes) => {
                let data = (bytes.len() as u64).next_multiple_of(PAGE_BYTES);
                return Ok(if at < data { (true, data.min(end)) } else { (false, end) });
            }
        };
        let reader = self.home.reader(0);
        let mut span = limits::SEEK_BYTES.min(end - at);
        loop {
            let extents = reader.extents(root, at, span).await?;
            let is_data = extents.first().is_some_and(|first| first.data);
            let upto = extents.first().map_or(at + span, |first| first.position + first.span);
            if is_data || upto < at + span || at + span == end {
                return Ok((is_data, upto.clamp(at + 1, end)));
            }
            // Nothing is listed of a hole, however long it is.
            span = span.saturating_mul(16).min(end - at);
        }
    }
}

const _: () = assert!(PIECE_BYTES_MAX > 100 * WRITE_HEAD_BYTES);
