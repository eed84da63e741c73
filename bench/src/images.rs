//! Disk images with real files: ext4, made of this machine's own files, without a mount.

use crate::data;
use anyhow::{Context, Result, ensure};
use rekindle_base::random::Random;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders whose files each machine has, so that a run needs no download.
const SOURCES: [&str; 2] = ["/usr/lib", "/usr/share"];
/// Share of an image that files and folders take: the journal and the maps need the rest.
const FILLED: f64 = 0.9;
const BLOCK: u64 = 4096;
/// Bytes of an inode; there are two for each file, since folders need some.
const INODE: u64 = 256;
/// No file is larger than this part of an image, so that each picks parts of the bytes as asked.
const FILE_PART: u64 = 64;
/// The time at which a file system and its files are made, seconds since 1970. mke2fs writes it
/// into each inode.
const CREATED: &str = "1790000000";

/// A file of this machine.
#[derive(Debug, Clone)]
pub struct Original {
    pub path: PathBuf,
    pub bytes: u64,
}

impl Original {
    /// Returns the bytes that the file takes in an image.
    fn taken(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK)
    }
}

/// Picks files at random, as many as fill `images` images of that size.
pub fn pick(random: &mut Random, size: u64, images: f64) -> Result<Vec<Original>> {
    let mut files = Vec::new();
    for source in SOURCES {
        list(Path::new(source), &mut files)?;
    }
    // Folders are listed in no order; a seed shall pick the same files each time.
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    shuffle(random, &mut files);
    files.retain(|file| file.bytes < size / FILE_PART);
    let wanted = (size as f64 * FILLED * images) as u64;
    let (mut taken, mut folders) = (0, HashSet::new());
    let enough = files.iter().position(|file| {
        let new = file.path.ancestors().skip(1).filter(|&folder| folders.insert(folder)).count();
        taken += file.taken() + 2 * INODE + new as u64 * BLOCK;
        taken > wanted
    });
    let enough = enough
        .with_context(|| format!("{SOURCES:?} have only {} MiB: a smaller --size", taken >> 20))?;
    files.truncate(enough);
    Ok(files)
}

fn list(folder: &Path, files: &mut Vec<Original>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let (entry, path) = entry.map(|entry| (entry.metadata(), entry.path()))?;
        // A file may be removed meanwhile.
        let Ok(metadata) = entry else { continue };
        if metadata.is_dir() {
            list(&path, files)?;
        } else if metadata.is_file() && metadata.len() > 0 {
            files.push(Original { path, bytes: metadata.len() });
        }
    }
    Ok(())
}

pub fn shuffle<T>(random: &mut Random, values: &mut [T]) {
    for last in (1..values.len()).rev() {
        values.swap(last, random.index(last + 1));
    }
}

/// Splits files so that the first part takes that share of the bytes.
pub fn split(files: &[Original], share: f64) -> (&[Original], &[Original]) {
    let all: u64 = files.iter().map(Original::taken).sum();
    let mut taken = 0;
    let at = files.iter().position(|file| {
        taken += file.taken();
        taken as f64 > all as f64 * share
    });
    files.split_at(at.unwrap_or(files.len()))
}

/// A folder with copies of files, of which images are made.
pub struct Tree {
    pub folder: PathBuf,
    copies: Vec<Original>,
}

impl Tree {
    /// Copies files into a new folder. `name` gives the place of each below that folder.
    pub fn copy(
        folder: PathBuf,
        files: &[Original],
        name: impl Fn(usize, &Original) -> PathBuf,
    ) -> Result<Self> {
        let mut copies = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let path = folder.join(name(index, file));
            std::fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
            std::fs::copy(&file.path, &path)
                .with_context(|| format!("copy {}", file.path.display()))?;
            copies.push(Original { path, bytes: file.bytes });
        }
        // The first read after a write changes the time of access. Images of the folder would
        // differ in it, if the first image were that read.
        for copy in &copies {
            File::open(&copy.path)?.read_exact(&mut [0])?;
        }
        list(&folder, &mut Vec::new())?;
        Ok(Self { folder, copies })
    }

    /// Gives files that have this share of the bytes other content of the same length, half text
    /// and half noise. Blocks of zeros stay: mke2fs makes holes of them, and with fewer holes all
    /// files behind would move.
    pub fn change(&self, random: &mut Random, share: f64) -> Result<()> {
        let mut copies = self.copies.clone();
        shuffle(random, &mut copies);
        for copy in split(&copies, share).0 {
            let half = copy.bytes as usize / 2;
            let mut content = data::text(random, half);
            content.extend(random.bytes(copy.bytes as usize - half));
            let old = std::fs::read(&copy.path)?;
            for (new, old) in content.chunks_mut(BLOCK as usize).zip(old.chunks(BLOCK as usize)) {
                if is_zero(old) {
                    new.fill(0);
                }
            }
            std::fs::write(&copy.path, content)?;
        }
        Ok(())
    }

    /// Makes an ext4 image of the folder. Images of one folder with the same `number` are the same
    /// file system at different times.
    pub fn image(&self, path: PathBuf, size: u64, number: u8) -> Result<Image> {
        let id = format!("{number:08x}-0000-4000-8000-000000000000");
        let mut command = Command::new("mke2fs");
        command
            .args(["-q", "-t", "ext4", "-b", "4096", "-m", "0", "-J", "size=4", "-U", &id, "-E"]);
        command.arg(format!("hash_seed={id}")).env("E2FSPROGS_FAKE_TIME", CREATED);
        command.arg("-N").arg((self.copies.len() * 2 + 1024).to_string());
        command.arg("-d").arg(&self.folder).arg(&path).arg(format!("{}k", size >> 10));
        let output = command.output().context("mke2fs: is e2fsprogs installed?")?;
        ensure!(output.status.success(), "mke2fs: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Image { path, size })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An image; removed on drop.
pub struct Image {
    pub path: PathBuf,
    pub size: u64,
}

/// The blocks of an image, against those of another.
pub struct Shared {
    /// Bytes of the blocks that are not all zeros.
    pub filled: u64,
    /// Of these, the bytes that the other image has too, anywhere.
    pub found: u64,
}

impl Image {
    /// Compares blocks of 4 KiB with those of another image: the duplicates that there are.
    pub fn shared_with(&self, other: &Image) -> Result<Shared> {
        let mut known = HashSet::new();
        other.blocks(|name| {
            known.insert(name);
        })?;
        let mut shared = Shared { filled: 0, found: 0 };
        self.blocks(|name| {
            shared.filled += BLOCK;
            shared.found += if known.contains(&name) { BLOCK } else { 0 };
        })?;
        Ok(shared)
    }

    fn blocks(&self, mut meet: impl FnMut([u8; 32])) -> Result<()> {
        let mut file = File::open(&self.path)?;
        let mut buffer = vec![0; 1 << 20];
        for _ in 0..self.size >> 20 {
            file.read_exact(&mut buffer)?;
            buffer
                .chunks(BLOCK as usize)
                .filter(|block| !is_zero(block))
                .for_each(|block| meet(*blake3::hash(block).as_bytes()));
        }
        Ok(())
    }
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|&byte| byte == 0)
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(lengths: &[u64]) -> Vec<Original> {
        lengths.iter().map(|&bytes| Original { path: PathBuf::new(), bytes }).collect()
    }

    #[test]
    fn files_are_split_by_the_blocks_that_they_take() {
        let four = files(&[1, 1, 1, 4096]);
        let (first, rest) = split(&four, 0.5);
        assert_eq!((first.len(), rest.len()), (2, 2));
        assert_eq!(split(&four, 1.0).1.len(), 0);
    }

    #[test]
    fn blocks_are_found_wherever_they_lie_and_zeros_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let image = |name: &str, blocks: [u8; 256]| {
            let path = folder.path().join(name);
            let bytes: Vec<u8> = blocks.iter().flat_map(|&byte| [byte; 4096]).collect();
            std::fs::write(&path, bytes).unwrap();
            Image { path, size: 1 << 20 }
        };
        let (mut one, mut other) = ([0; 256], [0; 256]);
        (one[0], one[1], other[7], other[8]) = (1, 2, 2, 3);
        let shared = image("one", one).shared_with(&image("other", other)).unwrap();
        assert_eq!((shared.filled, shared.found), (2 * 4096, 4096));
    }
}
