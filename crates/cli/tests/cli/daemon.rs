//! A daemon that serves, is killed, comes back and stops.

use crate::{Daemon, finish, is_alive, kill, rekindle, run, told, wait_until};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;

#[test]
fn it_serves_and_tells_where_and_what_to_do_next() {
    let daemon = Daemon::start();
    wait_until("the daemon says so", || daemon.trace().contains("qemu-img"));
    let trace = daemon.trace();
    for word in
        ["serves after", "nbd+unix:///NAME?socket=", "volume create vm1", "nbdinfo", "qemu-img"]
    {
        assert!(trace.contains(word), "{word}: {trace}");
    }
    let status = daemon.ask(&["status"]);
    assert_eq!(
        (status["state"].as_str(), status["health"]["ok"].as_bool()),
        (Some("serving"), Some(true))
    );
    assert_eq!(status["incarnation"], 1);
    let made = daemon.ask(&[
        "volume",
        "create",
        "vm1",
        "--size",
        "64M",
        "--policy",
        "through",
        "--block-size",
        "4K",
    ]);
    assert_eq!((made["size"].as_u64(), made["block_size"].as_u64()), (Some(64 << 20), Some(4096)));
    assert_eq!(daemon.ask(&["volume", "ls"]).as_array().map(Vec::len), Some(1));
    assert_eq!(daemon.ask(&["volume", "show", "vm1"])["policy"], "through");
    daemon.ask(&["volume", "drain", "vm1"]);
    assert!(
        daemon
            .ask(&["volume", "history", "vm1"])
            .as_array()
            .is_some_and(|events| !events.is_empty())
    );
    assert_eq!(daemon.ask(&["verify"])["result"]["damaged"], 0);
    daemon.ask(&["sweep", "run"]);
    daemon.ask(&["sweep", "status"]);
    daemon.ask(&["volume", "rm", "vm1"]);
    assert_eq!(daemon.ask(&["volume", "ls"]).as_array().map(Vec::len), Some(0));
}

/// Processes whose parent is `parent`, with their names.
fn children(parent: i32) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.split_whitespace().eq(["PPid:", &parent.to_string()]))
    };
    let name = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pids.filter(is_child).map(|pid| (pid, name(pid).trim().to_owned())).collect()
}

#[test]
fn a_worker_has_an_heir_that_holds_nothing_and_ends_with_it() {
    let daemon = Daemon::start();
    let worker = daemon.worker();
    wait_until("the holder has settled", || {
        children(worker).iter().any(|(_, name)| name == "rekindle-memory")
    });
    let [(holder, _)] = children(worker)[..] else { panic!("{:?}", children(worker)) };
    let files = std::fs::read_dir(format!("/proc/{holder}/fd")).expect("it is ours").flatten();
    let files: Vec<_> = files.filter_map(|file| std::fs::read_link(file.path()).ok()).collect();
    // A lock in the holder's hands would keep the next worker out.
    assert_eq!(files, [std::path::Path::new("anon_inode:[pidfd]")]);
    kill(worker);
    wait_until("another worker", || {
        let status = daemon.cli(&["status"]).1;
        status["pid"].is_i64() && status["pid"] != worker && status["state"] == "serving"
    });
    wait_until("the holder is gone", || !is_alive(holder));
    // And the other way round: without its holder a worker serves on.
    let worker = daemon.worker();
    wait_until("the next holder", || children(worker).len() == 1);
    kill(children(worker)[0].0);
    assert_eq!(daemon.ask(&["status"])["pid"], worker);
}

#[test]
fn a_killed_worker_is_replaced_and_what_was_made_is_there() {
    let mut daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    for start in 2..5 {
        let worker = daemon.worker();
        kill(worker);
        // The request waits in the socket's queue until the next worker takes it, or hits the dying
        // one.
        wait_until("another worker", || {
            let status = daemon.cli(&["status"]).1;
            let is_another = status["pid"].as_i64().is_some_and(|pid| pid != i64::from(worker));
            is_another && status["state"] == "serving"
        });
        assert_eq!(daemon.ask(&["status"])["incarnation"], start);
        assert_eq!(daemon.ask(&["volume", "ls"])[0]["name"], "vm1");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    assert!(
        !daemon.dir().join("nbd.sock").exists() && !daemon.dir().join("endpoints.json").exists()
    );
}

#[test]
fn the_worker_does_not_outlive_its_supervisor() {
    let mut daemon = Daemon::start();
    let worker = daemon.worker();
    daemon.signal(Signal::KILL);
    daemon.wait();
    wait_until("the worker dies", || !is_alive(worker));
    daemon.up(&[]);
    assert_eq!(daemon.ask(&["status"])["incarnation"], 2);
    daemon.signal(Signal::INT);
    assert_eq!(daemon.wait(), Some(0));
}

#[test]
fn the_drill_loses_nothing() {
    let daemon = Daemon::start();
    for ack in ["flash", "memory"] {
        let report =
            daemon.ask(&["drill", "restart", "--rounds", "2", "--seconds", "1", "--ack", ack]);
        assert_eq!(report["acknowledged_writes_lost"], 0, "{report}");
        assert!(
            report["writes_acknowledged"].as_u64().is_some_and(|writes| writes > 10),
            "{report}"
        );
        assert_eq!(report["stalled_ms"].as_array().map(Vec::len), Some(2));
    }
    assert_eq!(
        daemon.ask(&["volume", "ls"]).as_array().map(Vec::len),
        Some(0),
        "the scratch volume is gone"
    );
    let (code, _, _) = daemon.cli(&["drill", "restart", "--volume", "vm1"]);
    assert_eq!(code, Some(2), "a given volume is overwritten only when that is said");
}

#[test]
fn a_store_that_misbehaves_is_no_trouble_for_the_drill() {
    let mut daemon = Daemon::start();
    daemon.signal(Signal::TERM);
    daemon.wait();
    daemon.up(&["--store-fault", "latency=10ms,fail=10%"]);
    let report = daemon.ask(&["drill", "restart", "--rounds", "1", "--seconds", "1"]);
    assert_eq!(report["acknowledged_writes_lost"], 0, "{report}");
}

#[test]
fn systemd_is_told_and_no_supervisor_is_in_between() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("notify");
    let listener = UnixDatagram::bind(&socket).expect("a socket");
    listener.set_read_timeout(Some(crate::PATIENCE)).expect("a time");
    let mut command = rekindle();
    command.arg("up").arg("--dir").arg(folder.path().join("d"));
    command
        .args(["--nbd", "off", "--http", "off", "--warm-size", "32M"])
        .arg("--warm")
        .arg(folder.path().join("warm"));
    command
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "600000")
        .stdout(std::process::Stdio::null());
    let mut process = command.spawn().expect("the binary starts");
    let heard = || {
        let mut bytes = [0; 256];
        let length = listener.recv(&mut bytes).expect("systemd is told in time");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert!(heard().contains("READY=1"));
    assert!(heard().contains("WATCHDOG=1"));
    let pid = rustix::process::Pid::from_child(&process);
    let endpoints = std::fs::read(folder.path().join("d/endpoints.json")).expect("endpoints");
    let endpoints: serde_json::Value = serde_json::from_slice(&endpoints).expect("JSON");
    assert_eq!(endpoints["worker"], pid.as_raw_pid());
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    while !heard().contains("STOPPING=1") {}
    assert_eq!(process.wait().expect("it is ours").code(), Some(0));
}

#[test]
fn settings_have_an_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(
        folder.path().join("c.toml"),
        format!("store = \"{}\"\nflash_budget = \"128M\"", at("of-the-file")),
    )
    .expect("a file");
    let mut daemon = Daemon { folder, process: None };
    let dir = daemon.folder.path().to_owned();
    let at = |name: &str| dir.join(name).display().to_string();
    daemon.up(&["--config", &at("c.toml"), "--store", &at("of-the-line")]);
    let status = daemon.ask(&["status"]);
    assert!(
        status["store"].as_str().is_some_and(|store| store.contains("of-the-line")),
        "{status}"
    );
    assert_eq!(status["log"]["flash_bytes_max"], 128 << 20);
    daemon.signal(Signal::TERM);
    daemon.wait();
}

#[test]
fn warm_memory_is_shown_split_and_dropped() {
    let mut daemon = Daemon::start();
    let warm = daemon.ask(&["warm", "show"]);
    assert_eq!((warm["slots"].as_u64(), warm["budget_bytes"].as_u64()), (Some(6), Some(64 << 20)));
    assert!(warm["bytes"].as_u64() <= Some(65 << 20), "{warm}");
    assert!(warm["slots_used"].as_u64() >= Some(1), "the log has an open segment: {warm}");
    assert_eq!(warm["frames"]["began"], "new", "{warm}");
    assert_eq!(daemon.ask(&["warm", "drop"])["frames"], 0);
    let (_, text, _) = told(&finish(rekindle().args(["warm", "show", "--dir"]).arg(daemon.dir())));
    assert!(text.contains("never there") && text.contains("slots"), "{text}");
    daemon.signal(Signal::TERM);
    daemon.wait();
    // All warm memory is for segments.
    daemon.up(&["--warm-frames", "0"]);
    let warm = daemon.ask(&["warm", "show"]);
    assert_eq!((warm["slots"].as_u64(), warm["frames"].is_null()), (Some(8), true), "{warm}");
    let (code, _, error) = daemon.cli(&["warm", "drop"]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("--warm-frames"), "{error}");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    let (code, _, error) = run(&[
        "up",
        "--dir",
        &dir,
        "--nbd",
        "off",
        "--http",
        "off",
        "--warm-size",
        "64M",
        "--warm-frames",
        "40M",
    ]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--warm-frames"), "{error}");
}

#[test]
fn systemd_keeps_memory_without_a_file_from_one_start_to_the_next() {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("notify");
    let listener = UnixDatagram::bind(&socket).expect("a socket");
    listener.set_read_timeout(Some(crate::PATIENCE)).expect("a time");
    let heard = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 256];
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        // Inherited by the next start, as from systemd.
        let received = recvmsg(&listener, &mut parts, &mut control, RecvFlags::empty());
        let length = received.expect("systemd is told in time").bytes;
        let given = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        (String::from_utf8_lossy(&bytes[..length]).into_owned(), given)
    };
    let up = |kept: Option<&std::os::fd::OwnedFd>| {
        use std::process::Stdio;
        let mut command = std::process::Command::new("sh");
        // By way of standard input: not every shell knows descriptors of two digits.
        let (script, input) = match kept {
            Some(kept) => (
                "LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 </dev/null",
                Stdio::from(kept.try_clone().expect("a descriptor")),
            ),
            None => ("exec \"$0\" \"$@\"", Stdio::null()),
        };
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_rekindle"));
        command.arg("up").arg("--dir").arg(folder.path().join("d"));
        command.args(["--nbd", "off", "--http", "off", "--warm-size", "64M", "--warm", "memfd"]);
        command.env("NOTIFY_SOCKET", &socket).env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
        if kept.is_some() {
            command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "rekindle-warm");
        }
        command.stdin(input).stdout(Stdio::null());
        command.spawn().expect("the binary starts")
    };
    let mut memory = None;
    for began in ["new", "kept", "kept"] {
        let mut process = up(memory.as_ref());
        loop {
            let (said, given) = heard();
            if said.contains("FDSTORE=1") {
                assert!(said.contains("FDNAME=rekindle-warm") && began == "new", "{said}");
                memory = given;
            }
            if said.contains("READY=1") {
                break;
            }
        }
        assert!(memory.is_some(), "it was given to systemd to keep");
        let dir = folder.path().join("d").display().to_string();
        let (code, text, error) = run(&["warm", "show", "--json", "--dir", &dir]);
        assert_eq!(code, Some(0), "{error}");
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(shown["frames"]["began"], began, "{shown}");
        process.kill().and_then(|()| process.wait()).expect("it is ours");
    }
}

#[test]
fn everything_is_private_whatever_the_umask_and_a_group_gets_in_to_the_sockets_only() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    let group = rustix::process::getegid().as_raw();
    let mut command = std::process::Command::new("sh");
    command.arg("-c").arg("umask 0; exec \"$0\" \"$@\"").arg(env!("CARGO_BIN_EXE_rekindle"));
    command.arg("up").arg("--dir").arg(daemon.dir()).arg("--warm").arg(daemon.warm());
    command.args(["--warm-size", "64M", "--socket-group", &group.to_string()]);
    let trace = std::fs::File::create(daemon.folder.path().join("trace")).expect("a file");
    daemon.process = Some(crate::clean(command).stdout(trace).spawn().expect("the binary starts"));
    wait_until("the daemon serves", || daemon.cli(&["status"]).1["state"] == "serving");
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    daemon.ask(&["drill", "restart", "--rounds", "1", "--seconds", "1"]);
    let image = daemon.folder.path().join("image");
    std::fs::write(&image, vec![7; 1 << 20]).expect("a file");
    daemon.ask(&["volume", "import", image.to_str().expect("text"), "vm2"]);
    daemon.ask(&["upgrade"]);
    for entry in std::fs::read_dir(daemon.dir()).expect("a folder").flatten() {
        let name = entry.file_name();
        assert!(rekindle_supervise::access::is_ours(&name), "the folder stays closed: {name:?}");
    }
    let mut folders = vec![daemon.dir()];
    let mut open = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            }
            let socket = found.file_type().is_socket() && entry.file_name() == "nbd.sock";
            assert_eq!(socket, found.mode() & 0o777 == 0o660, "{:?}", entry.path());
            if found.mode() & 0o077 != 0 && !socket {
                open.push((entry.path(), found.mode()));
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("there").mode() & 0o777;
    assert_eq!((mode(&daemon.dir()), mode(&daemon.warm())), (0o710, 0o600));
    // And no client gets in by TCP.
    wait_until("it says where", || daemon.trace().contains("Next:"));
    assert!(!daemon.trace().contains("127.0.0.1"), "{}", daemon.trace());
}

#[test]
fn what_to_do_next_is_right_in_any_folder() {
    let mut daemon = Daemon { folder: tempfile::tempdir().expect("a folder"), process: None };
    let folder = daemon.folder.path().canonicalize().expect("a folder");
    let trace = std::fs::File::create(folder.join("trace")).expect("a file");
    let mut command = rekindle();
    command.arg("up").arg("--warm").arg(daemon.warm()).args(["--warm-size", "64M"]);
    command.current_dir(&folder).stdout(trace);
    daemon.process = Some(command.spawn().expect("the binary starts"));
    wait_until("it says what to do", || daemon.trace().contains("qemu-img"));
    let (dir, trace) = (folder.join("rekindle-data").display().to_string(), daemon.trace());
    for line in [
        format!("rekindle volume create vm1 --size 20G --dir {dir}"),
        format!("nbdinfo 'nbd+unix:///vm1?socket={dir}/nbd.sock'"),
    ] {
        assert!(trace.contains(&line), "{line}: {trace}");
    }
}
