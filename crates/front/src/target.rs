//! The interface of the servers of file systems, FUSE and NFS: a file system.

use bytes::Bytes;
use rekindle_base::Kind;
use rekindle_env::Moment;
use rekindle_file::{
    Acl, AclOf, Allocate, Attr, Caller, Entry, Errno, Error, Files, Ino, KeptLately, NewNode,
    Origin, Rename, Rights, Seek, SetAttr, SetXattr, Space, joined,
};
use rekindle_staging::Error as StagingError;
use rekindle_volume::Error as VolumeError;
use std::future::Future;
use tokio::sync::watch;

#[cfg(test)]
pub(crate) mod testing;

type Done<T> = Result<T, Error>;

/// Why a request has no reply of success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// The client is told.
    Errno(Errno),
    /// The volume is not served here any more, or the daemon stops: the client gets no reply, and
    /// asks again over its next connection.
    HangUp,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let error = match error {
            Error::Posix(errno) => return Self::Errno(errno),
            Error::Volume(error) => error,
        };
        let is_over = matches!(
            &error,
            VolumeError::Stopping
                | VolumeError::Interrupted(_)
                | VolumeError::Staging(StagingError::Closed(_) | StagingError::Unleased(_))
        );
        match error.kind() {
            Kind::Fenced => Self::HangUp,
            _ if is_over => Self::HangUp,
            Kind::Full => Self::Errno(Errno::NOSPC),
            _ => {
                tracing::warn!(%error, "a request to a file volume failed");
                Self::Errno(Errno::IO)
            }
        }
    }
}

/// A file system, as a session uses it. [`rekindle_file::Files`] documents each call.
pub trait Target: Clone + Send + Sync + 'static {
    fn was_done(&self, origin: Origin) -> impl Future<Output = bool> + Send;
    fn lookup(&self, dir: Ino, name: &[u8]) -> impl Future<Output = Done<Attr>> + Send;
    fn attr(&self, ino: Ino) -> impl Future<Output = Done<Attr>> + Send;
    fn rights(&self, ino: Ino) -> impl Future<Output = Done<Rights>> + Send;
    fn set_attr(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        set: &SetAttr,
    ) -> impl Future<Output = Done<Attr>> + Send;
    fn create(
        &self,
        caller: Caller<'_>,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> impl Future<Output = Done<Attr>> + Send;
    fn link(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        dir: Ino,
        name: &[u8],
    ) -> impl Future<Output = Done<Attr>> + Send;
    fn unlink(
        &self,
        caller: Caller<'_>,
        dir: Ino,
        name: &[u8],
    ) -> impl Future<Output = Done<()>> + Send;
    fn remove_dir(
        &self,
        caller: Caller<'_>,
        dir: Ino,
        name: &[u8],
    ) -> impl Future<Output = Done<()>> + Send;
    fn rename(
        &self,
        caller: Caller<'_>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> impl Future<Output = Done<()>> + Send;
    fn read_link(&self, ino: Ino) -> impl Future<Output = Done<Bytes>> + Send;
    /// Reads bytes as they lie in memory.
    fn pieces(
        &self,
        ino: Ino,
        offset: u64,
        length: usize,
    ) -> impl Future<Output = Done<Vec<Bytes>>> + Send;
    /// Reads bytes into one buffer.
    fn read(
        &self,
        ino: Ino,
        offset: u64,
        length: usize,
    ) -> impl Future<Output = Done<Bytes>> + Send {
        async move { Ok(joined(self.pieces(ino, offset, length).await?)) }
    }
    fn write(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> impl Future<Output = Done<()>> + Send;
    /// Writes as much as there is room for; returns how many bytes that is.
    fn write_some(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> impl Future<Output = Done<usize>> + Send;
    fn write_at_end(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        data: &[u8],
    ) -> impl Future<Output = Done<()>> + Send;
    fn allocate(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        what: Allocate,
        range: (u64, u64),
    ) -> impl Future<Output = Done<()>> + Send;
    fn copy(
        &self,
        caller: Caller<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    ) -> impl Future<Output = Done<u64>> + Send;
    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> impl Future<Output = Done<u64>> + Send;
    fn list(
        &self,
        dir: Ino,
        after: u64,
        count: usize,
    ) -> impl Future<Output = Done<Vec<Entry>>> + Send;
    fn parent(&self, dir: Ino) -> impl Future<Output = Done<Ino>> + Send;
    fn xattr(&self, ino: Ino, name: &[u8]) -> impl Future<Output = Done<Bytes>> + Send;
    fn set_xattr(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        pair: (&[u8], &[u8]),
        how: SetXattr,
    ) -> impl Future<Output = Done<()>> + Send;
    fn set_acls(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        lists: &[(AclOf, Option<Acl>)],
    ) -> impl Future<Output = Done<()>> + Send;
    fn remove_xattr(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        name: &[u8],
    ) -> impl Future<Output = Done<()>> + Send;
    fn list_xattrs(&self, ino: Ino) -> impl Future<Output = Done<Vec<Bytes>>> + Send;
    fn space(&self) -> impl Future<Output = Done<Space>> + Send;
    fn sync(&self) -> impl Future<Output = Done<()>> + Send;
    fn open(&self, ino: Ino) -> impl Future<Output = Done<()>> + Send;
    fn close(&self, ino: Ino) -> impl Future<Output = ()> + Send;
    fn keep(&self, caller: Caller<'_>, ino: Ino) -> impl Future<Output = Done<Attr>> + Send;
    fn kept(&self, ino: Ino) -> impl Future<Output = Done<Option<Bytes>>> + Send;
    fn kept_without_name(&self, from: Ino) -> impl Future<Output = Done<Vec<Ino>>> + Send;
    fn kept_changes(&self) -> watch::Receiver<KeptLately>;
    fn since(&self) -> Moment;
}

impl Target for Files {
    async fn was_done(&self, origin: Origin) -> bool {
        self.was_done(origin).await
    }
    async fn lookup(&self, dir: Ino, name: &[u8]) -> Done<Attr> {
        self.lookup(dir, name).await
    }
    async fn attr(&self, ino: Ino) -> Done<Attr> {
        self.attr(ino).await
    }
    async fn rights(&self, ino: Ino) -> Done<Rights> {
        self.rights(ino).await
    }
    async fn set_attr(&self, caller: Caller<'_>, ino: Ino, set: &SetAttr) -> Done<Attr> {
        self.set_attr(caller, ino, set).await
    }
    async fn create(
        &self,
        caller: Caller<'_>,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Done<Attr> {
        self.create(caller, dir, name, node).await
    }
    async fn link(&self, caller: Caller<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Done<Attr> {
        self.link(caller, ino, dir, name).await
    }
    async fn unlink(&self, caller: Caller<'_>, dir: Ino, name: &[u8]) -> Done<()> {
        self.unlink(caller, dir, name).await
    }
    async fn remove_dir(&self, caller: Caller<'_>, dir: Ino, name: &[u8]) -> Done<()> {
        self.remove_dir(caller, dir, name).await
    }
    async fn rename(
        &self,
        caller: Caller<'_>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Done<()> {
        self.rename(caller, from, to, how).await
    }
    async fn read_link(&self, ino: Ino) -> Done<Bytes> {
        self.read_link(ino).await
    }
    async fn pieces(&self, ino: Ino, offset: u64, length: usize) -> Done<Vec<Bytes>> {
        self.pieces(ino, offset, length).await
    }
    async fn write(&self, caller: Caller<'_>, ino: Ino, offset: u64, data: &[u8]) -> Done<()> {
        self.write(caller, ino, offset, data).await
    }
    async fn write_some(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Done<usize> {
        self.write_some(caller, ino, offset, data).await
    }
    async fn write_at_end(&self, caller: Caller<'_>, ino: Ino, data: &[u8]) -> Done<()> {
        self.write_at_end(caller, ino, data).await
    }
    async fn allocate(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        what: Allocate,
        (offset, length): (u64, u64),
    ) -> Done<()> {
        self.allocate(caller, ino, what, offset, length).await
    }
    async fn copy(
        &self,
        caller: Caller<'_>,
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    ) -> Done<u64> {
        self.copy(caller, from, to, length).await
    }
    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Done<u64> {
        self.seek(ino, offset, what).await
    }
    async fn list(&self, dir: Ino, after: u64, count: usize) -> Done<Vec<Entry>> {
        self.list(dir, after, count).await
    }
    async fn parent(&self, dir: Ino) -> Done<Ino> {
        self.parent(dir).await
    }
    async fn xattr(&self, ino: Ino, name: &[u8]) -> Done<Bytes> {
        self.xattr(ino, name).await
    }
    async fn set_xattr(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
    ) -> Done<()> {
        self.set_xattr(caller, ino, name, value, how).await
    }
    async fn set_acls(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        lists: &[(AclOf, Option<Acl>)],
    ) -> Done<()> {
        self.set_acls(caller, ino, lists).await
    }
    async fn remove_xattr(&self, caller: Caller<'_>, ino: Ino, name: &[u8]) -> Done<()> {
        self.remove_xattr(caller, ino, name).await
    }
    async fn list_xattrs(&self, ino: Ino) -> Done<Vec<Bytes>> {
        self.list_xattrs(ino).await
    }
    async fn space(&self) -> Done<Space> {
        self.space().await
    }
    async fn sync(&self) -> Done<()> {
        self.sync().await
    }
    async fn open(&self, ino: Ino) -> Done<()> {
        self.open(ino).await
    }
    async fn close(&self, ino: Ino) {
        self.close(ino).await;
    }
    async fn keep(&self, caller: Caller<'_>, ino: Ino) -> Done<Attr> {
        self.keep(caller, ino).await
    }
    async fn kept(&self, ino: Ino) -> Done<Option<Bytes>> {
        self.kept(ino).await
    }
    async fn kept_without_name(&self, from: Ino) -> Done<Vec<Ino>> {
        self.kept_without_name(from).await
    }
    fn kept_changes(&self) -> watch::Receiver<KeptLately> {
        self.kept_changes()
    }
    fn since(&self) -> Moment {
        self.since()
    }
}
