//! The second half: names that lead nowhere go, inodes that no name leads to get one in the
//! directory of what was found, and all that is counted is counted again.

use crate::format::inode::Inode;
use crate::format::page::Row;
use crate::format::rows::{Named, Totals};
use crate::home::{Counted, Home};
use crate::repair::survey::{Known, Survey};
use crate::repair::{LOST_AND_FOUND, NAMED_MAX, found};
use crate::state::{Body, ORPHANS, Own, Stored};
use crate::table::{self, Changes};
use crate::types::{Errno, Error, FileType, Ino, ROOT, Time};
use bytes::Bytes;
use rekindle_content::Batch;
use rekindle_content::tree::Root;
use rekindle_env::Timestamp;
use rekindle_staging::Tidied;
use std::collections::{BTreeMap, BTreeSet};

/// What is to be changed.
struct Tidy<'a> {
    home: &'a Home,
    root: &'a Root,
    survey: Survey,
    now: Time,
    /// Changes of the names in directories.
    names: BTreeMap<Ino, Changes>,
    /// A directory of what was found that has to be made.
    made: Option<Ino>,
    lines: Vec<String>,
}

pub(super) async fn tidy(
    home: &Home,
    batch: &mut Batch,
    root: &Root,
    now: Timestamp,
) -> Result<Tidied, Error> {
    if root.is_none() {
        return Ok(Tidied::default());
    }
    let survey = Survey::of(home, root, &BTreeSet::new()).await?;
    let mut tidy = Tidy {
        home,
        root,
        survey,
        now: now.into(),
        names: BTreeMap::new(),
        made: None,
        lines: Vec::new(),
    };
    tidy.unname().await?;
    tidy.adopt().await?;
    let new = tidy.write(batch).await?;
    batch.flush().await?;
    let mut lines = tidy.lines;
    let more = lines.len().saturating_sub(2 * NAMED_MAX);
    lines.truncate(2 * NAMED_MAX);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    Ok(Tidied { root: new, lines })
}

impl Tidy<'_> {
    /// Takes names away that lead nowhere.
    async fn unname(&mut self) -> Result<(), Error> {
        for name in std::mem::take(&mut self.survey.dangling) {
            if name.dir != ORPHANS {
                let path = match self.lines.len() < NAMED_MAX {
                    true => self.survey.path_of_name(self.home, name.dir, name.position).await?,
                    false => String::new(),
                };
                self.lines.push(format!("{path}: it is lost as a whole (inode {})", name.ino));
            }
            self.names.entry(name.dir).or_default().insert(name.position, None);
        }
        Ok(())
    }

    /// Gives names to the inodes that have none.
    async fn adopt(&mut self) -> Result<(), Error> {
        let nameless: Vec<_> = self.survey.nameless().collect();
        if nameless.is_empty() {
            return Ok(());
        }
        let dir = self.lost_and_found().await?;
        for (ino, facts) in nameless {
            self.name(dir, &format!("#{ino}"), ino, facts.kind).await?;
            self.lines.push(found(ino, facts));
        }
        Ok(())
    }

    /// Returns the directory of what was found, which is made when it is not there.
    async fn lost_and_found(&mut self) -> Result<Ino, Error> {
        for round in 0..u32::MAX {
            let name = match round {
                0 => LOST_AND_FOUND.to_owned(),
                round => format!("{LOST_AND_FOUND}.{round}"),
            };
            let (position, named) = self.look(ROOT, name.as_bytes()).await?;
            match named {
                Some(named) if named.kind == FileType::Directory => return Ok(named.ino),
                Some(_) => {}
                None => {
                    let ino = self.home.numbers.lock().unused(self.survey.next_ino());
                    self.survey.greatest = ino;
                    self.made = Some(ino);
                    self.put(ROOT, position, name.as_bytes(), ino, FileType::Directory);
                    return Ok(ino);
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Gives an inode a name, or a longer one if there is such a name.
    async fn name(&mut self, dir: Ino, name: &str, ino: Ino, kind: FileType) -> Result<(), Error> {
        for round in 0..u32::MAX {
            let name = match round {
                0 => name.to_owned(),
                round => format!("{name}.{round}"),
            };
            if let (position, None) = self.look(dir, name.as_bytes()).await? {
                self.put(dir, position, name.as_bytes(), ino, kind);
                return Ok(());
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Looks a name up: the position that it has, or that a new one would have.
    async fn look(&self, dir: Ino, name: &[u8]) -> Result<(u64, Option<Named>), Error> {
        let content = &self.home.content;
        let stored = self.home.stored(self.root, dir).await?.and_then(|stored| stored.body.tree());
        let mut free = None;
        for position in self.home.names.places(name) {
            let changed = self.names.get(&dir).and_then(|changes| changes.get(&position));
            let row = match changed {
                Some(row) => row.clone(),
                None => table::get(content, &stored, position).await?,
            };
            let named = row.and_then(|row| Named::decode(&row.bytes).ok());
            match named {
                Some(named) if named.name == name => return Ok((position, Some(named))),
                Some(_) => {}
                None => {
                    free.get_or_insert(position);
                    // A name that was there before may be behind one that is gone.
                    if self.is_last(&stored, dir, position, name).await? {
                        break;
                    }
                }
            }
        }
        Ok((free.ok_or(Errno::NOSPC)?, None))
    }

    /// Whether no name with the same hash is behind a position.
    async fn is_last(
        &self,
        stored: &Root,
        dir: Ino,
        position: u64,
        name: &[u8],
    ) -> Result<bool, Error> {
        let end = self.home.names.places(name).end;
        let changes = self.names.get(&dir);
        let is_planned =
            changes.is_some_and(|changes| changes.range(position + 1..end).next().is_some());
        Ok(!is_planned && !table::has_any(&self.home.content, stored, position + 1..end).await?)
    }

    fn put(&mut self, dir: Ino, position: u64, name: &[u8], ino: Ino, kind: FileType) {
        let named = Named { name: Bytes::copy_from_slice(name), ino, kind };
        let row = Row { bytes: named.encode(), children: Vec::new() };
        self.names.entry(dir).or_default().insert(position, Some(row));
        let known = self.survey.inodes.entry(ino).or_default();
        known.names += 1;
        known.place = Some((dir, position));
        let here = self.survey.inodes.entry(dir).or_default();
        here.entries += 1;
        here.folders += u32::from(kind == FileType::Directory);
    }

    /// Writes what has changed; returns the new root.
    async fn write(&mut self, batch: &mut Batch) -> Result<Root, Error> {
        let torn = std::mem::take(&mut *self.home.torn.lock());
        let mut rows = Changes::new();
        let (mut bytes, mut inodes, mut miscounted) = (0, 0, 0_u64);
        let all: Vec<(Ino, Known)> =
            self.survey.inodes.iter().map(|(ino, known)| (*ino, *known)).collect();
        for (ino, known) in all {
            if ino == ORPHANS || (known.row.is_none() && self.made != Some(ino)) {
                continue;
            }
            inodes += 1;
            let allocated = known.row.map_or(0, |facts| facts.allocated);
            let is_right = self.is_right(ino, &known) && !torn.contains(&ino);
            if is_right && !self.names.contains_key(&ino) {
                bytes += allocated;
                continue;
            }
            let mut stored = self.stored(ino).await?;
            let before = stored.inode.clone();
            self.count(ino, &known, &mut stored.inode);
            if torn.contains(&ino) {
                stored = self.home.counted(batch, stored).await?;
            }
            if let Some(changes) = self.names.remove(&ino) {
                let content = &self.home.content;
                let names = stored.body.tree();
                stored.body = Body::Tree(table::update(content, batch, &names, changes).await?);
                (stored.inode.modified, stored.inode.changed) = (self.now, self.now);
            } else if before != stored.inode {
                stored.inode.changed = self.now;
            }
            miscounted += u64::from(before.links != stored.inode.links && known.row.is_some());
            bytes += stored.inode.allocated;
            rows.insert(ino, Some(stored.encode()));
        }
        if miscounted > 0 {
            self.lines.push(format!("the names of {miscounted} inode(s) were counted anew"));
        }
        let (mut totals, mut own) = self.survey.own.take().unwrap_or_default();
        let before = (totals.clone(), own);
        self.write_own(batch, &mut own, &mut totals).await?;
        totals.next_ino = totals.next_ino.max(self.survey.greatest + 1);
        (totals.bytes, totals.inodes) = (bytes, inodes);
        if (totals.bytes, totals.inodes, totals.kept)
            != (before.0.bytes, before.0.inodes, before.0.kept)
        {
            self.lines.push(format!(
                "the volume has {inodes} inodes and {bytes} bytes, not {} and {}",
                before.0.inodes, before.0.bytes
            ));
        }
        let is_same =
            totals == before.0 && (own.orphans, own.kept) == (before.1.orphans, before.1.kept);
        if rows.is_empty() && is_same {
            return Ok(*self.root);
        }
        rows.insert(ORPHANS, Some(own.row(&totals)));
        let new = table::update(&self.home.content, batch, self.root, rows).await?;
        let counted = Counted { root: new, totals, files: Vec::new() };
        self.home.counted.lock().note(counted);
        Ok(new)
    }

    /// Whether the row of an inode says what was counted.
    fn is_right(&self, ino: Ino, known: &Known) -> bool {
        let Some(facts) = known.row else { return false };
        let is_dir = facts.kind == FileType::Directory;
        if known.names == 0 && ino != ROOT {
            // It is in use without a name.
            return true;
        }
        let parent = known.place.map_or(ROOT, |(dir, _)| dir);
        match is_dir {
            true => {
                facts.links == 2 + known.folders
                    && facts.size == known.entries
                    && facts.parent == parent
            }
            false => facts.links == known.names,
        }
    }

    fn count(&self, ino: Ino, known: &Known, inode: &mut Inode) {
        if known.names == 0 && ino != ROOT {
            return;
        }
        match inode.kind {
            FileType::Directory => {
                inode.links = 2 + known.folders;
                inode.size = known.entries;
                inode.parent = known.place.map_or(ROOT, |(dir, _)| dir);
            }
            _ => inode.links = known.names,
        }
    }

    async fn stored(&self, ino: Ino) -> Result<Stored, Error> {
        if let Some(stored) = self.home.stored(self.root, ino).await? {
            return Ok(stored);
        }
        let root = self.home.state.lock().first_root.clone();
        let inode = match ino {
            ROOT => root,
            _ => Inode {
                mode: 0o700,
                accessed: self.now,
                modified: self.now,
                changed: self.now,
                created: self.now,
                ..root
            },
        };
        Ok(Stored::new(inode))
    }

    /// Takes what is gone from the tables of the volume's own row.
    async fn write_own(
        &mut self,
        batch: &mut Batch,
        own: &mut Own,
        totals: &mut Totals,
    ) -> Result<(), Error> {
        let content = &self.home.content;
        if let Some(changes) = self.names.remove(&ORPHANS) {
            own.orphans = table::update(content, batch, &own.orphans, changes).await?;
        }
        let lacks_row = |ino: &&Ino| self.survey.facts(**ino).is_none();
        let gone: Changes =
            self.survey.kept.iter().filter(lacks_row).map(|ino| (*ino, None)).collect();
        totals.kept = (self.survey.kept.len() - gone.len()) as u64;
        if !gone.is_empty() {
            own.kept = table::update(content, batch, &own.kept, gone).await?;
        }
        Ok(())
    }
}
