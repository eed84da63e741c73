//! Share reservations and locks, and their bytes.

use super::*;
use proptest::prelude::*;
use rekindle_base::VolumeId;

const VOLUME: VolumeId = VolumeId([7; 16]);

fn holder(client: u64) -> Holder {
    Holder { client, machine: client + 100 }
}

fn here(_: Party<'_>) -> bool {
    false
}

fn gone(_: Party<'_>) -> bool {
    true
}

fn given((id, seqid): (u64, u32)) -> Given {
    Given { id, seqid }
}

fn span(start: u64, end: u64, exclusive: bool) -> Span {
    Span { start, end, exclusive }
}

/// Client 1 has the file open for both, denying nothing.
fn opened() -> (Held, Given) {
    let mut held = Held::default();
    let id = held.open(holder(1), b"a", (BOTH, 0), 10, &here).unwrap();
    (held, given(id))
}

#[test]
fn what_an_open_denies_is_denied_to_others_only() {
    let (mut held, first) = opened();
    held.open(holder(1), b"a", (READ, WRITE), 11, &here).unwrap();
    assert_eq!(held.opens.len(), 1, "an owner has one open of a file");
    assert_eq!(held.look(1, first), Err(Refused::Outdated));
    let denied = Err(Refused::Shared);
    assert_eq!(held.open(holder(2), b"a", (WRITE, 0), 12, &here), denied);
    assert_eq!(held.open(holder(1), b"b", (WRITE, 0), 12, &here), denied, "another owner");
    assert_eq!(held.open(holder(2), b"a", (READ, READ), 12, &here), denied, "it reads");
    assert_eq!(held.open(holder(2), b"a", (READ, 0), 12, &here), Ok((12, 1)));
    assert_eq!(held.may_without(WRITE, &here), Err(Refused::Denies));
    assert_eq!(held.may_without(READ, &here), Ok(()));
    assert_eq!(held.may_without(WRITE, &gone), Ok(()));
}

#[test]
fn a_downgrade_gives_back_what_it_does_not_name() {
    let mut held = Held::default();
    let id = held.open(holder(1), b"a", (BOTH, WRITE), 10, &here).unwrap();
    assert_eq!(held.downgrade(1, given(id), (BOTH, BOTH)), Err(Refused::Invalid), "more");
    assert_eq!(held.downgrade(1, given(id), (0, 0)), Err(Refused::Invalid));
    assert_eq!(held.downgrade(2, given(id), (READ, 0)), Err(Refused::Unknown));
    let id = held.downgrade(1, given(id), (READ, 0)).unwrap();
    assert_eq!(id, (10, 2));
    assert_eq!(held.may(1, given(id), WRITE), Err(Refused::Access));
    assert_eq!(held.may(1, given(id), READ), Ok(()));
    assert_eq!(held.open(holder(2), b"a", (WRITE, 0), 12, &here), Ok((12, 1)));
}

#[test]
fn stateids_are_those_of_their_client_and_time() {
    let (mut held, first) = opened();
    let at = |seqid| Given { seqid, ..first };
    assert_eq!(held.look(1, at(0)), Ok(()), "the last one");
    assert_eq!(held.look(1, at(2)), Err(Refused::Unknown), "of the future");
    assert_eq!(held.look(2, first), Err(Refused::Unknown), "of another client");
    assert_eq!(held.look(1, given((11, 1))), Err(Refused::Unknown));
    held.open(holder(1), b"a", (READ, 0), 12, &here).unwrap();
    assert_eq!(held.close(1, first), Err(Refused::Outdated));
    assert_eq!(held.may(1, first, READ), Err(Refused::Outdated));
    assert_eq!(held.close(1, at(2)), Ok(false), "it excluded no one");
    assert_eq!(held.close(1, at(2)), Err(Refused::Unknown));
    assert!(held.is_empty());
}

#[test]
fn locks_exclude_other_owners() {
    let (mut held, open) = opened();
    let other = given(held.open(holder(2), b"a", (BOTH, 0), 11, &here).unwrap());
    let lock = held.lock_first(1, open, b"p", span(0, 10, true), 20, &here).unwrap();
    assert_eq!(lock, (20, 1));
    let refused = held.lock_first(2, other, b"p", span(9, 12, false), 21, &here).unwrap_err();
    let conflict =
        Conflict { span: span(0, 10, true), client: 1, owner: b"p".to_vec(), process: None };
    assert_eq!(refused, Refused::Locked(conflict.clone()));
    assert_eq!(held.locks.len(), 1, "an owner that got no lock leaves nothing");
    assert_eq!(held.test(2, b"p", &span(0, 1, false), &here), Err(conflict));
    assert_eq!(held.test(1, b"p", &span(0, 1, false), &here), Ok(()), "its own");
    held.test(1, b"q", &span(0, 1, false), &here).unwrap_err();
    held.lock_first(2, other, b"p", span(10, 12, true), 21, &here).unwrap();
    // Another owner of the same client is another owner.
    held.lock_first(1, open, b"q", span(11, 12, false), 22, &here).unwrap_err();
    let lock = held.unlock(1, given(lock), &span(0, 5, true)).unwrap();
    assert_eq!(lock, (20, 2));
    held.lock_first(2, other, b"p", span(0, 5, true), 23, &here).unwrap();
    held.lock_more(2, given((21, 0)), span(5, 6, true), &here).unwrap_err();
    assert!(
        held.has_lock(1, b"p", &span(6, 8, true)) && !held.has_lock(1, b"p", &span(4, 8, true))
    );
    assert!(!held.has_lock(1, b"p", &span(6, 8, false)), "that would be another one");
}

#[test]
fn a_lock_needs_an_open_for_it() {
    let mut held = Held::default();
    let open = given(held.open(holder(1), b"a", (READ, 0), 10, &here).unwrap());
    let refused = held.lock_first(1, open, b"p", span(0, 1, true), 20, &here);
    assert_eq!(refused, Err(Refused::Access));
    let shared = held.lock_first(1, open, b"p", span(0, 1, false), 20, &here).unwrap();
    assert_eq!(held.may(1, given(shared), READ), Ok(()));
    assert_eq!(held.may(1, given(shared), WRITE), Err(Refused::Access));
    assert_eq!(held.free(1, given(shared)), Err(Refused::Holds));
    assert_eq!(held.free(1, open), Err(Refused::Holds));
    let empty = held.unlock(1, given(shared), &span(0, u64::MAX, false)).unwrap();
    held.free(1, given(empty)).unwrap();
    assert_eq!(held.look(1, given(empty)), Err(Refused::Unknown));
    held.lock_first(1, open, b"p", span(0, 1, false), 21, &here).unwrap();
    assert_eq!(held.close(1, open), Ok(true), "its locks go");
    assert!(held.is_empty(), "locks go with their open");
}

#[test]
fn clients_that_have_gone_give_way_to_others_only() {
    let (mut held, open) = opened();
    held.open(holder(1), b"a", (READ, WRITE), 10, &here).unwrap();
    held.lock_first(1, Given { seqid: 0, ..open }, b"p", span(0, 10, true), 20, &here).unwrap();
    let is_first = |who: Party<'_>| matches!(who, Party::Client(holder) if holder.client == 1);
    held.open(holder(2), b"a", (READ, 0), 11, &is_first).unwrap();
    assert_eq!(held.opens.len(), 2, "there was no conflict: the first client keeps what it has");
    let before = held.clone();
    assert_eq!(held.test(2, b"p", &span(0, 1, true), &is_first), Ok(()));
    assert_eq!(held, before, "a test changes nothing");
    held.open(holder(2), b"a", (WRITE, 0), 11, &is_first).unwrap();
    assert_eq!((held.opens.len(), held.locks.len()), (1, 0));
    assert_eq!(held.look(1, open), Err(Refused::Unknown), "it was revoked");
}

#[test]
fn a_file_takes_so_many_opens() {
    let (mut held, _) = opened();
    for id in 1..limits::HELD_MAX as u64 {
        held.open(holder(1), &id.to_be_bytes(), (READ, 0), 100 + id, &here).unwrap();
    }
    assert_eq!(held.open(holder(1), b"one more", (READ, 0), 9, &here), Err(Refused::Full));
    assert_eq!(held.open(holder(1), b"a", (READ, 0), 9, &here), Ok((10, 2)), "it is there");
}

fn locker(mount: u64, owner: u64, is_whole: bool) -> Locker {
    Locker { mount, owner, process: 9, is_whole }
}

#[test]
fn mounts_and_clients_exclude_one_another_and_flock_only_flock() {
    let (mut held, open) = opened();
    let (all, first) = (span(0, u64::MAX, true), span(0, 1, false));
    assert_eq!(held.set(&locker(7, 1, false), span(0, 10, true), &here), Ok(None));
    assert_eq!(held.set(&locker(7, 1, true), all, &here), Ok(None), "flock is beside fcntl");
    for whole in [false, true] {
        let hindered = held.set(&locker(8, 1, whole), first, &here).unwrap().unwrap();
        assert_eq!((hindered.client, hindered.process), (7, Some(9)));
        assert_eq!(held.probe(&locker(8, 1, whole), &first, &here), Some(hindered));
        held.probe(&locker(7, 2, whole), &first, &here).expect("another process");
        assert_eq!(held.probe(&locker(7, 1, whole), &first, &here), None, "its own");
    }
    assert_eq!(held.probe(&locker(8, 1, false), &span(10, 11, true), &here), None);
    held.test(1, b"p", &span(20, 21, false), &here).expect_err("flock is for clients, too");
    held.lock_first(1, open, b"p", span(20, 21, false), 20, &here).unwrap_err();
    held.clear(&locker(7, 1, true), &all).unwrap();
    held.lock_first(1, open, b"p", span(20, 21, false), 20, &here).unwrap();
    for whole in [false, true] {
        let hindered = held.set(&locker(8, 1, whole), span(20, 30, true), &here).unwrap().unwrap();
        assert_eq!((hindered.client, hindered.process), (1, None));
    }
    held.clear(&locker(7, 1, false), &span(0, 5, false)).unwrap();
    assert_eq!(held.set(&locker(8, 1, false), span(0, 5, true), &here), Ok(None));
    assert!(held.has_mount(7) && held.has_mount(8) && !held.has_mount(9));
    held.leave(8);
    assert!(!held.has_mount(8));
}

#[test]
fn mounts_that_have_gone_give_way_to_all() {
    let is_seven = |party: Party<'_>| party == Party::Mount(7);
    let (mut held, open) = opened();
    held.set(&locker(7, 1, false), span(0, 10, true), &here).unwrap();
    let before = held.clone();
    assert_eq!(held.probe(&locker(8, 1, false), &span(0, 1, true), &is_seven), None);
    assert_eq!(held.test(1, b"p", &span(0, 1, true), &is_seven), Ok(()));
    assert_eq!(held, before, "a look changes nothing");
    held.set(&locker(8, 1, false), span(20, 30, true), &is_seven).unwrap();
    assert!(held.has_mount(7), "there was no conflict");
    held.lock_first(1, open, b"p", span(0, 1, true), 20, &is_seven).unwrap();
    assert!(!held.has_mount(7) && held.has_mount(8));
    let is_client = |party: Party<'_>| matches!(party, Party::Client(_));
    assert_eq!(held.set(&locker(8, 1, false), span(0, 1, true), &is_client), Ok(None));
    assert!(held.locks.is_empty());
}

#[test]
fn a_file_takes_so_many_locks_of_mounts() {
    let mut held = Held::default();
    for owner in 0..limits::HELD_MAX as u64 {
        held.set(&locker(7, owner, false), span(owner, owner + 1, true), &here).unwrap();
    }
    let one_more = held.set(&locker(7, 9999, false), span(9999, 10_000, true), &here);
    assert_eq!(one_more, Err(Refused::Full));
    let mut held = Held::default();
    for at in 0..limits::SPANS_MAX as u64 {
        held.set(&locker(7, 1, false), span(2 * at, 2 * at + 1, true), &here).unwrap();
    }
    let one_more = held.set(&locker(7, 1, false), span(9999, 10_000, true), &here);
    assert_eq!(one_more, Err(Refused::Full));
    assert!(held.encode(VOLUME).unwrap().len() <= rekindle_file::limits::KEPT_BYTES_MAX);
}

#[test]
fn bytes_with_locks_of_mounts_have_a_version_of_their_own() {
    let mut held = some();
    for (owner, whole) in [(3, false), (4, true)] {
        let locked = span(200, 300, whole);
        held.set(&locker(0x7777, owner, whole), locked, &here).unwrap();
    }
    let bytes = held.encode(VOLUME).unwrap();
    assert_eq!(bytes[4], 2, "an older binary does not lock such a file");
    assert_eq!(Held::decode(Some(&bytes), VOLUME), Ok(held.clone()));
    for end in 0..bytes.len() {
        assert!(Held::decode(Some(&bytes[..end]), VOLUME).is_err(), "{end} bytes");
    }
    golden("held-mounts.bin", &bytes);
    held.leave(0x7777);
    assert_eq!(held.encode(VOLUME).unwrap()[4], 1, "and lets it be locked again afterwards");
}

fn some() -> Held {
    let (mut held, open) = opened();
    held.open(holder(2), b"another", (READ, WRITE), 11, &here).unwrap_err();
    held.open(holder(2), b"another", (READ, 0), 11, &here).unwrap();
    for (start, exclusive) in [(0, true), (5, false), (100, true)] {
        let locked = span(start, start + 7, exclusive);
        held.lock_first(1, open, b"lock owner", locked, 20, &here).unwrap();
    }
    held
}

#[test]
fn bytes_survive_in_their_volume() {
    let held = some();
    let bytes = held.encode(VOLUME).unwrap();
    assert_eq!(Held::decode(Some(&bytes), VOLUME), Ok(held));
    assert_eq!(Held::decode(Some(&bytes), VolumeId([8; 16])), Ok(Held::default()), "a clone");
    assert_eq!(Held::decode(None, VOLUME), Ok(Held::default()));
    assert_eq!(Held::default().encode(VOLUME), None);
    for end in 0..bytes.len() {
        assert!(Held::decode(Some(&bytes[..end]), VOLUME).is_err(), "{end} bytes");
    }
    assert!(Held::decode(Some(&[&bytes[..], &[0]].concat()), VOLUME).is_err());
    let newer = [&bytes[..4], &[3], &bytes[5..]].concat();
    assert!(Held::decode(Some(&newer), VOLUME).is_err());
    golden("held.bin", &bytes);
}

/// Compares with a golden image, which is kept for ever.
fn golden(name: &str, encoded: &[u8]) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var("REKINDLE_GOLDEN").as_deref() == Ok("write") {
        #[expect(clippy::disallowed_methods, reason = "a test writes its golden image")]
        std::fs::write(&path, encoded).unwrap();
    }
    #[expect(clippy::disallowed_methods, reason = "a test reads its golden image")]
    let golden = std::fs::read(&path).unwrap();
    assert!(golden == encoded, "{name}: volumes that exist could not be read");
}

proptest! {
    #[test]
    fn any_bytes_are_something_held_or_an_error(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0usize..200, byte: u8,
    ) {
        let _ = Held::decode(Some(&bytes), VOLUME);
        let mut whole = some().encode(VOLUME).unwrap();
        if let Some(there) = whole.get_mut(at) {
            *there = byte;
        }
        if let Ok(held) = Held::decode(Some(&whole), VOLUME) {
            held.encode(VOLUME);
        }
        if bytes.len() >= 24 {
            bytes[..24].copy_from_slice(&some().encode(VOLUME).unwrap()[..24]);
            let _ = Held::decode(Some(&bytes), VOLUME);
        }
    }
}
