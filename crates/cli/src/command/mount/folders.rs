//! Attributes of folders as a change has left them. After each change of a name the kernel asks for
//! those of its folder, before the next one: a round trip for each file that is made or removed.
//! The daemon tells them with the reply to the change, and the mount answers.

use super::names::new_folder;
use rekindle_front::fuse::limits::BELIEVED;
use rekindle_front::fuse::wire::{
    AttrOut, InHeader, OUT_HEADER_BYTES, OutHeader, ValidAttrOut, opcode,
};
use std::collections::HashMap;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

/// Folders that are remembered at most.
const KNOWN_MAX: usize = 4096;

/// What is known of folders.
#[derive(Default)]
pub struct Folders {
    known: HashMap<u64, (AttrOut, Instant)>,
    /// Inodes of which requests without a reply change attributes.
    changes: HashMap<u64, Changes>,
    /// Attributes that the daemon has told of requests whose replies come next.
    told: Vec<(u64, AttrOut)>,
}

/// The requests that change an inode.
#[derive(Default)]
struct Changes {
    count: usize,
    /// Whether there were several at once since the last time when there was none.
    are_several: bool,
}

/// Makes a reply to GETATTR or SETATTR.
pub fn attributes(unique: u64, body: &ValidAttrOut) -> Vec<u8> {
    let length = (OUT_HEADER_BYTES + size_of::<ValidAttrOut>()) as u32;
    let head = OutHeader { length, error: 0, unique };
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Returns the inodes whose attributes a request changes, as far as they may be folders.
fn changed(header: &InHeader, request: &[u8]) -> [Option<u64>; 2] {
    match header.opcode {
        opcode::CREATE
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::SYMLINK
        | opcode::LINK
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::SETATTR
        | opcode::SETXATTR
        | opcode::REMOVEXATTR => [Some(header.ino), None],
        opcode::RENAME | opcode::RENAME2 => {
            [Some(header.ino), new_folder(request).filter(|to| *to != header.ino)]
        }
        _ => [None, None],
    }
}

impl Folders {
    /// Takes note of a request.
    pub fn asked(&mut self, header: &InHeader, request: &[u8]) {
        for ino in changed(header, request).into_iter().flatten() {
            let changes = self.changes.entry(ino).or_default();
            changes.count += 1;
            changes.are_several |= changes.count > 1;
        }
    }

    /// Takes note of what the daemon tells of a folder: the number of the kernel's request, and the
    /// attributes.
    pub fn told(&mut self, notice: &[u8]) {
        if let Ok((unique, rest)) = u64::read_from_prefix(notice)
            && let Ok((attr, _)) = AttrOut::read_from_prefix(rest)
        {
            self.told.push((unique, attr));
        }
    }

    /// Takes note that a request has its reply, or will have none. Of several changes at once it is
    /// not known which one is the last: the daemon is asked again then. `is_believed`: names and
    /// attributes of a folder are.
    pub fn answered(
        &mut self,
        header: &InHeader,
        request: &[u8],
        is_believed: impl Fn(u64) -> bool,
        now: Instant,
    ) {
        let inodes = changed(header, request);
        if inodes == [None, None] {
            return;
        }
        let told: Vec<AttrOut> =
            self.told.extract_if(.., |told| told.0 == header.unique).map(|told| told.1).collect();
        for ino in inodes.into_iter().flatten() {
            self.known.remove(&ino);
            let Some(changes) = self.changes.get_mut(&ino) else { continue };
            changes.count -= 1;
            let is_alone = !changes.are_several;
            if changes.count == 0 {
                self.changes.remove(&ino);
            }
            let attr = told.iter().find(|attr| attr.ino == ino && is_alone && is_believed(ino));
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.extend(attr.map(|attr| (ino, (*attr, now))));
        }
    }

    /// Answers a request for the attributes of a folder, which the kernel believes for the rest of
    /// the time since they were told.
    pub fn answer(&self, header: &InHeader, now: Instant) -> Option<Vec<u8>> {
        if header.opcode != opcode::GETATTR {
            return None;
        }
        let (attr, at) = *self.known.get(&header.ino)?;
        let rest = BELIEVED.checked_sub(now.saturating_duration_since(at))?;
        let (seconds, nanoseconds) = (rest.as_secs(), rest.subsec_nanos());
        let body = ValidAttrOut { seconds, nanoseconds, attr, ..ValidAttrOut::default() };
        Some(attributes(header.unique, &body))
    }

    /// Forgets what is known: of an inode, or of all.
    pub fn forget(&mut self, ino: Option<u64>) {
        match ino {
            Some(ino) => drop(self.known.remove(&ino)),
            None => {
                self.known.clear();
                self.told.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_front::fuse::wire::IN_HEADER_BYTES;
    use std::time::Duration;

    const FOLDER: u64 = 10;

    fn header(opcode: u32, unique: u64, ino: u64) -> InHeader {
        InHeader { length: 40, opcode, unique, ino, uid: 0, gid: 0, pid: 0, extensions: 0 }
    }

    fn request(to: u64) -> Vec<u8> {
        [&[0; IN_HEADER_BYTES][..], &to.to_ne_bytes()].concat()
    }

    fn told(unique: u64, ino: u64, links: u32) -> Vec<u8> {
        let attr = AttrOut { ino, links, ..AttrOut::default() };
        [unique.as_bytes(), attr.as_bytes()].concat()
    }

    /// What the kernel hears of a folder: its links, and for how many milliseconds they count.
    fn links(folders: &Folders, ino: u64, now: Instant) -> Option<(u32, u64)> {
        let reply = folders.answer(&header(opcode::GETATTR, 90, ino), now)?;
        let body = ValidAttrOut::read_from_bytes(&reply[OUT_HEADER_BYTES..]).expect("attributes");
        assert_eq!(body.attr.ino, ino);
        let valid = Duration::new(body.seconds, body.nanoseconds);
        Some((body.attr.links, valid.as_millis() as u64))
    }

    #[test]
    fn a_folder_is_known_for_a_second_after_a_change() {
        let now = Instant::now();
        let after = |milliseconds| now + Duration::from_millis(milliseconds);
        let mut folders = Folders::default();
        let change = header(opcode::MKDIR, 2, FOLDER);
        folders.asked(&change, &[]);
        folders.told(&told(2, FOLDER, 3));
        assert_eq!(links(&folders, FOLDER, now), None, "its reply comes next");
        folders.answered(&change, &[], |_| true, now);
        assert_eq!(links(&folders, FOLDER, now), Some((3, 1000)));
        assert_eq!(links(&folders, FOLDER, after(400)), Some((3, 600)));
        assert_eq!(links(&folders, FOLDER, after(1001)), None);
        assert_eq!(folders.answer(&header(opcode::LOOKUP, 4, FOLDER), now), None);
        // What says nothing of the folder ends that, and so does the kernel.
        for end in 0..4 {
            folders.asked(&change, &[]);
            folders.told(&told(2, FOLDER, 3));
            folders.answered(&change, &[], |_| true, now);
            assert!(links(&folders, FOLDER, now).is_some());
            let set = header(opcode::SETATTR, 4, FOLDER);
            match end {
                0 => folders.forget(Some(FOLDER)),
                1 => folders.forget(None),
                2 => {
                    folders.asked(&set, &[]);
                    folders.answered(&set, &[], |_| true, now);
                }
                _ => {
                    folders.asked(&change, &[]);
                    folders.told(&told(2, FOLDER, 3));
                    folders.answered(&change, &[], |ino| ino != FOLDER, now);
                }
            }
            assert_eq!(links(&folders, FOLDER, now), None, "{end}");
        }
        assert!(folders.changes.is_empty() && folders.told.is_empty());
    }

    #[test]
    fn of_changes_at_once_none_is_taken_for_the_last() {
        let now = Instant::now();
        let mut folders = Folders::default();
        let [one, two] = [2, 4].map(|unique| header(opcode::CREATE, unique, FOLDER));
        folders.asked(&one, &[]);
        folders.asked(&two, &[]);
        folders.told(&told(4, FOLDER, 4));
        folders.answered(&two, &[], |_| true, now);
        assert_eq!(links(&folders, FOLDER, now), None);
        folders.told(&told(2, FOLDER, 3));
        folders.answered(&one, &[], |_| true, now);
        assert_eq!(links(&folders, FOLDER, now), None, "it may be older than the other one");
        folders.asked(&one, &[]);
        folders.told(&told(2, FOLDER, 5));
        folders.answered(&one, &[], |_| true, now);
        assert_eq!(links(&folders, FOLDER, now), Some((5, 1000)), "it is alone");
    }

    #[test]
    fn a_renaming_tells_of_both_folders() {
        let now = Instant::now();
        let mut folders = Folders::default();
        for to in [FOLDER, 20] {
            let (rename, request) = (header(opcode::RENAME2, 2, FOLDER), request(to));
            folders.asked(&rename, &request);
            folders.told(&told(2, FOLDER, 5));
            folders.told(&told(2, to, 6));
            folders.answered(&rename, &request, |_| true, now);
            assert_eq!(links(&folders, FOLDER, now), Some((5, 1000)));
        }
        assert_eq!(links(&folders, 20, now), Some((6, 1000)));
        assert!(folders.changes.is_empty());
    }
}
