//! The rows of a volume's tables, besides inodes: the volume's own, names, extended attributes.
//! Little-endian.
//!
//! The row of the volume has the key 0 in the table of inodes: version 1 (2), whether it has a
//! table of files without a name (2), the next inode's number (8), bytes that files take (8),
//! inodes (8), number of clients (4); for each client its id (8), the oldest request that it may
//! send again (8), the number of its requests that were carried out (4), and these (8 each). If
//! there are clients of NFS, their number (4) follows; for each its id (8), the number of its calls
//! that were carried out (4), and for each of these seconds since 1970 (8) and its hash (8).
//!
//! If a front keeps something of inodes, the version is 2, the second number has bit 1 set, the
//! number of clients of NFS is there also when it is 0, and the number of such inodes (8) follows.
//! The row's second child, or its only one, is the table of what is kept, by inode number: a row is
//! the front's bytes.
//!
//! If bytes of files lie in their rows, the version is 3, and the row is as with version 2, also
//! without the table of what is kept.
//!
//! The row of a name has the name's position as its key: inode (8), type (1), the name. The row of
//! an extended attribute: the length of the name (1), the name, the value.
//!
//! See also `docs/format/files.md`.

use super::Bad;
use super::scribe::{Reader, Scribe};
use crate::limits;
use crate::types::{Call, FileType, Ino, Origin};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Of a row without inodes that a front keeps something of, and of one with such inodes.
const VERSION: u16 = 1;
const VERSION_KEPT: u16 = 2;
/// Of a volume with files whose bytes are in their rows.
const VERSION_IN_ROWS: u16 = 3;
/// Bits of the second number: the tables that the row has.
const HAS_ORPHANS: u16 = 1;
const HAS_KEPT: u16 = 2;

/// The tables that the row of a volume has, in the order of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tables {
    /// That of the files without a name.
    pub(crate) orphans: bool,
    /// That of what a front keeps of inodes.
    pub(crate) kept: bool,
}

impl Tables {
    /// Reads which tables a row has, without the rest.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        Self::read(&mut Reader(bytes)).map(|(_, tables)| tables)
    }

    fn read(reader: &mut Reader<'_>) -> Result<(u16, Self), Bad> {
        let version = reader.u16()?;
        if !matches!(version, VERSION | VERSION_KEPT | VERSION_IN_ROWS) {
            return Err(Bad("the volume is of a newer version: upgrade rekindle"));
        }
        let has = reader.u16()?;
        Ok((version, Self { orphans: has & HAS_ORPHANS != 0, kept: has & HAS_KEPT != 0 }))
    }

    fn bits(self) -> u16 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.orphans, HAS_ORPHANS) | bit(self.kept, HAS_KEPT)
    }
}

/// What a volume says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) next_ino: Ino,
    /// Bytes that files take.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) clients: BTreeMap<u64, Requests>,
    /// The calls of NFS that were carried out, by client; the last one is the newest.
    pub(crate) callers: BTreeMap<u64, VecDeque<Called>>,
    /// Inodes of which a front keeps something.
    pub(crate) kept: u64,
    /// Whether there are, or were, files whose bytes are in their rows.
    pub(crate) has_bytes_in_rows: bool,
}

/// A call of NFS that was carried out: seconds since 1970, and its hash.
type Called = (u64, u64);

/// The requests of a client that were carried out, and that it may send again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Requests {
    oldest: u64,
    done: BTreeSet<u64>,
}

impl Default for Totals {
    fn default() -> Self {
        let (clients, callers) = (BTreeMap::new(), BTreeMap::new());
        Self {
            next_ino: crate::types::ROOT + 1,
            bytes: 0,
            inodes: 1,
            clients,
            callers,
            kept: 0,
            has_bytes_in_rows: false,
        }
    }
}

impl Totals {
    pub(crate) fn encode(&self, tables: Tables) -> Vec<u8> {
        let version = match (self.has_bytes_in_rows, tables.kept) {
            (true, _) => VERSION_IN_ROWS,
            (false, true) => VERSION_KEPT,
            (false, false) => VERSION,
        };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&tables.bits().to_le_bytes());
        [self.next_ino, self.bytes, self.inodes].iter().for_each(|number| bytes.put_u64(*number));
        let count = |length: usize| u32::try_from(length).expect("clients are few").to_le_bytes();
        bytes.extend_from_slice(&count(self.clients.len()));
        for (client, Requests { oldest, done }) in &self.clients {
            bytes.put_u64(*client);
            bytes.put_u64(*oldest);
            bytes.extend_from_slice(&count(done.len()));
            done.iter().for_each(|request| bytes.put_u64(*request));
        }
        if self.callers.is_empty() && version == VERSION {
            return bytes;
        }
        bytes.extend_from_slice(&count(self.callers.len()));
        for (client, calls) in &self.callers {
            bytes.put_u64(*client);
            bytes.extend_from_slice(&count(calls.len()));
            for (at, key) in calls {
                bytes.put_u64(*at);
                bytes.put_u64(*key);
            }
        }
        if version != VERSION {
            bytes.put_u64(self.kept);
        }
        bytes
    }

    /// Decodes the row, and which tables it has.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Tables), Bad> {
        let mut reader = Reader(bytes);
        let (version, tables) = Tables::read(&mut reader)?;
        let (next_ino, bytes, inodes) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let mut clients = BTreeMap::new();
        for _ in 0..reader.u32()? {
            let (client, oldest) = (reader.u64()?, reader.u64()?);
            let done = (0..reader.u32()?).map(|_| reader.u64()).collect::<Result<_, _>>()?;
            clients.insert(client, Requests { oldest, done });
        }
        let mut callers = BTreeMap::new();
        let count = if reader.is_empty() { 0 } else { reader.u32()? };
        for _ in 0..count {
            let client = reader.u64()?;
            let calls = (0..reader.u32()?).map(|_| Ok((reader.u64()?, reader.u64()?)));
            callers.insert(client, calls.collect::<Result<_, Bad>>()?);
        }
        let kept = if version == VERSION { 0 } else { reader.u64()? };
        let has_bytes_in_rows = version == VERSION_IN_ROWS;
        let totals = Self { next_ino, bytes, inodes, clients, callers, kept, has_bytes_in_rows };
        Ok((totals, tables))
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

    /// Notes that a call of NFS was carried out. Calls that are old by its time are forgotten.
    pub(crate) fn note_call(&mut self, call: &Call) {
        let oldest = call.at.saturating_sub(limits::CALLS_KEPT.as_secs());
        let is_new = !self.callers.contains_key(&call.client);
        if is_new {
            // A client that has gone keeps no room.
            self.callers.retain(|_, calls| calls.back().is_some_and(|(at, _)| *at >= oldest));
        }
        if is_new && self.callers.len() >= limits::CLIENTS_MAX {
            let unheard = self.callers.iter().min_by_key(|(_, calls)| calls.back().copied());
            if let Some(unheard) = unheard.map(|(client, _)| *client) {
                self.callers.remove(&unheard);
            }
        }
        let calls = self.callers.entry(call.client).or_default();
        // Records may be applied twice.
        if !calls.contains(&(call.at, call.key)) {
            calls.push_back((call.at, call.key));
        }
        while calls.len() > limits::CALLS_MAX || calls.front().is_some_and(|(at, _)| *at < oldest) {
            calls.pop_front();
        }
    }

    pub(crate) fn has_call(&self, call: &Call) -> bool {
        let calls = self.callers.get(&call.client);
        calls.is_some_and(|calls| calls.iter().any(|(_, key)| *key == call.key))
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
        let orphans = Tables { orphans: true, kept: false };
        assert_eq!(Totals::decode(&totals.encode(orphans)).unwrap(), (totals.clone(), orphans));
        check_golden("totals.bin", &totals.encode(orphans));
        let short = totals.encode(Tables::default());
        assert!((0..short.len()).all(|end| Totals::decode(&short[..end]).is_err()));
        totals.kept = 7;
        for orphans in [true, false] {
            let both = Tables { orphans, kept: true };
            let bytes = totals.encode(both);
            assert_eq!(Totals::decode(&bytes).unwrap(), (totals.clone(), both));
            assert_eq!(Tables::decode(&bytes), Ok(both));
            assert!((0..bytes.len()).all(|end| Totals::decode(&bytes[..end]).is_err()));
        }
        check_golden("totals-kept.bin", &totals.encode(Tables { orphans: false, kept: true }));
        totals.has_bytes_in_rows = true;
        for tables in [Tables::default(), orphans, Tables { orphans: true, kept: true }] {
            let bytes = totals.encode(tables);
            assert_eq!(Totals::decode(&bytes).unwrap(), (totals.clone(), tables));
            assert!((0..bytes.len()).all(|end| Totals::decode(&bytes[..end]).is_err()));
        }
        check_golden("totals-in-rows.bin", &totals.encode(orphans));
        let named = Named { name: "a".into(), ino: 7, kind: FileType::Fifo };
        assert_eq!(Named::decode(&named.encode()).unwrap(), named);
        let xattr = Xattr { name: "user.a".into(), value: "b".into() };
        assert_eq!(Xattr::decode(&xattr.encode()).unwrap(), xattr);
    }

    #[test]
    fn calls_are_remembered_for_a_while() {
        let call = |client, at, key| Call { client, at, key };
        let mut totals = Totals::default();
        for key in 0..5000 {
            totals.note_call(&call(1, 1000 + key / 1000, key));
        }
        totals.note_call(&call(1, 1004, 4999));
        assert!(totals.has_call(&call(1, 0, 4999)) && !totals.has_call(&call(2, 0, 4999)));
        assert!(!totals.has_call(&call(1, 0, 4999 - limits::CALLS_MAX as u64)));
        assert_eq!(totals.callers[&1].len(), limits::CALLS_MAX, "twice is once");
        let orphans = Tables { orphans: true, kept: false };
        let read = Totals::decode(&totals.encode(orphans)).expect("it was written");
        assert_eq!(read, (totals.clone(), orphans));
        let bytes = totals.encode(Tables::default());
        assert!((45..bytes.len()).all(|end| Totals::decode(&bytes[..end]).is_err()));
        let later = 1004 + limits::CALLS_KEPT.as_secs();
        totals.note_call(&call(1, later, 1));
        assert!(totals.has_call(&call(1, later, 4999)), "it is just not old yet");
        totals.note_call(&call(2, later + 10_000, 1));
        assert!(!totals.has_call(&call(1, 0, 1)), "the client has gone");
        for client in 0..1000 {
            totals.note_call(&call(client, later + 10_000, 1));
        }
        assert_eq!(totals.callers.len(), limits::CLIENTS_MAX);
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
        let bytes = totals.encode(Tables::default());
        assert!(bytes.len() < 9 * (limits::REQUESTS_MAX + 3 * limits::CLIENTS_MAX));
    }
}
