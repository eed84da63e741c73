//! The folder backend: all rules, races between stores and between processes, and faults of
//! folders.

mod conformance;

use bytes::Bytes;
use rekindle_datastore::backend::dir::Dir;
use rekindle_datastore::layer::fault::Plan;
use rekindle_datastore::record::Writer;
use rekindle_datastore::{Error, Room, Store, identity, layer, open, probe};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const FOLDER_OF_THE_RACE: &str = "REKINDLE_TEST_RACE_FOLDER";
const COUNTS: u64 = 40;

fn run(test: impl AsyncFnOnce(&rekindle_env::Env)) {
    let (env, runtime) = rekindle_env::real::env().expect("this machine has threads");
    runtime.block_on(test(&env));
    runtime.shut_down(Duration::from_secs(1));
}

#[test]
fn a_folder_keeps_all_rules() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let store =
            open(env, &format!("file://{}/deep/store", folder.path().display())).await.unwrap();
        conformance::run(env, &store).await.unwrap();
        assert_eq!(store.list("", None).await.unwrap(), []);
        let left: Vec<_> =
            std::fs::read_dir(folder.path().join("deep/store")).unwrap().flatten().collect();
        assert_eq!(left.len(), 3, "only .tmp, .locks and .reserve stay: {left:?}");
        assert_eq!(std::fs::read_dir(folder.path().join("deep/store/.tmp")).unwrap().count(), 0);
    });
}

#[test]
fn a_folder_says_through_all_layers_how_much_more_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let bare = Dir::open(env, folder.path()).await.unwrap();
        let store = layer::usual(env, bare, Plan::default()).store;
        let disk = rustix::fs::statvfs(folder.path()).unwrap();
        let most = disk.f_blocks * disk.f_frsize;
        let room = store.room().await.unwrap();
        assert!(matches!(room, Room::Bytes(bytes) if bytes > 0 && bytes < most), "{room:?}");
    });
}

#[test]
fn the_folders_of_a_store_prove_themselves() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let store = Dir::open(env, folder.path()).await.unwrap();
        conformance::markers(env, &store).await.unwrap();
    });
}

/// The folder acts as a mount of its own that is away: it is empty, and back a little later.
#[test]
#[expect(clippy::disallowed_methods, reason = "does what an administrator does")]
fn a_folder_within_the_store_that_is_away_is_unavailable_and_nothing_is_written_there() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let bare = Dir::open(env, folder.path()).await.unwrap();
        let store = layer::usual(env, bare.clone(), Plan::default()).store;
        let writer = Writer::new(env.clone(), store, rekindle_base::NodeId([1; 16]));
        identity::open_or_create(&writer).await.unwrap();
        let store = layer::marks::wrap(env, bare).0;
        store.put("packs/data/a", Bytes::from_static(b"1")).await.unwrap();
        let (place, away) = (folder.path().join("packs/data"), folder.path().join("away"));
        std::fs::rename(&place, &away).unwrap();
        for again in [false, true] {
            if again {
                std::fs::create_dir(&place).unwrap();
            }
            for outcome in [
                store.get_range("packs/data/a", 0..1).await.map(drop),
                store.get("packs/data/a").await.map(drop),
                store.list("packs/data/", None).await.map(drop),
            ] {
                assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
            }
            env.sleep(Duration::from_millis(1100)).await;
            let put = store.put("packs/data/b", Bytes::new()).await;
            assert!(matches!(&put, Err(Error::Unavailable(text)) if text.contains("mounted")));
            assert!(!place.join("b").exists());
        }
        std::fs::remove_dir(&place).unwrap();
        std::fs::rename(&away, &place).unwrap();
        assert_eq!(store.get("packs/data/a").await.unwrap().0, "1");
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "measures")]
fn probing_a_folder_is_quick() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let store = Dir::open(env, folder.path()).await.unwrap();
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            probe(env, &store).await.unwrap();
            best = best.min(began.elapsed());
        }
        println!("probe of a folder: {best:?}");
        assert!(best < Duration::from_millis(500), "{best:?}");
        assert_eq!(store.list("", None).await.unwrap(), []);
    });
}

async fn count(store: &Store, times: u64) {
    let mut counted = 0;
    while counted < times {
        let (data, version) = store.get("volumes/counter").await.expect("the counter is there");
        let number = std::str::from_utf8(&data)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
            .expect("it is a number");
        match store
            .replace("volumes/counter", Bytes::from((number + 1).to_string()), &version)
            .await
        {
            Ok(_) => counted += 1,
            Err(Error::Conflict(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn two_stores_on_one_folder_lose_no_update() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let one = Dir::open(env, folder.path()).await.unwrap();
        let two = Dir::open(env, folder.path()).await.unwrap();
        one.create("volumes/counter", Bytes::from_static(b"0")).await.unwrap();
        let all = [&one, &two, &one, &two].map(|store| count(store, COUNTS));
        futures_util::future::join_all(all).await;
        assert_eq!(two.get("volumes/counter").await.unwrap().0, (4 * COUNTS).to_string());
    });
}

#[test]
fn two_processes_lose_no_update() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let store = Dir::open(env, folder.path()).await.unwrap();
        store.create("volumes/counter", Bytes::from_static(b"0")).await.unwrap();
        let children: Vec<_> = (0..3)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "a_process_of_the_race", "--nocapture"])
                    .env(FOLDER_OF_THE_RACE, folder.path())
                    .spawn()
                    .unwrap()
            })
            .collect();
        count(&store, COUNTS).await;
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(store.get("volumes/counter").await.unwrap().0, (4 * COUNTS).to_string());
    });
}

/// The process that `two_processes_lose_no_update` starts; not a test of its own.
#[test]
fn a_process_of_the_race() {
    let Some(folder) = std::env::var_os(FOLDER_OF_THE_RACE) else { return };
    run(async |env| {
        let store = Dir::open(env, Path::new(&folder)).await.unwrap();
        count(&store, COUNTS).await;
    });
}

#[test]
fn what_dead_writers_left_is_removed_when_it_is_old() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        Dir::open(env, folder.path()).await.unwrap();
        let old = folder.path().join(".tmp/old");
        let young = folder.path().join(".tmp/young");
        for path in [&old, &young] {
            tempfile::NamedTempFile::new()
                .unwrap()
                .persist(path)
                .or_else(|error| {
                    std::fs::copy(error.file.path(), path).map(|_| error.file.into_file())
                })
                .unwrap();
        }
        let touched = Command::new("touch").args(["-d", "2 hours ago"]).arg(&old).status().unwrap();
        assert!(touched.success());
        Dir::open(env, folder.path()).await.unwrap();
        assert!(!old.exists() && young.exists());
    });
}

#[test]
fn an_unmounted_folder_is_not_an_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    let (place, away) = (folder.path().join("store"), folder.path().join("away"));
    run(async |env| {
        let store = Dir::open(env, &place).await.unwrap();
        store.put("nodes/a", Bytes::new()).await.unwrap();
        let moved = Command::new("mv").arg(&place).arg(&away).status().unwrap();
        assert!(moved.success());
        for again in [false, true] {
            if again {
                // The bare mount point.
                std::fs::create_dir(&place).unwrap();
            }
            let outcomes = [
                store.get("nodes/a").await.map(drop),
                store.get_range("packs/data/a", 0..1).await.map(drop),
                store.list("nodes/", None).await.map(drop),
                store.put("nodes/b", Bytes::new()).await,
                store.create("nodes/b", Bytes::new()).await.map(drop),
                store.delete("nodes/a").await,
            ];
            for outcome in outcomes {
                assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
            }
        }
    });
}

#[test]
fn errors_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::copy("/proc/self/comm", &file).unwrap();
    run(async |env| {
        let Err(error) = Dir::open(env, &file).await else { panic!("a file is no store") };
        assert!(matches!(&error, Error::Refused(text) if text.contains("not a folder")), "{error}");
        let store = Dir::open(env, &folder.path().join("store")).await.unwrap();
        store.put("a", Bytes::new()).await.unwrap();
        store.put("b/c", Bytes::new()).await.unwrap();
        for clash in ["a/b", "b"] {
            let error = store.put(clash, Bytes::new()).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{clash}: {error:?}");
            let error = store.create(clash, Bytes::new()).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{clash}: {error:?}");
            assert!(matches!(store.get(clash).await, Err(Error::NotFound(_))), "{clash}");
        }
    });
}

#[test]
fn a_folder_without_rights_is_refused() {
    // Root may write anywhere, so the test starts itself again as a process without privileges.
    if let Some(closed) = std::env::var_os("REKINDLE_TEST_CLOSED_FOLDER") {
        run(async |env| match Dir::open(env, Path::new(&closed)).await {
            Err(error) => {
                assert!(
                    matches!(&error, Error::Refused(text) if text.contains("right to write")),
                    "{error}"
                );
            }
            Ok(_) => panic!("the folder is open"),
        });
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let status = Command::new("unshare")
        .arg("--user")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_folder_without_rights_is_refused", "--nocapture"])
        .env("REKINDLE_TEST_CLOSED_FOLDER", folder.path())
        .status();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    judge(status, "privileges cannot be dropped here");
}

#[test]
fn a_full_file_system_is_said_to_be_full() {
    // The test needs a small file system. Any user can have a tmpfs in a user namespace of its own.
    let inside = std::env::var_os("REKINDLE_TEST_SMALL_FOLDER");
    let Some(small) = inside else {
        let script = "mount -t tmpfs -o size=1m none \"$REKINDLE_TEST_SMALL_FOLDER\" || exit 42; \
            exec \"$0\" --exact a_full_file_system_is_said_to_be_full --nocapture";
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .env("REKINDLE_TEST_SMALL_FOLDER", folder.path())
            .status();
        judge(status, "no small file system can be mounted here");
        return;
    };
    run(async |env| {
        let store = Dir::open(env, Path::new(&small)).await.unwrap();
        let error = store.put("packs/data/a", Bytes::from(vec![7; 2 << 20])).await.unwrap_err();
        assert!(matches!(&error, Error::Full(text) if text.contains("free space")), "{error}");
        // The half-written file is gone, so there is room again.
        store.put("packs/data/a", Bytes::from(vec![7; 512 << 10])).await.unwrap();
        println!("full is full");
    });
}

#[test]
fn in_a_full_store_records_can_still_be_written_and_anything_removed() {
    let inside = std::env::var_os("REKINDLE_TEST_SMALL_STORE");
    let Some(small) = inside else {
        let script = "mount -t tmpfs -o size=16m none \"$REKINDLE_TEST_SMALL_STORE\" || exit 42; \
            exec \"$0\" --exact in_a_full_store_records_can_still_be_written_and_anything_removed --nocapture";
        let folder = tempfile::tempdir().unwrap();
        let status = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .env("REKINDLE_TEST_SMALL_STORE", folder.path())
            .status();
        judge(status, "no small file system can be mounted here");
        return;
    };
    run(async |env| {
        let store = Dir::open(env, Path::new(&small)).await.unwrap();
        store.create("volumes/a", Bytes::from_static(b"live")).await.unwrap();
        let mut packs = 0;
        let full = loop {
            let pack = Bytes::from(vec![7; 1 << 20]);
            match store.put(&format!("packs/data/{packs}"), pack).await {
                Ok(()) => packs += 1,
                Err(error) => break error,
            }
        };
        assert!(packs > 4 && matches!(full, Error::Full(_)), "{packs}: {full}");
        // Fills the file system to the last byte.
        let mut rest = 0;
        while store.put(&format!("packs/meta/{rest}"), Bytes::from(vec![7; 4096])).await.is_ok() {
            rest += 1;
        }
        let (_, version) = store.get("volumes/a").await.unwrap();
        store.replace("volumes/a", Bytes::from_static(b"deleted"), &version).await.unwrap();
        store.put("moved/a", Bytes::from(vec![7; 512 << 10])).await.unwrap();
        store.create("sweep/condemned", Bytes::from(vec![7; 512 << 10])).await.unwrap();
        // A batch that is tried again does not use up the reserve that was given up for removals.
        let again = store.put("packs/data/again", Bytes::from(vec![7; 4096])).await.unwrap_err();
        assert!(matches!(&again, Error::Full(text) if text.contains("for removals")), "{again}");
        for pack in 0..packs {
            store.delete(&format!("packs/data/{pack}")).await.unwrap();
        }
        let reserve = Path::new(&small).join(".reserve").metadata().unwrap();
        assert_eq!(reserve.len(), 4 << 20, "it is taken again");
        store.put("packs/data/again", Bytes::from(vec![7; 1 << 20])).await.unwrap();
    });
}

/// Judges a test that started itself again in a namespace of its own. Where a namespace is not
/// possible the test is skipped, but not in CI.
fn judge(status: std::io::Result<std::process::ExitStatus>, missing: &str) {
    match status.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(101)) => panic!("the test failed inside the namespace"),
        other => {
            assert!(std::env::var_os("CI").is_none(), "{missing} ({other:?}), and CI is set");
            println!("SKIPPED: {missing} ({other:?})");
        }
    }
}

#[test]
fn a_pack_that_another_process_deletes_or_rewrites_is_not_read_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let one = Dir::open(env, folder.path()).await.unwrap();
        let two = Dir::open(env, folder.path()).await.unwrap();
        for round in 0..200_u32 {
            let key = format!("packs/data/{:02}", round % 100);
            two.put(&key, Bytes::from(round.to_string())).await.unwrap();
            assert_eq!(one.get_range(&key, 0..9).await.unwrap(), round.to_string());
            assert_eq!(one.get_range(&key, 0..9).await.unwrap(), round.to_string());
        }
        two.delete("packs/data/99").await.unwrap();
        assert!(matches!(one.get_range("packs/data/99", 0..9).await, Err(Error::NotFound(_))));
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "measures")]
fn reading_a_chunk_is_cheap() {
    let folder = tempfile::tempdir().unwrap();
    run(async |env| {
        let store = Dir::open(env, folder.path()).await.unwrap();
        store.put("packs/data/a", Bytes::from(vec![7; 16 << 20])).await.unwrap();
        let began = Instant::now();
        for chunk in 0..1000_u64 {
            let at = (chunk * 7919 % 1000) * 16_384;
            assert_eq!(
                store.get_range("packs/data/a", at..at + 16_384).await.unwrap().len(),
                16_384
            );
        }
        println!("16 KiB of a pack: {:?} each", began.elapsed() / 1000);
    });
}
