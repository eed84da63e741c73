//! Raw images.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::pipe::Pipe;
use super::{Watch, broken, unusable};
use crate::arguments::Import;
use crate::failure::{Failure, Outcome};
use crate::nbd::{self, Extent, Verb};
use env::Address;
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Bytes of one request.
const PIECE: u64 = 1 << 20;
/// Bytes looked at for zeros in one go.
const GRAIN: usize = 64 << 10;
/// Bytes whose allocation is asked for in one go.
const SPAN: u64 = 1 << 30;
/// How long an answer may take: a full log waits for the store.
const PATIENCE: Duration = Duration::from_secs(600);

/// The size of an image: a file, or a block device.
pub fn size(file: &Path) -> Outcome<u64> {
    let end = || rustix::fs::seek(File::open(file)?, SeekFrom::End(0)).map_err(io::Error::from);
    end().map_err(|error| unusable(file, &error))
}

/// The stretch of data at or behind `from`, if there is one. Where holes cannot be asked for, all is data.
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

/// Stretches of `bytes` that are not zero, in steps of [`GRAIN`].
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

/// Writes an image into a volume that is large enough. `fresh`: it is known to be all zeros. Gives the bytes written.
pub fn import(place: &Address, import: &Import, fresh: bool, mut watch: Watch<'_>) -> Outcome<u64> {
    let lost = |error: io::Error| broken(place, &error);
    let file = File::open(&import.file).map_err(|error| unusable(&import.file, &error))?;
    let end = size(&import.file)?;
    let export = nbd::Export::connect(place, &import.volume, PATIENCE).map_err(lost)?;
    let (volume_end, flags) = (export.size, export.flags);
    if volume_end < end {
        return Err(Failure::new("the volume is smaller than the image"));
    }
    let mut into = Into {
        place: place.clone(),
        pipe: Pipe::new(export),
        written: 0,
        zeroes: flags & nbd::FLAG_ZEROES != 0,
    };
    let mut there = match import.resume && !fresh {
        true => {
            let export = nbd::Export::connect(place, &import.volume, PATIENCE).map_err(lost)?;
            Some(Pipe::new(export))
        }
        false => None,
    };
    let mut at = 0;
    while at < end {
        let (begin, stop) = next_data(&file, at, end).unwrap_or((end, end));
        if !fresh && begin > at {
            into.zeros(at, begin, &mut watch)?;
        }
        at = begin;
        while at < stop {
            // Whole sectors; behind the end of the image there are zeros.
            let length = (stop - at).min(PIECE - at % PIECE);
            let whole = length.next_multiple_of(base::limits::SECTOR_BYTES);
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
        // Of an import of another image, maybe.
        let tail = end.next_multiple_of(base::limits::SECTOR_BYTES);
        into.zeros(tail, volume_end, &mut watch)?;
    }
    into.pipe.flush().map_err(lost)?;
    Ok(into.written)
}

struct Into {
    place: Address,
    pipe: Pipe,
    written: u64,
    /// Whether zeros need not be sent.
    zeroes: bool,
}

impl Into {
    /// Data, as far as it is not there already.
    fn piece(
        &mut self,
        at: u64,
        piece: &[u8],
        fresh: bool,
        there: Option<&mut Pipe>,
    ) -> io::Result<()> {
        let length = u32::try_from(piece.len()).unwrap_or(0);
        if let Some(there) = there {
            there.ask(Verb::Read, at, length, &[])?;
            if there.drain()?.first().is_some_and(|(_, found)| found == piece) {
                return Ok(());
            }
        }
        // Zeros matter where something else may be.
        let all = std::iter::once(0..piece.len());
        for range in if fresh { filled(piece) } else { all.collect() } {
            let part = &piece[range.clone()];
            let length = u32::try_from(part.len()).unwrap_or(0);
            let offset = at + u64::try_from(range.start).unwrap_or(0);
            if self.zeroes && is_zero(part) {
                self.pipe.ask(Verb::Zeroes, offset, length, &[])?;
            } else {
                self.pipe.ask(Verb::Write, offset, length, part)?;
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
                self.pipe.ask(Verb::Zeroes, at, length, &[]).map_err(lost)?;
            } else {
                let zeros = vec![0; usize::try_from(length).unwrap_or(0)];
                self.pipe.ask(Verb::Write, at, length, &zeros).map_err(lost)?;
            }
            at += u64::from(length);
            watch.look(at.min(watch.total))?;
        }
        Ok(())
    }
}

/// Writes a volume into a file: a sparse one.
pub fn export(place: &Address, name: &str, part: &Path, mut watch: Watch<'_>) -> Outcome {
    let lost = |error: io::Error| broken(place, &error);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(part)
        .map_err(|error| unusable(part, &error))?;
    let export = nbd::Export::connect(place, name, PATIENCE).map_err(lost)?;
    let end = export.size;
    file.set_len(end).map_err(|error| unusable(part, &error))?;
    let mut allocation = nbd::Export::connect_for_extents(place, name, PATIENCE).map_err(lost)?;
    let mut pipe = Pipe::new(export);
    let keep = |read: Vec<(u64, Vec<u8>)>| -> Outcome {
        for (offset, data) in read {
            for range in filled(&data) {
                let at = offset + u64::try_from(range.start).unwrap_or(0);
                file.write_all_at(&data[range], at).map_err(|error| unusable(part, &error))?;
            }
        }
        Ok(())
    };
    let mut at = 0;
    while at < end {
        let span = (end - at).min(SPAN);
        let known = match &mut allocation {
            Some(export) => {
                export.extents(at, u32::try_from(span).unwrap_or(u32::MAX)).map_err(lost)?
            }
            None => vec![Extent { length: span, zero: false }],
        };
        let before = at;
        for extent in known {
            let stop = (at + extent.length).min(end);
            while at < stop && !extent.zero {
                let length = (stop - at).min(PIECE);
                let read = pipe.ask(Verb::Read, at, u32::try_from(length).unwrap_or(0), &[]);
                keep(read.map_err(lost)?.into_iter().collect())?;
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
    keep(pipe.drain().map_err(lost)?)
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
