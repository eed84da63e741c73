//! Lists: their bytes, what they give, and what changes them.

use super::*;
use crate::types::{FileType, Time};
use rekindle_base::random::Random;

const OWNER: u32 = 10;
const GROUP: u32 = 20;

fn attr(mode: u16) -> Attr {
    let at = Time::default();
    let (kind, links, device, size, allocated) = (FileType::Regular, 1, 0, 0, 0);
    let (accessed, modified, changed, created) = (at, at, at, at);
    let (ino, uid, gid) = (7, OWNER, GROUP);
    Attr {
        ino,
        kind,
        mode,
        links,
        uid,
        gid,
        device,
        size,
        allocated,
        accessed,
        modified,
        changed,
        created,
    }
}

fn plain(tag: u16, bits: u16) -> AclEntry {
    (tag, bits, UNNAMED)
}

/// `u::rw-,u:11:rwx,u:12:r--,g::r-x,g:30:rw-,g:31:--x,m::r-x,o::---`
fn rich() -> Vec<AclEntry> {
    vec![
        plain(tag::OWNER, 6),
        (tag::USER, 7, 11),
        (tag::USER, 4, 12),
        plain(tag::GROUP_OF_FILE, 5),
        (tag::GROUP, 6, 30),
        (tag::GROUP, 1, 31),
        plain(tag::MASK, 5),
        plain(tag::OTHER, 0),
    ]
}

#[test]
fn bytes_are_those_of_the_kernel() {
    let acl = Acl::new(&rich()).unwrap();
    let bytes = acl.format();
    // As getfattr shows what setfacl has set on another file system.
    let wanted = "02000000\
        01000600ffffffff0200070" /* the owner, then user 11 */;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(hex.starts_with(wanted), "{hex}");
    assert_eq!(bytes.len(), 4 + 8 * 8);
    assert_eq!(
        &bytes[bytes.len() - 16..],
        b"\x10\0\x05\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff"
    );
    assert_eq!(Acl::parse(&bytes), Ok(acl.clone()));
    assert_eq!(acl.entries(), rich());
    // Whom an entry names that names nothing does not matter, nor the order of names.
    let mut other = rich();
    other[0].2 = 0;
    other.swap(1, 2);
    assert_eq!(Acl::new(&other), Ok(acl));
}

#[test]
fn a_list_without_sense_is_refused() {
    let with = |change: &dyn Fn(&mut Vec<AclEntry>)| {
        let mut entries = rich();
        change(&mut entries);
        Acl::new(&entries)
    };
    let without = |at: usize| {
        with(&|all| {
            all.remove(at);
        })
    };
    let refused = Err(Errno::INVAL);
    assert_eq!(with(&|all| all.swap(0, 3)), refused, "the order of the tags");
    for required in [0, 3, 7] {
        assert_eq!(without(required), refused, "{required} is missing");
        assert_eq!(with(&|all| all.insert(required, all[required])), refused, "{required} twice");
    }
    assert_eq!(without(6), refused, "names without a mask");
    assert_eq!(with(&|all| all.insert(6, all[6])), refused, "two masks");
    assert_eq!(with(&|all| all[2].2 = 11), refused, "a user twice");
    assert_eq!(with(&|all| all[5].2 = 30), refused, "a group twice");
    assert_eq!(with(&|all| all[1].2 = UNNAMED), refused, "a user without a name");
    assert_eq!(with(&|all| all[1].1 = 8), refused, "a bit that there is not");
    assert_eq!(with(&|all| all[1].0 = 3), refused, "a tag that there is not");
    assert_eq!(Acl::new(&[]), refused);
    let mut many = rich();
    many.splice(1..3, (0..600).map(|user| (tag::USER, 7, user)));
    assert_eq!(Acl::new(&many), Err(Errno::TOOBIG));
    many.drain(1..600 - ACL_ENTRIES_MAX + 7);
    let most = Acl::new(&many).unwrap().format();
    assert_eq!(most.len(), 4 + 8 * ACL_ENTRIES_MAX);
    assert!(most.len() <= 4096, "the kernel asks for a page");
    let bytes = Acl::new(&rich()).unwrap().format();
    for end in 0..bytes.len() {
        assert_eq!(Acl::parse(&bytes[..end]), refused, "{end}");
    }
    assert_eq!(Acl::parse(&[&bytes[..], &[0]].concat()), refused);
    assert_eq!(Acl::parse(&[&[1, 0, 0, 0], &bytes[4..]].concat()), Err(Errno::OPNOTSUPP));
    assert_eq!(Acl::parse(&[&bytes[..], &[0; 8 * 511]].concat()), Err(Errno::TOOBIG));
}

#[test]
fn any_bytes_are_read_without_harm() {
    let mut dice = Random::new(1);
    let bytes = Acl::new(&rich()).unwrap().format();
    let mut taken = 0;
    for _ in 0..200_000 {
        let mut bytes = bytes.clone();
        for _ in 0..1 + dice.below(3) {
            let at = dice.below(bytes.len() as u64) as usize;
            match dice.below(4) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = dice.next_u64() as u8,
                2 => bytes[at] ^= 1 << dice.below(8),
                _ => bytes.extend_from_within(at / 8 * 8..),
            }
        }
        if let Ok(acl) = Acl::parse(&bytes) {
            assert_eq!(Acl::parse(&acl.format()), Ok(acl));
            taken += 1;
        }
    }
    assert!(taken > 100, "{taken}");
}

#[test]
fn the_first_entry_that_fits_decides() {
    let acl = Acl::new(&rich()).unwrap();
    let file = attr(acl.mode());
    let may = |uid: u32, groups: &[u32]| {
        let is_in = |group| groups.contains(&group);
        let has = |bit| if acl.gives(&file, uid, is_in, bit) { bit } else { 0 };
        has(4) | has(2) | has(1)
    };
    assert_eq!(may(OWNER, &[30]), 6, "no mask for the owner");
    assert_eq!(may(11, &[30]), 5, "the mask");
    assert_eq!(may(12, &[GROUP, 30]), 4, "a user's entry, whatever his groups have");
    assert_eq!(may(13, &[GROUP]), 5);
    assert_eq!(may(13, &[30]), 4, "the mask");
    assert_eq!(may(13, &[31]), 1);
    assert_eq!(may(13, &[99]), 0, "another one");
    assert_eq!(may(13, &[30, 31]), 5, "each bit is in one of them");
    let both = |wanted| acl.gives(&file, 13, |group| [30, 31].contains(&group), wanted);
    assert!(both(4) && both(1) && !both(5), "one entry must give all");
    // A group that gives nothing hides what others have.
    let open = Acl::new(&[
        plain(tag::OWNER, 7),
        plain(tag::GROUP_OF_FILE, 0),
        plain(tag::MASK, 7),
        plain(tag::OTHER, 7),
    ]);
    assert!(!open.unwrap().gives(&file, 13, |group| group == GROUP, 4));
    let masked = acl.with_mode(0o604);
    let of = attr(0o604);
    assert!(!masked.gives(&of, 11, |_| false, 4));
    let rights = Rights { attr: of, acl: Some(masked) };
    assert!(rights.give(11, |_| false, 4), "as Linux has it");
    assert!(!rights.give(13, |group| group == GROUP, 4));
    let rights = Rights::from(attr(0o640));
    assert!(rights.give(OWNER, |_| false, 6) && !rights.give(OWNER, |_| true, 1));
    assert!(rights.give(1, |group| group == GROUP, 4) && !rights.give(1, |_| false, 4));
}

#[test]
fn a_mode_and_a_list_say_the_same() {
    let acl = Acl::new(&rich()).unwrap();
    assert_eq!(acl.mode(), 0o650, "the mask is the group's class");
    let changed = acl.with_mode(0o4731);
    assert_eq!(changed.mode(), 0o731);
    let bits = |acl: &Acl| acl.entries().iter().map(|entry| entry.1).collect::<Vec<_>>();
    assert_eq!(bits(&changed), [7, 7, 4, 5, 6, 1, 3, 1], "the group's own entry stays");
    assert!(!changed.is_a_mode());
    for mode in 0..=0o777 {
        let plain = Acl::of_mode(mode);
        assert!(plain.is_a_mode() && plain.mode() == mode);
        assert_eq!(Acl::of_mode(0o125).with_mode(mode), plain);
        // Neither gives more than the other.
        assert_eq!(acl.inherited(mode).mode(), mode & acl.mode());
    }
    assert_eq!(bits(&acl.inherited(0o624)), [6, 7, 4, 5, 6, 1, 0, 0]);
    assert_eq!(AclOf::named(b"system.posix_acl_access"), Some(AclOf::Access));
    assert_eq!(AclOf::named(b"system.posix_acl_default"), Some(AclOf::Default));
    assert_eq!(AclOf::named(b"system.posix_acl"), None);
}
