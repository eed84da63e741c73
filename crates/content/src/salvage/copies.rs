//! Other copies of chunks that cannot be had at their places: the same name, elsewhere in the
//! store.
//!
//! Two batches that wrote the same bytes at once, or an index that had forgotten them, leave two
//! copies. Only the footers tell, so the search reads all of them: it runs only when a chunk would
//! be given up otherwise.

use crate::fetch::Sharing;
use crate::name::{NameMap, NameSet};
use crate::pack::reader::{Body, read_footer};
use crate::pack::writer::pointer;
use crate::verify::Damage;
use crate::{Class, Content, Error, Pointer, limits, pack};
use futures_util::future::join_all;
use rekindle_base::Kind;

/// The other places of chunks, as footers say.
#[derive(Debug, Clone, Default)]
pub(super) struct OtherPlaces {
    places: NameMap<Vec<Pointer>>,
}

/// Looks for other copies of chunks that cannot be had. An error means that no answer is possible
/// now.
pub(super) async fn search(content: &Content, damages: &[Damage]) -> Result<OtherPlaces, Error> {
    let inner = &content.inner;
    let mut copies = OtherPlaces::default();
    for class in [Class::Metadata, Class::Data] {
        let wanted: NameSet = damages
            .iter()
            .filter(|damage| pack::class(damage.pointer.pack) == class)
            .map(|damage| damage.pointer.name)
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let packs = pack::list(&inner.store, class).await?;
        for window in packs.chunks(limits::FETCH_WINDOW) {
            let reads = window
                .iter()
                .map(|&(id, length)| read_footer(&inner.store, &inner.namer, id, length));
            for ((id, _), footer) in window.iter().zip(join_all(reads).await) {
                let entries = match footer {
                    Ok(entries) => entries,
                    // The pack is gone meanwhile, or a newer binary wrote it.
                    Err(error)
                        if error.missing().is_some() || error.kind() == Kind::Unsupported =>
                    {
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                for entry in entries.iter().filter(|entry| wanted.contains(&entry.name)) {
                    copies.places.entry(entry.name).or_default().push(pointer(*id, entry));
                }
            }
        }
    }
    Ok(copies)
}

impl OtherPlaces {
    /// Reads a chunk from one of its other places. An error means that no answer is possible now.
    pub(super) async fn read(
        &self,
        content: &Content,
        pointer: &Pointer,
    ) -> Result<Option<Body>, Error> {
        let others = self.places.get(&pointer.name).into_iter().flatten();
        for other in others.filter(|other| *other != pointer) {
            match content.inner.fetch(other, Sharing::No).await {
                Ok(body) => return Ok(Some(body)),
                Err(error) if error.missing().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
