//! Entries and lists of POSIX: they say the same, to anyone, both ways.

use super::super::testing::{AclWords as Words, acl as bytes};
use super::*;
use rekindle_base::random::Random;
use rekindle_file::{Attr, FileType, Time};

const OWNER: u32 = 10;
const GROUP: u32 = 20;

fn file() -> Attr {
    let at = Time::default();
    let (accessed, modified, changed, created) = (at, at, at, at);
    Attr {
        ino: 7,
        kind: FileType::Regular,
        mode: 0,
        links: 1,
        uid: OWNER,
        gid: GROUP,
        device: 0,
        size: 0,
        allocated: 0,
        accessed,
        modified,
        changed,
        created,
    }
}

/// One who asks: his number, and his groups.
type Asker = (u32, Vec<u32>);

/// What a list of POSIX gives him, bit by bit.
fn given(acl: &Acl, (uid, groups): &Asker) -> u16 {
    let gives = |bit| acl.gives(&file(), *uid, |group| groups.contains(&group), bit);
    [4, 2, 1].into_iter().filter(|bit| gives(*bit)).sum()
}

/// What entries give him, as the protocol has it: right by right, the first that fits decides.
fn allowed(entries: &[Entry], (uid, groups): &Asker, is_dir: bool) -> u16 {
    let fits = |entry: &&Entry| match entry.who {
        Who::Owner => *uid == OWNER,
        Who::Group => groups.contains(&GROUP),
        Who::Everyone => true,
        Who::User(id) => *uid == id,
        Who::Named(id) => groups.contains(&id),
    };
    let has = |right: u32| {
        let mut fitting = entries.iter().filter(fits);
        fitting.find(|entry| entry.rights & right != 0).is_some_and(|entry| !entry.denies)
    };
    let writes = has(2) && has(4) && (!is_dir || has(0x40));
    assert_eq!(writes, has(2), "what is one right of POSIX comes as a whole");
    [(has(1), 4), (writes, 2), (has(0x20), 1)].iter().filter(|(has, _)| *has).map(|has| has.1).sum()
}

/// Any list: owner and group may be named, too.
fn any_list(dice: &mut Random) -> Acl {
    let bits = |dice: &mut Random| dice.below(8) as u16;
    let mut entries = vec![(tag::OWNER, bits(dice), 0)];
    let mut names_any = dice.below(8) == 0;
    for (tag, first) in [(tag::USER, OWNER), (tag::GROUP, GROUP)] {
        if tag == tag::GROUP {
            entries.push((tag::GROUP_OF_FILE, bits(dice), 0));
        }
        for id in (first..first + 4).filter(|_| dice.below(3) == 0).collect::<Vec<_>>() {
            entries.push((tag, bits(dice), id));
            names_any = true;
        }
    }
    if names_any {
        entries.push((tag::MASK, bits(dice), 0));
    }
    entries.push((tag::OTHER, bits(dice), 0));
    Acl::new(&entries).unwrap()
}

/// The list without a mask that hides nothing and stands for no name.
fn normal(acl: &Acl) -> Acl {
    let mut entries = acl.entries();
    if let [_, (tag::GROUP_OF_FILE, group, _), (tag::MASK, mask, _), _] = entries[..]
        && group & !mask == 0
    {
        entries.remove(2);
    }
    Acl::new(&entries).unwrap()
}

fn any_asker(dice: &mut Random) -> Asker {
    let groups = (GROUP..GROUP + 5).filter(|_| dice.below(3) == 0).collect();
    (OWNER + dice.below(5) as u32, groups)
}

fn read_back(bytes: &[u8]) -> Vec<Entry> {
    let mut args = Args(bytes);
    let entries = read(&mut args).unwrap();
    assert!(args.0.is_empty());
    entries
}

#[test]
fn any_list_comes_back_as_it_was_and_gives_the_same_meanwhile() {
    let mut dice = Random::new(3);
    for round in 0..20_000 {
        let is_dir = dice.below(2) == 0;
        let access = any_list(&mut dice);
        let default = (is_dir && dice.below(2) == 0).then(|| any_list(&mut dice));
        let lists = Lists { access, default };
        let mut bytes = Vec::new();
        lists.put(&mut bytes, is_dir);
        let entries = read_back(&bytes);
        let wanted =
            Lists { access: normal(&lists.access), default: lists.default.as_ref().map(normal) };
        assert_eq!(Lists::of(&entries, is_dir), Ok(wanted), "{round}: {lists:?} {entries:?}");
        let (of_new, own): (Vec<Entry>, Vec<Entry>) =
            entries.iter().copied().partition(|entry| entry.flags & FOR_NEW != 0);
        for _ in 0..20 {
            let asker = any_asker(&mut dice);
            let found = allowed(&own, &asker, is_dir);
            assert_eq!(found, given(&lists.access, &asker), "{round} {asker:?}: {lists:?}");
            if let Some(default) = &lists.default {
                assert_eq!(allowed(&of_new, &asker, is_dir), given(default, &asker));
            }
        }
    }
}

/// Any entries of a file, of which no group and no user is the file's.
fn any_entries(dice: &mut Random) -> Vec<Entry> {
    let entry = |dice: &mut Random| {
        let who = match dice.below(5) {
            0 => Who::Owner,
            1 => Who::Group,
            2 => Who::Everyone,
            3 => Who::User(OWNER + 1 + dice.below(2) as u32),
            _ => Who::Named(GROUP + 1 + dice.below(2) as u32),
        };
        let rights = [READ, WRITE, EXECUTE, SEES].into_iter().filter(|_| dice.below(2) == 0).sum();
        Entry { denies: dice.below(3) == 0, flags: 0, rights, who }
    };
    (0..1 + dice.below(7)).map(|_| entry(dice)).collect()
}

#[test]
fn any_entries_that_are_taken_give_each_one_the_same_and_none_more() {
    let mut dice = Random::new(4);
    let mut taken = 0;
    for _ in 0..60_000 {
        let entries = any_entries(&mut dice);
        let Ok(Lists { access, default: None }) = Lists::of(&entries, false) else { continue };
        taken += 1;
        let one = [(OWNER, vec![]), (11, vec![]), (12, vec![]), (13, vec![]), (13, vec![24])];
        let of_groups = [GROUP, 21, 22].map(|group| (13, vec![group]));
        for asker in one.into_iter().chain(of_groups) {
            let found = given(&access, &asker);
            let wanted = allowed(&entries, &asker, false);
            assert_eq!(found, wanted, "{asker:?}: {entries:?} {access:?}");
        }
        for _ in 0..20 {
            let (uid, groups) = any_asker(&mut dice);
            let asker = (uid.max(OWNER + 1), groups);
            let (found, most) = (given(&access, &asker), allowed(&entries, &asker, false));
            assert_eq!(found & !most, 0, "{asker:?}: {entries:?} {access:?}");
        }
        let mut bytes = Vec::new();
        Lists { access: access.clone(), default: None }.put(&mut bytes, false);
        assert_eq!(Lists::of(&read_back(&bytes), false).unwrap().access, access);
    }
    assert!(taken > 20_000 && taken < 59_000, "{taken}");
}

/// What becomes of a list that a client sends.
fn taken(entries: &[Words<'_>], is_dir: bool) -> Result<Lists, Fault> {
    let bytes = bytes(entries);
    Ok(Lists::of(&read(&mut Args(&bytes))?, is_dir)?)
}

/// Rights as tools of Linux write them: `rwatTcCy`, `rwatcy`, `rtcy`, `tcy`.
const OF_OWNER: u32 = 0x16_0187;
const READ_WRITE: u32 = 0x12_0087;
const READ_ONLY: u32 = 0x12_0081;
const NOTHING: u32 = 0x12_0080;

const OF_MODE: [Words<'static>; 3] =
    [(0, 0, OF_OWNER, "OWNER@"), (0, 0x40, READ_ONLY, "GROUP@"), (0, 0, NOTHING, "EVERYONE@")];

#[test]
fn a_mode_is_three_entries_and_denials_only_where_it_gives_less_to_the_nearer() {
    let shown = |mode| {
        let mut bytes = Vec::new();
        Lists::of_mode(mode).put(&mut bytes, false);
        bytes
    };
    assert_eq!(shown(0o640), bytes(&OF_MODE));
    let odd = [
        (1, 0, 1, "OWNER@"),
        (0, 0, 0x16_0186, "OWNER@"),
        (0, 0x40, NOTHING, "GROUP@"),
        (1, 0x40, 1, "GROUP@"),
        (0, 0, READ_ONLY, "EVERYONE@"),
    ];
    assert_eq!(shown(0o204), bytes(&odd));
    assert_eq!(taken(&odd, false), Ok(Lists::of_mode(0o204)));
    for mode in 0..=0o777 {
        assert_eq!(Lists::of(&read_back(&shown(mode)), false), Ok(Lists::of_mode(mode)));
    }
}

#[test]
fn what_tools_add_to_a_list_is_taken() {
    let with = |entry: Words<'static>| [&[entry], &OF_MODE[..]].concat();
    let list = |lists: Lists| {
        lists.access.entries().iter().map(|(tag, bits, _)| (*tag, *bits)).collect::<Vec<_>>()
    };
    let named = |tag: u16, bits: u16, mask: u16| {
        let group = (tag::GROUP_OF_FILE, 4);
        let both = if tag == tag::USER { [(tag, bits), group] } else { [group, (tag, bits)] };
        [&[(tag::OWNER, 6)], &both[..], &[(tag::MASK, mask), (tag::OTHER, 0)]].concat()
    };
    let found = taken(&with((0, 0, READ_WRITE, "1001")), false).unwrap();
    assert_eq!(list(found), named(tag::USER, 6, 6));
    let found = taken(&with((0, 0x40, READ_WRITE, "77")), false).unwrap();
    assert_eq!(list(found), named(tag::GROUP, 6, 6));
    // Everything at once, with rights that POSIX does not know.
    let found = taken(&with((0, 0, RIGHTS, "1001")), false).unwrap();
    assert_eq!(list(found), named(tag::USER, 7, 7));
    let found = taken(&with((1, 0, 1, "1001")), false).unwrap();
    assert_eq!(list(found), named(tag::USER, 0, 4));
    // A member of both groups would read here.
    let found = taken(&with((1, 0x40, 1, "77")), false);
    assert_eq!(found, Err(Status::ATTRNOTSUPP.into()));
    let found = taken(&with((1, 0x40, 2 | 4, "77")), false).unwrap();
    assert_eq!(list(found), named(tag::GROUP, 0, 4));
    // Some systems write a denial before each.
    let pairs = [
        (1, 0, EXECUTE, "OWNER@"),
        OF_MODE[0],
        (1, 0x40, WRITE | EXECUTE, "GROUP@"),
        OF_MODE[1],
        (1, 0, 0xd_0000 | WRITE | READ | EXECUTE, "EVERYONE@"),
        OF_MODE[2],
    ];
    assert_eq!(taken(&pairs, false), Ok(Lists::of_mode(0o640)));
    assert_eq!(taken(&[], false), Ok(Lists::of_mode(0)), "without entries, nothing is allowed");
}

#[test]
fn a_directory_has_one_list_for_itself_and_one_for_what_is_new() {
    let both = FOR_NEW | FOR_NEW_ONLY;
    let of_new = [&OF_MODE[..], &[(0, both, READ_WRITE, "1001")]].concat();
    let lists = taken(&of_new, true).unwrap();
    assert_eq!(lists.access, Acl::of_mode(0o640));
    // The classes that it says nothing of are those of the directory.
    let default = lists.default.unwrap();
    assert_eq!((default.entries().len(), default.mode()), (5, 0o660));
    let mut for_both = of_new.clone();
    for_both[3].1 = FOR_NEW;
    let lists = taken(&for_both, true).unwrap();
    assert_eq!((lists.access.mode(), lists.default), (0o660, Some(default)));
    let mut with_owner = of_new.clone();
    with_owner.push((0, both, READ_ONLY, "OWNER@"));
    let lists = taken(&with_owner, true).unwrap();
    assert_eq!(lists.default.unwrap().mode(), 0o460, "the others have nothing");
    assert_eq!(taken(&of_new, false), Err(Status::ATTRNOTSUPP.into()), "of a file");
}

#[test]
fn a_list_that_cannot_be_said_is_refused() {
    let (not_here, invalid) = (Err(Status::ATTRNOTSUPP.into()), Err(Status::INVAL.into()));
    let one = |entry: Words<'_>, is_dir: bool| taken(&[&OF_MODE[..], &[entry]].concat(), is_dir);
    for (name, entry, outcome) in [
        ("an audit", (2, 0, 1, "EVERYONE@"), &not_here),
        ("an alarm", (3, 0, 1, "EVERYONE@"), &not_here),
        ("a kind that there is not", (4, 0, 1, "EVERYONE@"), &invalid),
        ("a right that there is not", (0, 0, 1 << 30, "EVERYONE@"), &invalid),
        ("for new files only", (0, FOR_FILES, 1, "EVERYONE@"), &not_here),
        ("for new directories only", (0, FOR_DIRECTORIES, 1, "EVERYONE@"), &not_here),
        ("for nothing", (0, FOR_NEW_ONLY, 1, "EVERYONE@"), &invalid),
        ("not for theirs", (0, FOR_NEW | 4, 1, "EVERYONE@"), &not_here),
        ("of an audit", (0, 0x10, 1, "EVERYONE@"), &not_here),
        ("to write, and not to append", (0, 0, 2, "1001"), &not_here),
        ("to append", (0, 0, 4, "1001"), &not_here),
        ("not to remove", (1, 0, DELETE_CHILD, "1001"), &not_here),
        ("a name", (0, 0, 1, "alice@example.org"), &Err(Status::BADOWNER.into())),
        ("another class", (0, 0, 1, "NETWORK@"), &Err(Status::BADOWNER.into())),
        ("too high a number", (0, 0, 1, "4294967296"), &Err(Status::BADOWNER.into())),
        ("no number", (0, 0, 1, "4294967295"), &invalid),
        ("no name", (0, 0, 1, ""), &invalid),
    ] {
        assert_eq!(&one(entry, true), outcome, "{name}");
    }
    let names: Vec<String> = (1..600).map(|id| id.to_string()).collect();
    let many: Vec<_> = names.iter().map(|name| (0, 0, READ_ONLY, &name[..])).collect();
    assert!(taken(&many[..500], false).is_ok());
    assert_eq!(taken(&many, false), invalid, "more than a list of POSIX has");
    let long = vec![OF_MODE[0]; limits::ACL_ENTRIES_MAX + 1];
    assert_eq!(taken(&long, false), invalid);
    assert_eq!(taken(&long[1..], false), Ok(Lists::of_mode(0o600)));
}

#[test]
fn bytes_of_strangers_are_read_without_harm() {
    let garbage = Err(Status::BADXDR.into());
    let whole = bytes(&OF_MODE);
    for end in 0..whole.len() {
        assert_eq!(read(&mut Args(&whole[..end])), garbage, "{end}");
    }
    for count in [4, 1 << 20, u32::MAX] {
        let told = [&count.to_be_bytes()[..], &whole[4..]].concat();
        assert_eq!(read(&mut Args(&told)), garbage, "{count} entries");
    }
    let mut dice = Random::new(5);
    let mut lists = Vec::new();
    for _ in 0..100_000 {
        lists.clear();
        Lists { access: any_list(&mut dice), default: Some(any_list(&mut dice)) }
            .put(&mut lists, true);
        for _ in 0..1 + dice.below(4) {
            let at = dice.below(lists.len() as u64) as usize;
            match dice.below(4) {
                0 => lists.truncate(at.max(1)),
                1 => lists[at] = dice.next_u64() as u8,
                _ => lists[at] ^= 1 << dice.below(8),
            }
        }
        let Ok(entries) = read(&mut Args(&lists)) else { continue };
        if let Ok(taken) = Lists::of(&entries, true) {
            lists.clear();
            taken.put(&mut lists, true);
            assert_eq!(Lists::of(&read_back(&lists), true), Ok(taken));
        }
    }
}
