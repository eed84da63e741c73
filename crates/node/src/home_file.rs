//! `node.json`: who this folder's node is, which store it belongs to, the sizes chosen for it, and its last starts.
//!
//! Written before anything is promised to anybody, and at each start; read at every start. With it goes `node.lock`, whose lock is
//! held for as long as the process lives: the log and the warm memory have one user at a time.

use crate::config::Sizes;
use crate::starts::Starts;
use crate::{Error, limits};
use base::{NodeId, StoreId};
use env::{Env, File, Open};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Newest format version.
pub(crate) const FORMAT: u32 = 2;
/// Longest file that we read, bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeFile {
    /// Always "node".
    rekindle: String,
    format: u32,
    pub node: NodeId,
    pub store: StoreId,
    /// Microseconds since 1970.
    pub created: u64,
    pub sizes: Sizes,
    /// Format 1 did not have it.
    #[serde(default)]
    pub starts: Starts,
}

/// Only what every version will have.
#[derive(Deserialize)]
struct AnyVersion {
    rekindle: String,
    format: u32,
}

impl HomeFile {
    /// Of a new node.
    #[must_use]
    pub fn new(node: NodeId, store: StoreId, created: u64, sizes: Sizes, starts: Starts) -> Self {
        Self { rekindle: "node".to_owned(), format: FORMAT, node, store, created, sizes, starts }
    }

    /// The same with other starts, in the newest format.
    #[must_use]
    pub fn with_starts(&self, starts: Starts) -> Self {
        Self { format: FORMAT, starts, ..self.clone() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("node.json")
    }

    /// Reads it; `None` when the folder is new.
    pub async fn read(env: &Env, dir: &Path) -> Result<Option<Self>, Error> {
        let path = Self::path(dir);
        let bytes = match contents(env, &path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| folder(&path, &error))?,
        };
        decode(&bytes).map(Some).map_err(|reason| match reason {
            Reason::Damaged(reason) => Error::Damaged { path, reason },
            Reason::Newer(found) => Error::Newer { path, found, known: FORMAT },
        })
    }

    /// Writes it, whole or not at all, and durably.
    pub async fn write(&self, env: &Env, dir: &Path) -> Result<(), Error> {
        let path = Self::path(dir);
        let temporary = dir.join("node.json.new");
        let mut text = serde_json::to_vec_pretty(self).map_err(io::Error::from)?;
        text.push(b'\n');
        let write = async {
            let file = env.disk().open(&temporary, Open::Create).await?;
            file.set_length(0).await?;
            file.write_at(&text, 0).await?;
            file.sync_data().await?;
            env.disk().rename(&temporary, &path).await?;
            env.disk().sync_folder(dir).await
        };
        write.await.map_err(|error| folder(&path, &error))
    }
}

enum Reason {
    Damaged(String),
    Newer(u32),
}

fn decode(bytes: &[u8]) -> Result<HomeFile, Reason> {
    let damaged = |error: serde_json::Error| Reason::Damaged(error.to_string());
    let any: AnyVersion = serde_json::from_slice(bytes).map_err(damaged)?;
    if any.rekindle != "node" {
        return Err(Reason::Damaged(format!("it is a '{}', not a 'node'", any.rekindle)));
    }
    if any.format > FORMAT {
        return Err(Reason::Newer(any.format));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

async fn contents(env: &Env, path: &Path) -> io::Result<Vec<u8>> {
    let file = env.disk().open(path, Open::Read).await?;
    let length = file.length().await?;
    if length > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is far too long"));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_at(&mut bytes, 0).await?;
    Ok(bytes)
}

fn folder(path: &Path, error: &io::Error) -> Error {
    Error::Folder { path: path.to_owned(), reason: error.to_string() }
}

/// The lock of a folder. Dropping it gives the folder back.
pub struct FolderLock {
    _file: Arc<dyn File>,
}

impl FolderLock {
    /// Takes it, waiting a moment for a predecessor that is just dying: its supervisor was killed, and the kernel has
    /// not got to it yet.
    pub async fn take(env: &Env, dir: &Path) -> Result<Self, Error> {
        let path = dir.join("node.lock");
        env.disk().create_folder(dir).await.map_err(|error| folder(dir, &error))?;
        let file =
            env.disk().open(&path, Open::Create).await.map_err(|error| folder(&path, &error))?;
        let deadline = env.now() + limits::PREDECESSOR_WAIT;
        loop {
            match file.try_lock() {
                Ok(true) => return Ok(Self { _file: file }),
                Ok(false) if env.now() < deadline => env.sleep(Duration::from_millis(5)).await,
                Ok(false) => return Err(Error::InUse(dir.to_owned())),
                Err(error) => return Err(folder(&path, &error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::starts::Landed;
    use base::Incarnation;

    fn sample() -> HomeFile {
        let sizes = Sizes { flash_bytes: 1 << 30, warm_bytes: 1 << 28 };
        let starts = Starts {
            landed: Some(Landed { incarnation: Incarnation(5), nonce: 50 }),
            attempts: vec![60, u64::MAX],
            permission: Some(7),
        };
        HomeFile::new(NodeId([7; 16]), StoreId([9; 16]), 1_700_000_000_000_000, sizes, starts)
    }

    #[test]
    fn it_survives_text_and_says_what_is_wrong_with_it() {
        let text = serde_json::to_string(&sample()).expect("plain data");
        assert!(matches!(decode(text.as_bytes()), Ok(found) if found == sample()));
        let newer = text.replace("\"format\":2", "\"format\":3");
        assert!(matches!(decode(newer.as_bytes()), Err(Reason::Newer(3))));
        for bad in [
            "",
            "{}",
            "[]",
            "{\"rekindle\":\"store\",\"format\":1}",
            "{\"rekindle\":\"node\",\"format\":1}",
        ] {
            assert!(matches!(decode(bad.as_bytes()), Err(Reason::Damaged(_))), "{bad}");
        }
    }

    #[test]
    fn the_golden_images_are_read_and_the_newest_is_written() {
        let decode = |bytes: &[u8]| decode(bytes).ok().expect("readable");
        let newest = include_bytes!("../golden/home-2.json");
        assert_eq!(decode(newest), sample());
        let mut text = serde_json::to_vec_pretty(&sample()).expect("plain data");
        text.push(b'\n');
        assert_eq!(text, newest);
        let old = decode(include_bytes!("../golden/home-1.json"));
        assert_eq!(old.with_starts(sample().starts), sample());
        assert_eq!(old.starts, Starts::default(), "a time before starts were remembered");
    }

    #[test]
    fn a_folder_keeps_its_node_and_has_one_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let (env, runtime) = env::real::env().expect("an environment");
        runtime.block_on(async {
            let dir = folder.path().join("new");
            let lock = FolderLock::take(&env, &dir).await.expect("free");
            assert!(matches!(HomeFile::read(&env, &dir).await, Ok(None)));
            sample().write(&env, &dir).await.expect("written");
            assert_eq!(HomeFile::read(&env, &dir).await.expect("readable"), Some(sample()));
            assert!(matches!(FolderLock::take(&env, &dir).await, Err(Error::InUse(_))));
            drop(lock);
            assert!(FolderLock::take(&env, &dir).await.is_ok());
        });
    }
}
