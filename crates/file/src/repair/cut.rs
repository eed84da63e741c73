//! The first half: chunks that are given up leave the tables, and what that costs is told.
//!
//! | what is lost | what it costs |
//! | --- | --- |
//! | a chunk of data, a node of a file's extents | these bytes, which read as zeros |
//! | a page or a node of a directory | the names in it: the inodes stay |
//! | a page or a node of extended attributes | the attributes in it |
//! | a page or a node of the table of inodes | the inodes in it: names of them lead nowhere |
//! | the same, of the pages that a file takes | what it has reserved: the others are found again |
//! | the same, of files in use without a name | these become files that no name leads to |
//! | the same, of what a front keeps | its clients open their files again |

use crate::format::page::{self, Row};
use crate::format::rows::Totals;
use crate::home::Home;
use crate::limits::NUMBERS_SKIPPED_BLINDLY;
use crate::look::unreadable;
use crate::repair::survey::Survey;
use crate::repair::{NAMED_MAX, found};
use crate::state::{Body, ORPHANS, Own, Stored, decode_own};
use crate::table;
use crate::taken::Taken;
use crate::types::{Error, FileType, Ino};
use rekindle_content::tree::{Fates, Root, Values, joined, prune_inner, prune_outer};
use rekindle_content::{Batch, Class, Error as ContentError, Pointer};
use rekindle_env::BoxFuture;
use rekindle_staging::Cut;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Something that is lost.
enum Loss {
    /// All inodes with these numbers.
    Inodes(Range<u64>),
    /// Of an inode that changes of the log name anew: what it had before.
    Before(Ino),
    Bytes(Ino, Range<u64>),
    Names(Ino),
    Xattrs(Ino),
    /// The pages that a file takes.
    Taken(Ino),
    /// Files in use without a name.
    Orphans,
    /// What a front keeps.
    Kept,
}

/// Goes through the rows below which there is damage.
struct Rows<'a> {
    home: &'a Home,
    fates: &'a Fates,
    losses: Vec<Loss>,
    /// The keys of rows below which something is lost.
    keys: Vec<Range<u64>>,
    /// Why it went no further, when that was no error of the content.
    failed: Option<Error>,
}

pub(super) async fn cut(
    home: &Home,
    batch: &mut Batch,
    root: &Root,
    fates: &Fates,
) -> Result<Cut, Error> {
    let mut rows = Rows { home, fates, losses: Vec::new(), keys: Vec::new(), failed: None };
    let pruned = prune_outer(batch, root, fates, &mut rows).await;
    let Rows { mut losses, keys, failed, .. } = rows;
    if let Some(error) = failed {
        return Err(error);
    }
    let pruned = pruned?;
    batch.flush().await?;
    if !fates.gives_up() {
        // Chunks have come back, and all else is where it was.
        return Ok(Cut { root: pruned.root, ..Cut::default() });
    }
    let mut new = pruned.root;
    let gone = joined(pruned.gone);
    let lost = joined(gone.iter().cloned().chain(keys));
    let alive = alive(home, &gone);
    losses.extend(gone.into_iter().map(Loss::Inodes));
    losses.extend(alive.iter().map(|ino| Loss::Before(*ino)));
    let survey = Survey::of(home, &new, &alive).await?;
    if survey.own.is_none() && root.is_some() {
        let own = BTreeMap::from([(ORPHANS, Some(Own::default().row(&totals(home, &survey))))]);
        new = table::update(&home.content, batch, &new, own).await?;
        batch.flush().await?;
    }
    let hurt = losses.iter().filter_map(|loss| match loss {
        Loss::Taken(ino) => Some(*ino),
        _ => None,
    });
    home.torn.lock().extend(hurt);
    let follows = follows(home, &survey).await?;
    let losses = told(home, &survey, &losses).await?;
    Ok(Cut { root: new, lost, losses, follows })
}

/// The inodes of the log's changes whose rows are lost: these changes say what they are, and not
/// what they had.
fn alive(home: &Home, gone: &[Range<u64>]) -> BTreeSet<Ino> {
    let state = home.state.lock();
    let is_gone = |ino: &Ino| gone.iter().any(|range| range.contains(ino));
    let named = state
        .overlay
        .inodes
        .iter()
        .filter(|(_, dirty)| dirty.inode.as_ref().is_some_and(|(_, inode)| inode.is_some()));
    named.map(|(ino, _)| *ino).filter(|ino| *ino != ORPHANS && is_gone(ino)).collect()
}

/// What a volume says of itself whose own row is lost: the rest is counted by [`super::tidy`].
fn totals(home: &Home, survey: &Survey) -> Totals {
    let state = home.state.lock();
    let known = state.totals.as_ref().map(|totals| totals.next_ino);
    let unknown = || survey.greatest + NUMBERS_SKIPPED_BLINDLY;
    let next_ino = known.unwrap_or_else(unknown).max(survey.greatest + 1);
    Totals { next_ino, ..Totals::default() }
}

/// Tells what is lost, by path.
async fn told(home: &Home, survey: &Survey, losses: &[Loss]) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    for loss in losses.iter().take(NAMED_MAX) {
        lines.push(match loss {
            Loss::Inodes(range) if range.start == 0 && range.end == u64::MAX => {
                "all files and directories".to_owned()
            }
            // Names may be lost with the inodes, so it is not known which one was the last.
            Loss::Inodes(range) if range.end >= survey.next_ino() => {
                format!("the inodes from {} on", range.start)
            }
            Loss::Inodes(range) => format!("the inodes {} to {}", range.start, range.end - 1),
            Loss::Before(ino) => {
                format!("{}: what it had before its last changes", survey.path(home, *ino).await?)
            }
            Loss::Bytes(ino, range) => {
                let path = survey.path(home, *ino).await?;
                format!("{path}: bytes {}..{}", range.start, range.end)
            }
            Loss::Names(ino) => {
                let known = survey.inodes.get(ino).copied().unwrap_or_default();
                let had = known.row.map_or(0, |facts| facts.size);
                let lost = had.saturating_sub(known.entries);
                format!("{}: {lost} of its {had} names", survey.path(home, *ino).await?)
            }
            Loss::Xattrs(ino) => {
                format!("{}: extended attributes", survey.path(home, *ino).await?)
            }
            Loss::Taken(ino) => {
                format!("{}: what it has reserved", survey.path(home, *ino).await?)
            }
            Loss::Orphans => "which files without a name are in use".to_owned(),
            Loss::Kept => "what NFS clients have open and locked".to_owned(),
        });
    }
    let more = losses.len().saturating_sub(NAMED_MAX);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    Ok(lines)
}

/// Tells what [`super::tidy`] will do about it.
async fn follows(home: &Home, survey: &Survey) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    for name in survey.dangling.iter().filter(|name| name.dir != ORPHANS).take(NAMED_MAX) {
        let path = survey.path_of_name(home, name.dir, name.position).await?;
        lines.push(format!("{path}: it is lost as a whole"));
    }
    for (ino, facts) in survey.nameless().take(NAMED_MAX) {
        lines.push(found(ino, facts));
    }
    Ok(lines)
}

impl Rows<'_> {
    /// Prunes what is below the rows of a page. Returns what is left of the page.
    async fn page(&mut self, batch: &mut Batch, value: Pointer) -> Result<Pointer, Error> {
        let mut rows: Vec<(u64, Row)> =
            table::rows_of(&self.home.content, &value).await?.into_iter().collect();
        let mut is_changed = false;
        for (ino, row) in &mut rows {
            let before = self.losses.len();
            let left = match *ino {
                ORPHANS => self.own(batch, row).await?,
                ino => self.inode(batch, ino, row).await?,
            };
            if self.losses.len() > before {
                self.keys.push(*ino..*ino + 1);
            }
            is_changed |= left != *row;
            *row = left;
        }
        if !is_changed {
            return Ok(value);
        }
        let (bytes, children) = page::encode(&rows);
        Ok(batch.write(Class::Metadata, bytes.into(), &children).await?)
    }

    async fn own(&mut self, batch: &mut Batch, row: &Row) -> Result<Row, Error> {
        let (totals, mut own) = decode_own(Some(row)).map_err(|bad| unreadable(&bad))?;
        own.orphans = self.table(batch, &own.orphans, || Loss::Orphans).await?;
        own.kept = self.table(batch, &own.kept, || Loss::Kept).await?;
        Ok(own.row(&totals))
    }

    async fn inode(&mut self, batch: &mut Batch, ino: Ino, row: &Row) -> Result<Row, Error> {
        let mut stored = Stored::decode(row).map_err(|bad| unreadable(&bad))?;
        stored.body = match stored.body {
            Body::Row(bytes) => Body::Row(bytes),
            Body::Tree(names) if stored.inode.kind == FileType::Directory => {
                Body::Tree(self.table(batch, &names, || Loss::Names(ino)).await?)
            }
            Body::Tree(extents) => {
                let pruned = prune_inner(batch, &extents, self.fates, false).await?;
                let bytes = pruned.gone.into_iter().map(|keys| self.home.bytes_of(keys));
                let size = stored.inode.size;
                let within = |range: Range<u64>| range.start..range.end.min(size);
                let bytes = joined(bytes.map(within).filter(|range| !range.is_empty()));
                self.losses.extend(bytes.into_iter().map(|range| Loss::Bytes(ino, range)));
                Body::Tree(pruned.root)
            }
        };
        stored.xattrs = self.table(batch, &stored.xattrs, || Loss::Xattrs(ino)).await?;
        if let Taken::Table(table) = stored.taken {
            let losses = self.losses.len();
            let table = self.table(batch, &table, || Loss::Taken(ino)).await?;
            let is_whole = self.losses.len() == losses;
            stored.taken = if is_whole { Taken::Table(table) } else { Taken::Unknown };
        }
        Ok(stored.encode())
    }

    /// Prunes a table below a row.
    async fn table(
        &mut self,
        batch: &mut Batch,
        root: &Root,
        loss: impl FnOnce() -> Loss,
    ) -> Result<Root, Error> {
        let pruned = prune_inner(batch, root, self.fates, true).await?;
        self.losses.extend((!pruned.gone.is_empty()).then(loss));
        Ok(pruned.root)
    }
}

impl Values for Rows<'_> {
    fn left<'a>(
        &'a mut self,
        batch: &'a mut Batch,
        _keys: Range<u64>,
        value: Pointer,
    ) -> BoxFuture<'a, Result<Pointer, ContentError>> {
        Box::pin(async move {
            match self.page(batch, value).await {
                Ok(left) => Ok(left),
                Err(Error::Volume(rekindle_volume::Error::Staging(
                    rekindle_staging::Error::Content(error),
                ))) => Err(error),
                Err(error) => {
                    let text = error.to_string();
                    self.failed = Some(error);
                    Err(ContentError::Invalid(text))
                }
            }
        })
    }
}
