//! The transition table of a holder, row by row.

use super::*;

fn at(ms: u64) -> Moment {
    Moment(Duration::from_millis(ms))
}

fn before(moment: Moment) -> Moment {
    Moment(moment.0 - Duration::from_millis(1))
}

fn pace() -> Pace {
    Pace::default()
}

const LIFE: Incarnation = Incarnation(4);
const NEXT: Incarnation = Incarnation(5);
/// A time at which no earlier process can have granted a lease that lasts.
const LATE: u64 = 100_000;

/// A holder that has granted one lease just now.
fn keeping() -> Holder {
    let mut holder = Holder::begin(pace(), pace().suspect, at(0));
    holder.grant(LIFE, pace().lease, at(LATE)).expect("it keeps copies");
    holder
}

fn sight(place: Option<usize>) -> Option<Sight> {
    Some(Sight { incarnation: LIFE, place, is_resting: false, is_heard: false })
}

/// The first moment of suspicion.
fn suspicious() -> Moment {
    at(LATE) + pace().suspect + Duration::from_millis(1)
}

fn suspecting() -> Holder {
    let mut holder = keeping();
    assert_eq!(holder.tick(suspicious()), Some(Deed::Look));
    holder
}

#[test]
fn a_silent_owner_is_taken_over_when_its_leases_are_over() {
    let mut holder = keeping();
    assert_eq!(holder.tick(at(LATE) + pace().suspect), Some(Deed::Knock));
    assert_eq!(holder.tick(suspicious()), Some(Deed::Look));
    assert_eq!(holder.tick(suspicious()), None, "one look at a time");
    holder.saw(sight(Some(0)), suspicious());
    let over = at(LATE) + Pace::granted(pace().lease);
    assert_eq!(holder.tick(before(over)), None, "a lease is left");
    assert!(!holder.hears(LIFE, over), "it is silent");
    assert_eq!(holder.tick(over), Some(Deed::Take));
    assert_eq!(holder.grant(LIFE, pace().lease, over), Err(Refusal::TakenOver));
    assert_eq!(holder.admit(LIFE), Err(Refusal::TakenOver));
    assert_eq!(holder.admit(NEXT), Err(Refusal::TakenOver), "whatever life comes");
    holder.took(Taken::Won(NEXT), over);
    assert_eq!(holder.state(), State::Guest);
    assert_eq!(holder.grant(LIFE, pace().lease, over), Err(Refusal::NewerLife));
    holder.ended();
    assert_eq!(holder.tick(at(LATE * 9)), None, "the copies here are not complete");
    holder.grant(Incarnation(6), pace().lease, at(LATE * 9)).expect("the next owner is known");
    assert_eq!(holder.state(), State::Keeping);
}

#[test]
fn an_owner_whose_process_is_gone_is_taken_over_as_soon_as_its_leases_are_over() {
    let mut holder = keeping();
    let silent = at(LATE) + pace().knock;
    assert_eq!(holder.tick(before(silent)), None);
    assert_eq!(holder.tick(silent), Some(Deed::Knock));
    assert_eq!(holder.tick(silent), None, "one knock at a time");
    holder.knocked(false, silent);
    let again = silent + pace().knock;
    assert_eq!(holder.tick(again), Some(Deed::Knock), "a process may be there");
    holder.knocked(true, again);
    assert!(!holder.hears(LIFE, again), "it is gone");
    assert_eq!(holder.tick(again), Some(Deed::Look));
    holder.saw(sight(Some(0)), again);
    let over = at(LATE) + Pace::granted(pace().lease);
    assert!(over < suspicious(), "sooner than by silence alone");
    assert_eq!(holder.tick(before(over)), None, "a lease is left");
    assert_eq!(holder.tick(over), Some(Deed::Take));
    // A later holder leaves the first one its time.
    let mut second = keeping();
    assert_eq!(second.tick(silent), Some(Deed::Knock));
    second.knocked(true, silent);
    assert_eq!(second.tick(silent), Some(Deed::Look));
    second.saw(sight(Some(1)), silent);
    assert_eq!((second.state(), second.tick(over)), (State::Keeping, Some(Deed::Look)));
    second.saw(sight(Some(1)), over);
    assert_eq!(second.tick(over + pace().turn * 2), Some(Deed::Look));
    second.saw(sight(Some(1)), over + pace().turn * 2);
    assert_eq!(second.tick(over + pace().turn * 2), Some(Deed::Take));
}

#[test]
fn a_knock_says_nothing_of_an_owner_that_was_heard_since() {
    let mut holder = keeping();
    let silent = at(LATE) + pace().knock;
    assert_eq!(holder.tick(silent), Some(Deed::Knock));
    holder.grant(LIFE, pace().lease, silent).expect("it is back");
    holder.knocked(true, silent);
    assert!(holder.hears(LIFE, silent));
    assert_eq!(holder.tick(silent), None);
    // Nor does an earlier one, once it is back.
    let mut holder = keeping();
    assert_eq!(holder.tick(silent), Some(Deed::Knock));
    holder.knocked(true, silent);
    holder.grant(NEXT, pace().lease, silent).expect("its next life has begun");
    assert_eq!(holder.tick(silent), None);
    assert!(holder.hears(NEXT, silent));
}

#[test]
fn an_owner_that_is_back_before_the_write_gets_its_lease_and_the_wait_begins_anew() {
    let mut holder = suspecting();
    holder.saw(sight(Some(0)), suspicious());
    holder.grant(LIFE, pace().lease, suspicious()).expect("nothing was written yet");
    let first_over = at(LATE) + Pace::granted(pace().lease);
    assert_eq!(holder.tick(first_over), None);
    let again = suspicious() + pace().suspect + Duration::from_millis(1);
    assert_eq!(holder.tick(again), Some(Deed::Look));
    holder.saw(sight(Some(0)), again);
    let over = suspicious() + Pace::granted(pace().lease);
    assert_eq!(holder.tick(before(over)), None);
    assert_eq!(holder.tick(over), Some(Deed::Take));
}

#[test]
fn a_holder_that_the_record_does_not_name_takes_nothing() {
    let mut holder = suspecting();
    holder.saw(sight(None), suspicious());
    assert_eq!((holder.state(), holder.tick(at(LATE * 9))), (State::Resting, None));
    holder.grant(LIFE, pace().lease, at(LATE * 9)).expect("its owner goes on");
    assert_eq!(holder.state(), State::Keeping);
}

#[test]
fn an_owner_that_has_stopped_in_good_order_is_not_missed() {
    let mut holder = keeping();
    holder.rest(LIFE);
    assert_eq!(holder.tick(at(LATE * 9)), None);
    let mut holder = suspecting();
    holder.saw(sight(Some(0)).map(|sight| Sight { is_resting: true, ..sight }), suspicious());
    assert_eq!((holder.state(), holder.tick(at(LATE * 9))), (State::Resting, None));
    // An older life says nothing about the present one.
    let mut holder = keeping();
    holder.rest(Incarnation(3));
    assert_eq!(holder.state(), State::Keeping);
}

#[test]
fn a_life_that_was_never_heard_gets_its_time() {
    let mut holder = suspecting();
    let other = Sight { incarnation: NEXT, ..sight(Some(0)).expect("one") };
    holder.saw(Some(other), suspicious());
    assert_eq!((holder.state(), holder.newest()), (State::Keeping, NEXT));
    assert_eq!(holder.grant(LIFE, pace().lease, suspicious()), Err(Refusal::NewerLife));
    assert_eq!(holder.tick(suspicious()), None);
    let again = suspicious() + pace().suspect;
    assert_eq!(holder.tick(again), Some(Deed::Look));
    holder.saw(Some(other), again);
    assert_eq!(holder.tick(at(LATE) + Pace::granted(pace().lease) * 2), Some(Deed::Take));
}

#[test]
fn a_holder_holds_back_while_another_one_hears_the_owner_and_when_it_is_not_its_turn() {
    let mut holder = suspecting();
    let heard = Sight { is_heard: true, ..sight(Some(0)).expect("one") };
    holder.saw(Some(heard), suspicious());
    assert_eq!((holder.state(), holder.tick(suspicious())), (State::Keeping, None));
    let insists = at(LATE) + pace().insist;
    assert_eq!(holder.tick(insists), Some(Deed::Look));
    holder.saw(Some(heard), insists);
    assert_eq!(holder.tick(insists), Some(Deed::Take), "it was silent for too long");
    let mut second = suspecting();
    second.saw(sight(Some(1)), suspicious());
    assert_eq!(second.tick(suspicious()), None);
    let turn = at(LATE) + pace().suspect + pace().turn * 2;
    assert_eq!(second.tick(turn), Some(Deed::Look));
    second.saw(sight(Some(1)), turn);
    assert_eq!(second.tick(turn), Some(Deed::Take));
}

#[test]
fn a_write_of_the_record_that_did_not_succeed_unseals() {
    for taken in [Taken::Lost, Taken::Open] {
        let mut holder = suspecting();
        holder.saw(sight(Some(0)), suspicious());
        let over = at(LATE) + Pace::granted(pace().lease);
        assert_eq!(holder.tick(over), Some(Deed::Take));
        holder.took(taken, over);
        holder.grant(LIFE, pace().lease, over).expect("the owner goes on");
        assert!(holder.hears(LIFE, over));
    }
}

#[test]
fn a_process_that_has_just_begun_or_stood_still_believes_no_silence() {
    let mut holder = Holder::begin(pace(), pace().cold, at(0));
    holder.meet(LIFE);
    assert_eq!(holder.tick(before(at(0) + pace().cold)), None);
    assert_eq!(holder.tick(at(0) + pace().cold), Some(Deed::Look));
    let mut holder = Holder::begin(pace(), Duration::ZERO, at(0));
    holder.meet(LIFE);
    assert_eq!(holder.tick(at(1)), Some(Deed::Look));
    holder.saw(sight(Some(0)), at(1));
    let over = at(0) + Pace::granted(LEASE_MAX);
    assert_eq!(holder.tick(before(over)), None, "an earlier process's lease");
    assert_eq!(holder.tick(over), Some(Deed::Take));
    let mut holder = keeping();
    holder.was_away(suspicious());
    assert_eq!(holder.tick(suspicious()), None);
    // Copies of nothing are suspected of nothing.
    let mut empty = Holder::begin(pace(), Duration::ZERO, at(0));
    assert_eq!(empty.tick(at(LATE)), None);
}

#[test]
fn a_users_command_seals_though_the_owner_is_well() {
    let mut holder = keeping();
    holder.want(at(LATE));
    assert_eq!(holder.grant(LIFE, pace().lease, at(LATE)), Err(Refusal::TakenOver));
    assert_eq!(holder.admit(LIFE), Err(Refusal::TakenOver));
    holder.saw(sight(Some(1)).map(|sight| Sight { is_heard: true, ..sight }), at(LATE));
    let over = at(LATE) + Pace::granted(pace().lease);
    assert_eq!(holder.tick(before(over)), None);
    assert_eq!(holder.tick(over), Some(Deed::Take));
    let mut holder = keeping();
    holder.want(at(LATE));
    holder.saw(sight(None), at(LATE));
    assert_eq!(holder.state(), State::Resting, "the record does not name it");
}

#[test]
fn a_record_that_cannot_be_read_is_looked_at_again_later() {
    let mut holder = suspecting();
    holder.saw(None, suspicious());
    assert_eq!((holder.state(), holder.tick(suspicious())), (State::Keeping, None));
    assert_eq!(holder.tick(suspicious() + pace().suspect), Some(Deed::Look));
}

#[test]
fn an_owner_that_was_heard_gets_no_more_time_than_any_other_after_a_cold_start() {
    let mut holder = Holder::begin(pace(), pace().cold, at(0));
    holder.meet(LIFE);
    assert_eq!(holder.tick(before(at(0) + pace().cold)), None, "it may come yet");
    holder.grant(LIFE, pace().lease, at(5000)).expect("it keeps copies");
    let silent = at(5001) + pace().suspect;
    assert_eq!(holder.tick(silent), Some(Deed::Look), "it has come, and is gone");
}
