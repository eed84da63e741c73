//! The rows of a volume's tables, besides inodes: the volume's own, names, extended attributes.
//! Little-endian.
//!
//! The row of the volume has the key 0 in the table of inodes: version 1 (2), whether it has a
//! table of files without a name (2), the next inode's number (8), bytes that files take (8),
//! inodes (8), number of clients (4); for each client its id (8), the oldest request that it may
//! send again (8), the number of its requests that were carried out (4), and these (8 each).
//!
//! The row of a name has the name's position as its key: inode (8), type (1), the name. The row of
//! an extended attribute: the length of the name (1), the name, the value.
//!
//! See also `docs/format/files.md`.

use super::Bad;
use super::scribe::{Reader, Scribe};
use crate::limits;
use crate::types::{FileType, Ino, Origin};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

const VERSION: u16 = 1;

/// What a volume says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) next_ino: Ino,
    /// Bytes that files take.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) clients: BTreeMap<u64, Requests>,
}

/// The requests of a client that were carried out, and that it may send again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Requests {
    oldest: u64,
    done: BTreeSet<u64>,
}

impl Default for Totals {
    fn default() -> Self {
        Self { next_ino: crate::types::ROOT + 1, bytes: 0, inodes: 1, clients: BTreeMap::new() }
    }
}

impl Totals {
    pub(crate) fn encode(&self, has_orphans: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u16::from(has_orphans).to_le_bytes());
        [self.next_ino, self.bytes, self.inodes].iter().for_each(|number| bytes.put_u64(*number));
        let count = |length: usize| u32::try_from(length).expect("clients are few").to_le_bytes();
        bytes.extend_from_slice(&count(self.clients.len()));
        for (client, Requests { oldest, done }) in &self.clients {
            bytes.put_u64(*client);
            bytes.put_u64(*oldest);
            bytes.extend_from_slice(&count(done.len()));
            done.iter().for_each(|request| bytes.put_u64(*request));
        }
        bytes
    }

    /// Decodes the row, and whether it has a table of files without a name.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, bool), Bad> {
        let mut reader = Reader(bytes);
        if reader.u16()? != VERSION {
            return Err(Bad("the volume is of a newer version: upgrade rekindle"));
        }
        let has_orphans = reader.u16()? != 0;
        let (next_ino, bytes, inodes) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut clients = BTreeMap::new();
        for _ in 0..reader.u32()? {
            let (client, oldest) = (reader.u64()?, reader.u64()?);
            let done = (0..reader.u32()?).map(|_| reader.u64()).collect::<Result<_, _>>()?;
            clients.insert(client, Requests { oldest, done });
        }
        Ok((Self { next_ino, bytes, inodes, clients }, has_orphans))
    }

    /// Notes that a request was carried out.
    pub(crate) fn note(&mut self, origin: &Origin) {
        if !self.clients.contains_key(&origin.client) && self.clients.len() >= limits::CLIENTS_MAX {
            let unheard = self.clients.iter().min_by_key(|(_, requests)| requests.done.last());
            if let Some(unheard) = unheard.map(|(client, _)| *client) {
                self.clients.remove(&unheard);
            }
        }
        let Requests { oldest, done } = self.clients.entry(origin.client).or_default();
        *oldest = origin.oldest.max(*oldest);
        done.insert(origin.request);
        *done = done.split_off(oldest);
        while done.len() > limits::REQUESTS_MAX {
            done.pop_first();
        }
    }

    pub(crate) fn has(&self, origin: &Origin) -> bool {
        let requests = self.clients.get(&origin.client);
        requests.is_some_and(|requests| requests.done.contains(&origin.request))
    }
}

/// The row of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: Bytes,
    pub(crate) ino: Ino,
    pub(crate) kind: FileType,
}

impl Named {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.ino.to_le_bytes()[..], &[self.kind as u8], &self.name].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let mut reader = Reader(bytes);
        let (ino, kind) = (reader.u64()?, file_type(reader.u8()?)?);
        Ok(Self { name: Bytes::copy_from_slice(reader.0), ino, kind })
    }
}

pub(super) fn file_type(number: u8) -> Result<FileType, Bad> {
    let kind = FileType::ALL.into_iter().find(|kind| *kind as u8 == number);
    kind.ok_or(Bad("a name has no known type"))
}

/// The row of an extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xattr {
    pub(crate) name: Bytes,
    pub(crate) value: Bytes,
}

impl Xattr {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = u8::try_from(self.name.len()).expect("a name has 255 bytes at most");
        [&[length][..], &self.name, &self.value].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let mut reader = Reader(bytes);
        let length = reader.u8()?;
        let name = Bytes::copy_from_slice(reader.take(length.into())?);
        Ok(Self { name, value: Bytes::copy_from_slice(reader.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::check_golden;

    #[test]
    fn rows_survive() {
        let mut totals = Totals { next_ino: 9, bytes: 1 << 40, inodes: 3, ..Totals::default() };
        let origin = |request, oldest| Origin { client: 4, request, oldest };
        for (request, oldest) in [(1, 1), (2, 1), (5, 2)] {
            totals.note(&origin(request, oldest));
        }
        assert!(
            !totals.has(&origin(1, 0)) && totals.has(&origin(2, 0)) && totals.has(&origin(5, 0))
        );
        assert_eq!(Totals::decode(&totals.encode(true)).unwrap(), (totals.clone(), true));
        check_golden("totals.bin", &totals.encode(true));
        let short = totals.encode(false);
        assert!((0..short.len()).all(|end| Totals::decode(&short[..end]).is_err()));
        let named = Named { name: "a".into(), ino: 7, kind: FileType::Fifo };
        assert_eq!(Named::decode(&named.encode()).unwrap(), named);
        let xattr = Xattr { name: "user.a".into(), value: "b".into() };
        assert_eq!(Xattr::decode(&xattr.encode()).unwrap(), xattr);
    }

    #[test]
    fn clients_that_are_not_heard_of_are_forgotten() {
        let mut totals = Totals::default();
        for client in 0..1000 {
            totals.note(&Origin { client, request: client, oldest: client });
        }
        assert_eq!(totals.clients.len(), limits::CLIENTS_MAX);
        assert!(totals.has(&Origin { client: 999, request: 999, oldest: 0 }));
        for request in 0..10_000 {
            totals.note(&Origin { client: 999, request, oldest: 0 });
        }
        assert!(totals.encode(false).len() < 9 * (limits::REQUESTS_MAX + 3 * limits::CLIENTS_MAX));
    }
}
