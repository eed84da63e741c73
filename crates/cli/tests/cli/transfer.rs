//! Images of disks, into volumes and out of them.

use crate::Daemon;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const SIZE: u64 = 40 << 20;

/// An image with a hole, zeros that are written, data, and an end that is no whole sector.
fn image(folder: &Path) -> PathBuf {
    let path = folder.join("disk.img");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(SIZE - 100).expect("sparse");
    let data: Vec<u8> =
        (0..3 << 20).map(|byte: u32| (byte.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
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
    // What is there is not lost by a slip.
    let (code, _, error) = daemon.cli(&["volume", "import", &text(&image), "vm1"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("--resume") && error.contains("--overwrite"), "{error}");
    let (code, _, error) = daemon.cli(&["volume", "export", "vm1", &text(&out)]);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("--force"), "{error}");
}

#[test]
fn an_import_that_broke_off_goes_on_and_writes_only_what_differs() {
    let daemon = Daemon::start();
    let image = image(daemon.folder.path());
    let text = |path: &Path| path.display().to_string();
    daemon.ask(&["volume", "import", &text(&image), "vm1"]);
    // As if it had broken off: the image now holds more, and less, than the volume.
    let file = std::fs::File::options().write(true).open(&image).expect("there");
    file.write_all_at(&[7; 4096], 30 << 20).expect("written");
    file.write_all_at(&vec![0; 1 << 20], 6 << 20).expect("written");
    let told = daemon.ask(&["volume", "import", &text(&image), "vm1", "--resume"]);
    assert!(told["written_bytes"].as_u64() <= Some(3 << 20), "{told}");
    let out = daemon.folder.path().join("out.img");
    daemon.ask(&["volume", "export", "vm1", &text(&out)]);
    assert!(same(&image, &out));
    // Over a volume that held something else.
    let other = daemon.folder.path().join("other.img");
    std::fs::write(&other, vec![9; 1 << 20]).expect("a file");
    daemon.ask(&["volume", "import", &text(&other), "vm1", "--overwrite"]);
    daemon.ask(&["volume", "export", "vm1", &text(&out), "--force"]);
    let found = std::fs::read(&out).expect("there");
    assert!(found[..1 << 20].iter().all(|&byte| byte == 9));
    assert!(found[1 << 20..].iter().all(|&byte| byte == 0), "nothing of the image before");
    let small = ["volume", "import", &text(&image), "vm2", "--size", "1M"];
    let (code, _, error) = daemon.cli(&small);
    assert_eq!(code, Some(2), "{error}");
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
        assert!(std::fs::read(at("out.qcow2")).expect("there").starts_with(b"QFI"));
    }
    std::fs::write(at("empty.qcow2"), b"QFI\xfb").expect("a file");
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
