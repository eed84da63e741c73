//! The kernel's side of a mount: its device, the mount itself, and the end of that. Root mounts by
//! itself, any other user through `fusermount3`.

use crate::arguments::Mount;
use rekindle_base::Kind;
use rekindle_front::fuse::limits::DATA_BYTES_MAX;
use rekindle_terminal::failure::{Failure, Outcome};
use rekindle_terminal::output::quoted;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const DEVICE: &str = "/dev/fuse";
/// The type of our mounts in the kernel's table.
const TYPE: &str = "fuse.rekindle";
/// What the kernel reads ahead of a program, KiB. Its own 128 KiB leave it waiting for one small
/// request after the other; with these, reads of a large file overlap, and take a quarter less.
const READ_AHEAD_KIB: &str = "2048";
/// The program that mounts for users, of the package fuse3.
const HELPER: &str = "fusermount3";

/// The folder of a mount.
#[derive(Debug, Clone)]
pub struct Place {
    pub folder: PathBuf,
    is_root: bool,
    /// The kernel's number of our mount: `0:52`.
    ours: OnceLock<String>,
}

impl Place {
    /// Checks a folder that is to be mounted on. Returns also how many entries it hides.
    pub fn find(folder: &Path) -> Outcome<(Self, usize)> {
        let shown = folder.display();
        let folder = std::fs::canonicalize(folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::new(format!("there is no folder {shown}"))
                .next(format!("mkdir {}", quoted(folder)))
                .kind(Kind::NotFound),
            io::ErrorKind::NotConnected => dead(folder),
            _ => Failure::new(format!("{shown} cannot be mounted on")).because(error),
        })?;
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries.count(),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(Failure::new(format!("{shown} is no folder"))
                    .next("name a folder to mount on")
                    .kind(Kind::Invalid));
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(dead(&folder)),
            Err(error) => {
                return Err(Failure::new(format!("{shown} cannot be mounted on")).because(error));
            }
        };
        if let Some(volume) = mounted(&folder) {
            return Err(Failure::new(format!("{shown} has {volume} already"))
                .next(format!(
                    "choose another folder, or take that away: umount {}",
                    quoted(&folder)
                ))
                .kind(Kind::Exists));
        }
        let is_root = rustix::process::geteuid().is_root();
        Ok((Self { folder, is_root, ours: OnceLock::new() }, entries))
    }

    /// Mounts a volume. Returns the kernel's end of the mount, which does not block.
    pub fn mount(&self, mount: &Mount) -> Outcome<OwnedFd> {
        if !Path::new(DEVICE).exists() {
            return Err(Failure::new(format!("there is no {DEVICE}: this kernel has no FUSE"))
                .next("as root: modprobe fuse")
                .kind(Kind::Unsupported));
        }
        let device =
            if self.is_root { self.mount_as_root(mount) } else { self.mount_as_user(mount) }?;
        if let Some(number) = number_on(&self.folder) {
            let _ = self.ours.set(number);
        }
        Ok(device)
    }

    /// Whether something else was mounted on the folder since: an end of ours would be its end.
    pub fn is_covered(&self) -> bool {
        self.ours.get().zip(number_on(&self.folder)).is_some_and(|(ours, top)| *ours != top)
    }

    /// Whether it is on the folder yet, with nothing on top of it.
    pub fn is_there(&self) -> bool {
        self.ours.get().is_some_and(|ours| number_on(&self.folder).as_ref() == Some(ours))
    }

    /// Has the kernel write what programs have mapped and changed.
    pub fn write_back(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(std::fs::File::open(&self.folder)?)?)
    }

    fn mount_as_root(&self, mount: &Mount) -> Outcome<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open(DEVICE, flags, Mode::empty())
            .map_err(|error| Failure::new(format!("{DEVICE} cannot be opened")).because(error))?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let options = format!(
            "fd={},rootmode=40000,user_id={},group_id={},{}",
            device.as_raw_fd(),
            uid.as_raw(),
            gid.as_raw(),
            options(mount, true)
        );
        let options = CString::new(options).map_err(io::Error::other)?;
        let flags = if mount.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        rustix::mount::mount(source(&mount.name), &self.folder, TYPE, flags, &*options).map_err(
            |error| {
                let failure = Failure::new(format!("cannot mount on {}", self.folder.display()))
                    .because(error);
                match error {
                    Errno::PERM => {
                        failure.next("this needs CAP_SYS_ADMIN, which a container lacks")
                    }
                    Errno::NODEV => failure.next("this kernel has no FUSE: modprobe fuse"),
                    _ => failure,
                }
            },
        )?;
        Ok(device)
    }

    fn mount_as_user(&self, mount: &Mount) -> Outcome<OwnedFd> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(io::Error::from)?;
        // The helper inherits its end.
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(io::Error::from)?;
        let name = source(&mount.name).replace('\\', "\\\\").replace(',', "\\,");
        let way = if mount.read_only { "ro" } else { "rw" };
        let options = format!("{way},fsname={name},subtype=rekindle,{}", options(mount, false));
        let status = Command::new(HELPER)
            .args(["-o", &options, "--"])
            .arg(&self.folder)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
            .status()
            .map_err(no_helper)?;
        drop(theirs);
        if !status.success() {
            return Err(Failure::new(format!(
                "{HELPER} does not mount on {}",
                self.folder.display()
            ))
            .next(
                "the folder must be yours; --allow-other needs user_allow_other in /etc/fuse.conf",
            ));
        }
        let device = receive(&ours)?;
        rustix::io::ioctl_fionbio(&device, true).map_err(io::Error::from)?;
        Ok(device)
    }

    /// Has the kernel read further ahead, where it lets us: only root may say so. The kernel has
    /// its answer to the first request by now, with which it sets its own measure.
    pub fn read_ahead(&self) {
        if let Some(device) = self.ours.get() {
            let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
            let _ = std::fs::write(setting, READ_AHEAD_KIB);
        }
    }

    /// Takes the mount away. With `lazily`, also while it is in use: programs that use it get
    /// errors then.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        if self.is_root {
            let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
            return Ok(rustix::mount::unmount(&self.folder, flags)?);
        }
        let way = if lazily { "-uzq" } else { "-uq" };
        let status = Command::new(HELPER).arg(way).arg("--").arg(&self.folder).status()?;
        if status.success() { Ok(()) } else { Err(io::ErrorKind::ResourceBusy.into()) }
    }
}

fn source(volume: &str) -> String {
    format!("rekindle:{volume}")
}

/// Returns the options of every mount: the kernel checks permissions, and reads no more at once
/// than the daemon serves.
fn options(mount: &Mount, is_root: bool) -> String {
    let others = if mount.allow_other.unwrap_or(is_root) { ",allow_other" } else { "" };
    format!("default_permissions,max_read={DATA_BYTES_MAX}{others}")
}

fn dead(folder: &Path) -> Failure {
    Failure::new(format!("{} has the mount of a process that is gone", folder.display()))
        .next(format!("umount -l {}", quoted(folder)))
        .kind(Kind::Conflict)
}

fn no_helper(error: io::Error) -> Failure {
    let failure = Failure::new(format!("{HELPER} cannot be run")).because(&error);
    match error.kind() {
        io::ErrorKind::NotFound => {
            failure.next("mount as root, or install the package fuse3").kind(Kind::Unsupported)
        }
        _ => failure,
    }
}

/// Receives the device from the helper.
fn receive(socket: &OwnedFd) -> Outcome<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(io::Error::from)?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    device.ok_or_else(|| Failure::new(format!("{HELPER} gave no file")))
}

/// Returns what of ours is mounted on a folder: `the volume 'a'`.
fn mounted(folder: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    listed(&table, folder)
}

/// The line of the newest mount on a folder.
fn line_of<'a>(table: &'a str, folder: &Path) -> Option<&'a str> {
    table.lines().rev().find(|line| {
        let place = line.split(' ').nth(4).map(unescaped);
        place.is_some_and(|place| Path::new(&place) == folder)
    })
}

/// The kernel's number of the newest mount on a folder.
fn number_on(folder: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    line_of(&table, folder)?.split(' ').nth(2).map(str::to_owned)
}

fn listed(table: &str, folder: &Path) -> Option<String> {
    let line = line_of(table, folder)?;
    let (_, rest) = line.split_once(" - ")?;
    let mut words = rest.split(' ');
    let (kind, source) = (words.next()?, unescaped(words.next()?));
    let volume = source.strip_prefix("rekindle:").filter(|_| kind == TYPE)?;
    Some(format!("the volume '{volume}'"))
}

/// Reverses the kernel's way to write blanks: `\040`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match number.filter(|_| byte == b'\\') {
            Some(number) => (bytes.push(number), rest = &after[3..]).1,
            None => (bytes.push(byte), rest = after).1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_in_the_kernels_table() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 22 0:40 / /mnt/my\\040files rw - fuse.rekindle rekindle:a\\040b rw,user_id=0\n\
            31 22 0:41 / /mnt/other rw - fuse.sshfs rekindle:x rw\n";
        let found = |folder: &str| listed(table, Path::new(folder));
        assert_eq!(found("/mnt/my files").as_deref(), Some("the volume 'a b'"));
        assert_eq!(found("/mnt/other"), None);
        assert_eq!(found("/mnt"), None);
    }
}
