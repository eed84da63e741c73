//! Requests that come again, opens and locks: over restarts, and between clients.

use super::*;
use crate::held::ranges::Span;
use crate::held::{Held, Locker};
use crate::nfs::v4::tend::drop_forsaken;
use crate::target::testing::SOME_BYTES;

#[test]
fn a_request_that_comes_again_has_the_same_reply() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        made(&mut caller).await;
        let remove = ops().root("one").remove("f");
        let first = caller.done(remove.clone()).await;
        assert_eq!(caller.again(&remove).await, first);
        // Meanwhile, another file has the name: it is not for the late request.
        let mut other = Caller::new(site, "other").await;
        made(&mut other).await;
        assert_eq!(caller.again(&remove).await, first);
        other.done(ops().root("one").look_up("f")).await;
    });
}

#[test]
fn a_request_that_comes_again_after_a_restart_is_carried_out_once() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let make = ops().root("one").make("a", RW, 1, "f").handle();
        let first = caller.done(make.clone()).await;
        site.restart(Settings::default());
        caller.reconnect(site);
        let again = caller.again(&make).await;
        assert_eq!(again.status, Status::OK, "a guarded create");
        assert_eq!(again.stateid(Op::OPEN), first.stateid(Op::OPEN));
        assert_eq!(again.handle(), first.handle());
        let (file, open) = (first.handle(), first.stateid(Op::OPEN));
        let lock = ops().at(&file).lock(&open, "p", 0, 10);
        let locked = caller.done(lock.clone()).await.stateid(Op::LOCK);
        site.restart(Settings::default());
        caller.reconnect(site);
        assert_eq!(caller.again(&lock).await.stateid(Op::LOCK), locked);
        let unlock = ops().at(&file).unlock(&locked, 0, 5);
        let unlocked = caller.done(unlock.clone()).await.stateid(Op::LOCKU);
        site.restart(Settings::default());
        caller.reconnect(site);
        assert_eq!(caller.again(&unlock).await.stateid(Op::LOCKU), unlocked);
        let close = ops().at(&file).close(&open);
        caller.done(close.clone()).await;
        site.restart(Settings::default());
        caller.reconnect(site);
        assert_eq!(caller.again(&close).await.status, Status::OK);
        let remove = ops().root("one").remove("f");
        caller.done(remove.clone()).await;
        site.restart(Settings::default());
        caller.reconnect(site);
        let mut other = Caller::new(site, "other").await;
        made(&mut other).await;
        assert_eq!(caller.again(&remove).await.status, Status::OK);
        other.done(ops().root("one").look_up("f")).await;
        // The next request of the slot is a new one.
        assert_eq!(caller.status(ops().root("one").remove("f")).await, Status::OK);
        assert_eq!(caller.status(ops().root("one").look_up("f")).await, Status::NOENT);
    });
}

#[test]
fn what_is_told_is_durable() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let syncs = |site: &Site| site.files("one").look(|state| state.syncs);
        let (file, open) = made(&mut caller).await;
        for change in [
            ops().at(&file).lock(&open, "p", 0, 10),
            ops().root("one").open("b", RW, "f"),
            ops().at(&file).write(&open, 0, b"a"),
            ops().at(&file).close(&open),
        ] {
            let before = syncs(site);
            caller.done(change).await;
            assert!(syncs(site) > before);
        }
    });
}

#[test]
fn a_write_says_how_much_there_was_room_for() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let long = vec![1; SOME_BYTES + 1];
        let reply = caller.done(ops().at(&file).write(&open, 0, &long)).await;
        assert_eq!(reply.of(Op::WRITE).u32().unwrap() as usize, SOME_BYTES);
    });
}

#[test]
fn a_close_waits_for_the_log_where_others_wait_for_it() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let before = site.files("one").look(|state| state.syncs);
        caller.done(ops().at(&file).close(&open)).await;
        assert_eq!(site.files("one").look(|state| state.syncs), before, "it excluded no one");
        let denying = ops().root("one").open("a", (u32::from(READ), u32::from(WRITE)), "f");
        let denying = caller.done(denying).await.stateid(Op::OPEN);
        let before = site.files("one").look(|state| state.syncs);
        caller.done(ops().at(&file).close(&denying)).await;
        assert!(site.files("one").look(|state| state.syncs) > before);
    });
}

#[test]
fn locks_exclude_others_over_a_restart_and_no_one_waits() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let locked = caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await;
        let locked = locked.stateid(Op::LOCK);
        for _ in 0..2 {
            // The stranger's first open is not made to wait, whatever has just happened.
            let mut stranger = Caller::new(site, "stranger").await;
            let told = stranger.done(ops().root("one").open("a", RW, "f")).await;
            let theirs = told.stateid(Op::OPEN);
            let told = stranger.ask(ops().at(&file).lock(&theirs, "p", 9, 1)).await;
            assert_eq!(told.status, Status::DENIED);
            let mut denied = told.of(Op::LOCK);
            assert_eq!((denied.u64(), denied.u64(), denied.u32()), (Ok(0), Ok(10), Ok(2)));
            assert_eq!((denied.u64(), denied.opaque(9)), (Ok(caller.id), Ok(&b"p"[..])));
            stranger.done(ops().at(&file).lock(&theirs, "p", 10, 1)).await;
            stranger.done(ops().at(&file).close(&theirs)).await;
            site.restart(Settings::default());
        }
        caller.reconnect(site);
        caller.done(ops().at(&file).unlock(&locked, 0, u64::MAX)).await;
        let mut stranger = Caller::new(site, "stranger").await;
        let told = stranger.done(ops().root("one").open("a", RW, "f")).await;
        stranger.done(ops().at(&file).lock(&told.stateid(Op::OPEN), "p", 9, 1)).await;
    });
}

#[test]
fn a_lock_of_a_mount_is_kept_to_until_the_mount_has_gone() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let volume = crate::nfs::testing::id("one");
        site.files("one").look(|state| {
            let kept = state.kept.values_mut().next().expect("the file is open");
            let mut held = Held::decode(Some(kept), volume).unwrap();
            let span = Span { start: 0, end: 10, exclusive: true };
            let locker = Locker { mount: 77, owner: 5, process: 1, is_whole: false };
            held.set(&locker, span, &|_| false).unwrap();
            *kept = held.encode(volume).unwrap();
        });
        let lock = ops().at(&file).lock(&open, "p", 9, 1);
        let told = caller.ask(lock.clone()).await;
        assert_eq!(told.status, Status::DENIED);
        let mut denied = told.of(Op::LOCK);
        assert_eq!((denied.u64(), denied.u64(), denied.u32()), (Ok(0), Ok(10), Ok(2)));
        assert_eq!(denied.u64(), Ok(77));
        site.shelf.mounts_gone.lock().push(77);
        caller.done(lock).await;
    });
}

#[test]
fn what_an_open_denies_is_denied_over_a_restart() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let deny = (u32::from(READ), u32::from(WRITE));
        let denying = ops().root("one").open("a", deny, "f");
        let open = caller.done(denying).await.stateid(Op::OPEN).with_last(open);
        site.restart(Settings::default());
        let mut other = Caller::new(site, "other").await;
        let write = ops().root("one").open("a", RW, "f");
        assert_eq!(other.status(write.clone()).await, Status::SHARE_DENIED);
        let without = ops().at(&file).write(&NONE, 0, b"a");
        assert_eq!(other.status(without.clone()).await, Status::LOCKED);
        other.done(ops().root("one").open("a", (READ.into(), 0), "f")).await;
        caller.reconnect(site);
        let less = ops().at(&file).op(Op::OPEN_DOWNGRADE, |out| {
            out.put_stateid(&open);
            out.put_u32(0);
            out.put_u32(READ.into());
            out.put_u32(0);
        });
        let open = caller.done(less).await.stateid(Op::OPEN_DOWNGRADE);
        other.done(write).await;
        other.done(without).await;
        let write = ops().at(&file).write(&open, 0, b"a");
        assert_eq!(caller.status(write).await, Status::OPENMODE);
    });
}

impl Stateid {
    /// The same state, in the sequence of its last word.
    fn with_last(self, first: Stateid) -> Self {
        assert_eq!(self.other, first.other, "an owner has one open of a file");
        assert_eq!(self.seqid, first.seqid + 1);
        self
    }
}

#[test]
fn a_client_keeps_what_it_holds_until_another_one_wants_it() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await;
        site.restart(Settings::default());
        site.env.sleep(limits::LEASE - Duration::from_secs(1)).await;
        let mut other = Caller::new(site, "other").await;
        let theirs = other.done(ops().root("one").open("a", RW, "f")).await.stateid(Op::OPEN);
        let lock = ops().at(&file).lock(&theirs, "p", 0, 1);
        assert_eq!(other.status(lock.clone()).await, Status::DENIED, "its lease ends soon");
        // A lease later the client is late, and nothing is lost, since no other one wants it.
        site.env.sleep(limits::LEASE * 3).await;
        caller.reconnect(site);
        caller.done(ops().at(&file).read(&open, 0, 1)).await;
        assert_eq!(other.status(lock.clone()).await, Status::DENIED);
        site.env.sleep(limits::LEASE + Duration::from_secs(1)).await;
        other.done(lock).await;
        let told = caller.status(ops().at(&file).read(&open, 0, 1)).await;
        assert_eq!(told, Status::BAD_STATEID, "it was revoked");
    });
}

#[test]
fn a_machine_that_starts_anew_does_not_hinder_itself() {
    served(async |site| {
        let mut caller = Caller::started(site, "host", 1).await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await;
        site.restart(Settings::default());
        let mut later = Caller::started(site, "host", 2).await;
        let open = later.done(ops().root("one").open("a", RW, "f")).await.stateid(Op::OPEN);
        later.done(ops().at(&file).lock(&open, "p", 0, 10)).await;
    });
}

#[test]
fn a_file_without_a_name_stays_until_it_is_closed() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).write(&open, 0, b"hello")).await;
        caller.done(ops().root("one").remove("f")).await;
        site.restart(Settings::default());
        caller.reconnect(site);
        let told = caller.done(ops().at(&file).read(&open, 0, 9)).await;
        assert_eq!(told.data().0, b"hello");
        caller.done(ops().at(&file).close(&open)).await;
        assert_eq!(caller.status(ops().at(&file).read(&NONE, 0, 9)).await, Status::STALE);
    });
}

#[test]
fn a_file_without_a_name_goes_with_a_client_that_has_gone() {
    served(async |site| {
        let server = site.server.clone();
        let mut caller = Caller::new(site, "host").await;
        let (file, _) = made(&mut caller).await;
        caller.done(ops().root("one").remove("f")).await;
        let kept = |site: &Site| site.files("one").look(|state| state.kept.len());
        drop_forsaken(&server).await;
        assert_eq!(kept(site), 1, "its client is there");
        site.env.sleep(limits::LEASE + Duration::from_secs(1)).await;
        drop_forsaken(&server).await;
        assert_eq!(kept(site), 0);
        caller.reconnect(site);
        assert_eq!(caller.status(ops().at(&file).read(&NONE, 0, 9)).await, Status::STALE);
    });
}

#[test]
fn stateids_are_tested_and_freed() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let lock = caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await.stateid(Op::LOCK);
        let old = Stateid { seqid: open.seqid + 1, ..open };
        let asked = [open, lock, old, NONE];
        let test = ops().op(Op::TEST_STATEID, |out| {
            out.put_u32(asked.len() as u32);
            asked.iter().for_each(|stateid| out.put_stateid(stateid));
        });
        let told = caller.done(test).await;
        let bad = Status::BAD_STATEID.0;
        let mut found = told.of(Op::TEST_STATEID);
        let found: Vec<_> = (0..5).map(|_| found.u32().unwrap()).collect();
        assert_eq!(found, [4, 0, 0, bad, bad]);
        let free =
            |stateid: Stateid| ops().op(Op::FREE_STATEID, move |out| out.put_stateid(&stateid));
        assert_eq!(caller.status(free(lock)).await, Status::LOCKS_HELD);
        assert_eq!(caller.status(free(open)).await, Status::LOCKS_HELD);
        let empty = caller.done(ops().at(&file).unlock(&lock, 0, u64::MAX)).await;
        caller.done(free(empty.stateid(Op::LOCKU))).await;
        assert_eq!(caller.status(free(lock)).await, Status::BAD_STATEID);
    });
}

#[test]
fn what_is_reclaimed_is_there_or_refused() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await;
        site.restart(Settings::default());
        caller.reconnect(site);
        let previous = |owner: &str| {
            ops().at(&file).open_as(owner, RW, |out| {
                out.put_u32(0);
                out.put_u32(1);
                out.put_u32(0);
            })
        };
        assert_eq!(caller.done(previous("a")).await.stateid(Op::OPEN), open);
        assert_eq!(caller.status(previous("b")).await, Status::NO_GRACE);
        let lock = |length| ops().at(&file).lock_how(&open, "p", (0, length), true);
        caller.done(lock(10)).await;
        assert_eq!(caller.status(lock(11)).await, Status::NO_GRACE);
    });
}

#[test]
fn damage_is_told_and_gives_no_lock() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let damage = |state: &mut crate::target::testing::State| {
            state.kept.values_mut().for_each(|kept| kept[4] = 9);
        };
        site.files("one").look(damage);
        assert_eq!(caller.status(ops().at(&file).lock(&open, "p", 0, 1)).await, Status::IO);
        assert_eq!(caller.status(ops().root("one").open("b", RW, "f")).await, Status::IO);
        assert_eq!(caller.status(ops().at(&file).read(&open, 0, 1)).await, Status::IO);
        caller.done(ops().root("one").make("b", RW, 0, "g")).await;
    });
}

#[test]
fn a_client_goes_on_when_its_volume_goes_to_another_host_and_comes_back() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await;
        let there = site.move_away(Settings::default());
        site.server.forget(&file);
        caller.done(ops().at(&file).write(&open, 0, b"forwarded")).await;
        assert_eq!(caller.done(ops().at(&file).read(&open, 0, 9)).await.data().0, b"forwarded");
        // What is held is known there, and a client that comes to the owner's host meets it.
        let mut other = Caller::new(site, "other").await;
        let opened = other.done(ops().root("one").open("b", RW, "f")).await;
        let its = opened.stateid(Op::OPEN);
        let told = other.ask(ops().at(&file).lock(&its, "q", 5, 10)).await;
        assert_eq!(told.status, Status::DENIED);
        other.done(ops().at(&file).lock(&its, "q", 10, 10)).await;
        // A change that comes again, of another slot than the last one here.
        let make = ops().root("one").make("a", RW, 1, "g").handle();
        let first = caller.done(make.clone()).await;
        assert_eq!(caller.again(&make).await, first);
        assert_eq!(caller.status(ops().root("one").look_up("none")).await, Status::NOENT);
        caller.done(ops().root("one").remove("g")).await;
        // It comes back.
        *there.other.lock() = Some(site.server.clone());
        let volumes = std::mem::take(&mut *there.volumes.lock());
        site.shelf.other.lock().as_ref().unwrap().forget(&file);
        *site.shelf.volumes.lock() = volumes;
        assert_eq!(caller.done(ops().at(&file).read(&open, 0, 9)).await.data().0, b"forwarded");
        let told = other.ask(ops().at(&file).lock(&its, "q", 5, 3)).await;
        assert_eq!(told.status, Status::DENIED);
        caller.done(ops().at(&file).close(&open)).await;
    });
}
