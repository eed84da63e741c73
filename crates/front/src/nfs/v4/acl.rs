//! Access control lists as version 4 has them (RFC 8881, section 6.2), and the lists of POSIX that
//! they stand for here ([`rekindle_file::Acl`]). Pure.
//!
//! An entry allows or denies rights to one or many. For each right, the first entry that names it
//! and fits the caller decides. So a list of POSIX, where one class decides for a caller, needs
//! denials: behind an entry that gives less than a later one that may fit the same caller. What a
//! mask hides is denied before it is allowed, so that nothing is lost on the way back. A mask that
//! has more than anyone shows in a denial for the group that changes nothing.
//!
//! On the way back, the owner, each one who is named, the group and all others get what the entries
//! give to one who is only that. Who is several of these may have less here than the entries say,
//! which the protocol lets a server do. A list by which he had more is refused; but an owner may
//! give himself anything, so what his name or his groups are denied is not looked at.

use super::codec::Write;
use super::limits;
use super::status::{Fault, Status};
use crate::nfs::xdr::{Args, Garbage};
use rekindle_file::{Acl, tag};
use std::collections::BTreeMap;

/// Kinds of entries, and those that a server may have besides.
const ALLOW: u32 = 0;
const DENY: u32 = 1;
const ALARM: u32 = 3;

/// What ACLSUPPORT says: entries that allow and that deny.
pub const SUPPORT: u32 = 1 << ALLOW | 1 << DENY;

/// Flags of an entry: it is for new files, for new directories, and not for the directory itself.
const FOR_FILES: u32 = 1;
const FOR_DIRECTORIES: u32 = 2;
const FOR_NEW_ONLY: u32 = 8;
/// It names a group.
const OF_GROUP: u32 = 0x40;
const FOR_NEW: u32 = FOR_FILES | FOR_DIRECTORIES;

/// Rights of an entry. What POSIX has for one right, to write, is several here.
const READ: u32 = 1;
const WRITE: u32 = 2 | 4;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
/// What everyone may who can name an inode: to see its attributes and its list.
const SEES: u32 = 0x80 | 0x2_0000 | 0x10_0000;
/// What an owner may: to set these.
const OWNS: u32 = 0x100 | 0x4_0000;
/// All that there are.
const RIGHTS: u32 = 0x1f_07ff;

/// Longest name of a user or a group that is read: a number in digits.
const DIGITS_MAX: usize = 10;
/// Bytes of the shortest entry.
const ENTRY_BYTES_MIN: usize = 16;

/// Whom an entry fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Owner,
    Group,
    Everyone,
    User(u32),
    Named(u32),
}

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    denies: bool,
    flags: u32,
    rights: u32,
    who: Who,
}

impl Entry {
    fn read(args: &mut Args<'_>) -> Result<Self, Fault> {
        let (kind, flags, rights) = (args.u32()?, args.u32()?, args.u32()?);
        let name = args.opaque(limits::OWNER_BYTES_MAX)?;
        if kind > ALARM || rights & !RIGHTS != 0 {
            return Err(Status::INVAL.into());
        }
        let is_for_new = match flags & FOR_NEW {
            0 if flags & FOR_NEW_ONLY != 0 => return Err(Status::INVAL.into()),
            0 => Some(false),
            FOR_NEW => Some(true),
            // One list is for new files and directories.
            _ => None,
        };
        let is_known = flags & !(FOR_NEW | FOR_NEW_ONLY | OF_GROUP) == 0;
        if kind > DENY || !is_known || is_for_new.is_none() {
            return Err(Status::ATTRNOTSUPP.into());
        }
        let who = match name {
            b"OWNER@" => Who::Owner,
            b"GROUP@" => Who::Group,
            b"EVERYONE@" => Who::Everyone,
            name if flags & OF_GROUP != 0 => Who::Named(number(name)?),
            name => Who::User(number(name)?),
        };
        Ok(Self { denies: kind == DENY, flags, rights, who })
    }

    fn put(&self, out: &mut Vec<u8>) {
        let is_group = matches!(self.who, Who::Group | Who::Named(_));
        out.put_u32(if self.denies { DENY } else { ALLOW });
        out.put_u32(self.flags | if is_group { OF_GROUP } else { 0 });
        out.put_u32(self.rights);
        match self.who {
            Who::Owner => out.put_opaque(b"OWNER@"),
            Who::Group => out.put_opaque(b"GROUP@"),
            Who::Everyone => out.put_opaque(b"EVERYONE@"),
            Who::User(id) | Who::Named(id) => out.put_opaque(id.to_string().as_bytes()),
        }
    }

    /// Returns the bits of one class of a mode that the entry is about. Rights that no list of
    /// POSIX speaks of (to remove, to give away, to see and set attributes) are passed over.
    fn bits(&self, is_dir: bool) -> Result<u16, Status> {
        let has = |rights: u32| self.rights & rights == rights;
        let some = self.rights & WRITE != 0;
        let removes = is_dir && self.denies && has(DELETE_CHILD);
        if (some || removes) && !has(WRITE) {
            // A part of what is one right here.
            return Err(Status::ATTRNOTSUPP);
        }
        let bit = |rights, bit| if has(rights) { bit } else { 0 };
        Ok(bit(READ, 4) | bit(WRITE, 2) | bit(EXECUTE, 1))
    }
}

/// Reads whom a text names: a number in digits, as clients without a directory of users have it.
pub fn number(text: &[u8]) -> Result<u32, Fault> {
    if text.is_empty() {
        return Err(Status::INVAL.into());
    }
    let digits = text.len() <= DIGITS_MAX && text.iter().all(u8::is_ascii_digit);
    let number = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten();
    number.ok_or(Status::BADOWNER.into())
}

/// Reads the entries of a list.
pub fn read(args: &mut Args<'_>) -> Result<Vec<Entry>, Fault> {
    let count = args.u32()? as usize;
    if count > args.0.len() / ENTRY_BYTES_MIN {
        return Err(Garbage.into());
    }
    if count > limits::ACL_ENTRIES_MAX {
        return Err(Status::INVAL.into());
    }
    (0..count).map(|_| Entry::read(args)).collect()
}

/// The lists of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lists {
    pub access: Acl,
    pub default: Option<Acl>,
}

impl Lists {
    /// Those of an inode of which only the mode is known.
    pub fn of_mode(mode: u16) -> Self {
        Self { access: Acl::of_mode(mode), default: None }
    }

    /// Returns the lists that entries stand for.
    pub fn of(entries: &[Entry], is_dir: bool) -> Result<Self, Status> {
        let is_for_new = |entry: &&Entry| entry.flags & FOR_NEW != 0;
        let of_default: Vec<_> = entries.iter().filter(is_for_new).copied().collect();
        if !is_dir && !of_default.is_empty() {
            return Err(Status::ATTRNOTSUPP);
        }
        let is_for_it = |entry: &&Entry| entry.flags & FOR_NEW_ONLY == 0;
        let of_access: Vec<_> = entries.iter().filter(is_for_it).copied().collect();
        let access = Sheet::read(&of_access, is_dir)?.acl()?;
        if of_default.is_empty() {
            return Ok(Self { access, default: None });
        }
        let mut default = Sheet::read(&of_default, is_dir)?;
        let is_named = |entry: &Entry| matches!(entry.who, Who::User(_) | Who::Named(_));
        if of_default.iter().all(is_named) {
            default.take_classes(&access);
        }
        Ok(Self { access, default: Some(default.acl()?) })
    }

    /// Writes them as one list.
    pub fn put(&self, out: &mut Vec<u8>, is_dir: bool) {
        let mut entries = Vec::new();
        show(&mut entries, &self.access, 0, is_dir);
        if let Some(default) = &self.default {
            show(&mut entries, default, FOR_NEW | FOR_NEW_ONLY, is_dir);
        }
        out.put_u32(entries.len() as u32);
        entries.iter().for_each(|entry| entry.put(out));
    }
}

/// Adds the entries that say what a list says.
fn show(entries: &mut Vec<Entry>, acl: &Acl, flags: u32, is_dir: bool) {
    let (mut owner, mut group, mut other, mut mask) = (0, 0, 0, None);
    let (mut users, mut groups) = (Vec::new(), Vec::new());
    for (tag, bits, id) in acl.entries() {
        match tag {
            tag::OWNER => owner = bits,
            tag::USER => users.push((Who::User(id), bits)),
            tag::GROUP_OF_FILE => {
                group = bits;
                groups.push((Who::Group, bits));
            }
            tag::GROUP => groups.push((Who::Named(id), bits)),
            tag::MASK => mask = Some(bits),
            _ => other = bits,
        }
    }
    let mask = mask.unwrap_or(group);
    let all = |some: &[(Who, u16)]| some.iter().fold(0, |all, (_, bits)| all | bits);
    let (of_users, of_groups) = (all(&users), all(&groups));
    // What the mask has and no entry.
    let free = mask & !(of_users | of_groups);
    let is_free = |who: Who| if who == Who::Group { free } else { 0 };
    let write = if is_dir { WRITE | DELETE_CHILD } else { WRITE };
    let mut push = |denies: bool, who: Who, bits: u16| {
        let right = |bit, rights| if bits & bit != 0 { rights } else { 0 };
        let mut rights = right(4, READ) | right(2, write) | right(1, EXECUTE);
        if denies && rights == 0 {
            return;
        }
        if !denies {
            rights |= SEES | if who == Who::Owner { OWNS } else { 0 };
        }
        entries.push(Entry { denies, flags, rights, who });
    };
    push(true, Who::Owner, !owner & ((of_users | of_groups) & mask | other));
    push(false, Who::Owner, owner);
    for &(who, bits) in &users {
        push(true, who, !(bits & mask) & (bits | of_groups & mask | other));
        push(false, who, bits);
    }
    for &(who, bits) in &groups {
        push(true, who, bits & !mask | is_free(who));
    }
    for &(who, bits) in &groups {
        push(false, who, bits);
    }
    for &(who, bits) in &groups {
        push(true, who, other & !bits & !is_free(who));
    }
    push(false, Who::Everyone, other);
}

/// The rights that the entries read so far allow and deny to one principal.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    given: u16,
    denied: u16,
    /// What entries for him alone allow, also in vain.
    said: u16,
}

impl Share {
    /// Takes an entry, and returns what it decides.
    fn hear(&mut self, denies: bool, bits: u16) -> u16 {
        let decided = bits & !(self.given | self.denied);
        *if denies { &mut self.denied } else { &mut self.given } |= decided;
        decided
    }

    /// The same, of an entry for him alone.
    fn hear_own(&mut self, denies: bool, bits: u16) -> u16 {
        if !denies {
            self.said |= bits;
        }
        self.hear(denies, bits)
    }
}

/// A list that is being read.
#[derive(Debug, Default)]
struct Sheet {
    owner: Share,
    group: Share,
    everyone: Share,
    users: BTreeMap<u32, Share>,
    groups: BTreeMap<u32, Share>,
    /// What some group is denied. Its members must not have it as anyone else.
    lost: u16,
    /// What the group is denied before anything is allowed to it.
    marked: u16,
}

impl Sheet {
    fn read(entries: &[Entry], is_dir: bool) -> Result<Self, Status> {
        let mut sheet = Self::default();
        // Who is named at the end has what everyone has at the beginning.
        for entry in entries {
            match entry.who {
                Who::User(id) => sheet.users.entry(id).or_default(),
                Who::Named(id) => sheet.groups.entry(id).or_default(),
                _ => continue,
            };
        }
        let mut is_before = true;
        for entry in entries {
            let bits = entry.bits(is_dir)?;
            if entry.who == Who::Group {
                is_before &= entry.denies;
                sheet.marked |= if is_before { bits } else { 0 };
            }
            sheet.hear(entry.who, entry.denies, bits)?;
        }
        Ok(sheet)
    }

    fn hear(&mut self, who: Who, denies: bool, bits: u16) -> Result<(), Status> {
        let decided = match who {
            Who::Owner => {
                self.owner.hear(denies, bits);
                return Ok(());
            }
            Who::Group => self.group.hear_own(denies, bits),
            Who::User(id) => self.users.entry(id).or_default().hear_own(denies, bits),
            Who::Named(id) => self.groups.entry(id).or_default().hear_own(denies, bits),
            Who::Everyone => {
                self.owner.hear(denies, bits);
                let news = self.everyone.hear(denies, bits);
                let named = self.users.values_mut().chain(self.groups.values_mut());
                let all = named.chain([&mut self.group]).filter(|_| news != 0);
                all.fold(0, |decided, share| decided | share.hear(denies, news))
            }
        };
        match (denies, who) {
            (false, _) if decided & self.lost != 0 => return Err(Status::ATTRNOTSUPP),
            (true, Who::Group | Who::Named(_)) => self.lost |= decided,
            _ => {}
        }
        Ok(())
    }

    /// Takes the three classes from another list, as `setfacl` does for a default list that says
    /// nothing of them.
    fn take_classes(&mut self, acl: &Acl) {
        let mask = acl.mode() >> 3 & 7;
        for (tag, bits, _) in acl.entries() {
            match tag {
                tag::OWNER => self.owner.given = bits,
                tag::GROUP_OF_FILE => self.group.given = bits & mask,
                tag::OTHER => self.everyone.given = bits,
                _ => {}
            }
        }
    }

    /// Returns the list of POSIX.
    fn acl(&self) -> Result<Acl, Status> {
        const NONE: u32 = u32::MAX;
        let named = || self.users.values().chain(self.groups.values());
        let all = named().chain([&self.group]);
        let (given, said) =
            all.fold((0, 0), |(given, said), share| (given | share.given, said | share.said));
        // What is said and has never come to anyone is behind the mask.
        let hidden = said & !given;
        let bits = |share: &Share| share.given | share.said & hidden;
        let mut entries = vec![(tag::OWNER, self.owner.given, NONE)];
        entries.extend(self.users.iter().map(|(id, share)| (tag::USER, bits(share), *id)));
        entries.push((tag::GROUP_OF_FILE, bits(&self.group), NONE));
        entries.extend(self.groups.iter().map(|(id, share)| (tag::GROUP, bits(share), *id)));
        if hidden != 0 || named().next().is_some() {
            entries.push((tag::MASK, given | self.marked & !said, NONE));
        }
        entries.push((tag::OTHER, self.everyone.given, NONE));
        Acl::new(&entries).map_err(|_| Status::INVAL)
    }
}

#[cfg(test)]
mod tests;
