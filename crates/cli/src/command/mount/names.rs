//! What the kernel may believe of names and attributes: for a second, as the daemon says, but not
//! at all in a folder of which a program has locked a file. Programs that lock files of one folder
//! at several mounts (databases, say) tell one another by names, too: a database looks for the
//! journal of a program that has died as soon as it has the lock.
//!
//! A file has its folder from the name by which it was last found before it was opened.

use rekindle_front::fuse::limits::BELIEVED;
use rekindle_front::fuse::wire::{EntryOut, IN_HEADER_BYTES, InHeader, NameOut, OUT_HEADER_BYTES};
use rekindle_front::fuse::wire::{ValidAttrOut, opcode};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Time between a reply and the moment from which the kernel counts, at most.
const ON_ITS_WAY: Duration = Duration::from_millis(250);
/// Time for which a name may lead to an open file: many times that for which it is believed.
const KEPT: Duration = Duration::from_secs(10);
/// Names that are remembered at most.
const KEPT_MAX: usize = 1 << 16;

/// The names that the kernel has been given, and the folders in which it may believe none.
#[derive(Default)]
pub struct Names {
    /// The names of the last seconds, oldest first.
    given: VecDeque<Given>,
    /// The last name of each inode among them: its folder, and when it was given.
    by_inode: HashMap<u64, (u64, Instant)>,
    /// When the last name was given that had to make room too early.
    dropped: Option<Instant>,
    /// The folder of each open file.
    open: HashMap<u64, u64>,
    /// Folders of which a file was locked, and the time from which on no name is believed there.
    doubted: HashMap<u64, Instant>,
}

struct Given {
    at: Instant,
    folder: u64,
    /// Zero: there is no such name, or it is not known what it leads to.
    ino: u64,
}

/// Returns the folder into which a RENAME or RENAME2 moves a name: its first word.
pub fn new_folder(request: &[u8]) -> Option<u64> {
    u64::read_from_prefix(request.get(IN_HEADER_BYTES..)?).ok().map(|(folder, _)| folder)
}

impl Names {
    /// Takes note of a reply without an error, and changes for how long it is believed.
    pub fn answered(&mut self, header: &InHeader, request: &[u8], reply: &mut [u8], now: Instant) {
        let Some((_, body)) = reply.split_at_mut_checked(OUT_HEADER_BYTES) else { return };
        match header.opcode {
            opcode::LOOKUP
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::LINK
            | opcode::CREATE => {
                let ino = self.entry(header.ino, body, now);
                if header.opcode == opcode::CREATE {
                    self.open.extend(ino.map(|ino| (ino, header.ino)));
                }
            }
            opcode::RENAME | opcode::RENAME2 => {
                // Both, since the names may be exchanged.
                for folder in new_folder(request).into_iter().chain([header.ino]) {
                    self.moved(folder, now);
                }
            }
            opcode::READDIRPLUS => self.listing(header.ino, body, now),
            opcode::OPEN => {
                let found = self.by_inode.get(&header.ino);
                self.open.extend(found.map(|(folder, _)| (header.ino, *folder)));
            }
            opcode::GETATTR | opcode::SETATTR if self.is_doubted(header.ino) => {
                if let Ok((out, _)) = ValidAttrOut::read_from_prefix(body) {
                    let out = ValidAttrOut { seconds: 0, nanoseconds: 0, ..out };
                    body[..size_of::<ValidAttrOut>()].copy_from_slice(out.as_bytes());
                }
            }
            _ => {}
        }
    }

    /// Whether attributes of an inode must not be believed: those of an open file, or of a folder.
    fn is_doubted(&self, ino: u64) -> bool {
        !self.doubted.is_empty()
            && (self.doubted.contains_key(&ino)
                || self.open.get(&ino).is_some_and(|folder| self.doubted.contains_key(folder)))
    }

    /// Takes note of the name at the beginning of these bytes. Returns its inode.
    fn entry(&mut self, folder: u64, body: &mut [u8], now: Instant) -> Option<u64> {
        let (entry, _) = EntryOut::read_from_prefix(body).ok()?;
        if self.doubted.contains_key(&folder) {
            let entry = EntryOut {
                entry_seconds: 0,
                attr_seconds: 0,
                entry_nanoseconds: 0,
                attr_nanoseconds: 0,
                ..entry
            };
            body[..size_of::<EntryOut>()].copy_from_slice(entry.as_bytes());
        }
        self.give(Given { at: now, folder, ino: entry.ino });
        Some(entry.ino)
    }

    fn give(&mut self, given: Given) {
        let is_old = |old: &Given| given.at.saturating_duration_since(old.at) > KEPT;
        while self.given.front().is_some_and(is_old) || self.given.len() >= KEPT_MAX {
            let Some(old) = self.given.pop_front() else { break };
            self.dropped = Some(old.at);
            if self.by_inode.get(&old.ino).is_some_and(|(_, at)| *at == old.at) {
                self.by_inode.remove(&old.ino);
            }
        }
        self.by_inode.insert(given.ino, (given.folder, given.at));
        self.given.push_back(given);
    }

    fn listing(&mut self, folder: u64, mut body: &mut [u8], now: Instant) {
        const HEAD: usize = size_of::<EntryOut>();
        let head = |body: &[u8]| Some(NameOut::read_from_prefix(body.get(HEAD..)?).ok()?.0);
        while let Some(name) = head(body) {
            let total = HEAD + size_of::<NameOut>() + (name.length as usize).next_multiple_of(8);
            let Some((this, rest)) = body.split_at_mut_checked(total) else { return };
            self.entry(folder, this, now);
            body = rest;
        }
    }

    /// A name has come to a folder by a renaming. The kernel believes it as long as the one that it
    /// was, which no reply says anew.
    fn moved(&mut self, folder: u64, now: Instant) {
        if let Some(until) = self.doubted.get_mut(&folder) {
            *until = now + BELIEVED + ON_ITS_WAY;
        }
        self.give(Given { at: now, folder, ino: 0 });
    }

    /// Hears that a program has locked an open file: names of its folder are believed no more.
    /// Returns the time until which some may be that were given before.
    pub fn locked(&mut self, ino: u64, now: Instant) -> Option<Instant> {
        let folder = *self.open.get(&ino)?;
        let (given, dropped) = (&self.given, self.dropped);
        let until = self.doubted.entry(folder).or_insert_with(|| {
            // The name of the file itself is not what the lock is for.
            let others = given.iter().filter(|given| given.folder == folder && given.ino != ino);
            let last = others.map(|given| given.at).max().max(dropped);
            last.map_or(now, |last| last + BELIEVED + ON_ITS_WAY)
        });
        (*until > now).then_some(*until)
    }

    /// Whether names of a folder are not believed.
    pub fn are_doubted(&self, folder: u64) -> bool {
        self.doubted.contains_key(&folder)
    }

    /// Hears that a file is open no more.
    pub fn closed(&mut self, ino: u64) {
        self.open.remove(&ino);
    }

    /// Hears that the kernel has forgotten an inode, and, of a folder, all names in it.
    pub fn forgotten(&mut self, ino: u64) {
        self.doubted.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_front::fuse::wire::AttrOut;

    const FOLDER: u64 = 10;
    const FILE: u64 = 11;

    fn header(opcode: u32, ino: u64) -> InHeader {
        InHeader { length: 40, opcode, unique: 2, ino, uid: 0, gid: 0, pid: 0, extensions: 0 }
    }

    fn entry(ino: u64) -> EntryOut {
        let attr = AttrOut { ino, size: 77, ..AttrOut::default() };
        EntryOut { ino, entry_seconds: 1, attr_seconds: 1, attr, ..EntryOut::default() }
    }

    fn reply(body: &[u8]) -> Vec<u8> {
        [&[0; OUT_HEADER_BYTES], body].concat()
    }

    fn ask(names: &mut Names, opcode: u32, ino: u64, body: &[u8], now: Instant) -> Vec<u8> {
        let mut reply = reply(body);
        names.answered(&header(opcode, ino), &[0; IN_HEADER_BYTES], &mut reply, now);
        reply[OUT_HEADER_BYTES..].to_vec()
    }

    /// Seconds for which the kernel believes a name, and its attributes.
    fn look(names: &mut Names, folder: u64, ino: u64, now: Instant) -> (u64, u64) {
        let body = ask(names, opcode::LOOKUP, folder, entry(ino).as_bytes(), now);
        let got = EntryOut::read_from_bytes(&body).expect("an entry");
        assert_eq!((got.ino, got.attr.size), (ino, 77));
        (got.entry_seconds, got.attr_seconds)
    }

    /// Finds and opens the file.
    fn opened(now: Instant) -> Names {
        let mut names = Names::default();
        look(&mut names, FOLDER, FILE, now);
        ask(&mut names, opcode::OPEN, FILE, &[0; 16], now);
        names
    }

    fn after(milliseconds: u64, now: Instant) -> Instant {
        now + Duration::from_millis(milliseconds)
    }

    #[test]
    fn names_are_doubted_in_the_folder_of_a_locked_file_only() {
        let now = Instant::now();
        let mut names = opened(now);
        assert_eq!(look(&mut names, FOLDER, 12, now), (1, 1));
        assert_eq!(names.locked(FILE, after(5000, now)), None, "no name is believed for so long");
        for ino in [FILE, 12, 0] {
            assert_eq!(look(&mut names, FOLDER, ino, now), (0, 0));
        }
        assert_eq!(look(&mut names, 20, 21, now), (1, 1), "another folder");
        let made = ask(
            &mut names,
            opcode::CREATE,
            FOLDER,
            &[entry(13).as_bytes(), &[3; 16]].concat(),
            now,
        );
        assert_eq!(EntryOut::read_from_prefix(&made).expect("an entry").0.entry_seconds, 0);
        assert_eq!(made[size_of::<EntryOut>()..], [3; 16]);
        let attr = ValidAttrOut { seconds: 1, ..ValidAttrOut::default() };
        let mut seconds = |ino| {
            let body = ask(&mut names, opcode::GETATTR, ino, attr.as_bytes(), now);
            ValidAttrOut::read_from_bytes(&body).expect("attributes").seconds
        };
        assert_eq!([FILE, 13, FOLDER, 21].map(&mut seconds), [0, 0, 0, 1]);
        names.closed(FILE);
        names.forgotten(FOLDER);
        assert_eq!(look(&mut names, FOLDER, FILE, now), (1, 1), "the kernel has no name of it");
        assert_eq!(names.locked(FILE, now), None, "it is not open");
    }

    #[test]
    fn a_lock_waits_until_no_name_of_its_folder_is_believed() {
        let now = Instant::now();
        let mut names = opened(now);
        look(&mut names, 20, 21, after(900, now));
        assert_eq!(names.locked(FILE, after(10, now)), None, "its own name, and another folder's");
        for ino in [12, 0] {
            let mut names = opened(now);
            look(&mut names, FOLDER, ino, after(400, now));
            let until = names.locked(FILE, after(500, now)).expect("a name");
            assert_eq!(until, after(400, now) + BELIEVED + ON_ITS_WAY);
            look(&mut names, FOLDER, 14, after(600, now));
            assert_eq!(names.locked(FILE, after(700, now)), Some(until), "another lock beside it");
            assert_eq!(names.locked(FILE, until), None);
        }
    }

    #[test]
    fn a_name_that_comes_by_a_renaming_is_believed_as_before() {
        let now = Instant::now();
        let rename = |names: &mut Names, from: u64, to: u64, at| {
            let request = [&[0; IN_HEADER_BYTES][..], &to.to_ne_bytes()].concat();
            names.answered(&header(opcode::RENAME2, from), &request, &mut reply(&[]), at);
        };
        for (from, to) in [(20, FOLDER), (FOLDER, 20)] {
            let mut names = opened(now);
            rename(&mut names, from, to, after(300, now));
            let until = after(300, now) + BELIEVED + ON_ITS_WAY;
            assert_eq!(names.locked(FILE, after(400, now)), Some(until));
            rename(&mut names, from, to, after(9000, now));
            let until = after(9000, now) + BELIEVED + ON_ITS_WAY;
            assert_eq!(names.locked(FILE, after(9100, now)), Some(until), "also later");
        }
    }

    #[test]
    fn a_listing_gives_names_too() {
        let now = Instant::now();
        let listed = |ino: u64, name: &[u8]| {
            let out = NameOut { ino, next: 1, length: name.len() as u32, kind: 8 };
            let padding = vec![0; name.len().next_multiple_of(8) - name.len()];
            [entry(ino).as_bytes(), out.as_bytes(), name, &padding].concat()
        };
        let all = [listed(12, b"abc"), listed(13, b"12345678"), listed(14, b"x")].concat();
        let mut names = opened(now);
        assert_eq!(ask(&mut names, opcode::READDIRPLUS, FOLDER, &all, now), all);
        let until = names.locked(FILE, now).expect("names");
        assert_eq!(until, now + BELIEVED + ON_ITS_WAY);
        let mut body = &ask(&mut names, opcode::READDIRPLUS, FOLDER, &all, now)[..];
        for (ino, total) in [(12, 160), (13, 160), (14, 160)] {
            let (got, _) = EntryOut::read_from_prefix(body).expect("an entry");
            assert_eq!((got.ino, got.entry_seconds, got.attr_seconds), (ino, 0, 0));
            assert_eq!(got.attr.size, 77);
            body = &body[total..];
        }
        assert!(body.is_empty());
        for cut in 0..all.len() {
            // A daemon that sends nonsense ends no mount.
            ask(&mut names, opcode::READDIRPLUS, FOLDER, &all[..cut], now);
        }
    }

    #[test]
    fn many_names_are_remembered_in_little_memory() {
        let now = Instant::now();
        let mut names = opened(now);
        for ino in 0..3 * KEPT_MAX as u64 {
            look(&mut names, 20, 100 + ino, after(ino / 1000, now));
        }
        assert!(names.given.len() <= KEPT_MAX && names.by_inode.len() <= KEPT_MAX);
        // Those of the folder may be among those that are gone.
        let dropped = names.dropped.expect("some");
        assert_eq!(names.locked(FILE, dropped), Some(dropped + BELIEVED + ON_ITS_WAY));
        look(&mut names, 20, 21, after(60_000, now));
        assert_eq!((names.given.len(), names.by_inode.len()), (1, 1), "after a while");
    }
}
