//! The check whether a volume may go on from a root that landed late.
//!
//! A commit whose outcome was open may land long after its life has ended. Until then no record
//! named its root, so a sweep may have deleted what the root reaches.

use crate::cache::Keep;
use crate::fetch::Sharing;
use crate::name::{PackMap, PackSet, PlaceSet};
use crate::sweep::condemned;
use crate::tree::Root;
use crate::{Class, Content, Error, Pointer, limits, pack};
use futures_util::future::{join_all, try_join_all};

/// Whether everything that `root` reaches and `known` does not is there, and stays. `false`:
/// something is absent or about to be deleted, or there is too much of it to look at. An error: no
/// answer is possible now.
///
/// `root` is in its record already: a sweep that marks from now on sees it.
pub async fn is_whole(content: &Content, root: &Root, known: &Root) -> Result<bool, Error> {
    // A sweep that condemns from now on waits for this hold, and marks again afterwards.
    let _hold = content.hold();
    let condemned = condemned::read(&content.inner.store).await?;
    let refused: PackSet = condemned.refused().collect();
    let Some(reached) = apart(content, root, known).await? else { return Ok(false) };
    if reached.keys().any(|pack| refused.contains(pack)) {
        return Ok(false);
    }
    let packs: Vec<_> = reached.into_iter().collect();
    for window in packs.chunks(limits::FETCH_WINDOW) {
        let looks = window.iter().map(|(pack, chunks)| are_there(content, *pack, chunks));
        if try_join_all(looks).await?.contains(&false) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Finds what `root` reaches and `known` does not, by pack: level by level, and only where the two
/// differ. `None`: a node cannot be read, or there is too much to look at.
async fn apart(
    content: &Content,
    root: &Root,
    known: &Root,
) -> Result<Option<PackMap<Vec<Pointer>>>, Error> {
    let mut reached: PackMap<Vec<Pointer>> = PackMap::default();
    let mut count = 0;
    let (mut new, mut old) = (Vec::from_iter(*root), Vec::from_iter(*known));
    loop {
        let both: PlaceSet = old.iter().copied().collect();
        new.retain(|pointer| !both.contains(pointer));
        if new.is_empty() {
            return Ok(Some(reached));
        }
        count += new.len();
        if count > limits::LANDED_CHUNKS_MAX {
            return Ok(None);
        }
        let both: PlaceSet = new.iter().copied().collect();
        old.retain(|pointer| !both.contains(pointer));
        old.truncate(limits::LANDED_CHUNKS_MAX);
        new.iter().for_each(|pointer| reached.entry(pointer.pack).or_default().push(*pointer));
        let Some(below) = children(content, &new).await? else { return Ok(None) };
        // If the known tree cannot be read, nothing of the new tree is skipped.
        old = children(content, &old).await?.unwrap_or_default();
        new = below;
    }
}

/// Reads the children that these chunks declare. `None`: one of the chunks cannot be had.
async fn children(content: &Content, of: &[Pointer]) -> Result<Option<Vec<Pointer>>, Error> {
    let mut children = Vec::new();
    let is_node = |pointer: &&Pointer| pack::class(pointer.pack) == Class::Metadata;
    let nodes: Vec<&Pointer> = of.iter().filter(is_node).collect();
    for window in nodes.chunks(limits::FETCH_WINDOW) {
        let reads =
            window.iter().map(|pointer| content.inner.read(pointer, Class::Metadata, Keep::No));
        for body in join_all(reads).await {
            match body {
                Ok(body) => children.extend(body.children()),
                Err(error) if error.missing().is_some() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Some(children))
}

/// Whether the pack is there, or else each of these chunks where a note leads.
async fn are_there(
    content: &Content,
    pack: rekindle_base::PackId,
    chunks: &[Pointer],
) -> Result<bool, Error> {
    let inner = &content.inner;
    match inner.store.get_range(&pack::key(pack), 0..1).await {
        Ok(first) => return Ok(!first.is_empty()),
        Err(rekindle_datastore::Error::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    for chunk in chunks {
        match inner.fetch(chunk, Sharing::No).await {
            Ok(_) => {}
            Err(error) if error.missing().is_some() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
