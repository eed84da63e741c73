//! Access control lists, as POSIX.1e drafted them and Linux keeps them: who may do what with an
//! inode, beyond the three classes of its mode.
//!
//! A list lies in an extended attribute, in the kernel's bytes: version 2 (4), then for each entry
//! its tag (2), its bits (2) and whom it names (4), in the order of the tags. The owner's bits, the
//! others', and the mask (without one: the group's) are those of the mode, always.
//!
//! See also `docs/format/files.md`.

use crate::types::{Attr, Errno};
use std::ops::Deref;

/// Most entries of a list: the kernel takes no more bytes than a page from a file system.
pub const ACL_ENTRIES_MAX: usize = 511;

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The bits of a mode that a mask shows in.
const GROUP_CLASS: u16 = 0o070;
/// What an entry names that names nothing.
const UNNAMED: u32 = u32::MAX;

/// The tags of entries, in the order that they have in a list.
pub mod tag {
    pub const OWNER: u16 = 1;
    pub const USER: u16 = 2;
    pub const GROUP_OF_FILE: u16 = 4;
    pub const GROUP: u16 = 8;
    pub const MASK: u16 = 16;
    pub const OTHER: u16 = 32;
}

/// The lists that an inode may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclOf {
    /// Its own.
    Access,
    /// Of a directory: the one that inodes get which are made in it.
    Default,
}

impl AclOf {
    /// The extended attribute that has the list.
    #[must_use]
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// Returns which list an extended attribute has; `None`: it is any other one.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        [Self::Access, Self::Default].into_iter().find(|of| of.name() == name)
    }
}

/// An entry of a list: its tag, its bits, and whom it names.
pub type AclEntry = (u16, u16, u32);

/// A list. Bits are those of one class of a mode: read 4, write 2, execute 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    owner: u16,
    /// By number.
    users: Vec<(u32, u16)>,
    group: u16,
    groups: Vec<(u32, u16)>,
    /// The most that named users and any groups have; there is one if anyone is named.
    mask: Option<u16>,
    other: u16,
}

impl Acl {
    /// Makes a list of entries. Tags must be in their order, and no entry may be there twice.
    pub fn new(entries: &[AclEntry]) -> Result<Self, Errno> {
        if entries.len() > ACL_ENTRIES_MAX {
            return Err(Errno::TOOBIG);
        }
        if !entries.is_sorted_by_key(|(tag, _, _)| *tag) {
            return Err(Errno::INVAL);
        }
        let (mut owner, mut group, mut mask, mut other) = (None, None, None, None);
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for &(tag, bits, id) in entries {
            if bits > 7 {
                return Err(Errno::INVAL);
            }
            let single = match tag {
                tag::OWNER => &mut owner,
                tag::GROUP_OF_FILE => &mut group,
                tag::MASK => &mut mask,
                tag::OTHER => &mut other,
                tag::USER | tag::GROUP if id == UNNAMED => return Err(Errno::INVAL),
                tag::USER => {
                    users.push((id, bits));
                    continue;
                }
                tag::GROUP => {
                    groups.push((id, bits));
                    continue;
                }
                _ => return Err(Errno::INVAL),
            };
            if single.replace(bits).is_some() {
                return Err(Errno::INVAL);
            }
        }
        for named in [&mut users, &mut groups] {
            named.sort_unstable();
            if named.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return Err(Errno::INVAL);
            }
        }
        let names_any = !users.is_empty() || !groups.is_empty();
        match (owner, group, other) {
            (Some(owner), Some(group), Some(other)) if mask.is_some() || !names_any => {
                Ok(Self { owner, users, group, groups, mask, other })
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns the entries, in their order.
    #[must_use]
    pub fn entries(&self) -> Vec<AclEntry> {
        let plain = |tag, bits| (tag, bits, UNNAMED);
        let mut entries = vec![plain(tag::OWNER, self.owner)];
        entries.extend(self.users.iter().map(|(id, bits)| (tag::USER, *bits, *id)));
        entries.push(plain(tag::GROUP_OF_FILE, self.group));
        entries.extend(self.groups.iter().map(|(id, bits)| (tag::GROUP, *bits, *id)));
        entries.extend(self.mask.map(|bits| plain(tag::MASK, bits)));
        entries.push(plain(tag::OTHER, self.other));
        entries
    }

    /// Reads the bytes of an extended attribute.
    pub fn parse(bytes: &[u8]) -> Result<Self, Errno> {
        let (version, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(Errno::INVAL);
        }
        let entry = |&[t, a, b, c, id @ ..]: &[u8; ENTRY_BYTES]| {
            (u16::from_le_bytes([t, a]), u16::from_le_bytes([b, c]), u32::from_le_bytes(id))
        };
        Self::new(&entries.iter().map(entry).collect::<Vec<_>>())
    }

    /// Returns the bytes of the extended attribute.
    #[must_use]
    pub fn format(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, bits, id) in self.entries() {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&bits.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Returns the list that says what a mode says.
    #[must_use]
    pub fn of_mode(mode: u16) -> Self {
        let [owner, group, other] = classes(mode);
        Self { owner, users: Vec::new(), group, groups: Vec::new(), mask: None, other }
    }

    /// Whether a mode says all of it.
    #[must_use]
    pub fn is_a_mode(&self) -> bool {
        self.mask.is_none()
    }

    /// Returns the permission bits of the inode's mode.
    #[must_use]
    pub fn mode(&self) -> u16 {
        self.owner << 6 | self.mask.unwrap_or(self.group) << 3 | self.other
    }

    /// Returns the list after the inode has got another mode.
    #[must_use]
    pub fn with_mode(&self, mode: u16) -> Self {
        let [owner, group, other] = classes(mode);
        let mut acl = Self { owner, other, ..self.clone() };
        *acl.mask.as_mut().unwrap_or(&mut acl.group) = group;
        acl
    }

    /// Returns the list of an inode that is made with a mode in a directory of which this is the
    /// default one. Neither gives more than the other.
    #[must_use]
    pub fn inherited(&self, mode: u16) -> Self {
        self.with_mode(mode & self.mode())
    }

    /// Whether the list gives a caller all that is wanted. The first that fits decides: the owner's
    /// entry, the one of the user, those of the groups that the caller is in (one of which must
    /// give all), the one of the others.
    #[must_use]
    pub fn gives(&self, of: &Attr, uid: u32, is_in: impl Fn(u32) -> bool, wanted: u16) -> bool {
        let has = |bits: u16| bits & wanted == wanted;
        let has_masked = |bits: u16| has(bits & self.mask.unwrap_or(7));
        if uid == of.uid {
            return has(self.owner);
        }
        if let Some((_, bits)) = self.users.iter().find(|(user, _)| *user == uid) {
            return has_masked(*bits);
        }
        let own = is_in(of.gid).then_some(self.group);
        let named = self.groups.iter().filter(|(group, _)| is_in(*group)).map(|(_, bits)| *bits);
        let mut groups = own.into_iter().chain(named).peekable();
        match groups.peek() {
            Some(_) => groups.any(has_masked),
            None => has(self.other),
        }
    }
}

/// The three classes of a mode.
fn classes(mode: u16) -> [u16; 3] {
    [mode >> 6 & 7, mode >> 3 & 7, mode & 7]
}

/// What decides who may do what with an inode: its attributes, and its list, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    pub attr: Attr,
    pub acl: Option<Acl>,
}

impl Rights {
    /// Whether a caller has all that is wanted. One class decides. As in Linux, a list counts for
    /// nothing where the mode gives the group's class nothing: else who is named would have less
    /// over NFS than on a mount.
    #[must_use]
    pub fn give(&self, uid: u32, is_in: impl Fn(u32) -> bool, wanted: u16) -> bool {
        let of_mode;
        let acl = match &self.acl {
            Some(acl) if self.attr.mode & GROUP_CLASS != 0 => acl,
            _ => {
                of_mode = Acl::of_mode(self.attr.mode);
                &of_mode
            }
        };
        acl.gives(&self.attr, uid, is_in, wanted)
    }
}

/// Those of an inode that has no list.
impl From<Attr> for Rights {
    fn from(attr: Attr) -> Self {
        Self { attr, acl: None }
    }
}

impl Deref for Rights {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

#[cfg(test)]
mod tests;
