//! A mark in the daemon's folder, which stays until an import is whole: `--resume` may only go on
//! with an import that was begun, and only with the same image.
#![expect(clippy::disallowed_methods, reason = "the command line works on the real machine")]

use super::unusable;
use rekindle_env::real::folder::Folder;
use rekindle_supervise::access::IMPORTS;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// The mark of one volume: a file in the folder [`IMPORTS`], named by the volume's id.
pub struct Mark {
    dir: PathBuf,
    name: String,
    image: Image,
}

impl Mark {
    /// Makes the mark of the volume `id` of the daemon in `dir`, and of the image in `file`.
    pub fn new(dir: &Path, id: &str, file: &Path) -> Outcome<Self> {
        let image = Image::of(file).map_err(|error| unusable(file, &error))?;
        let name: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        Ok(Self { dir: dir.to_owned(), name, image })
    }

    /// Refuses to go on with an import that was not begun, or with another image.
    pub fn check(&self, volume: &str) -> Outcome {
        let anew =
            format!("--overwrite imports it from the start: the content of '{volume}' is lost");
        let text = match self.folder().and_then(|folder| folder.read(&self.name)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = format!("no import into volume '{volume}' broke off here");
                return Err(Failure::usage(what).next(anew));
            }
            Err(error) => return Err(unusable(&self.path(), &error)),
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
            output::tell(&format!(
                "rekindle: cannot note in {} that the import has begun: {error}; if it breaks off, --resume cannot go on with it",
                self.path().display()
            ));
        }
    }

    /// Removes the mark: the import is whole.
    pub fn remove(&self) {
        // A mark that stays does harm only when the user goes on with the same image.
        let _ = self.folder().and_then(|folder| folder.remove(&self.name));
    }

    fn write(&self) -> io::Result<()> {
        let folder = self.folder()?;
        let text = serde_json::to_vec(&self.image)?;
        folder.write(&self.name, &format!("{}.new", self.name), &text)?;
        folder.sync(&self.name)
    }

    /// Opens the folder of marks. The daemon may be another user's, and that user may have put
    /// anything into its folder: then there are no marks.
    fn folder(&self) -> io::Result<Folder> {
        Folder::open_own(&self.dir)?.own_folder(IMPORTS)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(IMPORTS).join(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_supervise::access::is_ours;
    use std::os::unix::fs::{chown, symlink};

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
        let made = std::fs::read_dir(folder.path()).expect("ours").flatten();
        let other = |entry: &std::fs::DirEntry| entry.file_name() != "disk.img";
        for entry in made.filter(other) {
            assert!(is_ours(&entry.file_name()), "a daemon would not close the folder: {entry:?}");
        }
    }

    #[test]
    fn a_link_is_not_written_through_and_no_mark_goes_into_another_users_folder() {
        let place = tempfile::tempdir().expect("a folder");
        let dir = place.path().join("d");
        let (file, victim) = (place.path().join("disk.img"), place.path().join("victim"));
        std::fs::write(&file, b"disk").expect("a file");
        std::fs::write(&victim, b"precious").expect("a file");
        std::fs::create_dir_all(dir.join(IMPORTS)).expect("a folder");
        let mark = Mark::new(&dir, "17", &file).expect("an image");
        symlink(&victim, dir.join(IMPORTS).join("17.new")).expect("a link");
        mark.set();
        mark.check("vm1").expect("it was begun");
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(65534), None).expect("root may");
            assert!(mark.check("vm1").expect_err("refused").cause.is_some());
            mark.remove();
            mark.set();
            chown(&dir, Some(0), None).expect("root may");
            mark.check("vm1").expect("nothing was removed");
        }
        assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
    }
}
