//! The transition table of an owner, row by row.

use super::*;
use std::time::Duration;

const A: NodeId = NodeId([1; 16]);
const B: NodeId = NodeId([2; 16]);

fn at(ms: u64) -> Moment {
    Moment(Duration::from_millis(ms))
}

fn set(nodes: &[NodeId]) -> BTreeSet<NodeId> {
    nodes.iter().copied().collect()
}

fn begin(recorded: &[NodeId]) -> Owner {
    Owner::begin(Pace::default(), recorded.iter().copied(), at(0))
}

/// An owner with one recorded holder that has granted a lease at that time.
fn with_one(ms: u64) -> Owner {
    let mut owner = begin(&[A]);
    owner.step(at(ms), Event::CaughtUp(A));
    owner.step(at(ms), Event::Granted(A, at(ms)));
    owner
}

fn stand(owner: &Owner, node: NodeId) -> Option<Stand> {
    owner.holders().get(&node).map(|holder| holder.stand)
}

#[test]
fn without_holders_reads_are_free_and_nothing_happens() {
    let mut owner = begin(&[]);
    assert_eq!(owner.reads(), Reads::Free);
    assert!(owner.step(at(9999), Event::Tick).is_empty());
    for event in [Event::Granted(A, at(1)), Event::Lags(A), Event::Dismissed(A), Event::Written] {
        assert!(owner.step(at(1), event).is_empty(), "{event:?}");
    }
}

#[test]
fn a_holder_is_required_before_it_is_named_and_named_before_it_counts() {
    let mut owner = begin(&[]);
    assert_eq!(owner.step(at(0), Event::Chosen(A)), [Command::Follow(A)]);
    assert!(owner.step(at(0), Event::Chosen(A)).is_empty(), "it was chosen");
    owner.step(at(5), Event::Granted(A, at(4)));
    assert_eq!(owner.reads(), Reads::Free, "the record does not name it");
    assert_eq!(owner.step(at(10), Event::CaughtUp(A)), [Command::Require(A)]);
    assert!(!owner.is_writing(), "it may lack what was acknowledged meanwhile");
    let commands = owner.step(at(20), Event::CaughtUp(A));
    let reads = Reads::Until(at(4) + Pace::default().lease);
    assert_eq!(commands, [Command::Read(reads), Command::Record(set(&[A]))]);
    assert!(owner.step(at(30), Event::Written).is_empty());
    assert_eq!(stand(&owner, A), Some(Stand::Recorded { whole: true }));
}

#[test]
fn reads_go_on_until_the_first_lease_ends() {
    let mut owner = begin(&[A, B]);
    for node in [A, B] {
        owner.step(at(1), Event::CaughtUp(node));
    }
    owner.step(at(10), Event::Granted(A, at(5)));
    assert_eq!(owner.reads(), Reads::No, "one holder has granted nothing");
    owner.step(at(10), Event::Granted(B, at(7)));
    assert_eq!(owner.reads(), Reads::Until(at(5) + Pace::default().lease));
    owner.step(at(20), Event::Granted(A, at(15)));
    assert_eq!(owner.reads(), Reads::Until(at(7) + Pace::default().lease));
    owner.step(at(21), Event::Granted(B, at(2)));
    assert_eq!(owner.reads(), Reads::Until(at(7) + Pace::default().lease), "a late reply");
}

#[test]
fn a_holder_of_the_last_life_must_have_all_of_the_new_log_before_reads_go_on() {
    let mut owner = begin(&[A]);
    owner.step(at(10), Event::Granted(A, at(5)));
    assert_eq!(owner.reads(), Reads::No);
    let commands = owner.step(at(20), Event::CaughtUp(A));
    assert_eq!(commands, [Command::Read(Reads::Until(at(5) + Pace::default().lease))]);
}

#[test]
fn a_silent_holder_is_needed_until_the_record_does_without_it() {
    let mut owner = with_one(0);
    let late = Pace::default().replace + Duration::from_millis(1);
    assert!(owner.step(at(0) + Pace::default().replace, Event::Tick).is_empty());
    assert_eq!(owner.step(at(0) + late, Event::Tick), [Command::Record(set(&[]))]);
    assert_ne!(owner.reads(), Reads::Free, "the record may still name it");
    let commands = owner.step(at(400), Event::Written);
    assert_eq!(commands, [Command::Read(Reads::Free), Command::Drop(A)]);
    assert_eq!(stand(&owner, A), None);
}

#[test]
fn a_holder_that_is_behind_follows_on_without_being_needed() {
    let mut owner = with_one(0);
    assert_eq!(owner.step(at(1), Event::Lags(A)), [Command::Record(set(&[]))]);
    let commands = owner.step(at(2), Event::Written);
    assert_eq!(commands, [Command::Read(Reads::Free), Command::Excuse(A)]);
    assert_eq!(stand(&owner, A), Some(Stand::Following));
    assert_eq!(owner.step(at(3), Event::CaughtUp(A)), [Command::Require(A)]);
    // Before the record names it, it can go at once.
    assert_eq!(owner.step(at(4), Event::Lags(A)), [Command::Excuse(A)]);
    assert_eq!(owner.step(at(5), Event::Dismissed(A)), [Command::Drop(A)]);
}

#[test]
fn a_holder_of_the_last_life_that_stays_behind_is_done_without() {
    let mut owner = begin(&[A]);
    let pace = Pace::default();
    let mut now = at(0);
    while now.since(at(0)) <= pace.whole {
        owner.step(now, Event::Granted(A, now));
        assert!(owner.step(now, Event::Tick).is_empty());
        now = now + pace.beat;
    }
    owner.step(now, Event::Granted(A, now));
    assert_eq!(owner.step(now, Event::Tick), [Command::Record(set(&[]))]);
    let commands = owner.step(now, Event::Written);
    assert_eq!(commands, [Command::Read(Reads::Free), Command::Excuse(A)]);
}

#[test]
fn a_holder_that_is_lost_while_it_is_being_named_is_needed_until_it_is_named_no_more() {
    let mut owner = with_one(0);
    owner.step(at(1), Event::Chosen(B));
    owner.step(at(2), Event::CaughtUp(B));
    assert_eq!(owner.reads(), Reads::Until(at(0) + Pace::default().lease));
    let commands = owner.step(at(3), Event::CaughtUp(B));
    assert_eq!(commands, [Command::Read(Reads::No), Command::Record(set(&[A, B]))]);
    assert!(owner.step(at(4), Event::Dismissed(B)).is_empty(), "the write is under way");
    assert_eq!(owner.step(at(5), Event::Written), [Command::Record(set(&[A]))]);
    assert_eq!(owner.reads(), Reads::No, "it has granted nothing");
    let commands = owner.step(at(6), Event::Written);
    let reads = Reads::Until(at(0) + Pace::default().lease);
    assert_eq!(commands, [Command::Read(reads), Command::Drop(B)]);
}

#[test]
fn one_write_of_the_record_is_under_way_at_a_time() {
    let mut owner = begin(&[]);
    for node in [A, B] {
        owner.step(at(0), Event::Chosen(node));
        owner.step(at(1), Event::Granted(node, at(1)));
        owner.step(at(1), Event::CaughtUp(node));
    }
    let first = owner.step(at(2), Event::CaughtUp(A));
    assert!(first.contains(&Command::Record(set(&[A]))));
    assert!(owner.step(at(3), Event::CaughtUp(B)).is_empty());
    assert!(owner.step(at(4), Event::Written).contains(&Command::Record(set(&[A, B]))));
    assert_eq!(owner.staying().count(), 2);
}

#[test]
fn a_holder_that_takes_the_node_over_is_not_replaced_meanwhile_but_has_its_time() {
    let mut owner = with_one(0);
    let (step, mut now) = (Duration::from_millis(100), at(0));
    // Its refusals count as signs of life, and grant nothing.
    while now < at(0) + Pace::default().insist {
        now = now + step;
        owner.step(now, Event::Refused(A));
        assert!(owner.step(now, Event::Tick).is_empty(), "{now:?}");
        assert_eq!(owner.reads(), Reads::Until(at(0) + Pace::default().lease));
    }
    let replaced = loop {
        now = now + step;
        owner.step(now, Event::Refused(A));
        let commands = owner.step(now, Event::Tick);
        if !commands.is_empty() {
            break commands;
        }
        assert!(now < at(0) + Pace::default().insist * 2, "it waits for ever");
    };
    assert_eq!(replaced, [Command::Record(set(&[]))]);
    // One that grants again after an attempt has all its time for another one.
    let mut owner = with_one(0);
    owner.step(at(100), Event::Refused(A));
    owner.step(at(2000), Event::Granted(A, at(2000)));
    owner.step(at(4000), Event::Refused(A));
    assert!(owner.step(at(4500), Event::Tick).is_empty());
}
