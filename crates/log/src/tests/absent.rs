//! A log that is not where it was is never taken for a new one.

use super::*;
use crate::Known;
use crate::Loss;
use rekindle_base::SegmentId;
use rekindle_env::Open;

/// One life in `folder`, as the node runs it: finds and opens the log.
async fn live(env: &Env, life: u64, known: Option<Known>, folder: &str) -> (Log, Opened) {
    let arena = Arena::volatile_sized(4, SEGMENT);
    let config = Config { folder: PathBuf::from(folder), ..config(8) };
    let found = Log::find(env, arena, config, true, known).await.expect("the log is found");
    found.open(Incarnation(life)).await.expect("the log opens")
}

/// Drops the log, and lets its background tasks end.
async fn end(env: &Env, log: Log) {
    drop(log);
    env.sleep(Duration::from_millis(100)).await;
}

async fn write(log: &Log, serials: std::ops::RangeInclusive<u64>) {
    for serial in serials {
        append(log, volume(1), serial, 1000).await.unwrap();
    }
    log.commit(Position(u64::MAX)).await.unwrap();
}

async fn losses(log: &Log) -> Vec<Loss> {
    match log.unfinished(volume(1)).await {
        Err(Error::Lost { losses, .. }) => losses,
        other => panic!("a loss is expected: {:?}", other.map(|list| list.len())),
    }
}

#[test]
fn a_log_whose_folder_is_gone_is_lost_and_not_new() {
    let world = world(1);
    let env = world.env();
    world.block_on(async {
        let (log, opened) = live(&env, 1, None, FOLDER).await;
        assert!(!opened.is_absent && opened.damage.is_empty(), "a first start: {opened:?}");
        let known = log.known();
        assert_eq!(
            known,
            Known { newest: SegmentId(1), incarnation: Incarnation(1), stand_in: None }
        );
        write(&log, 1..=100).await;
        end(&env, log).await;
        let (log, opened) = live(&env, 2, Some(known), "/elsewhere").await;
        assert!(opened.is_absent);
        for word in ["/elsewhere", "segment 1 of start 1", "mount"] {
            assert!(opened.damage[0].contains(word), "{word}: {:?}", opened.damage);
        }
        let found = losses(&log).await;
        assert_eq!((found[0].segment, found[0].before), (SegmentId(1), None));
        // The stand-in's head has another number, so the loss of that head would be another loss.
        assert_eq!(log.known().newest, SegmentId(2));
        end(&env, log).await;
        // The next start reports the same loss again.
        let missed = Known { stand_in: Some(Incarnation(2)), ..known };
        let (log, opened) = live(&env, 3, Some(missed), "/elsewhere").await;
        assert!(opened.is_absent && opened.damage[0].contains("segment 1 of start 1"));
        assert!(losses(&log).await.iter().all(|loss| loss.segment == SegmentId(1)));
        end(&env, log).await;
        // The folder is mounted again, before a stand-in has acknowledged anything.
        let (log, opened) = live(&env, 4, Some(missed), FOLDER).await;
        assert!(!opened.is_absent && opened.damage.is_empty(), "{opened:?}");
        assert_eq!(recovered(&log, volume(1)).await, (1..=100).collect::<Vec<_>>());
        end(&env, log).await;
        // After a stand-in has acknowledged changes, the old log is another log, although it has
        // got further.
        let gone_on = Known { newest: SegmentId(3), incarnation: Incarnation(3), stand_in: None };
        let (log, opened) = live(&env, 5, Some(gone_on), "/elsewhere").await;
        assert!(!opened.is_absent && losses(&log).await.len() == 1, "still lost: {opened:?}");
        let gone_on = log.known();
        end(&env, log).await;
        let (log, opened) = live(&env, 6, Some(gone_on), FOLDER).await;
        assert!(opened.is_absent && opened.damage[0].contains("start 4"), "{opened:?}");
        assert!(losses(&log).await.iter().all(|loss| loss.segment >= gone_on.newest));
    });
}

#[test]
fn a_head_that_lost_its_beginning_is_lost_and_kept_as_evidence() {
    for cut in [true, false] {
        let world = world(2);
        let env = world.env();
        world.block_on(async {
            let (log, _) = live(&env, 1, None, FOLDER).await;
            let known = log.known();
            write(&log, 1..=5).await;
            end(&env, log).await;
            let path = Path::new("/flash/00000001.seg");
            let file = env.disk().open(path, Open::Write).await.unwrap();
            if cut {
                file.set_length(0).await.unwrap();
            } else {
                file.write_durable(&[0; 4096], 0).await.unwrap();
            }
            let before = world.peek(path);
            let (log, opened) = live(&env, 2, Some(known), FOLDER).await;
            assert!(opened.is_absent, "{opened:?}");
            assert!(losses(&log).await[0].reason.contains("mount"));
            write(&log, 6..=100).await;
            assert_eq!(world.peek(path), before, "evidence");
        });
    }
}

#[test]
fn what_is_known_never_accuses_a_log_that_is_whole() {
    for seed in 0..60 {
        let world = world(seed);
        let mut known = None;
        let mut last = 0;
        for life in 1..6 {
            let env = world.env();
            (known, last) = world.block_on(async {
                let arena = Arena::open_sized(&env, Path::new(ARENA), NODE, 4, SEGMENT).unwrap();
                let found = Log::find(&env, arena, config(20), true, known).await.unwrap();
                let (log, opened) = found.open(Incarnation(life)).await.unwrap();
                assert!(!opened.is_absent && opened.damage.is_empty(), "{seed} {life} {opened:?}");
                let noted = Some(log.known());
                let count = env.random_u64() % 60;
                if count > 0 {
                    write(&log, last + 1..=last + count).await;
                }
                if env.random_u64().is_multiple_of(2) {
                    log.release(volume(1), Serial(last + count));
                }
                match env.random_u64() % 3 {
                    0 => log.close().await.unwrap(),
                    1 => log.commit(Position(u64::MAX)).await.unwrap(),
                    _ => {}
                }
                (noted, last + count)
            });
            if world.env().random_u64().is_multiple_of(2) {
                world.crash_process();
            } else {
                world.cut_power();
            }
        }
    }
}

#[test]
fn a_log_that_is_held_takes_nothing_until_what_is_known_is_written_down() {
    let world = world(3);
    let env = world.env();
    world.block_on(async {
        let (log, _) = live(&env, 1, None, FOLDER).await;
        log.hold();
        assert!(log.append(&[change(volume(1), 1, b"x")]).is_err());
        log.wanted().await;
        let writer = log.clone();
        env.spawn("writer", async move { write(&writer, 1..=3).await });
        assert!(env.timeout(Duration::from_secs(5), log.wanted()).await.is_ok(), "it asks");
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(log.usage().appended_bytes, 0, "nothing went in");
        log.go_on();
        env.sleep(Duration::from_secs(1)).await;
        assert!(log.usage().appended_bytes > 3000);
    });
}

#[test]
fn a_head_whose_file_is_taken_away_takes_no_more() {
    for replaced in [false, true] {
        let world = world(4);
        let env = world.env();
        world.block_on(async {
            let (log, _) = live(&env, 1, None, FOLDER).await;
            write(&log, 1..=3).await;
            log.look().await.expect("all is well");
            let path = Path::new("/flash/00000001.seg");
            env.disk().remove(path).await.unwrap();
            if replaced {
                env.disk().open(path, Open::Create).await.unwrap();
            }
            let error = log.look().await.expect_err("it is gone").to_string();
            assert!(error.contains("00000001.seg") && error.contains("mount"), "{error}");
            assert!(log.append(&[change(volume(1), 4, b"x")]).is_err());
            assert!(log.failure().is_some());
        });
    }
}

#[test]
fn a_head_that_is_misread_once_is_not_taken_away() {
    let world = world(6);
    let env = world.env();
    world.block_on(async {
        let (log, _) = live(&env, 1, None, FOLDER).await;
        write(&log, 1..=3).await;
        world.change_faults(|faults| faults.read_flip = 0.2);
        for _ in 0..20 {
            log.look().await.expect("its file is where it was");
        }
        assert!(world.mishaps().read_flips > 0 && log.failure().is_none());
    });
}

#[test]
fn a_log_knows_whether_anybody_needs_anything_of_it() {
    let world = world(5);
    let env = world.env();
    world.block_on(async {
        let (log, _) = live(&env, 1, None, FOLDER).await;
        assert!(log.holds_nothing());
        write(&log, 1..=100).await;
        assert!(!log.holds_nothing());
        log.release(volume(1), Serial(100));
        log.commit(Position(u64::MAX)).await.unwrap();
        assert!(log.holds_nothing());
        write(&log, 101..=102).await;
        assert!(!log.holds_nothing());
        end(&env, log).await;
        let (log, _) = live(&env, 2, None, FOLDER).await;
        assert!(!log.holds_nothing(), "nobody has looked yet");
    });
}
