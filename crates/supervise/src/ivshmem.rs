//! Warm memory in a virtual machine: RAM of the host behind a PCI device (`ivshmem`), which
//! outlives this machine's kernel.
//!
//! The RAM is the device's memory region 2, which sysfs shows as a file that can be mapped.
#![expect(clippy::disallowed_methods, reason = "a device has no Env")]

use rekindle_base::Kind;
use rekindle_terminal::failure::{Failure, Outcome};
use std::path::{Path, PathBuf};

/// Value of `--warm` that asks for this memory.
pub const WORD: &str = "ivshmem";
const DEVICES: &str = "/sys/bus/pci/devices";
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";

/// Replaces [`WORD`] by the file of the device.
pub(crate) fn settle(warm: &mut Option<PathBuf>) -> Outcome {
    if warm.as_deref() == Some(Path::new(WORD)) {
        *warm = Some(find(Path::new(DEVICES))?);
    }
    Ok(())
}

fn find(devices: &Path) -> Outcome<PathBuf> {
    let entries = std::fs::read_dir(devices).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| is_ivshmem(path)).collect();
    found.sort();
    match found.as_slice() {
        [] => Err(Failure::new("this machine has no ivshmem device")
            .next("give it one (ivshmem-plain in QEMU), or choose another memory with --warm")
            .kind(Kind::NotFound)),
        [device] => {
            // As a rule the firmware has switched the device on already; no driver will.
            let _ = std::fs::write(device.join("enable"), "1");
            // Write-combining where there is a choice; inside a guest the RAM is ordinary memory in
            // both cases.
            let combined = device.join("resource2_wc");
            Ok(if combined.exists() { combined } else { device.join("resource2") })
        }
        several => {
            let names: Vec<_> =
                several.iter().map(|path| path.join("resource2").display().to_string()).collect();
            Err(Failure::usage("this machine has several ivshmem devices")
                .next(format!("name one: --warm {}", names.join(", or --warm "))))
        }
    }
}

fn is_ivshmem(device: &Path) -> bool {
    let says = |name: &str, wanted: &str| {
        std::fs::read_to_string(device.join(name)).is_ok_and(|text| text.trim() == wanted)
    };
    says("vendor", VENDOR) && says("device", DEVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(folder: &Path, name: &str, id: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::create_dir(&path).expect("a folder");
        std::fs::write(path.join("vendor"), "0x1af4\n").expect("a file");
        std::fs::write(path.join("device"), format!("{id}\n")).expect("a file");
        std::fs::write(path.join("resource2"), []).expect("a file");
        path
    }

    #[test]
    fn the_only_one_is_found_and_several_must_be_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let none = find(folder.path()).expect_err("there is none");
        assert!(none.error.contains("no ivshmem"), "{}", none.error);
        device(folder.path(), "0000:00:02.0", "0x1042");
        let first = device(folder.path(), "0000:00:04.0", "0x1110");
        assert_eq!(find(folder.path()), Ok(first.join("resource2")));
        std::fs::write(first.join("resource2_wc"), []).expect("a file");
        assert_eq!(find(folder.path()), Ok(first.join("resource2_wc")));
        assert_eq!(std::fs::read(first.join("enable")).expect("switched on"), b"1");
        device(folder.path(), "0000:00:05.0", "0x1110");
        let several = find(folder.path()).expect_err("which one");
        assert!(several.next.is_some_and(|next| next.contains("00:05.0/resource2")));
    }
}
