//! A file system in memory, for tests of the servers and the example `fuse_memory`.
#![allow(dead_code, reason = "each of the two uses a part")]

use crate::target::Target;
use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_env::Moment;
use rekindle_file::{
    Acl, AclOf, Allocate, Attr, Call, Caller, Entry, Errno, Error, FileType, Halt, Ino, KeptLately,
    NewNode, Origin, ROOT, Rename, Rights, Seek, SetAttr, SetXattr, Sight, Space, Time,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Most bytes that a write of this target carries out where it may be cut.
pub const SOME_BYTES: usize = 256 << 10;

type Done<T> = Result<T, Error>;

fn settled(caller: &Caller<'_>, mode: u16, before: &Attr) -> u16 {
    caller.witness.map_or(mode, |witness| witness.settle(mode, before))
}

/// The file system. Clones share it.
#[derive(Clone)]
pub struct Memory {
    state: Arc<Mutex<State>>,
    /// When it came into service. Not under the lock of the state: it is asked for under that.
    pub since: Arc<Mutex<Moment>>,
}

pub struct State {
    nodes: BTreeMap<Ino, Node>,
    next: Ino,
    changes: i64,
    /// How often it was asked to make everything durable.
    pub syncs_asked: u64,
    /// How often everything was made durable.
    pub syncs: u64,
    /// Requests that were carried out.
    pub done: BTreeSet<(u64, u64)>,
    /// Calls that were carried out.
    called: BTreeSet<(u64, u64)>,
    /// What is kept of inodes.
    pub kept: BTreeMap<Ino, Vec<u8>>,
    /// How often each inode is open.
    pub opens: BTreeMap<Ino, u64>,
    /// The error of all calls, once there is one.
    pub broken: Option<Error>,
    /// What a sync waits for.
    pub stuck: Option<Arc<Notify>>,
    /// Told of each change of what is kept.
    kept_changes: watch::Sender<KeptLately>,
    /// The time of each change of what is kept, as a test says.
    pub now: Moment,
}

struct Node {
    attr: Attr,
    content: Vec<u8>,
    /// Of a directory: position and inode of each name.
    names: BTreeMap<Vec<u8>, (u64, Ino)>,
    parent: Ino,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    fn new(ino: Ino, parent: Ino, caller: Caller<'_>, node: &NewNode<'_>) -> Self {
        let now = Time::default();
        let is_dir = node.kind == FileType::Directory;
        let attr = Attr {
            ino,
            kind: node.kind,
            mode: node.mode & !node.umask,
            links: if is_dir { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            device: node.device,
            size: node.target.len() as u64,
            allocated: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
        };
        let content = node.target.to_vec();
        Self { attr, content, names: BTreeMap::new(), parent, xattrs: BTreeMap::new() }
    }

    fn rights(&self) -> Rights {
        let acl = self.xattrs.get(AclOf::Access.name());
        Rights { attr: self.attr, acl: acl.and_then(|acl| Acl::parse(acl).ok()) }
    }

    fn resize(&mut self, size: usize) {
        self.content.resize(size, 0);
        (self.attr.size, self.attr.allocated) = (size as u64, size as u64);
    }
}

impl State {
    fn ok(&self) -> Done<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn node(&mut self, ino: Ino) -> Done<&mut Node> {
        self.ok()?;
        self.nodes.get_mut(&ino).ok_or(Errno::STALE.into())
    }

    fn dir(&mut self, ino: Ino) -> Done<&mut Node> {
        let node = self.node(ino)?;
        if node.attr.kind == FileType::Directory { Ok(node) } else { Err(Errno::NOTDIR.into()) }
    }

    fn find(&mut self, dir: Ino, name: &[u8]) -> Done<Ino> {
        self.dir(dir)?.names.get(name).map(|(_, ino)| *ino).ok_or(Errno::NOENT.into())
    }

    /// Asks the caller's witness, as the file system does in the turn of a change.
    fn judge(&self, caller: &Caller<'_>) -> Done<()> {
        self.ok()?;
        caller.witness.map_or(Ok(()), |witness| witness.judge(self).map_err(Halt::into_error))
    }

    fn tell(&self, caller: &Caller<'_>, ino: Ino) {
        if let (Some(witness), Some(node)) = (caller.witness, self.nodes.get(&ino)) {
            witness.changed(&node.attr);
        }
    }

    fn note(&mut self, caller: Caller<'_>) {
        self.called.extend(caller.call.map(|call| (call.client, call.key)));
        if let Some(Origin { client, request, oldest }) = caller.origin {
            self.done.retain(|(other, number)| *other != client || *number >= oldest);
            self.done.insert((client, request));
        }
    }

    /// The time of the next change: a second after the last one.
    fn tick(&mut self) -> Time {
        self.changes += 1;
        Time { seconds: self.changes, nanoseconds: 0 }
    }

    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Done<()> {
        self.next += 1;
        let (position, changed) = (16 + self.next, self.tick());
        let attr = &mut self.dir(dir)?.attr;
        (attr.modified, attr.changed) = (changed, changed);
        self.dir(dir)?.names.insert(name.to_vec(), (position, ino));
        self.nodes.get_mut(&ino).expect("it exists").parent = dir;
        Ok(())
    }

    fn drop_link(&mut self, ino: Ino) {
        let node = self.nodes.get_mut(&ino).expect("it exists");
        node.attr.links -= if node.attr.kind == FileType::Directory { 2 } else { 1 };
        self.forget(ino);
    }

    fn forget(&mut self, ino: Ino) {
        let is_gone = self.nodes.get(&ino).is_some_and(|node| node.attr.links == 0);
        let is_used = self.opens.contains_key(&ino) || self.kept.contains_key(&ino);
        if is_gone && !is_used {
            self.nodes.remove(&ino);
        }
    }

    /// Asks the caller's keeper what is kept of an inode.
    fn keep(&mut self, caller: &Caller<'_>, ino: Ino) -> Done<()> {
        let Some(keeper) = caller.keeper else { return Ok(()) };
        let before = self.kept.get(&ino).map(Vec::as_slice);
        match keeper.keep(ino, before).map_err(Halt::into_error)? {
            Some(after) => drop(self.kept.insert(ino, after)),
            None => drop(self.kept.remove(&ino)),
        }
        let (client, now) = (keeper.client(), self.now);
        self.kept_changes.send_modify(|lately| lately.note(client, now));
        Ok(())
    }

    fn remove(&mut self, dir: Ino, name: &[u8], is_dir: bool) -> Done<()> {
        let ino = self.find(dir, name)?;
        let node = self.node(ino)?;
        match (is_dir, node.attr.kind == FileType::Directory) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            _ if !node.names.is_empty() => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        self.dir(dir)?.names.remove(name);
        self.drop_link(ino);
        Ok(())
    }
}

impl Sight for State {
    fn attr(&self, ino: Ino) -> Result<Attr, Halt> {
        Ok(self.nodes.get(&ino).ok_or(Errno::STALE)?.attr)
    }
    fn rights(&self, ino: Ino) -> Result<Rights, Halt> {
        Ok(self.nodes.get(&ino).ok_or(Errno::STALE)?.rights())
    }
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Rights>, Halt> {
        let node = self.nodes.get(&dir).ok_or(Errno::STALE)?;
        if node.attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        node.names.get(name).map(|(_, ino)| Sight::rights(self, *ino)).transpose()
    }
    fn kept(&self, ino: Ino) -> Result<Option<Bytes>, Halt> {
        Ok(self.kept.get(&ino).map(|kept| Bytes::copy_from_slice(kept)))
    }
    fn was_called(&self, call: &Call) -> bool {
        self.called.contains(&(call.client, call.key))
    }
}

impl Memory {
    pub fn new() -> Self {
        let root = NewNode {
            kind: FileType::Directory,
            mode: 0o755,
            device: 0,
            target: b"",
            stamps: None,
            umask: 0,
        };
        let root = Node::new(ROOT, ROOT, Caller::default(), &root);
        let state = State {
            nodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT,
            changes: 0,
            syncs_asked: 0,
            syncs: 0,
            done: BTreeSet::new(),
            called: BTreeSet::new(),
            kept: BTreeMap::new(),
            opens: BTreeMap::new(),
            broken: None,
            stuck: None,
            kept_changes: watch::Sender::new(KeptLately::default()),
            now: Moment::default(),
        };
        Self { state: Arc::new(Mutex::new(state)), since: Arc::default() }
    }

    pub fn look<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock())
    }
}

impl Target for Memory {
    async fn was_done(&self, origin: Origin) -> bool {
        self.state.lock().done.contains(&(origin.client, origin.request))
    }
    async fn lookup(&self, dir: Ino, name: &[u8]) -> Done<Attr> {
        let mut state = self.state.lock();
        let ino = state.find(dir, name)?;
        Ok(state.node(ino)?.attr)
    }
    async fn attr(&self, ino: Ino) -> Done<Attr> {
        Ok(self.state.lock().node(ino)?.attr)
    }
    async fn rights(&self, ino: Ino) -> Done<Rights> {
        Ok(self.state.lock().node(ino)?.rights())
    }
    async fn set_attr(&self, caller: Caller<'_>, ino: Ino, set: &SetAttr) -> Done<Attr> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        let changed = state.tick();
        let node = state.node(ino)?;
        if set.size.is_some() && node.attr.kind == FileType::Directory {
            return Err(Errno::ISDIR.into());
        }
        state.keep(&caller, ino)?;
        let node = state.node(ino)?;
        if let Some(size) = set.size {
            node.resize(size as usize);
        }
        let attr = &mut node.attr;
        attr.changed = changed;
        attr.mode = settled(&caller, set.mode.unwrap_or(attr.mode), attr);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.accessed = set.accessed.unwrap_or(attr.accessed);
        attr.modified = set.modified.unwrap_or(attr.modified);
        let attr = *attr;
        state.tell(&caller, ino);
        state.note(caller);
        Ok(attr)
    }
    async fn create(
        &self,
        caller: Caller<'_>,
        dir: Ino,
        name: &[u8],
        node: &NewNode<'_>,
    ) -> Done<Attr> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        match state.find(dir, name) {
            Ok(_) => return Err(Errno::EXIST.into()),
            Err(Error::Posix(Errno::NOENT)) => {}
            Err(error) => return Err(error),
        }
        state.next += 1;
        let ino = state.next;
        let mut made = Node::new(ino, dir, caller, node);
        made.attr.mode = settled(&caller, made.attr.mode, &made.attr);
        if let Some([accessed, modified]) = node.stamps {
            (made.attr.accessed, made.attr.modified) = (accessed, modified);
        }
        let attr = made.attr;
        state.keep(&caller, ino)?;
        state.nodes.insert(ino, made);
        state.enter(dir, name, ino)?;
        state.tell(&caller, dir);
        state.note(caller);
        Ok(attr)
    }
    async fn link(&self, caller: Caller<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Done<Attr> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        if state.find(dir, name).is_ok() {
            return Err(Errno::EXIST.into());
        }
        state.node(ino)?.attr.links += 1;
        state.enter(dir, name, ino)?;
        state.tell(&caller, dir);
        state.note(caller);
        Ok(state.node(ino)?.attr)
    }
    async fn unlink(&self, caller: Caller<'_>, dir: Ino, name: &[u8]) -> Done<()> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        let ino = state.find(dir, name)?;
        let attr = state.node(ino)?.attr;
        state.remove(dir, name, false)?;
        if let (Some(witness), false) = (caller.witness, state.nodes.contains_key(&ino)) {
            witness.unnamed(&attr);
        }
        state.tell(&caller, dir);
        state.note(caller);
        Ok(())
    }
    async fn remove_dir(&self, caller: Caller<'_>, dir: Ino, name: &[u8]) -> Done<()> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        state.remove(dir, name, true)?;
        state.tell(&caller, dir);
        state.note(caller);
        Ok(())
    }
    async fn rename(
        &self,
        caller: Caller<'_>,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Done<()> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        let ino = state.find(from.0, from.1)?;
        let there = state.find(to.0, to.1).ok();
        match (how, there) {
            (Rename::NoReplace, Some(_)) => return Err(Errno::EXIST.into()),
            (Rename::Exchange, None) => return Err(Errno::NOENT.into()),
            (Rename::Exchange, Some(other)) => state.enter(from.0, from.1, other)?,
            (_, Some(other)) => {
                let is_dir = state.node(other)?.attr.kind == FileType::Directory;
                state.remove(to.0, to.1, is_dir)?;
                state.dir(from.0)?.names.remove(from.1);
            }
            (_, None) => drop(state.dir(from.0)?.names.remove(from.1)),
        }
        state.enter(to.0, to.1, ino)?;
        [from.0, to.0].iter().for_each(|dir| state.tell(&caller, *dir));
        state.note(caller);
        Ok(())
    }
    async fn read_link(&self, ino: Ino) -> Done<Bytes> {
        Ok(Bytes::copy_from_slice(&self.state.lock().node(ino)?.content))
    }
    async fn pieces(&self, ino: Ino, offset: u64, length: usize) -> Done<Vec<Bytes>> {
        let mut state = self.state.lock();
        let content = &state.node(ino)?.content;
        let begin = content.len().min(offset as usize);
        let end = content.len().min(begin + length);
        let pieces = content[begin..end].chunks(3000);
        Ok(pieces.map(Bytes::copy_from_slice).collect())
    }
    async fn write(&self, caller: Caller<'_>, ino: Ino, offset: u64, data: &[u8]) -> Done<()> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        let changed = state.tick();
        let node = state.node(ino)?;
        (node.attr.modified, node.attr.changed) = (changed, changed);
        node.attr.mode = settled(&caller, node.attr.mode, &node.attr);
        let (begin, end) = (offset as usize, offset as usize + data.len());
        node.resize(node.content.len().max(end));
        node.content[begin..end].copy_from_slice(data);
        state.tell(&caller, ino);
        Ok(())
    }
    async fn write_some(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Done<usize> {
        // There is room for some only.
        let data = &data[..data.len().min(SOME_BYTES)];
        self.write(caller, ino, offset, data).await?;
        Ok(data.len())
    }
    async fn write_at_end(&self, caller: Caller<'_>, ino: Ino, data: &[u8]) -> Done<()> {
        let end = self.attr(ino).await?.size;
        self.write(caller, ino, end, data).await?;
        self.state.lock().note(caller);
        Ok(())
    }
    async fn allocate(
        &self,
        _caller: Caller<'_>,
        ino: Ino,
        what: Allocate,
        (offset, length): (u64, u64),
    ) -> Done<()> {
        let mut state = self.state.lock();
        let node = state.node(ino)?;
        let (begin, end) = (offset as usize, (offset + length) as usize);
        match what {
            Allocate::Reserve { keep_size } | Allocate::Zero { keep_size } if !keep_size => {
                node.resize(node.content.len().max(end));
            }
            _ => {}
        }
        if !matches!(what, Allocate::Reserve { .. }) {
            let all = node.content.len();
            node.content[begin.min(all)..end.min(all)].fill(0);
        }
        Ok(())
    }
    async fn copy(
        &self,
        caller: Caller<'_>,
        (from, at): (Ino, u64),
        (to, offset): (Ino, u64),
        length: u64,
    ) -> Done<u64> {
        let data = self.read(from, at, length as usize).await?;
        self.write(caller, to, offset, &data).await?;
        Ok(data.len() as u64)
    }
    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Done<u64> {
        let size = self.state.lock().node(ino)?.attr.size;
        match what {
            _ if offset >= size => Err(Errno::NXIO.into()),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }
    async fn list(&self, dir: Ino, after: u64, count: usize) -> Done<Vec<Entry>> {
        let mut state = self.state.lock();
        let names = state.dir(dir)?.names.clone();
        let mut entries = Vec::new();
        for (name, (position, ino)) in names {
            if position > after {
                let kind = state.node(ino)?.attr.kind;
                entries.push(Entry { position, name: name.into(), ino, kind });
            }
        }
        entries.sort_by_key(|entry| entry.position);
        entries.truncate(count);
        Ok(entries)
    }
    async fn parent(&self, dir: Ino) -> Done<Ino> {
        Ok(self.state.lock().dir(dir)?.parent)
    }
    async fn xattr(&self, ino: Ino, name: &[u8]) -> Done<Bytes> {
        let mut state = self.state.lock();
        let value = state.node(ino)?.xattrs.get(name).cloned();
        Ok(value.ok_or(Error::from(Errno::NODATA))?.into())
    }
    async fn set_xattr(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
    ) -> Done<()> {
        let mut state = self.state.lock();
        let xattrs = &mut state.node(ino)?.xattrs;
        match (how, xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(Errno::EXIST.into()),
            (SetXattr::Replace, false) => return Err(Errno::NODATA.into()),
            _ => drop(xattrs.insert(name.to_vec(), value.to_vec())),
        }
        if let (Some(AclOf::Access), Ok(acl)) = (AclOf::named(name), Acl::parse(value)) {
            let attr = &mut state.node(ino)?.attr;
            attr.mode = settled(&caller, attr.mode & 0o7000 | acl.mode(), attr);
        }
        state.note(caller);
        Ok(())
    }
    async fn set_acls(
        &self,
        caller: Caller<'_>,
        ino: Ino,
        lists: &[(AclOf, Option<Acl>)],
    ) -> Done<()> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        for (of, acl) in lists {
            let node = state.node(ino)?;
            match (of, acl) {
                (AclOf::Default, Some(_)) if node.attr.kind != FileType::Directory => {
                    return Err(Errno::ACCESS.into());
                }
                (_, Some(acl)) => {
                    node.xattrs.insert(of.name().to_vec(), acl.format());
                }
                (_, None) => drop(node.xattrs.remove(of.name())),
            }
            if let (AclOf::Access, Some(acl)) = (of, acl) {
                let mode = node.attr.mode & 0o7000 | acl.mode();
                node.attr.mode = settled(&caller, mode, &node.attr);
            }
        }
        state.tell(&caller, ino);
        state.note(caller);
        Ok(())
    }
    async fn remove_xattr(&self, caller: Caller<'_>, ino: Ino, name: &[u8]) -> Done<()> {
        let mut state = self.state.lock();
        state.node(ino)?.xattrs.remove(name).ok_or(Error::from(Errno::NODATA))?;
        state.note(caller);
        Ok(())
    }
    async fn list_xattrs(&self, ino: Ino) -> Done<Vec<Bytes>> {
        let mut state = self.state.lock();
        Ok(state.node(ino)?.xattrs.keys().cloned().map(Bytes::from).collect())
    }
    async fn space(&self) -> Done<Space> {
        let inodes = self.state.lock().nodes.len() as u64;
        Ok(Space { bytes: 1 << 40, bytes_used: 1 << 30, inodes })
    }
    async fn sync(&self) -> Done<()> {
        self.state.lock().syncs_asked += 1;
        let stuck = self.state.lock().stuck.clone();
        if let Some(stuck) = stuck {
            stuck.notified().await;
        }
        self.state.lock().syncs += 1;
        self.state.lock().ok()
    }
    async fn open(&self, ino: Ino) -> Done<()> {
        let mut state = self.state.lock();
        state.node(ino)?;
        *state.opens.entry(ino).or_default() += 1;
        Ok(())
    }
    async fn close(&self, ino: Ino) {
        let mut state = self.state.lock();
        let count = state.opens.get_mut(&ino).expect("it is open");
        *count -= 1;
        if *count == 0 {
            state.opens.remove(&ino);
        }
        state.forget(ino);
    }
    async fn keep(&self, caller: Caller<'_>, ino: Ino) -> Done<Attr> {
        let mut state = self.state.lock();
        state.judge(&caller)?;
        let attr = state.node(ino)?.attr;
        state.keep(&caller, ino)?;
        state.forget(ino);
        state.note(caller);
        Ok(attr)
    }
    async fn kept(&self, ino: Ino) -> Done<Option<Bytes>> {
        let mut state = self.state.lock();
        state.node(ino)?;
        Ok(state.kept.get(&ino).map(|kept| Bytes::copy_from_slice(kept)))
    }
    fn kept_changes(&self) -> watch::Receiver<KeptLately> {
        self.state.lock().kept_changes.subscribe()
    }
    fn since(&self) -> Moment {
        *self.since.lock()
    }
    async fn kept_without_name(&self, from: Ino) -> Done<Vec<Ino>> {
        let state = self.state.lock();
        let nameless = |ino: &&Ino| state.nodes.get(ino).is_some_and(|node| node.attr.links == 0);
        Ok(state.kept.range(from..).map(|(ino, _)| ino).filter(nameless).copied().collect())
    }
}
