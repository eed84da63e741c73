//! What the model says of access control lists: by their bytes, without the code under test.

use super::Node;
use rekindle_base::random::Random;
use rekindle_file::{Errno, FileType};

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const OWNER: u16 = 1;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// Draws a list: one that says what a mode says, or one with names and a mask.
pub fn draw(dice: &mut Random) -> Vec<u8> {
    let tags: &[u16] = match dice.below(3) {
        0 => &[OWNER, GROUP, OTHER],
        1 => &[OWNER, 2, GROUP, MASK, OTHER],
        _ => &[OWNER, 2, GROUP, 8, MASK, OTHER],
    };
    let mut bytes = vec![2, 0, 0, 0];
    for &tag in tags {
        let id: u32 = if matches!(tag, 2 | 8) { 77 } else { u32::MAX };
        bytes.extend(tag.to_le_bytes());
        bytes.extend([dice.below(8) as u8, 0]);
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The place of the bits of an entry.
fn place(acl: &[u8], tag: u16) -> Option<usize> {
    (4..acl.len()).step_by(8).find(|at| acl[*at..*at + 2] == tag.to_le_bytes()).map(|at| at + 2)
}

/// The entries that show in a mode, and where.
fn shown(acl: &[u8]) -> [(usize, u16); 3] {
    let group = place(acl, MASK).or(place(acl, GROUP));
    [(place(acl, OWNER), 6), (group, 3), (place(acl, OTHER), 0)]
        .map(|(at, shift)| (at.expect("each list has it"), shift))
}

fn mode_of(acl: &[u8]) -> u16 {
    shown(acl).iter().map(|(at, shift)| u16::from(acl[*at]) << shift).sum()
}

fn set_mode(acl: &mut [u8], mode: u16) {
    for (at, shift) in shown(acl) {
        acl[at] = (mode >> shift & 7) as u8;
    }
}

impl Node {
    /// Sets a list.
    pub(super) fn set_list(&mut self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self.kind {
            FileType::Symlink => return Err(Errno::OPNOTSUPP),
            FileType::Directory => {}
            _ if name == DEFAULT => return Err(Errno::ACCESS),
            _ => {}
        }
        if name == ACCESS {
            self.mode = self.mode & 0o7000 | mode_of(value);
        }
        match name == ACCESS && place(value, MASK).is_none() {
            true => drop(self.xattrs.remove(name)),
            false => drop(self.xattrs.insert(name.to_vec(), value.to_vec())),
        }
        Ok(())
    }

    /// Sets the mode, which the list follows.
    pub(super) fn set_mode(&mut self, mode: u16) {
        self.mode = mode;
        if let Some(acl) = self.xattrs.get_mut(ACCESS) {
            set_mode(acl, mode);
        }
    }

    /// Takes what a new node has of its directory; the bits of `umask` go where that says nothing.
    pub(super) fn inherit(&mut self, dir: &Node, umask: u16) {
        let Some(default) = dir.xattrs.get(DEFAULT).filter(|_| self.kind != FileType::Symlink)
        else {
            self.mode &= !umask;
            return;
        };
        let mut acl = default.clone();
        self.mode &= mode_of(&acl) | 0o7000;
        set_mode(&mut acl, self.mode);
        if place(&acl, MASK).is_some() {
            self.xattrs.insert(ACCESS.to_vec(), acl);
        }
        if self.kind == FileType::Directory {
            self.xattrs.insert(DEFAULT.to_vec(), default.clone());
        }
    }
}
