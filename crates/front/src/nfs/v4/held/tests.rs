//! Share reservations and locks, and their bytes.

use super::*;
use proptest::prelude::*;
use rekindle_base::VolumeId;

const VOLUME: VolumeId = VolumeId([7; 16]);

fn holder(client: u64) -> Holder {
    Holder { client, machine: client + 100 }
}

fn here(_: &Holder) -> bool {
    false
}

fn gone(_: &Holder) -> bool {
    true
}

fn stateid((id, seqid): (u64, u32)) -> Stateid {
    Stateid::new(5, id, seqid)
}

fn span(start: u64, end: u64, exclusive: bool) -> Span {
    Span { start, end, exclusive }
}

/// Client 1 has the file open for both, denying nothing.
fn opened() -> (Held, Stateid) {
    let mut held = Held::default();
    let id = held.open(holder(1), b"a", (BOTH, 0), 10, &here).unwrap();
    (held, stateid(id))
}

#[test]
fn what_an_open_denies_is_denied_to_others_only() {
    let (mut held, first) = opened();
    held.open(holder(1), b"a", (READ, WRITE), 11, &here).unwrap();
    assert_eq!(held.opens.len(), 1, "an owner has one open of a file");
    assert_eq!(held.look(1, first), Err(Status::OLD_STATEID));
    let denied = Err(Status::SHARE_DENIED);
    assert_eq!(held.open(holder(2), b"a", (WRITE, 0), 12, &here), denied);
    assert_eq!(held.open(holder(1), b"b", (WRITE, 0), 12, &here), denied, "another owner");
    assert_eq!(held.open(holder(2), b"a", (READ, READ), 12, &here), denied, "it reads");
    assert_eq!(held.open(holder(2), b"a", (READ, 0), 12, &here), Ok((12, 1)));
    assert_eq!(held.may_without(WRITE, &here), Err(Status::LOCKED));
    assert_eq!(held.may_without(READ, &here), Ok(()));
    assert_eq!(held.may_without(WRITE, &gone), Ok(()));
}

#[test]
fn a_downgrade_gives_back_what_it_does_not_name() {
    let mut held = Held::default();
    let id = held.open(holder(1), b"a", (BOTH, WRITE), 10, &here).unwrap();
    assert_eq!(held.downgrade(1, stateid(id), (BOTH, BOTH)), Err(Status::INVAL), "more");
    assert_eq!(held.downgrade(1, stateid(id), (0, 0)), Err(Status::INVAL));
    assert_eq!(held.downgrade(2, stateid(id), (READ, 0)), Err(Status::BAD_STATEID));
    let id = held.downgrade(1, stateid(id), (READ, 0)).unwrap();
    assert_eq!(id, (10, 2));
    assert_eq!(held.may(1, stateid(id), WRITE), Err(Status::OPENMODE));
    assert_eq!(held.may(1, stateid(id), READ), Ok(()));
    assert_eq!(held.open(holder(2), b"a", (WRITE, 0), 12, &here), Ok((12, 1)));
}

#[test]
fn stateids_are_those_of_their_client_and_time() {
    let (mut held, first) = opened();
    let at = |seqid| Stateid { seqid, ..first };
    assert_eq!(held.look(1, at(0)), Ok(()), "the last one");
    assert_eq!(held.look(1, at(2)), Err(Status::BAD_STATEID), "of the future");
    assert_eq!(held.look(2, first), Err(Status::BAD_STATEID), "of another client");
    assert_eq!(held.look(1, stateid((11, 1))), Err(Status::BAD_STATEID));
    held.open(holder(1), b"a", (READ, 0), 12, &here).unwrap();
    assert_eq!(held.close(1, first), Err(Status::OLD_STATEID));
    assert_eq!(held.may(1, first, READ), Err(Status::OLD_STATEID));
    assert_eq!(held.close(1, at(2)), Ok(()));
    assert_eq!(held.close(1, at(2)), Err(Status::BAD_STATEID));
    assert!(held.is_empty());
}

#[test]
fn locks_exclude_other_owners() {
    let (mut held, open) = opened();
    let other = stateid(held.open(holder(2), b"a", (BOTH, 0), 11, &here).unwrap());
    let lock = held.lock_first(1, open, b"p", span(0, 10, true), 20, &here).unwrap();
    assert_eq!(lock, (20, 1));
    let refused = held.lock_first(2, other, b"p", span(9, 12, false), 21, &here).unwrap_err();
    let conflict = Conflict { span: span(0, 10, true), client: 1, owner: b"p".to_vec() };
    assert_eq!(refused, Refused::Denied(conflict.clone()));
    assert_eq!(held.locks.len(), 1, "an owner that got no lock leaves nothing");
    assert_eq!(held.test(2, b"p", &span(0, 1, false), &here), Err(conflict));
    assert_eq!(held.test(1, b"p", &span(0, 1, false), &here), Ok(()), "its own");
    held.test(1, b"q", &span(0, 1, false), &here).unwrap_err();
    held.lock_first(2, other, b"p", span(10, 12, true), 21, &here).unwrap();
    // Another owner of the same client is another owner.
    held.lock_first(1, open, b"q", span(11, 12, false), 22, &here).unwrap_err();
    let lock = held.unlock(1, stateid(lock), &span(0, 5, true)).unwrap();
    assert_eq!(lock, (20, 2));
    held.lock_first(2, other, b"p", span(0, 5, true), 23, &here).unwrap();
    held.lock_more(2, stateid((21, 0)), span(5, 6, true), &here).unwrap_err();
    assert!(
        held.has_lock(1, b"p", &span(6, 8, true)) && !held.has_lock(1, b"p", &span(4, 8, true))
    );
    assert!(!held.has_lock(1, b"p", &span(6, 8, false)), "that would be another one");
}

#[test]
fn a_lock_needs_an_open_for_it() {
    let mut held = Held::default();
    let open = stateid(held.open(holder(1), b"a", (READ, 0), 10, &here).unwrap());
    let refused = held.lock_first(1, open, b"p", span(0, 1, true), 20, &here);
    assert_eq!(refused, Err(Status::OPENMODE.into()));
    let shared = held.lock_first(1, open, b"p", span(0, 1, false), 20, &here).unwrap();
    assert_eq!(held.may(1, stateid(shared), READ), Ok(()));
    assert_eq!(held.may(1, stateid(shared), WRITE), Err(Status::OPENMODE));
    assert_eq!(held.free(1, stateid(shared)), Err(Status::LOCKS_HELD));
    assert_eq!(held.free(1, open), Err(Status::LOCKS_HELD));
    let empty = held.unlock(1, stateid(shared), &span(0, u64::MAX, false)).unwrap();
    held.free(1, stateid(empty)).unwrap();
    assert_eq!(held.look(1, stateid(empty)), Err(Status::BAD_STATEID));
    held.lock_first(1, open, b"p", span(0, 1, false), 21, &here).unwrap();
    held.close(1, open).unwrap();
    assert!(held.is_empty(), "locks go with their open");
}

#[test]
fn clients_that_have_gone_give_way_to_others_only() {
    let (mut held, open) = opened();
    held.open(holder(1), b"a", (READ, WRITE), 10, &here).unwrap();
    held.lock_first(1, Stateid { seqid: 0, ..open }, b"p", span(0, 10, true), 20, &here).unwrap();
    let is_first = |holder: &Holder| holder.client == 1;
    held.open(holder(2), b"a", (READ, 0), 11, &is_first).unwrap();
    assert_eq!(held.opens.len(), 2, "there was no conflict: the first client keeps what it has");
    let before = held.clone();
    assert_eq!(held.test(2, b"p", &span(0, 1, true), &is_first), Ok(()));
    assert_eq!(held, before, "a test changes nothing");
    held.open(holder(2), b"a", (WRITE, 0), 11, &is_first).unwrap();
    assert_eq!((held.opens.len(), held.locks.len()), (1, 0));
    assert_eq!(held.look(1, open), Err(Status::BAD_STATEID), "it was revoked");
}

#[test]
fn a_file_takes_so_many_opens() {
    let (mut held, _) = opened();
    for id in 1..limits::HELD_MAX as u64 {
        held.open(holder(1), &id.to_be_bytes(), (READ, 0), 100 + id, &here).unwrap();
    }
    assert_eq!(held.open(holder(1), b"one more", (READ, 0), 9, &here), Err(Status::NOSPC));
    assert_eq!(held.open(holder(1), b"a", (READ, 0), 9, &here), Ok((10, 2)), "it is there");
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
    let newer = [&bytes[..4], &[2], &bytes[5..]].concat();
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
