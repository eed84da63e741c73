//! A change that is being drafted: the inodes that it touches, and its effects.

use crate::caller::Caller;
use crate::format::inode::Inode;
use crate::format::record::Effect;
use crate::format::rows::{Named, Xattr};
use crate::limits;
use crate::look::Stop;
use crate::state::{ORPHANS, View};
use crate::types::{Attr, Errno, Ino, Time};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) struct Draft<'a, 'v> {
    pub(super) view: &'a View<'v>,
    pub(super) now: Time,
    inodes: BTreeMap<Ino, Option<Inode>>,
    effects: Vec<Effect>,
    /// The inodes whose last name goes.
    unnamed: Vec<Attr>,
    /// What a front keeps from now on, and whether it had kept nothing.
    kept: BTreeMap<Ino, (Option<Bytes>, bool)>,
    bytes: i64,
    count: i64,
    /// The numbers that the change has left.
    pub(super) numbers: Range<Ino>,
}

impl<'a, 'v> Draft<'a, 'v> {
    /// `numbers`: those that new inodes may have.
    pub(super) fn new(view: &'a View<'v>, now: Time, numbers: Range<Ino>) -> Self {
        let (inodes, effects, kept) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let unnamed = Vec::new();
        Self { view, now, inodes, effects, unnamed, kept, bytes: 0, count: 0, numbers }
    }

    /// Returns the inode, which the change leaves as the caller does.
    pub(super) fn inode(&mut self, ino: Ino) -> Result<&mut Inode, Stop> {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.inodes.entry(ino) {
            vacant.insert(Some(self.view.inode(ino)?));
        }
        self.inodes.get_mut(&ino).and_then(Option::as_mut).ok_or(Stop::Posix(Errno::STALE))
    }

    /// Adds an inode and gives its number.
    pub(super) fn add(&mut self, inode: Inode) -> Result<Ino, Stop> {
        let ino = self.numbers.next().ok_or(Stop::Numbers)?;
        // In a damaged page of the table no inode is made: it could not be read again.
        self.view.stored(ino)?;
        self.count += 1;
        self.bytes += inode.allocated.cast_signed();
        self.inodes.insert(ino, Some(inode));
        Ok(ino)
    }

    /// Asks the caller's keeper what is kept of an inode from now on. Returns whether anything is.
    pub(super) fn keep(&mut self, caller: &Caller<'_>, ino: Ino) -> Result<bool, Stop> {
        let before = self.view.kept(ino)?;
        let Some(keeper) = caller.keeper else { return Ok(before.is_some()) };
        let after = keeper.keep(ino, before.as_deref()).map_err(|halt| halt.0)?;
        if after.as_deref() == before.as_deref() {
            return Ok(after.is_some());
        }
        let (is_kept, is_new) = (after.is_some(), before.is_none());
        let has_room = !is_new || self.view.totals().kept < limits::KEPT_MAX;
        if !has_room || after.as_ref().is_some_and(|kept| kept.len() > limits::KEPT_BYTES_MAX) {
            return Err(Errno::NOSPC.into());
        }
        self.kept.insert(ino, (after.map(Bytes::from), is_new));
        Ok(is_kept)
    }

    /// Removes an inode that has no name any more; one in use keeps its content until its last use
    /// has ended.
    pub(super) fn release(&mut self, ino: Ino) -> Result<(), Stop> {
        let attr = self.inode(ino)?.attr(ino);
        self.unnamed.push(attr);
        if self.view.is_used(ino)? {
            let kind = self.inode(ino)?.kind;
            self.name(ORPHANS, ino, Named { name: Bytes::new(), ino, kind });
            return Ok(());
        }
        self.remove(ino)
    }

    /// Removes an inode.
    pub(super) fn remove(&mut self, ino: Ino) -> Result<(), Stop> {
        if self.view.kept(ino)?.is_some() {
            self.kept.insert(ino, (None, false));
        }
        self.bytes -= self.inode(ino)?.allocated.cast_signed();
        self.count -= 1;
        self.inodes.insert(ino, None);
        Ok(())
    }

    pub(super) fn name(&mut self, dir: Ino, position: u64, named: Named) {
        self.effects.push(Effect::Name { dir, position, named: Some(named) });
    }

    pub(super) fn unname(&mut self, dir: Ino, position: u64) {
        self.effects.push(Effect::Name { dir, position, named: None });
    }

    pub(super) fn xattr(&mut self, ino: Ino, position: u64, xattr: Option<Xattr>) {
        self.effects.push(Effect::Xattr { ino, position, xattr });
    }

    pub(super) fn zero(&mut self, ino: Ino, offset: u64, length: u64) {
        self.effects.push(Effect::Zero { ino, offset, length });
    }

    /// Has a range of a file show another range, as the root has it.
    pub(super) fn copy(&mut self, (ino, offset): (Ino, u64), (from, at): (Ino, u64), length: u64) {
        self.effects.push(Effect::Copy { ino, offset, length, from, at });
    }

    pub(super) fn reserve(&mut self, ino: Ino, offset: u64, length: u64) {
        self.effects.push(Effect::Reserve { ino, offset, length });
    }

    /// Counts that a file takes these pages from now on, after its size has grown with them.
    pub(super) fn take(&mut self, ino: Ino, pages: &Range<u64>) -> Result<(), Stop> {
        let new = pages.end - pages.start - self.view.taken(ino, pages)?;
        self.bytes += self.inode(ino)?.take(new);
        Ok(())
    }

    /// Counts that a file takes these pages no more.
    pub(super) fn give_back(&mut self, ino: Ino, pages: &Range<u64>) -> Result<(), Stop> {
        let gone = self.view.taken(ino, pages)?;
        self.bytes += self.inode(ino)?.give_back(gone);
        Ok(())
    }

    /// Changes the times of a directory of which a name came or went: `more` names than before.
    pub(super) fn touch(&mut self, dir: Ino, more: i64) -> Result<(), Stop> {
        let now = self.now;
        let inode = self.inode(dir)?;
        (inode.modified, inode.changed) = (now, now);
        inode.size = inode.size.saturating_add_signed(more);
        Ok(())
    }

    /// Counts the names of an inode.
    pub(super) fn link(&mut self, ino: Ino, more: i32) -> Result<u32, Stop> {
        let now = self.now;
        let inode = self.inode(ino)?;
        inode.links = inode.links.checked_add_signed(more).ok_or(Stop::Posix(Errno::MLINK))?;
        inode.changed = now;
        Ok(inode.links)
    }

    /// Returns the effects of the change, if the volume has room for it.
    pub(super) fn effects(self, size: u64, caller: &Caller<'_>) -> Result<Vec<Effect>, Stop> {
        self.view.fits(self.bytes, size)?;
        if let Some(witness) = caller.witness {
            let left =
                self.inodes.iter().filter_map(|(ino, inode)| Some(inode.as_ref()?.attr(*ino)));
            left.for_each(|attr| witness.changed(&attr));
            self.unnamed.iter().for_each(|attr| witness.unnamed(attr));
        }
        // Inodes come first: what is gone takes its names with it.
        let kept = self.kept.into_iter();
        let inodes = self.inodes.into_iter().map(|(ino, inode)| Effect::Inode { ino, inode });
        let mut effects: Vec<Effect> = inodes.chain(self.effects).collect();
        if (self.bytes, self.count) != (0, 0) {
            effects.push(Effect::More { bytes: self.bytes, inodes: self.count });
        }
        effects.extend(kept.map(|(ino, (kept, is_new))| Effect::Kept { ino, is_new, kept }));
        effects.extend(caller.origin.map(Effect::Done));
        effects.extend(caller.call.map(Effect::Called));
        Ok(effects)
    }
}
