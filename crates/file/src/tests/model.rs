//! A model of a file system: what a tree of maps says, in memory. The simulation has it, too.

#[path = "model/acls.rs"]
mod acls;

use rekindle_base::random::Random;
use rekindle_file::{
    Allocate, Attr, Caller, Errno, Error, FileType, Files, Ino, NewNode, ROOT, Rename, SetAttr,
    SetXattr,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A tree of names, and what each inode is.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    pub nodes: BTreeMap<Ino, Node>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    pub kind: FileType,
    pub mode: u16,
    pub links: u32,
    pub data: Vec<u8>,
    pub names: BTreeMap<Vec<u8>, Ino>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub taken: Taken,
}

/// The pages that a file takes; `None`: it is not known which, of a model that was read. Models are
/// compared without them: a volume shows how many they are, and exactly so after a commit only.
#[derive(Clone)]
pub struct Taken(pub Option<BTreeSet<u64>>);

impl PartialEq for Taken {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Taken {}

const PAGE: u64 = 4096;

impl Taken {
    fn change(&mut self, change: impl FnOnce(&mut BTreeSet<u64>)) {
        self.0.as_mut().map(change);
    }

    fn take(&mut self, bytes: Range<u64>) {
        self.change(|pages| pages.extend(bytes.start / PAGE..bytes.end.div_ceil(PAGE)));
    }

    fn give_back(&mut self, bytes: Range<u64>) {
        let pages = bytes.start.div_ceil(PAGE)..bytes.end / PAGE;
        self.change(|taken| taken.retain(|page| !pages.contains(page)));
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Node { kind, mode, links, data, names, xattrs, taken: _ } = self;
        let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        write!(f, "{kind:?} {mode:o} {links} {} {sum} {names:?} {xattrs:?}", data.len())
    }
}

impl Node {
    fn new(kind: FileType) -> Self {
        let links = if kind == FileType::Directory { 2 } else { 1 };
        let (data, names, xattrs) = Default::default();
        let taken = Taken(Some(BTreeSet::new()));
        Self { kind, mode: 0o755, links, data, names, xattrs, taken }
    }
}

/// The reason why a volume gives no model.
#[derive(Debug)]
pub enum Unread {
    /// The volume cannot be read just now.
    Failed(Error),
    /// It says one thing here and another there.
    Wrong(String),
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Wrong(why) => why.fmt(f),
        }
    }
}

impl From<Error> for Unread {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Checks that the volume says the same in two places.
fn agree<T: PartialEq + std::fmt::Debug>(what: &str, one: T, other: T) -> Result<(), Unread> {
    if one == other {
        return Ok(());
    }
    Err(Unread::Wrong(format!("{what}: {one:?} and {other:?}")))
}

/// A name somewhere.
type Place = (Ino, Vec<u8>);

#[derive(Debug, Clone)]
pub enum Op {
    /// Mode and umask, too.
    Create(Place, FileType, (u16, u16)),
    Link(Ino, Place),
    Unlink(Place),
    RemoveDir(Place),
    Rename(Place, Place, Rename),
    Write(Ino, u64, Vec<u8>),
    Resize(Ino, u64),
    Allocate(Ino, Allocate, u64, u64),
    /// Copies so many bytes from one place to another.
    Copy((Ino, u64), (Ino, u64), u64),
    Mode(Ino, u16),
    SetXattr(Ino, Vec<u8>, Vec<u8>, SetXattr),
    RemoveXattr(Ino, Vec<u8>),
}

impl Model {
    pub fn new() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::new(FileType::Directory))]) }
    }

    /// Draws an operation; a write has at most `longest` bytes.
    pub fn draw(&self, dice: &mut Random, longest: u64) -> Op {
        let pick = |dice: &mut Random, inos: Vec<Ino>| inos[dice.below(inos.len() as u64) as usize];
        let of = |kind: FileType| -> Vec<Ino> {
            self.nodes.iter().filter(|(_, node)| node.kind == kind).map(|(ino, _)| *ino).collect()
        };
        let (dirs, files) = (of(FileType::Directory), of(FileType::Regular));
        let any: Vec<Ino> = self.nodes.keys().copied().collect();
        let place = |dice: &mut Random| {
            let dir = pick(dice, dirs.clone());
            let names: Vec<_> = self.nodes[&dir].names.keys().cloned().collect();
            match names.len() as u64 {
                0 => (dir, b"first".to_vec()),
                _ if dice.below(2) == 0 => (dir, format!("n{}", dice.below(12)).into_bytes()),
                count => (dir, names[dice.below(count) as usize].clone()),
            }
        };
        let file =
            |dice: &mut Random| if files.is_empty() { ROOT } else { pick(dice, files.clone()) };
        match dice.below(100) {
            0..25 => {
                let kinds =
                    [FileType::Regular, FileType::Regular, FileType::Directory, FileType::Symlink];
                let modes = [(0o755, 0), (0o666, 0o22), (0o1777, 0o77)];
                let kind = kinds[dice.below(4) as usize];
                // That of a symlink is always the same.
                let most = if kind == FileType::Symlink { 1 } else { 3 };
                Op::Create(place(dice), kind, modes[dice.below(most) as usize])
            }
            25..30 => Op::Link(pick(dice, any), place(dice)),
            30..40 => Op::Unlink(place(dice)),
            40..46 => Op::RemoveDir(place(dice)),
            46..58 => {
                let how = [Rename::Replace, Rename::Replace, Rename::NoReplace, Rename::Exchange];
                Op::Rename(place(dice), place(dice), how[dice.below(4) as usize])
            }
            58..80 => {
                let most = if dice.below(20) == 0 { longest } else { 9000 };
                let length = 1 + dice.below(most);
                let fill = dice.next_u64();
                let byte = |n: u64| (fill.wrapping_add(n.wrapping_mul(n >> 3)) >> 5) as u8;
                Op::Write(file(dice), dice.below(20_000), (0..length).map(byte).collect())
            }
            80..85 => {
                // Mostly whole pages, which may be copied by reference.
                let at = |dice: &mut Random| match dice.below(4) {
                    0 => dice.below(20_000),
                    _ => dice.below(5) * 4096,
                };
                let length = if dice.below(2) == 0 { 1 << 20 } else { at(dice) };
                Op::Copy((file(dice), at(dice)), (file(dice), at(dice)), length)
            }
            85..88 => Op::Resize(file(dice), dice.below(25_000)),
            88..91 => Op::Mode(pick(dice, any), dice.below(0o10000) as u16),
            91..95 => {
                let keep_size = dice.below(2) == 0;
                let what = match dice.below(4) {
                    0 => Allocate::Reserve { keep_size },
                    1 => Allocate::Zero { keep_size },
                    _ => Allocate::Punch,
                };
                Op::Allocate(file(dice), what, dice.below(40_000), 1 + dice.below(20_000))
            }
            95 => {
                let name = [acls::ACCESS, acls::DEFAULT][dice.below(2) as usize];
                Op::SetXattr(pick(dice, any), name.to_vec(), acls::draw(dice), SetXattr::Any)
            }
            96..98 => {
                let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace];
                let name = format!("user.{}", dice.below(3)).into_bytes();
                Op::SetXattr(
                    pick(dice, any),
                    name,
                    vec![7; dice.below(300) as usize],
                    how[dice.below(3) as usize],
                )
            }
            _ => {
                let user = format!("user.{}", dice.below(3)).into_bytes();
                let names = [user, acls::ACCESS.to_vec(), acls::DEFAULT.to_vec()];
                Op::RemoveXattr(pick(dice, any), names[dice.below(3) as usize].clone())
            }
        }
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("an operation names what is there")
    }

    fn is_below(&self, dir: Ino, ancestor: Ino) -> bool {
        dir == ancestor
            || self.nodes[&ancestor]
                .names
                .values()
                .any(|ino| self.nodes[ino].kind == FileType::Directory && self.is_below(dir, *ino))
    }

    fn drop_link(&mut self, ino: Ino) {
        let node = self.node(ino);
        node.links -= 1;
        if node.links == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn drop_dir(&mut self, dir: Ino, ino: Ino) -> Result<(), Errno> {
        if !self.nodes[&ino].names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.nodes.remove(&ino);
        self.node(dir).links -= 1;
        Ok(())
    }

    /// Applies an operation; `made` is the number of the inode that it made, or of bytes that it
    /// copied.
    pub fn apply(&mut self, op: &Op, made: Option<Ino>) -> Result<(), Errno> {
        match op {
            Op::Create((dir, name), kind, (mode, umask)) => {
                if self.nodes[dir].names.contains_key(name) {
                    return Err(Errno::EXIST);
                }
                let ino = made.unwrap_or(0);
                let mut node = Node::new(*kind);
                node.mode = *mode;
                node.inherit(&self.nodes[dir], *umask);
                match kind {
                    FileType::Symlink => node.data = b"target".to_vec(),
                    FileType::Directory => node.mode |= self.nodes[dir].mode & 0o2000,
                    _ => {}
                }
                self.nodes.insert(ino, node);
                let parent = self.node(*dir);
                parent.names.insert(name.clone(), ino);
                parent.links += u32::from(*kind == FileType::Directory);
            }
            Op::Link(ino, (dir, name)) => {
                if self.nodes[dir].names.contains_key(name) {
                    return Err(Errno::EXIST);
                }
                if self.nodes[ino].kind == FileType::Directory {
                    return Err(Errno::PERM);
                }
                self.node(*ino).links += 1;
                self.node(*dir).names.insert(name.clone(), *ino);
            }
            Op::Unlink((dir, name)) => {
                let ino = *self.nodes[dir].names.get(name).ok_or(Errno::NOENT)?;
                if self.nodes[&ino].kind == FileType::Directory {
                    return Err(Errno::ISDIR);
                }
                self.node(*dir).names.remove(name);
                self.drop_link(ino);
            }
            Op::RemoveDir((dir, name)) => {
                let ino = *self.nodes[dir].names.get(name).ok_or(Errno::NOENT)?;
                if self.nodes[&ino].kind != FileType::Directory {
                    return Err(Errno::NOTDIR);
                }
                self.drop_dir(*dir, ino)?;
                self.node(*dir).names.remove(name);
            }
            Op::Rename(from, to, how) => return self.rename(from, to, *how),
            Op::Write(ino, offset, data) => {
                let node = self.node(*ino);
                if node.kind == FileType::Directory {
                    return Err(Errno::ISDIR);
                }
                let (begin, end) = (*offset as usize, *offset as usize + data.len());
                node.data.resize(node.data.len().max(end), 0);
                node.data[begin..end].copy_from_slice(data);
                node.taken.take(begin as u64..end as u64);
            }
            Op::Copy((from, at), (to, offset), length) => {
                if from == to && *at < offset + length && *offset < at + length {
                    return Err(Errno::INVAL);
                }
                for ino in [from, to].iter().filter(|_| *length > 0) {
                    if self.nodes[ino].kind == FileType::Directory {
                        return Err(Errno::ISDIR);
                    }
                }
                let copied = self.copied(*from, *at, made.unwrap_or(0));
                if copied.is_empty() && !self.copied(*from, *at, *length).is_empty() {
                    // It copies something, or fails.
                    return Err(Errno::IO);
                }
                if !copied.is_empty() {
                    let (node, offset) = (self.node(*to), *offset as usize);
                    let end = offset + copied.len();
                    node.data.resize(node.data.len().max(end), 0);
                    node.data[offset..end].copy_from_slice(&copied);
                    node.taken.take(offset as u64..end as u64);
                }
            }
            Op::Resize(ino, size) => {
                let node = self.node(*ino);
                if node.kind == FileType::Directory {
                    return Err(Errno::ISDIR);
                }
                if *size <= node.data.len() as u64 {
                    node.taken.give_back(*size..u64::MAX);
                }
                node.data.resize(*size as usize, 0);
            }
            Op::Allocate(ino, what, offset, length) => {
                let node = self.node(*ino);
                if node.kind == FileType::Directory {
                    return Err(Errno::ISDIR);
                }
                let range = *offset..offset + length;
                if !matches!(what, Allocate::Reserve { .. }) {
                    let within = |at: u64| node.data.len().min(at as usize);
                    let zeros = within(range.start)..within(range.end);
                    node.data[zeros].fill(0);
                }
                match what {
                    Allocate::Punch => node.taken.give_back(range),
                    Allocate::Reserve { keep_size } | Allocate::Zero { keep_size } => {
                        let size = node.data.len().max(range.end as usize);
                        node.data.resize(if *keep_size { node.data.len() } else { size }, 0);
                        node.taken.take(range);
                    }
                }
            }
            Op::Mode(ino, mode) => self.node(*ino).set_mode(*mode),
            Op::SetXattr(ino, name, value, _) if name.starts_with(b"system.") => {
                return self.node(*ino).set_list(name, value);
            }
            Op::SetXattr(ino, name, value, how) => {
                let xattrs = &mut self.node(*ino).xattrs;
                match (how, xattrs.contains_key(name)) {
                    (SetXattr::Create, true) => return Err(Errno::EXIST),
                    (SetXattr::Replace, false) => return Err(Errno::NODATA),
                    _ => drop(xattrs.insert(name.clone(), value.clone())),
                }
            }
            Op::RemoveXattr(ino, name) => {
                let xattrs = &mut self.node(*ino).xattrs;
                xattrs.remove(name).ok_or(Errno::NODATA)?;
            }
        }
        Ok(())
    }

    /// The bytes that a copy takes from a file.
    pub fn copied(&self, from: Ino, at: u64, length: u64) -> Vec<u8> {
        let data = &self.nodes[&from].data;
        let begin = data.len().min(at as usize);
        data[begin..data.len().min(begin + length as usize)].to_vec()
    }

    fn rename(&mut self, from: &Place, to: &Place, how: Rename) -> Result<(), Errno> {
        let moved = *self.nodes[&from.0].names.get(&from.1).ok_or(Errno::NOENT)?;
        let replaced = self.nodes[&to.0].names.get(&to.1).copied();
        match (how, replaced) {
            (Rename::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (Rename::Exchange, None) => return Err(Errno::NOENT),
            (_, Some(replaced)) if replaced == moved => return Ok(()),
            _ => {}
        }
        let is_dir = |model: &Self, ino: Ino| model.nodes[&ino].kind == FileType::Directory;
        if is_dir(self, moved) && self.is_below(to.0, moved) {
            return Err(Errno::INVAL);
        }
        let name = |model: &mut Self, place: &Place, ino: Ino| {
            model.node(place.0).names.insert(place.1.clone(), ino);
        };
        if let (Rename::Exchange, Some(replaced)) = (how, replaced) {
            if is_dir(self, replaced) && self.is_below(from.0, replaced) {
                return Err(Errno::INVAL);
            }
            let weight = |model: &Self, ino| u32::from(is_dir(model, ino));
            let (one, other) = (weight(self, moved), weight(self, replaced));
            let here = self.node(from.0);
            here.links = here.links + other - one;
            let there = self.node(to.0);
            there.links = there.links + one - other;
            name(self, from, replaced);
            name(self, to, moved);
            return Ok(());
        }
        if let Some(replaced) = replaced {
            match (is_dir(self, moved), is_dir(self, replaced)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) => self.drop_dir(to.0, replaced)?,
                (false, false) => self.drop_link(replaced),
            }
        }
        self.node(from.0).names.remove(&from.1);
        if is_dir(self, moved) {
            self.node(from.0).links -= 1;
            self.node(to.0).links += 1;
        }
        name(self, to, moved);
        Ok(())
    }

    /// Reads a volume whole, and checks what it says twice.
    pub async fn read(files: &Files) -> Result<Self, Unread> {
        let found = Self::read_below(files, ROOT).await?;
        agree("inodes", files.space().await?.inodes, found.nodes.len() as u64)?;
        Ok(found)
    }

    /// Reads the tree below a root, the volume's or a snapshot's.
    pub async fn read_below(files: &Files, root: Ino) -> Result<Self, Unread> {
        let (mut nodes, mut open) = (BTreeMap::new(), vec![root]);
        let inner = |ino: Ino| ino & ((1 << 42) - 1);
        while let Some(ino) = open.pop() {
            let attr = files.attr(ino).await?;
            let mut node = Node::new(attr.kind);
            (node.mode, node.links, node.taken) = (attr.mode, attr.links, Taken(None));
            match attr.kind {
                FileType::Directory => {
                    let (mut after, mut count) = (0, 0);
                    loop {
                        let entries = files.list(ino, after, 5).await?;
                        for entry in &entries {
                            agree("positions ascend", entry.position > after, true)?;
                            (after, count) = (entry.position, count + 1);
                            let found = files.lookup(ino, &entry.name).await?;
                            let listed = (entry.ino, entry.kind);
                            agree("a name", (found.ino, found.kind), listed)?;
                            node.names.insert(entry.name.to_vec(), inner(entry.ino));
                            if !nodes.contains_key(&inner(entry.ino)) {
                                open.push(entry.ino);
                            }
                            if entry.kind == FileType::Directory {
                                agree("a parent", files.parent(entry.ino).await?, ino)?;
                            }
                        }
                        if entries.len() < 5 {
                            break;
                        }
                    }
                    agree("names of a directory", attr.size, count)?;
                }
                FileType::Symlink => node.data = files.read_link(ino).await?.to_vec(),
                _ => {
                    node.data = files.read(ino, 0, 8 << 20).await?.to_vec();
                    agree("the size of a file", attr.size, node.data.len() as u64)?;
                }
            }
            for name in files.list_xattrs(ino).await? {
                let value = files.xattr(ino, &name).await?;
                node.xattrs.insert(name.to_vec(), value.to_vec());
            }
            nodes.insert(inner(ino), node);
        }
        Ok(Self { nodes })
    }
}

/// Carries an operation out. Returns the number of the inode that it made, or of bytes that it
/// copied.
pub async fn carry_out(files: &Files, op: &Op) -> Result<Option<Ino>, Error> {
    let caller = Caller { uid: 1, gid: 2, ..Caller::default() };
    let root = Caller::default();
    match op {
        Op::Create((dir, name), kind, (mode, umask)) => {
            let (mode, umask) = (*mode, *umask);
            let target: &[u8] = if *kind == FileType::Symlink { b"target" } else { b"" };
            let node = NewNode { kind: *kind, mode, umask, device: 0, target, stamps: None };
            let attr: Attr = files.create(caller, *dir, name, &node).await?;
            return Ok(Some(attr.ino));
        }
        Op::Link(ino, (dir, name)) => {
            files.link(caller, *ino, *dir, name).await?;
        }
        Op::Unlink((dir, name)) => files.unlink(caller, *dir, name).await?,
        Op::RemoveDir((dir, name)) => files.remove_dir(caller, *dir, name).await?,
        Op::Rename(from, to, how) => {
            files.rename(caller, (from.0, &from.1), (to.0, &to.1), *how).await?;
        }
        Op::Write(ino, offset, data) => files.write(caller, *ino, *offset, data).await?,
        Op::Copy(from, to, length) => {
            return Ok(Some(files.copy(caller, *from, *to, *length).await?));
        }
        Op::Resize(ino, size) => {
            let set = SetAttr { size: Some(*size), ..SetAttr::default() };
            files.set_attr(caller, *ino, &set).await?;
        }
        Op::Allocate(ino, what, offset, length) => {
            files.allocate(caller, *ino, *what, *offset, *length).await?;
        }
        Op::Mode(ino, mode) => {
            let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
            files.set_attr(caller, *ino, &set).await?;
        }
        Op::SetXattr(ino, name, value, how) => {
            files.set_xattr(root, *ino, name, value, *how).await?;
        }
        Op::RemoveXattr(ino, name) => files.remove_xattr(root, *ino, name).await?,
    }
    Ok(None)
}
