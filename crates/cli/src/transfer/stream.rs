//! Images in pipes: raw ones, from standard input and to standard output.

use super::Watch;
use crate::nbd::Breaker;
use rekindle_base::Kind;
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, dup, read, retry_on_intr, write};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal, Stdin};
use std::os::fd::{AsRawFd, OwnedFd};
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
        let failed = |errno: Errno| {
            Failure::new("standard input cannot be read").because(io::Error::from(errno))
        };
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
    file: OwnedFd,
    /// Ends the wait for a reader that takes nothing.
    breaker: Breaker,
    at: Cell<u64>,
    end: Cell<u64>,
}

impl Output {
    /// Opens standard output, which must not be a terminal; returns its file, too. `breaker` ends
    /// waits for its reader.
    pub fn open(breaker: &Breaker) -> Outcome<(Self, File)> {
        let output = io::stdout();
        if output.is_terminal() {
            return Err(Failure::usage("standard output is a terminal")
                .next("`rekindle volume export vm1 - | zstd > vm1.img.zst`"));
        }
        let failed = |errno: Errno| write_failed(&errno.into());
        let same = dup(&output).map_err(failed)?;
        let file = match patient(&same) {
            Some(file) => file,
            None => dup(&output).map_err(failed)?,
        };
        let breaker = breaker.clone();
        Ok((Self { file, breaker, at: Cell::new(0), end: Cell::new(0) }, same.into()))
    }

    /// Sets the count of all bytes.
    pub fn fit(&self, bytes: u64) {
        self.end.set(bytes);
    }

    /// Writes data behind all that was written; what was left out in between is zeros.
    pub fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.zeros_to(at)?;
        self.put(data)?;
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
            self.put(&zeros[..usize::try_from(some).unwrap_or(0)])?;
            left -= some;
        }
        self.at.set(to);
        Ok(())
    }

    fn put(&self, data: &[u8]) -> io::Result<()> {
        let mut left = data;
        while !left.is_empty() {
            if self.breaker.is_broken() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match retry_on_intr(|| write(&self.file, left)) {
                Ok(count) => left = &left[count..],
                Err(Errno::AGAIN) => {
                    let mut wanted = [PollFd::new(&self.file, PollFlags::OUT)];
                    retry_on_intr(|| poll(&mut wanted, Some(&LOOK)))?;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Opens a pipe anew, so that no write into it waits. The flag of the pipe that was given is shared
/// with other programs.
fn patient(output: &OwnedFd) -> Option<OwnedFd> {
    let is_pipe = fstat(output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_fifo());
    let path = format!("/proc/self/fd/{}", output.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    is_pipe.then(|| open(path, flags, Mode::empty()).ok()).flatten()
}

/// The error of a write to standard output.
pub fn write_failed(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Failure::new("the program that reads standard output has ended before the disk did")
                .kind(Kind::Io)
        }
        _ => Failure::new("standard output cannot be written").because(error),
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
            file: file.try_clone().expect("a clone").into(),
            breaker: Breaker::default(),
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

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test of a wait on the real machine")]
    fn a_reader_that_takes_nothing_keeps_no_user_from_ending_it() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let writer = OwnedFd::from(writer);
        let file = patient(&writer).expect("a pipe");
        let flags = rustix::fs::fcntl_getfl(&file).expect("flags");
        assert!(flags.contains(OFlags::NONBLOCK), "else this test would not end");
        let breaker = Breaker::default();
        let output = Output { file, breaker: breaker.clone(), at: Cell::new(0), end: Cell::new(0) };
        let ending = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            breaker.break_off();
        });
        output.write(0, &vec![1; 4 << 20]).expect_err("it was broken off");
        ending.join().expect("it has ended");
        // The given end waits as before.
        let flags = rustix::fs::fcntl_getfl(&writer).expect("flags");
        assert!(!flags.contains(OFlags::NONBLOCK));
        drop(reader);
        let gone = rustix::io::write(&writer, &[0]).expect_err("no reader").into();
        assert!(write_failed(&gone).error.contains("has ended before"));
    }
}
