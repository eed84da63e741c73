//! Decisions of the collector.

use super::*;

const IDLE: Duration = Duration::from_secs(7200);

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn idle_since(seconds: u64) -> Facts {
    Facts { clients: 0, idle_since: at(seconds), pinned: false, owes: false }
}

#[test]
fn only_what_is_idle_for_long_and_free_to_go_is_due() {
    let now = at(10_000);
    let idle = idle_since(1000);
    assert_eq!(decide(&idle, now, IDLE), Decision::Due);
    assert_eq!(decide(&idle_since(2801), now, IDLE), Decision::NotYet);
    assert_eq!(decide(&idle_since(2800), now, IDLE), Decision::Due);
    assert_eq!(decide(&Facts { clients: 1, ..idle }, now, IDLE), Decision::InUse);
    assert_eq!(decide(&Facts { pinned: true, ..idle }, now, IDLE), Decision::Pinned);
    assert_eq!(decide(&Facts { owes: true, ..idle }, now, IDLE), Decision::Owes);
}

#[test]
fn the_older_the_less_often_it_is_looked_at() {
    let mut aging = Aging::default();
    let held = Facts { clients: 1, ..idle_since(0) };
    let mut looks = Vec::new();
    let mut now = at(0);
    for _ in 0..4 {
        aging.look(&held, now, IDLE);
        looks.push(aging.next_look.since(now).as_secs());
        now = aging.next_look;
    }
    assert_eq!((looks, aging.generation), (vec![900, 1800, 3600, 3600], Generation::Old));
    // Without a client it grows younger, and is looked at exactly when it is due.
    let free = Facts { clients: 0, idle_since: now, ..held };
    aging.look(&free, now + Duration::from_secs(5), IDLE);
    assert_eq!((aging.generation, aging.next_look), (Generation::Middle, now + IDLE));
    assert_eq!(aging.look(&free, now + IDLE, IDLE), Decision::Due);
}

#[test]
fn a_pinned_volume_is_hardly_looked_at_and_never_goes() {
    let mut aging = Aging::default();
    let pinned = Facts { pinned: true, ..idle_since(0) };
    let (mut now, mut looks) = (at(7200), 0);
    while now < at(30 * 24 * 3600) {
        assert_eq!(aging.look(&pinned, now, IDLE), Decision::Pinned);
        (now, looks) = (aging.next_look, looks + 1);
    }
    assert!(looks < 800, "{looks} looks in a month");
}

/// Runs passes until no volume is due. Returns how many each took.
fn drain(mut due: u64, settings: &Settings) -> Vec<u64> {
    let (mut pace, mut taken) = (Pace::default(), Vec::new());
    while due > 0 {
        taken.push(pace.quota(due, settings));
        due -= taken.last().copied().unwrap_or(due);
    }
    assert_eq!(pace.quota(0, settings), 0);
    taken
}

#[test]
fn the_defaults_drain_a_hundred_thousand_idle_volumes_in_an_hour() {
    let settings = Settings::default();
    let taken = drain(100_000, &settings);
    let time = settings.interval * u32::try_from(taken.len()).unwrap();
    assert!(time <= Duration::from_secs(3600), "{time:?}");
    assert!(taken.iter().all(|&count| count <= 2000), "in portions: {taken:?}");
    // A few go at once, in one batch.
    assert_eq!(drain(settings.batch, &settings), [settings.batch]);
}

#[test]
fn a_small_batch_is_kept_to_while_that_is_enough() {
    let settings = Settings { batch: 8, ..Settings::default() };
    let taken = drain(100, &settings);
    assert!(taken.iter().all(|&count| count <= 8), "{taken:?}");
}

#[test]
fn settings_that_make_no_sense_say_what_does() {
    let good = Settings::default();
    assert_eq!(good.check(), Ok(()));
    assert_eq!(Settings { idle: None, ..good.clone() }.check(), Ok(()));
    for (bad, word) in [
        (Settings { idle: Some(Duration::ZERO), ..good.clone() }, "idle"),
        (Settings { interval: Duration::ZERO, ..good.clone() }, "interval"),
        (Settings { batch: 0, ..good.clone() }, "batch"),
    ] {
        assert!(bad.check().unwrap_err().contains(word));
    }
}

#[test]
fn decisions_are_written_the_same_everywhere() {
    for decision in Decision::ALL {
        let text = serde_json::to_string(&decision).unwrap();
        assert_eq!(text, format!("\"{}\"", decision.as_str()));
    }
}
