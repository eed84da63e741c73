//! Tests: the table is sound, and a machine never leaves it.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::time::Duration;

#[test]
fn each_state_and_event_lead_to_one_place() {
    let mut seen = HashSet::new();
    for (from, event, _) in TABLE {
        assert!(seen.insert((*from, *event)), "{from} {event:?} twice");
    }
    assert_eq!(State::ALL.iter().collect::<HashSet<_>>().len(), State::ALL.len());
    assert_eq!(Event::ALL.iter().collect::<HashSet<_>>().len(), Event::ALL.len());
}

#[test]
fn every_state_is_reachable_and_all_but_deleted_can_be_left_for_deleted() {
    let mut reachable = HashSet::from([State::Unattached]);
    for _ in State::ALL {
        for (from, _, to) in TABLE {
            if reachable.contains(from) {
                reachable.insert(*to);
            }
        }
    }
    assert_eq!(reachable.len(), State::ALL.len());

    let mut removable = HashSet::from([State::Deleted]);
    for _ in State::ALL {
        for (from, _, to) in TABLE {
            if removable.contains(to) {
                removable.insert(*from);
            }
        }
    }
    assert_eq!(removable.len(), State::ALL.len(), "a state nobody can get out of");
    assert!(!TABLE.iter().any(|(from, ..)| *from == State::Deleted));
}

#[test]
fn every_event_is_used() {
    for event in Event::ALL {
        assert!(TABLE.iter().any(|(_, what, _)| *what == event), "{event:?}");
    }
}

#[test]
fn states_are_written_the_same_everywhere() {
    for state in State::ALL {
        assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
    }
    for event in Event::ALL {
        assert_eq!(serde_json::to_string(&event).unwrap(), format!("\"{}\"", event.as_str()));
    }
}

proptest! {
    #[test]
    fn random_events_never_leave_the_table(picks in proptest::collection::vec(0..Event::ALL.len(), 0..400)) {
        let mut machine = Machine::new("v", Moment(Duration::ZERO));
        let mut lawful = 0usize;
        for (step, pick) in picks.into_iter().enumerate() {
            let (before, event) = (machine.state(), Event::ALL[pick]);
            let now = Moment(Duration::from_millis(step as u64));
            match machine.apply(event, "test", now, Timestamp(step as u64)) {
                Ok(change) => {
                    lawful += 1;
                    prop_assert!(TABLE.contains(&(before, event, change.to)));
                    prop_assert_eq!(change.from, before);
                }
                Err(refused) => {
                    prop_assert!(!TABLE.iter().any(|(from, what, _)| (*from, *what) == (before, event)));
                    prop_assert_eq!(refused.state, before);
                    prop_assert_eq!(machine.state(), before);
                }
            }
            prop_assert_eq!(machine.history().len(), lawful.min(limits::HISTORY_MAX));
        }
        for (earlier, later) in machine.history().iter().zip(machine.history().iter().skip(1)) {
            prop_assert_eq!(earlier.to, later.from);
        }
    }
}
