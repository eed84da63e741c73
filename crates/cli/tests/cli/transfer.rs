//! Images of disks, into volumes and out of them.

use crate::Daemon;
use rekindle_base::random::Random;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const SIZE: u64 = 40 << 20;

/// An image with a hole, zeros that are written, data, and an end that is no whole sector.
fn image(folder: &Path) -> PathBuf {
    let path = folder.join("disk.img");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(SIZE - 100).expect("sparse");
    // Noise: it neither repeats nor shrinks, so that a pack is as large as what it holds.
    let data = Random::new(1).bytes(3 << 20);
    file.write_all_at(&data, (5 << 20) + 512).expect("written");
    file.write_all_at(&vec![0; 2 << 20], 20 << 20).expect("written");
    file.write_all_at(&data[..1000], SIZE - 1100).expect("written");
    path
}

fn same(one: &Path, other: &Path) -> bool {
    let (one, mut other) =
        (std::fs::read(one).expect("a file"), std::fs::read(other).expect("a file"));
    other.truncate(one.len());
    one == other
}

#[test]
fn a_raw_image_goes_in_and_comes_out_again_and_stays_sparse() {
    let daemon = Daemon::start();
    let image = image(daemon.folder.path());
    let text = |path: &Path| path.display().to_string();
    let told = daemon.ask(&["volume", "import", &text(&image), "vm1"]);
    // Holes and zeros are not written.
    assert!(told["written_bytes"].as_u64() <= Some(4 << 20), "{told}");
    let out = daemon.folder.path().join("out.img");
    daemon.ask(&["volume", "export", "vm1", &text(&out)]);
    assert!(same(&image, &out));
    let found = std::fs::metadata(&out).expect("there");
    assert_eq!((found.len(), found.mode() & 0o777), (SIZE, 0o600));
    assert!(found.blocks() * 512 < 8 << 20, "sparse");
    // Existing content is not lost by a slip.
    let (code, _, error) = daemon.cli(&["volume", "import", &text(&image), "vm1"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("--overwrite") && !error.contains("--resume"), "{error}");
    let (code, _, error) = daemon.cli(&["volume", "export", "vm1", &text(&out)]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("--force"), "{error}");
}

/// Writes the mark of `docs/format/node.md`: an import of this image into this volume broke off.
fn broke_off(daemon: &Daemon, image: &Path, volume: &str) -> PathBuf {
    let folder = daemon.dir().join("imports");
    std::fs::create_dir_all(&folder).expect("a folder");
    let id = daemon.ask(&["volume", "show", volume])["id"].as_str().expect("an id").to_owned();
    let found = std::fs::metadata(image).expect("there");
    let mark = serde_json::json!({
        "bytes": found.len(), "inode": found.ino(),
        "modified_seconds": found.mtime(), "modified_nanoseconds": found.mtime_nsec(),
    });
    let path = folder.join(id);
    std::fs::write(&path, mark.to_string()).expect("a file");
    path
}

#[test]
fn an_import_that_broke_off_goes_on_with_its_image_only_and_writes_what_differs() {
    let daemon = Daemon::start();
    let image = image(daemon.folder.path());
    let text = |path: &Path| path.display().to_string();
    daemon.ask(&["volume", "import", &text(&image), "vm1"]);
    // The image now holds more, and less, than the volume.
    let file = std::fs::File::options().write(true).open(&image).expect("there");
    file.write_all_at(&[7; 4096], 30 << 20).expect("written");
    file.write_all_at(&vec![0; 1 << 20], 6 << 20).expect("written");
    let mark = broke_off(&daemon, &image, "vm1");
    let other = daemon.folder.path().join("other.img");
    std::fs::write(&other, vec![9; 1 << 20]).expect("a file");
    let (code, _, error) = daemon.cli(&["volume", "import", &text(&other), "vm1", "--resume"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("another image"), "{error}");
    let told = daemon.ask(&["volume", "import", &text(&image), "vm1", "--resume"]);
    assert!(told["written_bytes"].as_u64() <= Some(3 << 20), "{told}");
    assert!(!mark.exists(), "it is whole");
    let out = daemon.folder.path().join("out.img");
    daemon.ask(&["volume", "export", "vm1", &text(&out)]);
    assert!(same(&image, &out));
}

#[test]
fn the_content_of_a_volume_does_not_change_under_its_clients_unless_somebody_insists() {
    let daemon = Daemon::start();
    let image = image(daemon.folder.path()).display().to_string();
    daemon.ask(&["volume", "create", "vm1", "--size", "64M"]);
    broke_off(&daemon, Path::new(&image), "vm1");
    let held = daemon.connect("vm1");
    for how in ["--resume", "--overwrite"] {
        let (code, _, error) = daemon.cli(&["volume", "import", &image, "vm1", how]);
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains("1 client(s)") && error.contains("--force"), "{error}");
    }
    let (_, _, error) = daemon.cli(&["volume", "rename", "vm1", "vm2"]);
    assert!(error.contains("client(s)") && !error.contains("--force"), "{error}");
    let (_, _, error) = daemon.cli(&["volume", "rm", "vm1"]);
    assert!(error.contains("client(s)") && error.contains("--force"), "{error}");
    let (code, _, error) = daemon.cli(&["drill", "restart", "--rounds", "1", "--seconds", "1"]);
    assert_eq!(code, Some(1), "a drill would cut the client off");
    assert!(error.contains("1 client(s)") && error.contains("--force"), "{error}");
    daemon.ask(&["volume", "import", &image, "vm1", "--overwrite", "--force"]);
    drop(held);
}

#[test]
fn what_is_no_raw_image_is_told_when_it_is_taken_as_one() {
    let daemon = Daemon::start();
    let file = daemon.folder.path().join("disk.img");
    let mut vdi = vec![0; 64];
    vdi.extend_from_slice(b"\x7f\x10\xda\xbe");
    let heads: [(&[u8], &str); 4] = [
        (b"\x1f\x8b\x08 and more", "a gzip file"),
        (b"KDMV and more", "a VMDK image"),
        (&vdi, "a VDI image"),
        (b"QFI\xfb and more", "--format qcow2"),
    ];
    for (head, words) in heads {
        std::fs::write(&file, head).expect("a file");
        let image = file.display().to_string();
        let told = daemon.ask(&["volume", "import", &image, "vm1", "--overwrite"]);
        assert!(told["note"].as_str().is_some_and(|note| note.contains(words)), "{told}");
        let how = ["volume", "import", &image, "vm1", "--overwrite", "--format", "raw"];
        assert_eq!(daemon.ask(&how)["note"], serde_json::Value::Null);
    }
}

#[test]
fn ctrl_c_ends_an_import_with_a_word_even_when_the_daemon_does_not_answer() {
    use rustix::process::{Pid, Signal, kill_process};
    let daemon = Daemon::start();
    let image = image(daemon.folder.path());
    let worker = Pid::from_raw(daemon.worker()).expect("a pid");
    kill_process(worker, Signal::STOP).expect("it runs");
    let mut import = crate::rekindle();
    import.args(["volume", "import", "--dir"]).arg(daemon.dir()).arg(&image).arg("vm1");
    let import = import.stderr(std::process::Stdio::piped()).spawn().expect("the binary starts");
    let pid = Pid::from_child(&import);
    crate::wait_until("it hears Ctrl-C", || {
        let path = format!("/proc/{}/status", pid.as_raw_pid());
        let status = std::fs::read_to_string(path).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a line").trim(), 16).expect("a mask");
        caught & 1 << (Signal::INT.as_raw() - 1) != 0
    });
    kill_process(pid, Signal::INT).expect("it runs");
    let ended = import.wait_with_output().expect("it is ours");
    kill_process(worker, Signal::CONT).expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(1) && said.contains("broken off"), "{said}");
}

#[test]
fn a_volume_into_which_no_import_broke_off_is_not_written_over_and_a_new_image_leaves_nothing_of_the_old()
 {
    let daemon = Daemon::start();
    let image = image(daemon.folder.path());
    let text = |path: &Path| path.display().to_string();
    daemon.ask(&["volume", "import", &text(&image), "vm1"]);
    let other = daemon.folder.path().join("other.img");
    std::fs::write(&other, vec![9; 1 << 20]).expect("a file");
    for image in [&image, &other] {
        let (code, _, error) = daemon.cli(&["volume", "import", &text(image), "vm1", "--resume"]);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("no import") && error.contains("--overwrite"), "{error}");
    }
    let over = ["volume", "import", &text(&other), "vm1", "--overwrite"];
    let (code, _, error) = daemon.cli(&[&over[..], &["--size", "1G"]].concat());
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("volume resize vm1"), "{error}");
    daemon.ask(&over);
    let out = daemon.folder.path().join("out.img");
    daemon.ask(&["volume", "export", "vm1", &text(&out)]);
    let found = std::fs::read(&out).expect("there");
    assert!(found[..1 << 20].iter().all(|&byte| byte == 9));
    assert!(found[1 << 20..].iter().all(|&byte| byte == 0), "nothing of the image before");
    let small = ["volume", "import", &text(&image), "vm2", "--size", "1M"];
    let (code, _, error) = daemon.cli(&small);
    assert_eq!(code, Some(2), "{error}");
}

/// The head of a qcow2 image of 4 MiB that has a backing file.
fn backed() -> Vec<u8> {
    let mut head = vec![0; 4096];
    head[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    (head[15], head[19], head[27]) = (0x70, 11, 0x40);
    head[0x70..0x70 + 11].copy_from_slice(b"/etc/passwd");
    head
}

#[test]
fn what_a_guest_wrote_into_its_disk_does_not_choose_how_the_disk_is_imported() {
    let daemon = Daemon::start();
    let at = |name: &str| daemon.folder.path().join(name).display().to_string();
    std::fs::write(at("guest.img"), backed()).expect("a file");
    let told = daemon.ask(&["volume", "import", &at("guest.img"), "vm1"]);
    assert_eq!(told["image_bytes"], 4096);
    assert!(told["note"].as_str().is_some_and(|note| note.contains("--format qcow2")), "{told}");
    daemon.ask(&["volume", "export", "vm1", &at("out.img")]);
    assert_eq!(std::fs::read(at("out.img")).expect("there"), backed(), "byte by byte");
    std::fs::write(at("guest.qcow2"), backed()).expect("a file");
    for words in [&[at("guest.qcow2")][..], &[at("guest.img"), "--format=qcow2".into()]] {
        let mut all = vec!["volume", "import", "--size", "8M"];
        all.extend(words.iter().map(String::as_str));
        all.push("vm2");
        let (code, _, error) = daemon.cli(&all);
        assert_eq!(code, Some(2), "{error}");
        assert!(
            error.contains("backing file") && error.contains("--with-backing-files"),
            "{error}"
        );
    }
    assert_eq!(daemon.cli(&["volume", "show", "vm2"]).0, Some(1), "nothing was made");
}

#[test]
fn an_export_leaves_what_is_there_alone_and_nothing_behind() {
    use std::os::unix::fs::symlink;
    let daemon = Daemon::start();
    daemon.ask(&["volume", "create", "vm1", "--size", "8M"]);
    let folder = daemon.folder.path().join("out");
    std::fs::create_dir(&folder).expect("a folder");
    let at = |name: &str| folder.join(name);
    let export = |name: &str, force: bool| {
        let file = at(name).display().to_string();
        let words = ["volume", "export", "vm1", &file, "--force"];
        daemon.cli(&words[..if force { 5 } else { 4 }])
    };
    // The name of the unfinished file was foreseen once, and led elsewhere.
    std::fs::write(at("victim"), b"precious").expect("a file");
    symlink(at("victim"), at("a.img.part")).expect("a link");
    assert_eq!(export("a.img", false).0, Some(0));
    assert_eq!(std::fs::read(at("victim")).expect("there"), b"precious");
    assert_eq!(std::fs::metadata(at("a.img")).expect("there").mode() & 0o777, 0o600);
    // A link is replaced, and what it leads to is left alone.
    symlink(at("victim"), at("link.img")).expect("a link");
    assert_eq!(export("link.img", false).0, Some(1));
    assert_eq!(export("link.img", true).0, Some(0));
    assert_eq!(std::fs::read(at("victim")).expect("there"), b"precious");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    std::fs::create_dir(at("folder")).expect("a folder");
    for name in ["pipe", "folder"] {
        let (code, _, error) = export(name, true);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains("no file and no disk"), "{error}");
    }
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["a.img", "a.img.part", "folder", "link.img", "pipe", "victim"]);
}

#[test]
fn bytes_that_cannot_be_read_are_named_and_skipped_only_when_that_is_said() {
    let mut daemon = Daemon::start();
    let image = image(daemon.folder.path());
    daemon.ask(&["volume", "import", &image.display().to_string(), "vm1"]);
    daemon.ask(&["volume", "drain", "vm1"]);
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.wait(), Some(0));
    let mut folders = vec![daemon.dir().join("store/packs/data")];
    let mut packs = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let found = entry.metadata().expect("there");
            match found.is_dir() {
                true => folders.push(entry.path()),
                false => packs.push((found.len(), entry.path())),
            }
        }
    }
    // The middle of the largest pack, so that its head and footer are as they were.
    let (bytes, pack) = packs.into_iter().max().expect("a pack");
    let file = std::fs::File::options().write(true).open(pack).expect("there");
    file.write_all_at(&[0x55; 64], bytes / 2).expect("written");
    std::fs::remove_file(daemon.warm()).expect("it is there");
    daemon.up(&[]);
    let out = daemon.folder.path().join("out.img");
    let words = ["volume", "export", "vm1", &out.display().to_string(), "--skip-damaged"];
    let (code, _, error) = daemon.cli(&words[..4]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("bytes ") && error.contains(" of volume 'vm1'"), "{error}");
    assert!(error.contains("--skip-damaged"), "{error}");
    let left = std::fs::read_dir(daemon.folder.path()).expect("a folder").flatten();
    assert_eq!(
        left.filter(|entry| entry.file_name().to_string_lossy().contains("out.img")).count(),
        0
    );
    let told = daemon.ask(&words);
    let damaged = told["damaged"].as_array().expect("a list");
    assert!(!damaged.is_empty());
    let (mut wanted, found) =
        (std::fs::read(&image).expect("there"), std::fs::read(&out).expect("there"));
    for stretch in damaged {
        let number = |name: &str| {
            usize::try_from(stretch[name].as_u64().expect("a number")).expect("a number")
        };
        let (offset, bytes) = (number("offset"), number("bytes"));
        assert!(bytes <= 256 << 10, "no more than the two chunks that may be damaged: {stretch}");
        wanted[offset..offset + bytes].fill(0);
    }
    assert!(found[..wanted.len()] == wanted, "all else is as it was");
}

#[test]
fn a_qcow2_image_goes_through_qemu_img_or_says_what_is_missing() {
    let daemon = Daemon::start();
    let raw = image(daemon.folder.path());
    let at = |name: &str| daemon.folder.path().join(name).display().to_string();
    let convert = std::process::Command::new("qemu-img")
        .args([
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            &raw.display().to_string(),
            &at("disk.qcow2"),
        ])
        .output();
    if convert.is_ok_and(|output| output.status.success()) {
        daemon.ask(&["volume", "import", &at("disk.qcow2"), "vm1"]);
        daemon.ask(&["volume", "export", "vm1", &at("out.img")]);
        assert!(same(&raw, Path::new(&at("out.img"))));
        daemon.ask(&["volume", "export", "vm1", &at("out.qcow2")]);
        let file = std::fs::metadata(at("out.qcow2")).expect("there");
        assert_eq!(file.mode() & 0o777, 0o600);
        assert!(std::fs::read(at("out.qcow2")).expect("there").starts_with(b"QFI"));
        // Over a volume that is larger, and full.
        std::fs::write(at("full.img"), vec![7; 48 << 20]).expect("a file");
        daemon.ask(&["volume", "import", &at("full.img"), "vm3"]);
        daemon.ask(&["volume", "import", &at("disk.qcow2"), "vm3", "--overwrite"]);
        daemon.ask(&["volume", "export", "vm3", &at("over.img")]);
        let found = std::fs::read(at("over.img")).expect("there");
        assert!(same(&raw, Path::new(&at("over.img"))));
        let behind = usize::try_from(SIZE).expect("small");
        assert!(found[behind..].iter().all(|&byte| byte == 0), "nothing of the volume before");
    }
    let mut head = backed();
    head[15] = 0;
    std::fs::write(at("empty.qcow2"), head).expect("a file");
    let output = crate::finish(
        crate::rekindle()
            .args(["volume", "import", &at("empty.qcow2"), "vm2", "--dir"])
            .arg(daemon.dir())
            .env("PATH", ""),
    );
    let (code, _, error) = crate::told(&output);
    assert_eq!(code, Some(1));
    assert!(error.contains("qemu-utils"), "{error}");
}

#[test]
fn a_check_is_broken_off_and_the_list_says_so() {
    let daemon = Daemon::start();
    let image = image(daemon.folder.path());
    daemon.ask(&["volume", "import", &image.display().to_string(), "vm1"]);
    daemon.ask(&["volume", "drain", "vm1"]);
    let begun = daemon.ask(&["verify", "vm1", "--detach", "--rate", "1K"]);
    let id = begun["id"].as_str().expect("an id").to_owned();
    assert_eq!(begun["state"], "running");
    daemon.ask(&["jobs", "cancel", &id]);
    crate::wait_until("it ends", || daemon.ask(&["jobs", "ls"])[0]["state"] == "cancelled");
    assert_eq!(daemon.ask(&["verify"])["result"]["damaged"], 0, "and another one runs");
}
