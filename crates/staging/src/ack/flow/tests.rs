//! Flow control against a simulated store: closed-loop clients at full speed, a store that drains
//! in batches.

use super::*;

/// Outcome of a simulated overload.
struct Outcome {
    wait_max: Duration,
    stalls: u64,
    writes_in_last_half: u64,
    destaged_in_last_half: u64,
}

/// A burst and the store that it meets.
struct Scene {
    clients: usize,
    write_bytes: u64,
    flash_bytes: u64,
    latency: Duration,
    store_bytes_per_second: f64,
    seconds: u64,
}

/// Steps of 50 us. Each client has one write in flight; without a delay a write takes 100 us.
fn simulate(scene: &Scene) -> Outcome {
    let step = Duration::from_micros(50);
    let cost = scene.write_bytes + limits::ENTRY_BYTES;
    let batch_max = (16 << 20).min(scene.flash_bytes / limits::BATCHES_IN_SHARE_MIN);
    let mut drain = Drain::default();
    let mut ready = vec![Duration::ZERO; scene.clients];
    let (mut bytes, mut batch) = (0u64, None::<(u64, Duration, Duration)>);
    let mut outcome = Outcome {
        wait_max: Duration::ZERO,
        stalls: 0,
        writes_in_last_half: 0,
        destaged_in_last_half: 0,
    };
    let mut now = Duration::ZERO;
    let end = Duration::from_secs(scene.seconds);
    while now < end {
        now += step;
        if let Some((size, begun, until)) = batch
            && now >= until
        {
            bytes -= size;
            drain.add(size, batch_max, until - begun);
            batch = None;
            if now > end / 2 {
                outcome.destaged_in_last_half += size / cost;
            }
        }
        if batch.is_none() && bytes > 0 {
            let size = bytes.min(batch_max) / cost * cost;
            let time = scene.latency * 3
                + Duration::from_secs_f64(size as f64 / scene.store_bytes_per_second);
            batch = Some((size, now, now + time));
        }
        for client in &mut ready {
            if *client > now {
                continue;
            }
            let share = Share { bytes, total: bytes, flash_bytes: scene.flash_bytes, volumes: 1 };
            if !share.has_room(cost) {
                outcome.stalls += 1;
                continue;
            }
            bytes += cost;
            let load = Load {
                changes: bytes / cost,
                changes_max: limits::CHANGES_MAX,
                bytes,
                bytes_max: share.bytes_max(),
                eta: drain.eta(bytes, batch_max),
                eta_max: Duration::from_secs(60),
            };
            let delay = load.delay(scene.latency);
            outcome.wait_max = outcome.wait_max.max(delay);
            outcome.writes_in_last_half += u64::from(now > end / 2);
            *client = now + delay.max(Duration::from_micros(100));
        }
    }
    outcome
}

#[test]
fn thirty_two_clients_at_full_speed_settle_at_the_speed_of_the_store() {
    for (latency_ms, megabytes_per_second) in [(5, 200.0), (20, 60.0), (50, 100.0), (100, 20.0)] {
        let latency = Duration::from_millis(latency_ms);
        let scene = Scene {
            clients: 32,
            write_bytes: 4096,
            flash_bytes: 64 << 20,
            latency,
            store_bytes_per_second: megabytes_per_second * 1e6,
            seconds: 40,
        };
        let outcome = simulate(&scene);
        assert_eq!(outcome.stalls, 0, "{latency_ms} ms");
        assert!(outcome.wait_max <= latency * 4, "{latency_ms} ms: {:?}", outcome.wait_max);
        assert!(outcome.wait_max > Duration::ZERO, "there was an overload");
        let (arrived, drained) =
            (outcome.writes_in_last_half as f64, outcome.destaged_in_last_half as f64);
        assert!(
            (arrived / drained - 1.0).abs() < 0.15,
            "{latency_ms} ms: {arrived} came, {drained} went"
        );
    }
}

#[test]
fn a_burst_that_fits_is_not_delayed() {
    let load = Load {
        changes: 1000,
        changes_max: 4000,
        bytes: 10,
        bytes_max: 20,
        eta: Some(Duration::from_secs(1)),
        eta_max: Duration::from_secs(60),
    };
    assert_eq!(load.delay(Duration::from_millis(10)), Duration::ZERO);
}

#[test]
fn each_trigger_alone_delays_up_to_four_latencies() {
    let idle = Load {
        changes: 0,
        changes_max: 100,
        bytes: 0,
        bytes_max: 100,
        eta: None,
        eta_max: Duration::from_secs(100),
    };
    let latency = Duration::from_millis(10);
    for full in [
        Load { changes: 100, ..idle },
        Load { bytes: 100, ..idle },
        Load { bytes: 1000, ..idle },
        Load { eta: Some(Duration::from_secs(100)), ..idle },
    ] {
        assert_eq!(full.delay(latency), latency * 4, "{full:?}");
    }
    let mut last = Duration::ZERO;
    for bytes in 0..=100 {
        let delay = Load { bytes, ..idle }.delay(latency);
        assert!(delay >= last, "more pressure, more delay");
        last = delay;
    }
    assert_eq!(Load { bytes: 60, ..idle }.delay(latency), latency);
}

#[test]
fn a_hung_store_does_not_freeze_clients() {
    let load = Load {
        changes: 1,
        changes_max: 1,
        bytes: 1,
        bytes_max: 1,
        eta: None,
        eta_max: Duration::from_secs(1),
    };
    assert_eq!(load.delay(Duration::from_secs(3600)), limits::LATENCY_MAX * 4);
}

#[test]
fn a_volume_above_its_share_leaves_room_for_the_others() {
    let over = Share { bytes: 60, total: 96, flash_bytes: 100, volumes: 2 };
    assert!(!over.has_room(1), "above its share, and the flash is nearly full");
    assert!(Share { total: 70, ..over }.has_room(1), "above its share, but there is room");
    assert!(Share { bytes: 36, ..over }.has_room(4), "below its share");
    assert!(!Share { bytes: 36, ..over }.has_room(5), "the flash is full");
    assert!(
        Share { bytes: 0, total: 0, flash_bytes: 1, volumes: 1 }.has_room(4096),
        "never for ever"
    );
}

#[test]
fn a_small_batch_says_nothing_about_the_rate_of_large_ones() {
    let mut drain = Drain::default();
    assert_eq!(drain.eta(1, 100), None);
    drain.add(1, 1000, Duration::from_millis(50));
    assert_eq!(drain.eta(10_000, 1000), Some(Duration::from_millis(500)));
    drain.add(1000, 1000, Duration::from_millis(100));
    assert_eq!(drain.eta(10_000, 1000), Some(Duration::from_secs(1)));
}
