//! A mark in the daemon's folder, which stays until an import is whole: `--resume` may only go on
//! with an import that was begun, and only with the same image.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::unusable;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the folder of marks in the daemon's folder: one file for each volume, named by its id.
const FOLDER: &str = "imports";

/// The identity of an image: changed since, it is another image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Image {
    bytes: u64,
    modified_seconds: i64,
    modified_nanoseconds: i64,
    inode: u64,
}

impl Image {
    fn of(file: &Path) -> io::Result<Self> {
        let found = File::open(file)?.metadata()?;
        Ok(Self {
            bytes: found.len(),
            modified_seconds: found.mtime(),
            modified_nanoseconds: found.mtime_nsec(),
            inode: found.ino(),
        })
    }
}

/// The mark of one volume.
pub struct Mark {
    path: PathBuf,
    image: Image,
}

impl Mark {
    /// Makes the mark of the volume `id` of the daemon in `dir`, and of the image in `file`.
    pub fn new(dir: &Path, id: &str, file: &Path) -> Outcome<Self> {
        let image = Image::of(file).map_err(|error| unusable(file, &error))?;
        let name: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        Ok(Self { path: dir.join(FOLDER).join(name), image })
    }

    /// Refuses to go on with an import that was not begun, or with another image.
    pub fn check(&self, volume: &str) -> Outcome {
        let anew =
            format!("--overwrite imports it from the start: the content of '{volume}' is lost");
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = format!("no import into volume '{volume}' broke off here");
                return Err(Failure::usage(what).next(anew));
            }
            Err(error) => return Err(unusable(&self.path, &error)),
        };
        match serde_json::from_slice::<Image>(&text) {
            Ok(image) if image == self.image => Ok(()),
            _ => {
                let what = format!(
                    "the import into volume '{volume}' that broke off was of another image, or the image was changed since"
                );
                Err(Failure::usage(what).next(anew))
            }
        }
    }

    /// Writes the mark: the import begins.
    pub fn set(&self) {
        if let Err(error) = self.write() {
            let path = self.path.display();
            output::tell(&format!(
                "rekindle: cannot note in {path} that the import has begun: {error}; if it breaks off, --resume cannot go on with it"
            ));
        }
    }

    /// Removes the mark: the import is whole.
    pub fn remove(&self) {
        // A mark that stays does harm only when the user goes on with the same image.
        let _ = std::fs::remove_file(&self.path);
    }

    fn write(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        match std::fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let new = self.path.with_extension("new");
        let mut file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(&self.image)?)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_begun_with_the_same_image_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("disk.img");
        std::fs::write(&file, b"disk").expect("a file");
        let mark = |id: &str| Mark::new(folder.path(), id, &file).expect("an image");
        let refused = |id: &str| mark(id).check("vm1").expect_err("refused").error;
        assert!(refused("17").contains("no import"));
        mark("17").set();
        mark("17").check("vm1").expect("it was begun");
        assert!(refused("18").contains("no import"), "another volume, maybe of the same name");
        std::fs::write(&file, b"disc!").expect("a file");
        assert!(refused("17").contains("another image"));
        mark("17").set();
        mark("17").remove();
        assert!(refused("17").contains("no import"));
    }
}
