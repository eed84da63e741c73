//! Access to the daemon: by default only for the user who runs it. Files are 0600 and folders 0700
//! whatever the umask says. A group may be let in to a socket, and through the daemon's folder to
//! that socket, but to no file.

use rekindle_terminal::failure::{Failure, Outcome};
use rustix::fs::{Gid, chown};
use std::fs::{DirEntry, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Name of the folder in which imports leave their marks.
pub const IMPORTS: &str = "imports";

/// Names of a daemon's or an appliance's files. A folder that holds any other name also serves its
/// owner for other things: it is not ours to close.
const OURS: [&str; 21] = [
    "rekindle.pid",
    "endpoints.json",
    "endpoints.json.new",
    "upgrade.json",
    "upgrade.new",
    "upgrade.lock",
    "upgraded.json",
    "upgraded.new",
    "node.json",
    "node.json.new",
    "node.lock",
    IMPORTS,
    "flash",
    "store",
    "nbd.sock",
    "rekindle.sock",
    "appliance.json",
    "vmlinuz",
    "initramfs.cpio",
    "data.img",
    "run",
];

/// Whether a name in a daemon's folder is one that the daemon, an appliance or a command gives.
#[must_use]
pub fn is_ours(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    // Logs of the console and of QEMU; entries that an administrator or a file system puts beside.
    OURS.contains(&name.as_ref()) || name.ends_with(".log") || name == "lost+found"
}

/// The number of a group.
pub type Group = u32;

/// Settles which users may pass through the daemon's folder: its own user, and `groups` to their
/// sockets. A folder with other uses is left as it is, with a note; so is a folder on the way that
/// a group cannot pass.
pub(crate) fn settle(dir: &Path, groups: &[Group], notes: &mut Vec<String>) -> Outcome {
    let failed = |error: io::Error| {
        Failure::new(format!("cannot settle who may enter {}", dir.display()))
            .because(error)
            .next("run the command as the owner of the folder, or choose another one with --dir")
    };
    let found = std::fs::metadata(dir).map_err(failed)?;
    let entries: Vec<DirEntry> = std::fs::read_dir(dir).map_err(failed)?.flatten().collect();
    check_entries(&entries)?;
    notes.extend(replaceable(dir));
    let ours = entries.iter().all(|entry| is_ours(&entry.file_name()));
    let shared = found.mode() & 0o1000 != 0 || found.uid() != rustix::process::geteuid().as_raw();
    if shared || !ours {
        if found.mode() & 0o077 != 0 {
            let mode = found.mode() & 0o7777;
            notes.push(format!(
                "others may enter {} (mode {mode:04o}), where other things are too; new files in it are private",
                dir.display()
            ));
        }
        for group in groups {
            notes.extend(blocked(dir.ancestors(), *group));
        }
        return Ok(());
    }
    // Earlier versions left the modes to the umask. The content of a closed folder is closed as
    // well.
    for entry in &entries {
        close(entry);
    }
    let mode = match groups {
        [] => 0o700,
        [group] => {
            chown(dir, None, Some(Gid::from_raw(*group)))
                .map_err(|error| refused(*group, error))?;
            0o710
        }
        // A folder has one group. With several groups any user who knows the name of a socket may
        // try it, and the socket's own mode decides.
        _ => 0o711,
    };
    std::fs::set_permissions(dir, Permissions::from_mode(mode)).map_err(failed)?;
    for group in groups {
        notes.extend(blocked(dir.ancestors().skip(1), *group));
    }
    Ok(())
}

/// Refuses entries that another user has put in the places of the daemon's own files while the
/// folder was open.
fn check_entries(entries: &[DirEntry]) -> Outcome {
    let user = rustix::process::geteuid().as_raw();
    let strange = entries.iter().find_map(|entry| {
        let name = entry.file_name();
        // The store may be a mount whose server decides about owners; its records prove themselves.
        let is_own = name != "store" && OURS.contains(&name.to_string_lossy().as_ref());
        let owner = entry.metadata().ok().filter(|_| is_own)?.uid();
        (owner != user).then(|| (entry.path(), owner))
    });
    match strange {
        None => Ok(()),
        Some((path, owner)) => {
            Err(Failure::new(format!("{} belongs to another user ({owner})", path.display()))
                .next("remove it, or choose another folder with --dir; if you trust it, make it yours with chown"))
        }
    }
}

/// Returns a note if another user owns a folder on the way, and so could replace the daemon's
/// folder.
fn replaceable(dir: &Path) -> Option<String> {
    let user = rustix::process::geteuid().as_raw();
    let way = dir.ancestors().skip(1);
    let mut found = way.filter_map(|way| Some((way, std::fs::metadata(way).ok()?.uid())));
    let (way, owner) = found.find(|(_, owner)| *owner != user && *owner != 0)?;
    Some(format!(
        "{} belongs to another user ({owner}), who can put another folder in the place of {}",
        way.display(),
        dir.display()
    ))
}

fn close(entry: &DirEntry) {
    let Ok(found) = entry.metadata() else { return };
    if (found.is_dir() || found.is_file()) && found.mode() & 0o077 != 0 {
        // Fails for an entry of another user, which is that user's to open.
        let _ = std::fs::set_permissions(
            entry.path(),
            Permissions::from_mode(found.mode() & 0o7777 & !0o077),
        );
    }
}

/// Returns a note about the nearest folder on the way that members of a group cannot pass, if any.
fn blocked<'a>(mut way: impl Iterator<Item = &'a Path>, group: Group) -> Option<String> {
    let passes = |found: &Metadata| {
        found.mode() & 0o001 != 0 || (found.gid() == group && found.mode() & 0o010 != 0)
    };
    let closed = way.find(|folder| std::fs::metadata(folder).is_ok_and(|found| !passes(&found)))?;
    Some(format!(
        "the group {group} cannot pass through {}: let it, or serve elsewhere with --nbd unix:PATH",
        closed.display()
    ))
}

fn refused(group: Group, error: rustix::io::Errno) -> Failure {
    Failure::new(format!("cannot let the group {group} in"))
        .because(io::Error::from(error))
        .next("run the daemon as a member of that group, or as root")
}

/// Parses a group: a name, or a number.
pub fn group(text: &str) -> Result<Group, String> {
    match text.parse() {
        // The kernel takes this number for "no change".
        Ok(Group::MAX) => return Err(format!("no group can have the number {text}")),
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let none = || format!("there is no group '{text}': `getent group` lists them");
    let name = std::ffi::CString::new(text).map_err(|_| none())?;
    let mut space = vec![0; 64 << 10];
    // SAFETY: plain memory that the call fills in.
    let mut found: libc::group = unsafe { std::mem::zeroed() };
    let mut result = std::ptr::null_mut();
    // SAFETY: every pointer is to memory that outlives the call, and the length is that of `space`.
    let code = unsafe {
        libc::getgrnam_r(
            name.as_ptr(),
            &raw mut found,
            space.as_mut_ptr(),
            space.len(),
            &raw mut result,
        )
    };
    if code == 0 && !result.is_null() { Ok(found.gr_gid) } else { Err(none()) }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test on the real machine")]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
    }

    #[test]
    fn a_folder_of_ours_is_closed_with_what_is_in_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("d");
        std::fs::create_dir(&dir).expect("a folder");
        std::fs::create_dir(dir.join("flash")).expect("a folder");
        std::fs::write(dir.join("rekindle.pid"), "1").expect("a file");
        set(&dir, 0o755);
        set(&dir.join("flash"), 0o755);
        set(&dir.join("rekindle.pid"), 0o644);
        let own = rustix::process::getegid().as_raw();
        settle(&dir, &[own], &mut Vec::new()).expect("ours");
        let modes = [mode(&dir), mode(&dir.join("flash")), mode(&dir.join("rekindle.pid"))];
        assert_eq!(modes, [0o710, 0o700, 0o600]);
        settle(&dir, &[], &mut Vec::new()).expect("ours");
        assert_eq!(mode(&dir), 0o700, "the group is out again");
        settle(&dir, &[own, own + 1], &mut Vec::new()).expect("ours");
        assert_eq!(mode(&dir), 0o711);
    }

    #[test]
    fn a_folder_that_others_use_is_left_as_it_is_and_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let photos = folder.path().join("beach.jpg");
        std::fs::write(&photos, "sand").expect("a file");
        // A daemon that was started there before changes nothing.
        std::fs::write(folder.path().join("rekindle.pid"), "1").expect("a file");
        set(&photos, 0o644);
        set(folder.path(), 0o755);
        let mut notes = Vec::new();
        settle(folder.path(), &[], &mut notes).expect("nothing to do");
        assert_eq!((mode(folder.path()), mode(&photos), notes.len()), (0o755, 0o644, 1));
    }

    #[test]
    fn who_cannot_pass_a_folder_on_the_way_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        set(folder.path(), 0o700);
        let dir = folder.path().join("d");
        std::fs::create_dir(&dir).expect("a folder");
        let own = rustix::process::getegid().as_raw();
        let mut notes = Vec::new();
        settle(&dir, &[own], &mut notes).expect("ours");
        assert!(notes[0].contains("cannot pass through"), "{notes:?}");
    }

    #[test]
    fn what_another_user_has_put_there_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let flash = folder.path().join("flash");
        std::fs::create_dir(&flash).expect("a folder");
        settle(folder.path(), &[], &mut Vec::new()).expect("ours");
        if rustix::process::geteuid().is_root() {
            chown(&flash, Some(rustix::fs::Uid::from_raw(65534)), None).expect("root may");
            let error = settle(folder.path(), &[], &mut Vec::new()).expect_err("not ours").error;
            assert!(error.contains("belongs to another user (65534)"), "{error}");
        }
    }

    #[test]
    fn who_can_replace_the_folder_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("d");
        std::fs::create_dir(&dir).expect("a folder");
        let told = || {
            let mut notes = Vec::new();
            settle(&dir, &[], &mut notes).expect("ours");
            notes.iter().any(|note| note.contains("belongs to another user (65534)"))
        };
        assert!(!told());
        if rustix::process::geteuid().is_root() {
            chown(folder.path(), Some(rustix::fs::Uid::from_raw(65534)), None).expect("root may");
            assert!(told());
        }
    }

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!((group("root"), group("4711")), (Ok(0), Ok(4711)));
        assert!(group("4294967295").expect_err("the kernel's word for none").contains("no group"));
        assert!(group("nobody-is-called-so").expect_err("none").contains("getent"));
    }
}
