//! Counting: what becomes reached counts what it reaches, and what is reached no more takes that
//! back.
//!
//! Only a metadata chunk, and a place with a note, reaches others. So of those alone it matters at
//! once whether their count leaves zero or comes to zero. Places of data are only counted; their
//! changes are sorted, and applied at the end.
//!
//! All steps up come before all steps down: so no chunk is found dead that another parent still
//! reaches, and each is read once in each direction at most.

use super::shelf::{Result, Trouble};
use super::sorter::{CountChange, Sorter};
use super::table::{Step, Table};
use crate::cache::Keep;
use crate::format::moved::Moved;
use crate::format::tally::Note;
use crate::name::PackMap;
use crate::sweep::pace::Pace;
use crate::{Class, Content, Error, Pointer, limits, pack};
use futures_util::future::try_join_all;
use rekindle_base::PackId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The counting of one update.
pub(super) struct Counter<'a> {
    pub(super) content: &'a Content,
    pub(super) pace: &'a Pace,
    pub(super) table: &'a mut Table,
    /// The packs whose notes are counted.
    pub(super) noted: &'a BTreeMap<PackId, Note>,
    /// Changes of places that reach nothing.
    pub(super) plain: Sorter,
    /// Of packs that notes lead to, the length of the longest chain that was followed.
    pub(super) hops: BTreeMap<PackId, u8>,
    /// Metadata chunks that were read.
    pub(super) read: u64,
    /// Bytes of these, as they are stored.
    pub(super) bytes: u64,
}

impl Counter<'_> {
    /// Counts places, and everything that is reached through those of them that are reached now and
    /// were not before (or the other way round).
    pub(super) async fn walk(&mut self, edges: &[Pointer], step: Step) -> Result<()> {
        let mut open = Vec::new();
        self.count(edges.iter().copied(), step, &mut open).await?;
        self.go_on(open, step).await
    }

    /// Goes on below places whose count has left zero, or come to zero.
    pub(super) async fn go_on(&mut self, mut open: Vec<Pointer>, step: Step) -> Result<()> {
        // Depth first, a window of siblings at once: see `tree::walk`.
        while !open.is_empty() {
            let window = open.split_off(open.len().saturating_sub(limits::WALK_WINDOW));
            let (moved, nodes) = self.follow(window, step).await?;
            self.count(moved.into_iter(), step, &mut open).await?;
            self.expand(&nodes, step, &mut open).await?;
        }
        Ok(())
    }

    /// Counts what these metadata chunks reach.
    pub(super) async fn expand(
        &mut self,
        nodes: &[Pointer],
        step: Step,
        open: &mut Vec<Pointer>,
    ) -> Result<()> {
        let inner = &self.content.inner;
        let bodies = inner.read_each(nodes, Class::Metadata, Keep::No).await;
        for pointer in nodes {
            match &bodies[pointer] {
                Ok(body) => self.count(body.children(), step, open).await?,
                Err(error) => return Err(unread(error.clone(), step)),
            }
        }
        let bytes = nodes.iter().map(|pointer| u64::from(pointer.stored)).sum();
        (self.read, self.bytes) = (self.read + nodes.len() as u64, self.bytes + bytes);
        self.pace.spend(bytes).await?;
        self.table.relieve().await
    }

    /// Counts places. Those that reach others, and whose count leaves zero or comes to zero, go to
    /// `open`.
    async fn count(
        &mut self,
        edges: impl Iterator<Item = Pointer>,
        step: Step,
        open: &mut Vec<Pointer>,
    ) -> Result<()> {
        for pointer in edges {
            let place = (&pointer.pack, pointer.spot(), pointer.share());
            if pack::class(pointer.pack) == Class::Data && !self.noted.contains_key(&pointer.pack) {
                let by = if step == Step::Up { 1 } else { -1 };
                let change = CountChange { spot: place.1, stored: place.2, by };
                self.plain.add(pointer.pack, change).await?;
                continue;
            }
            let is_crossed = match self.table.count(place, step)? {
                Some(is_crossed) => is_crossed,
                None => {
                    self.table.open(pointer.pack).await?;
                    self.table.count(place, step)?.unwrap_or_default()
                }
            };
            if is_crossed {
                open.push(pointer);
            }
        }
        Ok(())
    }

    /// Parts places into those that a note leads elsewhere, by their new places, and the metadata
    /// chunks of the others.
    async fn follow(
        &mut self,
        window: Vec<Pointer>,
        step: Step,
    ) -> Result<(Vec<Pointer>, Vec<Pointer>)> {
        let is_noted = |pointer: &Pointer| self.noted.contains_key(&pointer.pack);
        let mut packs: Vec<PackId> =
            window.iter().filter(|one| is_noted(one)).map(|one| one.pack).collect();
        packs.sort_unstable();
        packs.dedup();
        let notes = self.notes(&packs).await?;
        let (mut moved, mut nodes) = (Vec::new(), Vec::new());
        for pointer in window {
            match notes.get(&pointer.pack).and_then(|note| note.place(&pointer)) {
                Some(place) => {
                    if step == Step::Up {
                        self.lengthen(&pointer.pack, place.pack).await?;
                    }
                    moved.push(place);
                }
                None if pack::class(pointer.pack) == Class::Metadata => nodes.push(pointer),
                None => {}
            }
        }
        Ok((moved, nodes))
    }

    async fn notes(&self, packs: &[PackId]) -> Result<PackMap<Arc<Moved>>> {
        let inner = &self.content.inner;
        let mut notes = PackMap::default();
        for window in packs.chunks(limits::FETCH_WINDOW) {
            let reads = window.iter().map(|pack| inner.moved.note(&inner.store, *pack));
            for note in try_join_all(reads).await?.into_iter().flatten() {
                notes.insert(note.pack, note);
            }
        }
        Ok(notes)
    }

    /// Notes that the note of a pack leads to these places.
    pub(super) async fn lengthen_all(&mut self, from: &PackId, to: &[Pointer]) -> Result<()> {
        for pack in to.iter().map(|place| place.pack).collect::<BTreeSet<_>>() {
            self.lengthen(from, pack).await?;
        }
        Ok(())
    }

    /// Notes that a chain of notes goes on from one pack to another.
    async fn lengthen(&mut self, from: &PackId, to: PackId) -> Result<()> {
        let known = self.hops.get(from).copied();
        let before = match known {
            Some(hops) => hops,
            None => self.table.hops(from).await?,
        };
        let hops = before.saturating_add(1);
        if usize::from(hops) > limits::MOVED_HOPS_MAX {
            let circle = "the notes of moved chunks lead in a circle".to_owned();
            return Err(Error::Stopped(circle).into());
        }
        let longest = self.hops.entry(to).or_default();
        *longest = hops.max(*longest);
        Ok(())
    }

    /// Ends the counting: applies the changes of places that reach nothing.
    pub(super) async fn end(mut self) -> Result<()> {
        let sorted = self.plain.end().await?;
        self.table.apply(sorted).await?;
        self.plain.clean().await;
        for (pack, hops) in self.hops {
            self.table.reached_by(pack, hops).await?;
        }
        Ok(())
    }
}

/// A chunk that is reached and cannot be read may reach anything. One that is reached no more has
/// taken along what it reached: only a new count can tell.
fn unread(error: Error, step: Step) -> Trouble {
    match step {
        Step::Down if error.missing().is_some() => {
            Trouble::Doubt(format!("what was reached cannot be read any more: {error}"))
        }
        _ => Trouble::Other(error),
    }
}
