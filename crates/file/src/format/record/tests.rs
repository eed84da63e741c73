//! Records survive, and any bytes are records or an error.

use super::*;
use crate::format::page::Row;
use crate::format::{check_golden, page};
use crate::state::{Body, Stored};
use crate::taken::Taken;
use crate::types::{FileType, Time};
use proptest::prelude::*;

fn inode(size: u64, target: &'static str) -> Inode {
    let time = |seconds| Time { seconds, nanoseconds: 7 };
    Inode {
        kind: FileType::Symlink,
        mode: 0o4755,
        links: 3,
        uid: 4,
        gid: 5,
        device: 6,
        size,
        allocated: 8,
        beyond: 0,
        parent: 9,
        accessed: time(-1),
        modified: time(2),
        changed: time(i64::MAX),
        created: time(4),
        target: target.into(),
    }
}

#[test]
fn effects_survive_and_what_is_cut_off_is_refused() {
    let named = Named { name: "a name".into(), ino: 5, kind: FileType::Regular };
    let xattr = Xattr { name: "user.x".into(), value: "".into() };
    let effects = [
        Effect::Inode { ino: 5, inode: Some(inode(u64::MAX, "../else")) },
        Effect::Inode { ino: 6, inode: None },
        Effect::Name { dir: 1, position: 256, named: Some(named) },
        Effect::Name { dir: 1, position: 512, named: None },
        Effect::Xattr { ino: 5, position: 1, xattr: Some(xattr) },
        Effect::Xattr { ino: 5, position: 2, xattr: None },
        Effect::Zero { ino: 5, offset: 1, length: u64::MAX },
        Effect::More { bytes: -5, inodes: 1 },
        Effect::Done(Origin { client: 1, request: 2, oldest: 3 }),
    ];
    let bytes = encode(&effects);
    assert_eq!(decode(&bytes).unwrap(), effects);
    check_golden("effects.bin", &bytes);
    let whole = (0..bytes.len()).filter(|end| decode(&bytes[..*end]).is_ok()).count();
    assert_eq!(whole, effects.len(), "only whole effects");
    let kept = Some(Bytes::from_static(b"opens and locks"));
    let effects = [
        Effect::Kept { ino: 5, is_new: true, kept },
        Effect::Kept { ino: 6, is_new: false, kept: None },
        Effect::Called(Call { client: 1, at: 2, key: 3 }),
    ];
    let bytes = encode(&effects);
    assert_eq!(decode(&bytes).unwrap(), effects);
    check_golden("kept.bin", &bytes);
    let reserve = Effect::Reserve { ino: 7, offset: 5000, length: 1 << 40 };
    let bytes = encode(std::slice::from_ref(&reserve));
    check_golden("reserve.bin", &bytes);
    assert_eq!(decode(&bytes).unwrap(), [reserve]);
    let copy = Effect::Copy { ino: 5, offset: 4096, length: 8192, from: 7, at: 1 << 30 };
    let bytes = encode(std::slice::from_ref(&copy));
    check_golden("copy.bin", &bytes);
    assert_eq!(decode(&bytes).unwrap(), [copy]);
    for (place, byte) in [(9, 1), (17, 1), (33, 1), (24, 0xff)] {
        let mut bad = bytes.clone();
        bad[1 + place] = byte;
        assert!(decode(&bad).is_err(), "byte {place}");
    }
    let head = WriteHead { ino: 5, offset: 1 << 50, more: -4096, inode: inode(9, "") };
    check_golden("write.bin", &head.encode(0));
    assert_eq!(WriteHead::decode(&head.encode(0)), Ok(head));
}

#[test]
fn rows_say_which_pages_a_file_takes() {
    let text = |byte: &str| format!("{}:32:100:4096:{}", byte.repeat(16), "ab".repeat(32));
    let root = |byte: &str| Some(text(byte).parse().unwrap());
    let (content, xattrs) = (root("01"), root("02"));
    let mut rows = Vec::new();
    for taken in [Taken::Unknown, Taken::First(3), Taken::Table(root("03"))] {
        let inode = Inode { kind: FileType::Regular, allocated: 3 * 4096, ..inode(70_000, "") };
        let stored = Stored { inode, body: Body::Tree(content), xattrs, taken };
        let row = stored.encode();
        let found = Stored::decode(&row).unwrap();
        assert_eq!((found.inode, found.taken), (stored.inode, taken));
        assert_eq!((found.body.tree(), found.xattrs), (content, xattrs));
        rows.push((rows.len() as u64, row));
    }
    check_golden("taken.bin", &page::encode(&rows).0);
}

#[test]
fn a_row_may_have_the_bytes_of_a_regular_file() {
    let inode = Inode { kind: FileType::Regular, size: 4, ..inode(70_000, "") };
    let body = Body::Row(Bytes::from_static(b"abc"));
    let stored = Stored { inode, body: body.clone(), xattrs: None, taken: Taken::First(0) };
    let row = stored.encode();
    let found = Stored::decode(&row).unwrap();
    assert_eq!((found.inode, found.body), (stored.inode, body));
    check_golden("in-row.bin", &page::encode(&[(70_000, row.clone())]).0);
    let both = Row { bytes: [&row.bytes[..1], &[17], &row.bytes[2..]].concat(), ..row.clone() };
    let of_dir = Row { bytes: [&[2], &row.bytes[1..]].concat(), ..row };
    assert!(Stored::decode(&both).is_err() && Stored::decode(&of_dir).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_effects_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), tag in 0u8..15) {
        let _ = decode(&bytes);
        if bytes.len() > 2 {
            bytes[..2].copy_from_slice(&[VERSION, tag]);
            let _ = decode(&bytes);
            let _ = WriteHead::decode(&bytes);
        }
    }
}
