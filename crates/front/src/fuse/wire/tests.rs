//! Requests as a kernel sends them, and as it never does.

use super::*;

fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let length = (IN_HEADER_BYTES + body.len()) as u32;
    let header =
        InHeader { length, opcode, unique: 2, ino: 1, uid: 0, gid: 0, pid: 0, extensions: 0 };
    [header.as_bytes(), body].concat()
}

fn words(words: &[u32], rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(rest);
    bytes
}

#[test]
fn structures_have_the_sizes_of_the_kernels() {
    assert_eq!((IN_HEADER_BYTES, OUT_HEADER_BYTES), (40, 16));
    assert_eq!((size_of::<InitIn>(), size_of::<InitOut>()), (16, 64));
    assert_eq!((size_of::<SetAttrIn>(), size_of::<AttrOut>()), (88, 88));
    assert_eq!((size_of::<EntryOut>(), size_of::<ValidAttrOut>()), (128, 104));
    assert_eq!((size_of::<OpenOut>(), size_of::<SpaceOut>()), (16, 80));
    assert_eq!((size_of::<NameOut>(), size_of::<ReadIn>()), (24, 40));
    assert_eq!((size_of::<AllocateIn>(), size_of::<SeekIn>()), (32, 24));
    assert_eq!(size_of::<CopyIn>(), 56);
}

#[test]
fn requests_say_what_they_ask_for() {
    let long = [&[b'x'; 255][..], b"\0"].concat();
    let read = words(&[0, 0, 4096, 0, 512, 0, 0, 0, 0, 0], b"");
    let write = words(&[0, 0, 4096, 0, 3, 0, 0, 0, 0, 0], b"abc");
    let at_end = words(&[0, 0, 4096, 0, 3, 0, 0, 0, 0o2001, 0], b"abc");
    let page = words(&[0, 0, 4096, 0, 3, 1, 0, 0, 0o2001, 0], b"abc");
    let past = O_DIRECT | 0o1;
    let direct = words(&[0, 0, 4096, 0, 3, 0, 0, 0, past, 0], b"abc");
    let direct_at_end = words(&[0, 0, 4096, 0, 3, 0, 0, 0, past | 0o2000, 0], b"abc");
    let written =
        |offset, is_whole| Op::Write { offset, kills_set_id: false, is_whole, data: b"abc" };
    for (opcode, body, wanted) in [
        (opcode::LOOKUP, b"name\0".to_vec(), Op::Lookup { name: b"name" }),
        (opcode::LOOKUP, b"..\0".to_vec(), Op::Lookup { name: b".." }),
        (opcode::UNLINK, long.clone(), Op::Unlink { name: &long[..255] }),
        (
            opcode::MKDIR,
            words(&[0o755, 0o22], b"d\0"),
            Op::MakeDir { name: b"d", mode: 0o755, umask: 0 },
        ),
        (
            opcode::MKNOD,
            words(&[0o10644, 5, 0, 0], b"p\0"),
            Op::MakeNode { name: b"p", mode: 0o10644, umask: 0, device: 5 },
        ),
        (opcode::OPEN, words(&[0o2001, 0], b""), Op::Open { flags: 0o2001 }),
        (
            opcode::CREATE,
            words(&[2, 0o644, 0, 0], b"f\0"),
            Op::Create { name: b"f", mode: 0o644, umask: 0, flags: 2 },
        ),
        (opcode::SYMLINK, b"l\0a/b\0".to_vec(), Op::Symlink { name: b"l", target: b"a/b" }),
        (opcode::LINK, words(&[7, 0], b"n\0"), Op::Link { ino: 7, name: b"n" }),
        (
            opcode::RENAME,
            words(&[9, 0], b"a\0b\0"),
            Op::Rename { name: b"a", to: (9, b"b"), how: Rename::Replace },
        ),
        (
            opcode::RENAME2,
            words(&[9, 0, 2, 0], b"a\0b\0"),
            Op::Rename { name: b"a", to: (9, b"b"), how: Rename::Exchange },
        ),
        (opcode::READ, read.clone(), Op::Read { offset: 4096, size: 512 }),
        (opcode::READDIRPLUS, read, Op::List { offset: 4096, size: 512, plus: true }),
        (opcode::WRITE, write, written(Some(4096), false)),
        (opcode::WRITE, at_end, written(None, false)),
        (opcode::WRITE, page, written(Some(4096), true)),
        (opcode::WRITE, direct, written(Some(4096), true)),
        (opcode::WRITE, direct_at_end, written(None, true)),
        (opcode::GETXATTR, words(&[9, 0], b"user.x\0"), Op::Xattr { name: b"user.x", size: 9 }),
        (
            opcode::SETXATTR,
            words(&[2, 1], b"user.x\0ab"),
            Op::SetXattr {
                name: b"user.x",
                value: b"ab",
                how: SetXattr::Create,
                kills_set_gid: false,
            },
        ),
        (
            opcode::FALLOCATE,
            words(&[0, 0, 1, 0, 2, 0, 3, 0], b""),
            Op::Allocate { what: Allocate::Punch, offset: 1, length: 2 },
        ),
        (opcode::LSEEK, words(&[0, 0, 8, 0, 4, 0], b""), Op::Seek { offset: 8, what: Seek::Hole }),
        (
            opcode::COPY_FILE_RANGE,
            words(&[0, 0, 1, 0, 9, 0, 0, 0, 2, 0, 3, 0, 0, 0], b""),
            Op::Copy { offset: 1, to: (9, 2), length: 3 },
        ),
        (opcode::SYNCFS, words(&[0, 0], b""), Op::Sync),
        (opcode::BATCH_FORGET, b"".to_vec(), Op::Silent),
    ] {
        assert_eq!(op(opcode, &body), Ok(wanted), "opcode {opcode}");
    }
}

#[test]
fn bad_input_gets_the_error_of_posix() {
    let long = [&[b'x'; 256][..], b"\0"].concat();
    let xattr = |length: usize| words(&[1, 0], &[&vec![b'x'; length][..], b"\0a"].concat());
    for (opcode, body, errno) in [
        (opcode::LOOKUP, b"name".to_vec(), Errno::INVAL),
        (opcode::LOOKUP, b"".to_vec(), Errno::INVAL),
        (opcode::LOOKUP, b"\0".to_vec(), Errno::INVAL),
        (opcode::LOOKUP, b"a/b\0".to_vec(), Errno::INVAL),
        (opcode::LOOKUP, long.clone(), Errno::NAMETOOLONG),
        (opcode::UNLINK, b".\0".to_vec(), Errno::INVAL),
        (opcode::RMDIR, b"..\0".to_vec(), Errno::INVAL),
        (opcode::MKDIR, words(&[0o755], b""), Errno::INVAL),
        (opcode::SYMLINK, b"l\0\0".to_vec(), Errno::INVAL),
        (opcode::SYMLINK, [b"l\0", &[b'x'; 4096][..], b"\0"].concat(), Errno::NAMETOOLONG),
        (opcode::RENAME, words(&[9, 0], b"a\0"), Errno::INVAL),
        (opcode::RENAME2, words(&[9, 0, 4, 0], b"a\0b\0"), Errno::INVAL),
        (opcode::RENAME2, words(&[9, 0, 3, 0], b"a\0b\0"), Errno::INVAL),
        (opcode::READ, words(&[0; 9], b""), Errno::INVAL),
        (opcode::READ, words(&[0, 0, 0, 0, (1 << 20) + 1, 0, 0, 0, 0, 0], b""), Errno::INVAL),
        (opcode::WRITE, words(&[0, 0, 0, 0, 4, 0, 0, 0, 0, 0], b"abc"), Errno::INVAL),
        (opcode::SETXATTR, words(&[3, 0], b"user.x\0ab"), Errno::INVAL),
        (opcode::SETXATTR, words(&[65537, 0], b"user.x\0ab"), Errno::TOOBIG),
        (opcode::SETXATTR, words(&[1, 3], b"user.x\0ab"), Errno::INVAL),
        (opcode::SETXATTR, xattr(256), Errno::RANGE),
        (opcode::SETXATTR, xattr(0), Errno::RANGE),
        (opcode::SETXATTR, words(&[1, 0], b"user.\0a"), Errno::INVAL),
        (opcode::GETXATTR, words(&[1, 0], b"system.nfs4_acl\0"), Errno::OPNOTSUPP),
        (opcode::FALLOCATE, words(&[0, 0, 1, 0, 2, 0, 2, 0], b""), Errno::OPNOTSUPP),
        (opcode::FALLOCATE, words(&[0, 0, 1, 0, 0, 0, 0, 0], b""), Errno::INVAL),
        (opcode::LSEEK, words(&[0, 0, 8, 0, 0, 0], b""), Errno::INVAL),
        (34, b"".to_vec(), Errno::NOSYS),
        (opcode::COPY_FILE_RANGE, words(&[0; 13], b""), Errno::INVAL),
        (
            opcode::COPY_FILE_RANGE,
            words(&[0, 0, 1, 0, 9, 0, 0, 0, 2, 0, 3, 0, 1, 0], b""),
            Errno::INVAL,
        ),
        (u32::MAX, b"".to_vec(), Errno::NOSYS),
    ] {
        assert_eq!(op(opcode, &body), Err(errno), "opcode {opcode}: {body:?}");
    }
}

#[test]
fn a_request_is_as_long_as_it_says() {
    let whole = request(opcode::LOOKUP, b"a\0");
    assert!(header(&whole).is_some_and(|header| header.opcode == opcode::LOOKUP));
    assert_eq!(header(&whole[..whole.len() - 1]), None);
    assert_eq!(header(&[&whole[..], b"a"].concat()), None);
    assert_eq!(header(&whole[..39]), None);
}
