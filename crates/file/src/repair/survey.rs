//! A look at all tables of a volume: which inodes there are, and which names lead to them.

use crate::format::page::Row;
use crate::format::rows::{Named, Totals};
use crate::home::Home;
use crate::limits;
use crate::look::unreadable;
use crate::repair::number;
use crate::state::{ORPHANS, Own, Stored, decode_own};
use crate::table::{self, Pages};
use crate::types::{Error, FileType, Ino, ROOT};
use rekindle_content::tree::Root;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of an inode. About 100 bytes of RAM for each inode of the volume.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// What its row says. `None`: it has no row.
    pub(super) row: Option<Facts>,
    /// Names that lead to it, and one of them: the directory and the position.
    pub(super) names: u32,
    pub(super) place: Option<(Ino, u64)>,
    /// Of a directory: the names in it that lead somewhere, and those that lead to directories.
    pub(super) entries: u64,
    pub(super) folders: u32,
    /// Whether it is in use without a name.
    pub(super) is_open: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Facts {
    pub(super) kind: FileType,
    pub(super) links: u32,
    pub(super) size: u64,
    pub(super) allocated: u64,
    pub(super) parent: Ino,
}

/// A name that leads to an inode without a row.
pub(super) struct Dangling {
    pub(super) dir: Ino,
    pub(super) position: u64,
    pub(super) ino: Ino,
}

/// What the tables below a root say.
pub(super) struct Survey {
    root: Root,
    /// The volume's own row, if there is one.
    pub(super) own: Option<(Totals, Own)>,
    pub(super) inodes: BTreeMap<Ino, Known>,
    /// The greatest number that a row or a name has.
    pub(super) greatest: Ino,
    pub(super) dangling: Vec<Dangling>,
    /// Inodes of which a front keeps something.
    pub(super) kept: Vec<Ino>,
}

impl Survey {
    /// Returns the first number that no inode has had, as far as the root tells.
    pub(super) fn next_ino(&self) -> Ino {
        let noted = self.own.as_ref().map_or(0, |(totals, _)| totals.next_ino);
        noted.max(self.greatest.saturating_add(1))
    }

    /// Reads all tables below a root. `alive`: inodes that have no row there, but in changes that
    /// the root does not have yet.
    pub(super) async fn of(home: &Home, root: &Root, alive: &BTreeSet<Ino>) -> Result<Self, Error> {
        let mut survey = Self {
            root: *root,
            own: None,
            inodes: BTreeMap::new(),
            greatest: ROOT,
            dangling: Vec::new(),
            kept: Vec::new(),
        };
        let mut pages = Pages::of(&home.content, root);
        while let Some(rows) = pages.next().await? {
            for (ino, row) in rows {
                survey.add(ino, &row)?;
            }
        }
        // The root directory is there also when no change has named it.
        let first = home.state.lock().first_root.clone();
        let root_dir = survey.inodes.entry(ROOT).or_default();
        root_dir.row.get_or_insert(Facts {
            kind: FileType::Directory,
            links: first.links,
            size: 0,
            allocated: 0,
            parent: ROOT,
        });
        let mut pages = Pages::of(&home.content, root);
        while let Some(rows) = pages.next().await? {
            for (ino, row) in rows {
                if ino == ORPHANS {
                    continue;
                }
                let stored = Stored::decode(&row).map_err(|bad| unreadable(&bad))?;
                if stored.inode.kind == FileType::Directory {
                    survey.list(home, ino, &stored.body.tree(), alive).await?;
                }
            }
        }
        if let Some((_, own)) = survey.own {
            survey.list(home, ORPHANS, &own.orphans, alive).await?;
            let mut pages = Pages::of(&home.content, &own.kept);
            while let Some(rows) = pages.next().await? {
                survey.kept.extend(rows.into_keys());
            }
        }
        Ok(survey)
    }

    fn add(&mut self, ino: Ino, row: &Row) -> Result<(), Error> {
        if ino == ORPHANS {
            self.own = Some(decode_own(Some(row)).map_err(|bad| unreadable(&bad))?);
            return Ok(());
        }
        let inode = Stored::decode(row).map_err(|bad| unreadable(&bad))?.inode;
        self.greatest = self.greatest.max(ino);
        self.inodes.entry(ino).or_default().row = Some(Facts {
            kind: inode.kind,
            links: inode.links,
            size: inode.size,
            allocated: inode.allocated,
            parent: inode.parent,
        });
        Ok(())
    }

    /// Follows the names of a directory.
    async fn list(
        &mut self,
        home: &Home,
        dir: Ino,
        names: &Root,
        alive: &BTreeSet<Ino>,
    ) -> Result<(), Error> {
        let mut pages = Pages::of(&home.content, names);
        while let Some(rows) = pages.next().await? {
            for (position, row) in rows {
                let Named { ino, kind, .. } =
                    Named::decode(&row.bytes).map_err(|bad| unreadable(&bad))?;
                self.greatest = self.greatest.max(ino);
                let has_row = self.inodes.get(&ino).is_some_and(|known| known.row.is_some());
                if !has_row && !alive.contains(&ino) {
                    self.dangling.push(Dangling { dir, position, ino });
                    continue;
                }
                let known = self.inodes.entry(ino).or_default();
                if dir == ORPHANS {
                    known.is_open = true;
                    continue;
                }
                known.names += 1;
                known.place.get_or_insert((dir, position));
                let here = self.inodes.entry(dir).or_default();
                here.entries += 1;
                here.folders += u32::from(kind == FileType::Directory);
            }
        }
        Ok(())
    }

    /// The inodes that no name leads to, and that are not in use without one.
    pub(super) fn nameless(&self) -> impl Iterator<Item = (Ino, Facts)> + '_ {
        self.inodes.iter().filter_map(|(&ino, known)| {
            let is_nameless = ino != ROOT && known.names == 0 && !known.is_open;
            known.row.filter(|_| is_nameless).map(|facts| (ino, facts))
        })
    }

    /// The way to an inode from the root directory, as far as there is one.
    pub(super) async fn path(&self, home: &Home, ino: Ino) -> Result<String, Error> {
        let mut names = Vec::new();
        let mut at = ino;
        for _ in 0..limits::DEPTH_MAX {
            if at == ROOT {
                names.reverse();
                return Ok(format!("/{}", names.join("/")));
            }
            let Some((dir, position)) = self.inodes.get(&at).and_then(|known| known.place) else {
                break;
            };
            names.push(self.name(home, dir, position).await?);
            at = dir;
        }
        if names.is_empty() {
            return Ok(number(ino));
        }
        names.reverse();
        Ok(format!("{}/{}", number(at), names.join("/")))
    }

    /// The way to a name.
    pub(super) async fn path_of_name(
        &self,
        home: &Home,
        dir: Ino,
        position: u64,
    ) -> Result<String, Error> {
        let above = self.path(home, dir).await?;
        let name = self.name(home, dir, position).await?;
        Ok(format!("{}/{name}", above.trim_end_matches('/')))
    }

    async fn name(&self, home: &Home, dir: Ino, position: u64) -> Result<String, Error> {
        let names = home.stored(&self.root, dir).await?.and_then(|stored| stored.body.tree());
        let row = table::get(&home.content, &names, position).await?;
        let named = row.and_then(|row| Named::decode(&row.bytes).ok());
        Ok(named.map_or_else(|| "?".to_owned(), |named| named.name.escape_ascii().to_string()))
    }

    /// What the row of an inode says, if it has one.
    pub(super) fn facts(&self, ino: Ino) -> Option<Facts> {
        self.inodes.get(&ino).and_then(|known| known.row)
    }
}
