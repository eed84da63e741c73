//! The archive that a kernel unpacks as its first root: `newc` cpio, as described in
//! `Documentation/driver-api/early-userspace`.
//!
//! ```text
//! entry   "070701" and 13 numbers of 8 hexadecimal digits:
//!         inode mode uid gid links mtime size device(4) name-length checksum(0)
//!         name with its NUL, filled up to 4; bytes, filled up to 4
//! the last entry is called TRAILER!!!
//! ```

use std::collections::BTreeSet;
use std::path::{Component, Path};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const TRAILER: &str = "TRAILER!!!";

/// An archive that grows. Everything in it belongs to root, and has no time.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a folder, with those above it.
    pub fn folder(&mut self, path: &str) {
        let mut above = String::new();
        for part in Path::new(path).components() {
            let Component::Normal(part) = part else { continue };
            if !above.is_empty() {
                above.push('/');
            }
            above.push_str(&part.to_string_lossy());
            if self.folders.insert(above.clone()) {
                self.entry(&above.clone(), FOLDER | 0o755, &[]);
            }
        }
    }

    /// Adds a file, with its folders.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path.trim_start_matches('/'), FILE | permissions, content);
    }

    /// Adds a symbolic link, with its folders.
    pub fn link(&mut self, path: &str, to: &str) {
        self.parents(path);
        self.entry(path.trim_start_matches('/'), LINK | 0o777, to.as_bytes());
    }

    /// Ends the archive and returns its bytes.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let length = u32::try_from(content.len()).expect("a file of an initramfs is below 4 GiB");
        let name_length = u32::try_from(name.len() + 1).expect("a name is short");
        let numbers = [self.inode, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0]
            .map(|number| format!("{number:08x}"));
        self.bytes.extend(b"070701");
        self.bytes.extend(numbers.concat().bytes());
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.fill();
        self.bytes.extend(content);
        self.fill();
    }

    fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_come_once() {
        let mut archive = Archive::default();
        archive.file("/lib/a/x.ko", 0o644, b"12345");
        archive.file("/lib/a/y.ko", 0o644, b"");
        archive.link("init", "bin/rekindle");
        let bytes = archive.finish();
        assert!(bytes.len().is_multiple_of(4));
        let mut names = Vec::new();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            assert_eq!(&rest[..6], b"070701");
            let number = |field: usize| {
                let text =
                    std::str::from_utf8(&rest[6 + field * 8..14 + field * 8]).expect("digits");
                usize::from_str_radix(text, 16).expect("digits")
            };
            let (mode, size, name_length) = (number(1), number(6), number(11));
            let name = String::from_utf8_lossy(&rest[110..110 + name_length - 1]).into_owned();
            let data = (110 + name_length).next_multiple_of(4);
            names.push((name, mode, rest[data..data + size].to_vec()));
            rest = &rest[(data + size).next_multiple_of(4)..];
        }
        let found: Vec<_> =
            names.iter().map(|(name, mode, _)| (name.as_str(), mode & 0o170_000)).collect();
        assert_eq!(
            found,
            [
                ("lib", 0o040_000),
                ("lib/a", 0o040_000),
                ("lib/a/x.ko", 0o100_000),
                ("lib/a/y.ko", 0o100_000),
                ("init", 0o120_000),
                (TRAILER, 0)
            ]
        );
        assert_eq!(
            (names[2].2.as_slice(), names[4].2.as_slice()),
            (&b"12345"[..], &b"bin/rekindle"[..])
        );
    }
}
