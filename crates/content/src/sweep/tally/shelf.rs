//! The place of a tally's files: a folder, or RAM when the folder's disk has no room.

use crate::Error;
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_env::{Env, File, Open};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The error of work on a tally.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The tally cannot be believed: everything has to be counted anew.
    Doubt(String),
    /// The shelf takes or gives nothing.
    Shelf(String),
    /// Another error, which ends the sweep.
    Other(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Other(error)
    }
}

impl From<crate::format::Bad> for Trouble {
    fn from(bad: crate::format::Bad) -> Self {
        Trouble::Doubt(bad.to_string())
    }
}

pub(super) type Result<T> = std::result::Result<T, Trouble>;

/// The place of a tally's files.
#[derive(Clone)]
pub(crate) struct Shelf {
    pub(super) env: Env,
    /// The fingerprint of the store, so that no tally of another store is believed.
    pub(super) store: [u8; 16],
    place: Backing,
}

#[derive(Clone)]
enum Backing {
    Folder(PathBuf),
    /// RAM, at most so many bytes of files that are not dropped yet.
    Memory(Arc<Room>),
}

struct Room {
    taken: Mutex<u64>,
    bytes_max: u64,
}

/// Bytes of the disk that are left to others.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

impl Shelf {
    pub(crate) fn folder(env: &Env, store: [u8; 16], folder: &Path) -> Self {
        Self { env: env.clone(), store, place: Backing::Folder(folder.to_owned()) }
    }

    pub(super) fn memory(env: &Env, store: [u8; 16], bytes_max: u64) -> Self {
        let room = Arc::new(Room { taken: Mutex::new(0), bytes_max });
        Self { env: env.clone(), store, place: Backing::Memory(room) }
    }

    /// Whether what is put here outlives the process.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.place, Backing::Folder(_))
    }

    /// Makes the folder, if need be, and fails if its disk has no room.
    pub(crate) async fn prepare(&self) -> Result<()> {
        let Backing::Folder(folder) = &self.place else { return Ok(()) };
        let disk = self.env.disk();
        let made = disk.create_folder(folder).await;
        made.map_err(|error| self.trouble("its folder", &error))?;
        let free = disk.free_bytes(folder).await;
        match free.map_err(|error| self.trouble("its folder", &error))? {
            free if free < FREE_BYTES_MIN => {
                Err(Trouble::Shelf(format!("{} has no room for it", folder.display())))
            }
            _ => Ok(()),
        }
    }

    /// Names of the files that are kept.
    pub(super) async fn names(&self) -> Result<Vec<String>> {
        let Backing::Folder(folder) = &self.place else { return Ok(Vec::new()) };
        match self.env.disk().list(folder).await {
            Ok(found) => Ok(found.into_iter().map(|(name, _)| name).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.trouble("its folder", &error)),
        }
    }

    /// Removes a file. A file that stays is removed by a later start.
    pub(super) async fn remove(&self, name: &str) {
        let Backing::Folder(folder) = &self.place else { return };
        if let Err(error) = self.env.disk().remove(&folder.join(name)).await {
            tracing::debug!(name, %error, "a file of the tally stays behind");
        }
    }

    /// Begins a file. A file of that name is replaced.
    pub(crate) fn write(&self, name: &str) -> Pen {
        Pen {
            shelf: self.clone(),
            name: name.to_owned(),
            file: None,
            buffer: Vec::new(),
            length: 0,
        }
    }

    /// Opens a file.
    pub(super) async fn open(&self, name: &str) -> Result<Sheet> {
        let Backing::Folder(folder) = &self.place else {
            return Err(Trouble::Doubt(format!("{name} was in RAM")));
        };
        let file = self.env.disk().open(&folder.join(name), Open::Read).await;
        let file = file.map_err(|error| Trouble::Doubt(format!("{name}: {error}")))?;
        let length = file.length().await;
        let length = length.map_err(|error| Trouble::Doubt(format!("{name}: {error}")))?;
        Ok(Sheet { medium: Medium::File(file), length })
    }

    /// Puts a small file in place of the one of that name: a crash leaves one of the two. The names
    /// of all files that were written before are durable then, too.
    pub(super) async fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let Backing::Folder(folder) = &self.place else { return Ok(()) };
        let (new, old) = (folder.join(format!("{name}.new")), folder.join(name));
        let disk = self.env.disk();
        let replaced = async {
            let file = disk.open(&new, Open::Create).await?;
            file.set_length(0).await?;
            file.write_at(bytes, 0).await?;
            file.sync_data().await?;
            disk.rename(&new, &old).await?;
            disk.sync_folder(folder).await
        };
        replaced.await.map_err(|error| self.trouble(name, &error))
    }

    fn trouble(&self, name: &str, error: &io::Error) -> Trouble {
        match &self.place {
            Backing::Folder(folder) => {
                Trouble::Shelf(format!("{name} in {}: {error}", folder.display()))
            }
            Backing::Memory(_) => Trouble::Shelf(error.to_string()),
        }
    }
}

/// The writer of a file.
pub(crate) struct Pen {
    shelf: Shelf,
    name: String,
    file: Option<Arc<dyn File>>,
    /// Bytes that are not in the file yet.
    buffer: Vec<u8>,
    length: u64,
}

impl Pen {
    /// Bytes so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) async fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        self.length += bytes.len() as u64;
        match &self.shelf.place {
            Backing::Folder(_) if self.buffer.len() >= WRITE_BYTES => self.flush().await,
            Backing::Memory(room) if self.length > room.bytes_max => Err(room.is_full()),
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<()> {
        let Backing::Folder(folder) = &self.shelf.place else { return Ok(()) };
        let written = async {
            let file = match &self.file {
                Some(file) => file.clone(),
                None => {
                    let path = folder.join(&self.name);
                    let file = self.shelf.env.disk().open(&path, Open::Create).await?;
                    file.set_length(0).await?;
                    self.file.insert(file).clone()
                }
            };
            file.write_at(&self.buffer, self.length - self.buffer.len() as u64).await
        };
        let written = written.await;
        written.map_err(|error| self.shelf.trouble(&self.name, &error))?;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the file; with `syncs` its bytes are durable then.
    pub(crate) async fn end(mut self, syncs: bool) -> Result<Sheet> {
        self.flush().await?;
        let medium = match &self.shelf.place {
            Backing::Memory(room) => Medium::Memory(room.take(self.buffer)?),
            Backing::Folder(_) => {
                let Some(file) = self.file else {
                    return Err(Trouble::Shelf(format!("{} is empty", self.name)));
                };
                if syncs {
                    let synced = file.sync_data().await;
                    synced.map_err(|error| self.shelf.trouble(&self.name, &error))?;
                }
                Medium::File(file)
            }
        };
        Ok(Sheet { medium, length: self.length })
    }
}

impl Room {
    fn is_full(&self) -> Trouble {
        let mebibytes = self.bytes_max >> 20;
        Trouble::Shelf(format!("it takes more than the {mebibytes} MiB of RAM that it may have"))
    }

    /// Takes room for these bytes, for as long as they live.
    fn take(self: &Arc<Self>, bytes: Vec<u8>) -> Result<Bytes> {
        let mut taken = self.taken.lock();
        if *taken + bytes.len() as u64 > self.bytes_max {
            return Err(self.is_full());
        }
        *taken += bytes.len() as u64;
        Ok(Bytes::from_owner(LeasedBytes { bytes, room: self.clone() }))
    }
}

/// Bytes in RAM that give their room back.
struct LeasedBytes {
    bytes: Vec<u8>,
    room: Arc<Room>,
}

impl AsRef<[u8]> for LeasedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LeasedBytes {
    fn drop(&mut self) {
        *self.room.taken.lock() -= self.bytes.len() as u64;
    }
}

/// A file that is complete.
#[derive(Clone)]
pub(crate) struct Sheet {
    medium: Medium,
    length: u64,
}

#[derive(Clone)]
enum Medium {
    File(Arc<dyn File>),
    Memory(Bytes),
}

impl Sheet {
    /// Length, bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) async fn read(&self, begin: u64, length: usize) -> Result<Vec<u8>> {
        let cut = || Trouble::Doubt("a file of the tally is cut off".into());
        let end = begin.checked_add(length as u64).filter(|end| *end <= self.length);
        let end = end.ok_or_else(cut)?;
        match &self.medium {
            Medium::File(file) => {
                let mut buffer = vec![0; length];
                let read = file.read_at(&mut buffer, begin).await;
                read.map_err(|error| Trouble::Doubt(format!("a file of the tally: {error}")))?;
                Ok(buffer)
            }
            Medium::Memory(bytes) => {
                let at = |offset| usize::try_from(offset).map_err(|_| cut());
                Ok(bytes.get(at(begin)?..at(end)?).ok_or_else(cut)?.to_vec())
            }
        }
    }
}
