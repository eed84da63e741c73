//! Clients whose volumes are at another host: what they hold, and changes whose replies are lost.

use super::*;
use crate::nfs::forward::testing::Trouble;
use crate::nfs::serve;
use crate::nfs::testing::Site;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Whether a client has gone in the eyes of the other host.
fn has_gone_there(site: &Site, client: u64) -> bool {
    let (holder, other) = (Holder { client, machine: 0 }, Holder { client: 1, machine: 2 });
    let there = site.shelf.other.lock().clone().expect("it is there");
    let (since, now) = (there.env.now(), there.env.now());
    let clients = there.clients.lock();
    clients.has_gone(&holder, &other, since, now)
}

fn test_of(asked: &[Stateid]) -> Ops {
    ops().op(Op::TEST_STATEID, |out| {
        out.put_u32(asked.len() as u32);
        asked.iter().for_each(|stateid| out.put_stateid(stateid));
    })
}

async fn tested(caller: &mut Caller, asked: &[Stateid]) -> Vec<u32> {
    let told = caller.done(test_of(asked)).await;
    let mut found = told.of(Op::TEST_STATEID);
    assert_eq!(found.u32().unwrap() as usize, asked.len());
    asked.iter().map(|_| found.u32().unwrap()).collect()
}

#[test]
fn stateids_of_volumes_elsewhere_are_tested_and_freed_there() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        let lock = caller.done(ops().at(&file).lock(&open, "p", 0, 10)).await.stateid(Op::LOCK);
        // The client has called from here, and is idle since.
        site.move_away(Settings::default());
        site.server.forget(&file);
        let bad = Status::BAD_STATEID.0;
        assert_eq!(tested(&mut caller, &[open, NONE, lock]).await, [0, bad, 0]);
        let free =
            |stateid: Stateid| ops().op(Op::FREE_STATEID, move |out| out.put_stateid(&stateid));
        assert_eq!(caller.status(free(lock)).await, Status::LOCKS_HELD);
        let empty = caller.done(ops().at(&file).unlock(&lock, 0, u64::MAX)).await;
        caller.done(free(empty.stateid(Op::LOCKU))).await;
        assert_eq!(caller.status(free(lock)).await, Status::BAD_STATEID);
        assert_eq!(tested(&mut caller, &[lock, open]).await, [bad, 0]);
        // Where it cannot be found out, the client is not told that it holds nothing.
        *site.shelf.lines.trouble.lock() = Trouble::Shut;
        site.break_lines().await;
        assert_eq!(caller.status(test_of(&[open])).await, Status::DELAY);
        assert_eq!(caller.status(free(open)).await, Status::DELAY);
    });
}

#[test]
fn stateids_of_a_volume_that_is_not_in_use_are_known() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, open) = made(&mut caller).await;
        site.server.forget(&file);
        assert_eq!(tested(&mut caller, &[open]).await, [0]);
    });
}

#[test]
fn owners_hear_of_idle_clients_also_after_their_host_has_started_anew() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        serve::tend(&site.server);
        site.move_away(Settings::default());
        let (file, _) = made(&mut caller).await;
        for life in 0..2 {
            for _ in 0..4 {
                site.env.sleep(Duration::from_secs(40)).await;
                caller.done(ops()).await;
                assert!(!has_gone_there(site, caller.id), "in life {life}");
            }
            site.restart(Settings::default());
            serve::tend(&site.server);
            caller.reconnect(site);
        }
        // It is not heard any more.
        site.env.sleep(Duration::from_secs(300)).await;
        assert!(has_gone_there(site, caller.id));
        let kept = site.shelf.remembered.lock().clone().expect("it is kept");
        assert!(!String::from_utf8(kept).unwrap().contains("one"), "it is forgotten");
        assert_eq!(caller.status(ops().at(&file)).await, Status::OK);
    });
}

#[test]
fn a_server_without_listeners_is_tended_from_its_first_line_on() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        site.move_away(Settings::default());
        let there = site.shelf.other.lock().clone().unwrap();
        assert!(there.is_first_to_tend(), "no task was begun");
        let there = site.new_server_there();
        made(&mut caller).await;
        assert!(!there.is_first_to_tend());
        assert_eq!(there.in_use(), 1);
        site.env.sleep(Duration::from_secs(90)).await;
        assert_eq!(there.in_use(), 0, "it is let go of");
    });
}

#[test]
fn a_path_from_the_root_leads_to_the_same_volume_at_another_host() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        let (file, _) = made(&mut caller).await;
        site.move_away(Settings::default());
        site.server.forget(&file);
        let link = |to: &str| {
            let saved = ops().at(&file).plain(Op::SAVEFH).root(to);
            saved.op(Op::LINK, |out| out.put_opaque(b"second"))
        };
        // The whole COMPOUND goes to the host of its first handle.
        caller.done(link("one")).await;
        assert_eq!(caller.status(link("two")).await.0, 18, "XDEV");
        let told = caller.done(ops().root("one").look_up("second").handle()).await;
        assert_eq!(told.handle(), file);
    });
}

#[test]
fn a_change_whose_reply_is_lost_is_never_told_to_come_later() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        site.move_away(Settings::default());
        *site.shelf.lines.trouble.lock() = Trouble::LosesReplies;
        let cable = site.shelf.lines.clone();
        let (env, healed) = (site.env.clone(), cable.clone());
        site.env.spawn("heal", async move {
            env.sleep(Duration::from_secs(60)).await;
            *healed.trouble.lock() = Trouble::None;
        });
        let make = ops().root("one").make("a", RW, 1, "f").handle();
        let first = caller.done(make.clone()).await;
        assert_eq!(caller.again(&make).await, first);
        assert!(cable.opened.load(Ordering::Relaxed) > 100, "it was tried again and again");
        // A call that has got nowhere is told so, for its client to come later.
        *cable.trouble.lock() = Trouble::Shut;
        site.break_lines().await;
        let make = ops().root("one").make("a", RW, 1, "g");
        assert_eq!(caller.status(make).await, Status::DELAY);
    });
}

#[test]
fn a_change_that_may_be_done_has_no_reply_when_its_host_stops() {
    served(async |site| {
        let mut caller = Caller::new(site, "host").await;
        site.move_away(Settings::default());
        *site.shelf.lines.trouble.lock() = Trouble::LosesReplies;
        let (env, shelf) = (site.env.clone(), site.shelf.clone());
        site.env.spawn("stop", async move {
            env.sleep(Duration::from_secs(5)).await;
            shelf.is_stopping.store(true, Ordering::Relaxed);
        });
        let make = ops().root("one").make("a", RW, 1, "f").handle();
        let (env, time) = (site.env.clone(), Duration::from_secs(120));
        assert!(env.timeout(time, caller.ask(make.clone())).await.is_err(), "it has a reply");
        // Another process, and another connection: it is known again.
        site.shelf.is_stopping.store(false, Ordering::Relaxed);
        *site.shelf.lines.trouble.lock() = Trouble::None;
        site.restart(Settings::default());
        caller.reconnect(site);
        assert_eq!(caller.again(&make).await.status, Status::OK);
    });
}
