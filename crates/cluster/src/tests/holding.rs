//! What a holder accepts, refuses, and gives up.

use super::*;
use crate::machine::holder::State;
use rekindle_base::SegmentId;

/// Copies the first `count` images to the holder, as a sync.
async fn sync(peer: &Peer, images: &[(NewSegment, Vec<u8>)]) -> Result<(), String> {
    peer.begin().await?;
    for image in images {
        send(peer, image).await?;
    }
    let (head, kept) = images.split_last().expect("a head");
    let kept: Vec<SegmentId> = kept.iter().map(|(new, _)| new.segment).collect();
    peer.keep(head.0.segment, &kept).await
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, String>) -> String {
    outcome.expect_err("it is refused")
}

#[test]
fn what_is_copied_is_there_after_a_power_cut_byte_for_byte() {
    let images = images();
    for power in [false, true] {
        let pair = Pair::new(1);
        pair.world.block_on(async {
            pair.holder().await;
            pair.holder().await;
            let peer = pair.peer(1);
            sync(&peer, &images[..3]).await.expect("a sync");
            // A head follows the sync: each call counts at once.
            peer.open(&images[3].0).await.expect("a head");
            peer.copy(images[3].0.segment, 0, &images[3].1[..5000]).await.expect("bytes");
        });
        pair.kill_holder(power);
        let find = |new: &NewSegment| {
            let files = (1..20).filter_map(|file| {
                pair.holder.peek(held(OWNER).join(format!("flash/{file:08}.seg")))
            });
            files.into_iter().find(|bytes| NewSegment::read(bytes).as_ref() == Some(new))
        };
        for (new, bytes) in &images[..3] {
            assert_eq!(find(new).as_ref(), Some(bytes), "{}", new.segment);
        }
        let head = find(&images[3].0).expect("the head");
        assert_eq!(head[..5000], images[3].1[..5000]);
        assert_eq!(head.len(), SEGMENT as usize);
    }
}

#[test]
fn a_restarted_holder_knows_what_is_sealed_and_asks_for_the_rest() {
    let images = images();
    let pair = Pair::new(2);
    pair.world.block_on(async {
        pair.holder().await;
        sync(&pair.peer(1), &images[..3]).await.expect("a sync");
    });
    pair.kill_holder(true);
    pair.serve(BUDGET);
    pair.world.block_on(async {
        let held = pair.holder().await.list().await;
        let found = held[0].held.expect("it has the copies");
        assert_eq!((found.segments, found.bytes), (3, 3 * u64::from(SEGMENT)));
        assert_eq!((found.newest, held[0].last_copy), (Some(Incarnation(1)), None));
        let peer = pair.peer(1);
        peer.begin().await.expect("a sync");
        assert_eq!(peer.open(&images[0].0).await, Ok(SEGMENT), "it is sealed");
        let head = images.last().expect("a head");
        assert!(!is_sealed(head));
        assert_eq!(peer.open(&head.0).await, Ok(0), "it is not");
        drop(peer);
        // A sync whose holder was restarted meanwhile must not count with what is left of it.
        let peer = pair.peer(1);
        peer.begin().await.expect("a sync");
        send(&peer, &images[3]).await.expect("another segment");
    });
    pair.kill_holder(false);
    pair.serve(BUDGET);
    pair.world.block_on(async {
        pair.holder().await;
        let peer = pair.peer(1);
        assert!(refusal(peer.copy(images[3].0.segment, 0, &images[3].1).await).contains("sync"));
        peer.begin().await.expect("a sync");
        let kept = [images[0].0.segment, images[3].0.segment];
        let why = refusal(peer.keep(images[2].0.segment, &kept).await);
        assert!(why.contains("not here as a whole"), "{why}");
        // A part of it is here: the head of an earlier sync, which was never sealed.
        peer.begin().await.expect("a sync");
        let why = refusal(peer.keep(images[1].0.segment, &[images[0].0.segment]).await);
        assert!(why.contains("not here as a whole"), "its owner has not named them: {why}");
        peer.begin().await.expect("a sync");
        for image in &images[..2] {
            assert_eq!(peer.open(&image.0).await, Ok(SEGMENT), "it is sealed");
        }
        peer.keep(images[1].0.segment, &[images[0].0.segment]).await.expect("they are sealed");
        peer.open(&images[3].0).await.expect("a head");
        peer.copy(images[3].0.segment, 0, &images[3].1[..5000]).await.expect("a part");
        peer.begin().await.expect("a sync");
        send(&peer, images.last().expect("a head")).await.expect("the next head");
        let kept = [images[0].0.segment, images[3].0.segment];
        let why = refusal(peer.keep(images.last().expect("a head").0.segment, &kept).await);
        assert!(why.contains("not here as a whole"), "{why}");
    });
}

#[test]
fn copies_that_are_lent_to_a_log_take_nothing_until_they_are_given_back() {
    let images = images();
    let flash = held(OWNER).join("flash");
    let pair = Pair::new(3);
    pair.world.block_on(async {
        let holder = pair.holder().await;
        let peer = pair.peer(1);
        sync(&peer, &images).await.expect("a sync");
        let early = open_log(&pair.holder.env(), &flash, 2, Vec::new()).await.map(|_| ());
        assert!(early.is_err_and(|error| error.to_string().contains("another rekindle")));
        peer.begin().await.expect("another sync");
        let folder = holder.host(OWNER, Incarnation(2)).await.expect("it is lent");
        assert_eq!(folder, held(OWNER));
        let why = refusal(peer.keep(images[0].0.segment, &[]).await);
        assert_eq!(why, "a newer life of this node is known here");
        let newer = pair.peer(2);
        let why = "this node is being taken over here";
        assert_eq!(refusal(newer.begin().await), why, "whatever life comes");
        let listed = holder.list().await[0];
        assert!(listed.state == State::Guest && listed.held.is_none(), "{listed:?}");
        let log = open_log(&pair.holder.env(), &flash, 2, Vec::new()).await.expect("a log");
        assert_eq!(recovered(&log).await, (1..=40).collect::<Vec<_>>());
        log.close().await.expect("it is well");
        holder.give_back(OWNER).await;
        let why = refusal(pair.peer(1).begin().await);
        assert_eq!(why, "a newer life of this node is known here");
        let next = pair.peer(3);
        sync(&next, &images[..2]).await.expect("the next life's copies come");
        assert_eq!(holder.list().await[0].held.map(|held| held.segments), Some(2));
    });
}

#[test]
fn segments_of_another_life_are_not_taken_for_those_of_the_same_numbers() {
    let images = images();
    // What another life has written under these numbers.
    let others = images_of(78);
    let pair = Pair::new(12);
    pair.world.block_on(async {
        pair.holder().await;
        sync(&pair.peer(1), &others).await.expect("a sync");
        let peer = pair.peer(2);
        peer.begin().await.expect("a sync");
        send(&peer, &images[0]).await.expect("a segment");
    });
    // The holder forgets amid the sync, and the owner goes on with the next segment.
    pair.kill_holder(false);
    pair.serve(BUDGET);
    pair.world.block_on(async {
        let holder = pair.holder().await;
        let peer = pair.peer(2);
        peer.begin().await.expect("it goes on");
        send(&peer, &images[1]).await.expect("the next segment");
        let why = refusal(peer.keep(images[1].0.segment, &[images[0].0.segment]).await);
        assert!(why.contains("not here as a whole"), "{why}");
        sync(&peer, &images[..2]).await.expect("all of it");
        assert_eq!(holder.list().await[0].held.map(|held| held.segments), Some(2), "no others");
    });
    for (new, bytes) in &images[..2] {
        let files = (1..20)
            .filter_map(|file| pair.holder.peek(held(OWNER).join(format!("flash/{file:08}.seg"))));
        let found = files.filter(|bytes| NewSegment::read(bytes).as_ref() == Some(new));
        assert_eq!(found.collect::<Vec<_>>(), std::slice::from_ref(bytes));
    }
}

#[test]
fn copies_that_an_earlier_version_has_marked_as_taken_over_come_again() {
    let images = images();
    let pair = Pair::new(11);
    pair.world.block_on(async {
        pair.holder().await;
        sync(&pair.peer(1), &images[..3]).await.expect("a sync");
        let marker = held(OWNER).join("released");
        pair.holder.env().disk().open(&marker, Open::Create).await.expect("a marker");
        pair.holder.env().disk().sync_folder(&held(OWNER)).await.expect("a folder");
    });
    pair.kill_holder(true);
    pair.serve(BUDGET);
    pair.world.block_on(async {
        pair.holder().await;
        sync(&pair.peer(1), &images[..2]).await.expect("a sync");
    });
    assert!(pair.holder.peek(held(OWNER).join("released")).is_none());
}

#[test]
fn an_older_life_is_refused_and_so_is_an_earlier_connection() {
    let mut images = images();
    images.truncate(3);
    let pair = Pair::new(4);
    pair.world.block_on(async {
        pair.holder().await;
        let (one, two) = (pair.peer(1), pair.peer(1));
        sync(&one, &images).await.expect("a sync");
        two.begin().await.expect("a later connection");
        let why = refusal(one.free(images[0].0.segment).await);
        assert!(why.contains("later connection"), "{why}");
        one.begin().await.expect("it has connected anew");
        let newer = pair.peer(2);
        sync(&newer, &images).await.expect("a newer life has the segments of the older one");
        let why = refusal(one.begin().await);
        assert_eq!(why, "a newer life of this node is known here");
        let why = refusal(one.begin().await);
        assert!(why.contains("has begun anew since, as its start 2"), "{why}");
        // A segment of a life that has not been yet.
        let new = NewSegment { incarnation: Incarnation(3), ..images[0].0 };
        assert!(refusal(newer.open(&new).await).contains("later life"));
    });
}

#[test]
fn the_newest_life_is_known_after_a_restart() {
    // A head that the second life has written.
    let world = World::new(5, Faults::none());
    let env = world.env();
    let head = world.block_on(async {
        for life in 1..=2 {
            let log = open_log(&env, Path::new("/flash"), life, Vec::new()).await.expect("a log");
            append(&log, life, 100).await;
            log.close().await.expect("it is well");
        }
        let files = (1..9).filter_map(|file| world.peek(format!("/flash/{file:08}.seg")));
        let images = files.filter_map(|bytes| Some((NewSegment::read(&bytes)?, bytes)));
        images.into_iter().find(|(new, _)| new.incarnation == Incarnation(2)).expect("a head")
    });
    let pair = Pair::new(5);
    pair.world.block_on(async {
        pair.holder().await;
        sync(&pair.peer(2), &[head]).await.expect("a sync");
    });
    pair.kill_holder(true);
    pair.serve(BUDGET);
    pair.world.block_on(async {
        pair.holder().await;
        let why = refusal(pair.peer(1).begin().await);
        assert_eq!(why, "a newer life of this node is known here");
    });
}

#[test]
fn a_copy_that_does_not_fit_is_refused_and_costs_nothing() {
    let images = images();
    let pair = Pair::new(6);
    pair.kill_holder(false);
    pair.serve(3 * u64::from(SEGMENT));
    pair.world.block_on(async {
        let holder = pair.holder().await;
        let peer = pair.peer(1);
        sync(&peer, &images[..3]).await.expect("three fit");
        let why = refusal(peer.open(&images[3].0).await);
        assert!(why.contains("no room for another copy: copies take"), "{why}");
        peer.begin().await.expect("a sync");
        peer.keep(images[2].0.segment, &[images[1].0.segment]).await.expect("one goes");
        peer.open(&images[3].0).await.expect("its room is free");
        let id = images[3].0.segment;
        let whole = &images[3].1;
        let mut why = Vec::new();
        for (offset, bytes) in
            [(100, &whole[100..200]), (0, &whole[1..2000]), (0, &images[0].1[..]), (0, &[][..])]
        {
            why.push(refusal(peer.copy(id, offset, bytes).await));
            peer.begin().await.expect("a sync");
            peer.keep(images[2].0.segment, &[images[1].0.segment]).await.expect("as before");
            assert_eq!(peer.open(&images[3].0).await, Ok(0));
        }
        assert!(why[0].contains("before these"), "{why:?}");
        assert!(why[1..].iter().all(|why| why.contains("not of this segment")), "{why:?}");
        peer.open(&images[3].0).await.expect("a head");
        peer.copy(id, 0, whole).await.expect("all of it");
        assert!(refusal(peer.copy(id, SEGMENT, &[1]).await).contains("not that long"));
        for capacity in [0, 512, SEGMENT + 1, u32::MAX] {
            peer.begin().await.expect("a sync");
            let new = NewSegment { capacity, ..images[0].0 };
            assert!(refusal(peer.open(&new).await).contains("no such size"), "{capacity}");
        }
        let listed = holder.list().await[0];
        assert_eq!(listed.held.map(|held| held.segments), Some(3));
    });
}

#[test]
fn an_idle_connection_stays_and_is_not_synced_anew() {
    let images = images();
    let pair = Pair::new(7);
    pair.world.block_on(async {
        let holder = pair.holder().await;
        let peer = pair.peer(1);
        sync(&peer, &images[..3]).await.expect("a sync");
        assert!(holder.list().await[0].last_copy.is_some());
        pair.owner.env().sleep(Duration::from_secs(600)).await;
        // A new connection would have to begin with a sync.
        peer.open(&images[3].0).await.expect("the connection is as it was");
    });
}

#[test]
fn a_holder_that_is_lost_while_nothing_is_copied_is_told_and_copied_to_again() {
    let pair = Pair::new(8);
    pair.world.block_on(async {
        let env = pair.owner.env();
        let peer = Arc::new(pair.peer(1));
        let log = open_log(&env, Path::new("/flash"), 1, vec![peer]).await.expect("a log");
        let position = append(&log, 1, 100).await;
        log.reach(COPIES, position).await.expect("the holder is well");
        assert_eq!(log.replicas_behind(), Vec::new());
        pair.kill_holder(true);
        env.sleep(Duration::from_secs(30)).await;
        let (name, problem) = log.replicas_behind().pop().expect("the holder is away");
        assert!(name == "07" && problem.is_some(), "{name} {problem:?}");
        pair.serve(BUDGET);
        pair.holder().await;
        env.sleep(Duration::from_secs(5)).await;
        assert_eq!(log.replicas_behind(), Vec::new());
    });
}

#[test]
fn segments_that_have_left_the_log_amid_a_sync_do_not_keep_the_room() {
    let images = images();
    let pair = Pair::new(10);
    pair.kill_holder(false);
    pair.serve(3 * u64::from(SEGMENT));
    pair.world.block_on(async {
        pair.holder().await;
        let peer = pair.peer(1);
        peer.begin().await.expect("a sync");
        for image in &images[..3] {
            send(&peer, image).await.expect("three fit");
        }
        let why = refusal(peer.open(&images[3].0).await);
        assert!(why.contains("--hold-budget"), "{why}");
        // All but the last two have left the log since.
        peer.begin().await.expect("it goes on");
        send(&peer, &images[2]).await.expect("it is there");
        send(&peer, &images[3]).await.expect("there is room");
        peer.keep(images[3].0.segment, &[images[2].0.segment]).await.expect("both are here");
    });
}
