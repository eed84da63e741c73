//! The book of a mount, without a kernel and a daemon.

use super::*;

fn request(opcode: u32, unique: u64, ino: u64) -> Bytes {
    request_with(opcode, unique, ino, &[])
}

fn request_with(opcode: u32, unique: u64, ino: u64, body: &[u8]) -> Bytes {
    let length = (wire::IN_HEADER_BYTES + body.len()) as u32;
    let header = InHeader { length, opcode, unique, ino, uid: 0, gid: 0, pid: 0, extensions: 0 };
    [header.as_bytes(), body].concat().into()
}

fn reply(unique: u64, error: i32, body: &[u8]) -> Vec<u8> {
    let length = (OUT_HEADER_BYTES + body.len()) as u32;
    [OutHeader { length, error, unique }.as_bytes(), body].concat()
}

#[test]
fn a_file_that_is_only_written_goes_past_the_pages_of_a_kernel_that_keeps_them_in_step() {
    let open = |words: &[u32], opcode, unique| request_with(opcode, unique, 5, words.as_bytes());
    for (flags, direct) in [(1 << 4, true), (0, false)] {
        let mut ledger = Ledger::new(7);
        ledger.take(open(&[7, 45, 0, 1 << 30, flags], opcode::INIT, 2));
        let mut agreed = reply(2, 0, wire::InitOut::default().as_bytes());
        assert_eq!(ledger.answer(&mut agreed), Answered::Kernel(opcode::INIT));
        let (_, agreed) = wire::InitOut::read_from_suffix(&agreed).expect("the reply");
        let [second, ..] = agreed.unused;
        let told = (agreed.flags, second);
        assert_eq!(told, if direct { (1 << 30, flags) } else { (0, 0) }, "files may be mapped");
        ledger.take(open(&[0o1, 0], opcode::OPEN, 4));
        ledger.take(open(&[0o2, 0], opcode::OPEN, 6));
        ledger.take(open(&[0o1, 0], opcode::OPEN, 8));
        let written = if direct { Answered::Direct } else { Answered::Kernel(opcode::OPEN) };
        assert_eq!(ledger.answer(&mut reply(4, 0, &[0; 16])), written);
        assert_eq!(ledger.answer(&mut reply(6, 0, &[0; 16])), Answered::Kernel(opcode::OPEN));
        let failed = ledger.answer(&mut reply(8, -2, &[]));
        assert_eq!(failed, Answered::Kernel(opcode::OPEN), "an error has no flags");
    }
}

fn sent(ledger: &mut Ledger) -> Vec<(u64, u64, bool)> {
    std::iter::from_fn(|| ledger.send())
        .map(|(frame, _)| (frame.number, frame.oldest, frame.is_again()))
        .collect()
}

#[test]
fn only_what_has_no_reply_is_sent_again() {
    let mut ledger = Ledger::new(7);
    for unique in [8, 4, 6] {
        assert!(ledger.take(request(opcode::GETATTR, unique, 1)));
    }
    assert!(!ledger.take(request(opcode::FORGET, 10, 1)), "it has no reply");
    ledger.begin();
    assert_eq!(sent(&mut ledger), [(1, 1, false), (2, 1, false), (3, 1, false)]);
    assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Kernel(opcode::GETATTR));
    assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Nothing, "it has its reply");
    assert_eq!(ledger.answer(&mut reply(99, 0, &[])), Answered::Nothing);
    ledger.take(request(opcode::GETATTR, 12, 1));
    ledger.begin();
    assert_eq!(sent(&mut ledger), [(1, 1, true), (3, 1, true), (4, 1, false)]);
    ledger.answer(&mut reply(8, 0, &[]));
    ledger.take(request(opcode::GETATTR, 14, 1));
    assert_eq!(sent(&mut ledger), [(5, 3, false)], "the first has its reply");
}

#[test]
fn a_hello_tells_what_is_open() {
    let mut ledger = Ledger::new(7);
    let mut ask = |opcode, ino, error, body: &[u8]| {
        ledger.take(request(opcode, 2, ino));
        ledger.answer(&mut reply(2, error, body));
        ledger.begin()
    };
    ask(opcode::OPEN, 5, 0, &[]);
    ask(opcode::OPEN, 5, 0, &[]);
    ask(opcode::OPEN, 6, -2, &[]);
    ask(opcode::CREATE, 1, 0, &[&9_u64.to_ne_bytes()[..], &[0; 128]].concat());
    let hello = ask(opcode::OPENDIR, 1, 0, &[]);
    let open = |ino, count| Open { ino, count }.as_bytes().to_vec();
    let all = [open(1, 1), open(5, 2), open(9, 1)];
    assert_eq!(hello, [Hello::new(7, 3).as_bytes(), &all.concat()].concat());
    ask(opcode::RELEASEDIR, 1, 0, &[]);
    ask(opcode::RELEASE, 9, 0, &[]);
    let hello = ask(opcode::RELEASE, 5, 0, &[]);
    assert_eq!(hello, [Hello::new(7, 1).as_bytes(), &open(5, 1)].concat());
}

#[test]
fn a_request_that_is_given_up_is_not_sent_again_and_leaves_nothing_open() {
    let mut ledger = Ledger::new(7);
    ledger.take(request(opcode::MKDIR, 2, 1));
    ledger.take(request(opcode::OPEN, 4, 5));
    ledger.begin();
    assert_eq!(sent(&mut ledger), [(1, 1, false), (2, 1, false)]);
    ledger.take(request(opcode::MKDIR, 6, 1));
    for unique in [2, 4, 6, 99] {
        ledger.give_up(unique);
        assert_eq!(ledger.waiter(unique), None);
    }
    assert_eq!(sent(&mut ledger), [], "the third was not sent, and is gone");
    // The daemon has opened it, and is told to close it.
    assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Nothing);
    assert_eq!(
        ledger.begin(),
        [Hello::new(7, 1).as_bytes(), Open { ino: 5, count: 1 }.as_bytes()].concat()
    );
    assert_eq!(sent(&mut ledger), [(4, 4, false)], "the first may have been carried out");
    assert_eq!(ledger.answer(&mut reply(OWN, 0, &[])), Answered::Own);
    assert!(ledger.is_quiet() && ledger.opens.is_empty());
    assert_eq!(ledger.answer(&mut reply(2, 0, &[])), Answered::Nothing);
}

/// Two words of 64 bits and what follows: of SETLK and SETLKW.
fn lock(owner: u64, kind: u32) -> Vec<u8> {
    let words = [0, owner, 0, 9].map(u64::to_ne_bytes).concat();
    [&words[..], &kind.to_ne_bytes(), &[0; 12]].concat()
}

fn flush(ledger: &Ledger, owner: u64) -> Option<Vec<u8>> {
    let body = [0, 0, owner].map(u64::to_ne_bytes).concat();
    ledger.answer_at_once(&request_with(opcode::FLUSH, 90, 5, &body))
}

fn agree(ledger: &mut Ledger, flags: u32) {
    ledger.take(request_with(opcode::INIT, 2, 0, &[0; 16]));
    let out = wire::InitOut { flags, ..wire::InitOut::default() };
    ledger.answer(&mut reply(2, 0, out.as_bytes()));
}

#[test]
fn the_daemon_hears_of_a_close_where_the_program_may_have_locks() {
    let mut ledger = Ledger::new(7);
    agree(&mut ledger, 0);
    let is_terminal = ledger.answer_at_once(&request(IOCTL, 80, 5));
    assert_eq!(is_terminal, Some(bare_reply(80, -Errno::NOTTY.raw_os_error())));
    assert_eq!(flush(&ledger, 1), None, "an old daemon does as it likes");
    assert_eq!(ledger.handle(), None);
    agree(&mut ledger, wire::init::LOCKS);
    assert_eq!((ledger.handle(), ledger.handle()), (Some(1), Some(2)));
    assert_eq!(flush(&ledger, 1), Some(bare_reply(90, 0)));
    ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
    assert_eq!(flush(&ledger, 1), None, "the reply may be lost");
    assert_eq!(flush(&ledger, 2), Some(bare_reply(90, 0)), "another process");
    ledger.answer(&mut reply(4, 0, &[]));
    let body = [0, 0, 1].map(u64::to_ne_bytes).concat();
    ledger.take(request_with(opcode::FLUSH, 6, 5, &body));
    ledger.answer(&mut reply(6, 0, &[]));
    assert_eq!(flush(&ledger, 1), Some(bare_reply(90, 0)), "they are given back");
}

#[test]
fn a_mount_says_that_it_knows_of_locks_and_a_daemon_without_any_is_no_error() {
    let mut ledger = Ledger::new(7);
    for bytes in [16, 64] {
        ledger.take(request_with(opcode::INIT, 2, 0, &vec![0; bytes]));
        ledger.begin();
        let (frame, init) = ledger.send().expect("a request");
        assert_eq!((frame.length as usize, init.len()), (104, 104));
        assert_eq!(init[96..100], wire::KNOWS_ACLS.to_ne_bytes());
        assert_eq!(init[100..], wire::KNOWS_LOCKS.to_ne_bytes());
        ledger.answer(&mut reply(2, 0, &[]));
    }
    ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
    assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Locked(5, None));
    ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 2)));
    assert_eq!(ledger.answer(&mut reply(4, 0, &[])), Answered::Kernel(opcode::SETLK), "given back");
    ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
    let answered = ledger.answer(&mut reply(4, -Errno::NOSYS.raw_os_error(), &[]));
    assert_eq!(answered, Answered::Instead(bare_reply(4, -Errno::NOLCK.raw_os_error())));
}

#[test]
fn a_daemon_without_lists_makes_modes_with_the_umask_and_no_inode_has_a_list() {
    let mut ledger = Ledger::new(7);
    ledger.take(request_with(opcode::MKDIR, 2, 1, b"\xb6\x01\0\0\x12\0\0\0d\0"));
    assert_eq!(ledger.send().expect("a request").1[40..44], 0o644_u32.to_ne_bytes());
    ledger.take(request_with(opcode::GETXATTR, 4, 5, b"12345678system.posix_acl_access\0"));
    let answered = ledger.answer(&mut reply(4, -Errno::OPNOTSUPP.raw_os_error(), &[]));
    assert_eq!(answered, Answered::Instead(bare_reply(4, -Errno::NODATA.raw_os_error())));
}

#[test]
fn a_folder_is_not_asked_for_after_a_change_of_its_names() {
    let mut ledger = Ledger::new(7);
    let told = AttrOut { ino: 5, links: 3, ..AttrOut::default() };
    let make = |ledger: &mut Ledger| {
        ledger.take(request(opcode::MKDIR, 4, 5));
        let head = OutHeader { length: 0, error: wire::FOLDER, unique: 0 };
        let mut notice = [head.as_bytes(), 4_u64.as_bytes(), told.as_bytes()].concat();
        assert_eq!(ledger.answer(&mut notice), Answered::Nothing);
        ledger.answer(&mut reply(4, 0, &[]));
    };
    let look = |ledger: &Ledger| {
        let reply = ledger.answer_at_once(&request(opcode::GETATTR, 90, 5))?;
        let (_, out) = ValidAttrOut::read_from_suffix(&reply).expect("attributes");
        Some((reply_bytes(&reply) == Some(reply.len()), out.attr.links))
    };
    make(&mut ledger);
    assert_eq!(look(&ledger), Some((true, 3)));
    // A daemon that was started again, and the kernel that knows the folder no more.
    ledger.begin();
    assert_eq!(look(&ledger), None);
    make(&mut ledger);
    ledger.take(request_with(opcode::FORGET, 6, 5, &1_u64.to_ne_bytes()));
    assert_eq!(look(&ledger), None);
    make(&mut ledger);
    ledger.take(request(opcode::SETATTR, 8, 5));
    assert_eq!(look(&ledger), Some((true, 3)), "it may have come first");
    ledger.answer(&mut reply(8, 0, &[]));
    assert_eq!(look(&ledger), None);
}

#[test]
fn a_lock_of_a_mount_without_company_waits_for_no_names() {
    let mut ledger = Ledger::new(7);
    agree(&mut ledger, wire::init::LOCKS);
    let mut ask = |opcode, ino, asked: &[u8], told: Option<u64>, body: &[u8]| {
        ledger.take(request_with(opcode, 4, ino, asked));
        if let Some(unique) = told {
            let head = OutHeader { length: 0, error: wire::ALONE, unique: 0 };
            let mut notice = [head.as_bytes(), unique.as_bytes()].concat();
            assert_eq!(ledger.answer(&mut notice), Answered::Nothing);
        }
        ledger.answer(&mut reply(4, 0, body))
    };
    let entry = |ino| wire::EntryOut { ino, ..wire::EntryOut::default() };
    ask(opcode::CREATE, 1, &[0; 16], None, &[entry(5).as_bytes(), &[0; 16]].concat());
    ask(opcode::LOOKUP, 1, b"b", None, entry(6).as_bytes());
    let mut lock = |told| ask(opcode::SETLK, 5, &lock(1, 1), told, &[]);
    assert_eq!(lock(Some(4)), Answered::Locked(5, None));
    for told in [None, Some(6)] {
        assert!(matches!(lock(told), Answered::Locked(5, Some(_))), "another request's word");
    }
    assert_eq!(lock(Some(4)), Answered::Locked(5, None));
}

#[test]
fn what_an_open_file_has_locked_goes_with_its_last_use() {
    let mut ledger = Ledger::new(7);
    agree(&mut ledger, wire::init::LOCKS);
    let handled = |handle: u64, body: Vec<u8>| [&handle.to_ne_bytes(), &body[8..]].concat();
    let mut lock_by = |handle, owner| {
        ledger.take(request_with(opcode::SETLK, 4, 5, &handled(handle, lock(owner, 1))));
        ledger.answer(&mut reply(4, 0, &[]));
    };
    lock_by(1, 10);
    lock_by(2, 10);
    lock_by(2, 20);
    let body = |handle: u64, owner: u64| [handle, 0, owner].map(u64::to_ne_bytes).concat();
    ledger.take(request_with(opcode::FLUSH, 6, 5, &body(2, 10)));
    ledger.answer(&mut reply(6, 0, &[]));
    ledger.begin();
    ledger.take(request_with(opcode::RELEASE, 8, 5, &body(1, 0)));
    let asked = |ledger: &mut Ledger| -> Vec<(u32, Option<u64>)> {
        std::iter::from_fn(|| ledger.send())
            .map(|(_, request)| {
                let header = wire::header(&request).expect("a header");
                let op = wire::op(header.opcode, &request[wire::IN_HEADER_BYTES..]);
                let owner = match op {
                    Ok(wire::Op::Flush { owner }) => Some(owner),
                    _ => None,
                };
                (header.opcode, owner)
            })
            .collect()
    };
    assert_eq!(asked(&mut ledger), [(opcode::RELEASE, None)], "its process has closed it");
    ledger.take(request_with(opcode::RELEASE, 10, 5, &body(2, 0)));
    let both = [(opcode::FLUSH, Some(20)), (opcode::RELEASE, None)];
    assert_eq!(asked(&mut ledger), both);
    assert_eq!(ledger.answer(&mut reply(OWN, 0, &[])), Answered::Own);
}

#[test]
fn a_program_that_dies_gives_its_locks_back_over_any_connection() {
    let mut ledger = Ledger::new(7);
    agree(&mut ledger, wire::init::LOCKS);
    ledger.take(request_with(opcode::SETLK, 4, 5, &lock(1, 1)));
    ledger.answer(&mut reply(4, 0, &[]));
    let body = [0, 0, 1].map(u64::to_ne_bytes).concat();
    ledger.take(request_with(opcode::FLUSH, 6, 5, &body));
    ledger.give_up(6);
    assert_eq!(ledger.waiter(6), None);
    for is_again in [false, true] {
        ledger.begin();
        assert_eq!(sent(&mut ledger), [(3, 3, is_again)]);
    }
    assert_eq!(ledger.answer(&mut reply(6, 0, &[])), Answered::Nothing);
    assert!(ledger.is_quiet());
}

#[test]
fn a_signal_ends_the_wait_for_a_lock_at_the_daemon_or_here() {
    let mut ledger = Ledger::new(7);
    ledger.take(request_with(opcode::SETLKW, 4, 5, &lock(1, 1)));
    ledger.take(request(opcode::FSYNC, 6, 5));
    ledger.begin();
    assert_eq!(sent(&mut ledger), [(1, 1, false), (2, 1, false)]);
    assert_eq!(ledger.interrupt(6), None, "no program expects that of a disk");
    assert_eq!(sent(&mut ledger), []);
    assert_eq!(ledger.interrupt(4), None);
    let (frame, told) = ledger.send().expect("an INTERRUPT");
    assert_eq!((frame.number, wire::interrupted(&told)), (3, Some(4)));
    // Over another connection, behind the request.
    ledger.begin();
    assert_eq!(sent(&mut ledger), [(1, 1, true), (2, 1, true), (4, 1, false)]);
    let mut reply = reply(4, -Errno::INTR.raw_os_error(), &[]);
    assert_eq!(ledger.answer(&mut reply), Answered::Kernel(opcode::SETLKW));
    ledger.begin();
    assert_eq!(sent(&mut ledger), [(2, 2, true)]);
    // One that the daemon has not heard of.
    ledger.take(request_with(opcode::SETLKW, 8, 5, &lock(1, 1)));
    assert_eq!(ledger.interrupt(8), Some(bare_reply(8, -Errno::INTR.raw_os_error())));
    assert_eq!(sent(&mut ledger), []);
}

#[test]
fn an_open_without_a_reply_is_not_open_yet() {
    let mut ledger = Ledger::new(7);
    ledger.take(request(opcode::OPEN, 2, 5));
    assert_eq!(ledger.begin(), Hello::new(7, 0).as_bytes());
    assert_eq!(sent(&mut ledger), [(1, 1, false)]);
}

#[test]
fn an_inode_that_lost_its_name_is_answered_for_until_the_kernel_forgets_it() {
    let mut ledger = Ledger::new(7);
    let stale = -Errno::STALE.raw_os_error();
    let attr = AttrOut { ino: 5, mode: 0o10_644, links: 1, ..AttrOut::default() };
    let look = |ledger: &mut Ledger, opcode, body: &[u8], error| {
        ledger.take(request_with(opcode, 2, 5, body));
        match ledger.answer(&mut reply(2, error, &[])) {
            Answered::Instead(reply) => {
                assert_eq!(reply_bytes(&reply), Some(reply.len()));
                let (_, out) = ValidAttrOut::read_from_suffix(&reply).expect("attributes");
                Some((out.attr.mode, out.attr.links, out.attr.uid))
            }
            answered => {
                assert_eq!(answered, Answered::Kernel(opcode));
                None
            }
        }
    };
    assert_eq!(look(&mut ledger, opcode::GETATTR, &[], stale), None, "it never had a name");
    let notice =
        [OutHeader { length: 0, error: wire::UNNAMED, unique: 0 }.as_bytes(), attr.as_bytes()];
    assert_eq!(ledger.answer(&mut notice.concat()), Answered::Nothing);
    assert_eq!(look(&mut ledger, opcode::GETATTR, &[], stale), Some((0o10_644, 0, 0)));
    assert_eq!(look(&mut ledger, opcode::GETATTR, &[], -5), None, "another error");
    assert_eq!(look(&mut ledger, opcode::READLINK, &[], stale), None);
    let mut set = SetAttrIn::read_from_bytes(&[0; size_of::<SetAttrIn>()]).expect("zeros");
    (set.valid, set.mode, set.uid) = (valid::MODE | valid::UID, 0o100_600, 9);
    let changed = look(&mut ledger, opcode::SETATTR, set.as_bytes(), stale);
    assert_eq!(changed, Some((0o10_600, 0, 9)), "the type stays");
    let pair = |ino: u64| [ino.to_ne_bytes(), 1_u64.to_ne_bytes()].concat();
    for forgets in [pair(5)[8..].to_vec(), [vec![0; 8], pair(4), pair(5)].concat()] {
        let opcode = if forgets.len() == 8 { opcode::FORGET } else { opcode::BATCH_FORGET };
        ledger.answer(&mut notice.concat());
        assert!(!ledger.take(request_with(opcode, 4, 5, &forgets)));
        assert_eq!(look(&mut ledger, opcode::GETATTR, &[], stale), None, "it is forgotten");
    }
}

#[test]
fn what_was_not_synced_when_the_memory_was_lost_is_an_error_of_the_next_sync_once() {
    let mut ledger = Ledger::new(7);
    let mut unique = 0;
    let mut call = |ledger: &mut Ledger, opcode, ino| {
        unique += 2;
        ledger.take(request(opcode, unique, ino));
        let body: &[u8] = if opcode == opcode::OPEN { &[0; 16] } else { &[] };
        ledger.answer(&mut reply(unique, 0, body))
    };
    let told = |ledger: &mut Ledger, node, since| {
        let memory = Memory { node: [node; 16], since };
        let told = ledger.answer(&mut reply(0, wire::MEMORY, memory.as_bytes()));
        assert_eq!(told, Answered::Nothing);
    };
    let is_error = |answered: &Answered| {
        let Answered::Instead(reply) = answered else { return false };
        OutHeader::read_from_prefix(reply).expect("a reply").0.error == -5
    };
    told(&mut ledger, 1, 0);
    call(&mut ledger, opcode::OPEN, 5);
    call(&mut ledger, opcode::OPEN, 6);
    let syncs =
        [(opcode::FSYNC, 5), (opcode::FSYNC, 6), (opcode::FSYNCDIR, 1), (opcode::SYNCFS, 1)];
    let errors = |ledger: &mut Ledger, call: &mut dyn FnMut(&mut Ledger, u32, u64) -> Answered| {
        syncs.map(|(opcode, ino)| is_error(&call(ledger, opcode, ino)))
    };
    // The next daemon has the memory of the last one.
    told(&mut ledger, 1, 0);
    assert_eq!(errors(&mut ledger, &mut call), [false; 4]);
    told(&mut ledger, 1, 4);
    assert!(!is_error(&call(&mut ledger, opcode::FSYNC, 7)), "it was not open");
    assert_eq!(errors(&mut ledger, &mut call), [true; 4]);
    assert_eq!(errors(&mut ledger, &mut call), [false; 4], "once");
    // At another node, everything was durable.
    told(&mut ledger, 2, 9);
    assert_eq!(errors(&mut ledger, &mut call), [false; 4]);
}
