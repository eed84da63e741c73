//! Raw images.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::pipe::{Pipe, Read};
use super::stream::Input;
use super::target::Target;
use super::{Watch, broken, unusable};
use crate::arguments::Import;
use crate::nbd;
use rekindle_base::Kind;
use rekindle_env::Address;
use rekindle_nbd_client::Extent;
use rekindle_nbd_client::wire::{self, command};
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Bytes of one request.
const PIECE: u64 = 1 << 20;
/// Bytes looked at for zeros in one go.
const GRAIN: usize = 64 << 10;
/// Bytes of one request where something cannot be read.
const SMALL: u64 = 4 << 10;
/// Bytes whose allocation is asked for in one go.
const SPAN: u64 = 1 << 30;
/// Longest wait for an answer: a full log waits for the store.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Returns the size of an image: a file, or a block device.
pub fn size(file: &Path) -> Outcome<u64> {
    let end = || rustix::fs::seek(File::open(file)?, SeekFrom::End(0)).map_err(io::Error::from);
    end().map_err(|error| unusable(file, &error))
}

/// Returns the stretch of data at or behind `from`, if there is one. Where holes cannot be asked
/// for, all is data.
fn next_data(file: &File, from: u64, end: u64) -> Option<(u64, u64)> {
    let begin = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(begin) => begin,
        Err(rustix::io::Errno::NXIO) => return None,
        Err(_) => return Some((from, end)),
    };
    let stop = rustix::fs::seek(file, SeekFrom::Hole(begin)).unwrap_or(end);
    Some((begin, stop.min(end))).filter(|(begin, stop)| begin < stop)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Returns the stretches of `bytes` that are not zero, in steps of [`GRAIN`].
fn filled(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, grain) in bytes.chunks(GRAIN).enumerate() {
        if is_zero(grain) {
            continue;
        }
        let (begin, end) = (index * GRAIN, index * GRAIN + grain.len());
        match found.last_mut() {
            Some(last) if last.end == begin => last.end = end,
            _ => found.push(begin..end),
        }
    }
    found
}

/// Writes an image into a volume that is large enough. `fresh`: the volume is known to be all
/// zeros. Returns the bytes written.
pub fn import(
    place: &Address,
    import: &Import,
    fresh: bool,
    watch: &mut Watch<'_>,
) -> Outcome<u64> {
    let lost = |error: io::Error| broken(place, &error);
    let file = File::open(&import.file).map_err(|error| unusable(&import.file, &error))?;
    let end = size(&import.file)?;
    let export = watch.connect(place, &import.volume, PATIENCE)?;
    let (volume_end, flags) = (export.size, export.flags);
    if volume_end < end {
        return Err(Failure::new("the volume is smaller than the image"));
    }
    let mut into = Into {
        place: place.clone(),
        pipe: Pipe::new(export),
        written: 0,
        zeroes: flags & wire::CAN_ZERO != 0,
    };
    let mut there = match import.resume && !fresh {
        true => {
            let export = watch.connect(place, &import.volume, PATIENCE)?;
            Some(Pipe::new(export))
        }
        false => None,
    };
    let mut at = 0;
    while at < end {
        let (begin, stop) = next_data(&file, at, end).unwrap_or((end, end));
        if !fresh && begin > at {
            into.zeros(at, begin, watch)?;
        }
        at = begin;
        while at < stop {
            // Whole sectors; behind the end of the image there are zeros.
            let length = (stop - at).min(PIECE - at % PIECE);
            let whole = length.next_multiple_of(rekindle_base::limits::SECTOR_BYTES);
            let mut piece = vec![0; usize::try_from(whole).unwrap_or(0)];
            let wanted = usize::try_from(length).unwrap_or(0);
            file.read_exact_at(&mut piece[..wanted], at)
                .map_err(|error| unusable(&import.file, &error))?;
            into.piece(at, &piece, fresh, there.as_mut()).map_err(lost)?;
            at += length;
            watch.look(at)?;
        }
    }
    if !fresh {
        // The rest may be of another image's import.
        let tail = end.next_multiple_of(rekindle_base::limits::SECTOR_BYTES);
        into.zeros(tail, volume_end, watch)?;
    }
    into.pipe.flush().map_err(lost)?;
    Ok(into.written)
}

/// Writes an image from standard input into a volume. `note` sees its first bytes. Returns the
/// image's bytes, and those written.
pub fn import_stream(
    place: &Address,
    import: &Import,
    fresh: bool,
    watch: &mut Watch<'_>,
    mut note: impl FnMut(&[u8]),
) -> Outcome<(u64, u64)> {
    let lost = |error: io::Error| broken(place, &error);
    let input = Input::open()?;
    let export = watch.connect(place, &import.volume, PATIENCE)?;
    let (end, zeroes) = (export.size, export.flags & wire::CAN_ZERO != 0);
    watch.begin(end);
    let mut into = Into { place: place.clone(), pipe: Pipe::new(export), written: 0, zeroes };
    let mut piece = vec![0; usize::try_from(PIECE).unwrap_or(0)];
    let mut at = 0;
    loop {
        let count = input.fill(&mut piece, at, watch)?;
        if at == 0 {
            note(&piece[..count]);
        }
        if count as u64 > end - at {
            return Err(Failure::new(format!(
                "the image is longer than the volume, which has {end} bytes"
            ))
            .next("--overwrite with a larger volume: `rekindle volume resize`"));
        }
        let whole = count.next_multiple_of(rekindle_base::limits::SECTOR_BYTES as usize);
        piece[count..whole].fill(0);
        if count > 0 {
            into.piece(at, &piece[..whole], fresh, None).map_err(lost)?;
        }
        at += count as u64;
        if count < piece.len() {
            break;
        }
    }
    if !fresh {
        into.zeros(at.next_multiple_of(rekindle_base::limits::SECTOR_BYTES), end, watch)?;
    }
    into.pipe.flush().map_err(lost)?;
    Ok((at, into.written))
}

/// Zeroes a volume from `from` to its end.
pub fn clear(place: &Address, name: &str, from: u64, watch: &mut Watch<'_>) -> Outcome {
    let lost = |error: io::Error| broken(place, &error);
    let export = watch.connect(place, name, PATIENCE)?;
    let (end, zeroes) = (export.size, export.flags & wire::CAN_ZERO != 0);
    let mut into = Into { place: place.clone(), pipe: Pipe::new(export), written: 0, zeroes };
    into.zeros(from, end, watch)?;
    into.pipe.flush().map_err(lost)
}

struct Into {
    place: Address,
    pipe: Pipe,
    written: u64,
    /// Whether the server takes zeros without their bytes.
    zeroes: bool,
}

impl Into {
    /// Writes data, as far as it is not there already.
    fn piece(
        &mut self,
        at: u64,
        piece: &[u8],
        fresh: bool,
        there: Option<&mut Pipe>,
    ) -> io::Result<()> {
        let length = u32::try_from(piece.len()).unwrap_or(0);
        if let Some(there) = there {
            there.ask(command::READ, at, length, &[])?;
            // A stretch that cannot be read is mended by writing it.
            if let Some(Read::Data { data, .. }) = there.drain()?.first()
                && data == piece
            {
                return Ok(());
            }
        }
        // Zeros matter where other data may be.
        let all = std::iter::once(0..piece.len());
        for range in if fresh { filled(piece) } else { all.collect() } {
            let part = &piece[range.clone()];
            let length = u32::try_from(part.len()).unwrap_or(0);
            let offset = at + u64::try_from(range.start).unwrap_or(0);
            if self.zeroes && is_zero(part) {
                self.pipe.ask(command::WRITE_ZEROES, offset, length, &[])?;
            } else {
                self.pipe.ask(command::WRITE, offset, length, part)?;
            }
            self.written += u64::from(length);
        }
        Ok(())
    }

    fn zeros(&mut self, from: u64, to: u64, watch: &mut Watch<'_>) -> Outcome {
        let lost = |error: io::Error| broken(&self.place, &error);
        let step = if self.zeroes { SPAN / 32 } else { PIECE };
        let mut at = from;
        while at < to {
            let length = u32::try_from((to - at).min(step)).unwrap_or(0);
            if self.zeroes {
                self.pipe.ask(command::WRITE_ZEROES, at, length, &[]).map_err(lost)?;
            } else {
                let zeros = vec![0; usize::try_from(length).unwrap_or(0)];
                self.pipe.ask(command::WRITE, at, length, &zeros).map_err(lost)?;
            }
            at += u64::from(length);
            watch.look(at.min(watch.total))?;
        }
        Ok(())
    }
}

/// Writes a volume into a sparse file, over a disk or into a stream. Returns its size, and the
/// stretches that cannot be read; without `skip`, the first one is an error.
pub fn export(
    place: &Address,
    name: &str,
    target: &Target,
    skip: bool,
    watch: &mut Watch<'_>,
) -> Outcome<(u64, Vec<Range<u64>>)> {
    let lost = |error: io::Error| broken(place, &error);
    let export = watch.connect(place, name, PATIENCE)?;
    let end = export.size;
    watch.begin(end);
    target.fit(end)?;
    let mut allocation =
        nbd::open_for_extents(place, name, PATIENCE, &watch.breaker).map_err(lost)?;
    let pipe = Pipe::new(export);
    let mut out = Out { place, name, target, skip, pipe, damaged: Vec::new() };
    let mut at = 0;
    while at < end {
        let span = (end - at).min(SPAN);
        let mut known = match &mut allocation {
            Some(export) => {
                export.extents(at, u32::try_from(span).unwrap_or(u32::MAX)).map_err(lost)?
            }
            None => Vec::new(),
        };
        if known.is_empty() {
            // Reading finds out which bytes the server cannot tell of.
            known.push(Extent { length: span, zero: false });
        }
        let before = at;
        for extent in known {
            let stop = (at + extent.length).min(end);
            if extent.zero {
                target.zeros(at, stop - at)?;
            }
            while at < stop && !extent.zero {
                let length = (stop - at).min(PIECE);
                let asked = u32::try_from(length).unwrap_or(0);
                let read = out.pipe.ask(command::READ, at, asked, &[]).map_err(lost)?;
                out.keep(read)?;
                if target.is_stream() && out.pipe.is_full() {
                    out.rest()?;
                }
                at += length;
                watch.look(at)?;
            }
            at = stop;
            watch.look(at)?;
        }
        if at == before {
            return Err(Failure::new("the daemon does not say what is allocated"));
        }
    }
    out.rest()?;
    Ok((end, out.damaged))
}

/// A volume on its way into a target.
struct Out<'a> {
    place: &'a Address,
    name: &'a str,
    target: &'a Target,
    skip: bool,
    pipe: Pipe,
    /// Stretches that cannot be read, in the order in which they were met.
    damaged: Vec<Range<u64>>,
}

impl Out<'_> {
    /// Keeps what was asked for, in the order of the disk: a stream takes it in that order only.
    fn rest(&mut self) -> Outcome {
        let mut reads = self.pipe.drain().map_err(|error| broken(self.place, &error))?;
        reads.sort_by_key(Read::offset);
        reads.into_iter().try_for_each(|read| self.keep(Some(read)))
    }

    fn keep(&mut self, read: Option<Read>) -> Outcome {
        match read {
            None => Ok(()),
            Some(Read::Data { offset, data }) => self.write(offset, &data),
            Some(Read::Failed { offset, length, error }) => {
                if error.raw_os_error() != Some(libc::EIO) {
                    return Err(broken(self.place, &error));
                }
                self.rest()?;
                self.narrow(offset, u64::from(length))?;
                match self.damaged.first() {
                    Some(first) if !self.skip => Err(self.refusal(first)),
                    _ => Ok(()),
                }
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Outcome {
        if self.target.is_device() {
            return self.target.write(offset, data);
        }
        for range in filled(data) {
            let at = offset + u64::try_from(range.start).unwrap_or(0);
            self.target.write(at, &data[range])?;
        }
        Ok(())
    }

    /// Finds the bytes of a stretch that cannot be read; the others are kept.
    fn narrow(&mut self, from: u64, length: u64) -> Outcome {
        let lost = |error: io::Error| broken(self.place, &error);
        let mut at = from;
        while at < from + length {
            let small = (from + length - at).min(SMALL);
            let asked = u32::try_from(small).unwrap_or(0);
            self.pipe.ask(command::READ, at, asked, &[]).map_err(lost)?;
            for read in self.pipe.drain().map_err(lost)? {
                match read {
                    Read::Data { offset, data } => self.write(offset, &data)?,
                    Read::Failed { offset, length, .. } => {
                        self.target.zeros(offset, u64::from(length))?;
                        let end = offset + u64::from(length);
                        match self.damaged.last_mut() {
                            Some(last) if last.end == offset => last.end = end,
                            _ => self.damaged.push(offset..end),
                        }
                    }
                }
            }
            at += small;
        }
        Ok(())
    }

    fn refusal(&self, first: &Range<u64>) -> Failure {
        let name = self.name;
        Failure::new(format!("{} of volume '{name}' cannot be read", stretch(first)))
            .next(format!(
                "`rekindle salvage run {}` repairs what can be had; --skip-damaged exports zeros there, and lists all such bytes",
                rekindle_terminal::output::quoted(name)
            ))
            .kind(Kind::Damaged)
    }
}

/// Describes a stretch; the last byte belongs to it.
pub fn stretch(bytes: &Range<u64>) -> String {
    format!("bytes {} to {}", bytes.start, bytes.end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_zero_is_moved() {
        let mut bytes = vec![0; 5 * GRAIN];
        assert!(filled(&bytes).is_empty());
        (bytes[GRAIN], bytes[2 * GRAIN], bytes[5 * GRAIN - 1]) = (1, 1, 1);
        assert_eq!(filled(&bytes), [GRAIN..3 * GRAIN, 4 * GRAIN..5 * GRAIN]);
    }

    #[test]
    fn holes_of_a_file_are_passed_over() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8 << 20).expect("sparse");
        assert_eq!(next_data(&file, 0, 8 << 20), None);
        file.write_all_at(&[1; 4096], 4 << 20).expect("written");
        let (begin, stop) = next_data(&file, 0, 8 << 20).expect("data");
        assert!(begin <= 4 << 20 && stop >= (4 << 20) + 4096);
    }
}
