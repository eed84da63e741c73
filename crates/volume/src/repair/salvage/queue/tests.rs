//! Tests of the parent module.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn ask(queue: &mut Queue, volume: &str, device: &str) -> Asked {
    queue.ask(volume, device, "damage", at(0))
}

fn next(queue: &mut Queue) -> Option<String> {
    queue.next().map(|(volume, _)| volume)
}

#[test]
fn duplicates_are_one_salvage() {
    let mut queue = Queue::new(2);
    assert_eq!(ask(&mut queue, "a", "s3"), Asked::Queued);
    assert_eq!(ask(&mut queue, "a", "s3"), Asked::Coalesced);
    assert_eq!(next(&mut queue).as_deref(), Some("a"));
    assert_eq!(ask(&mut queue, "a", "s3"), Asked::Coalesced, "also while it runs");
    assert_eq!(next(&mut queue), None);
    queue.done("a");
    assert_eq!(ask(&mut queue, "a", "s3"), Asked::Queued);
}

#[test]
fn hotter_volumes_come_first_and_equal_ones_in_turn() {
    let mut queue = Queue::new(4);
    for volume in ["d", "c", "b", "a"] {
        ask(&mut queue, volume, "s3");
    }
    assert!(queue.raise("b", at(1)));
    assert!(!queue.raise("b", at(3)), "once in three seconds");
    assert!(queue.raise("b", at(4)));
    assert!(queue.raise("a", at(4)), "each volume has its own limit");
    assert!(!queue.raise("unknown", at(4)));
    let order: Vec<_> = std::iter::from_fn(|| next(&mut queue)).collect();
    assert_eq!(order, ["b", "a", "d", "c"]);
}

#[test]
fn a_device_without_a_worker_comes_first_and_none_starves() {
    let mut queue = Queue::new(3);
    for volume in ["a1", "a2", "a3", "a4"] {
        ask(&mut queue, volume, "a");
    }
    assert_eq!(next(&mut queue).as_deref(), Some("a1"));
    ask(&mut queue, "b1", "b");
    ask(&mut queue, "b2", "b");
    queue.raise("a2", at(1));
    assert_eq!(next(&mut queue).as_deref(), Some("b1"), "however hot the other device's are");
    assert_eq!(next(&mut queue).as_deref(), Some("a2"), "then in turn");
    assert_eq!(next(&mut queue), None, "all workers work");
    queue.done("a1");
    assert_eq!(next(&mut queue).as_deref(), Some("b2"));
}

#[test]
fn what_waits_can_be_taken_out_and_what_runs_has_to_be_told() {
    let mut queue = Queue::new(1);
    ask(&mut queue, "a", "s3");
    ask(&mut queue, "b", "s3");
    next(&mut queue);
    assert_eq!(queue.cancel("a"), Cancelled::Running);
    assert_eq!(queue.cancel("b"), Cancelled::Queued);
    assert_eq!(queue.cancel("b"), Cancelled::Nothing);
    queue.done("a");
    assert!(queue.all().is_empty());
}

#[test]
fn the_queue_is_bounded() {
    let mut queue = Queue::new(1);
    for number in 0..limits::SALVAGES_MAX {
        assert_eq!(ask(&mut queue, &number.to_string(), "s3"), Asked::Queued);
    }
    assert_eq!(ask(&mut queue, "one more", "s3"), Asked::Full);
}

proptest! {
    /// After any steps: no worker has two volumes, no worker is idle while a request waits, and
    /// each request is salvaged or cancelled.
    #[test]
    fn nothing_is_lost_and_nobody_idles(
        workers in 1usize..5,
        steps in proptest::collection::vec((0u8..4, 0u8..12, 0u8..3), 0..120),
    ) {
        let mut queue = Queue::new(workers);
        let (mut asked, mut ended) = (0u32, 0u32);
        for (time, (step, volume, device)) in steps.into_iter().enumerate() {
            let (volume, device) = (format!("v{volume}"), format!("device{device}"));
            match step {
                0 | 1 => asked += u32::from(queue.ask(&volume, &device, "", at(time as u64)) == Asked::Queued),
                2 => drop(queue.raise(&volume, at(time as u64))),
                _ => match queue.cancel(&volume) {
                    Cancelled::Queued => ended += 1,
                    Cancelled::Running => {
                        queue.done(&volume);
                        ended += 1;
                    }
                    Cancelled::Nothing => {}
                },
            }
            while queue.next().is_some() {}
            let all = queue.all();
            let running: Vec<usize> = all.iter().filter_map(|(_, request)| request.worker).collect();
            prop_assert_eq!(running.iter().collect::<BTreeSet<_>>().len(), running.len());
            prop_assert!(running.len() == workers || running.len() == all.len());
            prop_assert_eq!(queue.workers.iter().filter(|works| **works).count(), running.len());
        }
        while let Some(volume) = queue.all().first().map(|(volume, _)| (*volume).to_owned()) {
            queue.done(&volume);
            ended += 1;
            while queue.next().is_some() {}
        }
        prop_assert_eq!(asked, ended);
    }
}
