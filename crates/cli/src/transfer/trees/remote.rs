//! A file system, asked in the words of FUSE: this program stands where the kernel is for a mount.
//! Requests go through the pump of a mount, so they outlive the daemon.

use crate::command::mount::pump::Asker;
use bytes::Bytes;
use rekindle_front::fuse::wire::{
    self, AttrOut, EntryOut, InHeader, InitIn, NameOut, OUT_HEADER_BYTES, OutHeader, SetAttrIn,
    ValidAttrOut, opcode,
};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use tokio::sync::{Notify, oneshot};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of the root directory.
pub const ROOT: u64 = 1;
/// Most bytes of a read or write.
pub const PIECE_BYTES: usize = 1 << 20;
/// Bytes of names that are asked for at once.
const LISTING_BYTES: usize = 64 << 10;
/// The version of FUSE that this program speaks.
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// The types of inodes in a mode.
const TYPE_BITS: u32 = 0o170_000;

type Done<T> = Result<T, Errno>;

/// The type of an inode in its mode.
pub fn type_of(mode: u32) -> u32 {
    mode & TYPE_BITS
}

/// The file system.
#[derive(Default)]
pub struct Remote {
    /// Requests that the pump has not taken yet, the oldest one first.
    asked: RefCell<VecDeque<Bytes>>,
    news: Notify,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Bytes>>>,
    last: Cell<u64>,
    is_over: Cell<bool>,
}

impl Asker for &Remote {
    async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            if let Some(request) = self.asked.borrow_mut().pop_front() {
                buffer.extend_from_slice(&request);
                return Ok(true);
            }
            if self.is_over.get() {
                return Ok(false);
            }
            self.news.notified().await;
        }
    }

    fn write(&self, reply: &[u8]) {
        let Ok((head, _)) = OutHeader::read_from_prefix(reply) else { return };
        if let Some(told) = self.waiting.borrow_mut().remove(&head.unique) {
            // The caller may have gone.
            let _ = told.send(Bytes::copy_from_slice(reply));
        }
    }
}

/// A name of a directory, and what it leads to.
pub struct Found {
    pub name: Vec<u8>,
    pub attr: Done<AttrOut>,
}

/// The owner of what a request makes.
pub type Owner = (u32, u32);

impl Remote {
    /// Ends the mount: what was asked is answered first.
    pub fn end(&self) {
        self.is_over.set(true);
        self.news.notify_one();
    }

    async fn ask(&self, opcode: u32, ino: u64, owner: Owner, body: &[&[u8]]) -> Done<Bytes> {
        // Even numbers are the kernel's, and ours here.
        let unique = self.last.get() + 2;
        self.last.set(unique);
        let bytes: usize = body.iter().map(|part| part.len()).sum();
        let length = u32::try_from(wire::IN_HEADER_BYTES + bytes).map_err(|_| Errno::TOOBIG)?;
        let (uid, gid) = owner;
        let header = InHeader { length, opcode, unique, ino, uid, gid, pid: 0, extensions: 0 };
        let mut request = Vec::with_capacity(length as usize);
        request.extend_from_slice(header.as_bytes());
        body.iter().for_each(|part| request.extend_from_slice(part));
        let (told, reply) = oneshot::channel();
        self.waiting.borrow_mut().insert(unique, told);
        self.asked.borrow_mut().push_back(request.into());
        self.news.notify_one();
        // The pump has ended: the command tells why.
        let reply = reply.await.map_err(|_| Errno::NOTCONN)?;
        let (head, _) = OutHeader::read_from_prefix(&reply).map_err(|_| Errno::PROTO)?;
        match head.error {
            0 => Ok(reply.slice(OUT_HEADER_BYTES..)),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }

    /// Asks without an owner.
    async fn tell(&self, opcode: u32, ino: u64, body: &[&[u8]]) -> Done<Bytes> {
        self.ask(opcode, ino, (0, 0), body).await
    }

    /// Begins.
    pub async fn init(&self) -> Done<()> {
        let init = InitIn { major: MAJOR, minor: MINOR, max_readahead: 0, flags: 0 };
        self.tell(opcode::INIT, 0, &[init.as_bytes()]).await.map(drop)
    }

    /// Looks a name up.
    pub async fn lookup(&self, dir: u64, name: &[u8]) -> Done<Option<AttrOut>> {
        match self.tell(opcode::LOOKUP, dir, &[name, b"\0"]).await {
            Ok(reply) => {
                let entry: EntryOut = structure(&reply)?;
                Ok((entry.ino != 0).then_some(entry.attr))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn attr(&self, ino: u64) -> Done<AttrOut> {
        let reply = self.tell(opcode::GETATTR, ino, &[&[0; 16]]).await?;
        Ok(structure::<ValidAttrOut>(&reply)?.attr)
    }

    pub async fn set_attr(&self, ino: u64, set: &SetAttrIn) -> Done<()> {
        self.tell(opcode::SETATTR, ino, &[set.as_bytes()]).await.map(drop)
    }

    pub async fn make_dir(&self, dir: u64, name: &[u8], mode: u32, owner: Owner) -> Done<u64> {
        let head = [mode & !TYPE_BITS, 0];
        self.made(opcode::MKDIR, dir, owner, &[head.as_bytes(), name, b"\0"]).await
    }

    /// Makes a file, or what else has no content of its own; the type is in the mode.
    pub async fn make_node(
        &self,
        dir: u64,
        name: &[u8],
        (mode, device): (u32, u32),
        owner: Owner,
    ) -> Done<u64> {
        let head = [mode, device, 0, 0];
        self.made(opcode::MKNOD, dir, owner, &[head.as_bytes(), name, b"\0"]).await
    }

    pub async fn symlink(&self, dir: u64, name: &[u8], target: &[u8], owner: Owner) -> Done<u64> {
        self.made(opcode::SYMLINK, dir, owner, &[name, b"\0", target, b"\0"]).await
    }

    async fn made(&self, opcode: u32, dir: u64, owner: Owner, body: &[&[u8]]) -> Done<u64> {
        let reply = self.ask(opcode, dir, owner, body).await?;
        Ok(structure::<EntryOut>(&reply)?.ino)
    }

    pub async fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Done<()> {
        self.tell(opcode::LINK, dir, &[&ino.to_ne_bytes(), name, b"\0"]).await.map(drop)
    }

    pub async fn unlink(&self, dir: u64, name: &[u8]) -> Done<()> {
        self.tell(opcode::UNLINK, dir, &[name, b"\0"]).await.map(drop)
    }

    pub async fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Done<()> {
        let head = piece(offset, data.len());
        self.tell(opcode::WRITE, ino, &[head.as_bytes(), data]).await.map(drop)
    }

    pub async fn read(&self, ino: u64, offset: u64, length: usize) -> Done<Bytes> {
        self.tell(opcode::READ, ino, &[piece(offset, length).as_bytes()]).await
    }

    /// Finds data, or with `hole` a hole, at an offset or behind it. `None`: there is none.
    pub async fn seek(&self, ino: u64, offset: u64, hole: bool) -> Done<Option<u64>> {
        let whence = if hole { 4 } else { 3 };
        match self.tell(opcode::LSEEK, ino, &[[0, offset, whence].as_bytes()]).await {
            Ok(reply) => Ok(Some(structure(&reply)?)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn read_link(&self, ino: u64) -> Done<Bytes> {
        self.tell(opcode::READLINK, ino, &[]).await
    }

    /// Lists names of a directory from a place on. Returns where the list goes on, too; `None`: it
    /// is complete.
    pub async fn list(&self, dir: u64, from: u64) -> Done<(Vec<Found>, Option<u64>)> {
        let head = piece(from, LISTING_BYTES);
        let reply = self.tell(opcode::READDIRPLUS, dir, &[head.as_bytes()]).await?;
        let (mut rest, mut found, mut next) = (&reply[..], Vec::new(), None);
        while !rest.is_empty() {
            let (entry, behind) = EntryOut::read_from_prefix(rest).map_err(|_| Errno::PROTO)?;
            let (out, behind) = NameOut::read_from_prefix(behind).map_err(|_| Errno::PROTO)?;
            let length = out.length as usize;
            let name = behind.get(..length).ok_or(Errno::PROTO)?.to_vec();
            rest = behind.get(length.next_multiple_of(8)..).ok_or(Errno::PROTO)?;
            next = Some(out.next);
            if name == b"." || name == b".." {
                continue;
            }
            let attr = match entry.ino {
                // It could not be had along with the name.
                0 => match self.attr(out.ino).await {
                    Err(Errno::STALE | Errno::NOENT) => continue,
                    attr => attr,
                },
                _ => Ok(entry.attr),
            };
            found.push(Found { name, attr });
        }
        Ok((found, next))
    }

    pub async fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8]) -> Done<()> {
        let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
        let head = [size, 0];
        self.tell(opcode::SETXATTR, ino, &[head.as_bytes(), name, b"\0", value]).await.map(drop)
    }

    /// Removes an extended attribute, if it is there.
    pub async fn remove_xattr(&self, ino: u64, name: &[u8]) -> Done<()> {
        match self.tell(opcode::REMOVEXATTR, ino, &[name, b"\0"]).await {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Returns the extended attributes of an inode.
    pub async fn xattrs(&self, ino: u64) -> Done<Vec<(Vec<u8>, Bytes)>> {
        let head = [PIECE_BYTES as u32, 0];
        let names = self.tell(opcode::LISTXATTR, ino, &[head.as_bytes()]).await?;
        let mut found = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let value = self.tell(opcode::GETXATTR, ino, &[head.as_bytes(), name, b"\0"]).await;
            match value {
                Err(Errno::NODATA) => {}
                value => found.push((name.to_vec(), value?)),
            }
        }
        Ok(found)
    }

    /// Makes everything durable.
    pub async fn sync(&self) -> Done<()> {
        self.tell(opcode::SYNCFS, ROOT, &[&[0; 8]]).await.map(drop)
    }
}

/// The head of a READ or WRITE: file handle, offset, size and flags, lock owner, flags.
fn piece(offset: u64, length: usize) -> [u64; 5] {
    let size = [u32::try_from(length).unwrap_or(u32::MAX), 0];
    let size = u64::from_ne_bytes(*size.as_bytes().first_chunk().expect("two numbers"));
    [0, offset, size, 0, 0]
}

fn structure<T: FromBytes + KnownLayout + Immutable>(reply: &[u8]) -> Done<T> {
    T::read_from_prefix(reply).map(|(found, _)| found).map_err(|_| Errno::PROTO)
}
