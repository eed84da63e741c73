//! Each sentence of the health, and when it is said.

use super::*;

fn one(facts: Facts) -> (Health, Trouble) {
    let health = judge(&facts);
    assert_eq!(health.troubles.len(), 1, "{health:?}");
    let trouble = health.troubles[0].clone();
    (health, trouble)
}

#[test]
fn a_node_without_a_fault_is_well() {
    let health = judge(&Facts { flash: (1, 2), ..Facts::default() });
    assert_eq!((health.ok, health.state.as_str()), (true, "well"));
    assert!(health.reasons.is_empty());
}

#[test]
fn a_folder_of_the_store_that_is_another_one_is_told() {
    let folders_unproven = vec!["'names/' in file:///s is another folder".to_owned()];
    let health = judge(&Facts { folders_unproven, ..Facts::default() });
    assert_eq!((health.ok, health.state.as_str()), (false, "failing"));
    assert_eq!(health.reasons, ["a folder of the store: 'names/' in file:///s is another folder"]);
}

#[test]
fn a_store_that_is_away_is_never_well_and_says_what_still_works() {
    let (health, trouble) = one(Facts {
        store_away: Some((Duration::from_secs(25), "connection refused".into())),
        flash: (200 << 20, 4 << 30),
        backlog: 200 << 20,
        ..Facts::default()
    });
    assert_eq!((health.ok, health.state.as_str()), (true, "degraded"));
    assert_eq!((trouble.what.as_str(), trouble.since_ms), ("store-away", Some(25_000)));
    for word in ["25 s", "connection refused", "200 MiB wait safely on flash", "3.8 GiB"] {
        assert!(trouble.message.contains(word), "{word}: {}", trouble.message);
    }
}

#[test]
fn a_log_that_has_failed_is_failing() {
    let (health, trouble) = one(Facts { log_failed: Some("EIO".into()), ..Facts::default() });
    assert_eq!((health.ok, health.state.as_str()), (false, "failing"));
    assert!(trouble.message.contains("EIO") && trouble.what == "log-failed");
}

#[test]
fn a_full_log_and_a_full_disk_are_said() {
    let (health, trouble) =
        one(Facts { flash: (8 << 20, 8 << 20), backlog: 1, ..Facts::default() });
    assert!(!health.ok && trouble.message.contains("the log is full (8 MiB)"), "{trouble:?}");
    let (health, trouble) = one(Facts { disk_free: Some(4096), ..Facts::default() });
    assert!(health.ok && trouble.message.contains("4 KiB left"), "{trouble:?}");
}

#[test]
fn volumes_that_wait_come_before_volumes_that_worry() {
    let late = VolumeFacts { name: "a".into(), late: Some(400), ..VolumeFacts::default() };
    let stalled = VolumeFacts {
        name: "b".into(),
        stalled: Some("no room".into()),
        destage_error: Some("away".into()),
        ..VolumeFacts::default()
    };
    let health = judge(&Facts { volumes: vec![late, stalled], ..Facts::default() });
    let whats: Vec<_> = health.troubles.iter().map(|trouble| trouble.what.as_str()).collect();
    assert_eq!(whats, ["volume-stalled", "volume-late", "volume-not-destaged"]);
    assert!(!health.ok && health.reasons[0].contains("'b': writes wait: no room"));
}

#[test]
fn what_cannot_be_read_is_never_well_whoever_decides_about_it() {
    let waits = VolumeFacts {
        name: "a".into(),
        unreadable: Some((Duration::from_secs(9), "part of it cannot be read: 7 bytes".into())),
        ..VolumeFacts::default()
    };
    let (health, trouble) = one(Facts { volumes: vec![waits], ..Facts::default() });
    assert_eq!((health.state.as_str(), trouble.what.as_str()), ("degraded", "volume-unreadable"));
    assert!(trouble.message.contains("'a': part of it cannot be read"), "{trouble:?}");
    assert_eq!(trouble.since_ms, Some(9000));
    let lost = VolumeFacts { name: "b".into(), lost_bytes: 4 << 20, ..VolumeFacts::default() };
    let (health, trouble) = one(Facts { volumes: vec![lost], ..Facts::default() });
    assert_eq!((health.state.as_str(), trouble.what.as_str()), ("degraded", "volume-lost-bytes"));
    assert!(trouble.message.contains("4 MiB of it were given up"), "{trouble:?}");
}

#[test]
fn a_client_that_waits_for_the_store_is_failing_and_nothing_is_called_safe() {
    let waits = VolumeFacts {
        name: "a".into(),
        clients_wait: Some((Duration::from_secs(20), "a write is not in the store".into())),
        ..VolumeFacts::default()
    };
    let away = Some((Duration::from_secs(21), "no answer".into()));
    let facts = Facts { volumes: vec![waits], store_away: away, ..Facts::default() };
    let health = judge(&facts);
    assert_eq!((health.ok, health.state.as_str()), (false, "failing"));
    let (first, second) = (&health.troubles[0], &health.troubles[1]);
    assert_eq!((first.what.as_str(), first.clients_wait), ("clients-wait", true));
    assert!(first.message.contains("'a': clients wait for 20 s"), "{first:?}");
    assert!(second.message.contains("clients wait for it, other writes go on"), "{second:?}");
    assert!(!second.message.contains("safely"), "{second:?}");
}

#[test]
fn a_sweep_that_failed_is_said_until_one_succeeds() {
    let failed = Some((Duration::from_secs(60), "the vault of a volume is damaged".into()));
    let (health, trouble) = one(Facts { sweep_failed: failed, ..Facts::default() });
    assert_eq!((health.state.as_str(), trouble.what.as_str()), ("degraded", "sweep-failed"));
    assert!(trouble.message.contains("60 s ago") && trouble.message.contains("damaged"));

    let (env, runtime) = rekindle_env::real::env().expect("an environment");
    let jobs = Jobs::new(env.clone());
    runtime.block_on(async {
        let sweep =
            async |outcome: Result<serde_json::Value, rekindle_front::http::api::ApiError>| {
                let job = jobs.begin("sweep", "the store", "packs", |_| async { outcome });
                while jobs.find(&job.id).expect("kept").state == JobState::Running {
                    env.sleep(Duration::from_millis(1)).await;
                }
                sweep_failed(&jobs, env.wall_clock().0).map(|(_, why)| why)
            };
        assert_eq!(sweep_failed(&jobs, 0), None, "none has ended");
        let error = rekindle_front::http::api::ApiError::new(
            rekindle_base::Kind::Damaged,
            "a vault is damaged",
        );
        assert_eq!(sweep(Err(error)).await.as_deref(), Some("a vault is damaged"));
        assert_eq!(sweep(Ok(serde_json::Value::Null)).await, None);
    });
}

#[test]
fn a_volume_that_keeps_room_of_the_log_is_named_with_the_way_out() {
    let pinned = vec![("volume 'vm1'".to_owned(), "its machine is lost".to_owned())];
    let (health, trouble) = one(Facts { pinned, ..Facts::default() });
    assert_eq!((health.state.as_str(), trouble.what.as_str()), ("degraded", "volume-keeps-log"));
    for word in ["'vm1' keeps", "its machine is lost"] {
        assert!(trouble.message.contains(word), "{word}: {trouble:?}");
    }
}

#[test]
fn volumes_out_of_service_and_damage_are_said() {
    let facts = Facts {
        failed: 2,
        salvaging: 1,
        stuck: vec!["volume 'c' is attaching for 12 s".into()],
        damage: vec!["segment 7: a torn tail".into()],
        warm_damaged: true,
        ..Facts::default()
    };
    let health = judge(&facts);
    let text = health.reasons.join("; ");
    for word in [
        "2 volume(s) cannot",
        "1 volume(s) are out",
        "'c' is attaching",
        "segment 7",
        "warm memory",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!((health.ok, health.troubles.len()), (false, 5));
}

#[test]
fn losses_are_told_at_each_start_until_no_volume_misses_anything() {
    let (health, trouble) = one(Facts { losses: true, ..Facts::default() });
    assert_eq!((health.state.as_str(), trouble.what.as_str()), ("degraded", "log-losses"));
    assert!(trouble.message.contains("`rekindle verify` names"), "{trouble:?}");
    // The start that found the damage says so itself.
    let damage = vec!["segment 7: a torn tail".into()];
    let (_, trouble) = one(Facts { losses: true, damage, ..Facts::default() });
    assert_eq!(trouble.what, "log-damage");
}

#[test]
fn warm_memory_without_its_file_is_a_note_and_no_illness() {
    let path = Some("/dev/shm/rekindle-1.warm".to_owned());
    let health = judge(&Facts { warm_removed: path, flash: (1, 2), ..Facts::default() });
    assert_eq!((health.ok, health.state.as_str(), health.notes.len()), (true, "well", 1));
    assert!(health.reasons.is_empty() && health.troubles.is_empty());
    for word in ["/dev/shm/rekindle-1.warm", "next start is cold", "--ack memory", "RemoveIPC"] {
        assert!(health.notes[0].contains(word), "{word}: {}", health.notes[0]);
    }
    assert!(judge(&Facts::default()).notes.is_empty());
}

#[test]
fn a_node_that_starts_is_not_ok_and_says_so() {
    let health = away("starting", "the daemon is starting");
    assert_eq!(
        (health.ok, health.reasons.as_slice()),
        (false, &["the daemon is starting".to_owned()][..])
    );
}
