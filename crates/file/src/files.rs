//! The file system: a front's view of a file volume in service.

use crate::types::{
    Allocate, Attr, Caller, Entry, Errno, Error, Ino, NewNode, Origin, Rename, Seek, SetAttr,
    SetXattr, Space,
};
use bytes::Bytes;
use rekindle_volume::{Handle, Volumes};

/// A file volume in service. Clones mean the same one.
#[derive(Clone)]
pub struct Files {
    handle: Handle,
}

type Done<T> = Result<T, Error>;

#[allow(clippy::unused_async, unused_variables)]
impl Files {
    /// Attaches a volume. A volume of another kind is refused, and stays as it is.
    pub async fn attach(volumes: &Volumes, name: &str) -> Result<Self, rekindle_volume::Error> {
        Ok(Self { handle: volumes.attach_as(name, "file").await? })
    }
    /// Returns the handle that keeps the volume in service.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
    /// Whether a change with this origin was carried out before: its reply was lost.
    pub async fn was_done(&self, origin: Origin) -> bool {
        false
    }
    pub async fn lookup(&self, dir: Ino, name: &[u8]) -> Done<Attr> {
        Err(Errno::NOSYS.into())
    }
    pub async fn attr(&self, ino: Ino) -> Done<Attr> {
        Err(Errno::NOSYS.into())
    }
    pub async fn set_attr(&self, caller: Caller, ino: Ino, set: &SetAttr) -> Done<Attr> {
        Err(Errno::NOSYS.into())
    }
    pub async fn create(
        &self,
        caller: Caller,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Done<Attr> {
        Err(Errno::NOSYS.into())
    }
    pub async fn link(&self, caller: Caller, ino: Ino, dir: Ino, name: &[u8]) -> Done<Attr> {
        Err(Errno::NOSYS.into())
    }
    pub async fn unlink(&self, caller: Caller, dir: Ino, name: &[u8]) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn remove_dir(&self, caller: Caller, dir: Ino, name: &[u8]) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn rename(
        &self,
        caller: Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn read_link(&self, ino: Ino) -> Done<Bytes> {
        Err(Errno::NOSYS.into())
    }
    /// Reads at most `length` bytes; fewer at the end of the file.
    pub async fn read(&self, ino: Ino, offset: u64, length: usize) -> Done<Bytes> {
        Err(Errno::NOSYS.into())
    }
    /// Writes all of `data`, at most 1 MiB. Not durable before [`Files::sync`].
    pub async fn write(&self, caller: Caller, ino: Ino, offset: u64, data: &[u8]) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn allocate(
        &self,
        caller: Caller,
        ino: Ino,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Done<u64> {
        Err(Errno::NOSYS.into())
    }
    /// Lists names of a directory in the order of their positions, those behind `after` (0: all),
    /// at most `count`. `.` and `..` are not among them.
    pub async fn list(&self, dir: Ino, after: u64, count: usize) -> Done<Vec<Entry>> {
        Err(Errno::NOSYS.into())
    }
    /// Returns the directory that holds a directory; the root holds itself.
    pub async fn parent(&self, dir: Ino) -> Done<Ino> {
        Err(Errno::NOSYS.into())
    }
    pub async fn xattr(&self, ino: Ino, name: &[u8]) -> Done<Bytes> {
        Err(Errno::NOSYS.into())
    }
    pub async fn set_xattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn remove_xattr(&self, caller: Caller, ino: Ino, name: &[u8]) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn list_xattrs(&self, ino: Ino) -> Done<Vec<Bytes>> {
        Err(Errno::NOSYS.into())
    }
    pub async fn space(&self) -> Done<Space> {
        Err(Errno::NOSYS.into())
    }
    /// Makes everything that was answered so far durable.
    pub async fn sync(&self) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    /// Notes that a client uses an inode: without a name it stays until the last [`Files::close`].
    pub async fn open(&self, ino: Ino) -> Done<()> {
        Err(Errno::NOSYS.into())
    }
    pub async fn close(&self, ino: Ino) {}
}
