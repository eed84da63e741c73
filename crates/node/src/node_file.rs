//! `node.json`: the identity of this folder's node, the store that it belongs to, the sizes chosen
//! for it, and its last starts.
//!
//! The file is written before the node promises anything, and at each start; it is read at every
//! start. Room for the next writing is taken beforehand, so that a full disk does not prevent a
//! start ([`NodeFile::make_room`]). The file `node.lock` beside it is locked for the life of the
//! process: the log and the warm memory have one user at a time.

use crate::config::Sizes;
use crate::starts::{Landed, Starts};
use crate::{Error, limits};
use rekindle_base::{Incarnation, NodeId, SegmentId, StoreId};
use rekindle_env::{Env, File, Open};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Name of the file in the daemon's folder.
pub const NAME: &str = "node.json";
/// Newest format version: that of a folder of copies.
pub(crate) const FORMAT: u32 = 3;
/// The format of any other folder.
const FORMAT_OWN: u32 = 2;
/// Longest accepted file, bytes.
const BYTES_MAX: u64 = 64 * 1024;
/// The file is padded with blanks to a multiple of this, bytes, so that the next writing needs no
/// more room.
const ROOM_BYTES: usize = 4096;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
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
    /// The log that belongs to the folder. Absent before the first log, and in files of versions
    /// that did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogNote>,
    /// Name of the warm memory's file, if another file had taken the usual name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<String>,
    /// The folder consists of copies that another machine has kept of the node's log, up to this
    /// start; 0: it is the node's own folder. Only format 3 has it, so that an older binary does
    /// not take the one for the other.
    #[serde(default, skip_serializing_if = "is_own")]
    pub copied_from: Incarnation,
    /// Lost nodes that go on in this folder's process, each from the copies of its log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guests: Vec<GuestNote>,
}

/// A node that a user has adopted, or had taken over by an earlier version. What holders take over
/// by themselves, the node's record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNote {
    pub node: NodeId,
    /// The user's permission that its folder goes on as that node; see [`Starts::permission`]. 0:
    /// its folder needs none.
    pub permission: u64,
    /// Its folder; absent: that of its copies here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
}

fn is_own(copied_from: &Incarnation) -> bool {
    *copied_from == Incarnation(0)
}

/// The log that its folder must hold, so that an absent log is not taken for a new one. Written
/// before a life acknowledges anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogNote {
    /// Newest segment of the log when this was written.
    pub newest: SegmentId,
    /// The life that opened that segment.
    pub incarnation: Incarnation,
    /// The first life in which another log stood in for this one. Nothing was acknowledged from
    /// that other log, so this one may still come back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<Incarnation>,
    /// Whether the log was closed without any needed change: it may be gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// The first life after which each one has closed the log in good order, up to the one that has
    /// opened that segment. Absent: that one. Files of earlier binaries do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbroken_since: Option<Incarnation>,
}

impl LogNote {
    /// Makes the note of a log in use.
    #[must_use]
    pub fn of(known: rekindle_log::Known) -> Self {
        let rekindle_log::Known { newest, incarnation, stand_in } = known;
        Self { newest, incarnation, stand_in, drained: false, unbroken_since: None }
    }
}

/// The fields that every version has.
#[derive(Deserialize)]
struct AnyVersion {
    rekindle: String,
    format: u32,
}

impl NodeFile {
    /// Makes the file of a new node.
    #[must_use]
    pub fn new(node: NodeId, store: StoreId, created: u64, sizes: Sizes, starts: Starts) -> Self {
        let rekindle = "node".to_owned();
        Self {
            rekindle,
            format: FORMAT_OWN,
            node,
            store,
            created,
            sizes,
            starts,
            log: None,
            warm: None,
            copied_from: Incarnation(0),
            guests: Vec::new(),
        }
    }

    /// Makes the file for a folder with copies of this node's log, which another machine keeps. The
    /// log there is as new as its copies, so the file names none.
    #[must_use]
    pub fn of_copies(&self, incarnation: Incarnation) -> Self {
        // No nonce is 0: the record is of another folder, whatever start it names.
        let landed = Some(Landed { incarnation, nonce: 0 });
        let starts = Starts { landed, ..Starts::default() };
        Self {
            format: FORMAT,
            starts,
            log: None,
            warm: None,
            copied_from: incarnation,
            guests: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether the folder is the node's own, and not made of copies of its log.
    #[must_use]
    pub fn is_own(&self) -> bool {
        is_own(&self.copied_from)
    }

    /// Returns the log that the folder must hold, if there is one.
    #[must_use]
    pub fn known_log(&self) -> Option<rekindle_log::Known> {
        let LogNote { newest, incarnation, stand_in, .. } = self.log.filter(|log| !log.drained)?;
        Some(rekindle_log::Known { newest, incarnation, stand_in })
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// Reads the file; `None` if the folder is new.
    pub async fn read(env: &Env, dir: &Path) -> Result<Option<Self>, Error> {
        let path = Self::path(dir);
        let bytes = match env.read_file(&path, BYTES_MAX).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| folder(&path, &error))?,
        };
        decode(&bytes).map(Some).map_err(|reason| match reason {
            Reason::Damaged(reason) => Error::Damaged { path, reason },
            Reason::Newer(found) => Error::Newer { path, found, known: FORMAT },
        })
    }

    /// The bytes of the file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        let mut text = serde_json::to_vec_pretty(self).map_err(io::Error::from)?;
        let room = (text.len() + 1).next_multiple_of(ROOM_BYTES);
        text.resize(room - 1, b' ');
        text.push(b'\n');
        Ok(text)
    }

    /// Writes the file, atomically and durably.
    pub async fn write(&self, env: &Env, dir: &Path) -> Result<(), Error> {
        let path = Self::path(dir);
        let text = self.encode()?;
        let room = text.len();
        let write = async {
            let file = env.disk().open(&temporary(dir), Open::Create).await?;
            file.write_at(&text, 0).await?;
            if file.length().await? > room as u64 {
                file.set_length(room as u64).await?;
            }
            file.sync_data().await?;
            env.disk().rename(&temporary(dir), &path).await?;
            env.disk().sync_folder(dir).await
        };
        write.await.map_err(|error| folder(&path, &error))
    }

    /// Writes the file of a new node, and makes the names of its folder and of those above it
    /// durable: a power cut that took them would leave a node in the store without a folder, for
    /// which every sweep waits.
    pub async fn write_first(&self, env: &Env, dir: &Path) -> Result<(), Error> {
        self.write(env, dir).await?;
        for above in dir.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()) {
            match env.disk().sync_folder(above).await {
                // A folder that this process may not open is not one that it has made.
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                    return Err(folder(above, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Preallocates the file that the next writing fills, so that the writing needs no room on the
    /// disk.
    pub async fn make_room(env: &Env, dir: &Path) -> io::Result<()> {
        let file = env.disk().open(&temporary(dir), Open::Create).await?;
        file.preallocate(ROOM_BYTES as u64).await?;
        env.disk().sync_folder(dir).await
    }
}

fn temporary(dir: &Path) -> PathBuf {
    dir.join("node.json.new")
}

/// The keeper of the file in a folder in use; it has the last written content. One task writes at a
/// time. Clones share the same file.
#[derive(Clone)]
pub struct Keeper {
    env: Env,
    dir: PathBuf,
    file: Arc<tokio::sync::Mutex<NodeFile>>,
}

impl Keeper {
    /// Makes the keeper of a file that is on the disk, or will be.
    #[must_use]
    pub fn new(env: &Env, dir: &Path, file: NodeFile) -> Self {
        let file = Arc::new(tokio::sync::Mutex::new(file));
        Self { env: env.clone(), dir: dir.to_owned(), file }
    }

    /// Changes the file, durably or not at all. Room for the next change is then taken in the
    /// background.
    pub async fn change(&self, change: impl FnOnce(&mut NodeFile)) -> Result<(), Error> {
        let mut held = self.file.lock().await;
        let mut changed = held.clone();
        change(&mut changed);
        changed.format = if changed.is_own() { FORMAT_OWN } else { FORMAT };
        changed.write(&self.env, &self.dir).await?;
        *held = changed;
        drop(held);
        let keeper = self.clone();
        self.env.spawn("node-json-room", async move { keeper.make_room().await });
        Ok(())
    }

    /// Returns the lost nodes that go on in this folder's process.
    pub async fn guests(&self) -> Vec<GuestNote> {
        self.file.lock().await.guests.clone()
    }

    /// The bytes of the file for a folder with copies of this node's log.
    pub async fn of_copies(&self, incarnation: Incarnation) -> Result<Vec<u8>, Error> {
        self.file.lock().await.of_copies(incarnation).encode()
    }

    /// Notes a guest, durably.
    pub async fn note_guest(&self, guest: GuestNote) -> Result<(), Error> {
        self.forget_guest_and(guest.node, Some(guest)).await
    }

    /// Forgets a guest, durably.
    pub async fn forget_guest(&self, guest: NodeId) -> Result<(), Error> {
        self.forget_guest_and(guest, None).await
    }

    async fn forget_guest_and(&self, id: NodeId, new: Option<GuestNote>) -> Result<(), Error> {
        self.change(|file| {
            file.guests.retain(|guest| guest.node != id);
            file.guests.extend(new);
        })
        .await
    }

    async fn make_room(&self) {
        let _one_at_a_time = self.file.lock().await;
        if let Err(error) = NodeFile::make_room(&self.env, &self.dir).await {
            tracing::warn!(%error, "no room is taken for the next start: on a full disk it would wait for some");
        }
    }
}

enum Reason {
    Damaged(String),
    Newer(u32),
}

fn decode(bytes: &[u8]) -> Result<NodeFile, Reason> {
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

fn folder(path: &Path, error: &io::Error) -> Error {
    Error::Folder { path: path.to_owned(), reason: error.to_string() }
}

/// The lock of a folder; dropping it releases the folder.
pub struct FolderLock {
    _file: Arc<dyn File>,
}

impl FolderLock {
    /// Takes the lock. Waits a moment for a dying predecessor, whose supervisor was killed a moment
    /// ago.
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

    fn sample() -> NodeFile {
        let sizes = Sizes { flash_bytes: 1 << 30, warm_bytes: 1 << 28 };
        let starts = Starts {
            landed: Some(Landed { incarnation: Incarnation(5), nonce: 50 }),
            attempts: vec![60, u64::MAX],
            permission: Some(7),
        };
        let created = 1_700_000_000_000_000;
        let file = NodeFile::new(NodeId([7; 16]), StoreId([9; 16]), created, sizes, starts);
        let (newest, incarnation) = (SegmentId(17), Incarnation(5));
        let stand_in = Some(Incarnation(6));
        let unbroken_since = Some(Incarnation(3));
        let log = LogNote { newest, incarnation, stand_in, drained: true, unbroken_since };
        NodeFile { log: Some(log), ..file }
    }

    #[test]
    fn it_survives_text_and_says_what_is_wrong_with_it() {
        let text = serde_json::to_string(&sample()).expect("plain data");
        assert!(matches!(decode(text.as_bytes()), Ok(found) if found == sample()));
        let newer = text.replace("\"format\":2", "\"format\":4");
        assert!(matches!(decode(newer.as_bytes()), Err(Reason::Newer(4))));
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
        let newest = include_bytes!("../golden/node-file-2-unbroken.json");
        assert_eq!(decode(newest), sample());
        let log = sample().log.map(|log| LogNote { unbroken_since: None, ..log });
        let before = NodeFile { log, ..sample() };
        assert_eq!(decode(include_bytes!("../golden/node-file-2.json")), before);
        let mut text = serde_json::to_vec_pretty(&sample()).expect("plain data");
        text.push(b'\n');
        assert_eq!(text, newest);
        let copies = sample().of_copies(Incarnation(5));
        let newest = include_bytes!("../golden/node-file-3.json");
        assert_eq!((decode(newest), copies.is_own()), (copies.clone(), false));
        let mut text = serde_json::to_vec_pretty(&copies).expect("plain data");
        text.push(b'\n');
        assert_eq!(text, newest);
        let unnoted = decode(include_bytes!("../golden/node-file-2-without-log.json"));
        assert_eq!(unnoted, NodeFile { log: None, ..sample() });
        assert_eq!(unnoted.known_log(), None, "nothing is missed after an upgrade");
        let old = decode(include_bytes!("../golden/node-file-1.json"));
        let starts = sample().starts;
        assert_eq!(NodeFile { format: FORMAT_OWN, starts, ..old.clone() }, unnoted);
        assert_eq!(old.starts, Starts::default(), "a time before starts were remembered");
    }

    #[test]
    fn a_guest_is_noted_and_forgotten_durably_and_is_no_guest_of_a_copy() {
        let world = rekindle_env::sim::World::new(1, rekindle_env::sim::Faults::none());
        let (env, dir) = (world.env(), Path::new("/node"));
        let guest =
            |node: u8, permission| GuestNote { node: NodeId([node; 16]), permission, folder: None };
        world.block_on(async {
            env.disk().create_folder(dir).await.unwrap();
            let keeper = Keeper::new(&env, dir, sample());
            for one in [guest(1, 10), guest(2, 20), guest(1, 30)] {
                keeper.note_guest(one).await.expect("written");
            }
            keeper.forget_guest(NodeId([2; 16])).await.expect("written");
            let read = NodeFile::read(&env, dir).await.unwrap().expect("it is there");
            assert_eq!(
                (&read.guests, keeper.guests().await),
                (&vec![guest(1, 30)], read.guests.clone())
            );
            assert_eq!(read.of_copies(Incarnation(5)).guests, []);
        });
    }

    #[test]
    fn a_log_is_missed_unless_it_was_drained() {
        let (newest, incarnation) = (SegmentId(3), Incarnation(2));
        let known = rekindle_log::Known { newest, incarnation, stand_in: Some(Incarnation(5)) };
        let noted = |drained| {
            NodeFile { log: Some(LogNote { drained, ..LogNote::of(known) }), ..sample() }
                .known_log()
        };
        assert_eq!((noted(false), noted(true)), (Some(known), None));
    }

    #[test]
    fn a_full_disk_keeps_no_start_from_being_written_down() {
        let world = rekindle_env::sim::World::new(1, rekindle_env::sim::Faults::none());
        let (env, dir) = (world.env(), Path::new("/node"));
        world.block_on(async {
            env.disk().create_folder(dir).await.unwrap();
            env.disk().sync_folder(Path::new("/")).await.unwrap();
            let keeper = Keeper::new(&env, dir, sample());
            keeper.change(|_| {}).await.expect("there is room");
            env.sleep(Duration::from_secs(1)).await;
            world.set_disk_bytes(0);
            keeper.change(|file| file.created = 1).await.expect("its room was taken beforehand");
            let read = NodeFile::read(&env, dir).await.unwrap().expect("it is there");
            assert_eq!(read, NodeFile { created: 1, ..sample() });
        });
        // The replaced file gives its room back to any writer.
        world.set_disk_bytes(2 << 12);
        for life in 2..9 {
            world.cut_power();
            let env = world.env();
            world.block_on(async {
                let file = NodeFile::read(&env, dir).await.unwrap().expect("it is there");
                let keeper = Keeper::new(&env, dir, file);
                keeper.change(|file| file.created = life).await.expect("a start is written down");
                env.sleep(Duration::from_secs(1)).await;
            });
        }
    }

    #[test]
    fn a_folder_keeps_its_node_and_has_one_user() {
        let folder = tempfile::tempdir().expect("a folder");
        let (env, runtime) = rekindle_env::real::env().expect("an environment");
        runtime.block_on(async {
            let dir = folder.path().join("new");
            let lock = FolderLock::take(&env, &dir).await.expect("free");
            assert!(matches!(NodeFile::read(&env, &dir).await, Ok(None)));
            sample().write(&env, &dir).await.expect("written");
            assert_eq!(NodeFile::read(&env, &dir).await.expect("readable"), Some(sample()));
            assert!(matches!(FolderLock::take(&env, &dir).await, Err(Error::InUse(_))));
            drop(lock);
            assert!(FolderLock::take(&env, &dir).await.is_ok());
        });
    }
}
