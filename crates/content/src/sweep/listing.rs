//! The packs and notes in the store, as lists show them: in the order of their ids, with bounded
//! RAM.

use super::tally::{Notes, Pen, Sheet, Shelf, Trouble};
use crate::{Class, Content, Error, limits, moved, pack};
use rekindle_base::PackId;

/// A pack, and its length in bytes.
pub(super) type Listed = (PackId, u32);

/// Bytes of a pack in a file.
const ENTRY_BYTES: usize = 20;
/// Packs that are read from a file at once.
const READ_ENTRIES: usize = 4096;

/// The packs in the store.
pub(super) struct Listing {
    /// Data, metadata.
    spools: [Spool; 2],
    pub(super) packs: u64,
    pub(super) bytes: u64,
    /// A number of the packs and of the notes that were listed before them.
    pub(super) fingerprint: [u8; 32],
}

/// The packs of a class.
enum Spool {
    Ram(Vec<Listed>),
    File(Sheet, u64),
}

/// Lists the notes in the store, with their tags.
pub(super) async fn list_notes(content: &Content) -> Result<Notes, Error> {
    let mut notes = Notes::new();
    let mut after: Option<String> = None;
    loop {
        let page = content.inner.store.list(moved::PREFIX, after.as_deref()).await?;
        let Some(last) = page.last() else {
            return Ok(notes);
        };
        after = Some(last.key.clone());
        notes.extend(page.iter().filter_map(|note| Some((moved::pack_of(&note.key)?, note.tag))));
    }
}

impl Listing {
    /// Lists the packs. Those that do not fit into RAM go to the shelf.
    pub(super) async fn take(
        content: &Content,
        notes: &Notes,
        shelf: &Shelf,
    ) -> Result<Self, Trouble> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(notes.len() as u64).to_le_bytes());
        for pack in notes.keys() {
            hasher.update(&pack.0);
        }
        let (mut packs, mut bytes) = (0u64, 0u64);
        let mut spools = [Spool::Ram(Vec::new()), Spool::Ram(Vec::new())];
        for (class, spool) in [Class::Data, Class::Metadata].into_iter().zip(&mut spools) {
            let mut writer = Writer { ram: Vec::new(), pen: None };
            let mut pages = pack::Pages::new(&content.inner.store, class);
            let mut last = None;
            while let Some(page) = pages.next().await? {
                for (id, length) in page {
                    // A list that is not in order, as from a store that breaks its word, would be
                    // joined wrongly.
                    if last.is_some_and(|last| last >= id) {
                        let reason = "the list of packs is not in order".to_owned();
                        return Err(
                            Error::from(rekindle_datastore::Error::Unavailable(reason)).into()
                        );
                    }
                    last = Some(id);
                    (packs, bytes) = (packs + 1, bytes + length);
                    hasher.update(&id.0);
                    let length = u32::try_from(length).unwrap_or(u32::MAX);
                    writer.put((id, length), shelf, class).await?;
                }
            }
            hasher.update(&packs.to_le_bytes());
            *spool = writer.end().await?;
        }
        Ok(Self { spools, packs, bytes, fingerprint: hasher.finalize().into() })
    }

    /// Returns all packs in the order of their ids.
    pub(super) async fn all(&self) -> Result<Walk<'_>, Trouble> {
        let [data, metadata] = &self.spools;
        let mut readers = [Reader::new(data), Reader::new(metadata)];
        let mut next = [None, None];
        for (reader, next) in readers.iter_mut().zip(&mut next) {
            *next = reader.next().await?;
        }
        Ok(Walk { readers, next })
    }
}

struct Writer {
    ram: Vec<Listed>,
    pen: Option<(Pen, u64)>,
}

impl Writer {
    async fn put(&mut self, one: Listed, shelf: &Shelf, class: Class) -> Result<(), Trouble> {
        self.ram.push(one);
        if self.ram.len() < limits::LISTED_IN_RAM {
            return Ok(());
        }
        let (pen, count) = self
            .pen
            .get_or_insert_with(|| (shelf.write(&format!("listed-{class:?}").to_lowercase()), 0));
        *count += self.ram.len() as u64;
        spill(&mut self.ram, pen).await
    }

    async fn end(mut self) -> Result<Spool, Trouble> {
        let Some((mut pen, count)) = self.pen else { return Ok(Spool::Ram(self.ram)) };
        let count = count + self.ram.len() as u64;
        spill(&mut self.ram, &mut pen).await?;
        Ok(Spool::File(pen.end(false).await?, count))
    }
}

async fn spill(ram: &mut Vec<Listed>, pen: &mut Pen) -> Result<(), Trouble> {
    for (pack, length) in ram.drain(..) {
        pen.put(&pack.0).await?;
        pen.put(&length.to_le_bytes()).await?;
    }
    Ok(())
}

struct Reader<'a> {
    spool: &'a Spool,
    at: u64,
    /// Packs that were read from the file.
    window: std::vec::IntoIter<Listed>,
}

impl<'a> Reader<'a> {
    fn new(spool: &'a Spool) -> Self {
        Self { spool, at: 0, window: Vec::new().into_iter() }
    }

    async fn next(&mut self) -> Result<Option<Listed>, Trouble> {
        match self.spool {
            Spool::Ram(packs) => {
                let next = usize::try_from(self.at).ok().and_then(|at| packs.get(at)).copied();
                self.at += 1;
                Ok(next)
            }
            Spool::File(sheet, count) => {
                if let Some(next) = self.window.next() {
                    return Ok(Some(next));
                }
                let many = (count - self.at).min(READ_ENTRIES as u64);
                let length = usize::try_from(many).unwrap_or(0) * ENTRY_BYTES;
                let bytes = sheet.read(self.at * ENTRY_BYTES as u64, length).await?;
                self.at += many;
                let entry = |bytes: &[u8]| {
                    let (id, length) = bytes.split_first_chunk()?;
                    Some((PackId(*id), u32::from_le_bytes(*length.first_chunk()?)))
                };
                let window: Vec<Listed> = bytes.chunks(ENTRY_BYTES).filter_map(entry).collect();
                self.window = window.into_iter();
                Ok(self.window.next())
            }
        }
    }
}

/// All packs, in the order of their ids.
pub(super) struct Walk<'a> {
    readers: [Reader<'a>; 2],
    next: [Option<Listed>; 2],
}

impl Walk<'_> {
    pub(super) async fn next(&mut self) -> Result<Option<Listed>, Trouble> {
        let [data, metadata] = &self.next;
        let is_metadata = match (data, metadata) {
            (Some(data), Some(metadata)) => metadata < data,
            (data, _) => data.is_none(),
        };
        let which = usize::from(is_metadata);
        let after = self.readers[which].next().await?;
        Ok(std::mem::replace(&mut self.next[which], after))
    }
}
