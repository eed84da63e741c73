//! Images in pipes: raw ones, from standard input and to standard output.

use super::{Watch, unusable};
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{dup, read, retry_on_intr};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal, Stdin, Write};
use std::path::Path;

/// The name that means standard input, or output.
const STANDARD: &str = "-";
/// Time between two looks for the end of the transfer while nothing comes.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Zeros written at once.
const ZEROS: u64 = 1 << 20;

/// Whether a file is standard input, or output.
pub fn is_standard(file: &Path) -> bool {
    file == Path::new(STANDARD)
}

/// Standard input.
pub struct Input(Stdin);

impl Input {
    /// Opens standard input, which must not be a terminal.
    pub fn open() -> Outcome<Self> {
        let input = io::stdin();
        match input.is_terminal() {
            true => Err(Failure::usage("standard input is a terminal")
                .next("`zstd -dc disk.img.zst | rekindle volume import - vm1 --size 20G`")),
            false => Ok(Self(input)),
        }
    }

    /// Fills a piece, and returns the count of its bytes: fewer at the end. `done` bytes came
    /// before.
    pub fn fill(&self, piece: &mut [u8], done: u64, watch: &mut Watch<'_>) -> Outcome<usize> {
        let failed = |errno: rustix::io::Errno| unusable(Path::new(STANDARD), &errno.into());
        let mut filled = 0;
        while filled < piece.len() {
            watch.look(done + filled as u64)?;
            let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut wanted, Some(&LOOK))).map_err(failed)? == 0 {
                continue;
            }
            match retry_on_intr(|| read(&self.0, &mut piece[filled..])).map_err(failed)? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }
}

/// Standard output, which gets the bytes of a disk in their order.
pub struct Output {
    file: File,
    at: Cell<u64>,
    end: Cell<u64>,
}

impl Output {
    /// Opens standard output, which must not be a terminal; returns its file, too.
    pub fn open() -> Outcome<(Self, File)> {
        let output = io::stdout();
        if output.is_terminal() {
            return Err(Failure::usage("standard output is a terminal")
                .next("`rekindle volume export vm1 - | zstd > vm1.img.zst`"));
        }
        let failed = |error: io::Error| unusable(Path::new(STANDARD), &error);
        let file = dup(&output).map(File::from).map_err(|errno| failed(errno.into()))?;
        let same = file.try_clone().map_err(failed)?;
        Ok((Self { file, at: Cell::new(0), end: Cell::new(0) }, same))
    }

    /// Sets the count of all bytes.
    pub fn fit(&self, bytes: u64) {
        self.end.set(bytes);
    }

    /// Writes data behind all that was written; what was left out in between is zeros.
    pub fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.zeros_to(at)?;
        (&self.file).write_all(data)?;
        self.at.set(at + data.len() as u64);
        Ok(())
    }

    /// Writes the zeros at the end.
    pub fn finish(&self) -> io::Result<()> {
        self.zeros_to(self.end.get())
    }

    fn zeros_to(&self, to: u64) -> io::Result<()> {
        let mut left = to.checked_sub(self.at.get()).ok_or(io::ErrorKind::InvalidInput)?;
        let zeros = vec![0; usize::try_from(left.min(ZEROS)).unwrap_or(0)];
        while left > 0 {
            let some = left.min(ZEROS);
            (&self.file).write_all(&zeros[..usize::try_from(some).unwrap_or(0)])?;
            left -= some;
        }
        self.at.set(to);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn what_is_left_out_is_zeros_and_nothing_goes_back() {
        let mut file = tempfile::tempfile().expect("a file");
        let output = Output {
            file: file.try_clone().expect("a clone"),
            at: Cell::new(0),
            end: Cell::new(0),
        };
        output.fit(3 * ZEROS);
        output.write(5, b"one").expect("written");
        output.write(2 * ZEROS + 1, b"two").expect("written");
        assert!(output.write(7, b"back").is_err(), "a pipe goes forward only");
        output.finish().expect("written");
        let mut expected = vec![0; 3 * ZEROS as usize];
        expected[5..8].copy_from_slice(b"one");
        expected[2 * ZEROS as usize + 1..][..3].copy_from_slice(b"two");
        let mut found = Vec::new();
        file.rewind().expect("the beginning");
        file.read_to_end(&mut found).expect("read");
        assert!(found == expected);
    }
}
