//! The rules, case by case.

use super::*;
use rekindle_file::Time;

fn attr(kind: FileType, mode: u16, uid: u32, gid: u32) -> Rights {
    let at = Time::default();
    let (links, device, size, allocated, ino) = (1, 0, 0, 0, u64::from(mode));
    let (accessed, modified, changed, created) = (at, at, at, at);
    Rights::from(Attr {
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
    })
}

fn file(mode: u16) -> Rights {
    attr(FileType::Regular, mode, 10, 20)
}

fn dir(mode: u16) -> Rights {
    attr(FileType::Directory, mode, 10, 20)
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec() }
}

fn owner() -> Credentials {
    user(10, 1, &[])
}

fn member() -> Credentials {
    user(11, 1, &[5, 20])
}

fn stranger() -> Credentials {
    user(12, 1, &[5])
}

fn root() -> Credentials {
    user(0, 0, &[])
}

const PERM: Ruled = Err(Errno::PERM);
const ACCESS: Ruled = Err(Errno::ACCESS);

#[test]
fn one_class_of_the_mode_decides() {
    for (mode, of_owner, of_member, of_stranger) in [
        (0o700, true, false, false),
        (0o070, false, true, false),
        (0o007, false, false, true),
        (0o077, false, true, true),
        (0o707, true, false, true),
    ] {
        for bit in [READ, WRITE, EXECUTE] {
            let has = |caller: Credentials| caller.has(&file(mode), bit);
            let found = (has(owner()), has(member()), has(stranger()));
            assert_eq!(found, (of_owner, of_member, of_stranger), "{mode:o} {bit}");
        }
    }
    assert!(user(12, 20, &[]).has(&file(0o040), READ), "the first group counts, too");
    assert!(!owner().has(&file(0o600), READ | EXECUTE), "all of what is wanted");
}

#[test]
fn root_may_all_but_run_what_no_bit_lets_run() {
    assert!(root().has(&file(0), READ | WRITE) && !root().has(&file(0o666), EXECUTE));
    assert!(root().has(&file(0o001), EXECUTE) && root().has(&dir(0), READ | WRITE | EXECUTE));
}

#[test]
fn files_are_read_and_written_as_through_a_descriptor() {
    for (mode, caller, reads, writes) in [
        (0o000, owner(), true, true),
        (0o000, member(), false, false),
        (0o040, member(), true, false),
        (0o020, member(), false, true),
        (0o010, member(), true, false),
        (0o004, stranger(), true, false),
        (0o002, stranger(), false, true),
        (0o000, root(), true, true),
    ] {
        let found = (caller.read(&file(mode)).is_ok(), caller.write(&file(mode)).is_ok());
        assert_eq!(found, (reads, writes), "{mode:o} {}", caller.uid);
    }
}

#[test]
fn directories_are_searched_listed_and_changed_by_their_mode() {
    for (mode, searches, lists, makes) in [
        (0o700, ACCESS, ACCESS, ACCESS),
        (0o701, Ok(()), ACCESS, ACCESS),
        (0o704, ACCESS, Ok(()), ACCESS),
        (0o702, ACCESS, ACCESS, ACCESS),
        (0o703, Ok(()), ACCESS, Ok(())),
    ] {
        let (caller, dir) = (stranger(), dir(mode));
        let found = (caller.look_up(&dir), caller.list(&dir), caller.make(&dir));
        assert_eq!(found, (searches, lists, makes), "{mode:o}");
    }
}

#[test]
fn a_sticky_directory_keeps_what_others_own() {
    let mine = attr(FileType::Regular, 0o600, 12, 1);
    for (mode, what, caller, outcome) in [
        (0o777, file(0), stranger(), Ok(())),
        (0o1777, file(0), stranger(), PERM),
        (0o1777, mine.clone(), stranger(), Ok(())),
        (0o1777, mine.clone(), member(), PERM),
        (0o1777, mine.clone(), owner(), Ok(())),
        (0o1777, mine.clone(), root(), Ok(())),
        (0o1755, mine.clone(), stranger(), ACCESS),
    ] {
        assert_eq!(caller.remove(&dir(mode), &what), outcome, "{mode:o} {}", caller.uid);
    }
}

#[test]
fn a_rename_asks_both_directories_what_moves_and_what_gives_way() {
    let (open, sticky, closed) = (dir(0o777), dir(0o1777), dir(0o755));
    let mine = attr(FileType::Regular, 0, 12, 1);
    let caller = stranger();
    assert_eq!(caller.rename(&open, &open, &file(0), None), Ok(()));
    assert_eq!(caller.rename(&closed, &open, &mine, None), ACCESS);
    assert_eq!(caller.rename(&open, &closed, &mine, None), ACCESS);
    assert_eq!(caller.rename(&sticky, &open, &file(0), None), PERM);
    assert_eq!(caller.rename(&open, &sticky, &mine, Some(&file(0))), PERM);
    assert_eq!(caller.rename(&open, &sticky, &mine, Some(&mine)), Ok(()));
    // The `..` of a directory that moves changes.
    let moves = attr(FileType::Directory, 0o555, 12, 1);
    let elsewhere = Rights::from(Attr { ino: 99, ..open.attr });
    assert_eq!(caller.rename(&open, &elsewhere, &moves, None), ACCESS);
    assert_eq!(caller.rename(&open, &open, &moves, None), Ok(()));
}

#[test]
fn a_list_goes_before_the_classes_of_the_mode() {
    use rekindle_file::{Acl, tag};
    let list = |user: u16, named_group: u16, group: u16, mask: u16, other: u16| {
        let entries = [
            (tag::OWNER, 7, 0),
            (tag::USER, user, 12),
            (tag::GROUP_OF_FILE, group, 0),
            (tag::GROUP, named_group, 5),
            (tag::MASK, mask, 0),
            (tag::OTHER, other, 0),
        ];
        let acl = Acl::new(&entries).unwrap();
        let of = dir(acl.mode());
        Rights { acl: Some(acl), ..of }
    };
    // The caller is user 12, and in group 5.
    for (of, makes) in [
        (list(7, 0, 0, 7, 0), Ok(())),
        (list(7, 7, 7, 5, 7), ACCESS),
        (list(5, 7, 7, 7, 7), ACCESS),
    ] {
        assert_eq!(stranger().make(&of), makes, "{of:?}");
    }
    // One who is not named goes by groups, and not by what the mask shows in the mode.
    let other = user(13, 1, &[5]);
    assert_eq!(other.make(&list(7, 3, 0, 7, 0)), Ok(()));
    assert_eq!(other.make(&list(7, 1, 7, 7, 7)), ACCESS, "a group that gives less hides others");
    assert_eq!(member().make(&list(7, 0, 0, 7, 7)), ACCESS);
    assert_eq!(user(13, 1, &[]).make(&list(0, 0, 0, 7, 3)), Ok(()));
    assert_eq!(owner().make(&list(0, 0, 0, 0, 0)), Ok(()));
    assert_eq!(root().make(&list(0, 0, 0, 0, 0)), Ok(()));
}

#[test]
fn only_root_makes_devices() {
    for kind in [FileType::CharDevice, FileType::BlockDevice] {
        assert_eq!((owner().make_kind(kind), root().make_kind(kind)), (PERM, Ok(())));
    }
    assert_eq!(owner().make_kind(FileType::Fifo), Ok(()));
}

#[test]
fn attributes_are_set_by_those_who_may() {
    let none = SetAttr::default;
    let mode = || SetAttr { mode: Some(0o600), ..none() };
    let uid = |uid| SetAttr { uid: Some(uid), ..none() };
    let gid = |gid| SetAttr { gid: Some(gid), ..none() };
    let size = || SetAttr { size: Some(0), ..none() };
    let both =
        || SetAttr { accessed: Some(Time::default()), modified: Some(Time::default()), ..none() };
    for (what, set, caller, outcome) in [
        ("nothing", none(), stranger(), Ok(())),
        ("chmod", mode(), owner(), Ok(())),
        ("chmod", mode(), member(), PERM),
        ("chmod", mode(), root(), Ok(())),
        ("chown", uid(11), owner(), PERM),
        ("chown to itself", uid(10), owner(), Ok(())),
        ("chown to itself", uid(10), stranger(), PERM),
        ("chown", uid(11), root(), Ok(())),
        ("chgrp to its own", gid(1), owner(), Ok(())),
        ("chgrp to the file's", gid(20), owner(), Ok(())),
        ("chgrp to a strange one", gid(7), owner(), PERM),
        ("chgrp by a member", gid(5), member(), PERM),
        ("chgrp", gid(7), root(), Ok(())),
        ("truncate", size(), owner(), Ok(())),
        ("truncate", size(), stranger(), ACCESS),
    ] {
        assert_eq!(caller.set(&file(0o640), &set, true), outcome, "{what} by {}", caller.uid);
    }
    assert_eq!(stranger().set(&file(0o642), &size(), true), Ok(()));
    // Times: the present one may be set by those who could write.
    for (mode, caller, now, past) in [
        (0o640, owner(), Ok(()), Ok(())),
        (0o640, stranger(), ACCESS, PERM),
        (0o642, stranger(), Ok(()), PERM),
        (0o640, root(), Ok(()), Ok(())),
    ] {
        let set = |is_now| caller.set(&file(mode), &both(), is_now);
        assert_eq!((set(true), set(false)), (now, past), "{mode:o} by {}", caller.uid);
    }
}

#[test]
fn set_user_id_goes_with_a_write_and_with_a_new_owner() {
    let after_write = |caller: Credentials, mode| caller.mode_after_write(FileType::Regular, mode);
    assert_eq!(after_write(owner(), 0o6755), 0o755);
    assert_eq!(after_write(owner(), 0o2745), 0o2745, "without x, it is no set-group-id");
    assert_eq!(after_write(root(), 0o6755), 0o6755);
    assert_eq!(owner().mode_after_write(FileType::Directory, 0o6755), 0o6755);
    let to = |gid| SetAttr { gid: Some(gid), ..SetAttr::default() };
    assert_eq!(root().mode_after_set(&file(0o6755), &to(7), 0o6755), 0o755);
    assert_eq!(root().mode_after_set(&dir(0o2755), &to(7), 0o2755), 0o2755);
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(owner().mode_after_set(&file(0o4755), &cut, 0o4755), 0o755);
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    assert_eq!(owner().mode_after_set(&file(0), &mode(0o2755), 0o2755), 0o755, "not in the group");
    assert_eq!(user(10, 20, &[]).mode_after_set(&file(0), &mode(0o2755), 0o2755), 0o2755);
    assert_eq!(root().mode_after_set(&file(0), &mode(0o2755), 0o2755), 0o2755);
    assert_eq!(owner().mode_after_set(&file(0), &mode(0o4755), 0o4755), 0o4755);
}

#[test]
fn what_is_new_acts_for_no_group_that_its_maker_is_not_in() {
    let of_new = |caller: Credentials, dir_mode, mode| {
        caller.mode_of_new(&dir(dir_mode), FileType::Regular, mode)
    };
    assert_eq!(of_new(stranger(), 0o2777, 0o2755), 0o755);
    assert_eq!(of_new(member(), 0o2777, 0o2755), 0o2755);
    assert_eq!(of_new(stranger(), 0o777, 0o2755), 0o2755, "its own group");
    assert_eq!(of_new(root(), 0o2777, 0o2755), 0o2755);
    let made = stranger().mode_of_new(&dir(0o2777), FileType::Directory, 0o2755);
    assert_eq!(made, 0o2755, "a directory hands the group on");
}
