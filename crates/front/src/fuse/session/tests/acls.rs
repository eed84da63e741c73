//! Access control lists, as a mount tells of them: the lists themselves are the file system's.

use super::super::super::wire::{KNOWS_ACLS, for_any_daemon, init};
use super::*;
use rekindle_file::{Acl, AclOf};

/// A request as a mount sends it, without its header.
fn told(opcode: u32, body: &[u8]) -> Vec<u8> {
    let length = (IN_HEADER_BYTES + body.len()) as u32;
    let header =
        InHeader { length, opcode, unique: 2, ino: 1, uid: 10, gid: 20, pid: 0, extensions: 0 };
    let told = for_any_daemon([header.as_bytes(), body].concat().into());
    assert_eq!(super::super::super::wire::header(&told).unwrap().length as usize, told.len());
    told[IN_HEADER_BYTES..].to_vec()
}

#[test]
fn the_kernel_goes_by_lists_where_the_mount_knows_of_them() {
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        for (mark, offered, agreed) in
            [(KNOWS_ACLS, u32::MAX, init::ACLS), (KNOWS_ACLS, !init::ACLS, 0), (0, u32::MAX, 0)]
        {
            let asked = InitIn { major: 7, minor: 40, max_readahead: 0, flags: offered };
            let body = [asked.as_bytes(), &[0; 40], &mark.to_ne_bytes(), &[0; 4]].concat();
            let answer = line.ask(opcode::INIT, 0, &body).await.unwrap();
            let answer = InitOut::read_from_bytes(&answer).unwrap();
            assert_eq!(answer.flags & (init::ACLS | init::LOCKS), agreed);
        }
    });
}

#[test]
fn a_mode_has_the_bits_of_the_umask_for_the_file_system_only() {
    let create = |umask| words(&[0o2, 0o100_666, umask, 7], &[b"f\0"]);
    // A daemon of before takes the mode as it is.
    let went = 0o22 | 1 << 31;
    assert_eq!(told(opcode::CREATE, &create(0o22)), words(&[0o2, 0o100_644, went, 7], &[b"f\0"]));
    assert_eq!(
        told(opcode::MKNOD, &words(&[0o10_666, 5, 0o22, 0], &[b"p\0"])),
        words(&[0o10_644, 5, went, 0], &[b"p\0"])
    );
    let dir = words(&[0o2777, 0o7077], &[b"d\0"]);
    let went = 0o77 | 1 << 31;
    assert_eq!(told(opcode::MKDIR, &dir), words(&[0o2700, went], &[b"d\0"]));
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let mut mode = async |opcode, body: &[u8]| {
            entry(&line.ask(opcode, ROOT, body).await.unwrap()).attr.mode & 0o7777
        };
        assert_eq!(mode(opcode::CREATE, &told(opcode::CREATE, &create(0o27))).await, 0o640);
        assert_eq!(mode(opcode::MKDIR, &told(opcode::MKDIR, &dir)).await, 0o2700);
        // The kernel of an earlier mount has taken the bits, and says which they were.
        let masked = words(&[0o755, 0o777], &[b"e\0"]);
        assert_eq!(mode(opcode::MKDIR, &masked).await, 0o755);
    });
}

#[test]
fn a_list_takes_set_group_id_where_the_kernel_says_so() {
    let acl = Acl::of_mode(0o750).format();
    let size = acl.len() as u32;
    let name = AclOf::Access.name();
    let long = |flag| words(&[size, 0, flag, 0], &[name, b"\0", &acl]);
    let short = |flags| words(&[size, flags], &[name, b"\0", &acl]);
    assert_eq!(told(opcode::SETXATTR, &long(0)), short(0));
    assert_eq!(told(opcode::SETXATTR, &long(1)), short(1 << 31));
    // A kernel of before has no such words.
    assert_eq!(told(opcode::SETXATTR, &short(0)), short(0));
    for body in [words(&[9, 0, 1], &[]), words(&[1, 0, 1, 0], &[b"x"]), Vec::new()] {
        assert_eq!(told(opcode::SETXATTR, &body), body);
    }
    with_site(async |site| {
        let mut line = site.connect(CLIENT, &[]).await;
        let ino = line.create("f").await;
        let mut set = SetAttrIn::read_from_bytes(&[0; size_of::<SetAttrIn>()]).unwrap();
        (set.valid, set.mode) = (valid::MODE, 0o2750);
        line.ask(opcode::SETATTR, ino, set.as_bytes()).await.unwrap();
        for (flag, mode) in [(0, 0o2750), (1, 0o750)] {
            line.ask(opcode::SETXATTR, ino, &told(opcode::SETXATTR, &long(flag))).await.unwrap();
            let attr = line.ask(opcode::GETATTR, ino, &[0; 16]).await.unwrap();
            let attr = ValidAttrOut::read_from_bytes(&attr).unwrap().attr;
            assert_eq!(attr.mode & 0o7777, mode);
        }
    });
}
