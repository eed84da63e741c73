//! Requests of a kernel and a mount that the test plays, over a file system in memory.

use super::super::wire::{
    ALONE, AttrOut, EntryOut, FOLDER, InitIn, InitOut, MEMORY, NameOut, OUT_HEADER_BYTES,
    OutHeader, SetAttrIn, SizeOut, UNNAMED, ValidAttrOut, opcode, valid,
};
use super::*;
use crate::conn::Connections;
use crate::target::testing::{Memory, SOME_BYTES};
use rekindle_env::sim::{Faults, World};
use rekindle_file::{Caller, Errno, Error, Ino, ROOT, SetAttr};
use rekindle_staging::Error as StagingError;
use std::time::Duration;
use tokio::io::DuplexStream;
use zerocopy::FromBytes;

mod acls;
mod locks;

const CLIENT: u64 = 7;
/// A client of NFS that has gone.
const GONE: u64 = 900;

/// A daemon with a file system.
struct Site {
    env: Env,
    files: Memory,
    clients: Clients<Memory>,
    connections: Connections,
    durably: bool,
}

/// The test's end of a connection.
struct Line {
    pipe: DuplexStream,
    next: u64,
    /// Inodes that the mount was told to have lost their last name.
    unnamed: Vec<Ino>,
    /// Requests for locks of which it was told that the mount has no company.
    alone: Vec<u64>,
    /// Folders that it was told of: the request, the inode, and how many names it has.
    folders: Vec<(u64, Ino, u64)>,
    /// The memory that it was told of.
    memory: Option<wire::Memory>,
    /// Asks the session to finish when it is dropped.
    stop: Option<oneshot::Sender<()>>,
}

type Replied = Result<Vec<u8>, Errno>;

fn with_site(story: impl AsyncFnOnce(&mut Site)) {
    let world = World::new(5, Faults::none());
    let env = world.env();
    let (files, clients) = (Memory::new(), Clients::default());
    let connections = Connections::new("fuse", 4);
    let mut site = Site { env, files, clients, connections, durably: false };
    world.block_on(async { story(&mut site).await });
}

impl Site {
    /// Connects a mount that says what it has open.
    async fn connect(&self, client: u64, opens: &[(Ino, u64)]) -> Line {
        let (mut pipe, theirs) = tokio::io::duplex(4 << 20);
        let mount = Mount {
            volume: "one".to_owned(),
            id: VolumeId([1; 16]),
            target: self.files.clone(),
            clients: self.clients.clone(),
            budget: self.connections.budget().clone(),
            durably: self.durably,
            memory: wire::Memory { node: [7; 16], since: 3 },
            has_gone: Arc::new(|holder, _| holder.client == GONE),
        };
        let (stop, stopped) = Stop::pair();
        let env = self.env.clone();
        self.env.spawn("mount", async move { serve(&env, theirs, mount, stopped).await });
        let hello = Hello::new(client, opens.len() as u32);
        pipe.write_all(hello.as_bytes()).await.unwrap();
        for &(ino, count) in opens {
            pipe.write_all(Open { ino, count }.as_bytes()).await.unwrap();
        }
        Line {
            pipe,
            next: 1,
            unnamed: Vec::new(),
            alone: Vec::new(),
            folders: Vec::new(),
            memory: None,
            stop: Some(stop),
        }
    }

    /// Makes a sync wait until the result is rung.
    fn stick(&self) -> Arc<Notify> {
        let stuck = Arc::new(Notify::new());
        self.files.look(|state| state.stuck = Some(stuck.clone()));
        stuck
    }

    fn opens(&self) -> Vec<(Ino, u64)> {
        self.files.look(|state| state.opens.clone().into_iter().collect())
    }
}

impl Line {
    async fn send(&mut self, frame: Option<Frame>, opcode: u32, ino: Ino, body: &[u8]) {
        let length = (IN_HEADER_BYTES + body.len()) as u32;
        let number = self.next;
        let frame = frame.unwrap_or(Frame::new(length, number, 1, false));
        let frame = Frame::new(length, frame.number, frame.oldest, frame.is_again());
        self.next = self.next.max(frame.number + 1);
        let unique = frame.number * 2;
        let header =
            InHeader { length, opcode, unique, ino, uid: 10, gid: 20, pid: 0, extensions: 0 };
        self.pipe.write_all(frame.as_bytes()).await.unwrap();
        self.pipe.write_all(header.as_bytes()).await.unwrap();
        self.pipe.write_all(body).await.unwrap();
    }

    /// Returns the number of the request, and its reply.
    async fn reply(&mut self) -> (u64, Replied) {
        let mut head = [0; OUT_HEADER_BYTES];
        self.pipe.read_exact(&mut head).await.unwrap();
        let head: OutHeader = zerocopy::transmute!(head);
        let mut body = vec![0; head.length as usize - OUT_HEADER_BYTES];
        self.pipe.read_exact(&mut body).await.unwrap();
        match (head.unique, head.error) {
            (0, UNNAMED) => {
                self.unnamed.push(AttrOut::read_from_bytes(&body).unwrap().ino);
                return Box::pin(self.reply()).await;
            }
            (0, FOLDER) => {
                let (unique, attr) = u64::read_from_prefix(&body).unwrap();
                let attr = AttrOut::read_from_bytes(attr).unwrap();
                self.folders.push((unique / 2, attr.ino, attr.size));
                return Box::pin(self.reply()).await;
            }
            (0, MEMORY) => {
                self.memory = Some(wire::Memory::read_from_bytes(&body).unwrap());
                return Box::pin(self.reply()).await;
            }
            (0, ALONE) => {
                self.alone.push(u64::read_from_bytes(&body).unwrap() / 2);
                return Box::pin(self.reply()).await;
            }
            _ => {}
        }
        let replied = match head.error {
            0 => Ok(body),
            error => Err(Errno::from_raw_os_error(-error)),
        };
        (head.unique / 2, replied)
    }

    async fn ask(&mut self, opcode: u32, ino: Ino, body: &[u8]) -> Replied {
        self.send(None, opcode, ino, body).await;
        self.reply().await.1
    }

    /// Sends a request once more, as one that may have been carried out.
    async fn again(&mut self, number: u64, opcode: u32, ino: Ino, body: &[u8]) -> Replied {
        self.send(Some(Frame::new(40, number, 1, true)), opcode, ino, body).await;
        self.reply().await.1
    }

    async fn create(&mut self, name: &str) -> Ino {
        let body = words(&[0o2, 0o100_644, 0, 0], &[name.as_bytes(), b"\0"]);
        entry(&self.ask(opcode::CREATE, ROOT, &body).await.unwrap()).ino
    }

    async fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Replied {
        let head = words(&[0, 0, offset as u32, 0, data.len() as u32, 0, 0, 0, 0, 0], &[data]);
        self.ask(opcode::WRITE, ino, &head).await
    }

    async fn read(&mut self, ino: Ino, offset: u64, size: u32) -> Replied {
        self.ask(opcode::READ, ino, &reading(offset, size)).await
    }

    /// Whether the daemon has hung up, and has said nothing but what it says first.
    async fn is_over(&mut self) -> bool {
        let notice = OUT_HEADER_BYTES + size_of::<wire::Memory>();
        let mut said = vec![0; notice + 1];
        let mut length = 0;
        loop {
            match self.pipe.read(&mut said[length..]).await.unwrap() {
                0 => break length == 0 || length == notice,
                count => length += count,
            }
        }
    }
}

fn words(words: &[u32], rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(rest.concat());
    bytes
}

fn reading(offset: u64, size: u32) -> Vec<u8> {
    words(&[0, 0, offset as u32, (offset >> 32) as u32, size, 0, 0, 0, 0, 0], &[])
}

fn entry(body: &[u8]) -> EntryOut {
    EntryOut::read_from_prefix(body).unwrap().0
}

/// The names of a listing, with where the next one begins.
fn names(mut body: &[u8], plus: bool) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    while !body.is_empty() {
        if plus {
            body = &body[size_of::<EntryOut>()..];
        }
        let (name, rest) = NameOut::read_from_prefix(body).unwrap();
        let length = name.length as usize;
        names.push((String::from_utf8(rest[..length].to_vec()).unwrap(), name.next));
        body = &rest[length.next_multiple_of(8)..];
    }
    names
}

#[test]
fn a_file_is_made_written_read_renamed_and_removed() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        let wrote = line.write(ino, 2, b"abc").await.unwrap();
        assert_eq!(SizeOut::read_from_bytes(&wrote).unwrap().size, 3);
        assert_eq!(line.read(ino, 0, 100).await.unwrap(), b"\0\0abc");
        let long = vec![7; 1 << 20];
        // There is room for some of it, and the kernel asks again for the rest.
        let mut at = 0;
        while at < long.len() {
            let wrote = line.write(ino, 5 + at as u64, &long[at..]).await.unwrap();
            let wrote = SizeOut::read_from_bytes(&wrote).unwrap().size as usize;
            assert_eq!(wrote, SOME_BYTES);
            at += wrote;
        }
        assert!(line.read(ino, 5, 1 << 20).await.unwrap() == long);
        // The kernel's own pages are written as a whole.
        let head = words(&[0, 0, 5, 0, long.len() as u32, 1, 0, 0, 0, 0], &[&long]);
        let wrote = line.ask(opcode::WRITE, ino, &head).await.unwrap();
        assert_eq!(SizeOut::read_from_bytes(&wrote).unwrap().size as usize, long.len());
        let attr = line.ask(opcode::GETATTR, ino, &[0; 16]).await.unwrap();
        let attr = ValidAttrOut::read_from_bytes(&attr).unwrap().attr;
        assert_eq!((attr.size, attr.uid, attr.gid), ((1 << 20) + 5, 10, 20));
        assert_eq!((attr.mode, attr.links), (0o100_644, 1));
        line.ask(opcode::RENAME, ROOT, &words(&[1, 0], &[b"a\0b\0"])).await.unwrap();
        let gone = entry(&line.ask(opcode::LOOKUP, ROOT, b"a\0").await.unwrap());
        assert_eq!((gone.ino, gone.entry_seconds), (0, 1), "the kernel may believe that");
        let found = entry(&line.ask(opcode::LOOKUP, ROOT, b"b\0").await.unwrap());
        assert_eq!((found.ino, found.attr.ino, found.generation), (ino, ino, 0));
        line.ask(opcode::RELEASE, ino, &[0; 24]).await.unwrap();
        line.ask(opcode::UNLINK, ROOT, b"b\0").await.unwrap();
        assert_eq!(line.read(ino, 0, 1).await, Err(Errno::STALE));
        assert_eq!(line.ask(opcode::UNLINK, ROOT, b"b\0").await, Err(Errno::NOENT));
    });
}

#[test]
fn attributes_are_set_as_asked() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        let mut set = SetAttrIn::read_from_bytes(&[0; 88]).unwrap();
        set.valid = valid::MODE | valid::SIZE | valid::MTIME | valid::ATIME | valid::ATIME_NOW;
        (set.mode, set.size, set.uid) = (0o104_755, 9, 99);
        (set.mtime, set.mtime_nanoseconds) = (-5, 999_999_999);
        let attr = line.ask(opcode::SETATTR, ino, set.as_bytes()).await.unwrap();
        let attr = ValidAttrOut::read_from_bytes(&attr).unwrap().attr;
        assert_eq!((attr.mode, attr.size, attr.uid), (0o104_755, 9, 10), "the owner stays");
        assert_eq!((attr.mtime, attr.mtime_nanoseconds), (-5, 999_999_999));
        assert_eq!(attr.atime as u64, site.env.wall_clock().0 / 1_000_000, "now");
        set.mtime_nanoseconds = 1_000_000_000;
        let refused = line.ask(opcode::SETATTR, ino, set.as_bytes()).await;
        assert_eq!(refused, Err(Errno::INVAL));
        (set.valid, set.size) = (valid::SIZE, u64::MAX);
        assert_eq!(line.ask(opcode::SETATTR, ino, set.as_bytes()).await, Err(Errno::FBIG));
    });
}

#[test]
fn a_directory_is_listed_in_pieces() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let mut wanted: Vec<String> = (0..50).map(|number| format!("file{number}")).collect();
        for name in &wanted {
            line.create(name).await;
        }
        wanted.extend([".".to_owned(), "..".to_owned()]);
        wanted.sort();
        for (opcode, size) in [(opcode::READDIR, 200), (opcode::READDIRPLUS, 1000)] {
            let (mut all, mut offset) = (Vec::new(), 0);
            loop {
                let body = line.ask(opcode, ROOT, &reading(offset, size)).await.unwrap();
                assert!(body.len() <= size as usize);
                let some = names(&body, opcode == opcode::READDIRPLUS);
                let Some((_, next)) = some.last() else { break };
                offset = *next;
                all.extend(some.into_iter().map(|(name, _)| name));
            }
            all.sort();
            assert_eq!(all, wanted);
        }
        let plus = line.ask(opcode::READDIRPLUS, ROOT, &reading(0, 4096)).await.unwrap();
        assert_eq!(entry(&plus).ino, 0, "the kernel takes no inode of '.'");
        let third = 2 * (size_of::<EntryOut>() + size_of::<NameOut>() + 8);
        assert_ne!(entry(&plus[third..]).ino, 0);
    });
}

#[test]
fn extended_attributes_know_their_room() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let name = b"user.x\0";
        let set = |flags| words(&[3, flags], &[name, b"abc"]);
        line.ask(opcode::SETXATTR, ROOT, &set(0)).await.unwrap();
        assert_eq!(line.ask(opcode::SETXATTR, ROOT, &set(1)).await, Err(Errno::EXIST));
        let get = |size| words(&[size, 0], &[name]);
        let length = line.ask(opcode::GETXATTR, ROOT, &get(0)).await.unwrap();
        assert_eq!(SizeOut::read_from_bytes(&length).unwrap().size, 3);
        assert_eq!(line.ask(opcode::GETXATTR, ROOT, &get(2)).await, Err(Errno::RANGE));
        assert_eq!(line.ask(opcode::GETXATTR, ROOT, &get(3)).await.unwrap(), b"abc");
        let list = line.ask(opcode::LISTXATTR, ROOT, &words(&[100, 0], &[])).await.unwrap();
        assert_eq!(list, name);
        line.ask(opcode::REMOVEXATTR, ROOT, name).await.unwrap();
        assert_eq!(line.ask(opcode::GETXATTR, ROOT, &get(0)).await, Err(Errno::NODATA));
    });
}

#[test]
fn the_kernel_and_the_server_agree_on_versions_and_flags() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let mut init = async |major, minor, flags| {
            let asked = InitIn { major, minor, max_readahead: 128 << 10, flags };
            let answer = line.ask(opcode::INIT, 0, asked.as_bytes()).await;
            answer.map(|answer| InitOut::read_from_bytes(&answer).unwrap())
        };
        let agreed = init(7, 45, u32::MAX).await.unwrap();
        assert_eq!((agreed.major, agreed.minor, agreed.max_write), (7, 40, 1 << 20));
        assert_eq!((agreed.max_pages, agreed.max_readahead), (256, 128 << 10));
        let (posix_locks, writeback, truncation) = (1 << 1, 1 << 16, 1 << 3);
        assert_eq!(agreed.flags & (posix_locks | writeback | truncation), 0);
        assert_eq!(init(7, 31, 1).await.unwrap().flags, 1, "no more than the kernel offers");
        assert_eq!(init(8, 0, 0).await.unwrap().major, 7, "the kernel asks again then");
        assert_eq!(init(7, 30, 0).await, Err(Errno::PROTO));
    });
}

#[test]
fn a_change_that_was_carried_out_is_not_carried_out_again() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let dir = words(&[0o755, 0], &[b"d\0"]);
        let made = line.ask(opcode::MKDIR, ROOT, &dir).await.unwrap();
        let number = line.next - 1;
        assert_eq!(line.again(number, opcode::MKDIR, ROOT, &dir).await.unwrap(), made);
        let other = line.next;
        assert_eq!(line.again(other, opcode::MKDIR, ROOT, &dir).await, Err(Errno::EXIST));

        let ino = line.create("a").await;
        let create = words(&[0o202, 0o100_644, 0, 0], &[b"a\0"]);
        let again = line.again(line.next - 1, opcode::CREATE, ROOT, &create).await.unwrap();
        assert_eq!(entry(&again).ino, ino);
        assert_eq!(site.opens(), [(ino, 2)], "the mount has closed what it was not told of");

        let exchange = words(&[1, 0, 2, 0], &[b"a\0d\0"]);
        line.ask(opcode::RENAME2, ROOT, &exchange).await.unwrap();
        line.again(line.next - 1, opcode::RENAME2, ROOT, &exchange).await.unwrap();
        let found = entry(&line.ask(opcode::LOOKUP, ROOT, b"d\0").await.unwrap());
        assert_eq!(found.ino, ino, "exchanged once");
        line.ask(opcode::UNLINK, ROOT, b"d\0").await.unwrap();
        line.again(line.next - 1, opcode::UNLINK, ROOT, b"d\0").await.unwrap();
    });
}

/// The kernel of each mount names the end that it knows of.
#[test]
fn what_is_appended_at_two_mounts_goes_behind_the_end_and_once() {
    with_site(async |site| {
        let mut one = site.connect(CLIENT, &[]).await;
        let mut two = site.connect(8, &[]).await;
        let ino = one.create("a").await;
        let appended = |offset: u32, data: &[u8]| {
            words(&[0, 0, offset, 0, data.len() as u32, 0, 0, 0, 0o2002, 0], &[data])
        };
        one.ask(opcode::WRITE, ino, &appended(0, b"one")).await.unwrap();
        let written = two.ask(opcode::WRITE, ino, &appended(0, b"second")).await.unwrap();
        let again = two.again(two.next - 1, opcode::WRITE, ino, &appended(0, b"second")).await;
        assert_eq!((written, again), (words(&[6, 0], &[]), Ok(words(&[6, 0], &[]))));
        one.ask(opcode::WRITE, ino, &appended(77, b"!")).await.unwrap();
        assert_eq!(one.read(ino, 0, 99).await.unwrap(), b"onesecond!");
    });
}

#[test]
fn requests_that_come_no_more_are_forgotten() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        for (number, oldest, known) in [(1, 1, 1), (2, 1, 2), (5, 2, 2), (6, 6, 1)] {
            let frame = Some(Frame::new(40, number, oldest, false));
            let body = words(&[0o755, 0], &[format!("d{number}\0").as_bytes()]);
            line.send(frame, opcode::MKDIR, ROOT, &body).await;
            assert!(line.reply().await.1.is_ok());
            assert_eq!(site.files.look(|state| state.done.len()), known, "request {number}");
        }
    });
}

#[test]
fn a_change_is_answered_when_it_is_durable_where_a_mount_outlives_what_is_not() {
    for durably in [false, true] {
        with_site(async |site| {
            site.durably = durably;
            let mut line = site.connect(CLIENT, &[]).await;
            let ino = line.create("a").await;
            let stuck = site.stick();
            line.send(None, opcode::MKDIR, ROOT, &words(&[0o755, 0], &[b"d\0"])).await;
            let answered = site.env.timeout(Duration::from_secs(60), line.reply()).await;
            assert_eq!(answered.is_ok(), !durably);
            assert_eq!(line.read(ino, 0, 9).await.unwrap(), b"", "a read waits for nothing");
            let memory = wire::Memory { node: [7; 16], since: 3 };
            assert_eq!(line.memory, (!durably).then_some(memory), "the memory that has it alone");
            if durably {
                stuck.notify_one();
                assert_eq!(line.reply().await.0, 2);
            }
        });
    }
}

/// The kernel takes it for new, and would let any program have it.
#[test]
fn a_file_that_another_mount_has_made_is_looked_up_before_it_is_opened() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        let made = line.next - 1;
        line.write(ino, 0, b"abc").await.unwrap();
        let create = |flags| words(&[flags, 0o100_644, 0, 0], &[b"a\0"]);
        for (flags, told) in [(0o2, Errno::STALE), (0o1002, Errno::STALE), (0o202, Errno::EXIST)] {
            assert_eq!(line.ask(opcode::CREATE, ROOT, &create(flags)).await, Err(told));
        }
        assert_eq!(line.read(ino, 0, 9).await.unwrap(), b"abc");
        assert_eq!(site.opens(), [(ino, 1)]);
        // The reply is lost, and another user's file is there when the request comes again.
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        site.files.set_attr(Caller::default(), ino, &owner).await.unwrap();
        let told = line.again(made, opcode::CREATE, ROOT, &create(0o2)).await;
        assert_eq!(told, Err(Errno::STALE));
    });
}

#[test]
fn a_file_of_a_snapshot_is_not_opened_to_write() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        let past = 1 << 42 | ino;
        assert!(rekindle_file::is_frozen(past) && !rekindle_file::is_frozen(ino));
        for flags in [0o1, 0o2, 0o2002] {
            let told = line.ask(opcode::OPEN, past, &words(&[flags, 0], &[])).await;
            assert_eq!(told, Err(Errno::ROFS), "{flags:o}");
            line.ask(opcode::OPEN, ino, &words(&[flags, 0], &[])).await.unwrap();
        }
        // To read: this file system has no snapshots.
        let told = line.ask(opcode::OPEN, past, &words(&[0, 0], &[])).await;
        assert!(told.is_err_and(|errno| errno != Errno::ROFS));
    });
}

#[test]
fn a_mount_that_comes_back_keeps_its_files() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        line.write(ino, 0, b"abc").await.unwrap();
        line.ask(opcode::UNLINK, ROOT, b"a\0").await.unwrap();
        drop(line);
        site.env.sleep(limits::OPENS_GRACE / 2).await;
        assert_eq!(site.opens(), [(ino, 1)]);
        let mut line = site.connect(CLIENT, &[(ino, 1)]).await;
        site.env.sleep(limits::OPENS_GRACE * 2).await;
        assert_eq!(line.read(ino, 0, 9).await.unwrap(), b"abc");
        assert_eq!(site.opens(), [(ino, 1)]);
        drop(line);
        site.env.sleep(limits::OPENS_GRACE * 2).await;
        assert_eq!(site.opens(), [], "it is gone for good");
        assert_eq!(site.clients.count(), 0);
    });
}

#[test]
fn a_mount_that_says_goodbye_leaves_nothing_open() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        line.create("a").await;
        line.ask(opcode::DESTROY, 0, &[]).await.unwrap();
        assert_eq!(site.opens(), []);
    });
}

#[test]
fn a_later_session_of_a_mount_begins_when_the_earlier_one_has_ended() {
    with_site(async |site| {
        let mut first = site.connect(CLIENT, &[]).await;
        let ino = first.create("a").await;
        let stuck = site.stick();
        first.send(None, opcode::FSYNC, ino, &[0; 16]).await;
        site.env.sleep(Duration::from_secs(1)).await;
        let mut second = site.connect(CLIENT, &[(ino, 1)]).await;
        second.send(None, opcode::GETATTR, ino, &[0; 16]).await;
        let reply = site.env.timeout(Duration::from_secs(60), second.reply()).await;
        assert!(reply.is_err(), "the first has a request under way");
        stuck.notify_one();
        assert!(second.reply().await.1.is_ok());
        let mut other = site.connect(CLIENT + 1, &[]).await;
        assert!(other.ask(opcode::GETATTR, ino, &[0; 16]).await.is_ok());
    });
}

#[test]
fn a_read_does_not_wait_behind_a_sync() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("a").await;
        let stuck = site.stick();
        line.send(None, opcode::FSYNC, ino, &[0; 16]).await;
        assert_eq!(line.read(ino, 0, 9).await.unwrap(), b"");
        stuck.notify_one();
        assert_eq!(line.reply().await.0, 2);
    });
}

#[test]
fn a_mount_of_a_volume_that_is_served_elsewhere_is_hung_up_on() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let broken = |error: Option<Error>| site.files.look(|state| state.broken = error);
        let fenced = StagingError::Moved("one".to_owned());
        broken(Some(Error::Volume(fenced.into())));
        line.send(None, opcode::GETATTR, ROOT, &[0; 16]).await;
        assert!(line.is_over().await, "without a reply");
        broken(Some(Error::Volume(rekindle_volume::Error::Stopping)));
        let mut line = site.connect(CLIENT, &[]).await;
        line.send(None, opcode::GETATTR, ROOT, &[0; 16]).await;
        assert!(line.is_over().await, "without a reply");
        let unlawful = rekindle_volume::Error::Invalid("?".to_owned());
        broken(Some(Error::Volume(unlawful)));
        let mut line = site.connect(CLIENT, &[]).await;
        assert_eq!(line.ask(opcode::GETATTR, ROOT, &[0; 16]).await, Err(Errno::IO));
    });
}

#[test]
fn a_stop_ends_the_session_after_the_requests_that_it_has_begun() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        line.create("a").await;
        line.stop.take();
        assert!(line.is_over().await);
    });
}

#[test]
fn bytes_that_are_no_frames_end_the_session() {
    with_site(async |site| {
        let header = [0; IN_HEADER_BYTES];
        let lies = [Frame::new(40, 1, 1, false).as_bytes(), &header].concat();
        let short = Frame::new(39, 1, 1, false).as_bytes().to_vec();
        for bytes in [lies, short] {
            let mut line = site.connect(CLIENT, &[]).await;
            line.pipe.write_all(&bytes).await.unwrap();
            assert!(line.is_over().await);
        }
        let mut line = site.connect(CLIENT, &[(ROOT, u64::MAX)]).await;
        assert!(line.is_over().await, "more opens than any mount has");
        let mut line = site.connect(CLIENT, &[]).await;
        line.send(None, opcode::FORGET, ROOT, &[0; 8]).await;
        assert!(line.ask(opcode::GETATTR, ROOT, &[0; 16]).await.is_ok(), "no reply to FORGET");
        assert_eq!(line.ask(opcode::LOOKUP, ROOT, b"a/b\0").await, Err(Errno::INVAL));
        assert_eq!(line.ask(99, ROOT, b"").await, Err(Errno::NOSYS));
    });
}

#[test]
fn the_mount_is_told_of_the_folders_whose_names_a_request_has_changed() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let mode = [0o755_u32, 0];
        let made = [mode.as_bytes(), b"a\0"].concat();
        let made = line.ask(opcode::MKDIR, ROOT, &made).await.unwrap();
        let dir = EntryOut::read_from_bytes(&made).unwrap().ino;
        let request = line.next - 1;
        let names = async |ino| site.files.attr(ino).await.unwrap().size;
        assert_eq!(line.folders, [(request, ROOT, names(ROOT).await)]);
        line.create("file").await;
        assert_eq!(line.folders[1..], [(request + 1, ROOT, names(ROOT).await)]);
        let moved = [&dir.to_ne_bytes()[..], b"file\0file\0"].concat();
        line.ask(opcode::RENAME, ROOT, &moved).await.unwrap();
        let [old, new] = [ROOT, dir].map(names);
        let both = [(request + 2, ROOT, old.await), (request + 2, dir, new.await)];
        assert_eq!(line.folders[2..], both);
        line.ask(opcode::UNLINK, dir, b"none\0").await.unwrap_err();
        assert_eq!(line.folders.len(), 4, "it has changed nothing");
    });
}

#[test]
fn the_mount_is_told_before_the_reply_which_inode_has_lost_its_last_name() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let make = |name: &[u8]| [[0o10_644_u32, 0, 0, 0].as_bytes(), name].concat();
        let made = line.ask(opcode::MKNOD, ROOT, &make(b"pipe\0")).await.unwrap();
        let ino = EntryOut::read_from_bytes(&made).unwrap().ino;
        line.ask(opcode::LINK, ROOT, &[&ino.to_ne_bytes()[..], b"too\0"].concat()).await.unwrap();
        line.ask(opcode::UNLINK, ROOT, b"pipe\0").await.unwrap();
        assert!(line.unnamed.is_empty(), "it has another name");
        line.ask(opcode::UNLINK, ROOT, b"too\0").await.unwrap();
        assert_eq!(line.unnamed, [ino]);
    });
}

#[test]
fn a_change_of_the_owner_to_itself_takes_set_id_bits_as_linux_does() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let make = |name: &[u8]| [[0o100_644_u32, 0, 0, 0].as_bytes(), name].concat();
        let made = line.ask(opcode::MKNOD, ROOT, &make(b"a\0")).await.unwrap();
        let ino = EntryOut::read_from_bytes(&made).unwrap().ino;
        // The caller is user 10 of group 20. Only his own file, and the bit of a group's that is
        // not executed only where it is not his.
        for (mode, uid, gid, left) in [
            (0o6755, 10, 20, 0o755),
            (0o6745, 10, 20, 0o2745),
            (0o6745, 10, 21, 0o745),
            (0o6755, 11, 20, 0o6755),
        ] {
            let mut set = SetAttrIn::read_from_bytes(&[0; size_of::<SetAttrIn>()]).unwrap();
            (set.mode, set.uid, set.gid) = (mode, uid, gid);
            set.valid = valid::MODE | valid::UID | valid::GID;
            line.ask(opcode::SETATTR, ino, set.as_bytes()).await.unwrap();
            set.valid = valid::HANDLE;
            let out = line.ask(opcode::SETATTR, ino, set.as_bytes()).await.unwrap();
            let attr = ValidAttrOut::read_from_bytes(&out).unwrap().attr;
            assert_eq!(attr.mode & 0o7777, left, "{mode:o} of {uid}:{gid}");
        }
    });
}
