//! The pump between a kernel and a daemon that the test plays.

use super::*;
use rekindle_front::fuse::frame::{FRAME_BYTES, Frame, HELLO_BYTES, Hello};
use rekindle_front::fuse::wire::{self, InHeader, OUT_HEADER_BYTES, OutHeader};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use zerocopy::FromBytes;

/// The test's end of the device: a message is a request or a reply, as with the kernel.
struct Kernel(AsyncFd<OwnedFd>);

impl Kernel {
    fn pair() -> (Self, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        // SAFETY: an `OwnedFd` keeps its descriptor open, and gives the same one each time.
        let ours = unsafe { AsyncFd::register(ours) };
        (Self(ours.expect("a descriptor")), device)
    }

    fn ask(&self, opcode: u32, unique: u64) {
        self.ask_for(0, opcode, unique, &[]);
    }

    /// The same, for a thread.
    fn ask_for(&self, pid: u32, opcode: u32, unique: u64, body: &[u8]) {
        self.ask_of(5, pid, opcode, unique, body);
    }

    /// The same, of an inode.
    fn ask_of(&self, ino: u64, pid: u32, opcode: u32, unique: u64, body: &[u8]) {
        let length = (wire::IN_HEADER_BYTES + body.len()) as u32;
        let header = InHeader { length, opcode, unique, ino, uid: 0, gid: 0, pid, extensions: 0 };
        let request = [header.as_bytes(), body].concat();
        rustix::io::write(self.0.get_ref(), &request).expect("room");
    }

    /// Tells that a signal has met the program of a request.
    fn interrupt(&self, unique: u64) {
        self.ask_for(0, wire::opcode::INTERRUPT, unique | 1, &unique.to_ne_bytes());
    }

    async fn reply(&self) -> OutHeader {
        loop {
            let mut ready = self.0.readable().await.expect("a descriptor");
            let mut bytes = [0; 4096];
            match rustix::io::read(self.0.get_ref(), &mut bytes) {
                Ok(_) => return OutHeader::read_from_prefix(&bytes).expect("a reply").0,
                Err(_) => ready.clear_ready(),
            }
        }
    }
}

/// A thread that is about to die.
const DYING: u32 = 77;

/// The daemon's end of a connection.
struct Daemon(UnixStream);

impl Daemon {
    async fn hello(&mut self) -> Hello {
        let mut bytes = [0; HELLO_BYTES];
        self.0.read_exact(&mut bytes).await.expect("a hello");
        let hello = Hello::decode(bytes).expect("a hello");
        let mut opens = vec![0; 16 * hello.opens as usize];
        self.0.read_exact(&mut opens).await.expect("what is open");
        hello
    }

    /// Takes a request; returns its unique number and whether it comes again.
    async fn request(&mut self) -> (u64, bool) {
        let mut bytes = [0; FRAME_BYTES];
        self.0.read_exact(&mut bytes).await.expect("a frame");
        let frame = Frame::decode(bytes).expect("a frame");
        let mut request = vec![0; frame.length as usize];
        self.0.read_exact(&mut request).await.expect("a request");
        (wire::header(&request).expect("a header").unique, frame.is_again())
    }

    async fn reply(&mut self, unique: u64) {
        self.reply_with(unique, &[]).await;
    }

    async fn reply_with(&mut self, unique: u64, body: &[u8]) {
        let length = (OUT_HEADER_BYTES + body.len()) as u32;
        let head = OutHeader { length, error: 0, unique };
        self.0.write_all(&[head.as_bytes(), body].concat()).await.expect("a reply");
    }
}

/// Runs a story beside a pump. The story gets each connection that the pump makes.
fn with_pump(story: impl AsyncFn(Kernel, &mut mpsc::UnboundedReceiver<Daemon>)) -> Outcome {
    with_pump_to_leave(async |kernel, daemons, _| story(kernel, daemons).await)
}

/// The same. The story may have the pump give the file system up.
fn with_pump_to_leave(
    story: impl AsyncFn(Kernel, &mut mpsc::UnboundedReceiver<Daemon>, &Notify),
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (kernel, device) = Kernel::pair();
        let (sender, mut daemons) = mpsc::unbounded_channel();
        let connect = async || {
            let (ours, theirs) = UnixStream::pair()?;
            match sender.send(Daemon(theirs)) {
                Ok(()) => Ok(ours),
                Err(_) => Err(Failure::new("the volume is gone").kind(Kind::NotFound)),
            }
        };
        let mut pump = Pump::new(Device::new(device)?, 7);
        pump.is_dying = |thread| thread == DYING;
        let first = connect().await?;
        let (ended, ()) = tokio::join!(pump.run(first, connect), async {
            story(kernel, &mut daemons, &pump.leave).await;
            daemons.close();
        });
        ended
    })
}

#[test]
fn requests_without_a_reply_are_sent_again_and_get_one_reply() {
    let ended = with_pump(async |kernel, daemons| {
        let mut first = daemons.recv().await.expect("a connection");
        assert_eq!(first.hello().await.opens, 0);
        for unique in [2, 4, 6] {
            kernel.ask(wire::opcode::OPEN, unique);
        }
        for unique in [2, 4, 6] {
            assert_eq!(first.request().await, (unique, false));
        }
        first.reply(4).await;
        assert_eq!(kernel.reply().await.unique, 4);
        drop(first);
        kernel.ask(wire::opcode::GETATTR, 8);
        let mut second = daemons.recv().await.expect("another connection");
        assert_eq!(second.hello().await.opens, 1, "that of request 4");
        assert_eq!(second.request().await, (2, true));
        assert_eq!(second.request().await, (6, true));
        assert_eq!(second.request().await, (8, false));
        for unique in [8, 2, 2, 6] {
            second.reply(unique).await;
        }
        for unique in [8, 2, 6] {
            assert_eq!(kernel.reply().await.unique, unique, "once");
        }
        drop(kernel);
        // Its goodbye.
        assert_eq!(second.request().await, (u64::MAX, false));
        second.reply(u64::MAX).await;
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_mount_that_is_given_up_says_goodbye_and_takes_no_further_request() {
    let ended = with_pump_to_leave(async |kernel, daemons, leave| {
        let mut daemon = daemons.recv().await.expect("a connection");
        daemon.hello().await;
        kernel.ask(wire::opcode::OPEN, 2);
        assert_eq!(daemon.request().await, (2, false));
        leave.notify_one();
        assert_eq!(daemon.request().await, (u64::MAX, false));
        kernel.ask(wire::opcode::GETATTR, 4);
        daemon.reply(2).await;
        assert_eq!(kernel.reply().await.unique, 2, "what was begun has its reply");
        daemon.reply(u64::MAX).await;
        daemon.0.read_exact(&mut [0]).await.expect_err("nothing follows");
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_program_that_is_killed_dies_and_one_that_handles_its_signal_waits_on() {
    let ended = with_pump(async |kernel, daemons| {
        let mut first = daemons.recv().await.expect("a connection");
        first.hello().await;
        kernel.ask_for(DYING, wire::opcode::MKDIR, 2, &[]);
        kernel.ask_for(5, wire::opcode::MKDIR, 4, &[]);
        assert_eq!((first.request().await, first.request().await), ((2, false), (4, false)));
        for unique in [4, 2, 99] {
            kernel.interrupt(unique);
        }
        let told = kernel.reply().await;
        assert_eq!((told.unique, told.error), (2, -Errno::INTR.raw_os_error()));
        drop(first);
        let mut second = daemons.recv().await.expect("another connection");
        second.hello().await;
        assert_eq!(second.request().await, (4, true), "it may have been carried out: not again");
        second.reply(2).await;
        second.reply(4).await;
        assert_eq!(kernel.reply().await.unique, 4);
        drop(kernel);
        assert_eq!(second.request().await, (u64::MAX, false));
        second.reply(u64::MAX).await;
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_lock_is_given_when_no_name_of_its_folder_is_believed() {
    let ended = with_pump(async |kernel, daemons| {
        let mut daemon = daemons.recv().await.expect("a connection");
        daemon.hello().await;
        let mut answered = async |ino, opcode, unique, asked: &[u8], body: &[u8]| {
            kernel.ask_of(ino, 0, opcode, unique, asked);
            assert_eq!(daemon.request().await, (unique, false));
            daemon.reply_with(unique, body).await;
        };
        let agreed = wire::InitOut { flags: wire::init::LOCKS, ..wire::InitOut::default() };
        answered(0, wire::opcode::INIT, 2, &[0; 64], agreed.as_bytes()).await;
        let made = wire::EntryOut { ino: 9, ..wire::EntryOut::default() };
        let made = [made.as_bytes(), &[0; 16]].concat();
        answered(5, wire::opcode::CREATE, 4, &[0; 16], &made).await;
        let absent = wire::EntryOut { entry_seconds: 1, ..wire::EntryOut::default() };
        answered(5, wire::opcode::LOOKUP, 6, b"journal\0", absent.as_bytes()).await;
        let lock = |owner: u64| {
            let words = [0, owner, 0, 9].map(u64::to_ne_bytes).concat();
            [&words[..], &1_u32.to_ne_bytes(), &[0; 12]].concat()
        };
        answered(9, wire::opcode::SETLK, 8, &lock(1), &[]).await;
        answered(9, wire::opcode::SETLKW, 10, &lock(2), &[]).await;
        answered(5, wire::opcode::GETATTR, 12, &[], &[]).await;
        // Before each lock, the kernel hears that it must ask for the attributes.
        for unique in [2, 4, 6, 12, 0, 8, 0, 10] {
            assert_eq!(kernel.reply().await.unique, unique);
        }
        drop(kernel);
        assert_eq!(daemon.request().await, (u64::MAX, false));
        daemon.reply(u64::MAX).await;
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_volume_that_is_gone_ends_the_mount() {
    let ended = with_pump(async |kernel, daemons| {
        kernel.ask(wire::opcode::GETATTR, 2);
        let mut first = daemons.recv().await.expect("a connection");
        first.hello().await;
        daemons.close();
        drop(first);
        // The pump must see the end of the daemon, and not that of the kernel.
        tokio::time::timeout(Duration::from_millis(100), kernel.reply()).await.expect_err("none");
    });
    assert_eq!(ended.map_err(|failure| failure.error), Err("the volume is gone".to_owned()));
}

#[test]
fn a_request_that_comes_in_pieces_and_a_reply_in_pieces_are_whole() {
    let ended = with_pump(async |kernel, daemons| {
        let mut daemon = daemons.recv().await.expect("a connection");
        daemon.hello().await;
        kernel.ask(wire::opcode::GETATTR, 2);
        assert_eq!(daemon.request().await, (2, false));
        let head = OutHeader { length: OUT_HEADER_BYTES as u32, error: -5, unique: 2 };
        for byte in head.as_bytes() {
            daemon.0.write_all(&[*byte]).await.expect("a byte");
            tokio::task::yield_now().await;
        }
        assert_eq!(kernel.reply().await.error, -5);
        drop(kernel);
        assert_eq!(daemon.request().await, (u64::MAX, false));
        daemon.reply(u64::MAX).await;
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn the_words_of_a_mount_say_what_to_do_when_the_volume_lacks_a_part() {
    let lacks = Failure::new("chunk 01 is absent").next("`rekindle status`").kind(Kind::Damaged);
    let told = away("it hung up", &lacks);
    assert!(told.contains("cannot be served now (chunk 01 is absent)"), "{told}");
    assert!(told.contains("requests wait; `rekindle status`") && !is_final(&lacks), "{told}");
    let stopped = Failure::new("no daemon").next("start it").kind(Kind::Unavailable);
    let told = away("it hung up", &stopped);
    assert_eq!(told, "rekindle: the daemon is away (it hung up; no daemon): requests wait");
}
