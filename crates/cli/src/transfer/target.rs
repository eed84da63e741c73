//! The target of an export: a file that has its name only when it is whole, a block device, or
//! standard output.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::stream::{self, Output};
use super::unusable;
use crate::nbd::Breaker;
use rekindle_base::Kind;
use rekindle_terminal::failure::{Failure, Outcome};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Zeros written at once.
const ZEROS: usize = 1 << 20;

/// An open target; an unfinished file is removed when the target is dropped.
pub struct Target {
    /// The path that was asked for.
    path: PathBuf,
    pub file: File,
    place: Place,
    force: bool,
}

enum Place {
    /// A file, with its name until it is whole.
    Part(PathBuf),
    /// A file that has its own name.
    Whole,
    Device,
    Stream(Output),
}

impl Target {
    /// Opens a target. `force`: its content may be lost. `breaker` ends waits for the reader of a
    /// stream.
    pub fn open(path: &Path, force: bool, breaker: &Breaker) -> Outcome<Self> {
        if stream::is_standard(path) {
            let (output, file) = Output::open(breaker)?;
            return Ok(Self { path: path.to_owned(), file, place: Place::Stream(output), force });
        }
        let failed = |error: io::Error| unusable(path, &error);
        // Through links: a link in /dev/disk leads to a device all the same.
        let device = std::fs::metadata(path).ok().map(|found| found.file_type());
        let there = match std::fs::symlink_metadata(path) {
            Ok(found) => Some(device.unwrap_or(found.file_type())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if there.is_some_and(is_strange) {
            return Err(Failure::usage(format!("{} is no file and no disk", path.display()))
                .next("choose another name"));
        }
        if there.is_some() && !force {
            return Err(exists(path));
        }
        if there.is_some_and(|kind| kind.is_block_device()) {
            // Exclusively: a mounted device is refused.
            let flags = OFlags::EXCL | OFlags::NOFOLLOW;
            let path = path.canonicalize().map_err(failed)?;
            let open =
                File::options().write(true).custom_flags(flags.bits().cast_signed()).open(&path);
            let file = open.map_err(failed)?;
            if !file.metadata().map_err(failed)?.file_type().is_block_device() {
                return Err(Failure::new(format!("{} is no disk any more", path.display())));
            }
            return Ok(Self { path, file, place: Place::Device, force });
        }
        let (file, part) = fresh(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, place: Place::Part(part), force })
    }

    /// Whether the target is a device: bytes that are not written keep their former content.
    pub fn is_device(&self) -> bool {
        matches!(self.place, Place::Device)
    }

    /// Whether the target is a stream: what is written goes behind all that was.
    pub fn is_stream(&self) -> bool {
        matches!(self.place, Place::Stream(_))
    }

    /// Makes room for so many bytes, or checks that a device has it.
    pub fn fit(&self, bytes: u64) -> Outcome {
        let failed = |error: io::Error| unusable(&self.path, &error);
        match &self.place {
            Place::Device => {}
            Place::Stream(output) => {
                output.fit(bytes);
                return Ok(());
            }
            Place::Part(_) | Place::Whole => return self.file.set_len(bytes).map_err(failed),
        }
        let size = rustix::fs::seek(&self.file, SeekFrom::End(0));
        let size = size.map_err(|error| failed(error.into()))?;
        if size < bytes {
            return Err(Failure::usage(format!(
                "{} has {size} bytes, the volume {bytes}",
                self.path.display()
            )));
        }
        Ok(())
    }

    pub fn write(&self, at: u64, data: &[u8]) -> Outcome {
        let written = match &self.place {
            Place::Stream(output) => output.write(at, data),
            _ => self.file.write_all_at(data, at),
        };
        written.map_err(|error| match self.is_stream() {
            true => stream::write_failed(&error),
            false => unusable(&self.path, &error),
        })
    }

    /// Writes zeros. A fresh file has them already, and a stream gets them with what follows.
    pub fn zeros(&self, at: u64, length: u64) -> Outcome {
        if !self.is_device() {
            return Ok(());
        }
        zeros(&self.file, at, length).map_err(|error| unusable(&self.path, &error))
    }

    /// Gives a whole file its name, for good.
    pub fn finish(mut self) -> Outcome {
        let failed = |error: io::Error| unusable(&self.path, &error);
        if let Place::Stream(output) = &self.place {
            return output.finish().map_err(|error| stream::write_failed(&error));
        }
        self.file.sync_all().map_err(failed)?;
        let Place::Part(part) = &self.place else { return Ok(()) };
        match publish(&self.file, part, &self.path, self.force) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(exists(&self.path));
            }
            published => published.map_err(failed)?,
        }
        self.place = Place::Whole;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
        folder.sync_all().map_err(failed)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Place::Part(part) = &self.place
            && is_of(part, &self.file).unwrap_or(false)
        {
            let _ = std::fs::remove_file(part);
        }
    }
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!("{} is there already", path.display()))
        .next("choose another name, or replace it with --force")
        .kind(Kind::Exists)
}

fn is_strange(kind: FileType) -> bool {
    kind.is_dir() || kind.is_fifo() || kind.is_socket() || kind.is_char_device()
}

/// Makes a new file beside `path`, for its user only, under a name that cannot be foreseen.
fn fresh(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let ending = format!(".{:016x}.part", u64::from_le_bytes(random));
    // A name has 255 bytes at most.
    let name = &name.as_bytes()[..name.len().min(200)];
    let mut part = std::ffi::OsString::from(".");
    part.push(std::ffi::OsStr::from_bytes(name));
    part.push(ending);
    let part = path.with_file_name(part);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&part)?;
    Ok((file, part))
}

/// Whether the name leads to the open file.
fn is_of(path: &Path, file: &File) -> io::Result<bool> {
    let (named, open) = (std::fs::symlink_metadata(path)?, file.metadata()?);
    Ok((named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// Gives the open file its name. Without `force`, only a name that no file has.
fn publish(file: &File, part: &Path, path: &Path, force: bool) -> io::Result<()> {
    let taken = || io::Error::other("another program has put another file in its place");
    if !is_of(part, file)? {
        return Err(taken());
    }
    if force {
        std::fs::rename(part, path)?;
    } else {
        match rustix::fs::renameat_with(CWD, part, CWD, path, RenameFlags::NOREPLACE) {
            // Not every file system knows NOREPLACE. A hard link is refused where the name exists,
            // too.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(CWD, part, CWD, path, AtFlags::empty())?;
                std::fs::remove_file(part)?;
            }
            renamed => renamed?,
        }
    }
    if is_of(path, file)? { Ok(()) } else { Err(taken()) }
}

fn zeros(file: &File, at: u64, length: u64) -> io::Result<()> {
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    if rustix::fs::fallocate(file, flags, at, length).is_ok() {
        return Ok(());
    }
    let nothing = vec![0; ZEROS];
    let mut done = 0;
    while done < length {
        let step = (length - done).min(ZEROS as u64);
        file.write_all_at(&nothing[..usize::try_from(step).unwrap_or(0)], at + done)?;
        done += step;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let entries = || std::fs::read_dir(folder.path()).expect("a folder").count();
        let target = Target::open(&folder.path().join("a.img"), false, &Breaker::default())
            .expect("a target");
        assert_eq!(target.file.metadata().expect("there").mode() & 0o777, 0o600);
        assert_eq!(entries(), 1);
        drop(target);
        assert_eq!(entries(), 0);
    }

    #[test]
    fn of_two_with_one_name_the_second_is_refused_and_each_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.img");
        let [one, other] = [1, 2].map(|byte| {
            let target =
                Target::open(&path, false, &Breaker::default()).expect("nothing is there yet");
            target.write(0, &[byte; 8]).expect("written");
            target
        });
        one.finish().expect("whole");
        let failure = other.finish().expect_err("it is there");
        assert_eq!(failure.kind, Kind::Exists.to_string());
        assert_eq!(std::fs::read(&path).expect("there"), [1; 8]);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn another_file_in_the_place_of_the_part_does_not_get_the_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.img");
        for force in [false, true] {
            let target = Target::open(&path, force, &Breaker::default()).expect("a target");
            let Place::Part(part) = &target.place else { panic!("a file") };
            let part = part.clone();
            std::fs::remove_file(&part).expect("there");
            std::fs::write(&part, b"of somebody else").expect("a file");
            target.finish().expect_err("it is not ours");
            assert!(!path.exists());
            assert_eq!(std::fs::read(part).expect("it stays"), b"of somebody else");
        }
    }

    #[test]
    fn zeros_are_written_where_something_may_be() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&vec![7; 3 * ZEROS], 0).expect("written");
        let target = Target { path: "disk".into(), file, place: Place::Device, force: true };
        target.zeros(100, 2 * ZEROS as u64).expect("written");
        target.fit(3 * ZEROS as u64).expect("it has room");
        assert!(target.fit(3 * ZEROS as u64 + 1).is_err(), "a disk does not grow");
        let mut found = vec![1; 3 * ZEROS];
        target.file.read_exact_at(&mut found, 0).expect("read");
        assert!(found[100..100 + 2 * ZEROS].iter().all(|&byte| byte == 0));
        assert!(found[..100].iter().chain(&found[100 + 2 * ZEROS..]).all(|&byte| byte == 7));
    }
}
