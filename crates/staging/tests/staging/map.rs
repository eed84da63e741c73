//! A volume kind that is no range: a map of numbered values, changed by records. A group moves a
//! value from one key to another. The tests of `volume` and the simulation have the same map.

use bytes::Bytes;
use parking_lot::Mutex;
use rekindle_base::Serial;
use rekindle_content::tree::{self, Root};
use rekindle_content::{Batch, Class, Content};
use rekindle_env::BoxFuture;
use rekindle_staging::{Error, NewRecord, Record, RecordHome, Staged, Vault, Written};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Keys of a map: 0 to this.
pub const KEYS: u64 = 40;
/// The kinds of its records: a key and a value, a key.
pub const PUT: u64 = 1;
pub const DELETE: u64 = 2;

pub type Values = BTreeMap<u64, Bytes>;

/// A change of a map, before it is a record.
#[derive(Debug, Clone)]
pub enum Op {
    Put(u64, Bytes),
    Delete(u64),
}

impl Op {
    /// The record's kind and bytes.
    pub fn encode(&self) -> (u64, Vec<u8>) {
        match self {
            Op::Put(key, value) => (PUT, [&key.to_le_bytes()[..], value].concat()),
            Op::Delete(key) => (DELETE, key.to_le_bytes().to_vec()),
        }
    }

    fn decode(record: &Record) -> Op {
        let (key, value) = record.bytes.split_at(8);
        let key = u64::from_le_bytes(key.try_into().expect("8 bytes"));
        match record.kind {
            PUT => Op::Put(key, Bytes::copy_from_slice(value)),
            DELETE => Op::Delete(key),
            other => panic!("a map has no records of kind {other}"),
        }
    }

    /// The key, and its value afterwards.
    fn outcome(self) -> (u64, Option<Bytes>) {
        match self {
            Op::Put(key, value) => (key, Some(value)),
            Op::Delete(key) => (key, None),
        }
    }

    pub fn apply(&self, values: &mut Values) {
        match self {
            Op::Put(key, value) => drop(values.insert(*key, value.clone())),
            Op::Delete(key) => assert!(values.remove(key).is_some(), "key {key} is deleted once"),
        }
    }
}

/// The home of a map: the visible changes that the root does not have, in RAM.
pub struct Map {
    content: Content,
    state: Mutex<MapState>,
}

struct MapState {
    /// The last outcome of each key that the root does not have, and its serial.
    newer: BTreeMap<u64, (Serial, Option<Bytes>)>,
    /// The last visible record.
    last: Serial,
    root: Root,
    checkpoint: Serial,
}

impl Map {
    /// Makes the home of a map. Reads nothing: a kind opens its volumes by a plain call.
    pub fn new(content: &Content, vault: &Vault) -> Arc<Map> {
        let (root, checkpoint) = (vault.root, vault.checkpoint);
        let state = MapState { newer: BTreeMap::new(), last: checkpoint, root, checkpoint };
        Arc::new(Map { content: content.clone(), state: Mutex::new(state) })
    }

    /// The map under a root.
    pub async fn load(content: &Content, root: &Root) -> Result<Values, Error> {
        let mut values = Values::new();
        for (key, pointer) in tree::range(content, root, 0..KEYS).await? {
            values.insert(key, content.read(&pointer, Class::Data).await?);
        }
        Ok(values)
    }

    /// The visible map.
    pub async fn values(&self) -> Result<Values, Error> {
        // No sweep takes what this root reaches before it has been read.
        let _hold = self.content.hold();
        let (root, newer) = {
            let state = self.state.lock();
            (state.root, state.newer.clone())
        };
        let mut values = Map::load(&self.content, &root).await?;
        for (key, (_, value)) in newer {
            match value {
                Some(value) => drop(values.insert(key, value)),
                None => drop(values.remove(&key)),
            }
        }
        Ok(values)
    }

    pub fn last(&self) -> Serial {
        self.state.lock().last
    }

    /// The root, and the checkpoint up to which it has the records.
    pub fn stored(&self) -> (Root, Serial) {
        let state = self.state.lock();
        (state.root, state.checkpoint)
    }
}

impl RecordHome for Map {
    fn apply(&self, group: &[Record]) {
        let mut state = self.state.lock();
        for (index, record) in group.iter().enumerate() {
            assert_eq!(record.serial, state.last.next(), "each record once, in serial order");
            assert_eq!(record.joined, index + 1 < group.len(), "one whole group");
            let (key, value) = Op::decode(record).outcome();
            state.newer.insert(key, (record.serial, value));
            state.last = record.serial;
        }
    }

    fn finish(&self, root: &Root, checkpoint: Serial) {
        let mut state = self.state.lock();
        assert!(checkpoint >= state.checkpoint && checkpoint <= state.last, "visible before");
        (state.root, state.checkpoint) = (*root, checkpoint);
        state.newer.retain(|_, (serial, _)| *serial > checkpoint);
    }

    fn fold<'a>(
        &'a self,
        batch: &'a mut Batch,
        root: &'a Root,
        records: &'a [Record],
    ) -> BoxFuture<'a, Result<Root, Error>> {
        Box::pin(async move {
            assert!(records.last().is_some_and(|last| !last.joined), "groups are whole");
            let values: BTreeMap<_, _> =
                records.iter().map(|record| Op::decode(record).outcome()).collect();
            let mut entries = Vec::new();
            for (key, value) in values {
                let pointer = match value {
                    Some(value) => Some(batch.write(Class::Data, value, &[]).await?),
                    None => None,
                };
                entries.push((key, pointer));
            }
            Ok(tree::update(&self.content, batch, root, &entries).await?)
        })
    }

    fn check_tree<'a>(&'a self, root: &'a Root) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Ok(tree::range(&self.content, root, 0..KEYS).await.map(drop)?) })
    }
}

/// Submits one change or a group.
pub fn submit(volume: &Arc<Staged>, ops: &[Op], durable: bool) -> Written {
    let encoded: Vec<_> = ops.iter().map(Op::encode).collect();
    let records: Vec<_> =
        encoded.iter().map(|(kind, bytes)| NewRecord { kind: *kind, bytes }).collect();
    volume.append_records(&records, durable)
}

/// Reads the map of a volume in service, as a protocol would.
pub async fn read(volume: &Staged) -> Result<Values, Error> {
    volume.until_readable().await?;
    let map = volume.record_home::<Map>().expect("the volume is a map");
    assert!(map.stored().1 <= map.last(), "the root has visible records only");
    let values = map.values().await.inspect_err(|error| volume.notice(error))?;
    volume.check_read().map(|()| values)
}
