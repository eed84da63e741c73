//! Bad input: each is refused with one message that says what to do, and the right exit code.

use crate::{Daemon, finish, rekindle, run, told};

/// Runs `up` in a fresh folder; it must refuse.
fn up(more: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("d");
    let (code, _, error) = told(&finish(
        rekindle()
            .arg("up")
            .arg("--dir")
            .arg(&dir)
            .args(["--nbd", "off", "--http", "off"])
            .args(more),
    ));
    (code, error)
}

#[test]
fn volumes_that_cannot_be() {
    for (name, size, word) in [
        ("vm1", "0", "0 bytes"),
        ("vm1", "513B", "1024"),
        ("vm1", "20", "Write 20G"),
        ("vm1", "20GB", "20GiB"),
        ("vm1", "18446744073709551615", "1024 TiB"),
        ("vm1", "9000T", "1024 TiB"),
        ("vm1", "1.5", "20G"),
        ("vm1", "-1", "size"),
        ("vm1", "-5G", "'-5G' is not a size"),
        ("a/b", "1G", "must not contain"),
        ("..", "1G", "must not begin"),
        ("a\nb", "1G", "must not contain"),
        ("", "1G", "must not be empty"),
        (&"x".repeat(256), "1G", "255 bytes"),
    ] {
        for words in [&[&format!("--size={size}")[..]][..], &["--size", size]] {
            let words = [&["volume", "create"], words, &["--", name]].concat();
            let (code, _, error) = run(&words);
            assert_eq!(code, Some(2), "{words:?}: {error}");
            assert!(error.contains(word), "{words:?}: {error}");
        }
    }
}

#[test]
fn stores_that_cannot_be() {
    for (url, word) in [
        ("ftp://host/x", "s3://bucket/prefix"),
        ("", "empty"),
        ("file://relative", "three slashes"),
        ("s3:///prefix", "bucket"),
        ("/proc/no/such", "/proc/no/such"),
    ] {
        let (code, error) = up(&["--store", url]);
        assert_eq!(code, Some(if url.is_empty() { 2 } else { 1 }), "{url}: {error}");
        assert!(error.contains(word) && error.lines().count() == 1, "{url}: {error}");
    }
}

#[test]
fn a_start_that_lacks_the_store_of_earlier_ones_is_told_the_command() {
    let mut daemon = Daemon::start();
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    let dir = daemon.dir();
    let store = std::fs::rename(dir.join("store"), dir.with_extension("elsewhere"));
    store.expect("the store lies in the folder of the daemon");
    for has_folder in [false, true] {
        if has_folder {
            std::fs::create_dir(dir.join("store")).expect("an empty folder");
        }
        let mut up = rekindle();
        up.arg("up").arg("--dir").arg(&dir).args(["--nbd", "off", "--http", "off"]);
        up.arg("--warm").arg(daemon.warm()).args(["--warm-size", "64M"]);
        let (code, _, error) = told(&finish(&mut up));
        let next = format!("`rekindle up --dir {} --store URL`", dir.display());
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(&next), "{error}");
    }
}

#[test]
fn a_store_of_somebody_else_or_of_the_future() {
    let folder = tempfile::tempdir().expect("a folder");
    let strangers = folder.path().join("photos");
    std::fs::create_dir(&strangers).expect("a folder");
    std::fs::write(strangers.join("beach.jpg"), b"sand").expect("a file");
    let (code, error) = up(&["--store", &strangers.display().to_string()]);
    assert_eq!(code, Some(1));
    assert!(error.contains("beach.jpg") && error.contains("empty folder"), "{error}");
    let newer = folder.path().join("newer");
    std::fs::create_dir(&newer).expect("a folder");
    std::fs::write(newer.join("rekindle.json"), r#"{"rekindle": "store", "format": 99}"#)
        .expect("a file");
    let (code, error) = up(&["--store", &newer.display().to_string()]);
    assert_eq!(code, Some(1));
    assert!(error.contains("version 99") && error.contains("upgrade"), "{error}");
}

#[test]
fn settings_that_nobody_knows() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rekindle.toml");
    for (text, word) in [
        ("flash_bugdet = '1G'", "did you mean 'flash_budget'?"),
        ("[destage]\nagge = '1s'", "did you mean 'destage.age'?"),
        ("cache = 'lots'", "'cache'"),
        ("store = ", "line 1"),
        ("flash_budget = '1K'", "too small"),
    ] {
        std::fs::write(&file, text).expect("a file");
        let (code, error) = up(&["--config", &file.display().to_string()]);
        assert!(matches!(code, Some(1 | 2)), "{text}: {error}");
        assert!(error.contains(word), "{text}: {error}");
    }
    let (code, error) = up(&["--config", "/no/such/file"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("/no/such/file"), "{error}");
}

#[test]
fn addresses_and_faults_that_make_no_sense() {
    for (arguments, word) in [
        (["--nbd", "nowhere"], "unix:"),
        (["--http", "0.0.0.0:8809"], "--insecure"),
        (["--nbd", "0.0.0.0:10809"], "--insecure"),
        (["--socket-group", "nobody-is-called-so"], "getent"),
        (["--store-fault", "bogus=1"], "latency=10ms"),
        (["--flash-budget", "1M"], "too small"),
        (["--log-format", "xml"], "json"),
    ] {
        let (code, error) = up(&arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}

#[test]
fn paths_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().expect("a folder");
    let strange = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    let plain = folder.path().join("d");
    for (dir, warm) in [(&strange, &plain), (&plain, &strange)] {
        let (code, _, error) =
            told(&finish(rekindle().arg("up").arg("--dir").arg(dir).arg("--warm").arg(warm)));
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("not text") && !error.contains("panicked"), "{error}");
    }
    let (code, _, error) = told(&finish(rekindle().arg("status").arg("--dir").arg(&strange)));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("no daemon answers"), "{error}");
}

#[test]
fn a_policy_that_waits_for_the_store_takes_no_word_on_the_log() {
    let words = ["volume", "create", "vm1", "--size", "1G", "--policy", "through"];
    let (code, _, error) = run(&[&words[..], &["--ack", "memory"]].concat());
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--policy back"), "{error}");
}

#[test]
fn no_daemon_names_those_that_run() {
    let daemon = Daemon::start();
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let (code, _, error) = run(&["status", "--dir", &dir]);
    assert_eq!(code, Some(1));
    assert!(error.contains("these run: "), "{error}");
    // Daemons of other tests may run beside it: a few are named.
    let own = format!("--dir {}", daemon.dir().display());
    assert!(error.contains(&own) || error.matches("--dir").count() > 5, "{error}");
}

#[test]
fn no_daemon_no_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let (code, _, error) = run(&["volume", "ls", "--dir", &dir]);
    assert_eq!(code, Some(1));
    assert!(error.contains("rekindle up --dir"), "{error}");
    let (code, out, error) = run(&["status", "--json", "--dir", &dir]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let object: serde_json::Value = serde_json::from_str(&error).expect("an error object");
    assert_eq!(object["kind"], "unavailable");
}

#[test]
fn a_folder_in_use_and_a_folder_of_another_store() {
    let mut daemon = Daemon::start();
    let dir = daemon.dir().display().to_string();
    let (code, _, error) = run(&["up", "--dir", &dir, "--nbd", "off", "--http", "off"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("in use by another daemon (pid"), "{error}");
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    // Its log may hold what belongs to the old store.
    let other = daemon.folder.path().join("other").display().to_string();
    let (code, _, error) =
        run(&["up", "--dir", &dir, "--store", &other, "--nbd", "off", "--http", "off"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("is not there: is it mounted"), "{error}");
    assert!(!std::path::Path::new(&other).exists(), "nothing is made in the place of a store");
    std::fs::write(daemon.dir().join("node.json"), "{").expect("a file");
    let (code, _, error) = run(&["up", "--dir", &dir, "--nbd", "off", "--http", "off"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("node.json is damaged"), "{error}");
}

#[test]
fn the_daemon_refuses_what_only_it_can_know() {
    let daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    for (arguments, kind) in [
        (&["volume", "create", "vm1", "--size", "64M"][..], "exists"),
        (&["volume", "show", "vm2"], "not-found"),
        (&["volume", "rm", "vm2"], "not-found"),
        (&["volume", "drain", "vm2"], "not-found"),
        (&["volume", "history", "vm2"], "not-found"),
        (&["verify", "vm2"], "not-found"),
        (&["jobs", "cancel", "99"], "not-found"),
    ] {
        let (code, _, error) = daemon.cli(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {error}");
        let object: serde_json::Value = serde_json::from_str(&error).expect("an error object");
        assert_eq!(object["kind"], kind, "{arguments:?}: {error}");
    }
    for words in [&["volume", "show", "vm2"][..], &["volume", "rm", "vm2"], &["verify", "vm2"]] {
        let (_, _, error) = daemon.cli(words);
        assert!(error.contains("did you mean 'vm1'?"), "{words:?}: {error}");
    }
    let dir = daemon.dir().display().to_string();
    let (code, told, error) = run(&["volume", "history", "vm1", "--dir", &dir]);
    assert_eq!(code, Some(0), "{error}");
    assert!(told.contains("nothing has happened to 'vm1'"), "{told}");
    let (_, _, error) = daemon.cli(&["salvage", "cancel", "vm1"]);
    assert!(!error.contains("did you mean"), "{error}");
    let (code, value, error) = daemon.cli(&["volume", "create", "vm1"]);
    let object: serde_json::Value = serde_json::from_str(&error).expect("an error object");
    assert_eq!((code, value.is_null(), &object["kind"]), (Some(2), true, &"invalid".into()));
    let (code, _, error) = run(&["volume", "delete", "vm1"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("'rm'"), "{error}");
}
